"""Whole systems over arrays: every pair of parts runs, and the papers' numbers on MNIST."""

from __future__ import annotations

import dataclasses
import gzip
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpalgos.guarantees import Setting, Trust
from dpalgos.registry import AlgorithmSpec, lookup, names
from dpalgos.rows import ArrayRows
from dpalgos.secure.messages import Tolerance
from dpalgos.secure.summation import require_shareable
from dpalgos.systems.system import System, averaged, joint
from dpalgos.testing import BUDGETS
from tests.dpalgos.parameters import PARAMETERS
from tests.support.data import real_data
from tests.support.nights import by_night
from tests.support.systems import accuracy_of, run_arrangement
from tests.support.training import blobs, parties_of

Array = NDArray[np.float64]


def spec_of(kind: str, name: str) -> AlgorithmSpec:
    given = {key: value for key, value in PARAMETERS[kind, name][0].items() if key != "budget"}
    return AlgorithmSpec(kind, name, given)


SLOW = {"analyze-gauss", "analyze-gauss-published", "dct", "dictionary", "encoder", "side-by-side"}


@pytest.mark.parametrize("projection", by_night(names("projections"), SLOW))
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "all"])
def test_each_projection_runs_with_each_trainer(projection: str, every: bool) -> None:
    """By day with one trainer in four, in turn, and not those projections that are learnt once a trainer.

    Nor with dp-sgd, whose noise takes a second for each budget.
    """
    rows = blobs(40, 6, 3, 0)
    parties = parties_of(rows, 2)
    place = list(names("projections")).index(projection)
    for number, trainer in enumerate(names("trainers")):
        if not every and ((place + number) % 4 or trainer == "dp-sgd"):
            continue
        parts = (spec_of("trainers", trainer), spec_of("projections", projection))
        for arranged in (joint, averaged):
            for trust, arrangement in arranged(*parts).items():
                if not all(trust in lookup(spec.kind, spec.name).trusts for spec in parts):
                    continue
                maps, models = run_arrangement(arrangement, parties, 3, trust=trust, components=3)
                assert np.isfinite(models[0].scores(maps[0].transform(rows.features))).all()


def small(spec: AlgorithmSpec) -> dict[str, object]:
    """Few steps, few synthetic images and few features of them, where a part has any."""
    few = {"iterations": 5, "images": 100, "features": "hog", "feature_parameters": {"cell": 4, "block": 1}}
    fields = {field.name for field in dataclasses.fields(lookup(spec.kind, spec.name))}
    return {name: value for name, value in few.items() if name in fields}


@pytest.mark.parametrize("name", names("systems"))
def test_each_system_runs_under_each_trust(name: str) -> None:
    system: System = lookup("systems", name)
    random = np.random.default_rng(1)
    labels = np.arange(80) % 2
    images = np.abs(random.normal(size=(80, 64)) + labels[:, None] * np.linspace(-2, 2, 64))
    rows = ArrayRows(images / np.linalg.norm(images, axis=1, keepdims=True), labels.astype(np.int64))
    for trust, arrangement in system.arrangements.items():
        trainer = arrangement.trainer.with_parameters(**small(arrangement.trainer))
        projection = arrangement.projection
        if projection is not None:
            projection = projection.with_parameters(**small(projection))
        arrangement = dataclasses.replace(arrangement, trainer=trainer, projection=projection)
        maps, models = run_arrangement(arrangement, parties_of(rows, 4), 2, trust=trust, components=5)
        assert 0.0 <= accuracy_of(maps, models, rows.features, np.asarray(rows.labels, dtype=np.int64)) <= 1.0


@pytest.mark.parametrize(
    "name", [name for name in names("systems") if Trust.SECAGG in lookup("systems", name).supported()]
)
def test_what_says_secagg_has_noise_that_parties_can_share(name: str) -> None:
    arrangement = lookup("systems", name).supported()[Trust.SECAGG]
    setting = Setting(sizes=(40, 50, 60, 70, 80), dimension=64, classes=10, trust=Trust.SECAGG)
    for spec in (arrangement.projection, arrangement.trainer):
        if spec is not None and lookup(spec.kind, spec.name).reads_rows:
            budgets = lookup(spec.kind, spec.name).budgets
            algorithm = spec.with_parameters(budget=BUDGETS[budgets[0]]).build()
            require_shareable(algorithm, setting, Tolerance(parties=5))


def mnist() -> tuple[list[ArrayRows], Array, NDArray[np.int64]]:
    """Return five parties of 10,000 unit rows, and the test rows."""
    folder = real_data("mnist")

    def read(name: str, header: int) -> NDArray[np.uint8]:
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), dtype=np.uint8, offset=header)

    def unit(pixels: NDArray[np.uint8]) -> Array:
        rows = pixels.reshape(-1, 784).astype(np.float64)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    features = unit(read("train-images-idx3-ubyte.gz", 16))
    labels = read("train-labels-idx1-ubyte.gz", 8).astype(np.int64)
    order = np.random.default_rng(0).permutation(60_000)[:50_000]
    parties = [ArrayRows(features[order[i::5]], labels[order[i::5]]) for i in range(5)]
    test_labels = read("t10k-labels-idx1-ubyte.gz", 8).astype(np.int64)
    return parties, unit(read("t10k-images-idx3-ubyte.gz", 16)), test_labels


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "trust", "budget", "parameters", "low", "high"),
    [
        # Measured: 0.710, 0.853, 0.139, 0.720, 0.850, 0.927.
        ("non-private", Trust.CENTRAL, (1.0, 1e-5), {}, 0.69, 0.73),
        ("non-private", Trust.CENTRAL, (1.0, 1e-5), {"regularisation": 1e-4}, 0.84, 0.87),
        ("fed-dpdr-dpml-published", Trust.LOCAL, (0.1, 1e-4), {}, 0.0, 0.25),
        ("fed-dpdr-dpml", Trust.CENTRAL, (1.0, 1e-5), {}, 0.65, 0.8),
        ("noisy-gd", Trust.CENTRAL, (0.1, 1e-4), {}, 0.82, 0.9),
        ("hog-noisy-gd", Trust.CENTRAL, (0.1, 1e-4), {}, 0.91, 0.95),
    ],
)
def test_mnist_at_the_papers_setting(
    name: str, trust: Trust, budget: tuple[float, float], parameters: dict[str, Any], low: float, high: float
) -> None:
    parties, features, labels = mnist()
    maps, models = run_arrangement(
        lookup("systems", name).arrangements[trust],
        parties,
        10,
        trust=trust,
        epsilon=budget[0],
        delta=budget[1],
        trainer_parameters=parameters,
    )
    assert low <= accuracy_of(maps, models, features, labels) <= high
