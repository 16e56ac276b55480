"""The model card: what a model is, what is guaranteed of it, what it cost, how well it does, what is not covered."""

from __future__ import annotations

import importlib.metadata
import json
import math
import shlex

from dpalgos.accounting.composition import compose
from dpalgos.margins import is_measured
from dpalgos.validation import rounded_up
from storage.refs import DatasetRef
from tasks.accounts.budget import budget_report, epsilon_of_person
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.tracking.results import Proved, RunResult, at_threshold, by_class, shown_metric

_MOST_RECALLS = 10
_ALWAYS_OUTSIDE = (
    "the numbers of {several} and parties, names, parameters and times of runs, which are public",
    "what is computed from the rows by anything but Unitball, and what somebody knows of a person from elsewhere",
)


def model_card(
    config: TrainingConfig, dataset: DatasetRef, plan: RunPlan, result: RunResult, *, elsewhere: bool = False
) -> str:
    """Return the card of a run's model as Markdown; public numbers alone.

    Parameters
    ----------
    config : TrainingConfig
    dataset : DatasetRef
    plan : RunPlan
    result : RunResult
    elsewhere : bool
        Whether rows and accounts are those of parties of their own.
    """
    command = command_of(config)
    if elsewhere:
        command = command.replace("unitball train", "unitball federate --roster roster.yaml", 1)
    parts = {
        f"{dataset.name}.{result.algorithm}": _trained_on(config, dataset, plan, elsewhere=elsewhere),
        "Guarantee": _guarantee(result) + _of_several(dataset, plan, result, 1 if elsewhere else _group(dataset)),
        "Claim": _claim(result),
        "Spent and left": _spent_elsewhere(result) if elsewhere else _spent(dataset, plan, result),
        "How good it is": _measured(dataset, result),
        "Not covered": "\n".join(f"- {one}" for one in _outside(dataset, result, 1 if elsewhere else _group(dataset))),
        "Reproduce": f"    {command}\n\n{_versions(dataset, result)}",
    }
    return "\n\n".join(f"### {heading}\n\n{text}" for heading, text in parts.items() if text)


def _trained_on(config: TrainingConfig, dataset: DatasetRef, plan: RunPlan, *, elsewhere: bool) -> str:
    sizes = plan.rows()
    kind = "" if config.partition == "own" or elsewhere else "simulated "
    parties = "1 party" if len(sizes) == 1 else f"{len(sizes)} {kind}parties"
    kept = f"{'private' if dataset.private else 'public'} data set {dataset.name} (account {dataset.account})"
    if elsewhere:
        kept = "study " + dataset.name + ", each with root and account of its own"
    labels = f"{len(dataset.classes)} classes" if dataset.classes else "a number"
    held_out = sum(plan.evaluations[0].setting.sizes) if plan.evaluations else 0
    aside = f"; {held_out:,} {dataset.unit.several} were held out to measure it" if held_out else ""
    chosen = f"\n\nChosen from public facts: {'; '.join(plan.reasons)}." if plan.reasons else ""
    return (
        f"Trained by `{plan.system}` on {sum(sizes.values()):,} {dataset.unit.several} of {parties} of the {kept}, "
        f"trust {plan.trust}, to predict {labels}{aside}.{chosen}"
    )


def _guarantee(result: RunResult) -> str:
    proved = result.proved
    if proved is None:
        return "None is proved: the model may reveal rows that it was trained on."
    return (
        f"{_sentence(proved)}\n\nPrecisely: {proved.statement()} for a {proved.unit}, {proved.neighbours}, "
        f"{proved.numerics} numerics." + (f" Assumed: {'; '.join(proved.assumptions)}." if proved.assumptions else "")
    )


def _group(dataset: DatasetRef) -> int:
    """Return how many rows one person has by the word of the account's owner."""
    return budget_report(dataset.name)["group_size"]


def _of_several(dataset: DatasetRef, plan: RunPlan, result: RunResult, group: int) -> str:
    """Return what the guarantee is for somebody with several rows."""
    if result.proved is None:
        return ""
    size = group if group > 1 else 5
    loss = ""
    if not dataset.person:
        epsilon = epsilon_of_person(plan, size)
        loss = f"ε = {rounded_up(epsilon, 3):g}" if math.isfinite(epsilon) else "no finite ε"
        loss = f"for whom it is {loss} at δ = {plan.delta:g}"
    return f"\n\n{dataset.unit.meaning(loss, size)}"


def _sentence(proved: Proved) -> str:
    """Return the definition of (epsilon, delta)-DP as a sentence about one row or person."""
    factor = rounded_up(math.exp(min(proved.epsilon, 700.0)), 3)
    other = f"{proved.unit} been absent"
    if proved.neighbours != "replace-special":
        other = f"{proved.unit} had other rows, or none" if proved.person else "row been another one"
    rest = f", plus a remainder of {rounded_up(proved.delta, 2):g}" if proved.delta else ""
    return (
        "Whatever anybody may conclude from the model, and from all else that this run released, is at most "
        f"{factor:g} times as probable as it would have been had any one {other}{rest}."
    )


def _claim(result: RunResult) -> str:
    if result.claim is None:
        return ""
    flaw = f" It does not hold: {result.claim['flaw']}" if result.claim.get("flaw") else ""
    sound = f" Sound counterpart: {result.sound_counterpart}." if result.sound_counterpart else ""
    return f"{result.claim['statement']} ({result.claim['theorem']}).{flaw}{sound}"


def _spent(dataset: DatasetRef, plan: RunPlan, result: RunResult) -> str:
    if result.proved is None:
        return ""
    report = budget_report(dataset.name)
    cap = report["cap"]
    if cap is None:
        cost = rounded_up(result.proved.epsilon, 4)
        return f"This run would cost ε = {cost:g}; the rows are public, and no budget is kept of them."
    run = max(compose(bill).epsilon(cap["delta"]) for bill in set(plan.bills().values())) if cap["delta"] else math.inf
    here = f"ε = {rounded_up(run, 4):g}" if math.isfinite(run) else "no finite ε"
    spent = "unbounded" if report["epsilon_spent"] is None else f"{rounded_up(report['epsilon_spent'], 4):g}"
    return (
        f"At the cap's δ = {cap['delta']:g} this run costs {here}. With it the account {report['account']} has spent "
        f"ε = {spent} of {cap['epsilon']:g} (composition: {report['filter']}). The numbers above are at the run's δ. "
        "They differ, because the same noise is a smaller ε at a larger δ. `unitball budget` shows what is spent today."
    )


def _spent_elsewhere(result: RunResult) -> str:
    if result.proved is None:
        return ""
    return (
        f"Each party has paid for its own rows, in its own account: {result.proved.statement()} at the run's δ. "
        "The owner of an account sees what it has left: `unitball budget`, at that party."
    )


def _measured(dataset: DatasetRef, result: RunResult) -> str:
    metrics = result.metrics
    if result.accuracy is not None:
        parts = _accuracy(result)
    elif "mae" in metrics:
        parts = (
            f"Mean absolute error {shown_metric(result, 'mae', '.4g')} on {result.measured_on}; "
            f"R² {metrics['r2']:.3f}, which is 0 for guessing the mean."
        )
    else:
        known = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        return (
            known or "It was not measured: private rows are measured by a charged release only, and none was asked for."
        )
    if not dataset.private:
        return parts
    return (
        f"{parts} The held-out {dataset.unit.several} train no model: the measurement was charged to them, as "
        f"the training was to the others. The training lost nothing but these {dataset.unit.several}."
    )


def _accuracy(result: RunResult) -> str:
    parts = [
        f"{what if is_measured(result.metrics, name) else what.removesuffix(' is')} {shown_metric(result, name)}"
        for name, what in (
            ("majority_rate", "guessing the most frequent class gives"),
            (
                "balanced_accuracy",
                f"the mean recall of the classes ({1 / max(len(result.classes), 2):.2g} by guessing) is",
            ),
            ("auc", "the area under the ROC curve (0.5 by guessing) is"),
        )
        if name in result.metrics
    ]
    margins = " In brackets: 95 % margins, of noise and of the drawing of the held-out "
    margins += f"{result.identity.dataset.unit.several} together."
    return " ".join(
        [
            "; ".join([f"Accuracy {shown_metric(result, 'accuracy')}, {result.measured_on}", *parts]) + ".",
            *by_class(result, _MOST_RECALLS),
            *at_threshold(result),
        ]
    ) + (margins if "accuracy_low" in result.metrics else "")


def _outside(dataset: DatasetRef, result: RunResult, group: int) -> list[str]:
    outside = []
    if dataset.private:
        if not dataset.person:
            several = "several rows: the guarantee is of one row" if group == 1 else f"more than {group} rows"
            outside.append(f"people with {several}")
        outside.append("how long training took, beyond a declared deadline")
    if result.proved is not None and result.proved.numerics == "idealised":
        outside.append("what floating-point noise reveals: the proof is in real arithmetic")
    if result.proved is not None and str(result.trust) == "central":
        outside.append("the curator, who sees all rows")
    return [*outside, *(one.format(several=dataset.unit.several) for one in _ALWAYS_OUTSIDE)]


def _versions(dataset: DatasetRef, result: RunResult) -> str:
    version = importlib.metadata.version("unitball")
    noise = "" if result.proved is None else " Run elsewhere, the noise is another one."
    return f"Unitball {version}, data version {dataset.version[:12]}, run {result.run_key[:12]}.{noise}"


def command_of(config: TrainingConfig, command: str = "train") -> str:
    """Return the command that asks for this run: the options that are not the defaults."""
    given = config.model_dump(mode="json", exclude_defaults=True)
    secure = given.pop("secure", {})
    parameters = given.pop("parameters", {})
    arguments = ["unitball", command, "--dataset", config.dataset]
    if config.algorithm is not None:
        arguments += ["--algorithm", config.algorithm]
    for name, value in {**given, **secure}.items():
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
