"""Expected memory and passes of a run: closed forms, from the plan alone, and nothing run or charged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dpalgos.features.whitening import PublicWhitening
from dpalgos.guarantees import Setting
from dpalgos.registry import lookup, names
from flows.federated_training import chain_inline
from storage.confined import kept_memory
from storage.errors import InputError
from tasks.datasets.registration import ensure_registered
from tasks.planning.configuration import TrainingConfig
from tasks.release import expectation
from tasks.release.expectation import Expectation, expect, expect_run
from tests.dpalgos.parameters import PARAMETERS
from tests.support.chains import charges, ingest_private
from tests.support.plans import dataset_of, planned, shards_of

CORES = 2


def expected(**config: Any) -> Expectation:
    asked = TrainingConfig.model_validate({"dataset": "iris", "epsilon": 1.0, "parties": 2, **config})
    ensure_registered(asked.dataset)
    return expect_run(asked)


@pytest.mark.usefixtures("root")
def test_gradient_descent_in_closed_form() -> None:
    """150 rows of iris in the training part less a fifth, three classes, four features, T sums."""
    found = expected(algorithm="noisy-gd", parameters={"iterations": 30})
    rows = found.rows
    trained = rows - rows // 5
    assert found.passes == 30
    assert found.operations == pytest.approx(4 * trained * 3 * 4 * 30, rel=0.02)
    assert (found.parties, found.dimension, found.epsilon) == (2, 4, 1.0)
    assert not found.streamed
    assert charges("iris") == []


@pytest.mark.usefixtures("root")
def test_rows_beyond_the_limit_are_read_at_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = expected(algorithm="noisy-gd", parameters={"iterations": 30})
    monkeypatch.setenv("UNITBALL_MEMORY", "0")
    streamed = expected(algorithm="noisy-gd", parameters={"iterations": 30})
    assert streamed.streamed
    assert streamed.read_bytes == 30 * kept.read_bytes


_ROWS, _WIDTH, _BLOCK = 1_000_000, 100, 8192


def memory_of(limit: int, writes_rows: bool = False, **config: Any) -> float:
    """Return the bytes expected of a run over a million rows beyond those of libraries and compiled code."""
    dataset = dataset_of(rows=_ROWS, dimension=_WIDTH, classes=3)
    plan = planned(shards_of(dataset, (_ROWS // 2, _ROWS // 2)), **config)
    found = expect(plan, dataset, writes_rows=writes_rows, limit=limit, cores=CORES)
    return found.memory_bytes - 470 * 2**20


def test_memory_in_closed_form() -> None:
    """Three numbers a feature of a block that is read in float32, two in float64 for each block on its way."""
    blocks = _BLOCK * _WIDTH * (3 * 4 + 2 * 8 * (CORES + 2))
    kept = 4 * _ROWS * (_WIDTH + 3 + 4)
    descent: dict[str, Any] = {"algorithm": "noisy-gd"}
    assert memory_of(limit=2**40, **descent) == blocks + kept
    assert memory_of(limit=kept - 2, **descent) == blocks + (kept - 2) // 2, "half of the limit is for some of them"
    assert memory_of(limit=0, **descent) == blocks
    assert memory_of(limit=0, writes_rows=True, **descent) == 8 * 4 * _BLOCK * _WIDTH + 48 * _ROWS + 2**28
    squares = 5 * 8 * _WIDTH**2
    directions: dict[str, Any] = {
        "algorithm": None,
        "projection": "analyze-gauss",
        "trainer": "class-means",
        "dimension": 20,
    }
    assert memory_of(limit=2**40, **directions) == blocks + squares * CORES


@pytest.mark.parametrize(("limit", "streamed"), [(1.0, 0.0), (0.99, 0.505), (0.4, 0.8), (0.0, 1.0)])
def test_rows_that_half_of_the_limit_has_no_room_for_are_encoded_at_every_pass(limit: float, streamed: float) -> None:
    dataset = dataset_of(rows=_ROWS, dimension=_WIDTH, classes=3)
    plan = planned(shards_of(dataset, (_ROWS // 2, _ROWS // 2)), algorithm="noisy-gd", parameters={"iterations": 11})
    kept = 4 * _ROWS * (_WIDTH + 3 + 4)
    all_kept, some = (
        expect(plan, dataset, writes_rows=False, limit=int(part * kept), cores=CORES) for part in (1.0, limit)
    )
    assert some.streamed == pytest.approx(streamed, abs=1e-6)
    assert some.read_bytes == all_kept.read_bytes * (11 if streamed else 1)


def test_rows_that_are_held_take_turns_at_the_limit() -> None:
    """Two parties' minimisers hold half of the rows each: both where they fit, one after the other otherwise."""
    one = 8 * (_ROWS // 2) * (_WIDTH + 1 + 8 * 3)
    config: dict[str, Any] = {
        "algorithm": None,
        "trainer": "output-perturbation",
        "aggregation": "weighted-mean",
        "trust": "local",
    }
    both, alone = (memory_of(limit, **config) for limit in (2 * one, 2 * one - 1))
    assert both - alone == 1
    assert memory_of(one, **config) == both - one


_HOLDING = {
    *("public-whitening", "encoder"),
    *("erm", "objective-perturbation", "objective-perturbation-gaussian", "objective-perturbation-published"),
    *("output-perturbation", "output-perturbation-radial", "mpc-op", "pathak", "approximate-minima-perturbation"),
    *("consensus-admm", "consensus-admm-published", "continual-ftrl", "dpwss", "dual-perturbation-published", "smo"),
    *("smo-output-perturbation", "smo-output-perturbation-laplace", "svm-laplace-published"),
}
"""Those that cannot read rows again, or make what takes as much."""


def test_every_algorithm_says_what_it_asks() -> None:
    setting = Setting(sizes=(40, 60), dimension=6, classes=3)
    for kind in ("projections", "trainers"):
        for name in names(kind):
            work = lookup(kind, name)(**PARAMETERS[kind, name][0]).work(setting)
            assert work.passes >= 1
            assert math.isfinite(work.operations)
            assert work.kept >= 0
            assert (work.held > 0) == (name in _HOLDING), name
    covariance = lookup("projections", "analyze-gauss")(**PARAMETERS["projections", "analyze-gauss"][0])
    assert covariance.work(setting).operations == 2 * 100 * 21 + 10 * 6**3


def test_a_kernel_matrix_is_counted_up_to_200_mib() -> None:
    """From there on only what is kept of rows grows."""
    smo = lookup("trainers", "smo")(**PARAMETERS["trainers", "smo"][0])
    few, many, more = (smo.work(Setting(sizes=(rows,), dimension=2, classes=2)).held for rows in (100, 20000, 30000))
    per_row = (more - many) / 10000
    assert few == 100 * per_row + 4 * 100**2
    assert many == 20000 * per_row + 200 * 2**20


@pytest.mark.parametrize(("words", "size"), [("2G", 2**31), ("1.5m", 3 * 2**19), ("4096", 4096), ("0", 0)])
def test_the_limit_is_read_from_the_environment(words: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITBALL_MEMORY", words)
    assert kept_memory() == size


@pytest.mark.parametrize("words", ["much", "-1", "inf", "G"])
def test_a_limit_that_is_none_is_refused(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITBALL_MEMORY", words)
    with pytest.raises(InputError, match="2G"):
        kept_memory()


def test_making_a_public_map_and_mapping_each_row_is_counted() -> None:
    """A decomposition, two covariances, synthetic images drawn, and features and directions of these and the rows."""
    whitening = PublicWhitening(components=20, images=50, shape=(16, 16))
    features = whitening.make(256).map.dimension
    work = whitening.work(Setting(sizes=(40, 60), dimension=256, classes=3))
    assert work.small_operations == 256 * (6 * 200 + 20 * 100)
    assert work.operations == 8 * features**3 + 1.5 * 100 * features**2 + 2 * 200 * features * 20
    # Of filters, what each answers to each patch: 11 x 11 of 6 x 6 pixels, mirrored ones too.
    dictionary = PublicWhitening(components=20, images=50, shape=(16, 16), features="dictionary", mirror=True)
    answers = dictionary.work(Setting(sizes=(100,), dimension=256, classes=3)).operations
    assert answers - 8 * 3200**3 - 1.5 * 100 * 3200**2 - 2 * 200 * 3200 * 20 == 200 * 2 * 800 * 36 * 121


@pytest.mark.usefixtures("root")
def test_rows_that_are_mapped_at_each_reading_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    config: dict[str, Any] = {"dataset": "digits", "algorithm": "noisy-gd", "dimension": 20}
    config |= {"projection": "public-whitening", "parameters": {"projection.features": "scattering", "iterations": 7}}
    assert not expected(**config).mapped_again
    monkeypatch.setattr(expectation, "has_room", lambda *_: False)
    assert expected(**config).mapped_again
    assert not expected(**{**config, "projection": "pca", "parameters": {}}).mapped_again


@pytest.mark.usefixtures("root")
def test_what_is_charged_already_is_said_and_of_other_mathematics_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"trainer": "class-means", "seed": 1}
    assert expected(**config).charged == 0
    chain_inline(TrainingConfig.model_validate({"dataset": "iris", "epsilon": 1.0, "parties": 2, **config}))
    assert expected(**config).charged == len(charges("iris")) > 0
    again = expected(**config)
    assert again.stored == again.charged
    assert (again.operations, again.read_bytes, again.parties) == (0, 0, 2), "what is stored reads nothing again"
    monkeypatch.setattr("tasks.planning.plans.code_version", lambda *classes: "0" * 16)
    assert expected(**config).charged == 0


@pytest.mark.usefixtures("root")
def test_what_measures_is_stored_like_the_rest(tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", epsilon_cap=5.0)
    config: dict[str, Any] = {"dataset": "clinic", "algorithm": "noisy-gd", "test_fraction": 0.25}
    chain_inline(TrainingConfig.model_validate({"epsilon": 1.0, "parties": 2, **config}))
    again = expected(**config)
    assert again.stored == again.charged == again.releases == 2
    assert again.price is None


@pytest.mark.usefixtures("root")
def test_a_plan_has_the_price_that_commands_print(tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", epsilon_cap=5.0)
    price = expected(dataset="clinic", algorithm="noisy-gd", epsilon=None).price
    assert price is not None
    assert (price.account, price.before, price.cap) == ("clinic", 0.0, 5.0)
    assert expected(algorithm="noisy-gd", epsilon=None).price is None, "public rows cost nothing"


@pytest.mark.usefixtures("root")
def test_a_night_is_told_and_nothing_is_recorded_of_it() -> None:
    config: dict[str, Any] = {"trainer": "class-means", "trust": "central"}
    first = expected(**config, horizon=3)
    assert (first.night, first.nights, first.epsilon, first.charged, first.stored) == (1, 3, 1.0, 0, 0)
    assert 1.0 < first.noise < expected(**config, horizon=365).noise, "of the last running sum, as --explain has it"
    assert 0 < first.read_bytes < 10**6, "of the rows that arrived, not of all that a horizon expects"
    # Of a horizon that had begun no other could be asked for.
    assert expected(**config, horizon=4).nights == 4
    assert charges("iris") == []
    chain_inline(
        TrainingConfig.model_validate({"dataset": "iris", "epsilon": 1.0, "parties": 2, **config, "horizon": 3})
    )
    after = expected(**config, horizon=3)
    assert (after.night, after.stored, after.charged) == (1, 1, 1)
