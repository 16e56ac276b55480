"""Promotion asks what audits have said: a refuted algorithm's versions get no alias."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage.errors import InputError, RefusedError
from storage.ledger.charges import Decision
from storage.ledger.ledger import Ledger
from tasks.datasets.description import find_dataset
from tasks.runtime.tracking_server import own_database
from tasks.tracking.promotion import (
    AUDIT_TAG,
    AUDITS,
    VIOLATION,
    InUse,
    algorithms_in_use,
    promote,
    roll_back,
    tag_versions,
)
from tasks.tracking.runs import RunReport, track_run
from tests.support.command_line import CommandLine
from tests.support.engines import Engine
from tests.tasks.tracking.test_runs import a_report


@pytest.fixture(scope="module")
def models(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a root with two versions of one algorithm's model and one of another's."""
    root = tmp_path_factory.mktemp("models") / "root"
    engine.prepare(root)
    for key, algorithm, epsilon in (("a", "fed", 1.0), ("b", "fed", 2.0), ("c", "other", 3.0)):
        report = a_report()
        assert report.model is not None
        track_run(
            root,
            a_report(
                run_key=key,
                facts={**report.facts, "algorithm": algorithm, "neighbours": "replace-one"},
                params={"epsilon": epsilon, "delta": 1e-5},
                children=(),
                model=type(report.model)(
                    pipeline=report.model.pipeline,
                    dimension=report.model.dimension,
                    classes=report.model.classes,
                    registered_name=f"digits.{algorithm}",
                ),
            ),
        )
    return root


def client(root: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=own_database(root), registry_uri=own_database(root))


def test_what_is_in_use_is_each_algorithm_once_at_its_newest_budget(models: Path) -> None:
    found = {one.algorithm: one for one in algorithms_in_use(models)}
    assert set(found) == {"fed", "other"}
    assert found["fed"] == InUse(algorithm="fed", epsilon=2.0, delta=1e-5, neighbours="replace-one")


def test_audits_decide_on_promotion(models: Path) -> None:
    promote(models, "digits.fed", "1", "chosen")
    assert str(client(models).get_model_version_by_alias("digits.fed", "chosen").version) == "1"
    # A suspicion is no refutation.
    assert tag_versions(models, "fed", "warning", "odd") == ["digits.fed 2", "digits.fed 1"]
    promote(models, "digits.fed", "2", "chosen")
    tag_versions(models, "fed", VIOLATION, "epsilon is 3 at least")
    with pytest.raises(RefusedError, match="epsilon is 3 at least"):
        promote(models, "digits.fed", "1", "chosen")
    # What sees nothing later does not take it back.
    tag_versions(models, "fed", "consistent", "fine")
    with pytest.raises(RefusedError, match="not promoted"):
        promote(models, "digits.fed", "2", "chosen")
    assert client(models).get_model_version("digits.fed", "1").tags[AUDIT_TAG] == VIOLATION
    # The owner does, by hand.
    client(models).delete_model_version_tag("digits.fed", "1", AUDIT_TAG)
    promote(models, "digits.fed", "1", "chosen")
    promote(models, "digits.other", "1", "chosen")
    with pytest.raises(InputError, match="no version 7"):
        promote(models, "digits.other", "7", "chosen")


def test_the_command(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = CommandLine(models, capfd)
    at = ("--root", models)
    command("model", "promote", "digits.other", *at).refused(3, "not promoted", "other was not audited")
    command("model", "rollback", "digits.other", *at).refused(2, "no version of 'digits.other' was champion before")
    command("model", "compare", "digits.other", *at).refused(2, "has no champion to compare with")
    told = command.succeeds("model", "promote", "digits.other", "--alias", "shadow", *at)
    assert (told["model"], told["version"], told["alias"]) == ("digits.other", "1", "shadow")
    tag_versions(models, "other", VIOLATION, "made up")
    command("model", "promote", "digits.other/1", *at).refused(3, "not promoted", "made up")
    client(models).delete_model_version_tag("digits.other", "1", AUDIT_TAG)
    command("model", "promote", "digits.nothing", *at).refused(2, "no model")


def test_a_version_made_after_the_audit_is_blocked_too(models: Path) -> None:
    """Until a newer audit finds nothing."""

    def audited(key: str, outcome: str) -> None:
        track_run(
            models,
            RunReport(
                experiment=AUDITS, run_key=key, name=key, facts={"algorithm": "other"}, tags={AUDIT_TAG: outcome}
            ),
        )

    audited("first", VIOLATION)
    with pytest.raises(RefusedError, match="newest audit of other"):
        promote(models, "digits.other", "1", "challenger")
    audited("second", "consistent")
    promote(models, "digits.other", "1", "challenger")


def test_what_a_champion_needs(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is proved, audited, of an account within its cap, and measured; each is asked for by itself."""
    monkeypatch.setenv("UNITBALL_ROOT", str(models))
    client(models).set_model_version_tag("digits.fed", "2", AUDIT_TAG, "consistent")
    with pytest.raises(RefusedError, match="does not know the data set 'digits'"):
        promote(models, "digits.fed", "2")
    find_dataset("digits")
    promote(models, "digits.fed", "2")
    assert str(client(models).get_model_version_by_alias("digits.fed", "champion").version) == "2"
    client(models).set_model_version_tag("digits.fed", "2", "proved", "none")
    with pytest.raises(RefusedError, match="nothing is proved of fed"):
        promote(models, "digits.fed", "2")
    client(models).set_model_version_tag("digits.fed", "2", "proved", "(1, 1e-05)-DP")
    overspent = Decision(admitted=False, costs={})
    monkeypatch.setattr(Ledger, "standing", lambda self, account: overspent)
    with pytest.raises(RefusedError, match="the account of digits is above its cap"):
        promote(models, "digits.fed", "2")
    # By hand, on MLflow's page; it is not forgotten.
    monkeypatch.undo()
    monkeypatch.setenv("UNITBALL_ROOT", str(models))
    client(models).set_registered_model_alias("digits.fed", "champion", "1")
    assert roll_back(models, "digits.fed") == "2"
    client(models).delete_registered_model_alias("digits.fed", "champion")
