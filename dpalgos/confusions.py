"""Of many classes: the largest confusions and the lowest and highest recalls, with margins that hold all at once.

All is post-processing of a released confusion matrix. The largest of many noisy numbers is mostly noise: of 650 cells
without any row, with noise of deviation sigma, the largest is about 3.2 sigma, and a margin of 1.96 sigma around it
would hold the exact count almost never. So margins are *simultaneous*: with 95 % every one of them holds its number,
and then those of the numbers that are shown do, however these were chosen.

*Confusions* are counts of the held-out rows. The noises of the K (K - 1) cells off the diagonal are independent and
have one law: with c the 95 % point of the largest of their absolute values, which is simulated, count ± c holds the
exact count of each of these cells at once with 95 %. A cell is shown where its lower end is above 0: with 97.5 % none
without rows is, and of those that are not shown the largest upper end says how many rows each has at most.

*Recalls* describe the population from which the rows are drawn: the margins of :mod:`dpalgos.margins`, for noise and
sampling of rows together, at 0.05/K instead of 0.05 (Bonferroni), so that with 95 % all K hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpalgos.margins import LEVELS, TWO_SIDED, Noise, drawn_rates, no_narrower, of_sum
from dpalgos.measured import Metrics, Scale
from dpalgos.metrics import per_class
from dpalgos.rows import Floats

FEW = 5
"""With up to so many classes the whole matrix is read, and nothing is chosen of it."""
MOST_CONFUSIONS, MOST_RECALLS = 10, 3
_SEED_OF_CELLS, _SEED_OF_RECALLS = 20261128, 20261129
_AT_ONCE, _NUMBERS, _FEWEST, _DRAWS = 0.95, 20_000_000, 400, 20_000
# Sums of so many draws are normal enough.
_NORMAL = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """Number of rows of one class that a model takes for another.

    Parameters
    ----------
    true, predicted : int
        Places of the classes.
    count : float
    low, high : float or None
        Of a margin that holds for all pairs of classes at once; None of exact counts.
    """

    true: int
    predicted: int
    count: float
    low: float | None = None
    high: float | None = None


def largest_confusions(counts: Floats, noise: Noise | None) -> tuple[list[Confusion], float]:
    """Return the largest confusions that noise has not made, at most ten, and how many rows any other has at most.

    Parameters
    ----------
    counts : array (K, K)
        True class by predicted class.
    noise : callable or None
        Draws from the law of the noise of each count; None of exact counts.

    Returns
    -------
    (list of Confusion, float)
        The largest first. The number holds at once with the margins; of exact counts it is the next one's.
    """
    size = len(counts)
    beside = ~np.eye(size, dtype=np.bool_)
    reach = 0.0 if noise is None else _of_all(noise, size * (size - 1))
    order = [(int(place) // size, int(place) % size) for place in np.argsort(-counts, axis=None, kind="stable")]
    cells = [(true, predicted) for true, predicted in order if beside[true, predicted]]
    shown = [cell for cell in cells if counts[cell] - reach > 0][:MOST_CONFUSIONS]
    found = [
        Confusion(true=true, predicted=predicted, count=float(counts[true, predicted]))
        if noise is None
        else Confusion(
            true=true,
            predicted=predicted,
            count=float(counts[true, predicted]),
            low=float(counts[true, predicted] - reach),
            high=float(counts[true, predicted] + reach),
        )
        for true, predicted in shown
    ]
    rest = cells[len(shown) :]
    return found, max(float(counts[rest[0]]), 0.0) + reach if rest else 0.0


def _of_all(noise: Noise, cells: int) -> float:
    """Return the 95 % point of the largest absolute value of the noise of so many cells."""
    random = np.random.default_rng(_SEED_OF_CELLS)
    draws = max(_NUMBERS // cells, _FEWEST)
    step = max(2_000_000 // cells, 1)
    largest = [np.abs(noise(random, (min(step, draws - start), cells))).max(axis=1) for start in range(0, draws, step)]
    # By ranks over D + 1: on average 5 % are beyond it however few draws there are.
    return float(np.quantile(np.concatenate(largest), _AT_ONCE, method="weibull"))


def recalls_at_once(counts: Floats, noise: Noise | None, deviation: float) -> Metrics:
    """Return the recall of each class, as ``recall_<place>``, with margins that hold for all classes at once.

    Parameters
    ----------
    counts : array (K, K)
    noise : callable or None
        None of exact counts, whose recalls have no margins; a class without rows has none.
    deviation : float
        Of the noise of each count.
    """
    size, values = len(counts), per_class(counts)[1]
    if noise is None:
        return Metrics({_key(place): float(values[place]) for place in range(size) if counts[place].sum() > 0})
    random = np.random.default_rng(_SEED_OF_RECALLS)
    hits, true = np.diagonal(counts), counts.sum(axis=1)
    on = noise(random, (_DRAWS, size))
    if size <= _NORMAL:
        off = np.stack([of_sum(noise, size - 1)(random, (_DRAWS,)) for _ in range(size)], axis=1)
    else:
        off = random.standard_normal((_DRAWS, size)) * float(on.std()) * np.sqrt(size - 1)
    low, high = drawn_rates(random, hits - on, (true - hits) - off)
    lowest = np.quantile(low, LEVELS[0] / size, axis=0, method="weibull")
    highest = np.quantile(high, 1.0 - LEVELS[0] / size, axis=0, method="weibull")
    predicted = np.clip(counts.sum(axis=0) / max(float(counts.sum()), 1.0), 0.0, 1.0)
    of_noise = deviation * np.sqrt((1.0 - values) ** 2 + (size - 1) * values**2) / np.maximum(true, 1.0)
    found = Metrics()
    for place in range(size):
        limits = (float(lowest[place]), float(highest[place]))
        limits = no_narrower(limits, float(values[place]), TWO_SIDED * float(of_noise[place]))
        found.measure(_key(place), float(values[place]), limits, Scale(guess=float(predicted[place])))
    return found


def _key(place: int) -> str:
    return f"recall_{place}"


def extremes(recalls: Metrics) -> tuple[list[int], list[int]]:
    """Return the places of the classes with the lowest and the highest recalls that are known, at most three each.

    No class is in both; of few that are known the lowest come first.
    """
    known = [name for name in recalls.names() if recalls.is_known(name)]
    places = [int(name.removeprefix("recall_")) for name in sorted(known, key=lambda name: recalls[name])]
    lowest = places[: min(MOST_RECALLS, (len(places) + 1) // 2)]
    return lowest, places[len(lowest) :][::-1][:MOST_RECALLS]
