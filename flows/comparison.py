"""Several training runs side by side, and a new version of a model against its champion."""

from collections.abc import Sequence
from typing import cast

from prefect import Flow, flow
from prefect.artifacts import create_markdown_artifact

from flows.federated_training import begin, train, training
from storage.errors import RefusedError
from tasks.datasets.schedules import allowed_comparison
from tasks.planning.configuration import TrainingConfig
from tasks.planning.graph import materialise
from tasks.planning.rows import FeatureStep
from tasks.preparation.prepare import Prepared, prepare_comparison
from tasks.records import compare_with_champion
from tasks.rows import resolve_dataset
from tasks.runtime.ending import announcing_failures, one_run_a_dataset, refused
from tasks.runtime.settings import current_root
from tasks.tracking.champion_comparison import ComparisonOutcome, ComparisonRequest, open_comparison
from tasks.tracking.promotion import promote
from tasks.tracking.results import RunResult


@flow(name="champion-comparison", flow_run_name="{request.model} against the champion", persist_result=False)
def champion_comparison(request: ComparisonRequest) -> ComparisonOutcome:
    """Compare a version with the champion of its name on the newest held-out rows; promote it where that was asked.

    Parameters
    ----------
    request : ComparisonRequest

    Returns
    -------
    ComparisonOutcome

    Raises
    ------
    storage.errors.RefusedError
        If the comparison's charge does not fit, or promotion is refused.
    storage.errors.InputError
        If there is nothing to compare with, or on.
    """
    try:
        with announcing_failures(f"unitball.model.{request.model}"):
            compared = _compared(request)
    except RefusedError as refusal:
        return cast(ComparisonOutcome, refused(refusal))
    return compared


def _compared(request: ComparisonRequest) -> ComparisonOutcome:
    model_comparison = open_comparison(current_root(), request.model)
    config = model_comparison.lineages[0].config
    allowed, wanted = allowed_comparison(config.dataset, config.system)
    with one_run_a_dataset(config.dataset):
        registered = resolve_dataset(config.dataset)
        prepared = prepare_comparison(config)
        *_, shards = materialise(prepared.rows, begin).values()
        features = [node for node in prepared.nodes.values() if isinstance(node, FeatureStep)]
        epsilon = (request.epsilon or allowed) if registered.private else None
        compared = compare_with_champion(model_comparison, shards, features, epsilon)
    create_markdown_artifact(compared.statement, key="comparison", description="Comparison with the champion")
    if compared.better and (wanted if request.promote is None else request.promote):
        promote(current_root(), compared.model, compared.version)
    return compared


@flow(name="comparison", flow_run_name="several algorithms side by side", persist_result=False)
def compare(configs: list[TrainingConfig]) -> list[RunResult]:
    """Run each configuration in turn; the first refusal or error stops the comparison.

    Parameters
    ----------
    configs : list of TrainingConfig

    Returns
    -------
    list of RunResult
        In the order given.
    """
    return [train(config) for config in configs]


def comparing(plans: Sequence[Prepared]) -> Flow[[list[TrainingConfig]], list[RunResult]]:
    """Return the flow :func:`compare` for plans whose price was shown before the engine was started."""

    @flow(name="comparison", flow_run_name="several algorithms side by side", persist_result=False)
    def compare(configs: list[TrainingConfig]) -> list[RunResult]:
        return [training(prepared)(config) for prepared, config in zip(plans, configs, strict=True)]

    return compare
