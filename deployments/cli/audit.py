"""``unitball audit``: what a system or a release leaks, measured on synthetic neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deployments.cli.answers import Answer, answered
from deployments.cli.app import app
from deployments.cli.audit_runs import (
    audit_on_rows,
    chain_audit,
    membership_inference,
    one_run_audit,
    subject_audit,
)


@app.command(epilog="Example: unitball audit wishart-svm --trials 200")
@answered
def audit(
    name: Annotated[
        str | None, typer.Argument(help="A registered system, or else a projection, trainer or evaluator.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Audit everything that draws noise; what is done is not done again.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A quarter of the usual runs, or fewer.")] = False,
    kind: Annotated[
        str | None, typer.Option(help="systems, projections, trainers or evaluators, of a name that several have.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="What it is asked to cost: 1, or where its published flaw shows.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the bound: 1e-5, or where its flaw shows.")] = None,
    trials: Annotated[
        int | None,
        typer.Option(help="Runs on each neighbour, some to choose the event and the others counted; by cost if empty."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the lower bound; 0.99 errs in one audit of a hundred.")] = 0.99,
    neighbours: Annotated[
        str | None, typer.Option(help="replace-one or replace-special; what the guarantee is derived for if empty.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the public noise; the same seed repeats every run.")] = 0,
    chain: Annotated[
        bool, typer.Option("--chain", help="Audit all that a private run shows: files, ledger, numbers, MLflow.")
    ] = False,
    canaries: Annotated[
        int | None, typer.Option(help="Audit from one training run on so many synthetic canaries, some hundreds.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Audit on rows of this public data set that differ in a canary.")
    ] = None,
    membership: Annotated[
        str | None, typer.Option(help="Attack models of rows of this public data set: who was in the training set?")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="--membership: write the picture of its ROC curve here (PNG).")
    ] = None,
) -> Answer:
    """Bound epsilon from below: the code that trains, run many times on synthetic rows that differ in one."""
    from dpalgos.errors import ParameterError
    from dpalgos.guarantees import RELATIONS, Neighbours
    from tasks.auditing.catalogue import Arguments, find_subject

    known = [str(one) for one in RELATIONS]
    if neighbours is not None and neighbours not in known:
        raise ParameterError(f"--neighbours {neighbours!r} is none of {', '.join(known)}")
    if not 0 < confidence < 1:
        raise ParameterError(f"--confidence is {confidence!r}; it must lie strictly between 0 and 1")
    relation = None if neighbours is None else Neighbours(neighbours)
    if every == (name is not None):
        raise ParameterError("give the name of a system or release, or --all")
    chosen = [every, chain, canaries is not None, dataset is not None, membership is not None]
    if sum(chosen) > 1:
        raise ParameterError("--all, --chain, --canaries, --dataset and --membership are different audits: choose one")
    arguments = Arguments(
        epsilon=epsilon,
        delta=delta,
        trials=trials,
        confidence=confidence,
        neighbours=relation,
        seed=seed,
        quick=quick,
    )
    if name is None:
        from deployments.cli.audit_table import all_audits

        return all_audits(arguments)
    if canaries is not None:
        return one_run_audit(name, arguments, canaries)
    if membership is not None:
        return membership_inference(name, arguments, membership, out)
    if dataset is not None:
        return audit_on_rows(name, arguments, dataset)
    return chain_audit(name, arguments) if chain else subject_audit(find_subject(name, kind), arguments)
