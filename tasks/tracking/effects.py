"""Scores of a released model along each column of its table, in the columns' own units: post-processing, at no charge.

From the model's weights, its declared schema and the released counts that its map is made of. No row is opened, so the
page of a model is the same once its rows are gone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dpalgos.column_maps import LearntColumns
from dpalgos.column_margins import Margins
from dpalgos.columns import Column
from dpalgos.effects import POINTS, Effect, Score, effects, linear_behind, pairs_by_weight, reference_shares
from dpalgos.features.column_functions import ColumnFunctions
from dpalgos.histograms import ColumnCounts
from dpalgos.measured import in_digits
from dpalgos.models import Artefact, LinearModel
from dpalgos.registry import lookup
from dpalgos.rows import Floats
from storage.encoder import TableEncoder
from storage.errors import InputError
from storage.refs import OnViolation, ReleaseRef
from tasks.datasets.scales import Scale, Worth, scales_under
from tasks.planning.configuration import Json
from tasks.release.storing import read_release
from tasks.runtime.stores import open_releases

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

OTHER, NONE, MISSING = "other", "outside its values", "missing"
PREDICTION = "prediction"
"""The one score of a model of numbers."""
EFFECTS = "effects.json"
"""Artifact of a run in MLflow."""
_NOTE = (
    "From weights and {sources} alone: no row is read, and nothing is charged. Each score is that of a synthetic row "
    "with {reference}. Rows are scaled to norm 1, so effects do not add up to a row's score."
)
_COUNTED = "the other columns at their released medians (categories: their most frequent value, by noisy counts)"
_DECLARED = (
    "the other columns in the middle of their declared ranges (categories: their first declared value). Columns were "
    "not counted, so medians are unknown. In the middle of all ranges, a single number has a large effect"
)


Rows = tuple[float, float, float]


@dataclass(frozen=True)
class Part:
    """The model's scores for a part of a number's range, or for a value.

    Attributes
    ----------
    of : str
        For people: ``17 to 18.1``, a value, ``other``, ``missing`` or ``outside its values``.
    low, high : number, day or value
        The part's ends; None for values.
    scores : tuple of float
        One for each of the model's scores.
    rows : (float, float, float) or None
        Noisy count of the rows there and the ends of its 95 % margin; None where columns were not counted, the count
        cannot be measured at this budget, or the cell is missing.
    of_missing : bool
        Whether it is the part of missing cells: a declared value may have the same name.
    """

    of: str
    low: Worth | None
    high: Worth | None
    scores: tuple[float, ...]
    rows: Rows | None
    of_missing: bool = False


def rows_of(part: Part) -> float:
    """Return how many rows are drawn at a part: 0 where nothing is known."""
    return 0.0 if part.rows is None else part.rows[0]


def most_frequent(column: ColumnEffect, most: int) -> list[Part]:
    """Return the parts of a column with the largest counts, as many as are shown, in their declared order."""
    places = sorted(range(len(column.parts)), key=lambda place: -rows_of(column.parts[place]))[:most]
    return [column.parts[place] for place in sorted(places)]


@dataclass(frozen=True)
class ColumnEffect:
    """Effect of one column in the model.

    Attributes
    ----------
    name, kind : str
    parts : tuple of Part
        From low to high, or value by value.
    bars : int
        How many bars of rows are worth drawing, of parts together.
    bar_rows : tuple of (float, float, float)
        Noisy count of each bar and the ends of its 95 % margin; empty where parts are values.
    reference : str
        Where the column lies when others are looked at.
    spread : float
        Standard deviation of the score over the parts by their rows, the largest of all scores: what columns are
        ordered by.
    """

    name: str
    kind: str
    parts: tuple[Part, ...]
    bars: int
    bar_rows: tuple[Rows, ...]
    reference: str
    spread: float

    @property
    def ranged(self) -> bool:
        """Whether its parts are parts of a range."""
        return self.parts[0].high is not None


@dataclass(frozen=True)
class Pair:
    """Two columns that act together, and the weight of their products in the model."""

    columns: tuple[str, str]
    weight: float


@dataclass(frozen=True)
class Effects:
    """Effects of all columns in a model.

    Attributes
    ----------
    scores : tuple of str
        What the scores are: of one class of two, of each of more, or the predicted number.
    counted : bool
        Whether released counts say how rows are distributed.
    unit : str
        What is counted: rows or people.
    note : str
        How to read them.
    columns : tuple of ColumnEffect
        By spread, the largest first.
    pairs : tuple of Pair
        The heaviest first.
    """

    scores: tuple[str, ...]
    counted: bool
    unit: str
    note: str
    columns: tuple[ColumnEffect, ...]
    pairs: tuple[Pair, ...]

    def to_json(self) -> Json:
        """Return it as JSON."""
        return asdict(self)

    def score_text(self, score: float, digits: int = 3) -> str:
        """Return a score for people: one of a class with its sign, a predicted number as it is."""
        of_class = self.scores != (PREDICTION,)
        return ("+" if of_class and score >= 0 else "") + in_digits(score, digits)

    def to_frame(self) -> pd.DataFrame:
        """Return a line a part: its column and kind, ``of``, ``low``, ``high``, ``rows``, and the scores."""
        lines = [
            {
                "column": column.name,
                "kind": column.kind,
                "of": part.of,
                "low": part.low,
                "high": part.high,
                **dict(zip(("rows", "rows_low", "rows_high"), part.rows or (math.nan,) * 3, strict=True)),
                **dict(zip(self.scores, part.scores, strict=True)),
            }
            for column in self.columns
            for part in column.parts
        ]
        frame = pd.DataFrame(lines)
        frame.attrs |= {
            "note": self.note,
            "reference": {column.name: column.reference for column in self.columns},
            "pairs": [(*pair.columns, pair.weight) for pair in self.pairs],
        }
        return frame


def counts_behind(path: Sequence[ReleaseRef]) -> ColumnCounts | None:
    """Return the released counts that a path's map of columns is made of; None where it is made of none.

    Parameters
    ----------
    path : sequence of ReleaseRef
        What rows pass through, the model last.
    """
    for reference in path:
        made = open_releases().manifest(reference.key).get("post_processing")
        if made is None:
            continue
        combines = lookup(made["algorithm"]["kind"], made["algorithm"]["name"])
        if issubclass(combines, LearntColumns):
            used = [read_release(ReleaseRef(key=key, kind="", party="")) for key in made["upstream"]]
            learnt: LearntColumns = combines(**made["algorithm"]["parameters"])
            return learnt.counts_of(used)
    return None


def of_columns(pipeline: Pipeline) -> bool:
    """Whether a model has effects: it takes a table's columns, each with a declared range or values."""
    return isinstance(pipeline[0], TableEncoder) and bool(pipeline[0].declared.places)


def effects_of(pipeline: Pipeline, path: Sequence[ReleaseRef]) -> Effects:
    """Return what a released model of a declared table says about each column.

    Parameters
    ----------
    pipeline : sklearn.pipeline.Pipeline
        As it is logged, from raw columns to predictions.
    path : sequence of ReleaseRef
        What rows pass through, the model last.

    Raises
    ------
    InputError
        If the model does not use declared columns, each with a range or its values.
    """
    if not of_columns(pipeline):
        raise InputError(
            "effects need declared columns, each with a range or its values, and this model has none: ingest a table "
            "under a schema (`unitball schema draft`) and train on it"
        )
    rest = pipeline[1:]
    schema, classes = pipeline[0].declared, [str(name) for name in getattr(pipeline, "classes_", ())]

    def score(rows: Floats) -> Floats:
        found = rest.decision_function(rows) if classes else rest.predict(rows)
        return np.asarray(found, dtype=np.float64).reshape(len(rows), -1)

    return described_effects(
        score,
        tuple(f"score {name}" for name in classes[1 if len(classes) == 2 else 0 :]) or (PREDICTION,),
        [Column(**place.model_dump()) for place in schema.places],
        scales_under(schema, clips=OnViolation(pipeline[0].on_violation).clips),
        schema.missing_row(),
        counts_behind(path),
        [read_release(reference) for reference in path],
        people=schema.people is not None,
    )


def described_effects(
    score: Score,
    names: tuple[str, ...],
    columns: Sequence[Column],
    scales: Sequence[Scale],
    missing: Floats,
    counts: ColumnCounts | None,
    path: Sequence[Artefact],
    *,
    people: bool = False,
) -> Effects:
    """Return effects in the columns' own units.

    Parameters
    ----------
    score : callable
        Of rows as they are encoded.
    names : tuple of str
        Of the scores.
    columns : sequence of Column
    scales : sequence of Scale
        What they are, one each.
    missing : array (dimension,)
        Features of a row whose cells are all missing.
    counts : ColumnCounts, optional
    path : sequence of artefacts
        What encoded rows pass through, the model last: pairs are listed where it begins with functions of columns and
        is affine from there on.
    people : bool
        Whether people are counted, and not rows.
    """
    steps = [len(scale.values) if scale.discrete else 0 for scale in scales]
    parts = [scale.most_parts(POINTS) for scale in scales]
    found = effects(score, columns, missing, counts, steps, parts)
    places = reference_shares(columns, counts)
    described = [_column(effect, scale, share) for effect, scale, share in zip(found, scales, places, strict=True)]
    sources = "declared ranges" if counts is None else "released counts"
    return Effects(
        scores=names,
        counted=counts is not None,
        unit="people" if people else "rows",
        note=_NOTE.format(sources=sources, reference=_DECLARED if counts is None else _COUNTED),
        columns=tuple(sorted(described, key=lambda column: -column.spread)),
        pairs=_pairs(columns, scales, path),
    )


def _column(effect: Effect, scale: Scale, share: float) -> ColumnEffect:
    if effect.column.is_number and len(effect.scores) != len(scale.values):
        parts = _parts(effect, scale)
        reference = worth_text(scale.worth(share), 4)
    else:
        parts = _values(effect, scale)
        steps = len(scale.values) - 1 if effect.column.is_number else 1
        at = round(share * steps)
        reference = OTHER if effect.rare[at] else scale.values[at]
    if effect.missing is not None and (effect.column.is_number or scale.can_lack):
        of = MISSING if effect.column.is_number else NONE
        parts.append(Part(of, None, None, _scores(effect.missing), None, of_missing=True))
    return ColumnEffect(
        name=scale.name,
        kind=scale.kind,
        parts=tuple(parts),
        bars=effect.bars,
        bar_rows=tuple(row for row in _rows(effect.bar_rows, 0) if row is not None),
        reference=reference,
        spread=effect.spread,
    )


def _scores(scores: Floats) -> tuple[float, ...]:
    return tuple(float(score) for score in scores)


def _rows(counted: Margins | None, parts: int) -> list[Rows | None]:
    if counted is None:
        return [None] * parts
    found = zip(counted.values.tolist(), counted.low.tolist(), counted.high.tolist(), strict=True)
    return [rows if measured else None for rows, measured in zip(found, counted.measured, strict=True)]


def _parts(effect: Effect, scale: Scale) -> list[Part]:
    parts = len(effect.scores)
    ends = [scale.part(place / parts, (place + 1) / parts) for place in range(parts)]
    rows = _rows(effect.rows, parts)
    return [
        Part(_between(low, high), low, high, _scores(scores), count)
        for (low, high), scores, count in zip(ends, effect.scores, rows, strict=True)
    ]


def _between(low: Worth | None, high: Worth | None) -> str:
    return worth_text(low) if low == high else f"{worth_text(low)} to {worth_text(high)}"


def _values(effect: Effect, scale: Scale) -> list[Part]:
    rows = _rows(effect.rows, len(effect.scores))
    known = [
        Part(value, None, None, _scores(scores), count)
        for value, scores, count, rare in zip(scale.values, effect.scores, rows, effect.rare, strict=True)
        if not rare
    ]
    rare = np.flatnonzero(effect.rare)
    if len(rare):
        # A map made of counts has one feature for all of them.
        (together,) = _rows(effect.rare_rows, 1)
        known.append(Part(OTHER, None, None, _scores(effect.scores[rare].mean(axis=0)), together))
    return known


def worth_text(worth: Worth | None, digits: int = 6) -> str:
    """Return a number, a day or a value for people."""
    return in_digits(worth, digits) if isinstance(worth, float) else str(worth)


def _pairs(columns: Sequence[Column], scales: Sequence[Scale], path: Sequence[Artefact]) -> tuple[Pair, ...]:
    names = {column: scale.name for column, scale in zip(columns, scales, strict=True)}
    functions = path[0] if path else None
    model = linear_behind(path) if isinstance(functions, ColumnFunctions) else None
    if not isinstance(model, LinearModel) or not isinstance(functions, ColumnFunctions):
        return ()
    return tuple(
        Pair((names[one], names[other]), weight) for one, other, weight in pairs_by_weight(model.weights, functions)
    )


_HEIGHTS = "▁▂▃▄▅▆▇█"
_CARD_COLUMNS, _CARD_PAIRS, _CARD_POINTS, _CARD_NAME = 8, 3, 16, 40


def heights(scores: Sequence[float], low: float, high: float) -> str:
    """Return scores as a line of small bars between the lowest and the highest."""
    width = high - low
    return "".join(
        _HEIGHTS[min(int(8 * (score - low) / width), 7)] if width > 0 and math.isfinite(score) else _HEIGHTS[0]
        for score in scores
    )


def card_of(found: Effects) -> str:
    """Return a model's effects as Markdown, short: its card has a limit."""
    lines = []
    for column in found.columns[:_CARD_COLUMNS]:
        known = [part for part in column.parts if not part.of_missing]
        (score, *others) = found.scores
        of = [part.scores[0] for part in known]
        if column.ranged:
            step = max(len(of) // _CARD_POINTS, 1)
            curve = [float(np.mean(of[at : at + step])) for at in range(0, len(of), step)]
            bars = heights(curve, min(curve), max(curve))
            least, most = (found.score_text(one) for one in (min(of), max(of)))
            lines.append(f"- {_short(column.name)}: {least} to {most} `{bars}` {_ends(known)}")
        else:
            two = (pick(known, key=lambda part: part.scores[0]) for pick in (min, max))
            ends = (f"{found.score_text(part.scores[0])} ({_short(part.of)})" for part in two)
            lines.append(f"- {_short(column.name)}: {' to '.join(ends)}")
    left = len(found.columns) - len(lines)
    if left > 0:
        lines.append(f"- {left} more columns with smaller effects")
    if found.pairs:
        named = (" × ".join(map(_short, pair.columns)) for pair in found.pairs[:_CARD_PAIRS])
        lines.append(f"- pairs by weight: {', '.join(named)}")
    of_first = f"`{score}`" if not others else f"`{score}`, of {len(found.scores)} scores"
    return f"Lowest and highest {of_first} along each column. {found.note}\n\n" + "\n".join(lines)


def _short(name: str) -> str:
    return name if len(name) <= _CARD_NAME else f"{name[: _CARD_NAME - 1]}…"


def _ends(parts: Sequence[Part]) -> str:
    return f"from {worth_text(parts[0].low)} to {worth_text(parts[-1].high)}"
