"""``unitball results``, ``algorithms``, ``model`` and ``predict``: what there is, and what it says of new rows."""

from __future__ import annotations

import json as json_module
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from deployments.cli.common import (
    Answer,
    YesOption,
    agree,
    answered,
    coloured,
    console,
    progress,
    require_readable,
    running,
    table,
)
from deployments.cli.entry_point import app, group_of
from deployments.cli.given import refuse_beside
from dpalgos.guarantees import rounded_up
from dpalgos.measured import in_digits, in_places
from dpalgos.parameters import ParameterError
from storage.atomic import write_bytes
from storage.errors import InputError
from tasks.runtime.settings import current_root

if TYPE_CHECKING:
    from tasks.tracking.champion_comparison import ModelComparison
    from tasks.tracking.effects import Effects
    from tasks.tracking.model_versions import RegisteredModel

Record = dict[str, Any]
_FACTS = ("algorithm", "dataset", "trust", "config_epsilon", "epsilon_spent", "delta_spent")
_MEASURED = ("accuracy", "mae", "r2")
_SHOWN = (
    *(*_FACTS, "accuracy", "accuracy_low", "accuracy_high", "mae", "r2"),
    *(f"{name}_reason" for name in _MEASURED),
    *("metrics_weigh", "seconds"),
)
_CALLED = {"r2": "R²", "mae": "mean absolute error"}
_ERRORS = "SELECT * FROM metrics WHERE party = 'all' AND metric IN ('mae', 'r2')"

# Curves and matrices are for --json and figures.
_LONGEST = 400
# Values of one column that are printed.
_MOST_VALUES = 40


@app.command(
    epilog='Example: unitball results "SELECT algorithm, max(accuracy) FROM runs GROUP BY algorithm ORDER BY 2 DESC"'
)
@answered
def results(
    sql: Annotated[
        str | None,
        typer.Argument(
            help="One SELECT over the views runs, metrics, releases, charges; DESCRIBE runs lists the columns of a "
            "view. Default: all runs."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Also write a figure (PNG). Several runs: accuracy against epsilon, or the last numeric column "
            "against the first. One run: its confusion matrix and ROC curve."
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write the rows to a CSV file.")] = None,
) -> Answer:
    """Query results in SQL (DuckDB); a query can read only these views."""
    from tasks.experiments.results import query_results, query_table

    found = query_table("SELECT * FROM runs" if sql is None else sql)
    records = found.to_pylist()
    written = [] if csv is None else _write_csv(found, csv)
    if sql is None:
        records = _with_errors(records, query_results)
    told = written + ([] if plot is None else _plot(records, plot))
    if sql is None:
        used = [
            name
            for name in _SHOWN
            if any(record.get(name) is not None or record.get(f"{name}_reason") for record in records)
        ]
        records = [{name: record.get(name) for name in used} for record in records]
    return Answer({"rows": records}, [*_shown(records, whole=sql is not None), *told])


def _write_csv(rows: Any, path: Path) -> list[str]:
    """Write an Arrow table; return where, in a sentence.

    Raises
    ------
    InputError
        If the file exists, or a cell holds a list.
    """
    import pyarrow as pa
    from pyarrow import csv

    if path.exists():
        raise InputError(f"{path} exists: give another file name, or remove it first")
    text = pa.BufferOutputStream()
    try:
        csv.write_csv(rows, text)
    except pa.ArrowException as error:
        raise InputError(f"the result cannot be written as CSV: {error}; select single values") from error
    write_bytes(path, text.getvalue().to_pybytes(), mode=0o644)
    return [f"written to {path}: {rows.num_rows} rows"]


def _said(records: Sequence[Record]) -> list[Record]:
    """Return records for people: what cannot be measured is said in the place of its number; --json has the reason."""
    from tasks.tracking.results import NOT_MEASURED

    return [
        {
            name: NOT_MEASURED if value is None and record.get(f"{name}_reason") else value
            for name, value in record.items()
            if name.removesuffix("_reason") not in _MEASURED or not name.endswith("_reason")
        }
        for record in records
    ]


def _shown(records: Sequence[Record], *, whole: bool) -> Iterator[RenderableType]:
    records = _said(records)
    if not whole and all(record.get("metrics_weigh") in (None, "rows") for record in records):
        # The usual case takes no room.
        records = [{name: value for name, value in record.items() if name != "metrics_weigh"} for record in records]
    if not records:
        yield "no rows"
    else:
        yield table([*records[0]], ((_cell(value, name) for name, value in record.items()) for record in records))


def _with_errors(records: list[Record], query: Callable[[str], list[Record]]) -> list[Record]:
    """Return runs with their errors beside the accuracy, where some predict numbers."""
    if all(record.get("accuracy") is not None or record.get("measured_on") is None for record in records):
        return records
    errors: dict[str, Record] = {}
    for one in query(_ERRORS):
        ends = {f"{one['metric']}_{end}": one.get(end) for end in ("low", "high", "reason")}
        known = {one["metric"]: one["value"], **ends}
        errors.setdefault(one["run_key"], {}).update(known)
    return [{**record, **errors.get(record["run_key"], {})} for record in records]


def _plot(records: list[Record], path: Path) -> list[str]:
    """Write a figure of one run, or of several; return where, and what is not drawn, in sentences.

    Raises
    ------
    InputError
        If there is nothing to draw, or the file exists.
    """
    if path.exists():
        raise InputError(f"{path} exists: give another file name, or remove it first")
    if len(records) == 1 and records[0].get("confusion"):
        from tasks.runtime.plots import draw_measured

        classes, confusion, roc = (json_module.loads(str(records[0][name])) for name in ("classes", "confusion", "roc"))
        if classes:
            write_bytes(path, draw_measured(classes, confusion, roc, str(records[0]["measured_on"])), mode=0o644)
            return [f"drawn in {path}"]
    import pandas as pd
    from matplotlib.figure import Figure

    from tasks.runtime.plots import png_of
    from tasks.tracking.results import NOT_MEASURED
    from unitball.training import plot

    frame = pd.DataFrame(records)
    numbers = [str(name) for name in frame.select_dtypes("number").columns if frame[name].notna().any()]
    x = next((name for name in ("config_epsilon", "epsilon") if name in numbers), numbers[0] if numbers else "")
    axes_left = [name for name in numbers if name != x]
    if not axes_left:
        raise InputError(
            f"the result has the columns {', '.join(map(str, frame.columns)) or 'none'}, fewer than two of them "
            "numeric; select two numeric columns, or all columns of one evaluated run"
        )
    y = next((name for name in ("accuracy", "r2") if name in axes_left), axes_left[-1])
    if "algorithm" not in frame:
        frame["algorithm"] = y
    # Rows of different data sets are no line together, and one without such a number has no panel.
    drawn = frame.dropna(subset=[y])
    panels = [*drawn.groupby("dataset", sort=False)] if "dataset" in drawn else [("", drawn)]
    left_out = sorted(set(frame["dataset"].dropna()) - set(drawn["dataset"]), key=str) if "dataset" in frame else []
    figure = Figure(figsize=(6.4 * len(panels), 4.8), layout="constrained")
    for (name, own), axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        of_people = "metrics_weigh" in own and (own["metrics_weigh"] == "people").any()
        plot(own, x, y, axes).set_title(f"{name}, by person" if of_people else str(name))
        axes.set_ylabel(_CALLED.get(y, y))
    write_bytes(path, png_of(figure, 110), mode=0o644)
    told = [f"drawn in {path}"]
    if left_out:
        told.append(f"not drawn, because no run has a measured {y}: {', '.join(map(str, left_out))}")
    if f"{y}_reason" in frame and (unknown := int(frame[f"{y}_reason"].notna().sum())):
        whose = "1 run, whose" if unknown == 1 else f"{unknown} runs, whose"
        told.append(f"not drawn: {whose} {_CALLED.get(y, y)} {NOT_MEASURED}")
    return told


def _cell(value: object, name: str = "") -> str | None:
    if value is None:
        return None
    if isinstance(value, float) and math.isfinite(value) and name.endswith("_spent"):
        value = rounded_up(value, 6)
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


@app.command(epilog="Example: unitball algorithms --kind systems --proved")
@answered
def algorithms(
    kind: Annotated[
        str | None, typer.Option(help="systems, projections, trainers, evaluators, aggregators. Default: all.")
    ] = None,
    proved: Annotated[
        bool, typer.Option("--proved", help="List only algorithms that may run on private rows.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of guarantees as Markdown.")] = False,
) -> Answer:
    """List algorithms with trust models, proofs and papers' claims."""
    from tasks.experiments.registered import describe_all, render

    refuse_beside("--markdown", "prints the whole page", ["--kind", "--proved", "--json"])
    if markdown:
        sys.stdout.write(render())
        raise typer.Exit
    described = describe_all()
    kinds = dict.fromkeys(entry["kind"] for entry in described)
    if kind is not None and kind not in kinds:
        raise ParameterError(f"--kind {kind!r} is unknown; give one of {', '.join(kinds)}")
    entries = [
        entry for entry in described if (kind is None or entry["kind"] == kind) and (not proved or entry["proved"])
    ]
    rows = (
        (one["name"], one["kind"], ", ".join(one["trust"]), _proved(one), one["claim"], one["source"])
        for one in entries
    )
    headings = ("name", "kind", "trust", "proved", "claim", "source")
    return Answer({"algorithms": entries}, [table(headings, rows, title="Algorithms")])


def _proved(entry: dict[str, Any]) -> str | Text:
    if entry["proved"]:
        return str(entry["proved"])
    counterpart = f"; sound: {entry['sound_counterpart']}" if entry["sound_counterpart"] else ""
    return coloured("none", "red").append(counterpart, "default")


models = group_of("model")
_MODEL = "NAME, NAME@champion or NAME/VERSION; a name alone is its newest version."


@models.command(epilog="Example: unitball model show digits.noisy-gd")
@answered
def show(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    effects: Annotated[
        bool, typer.Option("--effects", help="Show the effect of each column instead of the model card.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="With --effects: also write a figure (PNG).")] = None,
) -> Answer:
    """Show the model card: guarantee, cost, metrics, limits, how to reproduce."""
    from rich.markdown import Markdown

    from tasks.tracking.model_versions import find_model

    if plot is not None and not effects:
        raise InputError("--plot draws the effect of each column; add --effects")
    version = find_model(current_root(), model)
    if effects:
        return _effects(version, plot)
    text = version.card or "This version was logged without a model card."
    return Answer(
        {"model": version.name, "version": version.version, "card": version.card},
        [f"{version.name} version {version.version}", Markdown(text) if console().is_terminal else text],
    )


def _effects(version: RegisteredModel, plot: Path | None) -> Answer:
    """Return what a model says about each column, for free; as a figure, too, where a file is named."""
    from tasks.tracking.model_files import effects_of_model

    if plot is not None and plot.exists():
        raise InputError(f"{plot} exists; name another file, or remove it first")
    found = effects_of_model(current_root(), version)
    if plot is not None:
        from tasks.tracking.effect_figure import draw_effects

        write_bytes(plot, draw_effects(found), mode=0o644)
    heading = f"{version.name} version {version.version}: effect of each column"
    return Answer(
        {"model": version.name, "version": version.version, **found.to_json()},
        [heading, found.note, *effect_lines(found)],
    )


def effect_lines(found: Effects) -> Iterator[str]:
    """Yield a model's effects for people: a curve of each number, a line for each value."""
    from tasks.tracking.effects import heights, most_frequent, worth_text

    for column in found.columns:
        yield ""
        yield f"{column.name} ({column.kind}), spread {in_digits(column.spread, 3)}, reference {column.reference}"
        ranged = [part for part in column.parts if part.high is not None]
        single = [part for part in column.parts if part.high is None]
        if ranged and column.bar_rows:
            width = len(ranged) // column.bars
            bars = [rows for rows, _, _ in column.bar_rows]
            yield f"  |{''.join(one * width for one in heights(bars, 0.0, max(bars)))}|  {found.unit}, noisy"
        for place, name in enumerate(found.scores if ranged else ()):
            of = [part.scores[place] for part in ranged]
            ends = f"{worth_text(ranged[0].low)} to {worth_text(ranged[-1].high)}"
            least, most = (found.score_text(one) for one in (min(of), max(of)))
            yield f"  |{heights(of, min(of), max(of))}|  {name}: {least} to {most}, from {ends}"
        frequent = most_frequent(column, _MOST_VALUES) if len(single) > _MOST_VALUES else single
        shown = [part for part in frequent if part.high is None]
        longest = max((len(part.of) for part in shown), default=0)
        texts = [[found.score_text(score) for score in part.scores] for part in shown]
        wide = max((len(text) for of in texts for text in of), default=0)
        for part, of_part in zip(shown, texts, strict=True):
            scores = "  ".join(text.rjust(wide) for text in of_part)
            counted = ""
            if part.rows is not None:
                rows, low, high = (in_places(one, 0, way) for one, way in zip(part.rows, (0, -1, 1), strict=True))
                counted = f"  {rows} [{low}, {high}] {found.unit}"
            yield f"  {part.of.ljust(longest)}  {scores}{counted}"
        if len(shown) < len(single):
            yield f"  … and {len(single) - len(shown)} more, with smaller counts (--json has all)"
    if found.pairs:
        yield ""
        yield "pairs of columns by the weight of their products"
        for pair in found.pairs:
            yield f"  {in_digits(pair.weight, 3)}  {' × '.join(pair.columns)}"


@models.command(epilog="Example: unitball model onnx digits.noisy-gd -o digits.onnx")
@answered
def onnx(
    model: Annotated[str, typer.Argument(help=_MODEL)],
    out: Annotated[Path, typer.Option("-o", "--out", help="File to write.")],
) -> Answer:
    """Write a model as an ONNX graph (extra unitball[onnx]); models of tables are refused."""
    from tasks.tracking.lineage import guaranteed
    from tasks.tracking.model_files import load_model
    from tasks.tracking.model_versions import find_model
    from tasks.tracking.onnx_export import to_onnx

    if out.exists():
        raise InputError(f"{out} exists; name another file, or remove it first")
    version = find_model(current_root(), model)
    pipeline = load_model(current_root(), version)
    content = to_onnx(pipeline)
    write_bytes(out, content, mode=0o644)
    promise = guaranteed(current_root(), version)
    says = f"{out}: {version.name} version {version.version}, {len(content):,} bytes"
    return Answer(
        {"model": version.name, "version": version.version, "output": str(out), "guaranteed": promise},
        [says, *filter(None, [promise])],
    )


@models.command(epilog="Example: unitball model layers docs/examples/encoder.onnx")
@answered
def layers(file: Annotated[Path, typer.Argument(help="ONNX file, as for --features onnx:FILE.")]) -> Answer:
    """List an ONNX file's input, outputs and layers with shapes (extra unitball[onnx])."""
    from dpalgos.features.onnx_sessions import listed_layers, shown
    from storage.source import reading

    with reading(file):
        content = file.read_bytes()
    put, outputs, found = listed_layers(content)
    named = [("input", put), *(("output", each) for each in outputs), *(("layer", each) for each in found)]
    rows = [[kind, each.name, each.kind, shown(each.shape) if each.shape else "?"] for kind, each in named]
    document = {
        kind: [
            {"name": each.name, "kind": each.kind, "shape": list(each.shape)}
            for called, each in named
            if called == kind
        ]
        for kind in ("input", "output", "layer")
    }
    return Answer(document, [table(["", "name", "type or operator", "shape"], rows)])


@models.command(epilog="Example: unitball model record clinic.noisy-gd/3 --digest 9f86d081…")
@answered
def record(
    model: Annotated[str, typer.Argument(help="NAME/VERSION from another root, or one that the ledger lacks.")],
    digest: Annotated[str, typer.Option(help="SHA-256 of its model.skops, computed where it was trained.")],
) -> Answer:
    """Register a trusted model of another root by its digest."""
    from tasks.tracking.model_files import record_model
    from tasks.tracking.model_versions import find_model

    version = find_model(current_root(), model)
    unknown = record_model(current_root(), version, digest)
    heading = (
        f"{version.name} version {version.version} is recorded with your consent and may be loaded. Not known of it:"
    )
    return Answer(
        {"model": version.name, "version": version.version, "digest": digest.lower(), "unknown": unknown},
        [heading, *(f"  - {one}" for one in unknown)],
    )


@models.command(epilog="Example: unitball model promote digits.noisy-gd/3")
@answered
def promote(
    model: Annotated[str, typer.Argument(help="NAME/VERSION. A name alone means its newest version.")],
) -> Answer:
    """Make a version champion, if it is proved, audited and better than the champion."""
    from tasks.tracking import promotion
    from tasks.tracking.model_versions import find_model

    version = find_model(current_root(), model)
    promotion.promote(current_root(), version.name, version.version)
    return Answer(
        {"model": version.name, "version": version.version},
        [f"{version.name} version {version.version} is now {version.name}@champion"],
    )


@models.command(epilog="Example: unitball model compare clinic.noisy-gd/3 --epsilon 0.1 --promote")
@answered
def compare(
    model: Annotated[str, typer.Argument(help="NAME/VERSION. A name alone means its newest version.")],
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Private rows only: epsilon of a charged count on held-out rows. Default: --compare-epsilon of the "
            "data set's schedules; without one, released metrics are compared for free if both versions were measured "
            "on the same rows."
        ),
    ] = None,
    promote: Annotated[bool, typer.Option("--promote", help="Make the version champion if it is better.")] = False,
    yes: YesOption = False,
) -> Answer:
    """Compare a version with the champion on the same held-out rows."""
    from tasks.tracking.champion_comparison import ComparisonRequest, open_comparison

    request = ComparisonRequest(model=model, epsilon=epsilon, promote=promote)
    # What cannot be compared is said before an engine is started.
    comparison = open_comparison(current_root(), model)
    agreed, keys = _agreed_epsilon(comparison, epsilon, yes=yes)
    request = request.model_copy(update={"epsilon": agreed})
    with running(f"compare {model}"):
        from flows.comparison import champion_comparison
        from tasks.release.admission import charging_only

        with charging_only(keys):
            compared = champion_comparison(request)
    return Answer({**compared.model_dump(mode="json"), "better": compared.better}, [compared.statement])


def _agreed_epsilon(comparison: ModelComparison, stated: float | None, *, yes: bool) -> tuple[float | None, set[str]]:
    """Return what a comparison charges to private held-out rows, as agreed to, and the keys of the releases it is for.

    None and no keys where it is free. Where the command states no epsilon, the price is what the data set's schedules
    let a comparison cost.
    """
    from tasks.datasets.registration import find_dataset
    from tasks.datasets.schedules import allowed_comparison
    from tasks.planning.rows import FeatureStep
    from tasks.preparation.prepare import PreparedRun, prepare
    from tasks.release.admission import request_for
    from tasks.release.prices import COMPARISON_EPSILON, price_of_requests
    from tasks.tracking.champion_comparison import planned_comparison

    config = comparison.lineages[0].config
    allowed, _ = allowed_comparison(config.dataset, config.system)
    epsilon = stated or allowed
    if not find_dataset(config.dataset).private or (epsilon is None and comparison.is_paid):
        return epsilon, set()
    epsilon, keys = epsilon or COMPARISON_EPSILON, set[str]()
    prepared = prepare(config.model_copy(update={"horizon": None}))
    if isinstance(prepared, PreparedRun) and prepared.shards.held_out is not None:
        features = [node for node in prepared.nodes.values() if isinstance(node, FeatureStep)]
        planned = planned_comparison(comparison, prepared.shards.held_out, features, epsilon)
        request = request_for([planned], "a comparison with the champion")
        agree(None if request is None else price_of_requests([request]), asks=stated is None, yes=yes)
        keys = set() if request is None else {release.key for release in request.releases}
    return epsilon, keys


@models.command(epilog="Example: unitball model rollback clinic.noisy-gd")
@answered
def rollback(
    name: Annotated[str, typer.Argument(help="Registered model.")],
) -> Answer:
    """Restore the previous champion."""
    from tasks.tracking.promotion import roll_back

    version = roll_back(current_root(), name)
    return Answer({"model": name, "version": version}, [f"{name} version {version} is {name}@champion again"])


@models.command(epilog='Example: unitball model withdraw-audits noisy-gd --reason "seed 7 of a broken build"')
@answered
def withdraw_audits(
    algorithm: Annotated[str, typer.Argument(help="Registered algorithm.")],
    reason: Annotated[str, typer.Option(help="Why the audit was an error; recorded.")],
) -> Answer:
    """Withdraw an erroneous failed audit of an algorithm."""
    from tasks.tracking.audits import withdraw_audits as withdraw

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
    model: Annotated[str, typer.Option(help=_MODEL)],
    source: Annotated[
        Path,
        typer.Option(
            "--input", help="CSV or Parquet with the table's columns. For images a folder or a table of paths."
        ),
    ],
    output: Annotated[Path, typer.Option(help="Parquet file to write, readable only by you.")],
    id_column: Annotated[str | None, typer.Option("--id", help="Input column to copy.")] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Decision threshold of the positive class (a probability). Default: the model's."
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            help="Add prediction intervals of this coverage, such as 0.9 (numeric labels).",
        ),
    ] = None,
    sets: Annotated[
        float | None,
        typer.Option("--set", help="Add prediction sets of this coverage, such as 0.9 (classes)."),
    ] = None,
    why: Annotated[
        int | None,
        typer.Option(min=1, help="Add the N columns with the largest effect on each row's score."),
    ] = None,
    permutations: Annotated[
        int | None, typer.Option(help="Number of column orders sampled for --why (even). Default: 256.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG file of the first explanations (--why).")] = None,
) -> Answer:
    """Predict each row of a file; rows outside the schema get a reason."""
    from dpalgos.shapley import PERMUTATIONS
    from tasks.tracking.coverings import Covering, promised_by
    from tasks.tracking.decisions import decision_of
    from tasks.tracking.explanations import (
        LargestColumns,
        basis_of_model,
        explaining_pipeline,
        first_explained,
        lines_of,
        require_explainable,
    )
    from tasks.tracking.lineage import guaranteed, trained_on_people
    from tasks.tracking.model_files import load_model
    from tasks.tracking.model_versions import find_model
    from tasks.tracking.predicted_files import predict_file

    require_readable(source, "--input")
    if why is None and (permutations is not None or plot is not None):
        raise InputError(f"--{'plot' if permutations is None else 'permutations'} applies to explanations: add --why 5")
    if plot is not None and plot.exists():
        raise InputError(f"{plot} exists; name another file, or remove it first")
    largest = None
    with progress("predict"):
        version = find_model(current_root(), model)
        pipeline = load_model(current_root(), version)
        covering = Covering(interval, sets)
        if why is not None:
            require_explainable(pipeline)
            basis = basis_of_model(current_root(), version)
            largest = LargestColumns(
                explaining_pipeline(
                    pipeline, basis, permutations=PERMUTATIONS if permutations is None else permutations
                ),
                why,
            )
        done = predict_file(
            pipeline, source, output, id_column=id_column, threshold=threshold, covering=covering, why=largest
        )
        coverage, claims = covering.coverage, promised_by(pipeline, covering)
        promise = guaranteed(current_root(), version)
        decision = decision_of(current_root(), version, pipeline, threshold)
        of_people = hasattr(pipeline, "predict_proba") and trained_on_people(current_root(), version)
    refused = f", {done.refused} refused (reasons in column refusal)" if done.refused else ""
    machine = {"model": version.name, "version": version.version, "output": str(output)}
    machine |= {} if decision is None else decision.model_dump(mode="json", include={"positive", "threshold", "aim"})
    clipped = {name: asdict(cells) for name, cells in done.clipped.items()}
    # Only on this screen, as a check of a schema: these cells are private.
    told = [
        f"column {name}: {found.cells} {'cell is' if found.cells == 1 else 'cells are'} outside the schema and "
        f"clipped, the first {found.value!r} (row {found.row})"
        for name, found in done.clipped.items()
    ]
    told += ["clipped: a number counts as the end of its range, a category as an unknown value"] if told else []
    told += [done.passed_over] if done.passed_over else []
    told += [] if decision is None else [decision.statement]
    if of_people:
        told.append(
            "Probabilities describe people: each person counts as one, with any number of rows. Among rows a "
            "class may be more or less frequent."
        )
    told += claims
    asked = {} if coverage is None else {"coverage": coverage, "claim": ". ".join(claims)}
    if largest is not None:
        first = first_explained(output, id_column)
        told += [f"Reasons for the first {len(first)} rows (all rows: columns why_… of {output})"] if first else []
        told += [line for called, row in first for line in lines_of(row, called)]
        told += [largest.explaining.note]
        asked |= {"why": largest.explaining.facts | {"rows": [row for _, row in first]}}
        if plot is not None:
            from tasks.tracking.explanation_figure import draw_explanations

            write_bytes(plot, draw_explanations(first))
            told.append(f"drawn: {plot}")
    return Answer(
        {**machine, "rows": done.rows, "refused": done.refused, "clipped": clipped, "guaranteed": promise, **asked},
        [
            f"{output}: {done.rows} rows by {version.name} version {version.version}{refused}",
            *told,
            *filter(None, [promise]),
        ],
    )
