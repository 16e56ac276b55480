"""A golden root: where it is stored, how it is opened at another place, and what is compared of it."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import unitball
from storage.refs import ReleaseRef
from tasks.planning.identity import identity_json
from tasks.release.storing import read_release
from tasks.runtime.stores import open_releases
from tests.support.code_versions import pin

FOLDER = Path(__file__).parent
PLACE = Path("/tmp/golden")
"""Where roots are made, so that no place of whoever made them stands in them: MLflow notes where files were."""
Json = dict[str, Any]


def versions() -> list[str]:
    """Return the versions that have left a root."""
    return sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.glob("*.tar.xz"))


def archive_of(version: str) -> Path:
    return FOLDER / f"{version}.tar.xz"


def known_of(version: str) -> Json:
    """Return what is known of a version's root: what was asked of it, and digests of what came of that."""
    known: Json = json.loads((FOLDER / f"{version}.json").read_text("utf-8"))
    return known


def unpack(version: str, folder: Path) -> Path:
    """Put a version's root, and some rows to predict, into a folder, with the rights that they had; return the root."""
    with tarfile.open(archive_of(version)) as archive:
        archive.extractall(folder, filter="tar")
    return folder / "root"


def pin_to(patch: pytest.MonkeyPatch, known: Json) -> None:
    """Let the code have the versions that the manifests of a root name, class by class; any other class has another."""
    code, mathematics = known["code"], known["mathematics"]
    pin(patch, lambda *of: code.get(named(of), "0" * 16), lambda *of: mathematics.get(named(of), "0" * 16))


def named(classes: tuple[type, ...]) -> str:
    """Return what a set of classes goes by here: their names alone, since a class may move to another module."""
    return " ".join(sorted(cls.__qualname__ for cls in classes))


def ask(asked: Json) -> Any:
    """Do once more what a root was asked: by the functions of a notebook, as each command does."""
    return getattr(unitball, asked["function"])(asked["dataset"], **asked["settings"])


def digest(array: NDArray[Any]) -> list[Any]:
    """Return type, shape and the SHA-256 of an array's bytes."""
    return [array.dtype.str, [*array.shape], hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()]


def read(key: str) -> Json:
    """Return what a stored release is, to the bit: of its manifest, of its arrays, and of its artefact's arrays."""
    manifest, arrays = open_releases().read(key)
    artefact = read_release(ReleaseRef(key=key, kind=manifest["artefact"], party="server"))
    of_artefact: Mapping[str, Any] = artefact.arrays()
    assert {name: digest(np.asarray(array)) for name, array in of_artefact.items()} == {
        name: digest(array) for name, array in arrays.items()
    }
    return {
        "artefact": manifest["artefact"],
        "code": manifest.get("code"),
        "manifest": hashlib.sha256(identity_json(manifest).encode()).hexdigest(),
        "arrays": {name: digest(array) for name, array in arrays.items()},
    }


def predicted(model: str, rows: Path) -> list[str]:
    """Return what a registered model says of rows in a file."""
    frame = pd.read_csv(rows, keep_default_na=False)
    # Without a schema there are no columns, but places.
    asked = frame.to_numpy() if frame.columns[0] == "0" else frame
    return [str(one) for one in np.asarray(unitball.predict(model, asked)).ravel()]
