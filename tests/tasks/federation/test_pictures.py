"""Federations of pictures: one declaration at all parties, and a model that reads files as they did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage.encoder import PictureEncoder
from storage.errors import RefusedError
from storage.secrets import root_secret
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.federation.messages import Ask, Roster, fingerprint, identity_key
from tasks.runtime.settings import current_layout, isolated_root
from tasks.tracking.reporting import run_report
from tests.support.pictures import halves, write_pictures
from tests.tasks.federation.conftest import LOGGED
from tests.tasks.federation.test_federation import Federation

pytestmark = pytest.mark.usefixtures("logged_in_memory")


def federation(folder: Path, **declared: dict[str, Any]) -> Federation:
    """Let each party bring in a folder of bright cats and dark dogs; ``declared`` says what one declares otherwise."""
    fingerprints = {}
    for place, name in enumerate(("berlin", "lyon")):
        values = range(10 + place, 240, 4)
        pictures = {f"{'cat' if value > 127 else 'dog'}/{value}.png": value for value in values}
        path = write_pictures(folder / f"{name}-input", pictures, halves)
        given: dict[str, Any] = {"side": 2, "pixels": "grey", "epsilon_cap": 50.0, "delta_cap": 1e-3}
        request = {**given, "classes": ("cat", "dog"), "parties": {name: path}, **declared.get(name, {})}
        with isolated_root(folder / name):
            ingest(IngestRequest(name="clinic", format="images", **request))
            fingerprints[name] = fingerprint(identity_key(root_secret(current_layout())).public_key())
    return Federation(folder, {}, Roster(parties=fingerprints))


def test_a_federated_model_reads_pictures_as_the_parties_did(tmp_path: Path) -> None:
    parties = federation(tmp_path)
    parties.run(algorithm="noisy-gd", epsilon=20.0, parameters={"iterations": 2}, evaluation=False)
    config, run, columns = LOGGED[0]
    assert isinstance(columns.encoder, PictureEncoder)
    with isolated_root(parties.root("coordinator")):
        model = run_report(config, run, columns).model
    assert model is not None
    assert set(model.pipeline.predict([halves(20), halves(230)])) <= {"cat", "dog"}


def test_parties_that_read_pictures_otherwise_are_refused(tmp_path: Path) -> None:
    parties = federation(tmp_path, lyon={"fit": "pad"})
    with pytest.raises(RefusedError, match="table"):
        parties.run(algorithm="noisy-gd", parameters={"iterations": 2})
    assert not parties.messages(Ask.RESERVE)
