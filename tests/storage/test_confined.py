"""Work in a process of its own, forked from one that has imported what it needs: what it may, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storage import confined as module
from storage.confined import confined
from storage.errors import InputError, StorageError
from storage.secrets import environment_name
from tests.support import forks

MEBIBYTE = 1 << 20


def numbers(count: int) -> Iterator[bytes]:
    """Yield numbers, and the process that yields them."""
    print("not a piece")
    for number in range(count):
        yield f"{number} {os.getpid()}".encode()


def zeros(size: int) -> Iterator[bytes]:
    """Yield so many bytes at once."""
    yield bytes(size)


def refuses() -> Iterator[bytes]:
    """Refuse after a piece."""
    yield b""
    raise InputError("row 2 is bad")


def fails() -> Iterator[bytes]:
    """Fail as a library might."""
    yield str(1 // (os.getpid() - os.getpid())).encode()


def ends(how: int) -> Iterator[bytes]:
    """Die of a signal after a piece."""
    yield b""
    os.kill(os.getpid(), how)


def spins(_: object = None) -> Iterator[bytes]:
    """Say who it is, and never yield again."""
    yield str(os.getpid()).encode()
    while True:
        pass


def reads(name: str) -> Iterator[bytes]:
    """Yield a file."""
    yield Path(name).read_bytes()


def environment() -> Iterator[bytes]:
    """Yield the names of the variables that are there."""
    yield " ".join(os.environ).encode()


def done(function: str, *arguments: Any, seconds: int = 60) -> list[bytes]:
    return list(confined(f"{__name__}:{function}", *arguments, place="F", memory=64 * MEBIBYTE, seconds=seconds))


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        (("refuses",), InputError, "^row 2.*bad$"),
        (("fails",), StorageError, "F.*ZeroDivisionError"),
        (("zeros", 65 * MEBIBYTE), InputError, "F.*64 MiB.*UNITBALL_MEMORY"),
        (("zeros", 1 << 40), InputError, "F.*64 MiB.*UNITBALL_MEMORY"),
        (("ends", signal.SIGKILL), InputError, r"F.*\(-9\)"),
        (("ends", signal.SIGSEGV), InputError, r"F.*\(-11\)"),
    ],
)
def test_what_goes_wrong_is_said_and_the_next_is_served(work: tuple[Any, ...], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        done(*work)
    assert len(done("numbers", 3)) == 3


def test_time_is_counted_for_each() -> None:
    with pytest.raises(InputError, match=r"^F.*1 seconds"):
        done("spins", seconds=1)
    assert len(done("numbers", 2, seconds=1)) == 2


def test_each_has_a_process_of_its_own_whatever_thread_asks() -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda count: done("numbers", count), range(1, 17)))
    assert [len(answer) for answer in answers] == list(range(1, 17))
    assert len({answer[0].split()[1] for answer in answers} | {str(os.getpid()).encode()}) == 17


def test_no_secret_is_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_servers", {})
    monkeypatch.setenv(environment_name("all"), "00" * 32)
    (names,) = done("environment")
    assert b"PATH" in names.split()
    assert b"UNITBALL" not in names


def test_a_relative_path_is_one_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        assert done("reads", "file") == [name.encode()]


def test_a_killed_server_is_started_again_and_a_fork_has_its_own() -> None:
    done("numbers", 1)
    server = module._servers[__name__].process
    server.kill()
    server.wait(300)
    assert len(done("numbers", 1)) == 1
    assert forks.in_child(_served_by) != module._servers[__name__].process.pid
    assert len(done("numbers", 1)) == 1


def _served_by() -> int:
    done("numbers", 1)
    return module._servers[__name__].process.pid


@pytest.mark.skipif(not Path("/proc").exists(), reason="threads are counted in /proc")
@pytest.mark.parametrize(
    "reader", ["storage.pictures.decoding_process", "storage.readers.arrow_batches", "tasks.exports.verifying"]
)
def test_servers_have_one_thread(reader: str) -> None:
    with pytest.raises(StorageError, match="AttributeError"):
        list(confined(f"{reader}:nothing_of_that_name", place="F", memory=MEBIBYTE, seconds=9))
    status = Path(f"/proc/{module._servers[reader].process.pid}/status").read_text()
    assert "\nThreads:\t1\n" in status


def _gone(process: int) -> bool:
    for _ in range(200):
        if not Path(f"/proc/{process}").exists():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are looked up in /proc")
def test_nobody_goes_on_for_who_does_not_listen() -> None:
    work = confined(f"{__name__}:spins", place="F", memory=64 * MEBIBYTE, seconds=600)
    process = int(next(work))
    work.close()
    assert _gone(process)


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are looked up in /proc")
def test_all_end_with_who_started_them() -> None:
    program = (
        "import os, signal\nfrom storage import confined as module\n"
        f"work = module.confined('{__name__}:spins', place='F', memory=1 << 26, seconds=600)\n"
        "print(int(next(work)), *[one.process.pid for one in module._servers.values()], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env={**os.environ, **path}, check=False
    )
    processes = [int(word) for word in ended.stdout.split()]
    assert len(processes) == 2
    assert all(map(_gone, processes))
