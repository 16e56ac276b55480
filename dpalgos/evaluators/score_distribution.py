"""Charged running sums of a model's scores over hold-out rows, by class."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import NeighbouringPair, one_row_apart
from dpalgos.evaluators.noisy_sums import PARTS_OF_A_UNIT, NoisySums, counted_cells
from dpalgos.guarantees import Neighbours, Setting
from dpalgos.mechanisms.running_sums import RunningSums
from dpalgos.models import Statistic
from dpalgos.parameters import POSITIVE, ParameterError, at_least
from dpalgos.registry import register
from dpalgos.rows import Array, Floats, Ints, Rows


def edges(bins: int, scale: float) -> Floats:
    """Return the scores (bins - 1,) between bins of equal width on the logistic scale; the middle one of them is 0.

    Parameters
    ----------
    bins : int
    scale : float
        By which scores are divided before they are squashed.
    """
    shares = np.arange(1, bins) / bins
    return scale * np.array([math.log(share / (1.0 - share)) for share in shares.tolist()])


@register("evaluators", "score-distribution")
@dataclass(frozen=True, kw_only=True)
class ScoreDistribution(NoisySums):
    """Release, per public edge, the number of rows with a score up to it: of each class, and of the other classes.

    Scores are squashed by the logistic function first, so that bins on [0, 1] need no range learnt from the rows. A row
    lies above an edge where its score is larger, as it is predicted by a threshold there. For each of the K scores (one
    for a binary problem) there are two lines of bins, of rows of the class and of the others, and each line goes
    through its own factor (:mod:`dpalgos.mechanisms.running_sums`).

    Guarantee
    ---------
    mu-GDP, exact. Let c be the first column of the integer factor, D = max |c_i - c_j|^2 over its columns. A row stands
    in one cell of one of the two lines of each score.

    *replace-one*, K = 1: two rows of different labels stand in different lines, which move by a column each: at most
    **sqrt(2) |c|**, attained in the first bins. Rows of one label move one line by at most sqrt(D) <= sqrt(2) |c|.
    K > 1: of labels a and b, the scores a and b have the two rows in different lines, 2 |c|^2 each; in the K - 2 others
    both rows have other classes and stand in one line, at most D each. So **sqrt(4 |c|^2 + (K - 2) D)**, attained for
    every choice of bins; two rows of one label move at most K D, less since D <= 2 |c|^2. A row against a null record
    moves K |c|^2, less since D >= |c|^2.

    *replace-special*: against a null record, which is not counted, **sqrt(K) |c|**.

    Rounded Gaussian noise of scale ``sensitivity / mu`` on each integer (see ``mechanisms.distributions``).

    Parameters
    ----------
    budget : GaussianMu
    bins : int
        Even, so that 0, where a binary prediction changes, is an edge; the area is exact up to ties within a bin.
    scale : float
        By which scores are divided before they are squashed, positive. Log-odds of a class of 4 % lie around -3, and
        1 leaves most of them in one of 32 bins; 2 spreads them over eight.

    References
    ----------
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022), Theorem 1.
    """

    bins: int = field(default=32, metadata=at_least(2))
    scale: float = field(default=1.0, metadata=POSITIVE)
    people: ClassVar[str] = PARTS_OF_A_UNIT
    measured: ClassVar[str] = "running sums through the factor, l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins % 2:
            raise ParameterError(f"bins is {self.bins}; it must be even, so that a score of 0 is an edge")
        self.sums()

    def sums(self) -> RunningSums:
        """Return what each line is released through."""
        return RunningSums(bins=self.bins)

    @staticmethod
    def _scores(setting: Setting) -> int:
        return 1 if setting.classes <= 2 else setting.classes

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the encoded lines, in l2."""
        scores = self._scores(setting)
        if setting.neighbours is not Neighbours.REPLACE_ONE:
            return self.sums().sensitivity(entered=scores)
        return self.sums().sensitivity(entered=2 if scores == 1 else 4, moved=max(scores - 2, 0))

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return (scores, 2, bins)."""
        return self._scores(setting), 2, self.bins

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return rows of two classes with the lowest scores; where they share a line, in its bins farthest apart."""
        known = edges(self.bins, self.scale)
        places = np.concatenate([[known[0] - 1.0], (known[:-1] + known[1:]) / 2.0, [known[-1] + 1.0]])
        left, right = np.full((2, setting.dimension), places[0])
        right[2:] = places[self._farthest()]
        return one_row_apart(setting, left, right, labels=(0, 1))

    def _farthest(self) -> int:
        """Return the bin whose column is farthest from the first one's."""
        columns = self.sums().encode(np.eye(self.bins, dtype=np.int64))
        return int(np.square(columns - columns[0]).sum(axis=1).argmax())

    def of_block(self, features: Floats, labels: Array, parts: Ints, setting: Setting) -> Ints:
        """Return the exact counts (scores, 2, bins): rows of the other classes, rows of the class."""
        return counted_cells(self.cells(features, labels, setting), parts, self.sum_shape(setting))

    def cells(self, scores: Floats, labels: Array, setting: Setting) -> Ints:
        """Return the places (m, scores) of the bins that each row's scores stand in, among (scores, 2, bins)."""
        count = self._scores(setting)
        truth = np.asarray(labels, dtype=np.int64)
        # A score that the model does not have is zero.
        known = np.pad(scores, ((0, 0), (0, max(count - scores.shape[1], 0))))[:, :count]
        bins = np.searchsorted(edges(self.bins, self.scale), known)
        positive = truth[:, None] == (1 if count == 1 else np.arange(count))
        return np.asarray((2 * np.arange(count) + positive) * self.bins + bins)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's exact counts through the factor of each line."""
        return self.sums().encode(super().contribution(state, rows, setting))

    def result(self, state: Ints, setting: Setting) -> Statistic:
        """Return the noisy running sums (scores, 2, bins), of rows up to the upper edge of each bin."""
        return Statistic(values=self.sums().decode(state) / self.units(setting))
