"""A configuration as a short form asks for it: a few fields in their order, and ``more`` for all others.

Prefect's pages fold nothing and show a nested default as ``[object Object]``. So what is deployed asks for fields that
are numbers, words or choices, and takes the rest as one object, which is validated as everything else is.
"""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from dpalgos.parameters import ParameterError
from tasks.planning.configuration import Json, SecureSettings, TrainingConfig, faults

_Model = TypeVar("_Model", bound=BaseModel)
FIELDS = ("dataset", "epsilon", "algorithm", "trust", "features", "seed")
"""Fields of a configuration that a training's form asks for by themselves."""

_TITLES = {
    "dataset": "Data set",
    "epsilon": "Epsilon",
    "id_column": "Column to keep",
    "input": "Rows",
    "prefer_champion": "Prefer the champion",
    "chain_trials": "Whole runs",
    "seed": "Seed of public runs",
}


def form_of(model: type[BaseModel], name: str, **said: JsonValue) -> dict[str, JsonValue]:
    """Return what a form shows of a field of a model: its choices and bounds, a title and a text.

    Prefect takes titles from parameters' names and texts from docstrings in its own style; what stands in the
    field's JSON schema is kept.

    Parameters
    ----------
    model : pydantic model
    name : str
    **said
        Overrides for the form: ``title``, ``description``, ….
    """
    shown = dict(model.model_json_schema()["properties"][name])
    shown.pop("default", None)
    # What may be left empty is one box: of two forms, of which one is nothing, the pages make two tabs.
    # A switch has no third position, so that one that may be left alone keeps its tabs.
    kinds = [kind for kind in shown.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) == 1 and kinds[0].get("type") != "boolean":
        shown = {**shown, **kinds[0]}
        del shown["anyOf"]
    return {**shown, "title": _TITLES.get(name, name.replace("_", " ").capitalize()), **said}


def described(title: str, description: str, kind: str = "string", **said: JsonValue) -> dict[str, JsonValue]:
    """Return a form field that belongs to no model, with a type of JSON schema."""
    return {"title": title, "description": description, "type": kind, **said}


def _names(model: type[BaseModel], besides: Mapping[str, object]) -> list[str]:
    flat = SecureSettings.model_fields if model is TrainingConfig else {}
    return sorted({*model.model_fields, *flat} - set(besides))


def merged(model: type[BaseModel], asked: Mapping[str, object], more: Mapping[str, object]) -> dict[str, object]:
    """Return a form's fields and ``more`` as what a model is validated of.

    Raises
    ------
    ParameterError
        Naming, with its value, each name in ``more`` that is a field of the form, or that the model does not know.
    """
    # A box that was emptied again holds an empty text.
    asked = {name: None if value == "" else value for name, value in asked.items()}
    wrong, known = [], _names(model, asked)
    for name, value in more.items():
        if name in asked:
            wrong.append(f"more: {name} (got {value!r}) is a separate field: fill it in there, and omit it here")
        elif name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
            wrong.append(f"more: no option is called {name!r} (got {value!r}); nearest: {', '.join(near)}")
    if wrong:
        raise ParameterError("; ".join(wrong))
    return {**more, **asked}


def validated(model: type[_Model], asked: Mapping[str, object], more: Mapping[str, object] | None = None) -> _Model:
    """Return the model that a form's fields and ``more`` describe.

    Raises
    ------
    ParameterError
        With every fault: the field, the value, the bound and the way out.
    """
    try:
        return model.model_validate(merged(model, asked, more or {}))
    except ValidationError as error:
        raise ParameterError("; ".join(faults(error))) from None


def asked_config(asked: Mapping[str, object], more: Mapping[str, object]) -> TrainingConfig:
    """Return the configuration that a training's form describes.

    Parameters
    ----------
    asked : mapping
        A value for each of :data:`FIELDS`.
    more : mapping
        Other fields, by name; the settings of secure sums may be given at the same level.

    Raises
    ------
    ParameterError
        As :func:`validated` does.
    """
    default = TrainingConfig.model_fields["algorithm"].default
    if more.get("trainer") is not None and asked["algorithm"] == default:
        # Forms fill in the default, so that it cannot be told from not asking.
        asked = {**asked, "algorithm": None}
    return validated(TrainingConfig, asked, more)


def asked_of(config: TrainingConfig) -> Json:
    """Return the form's parameters that describe a configuration: its fields, and in ``more`` other changed values.

    What is empty is left out, as a form leaves it out.
    """
    whole, own = config.model_dump(mode="json"), config.model_dump(mode="json", exclude_defaults=True)
    more = {name: value for name, value in own.items() if name not in FIELDS}
    return {**{name: whole[name] for name in FIELDS if whole[name] is not None}, "more": more}


def called(parameters: Mapping[str, object]) -> str:
    """Return what a run of these parameters is called: its name, or what it trains on which data set.

    Raises
    ------
    ParameterError
        If they describe no configuration.
    """
    if parameters.get("name"):
        return str(parameters["name"])
    asked = {name: parameters.get(name, TrainingConfig.model_fields[name].default) for name in FIELDS}
    more = parameters.get("more")
    config = asked_config(asked, more if isinstance(more, Mapping) else {})
    return f"{config.system} on {config.dataset}"
