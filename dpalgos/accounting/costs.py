"""Prices: the cost of losses, releases and plans (deadlines, groups), and budgets that meet (epsilon, delta)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from dpalgos.accounting.composition import components, compose, least_mu
from dpalgos.accounting.profiles import (
    largest_fitting,
    mu_from_epsilon_delta,
    mu_of_pure,
    require_delta,
    rho_from_epsilon_delta,
)
from dpalgos.guarantees import (
    ApproximateDP,
    GaussianMu,
    Guarantee,
    Loss,
    Neighbours,
    NoGuarantee,
    PrivateSelection,
    PureEpsilon,
    SlackGaussian,
    ZeroConcentrated,
    loss_from_json,
    loss_to_json,
)
from dpalgos.parameters import Bound, ParameterError
from dpalgos.sentences import coded

# How many steps of the first relation make up one step of the second; pairs that are missing have no proof.
_NEIGHBOURING_STEPS = {
    (Neighbours.REPLACE_ONE, Neighbours.REPLACE_ONE): 1,
    (Neighbours.REPLACE_SPECIAL, Neighbours.REPLACE_SPECIAL): 1,
    (Neighbours.REPLACE_SPECIAL, Neighbours.REPLACE_ONE): 2,
}


def group_loss(loss: Loss, rows: int) -> Loss:
    """Return what a release costs a person with up to ``rows`` rows, from its cost for one row.

    Guarantee
    ---------
    Two data sets that differ in k rows are joined by a chain of k neighbours. Along it

    - pure epsilon becomes ``k epsilon`` (the factors multiply);
    - mu becomes ``k mu`` (Dong, Roth, Su 2022, Theorem 7);
    - rho becomes ``k^2 rho`` (Bun, Steinke 2016, Proposition 1.9);
    - (epsilon, delta) becomes ``(k epsilon, delta (e^(k epsilon) - 1) / (e^epsilon - 1))``: the j-th step's delta is
      multiplied by the ``e^(j epsilon)`` of the steps before. Where that reaches 1 nothing is guaranteed;
    - of a private selection both guarantees are those of the group: each candidate's mu becomes k mu, and where its
      (epsilon, delta) reaches a delta of 1, what all candidates cost together is left;
    - of Gaussian-DP with slack nothing is known: what is revealed with probability s to the first neighbour is, to the
      next, revealed by outputs that the Gaussian part makes likelier, so (k s, k mu) does not follow.

    The k rows may lie in several parties: what is charged then is told by :func:`price` of one plan, and by
    :mod:`dpalgos.accounting.spending` over plans.

    Raises
    ------
    ParameterError
        If ``rows`` is not a whole number of at least 1, or the loss type is unknown.
    """
    Bound(1, whole=True).require("rows per person", rows)
    if rows == 1:
        return loss
    match loss:
        case PureEpsilon() | GaussianMu() | ZeroConcentrated():
            return scaled(loss, rows)
        case ApproximateDP():
            return _group_of_approximate(loss, rows)
        case SlackGaussian():
            return NoGuarantee(coded("slack-of-groups", rows=rows))
        case PrivateSelection():
            selected, each = _group_of_approximate(loss.selected, rows), rows * loss.mu
            if isinstance(selected, ApproximateDP):
                return replace(loss, epsilon=selected.epsilon, delta=selected.delta, mu=each)
            return replace(loss, mu=each).all_candidates
        case NoGuarantee():
            return loss
    raise ParameterError(f"{loss!r} is an unknown loss type: its loss for groups is unknown")


def _group_of_approximate(loss: ApproximateDP, rows: int) -> Loss:
    epsilon = rows * loss.epsilon
    if loss.delta == 0:
        return ApproximateDP(epsilon, 0.0)
    growth = _log_expm1(epsilon) - _log_expm1(loss.epsilon) if loss.epsilon > 0 else math.log(rows)
    log_delta = math.log(loss.delta) + growth + 1e-12
    if log_delta >= 0:
        return NoGuarantee(coded("delta-of-groups", delta=f"{loss.delta:g}", rows=rows))
    return ApproximateDP(epsilon, math.exp(log_delta))


def _log_expm1(x: float) -> float:
    return math.log(math.expm1(x)) if x < 30 else x


def losses_under(guarantee: Guarantee, neighbours: Neighbours) -> tuple[Loss, ...]:
    """Return a guarantee's losses for one row under the relation in force.

    Guarantee
    ---------
    *From replace-special to replace-one.* A record is replaced in two steps, x to null and null to z, both of which are
    neighbours under replace-special (:mod:`dpalgos.rows`): a group of two, so mu becomes 2 mu, epsilon 2 epsilon, rho
    4 rho, and delta (1 + e^epsilon) delta (:func:`group_loss`).

    *The other way* nothing is converted. A guarantee under replace-one was proved for the records it was stated for; a
    null record need not be one of them, and a sum of constant features shows the difference: replacing a row moves it
    by 0, and making the row null moves it by 1.

    Raises
    ------
    ParameterError
        If there is no proof for the relation asked for.
    """
    steps = _NEIGHBOURING_STEPS.get((guarantee.neighbours, neighbours.in_force()))
    if steps is None:
        raise ParameterError(
            f"the guarantee is proved under {guarantee.neighbours}, not under {neighbours}, which the account uses: "
            f"choose neighbours={neighbours} for the run"
        )
    return tuple(group_loss(loss, steps) for loss in guarantee.losses)


def scaled(loss: Loss, factor: float) -> Loss:
    """Return the loss of the same release with ``factor`` times less noise: epsilon and mu times it, rho its square.

    Delta of an (epsilon, delta) loss stays. These are the losses that a budget can be; others raise.
    """
    match loss:
        case PureEpsilon() | ApproximateDP():
            return replace(loss, epsilon=factor * loss.epsilon)
        case GaussianMu():
            return GaussianMu(factor * loss.mu)
        case ZeroConcentrated():
            return ZeroConcentrated(factor * factor * loss.rho)
    raise ParameterError(f"{loss!r} is an unknown loss type; it cannot be scaled")


# Left of epsilon, so that a stage may divide its budget further (over classes, over steps) without its parts adding up
# to a unit in the last place too much.
_HEADROOM = 1e-12


@dataclass(frozen=True, slots=True)
class _Kind:
    """Rules by which a loss type is bought and divided.

    Parameters
    ----------
    whole : callable of (epsilon, delta)
        The largest loss that alone is (epsilon, delta)-DP.
    part : callable of (loss, share)
        Losses of the parts, for shares that add up to 1, compose to the whole.
    rule : str
        For reports.
    """

    whole: Callable[[float, float], Loss]
    part: Callable[[Loss, float], Loss]
    rule: str


_KINDS: Mapping[type[Loss], _Kind] = {
    GaussianMu: _Kind(
        lambda epsilon, delta: GaussianMu(mu_from_epsilon_delta(epsilon, delta)),
        lambda loss, share: scaled(loss, math.sqrt(share)),
        "mu^2 by shares",
    ),
    PureEpsilon: _Kind(lambda epsilon, delta: PureEpsilon(epsilon), scaled, "epsilon by shares, delta not spent"),
    ZeroConcentrated: _Kind(
        lambda epsilon, delta: ZeroConcentrated(rho_from_epsilon_delta(epsilon, delta)),
        lambda loss, share: scaled(loss, math.sqrt(share)),
        "rho by shares",
    ),
}


def _kind(kind: type[Loss]) -> _Kind:
    if kind not in _KINDS:
        raise ParameterError(f"{kind.__name__} cannot be calibrated; known: {', '.join(k.__name__ for k in _KINDS)}")
    return _KINDS[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Split of a run's budget over its stages.

    Parameters
    ----------
    losses : tuple of Loss
        One a stage, in the order of the shares.
    shares : tuple of float
        Adding up to 1.
    rule : str
        What the shares are shares of.
    epsilon, delta : float
        What was to be met.
    composed : float
        Epsilon of all stages together at ``delta_spent``, tightly; infinite where published losses claim more delta
        than there is.
    delta_spent : float
        Delta, or 0 where all stages are pure.
    """

    losses: tuple[Loss, ...]
    shares: tuple[float, ...]
    rule: str
    epsilon: float
    delta: float
    composed: float
    delta_spent: float

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object for reports; infinity is null."""
        report = asdict(self) | {"losses": [loss_to_json(loss) for loss in self.losses], "shares": list(self.shares)}
        return report | {"composed": self.composed if math.isfinite(self.composed) else None}


def allocate(
    kinds: Sequence[type[Loss]],
    shares: Sequence[float],
    epsilon: float,
    delta: float,
    *,
    share_delta: bool = False,
) -> Allocation:
    """Split a run's (epsilon, delta) over its stages.

    - Stages of one kind divide what that kind adds up: mu^2, epsilon, or rho. Pure stages spend no delta.
    - Stages of several kinds get epsilon by shares: each kind as a block gets what alone is worth (its shares' sum) in
      epsilon at delta, to a common scale, which is then raised until the tight composition of all stages meets
      (epsilon, delta) from below. Within a block as above. The proportions do not depend on epsilon.
    - If one stage is (epsilon, delta)-DP, as published algorithms state it, every stage gets what papers give it:
      (share * epsilon, delta), in its own kind. ``composed`` says what that amounts to. With ``share_delta`` it gets
      (share * epsilon, share * delta), which adds up to the target by basic composition.

    Parameters
    ----------
    kinds : sequence of type
        The loss type of each stage's budget.
    shares : sequence of float
        Above 0; divided by their sum.
    epsilon, delta : float
    share_delta : bool
        Whether delta is divided too where a stage is (epsilon, delta)-DP: for stages that are proved.

    Raises
    ------
    ParameterError
        If the shares do not fit the stages, or the target cannot be met by these kinds.
    """
    Bound(0.0, open_low=True).require("epsilon", epsilon)
    require_delta(delta)
    if not kinds or len(kinds) != len(shares):
        raise ParameterError(
            f"there are {len(kinds)} stages and {len(shares)} shares; give one share above 0 per stage"
        )
    if not all(math.isfinite(share) and share > 0 for share in shares):
        raise ParameterError(f"shares are {tuple(shares)!r}; each must be a finite number above 0")
    total = math.fsum(shares)
    parts = tuple(share / total for share in shares)
    if ApproximateDP in kinds:
        rule = "(share * epsilon, share * delta)" if share_delta else "(share * epsilon, delta) as published"
        deltas = [part * (delta * (1 - _HEADROOM)) if share_delta else delta for part in parts]
        buyers = [ApproximateDP if kind is ApproximateDP else _kind(kind).whole for kind in kinds]
        losses = tuple(buy(part * epsilon, at) for buy, part, at in zip(buyers, parts, deltas, strict=True))
    elif len(set(kinds)) == 1:
        kind = _kind(kinds[0])
        whole = kind.whole(epsilon * (1 - _HEADROOM), delta)
        rule, losses = kind.rule, tuple(kind.part(whole, part) for part in parts)
    else:
        rule, losses = "epsilon by shares to a common scale", _to_common_scale(kinds, parts, epsilon, delta)
    delta_spent = 0.0 if set(kinds) == {PureEpsilon} else delta
    return Allocation(
        losses=losses,
        shares=parts,
        rule=rule,
        epsilon=epsilon,
        delta=delta,
        composed=compose(losses).epsilon(delta_spent),
        delta_spent=delta_spent,
    )


def _to_common_scale(
    kinds: Sequence[type[Loss]], shares: Sequence[float], epsilon: float, delta: float
) -> tuple[Loss, ...]:
    blocks = {kind: math.fsum(s for k, s in zip(kinds, shares, strict=True) if k is kind) for kind in kinds}
    unit = {kind: scaled(_kind(kind).whole(1.0, delta), block) for kind, block in blocks.items()}
    base = [_kind(kind).part(unit[kind], share / blocks[kind]) for kind, share in zip(kinds, shares, strict=True)]
    target = epsilon * (1 - _HEADROOM)

    def fits(factor: float) -> bool:
        return compose([scaled(loss, factor) for loss in base]).delta(target) <= delta

    factor = largest_fitting(fits, max(target, 1e-6), lambda low, high: high - low <= 1e-13 * high)
    return tuple(scaled(loss, factor) for loss in base)


# How close the composed epsilon comes to the target, from below, and how often that is tried.
_TIGHT, _TRIES = 1e-4, 20
_LEAST = 2.0**-20


def tightened(
    budgets: Sequence[Loss],
    losses_of: Callable[[tuple[Loss, ...]], Collection[tuple[Loss, ...]]],
    epsilon: float,
    delta: float,
) -> tuple[Loss, ...]:
    """Return the stages' budgets, all scaled alike, with which the largest cost comes to epsilon at delta.

    A stage may cost less than its budget looks: ten pure releases of a tenth each compose with a Gaussian more tightly
    than one pure release. Or more: the sparse graph of a secure sum may fail, which is charged on top.

    Parameters
    ----------
    budgets : sequence of Loss
        One a stage, as they were split.
    losses_of : callable
        What the releases under given budgets cost each party whose rows they read: the parties that the budgets are
        for, and no others. (Held-out rows are a separate party that pays for its evaluation alone; counted here,
        it would meet the target at once and leave the training what it had been given roughly.)
    epsilon, delta : float
        The target.

    Returns
    -------
    tuple of Loss
        The budgets as they were where the cost meets the target already, proves nothing, or is above the target with
        any noise.
    """

    def at(factor: float) -> tuple[Loss, ...]:
        return tuple(scaled(loss, factor) for loss in budgets)

    def cost(factor: float) -> float:
        return max((compose(one).epsilon(delta) for one in set(losses_of(at(factor)))), default=0.0)

    first = cost(1.0)
    if not math.isfinite(first) or epsilon * (1 - _TIGHT) <= first <= epsilon:
        return tuple(budgets)
    if first > epsilon:
        # Costs grow about as the factor does, so twice the excess is nearly always enough.
        low, high = max(1 - 2 * (first / epsilon - 1), 0.5), 1.0
        while cost(low) > epsilon:
            low, high = low / 2, low
            if low < _LEAST:
                return tuple(budgets)
        if high - low <= _TIGHT / 2:
            return at(low)
    else:
        low, high = 1.0, 2.0
        while cost(high) <= epsilon and high < 64:
            low, high = high, 2 * high
    for _ in range(_TRIES):
        middle = (low + high) / 2
        spent = cost(middle)
        low, high = (middle, high) if spent <= epsilon else (low, middle)
        if epsilon * (1 - _TIGHT) <= spent <= epsilon:
            break
    return at(low)


_POINTS_OF_PROFILE = (1.0, 10.0, 100.0, 1000.0)
_COARSE = 0.01
_LARGEST_EPSILON = 100.0
_ROUNDING = 1 + 1e-9


@lru_cache(maxsize=4096)
def loss_of_deadline_misses(losses: tuple[Loss, ...], probability: float) -> Loss:
    """Return the loss to be composed with a release's own where its time is observed and a deadline miss is possible.

    Guarantee
    ---------
    Let M be the release, dominated by a pair with hockey-stick divergence H_t, t > 0, in both orders, and
    ``f(a) = 1 - sup {P(S) : Q(S) <= a}`` its trade-off function. O is what is observed: M's output at the deadline, or,
    with probability at most b on any rows, anything else at any other time. Whether there is a miss may depend on
    the rows *and* on the output. Then for neighbours

    ``H_t(O) <= s + (1 - s) H_t   for all t > 0, in both orders``,   ``s = c / (1 - H_1)``,   ``c = b + 1 - f(b)``,

    so O costs no more than M composed with (0, s)-DP.

    Proof. On time, O is M's distribution less a measure k <= Q of mass at most b, and on the first data at most P. An
    event S and a miss give ``H_t(O) <= b + sup_S [P(S) - t (Q - k)(S)]``. With g = dP/dQ, removing k gains t dk
    where g > t, and elsewhere at most ``g - t + t dk/dQ <= g dk/dQ`` a point: everywhere at most ``g dk``, together at
    most
    ``sup {∫ g dk : k <= Q, k(1) <= b} = 1 - f(b)``. Hence ``H_t(O) <= H_t + c`` for all t. For t >= 1,
    ``c = s (1 - H_1) <= s (1 - H_t)``. For t < 1, ``H_t(P, Q) = 1 - t + t H_{1/t}(Q, P)`` on either side gives
    ``H_t(O) <= H_t + t c <= H_t + s t (1 - H_{1/t}(Q, P)) = H_t + s (1 - H_t)``.

    The total variation b alone is not enough: on the other data all misses may fall on outputs that are rare there
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
        divergence, so k neighbours in a row do not cost k s (:func:`dpalgos.accounting.costs.group_loss`).
    """
    profile = compose(losses)
    points = [
        (epsilon, delta)
        for delta in sorted({min(step * probability, _COARSE) for step in _POINTS_OF_PROFILE} | {_COARSE})
        if (epsilon := profile.epsilon(delta)) <= _LARGEST_EPSILON
    ]
    if not points:
        return NoGuarantee(coded("unbounded-deadline-misses", probability=f"{probability:g}"))
    lost = min(probability * (1 + math.exp(epsilon)) + delta for epsilon, delta in points)
    alike = max(2 * (1 - delta) / (1 + math.exp(epsilon)) for epsilon, delta in points)
    slack = lost / alike * _ROUNDING
    if slack >= 1:
        return NoGuarantee(coded("revealing-deadline-misses", probability=f"{probability:g}"))
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
    """Cost of one plan to one party; infinity (null in JSON) where a quantity does not exist.

    Parameters
    ----------
    losses : tuple of Loss
        What the plan's releases cost this party, Gaussian and zCDP ones merged: what is composed, read at whichever
        delta, where it is the only plan that touches a row.
    totals : Totals
        What the filters add up. Of a :class:`~dpalgos.guarantees.PrivateSelection` that is either the mu of all its
        candidates or its delta.
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

    @property
    def is_gaussian(self) -> bool:
        """Whether every loss is Gaussian and is added up as such, so that mu^2 says all of it."""
        return self.totals.slack == 0 and all(isinstance(loss, GaussianMu) for loss in self.losses)

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
            For an unknown or missing key, an unknown loss type, or a quantity that is not a number of at least 0.
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
    """Return the cost of a plan to each party.

    Parameters
    ----------
    releases : sequence of (parties, losses)
        Whose rows each release of the plan reads, and what it costs one of these rows, under the relation in force
        (see :func:`~dpalgos.accounting.costs.losses_under`). A joint release is paid by each party it reads.
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
    Several rows a person. Each loss is replaced by that of a group. A person may have rows in several parties: let a_p
    be how many at party p, ``sum a_p = k``, and ``A_r = sum over p in r of a_p`` how many of them release r reads. What
    a party is charged must bound all placements.

    *Where every loss is Gaussian* each party pays for the releases that read its own rows, with k mu each. Release r is
    A_r mu_r-Gaussian-DP for this person (:func:`group_loss`), so all of them together cost

        ``q(a) = sum over r of mu_r^2 A_r^2``,

    a sum of squares of linear functions and so convex in a. With e_p for all k rows at party p, ``a = sum (a_p/k) e_p``
    is a mean, so ``q(a) <= sum over p of (a_p/k) q(e_p) <= max over p of q(e_p)``, and q(e_p) is what party p pays:
    the worst place for k rows is one party, for any releases. That a mean bounds it is what makes it hold
    over plans too (:mod:`dpalgos.accounting.spending`). Nothing of this is used for other losses.

    *Otherwise* a party's own cost is a bound for all of the person's rows if every release reads one party or all and
    the parties' costs are equal: take the i-th of equal losses at each party. Together these releases distinguish the
    data sets no better than one release for k rows: for Gaussians ``sum a_p^2 <= k^2``, so for rho; pure epsilons add
    up to ``k epsilon``; (epsilon, delta) to ``(k epsilon, delta sum g(a_p))`` with g convex, g(0) = 0, so ``sum g(a_p)
    <= g(k)``. And where even that does not hold every party is charged the composition of all the plan's releases,
    which needs no argument.
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
    if rows_per_person > 1 and not _all_gaussian(losses_by_party) and not _alike(releases, losses_by_party):
        everything = tuple(loss for _, losses in releases for loss in losses)
        return dict.fromkeys(losses_by_party, everything)
    return {party: tuple(losses_of_party) for party, losses_of_party in losses_by_party.items()}


def _all_gaussian(losses_by_party: Mapping[str, Sequence[Loss]]) -> bool:
    return all(isinstance(loss, GaussianMu) for losses in losses_by_party.values() for loss in losses)


def _alike(
    releases: Sequence[tuple[Sequence[str], Sequence[Loss]]], losses_by_party: Mapping[str, Sequence[Loss]]
) -> bool:
    one_or_all = all(len(set(parties)) in (0, 1, len(losses_by_party)) for parties, _ in releases)
    counted = [Counter(losses_of_party) for losses_of_party in losses_by_party.values()]
    return one_or_all and all(count == counted[0] for count in counted)
