"""Printed tables: at any width of a terminal no word is broken, and nothing is cut off."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from deployments.cli.common import table

HEADINGS = ("account", "remaining: one more run of", "share spent", "schedules refused from", "δ")
ROWS = (
    ("clinic-2026", "epsilon up to 3.027 at delta 8.20312e-07", "12 %", None, 1e-6),
    ("ward", "–", "0 %", "Monday", 0),
)


def _printed(width: int, headings: tuple[str, ...] = HEADINGS) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(table(headings, ROWS, title="Budgets", right=("δ",)))
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_words_stay_whole_at_any_width(width: int) -> None:
    printed = _printed(width)
    assert max(map(len, printed.splitlines())) <= width
    words = {word for line in (HEADINGS, *ROWS) for cell in line if cell is not None for word in str(cell).split()}
    assert words <= set(printed.split())
    assert ("row 2 of 2" in printed) == (width < 60)


def test_a_wide_terminal_breaks_no_line() -> None:
    (heading,) = [line for line in _printed(200).splitlines() if "account" in line]
    assert all(one in heading for one in HEADINGS)


def test_a_word_that_no_terminal_holds_is_broken() -> None:
    out = io.StringIO()
    Console(file=out, width=60).print(table(("key", "rows"), [("f" * 64, 5)]))
    assert out.getvalue().count("f") == 64
