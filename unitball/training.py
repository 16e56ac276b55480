"""Training, predicting, results and accuracy against epsilon from a notebook, without a server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from storage.errors import InputError, RefusedError
from tasks.planning.configuration import TrainingConfig
from tasks.tracking.results import Proved, RunResult
from unitball.fitting import using_root

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """What a run leaves.

    Attributes
    ----------
    result : RunResult
        Spent, proved, claimed, measured; ``result.metrics`` has all numbers.
    pipeline : sklearn.pipeline.Pipeline or None
        From rows as they came to classes or numbers; None where each party has a model that scikit-learn cannot hold.
    """

    result: RunResult
    pipeline: Any

    @property
    def guarantee(self) -> Proved | None:
        """What is proved of all that the run released; None for nothing."""
        return self.result.proved

    def predict(self, rows: Any) -> pd.Series:
        """Return a class (or a number) for each row.

        Parameters
        ----------
        rows : data frame of the table's columns, or array (m, d) where the set has no schema
        """
        labels = self.pipeline.predict(rows)
        return pd.Series(labels, index=getattr(rows, "index", None), name="prediction")

    def predict_proba(self, rows: Any) -> pd.DataFrame:
        """Return the probability of each of two classes for each row, of a model that was measured with ``roc=True``.

        Parameters
        ----------
        rows : as for :meth:`predict`
        """
        if not hasattr(self.pipeline, "predict_proba"):
            raise InputError("this model has no probabilities: train two classes with roc=True to calibrate it")
        probabilities = self.pipeline.predict_proba(rows)
        return pd.DataFrame(probabilities, columns=list(self.pipeline.classes_), index=getattr(rows, "index", None))

    def to_frame(self) -> pd.DataFrame:
        """Return the run as one line: algorithm, spending and metrics."""
        shown = ("algorithm", "dataset", "trust", "epsilon_spent", "delta_spent", "measured_on")
        return pd.DataFrame([{**{name: getattr(self.result, name) for name in shown}, **self.result.metrics}])

    def _repr_html_(self) -> str:
        return str(self.to_frame()._repr_html_())


def train(
    dataset: str = "digits",
    *,
    root: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> TrainedModel:
    """Train over the parties' rows, charge what it costs, measure the model, log it to MLflow; as ``unitball train``.

    No server is started. Where the root is being served (``unitball serve``), the run is a flow run of that server,
    found with its secret in the root, and stands on its pages; otherwise the steps are plain calls.

    Parameters
    ----------
    dataset : str
        A registered data set, or one that scikit-learn brings along.
    root : path, optional
        ``UNITBALL_ROOT`` or the user's own by default.
    **settings
        Of :class:`tasks.planning.configuration.TrainingConfig`, as the command's options: ``algorithm``, ``epsilon``,
        ``delta``, ``trust``, ``parties``, ….

    Raises
    ------
    storage.errors.RefusedError
        If something unproved would read private rows, or a cap would be exceeded; nothing is released then.
    storage.errors.InputError, dpalgos.errors.ParameterError, pydantic.ValidationError
        For settings that do not fit.
    """
    from tasks.release.preflight import require_feasible
    from tasks.runtime.engine import on_running_server
    from tasks.runtime.settings import current_root

    config = TrainingConfig(dataset=dataset, **settings)
    with using_root(root):
        require_feasible(config)
        with on_running_server(current_root()) as served:
            recorded = _flow_run(config) if served else None
            return _trained(config, recorded)


def _flow_run(config: TrainingConfig) -> RunResult:
    """Run the flow where the pages of a served root show it."""
    from flows.federated_training import train as flow
    from tasks.runtime.engine import quick_flows

    with quick_flows():
        return flow(config)


def _trained(config: TrainingConfig, recorded: RunResult | None) -> TrainedModel:
    """Run the chain as plain calls; what a flow run has released is stored, and read again at no cost."""
    from flows.federated_training import chain
    from tasks.accounts.budget import settled
    from tasks.runtime.steps import inline
    from tasks.steps import record
    from tasks.tracking.reporting import run_report

    with inline():
        config = settled(config)
        run = chain(config)
        run = run._replace(result=recorded or record(config, *run))
    model = run_report(config, run).model
    return TrainedModel(result=run.result, pipeline=None if model is None else model.pipeline)


def predict(model: str, rows: Any, *, root: str | os.PathLike[str] | None = None) -> pd.Series:
    """Return a registered model's class (or number) for each row.

    Parameters
    ----------
    model : str
        ``NAME`` for the newest version, ``NAME@alias`` or ``NAME/version``, as in ``digits.noisy-gd``.
    rows : data frame of the table's columns, or array (m, d) where the set has no schema
    root : path, optional

    Raises
    ------
    storage.errors.InputError
        If there is no such model, naming those there are, or a row does not fit the schema.
    """
    from tasks.runtime.settings import current_root
    from tasks.tracking.models import find_model, load_model

    with using_root(root):
        pipeline = load_model(current_root(), find_model(current_root(), model))
    return pd.Series(pipeline.predict(rows), index=getattr(rows, "index", None), name="prediction")


def results(sql: str = "SELECT * FROM runs", *, root: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """Return results of all runs of a root, or what DuckDB answers to a question about them, as a data frame.

    Parameters
    ----------
    sql : str
        Over the tables ``runs`` and ``metrics``.
    root : path, optional

    Raises
    ------
    storage.errors.InputError
        For a question that DuckDB does not understand, or that reads anything else.
    """
    from tasks.experiments.results import query_results

    with using_root(root):
        return pd.DataFrame(query_results(sql))


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
        from flows.sweep import frontier_sweep

        spec = frontier_sweep(TrainingConfig(dataset=dataset, **settings), algorithms, epsilons, seeds)
        runs = [(point.config, chain_inline(point.config).result) for point in spec.points()]
    return pd.DataFrame(
        [
            {"algorithm": run.algorithm, "epsilon": requested.epsilon, "seed": requested.partition_seed, **run.metrics}
            for requested, run in runs
        ]
    )


def plot(runs: pd.DataFrame, x: str = "epsilon", y: str = "accuracy", ax: Axes | None = None) -> Axes:
    """Draw a number of runs against another, a line an algorithm: the mean, and the range of its runs.

    Where runs have the columns ``<y>_low`` and ``<y>_high``, bars are the means of these 95 % margins.

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
        if {f"{y}_low", f"{y}_high"} <= set(own) and own[f"{y}_low"].notna().any():
            ends = own.groupby(x)[[f"{y}_low", f"{y}_high"]].mean()
            mean = spread["mean"]
            off = [(mean - ends[f"{y}_low"]).clip(lower=0), (ends[f"{y}_high"] - mean).clip(lower=0)]
            axes.errorbar(spread.index, mean, yerr=off, color=colour, fmt="none", capsize=3)
    if x.endswith("epsilon"):
        axes.set_xscale("log")
    axes.set(xlabel="privacy budget ε" if x.endswith("epsilon") else x, ylabel=y)
    axes.legend()
    return axes
