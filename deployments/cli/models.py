"""``unitball model`` and ``unitball predict``: what a released model is, and what it says of new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deployments.cli.common import Answer, answered, console, progress, require_readable, running
from deployments.cli.entry_point import app
from tasks.runtime.settings import current_root

models = typer.Typer(help="Registered models.", no_args_is_help=True)
app.add_typer(models, name="model")


@models.command(epilog="Example: unitball model show digits.noisy-gd")
@answered
def show(
    model: Annotated[str, typer.Argument(help="NAME, NAME@ALIAS or NAME/VERSION; a name alone is its newest version.")],
) -> Answer:
    """Show the model card: trained on what, guaranteed, spent, how good, what is not covered, how to reproduce."""
    from rich.markdown import Markdown

    from tasks.tracking.models import find_model

    version = find_model(current_root(), model)
    text = version.card or "This version was logged without a model card."
    return Answer(
        {"model": version.name, "version": version.version, "card": version.card},
        [f"{version.name} version {version.version}", Markdown(text) if console().is_terminal else text],
    )


@models.command(epilog="Example: unitball model record clinic.noisy-gd/3 --digest 9f86d081…")
@answered
def record(
    model: Annotated[str, typer.Argument(help="NAME/VERSION, of an earlier version of Unitball or of another root.")],
    digest: Annotated[str, typer.Option(help="SHA-256 of its model.skops, taken where it was made.")],
) -> Answer:
    """Vouch for a model that this root has not logged, so that it may be loaded; says what is not known of it."""
    from tasks.tracking.models import find_model, record_model

    version = find_model(current_root(), model)
    unknown = record_model(current_root(), version, digest)
    heading = (
        f"{version.name} version {version.version} is recorded with your consent and may be loaded. Not known of it:"
    )
    return Answer(
        {"model": version.name, "version": version.version, "digest": digest.lower(), "unknown": unknown},
        [heading, *(f"  - {one}" for one in unknown)],
    )


@models.command(epilog="Example: unitball model promote digits.noisy-gd/3 --alias champion")
@answered
def promote(
    model: Annotated[str, typer.Argument(help="NAME/VERSION or NAME@ALIAS; a name alone is its newest version.")],
    alias: Annotated[str, typer.Option(help="The alias that the version gets.")] = "champion",
) -> Answer:
    """Give a version an alias. A champion has to be proved, within its budget, audited and better."""
    from tasks.tracking.models import find_model
    from tasks.tracking.models import promote as set_alias

    version = find_model(current_root(), model)
    set_alias(current_root(), version.name, version.version, alias)
    return Answer(
        {"model": version.name, "version": version.version, "alias": alias},
        [f"{version.name} version {version.version} is now {version.name}@{alias}"],
    )


@models.command(epilog="Example: unitball model compare clinic.noisy-gd/3 --epsilon 0.1 --promote")
@answered
def compare(
    model: Annotated[str, typer.Argument(help="NAME/VERSION or NAME@ALIAS; a name alone is its newest version.")],
    epsilon: Annotated[
        float | None, typer.Option(help="Charge this to private held-out rows; not needed on public ones.")
    ] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Make it champion where it is better.")] = False,
) -> Answer:
    """Compare a version with the champion of its name on the same held-out rows."""
    from tasks.tracking.comparison import ComparisonRequest, open_comparison

    request = ComparisonRequest(model=model, epsilon=epsilon, promote=promote)
    # What cannot be compared is said before an engine is started.
    open_comparison(current_root(), model)
    with running(f"compare {model}"):
        from flows.comparison import champion_comparison

        compared = champion_comparison(request)
    return Answer({**compared.model_dump(mode="json"), "better": compared.better}, [compared.statement])


@models.command(epilog="Example: unitball model rollback clinic.noisy-gd")
@answered
def rollback(
    name: Annotated[str, typer.Argument(help="A registered model.")],
) -> Answer:
    """Give the champion's alias back to the version that had it before."""
    from tasks.tracking.models import roll_back

    version = roll_back(current_root(), name)
    return Answer(
        {"model": name, "version": version, "alias": "champion"}, [f"{name} version {version} is {name}@champion again"]
    )


@models.command(epilog='Example: unitball model withdraw-audits noisy-gd --reason "seed 7 of a broken build"')
@answered
def withdraw_audits(
    algorithm: Annotated[str, typer.Argument(help="A registered system.")],
    reason: Annotated[str, typer.Option(help="Why the finding was an error; it stays on record.")],
) -> Answer:
    """Take back what audits have refuted of an algorithm; its models may be champion after another audit."""
    from tasks.tracking.models import withdraw_audits as withdraw

    freed = withdraw(current_root(), algorithm, reason)
    return Answer(
        {"algorithm": algorithm, "reason": reason, "versions": freed},
        [f"withdrawn for {algorithm}: {', '.join(freed) or 'no version'}"],
    )


@app.command(
    epilog="Example: unitball predict --model clinic.noisy-gd --input docs/examples/clinic.csv --output out.parquet"
)
@answered
def predict(
    model: Annotated[str, typer.Option(help="NAME, NAME@ALIAS or NAME/VERSION; a name alone is its newest version.")],
    source: Annotated[Path, typer.Option("--input", help="CSV or Parquet with the table's columns.")],
    output: Annotated[Path, typer.Option(help="Parquet file to write, readable by you alone.")],
    id_column: Annotated[str | None, typer.Option("--id", help="A column of the input that is kept.")] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Probability from which on the second of two classes is predicted."),
    ] = None,
) -> Answer:
    """Predict each row of a file; rows that the schema refuses get a reason instead of a prediction."""
    from tasks.tracking.models import find_model, guaranteed, load_model
    from tasks.tracking.prediction import predict_file

    require_readable(source, "--input")
    with progress("predict"):
        version = find_model(current_root(), model)
        done = predict_file(
            load_model(current_root(), version), source, output, id_column=id_column, threshold=threshold
        )
        promise = guaranteed(current_root(), version)
    refused = f", {done.refused} refused (column refusal says why)" if done.refused else ""
    machine = {"model": version.name, "version": version.version, "output": str(output)}
    return Answer(
        {**machine, "rows": done.rows, "refused": done.refused, "guaranteed": promise},
        [f"{output}: {done.rows} rows by {version.name} version {version.version}{refused}", *filter(None, [promise])],
    )
