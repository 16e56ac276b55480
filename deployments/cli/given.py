"""Checks of the options on a command line: none twice, and none that has no effect."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextvars import ContextVar
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

from deployments.cli.helping import HelpGroup, help_all_option, show_help

Command = TypeVar("Command", bound=Callable[..., Any])

_GIVEN: ContextVar[tuple[str, ...]] = ContextVar("given", default=())


class OnceCommand(TyperCommand):
    """A command that takes each option once: of two values the second would win without a word.

    It has ``--help`` and ``--help-all``.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._help_all = help_all_option()

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters with both options of help."""
        return [*super().get_params(ctx), self._help_all]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        show_help(self, ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, after a look at which options there are."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        options = [one for one in order if one.param_type_name == "option"]
        for one in options:
            if options.count(one) > 1 and not one.multiple:
                flags = "/".join((*one.opts[-1:], *one.secondary_opts[-1:]))
                raise typer.BadParameter(f"{flags} is given twice; give it once", ctx=ctx)
        _GIVEN.set(tuple(dict.fromkeys(one.opts[0] for one in options)))
        return super().parse_args(ctx, args)


class Application(typer.Typer):
    """Commands and groups whose commands take each option once."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**{"cls": HelpGroup, **named})

    def command(self, *given: Any, **named: Any) -> Callable[[Command], Command]:
        """Return a decorator that adds a command."""
        return super().command(*given, **{"cls": OnceCommand, **named})


def given_options() -> list[str]:
    """Return the options that stand on the command line that is being run."""
    return list(_GIVEN.get())


def refuse_beside(option: str, why: str, others: Collection[str] | None = None) -> None:
    """Refuse options that have no effect together with another one.

    Parameters
    ----------
    option : str
    why : str
        What it does that leaves them without effect.
    others : collection of str, optional
        All but ``--root`` by default.

    Raises
    ------
    ParameterError
        Naming those that were given.
    """
    given = given_options()
    if option not in given:
        return
    others = set(given) - {option, "--root", "--json"} if others is None else others
    if beside := [flag for flag in given if flag in others]:
        # Not with this module: the command line says first when a file hides one of our packages.
        from dpalgos.parameters import ParameterError

        raise ParameterError(f"{option} {why}: omit {', '.join(beside)}")


def refuse_without(options: Collection[str], needed: str, why: str) -> None:
    """Refuse options that have no effect without another one.

    Raises
    ------
    ParameterError
        Naming those that were given.
    """
    given = given_options()
    if needed not in given and (alone := [flag for flag in given if flag in options]):
        from dpalgos.parameters import ParameterError

        raise ParameterError(f"{', '.join(alone)} {why}: add {needed}, or omit {', '.join(alone)}")
