"""The contract of projections, trainers and evaluators: work, neighbours, sums of integers, bases, what runs any."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol, Self, cast, runtime_checkable

import numpy as np

from dpalgos.guarantees import (
    RELATIONS,
    ApproximateDP,
    Claim,
    GaussianMu,
    Guarantee,
    Loss,
    Neighbours,
    Numerics,
    PureEpsilon,
    Setting,
    Trust,
    ZeroConcentrated,
    nothing_proved,
)
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.losses import outputs
from dpalgos.mechanisms.distributions import total_mu
from dpalgos.models import Artefact
from dpalgos.parameters import COUNT, Bound, Bounded, ParameterError
from dpalgos.rows import NULL_LABEL, Array, ArrayRows, Floats, Ints, NoiseSource, RandomStream, Rows, SpreadRows
from dpalgos.sentences import coded

SOLVER_LOOKS = 100
"""How often an exact minimiser looks at the rows, about, line searches included."""
SOLVER_COLUMNS = 8
"""Arrays of a number for each row and weight row that it holds: targets, scores, slopes, directions."""
# Of all eigenvectors of a symmetric matrix, over the cube of its width.
_DECOMPOSITION = 10.0
# Square matrices that are held where one is decomposed: itself, what is made of it, its vectors, work space.
_SQUARES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An estimate, not a bound.

    Parameters
    ----------
    passes : int
        How often every row is read.
    operations : float
        Floating-point operations of matrix products.
    small_operations : float
        Numbers that go through element-wise functions (exponentials, clipping, rounding) in addition to each row's
        encoding.
    kept : int
        Bytes that are kept between the passes; of rows that do not fit, some are read from disk at every pass.
    held : int
        Bytes of rows, and of numbers for each of them, that are held from beginning to end whether or not they fit.
    sums : int
        Bytes of what a core adds up, and of what is made of the sum; they do not grow with rows.
    row : int
        Bytes of a row on its way through a map.
    """

    passes: int = 1
    operations: float = 0.0
    small_operations: float = 0.0
    kept: int = 0
    held: int = 0
    sums: int = 0
    row: int = 0


def gathering_work(setting: Setting, *, rows: int | None = None, times: int = 1) -> Work:
    """Return the work of an algorithm that holds rows in float64 and minimises a risk over them.

    Parameters
    ----------
    setting : Setting
    rows : int, optional
        How many are held at once; all by default.
    times : int
        How often risks over all rows are minimised.
    """
    weights, looks = outputs(setting.classes), SOLVER_LOOKS * times
    products = float(setting.most_rows) * setting.dimension * weights
    return Work(
        passes=looks,
        operations=4.0 * products * looks,
        small_operations=float(setting.most_rows) * weights * looks,
        held=8
        * (setting.rows if rows is None else rows)
        * setting.rows_per_person
        * (setting.dimension + 1 + SOLVER_COLUMNS * weights),
        sums=8 * _SQUARES * setting.dimension**2,
    )


def covariance_work(setting: Setting) -> Work:
    """Return the work of one pass that adds up a d × d matrix, and of its eigenvectors."""
    square = setting.dimension**2
    return Work(
        operations=float(setting.most_rows) * (square + setting.dimension)
        + _DECOMPOSITION * float(setting.dimension) ** 3,
        sums=8 * _SQUARES * square,
    )


@dataclass(frozen=True, slots=True)
class NeighbouringPair:
    """Two data sets of one party that differ in one row; the other parties' rows are the same on both sides.

    Parameters
    ----------
    left, right : ArrayRows
        Of the party that differs, as many rows as ``setting.sizes[party]`` says.
    party : int
        Its position in ``setting.sizes``.
    """

    left: ArrayRows
    right: ArrayRows
    party: int = 0


def one_row_apart(
    setting: Setting, left: Floats, right: Floats, *, labels: tuple[float, float] = (0, 0)
) -> NeighbouringPair:
    """Return data sets whose first records are ``left`` and ``right``; all others are null records.

    They are rows of the smallest party that has any, where one row weighs most. Under ``replace-special`` the right one
    is a null record too.

    Parameters
    ----------
    setting : Setting
    left, right : array (d,)
    labels : (float, float)
        Of the two rows: class indices, or numeric labels where the setting has one class.

    Raises
    ------
    ParameterError
        If no party has rows.
    """
    inhabited = [index for index, size in enumerate(setting.sizes) if size > 0]
    if not inhabited:
        raise ParameterError(f"the parties' sizes are {setting.sizes}; give at least one row, which differs")
    party = min(inhabited, key=lambda index: setting.sizes[index])
    null = NULL_LABEL if setting.classes > 1 else math.nan

    def side(row: Floats, label: float) -> ArrayRows:
        features, known = np.zeros((setting.sizes[party], len(row))), np.full(setting.sizes[party], null)
        features[0], known[0] = row, label
        return ArrayRows(features, known.astype(np.int64) if setting.classes > 1 else known)

    if setting.neighbours.records == 1:
        right, labels = np.zeros_like(right), (labels[0], null)
    return NeighbouringPair(left=side(left, labels[0]), right=side(right, labels[1]), party=party)


def of_people(pair: NeighbouringPair, rows: int) -> NeighbouringPair:
    """Return neighbours that differ in one person, who has so many of the row in which they differed."""

    def side(single: ArrayRows) -> ArrayRows:
        times = np.where(np.arange(single.count) == 0, rows, 1)
        features, labels = np.repeat(single.features, times, axis=0), np.repeat(single.labels, times)
        return ArrayRows(
            features,
            labels,
            shares=np.repeat(times, times),
            people=single.count,
            places=np.repeat(np.arange(single.count), times),
        )

    return NeighbouringPair(left=side(pair.left), right=side(pair.right), party=pair.party)


def antipodal_pair(setting: Setting) -> NeighbouringPair:
    """Return e₁ against −e₁ in one class: ‖x − z‖ = 2, the most there is; against a null record, 1."""
    row = np.eye(1, setting.dimension)[0]
    return one_row_apart(setting, row, -row)


def orthogonal_pair(setting: Setting) -> NeighbouringPair:
    """Return e₁ against e₂ (zero where there is one feature): ‖xxᵀ − zzᵀ‖_F = √2, the most; against null, 1."""
    rows = np.eye(2, setting.dimension)
    return one_row_apart(setting, rows[0], rows[1])


@runtime_checkable
class Calibrated(Protocol):
    """An algorithm whose noise is calibrated to the sensitivity of one statistic of the rows.

    ``sensitivity`` is the supremum over neighbours under the relation of the setting, null records included, in the
    units of ``statistic``; rounding to a grid, where there is any, is added by the noise's distribution.
    """

    measured: ClassVar[str]
    """The statistic and the norm in which it moves, for people."""
    norm: ClassVar[int]
    """Order of that norm, 1 or 2."""

    def sensitivity(self, setting: Setting) -> float:
        """Return how far one record moves the statistic, at most."""

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the exact statistic of one party's rows, without noise: for synthetic rows, never for release."""

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return the neighbours that the proof says are worst."""


def moved(algorithm: Calibrated, setting: Setting, pair: NeighbouringPair) -> float:
    """Return how far the statistic moves from one neighbour to the other, in its norm.

    Parameters
    ----------
    algorithm : Calibrated
    setting : Setting
    pair : NeighbouringPair
        Of synthetic rows; the other parties' part of the statistic is the same on both sides.
    """
    difference = algorithm.statistic(pair.left, setting) - algorithm.statistic(pair.right, setting)
    return float(np.linalg.norm(difference.ravel(), ord=algorithm.norm))


def attained(algorithm: Calibrated, setting: Setting) -> float:
    """Return the share of the sensitivity by which the algorithm's own pair of neighbours moves its statistic."""
    return moved(algorithm, setting, algorithm.neighbouring_pair(setting)) / algorithm.sensitivity(setting)


class IntegerNoise(Protocol):
    """A distribution of integer noise with a proved cost (such as ``mechanisms.distributions.RoundedGaussian``)."""

    def sample(self, count: int, stream: RandomStream) -> Ints:
        """Return ``count`` independent integers, drawn from a :class:`~dpalgos.rows.RandomStream`."""


class Summation(Protocol):
    """Summation of the parties' integer vectors to one noisy integer vector."""

    def release(self, step: str, contributions: Sequence[Ints], distribution: IntegerNoise) -> Ints:
        """Return the sum of the contributions (equal shapes) plus noise; ask for each of them once."""


@dataclass(frozen=True, slots=True)
class TrustedSummation:
    """The plain sum with noise added once: one party by itself (local), or a trusted curator (central)."""

    noise: NoiseSource

    def release(self, step: str, contributions: Sequence[Ints], distribution: IntegerNoise) -> Ints:
        """Add exactly, then draw noise keyed by the exact sum."""
        one_by_one = iter(contributions)
        total = sum(one_by_one, start=next(one_by_one))
        return total + distribution.sample(total.size, self.noise.stream(step, total)).reshape(total.shape)


class SumAlgorithm(Protocol):
    """An algorithm whose every look at the rows is a noisy sum; what a party does and what the server does are apart.

    ``contribution`` is run by a party on its own rows; ``initial``, ``update`` and ``result`` see noisy sums only,
    so they are post-processing.
    """

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return what all steps together are proved to cost; depends on public facts only."""

    def steps(self, setting: Setting) -> int:
        """Return the number of sums, public."""

    def distribution(self, setting: Setting) -> IntegerNoise:
        """Return the noise of each sum, in grid units."""

    def initial(self, setting: Setting) -> Any:
        """Return the server's state before the first sum."""

    def contribution(self, state: Any, rows: Rows, setting: Setting) -> Ints:
        """Return one party's integer vector; total in what the rows contain."""

    def update(self, state: Any, noisy_sum: Ints, setting: Setting) -> Any:
        """Return the server's next state."""

    def result(self, state: Any, setting: Setting) -> Any:
        """Return the artefact."""


class _Contributions(Sequence[Ints]):
    """The parties' vectors of one sum, each formed when it is asked for: thousands of them are never there at once."""

    def __init__(self, form: Callable[[Rows], Ints], parties: Sequence[Rows]) -> None:
        self._form, self._parties = form, parties

    def __len__(self) -> int:
        return len(self._parties)

    def __iter__(self) -> Iterator[Ints]:
        # An IndexError of a contribution would end a sequence's own iteration: a sum of fewer parties, silently.
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, party: Any) -> Any:
        if isinstance(party, slice):
            return _Contributions(self._form, self._parties[party])
        rows = self._parties[party]
        return rows.total(self._form) if isinstance(rows, SpreadRows) else self._form(rows)


def run_sums(
    algorithm: SumAlgorithm,
    parties: Sequence[Rows],
    setting: Setting,
    summation: Summation,
    progress: Callable[[int, int], None] | None = None,
    record: Callable[[str, Ints], None] | None = None,
) -> Any:
    """Drive a sum algorithm to its end over the parties' rows and return its artefact.

    An algorithm of many steps may have a method ``prepare(rows, setting)``, run once a party: what it returns is handed
    to ``contribution`` in the rows' place, so that encoding is not done again at every step. It may also have a method
    ``merge(prepared)``, which returns fewer parties with the same sum of contributions: where one curator adds up
    anyway, thousands of parties of a few rows cost no more than one.

    ``progress`` is called after each step with how many are done, and of how many; both are public. ``record`` is
    called with each step's name and its noisy sum, which is all that the artefact is made of.
    """
    if not getattr(algorithm, "additive", False):
        parties = [rows.together() if isinstance(rows, SpreadRows) else rows for rows in parties]
    prepare, merge = getattr(algorithm, "prepare", None), getattr(algorithm, "merge", None)
    if prepare is not None:
        # Rows that are summed elsewhere stay there.
        parties = [rows if isinstance(rows, SpreadRows) else prepare(rows, setting) for rows in parties]
    if merge is not None and isinstance(summation, TrustedSummation):
        here = [rows for rows in parties if not isinstance(rows, SpreadRows)]
        parties = [*(merge(here) if here else ()), *(rows for rows in parties if isinstance(rows, SpreadRows))]
    state = algorithm.initial(setting)
    distribution = algorithm.distribution(setting)
    steps = algorithm.steps(setting)
    for step in range(steps):
        contributions = _Contributions(partial(algorithm.contribution, state, setting=setting), parties)
        noisy = summation.release(f"sum-{step}", contributions, distribution)
        if record is not None:
            record(f"sum-{step}", noisy)
        state = algorithm.update(state, noisy, setting)
        if progress is not None:
            progress(step + 1, steps)
    return algorithm.result(state, setting)


GAUSSIAN_BUDGETS: tuple[type[Loss], ...] = (GaussianMu, ZeroConcentrated)
"""Budgets that Gaussian noise can be calibrated to: rho-zCDP follows from mu = sqrt(2 rho)."""

# The grid is as fine as this where the noise allows: the encoding error is then far below any noise worth adding.
_FINEST = 16
_COARSEST = 6
_NOISE_ROOM = 2.0**43
_ROWS_ROOM = 60


def grid(budget: Loss, sensitivity: float, steps: int, setting: Setting) -> float:
    """Return the grid units per unit, a power of two, for both factors of a sum of outer products.

    Public: it depends on the budget and the sizes. Fine enough not to matter, coarse enough that neither the noise
    nor the sum over all rows leaves 64-bit integers.

    Parameters
    ----------
    budget : Loss
    sensitivity : float
        l2 sensitivity of one sum, before encoding.
    steps : int
        Number of sums.
    setting : Setting
    """
    noise = sensitivity * math.sqrt(steps) / total_mu(budget)
    for_noise = (math.log2(_NOISE_ROOM) - math.log2(noise)) / 2.0
    for_rows = (_ROWS_ROOM - math.log2(max(setting.rows, 1))) / 2.0
    return 2.0 ** max(_COARSEST, min(_FINEST, math.floor(min(for_noise, for_rows))))


class Refused(str):
    """The reason why an algorithm refuses people with several rows: a sentence that follows a colon."""


@dataclass(frozen=True, kw_only=True)
class Algorithm(Bounded, ABC):
    """Base of registered algorithms: a frozen dataclass whose parameters are validated at construction.

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
    norm: ClassVar[int] = 2
    """Order of the norm in which its statistic moves, 1 or 2 (:class:`Calibrated`)."""
    audited_rows: ClassVar[int] = 16
    """Rows of the party that an audit makes up: few, null but for those of the algorithm's neighbouring pair."""
    additive: ClassVar[bool] = True
    """Of a sum's contributions: whether those of parts of a party's rows add up to the party's, bit for bit. Not those
    of a minimiser over all of them, nor where a row's place among them counts: such rows are never summed apart."""
    reads_rows: ClassVar[bool] = True
    """False for maps made from public parameters alone: those are no releases and cost nothing."""
    people: ClassVar[str] = Refused("its sensitivity is derived for one row, not for all rows of a person")
    """Why all rows of a person together, weighed, move it by no more than one row does; or a :class:`Refused`. Each
    class says it for itself, since an argument need not hold for what a subclass changes."""

    def check(self, setting: Setting) -> None:
        """Raise if, for reasons other than the rows, the algorithm cannot run or its proof does not hold.

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

    def informed(self, artefacts: Sequence[Artefact]) -> Self:
        """Return the algorithm as it runs once it is known what its rows are seen through; by default itself.

        What is released beforehand may change what is made of the rows, and never the guarantee, the noise, or what
        comes out by kind, types and shapes.

        Parameters
        ----------
        artefacts : sequence
            The maps before it, in turn.
        """
        return self

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
        return "it reads no rows"
    # A refusal is inherited, an argument is not.
    return cls.people if isinstance(cls.people, Refused) else vars(cls).get("people", Algorithm.people)


def require_people(*classes: type[Algorithm]) -> None:
    """Raise where a class takes no people: called for every plan on an account of people, without regard to their rows.

    Parameters
    ----------
    *classes : type
        Of a release, its own and those that it is composed of.

    Raises
    ------
    ParameterError
        With the class's own sentence.
    """
    for cls in classes:
        if isinstance(refused := admission(cls), Refused):
            raise ParameterError(
                f"{cls.__name__} cannot protect people (all rows of a person as one record): {refused}; "
                "see the page Algorithms and guarantees of the documentation, which lists those that can"
            )


class ProjectionAlgorithm(Algorithm):
    """A projection: the dimension of its output is public before any row is read."""

    trusts: ClassVar[tuple[Trust, ...]] = (Trust.LOCAL, Trust.CENTRAL)

    @abstractmethod
    def output_dimension(self, dimension: int) -> int:
        """Return the number of features after the map, from the number before it."""


def require_components(components: int, dimension: int) -> None:
    """Raise unless rows have at least as many features as there are components.

    Raises
    ------
    ParameterError
        If they have fewer.
    """
    if components > dimension:
        raise ParameterError(
            f"{components} directions were requested and rows have {dimension} features; request at most {dimension}"
        )


@dataclass(frozen=True, kw_only=True)
class Directions(ProjectionAlgorithm):
    """A projection onto as many directions as are asked for.

    Parameters
    ----------
    components : int
        Number of directions k.
    """

    components: int = field(default=20, metadata=COUNT)

    def check(self, setting: Setting) -> None:
        """Raise where rows have fewer features than there are directions."""
        super().check(setting)
        require_components(self.components, setting.dimension)

    def output_dimension(self, dimension: int) -> int:
        """Return the number of directions."""
        return self.components


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
    """What the guarantee rests on besides the trust model, as codes (:mod:`dpalgos.sentences`)."""

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
    people: ClassVar[str] = Refused("nothing is proved about it")

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return none: the claim's flaw, or that no noise is drawn."""
        self.check(setting)
        flaw = self.claim.flaw if self.claim is not None else None
        return nothing_proved(flaw or coded("no-noise"), setting.neighbours)


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
    """Optional protocol of direct algorithms: numbers about the training, for public data only.

    The numbers (an objective value, iterations, a duality gap) are computed from the rows without noise, also if the
    release itself has noise. A task may call ``diagnostics`` in place of ``fit`` where the rows are public, and then
    reports the numbers as metrics under the names given; on private rows it calls ``fit`` and there are none.
    """

    def diagnostics(
        self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource
    ) -> tuple[Artefact, dict[str, float]]:
        """Return the artefact that ``fit`` returns, and the numbers by metric name."""


@runtime_checkable
class AdditiveNoise(Protocol):
    """Optional protocol of direct algorithms: the release depends on one exact vector plus noise, and on nothing else.

    ``fit`` releases what it makes of one such noisy vector; an audit draws many at once.
    """

    def noisy(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource, count: int) -> Array:
        """Return the exact vector plus ``count`` independent draws of its noise, (count, p)."""


def is_sum_algorithm(algorithm: object) -> bool:
    """Return whether an algorithm sees rows only through noisy integer sums (and so can run under ``secagg``)."""
    return hasattr(algorithm, "contribution")


def fit(
    algorithm: Algorithm | DirectAlgorithm | SumAlgorithm,
    parties: Sequence[Rows],
    setting: Setting,
    noise: NoiseSource,
    summation: Summation | None = None,
    progress: Callable[[int, int], None] | None = None,
    record: Callable[[str, Ints], None] | None = None,
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
    record : callable, optional
        Called with each step's name and noisy sum (:func:`run_sums`).
    """
    if isinstance(algorithm, DirectAlgorithm):
        return algorithm.fit(parties, setting, noise)
    return cast(
        Artefact,
        run_sums(
            cast(SumAlgorithm, algorithm), parties, setting, summation or TrustedSummation(noise), progress, record
        ),
    )


def planned_artefact(algorithm: Algorithm, setting: Setting) -> Artefact:
    """Return an algorithm's result for no rows: it has the kind, types and shapes of the result for any rows.

    Raises
    ------
    ParameterError
        If the algorithm does not run in this setting.
    """
    none = ArrayRows(np.zeros((0, setting.dimension)), np.zeros(0, dtype=np.int64))
    return fit(algorithm, [none] * len(setting.sizes), setting, KeyedNoise(public_secret(0), "planned"))
