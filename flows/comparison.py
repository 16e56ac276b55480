"""Several training runs on one data set, side by side."""

from __future__ import annotations

from prefect import flow

from flows.federated_training import train
from tasks.planning.configuration import TrainingConfig
from tasks.tracking.results import RunResult


@flow(name="comparison", persist_result=False)
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
