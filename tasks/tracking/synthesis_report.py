"""Report of a synthesis in MLflow: drawn and released tables with margins, what rows rest on, what they cannot do."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from dpalgos.guarantees import rounded_up
from dpalgos.measured import in_digits
from tasks.planning.column_statistics import SynthesisPlan
from tasks.release.drawn_rows import SyntheticRows
from tasks.tracking.results import stated
from tasks.tracking.runs import RunReport
from tasks.tracking.synthesis_figure import draw_columns, draw_tables
from tasks.tracking.synthesis_tables import Fidelity, NamedTable

_MOST_LINES = 10
NOT_GOOD_FOR = (
    "Rare combinations: a cell that holds fewer rows than its noise is drawn as if its columns were independent.",
    "Effects of three or more columns together: the tree holds pairs, given the class.",
    "Tests of significance and standard errors: they treat synthetic rows as a sample and ignore the noise of the "
    "releases.",
    "Numbers within a bin: they are drawn uniformly.",
    "People: each synthetic row is one record.",
)
"""The limits of synthetic rows, as a report lists them."""


def synthesis_report(plan: SynthesisPlan, found: SyntheticRows, held: Fidelity) -> RunReport:
    """Return a synthesis as MLflow shows it: its lineage, tables, figures and limits.

    Parameters
    ----------
    plan : SynthesisPlan
    found : SyntheticRows
    held : Fidelity
    """
    edges = [parent for parent in found.tree.values() if parent is not None]
    return RunReport(
        experiment=found.dataset,
        run_key=f"{found.synthesis}-{found.seed}-{found.rows}",
        name=f"{found.rows} synthetic rows of {found.dataset}, seed {found.seed}",
        facts={
            "algorithm": plan.system,
            "dataset": found.dataset,
            "trust": plan.tables.trust.name,
            "proved": stated(found.epsilon, found.delta),
            "neighbours": str(plan.tables.setting.neighbours),
            "numerics": str(plan.tables.guarantee().numerics),
        },
        params={"seed": found.seed, "rows": found.rows, "delta": found.delta, "unit": found.unit},
        metrics={
            "epsilon_spent": rounded_up(found.epsilon, 6),
            "delta_spent": found.delta,
            "edges": float(len(edges)),
            **{f"distance_{name}": _mean(tables) for name, tables in _kinds(held) if tables},
        },
        files={
            "lineage.json": json.dumps(found.lineage, indent=1),
            "tables.json": json.dumps(held.to_json(), indent=1),
            "report.md": report_page(plan, found, held),
        },
        drawn=lambda: {"columns.png": draw_columns(held.columns), "tables.png": draw_tables(held.tables)},
        note=report_page(plan, found, held),
    )


def _kinds(held: Fidelity) -> list[tuple[str, Sequence[NamedTable]]]:
    return [("columns", held.columns), ("tables", held.tables), ("pairs", held.pairs)]


def _mean(tables: Sequence[NamedTable]) -> float:
    return float(np.mean([one.table.distance for one in tables]))


def report_page(plan: SynthesisPlan, found: SyntheticRows, held: Fidelity) -> str:
    """Return the report of a synthesis as Markdown."""
    by_tables = {
        "columns": "Each column alone, and the label, by the one-way counts",
        "tables": "Each column by its parent or the class: the tables from which rows are drawn",
        "pairs": "All counted pairs, in few groups: the tables from which the tree was chosen",
    }
    lines = [
        f"### {found.rows} synthetic rows of {found.dataset}",
        f"The rows rest on {len(found.rests_on)} releases of ε = {found.epsilon:g} at δ = {found.delta:g} per "
        f"{found.unit}, charged to account {found.account}. They counted {found.counted} {plan.dataset.unit.several}.",
        found.reason,
        "### Limits of synthetic rows",
        "\n".join(f"- {one}" for one in NOT_GOOD_FOR),
        "### Synthetic and released tables",
        "Distance: total variation between synthetic and released shares. The column `by noise` has the distance that "
        "noise alone causes on average. Outside: cells whose synthetic share is outside the 95 % margin. If synthetic "
        "rows had the shares of the counted rows, 1 cell in 20 would be. `columns.png` and `tables.png` show the "
        "tables, `tables.json` has all numbers.",
        _ruled(
            ["tables", "number", "distance, mean", "by noise, mean", "cells outside"],
            [
                [
                    by_tables[name],
                    f"{len(tables)}",
                    in_digits(_mean(tables), 2),
                    in_digits(float(np.mean([one.table.by_noise for one in tables])), 2),
                    f"{sum(one.table.outside for one in tables)} of {sum(one.table.drawn.size for one in tables)}",
                ]
                for name, tables in _kinds(held)
                if tables
            ],
        ),
    ]
    lines += ["### Columns", _ruled(*_column_lines(found, held))]
    if held.pairs:
        beyond = sorted(held.pairs, key=lambda one: one.table.by_noise - one.table.distance)[:_MOST_LINES]
        lines += [
            f"### The {len(beyond)} pairs with the largest deviation",
            "Do not use synthetic rows for these pairs where the distance exceeds that of noise.",
            _ruled(
                ["pair", "in the tree", "distance", "by noise", "cells outside"],
                [
                    [
                        " × ".join(one.columns),
                        "yes" if _in_tree(found, one) else "no",
                        in_digits(one.table.distance, 2),
                        in_digits(one.table.by_noise, 2),
                        f"{one.table.outside} of {one.table.drawn.size}",
                    ]
                    for one in beyond
                ],
            ),
        ]
    return "\n\n".join(lines)


def _in_tree(found: SyntheticRows, pair: NamedTable) -> bool:
    one, other = pair.columns
    return found.tree.get(one) == other or found.tree.get(other) == one


def _column_lines(found: SyntheticRows, held: Fidelity) -> tuple[list[str], list[list[str]]]:
    """Return a line per column: its parent, and the distance of its shares from the released ones."""
    lines = []
    for one in held.columns:
        (name,) = one.columns
        farthest = int(np.abs(one.table.drawn - one.table.released).argmax())
        lines.append(
            [
                name,
                (found.tree[name] or "the class alone") if name in found.tree else "–",
                in_digits(one.table.distance, 2),
                in_digits(one.table.by_noise, 2),
                one.cells[0][farthest],
                f"{in_digits(one.table.released[farthest], 3)} ± {in_digits(one.table.margins[farthest], 2)}",
                in_digits(one.table.drawn[farthest], 3),
            ]
        )
    headings = [
        "column",
        "drawn given",
        "distance",
        "by noise",
        "largest difference in",
        "released",
        "synthetic",
    ]
    return headings, lines


def _ruled(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return "\n".join([line(headings), line(["---"] * len(headings)), *map(line, lines)])
