"""SIGKILL at every step and between the stages, and processes at once: one result, one charge a release."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage.layout import Layout
from storage.secrets import party_secret, root_secret
from tasks.accounts.ledger import open_ledger, verify_ledger
from tasks.datasets.registration import ensure_registered
from tasks.release import checkpoints
from tasks.runtime.progress import observed_by
from tests.support.chains import charges, digests, followed, ingest_private, prepare
from tests.support.command_line import run_command, start_command
from tests.support.data import temporaries
from tests.support.forks import die, killed, race

STEPS = ("declared", "charged", "drawn", "recorded", "stored")
STAGES = ("resolve_dataset", "charge", "normalise", "partition", "evaluate")


@dataclass(frozen=True)
class Twins:
    """Two roots with the same rows and the same secrets, in one of which nothing happens."""

    disturbed: Path
    pattern: Path

    def undisturbed(self, **config: Any) -> tuple[Any, ...]:
        """Run where nothing happens; once for all tests of these words."""
        words = json.dumps(config, sort_keys=True)
        if words not in _UNDISTURBED:
            quiet = self.pattern.parent / f"quiet-{len(_UNDISTURBED)}"
            shutil.copytree(self.pattern, quiet)
            with pytest.MonkeyPatch.context() as patch:
                become(quiet, patch)
                _UNDISTURBED[words] = outcome(**config)
        return _UNDISTURBED[words]


_UNDISTURBED: dict[str, tuple[Any, ...]] = {}


def become(root: Path, patch: pytest.MonkeyPatch) -> None:
    """Work in a root as if no other had its ledger: a copy that shared its marks would be an older back-up."""
    patch.setenv("UNITBALL_ROOT", str(root))
    patch.setenv("UNITBALL_LEDGER_MARK", str(root.with_name(f"{root.name}-marks")))


def outcome(**config: Any) -> tuple[Any, ...]:
    """Run to the end, and return all that may be compared."""
    result = followed(**config).model_dump(exclude={"seconds", "releasing_seconds", "cached"})
    return result, digests(), sorted(charges(config.get("dataset", "clinic")))


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("twins")
    _UNDISTURBED.clear()
    with pytest.MonkeyPatch.context() as patch:
        become(folder / "root", patch)
        ingest_private(folder / "input", allow_idealised=True)
        ensure_registered("digits")
        layout = Layout(folder / "root")
        root_secret(layout)
        for party in ("0", "1", "all", "test"):
            party_secret(layout, party)
    return folder / "root"


@pytest.fixture
def twins(pattern: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Twins:
    found = Twins(tmp_path / "disturbed", pattern)
    shutil.copytree(pattern, found.disturbed)
    become(found.disturbed, monkeypatch)
    return found


def dies_at(step: str, occurrence: int = 1) -> Callable[[str], None]:
    left = [occurrence]

    def reached(name: str) -> None:
        if name == step:
            left[0] -= 1
            if left[0] == 0:
                die()

    return reached


NOISY: dict[str, Any] = {"algorithm": "noisy-gd"}
SECURE: dict[str, Any] = {"algorithm": "noisy-gd", "trust": "secagg"}
FEDERATED: dict[str, Any] = {"algorithm": "fed-dpdr-dpml", "dimension": 3}
EVALUATED: dict[str, Any] = {"algorithm": "noisy-gd", "evaluation": True}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("config", "occurrence"),
    [(NOISY, 1), (SECURE, 1), (FEDERATED, 1), (FEDERATED, 3), (EVALUATED, 2)],
    ids=["joint", "secure", "first-basis", "first-model", "evaluation"],
)
def test_killed_at_any_step_of_the_door(config: dict[str, Any], occurrence: int, step: str, twins: Twins) -> None:
    def run() -> None:
        checkpoints.reached = dies_at(step, occurrence)
        followed(**config)

    killed(run)
    # The money is gone before the noise is there: what is stored after a kill was charged.
    of_rows = {release.key for release in prepare(**config).plan.releases}
    assert of_rows & set(digests()) <= {key for key, _ in charges()}
    found = outcome(**config)
    assert found == twins.undisturbed(**config)
    assert len({key for key, _ in found[2]}) == len(found[2])
    assert not any(recharge for _, recharge in found[2])
    assert temporaries(twins.disturbed) == []
    assert verify_ledger() == []


@pytest.mark.parametrize("stage", STAGES)
def test_killed_between_the_stages(stage: str, twins: Twins) -> None:
    reached = dies_at(stage)

    def run() -> None:
        with observed_by(reached):
            followed(**FEDERATED, evaluation=True)

    killed(run)
    assert outcome(**FEDERATED, evaluation=True) == twins.undisturbed(**FEDERATED, evaluation=True)
    assert temporaries(twins.disturbed) == []


def test_killed_again_and_again(twins: Twins) -> None:
    """Each start dies one step further on; the sum of all the starts is one undisturbed run."""
    for step in STEPS:

        def run(step: str = step) -> None:
            checkpoints.reached = dies_at(step)
            followed(**NOISY)

        killed(run)
    assert outcome(**NOISY) == twins.undisturbed(**NOISY)


def test_the_checks_notice_a_second_charge_and_other_noise(twins: Twins) -> None:
    """The mutant of the tests above: a run that was started again under another secret."""
    expected = twins.undisturbed(**NOISY)
    Layout(twins.disturbed).party_secret("all").unlink()
    assert outcome(**NOISY)[1] != expected[1]
    assert outcome(**NOISY, replicate=1)[2] != expected[2]


# ── at once ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("config", [NOISY, FEDERATED, EVALUATED], ids=["joint", "federated", "evaluation"])
def test_processes_at_once_on_the_same_words(config: dict[str, Any], twins: Twins) -> None:
    answers = race(3, lambda number: followed(**config).model_dump(mode="json", exclude={"cached"}))
    assert answers[0] == answers[1] == answers[2]
    assert outcome(**config) == twins.undisturbed(**config)
    assert temporaries(twins.disturbed) == []


def test_processes_that_race_for_the_last_of_a_budget(twins: Twins) -> None:
    """Epsilon 2.9 fits the cap of 3 once."""

    def run(number: int) -> str:
        return followed(**NOISY, epsilon=2.9, replicate=number).run_key

    answers = race(3, run)
    assert sorted(answers).count("OverspendError") == 2
    assert len(charges()) == 1
    assert len(digests()) == 1
    assert open_ledger().verify() == []


# ── the whole command ────────────────────────────────────────────────────────────────────────────────────────────────

WORDS = ("train", "--dataset", "digits", "--algorithm", "fed-dpdr-dpml", "--epsilon", 1, "--parties", 2)


def has_releases(root: Path, count: int) -> bool:
    return sum(not path.name.startswith(".") for path in Layout(root).releases.iterdir()) >= count


def has_charges(root: Path) -> bool:
    return bool(charges("digits"))


def logs(root: Path) -> bool:
    return any(Layout(root).artifacts.rglob("*"))


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "at-once": lambda root: True,
    "charged": has_charges,
    "first-basis": lambda root: has_releases(root, 1),
    "first-model": lambda root: has_releases(root, 4),
    "logging": logs,
}


def kill_when(root: Path, moment: Callable[[Path], bool]) -> None:
    process = start_command(root, *WORDS)
    try:
        deadline = time.monotonic() + 600
        while not moment(root):
            assert process.poll() is None, f"the run ended before it could be killed: {process.communicate()}"
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.kill()
        process.communicate()


def finished(root: Path, twins: Twins) -> None:
    """Two runs at once finish what was killed: one result, logged once, one charge a release, as if undisturbed."""
    both = [start_command(root, *WORDS, "--json") for _ in range(2)]
    told = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert all(err == "" for _, err in told), told
    first, second = (json.loads(out) for out, _ in told)
    assert first["mlflow_run_id"] == second["mlflow_run_id"]
    config = {"dataset": "digits", "algorithm": "fed-dpdr-dpml"}
    result, stored, paid = twins.undisturbed(**config)
    for run in (first, second):
        assert {name: run[name] for name in ("run_key", "metrics", "epsilon_spent", "releases")} == {
            "run_key": result["run_key"],
            "metrics": result["metrics"],
            "epsilon_spent": result["epsilon_spent"],
            "releases": list(result["releases"]),
        }
    assert digests() == stored
    assert sorted(charges("digits")) == paid


@pytest.mark.nightly
def test_the_command_killed_and_finished_by_two_at_once(twins: Twins, prepare_served: Callable[[Path], None]) -> None:
    prepare_served(twins.disturbed)
    kill_when(twins.disturbed, MOMENTS["first-basis"])
    finished(twins.disturbed, twins)


@pytest.mark.nightly
@pytest.mark.parametrize("moment", [name for name in MOMENTS if name != "first-basis"])
def test_the_command_killed_at_other_moments(moment: str, twins: Twins, prepare_served: Callable[[Path], None]) -> None:
    prepare_served(twins.disturbed)
    kill_when(twins.disturbed, MOMENTS[moment])
    finished(twins.disturbed, twins)
    again = run_command(twins.disturbed, *WORDS, "--json")
    assert again.json["cached"] is True


def test_a_plan_is_known_before_the_run(twins: Twins) -> None:
    """The keys that are charged and stored are those planned beforehand, so that a run can be resumed at all."""
    prepared = prepare(**FEDERATED)
    planned = {release.key for release in prepared.plan.releases}
    planned |= {made.key for made in (prepared.plan.basis, prepared.plan.model) if made}
    followed(**FEDERATED)
    assert set(digests()) == planned
