"""A public deadline hides how long the work on private rows took, and its misses are charged.

Work takes the time of a clock that only it and the waits move: what else the machine does changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpalgos.accounting.composition import compose
from dpalgos.algorithms import fit
from dpalgos.guarantees import SlackGaussian
from flows.federated_training import chain_inline
from storage.errors import RefusedError
from storage.refs import Visibility
from storage.rowfiles import StoredRows
from tasks import releases, rows
from tasks.accounts.ledger import open_ledger
from tasks.accounts.terms import gaussian_delta
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.releases import PlannedRelease
from tasks.preparation import prepare as planning
from tasks.preparation.making import make_rows
from tasks.preparation.partitions import are_stored_whole
from tasks.release import deadlines, door
from tasks.runtime.progress import listen, observed_by
from tasks.runtime.settings import current_layout
from tasks.tracking.artifacts import STAGES
from tests.support.chains import Prepared, charges, configured, digests, followed, ingest_private, prepare
from tests.support.plans import planned
from tests.support.private_rows import CLASSES, DIMENSION
from tests.support.stating import stating

SECONDS, DELAY = 1.5, 0.6
NOISY: dict[str, Any] = {"algorithm": "noisy-gd", "trust": "central", "test_fraction": 0.0}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a root with two neighbouring private sets: the first row of one has another label."""
    folder = tmp_path_factory.mktemp("deadlines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(folder / "root"))
        account: dict[str, Any] = {"epsilon_cap": 50.0, "delta_cap": 1e-3, "allow_idealised": True}
        rows = ingest_private(folder / "input", **account)
        other = folder / "other.txt"
        other.write_text(rows.path.read_text().replace("-1 ", "+1 ", 1))
        ingest(
            IngestRequest(
                name="neighbour",
                format="libsvm",
                path=other,
                visibility=Visibility.PRIVATE,
                dimension=DIMENSION,
                classes=CLASSES,
                account="neighbour",
                disjoint_people="made up",
                **account,
            )
        )
        # The release's code and its upstream modules are loaded before anything is timed.
        one = prepare(**NOISY, replicate=99)
        door.make_release(one.plan.models[0], one.shards.training)
        yield folder / "root"


class Clock:
    """A monotonic clock that stands still but for what is slept."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0.0
        self.now += seconds

    def of(self, work: Callable[[], object]) -> float:
        """Return how long something takes."""
        begin = self.now
        work()
        return self.now - begin


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock of releases and their deadlines."""
    made = Clock()
    monkeypatch.setattr(door, "time", made)
    monkeypatch.setattr(deadlines, "time", made)
    return made


@pytest.fixture
def slow(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let work take longer where one more row than half is of the second class: a delay that depends on one row."""

    def delayed(algorithm: Any, parties: Any, *rest: Any) -> Any:
        labels = np.concatenate([labels for rows in parties for _, labels, _ in rows.blocks()])
        clock.sleep(DELAY if 2 * int(labels.sum()) > len(labels) else 0.0)
        return fit(algorithm, parties, *rest)

    monkeypatch.setattr(door, "fit", delayed)


def model_of(prepared: Prepared) -> PlannedRelease:
    return prepared.plan.models[0]


def seconds_of(clock: Clock, name: str, **config: Any) -> float:
    prepared = prepare(name, **NOISY, **config)
    prepared.charge()
    release = model_of(prepared)
    return clock.of(lambda: door.make_release(release, prepared.shards.of(release.parties)))


def test_durations_tell_of_rows_without_a_deadline_and_not_with_one(root: Path, clock: Clock, slow: None) -> None:
    assert [seconds_of(clock, name, replicate=1) for name in ("clinic", "neighbour")] == pytest.approx([0.0, DELAY])
    hidden = [seconds_of(clock, name, replicate=2, deadline=SECONDS) for name in ("clinic", "neighbour")]
    assert hidden == pytest.approx([SECONDS, SECONDS], rel=1e-12)


def test_a_miss_is_refused_now_and_later_and_its_charge_stands(root: Path, slow: None) -> None:
    prepared = prepare("neighbour", **NOISY, replicate=3, deadline=DELAY / 2)
    release = model_of(prepared)
    before = digests()
    with pytest.raises(deadlines.DeadlineMissError, match="--deadline") as caught:
        door.make_release(release, prepared.shards.of(release.parties))
    assert isinstance(caught.value, RefusedError)
    assert "\n" not in str(caught.value)
    assert open_ledger().is_charged(release.key)
    assert digests() == before
    # Another attempt would be timed anew, and is not charged for.
    booked, read = charges("neighbour"), list[Any]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(door, "rows_of", lambda *asked: read.append(asked))
        with pytest.raises(deadlines.DeadlineMissError):
            door.make_release(release, prepared.shards.of(release.parties))
    assert read == []
    assert charges("neighbour") == booked
    larger = prepare("neighbour", **NOISY, replicate=3, deadline=SECONDS)
    assert model_of(larger).key != release.key
    door.make_release(model_of(larger), larger.shards.of(release.parties))
    assert len(charges("neighbour")) == len(booked) + 1


def test_nothing_is_stored_or_sent_before_the_deadline(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait stands between the work and its first trace, for whole releases and for parties of a secure sum."""
    seen: list[str] = []

    def waited(planned: Any, begun: float | None = None) -> None:
        if begun is not None:
            seen.append("waited")

    monkeypatch.setattr(door, "wait_for_deadline", waited)
    monkeypatch.setattr(door, "store_release", lambda *rest: seen.append("stored"))
    prepared = prepare(**NOISY, replicate=4, deadline=SECONDS)
    prepared.charge()
    release = model_of(prepared)

    def works(algorithm: Any, parties: Any, *rest: Any) -> Any:
        seen.append("worked")
        return fit(algorithm, parties, *rest)

    monkeypatch.setattr(door, "fit", works)
    with door.open_release(release, prepared.shards.of(release.parties)) as opened:
        opened.store(opened.fit())
    assert seen == ["worked", "waited", "stored"]
    seen.clear()
    secure = prepare(**{**NOISY, "trust": "secagg"}, replicate=4, deadline=SECONDS, parties=3)
    secure.charge()
    joint = model_of(secure)
    with door.open_release(joint, secure.shards.training[:1]) as opened:
        assert opened.rows
        seen.append("worked")
    assert seen == ["worked", "waited"]


@pytest.mark.parametrize("trust", ["central", "secagg"])
def test_misses_are_charged_within_the_target(root: Path, trust: str) -> None:
    given = {**NOISY, "trust": trust, "test_fraction": 0.2}
    plain = prepare(**given).plan
    plan = prepare(**given, deadline=SECONDS, deadline_miss=1e-8).plan
    for release in plan.releases:
        *_, misses = release.guarantee().losses
        assert isinstance(misses, SlackGaussian)
        # Twice at least what is declared: of each attempt, and of what is made of the rows before it.
        attempts = len(release.parties) if release.in_rounds else 1
        assert 2e-8 * (attempts + 1) <= misses.slack < 1e-6
    # A deadline's plan takes a tenth of the cap's delta, without one it takes what Gaussian-DP leaves of it.
    assert (plan.delta, plain.delta) == (1e-4, gaussian_delta(1e-3))
    for losses_of_party in plan.losses_by_party().values():
        assert 0.99 < compose(losses_of_party).epsilon(plan.delta) <= 1.0
    (model,) = plan.models
    assert model.deadline is not None
    assert model.key != plain.models[0].key
    assert plain.models[0].deadline is None


def test_public_rows_have_no_deadline() -> None:
    assert planned(algorithm="noisy-gd", deadline=3.0) == planned(algorithm="noisy-gd")


# ── what is done with rows before a release ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def seen(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note, in order, when a plan is charged, rows are read, something is waited for, and a release is stored."""
    found: list[str] = []

    def noting(what: str, of: object, name: str) -> None:
        honest = getattr(of, name)

        def noted(*given: Any, **named: Any) -> Any:
            if not found or found[-1] != what:
                found.append(what)
            return honest(*given, **named)

        monkeypatch.setattr(of, name, noted)

    noting("charged", releases, "charge_plan")
    noting("read", StoredRows, "batches")
    noting("stored", door, "store_release")
    # The deadlines' own clock: whatever else this process does in its threads sleeps, too.
    waits = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: found.append("waited") if seconds else None)
    monkeypatch.setattr(deadlines, "time", waits)
    with listen(lambda *_: found.append("said")):
        yield found


GIVEN: dict[str, Any] = {**NOISY, "features": "random-fourier", "parameters": {"features.frequencies": 3}}


def test_no_private_row_is_read_before_the_charge_and_what_is_made_of_rows_waits(seen: list[str]) -> None:
    """The attack: normalising, mapping and partitioning took as long as the rows said, before any clock ran."""
    # Rows that no other test has prepared in this root.
    own = {"parties": 4}
    followed("clinic", **GIVEN, **own, replicate=5, deadline=100.0)
    after = seen[seen.index("charged") :]
    assert "read" not in seen[: seen.index("charged")]
    lines = [what for what in after if what != "said"]
    assert lines == ["charged", "read", "waited", "read", "waited", "stored"]
    # Nothing is said either, from the first row that is read to the instant at which that may show.
    work = "".join({"read": "r", "said": "s", "waited": "w"}.get(what, ".") for what in after)
    assert "rs" not in work, work
    # What is stored is not read again, so that nothing is timed that was not paid for.
    seen.clear()
    followed("clinic", **GIVEN, **own, replicate=5, deadline=100.0)
    assert "read" not in seen
    assert "waited" not in seen


def test_rows_are_kept_under_public_maps_within_the_clock_of_the_preparation(
    seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "kept_maps", lambda plan: [plan.system])
    monkeypatch.setattr(rows, "keep_under", lambda shards, maps: seen.append(f"kept {len(shards.all)} {maps}"))
    system = followed("clinic", **NOISY, replicate=16, deadline=100.0).algorithm
    kept = seen.index(f"kept 2 ['{system}']")
    assert seen.index("charged") < kept < seen.index("waited")


def test_without_a_deadline_rows_are_read_after_the_charge_too_and_nothing_is_waited_for(seen: list[str]) -> None:
    followed("clinic", **GIVEN, normalisation="clip", replicate=6)
    assert seen.index("charged") < seen.index("read")
    assert "waited" not in seen


def test_rows_under_a_deadline_are_those_of_any_run(seen: list[str]) -> None:
    chains = [chain_inline(configured(**GIVEN, replicate=7, deadline=late)) for late in (None, 100.0)]
    of_any = planning.whole(planning.prepare(configured(**GIVEN))).shards
    assert are_stored_whole(of_any)
    assert {chained.dataset for chained in chains} == {of_any.training[0].dataset}


@pytest.mark.parametrize("late", [None, 100.0])
def test_each_step_has_a_place_in_the_progress_of_a_run(late: float | None, seen: list[str]) -> None:
    names: list[str] = []
    with observed_by(names.append):
        followed("clinic", **GIVEN, replicate=11, deadline=late)
    assert {name.replace("-", "_") for name in names} <= set(STAGES)
    assert ("prepare_rows" in names) is (late is not None)


def test_a_late_preparation_is_refused_now_and_later(root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[str] = []
    honest = vars(rows)["materialise"]

    def slow_rows(*given: Any, **named: Any) -> Any:
        attempts.append("attempt")
        clock.sleep(DELAY)
        return honest(*given, **named)

    monkeypatch.setattr(rows, "materialise", slow_rows)
    late = {**NOISY, "replicate": 8, "deadline": DELAY / 2}
    before, booked = digests(), {key for key, _ in charges("neighbour")}
    for _ in range(2):
        with pytest.raises(deadlines.DeadlineMissError, match="partition of neighbour"):
            followed("neighbour", **late)
    assert attempts == ["attempt"]
    assert digests() == before
    # The charge stands, and pays for no other attempt, whoever asks for the releases.
    charged = {key for key, _ in charges("neighbour")} - booked
    assert charged <= {path.name for path in (current_layout().private / "deadline-misses").iterdir()}
    assert len(charged) == 1


def test_a_reference_to_rows_that_are_not_registered_so_is_not_charged(root: Path) -> None:
    one = prepare(**NOISY, replicate=10, deadline=SECONDS)
    shards = [
        shard.model_copy(update={"dataset": shard.dataset.model_copy(update={"visibility": Visibility.PUBLIC})})
        for shard in one.shards.all
    ]
    with pytest.raises(RefusedError, check=stating(bound="registered")):
        door.charge_plan(one.plan, shards)
    assert not open_ledger().is_charged(model_of(one).key)


def test_how_long_rows_take_to_prepare_is_not_seen(root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing one of two neighbours takes longer: seen in what a run takes, and under a deadline not."""

    honest = vars(rows)["materialise"]

    def delayed(nodes: Any, *rest: Any, **named: Any) -> Any:
        clock.sleep(DELAY if next(iter(nodes.values())).rows.name == "neighbour" else 0.0)
        return honest(nodes, *rest, **named)

    def seconds(name: str) -> float:
        return clock.of(lambda: followed(name, **NOISY, replicate=12, deadline=SECONDS))

    monkeypatch.setattr(rows, "materialise", delayed)
    # The rows' deadline, and the release's.
    assert [seconds(name) for name in ("clinic", "neighbour")] == pytest.approx([2 * SECONDS] * 2, rel=1e-12)
    # The mutant: it shows as soon as it is done.
    monkeypatch.setattr(deadlines, "_await", lambda *_: None)
    shown = [clock.of(partial(deadlines.prepare_in_time, *unmade(name))) for name in ("clinic", "neighbour")]
    assert shown == pytest.approx([0.0, DELAY])


def unmade(name: str) -> tuple[Any, str, Any]:
    prepared = planning.whole(planning.prepare(configured(name, **NOISY, replicate=13, deadline=SECONDS)))
    return prepared.plan, "rows", lambda: vars(rows)["materialise"](prepared.rows, lambda node, _: make_rows(node))
