"""Work on what comes from outside, in a process of its own, and the memory that is admitted for it."""

from __future__ import annotations

import importlib
import json
import math
import os
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from storage import errors
from storage.errors import InputError, StorageError

MEMORY_VARIABLE = "UNITBALL_MEMORY"
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Less would not do for a file as any.
_LEAST_ADMITTED = 1 << 28


def kept_memory() -> int:
    """Return how many bytes of rows this process keeps between passes over them: ``UNITBALL_MEMORY``, or a quarter.

    A number of bytes, or one with K, M, G or T (powers of 1024); by default a quarter of the machine's memory. Rows
    beyond it are read again at every pass. 0 keeps none.

    Raises
    ------
    storage.errors.InputError
        If it is no such number.
    """
    value = os.environ.get(MEMORY_VARIABLE, "").strip()
    if not value:
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
        except (AttributeError, OSError, ValueError):
            return 2**30
    number, unit = (value[:-1], _UNITS[value[-1].upper()]) if value[-1].upper() in _UNITS else (value, 1)
    try:
        size = float(number) * unit
    except ValueError:
        size = math.nan
    if not (math.isfinite(size) and size >= 0):
        raise InputError(f"{MEMORY_VARIABLE} is {value!r}; give bytes, or a number with K, M, G or T, such as 2G")
    return int(size)


def admitted_memory() -> int:
    """Return how many bytes what comes from outside may take to read: :func:`kept_memory`, and 256 MiB at least."""
    return max(kept_memory(), _LEAST_ADMITTED)


_HEAD = struct.Struct("<cQ")
_DATA, _END, _ERROR, _MEMORY = b"D", b"E", b"X", b"M"
_PROGRAM = "from storage.confined import _answer; _answer()"
# Reservations count, so libraries are to reserve little: Arrow's own allocator asks for a gigabyte at once.
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1"}
_MIB = 1 << 20


def confined(target: str, *arguments: Any, place: str, memory: int, seconds: int) -> Generator[bytes, None, None]:
    """Yield what a function yields that runs in a process of its own.

    Parameters
    ----------
    target : str
        ``module:function``; it yields bytes.
    *arguments
        Plain JSON.
    place : str
        What is worked on, for messages.
    memory : int
        Bytes that the process may take beside its libraries, and of one piece of what it yields.
    seconds : int
        Of processor time for each piece.

    Raises
    ------
    InputError
        If it takes more memory or time, or does not survive.
    InputError, StorageError
        What the function raises.
    """
    command = [sys.executable, "-P", "-c", _PROGRAM]
    request = json.dumps({"target": target, "arguments": arguments, "memory": memory, "seconds": seconds}).encode()
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **_ENVIRONMENT},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError), process.stdin as pipe:
                pipe.write(request)
            while True:
                head = process.stdout.read(_HEAD.size)
                kind, size = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0)
                data = process.stdout.read(size) if size <= memory else b""
                if kind == _DATA and len(data) == size:
                    yield data
                elif kind == _END:
                    return
                elif kind == _ERROR:
                    name, message = json.loads(data)
                    known = getattr(errors, name, None)
                    raise known(message) if known else StorageError(f"{place} cannot be read: {name}: {message}")
                else:
                    raise InputError(_died(place, kind, process.wait(5) if not kind else 0, memory, seconds))
        finally:
            process.kill()


def _died(place: str, kind: bytes, code: int, memory: int, seconds: int) -> str:
    if code == -signal.SIGXCPU:
        return f"{place} takes more than {seconds} seconds to read; it is damaged, or made to take long"
    if kind:
        most = f"{memory // _MIB:,} MiB"
        return f"{place} unfolds to more than {most}; if that is right, allow more memory (UNITBALL_MEMORY)"
    return f"{place} is damaged: reading it ended the process that did ({code}); fetch the file again"


def _answer() -> None:
    """Do what standard input asks for: the whole of the other process."""
    request = json.load(sys.stdin)
    # What is printed on the way must not stand among the pieces.
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        module, name = request["target"].split(":")
        function: Callable[..., Iterator[bytes]] = getattr(importlib.import_module(module), name)
        _limit(resource.RLIMIT_AS, _taken() + request["memory"])
        _limit(resource.RLIMIT_CORE, 0)
        try:
            _renew(request["seconds"])
            for piece in function(*request["arguments"]):
                _send(output, _DATA, piece)
                _renew(request["seconds"])
            _send(output, _END, b"")
        except MemoryError:
            _send(output, _MEMORY, b"")
        except Exception as error:
            _send(output, _ERROR, json.dumps([type(error).__name__, str(error)]).encode())


def _send(output: Any, kind: bytes, data: Any) -> None:
    output.write(_HEAD.pack(kind, len(data)))
    output.write(data)
    output.flush()


def _taken() -> int:
    """Return how much address space this process has; nothing where the system does not say."""
    with suppress(OSError, ValueError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(kind, (bound, bound))


def _renew(seconds: int) -> None:
    """Allow so many more seconds of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, hard))
