"""Calibration: what noise a target (epsilon, delta) allows, for one release, for equal ones, for stages by shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpalgos.accounting.composition import compose
from dpalgos.accounting.conversions import require_delta, rho_from_epsilon_delta
from dpalgos.accounting.scaling import scaled
from dpalgos.errors import ParameterError
from dpalgos.guarantees import ApproximateDP, GaussianMu, Loss, PureEpsilon, ZeroConcentrated, loss_to_json
from dpalgos.mechanisms.gaussian import mu_from_epsilon_delta

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


def _whole_approximate(epsilon: float, delta: float) -> Loss:
    return ApproximateDP(epsilon, delta)


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


def _require_target(epsilon: float, delta: float) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ParameterError(f"epsilon is {epsilon!r}; a budget must be a finite number above 0")
    require_delta(delta)


def _largest_scale(losses: Sequence[Loss], epsilon: float, delta: float) -> float:
    """Return the largest factor by which losses can be scaled so that they compose to (epsilon, delta), from below."""

    def fits(factor: float) -> bool:
        return compose([scaled(loss, factor) for loss in losses]).delta(epsilon) <= delta

    low, high = 0.0, max(epsilon, 1e-6)
    while fits(high):
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        if not low < middle < high or high - low < 1e-13 * high:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def calibrate(kind: type[Loss], epsilon: float, delta: float, count: int = 1) -> Loss:
    """Return the largest loss of which ``count`` equal releases together are (epsilon, delta)-DP.

    The inverse of :func:`~dpalgos.accounting.composition.compose`, from below.

    Parameters
    ----------
    kind : type
        ``GaussianMu``, ``PureEpsilon`` or ``ZeroConcentrated``.
    epsilon, delta : float
        The target; delta 0 is possible for ``PureEpsilon`` only, which otherwise gains from it.
    count : int

    Raises
    ------
    ParameterError
        For a target or a kind that cannot be met.
    """
    _require_target(epsilon, delta)
    if not (isinstance(count, int) and count >= 1):
        raise ParameterError(f"count is {count!r}; it must be a whole number, at least 1")
    whole = _kind(kind).whole(epsilon, delta)
    part = _kind(kind).part(whole, 1 / count)
    if delta == 0:
        return part
    return scaled(part, _largest_scale([part] * count, epsilon, delta))


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
    _require_target(epsilon, delta)
    if not kinds or len(kinds) != len(shares):
        raise ParameterError(f"{len(kinds)} stages and {len(shares)} shares; give one share above 0 for each stage")
    if not all(math.isfinite(share) and share > 0 for share in shares):
        raise ParameterError(f"shares are {tuple(shares)!r}; each must be a finite number above 0")
    total = math.fsum(shares)
    parts = tuple(share / total for share in shares)
    if ApproximateDP in kinds and share_delta:
        rule, losses = "(share * epsilon, share * delta)", _added_up(kinds, parts, epsilon, delta)
    elif ApproximateDP in kinds:
        rule, losses = "(share * epsilon, delta) as published", _as_published(kinds, parts, epsilon, delta)
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


def _as_published(
    kinds: Sequence[type[Loss]], shares: Sequence[float], epsilon: float, delta: float
) -> tuple[Loss, ...]:
    return tuple(_buyer(kind)(share * epsilon, delta) for kind, share in zip(kinds, shares, strict=True))


def _added_up(kinds: Sequence[type[Loss]], shares: Sequence[float], epsilon: float, delta: float) -> tuple[Loss, ...]:
    below = delta * (1 - _HEADROOM)
    return tuple(_buyer(kind)(share * epsilon, share * below) for kind, share in zip(kinds, shares, strict=True))


def _buyer(kind: type[Loss]) -> Callable[[float, float], Loss]:
    return _whole_approximate if kind is ApproximateDP else _kind(kind).whole


def _to_common_scale(
    kinds: Sequence[type[Loss]], shares: Sequence[float], epsilon: float, delta: float
) -> tuple[Loss, ...]:
    blocks = {kind: math.fsum(s for k, s in zip(kinds, shares, strict=True) if k is kind) for kind in kinds}
    unit = {kind: scaled(_kind(kind).whole(1.0, delta), block) for kind, block in blocks.items()}
    base = [_kind(kind).part(unit[kind], share / blocks[kind]) for kind, share in zip(kinds, shares, strict=True)]
    factor = _largest_scale(base, epsilon * (1 - _HEADROOM), delta)
    return tuple(scaled(loss, factor) for loss in base)
