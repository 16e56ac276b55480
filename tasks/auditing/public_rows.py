"""Audits on public rows: of a canary among them, and of membership by shadow models."""

import hashlib
import time
from dataclasses import dataclass, replace

import numpy as np

from dpalgos.audit.bounds import attack, bound_of, likelihood_ratios
from dpalgos.audit.experiment import (
    USUAL,
    AuditOptions,
    AuditReport,
    Effort,
    Report,
    audit_experiments,
)
from dpalgos.guarantees import Neighbours
from dpalgos.normalisation import UnitNorm
from dpalgos.parameters import ParameterError
from dpalgos.rows import NULL_LABEL, Floats, Ints
from storage.datasets import open_dataset
from storage.errors import InputError, RefusedError
from tasks.auditing.synthetic_runs import Neighbouring, SyntheticRun, differing, partitioned
from tasks.auditing.systems import require_noise
from tasks.datasets.registration import find_dataset
from tasks.runtime.progress import report_runs
from tasks.runtime.settings import current_layout


@dataclass(frozen=True, slots=True)
class PublicSample:
    """Rows of two classes, of norm 1, and as many others to put in their place.

    Parameters
    ----------
    dataset : str
    features : array (n, d)
    labels : int array (n,)
        0 or 1.
    spare_features : array (n, d)
    spare_labels : int array (n,)
    """

    dataset: str
    features: Floats
    labels: Ints
    spare_features: Floats
    spare_labels: Ints


def public_sample(name: str, rows: int, seed: int) -> PublicSample:
    """Return rows of the first two classes of a public data set, drawn without replacement.

    Parameters
    ----------
    name : str
    rows : int
        How many to train on; as many again are held back. Even.
    seed : int

    Raises
    ------
    RefusedError
        If the set is private: what an audit prints is about its rows; or if its rows are people's.
    InputError
        If it has numeric labels, or too few rows of two classes.
    """
    dataset = find_dataset(name)
    if dataset.private:
        raise RefusedError(f"{name} is private: audits use synthetic rows or public data sets; choose a public set")
    if dataset.person:
        raise RefusedError(
            f"the rows of {name} belong to people ({dataset.person}), and this audit exchanges one row: choose a set "
            "without a person column, or test people with many rows with unitball audit ALGORITHM"
        )
    if len(dataset.classes) < 2:
        raise InputError(f"{name} has numeric labels; an audit needs a public set with classes")
    blocks = list(open_dataset(current_layout(), dataset).blocks())
    features = np.concatenate([np.asarray(block, dtype=np.float64) for block, *_ in blocks])
    labels = np.concatenate([np.asarray(block, dtype=np.int64) for _, block, _ in blocks])
    places = np.flatnonzero(labels < 2)
    if len(places) < 2 * rows:
        raise InputError(
            f"{name} has {len(places)} rows of its first two classes, and the audit needs {2 * rows}: half for "
            "training, half as replacements; choose a larger set or fewer rows"
        )
    chosen = np.random.default_rng(seed).permutation(places)[: 2 * rows]
    mapped = UnitNorm()(features[chosen])
    return PublicSample(name, mapped[:rows], labels[chosen[:rows]], mapped[rows:], labels[chosen[rows:]])


def canary_pairs(sample: PublicSample, neighbours: Neighbours) -> list[Neighbouring]:
    """Return neighbours that differ in a canary among public rows, in the first party.

    The canaries: the row farthest from the mean of its class; a row with the other class's label; and the support
    vector of largest dual coefficient of a support vector machine without privacy on all rows. Under ``replace-one``
    the other data set holds in its place an ordinary row that was held back, the one nearest to the mean of the other
    class (the flipped label: the same row with its own); under ``replace-special`` a null record.
    """
    from sklearn.svm import SVC

    features, labels = sample.features, sample.labels
    base = partitioned(features, labels)
    means = np.stack([features[labels == label].mean(axis=0) for label in (0, 1)])
    own = np.arange(0, len(features), 2)
    far = int(own[np.linalg.norm(features[own] - means[labels[own]], axis=1).argmax()])
    machine = SVC(kernel="linear").fit(features, labels)
    weight = np.zeros(len(features))
    weight[machine.support_] = np.abs(machine.dual_coef_[0])
    # Of those at the bound of the dual, the one that violates its margin most.
    weight += 1e-6 * np.maximum(0.0, 1.0 - (2 * labels - 1) * machine.decision_function(features))
    support = int(own[weight[own].argmax()])
    typical = int(own[np.linalg.norm(features[own] - means[labels[own]], axis=1).argmin()])

    def pair(name: str, place: int, label: int, other: tuple[Floats, int]) -> Neighbouring:
        right = None if neighbours is Neighbours.REPLACE_SPECIAL else other
        return differing(name, base, place // 2, (features[place], label), right)

    def ordinary(place: int) -> tuple[Floats, int]:
        spare = int(np.linalg.norm(sample.spare_features - means[1 - labels[place]], axis=1).argmin())
        return sample.spare_features[spare], int(sample.spare_labels[spare])

    own_label = int(labels[typical])
    return [
        pair(f"the row of {sample.dataset} farthest from its class", far, int(labels[far]), ordinary(far)),
        pair(f"a row of {sample.dataset} with the other label", typical, 1 - own_label, (features[typical], own_label)),
        pair(f"a support vector of {sample.dataset}", support, int(labels[support]), ordinary(support)),
    ]


LEVELS = (0.001, 0.01, 0.1)
"""False positive rates at which the true positive rate is stated."""
_MODELS, _MEMBERSHIP_ROWS = 64, 160


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipReport(Report):
    """The success of membership inference, and the bound of the guarantee on it.

    Parameters
    ----------
    dataset : str
    models, rows : int
        Shadow models, and rows that each of them held or not.
    advantage, advantage_bound : float
        Largest difference of true and false positive rate, measured, and the most that is possible under what is
        proved, or, where nothing is, claimed.
    area, area_bound : float
        Area under the ROC curve; 0.5 is guessing.
    rates : list of (float, float, float)
        False positive rate, true positive rate measured, and the most that is possible.
    curve, bound : list of (float, float)
        The whole curves, as points (false positive rate, true positive rate).
    """

    dataset: str
    models: int
    rows: int
    advantage: float
    advantage_bound: float
    area: float
    area_bound: float
    rates: list[tuple[float, float, float]]
    curve: list[tuple[float, float]]
    bound: list[tuple[float, float]]


def _sampled(
    name: str, dataset: str, rows: int, options: AuditOptions
) -> tuple[PublicSample, SyntheticRun, Neighbours]:
    """Return a sample of a public data set, a system planned on it, and the relation."""
    neighbours, (epsilon, delta) = options.neighbours or Neighbours.REPLACE_ONE, options.budget()
    sample = public_sample(dataset, rows, options.seed)
    dimension = sample.features.shape[1]
    run = SyntheticRun.of(
        name, epsilon=epsilon, delta=delta, rows=rows // 2, dimension=dimension, neighbours=neighbours
    )
    return sample, run, neighbours


def infer_membership(
    name: str, dataset: str, options: AuditOptions = USUAL, *, rows: int = _MEMBERSHIP_ROWS
) -> MembershipReport:
    """Train shadow models of a system on public rows and attack each by the others (:mod:`dpalgos.audit.bounds`).

    Each row is in a model's training set by a coin; otherwise a row that was held back stands in its place
    (``replace-one``), or a null record (``replace-special``). The score is the margin of the row in the model.

    Parameters
    ----------
    name : str
        Of a registered system with a linear model.
    dataset : str
        Public; rows of its first two classes are taken.
    options : AuditOptions
        ``trials`` are the shadow models, 64 or at least 8; the seed is that of sample, coins and noise.
    rows : int
        Even.

    Raises
    ------
    RefusedError
        If the data set is private.
    InputError, UnknownNameError, ParameterError
        For a set or system that does not fit, or too few models.
    """
    if rows < 2 or rows % 2:
        raise ParameterError(f"rows is {rows}; give an even number, partitioned over two parties")
    started = time.monotonic()
    seed, models = options.seed, options.trials or _MODELS
    sample, run, neighbours = _sampled(name, dataset, rows, options)
    members = np.random.default_rng([seed, 1]).random((models, rows)) < 0.5
    absent: tuple[Floats, Ints] = (sample.spare_features, sample.spare_labels)
    if neighbours is Neighbours.REPLACE_SPECIAL:
        absent = np.zeros_like(sample.features), np.full(rows, NULL_LABEL)
    secret = hashlib.sha256(f"membership/{seed}".encode()).digest()
    scores = np.empty((models, rows))
    for number, there in enumerate(members):
        held = np.where(there[:, None], sample.features, absent[0]), np.where(there, sample.labels, absent[1])
        scores[number] = run.margins(held, sample.features, sample.labels, secret, number)
        report_runs(number + 1, models)
    found = attack(likelihood_ratios(scores, members), members)
    stated = run.stated
    bound = bound_of(stated.losses) if stated.losses else None
    return MembershipReport(
        algorithm=name,
        dataset=dataset,
        models=models,
        rows=rows,
        claimed_epsilon=stated.claimed_epsilon,
        proved_epsilon=stated.proved_epsilon,
        proved_mu=stated.proved_mu,
        delta=options.budget()[1],
        advantage=found.advantage,
        advantage_bound=1.0 if bound is None else bound.advantage,
        area=found.area,
        area_bound=1.0 if bound is None else bound.area,
        rates=[(level, found.rate_at(level), 1.0 if bound is None else bound.rate_at(level)) for level in LEVELS],
        curve=list(zip(found.levels.tolist(), found.rates.tolist(), strict=True)),
        bound=[] if bound is None else list(zip(bound.levels.tolist(), bound.rates.tolist(), strict=True)),
        neighbours=str(neighbours),
        seconds=round(time.monotonic() - started, 2),
        seed=seed,
    )


_PUBLIC_TRIALS = 400


def audit_on_public_rows(name: str, dataset: str, options: AuditOptions = USUAL, *, rows: int = 40) -> AuditReport:
    """Run a registered system on public rows with and without a canary, and bound its epsilon from below.

    The canary that shows most is chosen on separate runs; see :func:`canary_pairs`. It is
    mostly a weaker test than the worst pairs of :func:`~tasks.auditing.systems.audit_system`: what it tells is how much
    of a row such as there are leaks.

    Parameters
    ----------
    name : str
        Of a registered system.
    dataset : str
        Public; rows of its first two classes are taken.
    options : AuditOptions
        400 trials, half of them to choose an event; the seed is that of sample and noise.
    rows : int
        Even; as many again are held back.

    Raises
    ------
    RefusedError
        If the data set is private.
    InputError, UnknownNameError, ParameterError
        For a set or system that does not fit, or numbers out of range.
    """
    require_noise(name)
    if rows < 4 or rows % 2:
        raise ParameterError(f"rows is {rows}; give an even number of at least 4, partitioned over two parties")
    started = time.monotonic()
    sample, run, neighbours = _sampled(name, dataset, rows, options)
    report = audit_experiments(
        [run.experiment(pair, pair.name, str(options.seed)) for pair in canary_pairs(sample, neighbours)],
        run.stated,
        replace(options, trials=options.trials or _PUBLIC_TRIALS, effort=Effort(pilot=48)),
        algorithm=name,
        kind="systems",
        neighbours=neighbours,
        progress=report_runs,
    )
    return replace(report, seconds=round(time.monotonic() - started, 2))
