"""Transformers of ours inside a model's scikit-learn pipeline: clipping to the ball, and maps that scikit-learn lacks.

Stored models name these classes by their path, so this module and its names stay where they are; a holder of the model
could not repair a file that no longer loads.
"""

from dataclasses import asdict
from typing import Any, Self

import numpy as np
from scipy import sparse
from scipy.special import expit
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.linear_model import LinearRegression
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted, validate_data

from dpalgos.conformal import HeldOut, HeldOutErrors, HeldOutScores, Paid
from dpalgos.models import decode
from dpalgos.rows import clip_to_unit_ball


class UnitBallClipper(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Scale each row longer than 1 (l2) onto the unit sphere and leave the others alone; it learns nothing."""

    def __sklearn_tags__(self) -> Any:
        """Say that sparse rows are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: object = None) -> Self:
        """Take note of the number of features."""
        validate_data(self, X, accept_sparse="csr")
        return self

    def transform(self, X: Any) -> Any:
        """Return the clipped rows.

        Parameters
        ----------
        X : array or sparse matrix (m, d)
        """
        check_is_fitted(self, "n_features_in_")
        X = validate_data(self, X, accept_sparse="csr", reset=False, dtype=np.float64)
        if sparse.issparse(X):
            norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1))).ravel()
            return sparse.diags_array(1.0 / np.maximum(norms, 1.0)).dot(X).tocsr()
        return clip_to_unit_ball(X)


class ReleasedMap(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A map of rows that the registry made, by its kind and arrays; it learns nothing.

    Parameters
    ----------
    kind : str
        Of a released artefact with ``transform``.
    arrays : mapping of str to array
        What it is made of.
    """

    def __init__(self, kind: str = "", arrays: dict[str, Any] | None = None) -> None:
        self.kind = kind
        self.arrays = arrays

    def fit(self, X: Any, y: object = None) -> Self:
        """Take note of the number of features."""
        validate_data(self, X)
        return self

    def transform(self, X: Any) -> Any:
        """Return the mapped rows.

        Parameters
        ----------
        X : array (m, d)
        """
        check_is_fitted(self, "n_features_in_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return decode(self.kind, dict(self.arrays or {})).transform(X)


def stored(held_out: HeldOutErrors | HeldOutScores) -> dict[str, Any]:
    """Return released counts of held-out rows as arrays, numbers and mappings, for a step of a stored pipeline."""
    return asdict(held_out)


def _opened(held_out: dict[str, Any]) -> dict[str, Any]:
    paid = held_out["paid"]
    nested = {"held_out": HeldOut(**held_out["held_out"]), "paid": None if paid is None else Paid(**paid)}
    return {**held_out, **nested}


class BoundedRegressor(LinearRegression):  # type: ignore[misc]  # scikit-learn has no types
    """A linear model of a number, whose predictions are clipped to the declared range.

    ``held_out_`` holds the released errors of held-out rows (:func:`stored`), or None.
    """

    def predict(self, X: Any) -> Any:
        """Return a number within the declared range for each row, (m,).

        Parameters
        ----------
        X : array (m, d)
        """
        return np.clip(super().predict(X), self.low_, self.high_)

    def released(self) -> HeldOutErrors | None:
        """Return the released errors of held-out rows; None where none are."""
        return None if self.held_out_ is None else HeldOutErrors(**_opened(self.held_out_))


class ScoredClassifier(LinearSVC):  # type: ignore[misc]  # scikit-learn has no types
    """A linear classifier whose scores of held-out rows were counted by a release.

    ``held_out_`` holds them (:func:`stored`), or is None.
    """

    def released(self) -> HeldOutScores | None:
        """Return the released running sums of held-out rows' scores; None where none are."""
        return None if self.held_out_ is None else HeldOutScores(**_opened(self.held_out_))


class CalibratedClassifier(ScoredClassifier):
    """A linear classifier of two classes whose scores have been calibrated on released sums of scores.

    ``decision_function`` is above 0 where the second class is predicted, so that it is 0 at a chosen threshold.
    """

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the two classes (m, 2).

        Parameters
        ----------
        X : array (m, d)
        """
        second = expit(self.slope_ * self.decision_function(X) + self.offset_)
        return np.stack([1.0 - second, second], axis=1)


TRUSTED_TYPES = tuple(
    f"{cls.__module__}.{cls.__qualname__}"
    for cls in (UnitBallClipper, ReleasedMap, BoundedRegressor, ScoredClassifier, CalibratedClassifier)
)
"""Our own classes in a pipeline, which whoever loads one names as trusted; everything else is scikit-learn's."""
