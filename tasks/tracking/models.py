"""Registered models by the names that people type: what each is made of, what audits and comparisons say, who is used.

Promotion is to give a version an alias, by which others load it. What it rests on, and who is champion, is on record in
the root (:mod:`storage.catalog`): MLflow's tags and aliases show it, and whoever writes them there changes
nothing here. MLflow's own page and clients follow its alias and ask nobody.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field, ValidationError

from dpalgos.accounting.costs import allocate
from dpalgos.evaluators.noisy_sums import QUANTILE, Discordance, accuracy_gain
from dpalgos.guarantees import GaussianMu, Setting, Trust
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from storage.catalog import WITHDRAWN, AuditRecord, Catalog, VersionRecord
from storage.errors import DamagedError, InputError, RefusedError
from storage.refs import DatasetRef, Labels, ReleaseRef, ShardRef
from tasks.accounts.ledger import open_ledger
from tasks.accounts.reports import budget_report
from tasks.accounts.terms import relation_of
from tasks.datasets.schedules import Charged
from tasks.planning.configuration import TrainingConfig
from tasks.planning.identity import code_version
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedRelease
from tasks.planning.rows import FeatureStep
from tasks.release.door import make_release, maps_of, read_release, rows_of
from tasks.runtime.stores import open_catalog
from tasks.tracking.flavor import load_pipeline, model_digest
from tasks.tracking.runs import tracking_client

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion
    from sklearn.pipeline import Pipeline


LINEAGE = "lineage.json"
"""Artifact of a run in MLflow."""


class Lineage(BaseModel, frozen=True):
    """References alone, which are public.

    Attributes
    ----------
    config : TrainingConfig
    dataset : DatasetRef
        The version whose rows trained it, normalised and mapped.
    features : tuple of str
        Keys of the public maps that these rows have passed through.
    path : tuple of ReleaseRef
        What rows pass through then, the model last.
    measured : ShardRef or None
        The held-out rows that a charged evaluation has measured it on.
    """

    config: TrainingConfig
    dataset: DatasetRef
    features: tuple[str, ...]
    path: tuple[ReleaseRef, ...]
    measured: ShardRef | None


def lineage_of(config: TrainingConfig, dataset: DatasetRef, plan: RunPlan, path: list[ReleaseRef]) -> Lineage:
    """Return the lineage of a model that a run has released."""
    keys = tuple(reference.key for reference in path)
    paid = next((one for one in plan.evaluations if one.upstream == keys), None)
    measured = None
    if paid is not None:
        measured = ShardRef(dataset=dataset, partition=paid.partition, party=paid.parties[0], rows=paid.setting.rows)
    return Lineage(
        config=config,
        dataset=dataset,
        features=tuple(step.key for step in plan.features),
        path=tuple(path),
        measured=measured,
    )


def read_lineage(root: Path, model: RegisteredModel) -> Lineage:
    """Return the lineage of a registered model, as it is on record: the artifact in MLflow is there to be read.

    Raises
    ------
    InputError
        If there is no record of it.
    """
    try:
        return Lineage.model_validate(record_of(root, model).facts["lineage"])
    except ValidationError as error:
        raise InputError(
            f"{model.name} version {model.version} was logged without what it is made of; train it again to compare it"
        ) from error


def guaranteed(root: Path, model: RegisteredModel) -> str:
    """Return what is proved of a registered model and what that protects; empty where nothing is known."""
    facts = record_of(root, model).facts
    if facts["proved"] == "none" or not facts["lineage"]:
        return ""
    dataset = read_lineage(root, model).dataset
    try:
        group = budget_report(dataset.name)["group_size"]
    except InputError:
        # Rows of parties elsewhere, or of a data set that is gone.
        group = 1
    meaning = dataset.unit.meaning(size=group) if group > 1 else dataset.unit.meaning()
    return f"{facts['proved']} for a {dataset.unit} it was trained on. {meaning}"


CHAMPION = "champion"
"""The alias of the version that is to be used."""

# Of a version that its owner vouches for, in the form of what is recorded of those that were logged here.
_UNKNOWN: Mapping[str, object] = MappingProxyType(
    {
        "run_key": None,
        "lineage": None,
        "algorithm": "unknown",
        "dataset": "unknown",
        "proved": "none",
        "neighbours": "unknown",
        "epsilon": None,
        "delta": None,
        "metrics": {},
    }
)
# As MLflow's registry takes them.
_ALIAS, _RESERVED, _MOST_ALIAS = re.compile(r"[\w-]+"), re.compile(r"latest|v\d+", re.IGNORECASE), 255
_NAME = re.compile(r"(?P<name>[^@/'\"`\\]+)(?:@(?P<alias>[^@/'\"`\\]+)|/(?P<version>[0-9]+))?")


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """One version of a registered model.

    Attributes
    ----------
    name, version : str
    run_id : str
        The MLflow run that logged it.
    card : str
        Its model card, Markdown; empty for a model that was logged without one.
    champion : str or None
        The version of the same name that is champion.
    """

    name: str
    version: str
    run_id: str
    card: str = ""
    champion: str | None = None


def champion_of(root: Path, name: str) -> str | None:
    """Return the version of a model that is champion, by the root's records; None where none is."""
    return next(reversed(open_catalog(root).champions(name)), None)


def find_model(root: Path, model: str) -> RegisteredModel:
    """Return the version of a model that a name means: the newest one without alias or version.

    The champion is the one on record, whatever bears the alias in MLflow; the newest version is the newest on record,
    where there is any.

    Raises
    ------
    InputError
        If there is no such model, naming those there are.
    """
    parts = _NAME.fullmatch(model)
    if parts is None:
        raise InputError(f"{model!r} is no name of a model; write NAME, NAME@ALIAS or NAME/VERSION")
    name, alias, number = parts["name"], parts["alias"], parts["version"]
    with tracking_client(root) as client:
        versions = {str(one.version): one for one in client.search_model_versions(f"name = '{name}'")}
        if not versions:
            names = ", ".join(sorted(version.name for version in client.search_registered_models())) or "none"
            raise InputError(f"there is no model {name!r} (models: {names}); train one first")
        if alias is not None:
            number = _aliased(root, client, name, alias)
        elif number is None:
            known = {(one.version, one.run) for one in open_catalog(root).model_versions(name)}
            recorded = [number for number, one in versions.items() if (number, str(one.run_id)) in known]
            number = max(recorded or versions, key=int)
        if number not in versions:
            there = ", ".join(sorted(versions, key=int))
            raise InputError(f"model {name!r} has no version {number} in MLflow (versions: {there})")
        return _described(root, versions[number])


def _described(root: Path, version: ModelVersion) -> RegisteredModel:
    return RegisteredModel(
        version.name,
        str(version.version),
        str(version.run_id),
        version.description or "",
        champion_of(root, version.name),
    )


def _aliased(root: Path, client: MlflowClient, name: str, alias: str) -> str:
    """Return the version that bears an alias in MLflow; the champion is the one on record."""
    aliases = client.get_registered_model(name).aliases
    number = champion_of(root, name) if alias == CHAMPION else aliases.get(alias)
    if number is not None:
        return str(number)
    if alias != CHAMPION:
        known = ", ".join(sorted(aliases)) or "none"
        raise InputError(f"model {name!r} has no alias {alias!r} (aliases: {known})")
    there = f"; the alias in MLflow, at version {aliases[CHAMPION]}, makes none" if CHAMPION in aliases else ""
    raise InputError(f"model {name!r} has no champion: unitball model promote {name}/VERSION{there}")


def registered_by(root: Path, run_id: str | None) -> RegisteredModel | None:
    """Return the model version on record that a run of MLflow's has registered; None where it has none."""
    with tracking_client(root) as client:
        versions = client.search_model_versions(f"run_id = '{run_id}'") if run_id else []
    models = [_described(root, one) for one in sorted(versions, key=lambda one: int(one.version))]
    return next((model for model in reversed(models) if _recorded(root, model) is not None), None)


def _recorded(root: Path, model: RegisteredModel) -> VersionRecord | None:
    # The last one: a model that was deleted in MLflow as a whole begins with version 1 again.
    records = [one for one in open_catalog(root).model_versions(model.name) if one.version == model.version]
    return records[-1] if records and records[-1].run == model.run_id else None


def record_of(root: Path, model: RegisteredModel) -> VersionRecord:
    """Return what is on record of a registered model.

    Raises
    ------
    InputError
        If this root has neither logged it nor been told of it by its owner.
    """
    record = _recorded(root, model)
    if record is None:
        name = f"{model.name}/{model.version}"
        raise InputError(
            f"version {model.version} of {model.name} is not one that this root has logged and kept a record of: train "
            "with the same configuration once more, which charges nothing, and use the version that makes; or, where "
            f"you know the SHA-256 of its model.skops from where it was made: unitball model record {name} --digest …"
        )
    return record


def unrecorded(root: Path) -> list[RegisteredModel]:
    """Return the model versions in MLflow that are not on record; none of them is loaded."""
    known = {(one.model, one.version): one.run for one in open_catalog(root).model_versions()}
    with tracking_client(root) as client:
        versions = client.search_model_versions()
    return [_described(root, one) for one in versions if known.get((one.name, str(one.version))) != str(one.run_id)]


def record_model(root: Path, model: RegisteredModel, digest: str) -> list[str]:
    """Put a version that this root has not logged on record, as its owner's word, and return what is not known of it.

    Parameters
    ----------
    root : Path
    model : RegisteredModel
    digest : str
        SHA-256 of its file, from where it was made.

    Raises
    ------
    InputError
        If it is on record already, or its file is another one.
    """
    if _recorded(root, model) is not None:
        raise InputError(f"version {model.version} of {model.name} is on record already")
    computed = model_digest(_folder(root, model))
    if computed != digest.lower():
        raise InputError(
            f"the file of version {model.version} of {model.name} in MLflow has the SHA-256 {computed}, not {digest}: "
            "it is not the one you know; nothing was recorded"
        )
    open_catalog(root).record_version(model.name, model.version, run=model.run_id, digest=computed, facts=_UNKNOWN)
    return [
        "what it was trained on, by which algorithm and with which budget",
        "what is proved of it, and whether the releases it is made of are in this root's ledger",
        "what audits have said of its algorithm, and how good it is: it becomes no champion",
    ]


def load_model(root: Path, model: RegisteredModel) -> Pipeline:
    """Return the pipeline of a registered model.

    Raises
    ------
    StorageError
        If it holds types that are not trusted; see :func:`tasks.tracking.flavor.load_pipeline`.
    DamagedError
        If its file in MLflow is not the one that is on record.
    InputError
        If it is not on record; nothing of it is opened then.
    """
    digest = record_of(root, model).digest
    return load_pipeline(_folder(root, model), lambda found: _require_recorded(model, found, digest))


def require_unchanged(root: Path, model: RegisteredModel) -> None:
    """Check that a model's file in MLflow is the one that is on record.

    Raises
    ------
    DamagedError
        If it is another one.
    InputError
        If the model is not on record.
    """
    digest = record_of(root, model).digest
    _require_recorded(model, model_digest(_folder(root, model)), digest)


def _folder(root: Path, model: RegisteredModel) -> str:
    import mlflow.artifacts

    with tracking_client(root):
        return str(mlflow.artifacts.download_artifacts(f"models:/{model.name}/{model.version}"))


def _require_recorded(model: RegisteredModel, computed: str, digest: str) -> None:
    if computed != digest:
        raise DamagedError(
            f"the file of version {model.version} of {model.name} in MLflow is not the one that was logged; train with "
            "the same configuration and another --replicate, or put MLflow's artifacts back from a back-up"
        )


AUDITS = "privacy-audits"
"""MLflow's experiment of audits."""

AUDIT_TAG = "unitball.audit"
"""Tag of model versions and of audits' runs: shows what the last audit of the algorithm has said."""

COMPARISON_TAG = "unitball.comparison"
"""Tag of model versions: shows how they have compared with the champion, as JSON."""

VIOLATION = "violation"
"""The outcome by which promotion is blocked; it stands until the owner withdraws it."""


class InUse(BaseModel, frozen=True):
    """An algorithm that registered model versions were trained with, at a budget.

    Attributes
    ----------
    algorithm : str
    epsilon, delta : float
    neighbours : str
    """

    algorithm: str
    epsilon: float
    delta: float
    neighbours: str


def algorithms_in_use(root: Path) -> list[InUse]:
    """Return each algorithm of the versions on record once, with the budget of its newest version.

    Versions that were trained without a budget have nothing to audit and are left out.
    """
    facts = [one.facts for one in open_catalog(root).model_versions() if one.facts["epsilon"] is not None]
    newest = {one["algorithm"]: one for one in facts}
    return [InUse.model_validate(one) for one in facts if newest[one["algorithm"]] is one][::-1]


def audit_of(root: Path, run_id: str, algorithm: str) -> dict[str, object]:
    """Return what audits have said of the model versions of a run, and the newest audit of an algorithm.

    Parameters
    ----------
    root : Path
    run_id : str
        MLflow's; empty for a run that MLflow does not know.
    algorithm : str

    Returns
    -------
    dict
        ``versions``: each model version with its outcome and reason, ``None`` where none was audited; ``newest``: the
        numbers of the newest audit, ``None`` where there is none.
    """
    records = open_catalog(root)
    of_run = [(one, _said(records, one)) for one in records.model_versions() if run_id and one.run == run_id]
    versions = [
        {"model": f"{one.model}/{one.version}", "outcome": said and said.outcome, "reason": said and said.reason}
        for one, said in of_run
    ]
    newest = next(reversed(records.audits(algorithm)), None)
    return {
        "versions": versions,
        "newest": newest and {"run": newest.run, "outcome": newest.outcome, "numbers": dict(newest.numbers)},
    }


def _said(records: Catalog, version: VersionRecord) -> AuditRecord | None:
    """Return the audit since a version was made that tells most of its algorithm: a violation, or else the last."""
    since = [one for one in records.audits(version.facts["algorithm"]) if one.sequence > version.sequence]
    telling = [one for one in since if one.outcome == VIOLATION] or since
    return telling[-1] if telling else None


def note_audit(
    root: Path,
    algorithm: str,
    outcome: str,
    reason: str,
    *,
    run: str = "",
    numbers: Mapping[str, float] | None = None,
) -> list[str]:
    """Put on record what an audit has found, show it on every version of the algorithm, and return which these are.

    A violation that was found before stays: a later audit that sees nothing does not take it back.

    Parameters
    ----------
    root : Path
    algorithm, outcome, reason : str
    run : str
        MLflow's id of the audit.
    numbers : mapping of str to float, optional
    """
    records = open_catalog(root)
    records.record_audit(algorithm, outcome, reason, run=run, numbers=numbers)
    return _show_audits(root, algorithm)


def withdraw_audits(root: Path, algorithm: str, reason: str) -> list[str]:
    """Take back, on record, what audits have said of an algorithm; return the versions that no violation blocks now.

    Raises
    ------
    InputError
        If no audit of it has found a violation, or no reason is given.
    """
    records = open_catalog(root)
    if not reason.strip():
        raise InputError("what audits have found is withdrawn on record: say why with --reason")
    if all(one.outcome != VIOLATION for one in records.audits(algorithm)):
        raise InputError(f"no audit of {algorithm!r} that stands has found a violation; there is nothing to withdraw")
    records.record_audit(algorithm, WITHDRAWN, reason)
    return _show_audits(root, algorithm)


def _show_audits(root: Path, algorithm: str) -> list[str]:
    """Let the tags in MLflow show what is on record, and return the versions on record that MLflow knows."""
    records = open_catalog(root)
    recorded = {(one.model, one.version, one.run): one for one in records.model_versions()}
    shown = []
    with tracking_client(root) as client:
        for version in client.search_model_versions():
            one = recorded.get((version.name, str(version.version), str(version.run_id)))
            if one is None or one.facts["algorithm"] != algorithm:
                continue
            said = _said(records, one)
            tags = {AUDIT_TAG: said.outcome, f"{AUDIT_TAG}.reason": said.reason} if said else {}
            for tag, value in tags.items():
                client.set_model_version_tag(version.name, version.version, tag, value)
            for tag in {AUDIT_TAG, f"{AUDIT_TAG}.reason"} & set(version.tags) - set(tags):
                client.delete_model_version_tag(version.name, version.version, tag)
            shown.append(f"{version.name} {version.version}")
    return shown


def promote(root: Path, name: str, version: str, alias: str = CHAMPION) -> None:
    """Give a registered model version an alias.

    No version gets one whose algorithm an audit has refuted. :data:`CHAMPION`, by which models are used, goes only to a
    version whose file is the one that was logged, of which something is proved, whose account is within its cap, whose
    algorithm was audited, and which is better than the champion, if there is one, on public rows or by what was charged
    for it (:func:`compare_models`); a first champion must have been measured. All that is read from the
    root's records.

    Parameters
    ----------
    root : Path
    name, version : str
        Of MLflow's registry.
    alias : str

    Raises
    ------
    RefusedError
        With what is missing, and the way out.
    InputError
        If there is no such version, or this root has not logged it, or the registry takes no such alias.
    storage.errors.DamagedError
        If the file in MLflow is another one than was logged.
    """
    if not _ALIAS.fullmatch(alias) or len(alias) > _MOST_ALIAS or _RESERVED.fullmatch(alias):
        raise InputError(
            f"{alias[:_MOST_ALIAS]!r} cannot be an alias: letters, digits, - and _, at most {_MOST_ALIAS}, and neither "
            "latest nor a version such as v1"
        )
    model, records = find_model(root, f"{name}/{version}"), open_catalog(root)
    recorded = record_of(root, model)
    reason = _refuted(records, recorded) or (_unfit(records, recorded) if alias == CHAMPION else None)
    if reason is not None:
        raise RefusedError(f"version {version} of {name} is not promoted: {reason}")
    require_unchanged(root, model)
    if alias == CHAMPION and records.champions(name)[-1:] != [version]:
        records.record_champion(name, version)
    with tracking_client(root) as client:
        client.set_registered_model_alias(name, alias, version)


def roll_back(root: Path, name: str) -> str:
    """Make the version champion again that was before the present one, and return it.

    Raises
    ------
    InputError
        If no version was champion before.
    RefusedError
        If an audit has refuted that version's algorithm meanwhile.
    """
    records = open_catalog(root)
    before = records.champions(name)
    if len(before) < 2:
        raise InputError(f"no version of {name!r} was champion before the present one")
    model: RegisteredModel = find_model(root, f"{name}/{before[-2]}")
    if reason := _refuted(records, record_of(root, model)):
        raise RefusedError(f"version {model.version} of {name}, champion before, does not come back: {reason}")
    require_unchanged(root, model)
    records.record_champion(name, model.version, back=True)
    with tracking_client(root) as client:
        client.set_registered_model_alias(name, CHAMPION, model.version)
    return model.version


def _refuted(records: Catalog, version: VersionRecord) -> str | None:
    """Return what an audit has refuted of a version's algorithm; None where none has."""
    algorithm = version.facts["algorithm"]
    way_out = (
        ". Train it again once the algorithm is mended; if the finding was an error: unitball model withdraw-audits "
        f"{algorithm} --reason …, and audit again"
    )
    said, newest = _said(records, version), next(reversed(records.audits(algorithm)), None)
    if said is not None and said.outcome == VIOLATION:
        return (said.reason or f"an audit has refuted what is stated of {algorithm}") + way_out
    if newest is not None and newest.outcome == VIOLATION:
        return f"the newest audit of {algorithm} has refuted what is stated of it (run {newest.run})" + way_out
    return None


def _unfit(records: Catalog, version: VersionRecord) -> str | None:
    """Return what a version lacks to be champion; None where nothing."""
    algorithm, dataset = version.facts["algorithm"], version.facts["dataset"]
    champions = records.champions(version.model)
    if version.facts["proved"] == "none":
        return f"nothing is proved of {algorithm} here; unitball algorithms names what is"
    if not records.audits(algorithm):
        return f"{algorithm} was not audited; prefect deployment run privacy-audit/weekly does, and charges nothing"
    if not open_catalog().registrations(dataset):
        return f"this root does not know the data set {dataset!r}, so that nobody can say whether its cap holds"
    if not open_ledger().status(open_catalog().account_of(dataset).name).admitted:
        return f"the account of {dataset} is above its cap; unitball budget {dataset} says by how much"
    if not champions or champions[-1] == version.version:
        measured = {"accuracy", "r2"} & set(version.facts["metrics"])
        return None if measured else "it was not measured; train without --no-evaluation"
    compared = records.comparison(version.model, version.version)
    if compared is None or compared["champion"] != champions[-1]:
        return (
            f"it was not compared with the champion, version {champions[-1]}; unitball model compare "
            f"{version.model}/{version.version}"
        )
    if not compared["gain"] > compared["margin"]:
        gained = f"gain {compared['gain']:+.4f}, margin {compared['margin']:.4f}"
        return f"it is not shown to be better than the champion: {gained}"
    return None


class ScoringRequest(BaseModel, frozen=True, extra="forbid"):
    """A file of rows and the registered model that predicts them.

    Predictions are written below ``private/predictions`` of the root, readable by its owner alone.
    """

    model: Annotated[
        str,
        Field(
            min_length=1,
            description="NAME, NAME@ALIAS or NAME/VERSION; a name alone is its newest version.",
            examples=["clinic.noisy-gd@champion"],
        ),
    ]
    input: Annotated[
        str,
        Field(
            min_length=1,
            description="CSV or Parquet on the machine that serves, with the columns of the model's table.",
            examples=["/srv/clinic/new-rows.csv"],
        ),
    ]
    id_column: Annotated[str | None, Field(description="A column of the input that is kept.", examples=["patient"])] = (
        None
    )
    prefer_champion: Annotated[bool, Field(description=f"Score with NAME@{CHAMPION} instead, where there is one.")] = (
        False
    )


def chosen_model(root: Path, request: ScoringRequest) -> str:
    """Return the name of the model that a request means."""
    if not request.prefer_champion:
        return request.model
    version = find_model(root, request.model)
    return request.model if version.champion is None else f"{version.name}@{CHAMPION}"


class ComparisonRequest(BaseModel, frozen=True, extra="forbid"):
    """Which version to compare with the champion of its name, and what that may cost the held-out rows."""

    model: Annotated[
        str,
        Field(
            min_length=1,
            description="NAME/VERSION or NAME@ALIAS; a name alone is its newest version.",
            examples=["clinic.noisy-gd/3"],
        ),
    ]
    epsilon: Annotated[
        Charged | None,
        Field(
            description="Charged to private held-out rows. If empty: what the owner's schedule says, or nothing, where "
            "both versions were measured on the same rows.",
            examples=[0.1],
        ),
    ] = None
    promote: Annotated[
        bool | None, Field(description="Make it champion where it is better; if empty, what the owner's schedule says.")
    ] = None


class Comparison(BaseModel, frozen=True):
    """The outcome of a comparison.

    Attributes
    ----------
    model, version, champion : str
        The versions that were compared.
    gain : float
        By how much the version is more accurate than the champion.
    margin : float
        One-sided, 95 %; see :func:`dpalgos.evaluators.noisy_sums.accuracy_gain`.
    how : str
    epsilon : float or None
        What the comparison was charged; None where nothing was.
    """

    model: str
    version: str
    champion: str
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
    """A version and the champion of its name, with what they are made of."""

    challenger: RegisteredModel
    champion: RegisteredModel
    lineages: tuple[Lineage, Lineage]


def open_comparison(root: Path, model: str) -> ModelComparison:
    """Return a version and the champion it is to be compared with.

    Raises
    ------
    InputError
        If there is no champion, it is this version, or the two take different rows.
    """
    challenger = find_model(root, model)
    if challenger.champion is None:
        raise InputError(f"{challenger.name} has no champion to compare with: unitball model promote {model}")
    if challenger.champion == challenger.version:
        raise InputError(f"version {challenger.version} of {challenger.name} is the champion itself")
    champion = find_model(root, f"{challenger.name}@{CHAMPION}")
    new, old = (read_lineage(root, one) for one in (challenger, champion))
    for what, ours, theirs in (
        ("data set", new.dataset.name, old.dataset.name),
        ("classes", new.dataset.classes, old.dataset.classes),
        ("features", (new.dataset.dimension, new.features), (old.dataset.dimension, old.features)),
        ("normalisation", new.dataset.normalisation, old.dataset.normalisation),
    ):
        if ours != theirs:
            raise InputError(
                f"versions {challenger.version} and {champion.version} have another {what}: {ours}, {theirs}"
            )
    if new.dataset.labels is Labels.REAL:
        raise InputError(f"{challenger.name} is a regression; what is compared are right answers of classifiers")
    return ModelComparison(challenger=challenger, champion=champion, lineages=(new, old))


def compare_models(
    root: Path,
    model_comparison: ModelComparison,
    held_out: ShardRef | None,
    features: list[FeatureStep],
    epsilon: float | None,
) -> Comparison:
    """Compare a version with the champion on the same held-out rows.

    On public rows exactly. On private ones by a charged release of their discordant pairs where an epsilon is given
    (:class:`dpalgos.evaluators.noisy_sums.Discordance`); otherwise by the charged evaluations of both, where these
    have measured the same rows, which costs nothing more.

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
    new, old = model_comparison.lineages
    if epsilon is None and new.dataset.private:
        return _from_evaluations(root, model_comparison)
    if held_out is None:
        raise InputError(f"{new.dataset.name} has no held-out rows; train with --test-fraction")
    columns = 1 if len(new.dataset.classes) == 2 else len(new.dataset.classes)
    # In the order of the counts: the champion first.
    path, branches = (*old.path, *new.path), (len(old.path), len(new.path))
    setting = Setting(
        sizes=(held_out.rows,),
        dimension=2 * columns,
        classes=len(new.dataset.classes),
        neighbours=relation_of(new.dataset.name),
        trust=Trust.CENTRAL,
        rows_per_person=held_out.dataset.rows_per_person,
    )
    if not held_out.dataset.private:
        exact = Discordance(budget=GaussianMu(1.0)).statistic(
            rows_of(held_out, maps_of(path, branches), setting.dimension), setting
        )
        how = f"{held_out.rows} public {held_out.dataset.unit.several}"
        return _outcome(model_comparison, *accuracy_gain(exact, held_out.rows, 0.0), how)
    if epsilon is None:
        raise ParameterError("a comparison on private rows is charged: say how much with --epsilon")
    # A run that was recorded names its delta.
    delta = new.config.stated_delta
    spec, trust = AlgorithmSpec("evaluators", "discordance"), AlgorithmSpec("trusts", Trust.CENTRAL)
    planned = PlannedRelease(
        label="discordant pairs of held-out rows",
        code=code_version(lookup(spec.kind, spec.name), lookup(trust.kind, trust.name)),
        dataset=held_out.dataset.version,
        partition=held_out.partition,
        repetition=new.config.replicate,
        seed=None,
        upstream=tuple(reference.key for reference in path),
        algorithm=spec,
        budget=allocate([GaussianMu], [1.0], epsilon, delta).losses[0],
        setting=setting,
        trust=trust,
        parties=(held_out.party,),
        account=held_out.dataset.account,
        delta=delta,
        outside=tuple(step.outside for step in features if step.outside),
        branches=branches,
    )
    counts = read_release(make_release(planned, [held_out], path)).values
    algorithm = planned.build()
    assert isinstance(algorithm, Discordance)
    gain = accuracy_gain(counts, held_out.rows, algorithm.deviation(setting))
    return _outcome(
        model_comparison,
        *gain,
        f"{held_out.rows} held-out {held_out.dataset.unit.several}, charged epsilon {epsilon:g}",
        epsilon,
    )


def _outcome(
    model_comparison: ModelComparison, gain: float, margin: float, how: str, epsilon: float | None = None
) -> Comparison:
    return Comparison(
        model=model_comparison.challenger.name,
        version=model_comparison.challenger.version,
        champion=model_comparison.champion.version,
        gain=gain,
        margin=margin,
        how=how,
        epsilon=epsilon,
    )


def _from_evaluations(root: Path, model_comparison: ModelComparison) -> Comparison:
    """Compare the noisy accuracies that both runs have paid for.

    Their noises are independent. The variance of a row's difference is at most the share of rows that either model gets
    wrong, which is taken at its upper limit.
    """
    new, old = model_comparison.lineages
    if new.measured is None or new.measured != old.measured:
        raise InputError(
            f"{model_comparison.challenger.name}: versions {model_comparison.challenger.version} and "
            f"{model_comparison.champion.version} were not measured on the same held-out rows, and another "
            "measurement is charged: say how much with --epsilon, or unitball schedule … --compare-epsilon"
        )
    runs = [record_of(root, one).facts["metrics"] for one in (model_comparison.challenger, model_comparison.champion)]
    better, worse = (run["accuracy"] for run in runs)
    noise = math.hypot(*(run["accuracy_noise"] for run in runs))
    discordant = min(max(2.0 - better - worse + QUANTILE * noise, 0.0), 1.0)
    margin = QUANTILE * math.sqrt(noise**2 + discordant / new.measured.rows)
    return _outcome(
        model_comparison, better - worse, margin, "both runs' charged evaluations of the same held-out rows"
    )


def record_comparison(root: Path, comparison: Comparison) -> None:
    """Put the outcome on record, where promotion looks for it, and show it on the version in MLflow."""
    open_catalog(root).record_comparison(comparison.model, comparison.version, comparison.model_dump(mode="json"))
    with tracking_client(root) as client:
        client.set_model_version_tag(comparison.model, comparison.version, COMPARISON_TAG, comparison.model_dump_json())
