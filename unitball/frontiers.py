"""Accuracy against the privacy budget from a notebook: many runs as one data frame, and a figure of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from storage.errors import RefusedError
from tasks.planning.configuration import TrainingConfig
from unitball.roots import using_root

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def frontier(
    dataset: str = "digits",
    *,
    algorithms: Sequence[str] = ("unitball", "noisy-gd", "unitball-without-noise"),
    epsilons: Sequence[float] = (0.1, 0.3, 1.0, 3.0, 8.0),
    seeds: int = 3,
    root: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Train every algorithm at every budget and seed on a public data set; the runs of ``unitball frontier``.

    Parameters
    ----------
    dataset : str
        A registered public data set.
    algorithms : sequence of str
        Named systems.
    epsilons : sequence of float
    seeds : int
        Of noise and partition, from 0.
    root : path, optional
        ``UNITBALL_ROOT`` or the user's own by default.
    **settings
        What all runs have in common, as of :func:`unitball.train`.

    Returns
    -------
    data frame
        A line a run: ``algorithm``, ``epsilon`` (none without noise), ``seed``, and its metrics.

    Raises
    ------
    storage.errors.RefusedError
        For a private data set: it would be many charged runs, with public seeds.
    """
    from tasks.datasets.description import find_dataset

    with using_root(root):
        if find_dataset(dataset).private:
            raise RefusedError(f"{dataset} is private, and a frontier is many runs with public seeds; use a public set")
        from flows.federated_training import chain_inline
        from flows.frontier import frontier_sweep

        spec = frontier_sweep(TrainingConfig(dataset=dataset, **settings), algorithms, epsilons, seeds)
        runs = [(point.config, chain_inline(point.config).result) for point in spec.points()]
    return pd.DataFrame(
        [
            {"algorithm": run.algorithm, "epsilon": asked.epsilon, "seed": asked.partition_seed, **run.metrics}
            for asked, run in runs
        ]
    )


def plot(runs: pd.DataFrame, x: str = "epsilon", y: str = "accuracy", ax: Axes | None = None) -> Axes:
    """Draw a number of runs against another, a line an algorithm: the mean, and the range of its runs.

    Parameters
    ----------
    runs : data frame
        Of :func:`frontier`, or of :func:`unitball.results` with these columns.
    x, y : str
        Columns. Runs without an ``x``, such as those without noise, are level lines.
    ax : matplotlib axes, optional
        To draw on; new ones otherwise.

    Returns
    -------
    matplotlib axes
    """
    import matplotlib.pyplot as plt

    axes = plt.subplots()[1] if ax is None else ax
    for number, (algorithm, own) in enumerate(runs.dropna(subset=[y]).groupby("algorithm", sort=False)):
        colour = f"C{number}"
        if own[x].isna().all():
            axes.axhline(own[y].mean(), color=colour, linestyle="--", label=algorithm)
            continue
        spread = own.groupby(x)[y].agg(["mean", "min", "max"])
        axes.plot(spread.index, spread["mean"], color=colour, marker="o", label=algorithm)
        axes.fill_between(spread.index, spread["min"], spread["max"], color=colour, alpha=0.2)
    if x == "epsilon":
        axes.set_xscale("log")
    axes.set(xlabel="privacy budget ε" if x == "epsilon" else x, ylabel=y)
    axes.legend()
    return axes
