"""Where MLflow keeps files: below the root's own folder of artifacts, whatever an experiment or a model says."""

from __future__ import annotations

from pathlib import Path

from storage.errors import InputError


def require_own_location(artifacts: Path, location: str) -> None:
    """Refuse a location outside a root's folder of artifacts: files there would be read and written as the root's user.

    Parameters
    ----------
    artifacts : Path
    location : str
        An address as MLflow keeps it; links in it are followed.

    Raises
    ------
    InputError
        If it is on another service, or not below that folder.
    """
    from mlflow.utils.file_utils import local_file_uri_to_path
    from mlflow.utils.uri import get_uri_scheme, resolve_uri_if_local

    try:
        path = Path(local_file_uri_to_path(resolve_uri_if_local(location))).resolve()
        inside = get_uri_scheme(location) in ("", "file") and path.is_relative_to(artifacts.resolve())
    except (ValueError, OSError, RuntimeError):
        inside = False
    if not inside:
        raise InputError(
            f"MLflow's location {location!r} is not below {artifacts}, where all files of this root lie; rename "
            "that experiment in MLflow, so that one of this name is made anew here (to log a run again costs nothing)"
        )
