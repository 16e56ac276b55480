"""Calibration: what noise a target (epsilon, delta) allows, and what a loss becomes when noise or rows are scaled."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dpalgos.accounting.composition import compose
from dpalgos.accounting.profiles import largest_fitting, require_delta, rho_from_epsilon_delta
from dpalgos.errors import ParameterError
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
    loss_to_json,
)
from dpalgos.mechanisms.gaussian import mu_from_epsilon_delta
from dpalgos.parameters import Bound

# How many steps of the first relation make up one step of the second; pairs that are missing have no proof.
_STEPS = {
    (Neighbours.REPLACE_ONE, Neighbours.REPLACE_ONE): 1,
    (Neighbours.REPLACE_SPECIAL, Neighbours.REPLACE_SPECIAL): 1,
    (Neighbours.REPLACE_SPECIAL, Neighbours.REPLACE_ONE): 2,
    (Neighbours.ADD_REMOVE_ONE, Neighbours.REPLACE_ONE): 2,
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

    The k rows may lie in several parties for what :mod:`dpalgos.accounting.spending` adds up: each of these quantities
    s(k) is convex with s(0) = 0, so ``s(a) <= (a/k) s(k)``; a person with ``a_p`` rows at party p costs at most
    ``sum over p of (a_p / k) S_p(k)``, which is at most the maximum of S_p(k) over the parties.

    Raises
    ------
    ParameterError
        If ``rows`` is not a whole number of at least 1, or the loss type is unknown.
    """
    Bound(1, whole=True).require("rows a person", rows)
    return loss if rows == 1 else _group(loss, rows)


def _group(loss: Loss, rows: int) -> Loss:
    match loss:
        case PureEpsilon() | GaussianMu() | ZeroConcentrated():
            return scaled(loss, rows)
        case ApproximateDP():
            return _group_of_approximate(loss, rows)
        case SlackGaussian():
            return NoGuarantee(
                "what is revealed with a small probability (by sampling, or by a missed deadline) is bounded "
                f"for one row, and nothing is proved for {rows} rows or a relation that takes {rows} steps; choose an "
                "algorithm that uses all rows, no --deadline, one row a person, or the account's own --neighbours"
            )
        case PrivateSelection():
            selected, each = _group_of_approximate(loss.selected, rows), rows * loss.mu
            if isinstance(selected, ApproximateDP):
                return replace(loss, epsilon=selected.epsilon, delta=selected.delta, mu=each)
            return replace(loss, mu=each).all_candidates
        case NoGuarantee():
            return loss
    raise ParameterError(f"{loss!r} is no known loss type; nothing is known about groups")


def _group_of_approximate(loss: ApproximateDP, rows: int) -> Loss:
    epsilon = rows * loss.epsilon
    if loss.delta == 0:
        return ApproximateDP(epsilon, 0.0)
    growth = _log_expm1(epsilon) - _log_expm1(loss.epsilon) if loss.epsilon > 0 else math.log(rows)
    log_delta = math.log(loss.delta) + growth + 1e-12
    if log_delta >= 0:
        return NoGuarantee(f"delta {loss.delta:g} becomes 1 or more for {rows} rows a person")
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
    null record need not be one of them, and a sum of constant features shows the difference: it moves by 0 where a row
    is replaced and by 1 where it becomes null.

    *From add-remove-one*, which old records hold and which public sizes refute, to replace-one: twice as much, but not
    by a chain of neighbours. Each algorithm that stated it adds Gaussian, Laplace or radial noise to a sum over the
    rows and calibrates it to the largest term; n is the same on both sides of a replacement, and the sum moves by two
    terms.

    Raises
    ------
    ParameterError
        If there is no proof for the relation asked for.
    """
    steps = _STEPS.get((guarantee.neighbours, neighbours.in_force()))
    if steps is None:
        raise ParameterError(
            f"the guarantee is proved under {guarantee.neighbours}, and nothing is proved under {neighbours}, which "
            f"the account keeps: choose neighbours={neighbours} for the run"
        )
    return tuple(group_loss(loss, steps) for loss in guarantee.losses)


def scaled(loss: Loss, factor: float) -> Loss:
    """Return the loss of the same release with ``factor`` times less noise: epsilon and mu times it, rho its square.

    Delta of an (epsilon, delta) loss stays. These are the losses that a budget can be; others raise.
    """
    match loss:
        case PureEpsilon():
            return PureEpsilon(factor * loss.epsilon)
        case GaussianMu():
            return GaussianMu(factor * loss.mu)
        case ZeroConcentrated():
            return ZeroConcentrated(factor * factor * loss.rho)
        case ApproximateDP():
            return ApproximateDP(factor * loss.epsilon, loss.delta)
    raise ParameterError(f"{loss!r} is no known loss type; it cannot be scaled")


# Left of epsilon, so that a stage may divide its budget further (over classes, over steps) without its parts adding up
# to a unit in the last place too much.
_HEADROOM = 1e-12


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a loss type is bought and divided.

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
    """How a run's budget is split over its stages.

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
        raise ParameterError(f"{len(kinds)} stages and {len(shares)} shares; give one share above 0 for each stage")
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
        for, and no others. (Held-out rows are a party of their own that pays for its evaluation alone; counted here,
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
