"""The MLflow of a root: its client, its runs, and sweeps, whose points are children of one run."""

from __future__ import annotations

import importlib.metadata
import json
import math
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from storage.atomic import locked_file
from storage.errors import InputError, StorageError, first_line
from storage.layout import Layout
from storage.refs import DatasetRef
from storage.secrets import root_name
from tasks.host.engine import prepare_tracking
from tasks.release.readiness import needing, require
from tasks.runtime.settings import current_root, has_own_database, refusal, server_address, use_tracking_uri
from tasks.runtime.stores import open_model_records

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Metric, Run, RunTag
    from sklearn.pipeline import Pipeline

    from tasks.tracking.effects import Effects


def require_own_location(artifacts: Path, location: str) -> None:
    """Refuse a location outside a root's folder of artifacts: files there would be read and written as the root's user.

    Parameters
    ----------
    artifacts : Path
    location : str
        An address as MLflow keeps it; links in it are followed.

    Raises
    ------
    InputError
        If it is on another service, or not below that folder.
    """
    from mlflow.utils.file_utils import local_file_uri_to_path
    from mlflow.utils.uri import get_uri_scheme, resolve_uri_if_local

    try:
        path = Path(local_file_uri_to_path(resolve_uri_if_local(location))).resolve()
        inside = get_uri_scheme(location) in ("", "file") and path.is_relative_to(artifacts.resolve())
    except (ValueError, OSError, RuntimeError):
        inside = False
    if not inside:
        raise InputError(
            f"MLflow's location {location!r} is not below {artifacts}, where all files of this root lie; rename "
            "that experiment in MLflow, so that it is created again here (logging a run again is free)"
        )


@contextmanager
def tracking_client(root: Path) -> Iterator[MlflowClient]:
    """Yield a client, MLflow's own functions pointed to the same place.

    Raises
    ------
    tasks.runtime.settings.TrackingError
        If the server that was named refuses something; what was released is stored, and logging it again is free.
    """
    prepare_tracking(root)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    named = server_address()
    with locked_file(Layout(root).prefect / ".lock-tracking"), use_tracking_uri(root):
        try:
            yield MlflowClient()
        except MlflowException as error:
            if named is None:
                raise
            raise refusal(error) from error


VIEW_NAME = "Accuracy against budget"
_VIEW_KEY = "accuracy-budget"
VIEW_TAG = f"mlflow.sharedViewState.{_VIEW_KEY}"
_SECTION = "unitball"


def view_path(experiment_id: str) -> str:
    """Return the address of the view, behind the address of any MLflow server on the same database."""
    query = f"workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey={_VIEW_KEY}"
    return f"#/experiments/{experiment_id}/runs?{query}"


def _card(kind: str, uuid: str, **settings: object) -> dict[str, object]:
    common = {"runsCountToCompare": 100, "metricSectionId": _SECTION, "deleted": False, "isGenerated": False}
    return {"uuid": f"{_SECTION}-{uuid}", "type": kind, **common, **settings}


_ROLE = "role"
_RUN, _SWEEP, _POINT = "run", "sweep", "point"


def view_envelope(
    *,
    role: str = _RUN,
    axes: Sequence[str] = ("algorithm", "trust"),
    metric: str = "accuracy",
) -> str:
    """Return the view as the page stores it: a name, a time, and its state as JSON.

    Parameters
    ----------
    role : str
        Which runs are shown, the best first, and no others: the page counts what its search finds, and folds children
        into their parents without counting them as folded.
    axes : sequence of str
        Parameters that the parallel coordinates run through on their way to the metric.
    metric : str
        What the runs are compared by.
    """
    metrics = (metric, "epsilon_spent", f"{metric}_low", f"{metric}_high", "delta_spent", "mu_spent")
    charts = [
        _card(
            "SCATTER",
            "scatter",
            xaxis={"key": "epsilon_spent", "type": "METRIC"},
            yaxis={"key": metric, "type": "METRIC"},
        ),
        _card("BAR", metric, metricKey=metric),
        _card(
            "PARALLEL",
            "parallel",
            selectedParams=list(axes),
            selectedMetrics=["epsilon_spent", metric],
            showAllRuns=False,
        ),
    ]
    columns = [*(f"metrics.`{name}`" for name in metrics), *(f"params.`{name}`" for name in FACTS)]
    section = {"uuid": _SECTION, "name": f"Privacy and {metric}", "display": True, "isReordered": True}
    state = {
        "searchFilter": f"tags.{_ROLE} = '{role}'",
        "orderByKey": f"metrics.`{metric}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": columns,
        # In the order of the alphabet otherwise, epsilon behind the margin and delta.
        "columnOrder": columns,
        "columnWidths": {},
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runsVisibilityMap": {},
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": charts,
        "compareRunSections": [section],
        "isAccordionReordered": True,
        "viewMaximized": False,
        "runListHidden": False,
        "groupBy": None,
        "groupsExpanded": {},
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "autoRefreshEnabled": True,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }
    compact = json.dumps(state, separators=(",", ":"))
    return json.dumps({"name": VIEW_NAME, "createdAt": int(time.time() * 1000), "state": compact})


RUN_KEY = "unitball.run_key"
_KIND = ("mlflow.experimentKind", "custom_model_development")
PARENT = "mlflow.parentRunId"

PARTIES = "parties.json"
"""The artifact of a run that says of each party how many rows it has and what it has paid."""
_ROOT = "unitball.root"
FACTS = ("algorithm", "dataset", "trust", "proved", "claim", "paper", "neighbours", "numerics")
"""What every run states under the same names, as parameters (MLflow compares them side by side) and as tags
(MLflow filters on them); what does not apply is ``"none"``."""

DECISIVE = ("accuracy", "accuracy_noise", "r2")
"""The numbers by which versions of a model are compared; they are kept on record with the version."""

_MOST_DESCRIPTION = 5000  # MLflow's limit for the description of a model's version.
_DIGEST_LENGTH = 36  # MLflow's limit for the digest of a data set.


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """The released model.

    Parameters
    ----------
    pipeline : sklearn.pipeline.Pipeline
        Takes raw rows; see :func:`tasks.tracking.sklearn_export.to_sklearn`.
    dimension : int
        Features of a raw row.
    classes : tuple of str
        Empty for a regression.
    registered_name : str
        The model of MLflow's registry that this becomes a new version of.
    packages : tuple of str
        Distributions that it needs in addition to those of every model.
    lineage : str
        What it is made of, as JSON; kept on record with the version.
    effects : Effects or None
        What it says about each column; None where it takes no declared ones.
    """

    pipeline: Pipeline
    dimension: int
    classes: tuple[str, ...]
    registered_name: str
    packages: tuple[str, ...] = ()
    lineage: str = "null"
    effects: Effects | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """The entries of a line in MLflow's table: of a run, of a sweep, or of one of its points.

    Parameters
    ----------
    name : str
        What people read.
    facts : mapping of str to values
        Some or all of :data:`FACTS`.
    params, tags : mapping of str to values
        In addition to the facts.
    metrics : mapping of str to float
        ``accuracy``, ``epsilon_spent``, ``delta_spent``, …, the most important first. Numbers that are not finite are
        kept as tags, and unmeasured values are left out.
    """

    name: str
    facts: Mapping[str, object] = field(default_factory=dict)
    params: Mapping[str, object] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, object] = field(default_factory=dict)

    def all_facts(self) -> dict[str, str]:
        """Return every fact, ``"none"`` where one does not apply."""
        return {name: "none" if (value := self.facts.get(name)) is None else str(value) for name in FACTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(Entries):
    """All that is logged of one run.

    Parameters
    ----------
    experiment : str
        The data set's name.
    run_key : str
        Identity of the run, a digest; the same key is logged once.
    curves : mapping of str to {step: value}
        Metrics with a history, which MLflow draws over its steps.
    trained_on : DatasetRef, optional
        MLflow knows it by name, version and account, without schema, profile or sample of rows.
    parties : sequence of mappings
        A line each: ``party``, its name, and numbers by name. MLflow shows them as a table, :data:`PARTIES`; children
        of the run would be counted among an experiment's runs.
    model : ModelReport or None
    files : mapping of path to text or bytes
        Logged as artifacts of the run.
    drawn : callable, optional
        Returns further files; called when the run is written, since a run that was logged before has them already.
    note : str
        Markdown, shown at the top of the run's page.
    decisive : mapping of str to float
        Of :data:`DECISIVE`, noisy estimates of what cannot be measured among them.
    """

    experiment: str
    run_key: str
    curves: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    trained_on: DatasetRef | None = None
    parties: Sequence[Mapping[str, str | float]] = ()
    model: ModelReport | None = None
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    drawn: Callable[[], Mapping[str, bytes]] = dict
    note: str = ""
    decisive: Mapping[str, float] = field(default_factory=dict)


def track_run(root: Path, report: RunReport) -> str:
    """Log a run and return its MLflow id; a run that was logged before is found by its key and returned instead.

    What a killed process left half-written under the same key (run, model versions) is removed first.

    Raises
    ------
    tasks.runtime.settings.TrackingError
        If a server that ``MLFLOW_TRACKING_URI`` names refuses something.
    mlflow.exceptions.MlflowException
        If the root's own MLflow does.
    """
    # One writer a root: the search and the writing are one step, and a half-written run under the lock is a dead one.
    with tracking_client(root) as client:
        metric = "r2" if "r2" in report.metrics else "accuracy"
        experiment = experiment_of(client, root, report.experiment, metric)
        for run in runs_with(client, experiment, RUN_KEY, report.run_key):
            if run.info.status == "FINISHED":
                run_id, model = str(run.info.run_id), report.model
                # A model that the catalogue does not know, for its ledger was put back, is logged once more.
                if model and all(one.run != run_id for one in open_model_records(root).versions(model.registered_name)):
                    _register(client, root, experiment, run_id, report, model)
                return run_id
            # On a server that others share, an unfinished run may be one that another root is writing.
            if run.data.tags.get(_ROOT) == root_name(Layout(root)):
                _remove(client, run)
        return _write(client, experiment, root, report)


def experiment_of(client: MlflowClient, root: Path, name: str, metric: str = "accuracy") -> str:
    """Return the id of an experiment, made where it is not there yet, restored where it was deleted.

    Its runs are compared by ``metric``, of which more is better.

    Raises
    ------
    storage.errors.InputError
        If it keeps its files outside the root.
    """
    from mlflow.exceptions import MlflowException

    existing = client.get_experiment_by_name(name)
    if existing is None:
        # A server keeps artifacts where it was told to and passes them through.
        own = None if server_address() else (Layout(root).artifacts / quote(name, safe="")).as_uri()
        try:
            client.create_experiment(name, artifact_location=own)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        existing = client.get_experiment_by_name(name)
    if has_own_database(root):
        # Whoever may write to MLflow may have made it before, with another location.
        require_own_location(Layout(root).artifacts, existing.artifact_location)
    experiment = str(existing.experiment_id)
    if existing.lifecycle_stage == "deleted":
        client.restore_experiment(experiment)
    # The view is written last and says that all are there; who was killed in between finds it missing.
    if VIEW_TAG not in existing.tags:
        tags = {
            # Without its kind, MLflow's page guesses one, or asks.
            _KIND[0]: _KIND[1],
            "mlflow.experiment.primaryMetric.name": metric,
            "mlflow.experiment.primaryMetric.greaterIsBetter": "True",
            "mlflow.note.content": f"[{VIEW_NAME}]({view_path(experiment)})",
            VIEW_TAG: view_envelope(metric=metric),
        }
        for tag, value in tags.items():
            client.set_experiment_tag(experiment, tag, value)
    return experiment


def try_logging(root: Path, name: str, metric: str = "accuracy") -> None:
    """Try all that logging a run needs: MLflow's database or server, the experiment, and room for its files.

    What is written is there already (a tag) or removed again (a file), in the way in which runs are written.

    Parameters
    ----------
    root : Path
    name : str
        The experiment; made where it is not there yet.
    metric : str
        As of :func:`experiment_of`.

    Raises
    ------
    storage.errors.StorageError
        If something cannot be written; a :class:`tasks.runtime.settings.TrackingError` where a server refuses.
    storage.errors.InputError
        If the experiment keeps its files outside the root.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    place = f"MLflow's database of {root}"
    try:
        with tracking_client(root) as client:
            experiment = experiment_of(client, root, name, metric)
            # Who may only read finds out now.
            client.set_experiment_tag(experiment, *_KIND)
            place = str(client.get_experiment(experiment).artifact_location)
            files = get_artifact_repository(place)
            with tempfile.TemporaryDirectory() as folder:
                probe = Path(folder, f".tried-{secrets.token_hex(6)}")
                probe.write_bytes(b"\0")
                files.log_artifact(str(probe))
            files.delete_artifacts(probe.name)
    except (MlflowException, OSError) as error:
        raise StorageError(
            f"{place} cannot be written ({first_line(error)}); make it writable, or restore it from a back-up"
        ) from error


@contextmanager
def logging_afterwards(dataset: DatasetRef) -> Iterator[None]:
    """Let this thread's charges try before that runs on a data set can be logged."""
    metric = "accuracy" if dataset.classes else "r2"
    with needing(partial(try_logging, current_root(), dataset.name, metric)):
        yield


def foreign_experiments(root: Path) -> list[tuple[str, str]]:
    """Return the experiments of a root's own MLflow that keep their files outside the root, each with its place."""
    from mlflow.entities import ViewType

    if not has_own_database(root):
        return []
    with tracking_client(root) as client:
        found = client.search_experiments(view_type=ViewType.ACTIVE_ONLY)
    foreign = []
    for experiment in found:
        try:
            require_own_location(Layout(root).artifacts, experiment.artifact_location)
        except InputError:
            foreign.append((str(experiment.name), str(experiment.artifact_location)))
    return foreign


def runs_with(client: MlflowClient, experiment: str, tag: str, value: str) -> list[Run]:
    """Return the runs of an experiment that have a tag."""
    import mlflow

    # Unlike a client's, MLflow's own function reads on to the last page.
    return list(mlflow.search_runs([experiment], f"tags.`{tag}` = '{value}'", output_format="list"))


def _remove(client: MlflowClient, run: Run) -> None:
    run_id, experiment = run.info.run_id, run.info.experiment_id
    for version in client.search_model_versions(f"run_id = '{run_id}'"):
        client.delete_model_version(version.name, version.version)
    for model in client.search_logged_models([experiment], filter_string=f"source_run_id = '{run_id}'"):
        client.delete_logged_model(model.model_id)
    client.delete_run(run_id)


def _write(client: MlflowClient, experiment: str, root: Path, report: RunReport) -> str:
    facts, inputs, links = report.all_facts(), _inputs(report.trained_on), dict[str, str]()
    chart = f"[{VIEW_NAME}]({view_path(experiment)})"
    note = {"mlflow.note.content": f"{report.note}\n\n{chart}" if report.note else chart}
    shown = Entries(name=report.name, facts=facts, params=report.params, tags={**report.tags, **note})
    keys = {RUN_KEY: report.run_key, _ROOT: root_name(Layout(root)), _ROLE: _RUN}
    run_id = log_run(client, experiment, shown, keys=keys)
    if report.model is not None:
        model_id = _register(client, root, experiment, run_id, report, report.model)
        # The page of a logged model lists its metrics, and the data set that these name.
        links = {"model_id": model_id, "run_id": run_id}
        links |= {f"dataset_{name}": getattr(one.dataset, name) for one in inputs for name in ("name", "digest")}
    if inputs:
        client.log_inputs(run_id, inputs)
    metrics, infinite = _metrics(report.metrics, report.curves, links)
    client.log_batch(run_id, metrics=metrics, tags=infinite)
    if report.parties:
        names = dict.fromkeys(name for line in report.parties for name in line)
        client.log_table(run_id, {name: [line.get(name) for line in report.parties] for name in names}, PARTIES)
    if files := {**report.files, **report.drawn()}:
        log_files(client, run_id, files)
    client.set_terminated(run_id, "FINISHED")
    return run_id


def log_run(client: MlflowClient, experiment: str, entries: Entries, *, keys: Mapping[str, str]) -> str:
    """Make a run, found by its key tags from its first moment on, with all its entries; return its id."""
    from mlflow.entities import Param, RunTag

    run = client.create_run(experiment, run_name=entries.name, tags={**keys, "mlflow.source.name": "unitball"})
    run_id = str(run.info.run_id)
    metrics, infinite = _metrics(entries.metrics)
    # At once: most of what MLflow takes for a batch it takes for any content.
    client.log_batch(
        run_id,
        metrics=metrics,
        params=[Param(key, str(value)) for key, value in {**entries.facts, **entries.params}.items()],
        tags=[*(RunTag(key, str(value)) for key, value in {**entries.facts, **entries.tags}.items()), *infinite],
    )
    return run_id


def name_run(root: Path, run_id: str, name: str) -> None:
    """Rename a logged run at a user's request."""
    with tracking_client(root) as client:
        client.set_tag(run_id, "mlflow.runName", name)


def _metrics(
    metrics: Mapping[str, float],
    curves: Mapping[str, Mapping[int, float]] | None = None,
    links: Mapping[str, str] | None = None,
) -> tuple[list[Metric], list[RunTag]]:
    """Return metrics as MLflow takes them, and as tags those that are infinite: it would show a large number."""
    from mlflow.entities import Metric, RunTag

    now = int(time.time() * 1000)
    logged = [
        Metric(name, float(value), now, 0, **(links or {})) for name, value in metrics.items() if math.isfinite(value)
    ]
    logged += [
        Metric(name, value, now, step) for name, curve in (curves or {}).items() for step, value in curve.items()
    ]
    return logged, [RunTag(name, str(value)) for name, value in metrics.items() if not math.isfinite(value)]


def _inputs(trained_on: DatasetRef | None) -> list[DatasetInput]:
    from mlflow import entities

    if trained_on is None:
        return []
    source = {"dataset": trained_on.name, "version": trained_on.version, "account": trained_on.account}
    dataset = entities.Dataset(
        # The version, a random name where rows are private, as far as MLflow has room for it.
        name=trained_on.name,
        digest=trained_on.version[:_DIGEST_LENGTH],
        source_type="unitball",
        source=json.dumps(source),
    )
    return [entities.DatasetInput(dataset, [entities.InputTag("mlflow.data.context", "training")])]


def log_files(client: MlflowClient, run_id: str, files: Mapping[str, str | bytes]) -> None:
    """Log files as artifacts of a run."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        client.log_artifacts(run_id, folder)


@cache
def requirements(more: tuple[str, ...] = ()) -> list[str]:
    """Return a fresh process's pinned requirements except Unitball; MLflow's own inference would take ten seconds."""
    packages = ("mlflow", "numpy", "pandas", "pyarrow", "scikit-learn", "scipy", "skops", *more)
    return [f"{package}=={importlib.metadata.version(package)}" for package in packages]


def _register(
    client: MlflowClient, root: Path, experiment: str, run_id: str, report: RunReport, model: ModelReport
) -> str:
    """Log the model, register it as a new version and put that on record; return MLflow's id of the logged model."""
    import mlflow
    from mlflow.models import Model
    from mlflow.utils import logging_utils

    from tasks.tracking import flavor

    facts = report.all_facts()
    # By hand, since MLflow's own would put it into the active experiment.
    model_id = client.create_logged_model(
        experiment,
        name="model",
        source_run_id=run_id,
        tags=facts,
        params=facts | {name: str(value) for name, value in report.params.items()},
        model_type="classifier" if model.classes else "regressor",
    ).model_id
    logged = Model.log(
        artifact_path=None,
        flavor=flavor,
        name="model",
        model_id=model_id,
        run_id=run_id,
        pipeline=model.pipeline,
        classes=model.classes,
        dimension=model.dimension,
        requirements=requirements(model.packages),
    )
    # It prints a line for people, at any level of its log.
    logging_utils.disable_logging()
    try:
        version = mlflow.register_model(
            logged.model_uri, model.registered_name, await_registration_for=0, tags=dict(facts)
        )
    finally:
        logging_utils.enable_logging()
    client.update_model_version(version.name, version.version, description=report.note[:_MOST_DESCRIPTION])
    assert logged.metadata is not None
    on_record = {
        "run_key": report.run_key,
        "lineage": json.loads(model.lineage),
        **{name: facts[name] for name in ("algorithm", "dataset", "proved", "neighbours")},
        **{name: report.params.get(name) for name in ("epsilon", "delta")},
        "metrics": dict(report.decisive),
    }
    open_model_records(root).record_version(
        model.registered_name,
        str(version.version),
        run=run_id,
        digest=str(logged.metadata[flavor.DIGEST]),
        facts=on_record,
    )
    return str(model_id)


POINT_KEY = "unitball.point_key"


class SweepTracker:
    """The parent run of a sweep; a sweep that was killed finds its parent and the points logged before.

    Parameters
    ----------
    root : Path
    experiment : str
    key : str
        Identity of the sweep.
    name : str
        What people read.
    tags : mapping
        For the parent and every point: paper, figure.
    axes : sequence of str
        Parameters that vary, for the chart of parallel coordinates.
    """

    def __init__(
        self,
        root: Path,
        *,
        experiment: str,
        key: str,
        name: str,
        tags: Mapping[str, str],
        axes: Sequence[str] = (),
    ) -> None:
        self._root, self._tags = root, dict(tags)
        # Before a point is charged.
        require(partial(try_logging, root, experiment))
        with tracking_client(root) as client:
            self._experiment = experiment_of(client, root, experiment)
            # Points are children, which MLflow's table folds away: the sweep's view searches for them alone.
            view = view_envelope(role=_POINT, axes=list(dict.fromkeys(["algorithm", *axes])))
            client.set_experiment_tag(self._experiment, VIEW_TAG, view)
            runs = runs_with(client, self._experiment, RUN_KEY, key)
            if runs:
                self.run_id = str(runs[0].info.run_id)
            else:
                self.run_id = log_run(
                    client, self._experiment, Entries(name=name, tags=tags), keys={RUN_KEY: key, _ROLE: _SWEEP}
                )
            children = runs_with(client, self._experiment, PARENT, self.run_id)
        self._before = {str(child.data.tags.get(POINT_KEY)): child.info for child in children}

    def write(self, key: str, point: Entries, error: str | None = None) -> None:
        """Write a point that has finished, or failed with an error, unless it is there as finished."""
        before = self._before.pop(key, None)
        if before is not None and before.status == "FINISHED":
            return
        with tracking_client(self._root) as client:
            if before is not None:
                client.delete_run(before.run_id)
            failed = {} if error is None else {"error": error}
            shown = replace(point, tags={**self._tags, **point.tags, **failed})
            client.set_terminated(
                log_run(client, self._experiment, shown, keys={PARENT: self.run_id, POINT_KEY: key, _ROLE: _POINT}),
                "FAILED" if failed else "FINISHED",
            )

    def close(self, *, metrics: Mapping[str, float], files: Mapping[str, str | bytes], note: str = "") -> None:
        """Log how many points are done and the files, and end the parent run."""
        with tracking_client(self._root) as client:
            client.log_batch(self.run_id, metrics=_metrics(metrics)[0])
            client.set_tag(self.run_id, "mlflow.note.content", note)
            log_files(client, self.run_id, files)
            client.set_terminated(self.run_id, "FINISHED")
