"""Parameters chosen on private rows: of several trainings the best by a noisy score, by private selection."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from dpalgos.accounting.composition import components, compose
from dpalgos.accounting.profiles import GaussianProfile
from dpalgos.accounting.selection import candidate_mu, selection_delta
from dpalgos.algorithms import Algorithm, ApproximateAlgorithm, Calibrated, NeighbouringPair, Work, fit
from dpalgos.guarantees import (
    GaussianMu,
    Guarantee,
    Loss,
    Neighbours,
    Numerics,
    PrivateSelection,
    Setting,
    Trust,
)
from dpalgos.integer_sums import portions
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.models import KernelModel, LinearModel
from dpalgos.parameters import ParameterError, between
from dpalgos.registry import construct, lookup, names, register
from dpalgos.rows import Array, ArrayRows, ChosenRows, Floats, NoiseSource, RandomStream, Rows, sanitise
from dpalgos.sentences import coded

# Fractions of the golden ratio's multiples spread evenly, in any order of the rows, and begin at 0.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_COIN_BITS = 32
_BLOCK = 1 << 20
_MOST_CANDIDATES = 64


def best_entered(scores: Sequence[int], entered: Sequence[bool]) -> int:
    """Return which candidate is released: the best score among those that entered, ties to the earlier; else the first.

    Parameters
    ----------
    scores : sequence of int
        Noisy, one a candidate.
    entered : sequence of bool
    """
    competing = [index for index, enters in enumerate(entered) if enters] or [0]
    return max(competing, key=lambda index: (scores[index], -index))


@register("trainers", "tuned")
@dataclass(frozen=True, kw_only=True)
class Tuned(ApproximateAlgorithm):
    """Train at each point of a public grid, score on held-out rows with noise, release the best of a random subset.

    What tuning on private rows costs, and no more: the candidates that lose are not released, nor is how many there
    were. A secret coin a candidate says whether it enters; all are trained and scored whether they enter or not, so
    the work done says nothing of the coins.

    Guarantee
    ---------
    The budget (ε, δ), by :mod:`dpalgos.accounting.selection`. A candidate is a training with budget μ-Gaussian-DP on
    some rows and a noisy score on the others. Which rows are held out goes by their position alone, so the row in which
    neighbours differ is either trained on, and then the score is post-processing of the model; or held out, and then
    the model is the same on both sides and the score, a count of rows that moves by at most 1 under either relation,
    plus rounded Gaussian noise of σ = 1/μ, is a μ-Gaussian-DP release. So a candidate is μ-Gaussian-DP, the score for
    nothing but the rows it takes. μ is the largest for which the selection is (ε, δ)-DP; :meth:`guarantee` computes the
    selection's δ once more from what the candidates themselves guarantee, and refuses where it is above the budget.

    The release is also a post-processing of all N candidates and of coins that look at no row, so it is
    √N μ-Gaussian-DP without any δ: what an account adds up over runs (:class:`~dpalgos.guarantees.PrivateSelection`).

    *People.* Which people score goes by their places in the party's roster alone, which neighbours share, and all rows
    of a person go where the person goes: a person's number of rows does not decide where another person is, as
    positions of rows would. So the person in whom neighbours differ either trains with all rows, weighed by 1/k of the
    k that the person has, which moves a candidate that takes people by no more than one row does; or scores with all of
    them. Then a row that is classified right adds ⌊U/k⌋ of the U units of a person, the k rows between 0 and U
    together, and two persons are at most U apart under either relation: noise of σ = U/μ. By positions a person's rows
    would be in both halves, and a candidate would cost more than either.

    Numerics are exact where the candidates' are: scores are integers with integer noise, and a coin is a 32-bit
    integer below ⌊p 2³²⌋.

    Refused under anything but one curator: where sums of each candidate are opened to a server, or each party releases
    its own, losers are seen, and every candidate is charged.

    Parameters
    ----------
    budget : ApproximateDP
    trainer : str
        A registered trainer that takes a budget of Gaussian-DP.
    parameters : mapping
        Of the trainer, the same for all candidates.
    grid : mapping of str to sequence
        Values of each of the trainer's parameters that is tuned; all combinations are candidates, at most 64, the
        first values first. If no candidate enters, with probability (1 − p)^N, the first is released: put what you
        would have taken untuned first.
    enters : float
        p with which a candidate enters, rounded down to a multiple of 2⁻³².
    held_out : float
        Share of each party's rows, or people, that score and do not train, in [0.01, 0.5].

    References
    ----------
    Those of :mod:`dpalgos.accounting.selection`.
    """

    trainer: str = "class-means"
    parameters: Mapping[str, object] = field(default_factory=dict)
    grid: Mapping[str, Sequence[object]] = field(default_factory=lambda: {"count_weight": (1.0, 0.25)})
    enters: float = field(default=0.5, metadata=between(2.0 ** (-20), 1.0, open_high=True))
    held_out: float = field(default=0.2, metadata=between(0.01, 0.5))

    source: ClassVar[str] = "ours; private selection after Liu, Talwar 2019 and Koskela, Redberg, Wang 2024"
    people: ClassVar[str] = (
        "all rows of a person train or all score, by position in the register of people, and each of k rows counts "
        "⌊U/k⌋ units in a score"
    )
    trusts: ClassVar[tuple[Trust, ...]] = (Trust.CENTRAL,)
    relations: ClassVar[tuple[Neighbours, ...]] = (Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL)
    measured: ClassVar[str] = "statistic of the first candidate's trainer, over the training rows"

    @classmethod
    def composed_of(cls, parameters: Mapping[str, object]) -> tuple[type[Algorithm], ...]:
        """Return the classes that make the candidates: their code is this one's too."""
        return (lookup("trainers", str(parameters.get("trainer", cls.trainer))),)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.grid, Mapping) or not self.grid:
            raise ParameterError(f"grid is {self.grid!r}; give a parameter of {self.trainer} and its values")
        for name, values in self.grid.items():
            if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not values:
                raise ParameterError(f"the grid of {name} is {values!r}; give a list of at least one value")
            if name in self.parameters:
                raise ParameterError(f"{name} is both fixed and tuned; omit one of the two")
        if self.count > _MOST_CANDIDATES:
            raise ParameterError(
                f"the grid has {self.count} candidates, and at most {_MOST_CANDIDATES} are allowed, since each takes "
                "a part of the budget; tune fewer parameters, or fewer values"
            )
        cls = lookup("trainers", self.trainer)
        if cls is Tuned or GaussianMu not in cls.budgets:
            known = ", ".join(_candidates())
            raise ParameterError(
                f"{self.trainer} accepts no Gaussian-DP budget and cannot be tuned; choose one of {known}"
            )
        # Refuses what the trainer does not take.
        self.candidates()

    @property
    def count(self) -> int:
        """Number of candidates N."""
        return math.prod(len(values) for values in self.grid.values())

    @property
    def chance(self) -> float:
        """The probability p of a coin, a multiple of 2⁻³²."""
        return self._threshold / 2.0**_COIN_BITS

    @property
    def mu(self) -> float:
        """Cost of a candidate, as Gaussian-DP, rounded down."""
        return candidate_mu(self.budget.epsilon, self.budget.delta, self.count, self.chance) * (1.0 - 1e-9)

    def candidates(self) -> list[Algorithm]:
        """Return the trainers of all candidates, in the grid's order."""
        budget, cls = GaussianMu(self.mu), lookup("trainers", self.trainer)
        points = (dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values()))
        return [construct(cls, self.trainer, {**self.parameters, **point, "budget": budget}) for point in points]

    def check(self, setting: Setting) -> None:
        """Raise for numeric labels, and where a candidate cannot run."""
        super().check(setting)
        if setting.classes < 2:
            raise ParameterError(
                "tuned scores candidates by the number of correct predictions; numeric labels cannot be tuned here"
            )
        for candidate in self.candidates():
            candidate.check(self._training(setting))

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget.

        Raises
        ------
        ParameterError
            If the selection among what the candidates guarantee costs more.
        """
        self.check(setting)
        training = self._training(setting)
        guarantees = [candidate.guarantee(training) for candidate in self.candidates()]
        trainings = tuple(dict.fromkeys(item.losses for item in guarantees))
        score = self._distribution(setting).mu(float(_units(setting)))
        delta = _selection_delta(trainings, score, self.budget.epsilon, self.count, self.chance)
        if delta > self.budget.delta:
            raise ParameterError(
                f"selecting among these candidates of {self.trainer} needs a delta of {delta:.3g}, and the budget has "
                f"{self.budget.delta:.3g}: {self.trainer} cannot be tuned; tune fewer values"
            )
        exact = all(item.numerics is Numerics.EXACT for item in guarantees)
        assumed = dict.fromkeys(
            (
                coded("secret-candidates"),
                *(text for item in guarantees for text in item.assumptions),
            )
        )
        return Guarantee(
            losses=(self._loss(trainings, score),),
            neighbours=setting.neighbours,
            numerics=Numerics.EXACT if exact else Numerics.IDEALISED,
            assumptions=tuple(assumed),
        )

    def _loss(self, trainings: tuple[tuple[Loss, ...], ...], score: float) -> Loss:
        """Return the budget, and beside it what all candidates cost together where each is Gaussian-DP as a whole."""
        if not all(isinstance(loss, GaussianMu) for each in trainings for loss in each):
            return self.budget
        mu = max(score, *(components(each).mu for each in trainings))
        return PrivateSelection(self.budget.epsilon, self.budget.delta, mu, self.count, self.chance)

    def work(self, setting: Setting) -> Work:
        """Return that of all candidates."""
        works = [candidate.work(self._training(setting)) for candidate in self.candidates()]
        return Work(
            passes=sum(work.passes + 1 for work in works),
            operations=sum(work.operations for work in works),
            small_operations=sum(work.small_operations for work in works),
            kept=max(work.kept for work in works),
            held=max(work.held for work in works),
            sums=max(work.sums for work in works),
        )

    def sensitivity(self, setting: Setting) -> float:
        """Return the first candidate's."""
        return cast(Calibrated, self.candidates()[0]).sensitivity(self._training(setting))

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the first candidate's, of the rows that train."""
        part = _part(rows, self.held_out, scoring=False)
        return cast(Calibrated, self.candidates()[0]).statistic(part, self._training(setting))

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return the first candidate's pair, which differs in a row that trains, with that row to be scored by.

        All held-out rows of the party are the left one, so that a candidate's score goes by what it has learnt of it.
        """
        pair = self.candidates()[0].neighbouring_pair(setting)
        (place,) = np.flatnonzero(
            (pair.left.features != pair.right.features).any(axis=1) | (pair.left.labels != pair.right.labels)
        )
        scoring = _scoring(0, pair.left.count, self.held_out)
        if scoring[place]:
            return pair
        left, right = (
            ArrayRows(
                np.where(scoring[:, None], pair.left.features[place], side.features),
                np.where(scoring, pair.left.labels[place], side.labels),
            )
            for side in (pair.left, pair.right)
        )
        return NeighbouringPair(left=left, right=right, party=pair.party)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel | KernelModel:
        """Return the model of the best candidate that entered."""
        self.check(setting)
        training = [_part(rows, self.held_out, scoring=False) for rows in parties]
        scoring = [_part(rows, self.held_out, scoring=True) for rows in parties]
        models, scores, distribution = [], [], self._distribution(setting)
        for index, candidate in enumerate(self.candidates()):
            source = _Within(noise, f"candidate-{index}")
            model = cast(LinearModel | KernelModel, fit(candidate, training, self._training(setting), source))
            right = np.array([sum(_right(model, rows, setting) for rows in scoring)], dtype=np.int64)
            scores.append(int((right + distribution.sample(1, source.stream("score", right)))[0]))
            models.append(model)
        prints = np.concatenate([np.zeros(0, np.uint8), *(rows.fingerprint() for rows in parties)])
        coins = noise.stream("coins", prints).words(self.count) >> np.uint64(64 - _COIN_BITS)
        return models[best_entered(scores, (coins < np.uint64(self._threshold)).tolist())]

    @property
    def _threshold(self) -> int:
        """Below which a draw of 32 bits means that a candidate enters."""
        return math.floor(self.enters * 2.0**_COIN_BITS)

    def _distribution(self, setting: Setting) -> RoundedGaussian:
        """Noise of a score, of which one record moves at most its units: no costlier than the training."""
        return RoundedGaussian(_units(setting) * (1.0 + 2.0**-48) / self.mu)

    def _training(self, setting: Setting) -> Setting:
        """Return the setting of the rows that train."""
        return replace(setting, sizes=tuple(size - _scored(size, self.held_out) for size in setting.sizes))


def _candidates() -> Iterator[str]:
    return (name for name in names("trainers") if name != "tuned" and GaussianMu in lookup("trainers", name).budgets)


@lru_cache(maxsize=256)
def _selection_delta(
    losses: tuple[tuple[Loss, ...], ...], score: float, epsilon: float, count: int, chance: float
) -> float:
    """Return the selection's δ from the losses of the candidates' trainings and the μ of a score."""
    profiles = [GaussianProfile(score), *(compose(each) for each in losses)]
    return selection_delta(lambda at: max(profile.delta(at) for profile in profiles), epsilon, count, chance)


def _scoring(start: int, stop: int, share: float) -> NDArray[np.bool_]:
    """Return which places of a party's records are held out; the first never is."""
    fractions = np.arange(start, stop, dtype=np.uint64) * _GOLDEN
    return fractions >= np.uint64(math.floor((1.0 - share) * 2.0**64))


@lru_cache(maxsize=4096)
def _scored(count: int, share: float) -> int:
    """Return how many of a party's records are held out."""
    return sum(int(_scoring(start, min(start + _BLOCK, count), share).sum()) for start in range(0, count, _BLOCK))


def _units(setting: Setting) -> int:
    """Return U: of how many units one record's score is; so many of people that ⌊U/k⌋ is U/k up to a thousandth."""
    return 1 if setting.rows_per_person == 1 else 1 << (10 + (setting.rows_per_person - 1).bit_length())


def _right(model: LinearModel | KernelModel, rows: Rows, setting: Setting) -> int:
    """Return how many units of records a model classifies right; null records are never."""
    count = 0
    for features, labels, shares in rows.blocks():
        known, wanted = sanitise(features, labels, setting.classes)
        count += int(portions(_units(setting), shares, len(wanted))[model.predict(known) == wanted].sum())
    return count


def _part(rows: Rows, share: float, *, scoring: bool) -> ChosenRows:
    """Return a party's rows that train, or those that score: of people all or none of a person's.

    Raises
    ------
    ParameterError
        If rows are people's and nobody says whose each is.
    """
    held_out, places = _scored(rows.count, share), rows.whose()
    count = held_out if scoring else rows.count - held_out
    if places is None:
        if any(shares is not None for _, _, shares in itertools.islice(rows.blocks(), 1)):
            raise ParameterError("tuned divides rows by person, and these rows declare none")
        return ChosenRows(rows, lambda start, stop: _scoring(start, stop, share) == scoring, count)
    of_rows = _scoring(0, rows.count, share)[places]
    return ChosenRows(rows, lambda start, stop: of_rows[start:stop] == scoring, count)


@dataclass(frozen=True, slots=True)
class _Within:
    """The noise of one candidate: its draws have its name before theirs."""

    noise: NoiseSource
    name: str

    def stream(self, step: str, value: Array) -> RandomStream:
        return self.noise.stream(f"{self.name}/{step}", value)
