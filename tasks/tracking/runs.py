"""What MLflow is told of a run: one experiment a data set, a parent run, a child per party, one registered model.

Everything goes through a client of its own, so that threads and roots do not meet in MLflow's process-wide state.

What is logged here is public. On private data the caller passes released numbers only: no seconds, iteration counts,
convergence or exact training and hold-out metrics. Runs are written when their flow is done, so that MLflow's own
start and end times say nothing of how long private rows took.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from storage.layout import Layout
from tasks.runtime.engine import prepare_tracking, tracking_uri
from tasks.runtime.engine_process import locked
from tasks.tracking.views import VIEW_NAME, VIEW_TAG, view_envelope, view_path

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run
    from sklearn.pipeline import Pipeline

__all__ = [
    "FACTS",
    "RUN_KEY",
    "ChildReport",
    "DatasetInput",
    "ModelReport",
    "RunReport",
    "comparison_path",
    "track_run",
]

RUN_KEY = "unitball.run_key"
FACTS = ("algorithm", "dataset", "trust", "proved", "claim", "paper", "neighbours", "numerics")
"""What every run says of itself under the same names, as parameters (MLflow compares them side by side) and as tags
(MLflow filters on them); what does not apply is ``"none"``."""

# MLflow's own limits, less than which nothing needs to be cut.
_PARAMETER_LENGTH, _TAG_LENGTH, _DIGEST_LENGTH, _ENTRIES_A_CALL = 6000, 5000, 36, 100
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInput:
    """A data set as MLflow may know it: by name, version and account, without schema, profile or sample of rows."""

    name: str
    version: str
    account: str
    context: str = "training"


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
    """

    pipeline: Pipeline
    dimension: int
    classes: tuple[str, ...]
    registered_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildReport:
    """One party's part of a run.

    Parameters
    ----------
    name : str
        Unique among the children: the party.
    params, tags : mapping of str to values
    metrics : mapping of str to float
        Numbers that are not finite are kept as a tag instead of a metric.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """All that is logged of one run.

    Parameters
    ----------
    experiment : str
        The data set's name.
    run_key : str
        Identity of the run; the same key is logged once.
    name : str
        What people read.
    facts : mapping of str to values
        Some or all of :data:`FACTS`.
    params, tags : mapping of str to values
        What else there is to say.
    metrics : mapping of str to float
        ``epsilon_spent``, ``delta_spent``, ``accuracy``, …
    inputs : tuple of DatasetInput
    children : tuple of ChildReport
        They carry the same facts.
    model : ModelReport or None
    files : mapping of path to text or bytes
        Logged as artifacts of the run.
    note : str
        Markdown, shown at the top of the run's page.
    """

    experiment: str
    run_key: str
    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[DatasetInput, ...] = ()
    children: tuple[ChildReport, ...] = ()
    model: ModelReport | None = None
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        if not self.run_key or set(self.run_key) & set("'\"`\\"):
            raise ValueError(f"run_key {self.run_key!r} must be a name without quotes: it is searched for")
        if unknown := sorted(set(self.facts) - set(FACTS)):
            raise ValueError(f"unknown facts {', '.join(unknown)}; known: {', '.join(FACTS)} (else use params)")
        if len({child.name for child in self.children}) != len(self.children):
            raise ValueError("children must have different names")

    def all_facts(self) -> dict[str, str]:
        """Return every fact, ``"none"`` where there is nothing to say."""
        return {name: "none" if (value := self.facts.get(name)) is None else str(value) for name in FACTS}


def track_run(root: Path, report: RunReport) -> str:
    """Log a run and return its MLflow id; a run that was logged before is found by its key and returned instead.

    What a killed process left half-written under the same key (run, children, model versions) is removed first.

    Raises
    ------
    mlflow.exceptions.MlflowException
        If MLflow refuses something.
    """
    prepare_tracking(root)
    from mlflow import MlflowClient

    layout = Layout(root)
    uri = tracking_uri(root)
    # One writer a root: the search and the writing are one step, and a half-written run under the lock is a dead one.
    with locked(layout.prefect / ".lock-tracking"):
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        experiment = _experiment(client, layout, report.experiment)
        for run in _runs(client, experiment, RUN_KEY, report.run_key):
            if run.info.status == "FINISHED":
                return str(run.info.run_id)
            _remove(client, run)
        return _write(client, experiment, report)


def _experiment(client: MlflowClient, layout: Layout, name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        location = (layout.artifacts / quote(name, safe="")).as_uri()
        try:
            client.create_experiment(name, artifact_location=location)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        found = client.get_experiment_by_name(name)
    experiment = str(found.experiment_id)
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(experiment)
    # The view is written last and says that all are there; who was killed in between finds it missing.
    if VIEW_TAG not in found.tags:
        tags = {
            # Without its kind, MLflow's page guesses one, or asks.
            "mlflow.experimentKind": "custom_model_development",
            "mlflow.experiment.primaryMetric.name": "accuracy",
            "mlflow.experiment.primaryMetric.greaterIsBetter": "True",
            "mlflow.note.content": f"[{VIEW_NAME}]({view_path(experiment)})",
            VIEW_TAG: view_envelope(FACTS),
        }
        for tag, value in tags.items():
            client.set_experiment_tag(experiment, tag, value)
    return experiment


def comparison_path(root: Path, experiment: str) -> str | None:
    """Return the address of a data set's accuracy–budget chart, behind an MLflow server's; None before a first run."""
    from mlflow import MlflowClient

    prepare_tracking(root)
    found = MlflowClient(tracking_uri=tracking_uri(root)).get_experiment_by_name(experiment)
    return None if found is None else view_path(found.experiment_id)


def _runs(client: MlflowClient, experiment: str, tag: str, value: str) -> list[Run]:
    return list(client.search_runs([experiment], filter_string=f"tags.`{tag}` = '{value}'"))


def _remove(client: MlflowClient, run: Run) -> None:
    run_id, experiment = run.info.run_id, run.info.experiment_id
    for version in client.search_model_versions(f"run_id = '{run_id}'"):
        client.delete_model_version(version.name, version.version)
    for model in client.search_logged_models([experiment], filter_string=f"source_run_id = '{run_id}'"):
        client.delete_logged_model(model.model_id)
    for child in _runs(client, experiment, "mlflow.parentRunId", run_id):
        client.delete_run(child.info.run_id)
    client.delete_run(run_id)


def _write(client: MlflowClient, experiment: str, report: RunReport) -> str:
    from mlflow.entities import LoggedModelOutput

    facts = report.all_facts()
    tags = facts | dict(report.tags) | {RUN_KEY: report.run_key, "mlflow.source.name": "unitball"}
    chart = f"[{VIEW_NAME}]({view_path(experiment)})"
    tags["mlflow.note.content"] = f"{report.note}\n\n{chart}" if report.note else chart
    run_id = _create(client, experiment, report.name, tags)
    model: LoggedModel | None = None
    if report.model is not None:
        model = client.create_logged_model(
            experiment,
            name="model",
            source_run_id=run_id,
            tags={name: _cut(value, _TAG_LENGTH) for name, value in facts.items()},
            params={name: _cut(value, _PARAMETER_LENGTH) for name, value in (facts | dict(report.params)).items()},
            model_type="classifier" if report.model.classes else "regressor",
        )
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
    _fill(client, run_id, facts | dict(report.params), report.metrics, report.inputs, model)
    for child in report.children:
        child_tags = facts | dict(child.tags) | {"mlflow.parentRunId": run_id, "mlflow.source.name": "unitball"}
        child_tags["party"] = child.name
        child_id = _create(client, experiment, f"{report.name} · {child.name}", child_tags)
        _fill(client, child_id, facts | {"party": child.name} | dict(child.params), child.metrics, report.inputs, None)
        client.set_terminated(child_id, "FINISHED")
    if report.files:
        _log_files(client, run_id, report.files)
    if report.model is not None and model is not None:
        _log_model(client, run_id, report, report.model, model)
    client.set_terminated(run_id, "FINISHED")
    return run_id


def _create(client: MlflowClient, experiment: str, name: str, tags: Mapping[str, Any]) -> str:
    run = client.create_run(
        experiment, run_name=name, tags={key: _cut(value, _TAG_LENGTH) for key, value in tags.items()}
    )
    return str(run.info.run_id)


def _cut(value: Any, length: int) -> str:
    text = str(value)
    return text if len(text) <= length else text[: length - 1] + "…"


def _batches(items: Sequence[_T]) -> Iterator[list[_T]]:
    rest = iter(items)
    while batch := list(islice(rest, _ENTRIES_A_CALL)):
        yield batch


def _fill(
    client: MlflowClient,
    run_id: str,
    params: Mapping[str, Any],
    metrics: Mapping[str, float],
    inputs: Sequence[DatasetInput],
    model: LoggedModel | None,
) -> None:
    from mlflow import entities

    now = int(time.time() * 1000)
    of_model = {} if model is None else {"model_id": model.model_id, "run_id": run_id}
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    for batch in _batches([entities.Param(name, _cut(value, _PARAMETER_LENGTH)) for name, value in params.items()]):
        client.log_batch(run_id, params=batch)
    for batch in _batches([entities.Metric(name, value, now, 0, **of_model) for name, value in finite.items()]):
        client.log_batch(run_id, metrics=batch)
    for name in metrics.keys() - finite.keys():
        client.set_tag(run_id, name, metrics[name])
    if inputs:
        client.log_inputs(run_id, [_opaque(item) for item in inputs])


def _opaque(item: DatasetInput) -> Any:
    from mlflow import entities

    source = {"dataset": item.name, "version": item.version, "account": item.account}
    dataset = entities.Dataset(
        name=item.name, digest=item.version[:_DIGEST_LENGTH], source_type="unitball", source=json.dumps(source)
    )
    return entities.DatasetInput(dataset, [entities.InputTag("mlflow.data.context", item.context)])


def _log_files(client: MlflowClient, run_id: str, files: Mapping[str, str | bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        client.log_artifacts(run_id, folder)


def _requirements() -> list[str]:
    """Return what a fresh process needs to load the model, pinned; MLflow's own inference would take ten seconds."""
    packages = ("mlflow", "numpy", "scikit-learn", "scipy", "skops", "unitball")
    return [f"{package}=={importlib.metadata.version(package)}" for package in packages]


def _log_model(
    client: MlflowClient, run_id: str, report: RunReport, model_report: ModelReport, logged: LoggedModel
) -> None:
    import mlflow.sklearn
    import numpy as np
    from mlflow.exceptions import MlflowException
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    from dpalgos.pipeline import TRUSTED_TYPES

    output = np.dtype(np.str_) if model_report.classes else np.dtype(np.float64)
    # Written by hand: MLflow would infer it from example rows.
    signature = ModelSignature(
        inputs=Schema([TensorSpec(np.dtype(np.float64), (-1, model_report.dimension))]),
        outputs=Schema([TensorSpec(output, (-1,))]),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        mlflow.sklearn.save_model(
            model_report.pipeline,
            str(path),
            mlflow_model=Model(
                artifact_path=logged.artifact_location,
                model_uuid=logged.model_id,
                run_id=run_id,
                model_id=logged.model_id,
            ),
            serialization_format="skops",
            skops_trusted_types=list(TRUSTED_TYPES),
            pip_requirements=_requirements(),
            signature=signature,
        )
        client.log_model_artifacts(logged.model_id, str(path))
    client.finalize_logged_model(logged.model_id, "READY")
    try:
        client.create_registered_model(model_report.registered_name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    version = client.create_model_version(
        model_report.registered_name,
        source=logged.artifact_location,
        run_id=run_id,
        model_id=logged.model_id,
        tags={name: _cut(value, _TAG_LENGTH) for name, value in report.all_facts().items()},
        await_creation_for=0,
    )
    link = [{"name": version.name, "version": version.version}]
    client.set_logged_model_tags(logged.model_id, {"mlflow.modelVersions": json.dumps(link)})
