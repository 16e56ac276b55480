"""Deployed flows: short forms, each of which asks for a few fields and calls the flow that does the work.

The function of a flow is called, and not the flow: what a form asks for is one run, in one place on Prefect's pages.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import BaseModel, Field, WithJsonSchema

from dpalgos.parameters import ParameterError
from flows import batch_scoring as scoring
from flows import column_statistics, comparison, federated_training, privacy_audit, reproduction
from flows import sweep as sweeping
from flows.specs import known_reproductions
from tasks.auditing.examination import AuditRequest, Examined
from tasks.experiments.records import Experiment
from tasks.experiments.specifications import SweepSpec
from tasks.planning.asked import FIELDS, asked_config, called, described, form_of, validated
from tasks.planning.column_statistics import DescriptionRequest, ReductionRequest, SynthesisRequest
from tasks.planning.configuration import TrainingConfig
from tasks.release.descriptions import Description
from tasks.release.drawn_rows import SyntheticRows
from tasks.release.pair_descriptions import PairsDescription
from tasks.runtime.ending import announcing_failures
from tasks.runtime.events import dataset_resource
from tasks.runtime.settings import current_root
from tasks.runtime.steps import threads
from tasks.tracking.champion_comparison import ComparisonOutcome, ComparisonRequest
from tasks.tracking.reductions import Reduction
from tasks.tracking.results import RunResult
from tasks.tracking.runs import name_run
from tasks.tracking.scoring import ScoringRequest


class Called:
    """Names a run of a flow by its parameters, before it starts and when it does.

    Parameters
    ----------
    of : callable
        The name, from the parameters.
    """

    def __init__(self, of: Callable[[Mapping[str, Any]], str]) -> None:
        self.of = of

    def __call__(self) -> str:
        """Return the name of the run that is beginning; where its parameters are wrong, the run itself says how."""
        try:
            return self.of(flow_run.parameters)
        except ParameterError:
            return str(flow_run.parameters.get("dataset") or flow_run.name)


# The form follows the field's description, not the Python type.
_AS_SAID = WithJsonSchema({})


def _of(model: type[BaseModel], name: str, **said: Any) -> Any:
    """Return a form field from the model's field of that name, with overrides."""
    return Field(json_schema_extra=form_of(model, name, **said))


def _said(title: str, description: str, kind: str = "string", **more: Any) -> Any:
    return Field(json_schema_extra=described(title, description, kind, **more))


_NAME = _said("Name", "Name of this run in Prefect and MLflow. Default: algorithm and data set.", maxLength=100)
_MORE = _said(
    "More",
    "Further options of a training, by name, as JSON. `unitball train --help-all` lists them.",
    "object",
    examples=[{"parties": 3, "delta": 1e-6, "test_fraction": 0.25}],
)


@flow(
    name="federated-training",
    description="Train a classifier on one data set, within its privacy budget.",
    flow_run_name=Called(called),
    task_runner=threads(4),
)
def train(
    dataset: Annotated[str, _AS_SAID, _of(TrainingConfig, "dataset", description="The data set to train on.")],
    epsilon: Annotated[
        float | None,
        _AS_SAID,
        _of(
            TrainingConfig,
            "epsilon",
            description="Privacy budget of the run; smaller protects more. Required if noise is drawn.",
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        _AS_SAID,
        _of(
            TrainingConfig,
            "algorithm",
            description="Algorithm that trains. `unitball algorithms` lists what is proved about each.",
        ),
    ] = "unitball",
    trust: Annotated[
        str | None,
        _AS_SAID,
        _of(
            TrainingConfig,
            "trust",
            description="Trust model: local (each party trusts itself), secagg (sums only) or central (a curator).",
        ),
    ] = None,
    features: Annotated[
        str | None,
        _AS_SAID,
        _of(
            TrainingConfig,
            "features",
            description="Public feature map, applied to each row first, such as hog or scattering for images.",
        ),
    ] = None,
    name: Annotated[str | None, _AS_SAID, _NAME] = None,
    seed: Annotated[
        int | None,
        _AS_SAID,
        _of(
            TrainingConfig, "seed", description="Repeats a run on public rows to the bit. Not allowed for private rows."
        ),
    ] = None,
    more: Annotated[dict[str, Any], _AS_SAID, _MORE] = {},  # noqa: B006  # Prefect reads the default, and no code changes it
) -> RunResult:
    """Train as :func:`flows.federated_training.train` does; fields and ``more`` are validated as one configuration.

    Parameters
    ----------
    dataset, epsilon, algorithm, trust, features, seed
        Fields of :class:`tasks.planning.configuration.TrainingConfig`.
    name : str, optional
        Name of the run in Prefect and MLflow.
    more : dict
        Other fields of the configuration, by name.

    Returns
    -------
    RunResult

    Raises
    ------
    dpalgos.parameters.ParameterError
        Naming each field that is unknown, given twice or out of its bounds, with its value and the way out.
    storage.errors.RefusedError
        As :func:`flows.federated_training.train` does.
    """
    given = (dataset, epsilon, algorithm, trust, features, seed)
    with announcing_failures(dataset_resource(dataset)):
        config = asked_config(dict(zip(FIELDS, given, strict=True)), more)
    result = federated_training.train.fn(config)
    if name and isinstance(result, RunResult) and result.mlflow_run_id is not None:
        name_run(current_root(), result.mlflow_run_id, name)
    return result


@flow(
    name="sweep",
    description="Train each point of a parameter grid.",
    flow_run_name="sweep {name}",
    persist_result=False,
    task_runner=threads(),
)
def sweep(
    name: Annotated[str, _AS_SAID, _of(SweepSpec, "name", description="Name of the sweep.")],
    set: Annotated[  # as a specification in YAML calls it
        dict[str, Any], _of(SweepSpec, "set", title="Set", description="Options that all runs share, by name, as JSON.")
    ],
    grid: Annotated[
        dict[str, Any],
        _AS_SAID,
        _of(SweepSpec, "grid", title="Grid", description="Options that vary, each with its values, as JSON."),
    ],
    workers: Annotated[int | None, _AS_SAID, _of(SweepSpec, "workers")] = None,
    more: Annotated[
        dict[str, Any],
        _AS_SAID,
        _said("More", "Further keys of a sweep's YAML file (title, question, blocks), as JSON.", "object"),
    ] = {},  # noqa: B006  # as above
) -> sweeping.SweepResult:
    """Run a sweep as :func:`flows.sweep.sweep` does.

    Raises
    ------
    dpalgos.parameters.ParameterError
        Naming the field, the value and the bound.
    """
    asked = {"name": name, "set": set, "grid": grid, "workers": workers}
    return sweeping.sweep.fn(validated(SweepSpec, asked, more))


@flow(
    name="privacy-audit",
    description="Measure a lower bound on epsilon on synthetic rows, and compare it with the proved or claimed "
    "epsilon.",
    flow_run_name=Called(lambda given: f"audit of {given.get('algorithm') or 'the algorithms in use'}"),
    persist_result=False,
)
def audit(
    algorithm: Annotated[str | None, _AS_SAID, _of(AuditRequest, "algorithm")] = None,
    epsilon: Annotated[float | None, _AS_SAID, _of(AuditRequest, "epsilon")] = None,
    delta: Annotated[float | None, _AS_SAID, _of(AuditRequest, "delta")] = None,
    neighbours: Annotated[str | None, _AS_SAID, _of(AuditRequest, "neighbours")] = None,
    trials: Annotated[int, _AS_SAID, _of(AuditRequest, "trials")] = 1000,
    canaries: Annotated[int, _AS_SAID, _of(AuditRequest, "canaries")] = 200,
    chain_trials: Annotated[int, _AS_SAID, _of(AuditRequest, "chain_trials")] = 24,
    seed: Annotated[int | None, _AS_SAID, _of(AuditRequest, "seed", title="Seed")] = None,
) -> list[Examined]:
    """Audit as :func:`flows.privacy_audit.privacy_audit` does.

    Raises
    ------
    dpalgos.parameters.ParameterError
        Naming the field, the value and the bound.
    flows.privacy_audit.PrivacyViolationError
        If an algorithm is refuted.
    """
    asked = {"algorithm": algorithm, "epsilon": epsilon, "delta": delta, "neighbours": neighbours}
    asked |= {"trials": trials, "canaries": canaries, "chain_trials": chain_trials, "seed": seed}
    return privacy_audit.privacy_audit.fn(validated(AuditRequest, asked))


@flow(
    name="batch-scoring",
    description="Predict the rows of a file with a registered model, at no privacy cost.",
    flow_run_name="score with {model}",
    persist_result=False,
)
def score(
    model: Annotated[str, _AS_SAID, _of(ScoringRequest, "model")],
    input: Annotated[str, _AS_SAID, _of(ScoringRequest, "input")],  # as `unitball predict` calls it
    id_column: Annotated[str | None, _AS_SAID, _of(ScoringRequest, "id_column")] = None,
    prefer_champion: Annotated[bool, _AS_SAID, _of(ScoringRequest, "prefer_champion")] = False,
    coverage: Annotated[float | None, _AS_SAID, _of(ScoringRequest, "coverage")] = None,
) -> str:
    """Score as :func:`flows.batch_scoring.batch_scoring` does.

    Raises
    ------
    dpalgos.parameters.ParameterError
        Naming the field, the value and the bound.
    """
    asked = {
        "model": model,
        "input": input,
        "id_column": id_column,
        "prefer_champion": prefer_champion,
        "coverage": coverage,
    }
    return scoring.batch_scoring.fn(validated(ScoringRequest, asked))


@flow(
    name="champion-comparison",
    description="Compare a version of a model with the champion of its name, on held-out rows.",
    flow_run_name="{model} against the champion",
    persist_result=False,
)
def compare(
    model: Annotated[str, _AS_SAID, _of(ComparisonRequest, "model")],
    epsilon: Annotated[float | None, _AS_SAID, _of(ComparisonRequest, "epsilon")] = None,
    promote: Annotated[bool | None, _AS_SAID, _of(ComparisonRequest, "promote")] = None,
) -> ComparisonOutcome:
    """Compare as :func:`flows.comparison.champion_comparison` does.

    Raises
    ------
    dpalgos.parameters.ParameterError
        Naming the field, the value and the bound.
    """
    asked = {"model": model, "epsilon": epsilon, "promote": promote}
    return comparison.champion_comparison.fn(validated(ComparisonRequest, asked))


@flow(
    name="reproduction",
    description="Reproduce a paper's figure or table, next to the paper's claim.",
    flow_run_name="{name} ({scale})",
    persist_result=False,
)
def reproduce(
    name: Annotated[str, _AS_SAID, _said("Name", "A figure or table of a paper.", enum=[*known_reproductions()])],
    scale: Annotated[
        str, _AS_SAID, _said("Scale", "quick: bundled data; full: the paper's.", enum=["quick", "full"])
    ] = "quick",
    dataset: Annotated[
        str | None,
        _AS_SAID,
        _said("Data set", "One of its data sets, or any registered data set instead. Default: all of its data sets."),
    ] = None,
    path: Annotated[
        Path | None,
        _AS_SAID,
        _said("Path", "The data set's files, or a folder with those of several, on the serving machine."),
    ] = None,
    workers: Annotated[
        int | None, _AS_SAID, _said("Workers", "Parallel runs. Default: by the machine's cores.", "integer", minimum=1)
    ] = None,
) -> Experiment:
    """Reproduce as :func:`flows.reproduction.reproduce` does."""
    return reproduction.reproduce.fn(name, scale, dataset, path, workers=workers)


@flow(
    name="synthetic-rows",
    description="Draw synthetic rows of a table from charged, released counts.",
    flow_run_name="synthesise {dataset}",
    persist_result=False,
    task_runner=threads(2),
)
def synthesise(
    dataset: Annotated[str, _AS_SAID, _of(SynthesisRequest, "dataset")],
    epsilon: Annotated[
        float,
        _AS_SAID,
        _of(SynthesisRequest, "epsilon", description="Epsilon of all releases together, per row or person."),
    ],
    delta: Annotated[float | None, _AS_SAID, _of(SynthesisRequest, "delta")] = None,
    trust: Annotated[str | None, _AS_SAID, _of(SynthesisRequest, "trust")] = None,
    test_fraction: Annotated[float | None, _AS_SAID, _of(SynthesisRequest, "test_fraction")] = None,
    rows: Annotated[int | None, _AS_SAID, _of(SynthesisRequest, "rows")] = None,
    seed: Annotated[int, _AS_SAID, _of(SynthesisRequest, "seed", title="Public seed")] = 0,
    name: Annotated[str | None, _AS_SAID, _of(SynthesisRequest, "name")] = None,
) -> SyntheticRows:
    """Draw rows as :func:`flows.column_statistics.synthesise` does; no file is written.

    Raises
    ------
    dpalgos.parameters.ParameterError
        Naming the field, the value and the bound.
    storage.errors.RefusedError
        As :func:`flows.column_statistics.synthesise` does.
    """
    asked = {"dataset": dataset, "epsilon": epsilon, "delta": delta, "trust": trust, "test_fraction": test_fraction}
    asked |= {"rows": rows, "seed": seed, "name": name}
    return column_statistics.synthesise.fn(validated(SynthesisRequest, asked))


@flow(
    name="column-descriptions",
    description="Release counts of a table's columns, or of pairs of columns, charged once.",
    flow_run_name="describe {dataset}",
    persist_result=False,
    task_runner=threads(2),
)
def describe(
    dataset: Annotated[str, _AS_SAID, _of(DescriptionRequest, "dataset")],
    epsilon: Annotated[
        float,
        _AS_SAID,
        _of(DescriptionRequest, "epsilon", description="Epsilon of the release, per row or person."),
    ],
    delta: Annotated[float | None, _AS_SAID, _of(DescriptionRequest, "delta")] = None,
    trust: Annotated[str | None, _AS_SAID, _of(DescriptionRequest, "trust")] = None,
    pairs: Annotated[list[str], _AS_SAID, _of(DescriptionRequest, "pairs")] = [],  # noqa: B006  # no code changes it
    by: Annotated[str | None, _AS_SAID, _of(DescriptionRequest, "by")] = None,
) -> Description | PairsDescription:
    """Describe as :func:`flows.column_statistics.describe` does.

    Raises
    ------
    dpalgos.parameters.ParameterError
        Naming the field, the value and the bound.
    storage.errors.RefusedError
        As :func:`flows.column_statistics.describe` does.
    """
    asked = {"dataset": dataset, "epsilon": epsilon, "delta": delta, "trust": trust, "pairs": pairs, "by": by}
    return column_statistics.describe.fn(validated(DescriptionRequest, asked))


@flow(
    name="principal-components",
    description="Release principal components of a data set's columns (charged).",
    flow_run_name="reduce {dataset}",
    persist_result=False,
    task_runner=threads(2),
)
def reduce(
    dataset: Annotated[str, _AS_SAID, _of(ReductionRequest, "dataset")],
    epsilon: Annotated[
        float,
        _AS_SAID,
        _of(ReductionRequest, "epsilon", description="Epsilon of all releases together, per row or person."),
    ],
    components: Annotated[int | None, _AS_SAID, _of(ReductionRequest, "components")] = None,
    score_counts: Annotated[bool, _AS_SAID, _of(ReductionRequest, "score_counts")] = False,
    delta: Annotated[float | None, _AS_SAID, _of(ReductionRequest, "delta")] = None,
    center: Annotated[bool, _AS_SAID, _of(ReductionRequest, "center")] = True,
    trust: Annotated[str | None, _AS_SAID, _of(ReductionRequest, "trust")] = None,
) -> Reduction:
    """Reduce as :func:`flows.column_statistics.reduce` does.

    Raises
    ------
    dpalgos.parameters.ParameterError
        Naming the field, the value and the bound.
    storage.errors.RefusedError
        As :func:`flows.column_statistics.reduce` does.
    """
    asked = {"dataset": dataset, "epsilon": epsilon, "components": components, "score_counts": score_counts}
    asked |= {"delta": delta, "center": center, "trust": trust}
    return column_statistics.reduce.fn(validated(ReductionRequest, asked))
