"""The attack a layman understands: whether a row was in the training set, told from the model, on public rows."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable

import numpy as np

from dpalgos.accounting.composition import compose
from dpalgos.accounting.trade_off import gaussian_mu
from dpalgos.audit.membership import attack, bound_of, likelihood_ratios
from dpalgos.errors import ParameterError
from dpalgos.guarantees import ApproximateDP, Loss, Neighbours
from dpalgos.registry import lookup
from dpalgos.rows import NULL_LABEL, Floats
from tasks.auditing.made_up import MadeUpRun, Neighbouring
from tasks.auditing.one_run import weights_of
from tasks.auditing.public_rows import PublicSample, public_sample

__all__ = ["LEVELS", "MembershipReport", "infer_membership"]

LEVELS = (0.001, 0.01, 0.1)
"""False positive rates at which the true positive rate is stated."""

_ROWS = 160
_PARTIES = ("0", "1")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MembershipReport:
    """How well members are told from others, and how well the guarantee lets them be.

    Parameters
    ----------
    algorithm, dataset : str
    models, rows : int
        Shadow models, and rows that each of them held or not.
    claimed_epsilon, proved_epsilon, proved_mu : float or None
        At delta; None where nothing is claimed, or proved.
    delta : float
    advantage, advantage_bound : float
        Largest difference of true and false positive rate, measured, and the most that is possible under what is
        proved, or, where nothing is, claimed.
    area, area_bound : float
        Area under the ROC curve; 0.5 is guessing.
    rates : list of (float, float, float)
        False positive rate, true positive rate measured, and the most that is possible.
    curve, bound : list of (float, float)
        The whole curves, as points (false positive rate, true positive rate).
    neighbours : str
    seconds : float
    seed : int
    """

    algorithm: str
    dataset: str
    models: int
    rows: int
    claimed_epsilon: float | None
    proved_epsilon: float | None
    proved_mu: float | None
    delta: float
    advantage: float
    advantage_bound: float
    area: float
    area_bound: float
    rates: list[tuple[float, float, float]]
    curve: list[tuple[float, float]]
    bound: list[tuple[float, float]]
    neighbours: str
    seconds: float
    seed: int

    def to_json(self) -> dict[str, object]:
        """Return the report in plain values."""
        return dataclasses.asdict(self)


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
        raise ParameterError(f"rows is {rows}; give an even number, dealt to two parties")
    started = time.monotonic()
    sample = public_sample(dataset, rows, seed)
    dimension = sample.features.shape[1]
    run = MadeUpRun.of(name, epsilon=epsilon, delta=delta, rows=rows // 2, dimension=dimension, neighbours=neighbours)
    random = np.random.default_rng([seed, 1])
    members = random.random((models, rows)) < 0.5
    secret = hashlib.sha256(f"membership/{seed}".encode()).digest()
    scores = np.empty((models, rows))
    for number in range(models):
        scores[number] = _scores(run, sample, members[number], neighbours, secret, number, name)
        if progress is not None:
            progress(number + 1, models)
    found = attack(likelihood_ratios(scores, members), members)
    plan, claimed = run.plan, epsilon if lookup("systems", name).claim is not None else None
    bills = [list(bill) for bill in set(plan.bills().values())] if plan.proved else None
    stated: list[list[Loss]] = bills or ([] if claimed is None else [[ApproximateDP(claimed, delta)]])
    bound = bound_of(stated) if stated else None
    mus = [gaussian_mu(bill) for bill in bills or []]
    return MembershipReport(
        algorithm=name,
        dataset=dataset,
        models=models,
        rows=rows,
        claimed_epsilon=claimed,
        proved_epsilon=None if bills is None else max(compose(bill).epsilon(delta) for bill in bills),
        proved_mu=max((mu for mu in mus if mu is not None), default=None) if None not in mus else None,
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


def _scores(
    run: MadeUpRun,
    sample: PublicSample,
    there: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    neighbours: Neighbours,
    secret: bytes,
    number: int,
    name: str,
) -> Floats:
    """Train one model and return the margin of each row in it, (n,)."""
    if neighbours is Neighbours.REPLACE_SPECIAL:
        features = np.where(there[:, None], sample.features, 0.0)
        labels = np.where(there, sample.labels, NULL_LABEL)
    else:
        features = np.where(there[:, None], sample.features, sample.spare_features)
        labels = np.where(there, sample.labels, sample.spare_labels)
    held = sample.dealt(features, labels)
    seen = run.outputs(Neighbouring(sample.dataset, held, held), True, secret, number)
    signs = 2.0 * sample.labels - 1.0
    margins = np.empty(len(signs))
    for place, party in enumerate(_PARTIES):
        weights = weights_of(seen, party, sample.features.shape[1], name)
        margins[place::2] = signs[place::2] * (sample.features[place::2] @ weights)
    return margins
