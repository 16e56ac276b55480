"""Documents from outside: YAML of bounded depth and unfolded size, of which nothing is executed, and strict JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import yaml

from storage.errors import InputError

__all__ = ["parse_json", "parse_yaml"]

_MOST_NODES = 1_000_000


def parse_yaml(text: str, place: str) -> Any:
    """Return the value of a YAML document.

    Parameters
    ----------
    text : str
    place : str
        What the text is and where it is from, for messages.

    Raises
    ------
    InputError
        If it is no YAML, holds a value that does not exist (the 13th month), is nested too deeply, or unfolds (aliases
        of aliases) to more than a million nodes.
    """
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _unfolded(node, {}) > _MOST_NODES:
            raise InputError(f"{place} unfolds to more than {_MOST_NODES:,} values; write fewer aliases")
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise InputError(f"{place} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InputError(f"{place} is nested too deeply") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{place} holds a value that cannot be: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()


def _unfolded(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many nodes there are with every alias written out."""
    if id(node) not in known:
        # A node within itself has no end.
        known[id(node)] = _MOST_NODES
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        inner = parts if isinstance(node, yaml.CollectionNode) else []
        known[id(node)] = 1 + sum(_unfolded(part, known) for part in inner)
    return known[id(node)]


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
        If it is not JSON as RFC 8259 has it (NaN and infinities are none, nor is a number that would become one), names
        a key twice, or is nested too deeply.
    """
    try:
        return json.loads(data, object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise InputError(f"{place} is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{place} is not JSON: {error}") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"it names {Counter(name for name, _ in pairs).most_common(1)[0][0][:60]!r} twice")
    return found
