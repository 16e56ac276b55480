"""Expected seconds and memory of a run: closed forms, from the plan alone, and nothing run or charged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dpalgos.features.whitening import PublicWhitening
from dpalgos.guarantees import Setting
from dpalgos.registry import lookup, names
from flows.federated_training import chain_inline
from storage.confined import kept_memory
from storage.errors import InputError
from tasks.planning.configuration import TrainingConfig
from tasks.release import expectation
from tasks.release.expectation import _NEW_ROOT, Expectation, Speeds, expect, expect_run, measure_speeds
from tests.dpalgos.parameters import PARAMETERS
from tests.support.chains import charges, ingest_private
from tests.support.plans import dataset_of, planned, shards_of

SPEEDS = Speeds(operations=1e10, interpreted=1.0, cores=2)


@pytest.fixture
def _steady(root: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expectation, "measure_speeds", lambda: SPEEDS)
    monkeypatch.setattr(expectation, "has_databases", lambda root: True)


def expected(**config: Any) -> Expectation:
    return expect_run(TrainingConfig.model_validate({"dataset": "iris", "epsilon": 1.0, "parties": 2, **config}))


@pytest.mark.usefixtures("_steady")
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


@pytest.mark.usefixtures("_steady")
def test_rows_beyond_the_limit_are_read_at_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = expected(algorithm="noisy-gd", parameters={"iterations": 30})
    monkeypatch.setenv("UNITBALL_MEMORY", "0")
    streamed = expected(algorithm="noisy-gd", parameters={"iterations": 30})
    assert streamed.streamed
    assert streamed.read_bytes == 30 * kept.read_bytes
    assert streamed.seconds >= kept.seconds


_ROWS, _WIDTH, _BLOCK = 1_000_000, 100, 8192


def memory_of(limit: int, to_store: int = 0, **config: Any) -> float:
    """Return the bytes expected of a run over a million rows beyond those of libraries and compiled code."""
    dataset = dataset_of(rows=_ROWS, dimension=_WIDTH, classes=3)
    plan = planned(shards_of(dataset, (_ROWS // 2, _ROWS // 2)), **config)
    found = expect(plan, dataset, SPEEDS, to_store=to_store, limit=limit)
    return found.memory_bytes - 470 * 2**20


def test_memory_in_closed_form() -> None:
    """Three numbers a feature of a block that is read in float32, two in float64 for each block on its way."""
    blocks = _BLOCK * _WIDTH * (3 * 4 + 2 * 8 * (SPEEDS.cores + 2))
    kept = 4 * _ROWS * (_WIDTH + 3 + 4)
    descent: dict[str, Any] = {"algorithm": "noisy-gd"}
    assert memory_of(limit=2**40, **descent) == blocks + kept
    assert memory_of(limit=kept - 2, **descent) == blocks + (kept - 2) // 2, "half of the limit is for some of them"
    assert memory_of(limit=0, **descent) == blocks
    assert memory_of(limit=0, to_store=1, **descent) == 8 * 4 * _BLOCK * _WIDTH + 48 * _ROWS + 2**28
    squares = 5 * 8 * _WIDTH**2
    directions: dict[str, Any] = {
        "algorithm": None,
        "projection": "analyze-gauss",
        "trainer": "class-means",
        "dimension": 20,
    }
    assert memory_of(limit=2**40, **directions) == blocks + squares * SPEEDS.cores


@pytest.mark.parametrize(("limit", "streamed"), [(1.0, 0.0), (0.99, 0.505), (0.4, 0.8), (0.0, 1.0)])
def test_rows_that_half_of_the_limit_has_no_room_for_are_encoded_at_every_pass(limit: float, streamed: float) -> None:
    dataset = dataset_of(rows=_ROWS, dimension=_WIDTH, classes=3)
    plan = planned(shards_of(dataset, (_ROWS // 2, _ROWS // 2)), algorithm="noisy-gd", parameters={"iterations": 11})
    kept = 4 * _ROWS * (_WIDTH + 3 + 4)
    all_kept, some = (expect(plan, dataset, SPEEDS, to_store=0, limit=int(part * kept)) for part in (1.0, limit))
    assert some.streamed == pytest.approx(streamed, abs=1e-6)
    assert some.read_bytes == all_kept.read_bytes * (11 if streamed else 1)
    # A core reads a number in 1.5 and encodes it in 5 nanoseconds.
    again = 10 * _ROWS * _WIDTH * (1.5e-9 + 5e-9 * streamed) / SPEEDS.interpreted / SPEEDS.cores
    assert some.seconds - all_kept.seconds == pytest.approx(again if streamed else 0.0, abs=0.11)


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


@pytest.mark.usefixtures("_steady")
def test_more_work_takes_longer_and_a_slower_machine_too(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (expected(algorithm="noisy-gd", parameters={"iterations": steps}).seconds for steps in (10, 2 * 10**6))
    assert many > 2 * few
    slow = Speeds(operations=1e9, interpreted=0.1, cores=1)
    monkeypatch.setattr(expectation, "measure_speeds", lambda: slow)
    assert expected(algorithm="noisy-gd", parameters={"iterations": 10}).seconds > 5 * few


@pytest.mark.usefixtures("_steady")
def test_a_new_root_takes_as_much_longer_as_its_databases_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {}
    for there in (True, False):
        monkeypatch.setattr(expectation, "has_databases", lambda root, there=there: there)
        seconds[there] = expected(algorithm="noisy-gd", parameters={"iterations": 10}).seconds
    assert seconds[False] == pytest.approx(seconds[True] + _NEW_ROOT)


def test_speed_is_that_of_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was that of all threads, and divided by the cores once more."""
    seen = []

    def quickest(_: object) -> float:
        seen.append({one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"})
        return 1.0

    monkeypatch.setattr(expectation, "_quickest", quickest)
    with threadpool_limits(limits=2, user_api="blas"):
        assert measure_speeds().operations == 2 * 400**3
    assert seen == [{1}, {1}]


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


@pytest.mark.usefixtures("_steady")
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
    with_map, without = (
        expected(dataset="digits", algorithm="noisy-gd", projection=projection, dimension=20).seconds
        for projection in ("public-whitening", "pca")
    )
    assert with_map > without


@pytest.mark.usefixtures("_steady")
def test_what_each_reading_costs_is_said_where_mapped_rows_have_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    config: dict[str, Any] = {"dataset": "digits", "algorithm": "noisy-gd", "dimension": 20}
    config |= {"projection": "public-whitening", "parameters": {"projection.features": "scattering", "iterations": 7}}
    slow = Speeds(operations=1e8, interpreted=0.01, cores=1)
    monkeypatch.setattr(expectation, "measure_speeds", lambda: slow)
    assert expected(**config).mapping_seconds == 0
    monkeypatch.setattr(expectation, "has_room", lambda *_: False)
    monkeypatch.setenv("UNITBALL_MEMORY", "0")
    streamed = expected(**config)
    assert streamed.mapping_seconds > 0
    monkeypatch.setattr(expectation, "has_room", lambda *_: True)
    read_once = expected(**config)
    # Six passes after the first over four fifths of the rows each map them anew.
    each = (streamed.seconds - read_once.seconds) / (7 * 0.8 - 1)
    assert each == pytest.approx(streamed.mapping_seconds, abs=0.1)
    assert expected(**{**config, "projection": "pca", "parameters": {}}).mapping_seconds == 0


@pytest.mark.usefixtures("_steady")
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


@pytest.mark.usefixtures("_steady")
def test_what_measures_is_stored_like_the_rest(tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", epsilon_cap=5.0)
    config: dict[str, Any] = {"dataset": "clinic", "algorithm": "noisy-gd", "test_fraction": 0.25}
    chain_inline(TrainingConfig.model_validate({"epsilon": 1.0, "parties": 2, **config}))
    again = expected(**config)
    assert again.stored == again.charged == again.releases == 2


@pytest.mark.usefixtures("_steady")
def test_a_map_that_is_made_is_not_made_again() -> None:
    config: dict[str, Any] = {"dataset": "digits", "trainer": "class-means", "seed": 1, "dimension": 20}
    config |= {"projection": "public-whitening", "parameters": {"projection.images": 50}}
    before = expected(**config)
    chain_inline(TrainingConfig.model_validate({"epsilon": 1.0, "parties": 2, **config}))
    after = expected(**config, replicate=1)
    assert after.stored == 0
    assert after.processor_seconds < before.processor_seconds


@pytest.mark.usefixtures("_steady")
def test_rows_pass_through_features_once_at_the_pace_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: rows that pass through a slow map on their way to the disk were expected to take no time."""
    config: dict[str, Any] = {"dataset": "digits", "trainer": "class-means", "features": "scattering", "seed": 2}
    found = {}
    for pace in (0.0, 0.01):
        monkeypatch.setattr(expectation, "_seconds_a_row", lambda *_, pace=pace: pace)
        found[pace] = expected(**config)
    assert found[0.01].processor_seconds - found[0.0].processor_seconds == pytest.approx(0.01 * 1797, abs=0.11)
    chain_inline(TrainingConfig.model_validate({"epsilon": 1.0, "parties": 2, **config}))
    kept = expected(**config, replicate=1)
    assert kept.processor_seconds == pytest.approx(found[0.0].processor_seconds, abs=0.5), "kept, they pass no more"


def test_a_map_is_timed_on_rows_of_nobody() -> None:
    seen = []

    class Slow:
        def apply(self, features: Any) -> Any:
            seen.append(features.shape)
            return sum(range(10**5 * len(features)))

    assert 1e-4 < expectation._seconds_a_row(Slow(), 7) < 0.1
    assert seen == [(1, 7), (64, 7)]


@pytest.mark.usefixtures("_steady")
def test_a_night_is_told_and_nothing_is_recorded_of_it() -> None:
    config: dict[str, Any] = {"trainer": "class-means", "trust": "central"}
    first = expected(**config, horizon=3)
    assert (first.night, first.nights, first.epsilon, first.charged, first.stored) == (1, 3, 1.0, 0, 0)
    assert 0 < first.read_bytes < 10**6, "of the rows that arrived, not of all that a horizon expects"
    # Of a horizon that had begun no other could be asked for.
    assert expected(**config, horizon=4).nights == 4
    assert charges("iris") == []
    chain_inline(
        TrainingConfig.model_validate({"dataset": "iris", "epsilon": 1.0, "parties": 2, **config, "horizon": 3})
    )
    after = expected(**config, horizon=3)
    assert (after.night, after.stored, after.charged) == (1, 1, 1)


def test_other_work_lengthens_what_passes_and_not_what_is_worked() -> None:
    """A core's time is shared: beside as many threads as there are cores a run of two has half of it."""
    alone, beside = (Speeds(operations=1e10, interpreted=1.0, cores=2, others=others) for others in (0.0, 2.0))
    assert (alone.share(2), beside.share(2), alone.share(1)) == (2.0, 1.0, 1.0)
    assert beside.share(4) == pytest.approx(4 / 3)
    dataset = dataset_of(rows=_ROWS, dimension=_WIDTH, classes=3)
    plan = planned(shards_of(dataset, (_ROWS // 2, _ROWS // 2)), algorithm="noisy-gd")
    quick, slow = (expect(plan, dataset, speeds, to_store=1, limit=2**40) for speeds in (alone, beside))
    assert quick.processor_seconds == slow.processor_seconds > quick.seconds
    assert 1.2 * quick.seconds < slow.seconds <= 2.01 * quick.seconds


def test_load_that_is_another_machines_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's load is that of its host, where others have other cores."""
    monkeypatch.setattr("os.getloadavg", lambda: (1e6, 0.0, 0.0))
    assert measure_speeds().others < 1e5
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert measure_speeds().others == 0.0
