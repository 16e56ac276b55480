"""Principal components of private rows, as a transformer of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted

from dpalgos.column_maps import components_map
from dpalgos.components import Components
from dpalgos.evaluators.second_moments import SecondMoments
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats
from storage.encoder import TableEncoder
from storage.errors import InputError
from storage.frames import frame_of
from storage.readers.in_memory import document_of
from storage.schema import parse_schema
from tasks.release.moments import components_in, moments_in
from unitball.fits import BudgetError, Encoded, Reduced, Target, moments_in_memory, moments_through_the_door
from unitball.guarantees import FitGuarantee
from unitball.lineage import ReleasedBasis, bases_under, marked, require_one_account, rests_on
from unitball.parameter_checks import require_whole, shown
from unitball.pipelines import fitted_around, learns_nothing
from unitball.private_step import PrivateStep
from unitball.screen import warn_of_steps
from unitball.wording import spoken_in_python


class _Unmarked(ClassNamePrefixFeaturesOutMixin, TransformerMixin):  # type: ignore[misc]  # scikit-learn has no types
    """Scores in the container that ``set_output`` asks for; what they rest on is added afterwards."""

    def transform(self, X: Any) -> Any:
        """Return scores of rows."""
        raw: Any = self
        return raw._scores(X)


@learns_nothing
@dataclass(eq=False, repr=False)
class PrivatePCA(_Unmarked, PrivateStep):
    """Principal components that are differentially private towards the rows they are fitted on.

    One release of the rows' mean and of their second moments about it is charged to the account. Everything else is
    computed from it: another ``n_components`` is the same release and is free.

    Columns are scaled by public numbers (``bounds`` or ``schema``), so that rows that fill their ranges evenly have
    norm 1 on average. ``components_``, ``mean_`` and variances refer to the scaled columns. For the moments, rows less
    their mean are clipped to norm 1. No row is divided by its norm, so ``inverse_transform`` returns rows in the
    columns' units.

    In a pipeline with a private classifier or regressor both must name one account. The scores carry a mark, from which
    the classifier's ``guarantee_`` composes the basis, and which provides ``bounds`` if the classifier has none. Pandas
    frames carry it too, polars frames only in a pipeline.

    Parameters
    ----------
    epsilon, delta
        Budget of one fit. Default of epsilon: 1 for public rows. For private rows ``fit`` without it raises
        :class:`unitball.BudgetError` with the price, unless that release is already stored.
    n_components : int, optional
        k. Default: the components whose noisy variance is above what noise alone reaches in one of twenty releases.
    center : bool
        Whether rows are centred at a released mean, which takes a public share of μ². Otherwise they are centred at the
        middle of their declared ranges, and second moments about it are reported.
    account, schema, bounds, public, root, repetition, random_state, rows_per_person, disjoint_people, on_violation
        See :class:`unitball.PrivateClassifier`. ``groups`` of ``fit`` too.

    Attributes
    ----------
    components_ : array (k, d)
        Orthonormal directions of the scaled columns, the largest variance first.
    explained_variance_ : array (k,)
        Estimates of the variance of the clipped rows along these directions, not the noisy eigenvalues, which are
        larger (:mod:`dpalgos.components`). 0 where it cannot be told from noise.
    explained_variance_margin_ : array (k, 2)
        Lower and upper ends; all hold together with probability 0.95.
    explained_variance_ratio_ : array (k,)
        Of the total variance, as it is released.
    noise_floor_ : float
        Bound on the largest noisy variance of constant columns, with probability 0.95.
    mean_ : array (d,)
        Mean of the scaled columns, which scores are relative to; 0 is the middle of the declared ranges.
    n_components_, n_features_in_ : int
    feature_names_in_ : array
        Present if columns have names.
    scaled_names_ : tuple of str
        Names of the d scaled columns; with a schema a category has one column per value.
    guarantee_ : FitGuarantee
    charges_ : data frame
        One line per release.
    basis_ : ReleasedBasis or None
        The mark on scores; None for public rows.

    Raises
    ------
    BudgetError
        From ``fit``, if the account's cap does not allow it, or private rows come without ``epsilon``.
    storage.errors.InputError
        From ``fit`` without ``n_components``, if no component is above the noise, with the epsilon that would be
        needed. The release is charged then: give ``n_components`` to use it.
    dpalgos.parameters.ParameterError
        From ``fit``, if something would have to be learnt from private rows, or parameters do not fit.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from unitball import PrivatePCA
    >>> X, _ = load_breast_cancer(return_X_y=True)
    >>> pca = PrivatePCA(epsilon=4.0, n_components=2, public=True, random_state=0).fit(X)
    >>> pca.transform(X[:3]).shape
    (3, 2)
    """

    _: KW_ONLY
    n_components: int | None = None
    center: bool = True

    @spoken_in_python()
    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Release second moments, charged to the account, and find their components.

        Parameters
        ----------
        X : array (m, d), or a data frame of the schema's columns
        y : None
            Ignored.
        groups : array (m,), optional
            Whose each row is: what is protected is then a person with all rows.
        """
        self._require_parameters()
        require_one_account(self, PrivateStep)
        bases = bases_under(self, X)
        if not self.public:
            self._require_declared()
            warn_of_steps(fitted_around(self))
        with self._without_cells():
            rows = self._fitted_rows(X)
            count = rows.rows if self.schema is not None else len(rows)
            grouped = self._grouped(rows, groups, count)
            self._encoding = self._encoder(rows)
            places = self._columns.declared.places if self._encoding is None else self._encoding.places
            features = self._scaled(rows)
        if not places:
            if count == 1 and self.bounds is None and self.schema is None:
                raise ParameterError("X has one sample (n_samples = 1), too few to learn ranges; give bounds")
            raise ParameterError("no column varies within its declared bounds; declare bounds with low below high")
        if self.n_components is not None and self.n_components > features.shape[1]:
            raise ParameterError(
                f"n_components is {self.n_components}; rows have {features.shape[1]} scaled columns; give at most "
                "that number"
            )
        encoded = Encoded(
            features=features,
            target=Target(np.zeros(len(features)), label_range=(0.0, 1.0)),
            grouped=grouped,
            columns=tuple(places),
            normalisation="none",
            **self._recognised_by(X, features),
        )
        if self.public:
            made = moments_in_memory(encoded, self._epsilon, float(self.delta), self.center, self.random_state)
        elif self.random_state is not None:
            raise BudgetError("random_state is a public seed of the noise and the rows are private; omit it")
        else:
            made = moments_through_the_door(
                encoded,
                self.account,
                epsilon=self._epsilon,
                delta=float(self.delta),
                center=self.center,
                replicate=int(self.repetition),
                root=self.root,
                disjoint_people=self.disjoint_people,
                agreed=self.epsilon is not None,
            )
        self._take(made, bases)
        return self

    def _require_parameters(self) -> None:
        super()._require_parameters()
        if self.delta == 0:
            raise ParameterError("delta is 0; second moments use Gaussian noise: give a delta above 0")
        if self.n_components is not None:
            require_whole("n_components", self.n_components, 1)
        if not isinstance(self.center, bool | np.bool_):
            raise ParameterError(f"center is {shown(self.center)}; give True or False")

    def _fitted_rows(self, X: Any) -> Any:
        if self.schema is None:
            return self._validated(X)
        rows = frame_of(X)
        document, called = document_of(self.schema, rows)
        parse_schema(document, called)
        self._columns = TableEncoder(document, on_violation=str(self.on_violation))
        self.feature_names_in_, self.n_features_in_ = self._columns.feature_names_in_, self._columns.n_features_in_
        if not rows.rows:
            raise ParameterError("X has 0 rows; at least one is needed to fit")
        return rows

    def _scaled(self, rows: Any) -> Floats:
        """Return scaled columns; of numbers without an intercept's coordinate."""
        encoded = self._encoded(rows)
        return encoded if self._encoding is None else encoded[:, :-1]

    def _take(self, made: Reduced, bases: Sequence[ReleasedBasis]) -> None:
        """Keep what was released, and what follows from it."""
        planned = made.planned
        count = None if self.n_components is None else int(self.n_components)
        try:
            found: Components = components_in(planned, made.statistic, count)
        except InputError as error:
            raise error.saying(str(error).replace("the number of components", "n_components")) from None
        algorithm: Any = planned.build()
        assert isinstance(algorithm, SecondMoments), "moments are planned"
        self._map = components_map(algorithm, planned.setting, moments_in(planned, made.statistic), found)
        self.components_, self.mean_ = self._map.basis.T, self._map.mean
        self.explained_variance_, self.explained_variance_ratio_ = found.variances, found.shares
        self.explained_variance_margin_ = np.stack([found.low, found.high], axis=1)
        self.noise_floor_, self.n_components_ = found.floor, len(found.variances)
        self._noisy = found.noisy
        self.scaled_names_ = self._names()
        losses = (*planned.guarantee().losses, *(loss for one in bases for loss in one.losses))
        proved = made.proved_with(losses)
        self.guarantee_ = FitGuarantee(proved, made.remembered, rests_on(bases, measured=False))
        self._charged = made.charges
        self.basis_ = None
        if not self.public:
            reach = 3.0 * np.sqrt(found.high)
            self.basis_ = ReleasedBasis(
                key=planned.key,
                account=made.account if self.account is not None else "",
                root=str(self.root or ""),
                losses=losses,
                epsilon=proved.epsilon,
                delta=proved.delta,
                bounds=(tuple((-reach).tolist()), tuple(reach.tolist())),
            )

    def _names(self) -> tuple[str, ...]:
        if self._encoding is None:
            return tuple(map(str, self._columns.declared.feature_names))
        return tuple(map(str, getattr(self, "feature_names_in_", [f"x{at}" for at in range(self.n_features_in_)])))

    def transform(self, X: Any) -> Any:
        """Return the scores of rows, (m, k); cells outside their declared ranges are clipped to these.

        Parameters
        ----------
        X : array (m, d), or data frame
        """
        scores = super().transform(X)
        return scores if self.basis_ is None else marked(scores, self.basis_)

    @spoken_in_python()
    def _scores(self, X: Any) -> Floats:
        check_is_fitted(self)
        with self._without_cells():
            rows = X if self._encoding is None else self._validated(X, reset=False, ensure_min_samples=0)
            return (self._scaled(rows) - self.mean_) @ self.components_.T

    @spoken_in_python()
    def inverse_transform(self, X: Any) -> Floats:
        """Return the rows that have these scores, in the span of the components about the mean, (m, d).

        In the columns' own units where they are numbers within ``bounds``; scaled columns under a schema.

        Parameters
        ----------
        X : array (m, k)
        """
        check_is_fitted(self)
        scores = check_array(X, dtype=np.float64)
        if scores.shape[1] != self.n_components_:
            raise ParameterError(f"X has {scores.shape[1]} scores; there are {self.n_components_} components")
        rows = np.asarray(scores) @ self.components_ + self.mean_
        return rows if self._encoding is None else self._encoding.unplaced(rows)

    def loadings(self) -> pd.DataFrame:
        """Return the entries of the components by scaled column, (d, k)."""
        check_is_fitted(self)
        names = self.get_feature_names_out()
        return pd.DataFrame(self.components_.T, index=pd.Index(self.scaled_names_), columns=names)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64"]
        return tags
