"""What can go wrong in a secure aggregation round; every error names the round and, where there is one, the party."""

from __future__ import annotations


class SecureAggregationError(Exception):
    """A round of secure aggregation cannot go on; no input was revealed."""


class MessageError(SecureAggregationError):
    """Bytes or fields are not a message of the stated kind."""


class ViolationError(SecureAggregationError):
    """A party (or the server) sent what the protocol does not allow.

    Parameters
    ----------
    party : int or None
        Who sent it; None for the server.
    reason : str
        What is wrong with it.
    """

    def __init__(self, party: int | None, reason: str) -> None:
        super().__init__(f"{'the server' if party is None else f'party {party}'}: {reason}")
        self.party = party


class TooFewPartiesError(SecureAggregationError):
    """Fewer parties remain than the round tolerates; it fails as a whole and says nothing about any one of them."""

    def __init__(self, stage: str, remaining: int, needed: int) -> None:
        super().__init__(
            f"{remaining} parties remain after {stage}, {needed} are needed: the round is over; "
            "start a new one under a new identity"
        )
        self.remaining, self.needed = remaining, needed


class RepeatedUseError(SecureAggregationError):
    """A second, different use of a step's masks was asked for: it would reveal inputs, so it is refused."""
