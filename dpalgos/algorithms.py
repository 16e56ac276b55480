"""The contract every projection, trainer and evaluator keeps, its base classes, and the one function that runs any."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Protocol, cast, runtime_checkable

import numpy as np

from dpalgos.errors import ParameterError
from dpalgos.guarantees import (
    RELATIONS,
    ApproximateDP,
    Claim,
    Guarantee,
    Loss,
    Neighbours,
    Numerics,
    PureEpsilon,
    Setting,
    Trust,
    nothing_proved,
)
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.models import Artefact
from dpalgos.neighbouring import NeighbouringPair, antipodal_pair
from dpalgos.noise import NoiseSource
from dpalgos.parameters import Bound, Bounded
from dpalgos.resources import Work, gathering_work
from dpalgos.rows import Array, ArrayRows, Ints, Rows
from dpalgos.summation import GAUSSIAN_BUDGETS, IntegerNoise, SumAlgorithm, Summation, TrustedSummation, run_sums


class Refused(str):
    """Why an algorithm takes no people of several rows, in one sentence that follows a colon."""


@dataclass(frozen=True, kw_only=True)
class Algorithm(Bounded, ABC):
    """What a registered algorithm says about itself: a frozen dataclass, its parameters validated when it is made.

    A subclass states ``source`` and whichever of the other class facts differ from what stands here, and says what is
    proved about it: ``guarantee``. Its parameters are its fields, which declare their bounds
    (:mod:`dpalgos.parameters`); what else it validates in ``__post_init__`` comes after that of the base classes.
    """

    source: ClassVar[str]
    """Paper, section, theorem or equation."""
    claim: ClassVar[Claim | None] = None
    """What the paper says; None where there is no paper's claim."""
    flaw_shows_at: ClassVar[tuple[float, float] | None] = None
    """The (epsilon, delta) at which an audit shows the flaw, where it shows at some budgets only."""
    sound_counterpart: ClassVar[str | None] = None
    """For an algorithm without proof: the registered name of the sound one. None for sound ones."""
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL, Trust.LOCAL)
    """Supported trust models, the default first."""
    relations: ClassVar[tuple[Neighbours, ...]] = (Neighbours.REPLACE_ONE,)
    """Neighbouring relations that the guarantee is derived for; under any other the algorithm is refused."""
    budgets: ClassVar[tuple[type[Loss], ...]] = ()
    """Loss types the ``budget`` field accepts, the preferred first; empty where no noise is drawn."""
    audited_rows: ClassVar[int] = 16
    """Rows of the party that an audit makes up: few, null but for those of the algorithm's neighbouring pair."""
    reads_rows: ClassVar[bool] = True
    """False for maps made from public parameters alone: those are no releases and cost nothing."""
    people: ClassVar[str] = Refused("its sensitivity is derived for one row, and not for a person's rows")
    """Why all rows of a person together, weighed, move it by no more than one row does; or a :class:`Refused`. Each
    class says it for itself, since an argument need not hold for what a subclass changes."""

    def check(self, setting: Setting) -> None:
        """Raise where the algorithm cannot run, or its proof does not hold, whatever the rows.

        Raises
        ------
        ParameterError
            Naming what does not fit the setting; subclasses add their own conditions.
        """
        if setting.neighbours.in_force() not in self.relations:
            raise ParameterError(
                f"the sensitivity of this algorithm is not derived for {setting.neighbours}; "
                f"use {' or '.join(self.relations)}"
            )
        if setting.rows_per_person > 1:
            require_people(type(self))

    @abstractmethod
    def guarantee(self, setting: Setting) -> Guarantee:
        """Return what is proved, from public facts only.

        Raises
        ------
        ParameterError
            As :meth:`check` does.
        """

    def work(self, setting: Setting) -> Work:
        """Return what a release asks of a machine; by default that of a solver that holds all rows."""
        return gathering_work(setting)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return the neighbours that the sensitivity proof says are worst, made up; what an audit tells apart.

        By default two antipodal unit rows of one class, or one against a null record, and nothing else but null
        records.

        Raises
        ------
        ParameterError
            If no party has a row.
        """
        return antipodal_pair(setting)


def admission(cls: type[Algorithm]) -> str:
    """Return why a class takes people of several rows, or a :class:`Refused`; what looks at no rows takes all."""
    if not cls.reads_rows:
        return "it looks at no rows"
    # A refusal is inherited, an argument is not.
    return cls.people if isinstance(cls.people, Refused) else vars(cls).get("people", Algorithm.people)


def require_people(cls: type[Algorithm]) -> None:
    """Raise where a class takes no people: for whoever plans on an account of people, whatever rows they have.

    Raises
    ------
    ParameterError
        With the class's own sentence.
    """
    admission_of_people = admission(cls)
    if isinstance(admission_of_people, Refused):
        raise ParameterError(
            f"{cls.__name__} takes no people, whose rows count as one record: {admission_of_people}; "
            "docs/guarantees.md says which algorithms take them"
        )


class ProjectionAlgorithm(Algorithm):
    """A projection: the dimension of its output is public before any row is read."""

    trusts: ClassVar[tuple[Trust, ...]] = (Trust.LOCAL, Trust.CENTRAL)

    @abstractmethod
    def output_dimension(self, dimension: int) -> int:
        """Return the number of features after the map, from the number before it."""


@dataclass(frozen=True, kw_only=True)
class PrivateAlgorithm(Algorithm):
    """An algorithm that draws noise: ``guarantee`` says what its ``budget`` buys in a setting.

    Parameters
    ----------
    budget : Loss
        Of one of the types in ``budgets``.
    """

    budget: Loss

    numerics: ClassVar[Numerics] = Numerics.IDEALISED
    """Of the guarantee: exact where noise is drawn in integers, of sums of integers from the row on."""
    assumptions: ClassVar[tuple[str, ...]] = ()
    """What the guarantee rests on beside the trust model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.budget, self.budgets):
            kind = getattr(self.budget, "kind", type(self.budget).__name__)
            kinds = " or ".join(loss.kind for loss in self.budgets)
            raise ParameterError(f"the budget is of type {kind!r}; this algorithm accepts {kinds}")
        for name, value in asdict(self.budget).items():
            Bound(0.0, open_low=True).require(f"the budget's {name}", value)

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget, which the noise is calibrated to; a class of which that is not true says what is."""
        self.check(setting)
        return Guarantee((self.budget,), setting.neighbours, self.numerics, self.assumptions)


@dataclass(frozen=True, kw_only=True)
class GaussianAlgorithm(PrivateAlgorithm):
    """A private algorithm that adds Gaussian noise to integers, calibrated to a μ or a ρ under either relation."""

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    budgets: ClassVar[tuple[type[Loss], ...]] = GAUSSIAN_BUDGETS
    numerics: ClassVar[Numerics] = Numerics.EXACT
    norm: ClassVar[int] = 2


@dataclass(frozen=True, kw_only=True)
class PureAlgorithm(PrivateAlgorithm):
    """A private algorithm whose budget is a pure ε.

    Parameters
    ----------
    budget : PureEpsilon
    """

    budget: PureEpsilon
    budgets: ClassVar[tuple[type[Loss], ...]] = (PureEpsilon,)


@dataclass(frozen=True, kw_only=True)
class ApproximateAlgorithm(PrivateAlgorithm):
    """A private algorithm whose budget is one (ε, δ).

    Parameters
    ----------
    budget : ApproximateDP
    """

    budget: ApproximateDP
    budgets: ClassVar[tuple[type[Loss], ...]] = (ApproximateDP,)


class Unproved(Algorithm):
    """An algorithm about which nothing is proved: as published with a flaw, or without any noise."""

    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    people: ClassVar[str] = Refused("nothing is proved of it")

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return none: the claim's flaw, or that no noise is drawn."""
        self.check(setting)
        flaw = self.claim.flaw if self.claim is not None else None
        return nothing_proved(flaw or "no noise is drawn", setting.neighbours)


class OneSum(Algorithm):
    """A sum algorithm of one step, whose state is the noisy sum itself."""

    adaptive: ClassVar[bool] = False
    """Whether what rows contribute depends on the sum so far, where sums are released night after night."""

    @abstractmethod
    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        """Return the shape of the sum, public."""

    @abstractmethod
    def distribution(self, setting: Setting) -> IntegerNoise:
        """Return the noise of the sum."""

    @abstractmethod
    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        """Return one party's integers; the state is nothing, or the running sum of nights before, as released."""

    @abstractmethod
    def result(self, state: Ints, setting: Setting) -> Artefact:
        """Return what is made of the noisy sum."""

    def steps(self, setting: Setting) -> int:
        """Return 1: one sum."""
        return 1

    def work(self, setting: Setting) -> Work:
        """Return that of one pass, two operations for each row and entry of the sum."""
        entries = math.prod(self.sum_shape(setting))
        return Work(operations=2.0 * setting.most_rows * entries, sums=2 * 8 * entries)

    def initial(self, setting: Setting) -> Ints:
        """Return an empty sum."""
        self.check(setting)
        return np.zeros(self.sum_shape(setting), dtype=np.int64)

    def update(self, state: Ints, noisy_sum: Ints, setting: Setting) -> Ints:
        """Return the noisy sum."""
        return noisy_sum


@runtime_checkable
class DirectAlgorithm(Protocol):
    """An algorithm that reads the rows of one party (or of all, under ``central``) directly."""

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Artefact:
        """Return the artefact; total in what the rows contain."""


@runtime_checkable
class Diagnosing(Protocol):
    """What a direct algorithm may add: numbers about its training, for public data only.

    The numbers (an objective value, iterations, a duality gap) are computed from the rows without noise, whatever the
    release itself adds. A task may call ``diagnostics`` in place of ``fit`` where the rows are public, and then reports
    the numbers as metrics under the names given; on private rows it calls ``fit`` and there are none.
    """

    def diagnostics(
        self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource
    ) -> tuple[Artefact, dict[str, float]]:
        """Return the artefact that ``fit`` returns, and the numbers by metric name."""


@runtime_checkable
class AdditiveNoise(Protocol):
    """What a direct algorithm may add: its release is made of one exact vector plus noise, and of nothing else.

    ``fit`` releases what it makes of one such noisy vector; an audit draws many at once.
    """

    def noisy(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource, count: int) -> Array:
        """Return the exact vector plus ``count`` independent draws of its noise, (count, p)."""


def is_sum_algorithm(algorithm: object) -> bool:
    """Whether an algorithm sees rows only through noisy integer sums (and so can run under ``secagg``)."""
    return hasattr(algorithm, "contribution")


def fit(
    algorithm: Algorithm | DirectAlgorithm | SumAlgorithm,
    parties: Sequence[Rows],
    setting: Setting,
    noise: NoiseSource,
    summation: Summation | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Artefact:
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
    progress : callable, optional
        Called with how many steps are done and of how many, where their number is public: for sums alone.
    """
    if isinstance(algorithm, DirectAlgorithm):
        return algorithm.fit(parties, setting, noise)
    artefact: Artefact = run_sums(
        cast(SumAlgorithm, algorithm), parties, setting, summation or TrustedSummation(noise), progress
    )
    return artefact


def planned_artefact(algorithm: Algorithm, setting: Setting) -> Artefact:
    """Return what an algorithm makes of no rows: of the kind, types and shapes that it gives whatever the rows are.

    Raises
    ------
    ParameterError
        If the algorithm does not run in this setting.
    """
    none = ArrayRows(np.zeros((0, setting.dimension)), np.zeros(0, dtype=np.int64))
    return fit(algorithm, [none] * len(setting.sizes), setting, KeyedNoise(public_secret(0), "planned"))
