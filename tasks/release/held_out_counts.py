"""Released counts of held-out rows, from which intervals and sets for new rows follow at no further charge."""

import math
from collections.abc import Mapping, Sequence

from dpalgos.conformal import HeldOut, HeldOutErrors, HeldOutScores, Paid
from dpalgos.error_margins import ErrorCounts
from dpalgos.evaluators.error_distribution import ErrorDistribution
from dpalgos.evaluators.score_distribution import ScoreDistribution
from dpalgos.guarantees import GaussianMu
from dpalgos.models import Statistic
from tasks.planning.plans import RunPlan
from tasks.preparation.paid_moments import NAME as MOMENTS
from tasks.release.metrics import sums_of_scores


def held_out_counts(
    plan: RunPlan, path: Sequence[str], statistics: Mapping[str, Statistic]
) -> HeldOutErrors | HeldOutScores | None:
    """Return the errors or the scores of held-out rows that a run has released of one model; None where it has none.

    Nights release none: rows of one night need not be like those of the next. Where the run rests on counts of columns
    that were released before it, these have counted the held-out rows as well, and the result says so. A run on
    principal components has none: their basis was found in the held-out rows too, and no simulation says how far the
    claims of intervals and sets hold then.

    Parameters
    ----------
    plan : RunPlan
    path : sequence of str
        Keys of what the model's rows pass through, its own last.
    statistics : mapping of key to Statistic
        What the plan's evaluations have released.
    """
    if any(one.name == MOMENTS for one in plan.counts):
        return None
    reread = any(one.key in plan.before for one in plan.counts)
    for planned in plan.evaluations:
        if not planned.reads_rows or planned.seen_last != tuple(path):
            continue
        algorithm, setting = planned.build(), planned.setting
        people = setting.rows_per_person > 1
        if isinstance(algorithm, ErrorDistribution):
            counts = ErrorCounts.of_release(statistics[planned.key].values, algorithm, setting)
            return HeldOutErrors.of_counts(counts, people=people, paid=_paid(plan), reread=reread)
        if isinstance(algorithm, ScoreDistribution):
            held_out = HeldOut(count=setting.rows, people=people)
            return HeldOutScores.of_scores(sums_of_scores(plan, path, statistics), held_out, _paid(plan), reread=reread)
    return None


def _paid(plan: RunPlan) -> Paid | None:
    """Return what all releases of the held-out rows were bought with, as one Gaussian loss."""
    budgets = [one.budget for one in plan.evaluations if one.reads_rows]
    _, delta = plan.identity.target
    if not delta or not all(isinstance(one, GaussianMu) for one in budgets):
        return None
    return Paid(mu=math.sqrt(math.fsum(one.mu**2 for one in budgets if isinstance(one, GaussianMu))), delta=delta)
