"""Artefacts: the feature maps and models that releases decode to, made of arrays and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from dpalgos import registry
from dpalgos.kernels import GaussianKernel
from dpalgos.parameters import ParameterError
from dpalgos.rows import Array, Floats, Ints, row_products

_LARGEST, _SMALLEST = 2.0**64, 2.0**-256
"""Between these lie the numbers of an artefact, or are zero: in products of three of them with rows nothing overflows,
and nothing is subnormal, which takes a processor longer."""


class Artefact(Protocol):
    """Anything the door can store: named arrays plus public metadata."""

    kind: ClassVar[str]

    def arrays(self) -> dict[str, Array]:
        """Return the named arrays; the inverse of ``from_arrays``."""


class ArrayFields:
    """An artefact whose fields are its arrays: a dataclass."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    kind: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions that it needs beside what every model does."""

    def arrays(self) -> dict[str, Array]:
        """Return the fields by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@runtime_checkable
class AffineMap(Protocol):
    """A map of rows after which linear models are linear in the rows before it."""

    def before(self, model: LinearModel) -> LinearModel:
        """Return the model of rows before this map that scores them as ``model`` does after it."""


@runtime_checkable
class LabelRanged(Protocol):
    """An artefact that says the range which a numeric label is clipped to."""

    @property
    def label_range(self) -> Floats:
        """Its two ends, the smaller first; empty where labels are classes."""


def label_range_of(artefacts: Sequence[Artefact], declared: Sequence[float]) -> Sequence[float]:
    """Return the range that numeric labels are clipped to: the last that an artefact says, else the declared one.

    An artefact says none where its ends are not two finite numbers, the smaller first.
    """
    for artefact in reversed(artefacts):
        if isinstance(artefact, LabelRanged) and artefact.label_range.shape == (2,):
            low, high = (float(end) for end in artefact.label_range)
            if -np.inf < low < high < np.inf:
                return low, high
    return declared


class Spread(NamedTuple):
    """Around what, and how far, a numeric label lies by released counts of it, in the unit of the label."""

    centre: float
    """c, from which the label's squared distance up to ``width`` is least."""
    width: float
    """B, the 95 % quantile less the 5 % quantile."""
    share: float
    """Mean of min(|label − c|/B, 1)²."""


@runtime_checkable
class LabelSpread(Protocol):
    """An artefact that says around what, and how far, a numeric label lies by released counts of it."""

    @property
    def label_spread(self) -> Floats:
        """The numbers of a :class:`Spread`, (3,): zero where counts do not tell; empty where no label is counted."""


def label_spread_of(artefacts: Sequence[Artefact]) -> Spread | None:
    """Return how far numeric labels lie, as the last artefact says; None where none does.

    An artefact says none where these are not finite numbers, the width positive.
    """
    for artefact in reversed(artefacts):
        if isinstance(artefact, LabelSpread) and artefact.label_spread.shape == (3,):
            spread = Spread(*(float(number) for number in artefact.label_spread))
            if all(map(math.isfinite, spread)) and spread.width > 0.0:
                return spread
    return None


class RowMap(Artefact, Protocol):
    """An artefact that rows are seen through."""

    def apply(self, features: Floats) -> Floats:
        """Map (m, d) to what the next stage sees."""


_KINDS: dict[str, Any] = {}
_T = TypeVar("_T", bound="type[ArrayFields]")


def released_kind(kind: str) -> Callable[[_T], _T]:
    """Name a class of artefacts, so that :func:`decode` makes one of what is stored under that kind."""

    def named(cls: _T) -> _T:
        cls.kind, _KINDS[kind] = kind, cls
        return cls

    return named


@released_kind("projection")
@dataclass(frozen=True, slots=True)
class Projection(ArrayFields):
    """A linear map onto k directions: ``features @ basis``.

    Parameters
    ----------
    basis : array (d, k)
        Orthonormal columns, unless the algorithm states another property.
    spectrum : array (k,) or (d,)
        The (noisy) eigenvalues behind the choice, empty where there are none.
    """

    basis: Floats
    spectrum: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def classes(self) -> tuple[type, ...]:
        """Classes of this map: their code is its own."""
        return (type(self),)

    @property
    def dimension(self) -> int:
        """Number of directions k."""
        return int(self.basis.shape[1])

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, k)."""
        return np.asarray(features @ self.basis)

    def apply(self, features: Floats) -> Floats:
        """Map rows, each to bits that depend on it alone: what the door calls."""
        return row_products(features, self.basis)

    def before(self, model: LinearModel) -> LinearModel:
        """Return the model of rows before this map that scores them as ``model`` does after it."""
        return LinearModel(weights=model.weights @ self.basis.T, intercept=model.intercept)


def predicted_classes(scores: Floats) -> Ints:
    """Return class indices (m,) from decision values (m, K), or (m, 1) where the sign decides; NaN is class 0."""
    if scores.shape[1] == 0:
        return np.zeros(len(scores), dtype=np.int64)
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.int64)
    return np.asarray(np.where(np.isfinite(scores), scores, -np.inf).argmax(axis=1), dtype=np.int64)


@released_kind("linear-model")
@dataclass(frozen=True, slots=True)
class LinearModel(ArrayFields):
    """A linear classifier or regressor.

    Parameters
    ----------
    weights : array (K, k), or (1, k) for a binary problem or a regression
    intercept : array (K,), or (1,)
        Added to the scores; zeros where none is given.
    """

    weights: Floats
    intercept: Floats = field(default_factory=lambda: np.zeros(1))

    def __post_init__(self) -> None:
        rows = len(self.weights)
        if self.intercept.shape not in {(1,), (rows,)}:
            raise ParameterError(
                f"the intercept has shape {self.intercept.shape}; {rows} weight rows need ({rows},), or (1,) for all"
            )
        # One number a row of weights, so that models can be averaged and stored entry by entry.
        object.__setattr__(self, "intercept", np.broadcast_to(self.intercept, (rows,)).copy())

    def scores(self, features: Floats) -> Floats:
        """Return (m, rows of ``weights``) decision values."""
        return np.asarray(features @ self.weights.T + self.intercept)

    def apply(self, features: Floats) -> Floats:
        """Return the decision values, each row's with bits that depend on it alone: what the door calls."""
        return row_products(features, self.weights.T) + self.intercept

    def predict(self, features: Floats) -> Ints:
        """Return class indices (m,): the largest score, or the sign where there is one score."""
        return predicted_classes(self.scores(features))

    def turned(self) -> LinearModel:
        """Return a binary model for which the first class is the second: a score of 0 was of the first, and stays."""
        return LinearModel(-self.weights, _turned(self.intercept))


def _turned(intercept: Floats) -> Floats:
    """Return an intercept of negated scores: above 0 where the score is exactly 0, which is of the first class."""
    return np.where(intercept == 0.0, np.finfo(np.float64).tiny, -intercept)


@released_kind("kernel-model")
@dataclass(frozen=True, slots=True)
class KernelModel(ArrayFields):
    """A classifier by the Gaussian kernel: scores Σ_s coefficients[c, s] exp(−gamma ‖x − support_s‖²) + intercept[c].

    The support vectors are rows of the training data, bit for bit: such a model is for public data only, with any
    noise.

    Parameters
    ----------
    support_vectors : array (S, d)
    coefficients : array (K, S), or (1, S) for a binary problem
    intercept : array (K,), or (1,)
    gamma : array (1,)
    """

    support_vectors: Floats
    coefficients: Floats
    intercept: Floats
    gamma: Floats

    def scores(self, features: Floats) -> Floats:
        """Return (m, rows of ``coefficients``) decision values."""
        kernel = GaussianKernel(float(self.gamma[0]))
        columns = [kernel.scores(features, self.support_vectors, row) for row in self.coefficients]
        return np.stack(columns, axis=1) + self.intercept

    def turned(self) -> KernelModel:
        """Return a binary model for which the first class is the second."""
        return KernelModel(self.support_vectors, -self.coefficients, _turned(self.intercept), self.gamma)

    apply = scores

    def predict(self, features: Floats) -> Ints:
        """Return class indices (m,): the largest score, or the sign where there is one score."""
        return predicted_classes(self.scores(features))


@released_kind("statistic")
@dataclass(frozen=True, slots=True)
class Statistic(ArrayFields):
    """Released numbers that are not a model: counts, sums, a confusion matrix."""

    values: Floats


def decode(kind: str, arrays: dict[str, Array]) -> Any:
    """Return the artefact of one kind from its arrays.

    Raises
    ------
    ParameterError
        If the kind is unknown.
    """
    if kind not in _KINDS:
        # Maps defined beside the algorithms that make them are known once the registry has been walked.
        registry.names("projections")
    if kind not in _KINDS:
        raise ParameterError(f"unknown kind of release {kind!r}; known: {', '.join(sorted(_KINDS))}")
    return _KINDS[kind](**arrays)


def opened(kind: str, arrays: Mapping[str, Array]) -> Any:
    """Return the artefact of arrays that come from elsewhere: a file, a bucket, another party, a coordinator.

    What is nearer to zero than 2⁻²⁵⁶ becomes zero.

    Raises
    ------
    ParameterError
        If the kind is unknown, or a number is not finite or beyond 2⁶⁴.
    """
    return decode(kind, {name: _bounded(name, array) for name, array in arrays.items()})


def _bounded(name: str, array: Array) -> Array:
    if not np.issubdtype(array.dtype, np.inexact):
        return array
    sizes = np.abs(array).astype(np.float64)
    if not (sizes <= _LARGEST).all():
        raise ParameterError(f"{name} holds numbers that are not finite or exceed {_LARGEST:.3g}; Unitball refuses it")
    return np.where(sizes < _SMALLEST, np.zeros((), array.dtype), array)


def require_planned(kind: str, arrays: Mapping[str, Array], planned: Artefact) -> Any:
    """Return the artefact of arrays that come from elsewhere, if it has the planned kind, types and shapes.

    Parameters
    ----------
    kind : str
    arrays : mapping of name to array
    planned : Artefact
        The planned artefact, with any numbers (:func:`dpalgos.algorithms.planned_artefact`).

    Raises
    ------
    ParameterError
        If something differs, naming it, or as :func:`opened` does.
    """
    actual, wanted = (
        {name: (array.dtype.newbyteorder("=").str, array.shape) for name, array in each.items()}
        for each in (arrays, planned.arrays())
    )
    if (kind, actual) != (planned.kind, wanted):
        raise ParameterError(f"it is {_described(kind, actual)}; the plan expects {_described(planned.kind, wanted)}")
    return opened(kind, arrays)


def _described(kind: str, arrays: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
    return f"of kind {kind} with " + ", ".join(f"{name} {type_}{shape}" for name, (type_, shape) in arrays.items())
