"""What two worlds let everybody see, compared field by field: names, sizes, texts and numbers as well as arrays.

A mechanism's proof speaks of its output. What surrounds the output, a manifest, a size, a charged number, is an
observable like any other: the joint law of all of them must be (epsilon, delta)-indistinguishable on neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpalgos.audit.clopper_pearson import epsilon_lower_bound
from dpalgos.audit.events import bound_of_event, learn_event
from dpalgos.errors import ParameterError
from dpalgos.rows import Floats

__all__ = ["Comparison", "Observation", "Value", "compare"]

Value = str | float | Floats | None
"""A text, a number, a vector of numbers, or nothing."""

_FEWEST = 4

Observation = Mapping[str, Value]
"""What one run lets be seen, by field; a field may be missing, which is seen too."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What tells two worlds apart.

    Parameters
    ----------
    fields : int
        How many fields were compared.
    differing : tuple of str
        Fields without any noise: the same value in all runs of a world, and another one in the other world.
    lower_bound : float
        On epsilon at delta, at the confidence, without assumptions on any law.
    ceiling : float
        The largest bound that so many runs can show, at an event that always happens in one world and never in the
        other.
    trials : int
        Runs of each world that the bound was counted on.
    event : str
        The field and score that showed it.
    """

    fields: int
    differing: tuple[str, ...]
    lower_bound: float
    ceiling: float
    trials: int
    event: str


def compare(
    left: Sequence[Observation], right: Sequence[Observation], *, delta: float, confidence: float
) -> Comparison:
    """Compare what runs on two neighbours let be seen.

    Guarantee
    ---------
    If the whole observation is (epsilon, delta)-indistinguishable on neighbours and runs are independent,
    ``lower_bound`` exceeds epsilon with probability at most 1 − confidence: one event, of any field, is learnt on the
    first half of the runs and counted on the second (:func:`~dpalgos.audit.clopper_pearson.epsilon_lower_bound`), so
    that nothing is to be corrected for the number of fields. Codes given to texts are an injective renaming, and a
    field that is left out, because the first half shows nothing in it, can only make the bound smaller.

    The ceiling for T counted runs is the bound at T hits against none. At delta = 0 it is close to ln(T / ln(2 / (1 −
    confidence))), that is ln(T / 5.3) at 99 %: two-sided, where a bound on the rarer world alone would reach
    ln(T / 4.6).

    Parameters
    ----------
    left, right : sequences of Observation
        At least two runs each, as many on the right as on the left; two show what has no noise, and bound nothing.
    delta : float
        In [0, 1).
    confidence : float
        In (0, 1).

    Raises
    ------
    ParameterError
        For fewer runs, or unequally many.
    """
    if len(left) != len(right) or len(left) < 2:
        raise ParameterError(f"{len(left)} and {len(right)} runs; give equally many for either world, at least two")
    names = sorted({name for run in (*left, *right) for name in run})
    half = len(left) // 2
    learnt: list[dict[str, Floats]] = [{}, {}]
    counted: list[dict[str, Floats]] = [{}, {}]
    differing = []
    for name in names:
        columns = [[run.get(name) for run in world] for world in (left, right)]
        for suffix, (ours, theirs) in _encoded(*columns).items():
            if not suffix and _constant(ours) and _constant(theirs) and not np.array_equal(ours[0], theirs[0]):
                differing.append(name)
            if _constant(np.concatenate([ours[:half], theirs[:half]])):
                continue
            for world, values in enumerate((ours, theirs)):
                learnt[world][name + suffix], counted[world][name + suffix] = values[:half], values[half:]
    trials = len(left) - half
    ceiling = epsilon_lower_bound(trials, trials, 0, trials, delta, confidence)
    if not learnt[0] or half < _FEWEST:
        event = "all runs look alike" if not learnt[0] else "too few runs to learn an event on"
        return Comparison(len(names), tuple(differing), 0.0, ceiling, trials, f"none: {event}")
    found = learn_event(learnt[0], learnt[1], delta, confidence)
    bound = bound_of_event(found, counted[0], counted[1], delta, confidence)
    return Comparison(len(names), tuple(differing), bound, ceiling, trials, found.name)


def _constant(values: Floats) -> bool:
    return bool((values == values[0]).all())


def _encoded(left: Sequence[Value], right: Sequence[Value]) -> dict[str, tuple[Floats, Floats]]:
    """Return a field's values as arrays (T, ·), by a suffix to its name; the first has all that the field holds."""
    both = [*left, *right]
    if all(isinstance(value, np.ndarray) for value in both):
        arrays = [np.asarray(value, dtype=np.float64).ravel() for value in both]
        width = max(map(len, arrays))
        # How long it is comes first, so that padding hides nothing.
        stacked = np.stack([np.concatenate([[len(array)], array, np.zeros(width - len(array))]) for array in arrays])
        return {"": (stacked[: len(left)], stacked[len(left) :])}
    if all(isinstance(value, int | float) and math.isfinite(value) for value in both):
        numbers = np.array(both, dtype=np.float64)[:, None]
        return {"": (numbers[: len(left)], numbers[len(left) :])}
    texts = [repr(value.tolist()) if isinstance(value, np.ndarray) else repr(value) for value in both]
    codes = {text: float(code) for code, text in enumerate(sorted(set(texts)), start=1)}
    numbered = np.array([codes[text] for text in texts])[:, None]
    lengths = np.array([float(len(text)) for text in texts])[:, None]
    return {
        "": (numbered[: len(left)], numbered[len(left) :]),
        " (its length)": (lengths[: len(left)], lengths[len(left) :]),
    }
