"""Synthetic rows of a table, as a data frame."""

from __future__ import annotations

import os
from typing import Any

import pandas as pd

from tasks.datasets.registration import ensure_registered
from tasks.planning.synthesis import SynthesisRequest
from tasks.release.drawn_rows import frame_of_rows
from tasks.release.synthesis import plan_synthesis, price_of_synthesis, require_synthesis_admissible
from unitball.training import using_root
from unitball.wording import checked, spoken_in_python


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
        Fields of :class:`tasks.planning.synthesis.SynthesisRequest`, as the command's options: ``delta``, ``trust``,
        ``pairs``, ``test_fraction``, ``rows``, ``seed``, ``name``, ``output``.

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
        ensure_registered(dataset)
        plan = plan_synthesis(request)
        require_synthesis_admissible(plan)
        if epsilon is None and (price := price_of_synthesis(plan)) is not None:
            raise price.refusal(f"give epsilon={plan.epsilon:g}")
        # Prefect takes seconds.
        from flows.synthesis import chain_inline

        return frame_of_rows(chain_inline(plan, request))
