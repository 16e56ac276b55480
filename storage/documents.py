"""Documents from outside, YAML and JSON: size, depth and unfolded size are bounded before values are made."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from storage.errors import InputError

_MOST_BYTES = 1 << 24
_MOST_NODES = 1_000_000
_MOST_DEPTH = 100
# Longer numbers take time that grows with the square of their length: 1:1:1:… is one, to base 60.
_LONGEST_NUMBER = 400
_NUMBER = re.compile(r"\s*[-+.0-9]")
# A value of JSON takes some hundred bytes in memory, ten times its text at least.
_MOST_JSON, _MOST_JSON_NODES = 1 << 27, 2_000_000
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(path: Path, place: str) -> str:
    """Return the text of a document's file.

    Raises
    ------
    InputError
        If it cannot be read, is not UTF-8, or is larger than a document may be (16 MiB).
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        _require_size(len(data), _MOST_BYTES, place)
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {place}: {error}") from error


def read_yaml(path: Path, place: str | None = None) -> Any:
    """Return the value of a YAML file; raises as :func:`read_text` and :func:`parse_yaml` do."""
    return parse_yaml(read_text(path, place or str(path)), place or str(path))


def parse_yaml(text: str, place: str) -> Any:
    """Return the value of a YAML document; nothing in it is executed.

    Parameters
    ----------
    text : str
    place : str
        What the text is and where it is from, for messages.

    Raises
    ------
    InputError
        If it is no YAML, holds a value that does not exist (the 13th month), is longer than 16 MiB, nested more than a
        hundred levels deep, or unfolds (aliases of aliases) to more than a million values.
    """
    _require_size(len(text), _MOST_BYTES, place)
    try:
        _require_bounded(text, place)
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{place} is not YAML: {' '.join(str(error).split())}") from None
    except (RecursionError, MemoryError):
        raise InputError(f"{place} is nested too deeply") from None
    except InputError:
        raise
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"{place} holds a value that cannot be: {error}") from None


def _require_bounded(text: str, place: str) -> None:
    """Go through the parser's events, which make no values, and refuse what would unfold to too much."""
    sizes: list[float] = [0]
    anchors: dict[str, float] = {}
    unclosed: list[str | None] = []
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            # One that is not closed yet lies within itself, which has no end.
            sizes[-1] += math.inf if event.anchor in unclosed else anchors.get(str(event.anchor), 0)
        elif isinstance(event, yaml.ScalarEvent):
            if len(event.value) > _LONGEST_NUMBER and (event.tag or event.implicit[0]) and _NUMBER.match(event.value):
                raise InputError(f"{place} holds a number of {len(event.value):,} characters; put text in quotes")
            sizes[-1] += 1
            if event.anchor:
                anchors[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            unclosed.append(event.anchor)
            if len(sizes) > _MOST_DEPTH:
                raise InputError(f"{place} is nested more than {_MOST_DEPTH} levels deep; write it flatter")
        elif isinstance(event, yaml.CollectionEndEvent):
            size, anchor = sizes.pop(), unclosed.pop()
            sizes[-1] += size
            if anchor:
                anchors[anchor] = size
        if sizes[-1] > _MOST_NODES:
            raise InputError(
                f"{place} unfolds to more than {_MOST_NODES:,} values; write fewer of them, or fewer aliases"
            )


def parse_json(data: bytes | str, place: str) -> Any:
    """Return the value of a JSON document.

    Parameters
    ----------
    data : bytes or str
    place : str
        What it is and where it is from, for messages.

    Raises
    ------
    InputError
        If it is not JSON as RFC 8259 has it (NaN and infinities are none, nor is a number that would become one),
        names a key twice, is larger than 128 MiB,
        nested too deeply, or holds more than two million values.
    """
    _require_size(len(data), _MOST_JSON, place)
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    # At least as many as there are values: what stands in texts is counted, too.
    if text.count(b",") + text.count(b"[") + text.count(b"{") > _MOST_JSON_NODES:
        raise InputError(f"{place} holds more than {_MOST_JSON_NODES:,} values, as no document of Unitball does")
    try:
        return json.loads(data, object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise InputError(f"{place} is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{place} is not JSON: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"it names {Counter(name for name, _ in pairs).most_common(1)[0][0][:60]!r} twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def _require_size(size: int, most: int, place: str) -> None:
    if size > most:
        raise InputError(f"{place} is longer than {most:,} bytes, as no document of Unitball is")
