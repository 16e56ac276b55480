"""Accuracy against epsilon on one data set: the recommended system beside the papers' and a reference without noise."""

from __future__ import annotations

from collections.abc import Sequence

from dpalgos.registry import lookup
from tasks.experiments.specification import Block, Plot, SweepSpec
from tasks.planning.configuration import TrainingConfig

FRONTIER_PLOT = Plot(x="epsilon", log_x=True)
"""What is drawn of it: a line an algorithm, with the spread over the seeds."""


def frontier_sweep(
    config: TrainingConfig, algorithms: Sequence[str], epsilons: Sequence[float], seeds: int
) -> SweepSpec:
    """Return the runs of a frontier: every algorithm at every budget and seed, those without noise once a seed.

    Parameters
    ----------
    config : TrainingConfig
        What all runs have in common: data set, parties, trust, relation, delta. Algorithm, epsilon and seeds in it are
        not looked at; a trust model is asked of the algorithms that run under it, what is declared of mirror images of
        those that look at images; the others keep their own.
    algorithms : sequence of str
        Named systems.
    epsilons : sequence of float
    seeds : int
        Of noise and partition, from 0.

    Raises
    ------
    UnknownNameError
        For an algorithm that is not registered.
    """
    left_out = {"algorithm", "epsilon", "seed", "partition_seed", "parameters", "trust", "secure", "dataset", "mirror"}
    shared = config.model_dump(mode="json", exclude=left_out, exclude_defaults=True)
    blocks = []
    for name in algorithms:
        supported = lookup("systems", name).supported()
        arrangement = next(iter(supported.values()))
        parts = [part for part in (arrangement.projection, arrangement.trainer) if part is not None]
        noisy = any(lookup(part.kind, part.name).budgets for part in parts)
        asked: dict[str, object] = {"trust": str(config.trust)} if config.trust in supported else {}
        if config.mirror is not None and any(hasattr(lookup(part.kind, part.name), "mirror") for part in parts):
            asked["mirror"] = config.mirror
        # Without noise the partition alone differs; a private run's lines are drawn over the same budgets.
        budget = {"grid": {"epsilon": list(epsilons)}} if noisy else {"set": {"epsilon": None}}
        blocks.append(Block(set={"algorithm": name, **asked, **budget.get("set", {})}, grid=budget.get("grid", {})))
    return SweepSpec(
        name=f"frontier-{config.dataset}",
        title=f"Accuracy against the privacy budget: {config.dataset}",
        question="Which accuracy does a budget buy, and how far is it from training without privacy?",
        set={"dataset": config.dataset, **shared},
        grid={"seeds": list(range(seeds))},
        blocks=blocks,
    )
