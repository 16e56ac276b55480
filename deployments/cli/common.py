"""What the commands share: the root option, input files, progress, and how answers are printed."""

import inspect
import json
import math
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from storage.documents import read_text as document_text
from storage.errors import FormatVersionError, InputError, StorageError
from tasks.runtime.progress import listen, say
from tasks.runtime.settings import ROOT_VARIABLE, current_layout, current_root

RootOption = Annotated[
    Path | None,
    typer.Option(
        "--root", envvar=ROOT_VARIABLE, help="Folder of all state; two roots share nothing.", show_default=False
    ),
]
_PIPE_WIDTH = 132
# Seconds by which a pace is told: a step may take minutes.
_PACE = 3600.0
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


DaskOption = Annotated[
    str | None, typer.Option("--dask", help="`local`, or a Dask scheduler's address: tls://host:8786.")
]


def use_root(root: Path | None) -> None:
    """Make a root the one of this process; everything opened later lives under it.

    Raises
    ------
    InputError
        If it cannot be written: the root is an argument, and the way out is another one.
    """
    try:
        if root is not None:
            os.environ[ROOT_VARIABLE] = str(root.expanduser().resolve())
        current_layout()
    except FormatVersionError:
        raise
    except (StorageError, OSError, RuntimeError, ValueError) as error:
        # Links in a circle, names too long, bytes no name can have.
        raise InputError(f"{error}; choose another root with --root") from error


def require_readable(path: Path, option: str) -> Path:
    """Return a path if rows or text can be read from it: a file or a folder, no device, pipe or socket.

    Raises
    ------
    InputError
        Otherwise: such a thing may never end, or never begin.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise InputError(f"{option}: there is no file or folder {path}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{option}: {path} cannot be read: {getattr(error, 'strerror', error)}") from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"{option}: {path} is neither a file nor a folder; copy what it gives into a file")
    return path


def read_text(path: Path, option: str) -> str:
    """Return the text of a file that a person wrote.

    Raises
    ------
    InputError
        If it cannot be read, is not UTF-8, or is larger than any such file.
    """
    return document_text(require_readable(path, option), f"{option}: {path}")


def console() -> Console:
    """Return the console for tables; into a file or a pipe, lines are as long as a table needs."""
    out = Console()
    return out if out.is_terminal else Console(width=max(out.width, _PIPE_WIDTH))


def print_root() -> None:
    """Say under which root all this is: the last line of every command's output for people."""
    console().print(f"root: {current_root()}", style="dim", markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON object; what is not a finite number is null, which every reader of JSON understands."""
    sys.stdout.write(json.dumps(_finite(value), indent=2, default=str, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def progress(title: str, *, stages: Collection[str] | None = None) -> Iterator[None]:
    """Show on a terminal what the work within the context has finished, and how long it will take where that is known.

    A log is spared moving pictures.

    Parameters
    ----------
    title : str
    stages : collection of str, optional
        Those that are shown; all by default.
    """
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=screen, transient=True, speed_estimate_period=_PACE
    ) as display:
        line, last = display.add_task(title, total=None), ""

        def show(stage: str, label: str, share: float | None) -> None:
            nonlocal last
            if stages is not None and stage not in stages:
                return
            if stage != last or (share or 0.0) < display.tasks[line].completed:
                # How long it takes yet is told by the stage's own pace.
                display.reset(line)
            last, total = stage, None if share is None else 1.0
            text = f"{title}: {stage} · {label}"
            display.update(line, description=text, completed=share or 0.0, total=total)

        with listen(show):
            yield


@contextmanager
def running(title: str, *, stages: Collection[str] | None = None) -> Iterator[None]:
    """Show progress, with the engine ready; flows are imported within, since Prefect reads its settings at import."""
    from tasks.runtime.engine import prepare_engine, quick_flows

    with progress(title, stages=stages):
        say("engine", "starting")
        prepare_engine(current_root())
        with quick_flows():
            yield


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
    return presented(run, command, [*own.parameters.values(), *added])


def presented(
    run: Callable[..., None], command: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Return what runs a command as Typer is to see it: with the command's name and text, and these parameters."""
    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # Typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
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
    # Wide enough for its title, up to a usual terminal.
    rendered = Table(title=title, title_justify="left", box=SIMPLE, min_width=min(len(title or ""), 80))
    for heading in headings:
        rendered.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        rendered.add_row(*("–" if cell is None else str(cell) for cell in row))
    return rendered
