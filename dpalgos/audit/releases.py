"""The audit of one registered release: many runs on neighbours, each release's outputs and ratios observed."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np

from dpalgos.accounting.costs import allocate
from dpalgos.algorithms import (
    AdditiveNoise,
    Algorithm,
    NeighbouringPair,
    SumAlgorithm,
    is_sum_algorithm,
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
from dpalgos.audit.neighbours import audited_pairs
from dpalgos.audit.ratios import is_gaussian, log_ratio, observed_ratio, run_watched
from dpalgos.columns import Column
from dpalgos.evaluators.column_histograms import ColumnHistograms
from dpalgos.evaluators.pair_counts import PairCounts
from dpalgos.guarantees import Neighbours, Setting, Trust
from dpalgos.keystream import KeyedNoise
from dpalgos.mechanisms.distributions import (
    DiscreteGaussian,
    DiscreteLaplace,
    RoundedGaussian,
    pack,
)
from dpalgos.models import Artefact, Projection
from dpalgos.parameters import ParameterError
from dpalgos.projections.principal import gram_matrix
from dpalgos.registry import construct, lookup
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats, NoiseSource, Rows

Noise = Callable[[bytes, str], NoiseSource]
"""Makes the noise of one run from a secret and an identity."""
# Each step of a descent is the same mechanism at a share of the budget: a few are as telling as many, and quicker.
_STEPS = 3
# At this regularisation one row alone moves a minimiser by as much as is proved: its slope is still at its end there.
_REGULARISATION = 1.0
# (features, classes): few numbers make strong tests, noise a coordinate shows in many, several classifiers may not
# be composed.
_SHAPES = ((2, 2), (40, 2), (2, 10))
# Features of a number that can be missing and of two categories.
_ALL_KINDS = 6
# Distributions whose draws are independent of each other, so that those of many runs are one long draw; others take
# so many times as long.
_INDEPENDENT = (RoundedGaussian, DiscreteGaussian, DiscreteLaplace)
_SLOWER = 100


def audited(kind: str, name: str) -> bool:
    """Return whether there is something to audit: an algorithm that reads rows and draws noise."""
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
    return audit_algorithm(
        audit_candidates(kind, name, options),
        dataclasses.replace(options, delta=delta),
        name=name,
        kind=kind,
        claimed_epsilon=epsilon if cls.claim is not None else None,
        progress=progress,
    )


def audit_candidates(kind: str, name: str, options: AuditOptions) -> list[tuple[Algorithm, Setting]]:
    """Return an algorithm as an audit builds it, for each setting that the audit tries.

    Parameters
    ----------
    kind, name : str
        Of a registered algorithm.
    options : AuditOptions
        Of these the budget and the relation; the algorithm's first relation where none is given.

    Returns
    -------
    list of (Algorithm, Setting)

    Raises
    ------
    UnknownNameError
        For a name that is not registered.
    """
    cls: type[Algorithm] = lookup(kind, name)
    (budget,) = allocate([cls.budgets[0]], [1.0], *options.budget(cls.flaw_shows_at)).losses
    return [
        (construct(cls, name, {**audit_parameters(cls, setting.dimension), "budget": budget}), setting)
        for setting in _settings(kind, cls, options.neighbours or cls.relations[0])
    ]


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
        # An evaluator's features are decision values, one for two classes, if they are not the cells of columns.
        values = 1 if classes == 2 else classes
        scores = kind == "evaluators" and "columns" not in _fields_of(cls)
        yield Setting(
            sizes=(cls.audited_rows,),
            dimension=values if scores else dimension,
            classes=classes,
            neighbours=neighbours,
            trust=trust,
        )


def audit_parameters(cls: type[Algorithm], dimension: int) -> dict[str, object]:
    """Return the fields that an audit sets in addition to the budget, of those that exist: few steps, all directions.

    Of columns whose cells are counted there are a number that can be missing, and where there are features for more of
    them two categories, of three values and of one, and numbers.
    """
    fields = _fields_of(cls)
    wanted: dict[str, object] = {"components": dimension, "nights": _STEPS}
    wanted |= {"iterations": _STEPS} if "iterations" in fields else {"regularisation": _REGULARISATION}
    # Others count bins that rows have already: their field of that name is how many columns there are.
    wanted |= {"columns": audited_columns(dimension)} if issubclass(cls, (ColumnHistograms, PairCounts)) else {}
    return {name: value for name, value in wanted.items() if name in fields}


def _fields_of(cls: type[Algorithm]) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


def audited_columns(dimension: int) -> tuple[Column, ...]:
    """Return columns of a table of so many features: of each kind, where there is room, and numbers of the rest."""
    if dimension < 2:
        return (Column(at=0),)
    lacking = Column(at=0, missing=1)
    if dimension < _ALL_KINDS:
        return (lacking, *(Column(at=place) for place in range(2, dimension)))
    categories = (Column(at=2, values=3), Column(at=5, values=1))
    return (lacking, *categories, *(Column(at=place) for place in range(_ALL_KINDS, dimension)))


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
    for pair_name, pair, started, place in audited_pairs(algorithm, setting):
        label = f"{pair_name}, {shape_of(setting.dimension, setting.classes)}"
        secret = hashlib.sha256(f"{salt}/{label}".encode()).digest()

        def noise_of(world: bool, trial: int, secret: bytes = secret) -> NoiseSource:
            return noise(secret, f"{trial}/{world}")

        experiments.append(_experiment(label, started, place, pair, noise_of))
    return experiments


def shape_of(dimension: int, classes: int) -> str:
    """Describe the size of a setting."""
    return f"{dimension} feature{'s' * (dimension > 1)} and {classes} classes"


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
