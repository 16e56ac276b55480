"""What an earlier version left behind goes on: rows, budget, releases, results, tracked runs and logged models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dpalgos
from storage.datasets import open_dataset
from storage.layout import Layout
from storage.refs import ReleaseRef
from storage.releases import ReleaseStore
from tasks.datasets.registration import find_dataset
from tasks.experiments.results import query_results
from tasks.release.door import read_release
from tasks.runtime.settings import current_layout
from tests.support.chains import charges, followed
from tests.support.data import gathered
from tests.support.earlier_roots import EarlierModels, unpack


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root that commit f99f72c made, the current one while the test runs."""
    root = unpack(tmp_path)
    monkeypatch.setenv("UNITBALL_ROOT", str(root))
    return root


_LOAD = """
import json, sys
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
import numpy as np
raw = np.array(json.load(sys.stdin))
found = mlflow.MlflowClient().search_model_versions()
load = mlflow.sklearn.load_model
print(json.dumps({one.name: load(f"models:/{one.name}/{one.version}").predict(raw).tolist() for one in found}))
"""


def test_logged_models_load_and_predict_as_before(earlier: Path) -> None:
    models = EarlierModels.read()
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, f"sqlite:///{Layout(earlier).mlflow_database}"],
        input=json.dumps(models.raw),
        capture_output=True,
        text=True,
        cwd=earlier,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(dpalgos.__file__).parents[1]),
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == models.predictions


def test_rows_budget_releases_and_results_go_on(earlier: Path) -> None:
    del earlier
    features, labels = gathered(open_dataset(current_layout(), find_dataset("clinic")))
    assert (features.shape, set(labels)) == ((120, 3), {0, 1})
    before = charges("clinic")
    assert len(before) == 2
    assert query_results("SELECT round(epsilon_spent, 6) AS epsilon FROM runs ORDER BY 1") == [
        {"epsilon": 0.5},
        {"epsilon": 1.0},
    ]
    store = ReleaseStore(current_layout())
    kinds = [read_release(ReleaseRef(key=key, kind="release", party="all")).kind for key in sorted(store.keys())]
    assert sorted(kinds) == ["fourier-features", "linear-model", "linear-model"]
    assert {key for key, _ in before} <= set(store.keys())

    result = followed("clinic", algorithm="noisy-gd", epsilon=0.5, normalisation="clip")
    after = charges("clinic")
    assert after[: len(before)] == before, "what was charged stays charged"
    # The release of this run has an identity of its own and is charged on top.
    assert [key for key, _ in after[len(before) :]] == list(result.releases)
    assert np.isfinite(result.epsilon_spent or np.inf)
