"""Everything that can be audited, by name: each algorithm that draws noise. Also many audits in parallel."""

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context, parent_process
from pathlib import Path

from threadpoolctl import threadpool_limits

from dpalgos.audit.experiment import AuditOptions, AuditReport
from dpalgos.audit.releases import audit_release, audited
from dpalgos.parameters import ParameterError, UnknownNameError
from dpalgos.registry import names
from storage.atomic import write_bytes
from tasks.auditing.systems import audit_system, draws_noise
from tasks.planning.configuration import Json
from tasks.planning.identity import identity, package_digest
from tasks.runtime.progress import report_runs

KINDS = ("systems", "projections", "trainers", "evaluators")
"""The kinds of what can be audited; of a name that several have, the first is meant."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of an audit.

    Parameters
    ----------
    kind, name : str
    """

    kind: str
    name: str


def subjects() -> list[Subject]:
    """Return all that draws noise: systems first, then the releases that they are made of.

    Aggregators are not among them: they read releases, not rows, and have no privacy cost. Their output is
    an observable of each system's audit.
    """
    releases = [Subject(kind, name) for kind in KINDS[1:] for name in names(kind) if audited(kind, name)]
    return [Subject("systems", name) for name in names("systems") if draws_noise(name)] + releases


def find_subject(name: str, kind: str | None = None) -> Subject:
    """Return what a name means: a system, or else a release.

    Raises
    ------
    UnknownNameError
        Naming what is registered.
    ParameterError
        For a kind, or a name, that cannot be audited.
    """
    if kind is not None and kind not in KINDS:
        raise ParameterError(f"kind is {kind!r}; give one of {', '.join(KINDS)}")
    for one in [kind] if kind else KINDS:
        if name in names(one):
            return Subject(one, name)
    if name in names("aggregators"):
        raise ParameterError(
            f"{name} is an aggregator, which reads releases and no rows; audit a system that contains it"
        )
    raise UnknownNameError(f"no algorithm {name!r} can be audited; list them: unitball algorithms")


def audit_subject(subject: Subject, options: AuditOptions) -> AuditReport:
    """Audit one system or release.

    Raises
    ------
    ParameterError
        For numbers out of range, or where no noise is drawn.
    """
    if subject.kind == "systems":
        return audit_system(subject.name, options)
    started = time.monotonic()
    report = audit_release(subject.kind, subject.name, options, progress=report_runs)
    return replace(report, seconds=round(time.monotonic() - started, 2))


def audit_all(
    wanted: Sequence[Subject], options: AuditOptions, folder: Path, *, processes: int
) -> Iterator[tuple[Subject, Json]]:
    """Audit many, some at a time, and yield each report in JSON as soon as it is there.

    A report is kept in ``folder`` under a digest of what was audited, how, and of our whole source; where one is found
    it is not made again, so that an audit of everything that was interrupted goes on where it stopped. An audit that
    fails is yielded with the verdict ``not audited`` and the reason.

    Parameters
    ----------
    wanted : sequence of Subject
    options : AuditOptions
    folder : Path
        Made where there is none.
    processes : int
        How many at a time.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    request = {"code": package_digest("dpalgos", "tasks"), "arguments": asdict(options)}
    places = {one: folder / f"{identity(subject=asdict(one), **request)}.json" for one in wanted}
    missing = []
    for subject, place in places.items():
        kept = _read(place)
        if kept is None:
            missing.append(subject)
        else:
            yield subject, kept
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=_begin) as pool:
        waiting: Mapping[Future[AuditReport], Subject] = {
            pool.submit(audit_subject, subject, options): subject for subject in missing
        }
        try:
            for done in as_completed(waiting):
                subject, failure = waiting[done], done.exception()
                if failure is not None:
                    # One that cannot be audited must not end the others; nothing is kept, so it is tried again.
                    yield subject, _failed(subject, failure)
                    continue
                report = done.result().to_json()
                write_bytes(places[subject], json.dumps(report).encode())
                yield subject, json.loads(json.dumps(report))
        finally:
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Begin a process of the pool: it ends with the one that started it, which may end without a word to it."""
    # The linear algebra of one process is not to slow the others down.
    threadpool_limits(1)
    parent = parent_process()
    assert parent is not None, "a process of a pool has a parent"

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _failed(subject: Subject, failure: BaseException) -> Json:
    reason = f"{type(failure).__name__}: {' '.join(str(failure).split())}"
    numbers = ("delta", "claimed_epsilon", "proved_epsilon", "lower_bound", "gaussian_bound", "seconds")
    verdict = {"kind": subject.kind, "algorithm": subject.name, "verdict": f"not audited ({reason})", "trials": 0}
    return verdict | dict.fromkeys(numbers)


def _read(place: Path) -> Json | None:
    """Return a kept report; None where there is none that can be read."""
    try:
        report: Json = json.loads(place.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return report
