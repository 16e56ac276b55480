"""The application that commands register with."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="unitball",
    help="Differentially private training over several parties, with proofs, budgets and audits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
