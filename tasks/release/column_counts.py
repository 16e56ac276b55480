"""Histograms of a version's columns as releases: planned, priced, paid once on the account, and found again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from dpalgos.evaluators.column_histograms import ColumnHistograms, bins_for
from dpalgos.histograms import ColumnCounts
from dpalgos.models import Statistic
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import Floats
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef
from tasks.datasets.registration import find_dataset
from tasks.datasets.scales import declared_schema
from tasks.planning.releases import PlannedRelease
from tasks.preparation.paid_counts import NAME, counted_columns
from tasks.release.prices import DESCRIPTION_EPSILON
from tasks.release.single import SinglePlan, plan_single
from tasks.release.storing import read_release, stored_release
from tasks.runtime.stores import open_catalog

LABEL = "histograms of the columns"


def version_of(name: str, version: str | None = None) -> DatasetRef:
    """Return a registered version of a data set; the newest where none is named.

    Raises
    ------
    InputError
        If there is none, naming those that there are.
    """
    newest = find_dataset(name)
    if version in (None, newest.version):
        return newest
    known = {one.version: one for one in open_catalog().registrations(name)}
    if version not in known:
        raise InputError(
            f"{name} has no version {version!r}; it has, oldest first: {', '.join(known)} "
            "(`unitball datasets --json` names the newest)"
        )
    return DatasetRef.model_validate(known[version].manifest["reference"])


def plan_counts(
    dataset: DatasetRef, epsilon: float | None = None, *, delta: float | None = None, trust: str | None = None
) -> SinglePlan:
    """Return the plan of the histograms of a version's columns; no row is read and nothing is charged.

    Counts go through running sums and means are taken from them: with sums of centred cells in addition to the counts,
    with a margin as narrow as theirs (weight 1), all other margins would be 8 to 13 % wider, for n = 300 to 84,000 rows
    of 6 to 15 columns. The number of bins is :func:`~dpalgos.evaluators.column_histograms.bins_for` of n, d and μ.

    Parameters
    ----------
    dataset : DatasetRef
        As registered.
    epsilon : float, optional
        Above 0, at delta; :data:`~tasks.release.prices.DESCRIPTION_EPSILON` where None.
    delta : float, optional
        What a run of Gaussian losses alone takes of the account's cap where None
        (:func:`~tasks.accounts.terms.gaussian_delta`); 1e-5 of public rows.
    trust : str, optional
        Of several parties' own files: local where None. One party's rows are its own curator's.

    Raises
    ------
    InputError
        If the version has no declared columns, or Gaussian noise has no delta.
    ParameterError
        For numbers beyond their bounds, or a trust model that does not admit it.
    """
    declared_schema(dataset)
    stated = DESCRIPTION_EPSILON if epsilon is None else epsilon
    return plan_single(dataset, partial(counting_columns, dataset), LABEL, stated, delta=delta, trust=trust)


def counting_columns(dataset: DatasetRef, mu: float) -> AlgorithmSpec:
    """Return what counts all columns of a data set, by the μ that the noise of all parties together has."""
    columns = counted_columns(dataset)
    ends = None if dataset.label_range is None else list(dataset.label_range)
    bins = bins_for(dataset.rows, len(columns) + 1, mu)
    return AlgorithmSpec("evaluators", NAME, {"columns": columns, "bins": bins, "label_range": ends})


Values = Callable[[PlannedRelease], Floats]
"""Returns the released numbers of counts."""


def stored_values(planned: PlannedRelease) -> Floats:
    """Return the numbers of a stored release.

    Raises
    ------
    RefusedError
        If it is not stored.
    """
    stored = stored_release(planned)
    if stored is None:
        raise RefusedError(f"{planned.label} of version {planned.dataset} are not released")
    return cast(Statistic, read_release(stored)).values


def counts_of(planned: PlannedRelease, values: Values = stored_values) -> ColumnCounts:
    """Return the counts that a release holds."""
    return ColumnCounts.of_release(values(planned), cast(ColumnHistograms, planned.build()), planned.setting)
