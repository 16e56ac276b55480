"""Lower bounds on mu where a release is a Gaussian mechanism: tight, under the assumption that it is one."""

from __future__ import annotations

import math

from scipy.stats import nct, norm

from dpalgos.audit.clopper_pearson import largest_refuted
from dpalgos.rows import Floats


def gaussian_lower_bound(left: Floats, right: Floats, confidence: float) -> float:
    """Return a mu that the distance of two normal laws of equal variance exceeds or meets, at the given confidence.

    Guarantee
    ---------
    Assumes that the scores are independent draws of N(a + mu s, s²) and N(a, s²). Then the two-sample t statistic has
    the noncentral t law of 2T − 2 degrees of freedom and noncentrality mu √(T/2), exactly, which is increasing in mu:
    the bound returned exceeds mu with probability at most 1 − confidence. Said of any other law it is a fit, no bound.

    Parameters
    ----------
    left, right : array (T,)
        Scores of T runs on either neighbour, expected to be larger on the left.
    confidence : float
        In (0, 1).

    References
    ----------
    Nasr et al., "Tight auditing of differentially private machine learning", USENIX Security 2023 (Gaussian-DP fits).
    """
    count = min(len(left), len(right))
    pooled = math.sqrt(0.5 * (float(left[:count].var(ddof=1)) + float(right[:count].var(ddof=1))))
    if pooled == 0.0:
        return 0.0 if left.mean() == right.mean() else math.inf
    root = math.sqrt(count / 2.0)
    statistic = root * float(left[:count].mean() - right[:count].mean()) / pooled
    freedom = 2 * count - 2
    if freedom > 2000:
        # The noncentral t law is normal to three digits by then, with the variance that its statistic has.
        return max(
            0.0, (statistic - float(norm.isf(1 - confidence)) * math.sqrt(1 + statistic**2 / (2 * freedom))) / root
        )
    return largest_refuted(lambda mean: bool(nct.sf(statistic, freedom, mean or 1e-12) <= 1.0 - confidence)) / root
