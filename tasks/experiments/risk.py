"""The regularised risk of released models on public training rows, and its curvature along a training path."""

from __future__ import annotations

import numpy as np

from dpalgos.guarantees import Setting, Trust
from dpalgos.metrics import curvature
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import Floats
from dpalgos.solvers import Problem
from storage.errors import RefusedError
from storage.refs import ReleaseRef
from storage.shards import open_shard
from tasks.datasets.description import find_dataset
from tasks.planning.configuration import TrainingConfig
from tasks.release.storing import read_release
from tasks.rows import normalise, partition
from tasks.runtime.settings import current_layout

_POINTS = 25


class Risk:
    """The risk J(θ) of one loss over a run's training rows, all parties together; public rows only.

    Parameters
    ----------
    config : TrainingConfig
        Whose data set, normalisation and partition decide the rows.
    loss : str
    regularisation : float

    Raises
    ------
    RefusedError
        If the rows are private: the exact risk is no release.
    """

    def __init__(self, config: TrainingConfig, *, loss: str, regularisation: float) -> None:
        dataset = find_dataset(config.dataset)
        if dataset.private:
            raise RefusedError(f"the exact risk on {dataset.name} is no release and the rows are private")
        mapped = normalise.fn(dataset, config.normalisation or "unit-norm")
        shards = partition.fn(mapped, config).training
        setting = Setting(
            sizes=tuple(shard.rows for shard in shards),
            dimension=mapped.dimension,
            classes=max(len(mapped.classes), 1),
            trust=Trust.CENTRAL,
        )
        trainer = AlgorithmSpec("trainers", "erm", {"loss": loss, "regularisation": regularisation}).build()
        self.problem: Problem = trainer.problem([open_shard(current_layout(), shard) for shard in shards], setting)

    def of(self, release: str) -> float:
        """Return J of a released model without intercept."""
        model = read_release(ReleaseRef(key=release, kind="model", party="all"))
        return self.problem.value(np.asarray(model.weights, dtype=np.float64))


def curvature_along_descent(problem: Problem, step_size: float, iterations: int) -> list[tuple[int, float, float]]:
    """Return average and minimum curvature along gradient descent from zero, at geometrically spaced steps.

    Each is a triple: after how many steps, tr H/p, and the smallest eigenvalue of H.
    """
    wanted = {0, *np.unique(np.geomspace(1, iterations, _POINTS).round().astype(int)).tolist()}
    weights: Floats = np.zeros(problem.shape)
    path = []
    for step in range(iterations + 1):
        if step in wanted:
            path.append((step, *curvature(problem, weights)))
        weights = weights - step_size * problem.gradient(weights)
    return path
