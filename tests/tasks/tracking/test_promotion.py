"""Promotion asks what is on record in the root: what audits have said, how versions compare, who is champion."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.artifacts import download_artifacts

from storage.errors import DamagedError, InputError, RefusedError
from storage.ledger.charges import Decision
from storage.ledger.ledger import Ledger
from storage.model_records import ModelRecords
from tasks.datasets.registration import ensure_registered
from tasks.runtime.settings import own_database
from tasks.runtime.stores import open_model_records
from tasks.tracking import flavor
from tasks.tracking.audits import AUDIT_TAG, VIOLATION, InUse, algorithms_in_use, audit_of, note_audit, withdraw_audits
from tasks.tracking.champion_comparison import COMPARISON_TAG, ComparisonOutcome, record_comparison
from tasks.tracking.lineage import read_lineage
from tasks.tracking.model_files import load_model
from tasks.tracking.model_versions import RegisteredModel, find_model, registered_by, unrecorded
from tasks.tracking.promotion import promote, roll_back
from tasks.tracking.runs import track_run, tracking_client
from tests.support.command_line import CommandLine
from tests.tasks.tracking.test_runs import a_report


@pytest.fixture(scope="module")
def models(tracking_copied: Callable[[Path], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a root with two versions of one algorithm's model and one of another's."""
    root = tmp_path_factory.mktemp("models") / "root"
    tracking_copied(root)
    for key, algorithm, epsilon in (("a", "fed", 1.0), ("b", "fed", 2.0), ("c", "other", 3.0)):
        report = a_report()
        assert report.model is not None
        track_run(
            root,
            a_report(
                run_key=key,
                facts={**report.facts, "algorithm": algorithm, "neighbours": "replace-one"},
                params={"epsilon": epsilon, "delta": 1e-5},
                parties=(),
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


def refusal(root: Path, name: str, version: str) -> str:
    """Return why a version does not become champion."""
    with pytest.raises(RefusedError, match=r"^version [12] of .* is not promoted") as refused:
        promote(root, name, version)
    return str(refused.value)


def test_audits_decide_on_promotion(models: Path) -> None:
    """What audits say is asked before whether the account is within its cap, which this root does not know."""
    assert "fed was not audited" in refusal(models, "digits.fed", "1")
    # A suspicion is no refutation.
    assert note_audit(models, "fed", "warning", "odd") == ["digits.fed 2", "digits.fed 1"]
    assert "does not know the data set" in refusal(models, "digits.fed", "2")
    note_audit(models, "fed", VIOLATION, "epsilon is 3 at least", run="the-run")
    assert "epsilon is 3 at least" in refusal(models, "digits.fed", "1")
    # What sees nothing later does not take it back.
    note_audit(models, "fed", "consistent", "fine")
    assert "epsilon is 3 at least" in refusal(models, "digits.fed", "2")
    assert client(models).get_model_version("digits.fed", "1").tags[AUDIT_TAG] == VIOLATION
    run = client(models).get_model_version("digits.fed", "1").run_id
    said: Any = audit_of(models, run, "fed")
    assert [one["outcome"] for one in said["versions"]] == [VIOLATION]
    assert said["newest"] == {"run": "", "outcome": "consistent", "numbers": {}}
    # Neither does a tag that is deleted or set in MLflow. The owner does, on record.
    client(models).delete_model_version_tag("digits.fed", "1", AUDIT_TAG)
    client(models).set_model_version_tag("digits.fed", "2", AUDIT_TAG, "consistent")
    for version in ("1", "2"):
        assert "withdraw-audits fed" in refusal(models, "digits.fed", version)
    with pytest.raises(InputError, match="--reason"):
        withdraw_audits(models, "fed", " ")
    assert withdraw_audits(models, "fed", "a broken build") == ["digits.fed 2", "digits.fed 1"]
    assert AUDIT_TAG not in client(models).get_model_version("digits.fed", "2").tags
    assert "fed was not audited" in refusal(models, "digits.fed", "1")
    with pytest.raises(InputError, match="'fed'"):
        withdraw_audits(models, "fed", "again")
    with pytest.raises(InputError, match="version 7"):
        promote(models, "digits.other", "7")
    assert open_model_records(models).champions("digits.fed") == []


def test_the_command(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = CommandLine(models, capfd)
    at = ("--root", models)
    command("model", "promote", "digits.other", *at).refused(3, "not promoted", "privacy-audit/audit")
    command("model", "rollback", "digits.other", *at).refused(2, "no version of 'digits.other' was champion before")
    command("model", "compare", "digits.other", *at).refused(2, "unitball model promote digits.other")
    note_audit(models, "other", VIOLATION, "made up")
    command("model", "promote", "digits.other/1", *at).refused(3, "not promoted", "made up")
    told = command.succeeds("model", "withdraw-audits", "other", "--reason", "made up indeed", *at)
    assert told["versions"] == ["digits.other 1"]
    command("model", "promote", "digits.nothing", *at).refused(2, "no model")


def test_a_version_made_after_the_audit_is_blocked_too(models: Path) -> None:
    """Until a newer audit finds nothing."""
    note_audit(models, "late", VIOLATION, "before there was a version")
    report = a_report(run_key="late")
    assert report.model is not None
    made = replace(report, facts={**report.facts, "algorithm": "late"})
    track_run(models, replace(made, model=replace(report.model, registered_name="digits.late")))
    assert "newest audit of late" in refusal(models, "digits.late", "1")
    note_audit(models, "late", "consistent", "")
    assert "does not know the data set" in refusal(models, "digits.late", "1")


def test_what_a_champion_needs(
    models: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is proved, audited, of an account within its cap, and measured; each is asked for by itself."""
    monkeypatch.setenv("UNITBALL_ROOT", str(models))
    note_audit(models, "fed", "consistent", "fine")
    with pytest.raises(RefusedError, match="'digits'"):
        promote(models, "digits.fed", "2")
    ensure_registered("digits")
    overspent = Decision(admitted=False, costs={})
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "status", lambda self, account: overspent)
        with pytest.raises(RefusedError, match=r"account of digits.*cap"):
            promote(models, "digits.fed", "2")
    report = a_report(parties=())
    assert report.model is not None
    unproved = replace(report, facts={**report.facts, "proved": None})
    for number, (made, missing) in enumerate(
        (
            (unproved, "fed"),
            (replace(report, decisive={}), "measured"),
        )
    ):
        model = replace(report.model, registered_name=f"digits.lacking-{number}")
        track_run(models, replace(made, run_key=f"lacking-{number}", model=model))
        with pytest.raises(RefusedError, match=missing):
            promote(models, f"digits.lacking-{number}", "1")
    command = CommandLine(models, capfd)
    assert command.succeeds("model", "promote", "digits.fed/2", "--root", models) == {
        "model": "digits.fed",
        "version": "2",
    }
    assert str(client(models).get_model_version_by_alias("digits.fed", "champion").version) == "2"
    assert find_model(models, "digits.fed@champion").version == "2"


def test_whoever_writes_to_mlflow_makes_no_champion(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tags, aliases, metrics, parameters and versions that somebody with MLflow's password alone has written."""
    monkeypatch.setenv("UNITBALL_ROOT", str(models))
    ensure_registered("digits")
    note_audit(models, "fed", "consistent", "fine")
    promote(models, "digits.fed", "2")
    forger = client(models)
    better = {"champion": "2", "gain": 0.9, "margin": 0.0}
    for tag, value in {
        COMPARISON_TAG: json.dumps(better),
        AUDIT_TAG: "consistent",
        "proved": "(0.1, 0)-DP",
        "algorithm": "other",
    }.items():
        forger.set_model_version_tag("digits.fed", "1", tag, value)
    forger.set_registered_model_tag("digits.fed", "unitball.champions", '["1", "2", "1"]')
    run = forger.get_model_version("digits.fed", "1").run_id
    forger.log_metric(run, "accuracy", 1.0)
    with pytest.raises(RefusedError, match="version 2"):
        promote(models, "digits.fed", "1")
    forger.set_registered_model_alias("digits.fed", "champion", "1")
    assert find_model(models, "digits.fed@champion").version == "2"
    with pytest.raises(InputError, match="champion before"):
        roll_back(models, "digits.fed")
    # An alias where there never was a champion.
    forger.set_registered_model_alias("digits.other", "champion", "1")
    with pytest.raises(InputError, match=r"'digits\.other'.*champion"):
        find_model(models, "digits.other@champion")
    assert forger.get_registered_model("digits.other").aliases == {}
    # A version of one's own, with a good version's run and tags.
    good = forger.get_model_version("digits.fed", "2")
    with tracking_client(models) as inside:
        theirs = inside.create_model_version("digits.fed", source=good.source, run_id=good.run_id, tags=good.tags)
    assert find_model(models, "digits.fed").version == "2", "the newest is the newest on record"
    found = registered_by(models, good.run_id)
    assert found is not None
    assert found.version == "2"
    for refused in (
        lambda: promote(models, "digits.fed", str(theirs.version)),
        lambda: load_model(models, find_model(models, f"digits.fed/{theirs.version}")),
    ):
        with pytest.raises(InputError, match=r"digits.fed.*logged"):
            refused()
    # Another file under a good version's name.
    load_model(models, find_model(models, "digits.fed@champion"))
    with tracking_client(models):
        (file,) = Path(download_artifacts(good.source)).rglob("model.skops")
    kept = file.read_bytes()
    file.write_bytes(kept + b"\0")
    with pytest.raises(DamagedError, match="logged"):
        load_model(models, find_model(models, "digits.fed@champion"))
    with pytest.raises(DamagedError, match="logged"):
        promote(models, "digits.fed", "2")
    file.write_bytes(kept)
    promote(models, "digits.fed", "2")
    assert str(forger.get_model_version_by_alias("digits.fed", "champion").version) == "2"
    assert [one.version for one in open_model_records(models).champions("digits.fed")] == ["2"]


def test_a_version_that_takes_over_a_champions_number_is_none(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model deleted in MLflow as a whole begins with version 1 again: neither the champion's place nor what the
    first version 2 has won against it goes over to versions of these numbers.
    """
    monkeypatch.setenv("UNITBALL_ROOT", str(models))
    ensure_registered("digits")
    note_audit(models, "fed", "consistent", "fine")
    report = a_report(parties=())
    assert report.model is not None
    model = replace(report.model, registered_name="digits.again")
    facts = {**report.facts, "neighbours": "replace-one"}

    def train(key: str) -> RegisteredModel:
        track_run(models, replace(report, run_key=key, facts=facts, model=model))
        return find_model(models, "digits.again")

    def won(version: RegisteredModel, champion: RegisteredModel) -> None:
        outcome = {"gain": 0.9, "margin": 0.1, "how": "made up", "model": version.name}
        runs = {"run": version.run_id, "champion_run": champion.run_id}
        outcome |= {"version": version.version, "champion": champion.version}
        record_comparison(models, ComparisonOutcome(**runs, **outcome))

    first = train("first")
    promote(models, "digits.again", "1")
    won(train("second"), first)
    with tracking_client(models) as inside:
        inside.delete_registered_model("digits.again")
    third = train("third")
    assert third.version == "1"
    with pytest.raises(InputError, match=f"version 1 of run {first.run_id}.*MLflow"):
        find_model(models, "digits.again@champion")
    assert "champion" not in client(models).get_registered_model("digits.again").aliases
    assert "not compared with the champion, version 1" in refusal(models, "digits.again", "1")
    fourth = train("fourth")
    assert fourth.version == "2"
    assert "not compared with the champion, version 1" in refusal(models, "digits.again", "2")
    # The way out: compared with what is on record of the champion, of which MLflow has to know nothing.
    won(fourth, first)
    won(third, first)
    promote(models, "digits.again", "1")
    assert find_model(models, "digits.again@champion") == third
    # What was won against the first version 1 is not won against this one.
    assert "not compared with the champion, version 1" in refusal(models, "digits.again", "2")
    # The version before is gone, and the one that has its number now is another.
    with pytest.raises(InputError, match=f"version 1 of run {first.run_id}.*MLflow"):
        roll_back(models, "digits.again")
    assert [one.run for one in open_model_records(models).champions("digits.again")] == [first.run_id, third.run_id]


def test_a_model_that_the_catalogue_does_not_know_is_logged_once_more(models: Path) -> None:
    """With its run unchanged, as after an older ledger was put back: what is on record decides."""
    report = a_report(run_key="forgotten")
    assert report.model is not None
    report = replace(report, model=replace(report.model, registered_name="digits.forgotten"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelRecords, "record_version", lambda *_, **__: None)
        run = track_run(models, report)
    found = find_model(models, "digits.forgotten")
    with pytest.raises(InputError, match=r"digits.forgotten.*logged"):
        load_model(models, found)
    with pytest.raises(InputError, match=r"digits.forgotten.*configuration"):
        promote(models, "digits.forgotten", found.version)
    for _ in range(2):
        assert track_run(models, report) == run
    assert find_model(models, "digits.forgotten").version == "2"
    assert len(client(models).search_model_versions("name = 'digits.forgotten'")) == 2
    load_model(models, find_model(models, "digits.forgotten"))


def test_a_model_without_a_record_is_loaded_on_its_owners_word_alone(models: Path, commands: CommandLine) -> None:
    """A forged model under a name of its own, and what an owner brings from elsewhere: nothing tells one from the other
    but the digest that the owner knows."""
    with tracking_client(models) as inside:
        good = inside.get_model_version("digits.fed", "2")
        inside.create_registered_model("forged")
        inside.create_model_version("forged", source=good.source, run_id=good.run_id, tags=good.tags)
        (file,) = Path(download_artifacts(good.source)).rglob("model.skops")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    forged = find_model(models, "forged")
    with pytest.raises(InputError, match="forged/1"):
        load_model(models, forged)
    here = ("--root", str(models))
    checks = commands("doctor", *here, "--json").json["checks"]
    assert any("forged/1 in MLflow is not on record" in (one["problem"] or "") for one in checks)
    commands("model", "record", "forged/1", "--digest", "0" * 64, *here).refused(2, f"has the SHA-256 {digest}")
    assert "forged/1" in {f"{one.name}/{one.version}" for one in unrecorded(models)}
    told = commands.succeeds("model", "record", "forged/1", "--digest", digest.upper(), *here)
    assert [one.split(" ")[0] for one in told["unknown"]] == ["its", "its", "audits"]
    commands("model", "record", "forged/1", "--digest", digest, *here).refused(2, "already recorded")
    assert "forged/1" not in {f"{one.name}/{one.version}" for one in unrecorded(models)}
    load_model(models, forged)
    with pytest.raises(RefusedError, match="unknown"):
        promote(models, "forged", "1")
    with pytest.raises(InputError, match="forged version 1"):
        read_lineage(models, forged)
    assert "unknown" not in {one.algorithm for one in algorithms_in_use(models)}


def test_what_is_checked_is_what_is_loaded(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file put in the place of the right one after its digest was taken is not loaded."""
    model = find_model(models, "digits.fed/2")
    loaded: list[bytes] = []
    with tracking_client(models) as inside:
        (file,) = Path(download_artifacts(inside.get_model_version("digits.fed", "2").source)).rglob("model.skops")
    kept, checked = file.read_bytes(), flavor.load_pipeline

    def swapping(path: Any, check: Any) -> Any:
        def then_swap(digest: str) -> None:
            check(digest)
            file.write_bytes(b"another model")

        return checked(path, then_swap)

    monkeypatch.setattr("tasks.tracking.model_files.load_pipeline", swapping)
    monkeypatch.setattr("skops.io.loads", lambda content, trusted: loaded.append(content))
    try:
        load_model(models, model)
    finally:
        file.write_bytes(kept)
    assert loaded == [kept]


def test_an_experiment_with_files_elsewhere_gets_no_run(models: Path, tmp_path: Path) -> None:
    """Whoever may write to MLflow may have made it before the first run of that name."""
    with tracking_client(models) as inside:
        inside.create_experiment("elsewhere", artifact_location=(tmp_path / "theirs").as_uri())
    with pytest.raises(InputError, match=r"location|below"):
        track_run(models, a_report(run_key="elsewhere", experiment="elsewhere", model=None))
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize("name", ["digits.fed@shadow", "digits.fed@latest", "digits.fed@", "digits.fed@champion/2", ""])
def test_no_other_alias_of_mlflows_means_a_version(name: str, models: Path) -> None:
    client(models).set_registered_model_alias("digits.fed", "shadow", "1")
    with pytest.raises(InputError, match=r"NAME, NAME@champion.*NAME/VERSION"):
        find_model(models, name)
