"""The steps of the door and of the rounds, as they are reached: where the crash tests kill the process."""

from collections.abc import Callable


def _nothing(step: str) -> None:
    """Do nothing."""


reached: Callable[[str], None] = _nothing
"""Called at each step of the door and of the rounds; replaced by the crash tests, which kill the process there."""
