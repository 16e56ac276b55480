"""Column statistics of a registered data set, as data frames: principal components, synthetic rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import pandas as pd

from tasks.datasets.registration import ensure_registered
from tasks.planning.column_statistics import ReductionRequest, StatisticsPlan, StatisticsRequest, SynthesisRequest
from tasks.release.drawn_rows import frame_of_rows
from tasks.release.moments import plan_reduction
from tasks.release.single import price_of_plan, require_affordable
from tasks.release.synthesis import plan_synthesis
from unitball.training import using_root
from unitball.wording import checked, spoken_in_python

Request = TypeVar("Request", bound=StatisticsRequest)
Plan = TypeVar("Plan", bound=StatisticsPlan)


def _planned(request: Request, planner: Callable[[Request], Plan]) -> Plan:
    """Return a plan that there is room for, at the epsilon that the caller has stated."""
    ensure_registered(request.dataset)
    plan = planner(request)
    same = {"delta": plan.delta}
    require_affordable(plan, lambda epsilon: planner(request.model_copy(update={"epsilon": epsilon, **same})))
    if request.epsilon is None and (price := price_of_plan(plan)) is not None:
        raise price.refusal(f"give epsilon={plan.epsilon:g}")
    return plan


@spoken_in_python()
def reduce(
    dataset: str,
    *,
    epsilon: float | None = None,
    components: int | None = None,
    score_counts: bool = False,
    delta: float | None = None,
    center: bool = True,
    trust: str | None = None,
    version: str | None = None,
    replicate: int = 0,
    root: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Release second moments of a data set's columns and return their principal components; as ``unitball reduce``.

    Another number of components is the same release and is free.

    Parameters
    ----------
    dataset : str
        A registered data set.
    epsilon : float, optional
        ε of all that is released, per row or person, above 0. Default: 0.5 for public rows, and for private rows if
        that release is already charged.
    components : int, optional
        Default: those above the noise.
    score_counts : bool
        Whether counts of the scores along the first two components are released as well, for a tenth of the budget in
        μ². ``attrs["scores"]`` has them.
    delta : float, optional
        Default: 105/128 of the cap's; 1e-5 on public rows.
    center : bool
        Whether rows are centred at a released mean; at the declared middle otherwise.
    trust : str, optional
        Trust model of several parties' own files: ``local`` (default), ``secagg`` or ``central``.
    version : str, optional
        Default: the newest.
    replicate : int
        Another number is another release, drawn and charged again.
    root : path, optional
        Default: ``UNITBALL_ROOT`` or the user's own.

    Returns
    -------
    data frame
        A line per component: ``variance``, the ends ``low`` and ``high`` of its 95 % margin, the eigenvalue ``noisy``
        around which that is, ``share`` of the total variance, ``loadings`` of the columns with the largest. Its
        ``attrs`` hold what the release cost, and ``basis``, which ``train(…, basis=…)`` takes.

    Raises
    ------
    storage.errors.PriceError
        If private rows would be charged and no ``epsilon`` is given; nothing is charged.
    storage.errors.RefusedError
        If the account's cap would be exceeded; nothing is charged then.
    storage.errors.InputError
        If no component is above the noise and no number is given, or ranges are not declared.
    """
    given = {"dataset": dataset, "epsilon": epsilon, "components": components, "score_counts": score_counts}
    given |= {"delta": delta, "center": center, "trust": trust, "version": version, "replicate": replicate}
    request = checked("reduce", ReductionRequest, given)
    with using_root(root):
        plan = _planned(request, plan_reduction)
        # Prefect takes seconds.
        from flows.column_statistics import REDUCTION

        found = REDUCTION.chain_inline(plan, request)
    frame = pd.DataFrame([asdict(one) for one in found.components])
    frame.attrs |= {name: value for name, value in found.to_json().items() if name != "components"}
    return frame


@spoken_in_python()
def synthesise(
    dataset: str,
    *,
    epsilon: float | None = None,
    root: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> pd.DataFrame:
    """Draw synthetic rows of a table from released counts, charged once to its account; as ``unitball synthesise``.

    Histograms of the columns, tables of all pairs of columns by class in a few groups, and one table per column of a
    tree are released with Gaussian noise and charged as one plan. Rows are drawn only from these tables. The same
    budget on the same version gives the same releases; any number of rows and any seed are then free.

    Parameters
    ----------
    dataset : str
        A registered table.
    epsilon : float, optional
        ε of all stages together per row or person, above 0. Default: 1 for public rows, and for private rows if those
        releases are already charged.
    root : path, optional
        Default: ``UNITBALL_ROOT`` or the user's own folder.
    **settings
        Fields of :class:`tasks.planning.column_statistics.SynthesisRequest`, as the command's options: ``delta``,
        ``trust``, ``pairs``, ``test_fraction``, ``rows``, ``seed``, ``name``, ``output``.

    Returns
    -------
    pandas.DataFrame
        Raw cells of the schema's columns, one record per row; None where a cell is missing. ``attrs`` hold the lineage:
        ``synthetic``, ``synthesis`` and ``rests_on`` (keys of releases), ``epsilon`` and ``delta`` of what they cost
        together, ``seed``, and ``name``, the derived data set that holds the rows.

    Raises
    ------
    storage.errors.PriceError
        If private rows would be charged and no ``epsilon`` is given; the message has the price, and nothing is charged.
    storage.errors.RefusedError
        If the account's cap would be exceeded; nothing is released then.
    storage.errors.InputError, dpalgos.parameters.ParameterError
        If a setting does not fit.
    """
    request = checked("synthesise", SynthesisRequest, {"dataset": dataset, "epsilon": epsilon, **settings})
    with using_root(root):
        plan = _planned(request, plan_synthesis)
        from flows.column_statistics import SYNTHESIS

        return frame_of_rows(SYNTHESIS.chain_inline(plan, request))
