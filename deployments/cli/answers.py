"""What a command answers, and how that is printed: for people with the root below, or as JSON."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import RenderableType
from rich.table import Table

from deployments.cli.common import JsonFlag, RootOption, console, print_json, print_root, use_root


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command answers.

    Parameters
    ----------
    machine : object
        One JSON object, for ``--json``.
    people : iterable of str or of what Rich prints
        Lines and tables; not looked at where JSON is asked for.
    error : Exception, optional
        Raised when all is printed: what is wrong with what was found.
    """

    machine: Any
    people: Iterable[RenderableType]
    error: Exception | None = None


def answered(command: Callable[..., Answer]) -> Callable[..., None]:
    """Return a command with ``--root`` and ``--json`` that prints its answer, under the root that was named."""

    def run(*given: Any, root: Path | None = None, json: bool = False, **named: Any) -> None:
        use_root(root)
        answer = command(*given, **named)
        if json:
            print_json(answer.machine)
        else:
            for part in answer.people:
                show(part)
            print_root()
        if answer.error is not None:
            raise answer.error

    own = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, default, annotation in (("root", None, RootOption), ("json", False, JsonFlag))
    ]
    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    signature = own.replace(parameters=[*own.parameters.values(), *added], return_annotation=None)
    run.__signature__ = signature  # type: ignore[attr-defined]  # Typer reads it
    run.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return run


def show(part: RenderableType) -> None:
    """Print a line as it is, however long, or a table."""
    if isinstance(part, str):
        console().print(part, soft_wrap=True, highlight=False, markup=False)
    else:
        console().print(part)


def table(
    headings: Sequence[str], rows: Iterable[Iterable[object]], *, title: str | None = None, right: Collection[str] = ()
) -> Table:
    """Return a table of cells as text; None is a dash.

    Parameters
    ----------
    headings : sequence of str
    rows : iterable of iterables of cells
    title : str, optional
    right : collection of str
        Headings of the columns of numbers.
    """
    made = Table(title=title, title_justify="left", box=SIMPLE)
    for heading in headings:
        made.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*("–" if cell is None else str(cell) for cell in row))
    return made
