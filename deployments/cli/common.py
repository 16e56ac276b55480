"""Shared parts of the commands: options derived from models, input files, progress bars, printed answers."""

import inspect
import json
import math
import os
import re
import stat
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo
from rich.box import SIMPLE
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from deployments.cli.helping import AS_IN_TRAIN, GENERAL
from dpalgos.guarantees import rounded_up
from dpalgos.parameters import ParameterError
from storage.documents import read_text as document_text
from storage.errors import FormatVersionError, InputError, StorageError
from storage.names import visible
from tasks.runtime.progress import WAITING, WORKERS, listen, report_progress
from tasks.runtime.settings import ROOT_VARIABLE, current_layout, current_root

if TYPE_CHECKING:
    from tasks.release.prices import Price

RootOption = Annotated[
    Path | None,
    typer.Option(
        "--root",
        envvar=ROOT_VARIABLE,
        help="Folder that holds all state. Two roots share nothing. Default: ~/.local/share/unitball.",
        show_default=False,
        rich_help_panel=GENERAL,
    ),
]
_PIPE_WIDTH = 132
# Longer words, such as keys and paths, may be broken.
_LONGEST_WORD = 40
# Seconds by which a pace is told: a step may take minutes.
_PACE = 3600.0
JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object on stdout.", rich_help_panel=GENERAL)
]


YesOption = Annotated[bool, typer.Option("--yes", help="Agree to the price that the command prints without --yes.")]
DaskOption = Annotated[
    str | None,
    typer.Option(
        "--dask",
        help="Run on Dask: local, or a scheduler's address. For example tls://host:8786. Default: without Dask.",
        rich_help_panel=GENERAL,
    ),
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
        raise InputError(f"{option}: {path} is neither a file nor a folder; copy its content into a file")
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

    A log is spared moving images.

    Parameters
    ----------
    title : str
    stages : collection of str, optional
        Those that are shown; all by default.
    """
    screen = Console(stderr=True)
    if not screen.is_terminal:
        with listen(_say_what_is_waited_for):
            yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=screen, transient=True, speed_estimate_period=_PACE
    ) as display:
        line, last = display.add_task(title, total=None), ""

        def show(stage: str, label: str, share: float | None) -> None:
            nonlocal last
            if stage == WORKERS:
                # It stays, where the rest of the display goes.
                display.console.print(visible(f"{stage}: {label}"), highlight=False, markup=False)
            if stages is not None and stage not in (WAITING, *stages):
                return
            if stage != last or (share or 0.0) < display.tasks[line].completed:
                # How long it takes yet is told by the stage's own pace.
                display.reset(line)
            last, total = stage, None if share is None else 1.0
            text = visible(f"{title}: {stage} · {label}")
            display.update(line, description=text, completed=share or 0.0, total=total)

        with listen(show):
            yield


def _say_what_is_waited_for(stage: str, label: str, _share: float | None) -> None:
    if stage in (WAITING, WORKERS):
        typer.echo(visible(f"{stage}: {label}"), err=True)


@contextmanager
def running(title: str, *, stages: Collection[str] | None = None) -> Iterator[None]:
    """Show progress, with the engine ready; flows are imported within, since Prefect reads its settings at import."""
    from tasks.host.engine import prepare_engine, quick_flows

    with progress(title, stages=stages):
        report_progress("engine", "starting")
        prepare_engine(current_root())
        with quick_flows():
            yield


def say_note(text: str) -> None:
    """Say at once on the terminal, and nowhere else, what the user should look at."""
    typer.echo(f"note: {visible(text)}", err=True)


def say_charged_before(account: str, what: str = "this command") -> None:
    """Report at the start which releases were already charged, also by a stopped run, and are therefore free.

    Parameters
    ----------
    account : str
    what : str
        Of several that are asked for at once, which one.
    """
    say_note(f"account {account} has already paid for all releases of {what}; they are not charged again")


def agree(price: "Price | None", *, asks: bool, yes: bool, way_out: str = "give --epsilon, or --yes") -> None:
    """Show what a command is about to charge, or stop if the user has not agreed to it.

    Parameters
    ----------
    price : Price or None
        None where nothing is charged.
    asks : bool
        Whether the command's options do not state this charge.
    yes : bool
        Whether the price is agreed to.
    way_out : str
        How to agree.

    Raises
    ------
    PriceError
        Naming the price; nothing was charged.
    """
    if price is None:
        return
    if asks and not yes:
        raise price.refusal(way_out)
    typer.echo(f"price: {price}", err=True)


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a command.

    Parameters
    ----------
    machine : object
        One JSON object, for ``--json``.
    people : iterable of str or of what Rich prints
        Lines and tables; ignored where JSON is requested.
    error : Exception, optional
        Raised when all is printed: what is wrong with what was found.
    afterwards : callable, optional
        Called when all is printed: work of seconds that the answer does not need.
    """

    machine: Any
    people: Iterable[RenderableType]
    error: Exception | None = None
    afterwards: Callable[[], object] | None = None


def answered(command: Callable[..., Answer], *, rooted: bool = True) -> Callable[..., None]:
    """Return a command with ``--root`` and ``--json`` that prints its answer, under the root that was named.

    Not ``rooted``, it makes no root and says of none, and has no ``--root`` unless it takes one itself.
    """

    def run(*given: Any, json: bool = False, **named: Any) -> None:
        if rooted:
            use_root(named.pop("root", None))
        answer = command(*given, **named)
        if json:
            print_json(answer.machine)
        else:
            for part in answer.people:
                show(part)
            if rooted:
                print_root()
        if answer.afterwards is not None:
            sys.stdout.flush()
            answer.afterwards()
        if answer.error is not None:
            raise answer.error

    own = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, default, annotation in (("root", None, RootOption), ("json", False, JsonFlag))
        if rooted or name == "json"
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
        console().print(visible(part, kept="\n"), soft_wrap=True, highlight=False, markup=False)
    else:
        console().print(part)


class WholeWords(Table):
    """A table whose words stay whole: where the terminal is too narrow for that, a block of lines per row."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render as a table, or as blocks."""
        least = [_longest(column, words=not column.no_wrap) for column in self.columns]
        most = [max(_longest(column, words=False), some) for column, some in zip(self.columns, least, strict=True)]
        for padding in ((0, 1), (0, 1, 0, 0)):
            self.padding = padding
            # Edges and separators are one character each.
            room = options.max_width - len(least) * sum(self.padding[1::2]) - len(least) - 1
            if room >= sum(least):
                widths = list(least)
                # A character each in turn: narrow columns are whole first.
                while sum(widths) < min(room, sum(most)):
                    for place, width in enumerate(widths):
                        widths[place] += width < most[place] and sum(widths) < room
                for column, width in zip(self.columns, widths, strict=True):
                    column.width = width
                yield from super().__rich_console__(console, options)
                return
        if self.title is not None:
            yield self.title
        rows = list(zip(*(column.cells for column in self.columns), strict=True))
        for number, row in enumerate(rows, 1):
            yield Text(f"\nrow {number} of {len(rows)}", style="dim")
            block = Table.grid(padding=(0, 2, 0, 0))
            for column, cell in zip(self.columns, row, strict=True):
                block.add_row(column.header, cell)
            yield block


def _longest(column: Column, *, words: bool) -> int:
    """Return the width of a column's longest word, or of its longest cell."""
    texts = [str(column.header), *map(str, column.cells)]
    parts = [word for text in texts for word in text.split()] if words else texts
    longest = max(map(cell_len, parts), default=1)
    return min(longest, _LONGEST_WORD) if words else longest


def table(
    headings: Sequence[str], rows: Iterable[Iterable[object]], *, title: str | None = None, right: Collection[str] = ()
) -> Table:
    """Return a table of cells as untrusted text: Rich interprets no markup in it, and a terminal no commands.

    Parameters
    ----------
    headings : sequence of str
    rows : iterable of iterables of cells
        None is a dash, :func:`coloured` text keeps its colour.
    title : str, optional
    right : collection of str
        Headings of the columns of numbers.
    """
    # Wide enough for its title, up to a usual terminal.
    rendered = WholeWords(
        title=None if title is None else Text(visible(title)),
        title_justify="left",
        box=SIMPLE,
        min_width=min(len(title or ""), 80),
    )
    for heading in headings:
        rendered.add_column(Text(visible(heading)), justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        rendered.add_row(*map(_cell, row))
    return rendered


def _cell(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text("–" if cell is None else visible(str(cell)))


def rounded(value: float | None, digits: int) -> str:
    """Return a spent epsilon or delta in few digits, rounded up; a dash where there is none."""
    return "–" if value is None else f"{rounded_up(value, digits):g}"


def coloured(text: str, colour: str) -> Text:
    """Return text of a colour for a cell of a :func:`table`."""
    return Text(visible(text), style=colour)


_FURTHER = "Further options"
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

    def annotation(self, default: object, flags: Mapping[str, str], panel: str | None, own: str | None = None) -> Any:
        """Return what Typer needs to know; values stay text, so that the model finds all faults at once."""
        limits = "; ".join(part for part in (_bounds(self.field), "" if own else _shown(default)) if part)
        text = " ".join(part for part in (own or self.field.description, limits and f"({limits})") if part)
        # Fields stand in backticks.
        text = re.sub(r"`(\w+)`", lambda found: flags.get(found[1], found[0]), text)
        if self.kind is bool:
            # The other way is an option only where it is not the default; help has little room.
            both = f"{self.flag}/--no-{self.flag.removeprefix('--')}" if default is not False else self.flag
            return Annotated[bool | None, typer.Option(both, help=text, show_default=False, rich_help_panel=panel)]
        many = get_origin(self.kind) in (tuple, *_MAPPINGS)
        return Annotated[
            list[str] | None if many else str | None,
            typer.Option(
                self.flag,
                help=text,
                show_default=False,
                metavar="|".join([*self.words, _metavar(self.kind)]),
                rich_help_panel=panel,
            ),
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
    first: Collection[str] = (),
    as_in_train: bool = False,
    described: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator: a command's first parameter becomes options, one per field of the model.

    A parameter of the command's own that bears a field's name gives that field its value.

    A field ``rows_per_party`` is ``--rows-per-party``. The fields of a nested model are separate options. Lists are
    written with commas or repeated, dictionaries as repeated ``NAME=VALUE``, in which values are JSON where they parse
    as JSON.

    Parameters
    ----------
    model : pydantic model
    without : sequence of str
        Fields without an option; they keep their defaults.
    named : mapping of str to str
        Fields whose option is called otherwise.
    defaults : mapping
        Defaults of this command where they differ from the model's.
    first : collection of str
        Fields that most runs need: ``--help`` shows them first and in full.
    as_in_train : bool
        Whether ``--help`` lists the others by name and leads to that of ``train``.
    described : mapping of str to str
        Help of fields whose meaning or default is another one in this command, with that default.

    Raises
    ------
    ValueError
        If two fields make the same option.
    """
    options = list(_options(model, without, named or {}))
    flags = [option.flag for option in options]
    if repeated := {flag for flag in flags if flags.count(flag) > 1}:
        raise ValueError(f"{model.__name__} defines the option {', '.join(sorted(repeated))} twice")
    ours, own_help = dict(defaults or {}), dict(described or {})
    by_field = {option.place[-1]: option.flag for option in options}

    def panel(option: _Option) -> str | None:
        if option.place[-1] in first:
            return None
        return AS_IN_TRAIN if as_in_train else option.panel

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        derived = [
            inspect.Parameter(
                option.parameter,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=option.annotation(
                    ours.get(option.place[0], option.field.get_default()),
                    by_field,
                    panel(option),
                    own_help.get(option.place[-1]),
                ),
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
    from tasks.planning.configuration import faults

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
        flags = {".".join(option.place): option.flag for option in options}
        # The other way of a switch that is on by default.
        flags |= {f"no_{path}": f"--no-{flag.removeprefix('--')}" for path, flag in flags.items()}
        wrong += faults(error, flags)
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
    """Return the heading of the section of a model that has a field; None where the model has no sections."""
    section = [cls for cls in model.__mro__ if issubclass(cls, BaseModel) and name in cls.model_fields][-1]
    return None if section is model else str(section.__dict__.get("heading", _FURTHER))


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
    return ", ".join(
        f"{sign} {getattr(bound, name)}"
        for bound in field.metadata
        for name, sign in _BOUNDS
        if getattr(bound, name, None) is not None
    )


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
