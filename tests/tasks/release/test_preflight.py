"""Refusals told before a run starts: all faults at once, and exactly those that the run would meet."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpalgos.parameters import ParameterError
from flows.federated_training import chain_inline
from storage.errors import DamagedError, InputError, OverspendError, RefusedError
from storage.refs import Visibility
from tasks.accounts.ledger import open_ledger
from tasks.accounts.terms import gaussian_delta
from tasks.datasets.registration import ensure_registered, find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.preparation import prepare as planning
from tasks.release import preflight
from tasks.release.preflight import largest_epsilon, require_feasible
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog
from tests.support.chains import charges, configured, ingest_private, prepare
from tests.support.private_rows import CLASSES, DIMENSION, write_rows
from tests.support.rows import divided, normalised
from tests.support.stating import stating

pytestmark = pytest.mark.usefixtures("root")


def check(dataset: str = "iris", **config: Any) -> None:
    defaults = {"algorithm": "noisy-gd", "epsilon": 1.0, "parties": 2, "evaluation": dataset != "clinic"}
    ensure_registered(dataset)
    require_feasible(TrainingConfig.model_validate({"dataset": dataset, **defaults, **config}))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"sizes": (20, 40)},
        {"rows_per_party": 30},
        {"test_fraction": 0.0},
        {"normalisation": "clip"},
        {"partition_seed": 3},
    ],
)
@pytest.mark.parametrize("private", [False, True])
def test_references_are_those_that_the_run_makes(config: dict[str, Any], private: bool, tmp_path: Path) -> None:
    """Otherwise a release that was charged before would look new, and its plan too dear."""
    name = "iris"
    if private:
        name = "flowers"
        ingest_private(tmp_path / "rows", 120, name=name)
    settings = TrainingConfig(dataset=name, epsilon=1.0, **{"parties": 2, **config})
    ensure_registered(name)
    dataset = find_dataset(name)
    planned = planning.whole(planning.prepare(settings))
    mapped = normalised(dataset, settings.normalisation or "unit-norm")
    assert planned.shards == divided(mapped, settings)
    assert planned.shards.training[0].dataset == mapped


def test_what_the_rows_decide_is_left_to_the_run() -> None:
    check(partition="by-label")
    undecided = planning.prepare(TrainingConfig(dataset="iris", partition="by-label", epsilon=1.0))
    assert isinstance(undecided, planning.AwaitingPartition)
    assert undecided.config.delta == 1e-5
    with pytest.raises(InputError, match="by-label"):
        planning.whole(undecided)


@pytest.mark.parametrize("whose", ["clinic", "others"])
@pytest.mark.parametrize(
    "config", [{"algorithm": "noisy-gd"}, {"horizon": 3, "trainer": "class-means"}], ids=["run", "night"]
)
def test_a_file_of_rows_that_is_missing_is_told_before_the_charge(
    whose: str, config: dict[str, Any], tmp_path: Path
) -> None:
    """That needs no row: charged first, the owner would pay for a run that cannot be made."""
    ingest_private(tmp_path / "rows", 60)
    public = write_rows(tmp_path / "others.txt", 60, seed=1).path
    public_rows = IngestRequest(
        name="others",
        format="libsvm",
        path=public,
        visibility=Visibility.PUBLIC,
        dimension=DIMENSION,
        classes=CLASSES,
    )
    ingest(public_rows)
    settings = configured(public_dataset="others", **config)
    folder = current_layout().dataset(find_dataset(whose).version) / "train"
    folder.rename(tmp_path / "elsewhere")
    for tried in (require_feasible, chain_inline):
        with pytest.raises(DamagedError, match=r"part-00000\.parquet.*missing"):
            tried(settings)
    assert charges() == []
    assert open_catalog().horizons("clinic") == []
    (tmp_path / "elsewhere").rename(folder)
    chain_inline(settings)
    (tmp_path / "gone").mkdir()
    # Normalised rows stand by themselves.
    folder.rename(tmp_path / "gone" / "train")
    assert chain_inline(settings).result.cached is not None


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"no rows")])
def test_private_rows_that_are_ingested_again_mend_their_version(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    """The way out that is named: under another version the same command would be charged once more."""
    ingest_private(tmp_path / "rows", 60)
    version, settings = find_dataset("clinic").version, configured(algorithm="noisy-gd")
    part = current_layout().dataset(version) / "train" / "part-00000.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamagedError, check=stating(value="part-00000.parquet", bound="digest")):
        chain_inline(settings)
    charged = charges()
    assert charged
    damage(part)
    ingest_private(tmp_path / "rows", 60)
    assert find_dataset("clinic").version == version
    assert part.read_bytes() == whole
    chain_inline(settings)
    assert charges() == charged
    # Other rows are another version, whatever has become of these.
    damage(part)
    ingest_private(tmp_path / "rows", 60, seed=2)
    assert find_dataset("clinic").version != version


def test_all_faults_at_once() -> None:
    parameters = {"clip": -1, "iterations": 0, "nonsense": 3, "partition.nonsense": 1}
    with pytest.raises(InputError) as caught:
        check(trust="central", dimension=9, epsilon=None, rows_per_party=500, parameters=parameters)
    for part in ("dimension 9", "--epsilon", "clip is -1", "iterations is 0", "'nonsense'", "no parameter 'nonsense'"):
        assert part in str(caught.value), part
    with pytest.raises(InputError) as caught:
        check(algorithm="non-private", trust="local", rows_per_party=500)
    for part in ("does not run under trust local", "1000 rows"):
        assert part in str(caught.value), part


def test_parameters_that_fit_together_are_no_fault() -> None:
    """Weights of maps that are no longer the default's were refused, looked at without the maps."""
    maps = {"maps": {"dct": {"shape": [2, 2]}, "pooling": {"shape": [2, 2]}}, "weights": {"dct": 1.0, "pooling": 0.5}}
    given: dict[str, Any] = {"projection": "side-by-side", "algorithm": None, "trainer": "class-means"}
    check(**given, parameters={f"projection.{name}": value for name, value in maps.items()})
    with pytest.raises(ParameterError, match=r"dct, pooling.*dct"):
        check(**given, parameters={"projection.maps": {"dct": {}}, "projection.weights": maps["weights"]})


def test_one_fault_keeps_its_own_class() -> None:
    with pytest.raises(ParameterError, match=r"clip.*-1"):
        check(parameters={"clip": -1})
    with pytest.raises(InputError, check=stating(value="nothere", way_out="ingest")):
        check(dataset="nothere")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"algorithm": "fed-dpdr-dpml-published"}, "not proved"),
        ({"algorithm": "fed-dpdr-dpml"}, "idealised"),
        ({"normalisation": "minmax"}, "minmax"),
        ({"partition": "by-label"}, "by-label"),
        ({"seed": 3}, "seed"),
        ({"delta": 0.1}, "1/n"),
    ],
)
def test_what_may_not_touch_private_rows(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    ingest_private(tmp_path / "rows")
    with pytest.raises(RefusedError, match=words):
        check("clinic", **config)


def test_a_refusal_does_not_hide_bad_input(tmp_path: Path) -> None:
    ingest_private(tmp_path / "rows")
    with pytest.raises(InputError) as caught:
        check("clinic", normalisation="minmax", rows_per_party=5000)
    assert "minmax" in str(caught.value)
    assert "10000 rows" in str(caught.value)


def test_what_the_account_cannot_pay_is_refused_and_what_is_paid_is_not(tmp_path: Path) -> None:
    ingest_private(tmp_path / "rows", epsilon_cap=1.2)
    before = sorted(current_layout().root.rglob("*"))
    check("clinic")
    assert sorted(current_layout().root.rglob("*")) == before, "nothing is made"
    assert charges() == []
    prepare("clinic", algorithm="noisy-gd").charge()
    paid = charges()
    # Asked again it costs nothing; a new replicate would.
    check("clinic")
    with pytest.raises(OverspendError, match=r"epsilon.*0"):
        check("clinic", replicate=1)
    assert charges() == paid
    assert open_ledger().verify({}) == []


@pytest.mark.parametrize(
    ("config", "group"),
    [
        ({}, 1),
        ({"trust": "central", "delta": 1e-8}, 13),
        pytest.param({"evaluation": True}, 13, marks=pytest.mark.nightly),
        ({"algorithm": "unitball", "evaluation": True}, 1),
        ({"algorithm": "local-objective"}, 2),
        ({"algorithm": None, "trainer": "class-means", "trust": "central", "tune": {"count_weight": (1.0, 0.5)}}, 1),
        ({"algorithm": "mpc-gp"}, 1),
    ],
)
def test_the_epsilon_that_is_named_is_admitted_and_a_thousandth_more_is_not(
    config: dict[str, Any], group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the unit of the run's own option, whatever the account protects and however other epsilons deal the rows."""
    ingest_private(tmp_path / "rows", count=400, epsilon_cap=2.0, group_size=group, allow_idealised=True)
    prepare("clinic", algorithm="noisy-gd", trust="central", epsilon=0.6 / group).charge()
    with pytest.raises(OverspendError, match=r"^remaining") as refused:
        check("clinic", **config, epsilon=30.0)
    assert refused.value.bound == 2.0 < (refused.value.value or math.inf), "planning keeps what the ledger says"
    named = float(str(refused.value).split("of epsilon up to ")[1].split(" ")[0])
    assert named == refused.value.fits > 0.01
    check("clinic", **config, epsilon=named)
    # What remains is not searched for again.
    monkeypatch.setattr(preflight, "_largest", lambda config: named)
    with pytest.raises(OverspendError):
        check("clinic", **config, epsilon=1.001 * named)


def test_one_more_run_is_told_before_it_is_asked_for(tmp_path: Path) -> None:
    ingest_private(tmp_path / "rows", epsilon_cap=1.0, delta_cap=1e-6)
    asked = TrainingConfig(dataset="clinic", algorithm="noisy-gd", parties=2, evaluation=False)
    whole = largest_epsilon(asked).epsilon
    assert whole > 1.0, "at a part of the cap's delta, with the whole account before it"
    # A delta that was not named is that of Gaussian-DP, here and in the run.
    chain_inline(asked.model_copy(update={"epsilon": 0.9}))
    assert {charge.plan.delta for charge in open_ledger().charges("clinic")} == {gaussian_delta(1e-6)}
    after = largest_epsilon(asked).epsilon
    assert 0.0 < after < whole
    check("clinic", epsilon=after, replicate=7)
    with pytest.raises(OverspendError):
        check("clinic", epsilon=1.001 * after, replicate=7)
    with pytest.raises(InputError, match="cap's"):
        largest_epsilon(asked.model_copy(update={"delta": 1e-5}))
    with pytest.raises(RefusedError, match="--delta 1e-07"):
        check("clinic", delta=0.1)
    with pytest.raises(OverspendError, match="--delta 1e-07"):
        check("clinic", delta=1e-5, epsilon=0.9, replicate=8)


@pytest.mark.parametrize("trainer", ["erm", "output-perturbation", "smo-output-perturbation", "consensus-admm"])
def test_rows_that_must_be_held_and_do_not_fit_are_refused_before_the_charge(
    trainer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system would kill the process once it had been charged for."""
    config: dict[str, Any] = {"algorithm": None, "trainer": trainer, "evaluation": False}
    monkeypatch.setenv("UNITBALL_MEMORY", "8K")
    with pytest.raises(InputError, match=r"120 × 4 rows|60 × 4 rows") as caught:
        check(**config)
    assert "MiB, and UNITBALL_MEMORY allows 0" in str(caught.value)
    with pytest.raises(InputError, match="UNITBALL_MEMORY"):
        chain_inline(TrainingConfig.model_validate({"dataset": "iris", "epsilon": 1.0, "parties": 2, **config}))
    assert charges("iris") == []
    monkeypatch.setenv("UNITBALL_MEMORY", "1M")
    check(**config)


def test_what_is_stored_needs_no_memory_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainingConfig.model_validate({"dataset": "iris", "algorithm": "non-private", "parties": 2})
    made = chain_inline(config)
    monkeypatch.setenv("UNITBALL_MEMORY", "0")
    assert chain_inline(config).models == made.models
