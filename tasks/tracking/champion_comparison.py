"""A version of a model and the champion of its name, compared on the same held-out rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from dpalgos.accounting.costs import allocate
from dpalgos.evaluators.discordance import QUANTILE, Discordance, accuracy_gain
from dpalgos.guarantees import GaussianMu, Setting, Trust
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from storage.errors import InputError
from storage.model_records import VersionRecord
from storage.refs import Labels, ReleaseRef, ShardRef
from tasks.accounts.terms import relation_of
from tasks.datasets.schedules import Charged
from tasks.planning.identity import code_version
from tasks.planning.releases import PlannedRelease
from tasks.planning.rows import FeatureStep
from tasks.preparation.prepare import require_held_out
from tasks.release.door import make_release
from tasks.release.seen_rows import maps_of, rows_of
from tasks.release.storing import read_release
from tasks.runtime.stores import open_model_records
from tasks.tracking.lineage import Lineage, lineage_on_record, read_lineage
from tasks.tracking.model_versions import RegisteredModel, champion_of, find_model, record_of
from tasks.tracking.runs import tracking_client

COMPARISON_TAG = "unitball.comparison"
"""Tag of model versions: shows how they have compared with the champion, as JSON."""


class ComparisonRequest(BaseModel, frozen=True, extra="forbid"):
    """The version to compare with the champion of its name, and the largest charge to the held-out rows."""

    model: Annotated[
        str,
        Field(
            min_length=1,
            description="NAME/VERSION; a name alone means its newest version.",
            examples=["clinic.noisy-gd/3"],
        ),
    ]
    epsilon: Annotated[
        Charged | None,
        Field(
            description="Epsilon charged to private held-out rows. Default: the owner's schedule; no charge if both "
            "versions were measured on the same rows.",
            examples=[0.1],
        ),
    ] = None
    promote: Annotated[
        bool | None, Field(description="Make it champion if it is better. Default: the owner's schedule.")
    ] = None


class ComparisonOutcome(BaseModel, frozen=True):
    """The outcome of a comparison.

    Attributes
    ----------
    model, version, champion : str
        The versions that were compared.
    run, champion_run : str
        MLflow's runs that logged them.
    gain : float
        By how much the version is more accurate than the champion.
    margin : float
        One-sided, 95 %; see :func:`dpalgos.evaluators.discordance.accuracy_gain`.
    how : str
    epsilon : float or None
        What the comparison was charged; None where nothing was.
    """

    model: str
    version: str
    run: str
    champion: str
    champion_run: str
    gain: float
    margin: float
    how: str
    epsilon: float | None = None

    @property
    def better(self) -> bool:
        """Whether the gain is above its margin."""
        return self.gain > self.margin

    @property
    def statement(self) -> str:
        """The outcome in a line."""
        verdict = "better than" if self.better else "not shown to be better than"
        return (
            f"{self.model} version {self.version} is {verdict} the champion, version {self.champion}: accuracy "
            f"{self.gain:+.4f}, margin {self.margin:.4f} ({self.how})"
        )


class ModelComparison(BaseModel, frozen=True, arbitrary_types_allowed=True):
    """A version and the champion of its name, which MLflow may have lost, with what they are made of."""

    challenger: RegisteredModel
    champion: VersionRecord
    lineages: tuple[Lineage, Lineage]

    @property
    def is_paid(self) -> bool:
        """Whether both were measured on the same held-out rows, so that comparing these measurements is free."""
        new, old = self.lineages
        return new.measured is not None and new.measured == old.measured


def open_comparison(root: Path, model: str) -> ModelComparison:
    """Return a version and the champion it is to be compared with.

    Raises
    ------
    InputError
        If there is no champion, it is this version, or the two take different rows.
    """
    challenger = find_model(root, model)
    champion = champion_of(root, challenger.name)
    if champion is None:
        raise InputError(f"{challenger.name} has no champion to compare with: unitball model promote {model}")
    if challenger.recorded_as(champion):
        raise InputError(f"version {challenger.version} of {challenger.name} is the champion itself")
    new, old = read_lineage(root, challenger), lineage_on_record(champion)
    for what, ours, theirs in (
        ("data set", new.dataset.name, old.dataset.name),
        ("classes", new.dataset.classes, old.dataset.classes),
        ("features", (new.dataset.dimension, new.features), (old.dataset.dimension, old.features)),
        ("normalisation", new.dataset.normalisation, old.dataset.normalisation),
    ):
        if ours != theirs:
            raise InputError(f"versions {challenger.version} and {champion.version} differ in {what}: {ours}, {theirs}")
    if new.dataset.labels is Labels.REAL:
        raise InputError(f"{challenger.name} is a regression model; only classifiers can be compared")
    return ModelComparison(challenger=challenger, champion=champion, lineages=(new, old))


def compare_models(
    root: Path,
    model_comparison: ModelComparison,
    held_out: ShardRef | None,
    features: list[FeatureStep],
    epsilon: float | None,
) -> ComparisonOutcome:
    """Compare a version with the champion on the same held-out rows.

    On public rows exactly. On private ones by a charged release of their discordant pairs where an epsilon is given
    (:class:`dpalgos.evaluators.discordance.Discordance`); otherwise by the charged evaluations of both, where these
    have measured the same rows, which has no further cost.

    Parameters
    ----------
    root : Path
    model_comparison : ModelComparison
    held_out : ShardRef or None
        Of the newest version of the data set.
    features : list of FeatureStep
        What these rows have passed through.
    epsilon : float or None
        At the delta of the version's own run.

    Raises
    ------
    RefusedError
        If the cap does not admit the charge.
    InputError
        If there is nothing to compare on; the message says the way out.
    """
    new = model_comparison.lineages[0]
    if epsilon is None and new.dataset.private:
        return _from_evaluations(root, model_comparison)
    held_out = require_held_out(new.config, held_out)
    path, branches = _both(model_comparison)
    setting = _comparison_setting(model_comparison, held_out)
    if not held_out.dataset.private:
        exact = Discordance(budget=GaussianMu(1.0)).statistic(
            rows_of(held_out, maps_of(path, branches), setting.dimension), setting
        )
        how = f"{held_out.rows} public {held_out.dataset.unit.several}{seen_in_training(*model_comparison.lineages)}"
        return _outcome(model_comparison, *accuracy_gain(exact, held_out.rows, 0.0), how)
    if epsilon is None:
        raise ParameterError("a comparison on private rows must be charged: give --epsilon")
    planned = planned_comparison(model_comparison, held_out, features, epsilon)
    counts = read_release(make_release(planned, [held_out], path)).values
    algorithm = planned.build()
    assert isinstance(algorithm, Discordance)
    gain = accuracy_gain(counts, held_out.rows, algorithm.deviation(setting))
    return _outcome(
        model_comparison,
        *gain,
        f"{held_out.rows} held-out {held_out.dataset.unit.several}, charged epsilon {epsilon:g}"
        f"{seen_in_training(*model_comparison.lineages)}",
        epsilon,
    )


def seen_in_training(new: Lineage, old: Lineage) -> str:
    """Return a note for versions of which one may have been trained on rows that the other held out; else nothing.

    A private row is held out by its position and the seed, in every version of a data set. Which public rows are held
    out depends on their number too.
    """
    fractions = [one.config.test_fraction for one in (new, old)]
    differ = new.config.partition_seed != old.config.partition_seed or (
        not new.dataset.private and (new.dataset.version != old.dataset.version or fractions[0] != fractions[1])
    )
    if new.dataset.test_rows or not differ:
        return ""
    return "; the versions hold out different rows, so one may have been trained on some of these"


def _both(model_comparison: ModelComparison) -> tuple[tuple[ReleaseRef, ...], tuple[int, int]]:
    """Return what rows pass through in the order of the counts, the champion first, and how much of it is whose."""
    new, old = model_comparison.lineages
    return (*old.path, *new.path), (len(old.path), len(new.path))


def _comparison_setting(model_comparison: ModelComparison, held_out: ShardRef) -> Setting:
    dataset = model_comparison.lineages[0].dataset
    columns = 1 if len(dataset.classes) == 2 else len(dataset.classes)
    return Setting(
        sizes=(held_out.rows,),
        dimension=2 * columns,
        classes=len(dataset.classes),
        neighbours=relation_of(dataset.name),
        trust=Trust.CENTRAL,
        rows_per_person=held_out.dataset.rows_per_person,
    )


def planned_comparison(
    model_comparison: ModelComparison, held_out: ShardRef, features: Sequence[FeatureStep], epsilon: float
) -> PlannedRelease:
    """Return the release that compares a version with the champion on private held-out rows.

    Parameters
    ----------
    model_comparison : ModelComparison
    held_out : ShardRef
    features : sequence of FeatureStep
        What these rows have passed through.
    epsilon : float
        At the delta of the version's own run.
    """
    new = model_comparison.lineages[0]
    path, branches = _both(model_comparison)
    # A run that was recorded names its delta.
    delta = new.config.stated_delta
    spec, trust = AlgorithmSpec("evaluators", "discordance"), AlgorithmSpec("trusts", Trust.CENTRAL)
    return PlannedRelease(
        label="discordant pairs of held-out rows",
        code=code_version(lookup(spec.kind, spec.name), lookup(trust.kind, trust.name)),
        dataset=held_out.dataset.version,
        partition=held_out.partition,
        replicate=new.config.replicate,
        seed=None,
        upstream=tuple(reference.key for reference in path),
        algorithm=spec,
        budget=allocate([GaussianMu], [1.0], epsilon, delta).losses[0],
        setting=_comparison_setting(model_comparison, held_out),
        trust=trust,
        parties=(held_out.party,),
        account=held_out.dataset.account,
        delta=delta,
        outside=tuple(step.outside for step in features if step.outside),
        branches=branches,
    )


def _outcome(
    model_comparison: ModelComparison, gain: float, margin: float, how: str, epsilon: float | None = None
) -> ComparisonOutcome:
    return ComparisonOutcome(
        model=model_comparison.challenger.name,
        version=model_comparison.challenger.version,
        run=model_comparison.challenger.run_id,
        champion=model_comparison.champion.version,
        champion_run=model_comparison.champion.run,
        gain=gain,
        margin=margin,
        how=how,
        epsilon=epsilon,
    )


def _from_evaluations(root: Path, model_comparison: ModelComparison) -> ComparisonOutcome:
    """Compare the noisy accuracies that both runs have paid for.

    Their noises are independent. The variance of a row's difference is at most the share of rows that either model gets
    wrong, which is taken at its upper limit.
    """
    new = model_comparison.lineages[0]
    if not model_comparison.is_paid or new.measured is None:
        raise InputError(
            f"{model_comparison.challenger.name}: versions {model_comparison.challenger.version} and "
            f"{model_comparison.champion.version} were not measured on the same held-out rows, so a new, charged "
            "measurement is needed: give --epsilon, or unitball schedule … --compare-epsilon"
        )
    records = (record_of(root, model_comparison.challenger), model_comparison.champion)
    runs = [record.facts["metrics"] for record in records]
    better, worse = (run["accuracy"] for run in runs)
    noise = math.hypot(*(run["accuracy_noise"] for run in runs))
    discordant = min(max(2.0 - better - worse + QUANTILE * noise, 0.0), 1.0)
    margin = QUANTILE * math.sqrt(noise**2 + discordant / new.measured.rows)
    return _outcome(
        model_comparison, better - worse, margin, "both runs' charged evaluations of the same held-out rows"
    )


def record_comparison(root: Path, comparison: ComparisonOutcome) -> None:
    """Put the outcome on record, where promotion looks for it, and show it on the version in MLflow."""
    outcome = comparison.model_dump(mode="json")
    open_model_records(root).record_comparison(
        comparison.model, comparison.version, run=comparison.run, outcome=outcome
    )
    with tracking_client(root) as client:
        client.set_model_version_tag(comparison.model, comparison.version, COMPARISON_TAG, comparison.model_dump_json())
