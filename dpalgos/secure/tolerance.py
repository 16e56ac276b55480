"""How many parties may be lost or collude, and who masks with whom: all, or a sparse graph whose failure is bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dpalgos.errors import ParameterError
from dpalgos.parameters import NATURAL, Bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance(Bounded):
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


FAILURE = 2.0**-40


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFailure:
    """Upper bounds on what can go wrong with a random sparse graph.

    Parameters
    ----------
    privacy : float
        Probability that some party's colluding neighbours reach the share threshold, or that the honest survivors
        are not connected: then the server could learn the sum of a part of them.
    completion : float
        Probability that, with as many dropouts as tolerated, some party's remaining neighbours cannot open its
        secret: then the round fails and nothing is revealed.
    """

    privacy: float
    completion: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseGraph:
    """A Harary graph over a random order of the parties: everyone's neighbours are the k/2 before and after it.

    Parameters
    ----------
    degree : int
        k, even.
    threshold : int
        Shares, out of k neighbours' and the owner's own, that open a secret.

    Notes
    -----
    Failure bound (:meth:`failure`), for C colluders and D dropouts fixed without looking at the random order:
    1. *Collusion.* The colluders among a party's k neighbours are hypergeometric; the round is over at the latest when
       N - D parties are left to draw from, so P <= N P(Hyp(N - D - 1, C, k) >= threshold), by a union over parties.
    2. *Connection.* Walk round the circle of parties: without k/2 consecutive losses every honest survivor's next
       one is its neighbour, so all are connected. A given run of k/2 consists of lost parties (C + D of N) with
       probability binom(C + D, k/2) / binom(N, k/2); the union over N runs gives the bound. (Parties that never
       turned up are out of the graph already, which only makes the fraction smaller.)
    3. *Completion.* The dropouts among a party's neighbours are Hyp(N - 1, D, k); the round fails where more than
       k - threshold are lost: P <= N P(Hyp(N - 1, D, k) > k - threshold).

    All three fall exponentially with k, so k = O(log N).

    References
    ----------
    Bell, Bonawitz, Gascón, Lepoint, Raykova, "Secure single-server aggregation with (poly)logarithmic overhead",
    CCS 2020, section 3 and appendix (semi-honest case).
    """

    degree: int
    threshold: int

    def __post_init__(self) -> None:
        if self.degree < 2 or self.degree % 2:
            raise ParameterError(f"degree is {self.degree}; it must be an even number, at least 2")
        if not 1 <= self.threshold <= self.degree:
            raise ParameterError(f"threshold is {self.threshold}; it must be from 1 to the degree, {self.degree}")

    def failure(self, tolerance: Tolerance) -> GraphFailure:
        """Return the bounds above, rounded up."""
        parties, dropouts, colluders = tolerance.parties, tolerance.dropouts, tolerance.colluders
        collusion = parties * _hypergeometric_tail(tolerance.quorum - 1, colluders, self.degree, self.threshold)
        half, lost = self.degree // 2, colluders + dropouts
        run = math.exp(_log_binomial(lost, half) - _log_binomial(parties, half)) if lost >= half else 0.0
        completion = parties * _hypergeometric_tail(
            parties - 1, dropouts, self.degree, self.degree - self.threshold + 1
        )
        # The logarithms of factorials are good to about 1e-11 relative at these sizes.
        return GraphFailure(
            privacy=min(1.0, (collusion + parties * run) * (1 + 1e-6)), completion=min(1.0, completion * (1 + 1e-6))
        )

    @classmethod
    def smallest(cls, tolerance: Tolerance) -> SparseGraph | None:
        """Return the graph of least degree with both bounds at most :data:`FAILURE`; None where none is sparse."""
        largest = tolerance.quorum - 1
        for degree in range(2, largest + 1 - largest % 2, 2):
            for threshold in range(1, degree + 1):
                graph = cls(degree=degree, threshold=threshold)
                bounds = graph.failure(tolerance)
                if bounds.completion > FAILURE:
                    break
                if bounds.privacy <= FAILURE:
                    return graph
        return None


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _hypergeometric_tail(population: int, marked: int, draws: int, at_least: int) -> float:
    """Return P(X >= at_least) for X marked ones among ``draws`` from the population without replacement."""
    low, high = max(at_least, draws + marked - population, 0), min(marked, draws)
    whole = _log_binomial(population, draws)
    return min(
        1.0,
        math.fsum(
            math.exp(_log_binomial(marked, count) + _log_binomial(population - marked, draws - count) - whole)
            for count in range(low, high + 1)
        ),
    )
