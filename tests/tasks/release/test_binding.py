"""A release is bound to what it was charged for: account, data version, partition, party, size, and what it uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.errors import RefusedError
from storage.refs import ReleaseRef, ShardRef
from tasks.planning.releases import PlannedRelease
from tasks.release import door
from tasks.releases import aggregate
from tests.support.chains import Prepared, charges, digests, ingest_private, prepare
from tests.support.stating import stating

FEDERATED: dict[str, Any] = {"algorithm": "fed-dpdr-dpml", "dimension": 3}
SECURE: dict[str, Any] = {
    "algorithm": "secagg-output-perturbation",
    "trust": "secagg",
    "parties": 3,
    "test_fraction": 0.2,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a root with two accounts of equally many private rows."""
    folder = tmp_path_factory.mktemp("binding")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(folder / "root"))
        ingest_private(folder / "input", count=240, epsilon_cap=50.0, allow_idealised=True)
        ingest_private(folder / "input", count=240, name="other", seed=1, epsilon_cap=50.0, allow_idealised=True)
        yield folder / "root"


def shards_of_another(what: str, own: Prepared) -> list[ShardRef]:
    """Return stored shards of the same sizes that differ from the planned ones in one respect."""
    if what == "account":
        return list(prepare("other", **FEDERATED).shards.training)
    if what == "partition":
        return list(prepare(**FEDERATED, partition_seed=7).shards.training)
    if what == "data version":
        return list(prepare(**FEDERATED, normalisation="clip").shards.training)
    assert what == "party"
    return list(own.shards.training[::-1])


@pytest.mark.parametrize("what", ["account", "partition", "data version", "party"])
@pytest.mark.parametrize("charged", [True, False])
def test_another_shard_of_the_same_size_is_refused(what: str, charged: bool, root: Path) -> None:
    prepared = prepare(**FEDERATED, replicate=int(charged))
    if charged:
        prepared.charge()
    shards = shards_of_another(what, prepared)
    assert [shard.rows for shard in shards] == [shard.rows for shard in prepared.shards.training]
    before = charges(), digests()
    with pytest.raises(RefusedError, match="is given"):
        door.make_release(prepared.plan.projections[0], shards[:1])
    assert (charges(), digests()) == before
    with pytest.raises(RefusedError):
        door.charge_plan(prepared.plan, shards if what != "party" else shards[:1])
    assert (charges(), digests()) == before


@pytest.mark.parametrize("what", ["account", "partition", "data version", "party"])
def test_a_part_of_a_secure_sum_is_bound_as_well(what: str, root: Path) -> None:
    prepared = prepare(**{**FEDERATED, **SECURE})
    prepared.charge()
    release = prepared.plan.models[-1]
    configured = {**SECURE, "dimension": 3}
    others: dict[str, Callable[[], list[ShardRef]]] = {
        "account": lambda: list(prepare("other", **configured).shards.training),
        "partition": lambda: list(prepare(**configured, partition_seed=7).shards.training),
        "data version": lambda: list(prepare(**configured, normalisation="clip").shards.training),
        "party": lambda: prepared.shards.of(["test"]),
    }
    with pytest.raises(RefusedError, match="is given"), door.open_release(release, others[what]()[:1]):
        raise AssertionError("a part was handed out")


def test_what_is_made_of_other_releases_is_refused(root: Path) -> None:
    first, second = prepare(**FEDERATED, replicate=3), prepare(**FEDERATED, replicate=4)
    made, others = first.make(), second.make()
    assert first.plan.basis is not None
    assert second.plan.basis is not None
    model = prepare(**FEDERATED, replicate=3, parameters={"trainer.regularisation": 0.5}).plan.models[0]
    assert model.upstream == (first.plan.basis.key,)
    before = charges()
    for wrong in ([], [others[second.plan.basis.key]], [made[key] for key in (*model.upstream, *model.upstream)]):
        with pytest.raises(RefusedError, match="planned from"):
            door.make_release(model, first.shards.of(model.parties), wrong)
    assert charges() == before
    assert first.plan.model is not None
    with pytest.raises(RefusedError, match="planned from"):
        aggregate.fn(first.plan.model, [others[key] for key in second.plan.model.upstream])  # type: ignore[union-attr]  # it has one


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset": "0" * 32},
        {"partition": "0" * 32},
        {"parties": ("1",)},
        {"upstream": ("0" * 64,)},
        {"code": "other"},
        {"replicate": 9},
    ],
)
def test_no_release_bears_anothers_identity(changes: dict[str, Any], root: Path) -> None:
    """The identity is computed of what is done to whose rows; nobody can hand one in."""
    release = prepare(**FEDERATED).plan.projections[0]
    assert release.model_copy(update=changes).key != release.key
    with pytest.raises(ValueError, match="extra"):
        PlannedRelease(**{**release.model_dump(), "key": release.key})


def test_the_account_that_was_charged_is_the_rows_own(root: Path) -> None:
    prepared = prepare(**FEDERATED, replicate=5)
    prepared.charge()
    release = prepared.plan.projections[0]
    forged = release.model_copy(update={"account": "other"})
    assert forged.key == release.key
    with pytest.raises(RefusedError, match="account other", check=stating(value="clinic", bound="other")):
        door.make_release(forged, prepared.shards.of(release.parties))


def test_one_artefact_a_release(root: Path) -> None:
    prepared = prepare(**FEDERATED, replicate=6)
    release = prepared.plan.projections[0]
    with door.open_release(release, prepared.shards.of(release.parties)) as opened:
        artefact = opened.fit()
        assert isinstance(opened.store(artefact), ReleaseRef)
        with pytest.raises(RefusedError, match="is already stored"):
            opened.store(artefact)
    with door.open_release(release, shards_of_another("account", prepared)[:1]) as opened:
        assert opened.stored is not None
        for hand_out in (lambda: opened.rows, lambda: opened.noises, opened.fit):
            with pytest.raises(RefusedError, match="is already stored"):
                hand_out()
