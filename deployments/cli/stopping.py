"""Ctrl-C and SIGTERM end a command at any point, and one line reports at once what was charged.

Python hands a signal to the main thread between two of its own instructions. That may be minutes away (a matrix
product, a wait for a server), and the exception raised then can be lost: Python ignores it in a finaliser, and
libraries swallow it. So a separate thread is woken by the signal itself (:func:`signal.set_wakeup_fd`). It prints the
line, lets nothing more be charged or printed, and ends the process where that has not ended by itself in a moment.
Every state on disk outlives that, as it outlives a kill, and the processes that were started end with this one. With
four busy processes on two cores the line came after 0.03 to 0.09 s
(``test_five_seconds_with_four_busy_processes_on_two_cores``, nightly).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

GRACE_SECONDS = 3.0
"""What a command has to clean up. Then it is ended."""

# How the line begins. The exit code is 128 and the signal's number, as a shell has it.
_WORDS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# In the pipe besides the numbers of signals: that Python has called a handler, and that nothing is watched any more.
_HEARD, _END = 128, 0
# Seconds after which an interrupt that Python ignored is raised again: a finaliser has ended by then.
_A_MOMENT = 0.05
# For which the main thread waits for the other one, that it may not print any more.
_PATIENCE_SECONDS = 1.0


_Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


class Watch:
    """State of a command that was told to stop."""

    def __init__(self) -> None:
        self.saying: Callable[[], str] = lambda: "nothing was charged"
        """Lets nothing more be charged; returns what is said of what was."""
        self._number = 0
        self._muted = False
        self._told = threading.Event()
        self._again = 0
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="stopping", daemon=True)
        self._before: dict[int, _Handler] = {}
        self._wakeup = -1
        self._hook = sys.unraisablehook

    @property
    def stopped(self) -> bool:
        """Whether a signal has come."""
        return self._number != 0

    def code(self) -> int:
        """Wait until the line is printed, and return the exit code."""
        self._told.wait()
        return 128 + self._number

    def begin(self) -> None:
        """Watch from now on; what this process was started to ignore it ignores."""
        now = {number: signal.getsignal(number) for number in _WORDS}
        self._before = {number: handler for number, handler in now.items() if handler is not signal.SIG_IGN}
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._thread.start()
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in self._before:
            signal.signal(number, self._raise)
        sys.unraisablehook = self._ignored

    def leave(self) -> None:
        """Restore the earlier signal handlers; a repetition, or a call after a signal, changes nothing."""
        if not self._before or self.stopped:
            return
        self._restore(self._wakeup)
        os.write(self._writer, bytes([_END]))
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def leave_in_fork(self) -> None:
        """Leave signals in a process that was forked off, where no thread watches: its end is not this command's."""
        if self._before:
            self._restore(-1)

    def _restore(self, wakeup: int) -> None:
        for number, handler in self._before.items():
            # A library's own stays.
            if signal.getsignal(number) == self._raise:
                signal.signal(number, handler)
        self._before = {}
        signal.set_wakeup_fd(wakeup)
        sys.unraisablehook = self._hook

    def _raise(self, number: int, _frame: object) -> None:
        self._number = self._number or number
        # Where a library has set another file to be woken by.
        os.write(self._writer, bytes([_HEARD + number]))
        # Whoever swallows what is raised now must not print results first.
        ends = time.monotonic() + _PATIENCE_SECONDS
        while not self._muted and time.monotonic() < ends:
            time.sleep(0.001)
        raise KeyboardInterrupt

    def _ignored(self, what: sys.UnraisableHookArgs) -> None:
        if isinstance(what.exc_value, KeyboardInterrupt):
            threading.Timer(_A_MOMENT, self._raise_again).start()
        else:
            self._hook(what)

    def _raise_again(self) -> None:
        self._again += 1
        # To the main thread, which may wait for something.
        signal.pthread_kill(self._main, signal.SIGINT)

    def _watch(self) -> None:
        ends: float | None = None
        while True:
            left = None if ends is None else ends - time.monotonic()
            if left is not None and (left <= 0 or not select.select([self._reader], [], [], left)[0]):
                os._exit(128 + self._number)
            for byte in os.read(self._reader, 4096):
                number = byte % _HEARD
                if byte == _END:
                    return
                if number not in self._before:
                    continue
                if number == signal.SIGINT and byte < _HEARD and self._again:
                    self._again -= 1
                elif ends is None:
                    self._number, ends = self._number or number, time.monotonic() + GRACE_SECONDS
                    self._tell()
                elif number == signal.SIGINT and byte < _HEARD:
                    # Whoever presses twice does not want to wait.
                    os._exit(128 + self._number)

    def _tell(self) -> None:
        """Print the line, and nothing besides: results that come yet are none."""
        people = os.dup(2)
        if not os.environ.get("UNITBALL_DEBUG"):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                os.dup2(nowhere, stream)
        self._muted = True
        line = f"unitball: {_WORDS[self._number]}; {self.saying()}\n"
        if os.isatty(people):
            # What shows progress has its own line, and has hidden the cursor.
            line = f"\r\x1b[2K\x1b[?25h{line}"
        # Whoever reads may have ended, or take nothing: this thread does not wait for that.
        written = threading.Thread(target=_write, args=[people, line.encode(errors="backslashreplace")], daemon=True)
        written.start()
        written.join(_PATIENCE_SECONDS)
        self._told.set()


def _write(file: int, line: bytes) -> None:
    with suppress(OSError):
        os.write(file, line)


_current: Watch | None = None


@contextmanager
def watching(*, to_the_end: bool) -> Iterator[Watch]:
    """Watch for Ctrl-C and SIGTERM while a command runs, and until the process ends where one has come.

    In another than the main thread, which signals never reach, nothing is watched.

    Parameters
    ----------
    to_the_end : bool
        Until the process ends in any case: what it started is stopped then, which may take longer than one waits.
    """
    global _current
    watch = Watch()
    if threading.current_thread() is threading.main_thread():
        watch.begin()
    before, _current = _current, watch
    try:
        yield watch
    finally:
        if not to_the_end:
            _current = before
            watch.leave()


def _forked() -> None:
    # In a fork of another thread than the main one nothing can be set, and nothing needs to be.
    with suppress(ValueError):
        if _current is not None:
            _current.leave_in_fork()


os.register_at_fork(after_in_child=_forked)


def leave_signals() -> None:
    """Leave Ctrl-C and SIGTERM to a command that serves until they come, and ends in its own order."""
    if _current is not None:
        _current.leave()
