"""Guarantees of fitted models, and the limits of an estimator's guarantee."""

from dataclasses import dataclass
from typing import ClassVar

from tasks.tracking.results import Proved

NOT_COVERED = (
    "exact scores of these or other private rows, such as a search's scores of its folds, and choices based on them",
    "other steps of a pipeline that learn from the rows (a scaler, a selection of features), which "
    "unitball.check_pipeline(…) names",
    "other computations on the rows outside this estimator",
)
"""What no guarantee of an estimator covers."""
NOT_REMEMBERED = "no account records this fit: another fit of the same rows is not counted"
DRAWN_ROWS = (
    "the rows are among the synthetic rows of {}: the guarantee composes the releases from which these are drawn"
)
IN_MEMORY_ALONE = (
    "account {!r} exists only in the memory of this process, for tests: afterwards the same rows have their whole "
    "budget again"
)


@dataclass(frozen=True, repr=False)
class FitGuarantee:
    """Guarantee of a fitted model, and its limits.

    Attributes
    ----------
    proved : Proved or None
        None for an algorithm about which nothing is proved; it fits public rows only.
    remembered : str
        What is to be said where no account remembers the fit, or not for long.
    rests_on : str
        What releases before it the model rests on, which ``proved`` composes; empty where there are none.
    not_covered : tuple of str
        The same of all models.
    """

    proved: Proved | None
    remembered: str = ""
    rests_on: str = ""
    not_covered: ClassVar[tuple[str, ...]] = NOT_COVERED

    def __repr__(self) -> str:
        return f"FitGuarantee({self.proved or 'nothing is proved'})"

    def __str__(self) -> str:
        if self.proved is None:
            return "Nothing is proved about this model."
        more = "".join(f"; {one}" for one in (self.rests_on, self.remembered) if one)
        return f"The model is {self.proved}{more}. Not covered: {'; '.join(self.not_covered)}."
