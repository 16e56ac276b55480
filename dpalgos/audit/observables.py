"""What two worlds let everybody see, compared field by field: names, sizes, texts and numbers as well as arrays.

A mechanism's proof speaks of its output. What surrounds the output, a manifest, a size, a charged number, is an
observable like any other: the joint distribution of all of them must be (epsilon, delta)-indistinguishable on
neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpalgos.audit.bounds import epsilon_lower_bound
from dpalgos.audit.events import bound_of_event, learn_event, part_of
from dpalgos.errors import ParameterError
from dpalgos.rows import Floats

Value = str | float | Floats | None
"""A text, a number, a vector of numbers, or nothing."""

_FEWEST = 4

Observation = Mapping[str, Value]
"""What one run lets be seen, by field; a field may be missing, which is seen too."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What tells two worlds apart.

    Parameters
    ----------
    fields : int
        How many fields were compared.
    differing : tuple of str
        Fields without any noise: the same value in all runs of a world, and another one in the other world.
    lower_bound : float
        On epsilon at delta, at the confidence, without assumptions on any distribution.
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
    first half of the runs and counted on the second (:func:`~dpalgos.audit.bounds.epsilon_lower_bound`), so
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
    seen: list[dict[str, Floats]] = [{}, {}]
    different = []
    for name in names:
        for suffix, values in _encoded([run.get(name) for run in (*left, *right)]).items():
            worlds = values[: len(left)], values[len(left) :]
            if not suffix and all(map(_constant, worlds)) and not _constant(values):
                different.append(name)
            # Chosen by what events are learnt on.
            if not _constant(np.concatenate([world[:half] for world in worlds])):
                for world, of in zip(seen, worlds, strict=True):
                    world[name + suffix] = of
    trials = len(left) - half
    bound, event = 0.0, "none: all runs look alike" if not seen[0] else "none: too few runs to learn an event on"
    if seen[0] and half >= _FEWEST:
        learnt, counted = ([part_of(world, *runs) for world in seen] for runs in ((0, half), (half, len(left))))
        learnt_event = learn_event(learnt[0], learnt[1], delta, confidence)
        bound = bound_of_event(learnt_event, counted[0], counted[1], delta, confidence)
        event = learnt_event.name
    return Comparison(
        fields=len(names),
        differing=tuple(different),
        lower_bound=bound,
        ceiling=epsilon_lower_bound(trials, trials, 0, trials, delta, confidence),
        trials=trials,
        event=event,
    )


def _constant(values: Floats) -> bool:
    return bool((values == values[0]).all())


def _encoded(values: Sequence[Value]) -> dict[str, Floats]:
    """Return a field's values in all runs as arrays (T, ·), by a suffix to its name; the first is all that it holds."""
    if all(isinstance(value, np.ndarray) for value in values):
        arrays = [np.asarray(value, dtype=np.float64).ravel() for value in values]
        width = max(map(len, arrays))
        # How long it is comes first, so that padding hides nothing.
        return {"": np.stack([np.concatenate([[len(array)], array, np.zeros(width - len(array))]) for array in arrays])}
    if all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        return {"": np.array(values, dtype=np.float64)[:, None]}
    texts = [repr(value.tolist()) if isinstance(value, np.ndarray) else repr(value) for value in values]
    codes = {text: float(code) for code, text in enumerate(sorted(set(texts)), start=1)}
    return {
        "": np.array([[codes[text]] for text in texts]),
        " (its length)": np.array([[float(len(text))] for text in texts]),
    }
