"""The server's part: putting released bases and models together, which costs nothing."""

from __future__ import annotations

import numpy as np
from prefect import task

from dpalgos.errors import ParameterError
from dpalgos.registry import AlgorithmSpec
from storage.refs import ReleaseRef
from tasks.planning.plans import PlannedCombination
from tasks.release.door import read_release, store_combination
from tasks.runtime.caching import BY_CONTENT
from tasks.runtime.progress import say

__all__ = ["aggregate"]


@task(task_run_name="{combination.label}", cache_policy=BY_CONTENT, persist_result=True)
def aggregate(combination: PlannedCombination, releases: list[ReleaseRef]) -> ReleaseRef:
    """Combine releases into one; takes releases and returns a release, and gets no shard.

    Raises
    ------
    ParameterError
        If the releases are of a kind that the aggregator does not combine.
    """
    aggregator = AlgorithmSpec("aggregators", combination.name, combination.parameters).build()
    artefacts = [read_release(release) for release in releases]
    if other := {artefact.kind for artefact in artefacts} - {aggregator.combines}:
        raise ParameterError(
            f"{combination.name} combines releases of kind {aggregator.combines}, and the parties' are of kind "
            f"{', '.join(sorted(other))}; train a linear kernel (--param kernel=linear), or all rows together "
            "(--trust central)"
        )
    artefact = aggregator.combine(artefacts, np.array(combination.weights))
    description = combination.model_dump(mode="json", exclude={"key", "label"})
    reference = store_combination(combination.key, combination.label, description, artefact)
    say("aggregation", combination.label)
    return reference
