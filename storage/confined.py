"""Work on what comes from outside, in a separate process, and the memory that is admitted for it."""

import atexit
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from storage import errors
from storage.errors import EndedError, InputError, StorageError

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
        If it is not such a number.
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


_HEAD = struct.Struct("<cq")
_DATA, _END, _ERROR, _MEMORY, _DIED = b"D", b"E", b"X", b"M", b"Q"
# How long nobody knows that a process has died by itself.
_LOOK_MILLISECONDS = 50
_PROGRAM = "from storage.confined import _serve; _serve()"
# Reservations count, so libraries are to reserve little: Arrow's own allocator asks for a gigabyte at once.
# Nor are they to start threads: whoever is forked from a process with several may wait for ever.
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MALLOC_ARENA_MAX": "2",
    "OPENBLAS_NUM_THREADS": "1",
}
_OURS = "UNITBALL_"
_MIB = 1 << 20


def confined(target: str, *arguments: Any, place: str, memory: int, seconds: int) -> Generator[bytes, None, None]:
    """Yield what a function yields that runs in a separate process.

    Parameters
    ----------
    target : str
        ``module:function``; it yields bytes.
    *arguments
        Plain JSON.
    place : str
        What is worked on, for messages.
    memory : int
        Bytes that the process may use in addition to its libraries, and the limit of one yielded piece.
    seconds : int
        Of processor time for each piece.

    Raises
    ------
    EndedError
        If it takes more memory or time, or does not survive.
    InputError, StorageError
        What the function raises.
    """
    module, function = target.split(":")
    request = {
        "function": function,
        "arguments": arguments,
        # The arguments may name files from here.
        "folder": str(Path.cwd()),
        "memory": memory,
        "seconds": seconds,
    }
    with _forked(module) as connection, connection.makefile("rwb") as pipe:
        _send(pipe, _DATA, json.dumps(request).encode())
        while True:
            head = pipe.read(_HEAD.size)
            kind, size = _HEAD.unpack(head) if len(head) == _HEAD.size else (_DIED, 0)
            data = pipe.read(size) if kind != _DIED and 0 <= size <= memory else b""
            if kind == _DATA and len(data) == size:
                yield data
            elif kind == _END:
                return
            elif kind == _ERROR:
                name, message = json.loads(data)
                known = getattr(errors, name, None)
                raise known(message) if known else StorageError(f"{place} cannot be read: {name}: {message}")
            else:
                raise _ended(place, kind, size, memory, seconds)


class _Server(NamedTuple):
    """A process that has imported a module and forks another for each request, before it has seen any file.

    It ends when the last end of ``channel`` closes: with the process that started it, however that ends.
    """

    process: subprocess.Popen[bytes]
    channel: socket.socket
    starter: int


_servers: dict[str, _Server] = {}
_starting = threading.Lock()


def _forked(module: str) -> socket.socket:
    """Return a connection to a new process in which a module is imported."""
    ours, theirs = socket.socketpair()
    with theirs, _starting:
        server = _servers.get(module)
        if server is None or server.starter != os.getpid() or server.process.poll() is not None:
            channel, other = socket.socketpair()
            command = [sys.executable, "-P", "-c", _PROGRAM, module]
            # A party's secret may be among ours.
            known = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
            with other:
                process = subprocess.Popen(
                    command,
                    stdin=other.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**known, **_ENVIRONMENT},
                )
            server = _servers[module] = _Server(process, channel, os.getpid())
        socket.send_fds(server.channel, [b"."], [theirs.fileno()])
    return ours


@atexit.register
def _end() -> None:
    for server in _servers.values():
        if server.starter == os.getpid():
            with suppress(OSError, subprocess.TimeoutExpired), server.channel:
                # Shut for whoever else has this end of it, too.
                server.channel.shutdown(socket.SHUT_RDWR)
                server.process.wait(5)


def _serve() -> None:
    """Fork a process for each connection that standard input hands over, and say how it died: the whole of a server."""
    importlib.import_module(sys.argv[1])
    channel, polled = socket.socket(fileno=0), select.poll()
    polled.register(channel, select.POLLIN)
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for descriptor, _ in polled.poll(_LOOK_MILLISECONDS if running else None):
            if descriptor in running:
                # Who asked has hung up, as a rule with all that it asked for.
                os.kill(running[descriptor][0], signal.SIGKILL)
                continue
            _, handed_over, *_ = socket.recv_fds(channel, 1, 1)
            if not handed_over:
                for process, _ in running.values():
                    os.kill(process, signal.SIGKILL)
                return
            connection = socket.socket(fileno=handed_over[0])
            process = os.fork()
            if not process:
                for _, other in running.values():
                    other.close()
                channel.close()
                _answer(sys.argv[1], connection)
            running[connection.fileno()] = process, connection
            # That somebody hangs up is told without being asked for.
            polled.register(connection, 0)
        for descriptor, (process, connection) in list(running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                polled.unregister(descriptor)
                del running[descriptor]
                with suppress(OSError), connection:
                    connection.sendall(_HEAD.pack(_DIED, os.waitstatus_to_exitcode(status)))


def _ended(place: str, kind: bytes, code: int, memory: int, seconds: int) -> EndedError:
    if kind == _DIED and code == -signal.SIGXCPU:
        said = f"{place} takes more than {seconds} seconds to read; it is damaged or built to be slow: refuse it"
        return EndedError(said, "time")
    if kind != _DIED:
        most = f"{memory // _MIB:,} MiB"
        said = f"{place} expands to more than {most}; if this is expected, allow more memory (UNITBALL_MEMORY)"
        return EndedError(said, "memory")
    said = f"{place} is damaged: the process that read it ended ({code}); download the file again"
    return EndedError(said, "died")


def _answer(module: str, connection: socket.socket) -> NoReturn:
    """Do what the connection asks for: the whole of a forked process."""
    try:
        with connection.makefile("rwb") as pipe:
            request = json.loads(pipe.read(_HEAD.unpack(pipe.read(_HEAD.size))[1]))
            os.chdir(request["folder"])
            _limit(resource.RLIMIT_AS, _taken() + request["memory"])
            _limit(resource.RLIMIT_CORE, 0)
            try:
                function: Callable[..., Iterator[bytes]] = getattr(sys.modules[module], request["function"])
                _renew(request["seconds"])
                for piece in function(*request["arguments"]):
                    _send(pipe, _DATA, piece)
                    _renew(request["seconds"])
                _send(pipe, _END, b"")
            except MemoryError:
                _send(pipe, _MEMORY, b"")
            except Exception as error:
                _send(pipe, _ERROR, json.dumps([type(error).__name__, str(error)]).encode())
    finally:
        os._exit(1)


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
