"""The coordinator's side: asks all parties, in order, and makes a model of what they send. It never sees a row.

Order and money. First everybody describes, then everybody reserves in its own account, then everybody commits, then
messages leave. If a party refuses to reserve or does not answer, all others take back what they had reserved and the
run ends; nothing was charged. Once committed, a charge stands: what a party has drawn cannot be proved to be unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

from dpalgos.models import Artefact, decode
from dpalgos.secure.rounds import Stage
from storage.errors import RefusedError, StorageError
from storage.refs import ReleaseRef
from storage.releases import ReleaseStore
from tasks.federation.messages import Answer, Ask, Request, Roster, Signed, Status, packed, unpacked
from tasks.federation.planning import described, federated_plan, run_name
from tasks.planning.configuration import TrainingConfig
from tasks.planning.fields import Json
from tasks.planning.plans import PlannedRelease, RunPlan
from tasks.release.rounds import ServerRounds
from tasks.runtime.settings import current_layout

__all__ = ["Federated", "Post", "federate"]


class Post(Protocol):
    """How a request reaches a party and its answer comes back."""

    def __call__(self, party: str, request: Request) -> Answer | None:
        """Return a party's answer; None where none came in time."""
        ...


class Federated(BaseModel):
    """What a run over parties of their own leaves with the coordinator.

    Attributes
    ----------
    run : str
        Its identity.
    model : ReleaseRef
        What was made of the parties' releases or of their masked sum.
    algorithm, trust : str
    took_part : tuple of str
        Whose rows the model is of.
    epsilon, delta : float or None
        What the run was planned to cost each party.
    """

    model_config = ConfigDict(frozen=True)

    run: str
    model: ReleaseRef
    algorithm: str
    trust: str
    took_part: tuple[str, ...]
    epsilon: float | None
    delta: float


def federate(
    config: TrainingConfig, roster: Roster, post: Post, *, told: Callable[[str], None] = lambda line: None
) -> Federated:
    """Train one model over the rows of parties of their own; asked again, it goes on where it stopped.

    Parameters
    ----------
    config : TrainingConfig
        ``local``: each party releases its own model and the coordinator averages them. ``secagg``: one secure sum.
    roster : Roster
    post : callable
    told : callable
        Told what is being done.

    Raises
    ------
    RefusedError
        If a party refuses, naming it and why. What others had reserved is returned.
    StorageError
        If too few parties answer; a run that was committed goes on when it is asked again.
    dpalgos.secure.errors.SecureAggregationError
        If a message breaks the protocol, or fewer parties are left than are tolerated.
    """
    asking = _Asking(config.model_copy(update={"evaluation": False}), roster, post, told)
    asking.describe()
    asking.reserve()
    asking.ask_all(Ask.COMMIT)
    plan, run = asking.plan, asking.run
    (first, *_), store = plan.models, ReleaseStore(current_layout())
    key = plan.model.key if plan.model is not None else first.key
    if not store.exists(key):
        made, took_part = asking.average() if plan.model is not None else asking.sum(first)
        store.write(key, _manifest(asking, key, made, took_part), made.arrays())
    manifest = store.manifest(key)
    return Federated(
        run=run,
        model=ReleaseRef(key=key, kind=manifest["artefact"], party="server"),
        algorithm=plan.system,
        trust=plan.trust,
        took_part=tuple(manifest["took_part"]),
        epsilon=plan.epsilon,
        delta=plan.delta,
    )


def _manifest(asking: _Asking, key: str, made: Artefact, took_part: Sequence[str]) -> Json:
    """Return what the model says of itself: post-processing of what the parties released and charged themselves."""
    plan = asking.plan
    return {
        "key": key,
        "artefact": made.kind,
        "label": f"model of {len(took_part)} parties of their own",
        "run": asking.run,
        "algorithm_name": plan.system,
        "trust": plan.trust,
        "took_part": list(took_part),
        "charged_by": "each party, in its own account",
        "guarantees": [release.guarantee().to_json() for release in plan.models],
        "descriptions": [one.model_dump(mode="json") for one in asking.said],
    }


class _Asking:
    """One run, with what is known of it so far."""

    plan: RunPlan
    run: str

    def __init__(self, config: TrainingConfig, roster: Roster, post: Post, told: Callable[[str], None]) -> None:
        self._config, self._roster, self._post, self._told = config, roster, post, told
        self.said: tuple[Signed, ...] = ()

    def describe(self) -> None:
        """Ask what is public of all rows, and plan the run."""
        answers = self.ask_all(Ask.DESCRIBE)
        self.said = tuple(answer.signed for answer in answers.values() if answer.signed is not None)
        found = described(self._roster, self.said)
        self.run = run_name(self._config, self.said)
        self.plan = federated_plan(self._config, found, self.run)

    def reserve(self) -> None:
        """Let everybody reserve, or nobody."""
        try:
            answers = self.ask_all(Ask.RESERVE)
            for party, answer in answers.items():
                derived = unpacked(answer.message).decode()
                keys = [release.key for release in self.plan.models if party in release.parties]
                if derived != ",".join(keys):
                    raise RefusedError(f"party {party} derives another plan: it has another version of Unitball")
        except (RefusedError, StorageError):
            self._ask(dict.fromkeys(self._roster.names, self._request(Ask.RETURN)))
            raise

    def average(self) -> tuple[Artefact, Sequence[str]]:
        """Return the mean of the parties' own models, weighted as planned."""
        combination = self.plan.model
        assert combination is not None
        answers = self.ask_all(Ask.RELEASE)
        models = [_checked(release, answers[release.parties[0]]) for release in self.plan.models]
        aggregator = combination.algorithm.build()
        return aggregator.combine(models, np.array(combination.weights)), self._roster.names

    def sum(self, release: PlannedRelease) -> tuple[Artefact, Sequence[str]]:
        """Carry out the rounds of one secure sum; parties that are lost are done without, as far as is tolerated."""
        server, names = ServerRounds(release), self._roster.names
        server.open()
        advertisements: tuple[Signed, ...] = ()
        for stage in Stage:
            requests = {
                names[number]: self._request(Ask(stage.value), packed(message), advertisements)
                for number, message in server.requests(stage)
            }
            answers = self._ask(requests)
            _require_none_refused(answers)
            came = [answer for answer in answers.values() if answer is not None and answer.status is Status.DONE]
            if lost := set(requests) - {answer.party for answer in came}:
                self._told(f"{stage}: {', '.join(sorted(lost))} did not answer")
            if stage is Stage.ADVERTISE:
                advertisements = tuple(answer.signed for answer in came if answer.signed is not None)
            messages = [unpacked(answer.message) for answer in came]
            if stage is Stage.UNMASK:
                return server.artefact(messages), server.survivors
            server.decide(stage, messages)
        raise AssertionError("the last stage opens the sum")

    def ask_all(self, ask: Ask) -> dict[str, Answer]:
        """Ask every party the same, and return what they answer.

        Raises
        ------
        RefusedError
            If one refuses.
        StorageError
            If one does not answer, or cannot.
        """
        answers = self._ask(dict.fromkeys(self._roster.names, self._request(ask)))
        _require_none_refused(answers)
        found = {party: answer for party, answer in answers.items() if answer is not None}
        missing = [party for party in answers if party not in found or found[party].status is not Status.DONE]
        if missing:
            said = "; ".join(found[party].reason for party in missing if party in found)
            raise StorageError(
                f"{', '.join(missing)} did not {ask}{f' ({said})' if said else ''}; start it (unitball party serve) "
                "and ask again: the run goes on where it stopped"
            )
        return found

    def _ask(self, requests: Mapping[str, Request]) -> dict[str, Answer | None]:
        asks = {str(request.ask) for request in requests.values()}
        self._told(f"{', '.join(sorted(asks))}: {', '.join(requests)}")
        with ThreadPoolExecutor(max(len(requests), 1)) as pool:
            return dict(zip(requests, pool.map(self._post, requests, requests.values()), strict=True))

    def _request(self, ask: Ask, message: str = "", advertisements: tuple[Signed, ...] = ()) -> Request:
        return Request(
            ask=ask, config=self._config, descriptions=self.said, message=message, advertisements=advertisements
        )


def _require_none_refused(answers: Mapping[str, Answer | None]) -> None:
    for answer in answers.values():
        if answer is not None and answer.status is Status.REFUSED:
            raise RefusedError(answer.reason)


def _checked(planned: PlannedRelease, answer: Answer) -> Artefact:
    """Return the artefact of a party's release, if it is of the algorithm and at the budget that were planned.

    Raises
    ------
    RefusedError
        If it is another release.
    storage.errors.DamagedError
        If its digests do not match.
    """
    files = {"manifest.json": unpacked(answer.manifest), "arrays.npz": unpacked(answer.message)}
    manifest, arrays = ReleaseStore.decode(files, Path(answer.party))
    wanted = planned.model_dump(mode="json", include={"algorithm", "budget", "setting", "trust", "parties"})
    if any(manifest.get(name) != value for name, value in wanted.items()):
        raise RefusedError(f"party {answer.party} has sent another release than was planned")
    found: Artefact = decode(manifest["artefact"], arrays)
    return found
