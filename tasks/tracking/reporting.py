"""A finished run as MLflow shows it and as watchers are told of it."""

from __future__ import annotations

import dataclasses
from functools import partial

from dpalgos.calibration import Calibration
from dpalgos.normalisation import RowMap
from dpalgos.registry import lookup
from storage.datasets import declared_table
from storage.encoder import TableEncoder
from storage.refs import DatasetRef, ReleaseRef
from tasks.datasets.description import find_dataset
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.preparation.features import stored_map
from tasks.preparation.mapping import row_map
from tasks.release.storing import read_release
from tasks.runtime.events import Event, announce, dataset_resource
from tasks.runtime.settings import current_layout, current_root, flow_run_page
from tasks.tracking.cards import model_card
from tasks.tracking.figures import figure_files
from tasks.tracking.models import LINEAGE, lineage_of, registered_by
from tasks.tracking.results import RunResult, append_result, epsilon_by_party, shown_metrics
from tasks.tracking.runs import DatasetInput, Entries, ModelReport, RunReport, track_run
from tasks.tracking.sklearn_export import NotExportableError, to_sklearn

# A child run takes a tenth of a second; thousands of small parties share one.
_MOST_CHILDREN = 50


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """What raw rows are, public: all that a model needs to know of them.

    Parameters
    ----------
    dimension : int
        Features a row.
    encoder : TableEncoder or None
        How columns of a declared table become them (:func:`storage.datasets.declared_table`).
    """

    dimension: int
    encoder: TableEncoder | None


def describe(
    config: TrainingConfig, dataset: DatasetRef, plan: RunPlan, result: RunResult, *, elsewhere: bool = False
) -> RunReport:
    """Return a run as MLflow shows it, under names that line up over all algorithms, without its model and children.

    ``elsewhere``: rows and accounts are those of parties of their own.
    """
    params: dict[str, object] = {
        name: value
        for name, value in config.model_dump(mode="json").items()
        if name not in ("dataset", "algorithm", "trust", "parameters") and value is not None
    }
    params["delta"] = config.stated_delta
    for release in plan.releases:
        # What runs, defaults included: whoever compares runs later cannot look up what the defaults were.
        algorithm = release.build()
        for name in (field.name for field in dataclasses.fields(algorithm) if field.init and field.name != "budget"):
            params.setdefault(f"{release.algorithm.kind.removesuffix('s')}.{name}", getattr(algorithm, name))
    numbers = {
        "epsilon_spent": result.epsilon_spent,
        "delta_spent": result.delta_spent,
        "mu_spent": result.mu_spent,
        "seconds": result.seconds,
        "releasing_seconds": result.releasing_seconds,
        **shown_metrics(result.metrics),
    }
    proved, flow_run = result.proved, result.prefect_flow_run_id
    return RunReport(
        experiment=dataset.name,
        run_key=result.run_key,
        name=f"{result.algorithm}" + (f" ε={config.epsilon:g}" if config.epsilon else ""),
        facts={
            "algorithm": result.algorithm,
            "dataset": dataset.name,
            "trust": result.trust,
            "proved": proved.statement(6) if proved else None,
            "claim": result.claim["statement"] if result.claim else None,
            "paper": plan.paper or None,
            "neighbours": proved.neighbours if proved else None,
            "numerics": proved.numerics if proved else None,
        },
        params={**params, "normalisation": plan.normalisation, "unit": str(dataset.unit)},
        metrics={name: float(value) for name, value in numbers.items() if value is not None},
        # The step is the type I error in thousandths.
        curves={"trade_off": {round(1000 * level): missed for level, missed in proved.trade_off}} if proved else {},
        tags={"unitball.prefect_flow_run": flow_run or "", "unitball.sound": str(proved is not None)},
        inputs=(DatasetInput(name=dataset.name, version=dataset.version, account=dataset.account),),
        note=model_card(config, dataset, plan, result, elsewhere=elsewhere)
        + (f"\n\n[Flow run in Prefect]({flow_run_page(flow_run)})" if flow_run else ""),
    )


def run_report(
    config: TrainingConfig,
    dataset: DatasetRef,
    plan: RunPlan,
    result: RunResult,
    models: dict[str, list[ReleaseRef]],
    columns: Columns | None = None,
) -> RunReport:
    """Return all that MLflow keeps of a run: :func:`describe`, a child a party, the released model, the result.

    Parameters
    ----------
    models : dict
        For each released model what rows pass through, the model last. Where each party has a model of its own, the
        first one stands for all.
    columns : Columns, optional
        Of rows that are registered elsewhere; of those registered here where left out.

    Raises
    ------
    ParameterError
        If the released arrays do not fit together.
    """
    report = describe(config, dataset, plan, result, elsewhere=columns is not None)
    try:
        model = _model_report(config, dataset, plan, result, next(iter(models.values())), columns)
    except NotExportableError as reason:
        model, report = None, dataclasses.replace(report, note=f"{report.note}\n\nNo model is logged: {reason}.")
    lineage = lineage_of(config, dataset, plan, next(iter(models.values()))).model_dump_json(indent=2)
    if model is not None:
        model = dataclasses.replace(model, lineage=lineage)
    files: dict[str, str | bytes] = {
        "result.json": result.model_dump_json(indent=2),
        LINEAGE: lineage,
    }
    drawn = partial(figure_files, result)
    return dataclasses.replace(report, children=_children(plan, result), model=model, files=files, drawn=drawn)


def _children(plan: RunPlan, result: RunResult) -> tuple[Entries, ...]:
    """Return one child a party: its rows, what it has paid, and how its own model does where it has one."""
    params = {"epsilon": plan.epsilon, "delta": plan.delta}
    sizes, counted = plan.rows(), "people" if result.identity.dataset.person else "rows"
    if len(sizes) > _MOST_CHILDREN:
        return (Entries(name="all parties", params=params, metrics={counted: float(sum(sizes.values()))}),)
    spent = epsilon_by_party(plan) or {}
    return tuple(
        Entries(
            name=f"party {party}",
            params=params,
            metrics={
                counted: float(rows),
                **({"epsilon_spent": spent[party], "delta_spent": float(result.delta_spent or 0)} if spent else {}),
                **shown_metrics(result.by_party.get(party, {})),
            },
        )
        for party, rows in sizes.items()
    )


def _model_report(
    config: TrainingConfig,
    dataset: DatasetRef,
    plan: RunPlan,
    result: RunResult,
    path: list[ReleaseRef],
    columns: Columns | None,
) -> ModelReport:
    *maps, model = [read_release(reference) for reference in path]
    features = [stored_map(step) for step in plan.features]
    normalisation: str | RowMap = dataset.normalisation
    if columns is None:
        registered = find_dataset(config.dataset)
        table = declared_table(current_layout(), registered)
        encoder = None if table is None else TableEncoder(table["schema"], table["on_violation"])
        columns = Columns(registered.dimension, encoder)
        if not lookup("normalisations", dataset.normalisation).row_local:
            normalisation = row_map(registered, dataset.normalisation)
    return ModelReport(
        pipeline=to_sklearn(
            normalisation=normalisation,
            maps=[*features, *maps],
            model=model,
            classes=dataset.classes,
            dimension=columns.dimension,
            encoder=columns.encoder,
            calibration=None if result.calibration is None else Calibration(*result.calibration),
        ),
        dimension=columns.dimension,
        classes=dataset.classes,
        registered_name=f"{dataset.name}.{result.algorithm}",
        packages=tuple(dict.fromkeys(package for each in features for package in each.packages)),
    )


def keep_run(
    config: TrainingConfig,
    dataset: DatasetRef,
    plan: RunPlan,
    result: RunResult,
    models: dict[str, list[ReleaseRef]],
    columns: Columns | None = None,
) -> RunResult:
    """Log a run to MLflow and append it to the results; a run that was logged before is found again.

    Parameters
    ----------
    models : dict
        For each released model what rows pass through, the model last.
    columns : Columns, optional
        Of rows that are registered elsewhere.
    """
    run_id = track_run(current_root(), run_report(config, dataset, plan, result, models, columns))
    logged = result.model_copy(update={"mlflow_run_id": run_id})
    append_result(config, logged)
    return logged


CHAMPION_LABEL = "unitball.champion"
"""Label of the event's resource: ``"true"`` where another version of the model is champion."""


def announce_trained(result: RunResult) -> None:
    """Announce a recorded run's model; a run that registered none has nothing to score with."""
    found = registered_by(current_root(), result.mlflow_run_id)
    if found is None:
        return
    others = found.champion is not None and found.champion != found.version
    announce(
        Event.TRAINED,
        dataset_resource(result.dataset),
        {"dataset": result.dataset, "model": f"{found.name}/{found.version}"},
        labels={CHAMPION_LABEL: str(others).lower()},
    )
