"""The registry: every algorithm by kind and name, found by walking the packages, built from a plain specification.

Another distribution enters its own through the entry-point group ``unitball.algorithms``: each entry names a module
that registers when it is imported.
"""

import dataclasses
import difflib
import importlib
import importlib.metadata
import pkgutil
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Self, TypeVar

from dpalgos.parameters import ParameterError, UnknownNameError

PLUGIN_GROUP = "unitball.algorithms"
"""The entry-point group of other distributions' algorithms."""

_T = TypeVar("_T")
_ENTRIES: dict[tuple[str, str], object] = {}
_BROKEN: list[str] = []
# The modules, and the packages whose modules, register themselves when imported; a new folder is added here.
_PLACES = (
    "dpalgos.normalisation",
    "dpalgos.partitioning",
    "dpalgos.projections",
    "dpalgos.features",
    "dpalgos.trainers",
    "dpalgos.aggregators",
    "dpalgos.column_maps",
    "dpalgos.synthesis",
    "dpalgos.evaluators",
    "dpalgos.systems",
    "dpalgos.published",
    "dpalgos.trust",
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
            # Private modules register nothing, and may need a compiler.
            if not module.name.rpartition(".")[2].startswith("_"):
                importlib.import_module(module.name)
    for point in sorted(importlib.metadata.entry_points(group=PLUGIN_GROUP), key=lambda point: point.value):
        try:
            point.load()
        except Exception as error:
            # One broken plug-in must not keep everybody else's algorithms away.
            provider = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a distribution"
            _BROKEN.append(f"{provider} offers {point.value}, which cannot be imported ({error!r})")
            warnings.warn(f"{_BROKEN[-1]}: its algorithms are not available; repair or uninstall it", stacklevel=2)


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
        broken = "".join(f"; {report}" for report in _BROKEN)
        raise UnknownNameError(f"unknown {kind.rstrip('s')} {name!r}; nearest: {', '.join(near)}{broken}") from None


def construct(cls: type[_T], name: str, parameters: Mapping[str, object]) -> _T:
    """Return an instance of a registered class, its parameters validated by its own constructor.

    Raises
    ------
    ParameterError
        If a parameter is unknown, missing or out of range.
    """
    assert dataclasses.is_dataclass(cls)
    given = [field for field in dataclasses.fields(cls) if field.init]
    known = {field.name for field in given}
    for parameter in parameters:
        if parameter not in known:
            near = difflib.get_close_matches(parameter, sorted(known), n=3, cutoff=0.3) or sorted(known)
            raise ParameterError(
                f"{name} has no parameter {parameter!r}; its parameters: {', '.join(near) or 'no parameters'}"
            )
    none = dataclasses.MISSING
    for field in given:
        if field.name not in parameters and field.default is none and field.default_factory is none:
            raise ParameterError(f"{name} needs the parameter {field.name!r}; give it")
    return cls(**parameters)


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
    parameters: Mapping[str, object] = dataclasses.field(default_factory=lambda: MappingProxyType({}))

    def build(self) -> Any:
        """Return the algorithm, its parameters validated by its own constructor.

        Raises
        ------
        UnknownNameError
            If the name is not registered.
        ParameterError
            If a parameter is unknown or out of range.
        """
        return construct(lookup(self.kind, self.name), self.name, self.parameters)

    def classes(self) -> tuple[type, ...]:
        """Return the class and, where it is made of other registered ones (``composed_of``), theirs: whose code it is.

        Raises
        ------
        UnknownNameError
            If a name is not registered.
        """
        cls = lookup(self.kind, self.name)
        composed_of = getattr(cls, "composed_of", None)
        return (cls, *(composed_of(self.parameters) if composed_of is not None else ()))

    def with_parameters(self, **parameters: object) -> Self:
        """Return a copy in which the given parameters are set or replaced."""
        return dataclasses.replace(self, parameters=MappingProxyType({**self.parameters, **parameters}))
