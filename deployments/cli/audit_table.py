"""``unitball audit --all``: everything that draws noise, a table of what each leaks at least."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from deployments.cli.common import console, print_json, print_root
from tasks.runtime.settings import current_layout

if TYPE_CHECKING:
    from tasks.auditing.catalogue import Arguments

__all__ = ["show_all_audits"]

_COLUMNS = {
    "claimed": "claimed_epsilon",
    "proved": "proved_epsilon",
    "at least": "lower_bound",
    "if Gaussian": "gaussian_bound",
}


def show_all_audits(arguments: Arguments, *, json: bool) -> None:
    """Audit all that is registered and draws noise, and print a table, or one JSON object."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    from tasks.auditing.catalogue import KINDS, audit_all, subjects

    wanted = subjects()
    folder = current_layout().root / "audits"
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    found: list[Mapping[str, object]] = []
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as shown:
        line = shown.add_task("audits", total=len(wanted))
        for subject, report in audit_all(wanted, arguments, folder, processes=os.cpu_count() or 1):
            found.append(report)
            shown.update(line, advance=1, description=f"audits: {subject.name} {report['verdict']}")
    found.sort(key=lambda one: (KINDS.index(str(one["kind"])), str(one["algorithm"])))
    if json:
        print_json({"audits": found})
        return
    table = Table(title=f"Audits at confidence {arguments.confidence:.12g}")
    for name in ("kind", "name", "δ", *(f"ε {words}" for words in _COLUMNS), "verdict", "runs", "seconds"):
        table.add_column(name, justify="left" if name in {"kind", "name", "verdict"} else "right")
    for one in found:
        table.add_row(
            str(one["kind"]),
            str(one["algorithm"]),
            _number(one["delta"]),
            *(_number(one[field]) for field in _COLUMNS.values()),
            str(one["verdict"]),
            f"{one['trials']:,}",
            _number(one["seconds"]),
        )
    console().print(table)
    print_root()


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "–"
