"""Contents of a table's columns, as a data frame."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from dpalgos.parameters import ParameterError
from storage.errors import InputError
from storage.hidden_cells import cells_hidden
from storage.refs import Visibility
from tasks.datasets.registration import ensure_registered, ingest
from tasks.datasets.request import IngestRequest
from tasks.experiments.description_figure import draw_description
from tasks.experiments.pair_figure import draw_pairs
from tasks.release.column_counts import plan_counts, version_of
from tasks.release.column_pairs import named_pairs, plan_pairs
from tasks.release.descriptions import describe as described
from tasks.release.descriptions import terms_of
from tasks.release.pair_descriptions import describe_pairs, terms_of_pairs
from tasks.tracking.descriptions import record_description
from unitball.tables import bring_in, require_given
from unitball.training import one_at_a_time, using_root
from unitball.wording import checked, spoken_in_python


@spoken_in_python()
def describe(
    dataset: Any,
    *,
    schema: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    name: str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    trust: str | None = None,
    version: str | None = None,
    against: str | None = None,
    pairs: Sequence[str | Sequence[str]] = (),
    by: str | None = None,
    plan: bool = False,
    plot: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    **rows: Any,
) -> pd.DataFrame:
    """Release histograms or tables of pairs of columns, charged once to the account; as ``unitball describe``.

    The same version, budget and trust model give the same release, which is free when it is repeated.

    Parameters
    ----------
    dataset : str or frame
        A registered data set, or the name of a new one whose file is given. Or rows in memory, as of
        :func:`unitball.train`, which are registered first.
    schema : mapping or path, optional
        With rows in memory: what each column may hold (page The schema of a table).
    name : str, optional
        With rows in memory: name of their data set.
    epsilon : float, optional
        ε of the release per row or person, above 0. Default: 0.2 for public rows, and for private rows if that release
        is already charged.
    delta : float, optional
        Default: 105/128 (82 %) of the cap's; 1e-5 for public rows.
    trust : str, optional
        Trust model of several parties' own files: ``local`` (default), ``secagg`` or ``central``.
    version : str, optional
        Default: the newest.
    against : str, optional
        Another version whose release is already charged: the frame then has differences, this version minus the other.
    pairs : sequence of pairs of names, or of texts such as ``"age,outcome"``
        Count the tables of these pairs of columns instead of single columns.
    by : str, optional
        A column whose values are groups: each other column, and the label, is counted by them.
    plan : bool
        Release and charge nothing: the frame is empty, and its ``attrs`` say what it would cost.
    plot : path, optional
        A PNG file to write the histograms to.
    root : path, optional
        ``UNITBALL_ROOT`` or the user's own by default.
    **rows
        Of :class:`tasks.datasets.request.IngestRequest`, for rows that are registered first: of a file ``path``,
        ``format``, ``schema_path``, …; of both ``account``, ``epsilon_cap``, ``delta_cap``, ``on_violation``, ….

    Returns
    -------
    data frame
        A row per number. Of pairs: ``first``, ``second`` (the two columns), ``what`` (association, total, count, share,
        difference), ``group`` (a cell of the first), ``of`` (a cell of the second), ``value``, ``low``, ``high``,
        ``measured`` and ``reason``. Its ``attrs`` also hold ``rests_on``, the keys of one-way counts with which the
        tables were made consistent, and ``epsilon_together``, of these and the release.

        Single columns: ``column``, ``kind``, ``what`` (bar, count, other, share, quartile, mean, missing), ``of``,
        ``value``, the ends ``low`` and ``high`` of its 95 % margin in the column's units, and ``measured``. If that is
        false, the value cannot be measured at this budget, and ``reason`` has the reason. An end that is None next to a
        value is open. Differences also have ``here`` and ``there``. Its ``attrs`` hold the price of the release and its
        account; for a comparison also ``measured``, ``beyond`` and ``by_chance``: the number of measured differences,
        how many of them leave their margin, and about how many would if nothing differed.

    Raises
    ------
    storage.errors.PriceError
        If private rows would be charged and no ``epsilon`` is given; the message has the price, and nothing is charged.
    storage.errors.RefusedError
        If the account's cap would be exceeded, also by what is only planned, or the other version's release is not
        paid; nothing is charged then.
    storage.errors.InputError, dpalgos.parameters.ParameterError
        For what does not fit.
    """
    if plan and (unused := [name for name, one in (("plot", plot), ("against", against)) if one is not None]):
        raise ParameterError(f"plan returns the price and reads no row; omit {', '.join(unused)}")
    place = None if plot is None else Path(plot)
    if place is not None and place.exists():
        raise InputError(f"{place} exists; name another file, or remove it first")
    if (pairs or by is not None) and against is not None:
        raise InputError("against compares single columns of two versions; omit it, or omit pairs and by")
    given = not isinstance(dataset, str)
    require_given(dataset, schema, name)
    with using_root(root):
        with one_at_a_time(name or "rows") if given else nullcontext():
            if given:
                dataset = bring_in("describe", dataset, schema, name, rows)
            elif rows:
                request = checked("describe", IngestRequest, {"name": dataset, **rows})
                with nullcontext() if request.visibility is Visibility.PUBLIC else cells_hidden():
                    ingest(request)
            ensure_registered(dataset)
            registered = version_of(dataset, version)
            if pairs or by is not None:
                names = named_pairs(registered, pairs, by)
                of_pairs = plan_pairs(registered, names, epsilon, delta=delta, trust=trust)
                planned = of_pairs.counts
            else:
                of_pairs = None
                planned = plan_counts(registered, epsilon, delta=delta, trust=trust)
        if plan:
            planned.require_affordable()
            terms = (
                terms_of(planned, paid=planned.paid)
                if of_pairs is None
                else terms_of_pairs(of_pairs, paid=planned.paid)
            )
            return _framed([], asdict(terms))
        if epsilon is None and (price := planned.price) is not None:
            raise price.refusal(f"give epsilon={planned.epsilon:g}")
        if of_pairs is not None:
            tables = describe_pairs(of_pairs)
            record_description(of_pairs, tables, draw_pairs)
            if place is not None:
                place.write_bytes(draw_pairs(tables))
            return _framed(tables.lines(), asdict(tables.terms))
        found = described(planned, against)
        record_description(planned, found, draw_description)
    if place is not None:
        place.write_bytes(draw_description(found))
    if (comparison := found.comparison) is None:
        return _framed(found.lines(), asdict(found.terms))
    numbers = {name: getattr(comparison, name) for name in ("measured", "beyond", "by_chance")}
    return _framed(found.lines(), {**asdict(found.terms), "against": comparison.version, **numbers})


def _framed(lines: list[dict[str, Any]], terms: dict[str, Any]) -> pd.DataFrame:
    names = ["column", "kind", "what", "of", "value", "low", "high", "measured", "reason"]
    frame = pd.DataFrame(lines, columns=None if lines else names)
    frame.attrs |= terms
    return frame
