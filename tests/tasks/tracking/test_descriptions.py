"""Descriptions as results: logged once with what was released, found by name, exported, and verified elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from storage.results import query
from tasks.exports.archive import NUMBERS, RUN, Archive, pack, read
from tasks.exports.verifying import verify, verify_archive
from tasks.planning.plans import RunIdentity
from tasks.runtime.settings import current_layout, current_root, isolated_root
from tasks.tracking.descriptions import FIGURE, LINES, TABLES
from tasks.tracking.runs import tracking_client
from tests.support.command_line import CommandLine
from tests.tasks.release.test_pair_descriptions import CAP, CLINIC, WORDS


def logged() -> list[Any]:
    with tracking_client(current_root()) as client:
        (experiment,) = [one for one in client.search_experiments() if one.name == "clinic"]
        return list(client.search_runs([experiment.experiment_id]))


def test_a_description_is_logged_once_found_by_its_name_and_verified_elsewhere(
    commands: CommandLine, tmp_path: Path
) -> None:
    """Mutants: what the numbers rest on is left out, or its epsilon; a system that would make a model."""
    commands.succeeds("ingest", "clinic", "--path", CLINIC, *WORDS, *CAP)
    counts = commands.succeeds("describe", "clinic", "--epsilon", 0.3)
    asked = ("describe", "clinic", "--epsilon", 0.5, "--pairs", "age,outcome")
    pairs = commands.succeeds(*asked)
    name = pairs["terms"]["description"][:12]
    assert f"unitball export {name}" in commands(*asked).out
    (newest, first) = logged()
    assert (first.data.params["release"], newest.data.params["release"]) == (
        counts["terms"]["key"],
        pairs["terms"]["key"],
    )
    folder = Path(newest.info.artifact_uri.removeprefix("file://"))
    assert {path.name for path in folder.iterdir()} == {TABLES, LINES, FIGURE}
    assert json.loads((folder / TABLES).read_text()) == {**pairs, "terms": {**pairs["terms"], "paid": False}}
    assert len((folder / LINES).read_text().splitlines()) == 1 + 1 + len(pairs["pairs"][0]["figures"])
    runs = query(current_layout(), "SELECT run_key, algorithm, epsilon_spent, epsilon_charged FROM runs").to_pylist()
    assert {one["run_key"] for one in runs} == {counts["terms"]["description"], pairs["terms"]["description"]}
    together = pairs["terms"]["epsilon_together"]
    assert newest.data.metrics["epsilon_spent"] == pytest.approx(together, rel=1e-5)
    archive = tmp_path / "description.zip"
    commands.succeeds("export", name, "--out", archive)
    members = dict(read(archive).members)
    report = json.loads(members[RUN])
    with isolated_root(tmp_path / "elsewhere"):
        found = verify(archive)
        assert found.holds, [check for check in found.checks if check.holds is False]
        assert (found.algorithm, found.dataset, found.run) == ("describe", "clinic", pairs["terms"]["description"])
        assert found.epsilon == pytest.approx(together, rel=1e-6)
        system = {**report["identity"], "system": "class-means"}
        wrong: list[dict[str, Any]] = [
            {"evaluations": report["evaluations"][:1]},
            {"epsilon_spent": 0.5, "proved": {**report["proved"], "epsilon": 0.5}},
            {"epsilon_charged": None},
            {"identity": system, "algorithm": "class-means", "run_key": RunIdentity.model_validate(system).key},
        ]
        for change in wrong:
            changed = {**members, RUN: json.dumps({**report, **change}).encode()}
            assert not verify_archive(Archive(changed, "the signer")).holds, change
        numbers = json.loads(members[NUMBERS])
        assert len(numbers["numbers"]) == len(pairs["pairs"][0]["figures"])
        own = {key: data for key, data in members.items() if report["evaluations"][1] not in key}
        alone = {**report["identity"], "evaluation": [True, report["evaluations"][:1]]}
        run_key = RunIdentity.model_validate(alone).key
        alone = {**report, "identity": alone, "evaluations": report["evaluations"][:1], "run_key": run_key}
        for archived in (
            {**members, NUMBERS: json.dumps({**numbers, "numbers": numbers["numbers"][:-1]}).encode()},
            {**members, NUMBERS: members[NUMBERS].replace(b'"high":', b'"high":1', 1)},
            {key: data for key, data in members.items() if key != NUMBERS},
            # The release alone, with numbers that rest on the other one too.
            {**own, RUN: json.dumps(alone).encode()},
        ):
            assert not verify_archive(Archive(archived, "the signer")).holds
        # Signed anew by another key, the archive is another's.
        (tmp_path / "other.zip").write_bytes(pack(members, Ed25519PrivateKey.generate()))
        assert not verify(tmp_path / "other.zip", signer=read(archive).signer).holds
