"""Which commands there are, read off the sources of the modules beside this one, so that few need be imported."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_name, get_group

from deployments import cli
from deployments.cli.app import app

__all__ = ["command_group", "import_all"]

_APP = "app"


@dataclass(frozen=True, slots=True)
class _Registration:
    """A command, or a group of commands, that a module registers with the application, as its source says."""

    name: str
    module: str
    help: str
    group: bool


def import_all() -> None:
    """Import every module beside this one: each adds its commands to the application."""
    for name in _modules():
        importlib.import_module(name)


def command_group(arguments: list[str]) -> TyperGroup:
    """Return the application as the group of all commands; imported is the one that the arguments begin with.

    The others have their names and the lines that the list of commands shows. Where a source tells less than that,
    everything is imported.
    """
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    try:
        found = [one for name, path in _modules().items() for one in _registrations(name, path)]
    except (ValueError, KeyError):
        import_all()
        return get_group(app)
    for one in found:
        if one.name == asked:
            importlib.import_module(one.module)
    group = get_group(app)
    # Groups stand last, as where all are registered.
    found.sort(key=lambda one: one.group)
    group.commands = {one.name: group.commands.get(one.name) or _stand_in(one) for one in found}
    return group


def _stand_in(one: _Registration) -> TyperCommand | TyperGroup:
    return (TyperGroup if one.group else TyperCommand)(name=one.name, help=one.help)


def _modules() -> dict[str, Path]:
    """Return the modules beside this one with their sources."""
    folder = Path(cli.__path__[0])
    return {f"{cli.__name__}.{module.name}": folder / f"{module.name}.py" for module in pkgutil.iter_modules([folder])}


def _registrations(module: str, path: Path) -> Iterator[_Registration]:
    """Yield what a source registers.

    Raises
    ------
    ValueError
        If a name or a help text is not written out (KeyError where there is none).
    """
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError from error
    if f"{_APP}." not in source:
        return
    groups: dict[str, ast.Call] = {}
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(decorator_list=decorators):
                for call in decorators:
                    match call:
                        case ast.Call(func=ast.Attribute(ast.Name(id=name), "command")) if name == _APP:
                            yield _command(module, node, call)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Attribute(attr="Typer")) as made):
                groups[name] = made
            case ast.Expr(
                ast.Call(func=ast.Attribute(ast.Name(id=name), "add_typer"), args=[ast.Name(id=group)]) as call
            ):
                if name == _APP:
                    yield _group(module, groups[group], call)


def _command(module: str, node: ast.FunctionDef, call: ast.Call) -> _Registration:
    given = _literals(call)
    name = given.get("name") or (ast.literal_eval(call.args[0]) if call.args else get_command_name(node.name))
    return _Registration(
        name, module, inspect.cleandoc(given.get("help") or ast.get_docstring(node) or ""), group=False
    )


def _group(module: str, made: ast.Call, added: ast.Call) -> _Registration:
    given = {**_literals(made), **_literals(added)}
    return _Registration(given["name"], module, given["help"], group=True)


def _literals(call: ast.Call) -> dict[str, Any]:
    return {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg in ("name", "help")}
