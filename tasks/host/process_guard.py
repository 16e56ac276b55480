"""Run a command that ends, with its whole process group, when the process that started it is gone.

Run by file name with the command behind it; standard input is a pipe that ends with the parent.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE_SECONDS = 20.0


def main() -> int:
    """Run the command; at the end of standard input, or at SIGTERM, end it and its process group."""
    # What was passed to this process (an open port, say) is the command's; standard input is not.
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, close_fds=False, process_group=0)
    os.closerange(3, 256)
    ending = threading.Event()

    def hold() -> None:
        while os.read(0, 1024):
            pass
        ending.set()

    def wait_for_child() -> None:
        child.wait()
        ending.set()

    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    for target in (hold, wait_for_child):
        threading.Thread(target=target, daemon=True).start()
    ending.wait()
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.stdout.flush()
    # A thread still reads standard input.
    os._exit(main())
