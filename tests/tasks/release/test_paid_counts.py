"""Histograms that were released before, found again by a run: which of them it may rest on."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.accounting.composition import compose
from flows.federated_training import chain_inline
from storage.errors import InputError, StorageError
from storage.refs import DatasetRef
from tasks.accounts.ledger import restore_ledger, verify_ledger
from tasks.datasets.registration import find_dataset
from tasks.exports.archive import CHARGES, RUN, export_run, read, release_member
from tasks.exports.verifying import verify
from tasks.planning.configuration import TrainingConfig
from tasks.planning.releases import PlannedRelease
from tasks.preparation.paid_counts import paid_counts
from tasks.preparation.prepare import PreparedRun, is_current, prepare, whole
from tasks.release import checkpoints
from tasks.release.column_counts import plan_counts
from tasks.runtime.settings import current_layout
from tasks.tracking.results import append_result
from tests.support.chains import charges, configured, followed, ingest_private
from tests.support.forks import die, killed
from tests.support.stating import stating
from tests.tasks.exports.test_exports import changed, resealed
from tests.tasks.release.test_counts_in_runs import asked, bring_in


def described(folder: Path) -> None:
    bring_in(folder)
    plan_counts(find_dataset("clinic"), 2.0).make()


def prepared(**config: Any) -> PreparedRun:
    return whole(prepare(TrainingConfig.model_validate({"dataset": "clinic", "epsilon": 4.0, "parties": 2, **config})))


def test_counts_of_another_relation_are_not_part_of_a_guarantee(root: Path, tmp_path: Path) -> None:
    """What is proved of counts under replace-one says nothing under replace-special, nor is a run's own loss doubled.

    Printed would be one relation and one epsilon for releases of two.
    """
    described(tmp_path)
    assert prepared().plan.before
    other = prepared(neighbours="replace-special").plan
    assert {str(one.neighbours) for one in other.guarantees} == {"replace-special"}
    assert other.before == ()
    with pytest.raises(InputError, match="replace-special"):
        prepared(neighbours="replace-special", counts_of=find_dataset("clinic").version)


def test_a_description_that_is_too_noisy_is_named_with_the_epsilon_that_serves(root: Path, tmp_path: Path) -> None:
    """The attack of a user: it was paid for, and nothing said that the run paid for counts of its own all the same."""
    bring_in(tmp_path)
    config = TrainingConfig(dataset="clinic", epsilon=4.0, delta=1e-6, parties=2)
    plan_counts(find_dataset("clinic"), 0.02).make()
    looked_at = whole(prepare(config))
    assert looked_at.plan.counts
    assert not looked_at.plan.before
    (said,) = [reason for reason in looked_at.plan.reasons if "too noisy" in reason]
    enough = float(said.split("at epsilon ")[1].split()[0])
    plan_counts(find_dataset("clinic"), enough, delta=1e-6).make()
    assert whole(prepare(config)).plan.before
    assert not [reason for reason in whole(prepare(config)).plan.reasons if "too noisy" in reason]


def test_a_plan_that_was_looked_at_before_a_describe_ended_rests_on_its_counts(root: Path, tmp_path: Path) -> None:
    """The attack: the plan of before would charge counts of its own, out of the training's share."""
    bring_in(tmp_path)
    config = TrainingConfig(dataset="clinic", epsilon=4.0, parties=2)
    looked_at = prepare(config)
    assert is_current(looked_at)
    plan_counts(find_dataset("clinic"), 2.0).make()
    assert not is_current(looked_at)
    begun = whole(prepare(config))
    assert begun.plan.before == tuple(one.key for one in begun.plan.counts) != ()
    assert is_current(begun)


def test_a_plan_of_an_older_version_is_not_carried_out(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input")
    looked_at = prepared(algorithm="noisy-gd")
    assert is_current(looked_at)
    ingest_private(tmp_path / "more", count=201)
    assert not is_current(looked_at)


@pytest.fixture
def archive(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Export a run that rests on described columns; what follows is another machine's root."""
    described(tmp_path)
    config: dict[str, Any] = {"epsilon": 4.0, "parameters": {"iterations": 2}, "evaluation": True}
    result = followed(**config)
    append_result(configured(**config), result)
    (tmp_path / "run.zip").write_bytes(export_run(result.run_key)[0])
    monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / "elsewhere"))
    return tmp_path / "run.zip"


def test_an_export_that_rests_on_described_columns_is_verified(archive: Path) -> None:
    found = verify(archive)
    assert [(check.what, check.detail) for check in found.checks if check.holds is False] == []
    # By hand: the run's own losses, and those of what was described.
    by_hand = compose([*prepared_losses(archive)]).epsilon(found.delta or 0.0)
    assert found.epsilon == pytest.approx(by_hand)
    assert by_hand > 4.0


def prepared_losses(archive: Path) -> list[Any]:
    """Return the losses of all releases of an archive that training rows paid for, as charged."""
    from dpalgos.guarantees import Guarantee

    entries = [
        json.loads(entry["content"])
        for entry in json.loads(read(archive).members[CHARGES])["entries"]
        if entry["kind"] == "charge"
    ]
    return [
        loss for one in entries if one["parties"] != ["test"] for loss in Guarantee.from_json(one["guarantee"]).losses
    ]


def _counts_key(members: dict[str, bytes]) -> str:
    manifests = [json.loads(data)["manifest"] for name, data in members.items() if name.endswith("manifest.json")]
    return next(str(one["key"]) for one in manifests if one.get("algorithm", {}).get("name") == "column-histograms")


def _other_counts(members: dict[str, bytes]) -> None:
    name = release_member(_counts_key(members), "arrays.npz")
    with np.load(io.BytesIO(members[name])) as arrays:
        other = {key: array + 1 for key, array in arrays.items()}
    written = io.BytesIO()
    np.savez(written, **other)
    members[name] = written.getvalue()
    name = release_member(_counts_key(members), "manifest.json")
    members |= resealed(members, name, json.loads(members[name]))


def _less_noise_than_was_drawn(members: dict[str, bytes]) -> None:
    """A describe that says it cost less."""
    name = release_member(_counts_key(members), "manifest.json")
    body = json.loads(members[name])
    body["manifest"]["budget"]["mu"] /= 2
    members |= resealed(members, name, body)


def _without_counts(members: dict[str, bytes]) -> None:
    """The map says that it is made of nothing."""
    key = _counts_key(members)
    for name in [one for one in members if one.endswith("manifest.json")]:
        body = json.loads(members[name])
        combination = body["manifest"].get("post_processing")
        if combination is not None and key in combination["upstream"]:
            combination["upstream"] = []
            members |= resealed(members, name, body)
    for file in ("manifest.json", "arrays.npz"):
        del members[release_member(key, file)]


def _epsilon_of_the_run_alone(members: dict[str, bytes]) -> None:
    run = json.loads(members[RUN])
    run["proved"]["epsilon"] = run["epsilon_spent"] = 4.0
    members[RUN] = json.dumps(run).encode()


def _less_of_its_own(members: dict[str, bytes]) -> None:
    run = json.loads(members[RUN])
    run["epsilon_charged"] /= 2
    members[RUN] = json.dumps(run).encode()


def _named_relation(members: dict[str, bytes]) -> None:
    name = release_member(_counts_key(members), "manifest.json")
    body = json.loads(members[name])
    body["manifest"]["setting"]["neighbours"] = "replace-special"
    members |= resealed(members, name, body)


@pytest.mark.parametrize(
    ("forge", "fails"),
    [
        (_other_counts, "identities"),
        (_less_noise_than_was_drawn, "identities"),
        (_without_counts, "identities"),
        (_epsilon_of_the_run_alone, "epsilon"),
        (_less_of_its_own, "epsilon"),
        (_named_relation, "identities"),
    ],
)
def test_a_forged_description_is_noticed(
    archive: Path, tmp_path: Path, forge: Callable[[dict[str, bytes]], None], fails: str
) -> None:
    """Whoever mends every digest that takes no key of the ledger's, and signs anew, is caught."""
    found = verify(changed(archive, tmp_path / "forged.zip", forge))
    assert fails in {check.what for check in found.checks if check.holds is False}


def test_what_was_charged_before_and_finished_after_changes_no_run(root: Path, tmp_path: Path) -> None:
    """A describe that was killed between its charge and its end, or is slower than another, comes last."""
    bring_in(tmp_path)
    slow = plan_counts(find_dataset("clinic"), 3.0)

    def run() -> None:
        checkpoints.reached = lambda name: die() if name == "charged" else None
        slow.make()

    killed(run)
    plan_counts(find_dataset("clinic"), 2.0).make()
    first = chain_inline(asked(evaluation=False)).plan
    paid = charges()
    slow.make()
    assert whole(prepare(asked(evaluation=False))).plan.run_key == first.run_key
    chain_inline(asked(evaluation=False))
    assert charges() == paid


def test_damaged_descriptions_are_said_and_charge_nothing(root: Path, tmp_path: Path) -> None:
    described(tmp_path)
    paid = charges()
    (key,) = prepared().plan.before
    manifest = current_layout().release(key) / "manifest.json"
    manifest.write_text(manifest.read_text()[:50])
    with pytest.raises(StorageError, match=key[:12]):
        chain_inline(asked())
    assert charges() == paid


@pytest.mark.parametrize(("counted", "run", "again"), [
    ("central", "local", False),
    ("central", "secagg", False),
    ("central", "central", True),
    ("secagg", "local", False),
    ("local", "secagg", True),
    ("local", "central", True),
])  # fmt: skip
def test_a_run_does_not_say_less_trust_than_its_counts_took(
    root: Path, tmp_path: Path, counted: str, run: str, again: bool
) -> None:
    bring_in(tmp_path, parties=2)
    plan_counts(find_dataset("clinic"), 8.0, trust=counted).make()
    plan = whole(prepare(TrainingConfig(dataset="clinic", epsilon=4.0, trust=run))).plan
    assert bool(plan.before) == again
    assert str(plan.trust) == run


@pytest.mark.parametrize("settings", [{"trust": "local"}, {"neighbours": "replace-special"}])
def test_a_root_that_rests_on_more_than_it_says_is_refuted(
    settings: dict[str, Any], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: counts are taken whatever relation and trust they are under; who verifies tells."""

    def any_counts(registered: DatasetRef, *_: object) -> list[PlannedRelease]:
        return paid_counts(registered.account, registered.version)

    monkeypatch.setattr("tasks.preparation.prepare.described_columns", any_counts)
    # What an account of replace-one admits of releases under replace-special is priced twice.
    bring_in(tmp_path, parties=2)
    plan_counts(find_dataset("clinic"), 8.0, trust="central").make()
    config: dict[str, Any] = {"epsilon": 4.0, "trust": "central", "evaluation": False, **settings}
    result = chain_inline(TrainingConfig(dataset="clinic", **config)).result
    append_result(TrainingConfig(dataset="clinic", **config), result)
    (tmp_path / "run.zip").write_bytes(export_run(result.run_key)[0])
    (check,) = [one for one in verify(tmp_path / "run.zip").checks if one.what == "run"]
    assert check.holds is False
    assert "relations" in check.detail or "counts under trust central" in check.detail


def test_a_description_that_an_older_ledger_forgot_is_charged_again(root: Path, tmp_path: Path) -> None:
    """As releases of a run are; else no run could rest on it, and the ledger and the releases would never agree."""
    bring_in(tmp_path)
    ledger = current_layout().ledger
    old = ledger.read_bytes()
    plan = plan_counts(find_dataset("clinic"), 2.0)
    first = plan.make()
    data = (current_layout().release(first.key) / "arrays.npz").read_bytes()
    ledger.write_bytes(old)
    assert not plan.paid
    with pytest.raises(StorageError, check=stating(bound="high-water mark", way_out="unitball ledger restore")):
        plan.make()
    restore_ledger("disk lost", None, None)
    assert not plan.paid
    assert plan.make() == first
    assert plan_counts(find_dataset("clinic"), 2.0).paid
    assert (current_layout().release(first.key) / "arrays.npz").read_bytes() == data
    assert verify_ledger() == []
    assert prepared().plan.before == (first.key,)
