"""Algorithms that see the rows only through sums of integers: one interface for local, central and secure summation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, overload

from dpalgos.guarantees import GaussianMu, Guarantee, Loss, Setting, ZeroConcentrated
from dpalgos.mechanisms.rounded_gaussian import total_mu
from dpalgos.noise import NoiseSource, RandomStream
from dpalgos.parallel import SpreadRows
from dpalgos.rows import Ints, Rows


class IntegerNoise(Protocol):
    """A law of integer noise with a proved cost (for example ``mechanisms.rounded_gaussian.RoundedGaussian``)."""

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return ``count`` independent integers, drawn from a :class:`~dpalgos.noise.RandomStream`."""


class Summation(Protocol):
    """How the parties' integer vectors become one noisy integer vector."""

    def release(self, step: str, contributions: Sequence[Ints], distribution: IntegerNoise) -> Ints:
        """Return the sum of the contributions (equal shapes) plus noise; ask for each of them once."""


@dataclass(frozen=True, slots=True)
class TrustedSummation:
    """The plain sum with noise added once: one party by itself (local), or a trusted curator (central)."""

    noise: NoiseSource

    def release(self, step: str, contributions: Sequence[Ints], distribution: IntegerNoise) -> Ints:
        """Add exactly, then draw noise keyed by the exact sum."""
        one_by_one = iter(contributions)
        total = sum(one_by_one, start=next(one_by_one))
        return total + distribution.sample(total.size, self.noise.stream(step, total)).reshape(total.shape)


class SumAlgorithm(Protocol):
    """An algorithm whose every look at the rows is a noisy sum; what a party does and what the server does are apart.

    ``contribution`` is run by a party on its own rows; ``initial``, ``update`` and ``result`` see noisy sums only,
    so they are post-processing.
    """

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return what all steps together are proved to cost; depends on public facts only."""

    def steps(self, setting: Setting) -> int:
        """Return the number of sums, public."""

    def distribution(self, setting: Setting) -> IntegerNoise:
        """Return the noise of each sum, in grid units."""

    def initial(self, setting: Setting) -> Any:
        """Return the server's state before the first sum."""

    def contribution(self, state: Any, rows: Rows, setting: Setting) -> Ints:
        """Return one party's integer vector; total in what the rows contain."""

    def update(self, state: Any, noisy_sum: Ints, setting: Setting) -> Any:
        """Return the server's next state."""

    def result(self, state: Any, setting: Setting) -> Any:
        """Return the artefact."""


class _Contributions(Sequence[Ints]):
    """The parties' vectors of one sum, each formed when it is asked for: thousands of them are never there at once."""

    def __init__(self, algorithm: SumAlgorithm, state: Any, parties: Sequence[Rows], setting: Setting) -> None:
        self._algorithm, self._state, self._parties, self._setting = algorithm, state, parties, setting

    def __len__(self) -> int:
        return len(self._parties)

    def __iter__(self) -> Iterator[Ints]:
        # An IndexError of a contribution would end a sequence's own iteration: a sum of fewer parties, silently.
        return map(self.__getitem__, range(len(self)))

    @overload
    def __getitem__(self, party: int) -> Ints: ...

    @overload
    def __getitem__(self, party: slice) -> Sequence[Ints]: ...

    def __getitem__(self, party: int | slice) -> Ints | Sequence[Ints]:
        if isinstance(party, slice):
            return _Contributions(self._algorithm, self._state, self._parties[party], self._setting)
        rows = self._parties[party]
        if isinstance(rows, SpreadRows):
            return rows.total(partial(_contribution, self._algorithm, self._state, self._setting))
        return self._algorithm.contribution(self._state, rows, self._setting)


def _contribution(algorithm: SumAlgorithm, state: Any, setting: Setting, rows: Rows) -> Ints:
    return algorithm.contribution(state, rows, setting)


def run_sums(
    algorithm: SumAlgorithm,
    parties: Sequence[Rows],
    setting: Setting,
    summation: Summation,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Drive a sum algorithm to its end over the parties' rows and return its artefact.

    An algorithm of many steps may have a method ``prepare(rows, setting)``, run once a party: what it returns is handed
    to ``contribution`` in the rows' place, so that encoding is not done again at every step. It may also have a method
    ``merge(prepared)``, which returns fewer parties with the same sum of contributions: where one curator adds up
    anyway, thousands of parties of a few rows cost no more than one.

    ``progress`` is called after each step with how many are done, and of how many; both are public.
    """
    prepare, merge = getattr(algorithm, "prepare", None), getattr(algorithm, "merge", None)
    if prepare is not None:
        # Rows that are summed elsewhere stay there.
        parties = [rows if isinstance(rows, SpreadRows) else prepare(rows, setting) for rows in parties]
    if merge is not None and isinstance(summation, TrustedSummation):
        parties = merge(parties)
    state = algorithm.initial(setting)
    distribution = algorithm.distribution(setting)
    steps = algorithm.steps(setting)
    for step in range(steps):
        contributions = _Contributions(algorithm, state, parties, setting)
        state = algorithm.update(state, summation.release(f"sum-{step}", contributions, distribution), setting)
        if progress is not None:
            progress(step + 1, steps)
    return algorithm.result(state, setting)


GAUSSIAN_BUDGETS: tuple[type[Loss], ...] = (GaussianMu, ZeroConcentrated)
"""Budgets that Gaussian noise can be calibrated to: rho-zCDP follows from mu = sqrt(2 rho)."""

# The grid is as fine as this where the noise allows: the encoding error is then far below any noise worth adding.
_FINEST = 16
_COARSEST = 6
_NOISE_ROOM = 2.0**43
_ROWS_ROOM = 60


def grid(budget: Loss, sensitivity: float, steps: int, setting: Setting) -> float:
    """Return the grid units per unit, a power of two, for both factors of a sum of outer products.

    Public: it depends on the budget and the sizes. Fine enough not to matter, coarse enough that neither the noise
    nor the sum over all rows leaves 64-bit integers.

    Parameters
    ----------
    budget : Loss
    sensitivity : float
        l2 sensitivity of one sum, before encoding.
    steps : int
        Number of sums.
    setting : Setting
    """
    noise = sensitivity * math.sqrt(steps) / total_mu(budget)
    for_noise = (math.log2(_NOISE_ROOM) - math.log2(noise)) / 2.0
    for_rows = (_ROWS_ROOM - math.log2(max(setting.rows, 1))) / 2.0
    return 2.0 ** max(_COARSEST, min(_FINEST, math.floor(min(for_noise, for_rows))))
