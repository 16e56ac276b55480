"""Support vector machines by SMO over rows as they are, and the numbers of their training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Setting
from dpalgos.kernels import KERNELS, GaussianKernel, Kernel
from dpalgos.losses import signs
from dpalgos.models import KernelModel, LinearModel
from dpalgos.parameters import POSITIVE, Bounded
from dpalgos.rows import Features, Floats, Ints, Rows, null_records
from dpalgos.smo.solver import Solution, solve
from dpalgos.smo.working_sets import WorkingSetRule

# Kernel values of longer rows would leave float64's range.
_LONGEST = 1e50
# Below this share of entries that are not zero, products with a sparse matrix are faster, and it is smaller.
_SPARSE_BELOW = 0.1


def _readable(rows: Features) -> Floats:
    """Return the block with rows of astronomical entries set to zero."""
    features = np.asarray(rows, dtype=np.float64)
    bad = np.asarray(~(np.abs(features) < _LONGEST).all(axis=1))
    return np.where(bad[:, None], 0.0, features) if bad.any() else features


def gather_raw(parties: Sequence[Rows], classes: int, dimension: int) -> tuple[Any, Ints]:
    """Return all parties' rows: features (n, dimension), dense or scipy's CSR, and labels (n,) in 0 … classes − 1.

    Total: null records are left out, and rows that no kernel can be computed of become zero.
    """
    blocks: list[Any] = []
    labels: list[Ints] = []
    sparse: bool | None = None
    for rows in parties:
        for block, block_labels, _ in rows.blocks():
            kept = ~null_records(block, block_labels, classes)
            readable = _readable(block[kept])
            if sparse is None:
                # The first block decides, so that the dense form of a large sparse set is never held.
                sparse = bool(np.count_nonzero(readable) < _SPARSE_BELOW * readable.size)
            blocks.append(_compressed(readable) if sparse else readable)
            labels.append(np.asarray(block_labels[kept], dtype=np.int64))
    if not blocks:
        return np.zeros((0, dimension)), np.zeros(0, dtype=np.int64)
    return _stack(blocks), np.concatenate(labels)


def _compressed(features: Floats) -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix(features)


def _stack(blocks: list[Any]) -> Any:
    if isinstance(blocks[0], np.ndarray):
        return np.concatenate(blocks)
    from scipy.sparse import vstack

    return vstack(blocks, format="csr")


@dataclass(frozen=True, kw_only=True)
class MachineOptions(Bounded):
    """What all SMO trainers have in common; see :class:`dpalgos.trainers.smo.Smo` for the meaning of each."""

    C: float = field(default=1.0, metadata=POSITIVE)
    kernel: str = "linear"
    gamma: float | None = field(default=None, metadata=POSITIVE)
    tolerance: float = field(default=1e-3, metadata=POSITIVE)
    shrinking: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel not in KERNELS:
            raise ParameterError(f"kernel is {self.kernel!r}; it must be one of {', '.join(sorted(KERNELS))}")

    def make_kernel(self, dimension: int) -> Kernel:
        """Return the kernel; gamma is 1/dimension where none is given, LIBSVM's default."""
        return KERNELS[self.kernel](self.gamma if self.gamma is not None else 1.0 / max(1, dimension))


def train(
    options: MachineOptions,
    rule_of_class: Callable[[int], WorkingSetRule],
    parties: Sequence[Rows],
    setting: Setting,
) -> tuple[LinearModel | KernelModel, dict[str, float]]:
    """Train on all parties' rows together, one-vs-rest for three classes and more.

    Returns
    -------
    model : LinearModel or KernelModel
        With intercept.
    numbers : dict
        ``objective`` (of the dual, ½ αᵀQα − Σα), ``iterations``, ``duality_gap``: sums over the one-vs-rest problems;
        ``support_vectors``: rows that support any of them; ``converged``: 1 if all did, else 0; ``train_accuracy``.
        Computed from the rows without noise: for public data only.
    """
    features, labels = gather_raw(parties, setting.classes, setting.dimension)
    kernel = options.make_kernel(setting.dimension)
    solutions = [
        solve(
            kernel,
            features,
            y,
            cost=options.C,
            tolerance=options.tolerance,
            rule=rule_of_class(index),
            shrinking=options.shrinking,
        )
        for index, y in enumerate(signs(labels, setting.classes).T)
    ]
    support = np.unique(np.concatenate([solution.support for solution in solutions]))
    model = _model(kernel, features, support, solutions)
    return model, {
        "objective": sum(solution.objective for solution in solutions),
        "iterations": float(sum(solution.iterations for solution in solutions)),
        "duality_gap": sum(solution.duality_gap for solution in solutions),
        "support_vectors": float(len(support)),
        "converged": float(all(solution.converged for solution in solutions)),
        "train_accuracy": _accuracy(model, features, labels),
    }


def _model(kernel: Kernel, features: Any, support: Any, solutions: Sequence[Solution]) -> LinearModel | KernelModel:
    coefficients = np.stack([solution.coefficients[support] for solution in solutions])
    intercept = np.array([solution.bias for solution in solutions])
    vectors = features[support]
    if not isinstance(vectors, np.ndarray):
        vectors = vectors.toarray()
    if isinstance(kernel, GaussianKernel):
        return KernelModel(
            support_vectors=vectors, coefficients=coefficients, intercept=intercept, gamma=np.array([kernel.gamma])
        )
    return LinearModel(weights=np.asarray(coefficients @ vectors), intercept=intercept)


def _accuracy(model: LinearModel | KernelModel, features: Any, labels: Ints) -> float:
    return float(np.mean(model.predict(features) == labels)) if len(labels) else 0.0
