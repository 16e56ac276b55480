"""What a release decodes to: feature maps and linear models, made of arrays and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpalgos.errors import ParameterError
from dpalgos.rows import Floats, Ints

__all__ = ["Artefact", "LinearModel", "Projection", "Statistic", "decode"]


class Artefact(Protocol):
    """Anything the door can store: named arrays plus public notes."""

    kind: ClassVar[str]

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the named arrays; the inverse of ``from_arrays``."""
        ...


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear map onto k directions: ``features @ basis``.

    Parameters
    ----------
    basis : array (d, k)
        Columns orthonormal unless the algorithm says otherwise.
    spectrum : array (k,) or (d,)
        The (noisy) eigenvalues behind the choice, empty where there are none.
    """

    basis: Floats
    spectrum: Floats = field(default_factory=lambda: np.zeros(0))
    kind: ClassVar[str] = "projection"

    @property
    def dimension(self) -> int:
        """Number of directions k."""
        return int(self.basis.shape[1])

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, k)."""
        return np.asarray(features @ self.basis)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return basis and spectrum."""
        return {"basis": self.basis, "spectrum": self.spectrum}


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A linear classifier or regressor.

    Parameters
    ----------
    weights : array (K, k), or (1, k) for a binary problem or a regression
    """

    weights: Floats
    kind: ClassVar[str] = "linear-model"

    def scores(self, features: Floats) -> Floats:
        """Return (m, rows of ``weights``) decision values."""
        return np.asarray(features @ self.weights.T)

    def predict(self, features: Floats) -> Ints:
        """Return class indices (m,): the largest score, or the sign where there is one score."""
        scores = self.scores(features)
        if scores.shape[1] == 1:
            return (scores[:, 0] > 0).astype(np.int64)
        return np.asarray(scores.argmax(axis=1), dtype=np.int64)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the weights."""
        return {"weights": self.weights}


@dataclass(frozen=True, slots=True)
class Statistic:
    """Released numbers that are not a model: counts, sums, a confusion matrix."""

    values: Floats
    kind: ClassVar[str] = "statistic"

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the values."""
        return {"values": self.values}


_KINDS: dict[str, Any] = {cls.kind: cls for cls in (Projection, LinearModel, Statistic)}


def decode(kind: str, arrays: dict[str, NDArray[np.generic]]) -> Any:
    """Return the artefact of one kind from its arrays.

    Raises
    ------
    ParameterError
        If the kind is unknown.
    """
    if kind not in _KINDS:
        raise ParameterError(f"unknown kind of release {kind!r}; known: {', '.join(sorted(_KINDS))}")
    return _KINDS[kind](**arrays)
