"""Messages in the caller's terms: ``--delta 0`` of the command line is ``delta=0`` in Python.

Messages of other packages name command-line options. Each public function of this package passes its errors through
:func:`in_python`, which replaces them by parameters.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from dpalgos.parameters import ParameterError
from storage.errors import InputError, RefusedError, StorageError
from tasks.planning.configuration import TrainingConfig, faults

Request = TypeVar("Request", bound=BaseModel)

# Words that follow an option's name without being its value.
_WORDS = frozenset(
    (
        *("above", "also", "and", "applies", "are", "as", "at", "before", "both", "for", "from", "has", "here", "if"),
        *("in", "instead", "is", "it", "itself", "makes", "needs", "of", "on", "or", "out", "take", "then", "was"),
        "with",
    )
)
_SWITCHES = frozenset(
    name for name, field in TrainingConfig.model_fields.items() if field.annotation in (bool, bool | None)
) | {"public", "consistent_survivors", "allow_idealised"}
# Mappings, which are typed as NAME=VALUE.
_CALLED = {"param": "parameters", "class_weight": "class_weight", "tune": "tune", "on": "tuned_on"}
# A whole command is typed as it is, up to where the sentence goes on.
_COMMAND = r"unitball [a-z]+[^,;:()]*"
_VALUE = r"\"[^\"]*\"|'[^']*'|(?:[^\s,;()]|,(?=[^\s,;()]))*[^\s,;().:]"
_OPTION = rf"(?<![\w-])--(?P<name>[a-z][a-z-]*[a-z])(?:[ =](?P<value>{_VALUE}))?"
_PAIR = re.compile(rf"(?P<command>{_COMMAND})|{_OPTION}")
_KNOWN = {"unitball ingest … --allow-idealised": "open_account(…, allow_idealised=True)"}


def in_python(text: str) -> str:
    """Return a message with options as parameters: ``--delta 1e-6`` is ``delta=1e-6``, ``--no-roc`` ``roc=False``.

    Whole commands (``unitball doctor --clean``) stay as they are typed.
    """
    for command, call in _KNOWN.items():
        text = text.replace(command, call)
    return _PAIR.sub(_translated, text)


def _translated(match: re.Match[str]) -> str:
    if match["command"]:
        return match["command"]
    name, value = match["name"].replace("-", "_"), match["value"]
    if name.removeprefix("no_") in _SWITCHES:
        rest = "" if value is None else f" {value}"
        return f"{name.removeprefix('no_')}={not name.startswith('no_')}{rest}"
    called = _CALLED.get(name, name)
    if value is None or value.lower() in _WORDS:
        return called if value is None else f"{called} {value}"
    key, equals, inner = value.partition("=")
    if equals and name in _CALLED:
        return f"{called}={{{key!r}: {_literal(inner)}}}"
    return f"{called}={_literal(value)}"


def _literal(value: str) -> str:
    if value[0] in "\"'":
        return value
    if re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?|…", value):
        return value
    if "," in value and re.fullmatch(r"[-\d.e,]+", value):
        return f"({value.replace(',', ', ')})"
    return repr(value)


@contextmanager
def spoken_in_python() -> Iterator[None]:
    """Let errors of what is within name parameters in place of options; their types stay.

    Raises
    ------
    ParameterError
        In place of pydantic's error, for values that do not fit a run.
    """
    try:
        yield
    except ValidationError as error:
        # What is stored is validated as well, and is not what the caller gave.
        if error.title != TrainingConfig.__name__:
            raise
        raise ParameterError(in_python("; ".join(faults(error)))) from None
    except (ParameterError, InputError, RefusedError, StorageError) as error:
        if (said := in_python(str(error))) == str(error):
            raise
        error.args = (said, *error.args[1:])
        raise


def checked(function: str, request: type[Request], given: Mapping[str, object]) -> Request:
    """Return what is asked of a function, as its request.

    Parameters
    ----------
    function : str
        What people have called.
    request : type
        Whose fields are its parameters.
    given : mapping of str to object

    Raises
    ------
    ParameterError
        For a parameter that there is not, with the nearest ones; for values that do not fit, all in one sentence.
    """
    for name in given:
        if name not in request.model_fields:
            near = difflib.get_close_matches(name, request.model_fields, n=3, cutoff=0.4) or [*request.model_fields]
            raise ParameterError(f"{function} has no parameter {name!r}; nearest: {', '.join(near)}")
    try:
        return request.model_validate(dict(given))
    except ValidationError as error:
        raise ParameterError("; ".join(faults(error))) from None
