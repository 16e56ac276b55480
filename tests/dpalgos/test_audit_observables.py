"""Everything two worlds let be seen, compared: what differs without noise is named, noise of the right size is not."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from dpalgos.audit.bounds import Observation, compare
from dpalgos.parameters import ParameterError

CERTAIN = 1 - 1e-9


def runs(
    world: bool, count: int, random: np.random.Generator, leak: Callable[[bool], Observation]
) -> list[Observation]:
    """Return runs that release a noisy vector, random names and equal facts, and whatever leaks."""
    return [
        {
            "array": random.laplace(size=3),
            "key": random.bytes(16).hex(),
            "rows": 40.0,
            "label": "model",
            "absent": None,
            **leak(world),
        }
        for _ in range(count)
    ]


def test_what_hides_everything_shows_nothing(random: np.random.Generator) -> None:
    """False alarms have probability 1e-9."""
    for _ in range(5):
        worlds = [runs(world, 60, random, lambda _: {}) for world in (True, False)]
        found = compare(*worlds, delta=0.0, confidence=CERTAIN)
        assert found.differing == ()
        assert found.lower_bound == 0.0
        assert found.fields == 5


@pytest.mark.parametrize(
    "leak",
    [
        lambda world: {"norm": 3.25 if world else 3.5},
        lambda world: {"note": f"{40 if world else 39} rows"},
        lambda world: {"spectrum": np.array([1.0, 0.5]) if world else np.array([1.0, 0.25])},
        lambda world: {"spectrum": np.array([1.0, 0.5]) if world else np.array([1.0, 0.5, 0.0])},
        lambda world: {"extra": "here"} if world else {},
        lambda world: {"array": np.zeros(3)} if world else {"array": np.ones(3)},
    ],
    ids=["number", "text", "vector", "longer vector", "missing field", "no noise"],
)
def test_what_differs_without_noise_is_named_and_bounds_epsilon(
    leak: Callable[[bool], Observation], random: np.random.Generator
) -> None:
    worlds = [runs(world, 60, random, leak) for world in (True, False)]
    found = compare(*worlds, delta=1e-5, confidence=0.99)
    assert len(found.differing) == 1
    assert found.lower_bound == pytest.approx(found.ceiling)
    # ln(T / 5.3) at 99 %, both bounds at half the error.
    assert found.ceiling == pytest.approx(math.log(30 / math.log(200)), abs=0.2)


def test_a_value_that_only_one_world_ever_takes_is_seen(random: np.random.Generator) -> None:
    """The support check: a text that appears in half the runs of one world and in none of the other."""

    def leak(world: bool) -> Observation:
        return {"state": "odd" if world and random.random() < 0.5 else random.bytes(4).hex()}

    found = compare(*(runs(world, 400, random, leak) for world in (True, False)), delta=0.0, confidence=CERTAIN)
    assert found.differing == ()
    assert "state" in found.event
    assert found.lower_bound > 0.5


def test_too_little_noise_beside_the_release_is_caught(random: np.random.Generator) -> None:
    """A count with noise for epsilon 4 beside an array without any effect; the bound stays below what is true."""

    def leak(world: bool) -> Observation:
        return {"count": float(world) + random.laplace(scale=0.25)}

    found = compare(*(runs(world, 4000, random, leak) for world in (True, False)), delta=0.0, confidence=CERTAIN)
    assert found.event.startswith("count")
    assert 1.0 < found.lower_bound <= 4.0


def test_unequal_or_few_runs_are_refused(random: np.random.Generator) -> None:
    few = runs(True, 1, random, lambda _: {})
    with pytest.raises(ParameterError, match=r"^1.*1 runs"):
        compare(few, few, delta=0.0, confidence=0.9)
    with pytest.raises(ParameterError, match=r"^2.*1 runs"):
        compare([*few, *few], few, delta=0.0, confidence=0.9)
