"""Words that readers did not understand or misread: none is on a page, in a message or in a public docstring.

The pages are read without code, the messages are those of ``tests/templates.txt``, and the docstrings are those of the
packages in ``PACKAGES``. An exception has a reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.data import REPOSITORY

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)

_UNITS = "row|person|party|night|day|set|cell|second|class|seed|column|point|year"
_RATE = rf"\d[\d,]* (?!(for|in|of|with|by|to) )[a-z]+ an? ({_UNITS})"
COINED = {
    r"besides?": "next to, in addition to",
    r"who(m|s)?(so)?ever": "a role: anyone with write access, a client with the secret",
    r"(no|some|any|every)body": "a role, or: a person, no party, all parties",
    r"real labels?": "numeric label",
    r"pictures?": "image; figure",
    r"below the ROC": "AUC",
    r"anew": "again",
    r"(takes?|took|taken|taking) back": "revoke, withdraw, return",
    r"held against": "validated against, compared with",
    r"(says?|said) otherwise|otherwise than": "override with --option; differs from",
    r"if (empty|left out)": "Default: …",
    r"(bring|brings|brought|bringing) (\w+ )?in": "ingest",
    r"for (life|ever)": "fixed at opening; permanently",
    r"(charges|costs?) nothing": "is free, or: refuses the charge",
    r"it is said|is said to": "name who reports it",
    r"what is left": "the remaining budget",
    r"for nothing": "at no charge",
    r"whose question": "the question that the page answers",
    r"dearer|dearest": "larger, largest",
    r"one's own": "your own",
    r"on the way": "before training; in transit",
    r"(is|are) none of": "is unknown; give one of",
    r"(?<!there )(is|are) no (?!longer|more|less|larger|smaller|narrower)[a-z]+": "is not a …",
    r"(is|are) of (?!(the )?(length|type|size|order|kind)\b)": "belongs to, applies to, has",
    _RATE: "per",
    r"whatever": "for any, with any, also if",
    r"of (its|their|his) own(?= ?[.,;:)])": "its own, a separate",
    r"what [a-z ]+ (is|are) of": "what it applies to",
    r"on which rest": "on which X rests",
}
"""Patterns of whole words, whatever their case, and what to write instead."""

EXCEPTIONS: dict[tuple[str, str], str] = {}
"""Pairs of a page (or ``messages``, ``docstrings``) and a text that may stay there, with the reason."""

PACKAGES = ("benchmarks", "deployments", "dpalgos", "flows", "storage", "tasks", "unitball")
"""Packages whose public modules, classes and functions are read."""

_CODE = re.compile(r"^```.*?^```|^ {4}[^\n]*$|`[^`\n]*`|\]\([^)\n]*\)|<!--.*?-->|<[^>\n]*>", re.M | re.S)

_CODE_ALONE = re.compile(r"^```.*?^```|^ {4}[^\n]*$|`[^`\n]*`|<!--.*?-->", re.M | re.S)

_NAMES = re.compile(r"``[^`]*``|:\w+:`[^`]*`|^[\w*, ]+ : [^\n]*$", re.M)
"""Code in a docstring: literals, references, and the line of a parameter's name and type."""


def _found(text: str) -> list[str]:
    """Return what a text holds of the list, with some words around it."""
    return [
        " ".join(text[max(0, found.start() - 30) : found.end() + 30].split())
        for pattern in COINED
        for found in re.finditer(rf"\b(?:{pattern})\b", text, flags=re.I)
    ]


def _docstrings() -> Iterator[str]:
    for path in sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, _DOCUMENTED) and not getattr(node, "name", "").startswith("_"):
                yield _NAMES.sub("", ast.get_docstring(node) or "")


def _pages() -> list[Path]:
    pages = [*sorted(REPOSITORY.glob("docs/*.md")), *(REPOSITORY / f"{one}.md" for one in ("README", "CONTRIBUTING"))]
    return [*pages, REPOSITORY / "SECURITY.md"]


PLACES = ("messages", "docstrings", *(path.name for path in _pages()))


# Not at import: to parse all packages takes seconds, in each process that collects tests.
@cache
def _texts() -> dict[str, str]:
    texts = {path.name: _CODE.sub("", path.read_text("utf-8")) for path in _pages()}
    templates = (Path(__file__).parent / "templates.txt").read_text("utf-8").splitlines()
    messages = [line.partition(": ")[2] for line in templates if not line.startswith("#")]
    texts["docstrings"] = "\n".join(_docstrings())
    return texts | {"messages": "\n".join(re.sub(r"\{[^{}]*\}|`[^`]*`", "", one) for one in messages)}


@pytest.mark.parametrize("place", PLACES)
def test_no_coined_word_is_on_a_page_in_a_message_or_in_a_docstring(place: str) -> None:
    allowed = [text for page, text in EXCEPTIONS if page == place]
    assert [text for text in _found(_texts()[place]) if not any(one in text for one in allowed)] == []


def test_every_exception_is_needed() -> None:
    assert [pair for pair in EXCEPTIONS if not any(pair[1] in text for text in _found(_texts()[pair[0]]))] == []


def test_a_coined_word_is_found() -> None:
    assert len(_found("Whoever has 5 rows a person is nobody")) == 3
    assert _found("There is no account; it costs ε and is no longer used. 5 rows per person, 1 for a person.") == []


_SYMBOLS = re.compile(r"\b(μ|δ|ρ|zCDP|GDP|Gaussian[- ]DP|neighbouring|replace-one|replace-special)(?!\w)")
_EXPLAINED_THERE = {"glossary.md", "guarantees.md", "people-and-budgets.md", "CONTRIBUTING.md"}


def test_a_page_links_to_the_glossary_where_it_first_uses_a_symbol() -> None:
    unexplained = []
    for name in set(PLACES) - {"messages", "docstrings"} - _EXPLAINED_THERE:
        path = next(one for one in (REPOSITORY / "docs" / name, REPOSITORY / name) if one.exists())
        lines = _CODE_ALONE.sub(lambda found: "\n" * found[0].count("\n"), path.read_text("utf-8")).splitlines()
        linked = next((place for place, line in enumerate(lines) if "glossary.md" in line), len(lines))
        used = (place for place, line in enumerate(lines) if not line.startswith("#") and _SYMBOLS.search(line))
        if linked > next(used, linked):
            unexplained.append(name)
    assert unexplained == []
