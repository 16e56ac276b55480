"""Dask over TLS with the root's certificate: who is let in, who is not, and what is refused before anything starts."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from distributed import Client, LocalCluster, Scheduler, Security, Worker
from distributed.comm.core import CommClosedError
from tornado.httpclient import AsyncHTTPClient

from deployments.cli.common import progress
from flows.federated_training import train
from flows.sweep import run_sweep
from storage.errors import InputError, SecretError
from storage.layout import Layout
from tasks.accounts.ledger import open_ledger
from tasks.experiments.specifications import SweepSpec
from tasks.host import cluster
from tasks.host.cluster import (
    NO_DASHBOARD,
    ClusterError,
    certificate,
    over_cluster,
    require_scheduler,
    security,
    task_runner,
)
from tasks.planning.configuration import TrainingConfig
from tasks.runtime.progress import WAITING, WORKERS, listen
from tasks.runtime.standing import AGAIN, stands
from tests.support.chains import ingest_private
from tests.support.command_line import CommandLine, Outcome, start_command
from tests.support.engines import Engine
from tests.support.leaks import found_in, needles_of
from tests.support.processes import clean_environment
from tests.support.serving import free_port, wait_for

PAGES = {"dashboard": False, "dashboard_address": NO_DASHBOARD}


def test_the_key_is_the_owners_alone_and_made_once(root: Path) -> None:
    layout = Layout(root).prepare()
    file = certificate(layout)
    assert file.stat().st_mode & 0o777 == 0o600
    made = file.read_bytes()
    assert certificate(layout).read_bytes() == made
    file.chmod(0o644)
    with pytest.raises(SecretError, match=r"dask\.pem.*chmod 600"):
        certificate(layout)


def test_who_shows_the_certificate_is_let_in_and_nobody_else(root: Path, tmp_path: Path) -> None:
    own = security(Layout(root).prepare())
    others = security(Layout(tmp_path / "other").prepare())

    # What cannot connect must not stay behind as everybody's client.
    unused: dict[str, Any] = {"asynchronous": True, "set_as_default": False}

    async def session() -> None:
        async with (
            Scheduler(host="127.0.0.1", port=0, protocol="tls", security=own, **PAGES) as scheduler,
            Worker(scheduler.address, nthreads=1, protocol="tls", security=own, **PAGES) as worker,
        ):
            assert scheduler.address.startswith("tls://")
            assert worker.address.startswith("tls://")
            for process in (scheduler, worker):
                # The server cannot be switched off: on loopback, and with nothing to say.
                page = f"http://127.0.0.1:{process.http_server.port}"
                for path in ("/status", "/info/main/workers.html", "/json/counts.json", "/metrics", "/health"):
                    answer = await AsyncHTTPClient().fetch(page + path, raise_error=False)
                    assert answer.code == 404, path
            async with Client(scheduler.address, security=own, asynchronous=True) as client:
                assert await client.submit(sum, [1, 2, 3]) == 6
            for stranger in (others, Security.temporary()):
                with pytest.raises((OSError, CommClosedError, ssl.SSLError)):
                    await Client(scheduler.address, security=stranger, timeout=2, **unused)
            plain = scheduler.address.replace("tls://", "tcp://")
            with pytest.raises((OSError, CommClosedError)):
                await Client(plain, security=Security(require_encryption=False), timeout=2, **unused)
            with pytest.raises(RuntimeError, match="encryption"):
                await Client(plain, security=own, timeout=2, **unused)

    asyncio.run(session())


@pytest.fixture
def workless(root: Path) -> Iterator[LocalCluster]:
    """Yield a cluster that has no worker yet: its scheduler is in this process, its workers will not be."""
    own = security(Layout(root).prepare())
    with LocalCluster(
        n_workers=0, threads_per_worker=1, protocol="tls", security=own, dashboard_address=None
    ) as cluster:
        yield cluster


def test_looking_whether_a_scheduler_is_there_leaves_no_warning(
    workless: LocalCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A port that is only opened and closed does: the scheduler's log says that a handshake has failed."""
    loggers = [logging.getLogger(name) for name in ("distributed.comm", "distributed.core", "distributed.scheduler")]
    for logger in loggers:
        monkeypatch.setattr(logger, "propagate", True)
        logger.addHandler(caplog.handler)
    try:
        require_scheduler(workless.scheduler_address)
        workless.scale(1)
        workless.wait_for_workers(1)
        require_scheduler(workless.scheduler_address)
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
        host, port = workless.scheduler_address.removeprefix("tls://").split(":")
        socket.create_connection((host, int(port))).close()
        wait_for(
            "the warning", lambda: any("handshake" in record.getMessage() for record in caplog.records), every=0.05
        )
    finally:
        for logger in loggers:
            logger.removeHandler(caplog.handler)
    monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / "other"))
    with pytest.raises(InputError, match="certificate"):
        require_scheduler(workless.scheduler_address)


def test_what_is_waited_for_is_said_before_anything_runs(
    workless: LocalCluster, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no progress is shown, too; a first worker ends the waiting, and who finds one waits for nothing."""
    runner = task_runner(Layout(root), None, workless.scheduler_address)
    said: list[tuple[str, str]] = []

    def hear(stage: str, label: str, _: float | None) -> None:
        said.append((stage, label))
        workless.scale(1)

    with progress("a run"), listen(hear), runner:
        line = "the scheduler has no worker yet; start one under the same root: unitball dask worker tls://"
        assert [(stage, label.startswith(line)) for stage, label in said] == [(WAITING, True), (WORKERS, False)]
    assert capsys.readouterr().err == f"waiting: {said[0][1]}\nworkers: {said[1][1]}\n"
    assert said[1][1].startswith("1 Dask worker ")
    with listen(hear), runner.duplicate():
        assert [stage for stage, _ in said[2:]] == [WORKERS]


def test_where_all_workers_go_it_is_said(workless: LocalCluster, root: Path) -> None:
    """Once; Dask keeps their tasks for others that may come."""

    def others() -> int:
        """Return how many workers share the sums of what runs here; 0 where nothing is shared."""
        # By value: a worker that imports this module imports Prefect.
        from tasks.runtime.workers import workers_at_hand

        workers = workers_at_hand()
        return 0 if workers is None else workers.count()

    workless.scale(1)
    workless.wait_for_workers(1)
    runner = task_runner(Layout(root), None, workless.scheduler_address)
    said: list[str] = []
    with listen(lambda stage, label, _: said.append(label)), runner:
        workless.scale(0)
        wait_for("the line", lambda: [label for label in said if "is left" in label], every=0.05)
        future = runner.client.submit(others)  # type: ignore[attr-defined]  # Dask's, and not every runner's
        workless.scale(1)
        assert future.result(timeout=300) == 1, "one that came late shares its sums too"
    assert [label.partition(" tls://")[0] for label in said if "is left" in label] == [
        "no worker is left; the run continues when one connects: unitball dask worker"
    ]


def test_where_the_scheduler_goes_it_is_said_what_stands(workless: LocalCluster, root: Path) -> None:
    def lose() -> None:
        with Client(workless, security=security(Layout(root)), set_as_default=False) as client, over_cluster("tls://x"):
            future = client.submit(sum, [1, 2])
            workless.close()
            future.result(timeout=300)

    with pytest.raises(ClusterError, match=f"Dask.* tls://x .*{re.escape(stands())}$"):
        lose()
    with pytest.raises(ZeroDivisionError), over_cluster("tls://x"):
        # What is wrong with a task is no fault of the cluster's.
        raise ZeroDivisionError


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:8786", "tcp://127.0.0.1:8786", "ucx://10.0.0.1:8786"])
def test_plain_protocols_are_refused_wherever_they_lead(commands: CommandLine, address: str) -> None:
    with pytest.raises(InputError, match=r"runs.*tls://"):
        require_scheduler(address)
    commands("reproduce", "wang2024-fig3", "--dask", address).refused(2, "runs code from any client", "tls://")
    commands("dask", "worker", address).refused(2, "runs code from any client")


def test_a_scheduler_is_asked_as_the_run_will_ask_it(
    root: Path, tmp_path: Path, commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another root's certificate, a worker, a port that stays silent, a closed one: nothing is charged."""
    monkeypatch.setattr(cluster, "_ANSWER_SECONDS", 3.0)
    ingest_private(tmp_path / "input")
    own = security(Layout(root).prepare())
    others = security(Layout(tmp_path / "other").prepare())

    def refused(address: str, *words: str) -> None:
        commands("train", "--dataset", "clinic", "--epsilon", 1, "--dask", address).refused(2, address, *words)

    async def session() -> None:
        async with (
            Scheduler(host="127.0.0.1", port=0, protocol="tls", security=own, **PAGES) as scheduler,
            Worker(scheduler.address, nthreads=1, protocol="tls", security=own, **PAGES) as worker,
            Scheduler(host="127.0.0.1", port=0, protocol="tls", security=others, **PAGES) as foreign,
        ):
            await asyncio.to_thread(require_scheduler, scheduler.address)
            for address, words in {
                foreign.address: ("CERTIFICATE_VERIFY_FAILED", f"unitball dask scheduler --root {root}"),
                worker.address: ("a worker answers", "scheduler"),
            }.items():
                await asyncio.to_thread(refused, address, *words)

    asyncio.run(session())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        refused(f"tls://127.0.0.1:{port}", "within 3 s", "--dask local")
    refused(f"tls://127.0.0.1:{port}", "no Dask scheduler answers there", "--dask local")
    assert not open_ledger().charges("clinic")


def test_without_the_extra_it_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "prefect_dask" else find(name))
    task_runner(Layout(root), 2, None)
    for dask in ("local", "tls://127.0.0.1:1"):
        with pytest.raises(InputError, match=r"'\.\[dask\]'"):
            task_runner(Layout(root), 2, dask)


# A worker that is held once a release is charged.
_HELD = """
import pathlib, sys, time
from tasks.release import checkpoints
marker = pathlib.Path(sys.argv.pop(1))
def reached(name):
    if name == "charged":
        marker.touch()
        time.sleep(600)
checkpoints.reached = reached
from deployments.cli import main
main()
"""


@pytest.mark.nightly
def test_a_scheduler_that_is_killed_in_the_middle_of_a_run(unitball: CommandLine, tmp_path: Path) -> None:
    """One line of the command, that says what stands; asked again without Dask, the run costs nothing."""
    rows = ("--path", "docs/examples/clinic.csv", "--schema", "docs/examples/clinic.yaml", "--account", "clinic-2026")
    cap = ("--epsilon-cap", 3, "--delta-cap", "1e-6")
    assert unitball("ingest", "clinic", "--format", "csv", *rows, *cap).code == 0
    train = ("train", "--dataset", "clinic", "--algorithm", "noisy-gd", "--epsilon", 0.3)
    marker, own = tmp_path / "held", clean_environment(UNITBALL_ROOT=str(unitball.root))
    with contextlib.ExitStack() as stack:

        def started(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        scheduler = started(start_command(unitball.root, "dask", "scheduler", "--port", "0"))
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().split()[1]
        run = started(start_command(unitball.root, *train, "--dask", address))
        assert run.stderr is not None
        said = next(line for line in run.stderr if not line.startswith("price: "))
        assert said.startswith("waiting: the scheduler has no worker yet")
        assert open_ledger().charges("clinic-2026") == [], "workers are waited for before anything is charged"
        command = [sys.executable, "-c", _HELD, str(marker), "dask", "worker", address, "--threads", "1"]
        with (tmp_path / "worker.txt").open("w") as output:
            started(subprocess.Popen(command, stdout=output, stderr=output, text=True, env=own))
        wait_for("a task", marker.exists, every=0.05)
        scheduler.kill()
        out, err = run.communicate(timeout=300)
    words = (f"the Dask scheduler at {address}", "workers stopped", "charged: 2 releases to account clinic-2026", AGAIN)
    said = "".join(line for line in err.splitlines(keepends=True) if not line.startswith("workers: "))
    Outcome(run.returncode, out, said).refused(1, *words)
    before = open_ledger().charges("clinic-2026")
    assert unitball(*train).code == 0
    assert open_ledger().charges("clinic-2026") == before


@pytest.fixture
def machines(engine: Engine, tracked_root: Path, tmp_path: Path) -> Iterator[str]:
    """Yield the address of a scheduler with one worker, each a process of `unitball dask`, which write into files."""
    started: list[subprocess.Popen[str]] = []

    def line(part: str, *arguments: str) -> str:
        process = start_command(tracked_root, "dask", part, *arguments, TMPDIR=str(tmp_path), PYTHONFAULTHANDLER="1")
        started.append(process)
        for name, stream in (("out", process.stdout), ("err", process.stderr)):
            # Nobody else reads them, and a full pipe stops who writes.
            threading.Thread(target=_copy, args=(stream, tmp_path / f"{part}.{name}"), daemon=True).start()
        said = tmp_path / f"{part}.out"
        wait_for(part, lambda: said.exists() and "tls://" in said.read_text(), every=0.05)
        return said.read_text().split()[1]

    try:
        address = line("scheduler", "--port", "0")
        port = str(free_port())
        line("worker", address, "--threads", "2", "--port", port)
        assert f":{port} of" in (tmp_path / "worker.out").read_text(), "a port that a firewall can open"
        yield address
    finally:
        for process in reversed(started):
            print("ended before:", process.poll())
            process.terminate()
            process.wait(300)
        for part in ("scheduler", "worker"):
            print(f"{part}:", (tmp_path / f"{part}.err").read_text())


def _copy(stream: IO[str], path: Path) -> None:
    with stream, path.open("w") as file:
        for line in stream:
            file.write(line)
            file.flush()


@pytest.mark.nightly
def test_a_sweep_over_tls_gives_what_threads_give(machines: str, tracked_root: Path) -> None:
    spec = SweepSpec.model_validate(
        {"name": "machines", "set": {"dataset": "iris", "epsilon": 1.0, "parties": 2}, "grid": {"seed": [0, 1]}}
    )
    over_dask = run_sweep(spec, dask=machines)
    assert not over_dask.failed
    threads = run_sweep(spec.model_copy(update={"name": "threads"}), workers=2)
    assert threads.reused == 2, "finished points are found whoever ran them"


@pytest.mark.nightly
def test_the_tasks_of_a_run_go_to_other_machines(machines: str, tracked_root: Path, tmp_path: Path) -> None:
    """Also those of a secure sum: its parties and its server are tasks of any worker. Nothing of a row stays there."""
    rows = ingest_private(tmp_path / "input", allow_idealised=True)
    config = TrainingConfig(
        dataset="clinic",
        algorithm="noisy-gd",
        epsilon=1.0,
        parties=3,
        trust="secagg",
        evaluation=False,
        parameters={"trainer.iterations": 1},
    )
    runner = task_runner(Layout(tracked_root), None, machines)
    result = train.with_options(task_runner=runner)(config)
    assert result.releases
    assert train(config).releases == result.releases, "what the workers stored is what this process finds"
    private = Layout(tracked_root).private
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and rows.path != path]
    needles = needles_of(rows.features)
    assert any("dask-scratch-space" in str(path) for path in kept)
    assert found_in([path for path in kept if private in path.parents], needles), "the needles are of the rows"
    assert found_in([path for path in kept if private not in path.parents], needles) == []
