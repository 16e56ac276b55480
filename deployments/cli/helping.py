"""The help of commands: what most runs need first, the rest in named panels, everything with ``--help-all``.

Texts are printed as they are: nothing in them is markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.main import get_command

AS_IN_TRAIN: Final = "Options of a run, described by `unitball train --help`"
"""The panel of options that a command shares with ``train``: ``--help`` lists their names alone."""
GENERAL: Final = "General"
"""The panel of options that most commands have."""

_FIRST: Final = "Options"
_WIDEST = 100
# Wider names stand on their own line, above their text.
_NAMES = 27
_TYPES = {"text": "TEXT", "str": "TEXT", "path": "PATH", "int": "INTEGER", "integer": "INTEGER", "float": "FLOAT"}
_SENTENCE = re.compile(r"(.+?\.)(?=\s+[A-Z`(]|$)", re.S)


class _Row(NamedTuple):
    """An argument, an option or a command, and what is said of it."""

    name: str
    text: str


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, which is all of it where no sentence ends."""
    found = _SENTENCE.match(text)
    return found[1] if found else text


def _show_all(ctx: typer.Context, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        show_help(ctx.command, ctx, full=True)
        raise typer.Exit


def help_all_option() -> Any:
    """Return the option ``--help-all``, which prints the help of a command in full and ends."""
    probe = typer.Typer(add_completion=False)

    # Typer makes options of signatures alone.
    @probe.command()
    def command(
        help_all: Annotated[
            bool,
            typer.Option(
                "--help-all",
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Describe every option in full and exit.",
                rich_help_panel=GENERAL,
            ),
        ] = False,
    ) -> None:
        pass

    return get_command(probe).params[0]


def show_help(command: Any, ctx: Any, *, full: bool = False) -> None:
    """Print the help of a command or a group.

    Parameters
    ----------
    command : typer command or group
    ctx : typer context
    full : bool
        Print the whole text of every option; otherwise that of the first panel, and one sentence of each other.
    """
    out = Console(highlight=False)
    out = out if out.width <= _WIDEST else Console(highlight=False, width=_WIDEST)
    parameters = [one for one in command.get_params(ctx) if not getattr(one, "hidden", False)]
    arguments = [one for one in parameters if isinstance(one, TyperArgument)]
    options = [one for one in parameters if isinstance(one, TyperOption)]
    panels: dict[str, list[TyperOption]] = {_FIRST: []}
    for one in options:
        panel = GENERAL if one.opts[0] == "--help" or "-h" in one.opts else one.rich_help_panel or _FIRST
        panels.setdefault(panel, []).append(one)
    # What every command has comes last.
    panels[GENERAL] = panels.pop(GENERAL, [])
    words = [ctx.command_path, *(_called(one) for one in arguments), "[OPTIONS]"]
    group = isinstance(command, TyperGroup)
    if group:
        words.append("COMMAND")
    out.print(Text(f"Usage: {' '.join(words)}\n\n{_text(command)}"))
    _print_rows(out, "Arguments", [_Row(_called(one), _described(one, ctx)) for one in arguments])
    for panel, held in panels.items():
        if panel == AS_IN_TRAIN and not full:
            _print_names(out, panel, [_flags(one, ctx).split(" ")[0] for one in held])
            continue
        shown = (_described(one, ctx) if full or panel == _FIRST else first_sentence(one.help or "") for one in held)
        _print_rows(out, panel, [_Row(_flags(one, ctx), text) for one, text in zip(held, shown, strict=True)])
    if group:
        for panel, rows in _commands(command, ctx):
            _print_rows(out, panel, rows)
    if command.epilog:
        out.print(Text(f"\n{command.epilog}"))


class HelpGroup(TyperGroup):
    """A group of commands with ``--help`` and ``--help-all``, both printed by :func:`show_help`."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._help_all = help_all_option()

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters with both options of help."""
        return [*super().get_params(ctx), self._help_all]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        show_help(self, ctx)


def _commands(group: TyperGroup, ctx: Any) -> Iterator[tuple[str, list[_Row]]]:
    """Yield the commands of a group by their panels."""
    panels: dict[str, list[_Row]] = {}
    for name in group.list_commands(ctx):
        command: Any = group.get_command(ctx, name)
        panels.setdefault(command.rich_help_panel or "Commands", []).append(_Row(name, _text(command)))
    yield from panels.items()


def _text(command: Any) -> str:
    """Return the first paragraph of what a command says of itself, on one line."""
    return " ".join(str(command.help or "").partition("\n\n")[0].split())


def _called(argument: TyperArgument) -> str:
    name = (argument.metavar or argument.name or "").upper()
    return name if argument.required else f"[{name}]"


def _flags(option: TyperOption, ctx: Any) -> str:
    flags = "/".join([*sorted(option.opts, key=len, reverse=True), *option.secondary_opts])
    if option.is_flag:
        return flags
    kind = str(option.display_type_rich(ctx)).strip("<>").removesuffix(" range")
    return f"{flags} {_TYPES.get(kind, kind)}"


def _described(parameter: Any, ctx: Any) -> str:
    """Return the whole text of an option or argument, with its default, its variable and whether it is required."""
    return str((parameter.get_help_record(ctx) or ("", ""))[1])


def _print_rows(out: Console, title: str, rows: Sequence[_Row]) -> None:
    """Print a panel: names in the first column, their texts in the second."""
    if not rows:
        return
    out.print()
    out.print(Text(title, style="bold"))
    width = max((len(row.name) for row in rows if len(row.name) <= _NAMES), default=_NAMES)
    for row in rows:
        if len(row.name) > _NAMES:
            out.print(Padding(Text(row.name, style="cyan"), (0, 0, 0, 2)))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=width, no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row(Text(row.name if len(row.name) <= _NAMES else "", style="cyan"), Text(row.text))
        out.print(Padding(table, (0, 0, 0, 2)))


def _print_names(out: Console, title: str, names: Iterable[str]) -> None:
    out.print()
    out.print(Text(title, style="bold"))
    out.print(Padding(Text(" ".join(names), style="cyan"), (0, 0, 0, 2)))
