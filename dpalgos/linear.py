"""Base classes of linear models' trainers: safe rows, targets, and the intercept inside the ball."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpalgos.algorithms import Algorithm, NeighbouringPair, one_row_apart
from dpalgos.guarantees import Setting
from dpalgos.losses import Problem, ScoreLoss, Squared, make_loss, outputs
from dpalgos.models import Artefact, LinearModel, label_range_of
from dpalgos.parameters import NON_NEGATIVE, Bound, Bounded, ParameterError
from dpalgos.rows import NULL_LABEL, Array, Features, Floats, Rows, clip_to_unit_ball, sanitise

BALANCED = "balanced"
"""What stands for weights of classes by their noisy counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTask(Bounded):
    """The learning task behind a linear trainer: classes (two or more), or numeric labels where ``classes`` is 1.

    Total: rows with values that are not numbers, or with a label outside the task, are null records; numeric labels are
    clipped to their range. A null record is a zero row, the constant feature included, with target 0: the gradient of
    its loss is slope ⊗ 0 and its outer product with anything is 0, so it contributes nothing to any sum, and nothing
    but a constant to a risk, whose mean is over n rows all the same.

    Parameters
    ----------
    loss : ScoreLoss
        Numeric labels need the squared loss.
    intercept_scaling : float
        B. The constant B is appended to every row, which is then divided by √(1 + B²), so that it stays in the unit
        ball: the intercept is a weight like the others, regularised and covered by the guarantee. 0 for none.
    label_range : (float, float)
        The declared range of numeric labels, mapped to [−1, 1]; unused with classes.
    class_weight : sequence of float
        w, what a row's loss is multiplied by, by its class, each in (0, 1]; empty for 1. The row's gradient is
        multiplied by it after a clip and its curvature alike, so that bounds on both hold for it; sums are divided by
        the number of records all the same.
    """

    loss: ScoreLoss
    intercept_scaling: float = field(default=0.0, metadata=NON_NEGATIVE)
    label_range: Sequence[float] = (-1.0, 1.0)
    class_weight: Sequence[float] | str = ()

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        low, high = self.label_range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ParameterError(f"label_range is {low!r} to {high!r}; give two finite numbers, the smaller first")

    def check(self, setting: Setting) -> None:
        """Raise where the loss does not fit the labels, or the weights not the classes: above 1 no bound holds."""
        if setting.classes == 1 and not isinstance(self.loss, Squared):
            raise ParameterError(f"numeric labels need the loss 'squared'; {self.loss.name!r} needs classes")
        weights = self.class_weight
        if isinstance(weights, str) or not isinstance(weights, Sequence):
            raise ParameterError(
                f"class_weight is {weights!r}; declare one number per class (--class-weight NAME=WEIGHT), or choose "
                f"noisy-gd or discriminant-gd, which count the classes with noise for {BALANCED!r}"
            )
        for weight in weights:
            Bound(0.0, open_low=True).require("class_weight", weight)
        if weights and (len(weights) != setting.classes or setting.classes < 2):
            raise ParameterError(f"class_weight has {len(weights)} numbers; give {setting.classes}, one per class")
        if weights and max(weights) != 1.0:
            raise ParameterError(f"class_weight is {weights}; divide all by {max(weights):g}, so that the largest is 1")

    def class_weights(self, targets: Floats | NDArray[np.float32]) -> Floats:
        """Return what rows of these targets (b, m) weigh by their classes, (b,)."""
        labels = targets.argmax(axis=1) if targets.shape[1] > 1 else (targets[:, 0] > 0).astype(np.int64)
        return np.asarray(np.asarray(self.class_weight, dtype=np.float64)[labels])

    def shape(self, setting: Setting) -> tuple[int, int]:
        """Return the shape (m, p) of the weights, the constant feature included."""
        return outputs(setting.classes), setting.dimension + (self.intercept_scaling > 0)

    def block(self, features: Features, labels: Array, setting: Setting) -> tuple[Floats, Floats]:
        """Return a block's rows (b, p) in the unit ball and its targets (b, m); zeros for null records."""
        clean, known = sanitise(features, labels, setting.classes)
        null = known == NULL_LABEL
        # After the constant feature, which a null record does not have either.
        return np.where(null[:, None], 0.0, self._widened(clean)), self.targets(labels, null, setting)

    def targets(self, labels: Array, null: NDArray[np.bool_], setting: Setting) -> Floats:
        """Return the targets (b, m) of labels (b,); zeros for null records."""
        if setting.classes == 1:
            targets = self._scaled(labels)[:, None]
        else:
            known = np.where(null, 0, np.asarray(labels)).astype(np.int64)
            targets = self.loss.targets(known, setting.classes)
        return np.where(null[:, None], 0.0, targets)

    def problem(
        self, parties: Sequence[Rows], setting: Setting, regularisation: float, linear: Floats | float = 0.0
    ) -> Problem:
        """Return the regularised risk of all parties together: the mean over records, of a person over their rows."""
        classes, width = self.shape(setting)
        records = count = sum(rows.count for rows in parties)
        if setting.rows_per_person > 1:
            count = sum(len(labels) for rows in parties for _, labels, _ in rows.blocks())
        gathered, targets, weights, filled = np.zeros((count, width)), np.zeros((count, classes)), np.ones(count), 0
        for rows in parties:
            for features, labels, shares in rows.blocks():
                part = slice(filled, filled + len(labels))
                gathered[part], targets[part] = self.block(features, labels, setting)
                if shares is not None:
                    weights[part] = np.where(shares >= 1, 1.0 / np.maximum(shares, 1), 0.0)
                if self.class_weight:
                    weights[part] *= self.class_weights(targets[part])
                filled = part.stop
        return Problem(
            features=gathered[:filled],
            targets=targets[:filled],
            loss=self.loss,
            regularisation=regularisation,
            linear=linear,
            weights=weights[:filled] if self._weighed(setting) else None,
            records=records,
        )

    def largest_problem(self, setting: Setting, regularisation: float) -> Problem:
        """Return a problem of as many rows as the largest party may hold, all zero: for public bounds on rounding."""
        (classes, width), rows = self.shape(setting), max(setting.sizes, default=0) * setting.rows_per_person
        return Problem(
            features=np.broadcast_to(0.0, (rows, width)),
            targets=np.broadcast_to(0.0, (rows, classes)),
            loss=self.loss,
            regularisation=regularisation,
            weights=np.broadcast_to(1.0, (rows,)) if self._weighed(setting) else None,
        )

    def _weighed(self, setting: Setting) -> bool:
        return setting.rows_per_person > 1 or bool(self.class_weight)

    def model(self, weights: Floats, setting: Setting) -> LinearModel:
        """Return the model of weights (m, p), in the coordinates of the rows and labels as they were given."""
        intercept = np.zeros(len(weights))
        if self.intercept_scaling > 0:
            scaled = weights / math.hypot(1.0, self.intercept_scaling)
            weights, intercept = scaled[:, :-1], scaled[:, -1] * self.intercept_scaling
        if setting.classes == 1:
            low, high = self.label_range
            half = (high - low) / 2.0
            weights, intercept = half * weights, half * intercept + (low + high) / 2.0
        return LinearModel(weights=weights, intercept=intercept)

    def gradient(self, features: Features, labels: Array, setting: Setting) -> Floats:
        """Return the sum of the rows' gradients Σ r ⊗ x at zero weights, (m, p)."""
        rows, targets = self.block(features, labels, setting)
        if self.class_weight:
            rows = rows * self.class_weights(targets)[:, None]
        return np.asarray(self.loss.slope(np.zeros_like(targets), targets).T @ rows)

    def steepest_pair(self, setting: Setting) -> NeighbouringPair:
        """Return the neighbours whose gradients at zero weights lie farthest apart, by r ⊗ x − r′ ⊗ x′.

        Candidates are a unit row (of mean zero where there are two features, its entries alike, so that it is long in
        l1 as well) against its opposite with the same label, against itself with another one, and both. With a constant
        feature x and x′ are not antipodal, and with three classes and more r and r′ are not, so which is farthest
        depends on the setting.
        """
        even = setting.dimension - setting.dimension % 2
        row = np.ones(1) if even == 0 else np.zeros(setting.dimension)
        row[:even] = np.where(np.arange(even) % 2, -1.0, 1.0) / math.sqrt(max(even, 1))
        first, second = (float(bound) for bound in self.label_range) if setting.classes == 1 else (0.0, 1.0)

        def gradient(features: Floats, label: float) -> Floats:
            return self.gradient(features[None, :], np.array([label]), setting)

        candidates = [(-row, first), (row, second), (-row, second)]
        best = max(candidates, key=lambda other: np.linalg.norm(gradient(row, first) - gradient(*other)))
        return one_row_apart(setting, row, best[0], labels=(first, best[1]))

    def weights_of(self, model: LinearModel) -> Floats:
        """Return the weights (m, p) whose :meth:`model` is a given one of classes, with an intercept."""
        scaling = self.intercept_scaling
        intercept = model.intercept[:, None] / scaling if scaling > 0 else np.zeros((len(model.weights), 0))
        return np.asarray(np.hstack([model.weights, intercept]) * math.hypot(1.0, scaling))

    def _widened(self, clean: Floats) -> Floats:
        if self.intercept_scaling == 0:
            return clean
        constant = np.full((len(clean), 1), self.intercept_scaling)
        return clip_to_unit_ball(np.hstack([clean, constant]) / math.hypot(1.0, self.intercept_scaling))

    def _scaled(self, labels: Array) -> Floats:
        low, high = self.label_range
        numbers = np.nan_to_num(np.asarray(labels, dtype=np.float64), nan=(low + high) / 2.0)
        return np.asarray((2.0 * np.clip(numbers, low, high) - low - high) / (high - low))


@dataclass(frozen=True, kw_only=True)
class LinearClassifierTrainer(Algorithm):
    """A trainer of linear classifiers.

    Parameters
    ----------
    loss : str
        Name of a loss.
    width : float, optional
        h of the smooth hinges.
    intercept_scaling : float
        B of the constant feature inside the unit ball; 0 for no intercept.
    class_weight : sequence of float
        Weights of the classes' rows, one number per class, the largest 1; public. See :class:`LinearTask`.
    """

    loss: str = "huber-hinge"
    width: float | None = None
    intercept_scaling: float = 0.0
    class_weight: Sequence[float] | str = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.task

    @property
    def task(self) -> LinearTask:
        """The learning task, its parameters validated."""
        return LinearTask(
            loss=make_loss(self.loss, self.width),
            intercept_scaling=self.intercept_scaling,
            class_weight=self.class_weight,
        )

    def check(self, setting: Setting) -> None:
        """Raise where the loss does not fit the labels."""
        super().check(setting)
        self.task.check(setting)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return the neighbours whose gradients at zero weights lie farthest apart."""
        return self.task.steepest_pair(setting)


@dataclass(frozen=True, kw_only=True)
class LinearTrainer(LinearClassifierTrainer):
    """A trainer of linear models, for classes or, with the squared loss, for numeric labels.

    Parameters
    ----------
    label_range : (float, float)
        Declared range of numeric labels.
    """

    label_range: Sequence[float] = (-1.0, 1.0)

    @property
    def task(self) -> LinearTask:
        """The learning task, its parameters validated."""
        return replace(super().task, label_range=self.label_range)

    def informed(self, artefacts: Sequence[Artefact]) -> Self:
        """Return it with the range of numeric labels that a map before it says.

        Labels are scaled to [−1, 1] by any range, and rows and gradients bounded there: no guarantee depends on it. The
        model scores in the label's own units.
        """
        return replace(self, label_range=label_range_of(artefacts, self.label_range))
