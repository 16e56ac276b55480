"""Proposals of column declarations, from values that are public, or were drawn and paid for."""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.cells import canonical_text
from storage.columns.categories import USUAL_FLAGS, Category
from storage.columns.column import Floats
from storage.columns.numeric import Numeric
from storage.readers.drafts import draft_layout
from storage.readers.raw_tables import raw_rows

_NUMBER = r"[+-]?[0-9]+(?:\.[0-9]+)?"
_BRACKET = re.compile(rf"[\[(]?\s*({_NUMBER})\s*(?:-|–|to|,|\.\.)\s*({_NUMBER})\s*[\])]?")
_BELOW, _ABOVE = re.compile(rf"[<≤]=?\s*({_NUMBER})"), re.compile(rf"[>≥]=?\s*({_NUMBER})|({_NUMBER})\s*\+")
_CODE = re.compile(r"[A-Z]?[0-9]{1,3}(?:\.[0-9A-Z]{1,4})?")
# From so many on, codes of a classification are taken by what they begin with.
_MANY_CODES, _FIRST = 20, 3
# With more values a private trainer's noise outweighs them, as a check of the schema says.
_MOST_VALUES = 200
_MOST_KEPT = 10_000
_ROWS = 4096

Proposal = Mapping[str, object]
"""A column's declaration but for its name."""


def proposed(values: Sequence[str]) -> Proposal:
    """Return what to declare of a column with these values.

    Brackets that follow each other are numbers by their place. Many codes of a classification, such as ICD, are taken
    by their first three characters. All else is one-hot.
    """
    texts = list(dict.fromkeys(canonical_text(value) or value for value in values))
    ends = {text: _ends(text) for text in texts}
    brackets = sorted((pair, text) for text, pair in ends.items() if pair is not None)
    closed = sum(math.isfinite(low) and math.isfinite(high) for (low, high), _ in brackets)
    apart = all(before[0][1] <= after[0][0] for before, after in itertools.pairwise(brackets))
    if len(brackets) == len(texts) and closed > 1 and apart:
        return {"type": "numeric", "ordered": [text for _, text in brackets]}
    begun = sorted({canonical_text(text[:_FIRST]) or text for text in texts})
    if len(texts) > _MANY_CODES and len(begun) < len(texts) and all(map(_CODE.fullmatch, texts)):
        return {"type": "category", "first": _FIRST, "values": begun}
    return {"type": "category", "values": sorted(texts)}


def _ends(text: str) -> tuple[float, float] | None:
    """Return the ends of a bracket; None for what is none."""
    if found := _BRACKET.fullmatch(text):
        low, high = float(found[1]), float(found[2])
        return (low, high) if low < high else None
    if found := _BELOW.fullmatch(text):
        return -math.inf, float(found[1])
    if found := _ABOVE.fullmatch(text):
        return float(found[1] or found[2]), math.inf
    return None


def entry(names: Sequence[str], proposal: Proposal, comment: str = "") -> str:
    """Return a schema's line for columns of one declaration."""
    given = {"name": names[0]} if len(names) == 1 else {"names": list(names)}
    said = {**given, **proposal}
    body = ", ".join(f"{key}: {value if key == 'type' else _written(value)}" for key, value in said.items())
    return f"  - {{{body}}}{f'  # {comment}' if comment else ''}\n"


def _written(value: object) -> str:
    """Return a value as YAML has it; whole numbers without a fraction."""
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return f"{value:.17g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def together(proposals: Mapping[str, Proposal], *, ordered: bool) -> list[tuple[list[str], Proposal]]:
    """Return columns of one proposal together, in the order of their first; each alone where their order counts."""
    found: dict[str, tuple[list[str], Proposal]] = {}
    for name, proposal in proposals.items():
        key = name if ordered or "values" not in proposal else json.dumps(proposal, sort_keys=True)
        found.setdefault(key, ([], proposal))[0].append(name)
    return list(found.values())


@dataclass
class _Seen:
    """Contents of a column of public rows."""

    cells: int = 0
    texts: set[str] = field(default_factory=set)
    many: bool = False
    numeric: bool = True
    low: float = math.inf
    high: float = -math.inf

    def add(self, texts: Sequence[str], numbers: Floats) -> None:
        """Take in the cells of some rows that are not missing, as canonical texts and as numbers."""
        self.cells += len(texts)
        if not self.many:
            self.texts.update(texts)
            self.many = len(self.texts) > _MOST_KEPT
        self.numeric = self.numeric and bool(np.isfinite(numbers).all())
        if self.numeric and len(numbers):
            self.low, self.high = min(self.low, float(numbers.min())), max(self.high, float(numbers.max()))

    def proposal(self, kind: str) -> Proposal:
        """Return what to declare of it; of what cannot be a feature as it is that it is ignored."""
        if kind != "category" and kind != "numeric" and len(self.texts) == 2 and _are_flags(self.texts):
            return {"type": "boolean"}
        if kind == "todo" and len(self.texts) == self.cells > _MOST_VALUES and all(map(str.isdecimal, self.texts)):
            # As many whole numbers as rows: they name something.
            return {"type": "ignore"}
        if kind != "category" and self.numeric and self.low < self.high:
            return {"type": "numeric", "range": [self.low, self.high]}
        found = proposed(sorted(self.texts)) if not self.many else {}
        listed = found.get("values", found.get("ordered"))
        few = isinstance(listed, list) and len(listed) <= _MOST_VALUES
        return found if few and len(self.texts) > 1 else {"type": "ignore"}


def _are_flags(texts: set[str]) -> bool:
    """Whether two texts are no and yes, in one of the usual spellings."""
    return {USUAL_FLAGS.get(text.lower()) for text in texts} == {0, 1}


def public_proposals(path: Path, draft: Path, kinds: Mapping[str, str]) -> dict[str, Proposal]:
    """Return what to declare of the columns of a file of public rows, which are read in full.

    Parameters
    ----------
    path : Path
        CSV or Parquet.
    draft : Path
        Its drafted schema, which says how the text is laid out and how missing cells are written.
    kinds : mapping of str to str
        The columns of which something is proposed, and their drafted type; ``todo`` where it is not known.
    """
    layout = draft_layout(draft)
    seen = {name: _Seen() for name in kinds}
    for rows in raw_rows(path, layout, _ROWS):
        for name, column in seen.items():
            texts, missing = layout.read(Category(name, ()), rows.columns[name])
            values, unread = layout.read(Numeric(name, None), rows.columns[name])
            assert isinstance(texts, pa.StringArray)
            known = [text for text in texts.filter(pa.array(~missing)).to_pylist() if text]
            column.add(known, np.asarray(values)[~unread])
    return {name: column.proposal(kinds[name]) for name, column in seen.items()}
