"""What a run needs after its charge is wanting: each is refused before, in a line, and nothing is charged."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import unitball as notebook
from flows.sweep import run_sweep
from storage.errors import InputError, StorageError
from storage.layout import Layout
from tasks.accounts.ledger import open_ledger
from tasks.experiments.specifications import SweepSpec
from tasks.planning.configuration import TrainingConfig
from tasks.preparation.prepare import prepare, whole
from tasks.release import admission, readiness
from tasks.release.readiness import Afterwards
from tests.support.chains import followed, ingest_private
from tests.support.command_line import CommandLine

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TRAIN = ("--dataset", "clinic", "--algorithm", "noisy-gd", "--param", "trainer.iterations=2", "--no-evaluation")
SETTINGS: dict[str, Any] = {
    "algorithm": "noisy-gd",
    "parameters": {"trainer.iterations": 2},
    "evaluation": False,
    "epsilon": 0.5,
}


def charged() -> int:
    return len(open_ledger().charges("clinic"))


class Fault(NamedTuple):
    """What is wanting, and what is said of it."""

    make: Callable[[Path, pytest.MonkeyPatch], None]
    words: tuple[str, ...]


def _full(root: Path, patch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(root)._replace(free=3_000_000)
    patch.setattr(shutil, "disk_usage", lambda _: usage)


def _unwritable(name: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    """A folder in which nobody can write, not even who may write everywhere."""

    def make(root: Path, patch: pytest.MonkeyPatch) -> None:
        folder = root / name
        if folder.exists():
            shutil.rmtree(folder)
        folder.symlink_to("/proc/self/task", target_is_directory=True)

    return make


def _no_temporary_folder(root: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tempfile, "tempdir", str(root / "gone"))


def _artifacts_are_a_file(root: Path, patch: pytest.MonkeyPatch) -> None:
    (root / "artifacts" / "clinic").write_text("")


def _foreign_experiment(root: Path, patch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(Layout(root).mlflow_database)) as connection:
        connection.execute(
            "INSERT INTO experiments (experiment_id, name, artifact_location, lifecycle_stage, workspace) "
            "VALUES (7, 'clinic', 'file:///somewhere/else', 'active', 'default')"
        )
        connection.commit()


def _mlflow_takes_nothing(root: Path, patch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(Layout(root).mlflow_database)) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON experiment_tags BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )
        connection.commit()


def _mlflow_is_damaged(root: Path, patch: pytest.MonkeyPatch) -> None:
    Layout(root).mlflow_database.write_bytes(b"no database, but some text that is long enough" * 100)


class _Bucket:
    def put(self, name: str, content: object) -> None:
        raise StorageError("the object store refuses s3://bucket/prefix/tried: AccessDenied; check its address")


def _bucket_refuses(root: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(readiness, "objects_of", lambda _: _Bucket())


FAULTS = {
    "full disk": Fault(_full, ("less than 8.0 MB are free", "free some space")),
    "releases": Fault(_unwritable("releases"), ("cannot write", "releases", "make the folder writable")),
    "results": Fault(_unwritable("results/runs"), ("cannot write", "results/runs", "make the folder writable")),
    "temporary": Fault(_no_temporary_folder, ("cannot write", "gone")),
    "object store": Fault(_bucket_refuses, ("AccessDenied", "check its address")),
}
OF_LOGGING = {
    "artifacts": Fault(_artifacts_are_a_file, ("artifacts/clinic", "cannot be written", "make it writable")),
    "experiment": Fault(_foreign_experiment, ("file:///somewhere/else", "is not below", "rename that experiment")),
    "mlflow refuses": Fault(_mlflow_takes_nothing, ("MLflow's database", "cannot be written", "back-up")),
    "mlflow is damaged": Fault(_mlflow_is_damaged, ("mlflow.db", "cannot be read", "back-up")),
}


@pytest.fixture
def clinic(called: CommandLine, tmp_path: Path) -> Iterator[CommandLine]:
    """A root with private rows, and nothing charged."""
    ingest_private(tmp_path / "input")
    assert charged() == 0
    yield called
    with closing(sqlite3.connect(Layout(called.root).ledger)) as connection:
        (number,) = connection.execute("SELECT count(*) FROM ledger_entries WHERE kind = 'charge'").fetchone()
    assert number == 0


@pytest.mark.parametrize("fault", [*FAULTS, *OF_LOGGING])
def test_a_run_that_could_not_be_kept_is_not_charged(
    fault: str, clinic: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, words = {**FAULTS, **OF_LOGGING}[fault]
    with monkeypatch.context() as patch:
        make(clinic.root, patch)
        with pytest.raises((StorageError, InputError)) as caught:
            notebook.train("clinic", **SETTINGS)
    assert all(word in str(caught.value) for word in (*words, "Nothing was charged")), caught.value


@pytest.mark.parametrize("fault", ["full disk", "artifacts"])
def test_nor_by_a_command(fault: str, clinic: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    make, words = {**FAULTS, **OF_LOGGING}[fault]
    with monkeypatch.context() as patch:
        make(clinic.root, patch)
        outcome = clinic("train", *TRAIN, "--epsilon", 0.5)
    assert outcome.code == 1, outcome
    said = outcome.err.splitlines()[-1]
    assert said.startswith("unitball: "), outcome
    assert all(word in said for word in (*words, "Nothing was charged")), said


@pytest.mark.parametrize("fault", ["full disk", "artifacts"])
def test_nor_in_a_sweep_nor_by_night(fault: str, clinic: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    make, words = {**FAULTS, **OF_LOGGING}[fault]
    settings = {"dataset": "clinic", "algorithm": "noisy-gd", "epsilon": 0.5, "param.trainer.iterations": 2}
    spec = SweepSpec.model_validate(
        {"name": "clinic", "set": {**settings, "evaluation": False}, "grid": {"delta": [1e-5]}}
    )
    with monkeypatch.context() as patch:
        make(clinic.root, patch)
        with pytest.raises(StorageError, match="Nothing was charged"):
            notebook.train("clinic", trainer="class-means", epsilon=0.5, evaluation=False, horizon=4)
        if fault in OF_LOGGING:
            # All points of it would be lost.
            with pytest.raises(StorageError, match=f"{words[0]}.*charged"):
                run_sweep(spec)
        else:
            (error,) = run_sweep(spec).errors()
            assert words[0] in error


@pytest.mark.parametrize("fault", ["full disk", "releases"])
def test_nor_a_description_nor_a_fit(
    fault: str, called: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random: np.random.Generator
) -> None:
    called.succeeds(
        "ingest", "table", "--format", "csv", "--path", EXAMPLES / "clinic.csv", "--schema", EXAMPLES / "clinic.yaml",
        "--account", "clinic", "--epsilon-cap", 3, "--delta-cap", 1e-6,
    )  # fmt: skip
    make, words = FAULTS[fault]
    features = random.uniform(-0.3, 0.3, size=(300, 4))
    model = notebook.PrivateClassifier(
        epsilon=0.3,
        delta=1e-7,
        algorithm="noisy-gd",
        account="clinic",
        root=called.root,
        bounds=(-1.0, 1.0),
        classes=["False", "True"],
    )
    with monkeypatch.context() as patch:
        make(called.root, patch)
        outcome = called("describe", "table", "--epsilon", 0.2)
        with pytest.raises(StorageError, match="Nothing was charged"):
            model.fit(features, (features[:, 0] > 0).astype(str))
    assert outcome.code == 1, outcome
    assert all(word in outcome.err for word in (*words, "Nothing was charged")), outcome
    assert charged() == 0


def test_a_run_that_will_work_is_not_refused(
    called: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a folder of somebody else's among the results, on a file system that says nothing of its size."""
    ingest_private(tmp_path / "input")
    _unwritable("results/archive")(called.root, monkeypatch)
    usage = shutil.disk_usage(called.root)._replace(total=0, used=0, free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    followed(algorithm="noisy-gd")
    assert charged() > 0


@pytest.mark.parametrize("free", [2_000_000, 3_000_000])
def test_a_refusal_does_not_say_how_much_is_free(
    free: int, called: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of what is stored, private rows among it, would follow from that; Prefect keeps the message."""
    usage = shutil.disk_usage(called.root)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StorageError, match=r"8\.0 MB.*\S+") as caught:
        readiness.require_ready(Afterwards(Layout(called.root)))
    assert f"{free / 1e6:g}" not in str(caught.value).replace("8.0 MB", "").replace(str(called.root), "")


def test_what_was_paid_before_is_made_on_a_full_disk(
    called: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is charged, so nothing is asked for: what is stored is shown."""
    ingest_private(tmp_path / "input")
    followed(algorithm="noisy-gd")
    before = charged()
    _full(called.root, monkeypatch)
    followed(algorithm="noisy-gd")
    assert charged() == before


@pytest.mark.nightly
@pytest.mark.parametrize("fault", [*FAULTS])
def test_the_mutant_without_preconditions_is_caught(
    fault: str, called: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest_private(tmp_path / "input")
    monkeypatch.setattr(admission, "require_ready", lambda _: None)
    make, _ = FAULTS[fault]
    with monkeypatch.context() as patch:
        make(called.root, patch)
        called("train", *TRAIN, "--epsilon", 0.5)
    assert charged() > 0


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["artifacts", "experiment", "mlflow refuses"])
def test_the_mutant_that_does_not_try_to_log_is_caught(
    fault: str, called: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest_private(tmp_path / "input")
    monkeypatch.setattr("tasks.tracking.runs.try_logging", lambda *_: None)
    OF_LOGGING[fault].make(called.root, monkeypatch)
    assert called("train", *TRAIN, "--epsilon", 0.5).code != 0
    assert charged() > 0


def test_the_bound_of_a_model_is_below_what_it_takes(called: CommandLine, tmp_path: Path) -> None:
    """One number a feature of each model, told from the plan alone."""
    ingest_private(tmp_path / "input")
    prepared = whole(prepare(TrainingConfig.model_validate({"dataset": "clinic", **SETTINGS, "delta": 1e-5})))
    models = [one for one in prepared.plan.releases if one.algorithm.kind == "trainers"]
    layout = Layout(called.root)
    before = _size(layout.releases)
    bound = Afterwards(layout, models).least_bytes() - Afterwards(layout).least_bytes()
    assert bound == 8 * models[0].setting.dimension * len(models)
    followed(**SETTINGS, delta=1e-5)
    assert bound <= _size(layout.releases) - before


def _size(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())
