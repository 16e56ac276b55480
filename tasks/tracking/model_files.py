"""Files of registered models: opened only where they are those on record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from storage.errors import DamagedError, InputError
from tasks.runtime.stores import open_model_records
from tasks.tracking.effects import Effects, effects_of
from tasks.tracking.flavor import is_model, load_pipeline, model_digest
from tasks.tracking.lineage import read_lineage
from tasks.tracking.model_versions import RegisteredModel, as_registered, record_of, recorded
from tasks.tracking.runs import tracking_client

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline


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
        If it is already on record, or its file is another one.
    """
    if recorded(root, model) is not None:
        raise InputError(f"version {model.version} of {model.name} is already recorded")
    computed = model_digest(_folder(root, model))
    if computed != digest.lower():
        raise InputError(
            f"the file of version {model.version} of {model.name} in MLflow has the SHA-256 {computed}, not {digest}: "
            "the file differs from the one you named. Nothing was recorded"
        )
    open_model_records(root).record_version(
        model.name, model.version, run=model.run_id, digest=computed, facts=_UNKNOWN
    )
    return [
        "its training rows, algorithm and budget",
        "its proved guarantee, and whether its releases are in this root's ledger",
        "audits of its algorithm, and its quality: it cannot become champion",
    ]


def without_file(root: Path) -> list[tuple[RegisteredModel, Path]]:
    """Return the model versions of a root's own MLflow whose file is not in its place, each with that place."""
    from mlflow.utils.file_utils import local_file_uri_to_path

    with tracking_client(root) as client:
        places = {
            as_registered(version): Path(
                local_file_uri_to_path(client.get_model_version_download_uri(version.name, version.version))
            )
            for version in client.search_model_versions()
        }
    return [(model, place) for model, place in places.items() if not is_model(place)]


def _folder(root: Path, model: RegisteredModel) -> str:
    import mlflow.artifacts
    from mlflow.exceptions import MlflowException

    with tracking_client(root):
        try:
            return str(mlflow.artifacts.download_artifacts(f"models:/{model.name}/{model.version}"))
        except (MlflowException, OSError) as error:
            raise DamagedError(
                f"the files of version {model.version} of {model.name} are not in MLflow's artifacts ({error}); "
                "restore these from a back-up, or train with the same configuration and another --replicate"
            ) from error


def _require_recorded(model: RegisteredModel, computed: str, digest: str) -> None:
    if computed != digest:
        raise DamagedError(
            f"the file of version {model.version} of {model.name} in MLflow differs from the logged file; train with "
            "the same configuration and another --replicate, or restore MLflow's artifacts from a back-up"
        )
