"""``unitball audit --all``: everything that draws noise, a table of what each leaks at least."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from deployments.cli.answers import Answer, table
from deployments.cli.audit_runs import progress
from tasks.runtime.settings import current_layout

if TYPE_CHECKING:
    from tasks.auditing.catalogue import Arguments


_COLUMNS = {
    "claimed": "claimed_epsilon",
    "proved": "proved_epsilon",
    "at least": "lower_bound",
    "if Gaussian": "gaussian_bound",
}


def all_audits(arguments: Arguments) -> Answer:
    """Audit all that is registered and draws noise."""
    from tasks.auditing.catalogue import KINDS, audit_all, subjects

    wanted = subjects()
    folder = current_layout().root / "audits"
    found: list[Mapping[str, object]] = []
    with progress("audits") as advance:
        for subject, report in audit_all(wanted, arguments, folder, processes=os.cpu_count() or 1):
            found.append(report)
            advance(len(found), len(wanted), f"audits: {subject.name} {report['verdict']}")
    found.sort(key=lambda one: (KINDS.index(str(one["kind"])), str(one["algorithm"])))
    numbers = ("δ", *(f"ε {heading}" for heading in _COLUMNS), "runs", "seconds")
    rows = (
        (
            one["kind"],
            one["algorithm"],
            one["verdict"],
            *map(_number, (one["delta"], *(one[field] for field in _COLUMNS.values()))),
            f"{one['trials']:,}",
            _number(one["seconds"]),
        )
        for one in found
    )
    title = f"Audits at confidence {arguments.confidence:.12g}"
    return Answer({"audits": found}, [table(("kind", "name", "verdict", *numbers), rows, title=title, right=numbers)])


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "–"
