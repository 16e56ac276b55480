"""Centring, principal directions and whitening learnt from rows that are public, for rows that are not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.features.public_map import RowFeatures
from dpalgos.models import released_kind
from dpalgos.parameters import COUNT, POSITIVE, Bounded, between
from dpalgos.rows import Array, Floats, null_records, row_products, unit_rows

_MOST_COMPONENTS = 200


@released_kind
@dataclass(frozen=True, slots=True)
class CentredDirections(RowFeatures):
    """The map x ↦ z = u/‖u‖ with u = (x − mean) basis; with a head of K classes, x ↦ (√(1 − c²) z, c s/‖s‖).

    s are the head's scores less their mean.

    Parameters
    ----------
    mean : array (d,)
    basis : array (d, k)
    head : array (k, K), optional
        Weights of a public classifier.
    offset : array (K,), optional
    weight : array (1,), optional
        c, in [0, 1).
    """

    mean: Floats
    basis: Floats
    head: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    offset: Floats = field(default_factory=lambda: np.zeros(0))
    weight: Floats = field(default_factory=lambda: np.zeros(1))
    kind: ClassVar[str] = "centred-directions"

    @property
    def dimension(self) -> int:
        """Number of features k."""
        return int(self.basis.shape[1]) + len(self.offset)

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, k), or (m, k + K) with a head; rows of norm 1 (or less, for the mean)."""
        turned = unit_rows(row_products(features - self.mean, self.basis))
        if not len(self.offset):
            return turned
        scores = row_products(turned, self.head) + self.offset
        weight = float(self.weight[0])
        known = unit_rows(scores - scores.mean(axis=1, keepdims=True))
        return np.hstack([math.sqrt(1.0 - weight * weight) * turned, weight * known])

    def arrays(self) -> dict[str, Array]:
        """Return mean and basis, and the head where there is one."""
        head = {"head": self.head, "offset": self.offset, "weight": self.weight} if len(self.offset) else {}
        return {"mean": self.mean, "basis": self.basis, **head}


@dataclass(frozen=True, kw_only=True)
class PublicRowsWhitening(Bounded):
    """Features centred, turned and scaled by the covariance of public rows.

    With T the covariance of the public rows and W their covariance within classes (T itself where ``within`` is off or
    they have no classes), and A = (W + floor·‖W‖)^−power, rows are centred by the public mean, turned to the top k
    directions of A T A and brought to the unit sphere. Power ½ whitens; power 0 is principal component analysis.

    Guarantee
    ---------
    Costs the private rows nothing: none of them has a part in it, and each is mapped by itself. Its rows have norm 1
    (or 0). The public rows are protected by nothing.

    Parameters
    ----------
    components : int, optional
        Directions k; by default 200, or as many as there are features or public rows.
    power : float
        In [0, ½].
    floor : float
        Added to W's eigenvalues, relative to the largest.
    within : bool
        Whether the covariance to whiten by is that within the public rows' classes, which need not be the private ones.
    head : float
        c in [0, 1): weight of a head trained on the public rows beside the features, the discriminant of their classes,
        which then must be the private ones: what the private head learns is what the public one does not know. 0 for
        none.

    References
    ----------
    Fisher 1936 and Hatch, Kajarekar, Stolcke, INTERSPEECH 2006 (within-class covariance normalisation); public rows for
    private learning in Amid et al., ICML 2022, and Ganesh et al., ICML 2023.
    """

    components: int | None = field(default=None, metadata=COUNT)
    power: float = field(default=0.5, metadata=between(0.0, 0.5))
    floor: float = field(default=1e-3, metadata=POSITIVE)
    within: bool = True
    head: float = field(default=0.0, metadata=between(0.0, 1.0, open_high=True))

    def output_dimension(self, dimension: int, rows: int, classes: int) -> int:
        """Return the number of features that ``rows`` public rows of ``dimension`` features and K classes give.

        Raises
        ------
        ParameterError
            If more are asked for than there are.
        """
        if self.head > 0 and classes < 2:
            raise ParameterError("head is above 0 and the public rows have no classes: leave it out")
        return self._directions(dimension, rows) + (classes if self.head > 0 else 0)

    def _directions(self, dimension: int, rows: int) -> int:
        most = min(dimension, max(rows - 1, 1))
        if self.components is not None and self.components > most:
            raise ParameterError(
                f"components is {self.components}; {rows} public rows of {dimension} features have at most {most}"
            )
        return self.components if self.components is not None else min(most, _MOST_COMPONENTS)

    def learn(
        self, blocks: Iterable[tuple[Floats, Array]], dimension: int, rows: int, classes: int
    ) -> CentredDirections:
        """Return the map.

        Parameters
        ----------
        blocks : iterable of (features (m, dimension), labels (m,))
            The public rows, read again for a head; null records among them are left out.
        dimension, rows, classes : int
            Features, number of rows and of classes (1 for real labels).
        """
        groups = classes if self.within and classes > 1 else 1
        sums, counts, gram = np.zeros((groups, dimension)), np.zeros(groups), np.zeros((dimension, dimension))
        for features, labels in blocks:
            kept = ~null_records(features, labels, classes)
            rows_kept = np.asarray(features[kept], dtype=np.float64)
            group = np.asarray(labels[kept], dtype=np.int64) if groups > 1 else np.zeros(len(rows_kept), dtype=np.int64)
            member = np.eye(groups)[group]
            sums, counts = sums + member.T @ rows_kept, counts + member.sum(axis=0)
            gram += rows_kept.T @ rows_kept
        every = max(counts.sum(), 1.0)
        means = sums / np.maximum(counts, 1.0)[:, None]
        mean = sums.sum(axis=0) / every
        total = gram / every - np.outer(mean, mean)
        inside = (gram - (means * counts[:, None]).T @ means) / every
        values, vectors = np.linalg.eigh((inside + inside.T) / 2.0)
        # The scale does not matter, since rows come out with norm 1.
        largest = max(float(values[-1]), 1e-12)
        whitener = vectors * (np.maximum(values, 0.0) / largest + self.floor) ** -self.power
        _, turned = np.linalg.eigh(whitener.T @ ((total + total.T) / 2.0) @ whitener)
        size = self._directions(dimension, rows)
        # Single precision is enough and halves the file.
        basis = (whitener @ turned[:, ::-1][:, :size]).astype(np.float32).astype(np.float64)
        made = CentredDirections(mean=mean, basis=basis)
        return self._with_head(made, blocks, classes) if self.head > 0 else made

    def _with_head(
        self, made: CentredDirections, blocks: Iterable[tuple[Floats, Array]], classes: int
    ) -> CentredDirections:
        """Put the discriminant of the public rows' classes beside the features."""
        sums, counts = np.zeros((classes, made.dimension)), np.zeros(classes)
        for features, labels in blocks:
            kept = ~null_records(features, labels, classes)
            member = np.eye(classes)[np.asarray(labels[kept], dtype=np.int64)]
            sums, counts = sums + member.T @ made.transform(features[kept]), counts + member.sum(axis=0)
        means = sums / np.maximum(counts, 1.0)[:, None]
        offset = -0.5 * (means**2).sum(axis=1)
        return replace(made, head=means.T, offset=offset, weight=np.array([self.head]))
