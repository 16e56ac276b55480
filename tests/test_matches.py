"""What tests expect of a message is a value or a name: a better sentence breaks none of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
_GAP = re.compile(r"\.\*\??|\.\+|\||\\[sSwWdDb][+*]?")
_PLAIN = re.compile(r"[(\[]?[a-z]+('s)?[)\]]?")


def sentence_in(pattern: str) -> str:
    """Return the first four plain words in a row of a pattern, which are a sentence's; empty where there are none.

    What is no plain word (a number, a name with a capital, an underscore or a dash, an option, a quoted value) ends a
    row of words, and so does a gap.
    """
    for part in _GAP.split(pattern):
        row: list[str] = []
        for word in part.replace("\\", "").split():
            row = [*row, word] if _PLAIN.fullmatch(word.rstrip(".,:;")) else []
            if len(row) == 4:
                return " ".join(row)
    return ""


def matches(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of the literals that follow ``match=`` in a file, values in f-strings left out."""
    text = path.read_bytes()
    for node in ast.walk(ast.parse(text)) if b"match" in text else ():
        if isinstance(node, ast.keyword) and node.arg == "match":
            for one in ast.walk(node.value):
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield node.value.lineno, one.value


def test_no_match_holds_a_sentence() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}: {sentence!r}"
        for path in sorted(TESTS.rglob("*.py"))
        for line, text in matches(path)
        if (sentence := sentence_in(text))
    ]
    assert not found, "keep a value or a name of the message, or fields of the error (tests/support/stating.py)"


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("give it a cap in epsilon", "give it a cap"),
        (r"^account 'clinic'.*cap", ""),
        (r"line 3, column age: '75'.*--on-violation", ""),
        ("two numbers.*--epsilon.*--delta", ""),
        (r"'visits'.*which is fixed for ever", "which is fixed for"),
        ("public seed|exact numerics|own rows|other people", ""),
    ],
)
def test_what_is_a_sentence(pattern: str, sentence: str) -> None:
    assert sentence_in(pattern) == sentence
