"""The registry: every algorithm by kind and name, found by walking the packages, built from a plain specification."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from dpalgos.errors import ParameterError, UnknownNameError

__all__ = ["AlgorithmSpec", "lookup", "names", "register"]

_T = TypeVar("_T")
_ENTRIES: dict[tuple[str, str], Any] = {}
# The modules, and the packages whose modules, register themselves when imported; a new folder is added here.
_PLACES = (
    "dpalgos.normalisation",
    "dpalgos.partitioning",
    "dpalgos.projections",
    "dpalgos.features",
    "dpalgos.trainers",
    "dpalgos.aggregators",
    "dpalgos.evaluators",
    "dpalgos.systems",
)


def register(kind: str, name: str) -> Callable[[_T], _T]:
    """Return a decorator that enters a class (or object) under ``kind`` and ``name``.

    Raises
    ------
    ValueError
        If the name is taken by another object.
    """

    def enter(entry: _T) -> _T:
        if _ENTRIES.setdefault((kind, name), entry) is not entry:
            raise ValueError(f"{kind} {name!r} is registered twice")
        return entry

    return enter


@cache
def _discover() -> None:
    for place_name in _PLACES:
        place = importlib.import_module(place_name)
        for module in pkgutil.walk_packages(getattr(place, "__path__", ()), prefix=f"{place_name}."):
            importlib.import_module(module.name)


def names(kind: str) -> tuple[str, ...]:
    """Return the registered names of one kind, sorted."""
    _discover()
    return tuple(sorted(name for entry_kind, name in _ENTRIES if entry_kind == kind))


def lookup(kind: str, name: str) -> Any:
    """Return what is registered under ``kind`` and ``name``.

    Raises
    ------
    UnknownNameError
        Naming the nearest registered names.
    """
    _discover()
    try:
        return _ENTRIES[kind, name]
    except KeyError:
        near = difflib.get_close_matches(name, names(kind), n=3, cutoff=0.4) or list(names(kind))
        raise UnknownNameError(f"no {kind.rstrip('s')} is called {name!r}; nearest: {', '.join(near)}") from None


@dataclasses.dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """An algorithm by kind, name and parameters: what is hashed into a release's identity.

    Parameters
    ----------
    kind : str
        ``"projections"``, ``"trainers"``, ``"aggregators"``, ….
    name : str
    parameters : mapping of str to JSON values
        Only what differs from the class's defaults needs to be given; dataclass-valued fields (a loss, a budget)
        are given as objects.
    """

    kind: str
    name: str
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=lambda: MappingProxyType({}))

    def build(self) -> Any:
        """Return the algorithm, its parameters validated by its own constructor.

        Raises
        ------
        UnknownNameError
            If the name is not registered.
        ParameterError
            If a parameter is unknown or out of range.
        """
        cls = lookup(self.kind, self.name)
        known = {field.name for field in dataclasses.fields(cls) if field.init}
        for parameter in self.parameters:
            if parameter not in known:
                near = difflib.get_close_matches(parameter, sorted(known), n=3, cutoff=0.3) or sorted(known)
                raise ParameterError(
                    f"{self.name} has no parameter {parameter!r}; it has: {', '.join(near) or 'no parameters'}"
                )
        return cls(**self.parameters)

    def with_parameters(self, **parameters: Any) -> AlgorithmSpec:
        """Return a copy in which the given parameters are set or replaced."""
        return dataclasses.replace(self, parameters=MappingProxyType({**self.parameters, **parameters}))
