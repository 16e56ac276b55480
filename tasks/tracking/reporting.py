"""What a run says of itself: one result object, one tracked run, rows of results."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from prefect import task
from pydantic import BaseModel, ConfigDict

from dpalgos.accounting.composition import compose
from dpalgos.errors import ParameterError
from dpalgos.guarantees import PureEpsilon
from dpalgos.registry import lookup
from storage.refs import DatasetRef, ReleaseRef
from storage.results import append, is_recorded
from tasks.ingestion import find_dataset
from tasks.normalisation import row_map
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan, build
from tasks.release.door import read_release
from tasks.runtime.progress import say
from tasks.runtime.settings import current_layout, current_root, flow_run_page
from tasks.tracking.runs import ChildReport, DatasetInput, ModelReport, RunReport, track_run
from tasks.tracking.sklearn_export import to_sklearn

__all__ = ["Evaluation", "RunResult", "describe", "note_of", "proved_by_party", "record", "report", "summarise"]

# A child run takes a tenth of a second; thousands of small parties are told together.
_MOST_CHILDREN = 50


class Evaluation(BaseModel):
    """Measured numbers of a run: of the model, or the mean over the parties' models, and of each; or released ones."""

    model_config = ConfigDict(frozen=True)

    metrics: dict[str, float] = {}
    by_party: dict[str, dict[str, float]] = {}
    measured_on: str | None = None


class RunResult(BaseModel):
    """What a training run gives back, to people as a table row and to machines as JSON.

    Attributes
    ----------
    proved : dict or None
        Epsilon at delta of all the run's releases for the worst-off party, the relation, numerics and assumptions.
    claim : dict or None
        What the paper says of the algorithm at this budget, and the flaw where there is one.
    epsilon_spent, delta_spent : float or None
        What this run's releases cost, charged now or before, the largest over parties; None where nothing is proved.
    accuracy : float or None
        None where nothing public was measured and no evaluation was charged.
    measured_on : str or None
        What ``accuracy`` and ``metrics`` speak of: ``"test rows"``, ``"training rows"`` where all rows train, or
        ``"held-out rows, noisy"`` for a charged evaluation; of the model, or the mean over the parties' models.
    seconds : float or None
        None on private data: time is a side channel.
    releasing_seconds : float or None
        Of these, what making the releases took one after another; None where one was there before, or nobody measured.
    """

    model_config = ConfigDict(frozen=True)

    algorithm: str
    dataset: str
    trust: str
    proved: dict[str, Any] | None
    claim: dict[str, Any] | None
    epsilon_spent: float | None
    delta_spent: float | None
    accuracy: float | None
    measured_on: str | None = None
    metrics: dict[str, float]
    by_party: dict[str, dict[str, float]]
    split: dict[str, Any]
    sound_counterpart: str | None
    run_key: str
    releases: tuple[str, ...]
    mlflow_run_id: str | None = None
    prefect_flow_run_id: str | None = None
    seconds: float | None = None
    releasing_seconds: float | None = None
    cached: bool = False


def proved_by_party(plan: RunPlan) -> dict[str, Any] | None:
    """Return what is proved of a whole run, or None.

    The run's releases are one plan, known beforehand, so they are composed tightly; every party pays for its own
    releases and for the joint ones, and the largest bill is the run's.
    """
    spent = _spent_by_party(plan)
    if spent is None:
        return None
    every = [release.guarantee() for release in plan.releases if release.reads_rows]
    return {
        "epsilon": max(spent.values()),
        "delta": _delta(plan),
        "neighbours": str(every[0].neighbours),
        "trust": str(plan.trust),
        "numerics": "exact" if all(item.numerics == "exact" for item in every) else "idealised",
        "assumptions": sorted({text for item in every for text in item.assumptions}),
    }


def _delta(plan: RunPlan) -> float:
    """Return the delta at which a run's cost is stated: none where every loss is pure."""
    losses = (loss for bill in plan.bills().values() for loss in bill)
    return 0.0 if all(isinstance(loss, PureEpsilon) for loss in losses) else plan.delta


def _spent_by_party(plan: RunPlan) -> dict[str, float] | None:
    """Return the epsilon of each party's bill, or None where something is not proved, or not at this delta."""
    bills = plan.bills()
    if not bills or not plan.proved:
        return None
    # Parties of one plan mostly pay the same; each distinct bill is composed once.
    found = {bill: compose(bill).epsilon(_delta(plan)) for bill in set(bills.values())}
    return {party: found[bill] for party, bill in bills.items()} if all(map(math.isfinite, found.values())) else None


def summarise(plan: RunPlan, dataset: DatasetRef, evaluation: Evaluation, references: list[ReleaseRef]) -> RunResult:
    """Put a run's public numbers together."""
    proved = proved_by_party(plan)
    return RunResult(
        algorithm=plan.system,
        dataset=dataset.name,
        trust=str(plan.trust),
        proved=proved,
        claim=plan.claim,
        epsilon_spent=proved["epsilon"] if proved else None,
        delta_spent=proved["delta"] if proved else None,
        accuracy=evaluation.metrics.get("accuracy"),
        measured_on=evaluation.measured_on,
        metrics=evaluation.metrics,
        by_party=evaluation.by_party,
        split=plan.split,
        sound_counterpart=plan.sound_counterpart,
        run_key=plan.run_key,
        releases=tuple(reference.key for reference in references),
    )


@task(task_run_name="log {result.algorithm}", persist_result=False)
def report(
    config: TrainingConfig,
    dataset: DatasetRef,
    plan: RunPlan,
    result: RunResult,
    models: dict[str, list[ReleaseRef]],
) -> RunResult:
    """Log a run to MLflow and append it to the results; a run that was logged before is found again.

    ``models`` gives for each released model what rows pass through, the model last.
    """
    run_id = track_run(current_root(), _tracked(config, dataset, plan, result, models))
    logged = result.model_copy(update={"mlflow_run_id": run_id})
    record(config, logged)
    say("log", f"MLflow run {run_id[:8]}")
    return logged


def record(config: TrainingConfig, result: RunResult) -> None:
    """Append a run to the results; under its key, so that a run that is repeated is not counted twice.

    What was served from the cache tells nothing new, and its seconds are not those of the run that computed.
    """
    layout = current_layout()
    if result.cached:
        if is_recorded(layout, result.run_key):
            return
        result = result.model_copy(update={"seconds": None})
    row = result.model_dump(mode="json", exclude={"metrics", "by_party", "releases", "cached"})
    setting = config.model_dump(mode="json", exclude={"algorithm", "dataset", "trust"})
    append(layout, [{**row, **{f"config_{name}": value for name, value in setting.items()}}], run=result.run_key)
    measured = [("all", result.metrics), *result.by_party.items()]
    rows = [
        {
            "run_key": result.run_key,
            "algorithm": result.algorithm,
            "dataset": result.dataset,
            "party": party,
            "metric": name,
            "value": value,
        }
        for party, metrics in measured
        for name, value in metrics.items()
    ]
    if rows:
        append(layout, rows, table="metrics", run=result.run_key)


def describe(config: TrainingConfig, dataset: DatasetRef, plan: RunPlan, result: RunResult) -> RunReport:
    """Return what MLflow is told of a run under names that line up over all algorithms, without models and children."""
    params: dict[str, Any] = {
        name: value
        for name, value in config.model_dump(mode="json").items()
        if name not in ("dataset", "algorithm", "trust", "parameters") and value is not None
    }
    for release in plan.releases:
        # What runs, defaults included: whoever compares runs later cannot look up what the defaults were.
        algorithm = build(release)
        for name in (field.name for field in dataclasses.fields(algorithm) if field.init and field.name != "budget"):
            params.setdefault(f"{release.kind.removesuffix('s')}.{name}", getattr(algorithm, name))
    numbers = {
        "epsilon_spent": result.epsilon_spent,
        "delta_spent": result.delta_spent,
        "seconds": result.seconds,
        "releasing_seconds": result.releasing_seconds,
        **result.metrics,
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
            "proved": f"({proved['epsilon']:.6g}, {proved['delta']:.2g})-DP" if proved else None,
            "claim": result.claim["statement"] if result.claim else None,
            "paper": plan.paper or None,
            "neighbours": proved["neighbours"] if proved else None,
            "numerics": proved["numerics"] if proved else None,
        },
        params={**params, "normalisation": plan.normalisation},
        metrics={name: float(value) for name, value in numbers.items() if value is not None},
        tags={"unitball.prefect_flow_run": flow_run or "", "unitball.sound": str(proved is not None)},
        inputs=(DatasetInput(name=dataset.name, version=dataset.version, account=dataset.account),),
        note=note_of(result) + (f"\n\n[Flow run in Prefect]({flow_run_page(flow_run)})" if flow_run else ""),
    )


def _tracked(
    config: TrainingConfig,
    dataset: DatasetRef,
    plan: RunPlan,
    result: RunResult,
    models: dict[str, list[ReleaseRef]],
) -> RunReport:
    return dataclasses.replace(
        describe(config, dataset, plan, result),
        children=_children(plan, result),
        model=_model_report(config, dataset, result, models),
        files={"result.json": result.model_dump_json(indent=2)},
    )


def _children(plan: RunPlan, result: RunResult) -> tuple[ChildReport, ...]:
    """Return one child a party: its rows, what it has paid, and how its own model does where it has one."""
    params = {"epsilon": plan.epsilon, "delta": plan.delta}
    sizes = {
        party: rows
        for release in plan.models
        for party, rows in zip(release.parties, release.public_facts().sizes, strict=True)
    }
    if len(sizes) > _MOST_CHILDREN:
        return (ChildReport(name="all parties", params=params, metrics={"rows": float(sum(sizes.values()))}),)
    spent = _spent_by_party(plan) or {}
    return tuple(
        ChildReport(
            name=f"party {party}",
            params=params,
            metrics={
                "rows": float(rows),
                **({"epsilon_spent": spent[party], "delta_spent": float(result.delta_spent or 0)} if spent else {}),
                **result.by_party.get(party, {}),
            },
        )
        for party, rows in sizes.items()
    )


def _model_report(
    config: TrainingConfig, dataset: DatasetRef, result: RunResult, models: dict[str, list[ReleaseRef]]
) -> ModelReport | None:
    # Where each party has a model of its own, the first one stands for all.
    *maps, model = [read_release(reference) for reference in next(iter(models.values()))]
    learnt = not lookup("normalisations", dataset.normalisation).row_local
    try:
        pipeline = to_sklearn(
            normalisation=row_map(find_dataset(config.dataset), dataset.normalisation)
            if learnt
            else dataset.normalisation,
            maps=maps,
            model=model,
            classes=dataset.classes,
            dimension=dataset.dimension,
        )
    except ParameterError:
        # A map without a pipeline step of its own: the arrays are in the release.
        return None
    return ModelReport(
        pipeline=pipeline,
        dimension=dataset.dimension,
        classes=dataset.classes,
        registered_name=f"{dataset.name}.{result.algorithm}",
    )


def note_of(result: RunResult) -> str:
    """Return what there is to say of a run, as Markdown."""
    lines = [f"**{result.algorithm}** on **{result.dataset}**, trust {result.trust}."]
    if result.proved:
        lines.append(
            f"Proved: ({result.proved['epsilon']:.4g}, {result.proved['delta']:.2g})-DP a party, "
            f"{result.proved['neighbours']}, {result.proved['numerics']} numerics."
        )
    else:
        lines.append("Proved: **none**.")
    if result.claim:
        lines.append(f"Claimed: {result.claim['statement']} ({result.claim['theorem']}).")
        if result.claim.get("flaw"):
            lines.append(f"Flaw: {result.claim['flaw']}")
    if result.sound_counterpart:
        lines.append(f"Sound counterpart: {result.sound_counterpart}.")
    return "\n\n".join(lines)
