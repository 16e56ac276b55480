"""Where a killed process may be found again."""

from __future__ import annotations

from collections.abc import Callable


def _nothing(step: str) -> None:
    del step


reached: Callable[[str], None] = _nothing
"""Called at each step of the door and of the rounds; replaced by the crash tests, which kill the process there."""
