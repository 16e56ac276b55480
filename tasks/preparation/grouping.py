"""The groups of a table's rows by one declared column: what is declared decides, and no row is read."""

import difflib
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

import numpy as np

from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from storage.cells import column_name
from storage.columns.categories import Boolean, Category
from storage.columns.column import Column, MissingRows
from storage.columns.dates import CALENDAR, Date
from storage.columns.label import Label
from storage.columns.numeric import Numeric, Ordered
from storage.columns.person import Person
from storage.datasets import declared_table
from storage.errors import InputError
from storage.refs import DatasetRef, OnViolation, Scaling, TableColumn
from storage.schema import Schema, parse_schema
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.settings import current_layout

MOST_BRACKETS = 8
"""Parts of a number's declared range, and the most of a declared order."""
MOST_GROUPS = 50
# By how much of its range an edge lies lower than it is declared: features are stored in float32, and a value that is
# the edge of a bracket stays in the bracket above it.
_DOWN = 2.0**-20


def plan_groups(dataset: DatasetRef, config: TrainingConfig, normalisation: str) -> AlgorithmSpec | None:
    """Return the public map of a row to its group by the column that a configuration names; None where it names none.

    A category has a group a declared value, an order of up to eight values likewise, a longer one eight parts of
    neighbours; a number, or the days of a date, eight equal parts of the declared range, on its declared scale. A
    missing value is a separate group, the last, wherever one can be.

    Parameters
    ----------
    dataset : DatasetRef
        As it was registered.
    config : TrainingConfig
    normalisation : str
        What its rows pass through before anything else.

    Raises
    ------
    ParameterError, InputError
        If there is no such column, or its values cannot be told from the rows that a run reads; with the way out.
    """
    if config.by is None:
        return None
    by = f"by is {config.by}"
    table = declared_table(current_layout(), dataset)
    if table is None or "schema" not in table:
        raise ParameterError(
            f"{by}; {dataset.name} was registered without a schema, so columns have no names: omit --by, or "
            "register a table with a schema"
        )
    if config.features is not None or config.public_dataset is not None:
        raise ParameterError(
            f"{by}; this run maps rows by features or a public set, and mapped rows have no columns: omit one of the "
            "two"
        )
    schema = parse_schema(table["schema"], f"the schema of {dataset.name}")
    column = _declared(schema, column_name(config.by), by)
    first = sum(len(_places(one)) for one in schema.inputs[: schema.inputs.index(column)])
    if not schema.places:
        raise ParameterError(f"{by}; columns need declared ranges: declare them")
    place, clips = schema.places[first], OnViolation(table["on_violation"]).clips
    scales = lookup("normalisations", normalisation)
    if not scales.scales_rows:
        raise ParameterError(
            f"{by}; this run normalises rows by {normalisation}, which loses a column's values: choose "
            "--normalisation none, clip or unit-norm"
        )
    if place.values is not None:
        return _category(column, place, config.by, may_be_missing=schema.rule(column).keeps or clips)
    shares, names = _brackets(schema, column, by)
    missing = {} if place.missing is None else {"missing": place.missing}
    scaling: dict[str, object] = {}
    if schema.scaling is Scaling.CENTRED:
        scaling = {"scale": schema.dimension - 1, "unit": schema.intercept}
    elif scales.unit_ball:
        raise ParameterError(
            f"{by}; this run divides rows by their norms ({normalisation}), and with scaling {schema.scaling} a "
            "number's range is then unknown: register the table with scaling centred, choose a category column, or "
            "choose --normalisation none"
        )
    width = place.high - place.low
    return _spec(
        config.by,
        [*names, *([] if place.missing is None else [_unlike("missing", names)])],
        by,
        at=place.at,
        edges=[place.low + width * (share - _DOWN) for share in shares],
        **missing,
        **scaling,
    )


def _declared(schema: Schema, name: str, by: str) -> Column:
    """Return the column of a name whose values rows hold."""
    column = next((one for one in schema.columns if one.name == name), None)
    inputs = [one.name for one in schema.inputs]
    if column is None:
        near = difflib.get_close_matches(name, inputs, n=4, cutoff=0.3) or inputs[:4]
        raise ParameterError(f"{by}; the table has no such column; nearest: {', '.join(near)}")
    if isinstance(column, Label):
        raise ParameterError(f"{by}, which is the label: the confusion matrix already shows its classes; omit it")
    if isinstance(column, Person):
        raise ParameterError(f"{by}, which identifies people and cannot define groups: choose another column")
    if column not in schema.inputs:
        raise ParameterError(
            f"{by}, which the schema ignores, so it is not stored: declare its type, then ingest again"
        )
    if isinstance(column, Category) and column.hashed:
        raise ParameterError(f"{by} has hashed values, which cannot define groups: declare its values")
    return column


def _places(column: Column) -> list[None]:
    """Return as many as a column has places."""
    return [None] * (column.numbers + len(column.groups))


def _category(column: Column, place: TableColumn, name: str, *, may_be_missing: bool) -> AlgorithmSpec:
    assert isinstance(column, Category | Date), "no other column is one-hot"
    names = list(column.values if isinstance(column, Category) else CALENDAR[column.parts[0]])
    return _spec(
        name,
        [*names, *([_unlike("missing", names)] if may_be_missing else [])],
        f"by is {name}",
        at=place.at,
        values=place.values,
    )


def _brackets(schema: Schema, column: Column, by: str) -> tuple[list[float], list[str]]:
    """Return the edges between the groups of a number, as shares of its range, and the groups' names."""
    middle = schema.rule(column) is MissingRows.CONSTANT
    if isinstance(column, Boolean):
        # A missing flag lies between the two.
        return ([0.25, 0.75], ["false", "missing", "true"]) if middle else ([0.5], ["false", "true"])
    if middle:
        raise ParameterError(
            f"{by}; a missing cell is stored as the middle of its range (missing: constant), so the column cannot "
            "define groups: declare missing: indicator for it, and ingest again"
        )
    if isinstance(column, Ordered):
        return _in_order(column.values)
    if isinstance(column, Date) and column.parts[0] == "year":
        return _in_order([str(year) for year in range(column.range[0].year, column.range[1].year + 1)])
    shares = [part / MOST_BRACKETS for part in range(MOST_BRACKETS + 1)]
    if isinstance(column, Date):
        first, last = column.range
        days = [first + timedelta(days=share * (last - first).days) for share in shares]
        return shares[1:-1], _named([str(day) for day in days])
    assert isinstance(column, Numeric), "every other column is a number"
    assert column.range is not None, "whose range is declared"
    ends = np.array([[0.0], [1.0]])
    if schema.scaling is Scaling.CENTRED:
        low, high = column.place(ends).ravel().tolist()
        known = column.unplace(np.array([low + (high - low) * share for share in shares]))
    else:
        known = np.array(shares)
    numbers = column.range[0] + known * (column.range[1] - column.range[0])
    digits = next(one for one in (6, 10, 17) if len({f"{number:.{one}g}" for number in numbers}) == len(numbers))
    return shares[1:-1], _named([f"{number:.{digits}g}" for number in numbers])


def _named(ends: Sequence[str]) -> list[str]:
    """Return names of brackets between ends: each holds its lower one, and the last both."""
    below = [f"{low} to below {high}" for low, high in pairwise(ends[:-1])]
    return [*below, f"{ends[-2]} to {ends[-1]}"]


def _in_order(values: Sequence[str]) -> tuple[list[float], list[str]]:
    """Return the edges between, and the names of, at most eight groups of neighbours in a declared order."""
    parts = np.array_split(np.arange(len(values)), min(len(values), MOST_BRACKETS))
    names = [values[part[0]] if len(part) == 1 else f"{values[part[0]]} to {values[part[-1]]}" for part in parts]
    return [(float(part[0]) - 0.5) / max(len(values) - 1, 1) for part in parts[1:]], names


def _unlike(name: str, names: Sequence[str]) -> str:
    """Return a name that is none of the others."""
    return name if name not in names else _unlike(f"({name})", names)


def _spec(column: str, names: Sequence[str], by: str, **parameters: object) -> AlgorithmSpec:
    if len(names) > MOST_GROUPS:
        raise InputError(
            f"{by}, which has {len(names)} groups; at most {MOST_GROUPS} can be evaluated: choose another column, or "
            "map its values to fewer names in the schema"
        )
    return AlgorithmSpec("projections", "column-groups", {"column": column, "names": list(names), **parameters})
