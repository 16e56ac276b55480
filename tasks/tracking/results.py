"""The result of a training run: what is proved, claimed and measured of it, and its records in the result tables."""

import math
import shlex
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, SerializeAsAny

from dpalgos.accounting.composition import TYPE_I_ERRORS, compose, gaussian_mu, trade_off
from dpalgos.group_curves import AT_THRESHOLD
from dpalgos.guarantees import Guarantee, Loss, PureEpsilon, rounded_up
from dpalgos.measured import ENDS, Metrics, margin_of, with_margin
from dpalgos.metrics import class_names, distinct_names, safe_name
from dpalgos.models import LinearModel
from dpalgos.sentences import sentence
from storage.datasets import ingested_version
from storage.refs import DatasetRef, ReleaseRef, Unit
from storage.results import append, is_recorded
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunIdentity, RunPlan
from tasks.planning.resolution import ON_BASIS
from tasks.release.metrics import ByGroup, Evaluation, ManyClasses, RecallOf
from tasks.release.storing import read_release
from tasks.runtime.settings import current_layout

# Cards say what an attack finds that accuses this share of those who were not there.
_FALSE_ALARMS = 0.05


def stated(epsilon: float, delta: float, digits: int = 4) -> str:
    """Return ``(epsilon, delta)-DP``, rounded up: epsilon to so many digits, delta to two."""
    return f"({rounded_up(epsilon, digits):g}, {rounded_up(delta, 2):g})-DP"


class Proved(BaseModel, frozen=True):
    """Joint guarantee of a run's releases, for the party that pays most.

    Attributes
    ----------
    epsilon, delta : float
    mu : float or None
        Gaussian-DP parameter where every release is Gaussian: the whole promise, of which epsilon at delta is a point.
    trade_off : tuple of (type I error, type II error)
        No test between neighbouring data sets that makes the first makes less than the second, rounded down;
        see :mod:`dpalgos.accounting.composition`.
    neighbours, trust, numerics : str
    assumptions : tuple of str
    person : str
        The column that names the people who are protected; empty where a row is.
    """

    epsilon: float
    delta: float
    mu: float | None = None
    trade_off: tuple[tuple[float, float], ...] = ()
    neighbours: str
    trust: str
    numerics: str
    assumptions: tuple[str, ...] = ()
    person: str = ""

    @property
    def unit(self) -> Unit:
        """The protected unit."""
        return Unit(self.person)

    def statement(self, digits: int = 4) -> str:
        """Return ``(epsilon, delta)-DP``, rounded up."""
        return stated(self.epsilon, self.delta, digits)

    def __str__(self) -> str:
        """Epsilon, delta, what is protected, the neighbouring relation, the numerics and what is assumed."""
        assumed = "".join(f"; assumed: {sentence(one)}" for one in self.assumptions)
        return f"{self.statement()} for a {self.unit} under {self.neighbours}, {self.numerics} numerics{assumed}"

    def summary(self) -> str:
        """Return the statement, and mu where every release is Gaussian, rounded up."""
        return self.statement() + ("" if self.mu is None else f", μ = {rounded_up(self.mu, 3):g}")

    def recognised(self) -> str:
        """Return the power, by the trade-off curve, of an attack with a false-positive rate of 5 %."""
        missed = next((missed for alarms, missed in self.trade_off if alarms == _FALSE_ALARMS), 0.0)
        most = rounded_up(100 * (1 - missed), 3)
        tests = f"An attacker who tests whether a {self.unit} was in the data"
        guesser = f"{tests}, with a false-positive rate of {_FALSE_ALARMS:.0%}, "
        if most >= 100:
            return f"{guesser}can have a true-positive rate of 100 %: this ε is too large to bound it."
        return f"{guesser}has a true-positive rate of at most {most:g} %."


class RunResult(Evaluation, frozen=True):
    """The result of a training run, to people as a table row and to machines as JSON: what was measured, and of what.

    Attributes
    ----------
    proved : Proved or None
        Of all the run's releases, for the worst-off party.
    claim : dict or None
        What the paper says of the algorithm at this budget, and the flaw where there is one.
    epsilon_spent, delta_spent : float or None
        What this run's releases cost, charged now or before, the largest over parties; None where nothing is proved.
    mu_spent : float or None
        The same as a Gaussian-DP parameter, where every release is Gaussian.
    epsilon_charged : float or None
        Where the run rests on counts or matrices that were released before it: what its own releases cost, without
        these. Both compose to ``epsilon_spent``.
    predicts_only : str or None
        The class that the model predicts for every row, where its weights are all zero; None elsewhere.
    positive : str or None
        Of two classes the one that precision, recall, F1, threshold, scores and effects are of; None of others.
    accuracy : float or None
        None where nothing public was measured and no evaluation was charged, or the noise of one leaves it unknown.
    measured_on : str or None
        What ``accuracy`` and ``metrics`` speak of: ``"test rows"``, ``"training rows"`` where all rows train, or
        ``"held-out rows, noisy"`` for a charged evaluation; of the model, or the mean over the parties' models. Where
        people are protected it speaks of people, who weigh alike in every metric however many rows they have.
    identity : RunIdentity
        What ``run_key`` is the digest of.
    synthetic : tuple of str
        Data sets of drawn rows that the run has used: it rests on the releases that these are drawn from.
    releases, evaluations : tuple of str
        Keys of what was released to train, the model last, and to measure.
    seconds : float or None
        None on private data: time is a side channel.
    releasing_seconds : float or None
        Of these, what making the releases took one after another; None where one was stored before, or was not timed.
    """

    algorithm: str
    dataset: str
    trust: str
    proved: Proved | None
    claim: dict[str, object] | None
    epsilon_spent: float | None
    delta_spent: float | None
    mu_spent: float | None = None
    epsilon_charged: float | None
    predicts_only: str | None = None
    positive: str | None = None
    accuracy: float | None
    split: dict[str, object]
    sound_counterpart: str | None
    run_key: str
    identity: SerializeAsAny[RunIdentity]
    synthetic: tuple[str, ...] = ()
    releases: tuple[str, ...]
    evaluations: tuple[str, ...] = ()
    mlflow_run_id: str | None = None
    prefect_flow_run_id: str | None = None
    seconds: float | None = None
    releasing_seconds: float | None = None
    cached: bool = False


class Chained(NamedTuple):
    """The outcome of a run: rows, plan, result, and for each model the maps that rows pass through, the model last."""

    dataset: DatasetRef
    plan: RunPlan
    result: RunResult
    models: dict[str, list[ReleaseRef]]


def proved_of(plan: RunPlan, rests_on: Sequence[Loss] = ()) -> Proved | None:
    """Return what is proved of a whole run, or None.

    The run's releases are one plan, known beforehand, so they are composed tightly; every party pays for its own
    releases and for the joint ones, and the largest cost is the run's. What was released before and is used is composed
    as well: counts that a map of columns is made of, and matrices that counts of groups are combined with.

    Parameters
    ----------
    plan : RunPlan
    rests_on : sequence of Loss
        Of releases outside the plan that read the rows of all its parties, and by which the rows were made.
    """
    if not plan.proved:
        return None
    losses_by_party = {(*losses, *rests_on) for losses in plan.composed_by_party().values()}
    return proved_together(
        losses_by_party,
        plan.guarantees,
        delta=plan.delta,
        trust=plan.trust,
        person=plan.identity.dataset.person or plan.drawn_person,
    )


def proved_together(
    losses_by_party: Set[tuple[Loss, ...]], every: Sequence[Guarantee], *, delta: float, trust: str, person: str
) -> Proved | None:
    """Return what is proved of releases together; None where nothing is, or not at this delta.

    Parameters
    ----------
    losses_by_party : set of tuples of Loss
        What the parties pay.
    every : sequence of Guarantee
        Of the releases.
    delta : float
    trust, person : str
    """
    if not losses_by_party or not all(one.proved for one in every):
        return None
    stated = _delta_of(losses_by_party, delta)
    epsilon = max(compose(losses).epsilon(stated) for losses in losses_by_party)
    if not math.isfinite(epsilon):
        return None
    mus = [mu for losses_of_party in losses_by_party if (mu := gaussian_mu(losses_of_party)) is not None]
    return Proved(
        epsilon=epsilon,
        delta=stated,
        mu=max(mus) if len(mus) == len(losses_by_party) else None,
        trade_off=tuple(zip(TYPE_I_ERRORS, trade_off(losses_by_party).tolist(), strict=True)),
        neighbours=str(every[0].neighbours),
        trust=str(trust),
        numerics="exact" if all(item.numerics == "exact" for item in every) else "idealised",
        assumptions=tuple(sorted({text for item in every for text in item.assumptions})),
        person=person,
    )


def charged_of(plan: RunPlan) -> float | None:
    """Return what a run's own releases cost, where it rests on some that were made before it; None elsewhere."""
    charged = _epsilons(plan, plan.losses_by_party()) if plan.before or plan.drawn else None
    return None if charged is None else max(charged.values())


def _delta(plan: RunPlan) -> float:
    """Return the delta at which a run's cost is stated."""
    return _delta_of(set(plan.composed_by_party().values()), plan.delta)


def _delta_of(losses_by_party: Set[tuple[Loss, ...]], delta: float) -> float:
    """Return the delta at which costs are stated: none where every loss is pure."""
    pure = all(isinstance(loss, PureEpsilon) for losses_of_party in losses_by_party for loss in losses_of_party)
    return 0.0 if pure else delta


def epsilon_by_party(plan: RunPlan) -> dict[str, float] | None:
    """Return the epsilon of each party's cost, or None where something is not proved, or not at this delta."""
    return _epsilons(plan, plan.composed_by_party())


def _epsilons(plan: RunPlan, losses_by_party: Mapping[str, tuple[Loss, ...]]) -> dict[str, float] | None:
    if not losses_by_party or not plan.proved:
        return None
    # Parties of one plan mostly pay the same; each distinct cost is composed once.
    epsilons = {
        losses_of_party: compose(losses_of_party).epsilon(_delta(plan))
        for losses_of_party in set(losses_by_party.values())
    }
    return (
        {party: epsilons[losses_of_party] for party, losses_of_party in losses_by_party.items()}
        if all(map(math.isfinite, epsilons.values()))
        else None
    )


def summarise(plan: RunPlan, dataset: DatasetRef, evaluation: Evaluation, references: list[ReleaseRef]) -> RunResult:
    """Put a run's public numbers together."""
    proved = proved_of(plan)
    return RunResult(
        **dict(evaluation),
        algorithm=plan.system,
        dataset=dataset.name,
        trust=str(plan.trust),
        proved=proved,
        claim=None if plan.claim is None else {"epsilon": plan.epsilon, "delta": plan.delta, **asdict(plan.claim)},
        epsilon_spent=proved.epsilon if proved else None,
        delta_spent=proved.delta if proved else None,
        mu_spent=proved.mu if proved else None,
        epsilon_charged=charged_of(plan),
        predicts_only=_predicts_only(plan, references),
        positive=plan.identity.classes[-1] if len(plan.identity.classes) == 2 else None,
        accuracy=evaluation.metrics.known().get("accuracy"),
        split=plan.split,
        sound_counterpart=plan.sound_counterpart,
        run_key=plan.run_key,
        identity=plan.identity,
        synthetic=plan.synthetic,
        releases=tuple(reference.key for reference in references),
        evaluations=tuple(release.key for release in plan.evaluations),
    )


def _predicts_only(plan: RunPlan, references: Sequence[ReleaseRef]) -> str | None:
    """Return the class that a run's model, the last of its releases, predicts for every row; None elsewhere."""
    model = read_release(references[-1]) if references and len(plan.identity.classes) > 1 else None
    if not isinstance(model, LinearModel) or model.weights.any():
        return None
    model = model.turned() if plan.identity.turned else model
    return plan.identity.classes[int(model.predict(np.zeros((1, model.weights.shape[1])))[0])]


def rests_on(result: RunResult) -> str:
    """Return why a run's epsilon is above the one that was asked for, where it rests on earlier releases."""
    if result.epsilon_charged is None or result.epsilon_spent is None:
        return ""
    spent, charged = (rounded_up(one, 4) for one in (result.epsilon_spent, result.epsilon_charged))
    on = "the counts of its columns"
    if on_basis(result):
        on = "the principal components of its rows"
    if result.synthetic:
        on = f"the releases that the synthetic rows of {' and '.join(result.synthetic)} are drawn from"
        on += (
            " (and earlier counts or components of its own rows, if its model has any)"
            * result.identity.dataset.private
        )
    if result.by_group is not None and result.by_group.combined:
        several = result.identity.dataset.unit.several
        scores = " and the scores" * (result.calibration is not None)
        on = f"the confusion matrix{scores} of its held-out {several}"
        on += " (and earlier counts of columns, if its model has any)"
    return (
        f"{result.algorithm}: ε spent = {spent:g} is this run's own ε = {charged:g} composed with {on}, on which the "
        "model rests. They were charged before and are not charged again."
        + (f" In MLflow and for `unitball predict` the model is {model_name(result)}." if on_basis(result) else "")
    )


def synthetic_of(results: Sequence[RunResult]) -> str:
    """Return which synthetic rows runs rest on; empty where they use none."""
    names = sorted({name for one in results for name in one.synthetic})
    if not names:
        return ""
    return f"the synthetic rows of {' and '.join(names)}: each run's epsilon_spent composes what these are drawn from"


def model_name(result: RunResult) -> str:
    """Return the name under which a run's model is registered."""
    return f"{result.dataset}.{result.algorithm}"


def on_basis(result: RunResult) -> bool:
    """Whether a run's rows are seen through principal components that were released before."""
    return ON_BASIS in result.identity.system


def read_before(result: RunResult) -> str:
    """Return that a basis has read the rows that a run holds out; empty for a run without one."""
    if not on_basis(result):
        return ""
    several = result.identity.dataset.unit.several
    return (
        f"The basis was released from all {several}, including those held out, so this evaluation is not independent "
        "of the basis."
    )


def shown_metric(result: RunResult, name: str, form: str = ".3f") -> str:
    """Return a number with its 95 % margin, or that it cannot be measured where the margin is all that is possible."""
    shown = shown_rate(result.metrics, name, form)
    return f"{shown} {at_this_budget(result)}" if shown == NOT_MEASURED else shown


def at_this_budget(result: RunResult) -> str:
    """Return what a number that cannot be measured was to be measured with: so many held-out rows, and epsilon.

    Epsilon is that of the run's own releases.
    """
    own = result.epsilon_spent if result.epsilon_charged is None else result.epsilon_charged
    budget = f", ε = {rounded_up(own, 3):g}" if own else ""
    return f"at this budget ({_held_out(result)}{budget})"


def _held_out(result: RunResult) -> str:
    return f"{result.metrics['held_out_rows']:,.0f} {result.identity.dataset.unit.several}"


def margins_are(result: RunResult) -> str:
    """Return in sentences what the margins in brackets are, and what makes them narrower; empty without any."""
    if not any(map(is_limit, result.metrics)):
        return ""
    several = result.identity.dataset.unit.several
    of_margins = [name for name in result.metrics.names() if result.metrics.limits(name) is not None]
    if not any(map(result.metrics.is_known, of_margins)):
        return (
            f"{_held_out(result)} are too few to evaluate the model: hold out more with a larger --test-fraction, or "
            "reduce the noise with a larger --epsilon."
        )
    chosen = (
        ", except at a chosen threshold, where they hold for all thresholds at once" if at_threshold(result) else ""
    )
    return (
        f"Brackets hold 95 % margins. They cover the privacy noise and the sampling of the held-out {several}; each "
        f"holds on its own{chosen}. They rest on {_held_out(result)}: a larger --test-fraction makes them narrower "
        "and leaves fewer to train on."
    )


def about_bound(result: RunResult) -> str:
    """Return in a sentence up to what errors are counted, and of what B is; empty where errors are whole."""
    bound, ends = result.metrics.get("error_bound"), result.identity.dataset.label_range
    if bound is None or ends is None:
        return ""
    if bound >= ends[1] - ends[0]:
        return f"Errors are counted up to B = {bound:,.6g}, the width of the declared range."
    return (
        f"In the mean absolute error, in RMSE and in both parts of R², errors are counted up to B = {bound:,.6g}: the "
        "95 % quantile minus the 5 % quantile of the label, by released counts."
    )


def by_person(result: RunResult) -> str:
    """Return what stands behind a metric's name where each person weighs one, however many rows they have."""
    return " by person" if result.identity.dataset.person else ""


def about_people(result: RunResult) -> str:
    """Return sentences on how metrics and probabilities count people, where people are protected; empty for rows."""
    if not result.identity.dataset.person or not result.metrics:
        return ""
    probabilities = (
        " A probability is a share of people counted in this way, not of rows."
        if result.calibration is not None
        else ""
    )
    return (
        "Metrics are by person: each person counts as one, and each of their k rows as 1/k. Metrics by row can differ "
        f"and were not measured.{probabilities}"
    )


def guessing(results: Sequence[RunResult]) -> list[str]:
    """Return a sentence on the accuracy of guessing the most frequent class, as measured by each run."""
    measured = [one for one in results if "majority_rate" in one.metrics]
    known = {shown_metric(one, "majority_rate") for one in measured if one.metrics.is_known("majority_rate")}
    if known:
        return [
            f"Guessing the most frequent class gives an accuracy{by_person(measured[0])} of {_either(sorted(known))}."
        ]
    unknown = {at_this_budget(one) for one in measured}
    return [f"The accuracy of guessing the most frequent class {NOT_MEASURED} {one}." for one in sorted(unknown)[:1]]


def no_better(result: RunResult) -> list[str]:
    """Return a sentence on a model that is not better than guessing, by its weights or by its measurements.

    The latter where the released confusion matrix, or that of public rows, shows neither an accuracy above that of the
    most frequent class nor a balanced accuracy above 1/K, by the lower ends of their 95 % margins; and no AUC above
    0.5. What cannot be measured is not above.
    """
    if result.predicts_only is not None:
        return [
            f"Warning: the model predicts `{result.predicts_only}` for every row, because the noise at this budget "
            "hides all differences between the classes. More rows or a larger --epsilon are needed."
        ]
    metrics = result.metrics
    if all(name in metrics and metrics.is_known(name) for name in ("accuracy", "majority_rate")):
        guesses = {
            "accuracy": metrics["majority_rate"],
            "balanced_accuracy": 1.0 / max(_classes_counted(result), 2),
            "auc": 0.5,
        }
        known = {name: guess for name, guess in guesses.items() if name in metrics and metrics.is_known(name)}
        if all(_at_least(result, name) <= guess + 1e-9 for name, guess in known.items()):
            several = result.identity.dataset.unit.several
            return [
                "Warning: the confusion matrix does not show that the model is better than guessing. Within the noise "
                f"and the sampling of the {several}, its accuracy does not exceed that of the most frequent class, and "
                f"its balanced accuracy does not exceed {guesses['balanced_accuracy']:.2g}."
            ]
    return []


def _classes_counted(result: RunResult) -> int:
    """Return how many classes a mean of recalls is over: of exact counts those that occur."""
    exact = result.metrics.limits("balanced_accuracy") is None
    return sum(sum(row) > 0 for row in result.confusion) if exact and result.confusion else len(result.classes)


def _at_least(result: RunResult, name: str) -> float:
    """Return the lower end of a metric's margin; of exact counts, two standard errors of the drawing of rows below it.

    The AUC has the standard error that it has by guessing.
    """
    limits, value = result.metrics.limits(name), result.metrics[name]
    if limits is not None or not result.confusion:
        return value if limits is None else limits[0]
    counts = np.array(result.confusion, dtype=np.float64)
    there = counts.sum(axis=1) > 0
    rows, hits = counts.sum(axis=1)[there], np.diagonal(counts)[there]
    total, recall = float(rows.sum()), hits / rows
    errors = {
        "accuracy": math.sqrt(max(value * (1.0 - value), 0.0) / total),
        "balanced_accuracy": math.sqrt(float((recall * (1.0 - recall) / rows).sum())) / len(rows),
        "auc": float(np.sqrt((total + 1.0) / (12.0 * rows * np.maximum(total - rows, 1.0))).mean()),
    }
    return value - 2.0 * errors[name]


def positive_class(result: RunResult) -> list[str]:
    """Return sentences on which of two classes is the positive one; with a warning where it may be the wrong one.

    The text adds that it is the larger class where it was not named and the run's own confusion matrix shows this by
    more than the margin.
    """
    if len(result.classes) != 2 or not result.metrics:
        return []
    other, positive = result.classes
    named = result.identity.positive
    by = "as asked or declared" if named else "the last declared class"
    told = f"The positive class is `{positive}` ({by}): precision, recall, F1, scores and effects refer to it."
    limits = result.metrics.limits("prevalence") or (result.metrics.get("prevalence", 0.0),) * 2
    if named or not limits[0] > 0.5 or not result.metrics.is_known("prevalence"):
        return [told]
    several = result.identity.dataset.unit.several
    return [
        f"{told} Warning: `{positive}` is the larger class, {shown_metric(result, 'prevalence')} of the {several}. If "
        f"`{other}` is the class to be found, give --positive {shlex.quote(other)}, or `positive: {other}` in the "
        "schema's label."
    ]


def at_threshold(result: RunResult) -> list[str]:
    """Return a sentence on the threshold that was chosen for a stated aim; none where there was no aim."""
    if result.identity.aim is None or "aim_probability" not in result.metrics:
        return []
    other, positive = result.classes
    names = {
        "recall": f"recall of `{positive}`",
        "precision": f"precision of `{positive}`",
        "f1": f"F1 of `{positive}`",
        "other_recall": f"recall of `{other}`",
        "other_precision": f"precision of `{other}`",
        "balanced_accuracy": "balanced accuracy",
    }
    measured = [what for what in names if f"aim_{what}" in result.metrics and result.metrics.is_known(f"aim_{what}")]
    numbers = [f"{names[what]} {shown_metric(result, f'aim_{what}')}" for what in measured]
    unknown = [names[what] for what in names if what not in measured]
    numbers += [f"{_listed(unknown)} {NOT_MEASURED} {at_this_budget(result)}"] if unknown else []
    of_person, counted = (" for a person", "by person, ") if result.identity.dataset.person else ("", "")
    return [
        f"At the threshold for {result.identity.aim}, a probability of {result.metrics['aim_probability']:.3g} of "
        f"`{positive}`{of_person}: {counted}{'; '.join(numbers)}. Each of these margins holds for all thresholds at "
        "once, including the chosen one. All other numbers are those of the model without a chosen threshold, and "
        "each of their margins holds on its own."
    ]


def _either(values: Sequence[str]) -> str:
    """Return different measurements of one number as a sentence lists them."""
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} or {values[-1]}, as each run has measured it"


def _listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def is_limit(name: str) -> bool:
    """Whether a number is an end of another one's margin."""
    return name.endswith(ENDS)


def by_class(result: RunResult, most: int) -> list[str]:
    """Return sentences on each class: its recall, and for how many rows it is predicted at most.

    Of more than five classes what stands out, with margins that hold for all of them at once.
    """
    if result.many_classes is not None:
        return _what_stands_out(result, result.many_classes)
    metrics = result.metrics
    of_class = zip(class_names(result.classes), result.classes, strict=False)
    names = {name: shown for name, shown in of_class if f"recall_{name}" in metrics}
    more = [f"{len(names) - most} more in MLflow"] if len(names) > most else []
    names = dict(list(names.items())[:most])
    known = [name for name in names if result.metrics.is_known(f"recall_{name}")]
    unknown = [f"`{shown}`" for name, shown in names.items() if name not in known]
    recalls = [f"{names[name]} {shown_metric(result, f'recall_{name}')}" for name in known]
    if known and unknown:
        recalls.append(f"that of {_listed(unknown)} {NOT_MEASURED} {at_this_budget(result)}")
    of_people = ", by person" if result.identity.dataset.person else ""
    sentences = [f"Recall by class{of_people}: {'; '.join(recalls + more)}."] if recalls else []
    if unknown and not known:
        sentences = [f"The recall of {_listed(unknown)} {NOT_MEASURED} {at_this_budget(result)}."]
    several = result.identity.dataset.unit.several
    most_often = {
        shown: rounded_up(100 * metrics[of], 3)
        for name, shown in names.items()
        if (of := f"predicted_{name}_high") in metrics
    }
    limits = [f"`{name}` for at most {share:g} %" for name, share in most_often.items() if share < 100]
    if limits:
        sentences.append(f"Predicts {', '.join(limits)} of the held-out {several} (95 %).")
    elif most_often:
        sentences.append(f"The number of held-out {several} per predicted class cannot be measured.")
    return sentences


def _what_stands_out(result: RunResult, many: ManyClasses) -> list[str]:
    """Return sentences on the largest confusions and on the lowest and highest recalls of many classes."""
    several, of_person = result.identity.dataset.unit.several, by_person(result)

    def shown(number: float, low: float | None, high: float | None, form: str) -> str:
        return with_margin(number, None if low is None or high is None else (low, high), form)

    named = [
        f"`{one.true}` as `{one.predicted}`: {shown(one.rows, one.low, one.high, ',.0f')}" for one in many.confusions
    ]
    most = math.ceil(many.others_at_most)
    pairs = len(result.classes) * (len(result.classes) - 1)
    counted = f"{most:,} {several}" if most != 1 else "one"
    rest = f"Any other of the {pairs} pairs of classes has at most {counted}."
    if named:
        where = (result.measured_on or f"held-out {several}").removesuffix(", noisy")
        confused = f"Largest confusions, in {where}: {'; '.join(named)}. {rest}"
    else:
        confused = f"No confusion of two classes can be told from none: each of {pairs} has at most {counted}."
    if many.noisy and named:
        confused += " These margins cover the noise alone. They hold for all pairs at once, including the largest."

    def listed(of: Sequence[RecallOf]) -> str:
        return "; ".join(f"{one.name} {shown(one.recall, one.low, one.high, '.3f')}" for one in of)

    recalls = [f"{what} {listed(of)}" for what, of in (("lowest", many.lowest), ("highest", many.highest)) if of]
    sentences = [confused]
    if recalls:
        at_once = " These margins hold for all classes at once." if many.noisy else ""
        sentences.append(f"Recall by class{of_person}: {', '.join(recalls)}.{at_once}")
    if many.not_measured:
        classes = "1 class" if many.not_measured == 1 else f"{many.not_measured} classes"
        sentences.append(f"The recall of {classes} {NOT_MEASURED} {at_this_budget(result)}.")
    return sentences


_MOST_OF_GROUP = 5
NOT_MEASURED = "cannot be measured"


def group_tables(result: RunResult) -> list[tuple[str, list[list[str]]]]:
    """Return tables of a model's metrics per group, each with its subject; none without groups.

    A table of rates, a table of differences, and both again at a chosen threshold.
    """
    at_aim = rates_at_threshold(result)
    tables = [
        ("", group_lines(result)),
        ("differences", difference_lines(result)),
        (f"at the threshold for {result.identity.aim}", group_lines(result, at_aim) if at_aim else []),
        (f"differences at the threshold for {result.identity.aim}", difference_lines(result, at_aim) if at_aim else []),
    ]
    return [(of, lines) for of, lines in tables if lines]


def group_lines(result: RunResult, shown: Mapping[str, str] | None = None) -> list[list[str]]:
    """Return a table of how a model does for each group: a line of headings, and a line a group; none without groups.

    A rate has its 95 % margin, or it cannot be measured; which is decided from the noise and the noisy counts alone.

    Parameters
    ----------
    result : RunResult
    shown : mapping of rate to str, optional
        Which rates, and what they are called; default: those of :func:`rates_by_group`, behind the number of rows.
    """
    if result.by_group is None:
        return []
    of, counted = result.by_group, shown is None
    shown = rates_by_group(result) if shown is None else shown
    lines = [[of.column, *([result.identity.dataset.unit.several] * counted), *shown.values()]]
    for group, metrics in of.metrics.items():
        rates = [shown_rate(metrics, name) for name in shown]
        lines.append([group, *([shown_rate(metrics, "rows", ",.0f")] * counted), *rates])
    return lines


_MOST_PAIRS = 6


def difference_lines(result: RunResult, shown: Mapping[str, str] | None = None) -> list[list[str]]:
    """Return a table of the differences of groups: a line of headings, and a line per pair; none without groups.

    Of up to four groups all pairs; of more, each group against the first one.

    Parameters
    ----------
    result : RunResult
    shown : mapping of rate to str, optional
        As for :func:`group_lines`.
    """
    of = result.by_group
    if of is None or not of.differences:
        return []
    shown = rates_by_group(result) if shown is None else shown
    first = next(iter(of.metrics))
    few = len(of.differences) <= _MOST_PAIRS
    pairs = [one for one in of.differences if few or one.group == first]
    lines = [[of.column, *shown.values()]]
    for one in pairs:
        lines.append([f"{one.group} − {one.less}", *(shown_rate(one.metrics, name, "+.3f") for name in shown)])
    return lines


def rates_at_threshold(result: RunResult) -> dict[str, str]:
    """Return which rates groups have at a chosen threshold, and what they are called; none where none was chosen."""
    metrics = [] if result.by_group is None else list(result.by_group.metrics.values())
    if not any(f"aim_{AT_THRESHOLD[0]}" in one for one in metrics):
        return {}
    other, positive = result.classes
    names = (f"recall {positive}", f"recall {other}", f"precision {positive}", f"predicted {positive}")
    return {f"aim_{rate}": name for rate, name in zip(AT_THRESHOLD, names, strict=True)}


def rates_by_group(result: RunResult) -> dict[str, str]:
    """Return which rates of groups are shown, and what they are called: of two classes, what is predicted, too."""
    metrics = [] if result.by_group is None else list(result.by_group.metrics.values())
    # A group without rows has no rates.
    named = max(map(list, metrics), key=len, default=[])
    of_class = zip(class_names(result.classes), result.classes, strict=False)
    classes = [(name, called) for name, called in of_class if f"recall_{name}" in named]
    two = len(result.classes) <= 2
    shown = {"accuracy": "accuracy"} | ({} if two else {"balanced_accuracy": "balanced"})
    shown |= {f"recall_{name}": f"recall {called}" for name, called in classes[:_MOST_OF_GROUP]}
    if two and classes:
        name, called = classes[-1]
        shown[f"predicted_{name}"] = f"predicted {called}"
    return shown


def shown_rate(metrics: Metrics, name: str, form: str = ".3f") -> str:
    """Return a group's rate with its margin, or that it cannot be measured; a dash of a group without rows."""
    if name not in metrics:
        return "–"
    if not metrics.is_known(name):
        return NOT_MEASURED
    limits = metrics.limits(name)
    return margin_of(limits, form) if limits and name == "rows" else with_margin(metrics[name], limits, form)


def about_groups(result: RunResult) -> str:
    """Return in sentences what the numbers by group rest on; empty where there are none."""
    if result.by_group is None or not any("rows_low" in one for one in result.by_group.metrics.values()):
        return ""
    several, times = result.identity.dataset.unit.several, result.by_group.times or 1.0
    combined = ", combined with the counts of all rows that were released before" * result.by_group.combined
    released = "one charged release of a confusion matrix per group, at the price of one matrix"
    if result.calibration is not None:
        released = (
            "two charged releases, a confusion matrix and running sums of scores per group, at the price of those of "
            "all rows"
        )
    chosen = ""
    if rates_at_threshold(result):
        chosen = (
            "Margins of groups at the chosen threshold hold for all thresholds at once, separately for each rate and "
            "each group. Margins of differences at the threshold are computed from them, and each holds on its own. "
        )
    return (
        f"By {result.by_group.column}: {released}{combined}. All margins, including those of differences, are 95 % "
        "margins, and each holds on its own: 5 % of many differences are expected to lie outside their margins. "
        f"{chosen}Margins of the number of {several} and of the predicted share cover the noise alone, for the "
        f'held-out {several}. A number with too few {several} for the noise "cannot be measured"; this is decided '
        "from the noise and noisy counts alone. All other numbers of this run cover all groups together, with "
        f"{times:.3g} times the noise of a run that is not evaluated by group."
    )


def group_metrics(result: RunResult) -> dict[str, float]:
    """Return the groups' rates that were measured, each with its margin, under names for MLflow.

    They are ``by_<column>/<group>/<rate>``.

    MLflow's page of a run shows numbers with a common beginning up to a slash together.
    """
    of = result.by_group
    if of is None:
        return {}
    return {
        f"{prefix}/{name}": value
        for prefix, metrics in _groups_for_mlflow(of)
        for name, value in metrics.known().items()
    }


def _groups_for_mlflow(of: ByGroup) -> list[tuple[str, Metrics]]:
    """Return what the names of each group's metrics begin with in MLflow, and these metrics."""
    groups = distinct_names(list(of.metrics))
    return [
        (f"{safe_name(f'by_{of.column}')}/{group}", own) for group, own in zip(groups, of.metrics.values(), strict=True)
    ]


def not_measured(result: RunResult) -> dict[str, str]:
    """Return why each metric of a run that cannot be measured cannot be, under the names that MLflow would have."""
    reasons = dict(result.metrics.reasons)
    for prefix, metrics in [] if result.by_group is None else _groups_for_mlflow(result.by_group):
        reasons |= {f"{prefix}/{name}": why for name, why in metrics.reasons.items()}
    return reasons


def append_result(config: TrainingConfig, result: RunResult) -> None:
    """Append a run to the results; under its key, so that a run that is repeated is not counted twice.

    What was served from the cache is not appended again, and its seconds are not those of the run that computed.
    """
    layout = current_layout()
    if result.cached:
        if is_recorded(layout, result.run_key):
            return
        result = result.model_copy(update={"seconds": None})
    numbers = result.model_dump(mode="json", exclude={"metrics", "by_party", "by_group", "cached"})
    # In the order in which people read a row.
    version = ingested_version(layout, result.identity.dataset.version)
    named = {"algorithm": result.algorithm, "dataset": result.dataset, "data_version": version}
    row = {**named, "trust": result.trust, **numbers}
    setting = config.model_dump(mode="json", exclude={"algorithm", "dataset", "trust"})
    weigh = result.identity.dataset.unit.several if result.metrics else None
    margin = {f"accuracy_{end}": result.metrics.get(f"accuracy_{end}") for end in ("low", "high")}
    why = {"accuracy_reason": result.metrics.reasons.get("accuracy")}
    row |= {"accuracy": result.accuracy, **margin, **why, "metrics_weigh": weigh}
    append(layout, [{**row, **{f"config_{name}": value for name, value in setting.items()}}], run=result.run_key)
    measured = [("all", "", result.metrics), *((party, "", of) for party, of in result.by_party.items())]
    if result.by_group is not None:
        measured += [("all", group, of) for group, of in result.by_group.metrics.items()]
    records = [
        {
            "run_key": result.run_key,
            "algorithm": result.algorithm,
            "dataset": result.dataset,
            "party": party,
            "by": result.by_group.column if result.by_group is not None and group else "",
            "group": group,
            "metric": name,
            "value": metrics[name] if metrics.is_known(name) else None,
            "weighs": weigh,
            "low": metrics.get(f"{name}_low"),
            "high": metrics.get(f"{name}_high"),
            "reason": metrics.reasons.get(name),
        }
        for party, group, metrics in measured
        for name in metrics.names()
    ]
    if records:
        append(layout, records, table="metrics", run=result.run_key)
