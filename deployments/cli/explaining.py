"""The output of ``unitball train --explain`` and ``--plan``: what would run, why, and what it would ask for."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import typer

from deployments.cli.common import (
    Answer,
    running,
)
from dpalgos.guarantees import rounded_up
from tasks.planning.configuration import TrainingConfig

if TYPE_CHECKING:
    from tasks.preparation.prepare import Prepared
    from tasks.release.expectation import Expectation


# Characters of a list that is shown whole.
_LONGEST_SHOWN = 60


def explained_run(config: TrainingConfig) -> Answer:
    """Return which parts and parameters a run has, for which reasons, and its price; nothing runs."""
    from tasks.datasets.registration import ensure_registered, find_dataset
    from tasks.preparation.prepare import whole
    from tasks.release.preflight import require_feasible
    from tasks.release.prices import price_of, with_epsilon

    ensure_registered(config.dataset, config.public_dataset)
    prepared = whole(require_feasible(with_epsilon(chosen(config), find_dataset(config.dataset))))
    plan, price = prepared.plan, price_of([prepared])
    warn(prepared)
    parts = {
        release.algorithm.kind.removesuffix("s"): {"name": release.name, **release.algorithm.parameters}
        for release in (*plan.counts[:1], *plan.projections[:1], *plan.models[:1])
    }
    lines = [f"{plan.system} under trust {plan.trust}"]
    lines += [f"  - {reason}" for reason in plan.reasons or ("parts and parameters are named, or defaults",)]
    for kind, part in parts.items():
        parameters = ", ".join(f"{name}={_brief(value)}" for name, value in part.items() if name != "name")
        lines.append(f"  {kind} {part['name']}" + (f": {parameters}" if parameters else ""))
    lines += [f"  measured by {plan.measured_by}"] if plan.measured_by else []
    lines += [f"  price: {price}"] if price is not None else []
    explained = {
        "system": plan.system,
        "trust": plan.trust,
        "reasons": plan.reasons,
        "warning": plan.warning,
        "measured_by": plan.measured_by,
        "price": None if price is None else dataclasses.asdict(price),
    }
    return Answer({**explained, "parts": parts}, lines)


def _brief(value: object) -> str:
    """Return a parameter's value, or the length of a long list."""
    text = str(value)
    return text if len(text) <= _LONGEST_SHOWN or not isinstance(value, list | tuple) else f"({len(value)} values)"


def expected_run(config: TrainingConfig) -> Answer:
    """Return the budget, time and memory that a run needs; nothing runs."""
    from storage.columns.declarations import shown
    from tasks.datasets.registration import ensure_registered, find_dataset
    from tasks.release.expectation import expect_run

    ensure_registered(config.dataset, config.public_dataset)
    expected, classes = expect_run(chosen(config)), find_dataset(config.dataset).classes
    delta = rounded_up(expected.delta, 6)
    budget = "none" if expected.epsilon is None else f"epsilon {expected.epsilon:g} at delta {delta:g}"
    tuned = f", the best of {expected.candidates} private candidates" if expected.candidates > 1 else ""
    charged = f"; {expected.charged} of them charged before, not charged again" if expected.charged else ""
    charged += f"; {expected.stored} stored, not computed again" if expected.stored else ""
    each = expected.rows_per_person
    again = "; rows are mapped again in each pass" * expected.mapped_again
    people = f" people of at most {each} {'row' if each == 1 else 'rows'} each" if expected.person else ""
    lines = {
        "rows": f"{expected.rows:,}{people} × {expected.dimension} over {expected.parties} parties",
        **({"classes": f"{len(classes)}: {shown(classes)}"} if classes else {}),
        "releases": f"{expected.releases}{tuned}, budget {budget}{charged}",
        **({"price": str(expected.price)} if expected.price is not None else {}),
        "passes": f"{expected.passes} over {_kept(expected.streamed, each > 1)}",
        "operations": f"{_span(expected.least_operations, expected.operations, '.2g')} floating-point operations in "
        f"matrix products, {_span(expected.least_small_operations, expected.small_operations, '.2g')} others",
        "reading": _span(expected.least_read_bytes / 2**20, expected.read_bytes / 2**20, ",.0f")
        + f" MiB of rows{again}",
        "memory": f"about {expected.memory_bytes / 2**20:,.0f} MiB" + (" at most" if each > 1 else ""),
        **({"horizon": _horizon(expected)} if expected.nights else {}),
        **({"measured by": expected.measured_by} if expected.measured_by else {}),
    }
    machine = {**dataclasses.asdict(expected), "classes": list(classes)}
    return Answer(machine, [f"{name:<12}{line}" for name, line in lines.items()])


def _kept(streamed: float, people: bool) -> str:
    """Return where rows are between passes; ``streamed`` is the share (for people the maximum) that is not kept."""
    if 0.0 < streamed < 1.0:
        return f"rows, {'at least ' if people else ''}{1.0 - streamed:.0%} of them kept in memory"
    return "rows read from disk" if streamed else "rows kept in memory"


def _horizon(expected: Expectation) -> str:
    """Return the cost and the noise of a horizon."""
    return (
        f"night {expected.night} of {expected.nights}; the first night is charged for all nights: epsilon "
        f"{expected.epsilon:g} at delta {rounded_up(expected.delta, 6):g}; later nights are free. The last running sum "
        f"has {expected.noise:.2f} times the noise of one release of all rows"
    )


def _span(least: float, most: float, digits: str) -> str:
    """Return a range: from one row per person to the limit per person."""
    low, high = (f"{number:{digits}}" for number in (least, most))
    return low if low == high else f"{low} to {high}"


def chosen(config: TrainingConfig) -> TrainingConfig:
    """Return a configuration with the best values on the rows of ``--on``, and print them.

    Without ``--on`` the configuration as it is.
    """
    if config.tuned_on is None or not config.tune:
        return config
    from tasks.datasets.registration import find_dataset
    from tasks.release.prices import with_epsilon

    # Flows import Prefect, which reads at its import which server there is.
    with running(f"tune on {config.tuned_on}"):
        from flows.federated_training import choose

        choice = choose(with_epsilon(config, find_dataset(config.dataset)))
    typer.echo(str(choice), err=True)
    return choice.config


def warn(prepared: Prepared) -> None:
    """Print a plan's warning."""
    from tasks.preparation.prepare import AwaitingPartition

    if not isinstance(prepared, AwaitingPartition) and prepared.plan.warning:
        typer.echo(f"warning: {prepared.plan.warning}", err=True)
