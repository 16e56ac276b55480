"""Curvature of a regularised risk: its Hessian, and that matrix's mean and least eigenvalue."""

from __future__ import annotations

import numpy as np

from dpalgos.losses import Problem
from dpalgos.rows import Floats


def hessian(problem: Problem, weights: Floats) -> Floats:
    """Return the Hessian of the risk, (m d, m d), in the order of the flattened weights."""
    rows, columns = problem.shape
    product = problem.loss.curvature_product(problem.scores(weights), problem.targets)
    result = np.zeros((rows, columns, rows, columns))
    for row in range(rows):
        unit = np.zeros_like(problem.targets)
        unit[:, row] = 1.0
        bent = product(unit)
        for other in np.flatnonzero(np.abs(bent).max(axis=0, initial=0.0)):
            weighted = problem.features * bent[:, other : other + 1]
            result[other, :, row, :] = weighted.T @ problem.features / max(len(problem.features), 1)
    flat = result.reshape(rows * columns, rows * columns)
    return flat + problem.regularisation * np.eye(rows * columns)


def mean_and_least_curvature(problem: Problem, weights: Floats) -> tuple[float, float]:
    """Return average and minimum curvature at a point: tr H / p and the smallest eigenvalue of H."""
    matrix = hessian(problem, weights)
    return float(np.trace(matrix)) / len(matrix), float(np.linalg.eigvalsh(matrix)[0])
