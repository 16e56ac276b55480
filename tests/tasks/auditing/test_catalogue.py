"""Audits of everything: found by name, kept, and not made again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dpalgos.audit.experiment import AuditOptions
from dpalgos.parameters import ParameterError, UnknownNameError
from dpalgos.registry import names
from tasks.auditing.subjects import Subject, audit_all, find_subject, subjects
from tests.support.command_line import CommandLine
from tests.support.processes import clean_environment, has_ended
from tests.support.serving import wait_for


def test_everything_that_draws_noise_is_there_and_nothing_else() -> None:
    found = subjects()
    assert {"mpc-op", "noisy-gd", "dpwss"} <= {one.name for one in found if one.kind == "systems"}
    assert Subject("projections", "analyze-gauss-published") in found
    assert {"non-private", "svm", "erm", "pca", "hog"}.isdisjoint(one.name for one in found)
    assert len(found) == len(set(found)) < sum(len(names(kind)) for kind in ("systems", "projections", "trainers")) + 10


def test_a_name_means_a_system_first() -> None:
    assert find_subject("mpc-op") == Subject("systems", "mpc-op")
    assert find_subject("mpc-op", "trainers") == Subject("trainers", "mpc-op")
    assert find_subject("class-means").kind == "trainers"
    with pytest.raises(UnknownNameError, match="audited"):
        find_subject("no-such-thing")
    with pytest.raises(ParameterError, match="aggregator"):
        find_subject("weighted-mean")
    with pytest.raises(ParameterError, match="systems"):
        find_subject("mpc-op", "things")


@pytest.mark.nightly
def test_what_was_finished_is_not_made_again(tmp_path: Path) -> None:
    wanted, arguments = [Subject("trainers", "class-means")], AuditOptions(trials=400)
    first = list(audit_all(wanted, arguments, tmp_path, processes=1))
    (kept,) = tmp_path.iterdir()
    written = kept.stat().st_mtime_ns
    assert list(audit_all(wanted, arguments, tmp_path, processes=1)) == first
    assert kept.stat().st_mtime_ns == written
    kept.write_text("{")
    again = list(audit_all(wanted, arguments, tmp_path, processes=1))
    assert {**again[0][1], "seconds": 0} == {**first[0][1], "seconds": 0}


def test_one_that_cannot_be_audited_does_not_end_the_others(tmp_path: Path) -> None:
    wanted = [Subject("trainers", "no-such-trainer"), Subject("trainers", "class-means")]
    found = dict(audit_all(wanted, AuditOptions(trials=400), tmp_path, processes=1))
    assert str(found[wanted[0]]["verdict"]).startswith("not audited (UnknownNameError: ")
    assert found[wanted[1]]["verdict"] in {"consistent", "tight"}
    # Only what was audited is kept.
    assert len(list(tmp_path.iterdir())) == 1


def test_name_and_all_exclude_each_other(commands: CommandLine) -> None:
    for arguments in ((), ("mpc-op", "--all"), ("--all", "--chain")):
        commands("audit", *arguments).refused(2)


_MANY = """
import sys
from pathlib import Path
from dpalgos.audit.experiment import AuditOptions
from tasks.auditing.subjects import Subject, audit_all
list(audit_all([Subject("trainers", "noisy-gd")], AuditOptions(trials=10**7), Path(sys.argv[1]), processes=1))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="/proc of Linux")
def test_the_processes_of_a_killed_audit_end_with_it(tmp_path: Path) -> None:
    """Python's own stay for ever: each holds both ends of the pipe that it waits at."""
    command = [sys.executable, "-c", _MANY, str(tmp_path / "kept")]
    audit = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean_environment())
    try:

        def workers() -> list[int]:
            assert audit.poll() is None
            children = Path(f"/proc/{audit.pid}/task/{audit.pid}/children").read_text().split()
            return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

        (worker,) = wait_for("a process of the audit", workers, every=0.05)
        # It has begun, and does not end for want of a parent to begin with.
        wait_for("its threads", lambda: len(list(Path(f"/proc/{worker}/task").iterdir())) > 1, every=0.05)
    finally:
        audit.kill()
        audit.wait()
    wait_for("its end", lambda: has_ended(worker), every=0.05)
