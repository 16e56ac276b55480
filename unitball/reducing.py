"""Principal components of a registered data set, as a data frame."""

from __future__ import annotations

import os
from dataclasses import asdict

import pandas as pd

from tasks.datasets.registration import ensure_registered
from tasks.planning.reduction import ReductionRequest
from tasks.release.moments import plan_reduction, price_of_reduction, require_reduction_affordable
from unitball.training import using_root
from unitball.wording import checked, spoken_in_python


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
        ensure_registered(dataset)
        plan = plan_reduction(request)
        require_reduction_affordable(plan, request)
        if epsilon is None and (price := price_of_reduction(plan)) is not None:
            raise price.refusal(f"give epsilon={plan.epsilon:g}")
        # Prefect takes seconds.
        from flows.reduction import chain_inline

        found = chain_inline(plan, components)
    frame = pd.DataFrame([asdict(one) for one in found.components])
    frame.attrs |= {name: value for name, value in found.to_json().items() if name != "components"}
    return frame
