"""The audit of one registered release: its worst neighbours, many runs on them, and what noisy sums say of which."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import cast

import numpy as np

from dpalgos.accounting.costs import allocate
from dpalgos.algorithms import (
    AdditiveNoise,
    Algorithm,
    DirectAlgorithm,
    IntegerNoise,
    NeighbouringPair,
    Refused,
    SumAlgorithm,
    TrustedSummation,
    admission,
    fit,
    is_sum_algorithm,
    of_people,
    run_sums,
)
from dpalgos.audit.bounds import Outputs
from dpalgos.audit.experiment import (
    GAUSSIAN_RATIO,
    RATIO,
    USUAL,
    AuditOptions,
    AuditReport,
    Experiment,
    Stated,
    audit_experiments,
    one_by_one,
)
from dpalgos.guarantees import Neighbours, Setting, Trust
from dpalgos.keystream import KeyedNoise
from dpalgos.mechanisms.distributions import (
    DiscreteGaussian,
    DiscreteLaplace,
    RoundedGaussian,
    SymmetricDiscreteGaussian,
    SymmetricRoundedGaussian,
    SymmetricRoundedRadial,
    pack,
    to_vector,
)
from dpalgos.models import Artefact, Projection
from dpalgos.parameters import ParameterError
from dpalgos.projections.covariance import gram_matrix
from dpalgos.registry import construct, lookup
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats, Ints, NoiseSource, Rows
from dpalgos.secure.noise_shares import RoundedRadial, TruexGaussian
from dpalgos.trainers.gradient_descent import GradientSumTrainer

_Gaussian = RoundedGaussian | SymmetricRoundedGaussian | TruexGaussian | DiscreteGaussian | SymmetricDiscreteGaussian


def is_gaussian(distribution: object) -> bool:
    """Whether a distribution is that of a Gaussian mechanism, up to its rounding."""
    return isinstance(distribution, _Gaussian)


def score_of_sums(noisy: Floats, left: Floats, right: Floats, sigma: float) -> Floats:
    """Return the log-likelihood ratio of noisy sums, of left to right, for normal noise of deviation ``sigma``.

    Over steps that may depend on each other, ratios add up: given the past, each step is a Gaussian mechanism.

    Parameters
    ----------
    noisy : array (T, p)
        The sums of T runs.
    left, right : array (p,) or (T, p)
        The exact ones on either neighbour.
    sigma : float

    Returns
    -------
    array (T,)
    """
    return np.asarray(((noisy - 0.5 * (left + right)) * (left - right)).sum(axis=1) / sigma**2)


@singledispatch
def log_ratio(distribution: object, noisy: Floats, left: Floats, right: Floats) -> Floats | None:
    """Return the log-likelihood ratios of left to right of noisy sums, or None for an unknown distribution.

    The rounding of the noise is left out, so the ratio is exact only for fine grids. A score needs no more: bounds hold
    for events of any score.

    Parameters
    ----------
    distribution : IntegerNoise
    noisy, left, right
        As for :func:`score_of_sums`.
    """
    return None


@log_ratio.register(RoundedGaussian)
@log_ratio.register(DiscreteGaussian)
@log_ratio.register(TruexGaussian)
@log_ratio.register(SymmetricRoundedGaussian)
@log_ratio.register(SymmetricDiscreteGaussian)
def _(distribution: _Gaussian, noisy: Floats, left: Floats, right: Floats) -> Floats | None:
    lengths = _lengths(distribution)
    return score_of_sums(noisy * lengths, left * lengths, right * lengths, distribution.sigma)


@log_ratio.register
def _(distribution: DiscreteLaplace, noisy: Floats, left: Floats, right: Floats) -> Floats | None:
    return np.asarray((np.abs(noisy - right) - np.abs(noisy - left)).sum(axis=1) / distribution.scale)


@log_ratio.register(RoundedRadial)
@log_ratio.register(SymmetricRoundedRadial)
def _(
    distribution: RoundedRadial | SymmetricRoundedRadial, noisy: Floats, left: Floats, right: Floats
) -> Floats | None:
    away = [np.linalg.norm((noisy - exact) * _lengths(distribution), axis=1) for exact in (right, left)]
    return np.asarray((away[0] - away[1]) / distribution.scale)


def _lengths(distribution: object) -> Floats | float:
    """Return the lengths of the coordinates of a symmetric matrix in the isometry that noise is drawn by, or 1."""
    if isinstance(distribution, SymmetricRoundedGaussian | SymmetricDiscreteGaussian | SymmetricRoundedRadial):
        return to_vector(np.ones((distribution.dimension, distribution.dimension)))
    return 1.0


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """One run.

    Parameters
    ----------
    artefact : Artefact
    ratio : float or None
        Log-likelihood ratio of left to right of all its noisy sums; None where a distribution is not known, or rows are
        read directly.
    gaussian : bool
        Whether all its noise is that of Gaussian sums.
    noise : tuple of array
        What each step's noise was if the run was on the left neighbour.
    """

    artefact: Artefact
    ratio: float | None
    gaussian: bool
    noise: tuple[Floats, ...] = ()


def observed_ratio(runs: Sequence[WatchedRun]) -> dict[str, Floats]:
    """Return the observable that holds what is known of all sums of some runs together; none where nothing is."""
    known = [run.ratio for run in runs if run.ratio is not None]
    gaussian = len(known) == len(runs) and all(run.gaussian for run in runs)
    return {GAUSSIAN_RATIO if gaussian else RATIO: np.array([sum(known)])} if known else {}


class _WatchedSummation:
    """The plain sum with noise added once, and each step's distribution, the noisy sum and either world's exact one.

    Parameters
    ----------
    noise : NoiseSource
    algorithm : SumAlgorithm
    setting : Setting
    other : Rows
        What the party that differs would hold on the other neighbour; its part is worked out in each step's state.
    party : int
        Which party that is.
    world : bool
        Whether the algorithm runs on the left neighbour.
    """

    def __init__(
        self, noise: NoiseSource, algorithm: SumAlgorithm, setting: Setting, other: Rows, party: int, world: bool
    ) -> None:
        self._inner = TrustedSummation(noise)
        self._algorithm, self._setting, self._party, self._world = algorithm, setting, party, world
        prepare = getattr(algorithm, "prepare", None)
        self._other, self._state = other if prepare is None else prepare(other, setting), algorithm.initial(setting)
        self.sums: list[tuple[IntegerNoise, Ints, Ints, Ints]] = []

    def release(self, step: str, contributions: Sequence[Ints], distribution: IntegerNoise) -> Ints:
        """Release the sum, and keep what was summed."""
        formed = list(contributions)
        noisy = self._inner.release(step, formed, distribution)
        own: Ints = sum(formed[1:], start=formed[0])
        theirs = own - formed[self._party] + self._algorithm.contribution(self._state, self._other, self._setting)
        self._state = self._algorithm.update(self._state, noisy, self._setting)
        self.sums.append((distribution, noisy, *((own, theirs) if self._world else (theirs, own))))
        return noisy


def run_watched(
    algorithm: Algorithm,
    setting: Setting,
    noise: NoiseSource,
    rows: Sequence[Rows],
    other: Rows,
    *,
    party: int = 0,
    world: bool = True,
) -> WatchedRun:
    """Run an algorithm on the left neighbour (``world``) or the right one.

    Parameters
    ----------
    algorithm, setting, noise
    rows : sequence of Rows
        The parties' rows on this neighbour.
    other : Rows
        What the party that differs holds on the other one.
    party : int
        Which party that is.
    world : bool
    """
    if not is_sum_algorithm(algorithm):
        return WatchedRun(fit(cast(DirectAlgorithm, algorithm), rows, setting, noise), ratio=None, gaussian=False)
    sums = cast(SumAlgorithm, algorithm)
    watched = _WatchedSummation(noise, sums, setting, other, party, world)
    artefact = run_sums(sums, rows, setting, watched)
    log_ratios = (
        log_ratio(distribution, *(array.reshape(1, -1).astype(np.float64) for array in of))
        for distribution, *of in watched.sums
    )
    ratios = [float(ratio[0]) for ratio in log_ratios if ratio is not None]
    return WatchedRun(
        artefact,
        ratio=sum(ratios) if len(ratios) == len(watched.sums) else None,
        gaussian=all(is_gaussian(distribution) for distribution, *_ in watched.sums),
        noise=tuple((noisy - left).ravel().astype(np.float64) for _, noisy, left, _ in watched.sums),
    )


Noise = Callable[[bytes, str], NoiseSource]
"""Makes the noise of one run from a secret and an identity."""

# Each step of a descent is the same mechanism at a share of the budget: a few are as telling as many, and quicker.
_STEPS = 3
# At this regularisation one row alone moves a minimiser by as much as is proved: its slope is still at its end there.
_REGULARISATION = 1.0
# (features, classes): few numbers make strong tests, noise a coordinate shows in many, several classifiers may not
# be composed.
_SHAPES = ((2, 2), (40, 2), (2, 10))
_LONG = 1e3
# Rows of a person, where people are taken.
_HEAVY = 50
# Distributions whose draws are independent of each other, so that those of many runs are one long draw; others take
# so many times as long.
_INDEPENDENT = (RoundedGaussian, DiscreteGaussian, DiscreteLaplace)
_SLOWER = 100


def audited(kind: str, name: str) -> bool:
    """Whether there is something to audit: an algorithm that reads rows and draws noise."""
    cls: type[Algorithm] = lookup(kind, name)
    return cls.reads_rows and bool(cls.budgets)


def audit_release(
    kind: str, name: str, options: AuditOptions = USUAL, *, progress: Callable[[int, int], None] | None = None
) -> AuditReport:
    """Run a registered release on its own worst neighbours many times, and bound its epsilon from below.

    Its budget is calibrated to (epsilon, delta), its other parameters are the defaults, but for few steps, as many
    directions as features and a regularisation at which its worst neighbours attain their sensitivity.

    Parameters
    ----------
    kind, name : str
        As registered, under ``projections``, ``trainers`` or ``evaluators``.
    options : AuditOptions
    progress : callable, optional
        As for :func:`audit_algorithm`.

    Raises
    ------
    UnknownNameError
        For a name that is not registered.
    ParameterError
        For numbers out of range, or a release that draws no noise.
    """
    cls: type[Algorithm] = lookup(kind, name)
    if not audited(kind, name):
        raise ParameterError(f"{name} draws no noise and claims nothing: there is nothing to audit")
    epsilon, delta = options.budget(cls.flaw_shows_at)
    (budget,) = allocate([cls.budgets[0]], [1.0], epsilon, delta).losses
    candidates = []
    for setting in _settings(kind, cls, options.neighbours or cls.relations[0]):
        algorithm = construct(cls, name, {**audit_parameters(cls, setting.dimension), "budget": budget})
        candidates.append((algorithm, setting))
    return audit_algorithm(
        candidates,
        dataclasses.replace(options, delta=delta),
        name=name,
        kind=kind,
        claimed_epsilon=epsilon if cls.claim is not None else None,
        progress=progress,
    )


def audit_algorithm(
    candidates: Sequence[tuple[Algorithm, Setting]],
    options: AuditOptions = USUAL,
    *,
    name: str,
    kind: str,
    claimed_epsilon: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    noise: Noise = KeyedNoise,
) -> AuditReport:
    """Audit an algorithm in the setting, and on the neighbours, that a few runs of each show most of.

    Parameters
    ----------
    candidates : sequence of (Algorithm, Setting)
        The algorithm as built for each setting; what is proved is the most that is proved in any.
    options : AuditOptions
        Budget and relation are those that the candidates were built for.
    name, kind : str
        For the report.
    claimed_epsilon : float or None
        What is claimed at delta where nothing is proved.
    progress : callable, optional
        Called with the number of runs that are done and that of all.
    noise : callable
        Makes each run's noise; for tests of broken sources.

    Raises
    ------
    ParameterError
        For fewer than eight trials.
    """
    guarantees = [algorithm.guarantee(setting) for algorithm, setting in candidates]
    salt = f"{options.seed}/{kind}/{name}"
    return audit_experiments(
        [one for candidate in candidates for one in experiments_on(*candidate, salt=salt, noise=noise)],
        Stated(
            delta=options.budget()[1],
            claimed_epsilon=claimed_epsilon,
            costs=[each.losses for each in guarantees] if all(each.proved for each in guarantees) else None,
        ),
        options,
        algorithm=name,
        kind=kind,
        neighbours=candidates[0][1].neighbours,
        progress=progress,
    )


def _settings(kind: str, cls: type[Algorithm], neighbours: Neighbours) -> Iterator[Setting]:
    trust = Trust.CENTRAL if Trust.CENTRAL in cls.trusts else cls.trusts[0]
    for dimension, classes in _SHAPES:
        # An evaluator's features are decision values: one for two classes.
        values = 1 if classes == 2 else classes
        yield Setting(
            sizes=(cls.audited_rows,),
            dimension=values if kind == "evaluators" else dimension,
            classes=classes,
            neighbours=neighbours,
            trust=trust,
        )


def audit_parameters(cls: type[Algorithm], dimension: int) -> dict[str, object]:
    """Return what an audit sets beside the budget, of the fields that there are: few steps, all directions."""
    fields = {field.name for field in dataclasses.fields(cls)}
    wanted: dict[str, object] = {"components": dimension, "nights": _STEPS}
    wanted |= {"iterations": _STEPS} if "iterations" in fields else {"regularisation": _REGULARISATION}
    return {name: value for name, value in wanted.items() if name in fields}


def experiments_on(algorithm: Algorithm, setting: Setting, *, salt: str, noise: Noise = KeyedNoise) -> list[Experiment]:
    """Return an experiment for each pair of neighbours that an algorithm is audited on.

    Parameters
    ----------
    algorithm, setting
    salt : str
        The noise's secret is made of it and of the pair.
    noise : callable
    """
    experiments = []
    for pair_name, pair, started, place in _pairs(algorithm, setting):
        label = f"{pair_name}, {shape_of(setting.dimension, setting.classes)}"
        secret = hashlib.sha256(f"{salt}/{label}".encode()).digest()

        def noise_of(world: bool, trial: int, secret: bytes = secret) -> NoiseSource:
            return noise(secret, f"{trial}/{world}")

        experiments.append(_experiment(label, started, place, pair, noise_of))
    return experiments


def shape_of(dimension: int, classes: int) -> str:
    """Describe the size of a setting."""
    return f"{dimension} feature{'s' * (dimension > 1)} and {classes} classes"


# ── neighbours ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _pairs(algorithm: Algorithm, setting: Setting) -> Iterator[tuple[str, NeighbouringPair, Algorithm, Setting]]:
    """Yield neighbours by name, with the algorithm to run on them and its setting."""
    worst = algorithm.neighbouring_pair(setting)
    yield "the worst pair of the proof", worst, algorithm, setting
    yield "the same, too long by far", _mapped(worst, lambda features: _LONG * features), algorithm, setting
    if setting.dimension > 1:
        yield "the same, turned to move all features", _mapped(worst, _turned), algorithm, setting
    if not isinstance(admission(type(algorithm)), Refused) and setting.rows_per_person == 1:
        heavy = dataclasses.replace(setting, rows_per_person=_HEAVY)
        yield f"the same, of a person with {_HEAVY} rows", of_people(worst, _HEAVY), algorithm, heavy
    if setting.classes > 1 and setting.neighbours is Neighbours.REPLACE_ONE:
        labels = worst.left.labels.copy()
        labels[0] = 1 - labels[0]
        flipped = NeighbouringPair(worst.left, ArrayRows(worst.left.features, labels), worst.party)
        yield "its left row with either label", flipped, algorithm, setting
    if isinstance(algorithm, GradientSumTrainer) and setting.classes == 2 and setting.dimension > 1:
        canaries = _canary_gradients(algorithm, setting, worst.party)
        yield "canary gradients of full length at steep weights", *canaries, setting


def _mapped(pair: NeighbouringPair, turn: Callable[[Floats], Floats]) -> NeighbouringPair:
    left, right = (ArrayRows(turn(rows.features), rows.labels) for rows in (pair.left, pair.right))
    return NeighbouringPair(left, right, pair.party)


def _turned(features: Floats) -> Floats:
    """Reflect rows so that the first feature's axis becomes (1, −1, 1, …)/√d; norms and angles stay."""
    dimension = features.shape[1]
    normal = -np.where(np.arange(dimension) % 2, -1.0, 1.0) / np.sqrt(dimension)
    normal[0] += 1.0
    return np.asarray(features - 2.0 * np.outer(features @ normal, normal) / (normal @ normal))


def _canary_gradients(
    algorithm: GradientSumTrainer[Floats], setting: Setting, party: int
) -> tuple[NeighbouringPair, Algorithm]:
    """Return rows whose gradients are as long as may be and opposite, and the descent begun at weights where they are.

    The server's first weights are public, and what is proved holds whatever they are. At steep weights along the first
    feature both rows lie far on the wrong side, where the slopes of all bounded losses are at their ends.
    """
    lean = 0.05
    side = float(np.sqrt(1.0 - lean**2))
    left, right = np.zeros((2, setting.sizes[party], setting.dimension))
    left[0, :2], right[0, :2] = (lean, side), (lean, -side)
    labels = np.full(setting.sizes[party], NULL_LABEL)
    labels[0] = 0
    other = labels.copy()
    if setting.neighbours.records == 1:
        right[0], other[0] = 0.0, NULL_LABEL
    pair = NeighbouringPair(ArrayRows(left, labels), ArrayRows(right, other), party)

    def moved(sign: float) -> tuple[float, _Started]:
        started = _Started(algorithm, _steep(algorithm, setting, sign * _LONG))
        sums = [algorithm.contribution(started.first, rows, setting) for rows in (pair.left, pair.right)]
        return float(np.linalg.norm((sums[0] - sums[1]).astype(np.float64))), started

    return pair, cast(Algorithm, max((moved(sign) for sign in (1.0, -1.0)), key=lambda each: each[0])[1])


def _steep(algorithm: GradientSumTrainer[Floats], setting: Setting, length: float) -> Floats:
    """Return a first state whose weights are long along the first feature, opposite for opposite classes."""
    state = algorithm.initial(setting)
    weights = algorithm.weights(state).copy()
    weights[:, 0] = length * np.linspace(1.0, -1.0, len(weights)) if len(weights) > 1 else length
    return weights if isinstance(state, np.ndarray) else dataclasses.replace(state, weights=weights)


@dataclass(frozen=True, slots=True)
class _Started:
    """A descent with another first state."""

    algorithm: GradientSumTrainer[Floats]
    first: Floats

    def initial(self, setting: Setting) -> Floats:
        return self.first

    def __getattr__(self, name: str) -> object:
        return getattr(self.algorithm, name)


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


_NoiseOf = Callable[[bool, int], NoiseSource]
"""The noise of each run of one experiment, by neighbour and trial."""


def _experiment(
    label: str, algorithm: Algorithm, setting: Setting, pair: NeighbouringPair, noise_of: _NoiseOf
) -> Experiment:
    worlds = {world: _parties(setting, pair, world) for world in (True, False)}
    sums = cast(SumAlgorithm, algorithm) if is_sum_algorithm(algorithm) else None
    if sums is not None and sums.steps(setting) == 1:
        return _one_sum(label, sums, setting, worlds, noise_of)
    distribution = getattr(algorithm, "distribution", None)
    gaussian = distribution is not None and is_gaussian(distribution(setting))
    if sums is None and isinstance(algorithm, AdditiveNoise):

        def runs(world: bool, first: int, count: int) -> Outputs:
            noisy = algorithm.noisy(worlds[world], setting, noise_of(world, first), count)
            return {"noisy vector": np.asarray(noisy, dtype=np.float64)}

        return Experiment(label, runs, numbers=runs(True, 0, 1)["noisy vector"].size, fitted=gaussian)

    def run(world: bool, trial: int) -> Outputs:
        rows, other = worlds[world], worlds[not world][pair.party]
        watched = run_watched(algorithm, setting, noise_of(world, trial), rows, other, party=pair.party, world=world)
        seen = observables(watched.artefact, [worlds[True], worlds[False]], setting) | observed_ratio([watched])
        for step, (before, after) in enumerate(itertools.pairwise(watched.noise), start=1):
            if before.shape == after.shape:
                # Zero in every run where a stream is used twice.
                seen[f"noise of sum {step} less that of sum {step - 1}, if left"] = after - before
        return seen

    return Experiment(label, one_by_one(run), gaussian=sums is not None and gaussian)


def _parties(setting: Setting, pair: NeighbouringPair, world: bool) -> list[Rows]:
    null = NULL_LABEL if setting.classes > 1 else np.nan
    return [
        (pair.left if world else pair.right)
        if party == pair.party
        else ArrayRows(np.zeros((size, setting.dimension)), np.full(size, null))
        for party, size in enumerate(setting.sizes)
    ]


def _one_sum(
    label: str, algorithm: SumAlgorithm, setting: Setting, worlds: dict[bool, list[Rows]], noise_of: _NoiseOf
) -> Experiment:
    """Return the experiment of one noisy sum: the exact ones are formed once, and noise is drawn for many runs."""
    state, distribution = algorithm.initial(setting), algorithm.distribution(setting)
    exact = {
        world: np.sum([algorithm.contribution(state, rows, setting).ravel() for rows in parties], axis=0)
        for world, parties in worlds.items()
    }
    size, together = exact[True].size, isinstance(distribution, _INDEPENDENT)

    def runs(world: bool, first: int, count: int) -> Outputs:
        stream = noise_of(world, first).stream("sum-0", exact[world])
        if together:
            draws = distribution.sample(count * size, stream).reshape(count, -1)
        else:
            draws = np.stack([distribution.sample(size, stream) for _ in range(count)])
        noisy = (exact[world] + draws).astype(np.float64)
        ratio = log_ratio(distribution, noisy, *(exact[side].astype(np.float64) for side in (True, False)))
        if ratio is None:
            return {"noisy sums": noisy}
        return {GAUSSIAN_RATIO if is_gaussian(distribution) else RATIO: ratio[:, None]}

    return Experiment(label, runs, numbers=size * (1 if together else _SLOWER))


def observables(artefact: Artefact, worlds: Sequence[Sequence[Rows]], setting: Setting) -> dict[str, Floats]:
    """Return everything that leaves with an artefact, as one vector an observable.

    Of a whole noisy covariance the least eigenvalue above either neighbour's exact one is an observable too: noise with
    a one-sided support shows in its sign.

    Parameters
    ----------
    artefact : Artefact
    worlds : sequence of sequences of Rows
        The parties' rows on either neighbour, synthetic.
    setting : Setting
    """
    seen = {name: np.asarray(array, dtype=np.float64).ravel() for name, array in artefact.arrays().items()}
    if isinstance(artefact, Projection) and artefact.basis.shape == (len(artefact.spectrum),) * 2:
        covariance = artefact.basis * artefact.spectrum @ artefact.basis.T
        seen["covariance"] = np.asarray(pack(covariance))
        for side, parties in zip(("left", "right"), worlds, strict=True):
            above = covariance - gram_matrix(parties, setting) / max(setting.rows, 1)
            seen[f"least eigenvalue above the {side}"] = np.asarray(np.linalg.eigvalsh(above)[:1], dtype=np.float64)
    return {name: vector for name, vector in seen.items() if vector.size}
