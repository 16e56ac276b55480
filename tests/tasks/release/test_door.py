"""The door: declare, charge, draw, store, in this order; exactly once; nothing drawn that was refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.guarantees import GaussianMu
from dpalgos.keystream import KeyedNoise
from dpalgos.registry import lookup
from storage.errors import OverspendError, RefusedError, SecretError, StorageError
from storage.ledger.ledger import Ledger
from storage.refs import ReleaseRef, Visibility
from storage.releases import ReleaseStore
from tasks.accounts.ledger import open_ledger
from tasks.planning.releases import PlannedRelease
from tasks.release import checkpoints, door, seen_rows
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_releases
from tests.support.chains import Prepared, charges, digests, ingest_private, prepare
from tests.support.ledgers import outputs
from tests.support.processes import clean_environment
from tests.support.stating import stating

NOISY: dict[str, Any] = {"algorithm": "noisy-gd"}
FEDERATED: dict[str, Any] = {"algorithm": "fed-dpdr-dpml", "dimension": 3}


@pytest.fixture
def clinic(root: Path, tmp_path: Path) -> Path:
    """Return a root with private rows whose owner admits idealised noise."""
    ingest_private(tmp_path / "input", allow_idealised=True)
    return root


def only(prepared: Prepared) -> PlannedRelease:
    (release,) = prepared.plan.releases
    return release


def forget(key: str) -> None:
    shutil.rmtree(current_layout().release(key))


# ── order ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_declare_charge_draw_store_in_this_order(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(**NOISY)
    release = only(prepared)
    seen: list[str] = []

    def reached(step: str) -> None:
        seen.append(step)
        charged, stored = open_ledger().is_charged(release.key), open_releases().exists(release.key)
        recorded = bool(outputs(open_ledger(), release.key))
        assert (charged, recorded, stored) == {
            "declared": (False, False, False),
            "charged": (True, False, False),
            "drawn": (True, False, False),
            "recorded": (True, True, False),
            "stored": (True, True, True),
        }[step]

    monkeypatch.setattr(checkpoints, "reached", reached)
    door.make_release(release, prepared.shards.training)
    assert seen == ["declared", "charged", "drawn", "recorded", "stored"]


def test_no_noise_and_no_row_before_the_charge_is_on_disk(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(**NOISY)
    touched: list[str] = []
    original_rows, original_stream = seen_rows.rows_of, KeyedNoise.stream

    def opened(*arguments: Any) -> Any:
        assert open_ledger().is_charged(only(prepared).key)
        touched.append("rows")
        return original_rows(*arguments)

    def stream(self: KeyedNoise, *arguments: Any) -> Any:
        assert open_ledger().is_charged(only(prepared).key)
        touched.append("noise")
        return original_stream(self, *arguments)

    monkeypatch.setattr(door, "rows_of", opened)
    monkeypatch.setattr(KeyedNoise, "stream", stream)
    prepared.make()
    assert {"rows", "noise"} <= set(touched)


def test_nothing_is_drawn_where_the_cap_is_exceeded(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise AssertionError("rows were read, or noise was drawn")

    prepared = prepare(**NOISY, epsilon=4.0)
    monkeypatch.setattr(door, "rows_of", fail)
    monkeypatch.setattr(KeyedNoise, "stream", fail)
    with pytest.raises(OverspendError, match=r"delta 8\.20312e-05") as refused:
        prepared.charge()
    assert refused.value.bound == 3.0 < (refused.value.value or 0.0) < 5.0
    with pytest.raises(OverspendError):
        prepared.make()
    assert charges() == []
    assert digests() == {}


def test_a_plan_is_charged_whole_or_not_at_all(clinic: Path) -> None:
    prepared = prepare(**FEDERATED)
    assert prepared.charge()["charged"] == 4
    assert prepared.charge()["charged"] == 0
    too_much = prepare(**FEDERATED, epsilon=4.0)
    with pytest.raises(OverspendError):
        too_much.charge()
    assert len(charges()) == 4


# ── exactly once ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("config", [NOISY, FEDERATED, {"algorithm": "noisy-gd", "trust": "secagg"}])
def test_a_release_is_made_once_and_made_again_with_equal_bytes(config: dict[str, Any], clinic: Path) -> None:
    prepared = prepare(**config)
    prepared.charge()
    first = prepared.make()
    kept, paid = digests(), charges()
    assert prepared.make() == first
    for key in kept:
        forget(key)
    assert prepared.make() == first
    assert digests() == kept
    assert charges() == paid
    assert len({key for key, _ in paid}) == len(paid) == len(prepared.plan.releases)
    assert not any(recharge for _, recharge in paid)


def test_the_stored_copy_is_the_release(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(**NOISY)
    prepared.make()

    def fail(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setattr(door, "fit", fail)
    prepared.make()


def test_a_matrix_product_takes_one_thread_whatever_the_machine_has_and_no_engine_is_imported() -> None:
    """The last bits of a product depend on how it is divided, and the noise on them: a retry elsewhere would be another
    release. Prefect reads its settings when it is imported, and takes seconds.
    """
    program = (
        "import sys, numpy, scipy.linalg, tasks.release.door, tasks.release.preflight; "
        "from threadpoolctl import threadpool_info; "
        "print({one['num_threads'] for one in threadpool_info() if one['user_api'] == 'blas'}); "
        "print([name for name in ('prefect', 'mlflow') if name in sys.modules])"
    )
    environment = clean_environment(OPENBLAS_NUM_THREADS="2", MKL_NUM_THREADS="2", BLIS_NUM_THREADS="2")
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "{1}\n[]\n"


def test_a_replicate_is_fresh_noise_and_a_fresh_charge(clinic: Path) -> None:
    first, second = prepare(**NOISY), prepare(**NOISY, replicate=1)
    first.make()
    second.make()
    assert len(charges()) == 2
    one, two = (ReleaseStore(current_layout()).read(only(made).key)[1]["weights"] for made in (first, second))
    assert not np.allclose(one, two)


def test_each_party_draws_from_its_own_secret(clinic: Path) -> None:
    """With one secret for all, whoever keeps it could subtract everybody's noise."""
    prepared = prepare(**FEDERATED)
    prepared.charge()
    prepared.make()
    layout = current_layout()
    secrets = [layout.party_secret(party).read_bytes() for party in ("0", "1")]
    assert secrets[0] != secrets[1]
    assert all(layout.party_secret(party).stat().st_mode & 0o777 == 0o600 for party in ("0", "1"))
    ids = {charge.key: charge.plan.key_ids for charge in open_ledger().charges("clinic")}
    own = {release.key: release.parties[0] for release in prepared.plan.releases}
    for key, party in own.items():
        assert set(ids[key]) == {"0", "1"}
        assert all(secret.hex() not in identifier for identifier in ids[key].values() for secret in secrets), party


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("trust", "whose"), [("central", "the curator's secret"), ("secagg", "the secret of party 1")])
def test_a_lost_secret_never_redraws_noise(trust: str, whose: str, clinic: Path, tmp_path: Path) -> None:
    prepared = prepare(**NOISY, trust=trust)
    prepared.charge()
    kept = prepared.make()
    contributor = only(prepared).noise_contributors[-1]
    path = current_layout().party_secret(contributor)
    aside = path.rename(tmp_path / "kept")
    forget(only(prepared).key)
    for _ in range(2):
        prepared.charge()
        with pytest.raises(SecretError, match=f"{whose}.*missing.*--replicate"):
            prepared.make()
        assert not path.exists(), "a new secret in the lost one's place would hide the loss"
    # Another secret in its place is not the one that the charge remembers.
    path.write_bytes(bytes(32))
    path.chmod(0o600)
    with pytest.raises(SecretError, match=f"{whose}, which.*--replicate"):
        prepared.make()
    assert digests() == {}
    path.unlink()
    aside.rename(path)
    assert prepared.make() == kept
    assert len(charges()) == 1


def test_what_was_stored_needs_no_secret(clinic: Path) -> None:
    prepared = prepare(**NOISY)
    made = prepared.make()
    current_layout().party_secret("all").unlink()
    prepared.charge()
    assert prepared.make() == made


def test_a_fresh_release_after_a_loss_is_drawn_from_a_fresh_secret(clinic: Path) -> None:
    prepare(**NOISY).make()
    current_layout().party_secret("all").unlink()
    prepare(**NOISY, replicate=1).make()
    assert len(charges()) == 2


def test_a_secret_that_others_can_read_is_refused_before_the_charge(clinic: Path) -> None:
    prepare(**NOISY).make()
    current_layout().party_secret("all").chmod(0o640)
    with pytest.raises(SecretError, match=r"0640.*600"):
        prepare(**NOISY, replicate=1).charge()
    assert len(charges()) == 1


# ── another value under the same identity ────────────────────────────────────────────────────────────────────────────


def nudge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the last bit of one feature, as another library or another number of threads might."""
    original = seen_rows.rows_of

    class Nudged:
        def __init__(self, rows: Any) -> None:
            self._rows = rows

        def __getattr__(self, name: str) -> Any:
            return getattr(self._rows, name)

        def blocks(self) -> Any:
            for features, labels, shares in self._rows.blocks():
                changed = features.copy()
                changed[0, 0] = np.float64(changed[0, 0]) + 1e-4
                yield changed, labels, shares

        def fingerprint(self) -> Any:
            print_ = self._rows.fingerprint().copy()
            print_[0] ^= 1
            return print_

    monkeypatch.setattr(door, "rows_of", lambda *arguments: Nudged(original(*arguments)))


def test_a_recomputation_with_another_value_costs_the_release_once_more(
    clinic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(**NOISY)
    prepared.charge()
    prepared.make()
    key = only(prepared).key
    first = digests()
    forget(key)
    nudge(monkeypatch)
    prepared.make()
    assert digests() != first
    assert charges() == [(key, False), (key, True)]
    assert len(outputs(open_ledger(), key)) == 2
    # The same other value again is already on record.
    forget(key)
    prepared.make()
    assert charges() == [(key, False), (key, True)]


def test_the_same_sums_rounded_otherwise_cost_nothing(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by eigenvectors or a solver on another processor: post-processing of what was paid for."""
    prepared = prepare(**NOISY)
    prepared.charge()
    prepared.make()
    key = only(prepared).key
    first = digests()
    forget(key)
    trainer: Any = only(prepared).build()
    original = type(trainer).result

    def rounded(self: Any, state: Any, setting: Any) -> Any:
        model = original(self, state, setting)
        return replace(model, weights=np.nextafter(model.weights, np.inf))

    monkeypatch.setattr(type(trainer), "result", rounded)
    prepared.make()
    assert digests() != first
    assert charges() == [(key, False)]
    assert len(outputs(open_ledger(), key)) == 2
    stored = ReleaseStore.digest_of(*open_releases().read(key))
    assert open_ledger().verify({key: stored}) == []
    # Other sums under the same rounding are another release.
    forget(key)
    nudge(monkeypatch)
    prepared.make()
    assert charges() == [(key, False), (key, True)]


def test_another_value_that_does_not_fit_the_budget_is_thrown_away(
    clinic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(**NOISY, epsilon=2.5)
    prepared.make()
    forget(only(prepared).key)
    nudge(monkeypatch)
    with pytest.raises(OverspendError, match="computed again"):
        prepared.make()
    assert digests() == {}
    assert len(charges()) == 1
    assert len(outputs(open_ledger(), only(prepared).key)) == 1


def test_noise_differs_where_the_value_differs(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal noise over two values would reveal their difference exactly."""
    prepared = prepare(**NOISY)
    keys: list[bytes] = []
    original = KeyedNoise.stream

    def stream(self: KeyedNoise, step: str, value: Any) -> Any:
        found = original(self, step, value)
        keys.append(original(self, step, value).words(4).tobytes())
        return found

    monkeypatch.setattr(KeyedNoise, "stream", stream)
    prepared.make()
    count = len(keys)
    forget(only(prepared).key)
    nudge(monkeypatch)
    prepared.make()
    assert count > 0
    assert not set(keys[:count]) & set(keys[count:])


# ── what the door does not believe ───────────────────────────────────────────────────────────────────────────────────


def forged(prepared: Prepared, **changes: Any) -> list[Any]:
    return [
        shard.model_copy(update={"dataset": shard.dataset.model_copy(update=changes)})
        for shard in prepared.shards.training
    ]


def test_a_reference_that_calls_private_rows_public_is_refused(clinic: Path) -> None:
    prepared = prepare(algorithm="non-private", epsilon=None, dimension=3)
    for changes in ({"visibility": Visibility.PUBLIC}, {"account": "somebody-else"}):
        shards = forged(prepared, **changes)
        with pytest.raises(RefusedError, check=stating(bound="registered")):
            door.charge_plan(prepared.plan, shards)
        with pytest.raises(RefusedError, check=stating(bound="registered")):
            door.make_release(prepared.plan.projections[0], shards)
    assert digests() == {}
    assert charges() == []


def test_sizes_are_those_of_the_shards(clinic: Path) -> None:
    """The guarantee is read off the sizes, so a plan for larger parties would add too little noise."""
    prepared = prepare(**FEDERATED)
    release = prepared.plan.projections[0]
    larger = release.model_copy(update={"setting": replace(release.setting, sizes=(10**6,))})
    with pytest.raises(RefusedError, match="rows 1000000", check=stating(value=100, bound=1000000)):
        door.make_release(larger, prepared.shards.of(("0",)))
    shard = prepared.shards.of(("0",))[0].model_copy(update={"rows": 10**6})
    with pytest.raises(RefusedError, check=stating(bound="stored")):
        door.make_release(larger, [shard])
    assert charges() == []


def test_a_dearer_release_is_another_release(clinic: Path) -> None:
    """Charged for much noise and drawn with little: what is drawn has an identity, and a price, of its own."""
    prepared = prepare(**NOISY)
    prepared.charge()
    release = only(prepared)
    assert isinstance(release.budget, GaussianMu)
    dearer = release.model_copy(update={"budget": GaussianMu(50 * release.budget.mu)})
    assert dearer.key != release.key
    with pytest.raises(OverspendError):
        door.make_release(dearer, prepared.shards.training)
    assert [key for key, _ in charges()] == [release.key]
    assert digests() == {}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"algorithm": "non-private", "epsilon": None}, "not proved"),
        ({"algorithm": "fed-dpdr-dpml-published"}, "fed-dpdr-dpml"),
        ({"algorithm": "noisy-gd", "seed": 1}, "seed"),
        ({"algorithm": "noisy-gd", "delta": 0.02}, "1/n"),
    ],
)
def test_what_may_not_read_private_rows(config: dict[str, Any], words: str, clinic: Path) -> None:
    prepared = prepare(**config)
    with pytest.raises(RefusedError, match=words):
        prepared.charge()
    if "delta" not in config:
        with pytest.raises(RefusedError):
            prepared.make()
    assert charges() == []
    assert digests() == {}


def test_idealised_noise_needs_the_owners_word(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input")
    prepared = prepare(algorithm="dpml")
    for refused in (prepared.charge, prepared.make):
        with pytest.raises(RefusedError, match="idealised"):
            refused()
    assert charges() == []
    # One idealised release is enough to refuse the whole plan, before the exact ones are paid for.
    with pytest.raises(RefusedError, match="idealised"):
        prepare(**FEDERATED).charge()
    assert charges() == []


def test_delta_is_below_one_over_the_rows_of_the_largest_release(clinic: Path) -> None:
    """200 rows in a joint release: 1/100 of one party's rows is not small enough for it."""
    with pytest.raises(RefusedError, match="n = 200"):
        prepare(**NOISY, delta=1 / 200).charge()
    with pytest.raises(RefusedError, match="n = 100"):
        prepare(**FEDERATED, delta=1 / 100).charge()
    assert charges() == []
    prepare(**FEDERATED, delta=1 / 120).charge()


# ── what the ledger may say ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_refusal_depends_on_charges_alone(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is handed guarantees, labels and identifiers: nothing that depends on a row."""
    asked: list[Any] = []
    original = Ledger.charge

    def charge(self: Ledger, plan: Any, key_ids: Any) -> Any:
        asked.append((plan, dict(key_ids)))
        return original(self, plan, key_ids)

    monkeypatch.setattr(Ledger, "charge", charge)
    prepared = prepare(**FEDERATED)
    prepared.charge()
    plan, key_ids = asked[0]
    assert [release.guarantee for release in plan.releases] == [
        release.guarantee().to_json() for release in prepared.plan.releases
    ]
    assert set(key_ids) == {"0", "1"}


def test_a_read_only_ledger_stops_everything_before_noise(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(**NOISY)

    def fail(self: Ledger, *arguments: Any) -> Any:
        raise StorageError("cannot write the ledger: the disk is full")

    monkeypatch.setattr(Ledger, "charge", fail)
    monkeypatch.setattr(door, "rows_of", fail)
    with pytest.raises(StorageError, match="disk is full"):
        prepared.make()
    assert digests() == {}


# ── what is stored ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_manifest_says_what_was_proved_of_what(clinic: Path) -> None:
    prepared = prepare(**NOISY)
    made = prepared.make()
    release = only(prepared)
    manifest, arrays = ReleaseStore(current_layout()).read(release.key)
    assert made[release.key] == ReleaseRef(key=release.key, kind=manifest["artefact"], party="all")
    assert manifest["guarantee"] == release.guarantee().to_json()
    assert manifest["setting"]["sizes"] == [100, 100]
    assert manifest["setting"]["neighbours"] == "replace-one"
    assert manifest["setting"]["trust"] == "central"
    assert manifest["guarantee"]["numerics"] == "exact"
    assert manifest["algorithm"]["name"] == "noisy-gd"
    assert manifest["format_version"] == 1
    assert manifest["diagnostics"] == {}
    assert arrays["weights"].shape == (1, 6)
    published = prepare("iris", algorithm="dpdr-dpml-published", dimension=2)
    published.make()
    manifest, _ = ReleaseStore(current_layout()).read(published.plan.projections[0].key)
    assert manifest["claim"]["flaw"]


def test_iterations_of_private_training_are_not_told(clinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a solver took depends on the rows; of public ones it may be told."""
    exact = prepare("iris", algorithm="non-private", dimension=2)
    exact.make()
    manifest, _ = ReleaseStore(current_layout()).read(exact.plan.models[0].key)
    assert manifest["diagnostics"]

    def diagnostics(*arguments: Any) -> Any:
        raise AssertionError("a solver was asked how it went on private rows")

    prepared = prepare(**NOISY)
    monkeypatch.setattr(lookup("trainers", "noisy-gd"), "diagnostics", diagnostics, raising=False)
    prepared.make()
    manifest, _ = ReleaseStore(current_layout()).read(only(prepared).key)
    assert manifest["diagnostics"] == {}


def test_a_map_that_sees_no_row_costs_nothing(clinic: Path) -> None:
    prepared = prepare(algorithm="noisy-gd", projection="identity")
    assert prepared.charge()["charged"] == 1
    prepared.make()
    assert len(charges()) == 1
    (free,) = [release for release in prepared.plan.releases if not release.reads_rows]
    assert open_releases().exists(free.key)


def test_a_combination_is_free_and_made_of_releases(clinic: Path) -> None:
    prepared = prepare(**FEDERATED)
    prepared.make()
    assert prepared.plan.model is not None
    manifest, arrays = ReleaseStore(current_layout()).read(prepared.plan.model.key)
    assert "guarantee" not in manifest
    parts = [ReleaseStore(current_layout()).read(key)[1]["weights"] for key in prepared.plan.model.upstream]
    np.testing.assert_allclose(arrays["weights"], np.mean(parts, axis=0), atol=1e-12)
    assert {key for key, _ in charges()} == {release.key for release in prepared.plan.releases}


def test_public_seeds_give_equal_releases_in_every_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in ("one", "two"):
        monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / name))
        prepare("iris", algorithm="fed-dpdr-dpml", dimension=2, seed=5).make()
        found.append(digests())
    assert found[0] == found[1]
    assert len(found[0]) == 6
    # Without one the parties' own secrets differ, and so does every release that draws noise.
    fresh = []
    for name in ("one", "two"):
        monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / name))
        fresh.append(digests_of(prepare("iris", **NOISY)))
    assert fresh[0] != fresh[1]


def digests_of(prepared: Prepared) -> Any:
    prepared.make()
    return digests()[only(prepared).key]


def test_a_public_seed_gives_each_party_noise_of_its_own(root: Path) -> None:
    """Equal noise at two parties of equal rows would show that their rows are equal."""
    prepared = prepare("iris", algorithm="noisy-gd", trust="secagg", seed=5)
    drawn: list[bytes] = []
    original = KeyedNoise.stream
    with pytest.MonkeyPatch.context() as patch:

        def stream(self: KeyedNoise, step: str, value: Any) -> Any:
            drawn.append(original(self, step, value).words(4).tobytes())
            return original(self, step, value)

        patch.setattr(KeyedNoise, "stream", stream)
        prepared.make()
    assert len(drawn) > 2
    assert len(set(drawn)) == len(drawn)
    assert only(prepared).guarantee().losses != (GaussianMu(0.0),)


@pytest.mark.parametrize("projection", [None, "random-projection"])
def test_what_a_release_looks_up_does_not_grow_with_its_parties(
    projection: str | None, clinic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look at a charge or an artefact takes as long as there are parties: one a party is a square."""
    looked: Counter[str] = Counter()

    def counted(cls: type, name: str) -> None:
        original = getattr(cls, name)

        def method(self: Any, *arguments: Any, **named: Any) -> Any:
            looked[f"{cls.__name__}.{name}"] += 1
            return original(self, *arguments, **named)

        monkeypatch.setattr(cls, name, method)

    for name in ("charge_of", "charged", "is_charged", "account", "charge"):
        counted(Ledger, name)
    for name in ("read", "exists"):
        counted(ReleaseStore, name)
    counted(PlannedRelease, "guarantee")
    found = []
    for parties in (3, 80):
        looked.clear()
        made = prepare(
            algorithm=None,
            trainer="sufficient-statistics",
            trust="secagg",
            projection=projection,
            dimension=3,
            parties=parties,
            rows_per_party=1,
            seed=None,
            delta=1e-6,
        )
        made.charge()
        assert len(made.make()) == 1 + (projection is not None)
        assert made.plan.losses_by_party().keys() == {str(party) for party in range(parties)}
        found.append(dict(looked))
    assert found[0] == found[1]
    assert found[0]["Ledger.charge_of"] == 1
