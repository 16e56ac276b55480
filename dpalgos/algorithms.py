"""The contract every projection and trainer keeps, and the one function that runs any of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from dpalgos.guarantees import Claim, Guarantee, Loss, Setting, Trust
from dpalgos.noise import NoiseSource
from dpalgos.rows import Rows
from dpalgos.summation import SumAlgorithm, Summation, TrustedSummation, run_sums

__all__ = ["Algorithm", "Diagnosing", "DirectAlgorithm", "fit", "is_sum_algorithm"]


class Algorithm(Protocol):
    """What a registered projection or trainer says about itself: frozen dataclass, parameters validated when made.

    Private algorithms have a field ``budget`` holding one of the loss types in ``budgets``; ``guarantee`` says what
    that budget buys in a setting. Algorithms without a ``budget`` draw no noise.
    """

    source: ClassVar[str]
    """Paper, section, theorem or equation."""
    claim: ClassVar[Claim | None]
    """What the paper says; None where there is no paper's claim."""
    sound_counterpart: ClassVar[str | None]
    """For a published algorithm without proof: the registered name of the sound one. None for sound ones."""
    trusts: ClassVar[tuple[Trust, ...]]
    """Supported trust models, the default first."""
    budgets: ClassVar[tuple[type[Loss], ...]]
    """Loss types the ``budget`` field accepts, the preferred first; empty where no noise is drawn."""
    reads_rows: ClassVar[bool]
    """False for maps made from public parameters alone: those are no releases and cost nothing."""

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return what is proved, from public facts only."""
        ...


class ProjectionAlgorithm(Algorithm, Protocol):
    """What a projection adds: its output's dimension is public before any row is read."""

    def output_dimension(self, dimension: int) -> int:
        """Return the number of features after the map, from the number before it."""
        ...


@runtime_checkable
class DirectAlgorithm(Protocol):
    """An algorithm that reads the rows of one party (or of all, under ``central``) directly."""

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Any:
        """Return the artefact; total in what the rows contain."""
        ...


@runtime_checkable
class Diagnosing(Protocol):
    """What a direct algorithm may add: numbers about its training, for public data only.

    The numbers (an objective value, iterations, a duality gap) are computed from the rows without noise, whatever the
    release itself adds. A task may call ``diagnostics`` in place of ``fit`` where the rows are public, and then reports
    the numbers as metrics under the names given; on private rows it calls ``fit`` and there are none.
    """

    def diagnostics(
        self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource
    ) -> tuple[Any, dict[str, float]]:
        """Return the artefact that ``fit`` returns, and the numbers by metric name."""
        ...


def is_sum_algorithm(algorithm: Any) -> bool:
    """Whether an algorithm sees rows only through noisy integer sums (and so can run under ``secagg``)."""
    return hasattr(algorithm, "contribution")


def fit(
    algorithm: DirectAlgorithm | SumAlgorithm,
    parties: Sequence[Rows],
    setting: Setting,
    noise: NoiseSource,
    summation: Summation | None = None,
) -> Any:
    """Run an algorithm over the rows of one party or of several and return its artefact.

    Parameters
    ----------
    algorithm
        A registered projection or trainer, built.
    parties : sequence of Rows
        One entry under ``local``; all parties under ``central`` and ``secagg``.
    setting : Setting
        The same public facts the guarantee was stated for.
    noise : NoiseSource
        Handed out by the door.
    summation : Summation, optional
        How sums are formed; the plain sum by default.
    """
    if isinstance(algorithm, DirectAlgorithm):
        return algorithm.fit(parties, setting, noise)
    return run_sums(algorithm, parties, setting, summation or TrustedSummation(noise))
