"""Rounds as tasks: the same release as in one process, one survivor set, whatever is killed in between."""

from __future__ import annotations

import shutil
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dpalgos.models import LinearModel
from dpalgos.parameters import ParameterError
from dpalgos.secure import summation as stepwise
from dpalgos.secure.primitives import RepeatedUseError, TooFewPartiesError
from dpalgos.secure.protocol import PartyState, SurvivorSet
from dpalgos.secure.rounds import AGREEMENT, Stage, run_rounds
from dpalgos.secure.summation import Absences, scaled_to_all
from dpalgos.trust.model import SecureAggregation
from flows.federated_training import blocks_of
from storage.errors import RefusedError, StorageError
from storage.refs import ReleaseRef, ShardRef
from storage.rounds import PrivateNotes, RoundStore
from tasks.accounts.ledger import open_ledger
from tasks.planning.releases import PlannedRelease
from tasks.release import checkpoints, door
from tasks.releases import answer, decide, open_rounds, open_sum
from tasks.runtime.settings import current_layout
from tests.support.chains import Prepared, digests, ingest_private, prepare
from tests.support.forks import die, killed
from tests.support.stating import stating

PUBLIC: dict[str, Any] = {"dataset": "iris", "trust": "secagg", "parties": 4, "seed": 5, "dimension": 2}
FEDERATED: dict[str, Any] = {**PUBLIC, "algorithm": "fed-dpdr-dpml"}
ONE: dict[str, Any] = {**PUBLIC, "algorithm": "secagg-output-perturbation", "dropouts": 1}


def absences_of(release: PlannedRelease) -> Absences:
    return cast(SecureAggregation, release.trust_model()).absences(len(release.parties))


class ByHand:
    """A transport whose tasks are plain calls, a party each; every call may be made again."""

    def __init__(self, prepared: Prepared, release: PlannedRelease, upstream: Sequence[ReleaseRef] = ()) -> None:
        self.release, self.shards = release, prepared.shards.of(release.parties)
        self.upstream, self.asked = list(upstream), open_rounds.fn(release, self.shards)
        self.sent: list[list[str]] = []
        self._past: list[str] = []

    def answer(self, stage: Stage, party: int) -> list[str]:
        own = [self.shards[party]] if stage is Stage.MASK else []
        return answer.fn(self.release, stage, [party], own, self.upstream if own else [], self.asked)

    def ask(self, stage: Stage) -> list[list[str]]:
        self._past.append(stage)
        gone = {party for past in self._past for party in absences_of(self.release).get(past, ())}
        self.sent = [self.answer(stage, party) for party in range(len(self.shards)) if party not in gone]
        return self.sent

    def decide(self, stage: Stage, answers: list[list[str]]) -> Any:
        return open_sum.fn(self.release, answers) if stage is Stage.UNMASK else decide.fn(self.release, stage, answers)


def vectors(prepared: Prepared, release: PlannedRelease) -> ByHand:
    """Run the rounds until every party has sent its masked vector."""
    hands = ByHand(prepared, release)
    run_rounds(hands, AGREEMENT)
    hands.ask(Stage.MASK)
    return hands


def in_rounds(prepared: Prepared, release: PlannedRelease, upstream: Sequence[ReleaseRef] = ()) -> ReleaseRef:
    return cast(ReleaseRef, run_rounds(ByHand(prepared, release, upstream)))


def all_in_rounds(prepared: Prepared) -> dict[str, ReleaseRef]:
    made: dict[str, ReleaseRef] = {}
    for release in (*prepared.plan.projections, *prepared.plan.models):
        assert release.in_rounds
        made[release.key] = in_rounds(prepared, release, [made[key] for key in release.upstream])
    return made


def charged(config: dict[str, Any]) -> tuple[Prepared, PlannedRelease]:
    prepared = prepare(**config)
    prepared.charge()
    return prepared, prepared.plan.models[-1]


def on_another_root(monkeypatch: pytest.MonkeyPatch, root: Path, name: str) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(root.with_name(name)))


# ── the same release ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "faults",
    [
        {},
        {"dropouts": 1, "absent": ("1:mask",)},
        {"dropouts": 2, "absent": ("0:share", "2:unmask"), "consistent_survivors": True},
        {"dropouts": 1, "colluders": 2, "absent": ("3:advertise",), "consistent_survivors": True},
    ],
)
def test_rounds_give_the_bytes_of_the_sum_in_one_process(
    faults: dict[str, Any], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, _ = charged({**FEDERATED, **faults})
    prepared.make()
    expected = digests()
    assert len(expected) == 2

    on_another_root(monkeypatch, root, "rounds")
    prepared, _ = charged({**FEDERATED, **faults})
    made = all_in_rounds(prepared)
    assert digests() == expected
    assert {key: open_ledger().is_charged(key) for key in made} == dict.fromkeys(expected, True)
    assert all_in_rounds(prepared) == made


def test_dropouts_change_the_release_and_its_identity(root: Path) -> None:
    _, whole = charged(ONE)
    _, less = charged({**ONE, "absent": ("1:mask",)})
    assert whole.key != less.key


def test_many_parties_take_few_tasks() -> None:
    assert blocks_of(range(5)) == [[0], [1], [2], [3], [4]]
    many = blocks_of(range(61))
    assert len(many) == 8
    assert [party for block in many for party in block] == list(range(61))


def test_a_mean_over_all_becomes_one_over_the_survivors() -> None:
    sizes, values = (10, 20, 30), np.array([7, 5, 3])
    total = np.array([sum(size * value for size, value in zip(sizes, values, strict=True) if size != 20)])
    assert scaled_to_all(total, sizes, [0, 2])[0] / sum(sizes) == pytest.approx((10 * 7 + 30 * 3) / 40)
    assert scaled_to_all(total, sizes, [0, 1, 2]) is total
    assert scaled_to_all(total, (1, 1, 1), [0, 2])[0] == round(1.5 * int(total[0]))


# ── who sees what ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("task", [decide, open_sum])
def test_the_server_is_handed_messages_and_no_shard(task: Any) -> None:
    hints = typing.get_type_hints(task.fn)
    assert not any("ShardRef" in str(hint) for hint in hints.values())
    assert any("ShardRef" in str(hint) for hint in typing.get_type_hints(answer.fn).values())


def test_a_seed_is_fresh_and_drawn_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seeds(prepared: Prepared, release: PlannedRelease) -> list[bytes]:
        vectors(prepared, release)
        layout = current_layout()
        notes = [PrivateNotes(layout.party_round(party, release.key)).require("advertise") for party in release.parties]
        return [PartyState.decode(note).seed for note in notes]

    first = seeds(*charged(ONE))
    assert seeds(*charged(ONE)) == first
    on_another_root(monkeypatch, root, "again")
    second = seeds(*charged(ONE))
    assert len({*first, *second}) == 8, "public noise seeds are no mask seeds"


def test_messages_hold_no_row_and_notes_are_the_partys_own(root: Path, tmp_path: Path) -> None:
    rows = ingest_private(tmp_path / "input", allow_idealised=True)
    prepared, release = charged({**ONE, "dataset": "clinic", "seed": None})
    in_rounds(prepared, release)
    layout = current_layout()
    found = [path for path in layout.rounds.rglob("*") if path.is_file()]
    assert len(found) > 20
    written = b"".join(path.read_bytes() for path in found)
    assert not any(needle in written for needle in rows.needles())
    for party in release.parties:
        notes = list(layout.party_round(party, release.key).iterdir())
        assert {note.name for note in notes} == {*Stage, "sums"}
        assert all(note.stat().st_mode & 0o077 == 0 for note in (*notes, layout.party_round(party, release.key)))
        seed = PartyState.decode(PrivateNotes(layout.party_round(party, release.key)).require("advertise")).seed
        assert seed not in written


def test_no_noise_for_a_release_that_was_not_charged(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", allow_idealised=True)
    prepared = prepare(**{**ONE, "dataset": "clinic", "seed": None})
    release = prepared.plan.models[-1]
    shard = prepared.shards.of(release.parties)[1]
    with pytest.raises(RefusedError, match="charged"), door.open_release(release, [shard]):
        pass
    prepared.charge()
    with door.open_release(release, [shard]) as part:
        assert len(part.rows) == len(part.noises) == 1
        with pytest.raises(RefusedError, match=r"parties 0, 1, 2, 3.*1$"):
            part.store(LinearModel(np.zeros((1, 2))))
    larger = shard.model_copy(update={"rows": shard.rows + 1})
    with pytest.raises(RefusedError, check=stating(bound="stored")), door.open_release(release, [larger]):
        pass
    other = prepared.shards.of(release.parties)[2].model_copy(update={"party": "1"})
    with pytest.raises(StorageError), door.open_release(release, [other.model_copy(update={"partition": "f" * 32})]):
        pass


# ── one survivor set ─────────────────────────────────────────────────────────────────────────────────────────────────


def survivors_of(release: PlannedRelease) -> tuple[int, ...]:
    return SurvivorSet.decode(RoundStore(current_layout().round(release.key)).require("survivors")).survivors


def test_survivors_are_fixed_once(root: Path) -> None:
    prepared, release = charged(ONE)
    hands = vectors(prepared, release)
    hands.decide(Stage.MASK, hands.sent[:3])
    assert survivors_of(release) == (0, 1, 2)
    hands.decide(Stage.MASK, hands.sent)
    assert survivors_of(release) == (0, 1, 2), "a vector that came late stays hidden"


def forget_decision(release: PlannedRelease, *kept: str) -> None:
    """Remove what the server decided, as if it had lost its disk or were lying."""
    for path in list(current_layout().round(release.key).iterdir()):
        decided = path.name in {"block", "survivors", "sums"} or path.name.startswith("unmask")
        if decided and path.name not in kept:
            path.unlink()


def test_a_server_that_forgot_its_survivors_meets_the_partys_refusal(root: Path) -> None:
    prepared, release = charged(ONE)
    hands = vectors(prepared, release)
    hands.decide(Stage.MASK, hands.sent)
    hands.answer(Stage.UNMASK, 0)

    forget_decision(release, "sums")
    with pytest.raises(RepeatedUseError, match="fixed"):
        hands.decide(Stage.MASK, hands.sent[:3])
    forget_decision(release)
    hands.decide(Stage.MASK, hands.sent[:3])
    with pytest.raises(RepeatedUseError, match=r"party 0.*unmasked"):
        hands.answer(Stage.UNMASK, 0)


def test_a_party_masks_one_vector_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, release = charged(ONE)
    hands = vectors(prepared, release)
    (current_layout().round(release.key) / "mask-answer-1").unlink()
    original = stepwise.vector_of
    monkeypatch.setattr(stepwise, "vector_of", lambda *arguments: original(*arguments) + 1)
    with pytest.raises(RepeatedUseError, match=r"masks.*step"):
        hands.answer(Stage.MASK, 1)
    monkeypatch.setattr(stepwise, "vector_of", original)
    hands.answer(Stage.MASK, 1)


@pytest.mark.parametrize("algorithm", ["secagg-output-perturbation", "noisy-gd"])
def test_a_replicate_in_one_process_meets_the_same_survivors(
    algorithm: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"parameters": {"iterations": 3}} if algorithm == "noisy-gd" else {}
    prepared, release = charged({**ONE, "algorithm": algorithm, **few})
    shards = prepared.shards.training
    door.make_release(release, shards)
    expected = digests()
    shutil.rmtree(current_layout().release(release.key))
    with monkeypatch.context() as patch:
        # The same release, but this time a party is lost on the way.
        patch.setattr(SecureAggregation, "absences", lambda self, parties: {"mask": frozenset({1})})
        with pytest.raises(RepeatedUseError, match="fixed"):
            door.make_release(release, shards)
    assert digests() == {}
    door.make_release(release, shards)
    assert digests() == expected


# Between every two rounds, and on both sides of what is decided; the others differ in the party's number only.
STEPS = [
    "kept parameters",
    "kept advertise",
    "sent advertise-answer-1",
    "kept advertised_keys",
    "sent share-request-2",
    "kept share",
    "kept agreement",
    "sent mask-request-2",
    "kept mask",
    "sent mask-answer-3",
    "kept block",
    "kept survivors",
    "sent unmask-request-1",
    "kept unmask",
    "sent unmask-answer-0",
    "drawn",
    "recorded",
    "stored",
]


def killed_at(step: str, work: Callable[[], Any]) -> None:
    """Run ``work`` in a process that is killed at a step."""

    def reached(name: str) -> None:
        if name == step:
            die()

    def body() -> None:
        checkpoints.reached = reached
        work()

    killed(body)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the release is that nothing was killed of; with a public seed it is the same in every root."""
    with pytest.MonkeyPatch.context() as patch:
        on_another_root(patch, tmp_path_factory.mktemp("undisturbed"), "root")
        charged(ONE)[0].make()
        return digests()


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_between_rounds_changes_nothing(step: str, root: Path, undisturbed: dict[str, str]) -> None:
    prepared, release = charged(ONE)
    killed_at(step, lambda: in_rounds(prepared, release))
    in_rounds(prepared, release)
    assert digests() == undisturbed
    assert len(open_ledger().charges("iris")) == 1, "a repeated round is not charged again"


def test_other_vectors_after_a_kill_do_not_open_another_sum(root: Path) -> None:
    """Three vectors arrived, the survivors were fixed, the server was killed; then the fourth arrives."""
    prepared, release = charged(ONE)
    hands = vectors(prepared, release)
    killed_at("kept block", lambda: hands.decide(Stage.MASK, hands.sent[:3]))
    hands.decide(Stage.MASK, hands.sent)
    assert survivors_of(release) == (0, 1, 2)
    hands.decide(Stage.UNMASK, [hands.answer(Stage.UNMASK, party) for party in (0, 1, 2)])


# ── too few ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "unmask"])
def test_below_the_quorum_the_round_fails_and_the_charge_stands(stage: str, root: Path) -> None:
    prepared, release = charged({**ONE, "absent": (f"1:{stage}", f"3:{stage}")})
    for _ in range(2):
        with pytest.raises(TooFewPartiesError, match=r"^2 parties.*3") as failure:
            in_rounds(prepared, release)
        assert "party 1" not in str(failure.value)
    assert open_ledger().is_charged(release.key)
    assert digests() == {}
    with pytest.raises(TooFewPartiesError):
        door.make_release(release, prepared.shards.training)
    assert digests() == {}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"absent": ("4:mask",)}, "party 4.*0 to 3"),
        ({"absent": ("1:mask",), "trust": "central"}, "--trust secagg"),
    ],
)
def test_impossible_absences_are_said_before_anything_is_charged(
    config: dict[str, Any], words: str, root: Path
) -> None:
    with pytest.raises(ParameterError, match=words):
        prepare(**{**ONE, **config})


def test_shards_are_checked_before_a_row_is_read(root: Path) -> None:
    prepared, release = charged(ONE)
    shards: list[ShardRef] = prepared.shards.of(release.parties)
    with pytest.raises(RefusedError, match="shards"):
        open_rounds.fn(release, shards[:3])
