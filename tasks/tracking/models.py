"""Registered models by the names that people type: what each is made of, what audits and comparisons say, who is used.

Who is champion, and what promotion rests on, is on record in the root (:mod:`storage.model_records`), with the history
that rolling back needs. MLflow's tags and its alias show it: they are written after the record, the alias is mended
where it differs, and neither is ever read to decide. MLflow's own page and clients follow its alias and ask nobody.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from dpalgos.accounting.costs import allocate
from dpalgos.evaluators.noisy_sums import QUANTILE, Discordance, accuracy_gain
from dpalgos.guarantees import GaussianMu, Setting, Trust
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from storage.errors import DamagedError, InputError, RefusedError
from storage.model_records import WITHDRAWN, AuditRecord, ModelRecords, VersionRecord
from storage.refs import DatasetRef, Labels, ReleaseRef, ShardRef
from tasks.accounts.ledger import open_ledger
from tasks.accounts.terms import relation_of
from tasks.datasets.schedules import COVERED, Charged, Coverage
from tasks.planning.configuration import TrainingConfig
from tasks.planning.identity import code_version
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedRelease
from tasks.planning.rows import FeatureStep
from tasks.release.door import make_release
from tasks.release.seen_rows import maps_of, rows_of
from tasks.release.storing import read_release
from tasks.runtime.settings import refusal
from tasks.runtime.stores import open_catalog, open_model_records
from tasks.tracking.effects import Effects, effects_of
from tasks.tracking.flavor import is_model, load_pipeline, model_digest
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
    paid = next((one for one in plan.evaluations if one.reads_rows and one.seen_last == keys), None)
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
    return _lineage(record_of(root, model))


def _lineage(record: VersionRecord) -> Lineage:
    try:
        return Lineage.model_validate(record.facts["lineage"])
    except ValidationError as error:
        raise InputError(
            f"{record.model} version {record.version} was logged without what it is made of; train it again to compare "
            "it"
        ) from error


def guaranteed(root: Path, model: RegisteredModel) -> str:
    """Return what is proved of a registered model and what that protects; empty where nothing is known."""
    facts = record_of(root, model).facts
    if facts["proved"] == "none" or not facts["lineage"]:
        return ""
    dataset = read_lineage(root, model).dataset
    try:
        group = open_catalog().account_of(dataset.name).group_size
    except InputError:
        # Rows of parties elsewhere, or of a data set that is gone.
        group = 1
    meaning = dataset.unit.meaning(size=group) if group > 1 else dataset.unit.meaning()
    return f"{facts['proved']} for a {dataset.unit} it was trained on. {meaning}"


def trained_on_people(root: Path, model: RegisteredModel) -> bool:
    """Whether a registered model was trained and measured on people; False where nothing is known of its rows."""
    return bool(record_of(root, model).facts["lineage"]) and bool(read_lineage(root, model).dataset.person)


class Decision(BaseModel, frozen=True):
    """When a model of two classes predicts the positive one.

    Attributes
    ----------
    positive : str
    threshold : float or None
        The probability from which on; None where scores are no probabilities, and the class is predicted above 0.
    aim : str or None
        What the model's own threshold was chosen for.
    asked : bool
        Whether the threshold is another one than the model's own.
    """

    positive: str
    threshold: float | None
    aim: str | None
    asked: bool

    @property
    def statement(self) -> str:
        """The decision as a sentence."""
        if self.threshold is None:
            return f"`{self.positive}` is predicted where its score is above 0; this model has no probabilities"
        why = "no aim was given for it"
        if self.asked:
            why = "given by --threshold" + ("" if self.aim is None else f", instead of the one for {self.aim}")
        elif self.aim is not None:
            why = f"chosen for {self.aim}"
        return f"`{self.positive}` is predicted from a probability of {self.threshold:.3g} on ({why})"


def decision_of(root: Path, model: RegisteredModel, pipeline: Pipeline, threshold: float | None) -> Decision | None:
    """Return when a registered model of two classes predicts the positive one; None of other models.

    Parameters
    ----------
    root : Path
    model : RegisteredModel
    pipeline : sklearn.pipeline.Pipeline
        As it was loaded.
    threshold : float or None
        The probability that is asked for in the place of the model's own.
    """
    classes = list(getattr(pipeline, "classes_", ()))
    if len(classes) != 2:
        return None
    known = read_lineage(root, model).config if record_of(root, model).facts["lineage"] else None
    own = None
    if hasattr(pipeline, "predict_proba"):
        # The probability where the score is 0, as the model's threshold is.
        own = 1.0 / (1.0 + math.exp(-float(np.ravel(pipeline[-1].offset_)[0])))
    return Decision(
        positive=str(classes[-1]),
        threshold=own if threshold is None else threshold,
        aim=None if known is None else known.aim,
        asked=threshold is not None,
    )


CHAMPION = "champion"
"""The alias in MLflow that shows which version is to be used."""

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
_NAME = re.compile(rf"(?P<name>[^@/'\"`\\]+)(?:@(?P<champion>{CHAMPION})|/(?P<version>[0-9]+))?")
_LOG = logging.getLogger(__name__)


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
    """

    name: str
    version: str
    run_id: str
    card: str = ""

    def recorded_as(self, record: VersionRecord | None) -> bool:
        """Whether a record is of this version: of its number and its run."""
        return record is not None and (self.name, self.version, self.run_id) == (
            record.model,
            record.version,
            record.run,
        )


def champion_of(root: Path, name: str) -> VersionRecord | None:
    """Return the version of a model that is champion, by the root's records; None where none is."""
    return next(reversed(open_model_records(root).champions(name)), None)


def find_model(root: Path, model: str) -> RegisteredModel:
    """Return the version of a model that a name means: the newest one where it names neither version nor champion.

    The champion is the one on record, and MLflow's alias is mended where it differs; the newest version is the newest
    on record, where there is any.

    Raises
    ------
    InputError
        If there is no such model, naming those there are, or it is not in MLflow.
    """
    parts = _NAME.fullmatch(model)
    if parts is None:
        raise InputError(f"{model!r} is no name of a model; write NAME, NAME@{CHAMPION} or NAME/VERSION")
    name, number = parts["name"], parts["version"]
    with tracking_client(root) as client:
        versions = _versions(client, name)
        if not versions:
            names = ", ".join(sorted(version.name for version in client.search_registered_models())) or "none"
            raise InputError(f"there is no model {name!r} (models: {names}); train one first")
        if parts["champion"]:
            champion = champion_of(root, name)
            _show_champion(client, name, champion, versions)
            if champion is None:
                raise InputError(f"model {name!r} has no champion: unitball model promote {name}/VERSION")
            return _in_mlflow(versions, champion)
        if number is None:
            known = {(one.version, one.run) for one in open_model_records(root).versions(name)}
            recorded = [number for number, one in versions.items() if (number, one.run_id) in known]
            number = max(recorded or versions, key=int)
        if number not in versions:
            there = ", ".join(sorted(versions, key=int))
            raise InputError(f"model {name!r} has no version {number} in MLflow (versions: {there})")
        return versions[number]


def _versions(client: MlflowClient, name: str) -> dict[str, RegisteredModel]:
    """Return the versions of a model that MLflow has, by their numbers."""
    return {str(one.version): _described(one) for one in client.search_model_versions(f"name = '{name}'")}


def _described(version: ModelVersion) -> RegisteredModel:
    return RegisteredModel(version.name, str(version.version), str(version.run_id), version.description or "")


def _in_mlflow(versions: Mapping[str, RegisteredModel], record: VersionRecord) -> RegisteredModel:
    """Return a version on record as MLflow has it, that of another run being another one whatever its number."""
    model = versions.get(record.version)
    if model is None or not model.recorded_as(record):
        raise InputError(
            f"what was champion of {record.model!r}, version {record.version} of run {record.run}, is not in MLflow: "
            "put MLflow back from a back-up, or promote another version, which can still be compared with it: unitball "
            f"model compare {record.model}/VERSION --promote"
        )
    return model


def _difference(
    client: MlflowClient, name: str, champion: VersionRecord | None, versions: Mapping[str, RegisteredModel]
) -> tuple[str | None, str] | None:
    """Return where MLflow's alias has to be and what is wrong with it now; None where it shows what is on record."""
    due = None
    if champion is not None and (model := versions.get(champion.version)) and model.recorded_as(champion):
        due = champion.version
    shown = client.get_registered_model(name).aliases.get(CHAMPION)
    if (None if shown is None else str(shown)) == due:
        return None
    there = "is missing in MLflow" if shown is None else f"is at version {shown} in MLflow"
    recorded = "there is no champion on record"
    if champion is not None:
        recorded = f"the champion on record is version {champion.version}"
    return due, f"the alias {CHAMPION} of {name} {there}, but {recorded}"


def _show_champion(
    client: MlflowClient, name: str, champion: VersionRecord | None, versions: Mapping[str, RegisteredModel]
) -> None:
    """Mend MLflow's alias where it shows another version than the one on record, and say so.

    Where MLflow refuses, that is said: what is used is the champion on record all the same.
    """
    from mlflow.exceptions import MlflowException

    difference = _difference(client, name, champion, versions)
    if difference is None:
        return
    due, wrong = difference
    try:
        if due is None:
            client.delete_registered_model_alias(name, CHAMPION)
        else:
            client.set_registered_model_alias(name, CHAMPION, due)
    except MlflowException as error:
        _LOG.warning("%s; it stays so: %s", wrong, refusal(error))
    else:
        _LOG.warning("%s; the alias was %s", wrong, "removed" if due is None else "set again")


def misshown_champions(root: Path) -> list[tuple[str, str]]:
    """Return the models whose alias in MLflow differs from the champion on record, each with the difference."""
    with tracking_client(root) as client:
        found = {str(one.name) for one in client.search_model_versions()}
        differences = {
            name: _difference(client, name, champion_of(root, name), _versions(client, name)) for name in sorted(found)
        }
    return [(name, difference[1]) for name, difference in differences.items() if difference is not None]


def registered_by(root: Path, run_id: str | None) -> RegisteredModel | None:
    """Return the model version on record that a run of MLflow's has registered; None where it has none."""
    with tracking_client(root) as client:
        versions = client.search_model_versions(f"run_id = '{run_id}'") if run_id else []
    models = [_described(one) for one in sorted(versions, key=lambda one: int(one.version))]
    return next((model for model in reversed(models) if _recorded(root, model) is not None), None)


def _recorded(root: Path, model: RegisteredModel) -> VersionRecord | None:
    # The last one: a model that was deleted in MLflow as a whole begins with version 1 again.
    records = [one for one in open_model_records(root).versions(model.name) if one.version == model.version]
    return records[-1] if records and model.recorded_as(records[-1]) else None


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
    known = {(one.model, one.version): one.run for one in open_model_records(root).versions()}
    with tracking_client(root) as client:
        versions = client.search_model_versions()
    return [_described(one) for one in versions if known.get((one.name, str(one.version))) != str(one.run_id)]


def without_file(root: Path) -> list[tuple[RegisteredModel, Path]]:
    """Return the model versions of a root's own MLflow whose file is not in its place, each with that place."""
    from mlflow.utils.file_utils import local_file_uri_to_path

    with tracking_client(root) as client:
        places = {
            _described(one): Path(local_file_uri_to_path(client.get_model_version_download_uri(one.name, one.version)))
            for one in client.search_model_versions()
        }
    return [(model, place) for model, place in places.items() if not is_model(place)]


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
    open_model_records(root).record_version(
        model.name, model.version, run=model.run_id, digest=computed, facts=_UNKNOWN
    )
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


def effects_of_model(root: Path, model: RegisteredModel) -> Effects:
    """Return what a registered model says about each column: from its file and its releases, and no row.

    Raises
    ------
    StorageError, DamagedError, InputError
        As :func:`load_model`, :func:`read_lineage` and :func:`tasks.tracking.effects.effects_of` do.
    """
    return effects_of(load_model(root, model), read_lineage(root, model).path)


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
    from mlflow.exceptions import MlflowException

    with tracking_client(root):
        try:
            return str(mlflow.artifacts.download_artifacts(f"models:/{model.name}/{model.version}"))
        except (MlflowException, OSError) as error:
            raise DamagedError(
                f"the files of version {model.version} of {model.name} are not in MLflow's artifacts ({error}); put "
                "these back from a back-up, or train with the same configuration and another --replicate"
            ) from error


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
    facts = [one.facts for one in open_model_records(root).versions() if one.facts["epsilon"] is not None]
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
    records = open_model_records(root)
    of_run = [(one, _said(records, one)) for one in records.versions() if run_id and one.run == run_id]
    versions = [
        {"model": f"{one.model}/{one.version}", "outcome": said and said.outcome, "reason": said and said.reason}
        for one, said in of_run
    ]
    newest = next(reversed(records.audits(algorithm)), None)
    return {
        "versions": versions,
        "newest": newest and {"run": newest.run, "outcome": newest.outcome, "numbers": dict(newest.numbers)},
    }


def _said(records: ModelRecords, version: VersionRecord) -> AuditRecord | None:
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
    records = open_model_records(root)
    records.record_audit(algorithm, outcome, reason, run=run, numbers=numbers)
    return _show_audits(root, algorithm)


def withdraw_audits(root: Path, algorithm: str, reason: str) -> list[str]:
    """Take back, on record, what audits have said of an algorithm; return the versions that no violation blocks now.

    Raises
    ------
    InputError
        If no audit of it has found a violation, or no reason is given.
    """
    records = open_model_records(root)
    if not reason.strip():
        raise InputError("what audits have found is withdrawn on record: say why with --reason")
    if all(one.outcome != VIOLATION for one in records.audits(algorithm)):
        raise InputError(f"no audit of {algorithm!r} that stands has found a violation; there is nothing to withdraw")
    records.record_audit(algorithm, WITHDRAWN, reason)
    return _show_audits(root, algorithm)


def _show_audits(root: Path, algorithm: str) -> list[str]:
    """Let the tags in MLflow show what is on record, and return the versions on record that MLflow knows."""
    records = open_model_records(root)
    recorded = {(one.model, one.version, one.run): one for one in records.versions()}
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


def promote(root: Path, name: str, version: str) -> None:
    """Make a registered model version champion.

    No version is whose algorithm an audit has refuted, whose file is not the one that was logged, of which nothing is
    proved, whose account is above its cap, whose algorithm was not audited, or which is not better than the champion,
    if there is one, on public rows or by what was charged for it (:func:`compare_models`); a first champion must have
    been measured. All that is read from the root's records, and written there before MLflow shows it.

    Parameters
    ----------
    root : Path
    name, version : str
        Of MLflow's registry.

    Raises
    ------
    RefusedError
        With what is missing, and the way out.
    InputError
        If there is no such version, or this root has not logged it.
    storage.errors.DamagedError
        If the file in MLflow is another one than was logged.
    """
    model, records = find_model(root, f"{name}/{version}"), open_model_records(root)
    recorded = record_of(root, model)
    if reason := _refuted(records, recorded) or _unfit(records, recorded):
        raise RefusedError(f"version {version} of {name} is not promoted: {reason}")
    require_unchanged(root, model)
    if records.champions(name)[-1:] != [recorded]:
        records.record_champion(recorded)
    _set_alias(root, model)


def roll_back(root: Path, name: str) -> str:
    """Make the version champion again that was before the present one, and return it.

    Raises
    ------
    InputError
        If no version was champion before, or it is not in MLflow any more.
    RefusedError
        If an audit has refuted that version's algorithm meanwhile.
    """
    records = open_model_records(root)
    champions = records.champions(name)
    if len(champions) < 2:
        raise InputError(f"no version of {name!r} was champion before the present one")
    before = champions[-2]
    with tracking_client(root) as client:
        model = _in_mlflow(_versions(client, name), before)
    if reason := _refuted(records, before):
        raise RefusedError(f"version {model.version} of {name}, champion before, does not come back: {reason}")
    require_unchanged(root, model)
    records.record_champion(before, back=True)
    _set_alias(root, model)
    return model.version


def _set_alias(root: Path, model: RegisteredModel) -> None:
    with tracking_client(root) as client:
        client.set_registered_model_alias(model.name, CHAMPION, model.version)


def _refuted(records: ModelRecords, version: VersionRecord) -> str | None:
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


def _unfit(records: ModelRecords, version: VersionRecord) -> str | None:
    """Return what a version lacks to be champion; None where nothing."""
    algorithm, dataset = version.facts["algorithm"], version.facts["dataset"]
    champion = next(reversed(records.champions(version.model)), None)
    if version.facts["proved"] == "none":
        return f"nothing is proved of {algorithm} here; unitball algorithms names what is"
    if not records.audits(algorithm):
        return f"{algorithm} was not audited; prefect deployment run privacy-audit/audit does, and charges nothing"
    if not open_catalog().registrations(dataset):
        return f"this root does not know the data set {dataset!r}, so that nobody can say whether its cap holds"
    if not open_ledger().status(open_catalog().account_of(dataset).name).admitted:
        return f"the account of {dataset} is above its cap; unitball budget {dataset} says by how much"
    if champion is None or champion == version:
        measured = {"accuracy", "r2"} & set(version.facts["metrics"])
        return None if measured else "it was not measured; train without --no-evaluation"
    compared = records.comparison(version)
    if compared is None or (compared["champion"], compared["champion_run"]) != (champion.version, champion.run):
        return (
            f"it was not compared with the champion, version {champion.version}; unitball model compare "
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
            description=f"NAME, NAME@{CHAMPION} or NAME/VERSION; a name alone is its newest version.",
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
    coverage: Annotated[Coverage | None, Field(description=COVERED, examples=[0.9])] = None


def chosen_model(root: Path, request: ScoringRequest) -> str:
    """Return the name of the model that a request means."""
    if not request.prefer_champion:
        return request.model
    name = find_model(root, request.model).name
    return request.model if champion_of(root, name) is None else f"{name}@{CHAMPION}"


class ComparisonRequest(BaseModel, frozen=True, extra="forbid"):
    """Which version to compare with the champion of its name, and what that may cost the held-out rows."""

    model: Annotated[
        str,
        Field(
            min_length=1,
            description="NAME/VERSION; a name alone is its newest version.",
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
    run, champion_run : str
        MLflow's runs that logged them.
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
    new, old = read_lineage(root, challenger), _lineage(champion)
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
    new = model_comparison.lineages[0]
    if epsilon is None and new.dataset.private:
        return _from_evaluations(root, model_comparison)
    if held_out is None:
        raise InputError(f"{new.dataset.name} has no held-out rows; train with --test-fraction")
    path, branches = _both(model_comparison)
    setting = _comparison_setting(model_comparison, held_out)
    if not held_out.dataset.private:
        exact = Discordance(budget=GaussianMu(1.0)).statistic(
            rows_of(held_out, maps_of(path, branches), setting.dimension), setting
        )
        how = f"{held_out.rows} public {held_out.dataset.unit.several}"
        return _outcome(model_comparison, *accuracy_gain(exact, held_out.rows, 0.0), how)
    if epsilon is None:
        raise ParameterError("a comparison on private rows is charged: say how much with --epsilon")
    planned = planned_comparison(model_comparison, held_out, features, epsilon)
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
) -> Comparison:
    return Comparison(
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


def _from_evaluations(root: Path, model_comparison: ModelComparison) -> Comparison:
    """Compare the noisy accuracies that both runs have paid for.

    Their noises are independent. The variance of a row's difference is at most the share of rows that either model gets
    wrong, which is taken at its upper limit.
    """
    new = model_comparison.lineages[0]
    if not model_comparison.is_paid or new.measured is None:
        raise InputError(
            f"{model_comparison.challenger.name}: versions {model_comparison.challenger.version} and "
            f"{model_comparison.champion.version} were not measured on the same held-out rows, and another "
            "measurement is charged: say how much with --epsilon, or unitball schedule … --compare-epsilon"
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


def record_comparison(root: Path, comparison: Comparison) -> None:
    """Put the outcome on record, where promotion looks for it, and show it on the version in MLflow."""
    outcome = comparison.model_dump(mode="json")
    open_model_records(root).record_comparison(
        comparison.model, comparison.version, run=comparison.run, outcome=outcome
    )
    with tracking_client(root) as client:
        client.set_model_version_tag(comparison.model, comparison.version, COMPARISON_TAG, comparison.model_dump_json())
