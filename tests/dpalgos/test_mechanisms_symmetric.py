"""Symmetric release: the isometry, the noise on and off the diagonal, and what a missing root of two costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from dpalgos.guarantees import Neighbours
from dpalgos.integer_sums import gram_sensitivity
from dpalgos.mechanisms.distributions import (
    DiscreteGaussian,
    RoundedGaussian,
    SymmetricDiscreteGaussian,
    SymmetricRoundedGaussian,
    pack,
    packed_size,
    to_vector,
    unpack,
)
from dpalgos.parameters import ParameterError
from tests.support.statistics import rejects_independence, rejects_law
from tests.support.streams import seeded


def symmetric(dimension: int, seed: int) -> Any:
    matrix = np.random.default_rng(seed).normal(size=(dimension, dimension))
    return matrix + matrix.T


def parts(matrix: Any) -> tuple[Any, Any]:
    return np.diag(matrix), matrix[np.triu_indices(len(matrix), 1)]


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 10_000))
def test_the_map_is_an_isometry_and_invertible(dimension: int, seed: int) -> None:
    first, second = symmetric(dimension, seed), symmetric(dimension, seed + 1)
    assert len(to_vector(first)) == packed_size(dimension) == dimension * (dimension + 1) // 2
    assert np.linalg.norm(to_vector(first) - to_vector(second)) == pytest.approx(np.linalg.norm(first - second))
    integers = (first * 1000).astype(np.int64)
    integers = integers + integers.T
    assert np.array_equal(unpack(pack(integers)), integers)
    assert pack(integers).dtype == np.int64
    # The mutant: the bare upper triangle shrinks the distance of off-diagonal changes by sqrt(2).
    change = np.zeros((3, 3))
    change[0, 1] = change[1, 0] = 1.0
    assert np.linalg.norm(to_vector(change)) == pytest.approx(math.sqrt(2))
    assert np.linalg.norm(pack(change)) == pytest.approx(1.0)


@pytest.mark.parametrize("sigma", [4.0, 2.0**30])
def test_integer_release(sigma: float) -> None:
    law = SymmetricRoundedGaussian(sigma, 450)
    noise = law.sample(packed_size(450), seeded(4))
    diagonal, beside = parts(unpack(noise))
    root = math.sqrt(2)
    assert noise.dtype == np.int64
    assert not rejects_law(diagonal, lambda k: ndtr((k + 0.5) / sigma))
    assert not rejects_law(beside, lambda k: ndtr((k + 0.5) / (sigma / root)))
    assert rejects_law(beside, lambda k: ndtr((k + 0.5) / sigma))
    assert rejects_law(beside, lambda k: ndtr((k + 0.5) / (sigma / 2)))
    # The diagonal does not share the words of the entries beside it.
    assert not rejects_independence(diagonal, beside[:450])
    assert rejects_independence(diagonal, RoundedGaussian(sigma / root).sample(450, seeded(4)))
    discrete = SymmetricDiscreteGaussian(sigma, 450).sample(packed_size(450), seeded(5))
    diagonal, beside = parts(unpack(discrete))
    assert not rejects_law(beside, lambda k: ndtr((k + 0.5) / (sigma / root)))
    assert rejects_law(beside, lambda k: ndtr((k + 0.5) / sigma))
    assert not rejects_law(diagonal, lambda k: ndtr((k + 0.5) / sigma))


def test_the_guarantee_is_that_of_the_worst_neighbours_in_closed_form() -> None:
    # The distance of neighbours in units of each entry's own noise: mu for Gaussians, sqrt(2 rho) for discrete ones.
    radius, sigma, dimension = 100.0, 50.0, 6
    law = SymmetricRoundedGaussian(sigma, dimension)
    generator = np.random.default_rng(6)
    worst = 0.0
    scales = np.where(np.equal(*np.triu_indices(dimension)), sigma, sigma / math.sqrt(2))
    textbook = 0.0
    for trial in range(300):
        x, y = generator.normal(size=(2, dimension))
        if trial == 0:
            x, y = np.eye(dimension)[:2]
        x, y = radius * x / np.linalg.norm(x), radius * y / np.linalg.norm(y)
        change = pack(np.outer(x, x) - np.outer(y, y))
        worst = max(worst, float(np.linalg.norm(change / scales)))
        textbook = max(textbook, float(np.linalg.norm(change / (sigma / 2))))
    claimed = law.mu(gram_sensitivity(radius, Neighbours.REPLACE_ONE))
    assert worst <= claimed * (1 + 1e-12)
    assert worst == pytest.approx(claimed)
    assert textbook > claimed * 1.2, "noise of half the size everywhere must exceed the claim"
    rho = SymmetricDiscreteGaussian(sigma, dimension).rho(gram_sensitivity(radius, Neighbours.REPLACE_ONE))
    assert rho == pytest.approx(claimed**2 / 2)


def test_statements_and_refusals() -> None:
    rounded, discrete = SymmetricRoundedGaussian(1e8, 5), SymmetricDiscreteGaussian(1e8, 5)
    assert RoundedGaussian(1e8).total_variation() <= rounded.total_variation() < 2.0**-101
    assert DiscreteGaussian(1e8).total_variation() <= discrete.total_variation() < 2.0**-100
    for law in (SymmetricRoundedGaussian, SymmetricDiscreteGaussian):
        with pytest.raises(ParameterError, match=r"^sigma"):
            law(0.0, 5)
        with pytest.raises(ParameterError, match=r"^dimension"):
            law(1.0, 0)
        with pytest.raises(ParameterError, match=r"15.*packed"):
            law(1.0, 5).sample(25, seeded(7))
    with pytest.raises(ParameterError, match=r"^4 entries"):
        unpack(np.zeros(4))
