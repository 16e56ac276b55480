"""The scheduled audit: the algorithms in use are audited, logged and tagged; what is refuted fails the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.federated_training import train
from flows.privacy_audit import PrivacyViolationError, privacy_audit
from storage.errors import RefusedError
from tasks.auditing.examination import AuditRequest
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.settings import own_database
from tasks.tracking.audits import AUDIT_TAG, AUDITS
from tasks.tracking.promotion import promote

pytestmark = pytest.mark.usefixtures("engine")

QUICK: dict[str, Any] = {"trials": 100, "canaries": 300, "chain_trials": 0, "seed": 1}


def client(root: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=own_database(root), registry_uri=own_database(root))


@pytest.mark.nightly
def test_the_algorithms_in_use_are_audited(tracked_root: Path) -> None:
    """One sound model, one of a published system without noise: the run fails, names it, and blocks its promotion."""
    for name in ("noisy-gd", "wishart-svm"):
        train(TrainingConfig(dataset="iris", algorithm=name, epsilon=1.0, parties=2, neighbours="replace-one"))
    with pytest.raises(PrivacyViolationError, match="wishart-svm: epsilon is"):
        privacy_audit(AuditRequest(**QUICK))
    tags = {one.name: one.tags[AUDIT_TAG] for one in client(tracked_root).search_model_versions()}
    assert tags["iris.wishart-svm"] == "violation"
    assert tags["iris.noisy-gd"] in ("consistent", "warning")
    with pytest.raises(RefusedError, match="not promoted"):
        promote(tracked_root, "iris.wishart-svm", "1")
    promote(tracked_root, "iris.noisy-gd", "1")
    experiment = client(tracked_root).get_experiment_by_name(AUDITS)
    runs = client(tracked_root).search_runs([experiment.experiment_id])
    assert {run.data.params["algorithm"] for run in runs} == {"noisy-gd", "wishart-svm"}
    assert all(run.data.metrics["epsilon_lower_bound"] >= 0 for run in runs)
    files = {file.path for run in runs for file in client(tracked_root).list_artifacts(run.info.run_id)}
    assert files >= {"audit.json", "trade-off.png"}


def test_one_that_is_named_needs_no_model(tracked_root: Path) -> None:
    assert privacy_audit() == [], "nothing is in use"
    (outcome,) = privacy_audit(AuditRequest(algorithm="noisy-gd", epsilon=0.5, **{**QUICK, "canaries": 60}))
    assert outcome.outcome in ("consistent", "warning")
    assert outcome.mechanism.proved_epsilon == pytest.approx(0.5)
    assert outcome.mechanism.proved_mu is not None
