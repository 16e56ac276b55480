"""Workers that share the sums of a step, where it runs on a cluster: the host brings them, the door asks for them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

Part = TypeVar("Part")
Made = TypeVar("Made")


class Workers(Protocol):
    """All workers of the cluster on one of which a step runs; each sees the same root."""

    def count(self) -> int:
        """Return how many there are."""

    def map(self, function: Callable[[Part], Made], parts: Sequence[Part]) -> Iterator[Made]:
        """Apply a function to each part, on whichever worker; yield the results as they come."""


def _alone() -> Workers | None:
    return None


_find: Callable[[], Workers | None] = _alone


def find_workers_by(find: Callable[[], Workers | None]) -> None:
    """Let the steps of this process find workers by a function, which returns None where there are no others."""
    global _find
    _find = find


def workers_at_hand() -> Workers | None:
    """Return the workers that share this step's sums; None where it has this process alone."""
    return _find()
