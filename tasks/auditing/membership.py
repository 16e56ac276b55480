"""The attack a layman understands: whether a row was in the training set, told from the model, on public rows."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable

import numpy as np

from dpalgos.audit.membership import attack, bound_of, likelihood_ratios
from dpalgos.audit.report import Report
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Neighbours
from dpalgos.rows import NULL_LABEL, Floats, Ints
from tasks.auditing.public_rows import public_sample
from tasks.auditing.synthetic import SyntheticRun

LEVELS = (0.001, 0.01, 0.1)
"""False positive rates at which the true positive rate is stated."""

_ROWS = 160


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MembershipReport(Report):
    """How well members are told from others, and how well the guarantee lets them be.

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


def infer_membership(
    name: str,
    dataset: str,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    models: int = 64,
    rows: int = _ROWS,
    neighbours: Neighbours = Neighbours.REPLACE_ONE,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> MembershipReport:
    """Train shadow models of a system on public rows and attack each by the others (:mod:`dpalgos.audit.membership`).

    Each row is in a model's training set by a coin; otherwise a row that was held back stands in its place
    (``replace-one``), or a null record (``replace-special``). The score is the margin of the row in the model.

    Parameters
    ----------
    name : str
        Of a registered system with a linear model.
    dataset : str
        Public; rows of its first two classes are taken.
    epsilon, delta : float
        What the system is asked to cost.
    models : int
        At least 8.
    rows : int
        Even.
    neighbours : Neighbours
    seed : int
        Of sample, coins and noise.
    progress : callable, optional
        Called with the number of models that are trained and that of all.

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
    sample = public_sample(dataset, rows, seed)
    dimension = sample.features.shape[1]
    run = SyntheticRun.of(
        name, epsilon=epsilon, delta=delta, rows=rows // 2, dimension=dimension, neighbours=neighbours
    )
    members = np.random.default_rng([seed, 1]).random((models, rows)) < 0.5
    absent: tuple[Floats, Ints] = (sample.spare_features, sample.spare_labels)
    if neighbours is Neighbours.REPLACE_SPECIAL:
        absent = np.zeros_like(sample.features), np.full(rows, NULL_LABEL)
    secret = hashlib.sha256(f"membership/{seed}".encode()).digest()
    scores = np.empty((models, rows))
    for number, there in enumerate(members):
        held = np.where(there[:, None], sample.features, absent[0]), np.where(there, sample.labels, absent[1])
        scores[number] = run.margins(held, sample.features, sample.labels, secret, number)
        if progress is not None:
            progress(number + 1, models)
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
        delta=delta,
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
