"""Options derived from a pydantic model: names, help, bounds and defaults are those of the model's fields."""

import inspect
import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo

from deployments.cli.common import presented
from dpalgos.errors import ParameterError
from tasks.planning.configuration import faults

_BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
_METAVARS = {int: "INTEGER", float: "FLOAT", Path: "PATH"}
_MAPPINGS = (dict, Mapping)


@dataclass(frozen=True, slots=True)
class _Option:
    """One field of a model as an option; ``place`` is the path to it through nested models."""

    flag: str
    place: tuple[str, ...]
    kind: Any
    field: FieldInfo
    panel: str | None

    @property
    def parameter(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def words(self) -> list[str]:
        """Words that stand in place of a mapping."""
        kinds = map(_without_none, get_args(self.field.annotation) if get_origin(self.kind) in _MAPPINGS else ())
        return [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]

    def annotation(self, default: object) -> Any:
        """Return what Typer needs to know; values stay text, so that the model finds all faults at once."""
        limits = "; ".join(part for part in (_bounds(self.field), _shown(default)) if part)
        text = " ".join(part for part in (self.field.description, limits and f"({limits})") if part)
        if self.kind is bool:
            # The other way is an option only where it is not the default; help has little room.
            flags = f"{self.flag}/--no-{self.flag.removeprefix('--')}" if default is not False else self.flag
            return Annotated[
                bool | None, typer.Option(flags, help=text, show_default=False, rich_help_panel=self.panel)
            ]
        many = get_origin(self.kind) in (tuple, *_MAPPINGS)
        shown = "|".join([*self.words, _metavar(self.kind)])
        return Annotated[
            list[str] | None if many else str | None,
            typer.Option(self.flag, help=text, show_default=False, metavar=shown, rich_help_panel=self.panel),
        ]

    def read(self, values: Any) -> Any:
        """Return the value for the model, from text.

        Raises
        ------
        ParameterError
            For what is not ``NAME=VALUE`` where that is asked for.
        """
        if get_origin(self.kind) is tuple:
            return [part for text in values for part in text.split(",")]
        if get_origin(self.kind) in _MAPPINGS:
            if len(values) == 1 and values[0] in self.words:
                return values[0]
            return _pairs(values, self.flag, str if get_args(self.kind)[1] in (str, Path) else _json_or_text)
        return values


def options_of(
    model: type[BaseModel],
    *,
    without: Sequence[str] = (),
    named: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator: a command's first parameter becomes one option a field of the model.

    A parameter of the command's own that bears a field's name gives that field its value.

    A field ``rows_per_party`` is ``--rows-per-party``; the fields of a nested model are options of their own. Lists
    are written with commas or repeated, dictionaries as repeated ``NAME=VALUE``, in which values are JSON where they
    parse as JSON.

    Parameters
    ----------
    model : pydantic model
    without : sequence of str
        Fields that are no options; they keep their defaults.
    named : mapping of str to str
        Fields whose option is called otherwise.
    defaults : mapping
        Defaults of this command where they differ from the model's.

    Raises
    ------
    ValueError
        If two fields make the same option.
    """
    options = list(_options(model, without, named or {}))
    flags = [option.flag for option in options]
    if repeated := {flag for flag in flags if flags.count(flag) > 1}:
        raise ValueError(f"{model.__name__} makes the option {', '.join(sorted(repeated))} twice")
    ours = dict(defaults or {})

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        derived = [
            inspect.Parameter(
                option.parameter,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=option.annotation(ours.get(option.place[0], option.field.get_default())),
            )
            for option in options
        ]
        kept = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

        def run(**given: Any) -> None:
            texts = {option.flag: given.pop(option.parameter) for option in options}
            same = {name: value for name, value in given.items() if name in model.model_fields}
            command(_made(model, options, texts, {**ours, **same}), **given)

        return presented(run, command, [*derived, *kept])

    return decorate


def _made(
    model: type[BaseModel], options: Sequence[_Option], texts: Mapping[str, Any], defaults: Mapping[str, Any]
) -> BaseModel:
    values: dict[str, Any] = dict(defaults)
    wrong = []
    for option in options:
        if (text := texts[option.flag]) in (None, []):
            continue
        inner = values
        for step in option.place[:-1]:
            inner = inner.setdefault(step, {})
        try:
            inner[option.place[-1]] = option.read(text)
        except ParameterError as error:
            wrong.append(str(error))
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        wrong += faults(error, {".".join(option.place): option.flag for option in options})
    if wrong:
        raise ParameterError("; ".join(wrong))
    return config


def _options(
    model: type[BaseModel],
    without: Sequence[str],
    named: Mapping[str, str],
    within: tuple[str, ...] = (),
    within_panel: str | None = None,
) -> Iterator[_Option]:
    for name, field in model.model_fields.items():
        if name in without:
            continue
        kind = _without_none(field.annotation)
        panel = _panel(model, name) or within_panel
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _options(kind, without, named, (*within, name), panel)
        else:
            flag = named.get(name, "--" + name.replace("_", "-"))
            yield _Option(flag=flag, place=(*within, name), kind=kind, field=field, panel=panel)


def _panel(model: type[BaseModel], name: str) -> str | None:
    """Return the section of a model that has a field; None where the model has no sections."""
    section = [cls for cls in model.__mro__ if issubclass(cls, BaseModel) and name in cls.model_fields][-1]
    return None if section is model else section.__name__.removesuffix("Settings").removesuffix("Request")


def _without_none(annotation: Any) -> Any:
    """Return what an annotation says beside None and metadata."""
    if get_origin(annotation) is Annotated:
        inner, *about = get_args(annotation)
        offered = next((one.json_schema for one in about if isinstance(one, WithJsonSchema)), None)
        return _without_none(inner) if offered is None else Literal[tuple(offered["enum"])]
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [_without_none(kind) for kind in get_args(annotation) if kind is not types.NoneType]
        mappings = [kind for kind in kinds if get_origin(kind) in _MAPPINGS]
        return kinds[0] if len(kinds) == 1 else mappings[0] if mappings else str
    return annotation


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    if get_origin(kind) is tuple:
        return f"{_metavar(_without_none(get_args(kind)[0]))},…"
    if get_origin(kind) in _MAPPINGS:
        return "NAME=VALUE"
    return _METAVARS.get(kind, "TEXT")


def _bounds(field: FieldInfo) -> str:
    parts = [
        f"{sign} {getattr(bound, name)}"
        for bound in field.metadata
        for name, sign in _BOUNDS
        if getattr(bound, name, None) is not None
    ]
    return ", ".join(parts)


def _shown(default: Any) -> str:
    return "" if default in (None, (), {}, "") or isinstance(default, bool) else f"default {default}"


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # Not JSON, or JSON beyond reason: the parameter's own check names it.
        return text


def _pairs(pairs: Sequence[str], flag: str, value: Callable[[str], Any]) -> dict[str, Any]:
    result = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals and text):
            raise ParameterError(f"{flag} {pair!r} is not NAME=VALUE: write {flag} NAME=VALUE")
        if name in result:
            raise ParameterError(f"{flag} {name} is given twice")
        result[name] = value(text)
    return result
