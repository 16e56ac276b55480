"""A sum algorithm, cut where its rounds are: what a party masks in a step, and what the server makes of the sums.

Driven in this order the functions give bit for bit what :func:`dpalgos.summation.run_sums` gives over a
:class:`~dpalgos.secure.summation.SecureSummation`; between them a vector may travel, and a process may die. Nobody
hands on a state: it follows from the sums so far, which are released and public (:func:`state_after`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Setting
from dpalgos.noise import NoiseSource
from dpalgos.rows import ArrayRows, Ints, Rows
from dpalgos.secure.noise_shares import share_law
from dpalgos.secure.summation import allotments, noisy_contribution, scaled_to_all, weights_of
from dpalgos.secure.tolerance import Tolerance
from dpalgos.summation import SumAlgorithm, TrustedSummation


def step_name(step: int) -> str:
    """Return the name of a sum, as :func:`~dpalgos.summation.run_sums` calls it; it keys the noise."""
    return f"sum-{step}"


def state_after(algorithm: SumAlgorithm, sums: Sequence[Ints], setting: Setting) -> Any:
    """Return the server's state after some sums: post-processing, the same at whoever knows them.

    Parameters
    ----------
    algorithm : SumAlgorithm
    sums : sequence of array of int64
        As :func:`sum_of` returns them, flat or in shape.
    setting : Setting

    Raises
    ------
    ParameterError
        If one has another length than its step's sums have.
    """
    state = algorithm.initial(setting)
    for step, one in enumerate(sums):
        shape = _empty(algorithm, state, setting).shape
        if one.size != int(np.prod(shape, dtype=np.int64)):
            raise ParameterError(f"sum {step} has {one.size} numbers; this algorithm's have the shape {shape}")
        state = algorithm.update(state, one.reshape(shape), setting)
    return state


def _contribution(algorithm: SumAlgorithm, state: Any, rows: Rows, setting: Setting) -> Ints:
    prepare = getattr(algorithm, "prepare", None)
    given = rows if prepare is None else prepare(rows, setting)
    return algorithm.contribution(state, given, setting)


def _next_contribution(algorithm: SumAlgorithm, rows: Rows, setting: Setting, sums: Sequence[Ints]) -> Ints:
    """Return a party's contribution to the step after some sums, if there is one: each sum more would be unpaid."""
    steps = algorithm.steps(setting)
    if len(sums) >= steps:
        raise ParameterError(f"{len(sums)} sums are made; the algorithm has {steps}, and its guarantee pays for them")
    return _contribution(algorithm, state_after(algorithm, sums, setting), rows, setting)


def _empty(algorithm: SumAlgorithm, state: Any, setting: Setting) -> Ints:
    # Total in what rows contain, so also where there is none; the shape depends on public facts alone.
    none = ArrayRows(np.zeros((0, setting.dimension)), np.zeros(0, dtype=np.int64))
    return _contribution(algorithm, state, none, setting)


def lengths_of(algorithm: SumAlgorithm, setting: Setting) -> tuple[int, ...]:
    """Return how many numbers every party sends in each step, from public facts."""
    state, lengths = algorithm.initial(setting), []
    for step in range(algorithm.steps(setting)):
        nothing = _empty(algorithm, state, setting)
        lengths.append(int(nothing.size))
        if step + 1 < algorithm.steps(setting):
            state = algorithm.update(state, nothing, setting)
    return tuple(lengths)


@dataclass(frozen=True, slots=True)
class Block:
    """Steps one after another whose sums have one length, so that one key agreement serves them.

    Parameters
    ----------
    first : int
        Number of the first step.
    steps : int
    length : int
    """

    first: int
    steps: int
    length: int


def blocks_of(algorithm: SumAlgorithm, setting: Setting) -> tuple[Block, ...]:
    """Return an algorithm's steps in blocks of equal length, in order; from public facts."""
    blocks, first = [], 0
    for length, group in itertools.groupby(lengths_of(algorithm, setting)):
        steps = len(list(group))
        blocks.append(Block(first, steps, length))
        first += steps
    return tuple(blocks)


def require_shareable(algorithm: SumAlgorithm, setting: Setting, tolerance: Tolerance) -> None:
    """Refuse, from public facts and before anything is charged, noise that the parties cannot share.

    Raises
    ------
    ParameterError
        If no sharing of the algorithm's law is proved for this tolerance, or it could overflow.
    """
    first = int(_empty(algorithm, algorithm.initial(setting), setting).size)
    share = share_law(algorithm.law(setting), tolerance.unknown_shares, first)
    allotments(setting.sizes, share)


def vector_of(
    algorithm: SumAlgorithm,
    rows: Rows,
    setting: Setting,
    tolerance: Tolerance,
    party: int,
    noise: NoiseSource,
    sums: Sequence[Ints] = (),
) -> Ints:
    """Return what a party masks: its contribution and its noise share, one flat vector.

    Parameters
    ----------
    algorithm : SumAlgorithm
    rows : Rows
        The party's own.
    setting : Setting
        Of all parties.
    tolerance : Tolerance
    party : int
        Its number.
    noise : NoiseSource
        Its own, of this release.
    sums : sequence of array of int64
        Of the steps before this one.

    Raises
    ------
    ParameterError
        If the algorithm has no step more: its guarantee pays for as many as it has.
    """
    contribution = _next_contribution(algorithm, rows, setting, sums)
    share = share_law(algorithm.law(setting), tolerance.unknown_shares, contribution.size)
    return noisy_contribution(contribution, allotments(setting.sizes, share)[party], share, noise, step_name(len(sums)))


def noisy_sum_of(
    algorithm: SumAlgorithm, rows: Rows, setting: Setting, noise: NoiseSource, sums: Sequence[Ints] = ()
) -> Ints:
    """Return a party's contribution to a step with all the noise of the law, flat: what it may show by itself.

    Parameters and errors are those of :func:`vector_of`.
    """
    contribution = _next_contribution(algorithm, rows, setting, sums)
    released = TrustedSummation(noise).release(step_name(len(sums)), [contribution], algorithm.law(setting))
    return np.asarray(released, dtype=np.int64).reshape(-1)


def sum_of(algorithm: SumAlgorithm, total: Ints, survivors: Sequence[int], setting: Setting) -> Ints:
    """Return an unmasked sum as the algorithm takes it, flat: means are the survivors'.

    Parameters
    ----------
    algorithm : SumAlgorithm
    total : array (length,) of int64
    survivors : sequence of int
        Whose vectors the sum holds.
    setting : Setting
    """
    return scaled_to_all(total, weights_of(algorithm, setting), survivors)


def result_of(algorithm: SumAlgorithm, sums: Sequence[Ints], setting: Setting) -> Any:
    """Return what the server makes of all sums; post-processing.

    Raises
    ------
    ParameterError
        If there are not as many as the algorithm has steps.
    """
    if len(sums) != algorithm.steps(setting):
        raise ParameterError(f"{len(sums)} sums of {algorithm.steps(setting)}")
    return algorithm.result(state_after(algorithm, sums, setting), setting)


def artefact_of(algorithm: SumAlgorithm, total: Ints, survivors: Sequence[int], setting: Setting) -> Any:
    """Return what the server makes of the only sum of an algorithm of one step; post-processing.

    Parameters
    ----------
    algorithm : SumAlgorithm
    total : array (length,) of int64
    survivors : sequence of int
        Whose vectors the sum holds; means are theirs.
    setting : Setting
    """
    return result_of(algorithm, [sum_of(algorithm, total, survivors, setting)], setting)
