"""Post-processing of releases by the server: no rows, no noise, no charge."""

from __future__ import annotations

from collections.abc import Sequence

from dpalgos.errors import ParameterError
from storage.refs import ReleaseRef
from tasks.planning.plans import PlannedCombination
from tasks.release.admission import require_upstream
from tasks.release.storing import read_releases, store_combination


def combine(combination: PlannedCombination, releases: Sequence[ReleaseRef]) -> ReleaseRef:
    """Combine releases into one and store it.

    Raises
    ------
    RefusedError
        If the releases are not those that the combination was planned of.
    ParameterError
        If the releases are of a kind that the aggregator does not combine.
    """
    require_upstream(combination, releases)
    aggregator, name = combination.build(), combination.algorithm.name
    artefacts = read_releases(releases)
    if other := {artefact.kind for artefact in artefacts} - {aggregator.combines}:
        raise ParameterError(
            f"{name} combines releases of kind {aggregator.combines}, and the parties' are of kind "
            f"{', '.join(sorted(other))}; train a linear kernel (--param kernel=linear), or all rows together "
            "(--trust central)"
        )
    return store_combination(combination, combination.combine(artefacts))
