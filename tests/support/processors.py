"""What the code makes on this processor, or on one that is told to be another: ``python -m tests.support.processors``.

A process of its own prints, as JSON, what BLAS it has found, the digests of a release of every registered class, and
those of the releases of the golden root that are made again. OpenBLAS and NumPy choose their code as they are loaded,
by the environment (``OPENBLAS_CORETYPE``, ``NPY_DISABLE_CPU_FEATURES``), so that each choice takes a process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dpalgos.algorithms import fit
from dpalgos.guarantees import GaussianMu, PureEpsilon, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.made_of import MadeOf
from dpalgos.registry import construct, lookup, names
from dpalgos.rows import Array, ArrayRows
from dpalgos.testing import CLASSES, DIMENSION, blobs
from tests.dpalgos.parameters import PARAMETERS
from tests.support.plans import planned

# Trains a network for seconds, and draws no noise.
LONG = frozenset({"encoder"})
_MU, _EPSILON = GaussianMu(5.0), PureEpsilon(3.0)
# Wide enough for kernels that take many numbers at a time.
WIDE: list[tuple[str, str, dict[str, Any]]] = [
    ("evaluators", "column-histograms", {"budget": _MU, "bins": 128, "mean_weight": 0.5}),
    ("evaluators", "score-distribution", {"budget": _MU, "bins": 64}),
    ("projections", "analyze-gauss", {"budget": _MU, "components": 20}),
    ("projections", "private-centring", {"budget": _MU}),
    ("projections", "radial-pca", {"budget": _EPSILON, "components": 9}),
    ("trainers", "consensus-admm", {"budget": _MU, "iterations": 2}),
    ("trainers", "continual-ftrl", {"budget": _MU, "nights": 25}),
    ("trainers", "discriminant-gd", {"budget": _MU, "iterations": 10}),
    ("trainers", "noisy-gd", {"budget": _MU, "iterations": 10, "class_weight": "balanced"}),
    ("trainers", "noisy-gd", {"budget": _MU, "iterations": 10, "loss": "logistic", "intercept_scaling": 0.3}),
    ("trainers", "output-perturbation", {"budget": _MU, "loss": "softmax"}),
    ("trainers", "sufficient-statistics", {"budget": _MU}),
]


@dataclass(frozen=True)
class Made:
    """A release: the digest of its noisy sums, where it is made of sums, and that of the arrays that are stored."""

    made_of: str | None
    stored: str


def digest_of(arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def make(kind: str, name: str, parameters: Mapping[str, Any], rows: ArrayRows, classes: int) -> Made:
    """Make a release of one party's rows, with noise of a public seed."""
    cls = lookup(kind, name)
    setting = Setting(
        sizes=(rows.count,),
        dimension=rows.dimension,
        classes=classes,
        neighbours=cls.relations[0],
        trust=Trust(cls.trusts[0]),
    )
    made_of, unused = MadeOf(), MadeOf().digest()
    noise = KeyedNoise(public_secret(1), name)
    artefact = fit(construct(cls, name, parameters), [rows], setting, noise, record=made_of.add)
    sums = made_of.digest()
    return Made(None if sums == unused else sums, digest_of(artefact.arrays()))


def every_class(*, long: bool) -> Iterator[tuple[str, Made]]:
    """Yield a release of every registered algorithm, of small rows, and of some of wider ones."""
    for (kind, name), cases in sorted(PARAMETERS.items()):
        if long or name not in LONG:
            rows = blobs(120, CLASSES if kind == "evaluators" else DIMENSION, CLASSES, 7)
            yield f"{kind}/{name}", make(kind, name, cases[-1], rows, CLASSES)
    for at, (kind, name, parameters) in enumerate(WIDE):
        wide = blobs(600, 40, 10, 5)
        cells = np.random.default_rng(3).random((600, 12))
        rows = ArrayRows(cells, wide.labels, block=64) if kind == "evaluators" else wide
        yield f"{kind}/{name}, wide, {at}", make(kind, name, parameters, rows, 10)


def identities() -> dict[str, list[str]]:
    """Return the keys of the releases that each system plans, which hold the budgets that are fitted to epsilon."""
    deltas: dict[str, dict[str, Any]] = {"by default": {}, "given": {"delta": 1e-6}}
    return {
        f"{system}, delta {delta}": [
            release.key for release in planned(dataset="x", algorithm=system, **given).releases
        ]
        for system in names("systems")
        for delta, given in deltas.items()
    }


def golden_releases() -> dict[str, Any]:
    """Return what is read of the golden root's releases of integers, made again here."""
    from tests.golden_roots.kept import read, versions
    from tests.test_golden_roots import again, opened

    found: dict[str, Any] = {}
    for version in versions():
        with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
            golden = opened(Path(place), version, patch)
            before = golden.files()
            for key, at in golden.known["again"].items():
                shutil.rmtree(golden.layout.release(key))
                again(golden, at)
                found[key] = read(key)
            assert golden.files() == before, "something was charged, or stored otherwise"
    return found


def made_here(threads: int = 1, *, long: bool = False) -> dict[str, Any]:
    """Return what BLAS there is, products of it, a release of every class, all identities, and golden releases."""
    blas = [one for one in threadpool_info() if one["user_api"] == "blas"]
    with threadpool_limits(threads, user_api="blas"):
        numbers = np.random.default_rng(0).random((40, 200))
        product = digest_of({"product": numbers @ numbers.T, "powers": np.exp(-numbers)})
        made = {name: vars(one) for name, one in every_class(long=long)}
        golden = golden_releases()
    return {
        "blas": sorted({str(one.get("architecture")) for one in blas}),
        "product": product,
        "made": made,
        "identities": identities(),
        "golden": golden,
    }


def main() -> None:
    """Print what is made here."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--long", action="store_true")
    asked = parser.parse_args()
    print(json.dumps(made_here(asked.threads, long=asked.long)))


if __name__ == "__main__":
    main()
