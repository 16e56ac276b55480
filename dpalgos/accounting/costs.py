"""What one plan costs each party, deadlines included: the quantities that filters add up, as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from dpalgos.accounting.calibration import group_loss
from dpalgos.accounting.composition import components, compose, least_mu
from dpalgos.accounting.profiles import mu_of_pure, require_delta
from dpalgos.errors import ParameterError
from dpalgos.guarantees import (
    ApproximateDP,
    GaussianMu,
    Loss,
    NoGuarantee,
    PrivateSelection,
    PureEpsilon,
    SlackGaussian,
    ZeroConcentrated,
    loss_from_json,
    loss_to_json,
)

_STEPS = (1.0, 10.0, 100.0, 1000.0)
_COARSE = 0.01
_LARGEST_EPSILON = 100.0
_ROUNDING = 1 + 1e-9


@lru_cache(maxsize=4096)
def loss_of_deadline_misses(losses: tuple[Loss, ...], probability: float) -> Loss:
    """Return the loss to be composed with a release's own where its time is observed and an overrun is possible.

    Guarantee
    ---------
    Let M be the release, dominated by a pair with hockey-stick divergence H_t, t > 0, in both orders, and
    ``f(a) = 1 - sup {P(S) : Q(S) <= a}`` its trade-off function. O is what is observed: M's output at the deadline, or,
    with probability at most b on any rows, anything else at any other time. Whether there is an overrun may depend on
    the rows *and* on the output. Then for neighbours

    ``H_t(O) <= s + (1 - s) H_t   for all t > 0, in both orders``,   ``s = c / (1 - H_1)``,   ``c = b + 1 - f(b)``,

    so O costs no more than M composed with (0, s)-DP.

    Proof. On time, O is M's distribution less a measure k <= Q of mass at most b, and on the first data at most P. An
    event S and an overrun give ``H_t(O) <= b + sup_S [P(S) - t (Q - k)(S)]``. With g = dP/dQ, removing k gains t dk
    where g > t, and elsewhere at most ``g - t + t dk/dQ <= g dk/dQ`` a point: everywhere at most ``g dk``, together at
    most
    ``sup {∫ g dk : k <= Q, k(1) <= b} = 1 - f(b)``. Hence ``H_t(O) <= H_t + c`` for all t. For t >= 1,
    ``c = s (1 - H_1) <= s (1 - H_t)``. For t < 1, ``H_t(P, Q) = 1 - t + t H_{1/t}(Q, P)`` on either side gives
    ``H_t(O) <= H_t + t c <= H_t + s t (1 - H_{1/t}(Q, P)) = H_t + s (1 - H_t)``.

    The total variation b alone is not enough: on the other data all overruns may fall on outputs that are rare there
    and e^epsilon times likelier here. At one epsilon, c is ``(1 + e^epsilon) b`` for pure losses.

    f and H_1 are bounded by points (e, d) of the profile: ``1 - f(b) <= e^e b + d`` and
    ``1 - H_1 >= 2 (1 - d) / (1 + e^e)`` (add (e, d) on S and, in the other order, on its complement). Any point
    will do, and the best of a few is taken.

    Parameters
    ----------
    losses : tuple of Loss
        Of the release.
    probability : float
        b, above 0.

    Returns
    -------
    SlackGaussian or NoGuarantee
        Slack s and mu 0; no guarantee where s is not below 1. It is for these neighbours alone: s follows from M's own
        divergence, so k neighbours in a row do not cost k s (:func:`dpalgos.accounting.calibration.group_loss`).
    """
    profile = compose(losses)
    points = [
        (epsilon, delta)
        for delta in sorted({min(step * probability, _COARSE) for step in _STEPS} | {_COARSE})
        if (epsilon := profile.epsilon(delta)) <= _LARGEST_EPSILON
    ]
    if not points:
        return NoGuarantee(f"no bound on what deadline misses of probability {probability:g} reveal")
    lost = min(probability * (1 + math.exp(epsilon)) + delta for epsilon, delta in points)
    alike = max(2 * (1 - delta) / (1 + math.exp(epsilon)) for epsilon, delta in points)
    slack = lost / alike * _ROUNDING
    if slack >= 1:
        return NoGuarantee(f"deadline misses of probability {probability:g} may reveal everything at such an epsilon")
    return SlackGaussian(0.0, slack)


# Of a plan's delta, what the far tail of a mixture takes; the least mu hardly depends on it.
_TAIL = 2.0**-20


class Totals(NamedTuple):
    """The quantities that add up from plan to plan; infinity where one does not exist.

    Attributes
    ----------
    mu_squared : float
        For the Gaussian-DP filter: the least mu^2 under which a plan's joint curve lies as a whole
        (:mod:`~dpalgos.accounting.composition`). Infinite with a rho: no mu follows from zCDP alone.
    rho : float
        For the zCDP filter: the least rho with ``D_alpha <= alpha rho`` for all alpha > 1, which is the sum of
        ``mu^2 / 2`` of the Gaussians, ``epsilon tanh(epsilon / 2)`` of the pure epsilons, and the rhos.
    slack : float
        Probability outside which the two hold: the sum of the deltas of (epsilon, delta) losses, each of which is a
        pure-epsilon pair outside an event of probability delta (Murtagh, Vadhan 2016, Lemma 3.2), and a millionth of
        the plan's delta where pure epsilons and Gaussians are mixed.
    epsilon, delta : float
        For the basic filter: a plan's tight epsilon at its declared delta, or its pure epsilon at 0.
    """

    mu_squared: float = 0.0
    rho: float = 0.0
    slack: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    @classmethod
    def of(cls, costs: Iterable[PlanCost]) -> Totals:
        """Add costs up, each sum rounded once."""
        rows = [cost.totals for cost in costs]
        return cls(*map(math.fsum, zip(*rows, strict=True))) if rows else cls()

    def plus(self, other: Totals) -> Totals:
        """Return the sums of both."""
        return Totals(*(a + b for a, b in zip(self, other, strict=True)))

    def largest(self, other: Totals) -> Totals:
        """Return the larger of each quantity."""
        return Totals(*(max(a, b) for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What one plan costs one party; infinity (null in JSON) where a quantity does not exist.

    Parameters
    ----------
    losses : tuple of Loss
        What the plan's releases cost this party, Gaussian and zCDP ones merged. A
        :class:`~dpalgos.guarantees.PrivateSelection` here says that its mu was charged to the filters below; an
        (epsilon, delta) that stands in its place, that its delta was.
    totals : Totals
        What the filters add up.
    """

    losses: tuple[Loss, ...]
    totals: Totals

    def __post_init__(self) -> None:
        for name, value in self.totals._asdict().items():
            if isinstance(value, bool) or not (isinstance(value, float | int) and value >= 0):
                raise ParameterError(f"a plan's {name} is {value!r}; it must be a number of at least 0, or infinite")

    @classmethod
    def of(cls, losses: Sequence[Loss], delta: float) -> PlanCost:
        """Price losses that are charged together; ``delta`` is what the plan states its epsilon at.

        Raises
        ------
        ParameterError
            For an unknown loss type or a delta outside [0, 1).
        """
        require_delta(delta)
        mu_squared, rho, slack = additive_costs(losses, delta)
        parts = components(losses)
        pure = not (parts.gaussians or parts.rhos or parts.slacks)
        at_delta = 0.0 if pure else delta
        epsilon = compose(losses).epsilon(at_delta)
        return cls(_merged(losses), Totals(mu_squared, rho, slack, epsilon, at_delta))

    @property
    def is_zero(self) -> bool:
        """Whether nothing was released that depends on the party's rows."""
        return not any(self.totals[:-1])

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; the inverse of :meth:`from_json`."""
        numbers = {name: value if math.isfinite(value) else None for name, value in self.totals._asdict().items()}
        return {"losses": [loss_to_json(loss) for loss in self.losses], **numbers}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlanCost:
        """Read a cost back.

        Raises
        ------
        ParameterError
            For an unknown or missing key, an unknown loss type, or a quantity that is no number of at least 0.
        """
        if data.keys() != _KEYS:
            raise ParameterError(f"a plan's cost has the keys {sorted(data)}; it must have exactly {sorted(_KEYS)}")
        numbers = [math.inf if data[name] is None else data[name] for name in Totals._fields]
        try:
            losses = tuple(map(loss_from_json, data["losses"]))
        except TypeError as error:
            raise ParameterError(f"the losses {data['losses']!r} of a plan's cost cannot be read: {error}") from None
        return cls(losses, Totals(*numbers))


_KEYS = frozenset({"losses", *Totals._fields})


def additive_costs(losses: Sequence[Loss], delta: float) -> tuple[float, float, float]:
    """Return (mu^2, rho, slack) of losses charged together in a plan stated at delta; see :class:`PlanCost`."""
    parts = components(losses)
    if parts.unproved is not None:
        return math.inf, math.inf, math.inf
    # A bound, release by release, that tells whether there is a mu at all; the least is that of the joint curve.
    bounds = [mu * mu for mu in parts.gaussians]
    bounds += [count * mu_of_pure(epsilon) ** 2 for epsilon, count in parts.pure.items()]
    if parts.rhos or not math.isfinite(math.fsum(bounds)):
        return math.inf, parts.total_rho, parts.slack
    tail = _TAIL * delta if parts.gaussians and parts.pure else 0.0
    squares = least_mu(parts.pure, parts.mu if parts.gaussians else 0.0, tail) ** 2 * (1 + 1e-15)
    return squares, parts.total_rho, math.nextafter(parts.slack + tail, 1.0) if tail else parts.slack


def _merged(losses: Sequence[Loss]) -> tuple[Loss, ...]:
    parts = components([loss for loss in losses if not isinstance(loss, PrivateSelection)])
    free = (PureEpsilon(0.0), ApproximateDP(0.0, 0.0))
    # Composed, slack and Gaussian part are as good as two releases.
    apart = [ApproximateDP(0.0, loss.slack) if isinstance(loss, SlackGaussian) else loss for loss in losses]
    others = [loss for loss in apart if not isinstance(loss, GaussianMu | ZeroConcentrated) and loss not in free]
    gaussian = [GaussianMu(parts.mu)] if parts.gaussians else []
    concentrated = [ZeroConcentrated(parts.rho)] if parts.rhos else []
    return (*gaussian, *concentrated, *others)


def price(
    releases: Sequence[tuple[Sequence[str], Sequence[Loss]]], delta: float, *, rows_per_person: int = 1
) -> dict[str, PlanCost]:
    """Return what a plan costs each party.

    Parameters
    ----------
    releases : sequence of (parties, losses)
        Whose rows each release of the plan reads, and what it costs one of these rows, under the relation in force
        (see :func:`~dpalgos.accounting.calibration.losses_under`). A joint release is paid by each party it reads.
    delta : float
        What the plan states its epsilon at.
    rows_per_person : int
        How many rows one person may have, in one party or spread over several.

    Returns
    -------
    dict of party to PlanCost
        Tight compositions of all releases that touch the party's rows.

    Notes
    -----
    Several rows a person. Each loss is replaced by that of a group. Where one person's rows may lie in several parties,
    a party's own cost is a bound for all of the person's rows if every release reads one party or all and the parties'
    costs are equal: take the i-th of equal losses at each party, and let a_p be the person's rows there,
    ``sum a_p = k``. Together these releases are no easier to tell apart than one release for k rows: for Gaussians
    ``sum a_p^2 <= k^2``, so for rho; pure epsilons add up to ``k epsilon``; (epsilon, delta) to
    ``(k epsilon, delta sum g(a_p))`` with g convex, g(0) = 0, so ``sum g(a_p) <= g(k)``. Otherwise every party is
    charged the composition of all the plan's releases, which needs no argument.
    """
    losses_by_party = _billed(releases, rows_per_person=rows_per_person)
    # Parties of one plan mostly pay the same; each distinct cost is priced once.
    grouped = {
        losses_of_party: [group_loss(loss, rows_per_person) for loss in losses_of_party]
        for losses_of_party in set(losses_by_party.values())
    }
    priced = {losses_of_party: PlanCost.of(losses, delta) for losses_of_party, losses in grouped.items()}
    return {party: priced[losses_of_party] for party, losses_of_party in losses_by_party.items()}


def _billed(
    releases: Sequence[tuple[Sequence[str], Sequence[Loss]]], *, rows_per_person: int = 1
) -> dict[str, tuple[Loss, ...]]:
    """Return the losses, for one row each, of the releases that each party pays for; see :func:`price`."""
    losses_by_party: dict[str, list[Loss]] = {}
    for parties, losses in releases:
        for party in dict.fromkeys(parties):
            losses_by_party.setdefault(party, []).extend(losses)
    if rows_per_person > 1 and not _alike(releases, losses_by_party):
        everything = tuple(loss for _, losses in releases for loss in losses)
        return dict.fromkeys(losses_by_party, everything)
    return {party: tuple(losses_of_party) for party, losses_of_party in losses_by_party.items()}


def _alike(
    releases: Sequence[tuple[Sequence[str], Sequence[Loss]]], losses_by_party: Mapping[str, Sequence[Loss]]
) -> bool:
    one_or_all = all(len(set(parties)) in (0, 1, len(losses_by_party)) for parties, _ in releases)
    counted = [Counter(losses_of_party) for losses_of_party in losses_by_party.values()]
    return one_or_all and all(count == counted[0] for count in counted)
