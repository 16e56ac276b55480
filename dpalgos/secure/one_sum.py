"""An algorithm of one sum, cut where its rounds are: what a party masks, and what the server makes of the sum.

Driven in this order the three functions give bit for bit what :func:`dpalgos.summation.run_sums` gives over a
:class:`~dpalgos.secure.summation.SecureSummation`; between them a vector may travel, and a process may die.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Setting
from dpalgos.noise import NoiseSource
from dpalgos.rows import ArrayRows, Ints, Rows
from dpalgos.secure.noise_shares import share_law
from dpalgos.secure.summation import allotments, noisy_contribution, scaled_to_all, weights_of
from dpalgos.secure.tolerance import Tolerance
from dpalgos.summation import SumAlgorithm

__all__ = ["STEP", "artefact_of", "length_of", "require_shareable", "vector_of"]

STEP = "sum-0"
"""The name of the only sum, as :func:`~dpalgos.summation.run_sums` calls it; it keys the noise."""


def _contribution(algorithm: SumAlgorithm, rows: Rows, setting: Setting) -> Ints:
    prepare = getattr(algorithm, "prepare", None)
    given = rows if prepare is None else prepare(rows, setting)
    return algorithm.contribution(algorithm.initial(setting), given, setting)


def _empty(algorithm: SumAlgorithm, setting: Setting) -> Ints:
    # Total in what rows contain, so also where there is none; the length depends on public facts alone.
    none = ArrayRows(np.zeros((0, setting.dimension)), np.zeros(0, dtype=np.int64))
    return _contribution(algorithm, none, setting)


def length_of(algorithm: SumAlgorithm, setting: Setting) -> int:
    """Return how many numbers every party sends, from public facts."""
    return int(_empty(algorithm, setting).size)


def require_shareable(algorithm: SumAlgorithm, setting: Setting, tolerance: Tolerance) -> None:
    """Refuse, from public facts and before anything is charged, noise that the parties cannot share.

    Raises
    ------
    ParameterError
        If no sharing of the algorithm's law is proved for this tolerance, or it could overflow.
    """
    share = share_law(algorithm.law(setting), tolerance.unknown_shares, length_of(algorithm, setting))
    allotments(setting.sizes, share)


def vector_of(
    algorithm: SumAlgorithm, rows: Rows, setting: Setting, tolerance: Tolerance, party: int, noise: NoiseSource
) -> Ints:
    """Return what a party masks: its contribution and its noise share, one flat vector.

    Parameters
    ----------
    algorithm : SumAlgorithm
        Of one step.
    rows : Rows
        The party's own.
    setting : Setting
        Of all parties.
    tolerance : Tolerance
    party : int
        Its number.
    noise : NoiseSource
        Its own, of this release.
    """
    if algorithm.steps(setting) != 1:
        raise ParameterError(f"{algorithm.steps(setting)} sums; only algorithms of one sum are cut at their rounds")
    contribution = _contribution(algorithm, rows, setting)
    share = share_law(algorithm.law(setting), tolerance.unknown_shares, contribution.size)
    return noisy_contribution(contribution, allotments(setting.sizes, share)[party], share, noise, STEP)


def artefact_of(algorithm: SumAlgorithm, total: Ints, survivors: Sequence[int], setting: Setting) -> Any:
    """Return what the server makes of the unmasked sum; post-processing.

    Parameters
    ----------
    algorithm : SumAlgorithm
    total : array (length,) of int64
    survivors : sequence of int
        Whose vectors the sum holds; means are theirs.
    setting : Setting
    """
    scaled = scaled_to_all(total, weights_of(algorithm, setting), survivors)
    state = algorithm.update(algorithm.initial(setting), scaled.reshape(_empty(algorithm, setting).shape), setting)
    return algorithm.result(state, setting)
