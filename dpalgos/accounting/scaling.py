"""What a loss becomes for several rows a person, under another neighbouring relation, or with more or less noise."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import singledispatch

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
)

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

    The k rows may lie in several parties for what :mod:`dpalgos.accounting.filters` adds up: each of these quantities
    s(k) is convex with s(0) = 0, so ``s(a) <= (a/k) s(k)``; a person with ``a_p`` rows at party p costs at most
    ``sum over p of (a_p / k) S_p(k)``, which is at most the maximum of S_p(k) over the parties.

    Raises
    ------
    ParameterError
        If ``rows`` is not a whole number of at least 1, or the loss type is unknown.
    """
    if not (isinstance(rows, int) and rows >= 1):
        raise ParameterError(f"rows a person is {rows!r}; it must be a whole number, at least 1")
    return loss if rows == 1 else _group(loss, rows)


@singledispatch
def _group(loss: object, rows: int) -> Loss:
    raise ParameterError(f"{loss!r} is no known loss type; nothing is known about groups")


@_group.register
def _(loss: PureEpsilon, rows: int) -> Loss:
    return PureEpsilon(rows * loss.epsilon)


@_group.register
def _(loss: GaussianMu, rows: int) -> Loss:
    return GaussianMu(rows * loss.mu)


@_group.register
def _(loss: ZeroConcentrated, rows: int) -> Loss:
    return ZeroConcentrated(rows * rows * loss.rho)


@_group.register
def _(loss: ApproximateDP, rows: int) -> Loss:
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


@_group.register
def _(loss: SlackGaussian, rows: int) -> Loss:
    return NoGuarantee(
        "what is revealed with a small probability (by sampling, or by an overrun of a deadline) is bounded for one "
        f"row, and nothing is proved for {rows} rows or a relation that takes {rows} steps; choose an algorithm that "
        "uses all rows, no --deadline, one row a person, or the account's own --neighbours"
    )


@_group.register
def _(loss: PrivateSelection, rows: int) -> Loss:
    selected, each = _group(loss.selected, rows), rows * loss.mu
    if isinstance(selected, ApproximateDP):
        return replace(loss, epsilon=selected.epsilon, delta=selected.delta, mu=each)
    return replace(loss, mu=each).all_candidates


@_group.register
def _(loss: NoGuarantee, rows: int) -> Loss:
    return loss


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


@singledispatch
def scaled(loss: object, factor: float) -> Loss:
    """Return the loss of the same release with ``factor`` times less noise: epsilon and mu times it, rho its square.

    Delta of an (epsilon, delta) loss stays. These are the losses that a budget can be; others raise.
    """
    raise ParameterError(f"{loss!r} is no known loss type; it cannot be scaled")


@scaled.register
def _(loss: PureEpsilon, factor: float) -> Loss:
    return PureEpsilon(factor * loss.epsilon)


@scaled.register
def _(loss: GaussianMu, factor: float) -> Loss:
    return GaussianMu(factor * loss.mu)


@scaled.register
def _(loss: ZeroConcentrated, factor: float) -> Loss:
    return ZeroConcentrated(factor * factor * loss.rho)


@scaled.register
def _(loss: ApproximateDP, factor: float) -> Loss:
    return ApproximateDP(factor * loss.epsilon, loss.delta)
