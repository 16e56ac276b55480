"""``unitball predict``: what a released model says of new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deployments.cli.answers import Answer, answered
from deployments.cli.app import app
from deployments.cli.common import progress, require_readable


@app.command(
    epilog="Example: unitball predict --model clinic.noisy-gd --input docs/examples/clinic.csv --output out.parquet"
)
@answered
def predict(
    model: Annotated[str, typer.Option(help="NAME, NAME@ALIAS or NAME/VERSION; a name alone is its newest version.")],
    source: Annotated[Path, typer.Option("--input", help="CSV or Parquet with the table's columns.")],
    output: Annotated[Path, typer.Option(help="Parquet file to write, readable by you alone.")],
    id_column: Annotated[str | None, typer.Option("--id", help="A column of the input that is kept.")] = None,
) -> Answer:
    """Predict each row of a file; rows that the schema refuses get a reason instead of a prediction."""
    from tasks.runtime.settings import current_root
    from tasks.tracking.models import find_model, load_model
    from tasks.tracking.prediction import predict_file

    require_readable(source, "--input")
    with progress("predict"):
        found = find_model(current_root(), model)
        done = predict_file(load_model(current_root(), found), source, output, id_column=id_column)
    refused = f", {done.refused} refused (column refusal says why)" if done.refused else ""
    machine = {"model": found.name, "version": found.version, "output": str(output)}
    return Answer(
        {**machine, "rows": done.rows, "refused": done.refused},
        [f"{output}: {done.rows} rows by {found.name} version {found.version}{refused}"],
    )
