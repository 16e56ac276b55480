"""Public maps before everything else: named in the guarantee, part of the identity, inside the logged model."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.features.onnx import OnnxEncoder
from dpalgos.features.public_map import FileMap
from dpalgos.features.whitening import PublicRowsWhitening
from dpalgos.models import Projection
from dpalgos.parameters import ParameterError
from dpalgos.sentences import coded
from flows.federated_training import chain_inline
from storage.datasets import open_dataset
from storage.errors import InputError, RefusedError
from storage.readers.by_name import BUNDLED
from storage.refs import Visibility
from storage.releases import ReleaseStore
from tasks.datasets.registration import ensure_registered, find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.preparation import mapped_rows
from tasks.preparation.prepare import prepare as prepared_for
from tasks.preparation.prepare import whole
from tasks.preparation.public_maps import encoding, make_map
from tasks.release.door import make_release
from tasks.release.preflight import require_feasible
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_releases
from tasks.tracking.reporting import run_report
from tasks.tracking.results import Chained
from tests.support.chains import ingest_private, prepare
from tests.support.data import gathered
from tests.support.onnx_models import linear_model
from tests.support.private_rows import CLASSES, DIMENSION, write_rows

SMALL: dict[str, Any] = {"dataset": "clinic", "algorithm": "noisy-gd", "epsilon": 1.0, "parties": 2}


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    path = tmp_path / "encoder.onnx"
    path.write_bytes(linear_model(np.random.default_rng(1).normal(size=(DIMENSION, 9))))
    return path


@pytest.fixture
def clinic(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input")


def run(**config: Any) -> tuple[TrainingConfig, Chained]:
    given = TrainingConfig(**{**SMALL, **config})
    return given, chain_inline(given)


def pipeline_of(config: TrainingConfig, chained: Chained) -> Any:
    report = run_report(config, chained)
    assert report.model is not None
    return report.model


def ingest_public(folder: Path, name: str = "others", dimension: int = DIMENSION, **more: Any) -> None:
    folder.mkdir(exist_ok=True)
    path = write_rows(folder / f"{name}.txt", 120, seed=9).path
    request = {"format": "libsvm", "dimension": dimension, "classes": CLASSES, "visibility": Visibility.PUBLIC, **more}
    ingest(IngestRequest(name=name, path=path, **request))


def test_an_encoder_is_copied_named_and_logged(clinic: None, encoder: Path) -> None:
    words = f"onnx:{encoder}"
    config, chained = run(features=words)
    content = encoder.read_bytes()
    encoder.unlink()
    assert chained.dataset.dimension == 9
    assert chained.dataset.normalisation == "none", "an encoder wants rows as they are"
    assert chained.plan.system == "noisy-gd+onnx"
    said = OnnxEncoder().outside(content)
    proved = chained.result.proved
    assert proved is not None
    assert said in proved.assumptions
    (model,) = chained.plan.models
    manifest = ReleaseStore(current_layout()).manifest(model.key)
    assert said in manifest["guarantee"]["assumptions"]
    # What costs nothing without it costs nothing more with it.
    assert proved.epsilon == pytest.approx(1.0, abs=1e-3)
    report = pipeline_of(config, chained)
    assert report.packages == ("onnxruntime",)
    assert report.dimension == DIMENSION


def test_the_logged_model_scores_raw_rows_as_the_evaluation_did(root: Path, tmp_path: Path) -> None:
    assert "digits" in BUNDLED
    path = tmp_path / "encoder.onnx"
    path.write_bytes(linear_model(np.random.default_rng(1).normal(size=(64, 40))))
    config, chained = run(dataset="digits", features=f"onnx:{path}", seed=1, test_fraction=0, epsilon=3.0)
    pipeline = pipeline_of(config, chained).pipeline
    raw, labels = gathered(open_dataset(current_layout(), find_dataset("digits")))
    names = np.array(chained.dataset.classes)[labels.astype(int)]
    assert chained.result.measured_on == "training rows"
    assert (pipeline.predict(raw) == names).mean() == chained.result.accuracy
    assert (chained.result.accuracy or 0.0) > 0.5


def test_an_encoder_is_stored_by_the_step_that_makes_its_map(clinic: None, encoder: Path) -> None:
    asked = TrainingConfig(**SMALL, features=f"onnx:{encoder}")
    planned = whole(prepared_for(asked))
    assert list(open_releases().keys()) == []
    (step,) = planned.plan.features
    content = encoder.read_bytes()
    encoder.write_bytes(linear_model(np.random.default_rng(2).normal(size=(DIMENSION, 9))))
    with pytest.raises(InputError, match=re.escape(str(encoder))):
        make_map(step)
    assert list(open_releases().keys()) == []
    encoder.write_bytes(content)
    make_map(step)
    assert list(open_releases().keys()) == [step.key]
    # What is stored needs no file.
    encoder.unlink()
    assert make_map(step).dimension == 9


def test_the_file_is_the_identity_and_not_its_name(clinic: None, encoder: Path, tmp_path: Path) -> None:
    first = run(features=f"onnx:{encoder}")[1].result
    (tmp_path / "moved.onnx").write_bytes(encoder.read_bytes())
    assert run(features=f"onnx:{tmp_path / 'moved.onnx'}")[1].result.releases == first.releases
    encoder.write_bytes(linear_model(np.random.default_rng(2).normal(size=(DIMENSION, 9))))
    assert run(features=f"onnx:{encoder}")[1].result.releases != first.releases
    assert run()[1].result.releases != first.releases


def test_private_rows_pass_through_a_named_map_row_by_row(clinic: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain product would round a row by its place in a block."""
    monkeypatch.setattr(Projection, "transform", lambda *_: pytest.fail("a plain product"))
    chained = run(features="random-projection", parameters={"features.components": 3, "iterations": 3})[1]
    assert chained.dataset.dimension == 3


@pytest.mark.parametrize(
    ("features", "more"),
    [
        ("random-projection", {}),
        ("random-fourier", {"features.frequencies": 40}),
        ("signed-root", {}),
        ("dct", {}),
        ("side-by-side", {"features.maps": {"dct": {}, "pooling": {}}}),
    ],
)
def test_a_model_behind_any_named_map_is_logged_and_scores_as_it_was_measured(
    root: Path, features: str, more: dict[str, Any]
) -> None:
    """What has been charged and released is on record, behind maps that are linear, too."""
    parameters = {"iterations": 3, **more}
    config, chained = run(
        dataset="digits", features=features, seed=1, test_fraction=0, epsilon=3.0, parameters=parameters
    )
    pipeline = pipeline_of(config, chained).pipeline
    raw, labels = gathered(open_dataset(current_layout(), find_dataset("digits")))
    names = np.array(chained.dataset.classes)[labels.astype(int)]
    assert (pipeline.predict(raw) == names).mean() == chained.result.accuracy


def test_what_is_declared_of_mirror_images_reaches_a_named_map(clinic: None) -> None:
    with pytest.raises(ParameterError, match=r"random-fourier.*'mirror'"):
        run(features="random-fourier", mirror=True)


def test_named_maps_take_their_parameters(clinic: None) -> None:
    given = {"features.frequencies": 5, "features.gamma": 0.5}
    config, chained = run(features="random-fourier", parameters={**given, "iterations": 3})
    assert chained.dataset.dimension == 10
    assert pipeline_of(config, chained).packages == ()
    assert chained.result.proved is not None
    assert chained.result.proved.assumptions == ()
    again = run(features="random-fourier", parameters={**given, "features.gamma": 0.6, "iterations": 3})[1]
    assert again.result.releases != chained.result.releases


FOURIER: dict[str, Any] = {"features": "random-fourier", "parameters": {"features.frequencies": 5, "iterations": 3}}


def test_other_features_partition_nothing_again_and_are_no_data_set(
    clinic: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of features are kept beside the normalised version, whose partition serves all of them."""
    plain = run(normalisation="unit-norm")[1]
    layout = current_layout()
    shards, versions = sorted(layout.parties.glob("*/shards/*/*")), sorted(layout.datasets.iterdir())
    _, featured = run(**FOURIER)
    other = run(features="random-fourier", parameters={"features.frequencies": 4, "iterations": 3})[1]
    assert sorted(layout.parties.glob("*/shards/*/*")) == shards
    assert sorted(layout.datasets.iterdir()) == versions
    (beside,) = {path.parents[3] for path in layout.private.rglob("kept.json")}
    assert beside == layout.dataset(plain.dataset.version)
    assert len(list(layout.private.rglob("kept.json"))) == 2
    assert {one.dataset.version for one in (plain, featured, other)} == {plain.dataset.version}
    keys = [chained.plan.models[0].key for chained in (plain, featured, other)]
    assert len(set(keys)) == 3
    assert [one.plan.models[0].maps for one in (plain, featured)] == [(), (featured.plan.features[0].key,)]
    # With another number of parties or held-out share nothing is mapped again.
    monkeypatch.setattr("dpalgos.features.public_map.FourierFeatures.transform", lambda *_: pytest.fail("mapped again"))
    monkeypatch.setattr("tasks.preparation.public_maps.fits", lambda *_: True)
    run(**{**FOURIER, "parties": 3, "test_fraction": 0.3})


def test_what_is_released_does_not_depend_on_whether_rows_are_kept(
    clinic: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise, too, is keyed by what it hides: any other bit before it and none of the numbers would be the same."""
    store, given = ReleaseStore(current_layout()), {**FOURIER, "test_fraction": 0.0}
    (key,) = [release.key for release in run(**given)[1].plan.models]
    kept = store.read(key)[1]
    assert list(current_layout().private.rglob("kept.json"))
    shutil.rmtree(current_layout().release(key))
    for place in list(current_layout().private.rglob("kept.json")):
        shutil.rmtree(place.parent)
    monkeypatch.setattr(mapped_rows, "has_room", lambda *_: False)
    assert [release.key for release in run(**given)[1].plan.models] == [key]
    anew = store.read(key)[1]
    assert not list(current_layout().private.rglob("kept.json"))
    assert all(np.array_equal(kept[name], anew[name]) for name in kept)


def test_a_release_reads_its_rows_through_the_maps_it_is_planned_for(clinic: None) -> None:
    """The attack: another reference to the same rows, whose maps nobody paid for."""
    _, chained = run(**FOURIER, replicate=1)
    prepared = prepare(**{**SMALL, **FOURIER, "replicate": 2})
    prepared.charge()
    (release,) = prepared.plan.models
    other = run(features="random-fourier", parameters={"features.frequencies": 5, "features.gamma": 2.0})[1]
    for maps in ((), other.plan.models[0].maps):
        shards = [
            shard.model_copy(update={"dataset": shard.dataset.model_copy(update={"maps": maps})})
            for shard in prepared.shards.of(release.parties)
        ]
        with pytest.raises(RefusedError, match="public maps"):
            make_release(release, shards)
    # No release of rows stands in for a public map.
    forged = prepared.shards.training[0].dataset.model_copy(update={"maps": (chained.plan.models[0].key,)})
    with pytest.raises(RefusedError, match=r"^[0-9a-f]{64} "):
        encoding(forged.maps)


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"features": "onnx:nowhere.onnx"}, InputError, "file nowhere.onnx"),
        ({"features": "onnx:."}, InputError, "--features"),
        ({"parameters": {"features.gamma": 1.0}}, ParameterError, "--features"),
        ({"parameters": {"public.power": 0.0}}, ParameterError, "--public-dataset"),
        ({"features": "random-fourier", "parameters": {"features.gama": 1.0}}, ParameterError, "gama.*gamma"),
        ({"features": "scattering"}, ParameterError, r"shape=\[height, width\]"),
        ({"public_dataset": "nobody"}, InputError, "nobody"),
        ({"public_dataset": "clinic"}, RefusedError, "clinic is private"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_starts(
    words: dict[str, Any], error: type[Exception], message: str, clinic: None
) -> None:
    with pytest.raises(error, match=message):
        require_feasible(TrainingConfig(**{**SMALL, **words}))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("onnx", "onnx:encoder.onnx"),
        ("onnx:", "file"),
        ("hog:file", "file"),
        ("analyze-gauss", "'analyze-gauss'"),
    ],
)
def test_words_that_name_no_public_map(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(features=words)


def test_files_beyond_reason_are_not_read(clinic: None, encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileMap, "largest", 10)
    with pytest.raises(InputError, match=r"336 bytes.*10$"):
        require_feasible(TrainingConfig(**SMALL, features=f"onnx:{encoder}"))


def test_public_rows_centre_and_whiten(clinic: None, tmp_path: Path) -> None:
    ingest_public(tmp_path / "public")
    config, chained = run(public_dataset="others", parameters={"public.components": 3})
    assert chained.dataset.dimension == 3
    assert chained.plan.system == "noisy-gd+public-rows"
    assert chained.result.proved is not None
    assert coded("public-rows", name="others") in chained.result.proved.assumptions
    (step,) = chained.plan.features
    public, labels = gathered(open_dataset(current_layout(), find_dataset("others")))
    unit = public / np.linalg.norm(public, axis=1, keepdims=True)
    want = PublicRowsWhitening(components=3).learn([(unit, labels)], DIMENSION, len(unit), len(CLASSES))
    arrays = ReleaseStore(current_layout()).read(step.key)[1]
    np.testing.assert_allclose(arrays["mean"], want.mean, atol=1e-6)
    np.testing.assert_allclose(np.abs(arrays["basis"]), np.abs(want.basis), rtol=1e-3, atol=1e-3)
    assert [name for name, _ in pipeline_of(config, chained).pipeline.steps][:2] == ["normalise", "centred-directions"]


def test_public_rows_see_what_the_encoder_gives(clinic: None, encoder: Path, tmp_path: Path) -> None:
    ingest_public(tmp_path / "public")
    config, chained = run(features=f"onnx:{encoder}", public_dataset="others")
    first, second = chained.plan.features
    assert (first.dimension, second.dimension) == (9, 9)
    assert chained.result.proved is not None
    assert len([said for said in chained.result.proved.assumptions if said in (first.outside, second.outside)]) == 2
    steps = [name for name, _ in pipeline_of(config, chained).pipeline.steps]
    assert steps[:2] == ["onnx-features", "centred-directions"]


def test_rows_that_are_trained_on_are_no_public_rows(root: Path, tmp_path: Path) -> None:
    ingest_public(tmp_path / "public")
    with pytest.raises(RefusedError, match=r"^others"):
        require_feasible(TrainingConfig(**{**SMALL, "dataset": "others"}, public_dataset="others"))
    ensure_registered("digits")
    with pytest.raises(InputError, match=r"^digits.*64 features"):
        require_feasible(TrainingConfig(**{**SMALL, "dataset": "others"}, public_dataset="digits"))


def test_a_head_of_the_public_rows_goes_into_the_map(clinic: None, tmp_path: Path) -> None:
    ingest_public(tmp_path / "public")
    config, chained = run(public_dataset="others", parameters={"public.head": 0.5, "public.components": 3})
    assert chained.dataset.dimension == 3 + len(CLASSES)
    assert pipeline_of(config, chained).pipeline.steps[1][0] == "centred-directions"
