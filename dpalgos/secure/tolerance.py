"""How many parties may be lost and how many may collude: what threshold and noise shares follow from."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpalgos.errors import ParameterError
from dpalgos.parameters import NATURAL, Bounded
from dpalgos.secure.wire import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance(Wire, Bounded):
    """The fault model of a round.

    Parameters
    ----------
    parties : int
        N, at least 2.
    dropouts : int
        D: how many of them may be lost at any point before the round ends. With more the round fails.
    colluders : int
        C: how many of them may pool all they know with each other and with the server.
    """

    parties: int = field(metadata=NATURAL)
    dropouts: int = field(default=0, metadata=NATURAL)
    colluders: int = field(default=0, metadata=NATURAL)

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        if self.unknown_shares < 1:
            raise ParameterError(
                f"{self.parties} parties with {self.dropouts} dropouts and {self.colluders} colluders tolerated leave "
                "no noise that the adversary does not know: parties - dropouts - max(colluders, 1) must be at least 1; "
                "tolerate fewer dropouts or colluders, or bring more parties"
            )

    @property
    def quorum(self) -> int:
        """Parties that must remain at the end, N - D; also the number of shares that open a secret.

        It exceeds the number of colluders, so they cannot open anything by themselves.
        """
        return self.parties - self.dropouts

    @property
    def unknown_shares(self) -> int:
        """Noise shares in every released sum that no adversary knows: N - D - max(C, 1).

        At least N - D parties' shares are in the sum. The C colluders know theirs; without colluders, the one party
        that looks at the result still knows its own. What is left has to carry the whole guarantee.
        """
        return self.parties - self.dropouts - max(self.colluders, 1)

    @property
    def forces_one_survivor_set(self) -> bool:
        """Whether even a server that breaks the protocol cannot have two survivor sets unmasked for one step.

        Every opening needs N - D parties and every honest party answers once a step, so two openings need
        2 (N - D - C) honest answers from N - C honest parties: impossible where 2 (N - D) > N + C.
        """
        return 2 * self.quorum > self.parties + self.colluders

    def assumptions(self) -> tuple[str, ...]:
        """Return what a guarantee under secure aggregation assumes, one sentence each."""
        server = (
            "it cannot have two survivor sets unmasked even if it tries"
            if self.forces_one_survivor_set
            else "in particular it asks every party to unmask the same survivor set"
        )
        return (
            f"of {self.parties} parties at most {self.colluders} pool what they know with each other and the server; "
            f"a sum is released only if at least {self.quorum} parties' contributions are in it; the noise of any "
            f"{self.unknown_shares} of them carries the whole guarantee, so it holds against the colluders and against "
            "any single party that knows its own share",
            f"parties and server follow the protocol (honest but curious): {server}",
            "X25519, HKDF-SHA256, ChaCha20 and ChaCha20-Poly1305 are secure, and messages between parties and server "
            "are authenticated",
        )
