"""Releases on which scores of a private transformer rest, carried with the scores to the next estimator.

Scores are numbers of rows under a basis that was released of other rows, or of these: a model of them guarantees no
more than both releases together. So a transformer marks its output, and an estimator that is fitted on it composes the
basis. The mark stays on slices and selections of rows, on what ufuncs make of scores, and on pickled copies; of pandas
frames it is among their ``attrs``. A step between the two that copies rows into a separate array loses it; a
pipeline is therefore looked at as well (:func:`bases_under`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpalgos.guarantees import Loss, rounded_up
from dpalgos.parameters import ParameterError
from unitball.pipelines import fitted_steps_around, steps_around

_ATTRIBUTE = "unitball_basis"


@dataclass(frozen=True, kw_only=True)
class ReleasedBasis:
    """A released basis, as what is fitted on its scores has to know it.

    Attributes
    ----------
    key : str
        Of the release that it is made of.
    account : str
    root : str
        As the transformer names it; empty where it names none.
    losses : tuple of Loss
        What the release costs each of the rows that it has read.
    epsilon, delta : float
        The same, by itself.
    bounds : (tuple of float, tuple of float)
        Lows and highs of the scores, by what is released: three standard deviations of each component, at the upper end
        of its margin. Of rows within the radius one in nine at most is beyond them (Chebyshev).
    """

    key: str
    account: str
    root: str
    losses: tuple[Loss, ...]
    epsilon: float
    delta: float
    bounds: tuple[tuple[float, ...], tuple[float, ...]]

    def __str__(self) -> str:
        epsilon = f"epsilon {rounded_up(self.epsilon, 4):g} at delta {self.delta:g}"
        return f"basis {self.key[:12]} ({epsilon}, account {self.account!r})"


class Scores(np.ndarray[Any, np.dtype[np.float64]]):
    """Scores of rows, with the basis that they are made by."""

    basis: ReleasedBasis | None = None

    @classmethod
    def of(cls, scores: NDArray[Any], basis: ReleasedBasis) -> Scores:
        """Return the same numbers, marked."""
        marked = scores.view(cls)
        marked.basis = basis
        return marked

    def __array_finalize__(self, other: Any) -> None:
        self.basis = getattr(other, "basis", None)

    def __reduce__(self) -> tuple[Any, ...]:
        made, arguments, state = cast("tuple[Any, Any, Any]", super().__reduce__())
        return made, arguments, (state, self.basis)

    def __setstate__(self, state: Any) -> None:
        inner, self.basis = state
        super().__setstate__(inner)


def marked(scores: Any, basis: ReleasedBasis) -> Any:
    """Return scores with their basis: an array as :class:`Scores`, a pandas frame with an attribute."""
    if isinstance(scores, np.ndarray):
        return Scores.of(scores, basis)
    if isinstance(scores, pd.DataFrame):
        scores.attrs[_ATTRIBUTE] = basis
    return scores


def basis_of(rows: Any) -> ReleasedBasis | None:
    """Return the basis that rows are scores of; None where they bear no mark."""
    found = rows.attrs.get(_ATTRIBUTE) if isinstance(rows, pd.DataFrame) else getattr(rows, "basis", None)
    return found if isinstance(found, ReleasedBasis) else None


def score_bounds(rows: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the bounds of scores by their mark; None where there is none, or there are more or fewer columns."""
    basis = basis_of(rows)
    return basis.bounds if basis is not None and np.shape(rows)[1:] == (len(basis.bounds[0]),) else None


def bases_under(estimator: Any, rows: Any) -> tuple[ReleasedBasis, ...]:
    """Return the bases that rows rest on which an estimator is fitted on, by their marks and by the pipeline around it.

    Raises
    ------
    ParameterError
        If another account, or none, pays for the estimator.
    """
    before: Iterable[Any] = (getattr(step, "basis_", None) for step in fitted_steps_around(estimator))
    found = {one.key: one for one in (basis_of(rows), *before) if isinstance(one, ReleasedBasis)}
    for one in found.values():
        require_same(estimator, one.account, one.root)
    return tuple(found.values())


def require_one_account(estimator: Any, steps: type) -> None:
    """Refuse a pipeline whose private transformer and estimator do not name one account, before either is charged.

    Only a transformer and the estimator that is fitted on its scores are compared; clones in a search name the same.

    Parameters
    ----------
    estimator : PrivateStep
        Step of the pipeline that is being fitted.
    steps : type
        Class of private steps.

    Raises
    ------
    ParameterError
    """
    for other in steps_around(estimator):
        if isinstance(other, steps) and hasattr(other, "transform") != hasattr(estimator, "transform"):
            step: Any = other
            require_same(estimator, "" if step.public else step.account, str(step.root or ""), public=step.public)


def require_same(estimator: Any, account: str | None, root: str, *, public: bool = False) -> None:
    """Refuse an estimator that does not pay from this account of this root.

    Raises
    ------
    ParameterError
    """
    if public and estimator.public:
        return
    mine = estimator.account, str(estimator.root or ""), bool(estimator.public)
    if None in (account, mine[0]) or mine != (account, root, public):
        said = [_said(*mine), _said(account, root, public)]
        raise ParameterError(
            f"the private steps of one chain charge {' and '.join(said)}; a row must be charged by a single account: "
            "give all steps the same account= and root="
        )


def _said(account: str | None, root: str, public: bool) -> str:
    if public:
        return "none (public=True)"
    return ("no account" if account is None else f"account {account!r}") + (f" of root {root}" if root else "")


def rests_on(bases: Sequence[ReleasedBasis], *, measured: bool) -> str:
    """Return what a guarantee says of the bases that a model rests on; empty where there is none."""
    if not bases:
        return ""
    said = f"it rests on {', '.join(map(str, bases))}, which the guarantee composes"
    if measured:
        said += "; the basis has read all rows, also the held-out ones, so measured_ uses rows that it has read"
    return said
