"""Serving ended, killed or out of disk in the middle of a run: no run runs for ever, no slot stays taken."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.runtime.ending import LEASE_SECONDS
from tests.support.serving import Served, processes_of, started, wait_for

pytestmark = pytest.mark.nightly

CONFIG: dict[str, Any] = {"dataset": "digits", "algorithm": "fed-dpdr-dpml", "epsilon": 1.0}
ENDS = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def in_the_middle(served: Served) -> str:
    """Start a run and return it once it has charged."""
    run = served.start_run(**CONFIG)

    def charged() -> bool:
        found = served.tasks(run)
        return any(task["name"].startswith("charge") and task["state_type"] == "COMPLETED" for task in found)

    wait_for("the charge", charged, every=0.05)
    return run


def goes_on(served: Served, dead: str) -> None:
    """Check that a dead run is not running, the next one is let in and finishes, and nothing is paid twice."""
    again = served.finished(served.start_run(**CONFIG))
    assert again["state_type"] == "COMPLETED", again["state"]["message"]
    assert served.run(dead)["state_type"] in ENDS, served.run(dead)["state_type"]
    for party in json.loads(served.unitball("budget", "digits", "--json"))["parties"]:
        charged = [charge["key"] for charge in party["charges"]]
        assert charged
        assert len(set(charged)) == len(charged), "a release was charged twice"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_serving_ends_in_the_middle_of_a_run(
    number: signal.Signals, prepare_served: Callable[[Path], None], tmp_path: Path
) -> None:
    """Ctrl-C, SIGTERM and kill -9 of `unitball serve`; it is started again on the same root."""
    prepare_served(tmp_path / "root")
    with started(tmp_path, expected=number) as served:
        dead = in_the_middle(served)
        served.process.send_signal(number)
        served.process.wait(300)
        # Killed, it cannot wait for its parts: they notice, and end by themselves.
        wait_for(
            "the runner's end", lambda: not served.processes("deployments.runner", "multiprocessing"), 3, every=0.1
        )
        wait_for("the end of all parts", lambda: not processes_of(served.root))
    with started(tmp_path) as served:
        state = served.run(dead)["state_type"]
        assert state in ENDS, f"the run that died is {state} after the start"
        goes_on(served, dead)


def test_the_root_is_moved_while_it_is_served(prepare_served: Callable[[Path], None], tmp_path: Path) -> None:
    """All ends, and says why; no other root is made where it lay, and its schedules go on when it is served again."""
    prepare_served(tmp_path / "root")
    elsewhere = tmp_path / "elsewhere"
    with started(tmp_path, expected=signal.SIGINT) as served:
        # At once: the process that tidies is just beginning, and one that begins makes its root.
        served.root.rename(elsewhere)
        assert served.process.wait(300) == 1
        assert f"{served.root} was moved, replaced or removed while being served" in served.output.read_text()
        wait_for("the end of all parts", lambda: not processes_of(served.root))
    assert not (served.root / "unitball.json").exists()
    # Back, since a test's serving knows one place alone.
    shutil.rmtree(served.root, ignore_errors=True)
    elsewhere.rename(served.root)
    with started(tmp_path) as served:
        assert "arrivals.nightly" in {one["name"] for one in served.ask("/deployments/filter")}


@pytest.mark.parametrize("part", ["engine_process", "multiprocessing.spawn", "mlflow_server"])
def test_a_part_is_killed_in_the_middle_of_a_run(part: str, served: Served) -> None:
    """kill -9 of the Prefect server, of the run's own process, and of MLflow; the others go on."""
    dead = in_the_middle(served)
    killed = served.processes(part)
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_for("its end", lambda: not set(killed) & set(served.processes(part)))
    wait_for("the run's end", lambda: served.run(dead)["state_type"] in ENDS, 240 + LEASE_SECONDS)
    goes_on(served, dead)


def test_the_disk_full_in_the_middle_of_a_run(prepare_served: Callable[[Path], None], tmp_path: Path) -> None:
    """Room comes back after a while, and serving is started again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=150m", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a disk of its own needs the right to mount one")
    try:
        prepare_served(disk / "root")
        with started(disk) as served:
            dead = served.start_run(**CONFIG)
            wait_for("the run", lambda: served.run(dead)["state_type"] == "RUNNING", every=0.1)
            time.sleep(1)
            ballast = disk / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
            time.sleep(20)
            ballast.unlink()
        with started(disk) as served:
            wait_for("the run's end", lambda: served.run(dead)["state_type"] in ENDS)
            goes_on(served, dead)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
