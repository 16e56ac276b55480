"""``unitball audit NAME``, ``--chain``, ``--canaries``, ``--dataset``, ``--membership``: run, and print the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deployments.cli.common import console, print_json, print_root
from dpalgos.guarantees import Neighbours

if TYPE_CHECKING:
    from dpalgos.audit.report import AuditReport

__all__ = [
    "print_report",
    "show_audit_on_public_rows",
    "show_chain_audit",
    "show_membership",
    "show_one_run_audit",
]

_TRIALS, _CANARY_TRIALS, _MODELS = 48, 400, 64
# What a leak is called is told by a few of its fields.
_MOST_FIELDS = 20


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how many of how many runs are done."""
    from rich.console import Console
    from rich.progress import Progress

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as shown:
        bar = shown.add_task(title, total=None)
        yield lambda done, of: shown.update(bar, completed=done, total=of)


def print_report(report: AuditReport, *, json: bool) -> None:
    """Print what an audit of neighbours has shown."""
    if json:
        print_json(report.to_json())
        return
    stated = [
        ("epsilon proved", report.proved_epsilon),
        ("epsilon claimed", report.claimed_epsilon),
        (f"epsilon at least, at {report.confidence:.12g}", report.lower_bound),
        ("epsilon at most seen by so many runs", report.ceiling),
        ("epsilon at least, if Gaussian", report.gaussian_bound),
        ("mu proved", report.proved_mu),
        ("mu at least", report.lower_mu),
        ("mu at least, if Gaussian", report.gaussian_mu),
    ]
    out = console()
    out.print(
        f"{report.algorithm} ({report.kind}): {report.verdict}, at delta {report.delta:g} under {report.neighbours}",
        highlight=False,
    )
    for words, value in stated:
        out.print(f"  {words}: {'–' if value is None else f'{value:.4g}'}", highlight=False)
    out.print("  tests of one neighbour against the other, type I and type II errors at most:", highlight=False)
    for alpha, beta in report.curve[:: max(1, len(report.curve) // 5)]:
        out.print(f"    {alpha:.3g}, {beta:.3g}", highlight=False)
    out.print(f"  neighbours: {report.pair}\n  event: {report.event}", highlight=False)
    out.print(f"  {report.trials} runs counted on each neighbour, {report.seconds:.1f} s", highlight=False)
    print_root()


def show_audit_on_public_rows(
    name: str,
    epsilon: float,
    delta: float,
    *,
    dataset: str,
    trials: int | None,
    confidence: float,
    neighbours: Neighbours,
    seed: int,
    json: bool,
) -> None:
    """Audit a system on public rows that differ in a canary, and print the report."""
    from tasks.auditing.public_canaries import audit_on_public_rows

    with _progress(f"audit of {name} on rows of {dataset}") as advance:
        report = audit_on_public_rows(
            name,
            dataset,
            epsilon=epsilon,
            delta=delta,
            trials=_CANARY_TRIALS if trials is None else trials,
            confidence=confidence,
            neighbours=neighbours,
            seed=seed,
            progress=advance,
        )
    print_report(report, json=json)


def show_membership(
    name: str,
    epsilon: float,
    delta: float,
    *,
    dataset: str,
    models: int | None,
    neighbours: Neighbours,
    seed: int,
    out: Path | None,
    json: bool,
) -> None:
    """Attack a system's models of public rows, and print how well members are told from others."""
    from storage.atomic import write_bytes
    from tasks.auditing.drawing import draw_membership
    from tasks.auditing.membership import infer_membership

    with _progress(f"membership inference on {name}") as advance:
        report = infer_membership(
            name,
            dataset,
            epsilon=epsilon,
            delta=delta,
            models=_MODELS if models is None else models,
            neighbours=neighbours,
            seed=seed,
            progress=advance,
        )
    if out is not None:
        write_bytes(out.absolute(), draw_membership(report))
    if json:
        print_json(report.to_json())
        return
    print_to = console()
    stated = "proved" if report.proved_epsilon is not None else "claimed"
    print_to.print(
        f"{name} on {dataset}: {report.models} shadow models of {report.rows} rows, under {neighbours}", highlight=False
    )
    print_to.print(
        f"  advantage {report.advantage:.4f}, at most {report.advantage_bound:.4f} by what is {stated}\n"
        f"  area under the ROC curve {report.area:.4f}, at most {report.area_bound:.4f}",
        highlight=False,
    )
    for level, rate, most in report.rates:
        print_to.print(
            f"  members recognised at {level:g} false alarms: {rate:.4f}, at most {most:.4f}", highlight=False
        )
    print_to.print(f"  {report.seconds:.1f} s", highlight=False)
    print_root()


def show_chain_audit(
    name: str,
    epsilon: float,
    delta: float,
    *,
    trials: int | None,
    confidence: float,
    neighbours: Neighbours,
    json: bool,
) -> None:
    """Audit a whole chain and print the report."""
    from flows.federated_training import chain_inline
    from tasks.auditing.chain import audit_chain

    with _progress(f"audit of {name}, the whole chain") as advance:
        report = audit_chain(
            name,
            chain=chain_inline,
            epsilon=epsilon,
            delta=delta,
            trials=_TRIALS if trials is None else trials,
            confidence=confidence,
            neighbours=neighbours,
            progress=advance,
        )
    if json:
        print_json(report.to_json())
        return
    out = console()
    out.print(f"{name}, the whole chain: {report.verdict}, at delta {delta:g} under {neighbours}", highlight=False)
    out.print(f"  epsilon proved: {report.proved_epsilon:.4g}", highlight=False)
    out.print(
        f"  epsilon lower bound at {confidence:.12g}: {report.lower_bound:.4g}, and {report.ceiling:.4g} at most "
        f"from {report.trials} counted runs on each neighbour",
        highlight=False,
    )
    out.print(f"  {report.fields} fields compared, {len(report.differing)} differ without noise", highlight=False)
    for field in report.differing[:_MOST_FIELDS]:
        out.print(f"    {field}", highlight=False, markup=False, soft_wrap=True)
    out.print(f"  neighbours: {report.pair}\n  event: {report.event}", highlight=False, markup=False)
    out.print(f"  {report.seconds:.1f} s", highlight=False)
    print_root()


def show_one_run_audit(
    name: str,
    epsilon: float,
    delta: float,
    *,
    canaries: int,
    confidence: float,
    neighbours: Neighbours,
    seed: int,
    json: bool,
) -> None:
    """Audit one training run and print the report."""
    from tasks.auditing.one_run import audit_in_one_run

    report = audit_in_one_run(
        name,
        epsilon=epsilon,
        delta=delta,
        canaries=canaries,
        confidence=confidence,
        neighbours=neighbours,
        seed=seed,
    )
    if json:
        print_json(report.to_json())
        return
    out = console()
    out.print(f"{name}, one run: {report.verdict}, at delta {delta:g} under {neighbours}", highlight=False)
    out.print(f"  {report.correct} of {report.guesses} guesses right, of {report.canaries} canaries", highlight=False)
    stated = [
        ("epsilon proved", report.proved_epsilon),
        ("epsilon claimed", report.claimed_epsilon),
        (f"epsilon lower bound at {confidence:.12g}", report.lower_bound),
        ("mu proved", report.proved_mu),
        (f"mu lower bound at {confidence:.12g}", report.lower_mu),
        ("probability of as many under what is stated, at most", report.p_value),
    ]
    for words, value in stated:
        out.print(f"  {words}: {'–' if value is None else f'{value:.4g}'}", highlight=False)
    out.print(f"  {report.seconds:.1f} s", highlight=False)
    print_root()
