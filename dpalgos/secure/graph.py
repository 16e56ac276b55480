"""Who masks with whom: everybody, or a random sparse graph whose failure probability is bounded and stated."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpalgos.errors import ParameterError
from dpalgos.secure.primitives import context, keystream
from dpalgos.secure.tolerance import Tolerance
from dpalgos.secure.wire import Wire

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
class SparseGraph(Wire):
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


class Neighbourhoods:
    """The neighbours of every party in one session, the same for everyone who knows the roster.

    Parameters
    ----------
    members : tuple of int
        The parties that advertised a key, in increasing order.
    graph : SparseGraph or None
        None: everybody is everybody's neighbour.
    seed : bytes
        Public, 32 bytes, fixed only when the roster is (its digest), so that nobody's place was known before.
    """

    __slots__ = ("_graph", "_members", "_order", "_place")

    def __init__(self, members: tuple[int, ...], graph: SparseGraph | None, seed: bytes) -> None:
        self._members, self._graph = members, graph
        self._order: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._place: dict[int, int] = {}
        if graph is not None:
            words = np.frombuffer(keystream(seed, 8 * len(members)), dtype="<u8")
            self._order = np.array(members, dtype=np.int64)[np.argsort(words, kind="stable")]
            self._place = {int(party): place for place, party in enumerate(self._order)}

    def of(self, party: int) -> tuple[int, ...]:
        """Return a party's neighbours in increasing order."""
        if self._graph is None:
            return tuple(member for member in self._members if member != party)
        half, place = self._graph.degree // 2, self._place[party]
        around = self._order.take(range(place - half, place + half + 1), mode="wrap").tolist()
        return tuple(sorted(peer for peer in around if peer != party))


def order_seed(roster: bytes) -> bytes:
    """Return the public seed of the random order: the digest of the roster, bound to its purpose."""
    return hashlib.sha256(context("order", roster)).digest()
