"""Private selection: its price against the exact law of small mechanisms, and the trainer that pays it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import ndtr

from dpalgos.accounting.composition import compose
from dpalgos.accounting.costs import PlanCost, group_loss
from dpalgos.accounting.profiles import GaussianProfile, mu_from_epsilon_delta
from dpalgos.accounting.selection import SelectionProfile, candidate_mu, entry_epsilon, selection_delta
from dpalgos.accounting.spending import FilterCap, apply_filter
from dpalgos.algorithms import fit, require_people
from dpalgos.guarantees import (
    ApproximateDP,
    GaussianMu,
    Neighbours,
    PrivateSelection,
    Setting,
    Trust,
    loss_from_json,
    loss_to_json,
)
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.models import LinearModel
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import Array, ArrayRows, ChosenRows, Floats, NoiseSource, RandomStream
from dpalgos.testing import blobs
from dpalgos.trainers import tuned
from dpalgos.trainers.discriminant import ClassMeansDiscriminant
from dpalgos.trainers.tuned import Tuned, best_entered
from tasks.planning.identity import code_version

BUDGET = ApproximateDP(1.0, 1e-5)
SETTING = Setting(sizes=(400, 200), dimension=6, classes=3, trust=Trust.CENTRAL)
EPSILONS = np.linspace(0.0, 6.0, 61)

# A candidate's law: probabilities of (model, score), by score.
Law = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Released = dict[tuple[int, ...], float]


def hockey_stick(left: Released, right: Released, epsilon: float) -> float:
    return math.fsum(max(0.0, chance - math.exp(epsilon) * right.get(seen, 0.0)) for seen, chance in left.items())


def either_way(left: Released, right: Released, epsilon: float) -> float:
    return max(hockey_stick(left, right, epsilon), hockey_stick(right, left, epsilon))


def released(
    law: Law, candidates: int, probability: float, *, everyone: bool = False, telling: bool = False
) -> Released:
    """Enumerate what is released: every output of every candidate, every coin; mutants by name."""
    found: Released = {}
    outputs = list(np.ndindex(*law.shape))
    for made in itertools.product(outputs, repeat=candidates):
        chance = math.prod(float(law[output]) for output in made)
        for entered in itertools.product((False, True), repeat=candidates):
            coins = math.prod(probability if enters else 1.0 - probability for enters in entered)
            winner = best_entered([score for _, score in made], [True] * candidates if everyone else entered)
            seen = (winner, *made[winner], *((sum(entered),) if telling else ()))
            found[seen] = found.get(seen, 0.0) + chance * coins
    return found


def randomised_score(epsilon: float) -> tuple[Law, Law]:
    """A score of 0 or 1, more often 1 on the left: where nobody has 1, nobody had it of all who entered."""
    more = 1.0 / (1.0 + math.exp(-epsilon))
    return np.array([[1.0 - more, more]]), np.array([[more, 1.0 - more]])


def drawn(seed: int) -> tuple[Law, Law]:
    """Two models and three scores, with an output that one side never makes."""
    random = np.random.default_rng(seed)
    left, right = random.dirichlet(np.ones(6), size=2).reshape(2, 2, 3)
    left[0, 2] += right[0, 2] / 2.0
    right[1, 0] = 0.0
    return left / left.sum(), right / right.sum()


PAIRS = {"randomised score": randomised_score(1.0), **{f"drawn {seed}": drawn(seed) for seed in range(4)}}


def excess(left: Law, right: Law, candidates: int, probability: float, **mutant: bool) -> float:
    """Return by how much the exact law exceeds the stated price, over both directions and a range of epsilon."""
    sides: list[Released] = [{place: float(law[place]) for place in np.ndindex(*law.shape)} for law in (left, right)]

    def delta(epsilon: float) -> float:
        return either_way(sides[0], sides[1], epsilon)

    made = [released(law, candidates, probability, **mutant) for law in (left, right)]
    return max(
        either_way(made[0], made[1], epsilon) - selection_delta(delta, epsilon, candidates, probability)
        for epsilon in EPSILONS
    )


@pytest.mark.parametrize("pair", sorted(PAIRS))
@pytest.mark.parametrize(("candidates", "probability"), [(1, 0.5), (2, 0.5), (3, 0.25), (3, 0.75)])
def test_the_price_covers_the_exact_law(pair: str, candidates: int, probability: float) -> None:
    assert excess(*PAIRS[pair], candidates, probability) <= 1e-12


@pytest.mark.parametrize("mutant", ["everyone", "telling"])
def test_without_secret_coins_it_would_not(mutant: str) -> None:
    """All candidates enter, or their number is told: the best of them then costs nearly what all of them do."""
    left, right = PAIRS["randomised score"]
    assert excess(left, right, 4, 0.5) <= 1e-12
    assert excess(left, right, 4, 0.5, **{mutant: True}) > 1e-3


def test_a_factor_less_would_not_cover_it() -> None:
    """The number of candidates and the entry's own price are both needed."""
    left, right = PAIRS["randomised score"]
    exact = max(
        math.log(chance / other[seen])
        for former, other in itertools.permutations([released(law, 4, 0.75) for law in (left, right)])
        for seen, chance in former.items()
    )
    assert exact > 1.0 + 1e-3
    assert exact <= 1.0 + 3 * entry_epsilon(lambda epsilon: _randomised_delta(1.0, epsilon), 0.75)


def _randomised_delta(of: float, epsilon: float) -> float:
    return max(0.0, (math.exp(of) - math.exp(epsilon)) / (1.0 + math.exp(of)))


def gaussian_scores(mu: float, candidates: int, probability: float) -> tuple[Floats, Floats]:
    """Return densities of the released (candidate, score), (N, cells), of two sides: the first is better or the others.

    Each candidate's score is N(0, 1) on one side and N(mu, 1) on the other, the first candidate's the other way around.
    """
    scores = np.linspace(-12.0, 12.0 + mu, 40_001)
    cell = scores[1] - scores[0]

    def side(first: float, others: float) -> Floats:
        means = np.array([first, *[others] * (candidates - 1)])[:, None]
        density = np.exp(-((scores - means) ** 2) / 2.0) / math.sqrt(2.0 * math.pi)
        factors = 1.0 - probability + probability * ndtr(scores - means)
        beaten = factors.prod(axis=0) / factors
        made = probability * density * beaten
        made[0] += (1.0 - probability) ** candidates * density[0]
        return np.asarray(made * float(cell), dtype=np.float64)

    return side(mu, 0.0), side(0.0, mu)


@pytest.mark.parametrize(("candidates", "mu"), [(2, 0.3), (8, 0.3), (8, 1.0)])
def test_the_whole_curve_covers_gaussian_candidates(candidates: int, mu: float) -> None:
    """By integration at every epsilon; the curve of one candidate (a mutant) does not cover it."""
    left, right = gaussian_scores(mu, candidates, 0.5)
    curve, one = SelectionProfile(mu, candidates, 0.5), GaussianProfile(mu)
    exact = [
        max(float(np.maximum(a - math.exp(epsilon) * b, 0.0).sum()) for a, b in ((left, right), (right, left)))
        for epsilon in EPSILONS
    ]
    assert all(delta <= curve.delta(epsilon) + 1e-9 for delta, epsilon in zip(exact, EPSILONS, strict=True))
    assert any(delta > one.delta(epsilon) + 1e-4 for delta, epsilon in zip(exact, EPSILONS, strict=True))


@pytest.mark.parametrize("candidates", [1, 2, 8, 64])
def test_the_curve_is_that_of_the_price(candidates: int) -> None:
    mu = candidate_mu(1.0, 1e-6, candidates, 0.5)
    curve = SelectionProfile(mu, candidates, 0.5)
    for epsilon in EPSILONS.tolist():
        assert curve.delta(epsilon) == selection_delta(GaussianProfile(mu).delta, epsilon, candidates, 0.5)
    for delta in (1e-12, 1e-6, 1e-5, 1e-3):
        epsilon = curve.epsilon(delta)
        assert curve.delta(epsilon) <= delta
        assert curve.delta(epsilon * (1 - 1e-9)) > delta or epsilon == 0.0
    assert curve.epsilon(1e-6) == pytest.approx(1.0, rel=1e-8)
    assert curve.epsilon(0.0) == math.inf


@pytest.mark.parametrize(("candidates", "share"), [(2, 0.882), (8, 0.919)])
def test_a_tuned_plan_alone_is_read_at_whichever_delta(candidates: int, share: float) -> None:
    """Calibrated at a tenth of the cap's delta, it costs less at the cap's; beside another loss a point is composed."""
    point = PrivateSelection(1.0, 1e-6, candidate_mu(1.0, 1e-6, candidates, 0.5), candidates, 0.5)
    assert compose([point]).epsilon(1e-5) == pytest.approx(share, abs=1e-3)
    assert compose([point]).epsilon(1e-6) == pytest.approx(1.0, rel=1e-8)
    assert compose([point.selected]).epsilon(1e-5) > 0.999
    other = GaussianMu(0.05)
    beside, ways = compose([point, other]).epsilon(1e-5), (point.selected, point.all_candidates)
    assert beside == min(compose([way, other]).epsilon(1e-5) for way in ways)
    # A person of two rows: each candidate costs twice the mu, and the selection among them has its own curve.
    twice = group_loss(point, 2)
    assert isinstance(twice, PrivateSelection)
    curve = SelectionProfile(2 * point.mu, candidates, 0.5)
    least = min(curve.epsilon(1e-5), *(compose([one]).epsilon(1e-5) for one in (twice.selected, twice.all_candidates)))
    assert compose([twice]).epsilon(1e-5) == least


def test_what_a_candidate_may_cost() -> None:
    alone = mu_from_epsilon_delta(1.0, 1e-5)
    assert candidate_mu(1.0, 1e-5, 1, 0.5) == pytest.approx(alone, rel=1e-8)
    found = [candidate_mu(1.0, 1e-5, count, 0.5) for count in (1, 2, 4, 9)]
    assert found == sorted(found, reverse=True)
    for count, mu in zip((2, 4, 9), found[1:], strict=True):
        assert selection_delta(GaussianProfile(mu).delta, 1.0, count, 0.5) <= 1e-5
        assert selection_delta(GaussianProfile(mu * (1 + 1e-6)).delta, 1.0, count, 0.5) > 1e-5
        # More than an equal share of mu squared, which is what charging every candidate would leave.
        assert mu > 1.3 * alone / math.sqrt(count)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"enters": 1.0}, "enters.*1.0"),
        ({"held_out": 0.6}, "held_out"),
        ({"grid": {}}, r"^grid.*\{\}"),
        ({"grid": {"count_weight": 0.5}}, r"grid of count_weight.*0\.5"),
        ({"grid": {"count_weight": [2.0]}}, "count_weight.*2.0"),
        ({"grid": {"weight": [1.0]}}, "class-means.*'weight'"),
        ({"grid": {"count_weight": [0.5] * 65}}, "65 candidates.*64"),
        ({"parameters": {"count_weight": 0.5}}, "^count_weight.*tuned"),
        ({"trainer": "tuned"}, "budget.*class-means"),
        ({"trainer": "dpwss"}, "budget.*class-means"),
    ],
)
def test_parameters_are_refused_by_name(given: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Tuned(budget=BUDGET, **given)  # type: ignore[arg-type]  # wrong on purpose


def test_a_candidate_that_costs_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ClassMeansDiscriminant.guarantee

    def doubled(self: ClassMeansDiscriminant, setting: Setting) -> object:
        given = honest(self, setting)
        return dataclasses.replace(given, losses=given.losses * 2)

    (loss,) = Tuned(budget=BUDGET).guarantee(SETTING).losses
    assert isinstance(loss, PrivateSelection)
    assert loss.selected == BUDGET
    monkeypatch.setattr(ClassMeansDiscriminant, "guarantee", doubled)
    with pytest.raises(ParameterError, match="delta"):
        Tuned(budget=BUDGET).guarantee(SETTING)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 400, 3000])
def test_rows_train_or_score_by_their_position(count: int) -> None:
    rows = blobs(count, 6, 3, 0)
    parts = [tuned._part(rows, 0.2, scoring=scoring) for scoring in (False, True)]
    seen = [sum(len(labels) for _, labels, _ in part.blocks()) for part in parts]
    assert seen == [part.count for part in parts]
    assert sum(seen) == count
    assert abs(seen[1] - 0.2 * count) <= 2.0
    assert not tuned._scoring(0, 1, 0.5).any()
    # In any order of the rows, and in any period of it.
    for period in (2, 5, 10):
        scored = tuned._scoring(0, 3000, 0.2).reshape(-1, period).sum(axis=0)
        assert scored.min() > 0.7 * scored.mean()


@dataclass(frozen=True)
class _FixedCoins:
    """Noise in which the coins fall as they are told."""

    entering: tuple[bool, ...]
    real: NoiseSource = dataclasses.field(default_factory=lambda: KeyedNoise(public_secret(0), "tuned"))

    def stream(self, step: str, value: Array) -> RandomStream:
        return _Words(self.entering) if step == "coins" else self.real.stream(step, value)


@dataclass(frozen=True)
class _Words:
    entering: tuple[bool, ...]

    def words(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        assert count == len(self.entering)
        return np.where(self.entering, 0, 2**64 - 1).astype(np.uint64)

    def generator(self) -> np.random.Generator:
        raise AssertionError("coins are whole numbers")


def _trained(entering: tuple[bool, ...], grid: dict[str, list[object]]) -> LinearModel:
    rows = blobs(600, 6, 3, 0)
    parties = [dataclasses.replace(rows, features=rows.features[part], labels=rows.labels[part]) for part in PARTS]
    algorithm = Tuned(budget=ApproximateDP(8.0, 1e-5), trainer="noisy-gd", parameters={"iterations": 3}, grid=grid)
    model = fit(algorithm, parties, SETTING, _FixedCoins(entering))
    assert isinstance(model, LinearModel)
    return model


PARTS = (slice(400), slice(400, 600))


def test_the_best_of_those_that_entered_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    # Short weights classify as well as long ones do, so scores are made to go by length.
    monkeypatch.setattr(tuned, "_right", lambda model, rows, setting: 100 if np.abs(model.weights).max() > 0.1 else 0)
    grid: dict[str, list[object]] = {"step_size": [1e-9, 2.0, 1e-8]}
    lengths = {
        entering: float(np.abs(_trained(entering, grid).weights).max())
        for entering in [(False,) * 3, (True, False, False), (True, True, False), (False, True, False), (True,) * 3]
    }
    assert lengths[False, False, False] == lengths[True, False, False] < 1e-6
    assert lengths[True, True, False] == lengths[False, True, False] > 0.1
    assert lengths[True, True, True] == lengths[True, True, False]


def test_null_records_are_never_right() -> None:
    rows = blobs(50, 2, 2, 0)
    labels = np.where(np.arange(50) < 30, 1, -1)
    model = LinearModel(weights=np.zeros((1, 2)), intercept=np.ones(1))
    setting = dataclasses.replace(SETTING, dimension=2, classes=2)
    assert tuned._right(model, dataclasses.replace(rows, labels=labels), setting) == 30


# ── people ───────────────────────────────────────────────────────────────────────────────────────────────────────────

PEOPLE, MOST = 60, 9
OF_PEOPLE = Setting(sizes=(PEOPLE,), dimension=4, classes=3, trust=Trust.CENTRAL, rows_per_person=MOST)
# Which predicts class 0, whatever a row holds: all that a score moves by is labels.
ALWAYS = LinearModel(weights=np.zeros((3, 4)), intercept=np.array([1.0, 0.0, 0.0]))


def of_others(seed: int) -> list[ArrayRows]:
    """Return the rows of each person: one to nine, or none."""
    random = np.random.default_rng(seed)
    counts = random.integers(0, MOST + 1, PEOPLE)
    return [ArrayRows(random.normal(size=(count, 4)), random.integers(0, 3, count)) for count in counts]


def together(people: list[ArrayRows], order: int = 0) -> ArrayRows:
    """Return the rows of all people as a party holds them, mixed."""
    counts = np.array([len(one.labels) for one in people])
    mixed = np.random.default_rng(order).permutation(counts.sum())
    places = np.repeat(np.arange(PEOPLE), counts)
    features, labels = np.vstack([one.features for one in people]), np.concatenate([one.labels for one in people])
    return ArrayRows(features[mixed], labels[mixed], 16, counts[places][mixed], PEOPLE, places[mixed])


def held(row: Floats, count: int, label: int) -> ArrayRows:
    return ArrayRows(np.tile(row, (count, 1)), np.full(count, label))


ONE = [held(sign * np.eye(1, 4), count, label) for sign in (1.0, -1.0) for count in (1, 2, 9) for label in (0, 1)]
NOBODY = ArrayRows(np.zeros((0, 4)), np.zeros(0, dtype=np.int64))


def parted(rows: ArrayRows) -> list[ChosenRows]:
    return [tuned._part(rows, 0.3, scoring=scoring) for scoring in (False, True)]


def test_no_person_is_in_both_parts() -> None:
    rows = together(of_others(3))
    trains, scores = (set(np.unique(part.whose()).tolist()) for part in parted(rows))  # type: ignore[arg-type]  # people
    assert trains and scores and not trains & scores  # noqa: PT018 - of three at once
    held_out = set(np.flatnonzero(tuned._scoring(0, PEOPLE, 0.3)).tolist())
    assert scores <= held_out and not trains & held_out  # noqa: PT018 - of both
    assert [part.count for part in parted(rows)] == [PEOPLE - len(held_out), len(held_out)]
    for part in parted(rows):
        assert sum(len(labels) for _, labels, _ in part.blocks()) == len(part.whose())  # type: ignore[arg-type]  # people


def moved_by_a_person() -> float:
    """Return the most that one person's exchange costs, in squares of mu of a candidate: of its training and its score.

    At a place that trains and at one that scores, for every pair of what a person may hold, nobody's rows among them.
    """
    algorithm = Tuned(budget=BUDGET, held_out=0.3)
    (candidate, *_), training = algorithm.candidates(), algorithm._training(OF_PEOPLE)
    assert isinstance(candidate, ClassMeansDiscriminant)
    others, units = of_others(5), tuned._units(OF_PEOPLE)
    scoring = tuned._scoring(0, PEOPLE, 0.3)
    worst = 0.0
    for place in (int(np.flatnonzero(~scoring)[4]), int(np.flatnonzero(scoring)[4])):
        seen = []
        for own in (*ONE, NOBODY):
            trains, scores = parted(together([*others[:place], own, *others[place + 1 :]]))
            statistic = candidate.statistic(trains, training).ravel()
            seen.append((statistic / candidate.sensitivity(training), tuned._right(ALWAYS, scores, OF_PEOPLE) / units))
        for (one, first), (other, second) in itertools.combinations(seen, 2):
            worst = max(worst, float(np.sum((one - other) ** 2)) + (first - second) ** 2)
    return worst


def test_a_person_moves_a_training_or_a_score_by_no_more_than_a_record() -> None:
    assert 0.9 < moved_by_a_person() <= 1.0 + 1e-9


@pytest.mark.parametrize("mutant", ["positions", "counted rows", "rounded up"])
def test_other_ways_to_hold_people_out_cost_more(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By positions of rows, one person's number of rows moves everybody's; a count of rows is not one of people."""
    if mutant == "positions":
        monkeypatch.setattr(ArrayRows, "whose", lambda rows: np.arange(len(rows.labels)))
        monkeypatch.setattr(ArrayRows, "count", property(lambda rows: len(rows.labels)))
    elif mutant == "counted rows":
        monkeypatch.setattr(tuned, "portions", lambda unit, shares, count: np.full(count, unit))
    else:
        monkeypatch.setattr(tuned, "portions", lambda unit, shares, count: -(-unit // shares))
    assert moved_by_a_person() > 1.0 + 1e-6


def test_rows_of_people_say_whose_they_are() -> None:
    rows = dataclasses.replace(together(of_others(3)), places=None)
    with pytest.raises(ParameterError, match=r"^tuned.*person"):
        parted(rows)


def test_the_noise_of_a_score_is_that_of_a_persons_units() -> None:
    algorithm = Tuned(budget=BUDGET)
    for setting in (SETTING, OF_PEOPLE):
        distribution, units = algorithm._distribution(setting), tuned._units(setting)
        assert 0.999 * algorithm.mu < distribution.mu(float(units)) <= algorithm.mu
    assert tuned._units(SETTING) == 1
    assert tuned._units(OF_PEOPLE) // MOST * MOST > 0.999 * tuned._units(OF_PEOPLE)


def test_people_are_tuned_among_candidates_that_take_them() -> None:
    given = Tuned(budget=BUDGET).guarantee(OF_PEOPLE)
    assert given.losses == Tuned(budget=BUDGET).guarantee(dataclasses.replace(OF_PEOPLE, rows_per_person=1)).losses
    spec = AlgorithmSpec("trainers", "tuned", {"trainer": "smo-output-perturbation", "grid": {"regularisation": [0.1]}})
    with pytest.raises(ParameterError, match="SmoOutputPerturbation"):
        require_people(*spec.classes())
    require_people(*AlgorithmSpec("trainers", "tuned", {"trainer": "noisy-gd"}).classes())


def test_which_code_makes_a_candidate_is_its_identity() -> None:
    def version(trainer: str) -> str:
        return code_version(*AlgorithmSpec("trainers", "tuned", {"trainer": trainer}).classes())

    assert version("class-means") != version("noisy-gd")
    assert AlgorithmSpec("trainers", "noisy-gd").classes() != AlgorithmSpec("trainers", "tuned").classes()


def tuning(candidates: int, epsilon: float = 1.0, delta: float = 1e-5) -> PrivateSelection:
    grid = {"count_weight": [1.0 / (2 + index) for index in range(candidates)]}
    (loss,) = Tuned(budget=ApproximateDP(epsilon, delta), grid=grid).guarantee(SETTING).losses
    assert isinstance(loss, PrivateSelection)
    return loss


@pytest.mark.parametrize(("candidates", "booked"), [(2, 1.76), (4, 2.05), (8, 2.26)])
def test_a_tuning_leaves_an_account_open(candidates: int, booked: float) -> None:
    """By its own (epsilon, delta) it closed it: what it is as a selection is kept for a plan by itself."""
    cap, selection = FilterCap(3.0, 1e-5), tuning(candidates)
    first, run = PlanCost.of([selection], 1e-5), PlanCost.of([GaussianMu(mu_from_epsilon_delta(1.0, 1e-5))], 1e-5)
    alone = apply_filter([], ("all", {"0": first}), cap)
    assert alone.after.epsilon == pytest.approx(1.0)
    assert alone.after.filter == "single plan"
    both = apply_filter([("all", {"0": first})], ("all", {"0": run}), cap)
    assert both.admitted
    assert both.after.epsilon == pytest.approx(booked, abs=0.05)
    closed = apply_filter([("all", {"0": PlanCost.of([selection.selected], 1e-5)})], ("all", {"0": run}), cap)
    assert not closed.admitted
    # The composition of the candidates is what is added up, and no less of it.
    assert first.totals.mu_squared >= candidates * selection.mu**2
    assert first.totals.slack == 0.0


def test_all_candidates_are_dominated_by_what_is_booked_for_them() -> None:
    """The exact hockey-stick divergence of two candidates' outputs and scores, told apart without any selection."""
    loss = tuning(2)
    exact = compose([GaussianMu(loss.mu)] * 2)
    booked = compose([loss.all_candidates])
    short = compose([GaussianMu(loss.mu * math.sqrt(2) * 0.99)])
    for epsilon in (0.1, 0.5, 1.0):
        assert booked.delta(epsilon) >= exact.delta(epsilon) * (1 - 1e-9)
        assert short.delta(epsilon) < exact.delta(epsilon)


def test_a_selection_that_is_taken_apart_is_what_it_was() -> None:
    loss = tuning(4)
    assert loss_from_json(loss_to_json(loss)) == loss
    assert PlanCost.from_json(PlanCost.of([loss], 1e-5).to_json()).losses == (loss,)
    # All guarantees hold, so a plan by itself has the best of them at each delta.
    profile, curve = compose([loss]), SelectionProfile(loss.mu, loss.candidates, loss.chance)
    assert profile.epsilon(1e-5) == pytest.approx(1.0)
    assert profile.epsilon(1e-7) == curve.epsilon(1e-7) < compose([loss.all_candidates]).epsilon(1e-7)
    several = group_loss(loss, 3)
    assert isinstance(several, PrivateSelection)
    assert several.mu == pytest.approx(3 * loss.mu)
    assert several.selected == group_loss(loss.selected, 3)
    # For so many rows the (epsilon, delta) says nothing, and the candidates still do.
    many = group_loss(loss, 40)
    assert isinstance(many, GaussianMu)
    assert many.mu == pytest.approx(40 * loss.all_candidates.mu)


def test_one_curator_alone() -> None:
    assert Tuned.trusts == (Trust.CENTRAL,)
    assert Tuned.relations == (Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL)
    assert Tuned(budget=BUDGET).candidates()[0].budget == GaussianMu(Tuned(budget=BUDGET).mu)  # type: ignore[attr-defined]  # of a PrivateAlgorithm
