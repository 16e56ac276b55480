r"""Rates of groups at every threshold of a score, with margins that hold at all thresholds at once.

All is post-processing of released running sums of scores of groups
(:class:`~dpalgos.evaluators.scores_by_group.ScoresByGroup`) and of counts of the same rows.

*Estimates* (:func:`sums_of_groups`). Sums of groups and of all rows are combined by least squares, edge by edge, with
the same weights at every edge (:class:`~dpalgos.group_margins.GroupEstimates`): the noise of a line has one covariance
over the edges but for its size, and that size is one for each group and one for all rows. The counts of the confusion
matrix (:class:`~dpalgos.evaluators.by_group.ConfusionByGroup`) are weighed by the same numbers, so that combining each
group's sums with the group's own estimated matrix (:meth:`~dpalgos.score_curves.ScoreSums.combined`) is the least
squares estimate from all released numbers together. Two groups' noises have the covariance −β/(1 − β) times a group's.

*Rates.* At each threshold: the recall of either class, the precision, and the share that is predicted to be of the
second class. A rate is A/(A + B), where A and B are sums of two lines' cells. It is measured where A + B is at least
:data:`~dpalgos.group_margins.SHOWN_FROM` standard deviations of its noise, and its margin is the conditional one of
:mod:`dpalgos.group_margins`, with the variances and the covariance that the noise of A and B has.

*All thresholds at once.* A threshold is chosen by released sums of all rows, of which the group's are a part. A margin
that holds in 95 % of the runs at each threshold holds in fewer at a chosen one. Therefore the margins at each threshold
are missed with the probability :math:`\Phi(-c)` on either side instead of 2.5 %. c is what the largest of the
standardised deviations (1 − p) dA − p dB over all thresholds exceeds with a probability of 5 %
(:func:`~dpalgos.score_curves.reach`): they are simulated together, with the covariance of noise and drawing at the
group's own counts. Each of the four rates has its own c, so a margin holds for one rate and one group by itself.
Differences of two groups at the chosen threshold are made of these margins
(:meth:`~dpalgos.group_margins.RatesOfGroup.less`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from dpalgos.evaluators.scores_by_group import ScoresByGroup
from dpalgos.group_margins import FEW_ROWS, GroupEstimates, Rates, RatesOfGroup
from dpalgos.guarantees import Setting
from dpalgos.margins import drawn_rates
from dpalgos.measured import Metrics
from dpalgos.metrics import ratio
from dpalgos.rows import Floats
from dpalgos.score_curves import ScoreSums, reach

AT_THRESHOLD = ("recall", "other_recall", "precision", "predicted")
"""The rates of a group at a threshold: recalls of the second and of the first class, precision, share predicted."""
_SEED, _DRAWS = 20260703, 4_000


def sums_of_groups(
    values: Floats,
    algorithm: ScoresByGroup,
    setting: Setting,
    matrices: tuple[Floats, Floats],
    deviations: tuple[float, float],
    before: tuple[Floats, float] | None = None,
) -> tuple[list[ScoreSums], ScoreSums]:
    """Return the running sums of each group, and of all rows, estimated from all that was released of the same rows.

    Parameters
    ----------
    values : array (G or G + 1, 2, T)
        What was released.
    algorithm : ScoresByGroup
    setting : Setting
    matrices : (array (G, 2, 2), array (2, 2))
        Estimated confusion matrices of the groups and of all rows.
    deviations : (float, float)
        Of the noise of their counts.
    before : (array (2, T), float), optional
        Running sums of all rows that were released before, and the standard deviation of the noise of the integers that
        they were decoded from; for a release without its own.
    """
    released = algorithm.deviation(setting) * setting.noise_factor
    estimates = GroupEstimates.of_release(algorithm, released, None if before is None else before[1])
    whole = values[algorithm.groups] if algorithm.whole else None if before is None else before[0]
    each, together = estimates.counts(values[: algorithm.groups] / algorithm.each, whole)
    line = algorithm.sums().covariance()
    of_group, of_all = (np.stack([deviation**2 * line] * 2) for deviation in estimates.deviations)
    groups = [
        ScoreSums(sums, of_group, algorithm.scale).combined(matrix, deviations[0])
        for sums, matrix in zip(each, matrices[0], strict=True)
    ]
    return groups, ScoreSums(together, of_all, algorithm.scale).combined(matrices[1], deviations[1])


@dataclass(frozen=True)
class GroupCurve:
    """The rates of one group of rows at every threshold.

    Parameters
    ----------
    scores : ScoreSums
    names : sequence of str
        Which of the rates.
    """

    scores: ScoreSums
    names: Sequence[str] = AT_THRESHOLD

    @cached_property
    def _looks(self) -> dict[str, tuple[Floats, Floats]]:
        """Of each rate what A and B are of the running sums, (T − 1, 2, T) each."""
        edges = self.scores.sums.shape[1]
        below = np.eye(edges)[:-1]
        above = np.eye(edges)[-1] - below
        nothing = np.zeros_like(below)
        hits, missed, alarms, quiet = (
            np.stack(lines, axis=1)
            for lines in ((nothing, above), (nothing, below), (above, nothing), (below, nothing))
        )
        found = ((hits, missed), (quiet, alarms), (hits, alarms), (hits + alarms, missed + quiet))
        return {name: of for name, of in zip(AT_THRESHOLD, found, strict=True) if name in self.names}

    @cached_property
    def rates(self) -> dict[str, Rates]:
        """Each rate at the inner edges (T − 1,), with what the release leaves possible."""
        random, scores = np.random.default_rng(_SEED), self.scores
        drawn, found = scores.drawn(random, _DRAWS), {}
        for name, (above, below) in self._looks.items():
            hits, misses = (np.einsum("est,dst->de", look, drawn) for look in (above, below))
            sampled = name != "predicted"
            possible = drawn_rates(random, hits, misses) if sampled else _shares(hits, misses)
            found[name] = Rates(
                hits=_applied(above, scores.sums),
                misses=_applied(below, scores.sums),
                drawn=possible,
                noise=(self._noise(above, above), self._noise(below, below), self._noise(above, below)),
                sampled=sampled,
            )
        return found

    def _noise(self, one: Floats, other: Floats) -> Floats:
        """Return the covariance (T − 1,) of the noise of two sums of cells."""
        return np.asarray(np.einsum("est,stu,esu->e", one, self.scores.covariance, other))

    @cached_property
    def reaches(self) -> dict[str, float]:
        """Of each rate how many standard deviations a margin that holds at all thresholds reaches."""
        cells = self.scores.rising()
        running = np.cumsum(cells, axis=1)
        bins = np.arange(cells.shape[1])
        rows = running[:, np.minimum.outer(bins, bins)]
        found = {}
        for name, (above, below) in self._looks.items():
            hits, misses = _applied(above, running), _applied(below, running)
            share = np.where(hits + misses > 0, ratio(hits, hits + misses), 0.5)[:, None, None]
            slope = (1.0 - share) * above - share * below
            spread = self.scores.covariance + rows * self.rates[name].sampled
            found[name] = reach(sum(slope[:, side] @ spread[side] @ slope[:, side].T for side in range(2)))
        return found

    @cached_property
    def limits(self) -> dict[str, Floats]:
        """Of each rate the ends (T − 1, 2) of its margins, which hold at all thresholds at once."""
        return {
            name: rates.limits(float(scipy.special.ndtr(-self.reaches[name]))) for name, rates in self.rates.items()
        }

    def at(self, place: int) -> RatesOfGroup:
        """Return the rates at an inner edge, named ``aim_recall`` and so on; those of too few rows are not measured."""
        found, shares = Metrics(), {}
        for name, rates in self.rates.items():
            low, high = map(float, self.limits[name][place])
            shares[f"aim_{name}"] = float(rates.of_noise[place])
            if not rates.shown[place]:
                found.refuse(f"aim_{name}", FEW_ROWS, (0.0, 1.0))
                continue
            value = float(rates.hits[place] / (rates.hits[place] + rates.misses[place]))
            found.update({f"aim_{name}": min(max(value, low), high), f"aim_{name}_low": low, f"aim_{name}_high": high})
        return RatesOfGroup(found, shares)

    def roc(self) -> Floats | None:
        """Return the ROC curve with its band (T − 1, 6), from the lowest threshold on; None of too few rows.

        False and true positive rate, then the ends of the margin of the first and of the second.
        """
        quiet, recall = self.rates["other_recall"], self.rates["recall"]
        # The number of rows of a class is the same at every threshold.
        if not (quiet.shown[0] and recall.shown[0]):
            return None
        running = np.cumsum(self.scores.rising(), axis=1)
        points = []
        for name in ("other_recall", "recall"):
            above, below = self._looks[name]
            hits, misses = _applied(above, running), _applied(below, running)
            points.append(np.clip(ratio(hits, hits + misses), *self.limits[name].T))
        lows = self.limits["other_recall"]
        return np.stack(
            [1.0 - points[0], points[1], 1.0 - lows[:, 1], 1.0 - lows[:, 0], *self.limits["recall"].T], axis=1
        )


def _applied(looks: Floats, sums: Floats) -> Floats:
    """Return sums of cells (T − 1,) of running sums (2, T)."""
    return np.asarray(np.einsum("est,st->e", looks, sums))


def _shares(hits: Floats, misses: Floats) -> tuple[Floats, Floats]:
    """Return shares of the rows themselves, for lower and upper limits; anything where there are no rows."""
    hits, misses = np.maximum(hits, 0.0), np.maximum(misses, 0.0)
    empty, share = hits + misses <= 0, hits / np.maximum(hits + misses, 1.0)
    return np.where(empty, 0.0, share), np.where(empty, 1.0, share)
