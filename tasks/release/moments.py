"""Second moments of a version's rows as a release, and its principal components: planned from declared columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict, cast

import numpy as np

from dpalgos.accounting.profiles import gaussian_epsilon
from dpalgos.column_maps import how_summed
from dpalgos.components import Components, principal_components
from dpalgos.evaluators.second_moments import Moments, SecondMoments
from dpalgos.guarantees import GaussianMu, rounded_up
from dpalgos.models import Statistic
from dpalgos.registry import AlgorithmSpec, lookup
from storage.errors import InputError
from storage.refs import DatasetRef, TableColumn
from tasks.planning.identity import code_version
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.preparation.paid_moments import NAME
from tasks.release.prices import REDUCTION_EPSILON
from tasks.release.single import SinglePlan, plan_single

LABEL = "second moments of the columns"


class Geometry(TypedDict):
    """Where rows lie by what is declared of their columns: parameters of :class:`SecondMoments`."""

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
        If nothing is declared of their columns, and they are no images.
    """
    if dataset.columns:
        return geometry(dataset.columns, dataset.dimension)
    if dataset.image_shape is None:
        raise InputError(
            f"the columns of {dataset.name} have no declared ranges, by which they would be scaled; ingest it with "
            "--schema FILE, or, if rows are images whose pixels lie between 0 and 1, with --image-shape"
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
        f"reaches {found.floor:.3g} in one of twenty releases. A component that holds a tenth of the total variance "
        f"shows from about epsilon {needed:g} at delta {planned.delta:g}; give that, or the number of components"
    )


def plan_components(planned: PlannedRelease, components: int, partition: str | None = None) -> PlannedCombination:
    """Return the plan of a map onto the leading components of a release: post-processing, which costs nothing.

    Parameters
    ----------
    planned : PlannedRelease
        The moments.
    components : int
    partition : str, optional
        Of the run that uses it; that of the release where None.
    """
    how = how_summed(cast(SecondMoments, planned.build()), planned.setting)
    spec = AlgorithmSpec("aggregators", "principal-components", {"components": components, "release": how})
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
