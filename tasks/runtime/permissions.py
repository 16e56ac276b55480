"""Who can reach a root: its owner, whatever the umask."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from pathlib import Path

from storage.errors import InputError
from storage.layout import Layout

_warned: set[Path] = set()


def keep_private() -> None:
    """Let what this process writes from now on be its user's alone: files 0600, folders 0700."""
    os.umask(0o077)


def use_own_temporary_folder(layout: Layout) -> None:
    """Let this process and its children keep temporary files below the root.

    Prefect's runner works in a folder of one fixed name in the shared one, which the first user that runs one owns.
    """
    folder = layout.prefect / "temporary"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def take_empty_folder(root: Path) -> None:
    """Make an empty folder its owner's alone: it is about to become a root."""
    if root.is_dir() and not any(root.iterdir()):
        root.chmod(0o700)


def check_permissions(layout: Layout) -> None:
    """Refuse a root with private rows that others can enter; warn, once a process, of another that they can.

    Raises
    ------
    storage.errors.InputError
        With the command that mends it.
    """
    mode = stat.S_IMODE(layout.root.stat().st_mode)
    if not mode & 0o077:
        return
    message = f"{layout.root} has mode {mode:04o}: others than its owner can reach it; run: chmod -R go= {layout.root}"
    # Fingerprints are kept of private rows only.
    if any(layout.datasets.glob("*/fingerprints.npy")):
        raise InputError(f"{message} (it holds private rows)")
    if layout.root not in _warned:
        _warned.add(layout.root)
        logging.getLogger(__name__).warning("%s", message)
