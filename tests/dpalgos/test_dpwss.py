"""DPWSS as published: the law of its selections, and what is wrong with its claim."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpalgos.audit.bounds import probability_lower_bound, probability_upper_bound
from dpalgos.guarantees import GaussianMu, Guarantee, PureEpsilon, Setting
from dpalgos.kernels import LinearKernel
from dpalgos.parameters import ParameterError
from dpalgos.published.machines import DpWss, Smo
from dpalgos.published.smo import Extremes, PrivateSelection, SecondOrder, Selector, solve
from dpalgos.rows import ArrayRows
from tests.support.statistics import ERROR, rejects_law
from tests.support.streams import seeded
from tests.support.training import noise

Floats = NDArray[np.float64]
TOLERANCE = 1e-3
# m = 1 at position 0; M = −1 at position 5. Scores (1 − v)/2 of positions 1 … 6: the filter at σ = 0.5 leaves 3 … 6.
V = np.array([1.0, 0.9995, 0.2, 0.0, -0.5, -1.0, -0.7])
UP = np.array([1, 0, 0, 0, 0, 0, 0], dtype=np.uint8)
LOW = np.array([0, 1, 1, 1, 1, 1, 1], dtype=np.uint8)


@dataclass
class Scene:
    """An active set with chosen values."""

    v: Floats
    up: NDArray[np.uint8]
    low: NDArray[np.uint8]
    ids: NDArray[np.int64]
    diagonal: Floats = field(default_factory=lambda: np.ones(len(V)))

    def row(self, position: int) -> Floats:
        return np.zeros_like(self.v)


ENDS = Extremes(i=0, m=1.0, j=5, smallest=-1.0)


def scene(turn: int = 0) -> Any:
    """Return the scene with numbers of its own, so that no pair was drawn before."""
    return Scene(V, UP, LOW, np.arange(len(V)) + len(V) * turn)


def published_law(sigma: float, epsilon: float, barred: tuple[int, ...] = ()) -> Floats:
    """Return each position's probability, written out from the paper's eqs. 26–28 and Algorithm 1, line 6."""
    weights = np.zeros(len(V))
    for j in range(1, len(V)):
        score = (1.0 + -V[j]) / (1.0 + 1.0)
        if j not in barred and 1.0 - V[j] > TOLERANCE and score >= sigma:
            weights[j] = np.exp(epsilon * score / (2.0 * (1.0 - sigma)))
    return np.asarray(weights / weights.sum())


def drawn(selector: Selector, count: int) -> NDArray[np.int64]:
    pairs = [selector(scene(turn), ENDS) for turn in range(count)]
    assert all(pair is not None and pair[0] == 0 for pair in pairs)
    return np.array([pair[1] for pair in pairs if pair is not None])


def rejected(samples: NDArray[np.int64], law: Floats) -> bool:
    cumulative = np.cumsum(law)
    return rejects_law(samples, lambda points: cumulative[points])


DRAWS = 20_000
LAWS = [(0.5, 4.0), (0.3, 2.0), (0.7, 1.0)]


@pytest.mark.parametrize(
    ("sigma", "epsilon", "draws"),
    [(0.5, 4.0, DRAWS), (0.3, 2.0, DRAWS), *(pytest.param(*law, 60_000, marks=pytest.mark.nightly) for law in LAWS)],
)
def test_selection_is_the_exponential_mechanism(sigma: float, epsilon: float, draws: int) -> None:
    """False-alarm rate 1e-9 (Dvoretzky-Kiefer-Wolfowitz); probabilities wrong by 0.046 in sum are noticed, and by
    night by 0.026.
    """
    rule = PrivateSelection(sigma=sigma, epsilon=epsilon, stream=seeded(int(100 * sigma)))
    assert not rejected(drawn(rule.selector(len(V) * draws, TOLERANCE), draws), published_law(sigma, epsilon))


@pytest.mark.parametrize(
    ("name", "sigma", "epsilon", "draws"),
    [
        ("half epsilon, or twice the sensitivity", 0.5, 2.0, 5000),
        ("twice epsilon, or the 2 of 2Δq forgotten", 0.5, 8.0, 5000),
        ("uniform", 0.5, 1e-9, 5000),
        ("the filter at sigma forgotten", 1e-9, 8.0 * (1.0 - 1e-9), DRAWS),
    ],
)
def test_wrong_laws_of_selection_are_rejected(name: str, sigma: float, epsilon: float, draws: int) -> None:
    """Mutants of the rule, against the same check: three are 0.11 and farther off, where 5,000 draws see 0.046.

    The last is 0.042 off, which the draws of the check itself see.
    """
    rule = PrivateSelection(sigma=sigma, epsilon=epsilon, stream=seeded(1))
    assert rejected(drawn(rule.selector(len(V) * draws, TOLERANCE), draws), published_law(0.5, 4.0)), name


def test_a_pair_drawn_before_has_no_second_chance() -> None:
    """After j = 5 was drawn with i, the law is that of the rest; when all are drawn, there is no pair."""
    counts = []
    for turn in range(4000):
        rule = PrivateSelection(sigma=0.5, epsilon=4.0, stream=seeded(turn, "pairs"))
        selector = rule.selector(len(V), TOLERANCE)
        taken: list[int] = []
        while (pair := selector(scene(), ENDS)) is not None:
            taken.append(pair[1])
        assert sorted(taken) == [3, 4, 5, 6]
        if taken[0] == 5:
            counts.append(taken[1])
        if turn > 1500 and len(counts) > 600:
            break
    assert not rejected(np.array(counts), published_law(0.5, 4.0, barred=(5,)))
    assert rejected(np.array(counts), published_law(0.5, 4.0)), "the mutant that forgets what was drawn"


def test_what_was_drawn_is_remembered_by_record_not_by_position() -> None:
    """Shrinking moves records to other positions."""
    selector = PrivateSelection(sigma=0.5, epsilon=4.0, stream=seeded(2)).selector(len(V), TOLERANCE)
    whole = scene()
    first = selector(whole, ENDS)
    assert first is not None
    kept = np.array([0, 6, 4, 5, 3])
    smaller: Any = Scene(V[kept], UP[kept], LOW[kept], whole.ids[kept])
    rest = []
    while (pair := selector(smaller, Extremes(i=0, m=1.0, j=3, smallest=-1.0))) is not None:
        rest.append(int(smaller.ids[pair[1]]))
    assert sorted([*rest, first[1]]) == [3, 4, 5, 6]


def overlapping(rows: int, seed: int) -> tuple[Floats, Floats]:
    random = np.random.default_rng(seed)
    y = np.where(random.random(rows) < 0.4, 1.0, -1.0)
    return random.normal(size=(rows, 3)) + 0.5 * y[:, None], y


@pytest.mark.parametrize("shrinking", [True, False])
def test_it_ends_near_the_minimum_without_passing_it(shrinking: bool) -> None:
    features, y = overlapping(300, 3)
    exact = solve(LinearKernel(), features, y, cost=1.0, tolerance=TOLERANCE, rule=SecondOrder(), shrinking=shrinking)
    rule = PrivateSelection(sigma=0.3, epsilon=1.0, stream=seeded(3))
    private = solve(LinearKernel(), features, y, cost=1.0, tolerance=TOLERANCE, rule=rule, shrinking=shrinking)
    assert exact.objective - exact.duality_gap <= private.objective <= 0.98 * exact.objective


def test_the_claim_fails_on_neighbours() -> None:
    """The flaw in numbers: at ε = 0.01 the true loss is above 1, with an error rate of 2e-9 (Clopper-Pearson).

    One of 12 rows is replaced; the event is that the score of (1, 1, 1) is below 0.75. A mechanism that kept the claim
    would give both data sets nearly equal counts, as the same data set with other noise does.
    """
    features, y = overlapping(12, 4)
    neighbour = features.copy()
    neighbour[0] = -4.0 * y[0]

    def ratio_at_least(first: Floats, second: Floats) -> float:
        hits = [_scores_below(rows, y, seeds) for rows, seeds in ((first, range(200)), (second, range(200, 400)))]
        return probability_lower_bound(hits[1], 200, ERROR) / probability_upper_bound(hits[0], 200, ERROR)

    assert ratio_at_least(features, neighbour) > np.e
    assert ratio_at_least(features, features) < np.exp(0.01)


def _scores_below(rows: Floats, y: Floats, seeds: range) -> int:
    data = ArrayRows(rows, (y > 0).astype(np.int64))
    algorithm = DpWss(budget=PureEpsilon(0.01), sigma=0.1)
    setting = Setting(sizes=(len(y),), dimension=3, classes=2)
    models = (algorithm.fit([data], setting, noise(seed)) for seed in seeds)
    return sum(bool(model.scores(np.ones((1, 3)))[0, 0] < 0.75) for model in models)


def test_the_trainer_is_repeatable_and_random() -> None:
    features, y = overlapping(200, 5)
    labels = (y > 0).astype(np.int64)
    setting = Setting(sizes=(200,), dimension=3, classes=2)
    algorithm = DpWss(budget=PureEpsilon(1.0), sigma=0.5)

    def numbers(seed: int) -> dict[str, float]:
        return algorithm.diagnostics([ArrayRows(features, labels)], setting, noise(seed))[1]

    assert numbers(1) == numbers(1)
    assert numbers(1) != numbers(2)
    exact = Smo().diagnostics([ArrayRows(features, labels)], setting, noise())[1]
    assert exact["objective"] - 0.05 <= numbers(1)["objective"] <= 0.95 * exact["objective"]


def test_what_is_claimed_and_what_is_proved() -> None:
    guarantee: Guarantee = DpWss(budget=PureEpsilon(1.0)).guarantee(Setting(sizes=(10,), dimension=2, classes=2))
    assert not guarantee.proved
    assert DpWss.claim is not None
    assert DpWss.claim.theorem == "Sun et al. 2021, Theorem 1"
    assert DpWss.sound_counterpart == "smo-output-perturbation"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sigma": 0.0}, "sigma"),
        ({"sigma": 1.0}, "sigma"),
        ({"sigma": float("nan")}, "sigma"),
        ({"budget": GaussianMu(1.0)}, "budget"),
        ({"budget": PureEpsilon(0.0)}, "epsilon"),
        ({"C": -1.0}, "C"),
    ],
)
def test_parameters_are_checked(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        DpWss(**{"budget": PureEpsilon(1.0), **options})
