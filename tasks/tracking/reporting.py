"""A finished run as MLflow shows it, its model card among that, and as watchers are told of it."""

import dataclasses
import importlib.metadata
import json
import math
import shlex
from collections.abc import Mapping
from functools import partial

from dpalgos.guarantees import rounded_up
from dpalgos.measured import in_places
from dpalgos.models import KernelModel, LinearModel, Statistic
from dpalgos.normalisation import RowMap
from dpalgos.registry import lookup
from dpalgos.score_curves import Calibration
from dpalgos.sentences import sentence
from storage.datasets import declared_table, ingested_version
from storage.encoder import Encoder, encoder_of
from storage.refs import DatasetRef, ReleaseRef
from tasks.accounts.pricing import epsilon_of_person
from tasks.accounts.reports import budget_report, cap_of
from tasks.accounts.room import OneMore
from tasks.datasets.registration import find_dataset
from tasks.planning.configuration import DataSettings, PartitionSettings, TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.preparation.normalisation import row_map
from tasks.preparation.public_maps import stored_map
from tasks.release.held_out_counts import held_out_counts
from tasks.release.storing import read_release
from tasks.runtime.events import Event, announce, dataset_resource
from tasks.runtime.plots import draw_group_curves, draw_groups, draw_measured
from tasks.runtime.settings import current_layout, current_root, flow_run_page
from tasks.runtime.stores import open_catalog
from tasks.tracking.effect_figure import draw_effects
from tasks.tracking.effects import EFFECTS, Effects, card_of, effects_of, of_columns
from tasks.tracking.lineage import LINEAGE, lineage_of
from tasks.tracking.model_versions import champion_of, registered_by
from tasks.tracking.results import (
    NOT_MEASURED,
    Chained,
    Proved,
    RunResult,
    about_bound,
    about_groups,
    about_people,
    append_result,
    at_this_budget,
    at_threshold,
    by_class,
    by_person,
    epsilon_by_party,
    group_metrics,
    group_tables,
    guessing,
    margins_are,
    model_name,
    no_better,
    not_measured,
    positive_class,
    rates_by_group,
    read_before,
    rests_on,
    shown_metric,
)
from tasks.tracking.runs import DECISIVE, ModelReport, RunReport, track_run
from tasks.tracking.sklearn_export import NotExportableError, to_sklearn

_MOST_RECALLS = 10
# Of what was spent, as MLflow shows it: rounded up.
_DIGITS = 6
_ALWAYS_OUTSIDE = (
    "the numbers of {several} and parties, names, parameters and times of runs, which are public",
    "computations on the rows outside Unitball, and knowledge about a person from elsewhere",
)


def model_card(
    config: TrainingConfig,
    dataset: DatasetRef,
    plan: RunPlan,
    result: RunResult,
    *,
    elsewhere: bool = False,
    effects: Effects | None = None,
) -> str:
    """Return the card of a run's model as Markdown; public numbers alone.

    Parameters
    ----------
    config : TrainingConfig
    dataset : DatasetRef
    plan : RunPlan
    result : RunResult
    elsewhere : bool
        Whether the run has separate parties with their own accounts.
    effects : Effects, optional
        The effect of each column, where columns are declared.
    """
    command = command_of(config)
    if elsewhere:
        command = command.replace("unitball train", "unitball federate --roster roster.yaml", 1)
    # The number of rows of one person, as the account's owner declared.
    group = 1 if elsewhere else open_catalog().account_of(dataset.name).group_size
    parts = {
        f"{dataset.name}.{result.algorithm}": _trained_on(config, dataset, plan, elsewhere=elsewhere),
        "Guarantee": guarantee_of(result) + _of_several(dataset, plan, result, group, elsewhere=elsewhere),
        "Claim": claim_of(result),
        "Budget": _spent(dataset, plan, result, elsewhere=elsewhere),
        "Measured quality": _measured(dataset, result),
        f"By {result.by_group.column if result.by_group else ''}": by_group_of(result),
        "Not covered": "\n".join(f"- {one}" for one in _outside(dataset, result, group)),
        "Reproduce": f"    {command}\n\n{_versions(dataset, result)}",
        # Last: MLflow truncates long texts.
        "Effect of each column": "" if effects is None else card_of(effects),
    }
    return "\n\n".join(f"### {heading}\n\n{text}" for heading, text in parts.items() if text)


def _trained_on(config: PartitionSettings, dataset: DatasetRef, plan: RunPlan, *, elsewhere: bool) -> str:
    sizes = plan.rows()
    kind = "" if config.partition == "own" or elsewhere else "simulated "
    parties = "1 party" if len(sizes) == 1 else f"{len(sizes)} {kind}parties"
    kept = f"{dataset.visibility} data set {dataset.name} (account {dataset.account})"
    if elsewhere:
        kept = "study " + dataset.name + ", each with its own root and account"
    labels = f"{len(dataset.classes)} classes" if dataset.classes else "a number"
    held_out = next((sum(one.setting.sizes) for one in plan.evaluations if one.reads_rows), 0)
    aside = f"; {held_out:,} {dataset.unit.several} were held out to measure it" if held_out else ""
    chosen = f"\n\nChosen from public facts: {'; '.join(plan.reasons)}." if plan.reasons else ""
    return (
        f"Trained by `{plan.system}` on {sum(sizes.values()):,} {dataset.unit.several} of {parties} of the {kept}, "
        f"trust {plan.trust}, to predict {labels}{aside}.{chosen}"
    )


def guarantee_of(result: RunResult) -> str:
    """Return what is proved of a run as Markdown."""
    proved = result.proved
    if proved is None:
        return "None is proved: the model may reveal rows that it was trained on."
    return (
        f"{_sentence(proved)}\n\nPrecisely: {proved.statement()} for a {proved.unit}, {proved.neighbours}, "
        f"{proved.numerics} numerics."
        + (f" Assumed: {'; '.join(map(sentence, proved.assumptions))}." if proved.assumptions else "")
    )


def _of_several(dataset: DatasetRef, plan: RunPlan, result: RunResult, group: int, *, elsewhere: bool) -> str:
    """Return the guarantee for a person with several rows, or with rows at several separate parties."""
    if result.proved is None:
        return ""
    if dataset.person and not elsewhere:
        return f"\n\n{dataset.unit.meaning()}"
    # Separate parties do not compare their people: a person with rows at several is a record at each.
    size = 2 if dataset.person else 5 if group == 1 else group
    epsilon = epsilon_of_person(plan, size)
    loss = f"ε = {rounded_up(epsilon, 3):g}" if math.isfinite(epsilon) else "no finite ε"
    loss = f"for whom it is {loss} at δ = {plan.delta:g}"
    if not dataset.person:
        return f"\n\n{dataset.unit.meaning(loss, size)}"
    return f"\n\n{dataset.unit.meaning()} A person in the rows of two parties is a group of two records, {loss}."


def _sentence(proved: Proved) -> str:
    """Return the definition of (epsilon, delta)-DP as a sentence about one row or person."""
    factor = rounded_up(math.exp(min(proved.epsilon, 700.0)), 3)
    other = f"{proved.unit} were absent"
    if proved.neighbours != "replace-special":
        other = f"{proved.unit} had other rows, or none" if proved.person else "row were different"
    rest = f", plus {rounded_up(proved.delta, 2):g}" if proved.delta else ""
    return (
        "Any conclusion from the model, and from all other releases of this run, is at most "
        f"{factor:g} times as probable as it would be if any one {other}{rest}."
    )


def claim_of(result: RunResult) -> str:
    """Return what the paper claims of a run's algorithm, and where that does not hold; nothing without a claim."""
    if result.claim is None:
        return ""
    flaw = f" It does not hold: {sentence(str(result.claim['flaw']))}" if result.claim.get("flaw") else ""
    sound = f" Sound counterpart: {result.sound_counterpart}." if result.sound_counterpart else ""
    return f"{result.claim['statement']} ({result.claim['theorem']}).{flaw}{sound}"


def _spent(dataset: DatasetRef, plan: RunPlan, result: RunResult, *, elsewhere: bool) -> str:
    if result.proved is None:
        return ""
    if elsewhere:
        return (
            f"Each party has paid for its own rows, in its own account: {result.proved.statement()} at the run's δ. "
            "`unitball budget`, run at a party, shows its remaining budget."
        )
    report = budget_report(dataset.name)
    cap = report["cap"]
    if cap is None:
        cost = rounded_up(result.proved.epsilon, 4)
        said = f"This run would cost ε = {cost:g}; the rows are {dataset.visibility} and have no budget."
        return f"{said} {rests_on(result)}".rstrip()
    size = report["group_size"]
    run = epsilon_of_person(plan, size, cap["delta"]) if cap["delta"] else math.inf
    person = f" a person of up to {size} rows" if size > 1 else ""
    here = f"ε = {rounded_up(run, 4):g}" if math.isfinite(run) else "no finite ε"
    spent = "unbounded" if report["epsilon_spent"] is None else f"{rounded_up(report['epsilon_spent'], 4):g}"
    left = "" if report["left"] is None else f" After this run, {OneMore(**report['left']).said}."
    return (
        f"At the cap's δ = {cap['delta']:g} this run costs{person} {here}. With it the account {report['account']} has "
        f"spent ε = {spent} of {cap_of(report)} (composition: {report['filter']}).{left} The numbers above are at "
        "the run's δ. They differ, because the same noise has a smaller ε at a larger δ. `unitball budget` shows "
        f"today's spending and remaining budget. {rests_on(result)}".rstrip()
    )


def _measured(dataset: DatasetRef, result: RunResult) -> str:
    metrics = result.metrics
    if "accuracy" in metrics:
        parts = _accuracy(result)
    elif "mae" in metrics:
        parts = " ".join(filter(None, [_errors(result), margins_are(result)]))
    else:
        known = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        known = known or "Not measured: measuring on private rows needs a charged release, which was not requested."
        return " ".join([known, *no_better(result)])
    parts = " ".join(filter(None, [parts, about_people(result)]))
    if not dataset.private:
        return parts
    return (
        f"{parts} The held-out {dataset.unit.several} train no model: the measurement was charged to them, as "
        f"the training was to the others. The training lost only these {dataset.unit.several}. "
        f"{read_before(result)}".rstrip()
    )


def _where(result: RunResult) -> str:
    return f"the {(result.measured_on or '').removesuffix(', noisy')}"


def _errors(result: RunResult) -> str:
    if not result.metrics.is_known("mae"):
        return f"The errors on {_where(result)} {NOT_MEASURED} {at_this_budget(result)}."
    return (
        f"Mean absolute error{by_person(result)} {shown_metric(result, 'mae', '.4g')} on {result.measured_on}; "
        f"R² {shown_metric(result, 'r2', '.3f')}, which is 0 for the best constant. {about_bound(result)}".rstrip()
    )


def by_group_of(result: RunResult) -> str:
    """Return how a model does for each group of rows as Markdown; empty where it was not measured so."""
    tables = (
        "\n\n".join(filter(None, (f"{of[:1].upper()}{of[1:]}:" * bool(of), _ruled(lines))))
        for of, lines in group_tables(result)
    )
    return "\n\n".join(filter(None, (*tables, about_groups(result))))


def _ruled(lines: list[list[str]]) -> str:
    """Return a table as Markdown, its first line the headings."""
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    ruled = [escaped[0], ["---", *["--:"] * (len(escaped[0]) - 1)], *escaped[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)


def _accuracy(result: RunResult) -> str:
    first = f"Accuracy{by_person(result)} {shown_metric(result, 'accuracy')}, {result.measured_on}."
    if not result.metrics.is_known("accuracy"):
        first = f"The accuracy on {_where(result)} {NOT_MEASURED} {at_this_budget(result)}."
    known = {
        "balanced_accuracy": f"mean recall of the classes ({1 / max(len(result.classes), 2):.2g} by guessing)",
        "auc": "area under the ROC curve (0.5 by guessing)",
        "calibration_error": "calibration error of the probabilities (0 if they are right)",
    }
    named = {name: what for name, what in known.items() if name in result.metrics}
    sentences = [
        f"The {what} is {shown_metric(result, name)}."
        if result.metrics.is_known(name)
        else f"The {what} {NOT_MEASURED} {at_this_budget(result)}."
        for name, what in named.items()
    ]
    of_classes = [*positive_class(result), *by_class(result, _MOST_RECALLS), *at_threshold(result)]
    parts = [first, *guessing([result]), *no_better(result), *sentences, *of_classes]
    return " ".join(filter(None, [*parts, margins_are(result)]))


def _outside(dataset: DatasetRef, result: RunResult, group: int) -> list[str]:
    several = "several rows: the guarantee covers one row" if group == 1 else f"more than {group} rows"
    proved = result.proved
    outside = []
    if dataset.private and not dataset.person:
        outside.append(f"people with {several}")
    if dataset.private:
        outside.append("the duration of the training, beyond a declared deadline")
    if proved and proved.numerics == "idealised":
        outside.append("information in the floating-point noise: the proof is in real arithmetic")
    if proved and str(result.trust) == "central":
        outside.append("the curator, who sees all rows")
    return [*outside, *(one.format(several=dataset.unit.several) for one in _ALWAYS_OUTSIDE)]


def _versions(dataset: DatasetRef, result: RunResult) -> str:
    version = importlib.metadata.version("unitball")
    noise = "" if result.proved is None else " A repetition in another root draws different noise."
    ingested = ingested_version(current_layout(), dataset.version)
    return f"Unitball {version}, data version {ingested[:12]}, run {result.run_key[:12]}.{noise}"


def command_of(config: TrainingConfig, command: str = "train") -> str:
    """Return the command that asks for this run: the options that are not the defaults."""
    options = config.model_dump(mode="json", exclude_defaults=True)
    secure = options.pop("secure", {})
    parameters = options.pop("parameters", {})
    arguments = ["unitball", command, "--dataset", config.dataset]
    if config.algorithm is not None:
        arguments += ["--algorithm", config.algorithm]
    for name, value in {**options, **secure}.items():
        flag = f"--{name.replace('_', '-')}"
        if name in ("dataset", "algorithm") or value is None:
            continue
        if isinstance(value, bool):
            arguments.append(flag if value else f"--no-{flag[2:]}")
        else:
            arguments += [flag, ",".join(map(str, value)) if isinstance(value, list) else _text(value)]
    for name, value in parameters.items():
        arguments += ["--param", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(arguments)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


# Thousands of small parties share a line.
_MOST_LINES = 50


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """The public facts on raw rows that a model needs.

    Parameters
    ----------
    dimension : int
        Features per row.
    encoder : TableEncoder, PictureEncoder or None
        Turns the columns of a declared table, or images, into features (:func:`storage.datasets.declared_table`).
    """

    dimension: int
    encoder: Encoder | None


def _called(config: TrainingConfig, result: RunResult) -> str:
    """Return a run's name in MLflow's list, which shows no other column unless it is asked to: ε and how good it is."""
    epsilon = [f"ε={config.epsilon:g}"] if config.epsilon else []
    metrics, names = result.metrics, {"accuracy": "accuracy", "r2": "R²"}
    good = [
        f"{called} {in_places(metrics[name], 3)}" if metrics.is_known(name) else f"{called} {NOT_MEASURED}"
        for name, called in names.items()
        if name in metrics
    ]
    return ", ".join([" ".join([result.algorithm, *epsilon]), *good])


def report_without_model(
    config: TrainingConfig,
    dataset: DatasetRef,
    plan: RunPlan,
    result: RunResult,
    *,
    elsewhere: bool = False,
    effects: Effects | None = None,
) -> RunReport:
    """Return a run as MLflow shows it, under names that line up over all algorithms, without its model and parties.

    ``elsewhere``: the run has separate parties with their own accounts; ``effects``: for the card.
    """
    proved, flow_run, unknown = result.proved, result.prefect_flow_run_id, not_measured(result)
    noisy = {**result.metrics, **result.metrics.estimates}
    said = {NOT_MEASURED_TAG: _reasons(unknown)} if unknown else {}
    if result.synthetic:
        said["unitball.synthetic"] = ", ".join(result.synthetic)
    if about := about_people(result):
        said["unitball.metrics"] = about
    return RunReport(
        experiment=dataset.name,
        run_key=result.run_key,
        name=_called(config, result),
        facts={
            "algorithm": result.algorithm,
            "dataset": dataset.name,
            "trust": result.trust,
            "proved": proved.statement(6) if proved else None,
            "claim": result.claim["statement"] if result.claim else None,
            "paper": plan.paper or None,
            "neighbours": proved.neighbours if proved else None,
            "numerics": proved.numerics if proved else None,
        },
        params={**_params(config, plan, result), "normalisation": plan.normalisation, "unit": str(dataset.unit)},
        metrics=_metrics(result),
        # The step is the type I error in thousandths.
        curves={"trade_off": {round(1000 * level): missed for level, missed in proved.trade_off}} if proved else {},
        decisive={name: noisy[name] for name in DECISIVE if name in noisy},
        tags={"unitball.prefect_flow_run": flow_run or "", **said},
        # As `unitball datasets` and `describe` name it, with any map of its rows.
        trained_on=dataset.model_copy(update={"version": ingested_version(current_layout(), dataset.version)}),
        note=model_card(config, dataset, plan, result, elsewhere=elsewhere, effects=effects)
        + (f"\n\n[Flow run in Prefect]({flow_run_page(flow_run)})" if flow_run else ""),
    )


def _params(config: TrainingConfig, plan: RunPlan, result: RunResult) -> dict[str, object]:
    """Return the requested parameters with all defaults, for later comparisons of runs."""
    asked = config.model_dump(mode="json").items()
    left_out = ("dataset", "algorithm", "trust", "parameters")
    params: dict[str, object] = {name: value for name, value in asked if name not in left_out and value is not None}
    params["delta"] = config.stated_delta
    for release in (*plan.projections, *plan.models, *(paid for paid in plan.evaluations if paid.reads_rows)):
        algorithm = release.build()
        for name in (field.name for field in dataclasses.fields(algorithm) if field.init and field.name != "budget"):
            value = getattr(algorithm, name)
            # Each of a table's columns stands in the release's manifest, and a wide table's are too long a text here.
            told = len(value) if name == "columns" and value is not None else value
            params.setdefault(f"{release.algorithm.kind.removesuffix('s')}.{name}", told)
    if result.positive is not None:
        params["positive"] = result.positive
    return params


def _metrics(result: RunResult) -> dict[str, float]:
    """Return measurements and spending; MLflow's page that compares runs opens on the first."""
    known = result.metrics.known()
    spent = {"epsilon_spent": result.epsilon_spent, "delta_spent": result.delta_spent, "mu_spent": result.mu_spent}
    numbers: dict[str, float | None] = {
        **{name: known[name] for name in ("accuracy", "r2") if name in known},
        **{name: None if value is None else rounded_up(value, _DIGITS) for name, value in spent.items()},
        **known,
        **group_metrics(result),
        "seconds": result.seconds,
        "releasing_seconds": result.releasing_seconds,
    }
    return {name: float(value) for name, value in numbers.items() if value is not None}


NOT_MEASURED_TAG = "unitball.not_measured"
"""The tag of a run in MLflow that names the metrics that cannot be measured, and why."""
# MLflow's limit for a tag is 8,000.
_LONGEST_TAG = 4_000


def _reasons(unknown: Mapping[str, str]) -> str:
    """Return which metrics cannot be measured and why, those with one reason together, as far as a tag has room."""
    by_reason: dict[str, list[str]] = {}
    for name, why in unknown.items():
        by_reason.setdefault(why, []).append(name)
    text = "; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason.items())
    return text if len(text) <= _LONGEST_TAG else f"{text[:_LONGEST_TAG]}… (result.json has all)"


def run_report(config: TrainingConfig, run: Chained, columns: Columns | None = None) -> RunReport:
    """Return the whole record of a run in MLflow: a line per party, the released model and the result.

    Parameters
    ----------
    config : TrainingConfig
    run : Chained
        Where each party has its own model, the first one is logged.
    columns : Columns, optional
        Of rows that are registered elsewhere; of those registered here where left out.

    Raises
    ------
    ParameterError
        If the released arrays do not fit together.
    """
    dataset, plan, result, models = run
    path = next(iter(models.values()))
    lineage = lineage_of(config, dataset, plan, path).model_dump_json(indent=2)
    model, unlogged = None, ""
    try:
        model = _model_report(config, run, columns, lineage)
    except NotExportableError as reason:
        unlogged = f"\n\nNo model is logged: {reason}."
    effects = None if model is None else model.effects
    report = report_without_model(config, dataset, plan, result, elsewhere=columns is not None, effects=effects)
    return dataclasses.replace(
        report,
        note=report.note + unlogged,
        parties=_parties(plan, result),
        model=model,
        files={
            "result.json": result.model_dump_json(indent=2),
            LINEAGE: lineage,
            **({} if effects is None else {EFFECTS: json.dumps(effects.to_json(), indent=1)}),
        },
        drawn=partial(figure_files, result, effects),
    )


def figure_files(result: RunResult, effects: Effects | None = None) -> dict[str, bytes]:
    """Return the figures of a run as PNG by file name, empty where nothing is to be drawn.

    Parameters
    ----------
    result : RunResult
        Its matrix and curves are public: exact for public rows, noisy and charged for private ones.
    effects : Effects, optional
        The model's effect of each column.
    """
    figures = {}
    if effects is not None:
        figures["effects.png"] = draw_effects(effects)
    if result.confusion:
        figures["confusion_matrix.png"] = draw_measured(result.classes, result.confusion, (), str(result.measured_on))
    if result.roc:
        figures["roc.png"] = draw_measured(result.classes, (), result.roc, str(result.measured_on))
    if result.by_group is not None:
        figures["by_group.png"] = draw_groups(
            result.by_group.column, result.by_group.metrics, rates_by_group(result), str(result.measured_on)
        )
        if result.by_group.curves:
            figures["roc_by_group.png"] = draw_group_curves(
                result.by_group.column, result.by_group.curves, result.roc, str(result.measured_on)
            )
    return figures


def _parties(plan: RunPlan, result: RunResult) -> list[Mapping[str, str | float]]:
    """Return a line per party: its rows, its spending, and the metrics of its own model where it has one."""
    sizes, counted = plan.rows(), "people" if result.identity.dataset.person else "rows"
    if len(sizes) > _MOST_LINES:
        return [{"party": "all parties", counted: float(sum(sizes.values()))}]
    spent, delta = epsilon_by_party(plan) or {}, rounded_up(result.delta_spent or 0.0, _DIGITS)
    return [
        {
            "party": f"party {party}",
            counted: float(rows),
            **({"epsilon_spent": rounded_up(spent[party], _DIGITS), "delta_spent": delta} if spent else {}),
            **(result.by_party[party].known() if party in result.by_party else {}),
        }
        for party, rows in sizes.items()
    ]


def _model_report(config: DataSettings, run: Chained, columns: Columns | None, lineage: str) -> ModelReport:
    dataset, plan, result, models = run
    path = next(iter(models.values()))
    *maps, model = [read_release(reference) for reference in path]
    turned = plan.identity.turned
    features = [stored_map(step.key) for step in plan.features]
    normalisation: str | RowMap = dataset.normalisation
    if columns is None:
        registered = find_dataset(config.dataset)
        columns = Columns(registered.dimension, encoder_of(declared_table(current_layout(), registered)))
        if not lookup("normalisations", dataset.normalisation).row_local:
            normalisation = row_map(registered, dataset.normalisation)
    keys = [reference.key for reference in path]
    measuring = [one for one in plan.evaluations if one.reads_rows and one.seen_last == tuple(keys)]
    statistics = {
        one.key: read_release(ReleaseRef(key=one.key, kind=Statistic.kind, party=one.owner)) for one in measuring
    }
    pipeline = to_sklearn(
        normalisation=normalisation,
        maps=[*features, *maps],
        model=model.turned() if turned and isinstance(model, LinearModel | KernelModel) else model,
        classes=plan.identity.classes,
        dimension=columns.dimension,
        encoder=columns.encoder,
        label_range=dataset.label_range,
        held_out=held_out_counts(plan, keys, statistics),
        calibration=None if result.calibration is None else Calibration(*result.calibration),
    )
    return ModelReport(
        pipeline=pipeline,
        dimension=columns.dimension,
        classes=plan.identity.classes,
        registered_name=model_name(result),
        packages=tuple(dict.fromkeys(package for each in features for package in each.packages)),
        lineage=lineage,
        effects=effects_of(pipeline, path) if of_columns(pipeline) else None,
    )


def keep_run(config: TrainingConfig, run: Chained, columns: Columns | None = None) -> RunResult:
    """Log a run to MLflow as :func:`run_report` has it, and append it to the results; one logged before is found."""
    run_id = track_run(current_root(), run_report(config, run, columns))
    logged = run.result.model_copy(update={"mlflow_run_id": run_id})
    append_result(config, logged)
    return logged


CHAMPION_LABEL = "unitball.champion"
"""Label of the event's resource: ``"true"`` where another version of the model is champion."""


def announce_trained(result: RunResult) -> None:
    """Announce a recorded run's model; a run without a registered model is not announced."""
    version = registered_by(current_root(), result.mlflow_run_id)
    if version is None:
        return
    champion = champion_of(current_root(), version.name)
    others = champion is not None and not version.recorded_as(champion)
    announce(
        Event.TRAINED,
        dataset_resource(result.dataset),
        {"dataset": result.dataset, "model": f"{version.name}/{version.version}"},
        labels={CHAMPION_LABEL: str(others).lower()},
    )
