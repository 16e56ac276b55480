"""What is stored, and what an account pays for it, does not depend on the processor.

Children run on this one, told to be others: OpenBLAS by ``OPENBLAS_CORETYPE``, NumPy by the instructions that it may
not use; what this one makes as it is, the tests' own process makes. Between them every release is made of the same
noisy integers, and its stored arrays are the same to the bit but for the classes named here, which
``docs/compatibility.md`` names too.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from tests.golden_roots.kept import known_of, versions
from tests.support.data import REPOSITORY
from tests.support.processors import LONG, made_here

_NUMPY: Any = importlib.import_module("numpy._core._multiarray_umath")

ROUNDED = frozenset(
    {
        "analyze-gauss",
        "laplace-pca",
        "mod-sulq",
        "radial-pca",
        "sufficient-statistics",
    }
)
"""Made of sums, and rounded where they are stored: eigenvectors, and the solution of linear equations."""
FRESH = frozenset(
    {
        "approximate-minima-perturbation",
        "dppca",
        "objective-perturbation",
        "objective-perturbation-gaussian",
        "ppca",
        "smo-output-perturbation-laplace",
    }
)
"""Proved, and drawn from floating-point numbers of the rows: another processor's noise may be fresh."""
UNPROVED = frozenset(
    {
        "analyze-gauss-published",
        "consensus-admm-published",
        "dpsvd",
        "dpwss",
        "dual-perturbation-published",
        "erm",
        "objective-perturbation-published",
        "pca",
        "ppca-published",
        "smo",
        "svm-laplace-published",
        "wishart-pca",
    }
)
"""For public rows alone."""
MAPS = frozenset({"dictionary", "encoder", "patches", "public-whitening", "random-projection"})
"""Made of public parameters alone, and charged nothing."""


@dataclass(frozen=True)
class Processor:
    """An environment that makes this processor another one, and the instructions that it needs."""

    name: str
    environment: tuple[tuple[str, str], ...] = ()
    threads: int = 1
    needs: str | None = None
    blas: tuple[str, ...] = ()
    """What OpenBLAS calls itself there; some builds have no kernels of their own for Zen, and use Haswell's."""


_WIDE_VECTORS = " ".join(
    name
    for name in _NUMPY.__cpu_dispatch__
    if (name == "X86_V4" or "AVX512" in name) and _NUMPY.__cpu_features__.get(name)
)


def _core(name: str, needs: str, threads: int, *, numpy: str = "", also: tuple[str, ...] = ()) -> Processor:
    others = (("NPY_DISABLE_CPU_FEATURES", numpy),) if numpy else ()
    label = f"{name}{', no AVX-512 in NumPy' if numpy else ''}, {threads} threads"
    return Processor(label, (("OPENBLAS_CORETYPE", name), *others), threads, needs, (name, *also))


THIS = "this one"
PROCESSORS = (
    _core("Haswell", "AVX2", 1),
    _core("SkylakeX", "AVX512F", 2),
    _core("Zen", "AVX2", 2, numpy=_WIDE_VECTORS, also=("Haswell",)),
)


@cache
def _made() -> dict[str, Any]:
    """Return what each processor makes that this one can be told to be."""
    here = made_here()
    found = {THIS: here}
    for one in PROCESSORS:
        if one.needs is None or _NUMPY.__cpu_features__.get(one.needs):
            # What this one is already it need not be told to be.
            same = one.environment == tuple(("OPENBLAS_CORETYPE", name) for name in here["blas"])
            found[one.name] = made_here(one.threads) if same else _of_child(one)
    return found


def _of_child(processor: Processor, *options: str) -> Any:
    environment = {**os.environ, **dict(processor.environment)}
    command = [sys.executable, "-m", "tests.support.processors", f"--threads={processor.threads}", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=PROCESSORS, ids=lambda one: one.name)
def other(request: pytest.FixtureRequest) -> Any:
    """Return what another processor makes; skipped where this one cannot be told to be that."""
    processor: Processor = request.param
    made = _made().get(processor.name)
    if made is None:
        pytest.skip(f"this processor has no {processor.needs}, which {processor.name} needs")
    if not set(made["blas"]) <= set(processor.blas):
        pytest.skip(f"BLAS is {made['blas']} and not OpenBLAS for {processor.name}")
    return made


def _class_of(name: str) -> str:
    return name.partition("/")[2].partition(",")[0]


def test_every_release_is_made_of_the_same_integers(other: Any) -> None:
    here = _made()[THIS]["made"]
    assert other["made"].keys() == here.keys()
    assert sum(one["made_of"] is not None for one in here.values()) > 30
    differ = [name for name, one in here.items() if one["made_of"] != other["made"][name]["made_of"]]
    assert differ == []


def test_what_is_stored_is_the_same_but_for_what_the_page_names(other: Any) -> None:
    here = _made()[THIS]["made"]
    differ = {_class_of(name) for name, one in here.items() if one["stored"] != other["made"][name]["stored"]}
    assert differ <= ROUNDED | FRESH | UNPROVED | MAPS
    assert {_class_of(name) for name, one in here.items() if one["made_of"] is None} >= (FRESH | UNPROVED)
    assert {_class_of(name) for name, one in here.items() if one["made_of"] is not None} >= ROUNDED


def test_a_release_has_the_same_identity(other: Any) -> None:
    """Budgets are fitted in floating point, and are part of what a release is called."""
    here = _made()[THIS]["identities"]
    assert len(here) > 100
    assert [name for name, keys in here.items() if other["identities"][name] != keys] == []


def test_golden_releases_of_integers_are_made_again_to_the_bit(other: Any) -> None:
    for version in versions():
        known = known_of(version)
        assert known["again"]
        assert {key: other["golden"][key] for key in known["again"]} == {
            key: known["releases"][key] for key in known["again"]
        }


def test_the_processors_are_told_apart() -> None:
    """The mutant is there: products and exponentials of the libraries do differ between these children."""
    if not _NUMPY.__cpu_features__.get("AVX512F"):
        pytest.skip("this processor has no AVX-512: all children may round alike")
    assert len({one["product"] for one in _made().values()}) > 1
    changed = [
        name
        for name, made in _made()[THIS]["made"].items()
        if any(made["stored"] != each["made"][name]["stored"] for each in _made().values())
    ]
    assert {_class_of(name) for name in changed} & ROUNDED


def test_the_page_names_what_is_rounded_and_what_is_drawn_again() -> None:
    page = (REPOSITORY / "docs" / "compatibility.md").read_text("utf-8")
    assert [name for name in sorted(ROUNDED | FRESH) if f"`{name}`" not in page] == []


@pytest.mark.nightly
def test_a_map_that_takes_long_is_rounded_in_its_last_bits_alone() -> None:
    """A network is trained by products of BLAS: another processor's has other last bits, and no noise."""
    here, other = made_here(long=True)["made"], _of_child(PROCESSORS[0], "--long")["made"]
    differ = {_class_of(name) for name, one in here.items() if one != other[name]}
    assert {_class_of(name) for name in here} >= LONG
    assert differ <= ROUNDED | FRESH | UNPROVED | MAPS
