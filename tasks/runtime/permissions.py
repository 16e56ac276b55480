"""Who can reach a root: its owner, whatever the umask."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from storage.errors import InputError
from storage.layout import Layout

__all__ = ["check_permissions", "keep_private", "take_empty_folder"]

_warned: set[Path] = set()


def keep_private() -> None:
    """Let what this process writes from now on be its user's alone: files 0600, folders 0700."""
    os.umask(0o077)


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
