"""Second moments of a version's rows as a release, and its principal components: planned from declared columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict, cast

import numpy as np

from dpalgos.accounting.profiles import gaussian_epsilon
from dpalgos.column_maps import how_summed
from dpalgos.components import Components, principal_components
from dpalgos.evaluators.second_moments import Moments, SecondMoments
from dpalgos.guarantees import GaussianMu, rounded_up
from dpalgos.models import Statistic
from dpalgos.pair_tables import parts_for
from dpalgos.registry import AlgorithmSpec, lookup
from storage.errors import InputError
from storage.refs import DatasetRef, TableColumn
from tasks.planning.column_statistics import ReductionPlan, ReductionRequest
from tasks.planning.identity import code_version
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.preparation.paid_moments import NAME
from tasks.release.column_counts import version_of
from tasks.release.prices import REDUCTION_EPSILON
from tasks.release.single import SinglePlan, plan_single

LABEL, SCORES = "second moments of the columns", "counts of scores along two components"
SCORES_SHARE = 0.1
"""Of the budget in μ², what counts of scores get."""
_DEVIATIONS, _MOST_PARTS = 3.0, 24


class Geometry(TypedDict):
    """The geometry of rows by their declared columns: parameters of :class:`SecondMoments`."""

    origin: list[float]
    varies: list[int]
    mean_radius: float
    radius: float


def geometry(columns: Sequence[TableColumn], dimension: int) -> Geometry:
    """Return the declared middle of each feature, which features vary, and how long rows are about the middle.

    A number's middle is that of its range; a category's is the same share for each of its values; an indicator's is 0.
    An intercept's coordinate is a constant. Encoded rows that fill their ranges evenly have norm 1 on average, which is
    the radius.
    """
    origin, varies, squared = np.zeros(dimension), set[int](), 0.0
    indicated = max((one.high for one in columns if one.values is not None), default=1.0)
    for one in columns:
        if one.values is None:
            origin[one.at] = (one.low + one.high) / 2.0
            squared += ((one.high - one.low) / 2.0) ** 2
            varies.add(one.at)
        else:
            places = range(one.at, one.at + one.values)
            origin[list(places)] = one.high / one.values
            squared += one.high**2 * max(1.0 - 1.0 / one.values, 1.0 / one.values)
            varies.update(places)
        if one.missing is not None and one.missing not in varies:
            squared += indicated**2
            varies.add(one.missing)
    # float32 rounds a row's features.
    reach = math.sqrt(squared) * (1.0 + 1e-6)
    return {"origin": origin.tolist(), "varies": sorted(varies), "mean_radius": reach, "radius": min(1.0, reach)}


def geometry_of(dataset: DatasetRef) -> Geometry:
    """Return where the rows of a version lie.

    Raises
    ------
    InputError
        If the columns have no declarations, and the rows are not images.
    """
    if dataset.columns:
        return geometry(dataset.columns, dataset.dimension)
    if dataset.image_shape is None:
        raise InputError(
            f"the columns of {dataset.name} have no declared ranges, which scaling needs; ingest it with --schema "
            "FILE, or, if rows are images whose pixels lie between 0 and 1, with --image-shape"
        )
    size = dataset.dimension
    return {
        "origin": [0.5] * size,
        "varies": list(range(size)),
        "mean_radius": math.sqrt(size) / 2.0,
        "radius": math.sqrt(size / 12.0),
    }


def plan_moments(
    dataset: DatasetRef,
    epsilon: float | None = None,
    *,
    delta: float | None = None,
    trust: str | None = None,
    center: bool = True,
    replicate: int = 0,
) -> SinglePlan:
    """Return the plan of the second moments of a version's rows; no row is read and nothing is charged.

    Parameters
    ----------
    dataset : DatasetRef
        As registered.
    epsilon : float, optional
        Above 0, at delta; :data:`~tasks.release.prices.REDUCTION_EPSILON` where None.
    delta, trust, replicate
        As of :func:`~tasks.release.single.plan_single`.
    center : bool
        Whether moments are about a released mean; about the declared middle otherwise.

    Raises
    ------
    InputError, ParameterError
        As :func:`~tasks.release.single.plan_single` does, and if the columns' ranges are not declared.
    """
    spec = AlgorithmSpec("evaluators", NAME, {**geometry_of(dataset), "center": center})
    stated = REDUCTION_EPSILON if epsilon is None else epsilon
    return plan_single(dataset, lambda mu: spec, LABEL, stated, delta=delta, trust=trust, replicate=replicate)


def plan_reduction(request: ReductionRequest) -> ReductionPlan:
    """Return the plan of a reduction; no row is read and nothing is charged.

    Requested counts of scores belong to the plan's adaptive composition: a Gaussian mechanism at √f μ, f
    the public :data:`SCORES_SHARE`, on rows seen through a map that the moments at √(1 − f) μ decide. A row is in one
    cell of one table (:class:`~dpalgos.evaluators.pair_counts.PairCounts`), for any map. The number of cells follows
    from public numbers.

    Raises
    ------
    InputError, ParameterError
        As :func:`plan_moments` does, and if scores are to be counted of fewer than two columns.
    """
    dataset = version_of(request.dataset, request.version)
    single = plan_moments(
        dataset,
        request.epsilon,
        delta=request.delta,
        trust=request.trust,
        center=request.center,
        replicate=request.replicate,
    )
    plan = ReductionPlan(
        dataset=dataset,
        partition=single.partition,
        moments=single.planned,
        epsilon=single.epsilon,
        delta=single.delta,
    )
    if not request.score_counts:
        return plan
    mu = cast(GaussianMu, single.planned.budget).mu
    moments = single.planned.model_copy(update={"budget": GaussianMu(mu * math.sqrt(1.0 - SCORES_SHARE))})
    width = cast(SecondMoments, moments.build()).width(moments.setting)
    if width < 2:
        raise InputError(f"{dataset.name} has {width} column that varies, and --score-counts needs two; omit it")
    plane = plan_components(moments, 2, deviations=_DEVIATIONS)
    setting, budget = replace(moments.setting, dimension=2), GaussianMu(mu * math.sqrt(SCORES_SHARE))
    deviation = math.sqrt(setting.neighbours.records) / budget.mu * setting.noise_factor
    parts = parts_for(dataset.rows, deviation, _MOST_PARTS)
    edges = [place / parts for place in range(1, parts)]
    ends = None if dataset.label_range is None else list(dataset.label_range)
    counting: dict[str, object] = {
        "columns": [{"at": at, "low": -1.0, "high": 1.0} for at in range(2)],
        "tables": [[0, 1]],
        "edges": [edges, edges],
        "label_range": ends,
    }
    spec = AlgorithmSpec("evaluators", "pair-counts", counting)
    scores = moments.model_copy(
        update={
            "label": SCORES,
            "code": code_version(*spec.classes(), lookup(moments.trust.kind, moments.trust.name)),
            "algorithm": spec,
            "budget": budget,
            "setting": setting,
            "upstream": (plane.key,),
        }
    )
    return plan.model_copy(update={"moments": moments, "plane": plane, "scores": scores})


def moments_in(planned: PlannedRelease, released: Statistic) -> Moments:
    """Return the moments that a release says."""
    return cast(SecondMoments, planned.build()).decoded(released.values, planned.setting)


def components_in(planned: PlannedRelease, released: Statistic, components: int | None) -> Components:
    """Return the leading components of a release: so many, or those above the noise.

    Raises
    ------
    InputError
        If none is above the noise, with the epsilon that would be needed.
    ParameterError
        If there are not so many.
    """
    found = principal_components(moments_in(planned, released), components)
    if components is None and not found.above:
        raise InputError(_none_above(planned, found))
    return found


def _none_above(planned: PlannedRelease, found: Components) -> str:
    mu = cast(GaussianMu, planned.budget).mu * found.less_noise
    needed = rounded_up(gaussian_epsilon(mu, planned.delta), 2)
    return (
        f"no component is above the noise: the largest noisy variance is {found.noisy[0]:.3g} and the noise alone "
        f"reaches {found.floor:.3g} in one of twenty releases. A component with 10 % of the total variance exceeds it "
        f"from about epsilon {needed:g} at delta {planned.delta:g}; give that epsilon, or the number of components"
    )


def plan_components(
    planned: PlannedRelease, components: int, partition: str | None = None, *, deviations: float | None = None
) -> PlannedCombination:
    """Return the plan of a map onto the leading components of a release: post-processing, which has no privacy cost.

    Parameters
    ----------
    planned : PlannedRelease
        The moments.
    components : int
    partition : str, optional
        Of the run that uses it; that of the release where None.
    deviations : float, optional
        By how many standard deviations scores are divided (:class:`~dpalgos.column_maps.PrincipalColumns`).
    """
    parameters: dict[str, object] = {
        "components": components,
        "release": how_summed(cast(SecondMoments, planned.build()), planned.setting),
    }
    if deviations is not None:
        parameters["deviations"] = deviations
    spec = AlgorithmSpec("aggregators", "principal-components", parameters)
    return PlannedCombination(
        partition=planned.partition if partition is None else partition,
        dataset=planned.dataset,
        replicate=planned.replicate,
        seed=planned.seed,
        code=code_version(lookup(spec.kind, spec.name)),
        label="principal components",
        algorithm=spec,
        upstream=(planned.key,),
        weights=(),
    )
