"""``unitball audit NAME --chain`` and ``--canaries``: audits of whole runs, and what they print."""

from __future__ import annotations

from deployments.cli.common import console, print_json, print_root
from dpalgos.guarantees import Neighbours

__all__ = ["show_chain_audit", "show_one_run_audit"]

_TRIALS = 48
# What a leak is called is told by a few of its fields.
_MOST_FIELDS = 20


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
    from rich.console import Console
    from rich.progress import Progress

    from flows.federated_training import chain_inline
    from tasks.auditing.chain import audit_chain

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as shown:
        bar = shown.add_task(f"audit of {name}, the whole chain", total=None)
        report = audit_chain(
            name,
            chain=chain_inline,
            epsilon=epsilon,
            delta=delta,
            trials=_TRIALS if trials is None else trials,
            confidence=confidence,
            neighbours=neighbours,
            progress=lambda done, of: shown.update(bar, completed=done, total=of),
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
