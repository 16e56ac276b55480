"""Algorithms of one sum, released night after night over a horizon at one price.

What a night contributes and what is made of a running sum is the algorithm's own; between them stands the factor
(:mod:`dpalgos.mechanisms.factorisation`). A night may contribute in view of the running sum of the nights before, as
gradients do, which are taken at the model that it makes: the algorithm says so (``adaptive``), and its state is that
sum. The noise of each night is that of the algorithm on the budget μ/‖Ĉe₁‖₂:
its distribution is a Gaussian mechanism for integers of whatever sensitivity, so that a sum ĉ x costs ĉ times what x
would cost, and the whole horizon costs μ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, cast, runtime_checkable

import numpy as np

from dpalgos.aggregators import Aggregator
from dpalgos.algorithms import GAUSSIAN_BUDGETS, IntegerNoise, OneSum
from dpalgos.errors import ParameterError
from dpalgos.guarantees import RELATIONS, GaussianMu, Guarantee, Loss, Neighbours, Setting
from dpalgos.mechanisms.factorisation import GRID, ToeplitzFactor
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian, total_mu
from dpalgos.mechanisms.symmetric import SymmetricRoundedGaussian
from dpalgos.models import Artefact, Statistic
from dpalgos.resources import Work
from dpalgos.rows import Floats, Ints, Rows

_LARGEST_SUM = 2.0**62
_CHOICES = "--trainer class-means, --trainer ftrl or --trainer sufficient-statistics"


@runtime_checkable
class NightlyRows(Protocol):
    """A party's rows of tonight, its frozen sums of the nights before, and what was released of those."""

    def released(self) -> Sequence[Ints]:
        """Return y_1 … of all nights before tonight; public."""

    def sum_of(self, night: int, form: Callable[[Rows], Ints]) -> Ints:
        """Return the sum of a night as it was frozen; where it was not, form it of that night's rows and freeze it."""


def nightly_budget(budget: Loss, factor: ToeplitzFactor) -> GaussianMu:
    """Return the budget on which one night's sum by itself is calibrated, so that the horizon costs ``budget``.

    μ/‖Ĉe₁‖₂, rounded down.

    Raises
    ------
    ParameterError
        If the budget is not one of Gaussian noise.
    """
    if not isinstance(budget, GAUSSIAN_BUDGETS):
        raise ParameterError(f"a horizon's noise is Gaussian and takes a mu or a rho, not {budget.kind}")
    return GaussianMu(total_mu(budget) / factor.norm * (1.0 - 2.0**-50))


def night_again(budget: Loss, factor: ToeplitzFactor) -> GaussianMu:
    """Return what one night costs that is drawn once more, rounded up: see :mod:`dpalgos.mechanisms.factorisation`."""
    return GaussianMu(total_mu(budget) * (factor.largest_entry / factor.norm) * (1.0 + 2.0**-50))


def require_gaussian_sum(algorithm: object, setting: Setting, also: tuple[int, ...] | None = None) -> OneSum:
    """Return an algorithm whose sums may be released night after night.

    Parameters
    ----------
    algorithm : object
    setting : Setting
    also : tuple of int, optional
        Sizes at which the noise is to be the same, for sums of all nights are decoded on one grid.

    Raises
    ------
    ParameterError
        If it is not one Gaussian sum, sums of a horizon could leave 64-bit integers, or its noise depends on the sizes.
    """
    distribution = algorithm.distribution(setting) if isinstance(algorithm, OneSum) else None
    if not (isinstance(algorithm, OneSum) and isinstance(distribution, RoundedGaussian | SymmetricRoundedGaussian)):
        raise ParameterError(
            f"{type(algorithm).__name__} is not one sum with Gaussian noise, which is what a horizon releases night "
            f"after night; choose {_CHOICES}"
        )
    (loss,) = algorithm.guarantee(setting).losses
    # A row adds no more than its sensitivity against a null record to any entry, and no coefficient exceeds the grid's.
    largest = setting.rows * GRID * distribution.sigma * total_mu(loss)
    if largest >= _LARGEST_SUM:
        raise ParameterError(
            f"{setting.rows} rows over a horizon could reach {largest:.2g} grid units, and sums must stay below 2^62; "
            "expect fewer rows, or choose a smaller --epsilon, whose grid is coarser"
        )
    if also is not None and algorithm.distribution(replace(setting, sizes=also)) != distribution:
        raise ParameterError(
            f"{type(algorithm).__name__} has other noise for {sum(also)} rows than for {setting.rows}, and a horizon "
            f"has one noise however many have arrived; choose {_CHOICES}, or expect fewer rows (--expected-rows)"
        )
    return algorithm


@dataclass(frozen=True, kw_only=True)
class NightSum(OneSum):
    """One night of a horizon: y_t = Σ_{s ≤ t} ĉ_{t−s} x_s with noise once.

    Guarantee
    ---------
    Of all nights of the horizon together, this one included, whichever of them are released: the budget
    (:mod:`dpalgos.mechanisms.factorisation`). A record is a row, or a person with the rows of each night in which the
    person takes part; which nights these are depends on no row.

    Parameters
    ----------
    inner : OneSum
        The algorithm, on :func:`nightly_budget`.
    budget : GaussianMu or ZeroConcentrated
        Of the horizon.
    factor : ToeplitzFactor
    night : int
        From 1.
    """

    inner: OneSum
    budget: Loss
    factor: ToeplitzFactor
    night: int

    source: ClassVar[str] = "running sums by factorisation, Denisov et al. 2022; Fichtenberger et al. 2023"
    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    people: ClassVar[str] = (
        "who takes part in which night follows from arrivals alone; a night's rows of a person are one record there"
    )

    def check(self, setting: Setting) -> None:
        """Raise where the algorithm cannot run, or not night after night."""
        super().check(setting)
        require_gaussian_sum(self.inner, setting)
        self.inner.check(setting)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return what the whole horizon costs: the budget."""
        self.check(setting)
        once = self.inner.guarantee(setting)
        # A record of one row at most may be a row or a person.
        one, many = ("record", "records") if setting.rows_per_person == 1 else ("person", "people")
        shared = f"a {one} takes part in {_times(self.factor)}, and how many {many} arrive in which night is public"
        return replace(once, losses=(self.budget,), assumptions=(*once.assumptions, shared))

    def work(self, setting: Setting) -> Work:
        """Return that of the nights whose sums take part."""
        once, nights = self.inner.work(setting), min(self.night, self.factor.kept_nights)
        return replace(
            once,
            passes=once.passes * nights,
            operations=once.operations * nights,
            small_operations=once.small_operations * nights,
        )

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return the shape of a night's sum."""
        return self.inner.sum_shape(setting)

    def distribution(self, setting: Setting) -> IntegerNoise:
        """Return the noise of the night."""
        return self.inner.distribution(setting)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return the party's (Ĉx)_t; of rows without earlier nights, that of tonight's alone."""
        if not isinstance(rows, NightlyRows):
            return self.factor.coefficients[0] * self.inner.contribution(state, rows, setting)
        before = state_after(self.factor, rows.released(), self.inner, setting) if self.inner.adaptive else state

        def form(of: Rows) -> Ints:
            return self.inner.contribution(before, of, setting)

        total = np.zeros_like(state)
        for night in range(max(1, self.night - self.factor.kept_nights + 1), self.night + 1):
            total += self.factor.coefficients[self.night - night] * rows.sum_of(night, form)
        return total

    def result(self, state: Ints, setting: Setting) -> Artefact:
        """Return y_t as it is."""
        return Statistic(values=cast(Floats, state))


def _times(factor: ToeplitzFactor) -> str:
    if factor.participations == 1:
        return "one night of the horizon"
    return f"up to {factor.participations} nights of the horizon, any two at least {factor.separation} apart"


def state_after(factor: ToeplitzFactor, released: Sequence[Floats | Ints], inner: OneSum, setting: Setting) -> Ints:
    """Return what the next night's sums are formed at: the running sum of the nights before, zero before the first."""
    if not released:
        return np.zeros(inner.sum_shape(setting), dtype=np.int64)
    return cast(Ints, decode_running_sum(factor, released))


def decode_running_sum(factor: ToeplitzFactor, released: Sequence[Floats | Ints]) -> Floats:
    """Return the running sum of the last night behind y_1 … y_t; post-processing.

    Parameters
    ----------
    factor : ToeplitzFactor
    released : sequence of array
        Of equal shapes, one a night.
    """
    weights = factor.decoder(len(released))
    return np.asarray(sum(weight * noisy for weight, noisy in zip(weights, released, strict=True)))


def model_of(
    inner: OneSum,
    factor: ToeplitzFactor,
    released: Sequence[Floats | Ints],
    setting: Setting,
    sizes: tuple[int, ...],
) -> Artefact:
    """Return what the algorithm makes of the running sum of the last night.

    Parameters
    ----------
    inner : OneSum
        On :func:`nightly_budget`.
    factor : ToeplitzFactor
    released : sequence of array
    setting : Setting
        Under which the nights were released; its noise factor is that of one night's sum.
    sizes : tuple of int
        Rows of each party that have arrived, from which means are taken.

    Raises
    ------
    ParameterError
        If the algorithm's noise for as many rows as have arrived is another one.
    """
    require_gaussian_sum(inner, setting, sizes)
    setting = replace(setting, sizes=sizes)
    louder = replace(setting, noise_factor=setting.noise_factor * factor.amplification(len(released)))
    return inner.result(cast(Ints, decode_running_sum(factor, released)), louder)


@dataclass(frozen=True, kw_only=True)
class RunningSumModel(Aggregator[Statistic]):
    """Make a model of the nights released so far (:func:`model_of`); post-processing.

    Parameters
    ----------
    inner : OneSum
        On :func:`nightly_budget`.
    factor : ToeplitzFactor
    setting : Setting
    sizes : tuple of int
        Rows of each party that have arrived.
    """

    inner: OneSum
    factor: ToeplitzFactor
    setting: Setting
    sizes: tuple[int, ...]

    source: ClassVar[str] = NightSum.source
    combines: ClassVar[str] = Statistic.kind

    def combine(self, artefacts: Sequence[Statistic], weights: Floats) -> Artefact:  # type: ignore[override]  # of sums alone
        """Return the model of the last night; weights are the factor's own."""
        return model_of(self.inner, self.factor, [one.values for one in artefacts], self.setting, self.sizes)
