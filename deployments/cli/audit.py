"""``unitball audit``: what a system leaks, measured on made-up neighbours."""

from __future__ import annotations

from typing import Annotated

import typer

from deployments.cli.app import app
from deployments.cli.audit_runs import show_chain_audit, show_one_run_audit
from deployments.cli.common import JsonFlag, RootOption, console, print_json, print_root, use_root

_TRIALS = 2000


@app.command(epilog="Example: unitball audit wishart-svm --trials 200")
def audit(
    name: Annotated[str, typer.Argument(help="A registered system (unitball algorithms --kind systems).")],
    epsilon: Annotated[float, typer.Option(help="What the system is asked to cost.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Delta of the bound.")] = 1e-5,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Runs on each neighbour; half choose the event, half are counted: 2000, or 48 of a whole chain."
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the lower bound; 0.99 errs in one audit of a hundred.")] = 0.99,
    neighbours: Annotated[str, typer.Option(help="replace-one or replace-special.")] = "replace-one",
    seed: Annotated[int, typer.Option(help="Of the public noise; the same seed repeats every run.")] = 0,
    chain: Annotated[
        bool, typer.Option("--chain", help="Audit all that a private run shows: files, ledger, numbers, MLflow.")
    ] = False,
    canaries: Annotated[
        int | None, typer.Option(help="Audit from one training run on so many made-up canaries, some hundreds.")
    ] = None,
    root: RootOption = None,
    json: JsonFlag = False,
) -> None:
    """Bound a system's epsilon from below: the code that trains, run many times on rows made up to differ in one."""
    from rich.progress import Progress

    from dpalgos.errors import ParameterError
    from dpalgos.guarantees import Neighbours
    from tasks.auditing.systems import audit_system

    use_root(root)
    known = [str(one) for one in (Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL)]
    if neighbours not in known:
        raise ParameterError(f"--neighbours {neighbours!r} is none of {', '.join(known)}")
    if chain and canaries is not None:
        raise ParameterError("--chain and --canaries are two audits: choose one")
    if canaries is not None:
        show_one_run_audit(
            name,
            epsilon,
            delta,
            canaries=canaries,
            confidence=confidence,
            neighbours=Neighbours(neighbours),
            seed=seed,
            json=json,
        )
        return
    if chain:
        show_chain_audit(
            name, epsilon, delta, trials=trials, confidence=confidence, neighbours=Neighbours(neighbours), json=json
        )
        return
    with Progress(console=console(), transient=True, disable=json) as shown:
        bar = shown.add_task(f"audit of {name}", total=None)
        report = audit_system(
            name,
            epsilon=epsilon,
            delta=delta,
            trials=_TRIALS if trials is None else trials,
            confidence=confidence,
            neighbours=Neighbours(neighbours),
            seed=seed,
            progress=lambda done, of: shown.update(bar, completed=done, total=of),
        )
    if json:
        print_json(report.to_json())
        return
    stated = [
        ("proved", report.proved_epsilon),
        ("claimed", report.claimed_epsilon),
        (f"lower bound at {confidence:.12g}", report.lower_bound),
        ("lower bound if Gaussian", report.gaussian_bound),
    ]
    out = console()
    out.print(f"{name}: {report.verdict}, at delta {delta:g} under {report.neighbours}", highlight=False)
    for words, value in stated:
        out.print(f"  epsilon {words}: {'–' if value is None else f'{value:.4g}'}", highlight=False)
    out.print(f"  neighbours: {report.pair}\n  event: {report.event}", highlight=False)
    out.print(f"  {report.trials} runs counted on each neighbour, {report.seconds:.1f} s", highlight=False)
    print_root()
