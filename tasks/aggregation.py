"""The server's part: putting released bases and models together, which costs nothing."""

from __future__ import annotations

import numpy as np
from prefect import task

from dpalgos.registry import AlgorithmSpec
from storage.refs import ReleaseRef
from tasks.caching import BY_CONTENT
from tasks.door import read_release, store_combination
from tasks.plans import PlannedCombination
from tasks.progress import say

__all__ = ["aggregate"]


@task(task_run_name="{combination.label}", cache_policy=BY_CONTENT, persist_result=True)
def aggregate(combination: PlannedCombination, releases: list[ReleaseRef]) -> ReleaseRef:
    """Combine releases into one; takes releases and returns a release, and gets no shard."""
    aggregator = AlgorithmSpec("aggregators", combination.name, combination.parameters).build()
    artefact = aggregator.combine([read_release(release) for release in releases], np.array(combination.weights))
    description = combination.model_dump(mode="json", exclude={"key", "label"})
    reference = store_combination(combination.key, combination.label, description, artefact)
    say("aggregation", combination.label)
    return reference
