"""Sensitivities under each neighbouring relation: what is refused, and that each is the supremum it says it is.

For every algorithm that is proved, the statistic that its noise is calibrated to is moved by records searched for the
largest move: corners of the ball, antipodal rows of one class and rows of two classes, zero, null and long rows, then
hill climbing from the best of them. None moves it by more than the stated sensitivity, and the algorithm's own pair of
neighbours moves it by the share stated here. Mutants with √2 in the place of 2, and with noise for a null record where
rows are replaced, are caught.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpalgos.accounting.costs import losses_under
from dpalgos.algorithms import Calibrated, attained, is_sum_algorithm, moved, one_row_apart
from dpalgos.guarantees import (
    RELATIONS,
    ApproximateDP,
    GaussianMu,
    Guarantee,
    Neighbours,
    PureEpsilon,
    Setting,
    Trust,
    ZeroConcentrated,
)
from dpalgos.losses import outputs
from dpalgos.mechanisms.distributions import SymmetricRoundedGaussian, SymmetricRoundedRadial, to_vector, unpack
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup, names
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats
from dpalgos.trainers.gradient_descent import DescentState, GradientSumTrainer, NoisyGradientDescent
from dpalgos.trainers.objective_perturbation import ObjectivePerturbation
from tests.dpalgos.parameters import PARAMETERS
from tests.support.nights import spanning

DIMENSION, ROWS = 6, 400
MU, EPSILON = GaussianMu(0.8), PureEpsilon(1.5)

LOGISTIC_AT_ZERO = (0.499, 0.86)
# Share of the sensitivity that the algorithm's own pair attains at least, for 2 and for 3 classes; 0.98 where nothing
# stands here. Less than all of it where slopes are half at zero weights (logistic, softmax), where a constant feature
# keeps rows from being antipodal and the classes' slopes are not either, where the bound on the triangle adds a
# diagonal that its largest entries do not have, and where the squared loss's slope is bounded for all minimisers.
SHARES: dict[tuple[str, str], tuple[float, float]] = {
    ("dppca", ""): (0.94, 0.94),
    ("laplace-pca", ""): (0.94, 0.94),
    ("gradient-perturbation", ""): LOGISTIC_AT_ZERO,
    ("local-gradient", ""): LOGISTIC_AT_ZERO,
    ("mpc-gp", ""): LOGISTIC_AT_ZERO,
    ("pathak", ""): (0.31, 0.31),
    # Its lines and its sums have farthest neighbours of their own, and a bound that is the range leaves v half of it.
    ("error-distribution", ""): (0.93, 0.93),
    # One feature has no two orthogonal rows; and orthogonal rows are not antipodal, as the mean's share supposes.
    ("second-moments", ""): (0.60, 0.86),
    # One row of its parameters reads a feature as a number and as a category, which no record has at both ends; see
    # test_pair_counts.py for columns that do not overlap.
    ("pair-counts", ""): (0.86, 0.86),
    ("noisy-gd", "intercept"): (0.96, 0.86),
    ("noisy-gd", "squared intercept"): (0.98, 0.81),
    ("truex", "intercept"): (0.98, 0.81),
    ("objective-perturbation", "logistic intercept"): (0.499, 0.40),
    ("output-perturbation", "softmax intercept"): (0.47, 0.46),
    ("consensus-admm", "softmax intercept"): (0.47, 0.46),
    ("output-perturbation", "squared"): (0.07, 0.07),
    # Its intercept is there by default.
    ("smo-output-perturbation", ""): (0.98, 0.80),
}
# Their rows have several features: columns, or a group and a score.
OF_SEVERAL_COLUMNS = {"pair-counts", "scores-by-group"}
# Its farthest neighbour is a null record, which occurs under both relations.
AS_FAR_FROM_NULL = {"laplace-error-sums"}
MORE: list[tuple[str, dict[str, Any]]] = [
    ("noisy-gd", {"budget": MU, "iterations": 3, "intercept_scaling": 1.0}),
    ("truex", {"budget": MU, "iterations": 3, "intercept_scaling": 1.0}),
    ("sufficient-statistics", {"budget": MU, "target_weight": 0.4, "intercept_scaling": 0.5}),
    ("smo-output-perturbation", {"budget": MU, "C": 0.5, "intercept_scaling": 0.0}),
]


def proved(kind: str, name: str, given: dict[str, Any]) -> bool:
    algorithm = AlgorithmSpec(kind, name, given).build()
    return bool(algorithm.budgets) and bool(algorithm.guarantee(setting_of(name, 2, algorithm.relations[0])).proved)


def setting_of(name: str, classes: int, relation: Neighbours = Neighbours.REPLACE_ONE) -> Setting:
    """One party; for Pathak's noise, which needs them, twelve."""
    parties = 12 if name == "pathak" else 1
    trust = Trust.CENTRAL if name in {"pathak", "truex", "local-gradient"} else Trust.LOCAL
    few = name in names("evaluators") and name not in OF_SEVERAL_COLUMNS
    dimension = (1 if classes == 2 else classes) if few else DIMENSION
    return Setting(sizes=(ROWS,) * parties, dimension=dimension, classes=classes, neighbours=relation, trust=trust)


TABLE: list[tuple[str, str, dict[str, Any]]] = [
    (kind, name, given) for (kind, name), rows in PARAMETERS.items() for given in rows if proved(kind, name, given)
]
TABLE += [("trainers", name, given) for name, given in MORE]
EACH = [pytest.param(*row, id=f"{row[1]}-{index}") for index, row in enumerate(TABLE)]


# ── the search ───────────────────────────────────────────────────────────────────────────────────────────────────────

Record = tuple[Floats, float]


def party(record: Record, name: str) -> ArrayRows:
    """The record among null ones; alone where the statistic is a sum over records."""
    count = ROWS if name in {"output-perturbation", "output-perturbation-radial", "pathak"} else 1
    features, labels = np.zeros((count, len(record[0]))), np.full(count, float(NULL_LABEL))
    features[0], labels[0] = record
    return ArrayRows(features, labels)


def corners(dimension: int, classes: int, seed: int) -> list[Record]:
    random = np.random.default_rng(seed)
    axes = np.eye(dimension)
    signs = np.array([[1.0] * dimension, [(-1.0) ** i for i in range(dimension)]]) / math.sqrt(dimension)
    drawn = random.normal(size=(4, dimension))
    rows = [*axes[:3], *signs, *(drawn / np.linalg.norm(drawn, axis=1, keepdims=True)), 1e6 * axes[0], 0.0 * axes[0]]
    labels = range(min(classes, 2))
    records = [(sign * row, float(label)) for row in rows for label in labels for sign in (1.0, -1.0)]
    return [*records, (np.full(dimension, np.nan), 0.0)]


def largest_move(algorithm: Calibrated, name: str, setting: Setting, *, climb: int = 30, seed: int = 0) -> float:
    """Search the records in which neighbours differ for those that move the statistic most."""
    random = np.random.default_rng(seed)
    pair = algorithm.neighbouring_pair(setting)
    own = [(rows.features[0], float(rows.labels[0])) for rows in (pair.left, pair.right)]
    records = [*own, *corners(setting.dimension, setting.classes, seed)]
    null: Record = (np.zeros(setting.dimension), float(NULL_LABEL))

    def value(record: Record) -> Floats:
        return algorithm.statistic(party(record, name), setting).ravel()

    def distance(one: Floats, two: Floats) -> float:
        return float(np.linalg.norm(one - two, ord=algorithm.norm))

    values, nothing = [value(record) for record in records], value(null)
    special = setting.neighbours is Neighbours.REPLACE_SPECIAL
    indices = range(len(records))
    pairs = [(i, None) for i in indices] + ([] if special else list(itertools.combinations(indices, 2)))
    moves = [distance(values[i], nothing if j is None else values[j]) for i, j in pairs]
    best = max(moves)
    first, second = pairs[int(np.argmax(moves))]
    left, right = records[first], null if second is None else records[second]
    for step in range(climb):
        scale = 0.5 * 0.86**step
        tried_left = (left[0] + scale * random.normal(size=setting.dimension), left[1])
        tried_right = right if second is None else (right[0] + scale * random.normal(size=setting.dimension), right[1])
        found = distance(value(tried_left), value(tried_right))
        if found > best:
            best, left, right = found, tried_left, tried_right
    return best


def share_of(name: str, given: dict[str, Any], classes: int) -> float:
    parts = [given.get("loss", ""), "intercept" if given.get("intercept_scaling") else ""]
    return SHARES.get((name, " ".join(filter(None, parts))), (0.98, 0.98))[classes - 2]


@pytest.mark.parametrize(("kind", "name", "given", "classes", "relation"), spanning(EACH, [2, 3], RELATIONS))
def test_no_neighbours_move_the_statistic_by_more_and_its_own_pair_nearly_by_as_much(
    kind: str, name: str, given: dict[str, Any], classes: int, relation: Neighbours
) -> None:
    algorithm, setting = AlgorithmSpec(kind, name, given).build(), setting_of(name, classes, relation)
    if relation not in algorithm.relations:
        with pytest.raises(ParameterError, match=r"under replace-special|replace-one"):
            algorithm.guarantee(setting)
        return
    assert isinstance(algorithm, Calibrated), "a proved algorithm says what its noise is calibrated to"
    share, sensitivity = attained(algorithm, setting), algorithm.sensitivity(setting)
    assert largest_move(algorithm, name, setting) <= sensitivity * (1 + 1e-9)
    assert share_of(name, given, classes) <= share <= 1 + 1e-9


DESCENTS = [
    pytest.param(row[1], row[2], id=f"{row[1]}-{index}")
    for index, row in enumerate(TABLE)
    if issubclass(lookup(row[0], row[1]), GradientSumTrainer)
]


@pytest.mark.parametrize(("name", "given", "classes", "relation"), spanning(DESCENTS, [2, 3], RELATIONS))
def test_gradients_attain_their_clip_at_some_weights_and_exceed_it_at_none(
    name: str, given: dict[str, Any], classes: int, relation: Neighbours
) -> None:
    """Whatever was released before: at large weights slopes are at their ends, at others classes are out of the way."""
    algorithm: Any = AlgorithmSpec("trainers", name, given).build()
    setting, random = setting_of(name, classes, relation), np.random.default_rng(3)
    zero = algorithm.initial(setting)
    shape = algorithm.weights(zero).shape
    aside, steep = np.zeros((2, *shape))
    aside[2:] = -1e3
    steep[:, 0] = 1e3
    # Rows on the wrong side by a little are antipodal but for that.
    slanted = [np.array([lean, side, -side, 0.0, 0.0, 0.0]) for lean in (0.05, -0.05) for side in (0.706, -0.706)]
    records = [(row, label) for row in slanted for label in (0.0, 1.0)]
    records += [*corners(DIMENSION, classes, 0), (np.ones(DIMENSION), 0.0), (np.ones(DIMENSION), 1.0)]
    found = 0.0
    for weights in (aside, steep, *(scale * random.normal(size=shape) for scale in (1.0, 30.0))):
        state = dataclasses.replace(zero, weights=weights) if isinstance(zero, DescentState) else weights

        def value(record: Record, state: Any = state) -> Floats:
            total = algorithm.contribution(state, party(record, name), setting)
            return np.asarray(algorithm.sums(setting).decode(total)).ravel()

        values = [value(record) for record in records]
        others = values if relation is Neighbours.REPLACE_ONE else []
        moves = [float(np.linalg.norm(one)) for one in values]
        moves += [float(np.linalg.norm(one - two)) for one, two in itertools.combinations(others, 2)]
        found = max(found, *moves)
    assert 0.97 * algorithm.sensitivity(setting) <= found <= algorithm.sensitivity(setting) * (1 + 1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_persons_gradients_are_bounded_at_weights_far_from_zero(classes: int) -> None:
    """Rows on the wrong side of steep weights, a thousand of them, and no score that depends on how many."""
    algorithm = NoisyGradientDescent(budget=MU, iterations=3)
    setting = dataclasses.replace(setting_of("noisy-gd", classes), rows_per_person=1024)
    weights = 1e3 * np.random.default_rng(3).normal(size=algorithm.weights(algorithm.initial(setting)).shape)
    state = dataclasses.replace(algorithm.initial(setting), weights=weights)

    def total(row: Floats, label: float, count: int) -> Floats:
        shares = np.full(count, count)
        person = ArrayRows(np.tile(row, (count, 1)), np.full(count, label), 100, shares, ROWS)
        return algorithm.sums(setting).decode(algorithm.contribution(state, person, setting))

    records = [(row, label) for row, label in corners(DIMENSION, classes, 0) if np.isfinite(row).all()]
    single, many, odd = (np.array([total(*record, count) for record in records]) for count in (1, 1024, 1000))
    assert np.linalg.norm(single, axis=(1, 2)).max() > 0.9 * algorithm.clip
    for totals in (single, many, odd):
        assert np.linalg.norm(totals, axis=(1, 2)).max() <= algorithm.clip * (1 + 1e-9)
    np.testing.assert_allclose(many, single, atol=0.02 * algorithm.clip)
    np.testing.assert_allclose(odd, single, atol=0.03 * algorithm.clip)


def takes_real_labels(kind: str, name: str, given: dict[str, Any]) -> bool:
    algorithm = AlgorithmSpec(kind, name, given).build()
    if kind != "trainers" or not hasattr(algorithm, "label_range"):
        return False
    try:
        algorithm.check(dataclasses.replace(setting_of(name, 2, algorithm.relations[0]), classes=1))
    except ParameterError:
        return False
    return True


OF_REAL_LABELS = [
    pytest.param(*row, relation, id=f"{row[1]}-{index}-{relation}")
    for index, row in enumerate(TABLE)
    if takes_real_labels(*row)
    for relation in AlgorithmSpec(*row).build().relations
]


@pytest.mark.parametrize(("kind", "name", "given", "relation"), OF_REAL_LABELS)
def test_real_labels_are_bounded_as_well(kind: str, name: str, given: dict[str, Any], relation: Neighbours) -> None:
    setting = dataclasses.replace(setting_of(name, 2, relation), classes=1)
    assert 0.07 <= attained(AlgorithmSpec(kind, name, given).build(), setting) <= 1 + 1e-9


# ── the noise is calibrated to it ────────────────────────────────────────────────────────────────────────────────────


def spent(algorithm: Any, calibrated: Setting, setting: Setting) -> float:
    """Return how much of what is guaranteed the algorithm's pair under one setting costs with the noise of another."""
    pair = algorithm.neighbouring_pair(setting)
    state, changes = algorithm.initial(calibrated), []
    law, losses = algorithm.distribution(calibrated), algorithm.guarantee(calibrated).losses
    for _ in range(algorithm.steps(calibrated)):
        one, two = (algorithm.contribution(state, rows, calibrated) for rows in (pair.left, pair.right))
        difference = (one - two).astype(np.float64).ravel()
        symmetric = isinstance(law, SymmetricRoundedGaussian | SymmetricRoundedRadial)
        changes.append(to_vector(unpack(difference)) if symmetric else difference)
        # Sums of nothing leave a descent where it is, so that its steps are the same.
        state = algorithm.update(state, np.zeros_like(one), calibrated)
    change: Floats = np.concatenate(changes)
    if isinstance(losses[0], PureEpsilon):
        return float(np.linalg.norm(change, ord=algorithm.norm) / law.scale / sum(loss.epsilon for loss in losses))
    (loss,) = losses
    mu = math.sqrt(2 * loss.rho) if isinstance(loss, ZeroConcentrated) else loss.mu
    return float(np.linalg.norm(change) / law.sigma / mu)


SUMS = [
    pytest.param(*row, id=f"{row[1]}-{index}")
    for index, row in enumerate(TABLE)
    if is_sum_algorithm(lookup(row[0], row[1]))
]


@pytest.mark.parametrize(("kind", "name", "given", "classes", "relation"), spanning(SUMS, [2, 3], RELATIONS))
def test_the_worst_neighbours_spend_what_is_guaranteed_and_no_more(
    kind: str, name: str, given: dict[str, Any], classes: int, relation: Neighbours
) -> None:
    algorithm, setting = AlgorithmSpec(kind, name, given).build(), setting_of(name, classes, relation)
    share, least = spent(algorithm, setting, setting), 0.99 * share_of(name, given, classes)
    if name == "pathak":
        # Its noise is that of N parties, and one party's m classifiers of p weights move by m√p changes of one.
        least *= outputs(classes) * math.sqrt(DIMENSION) / len(setting.sizes)
    assert least <= share <= 1 + 1e-9
    if relation is Neighbours.REPLACE_ONE and least > 0.75 and name not in AS_FAR_FROM_NULL:
        # A mutant: the noise for a null record where rows are replaced.
        assert spent(algorithm, dataclasses.replace(setting, neighbours=Neighbours.REPLACE_SPECIAL), setting) > 1.05


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "name", [name for name in names("evaluators") if GaussianMu in lookup("evaluators", name).budgets]
)
def test_the_noise_of_counts_is_never_below_what_the_budget_asks(name: str, relation: Neighbours) -> None:
    """In exact arithmetic, the rounding of a square root in the sensitivity included."""
    ((given, *_), setting) = PARAMETERS["evaluators", name], setting_of(name, 2, relation)
    for mu in np.random.default_rng(4).uniform(0.01, 4.0, 300):
        algorithm: Any = AlgorithmSpec("evaluators", name, {**given, "budget": GaussianMu(float(mu))}).build()
        needed = (
            Fraction(algorithm.units(setting))
            * Fraction(algorithm.sensitivity(setting))
            / Fraction(algorithm.budget.mu)
        )
        assert Fraction(algorithm.distribution(setting).sigma) >= needed * (1 + Fraction(1, 2**50))


class RootOfTwo(NoisyGradientDescent):
    """A mutant: signed sums move by √2, as covariances do, where 2 is right."""

    def sensitivity(self, setting: Setting) -> float:
        return math.sqrt(setting.neighbours.records) * self.clip


def test_the_search_catches_root_two_where_two_is_right() -> None:
    setting = setting_of("noisy-gd", 2)
    sound, mutant = (cls(budget=MU, iterations=3) for cls in (NoisyGradientDescent, RootOfTwo))
    assert largest_move(sound, "noisy-gd", setting) <= sound.sensitivity(setting)
    assert largest_move(mutant, "noisy-gd", setting) > 1.4 * mutant.sensitivity(setting)
    assert attained(mutant, setting) > 1.4


def test_the_search_finds_more_than_the_pairs_of_one_class() -> None:
    """Records of one class alone would pass √2 for a binary classifier whose rows share a constant feature."""
    algorithm = NoisyGradientDescent(budget=MU, iterations=3, intercept_scaling=1.0, mean_weight=1.0)
    setting = setting_of("noisy-gd", 2)
    row = np.eye(1, DIMENSION)[0]
    same_class = one_row_apart(setting, row, -row)
    assert moved(algorithm, setting, same_class) < 1.45 * algorithm.clip
    assert attained(algorithm, setting) > 0.99


@pytest.mark.parametrize("relation", RELATIONS)
def test_objective_perturbation_draws_half_the_noise_against_a_null_record(relation: Neighbours) -> None:
    """The density ratio of the linear term is exp(Δ/b): b is Δ over what the Jacobian leaves of epsilon."""
    algorithm = ObjectivePerturbation(budget=EPSILON)
    one, other = (algorithm.calibration(setting_of("", 3, each)) for each in (relation, Neighbours.REPLACE_ONE))
    assert one.noise_scale == pytest.approx(other.noise_scale * relation.records / 2)
    assert (one.regularisation, one.tolerance_scale) == (other.regularisation, other.tolerance_scale)


# ── add-remove-one is refused ────────────────────────────────────────────────────────────────────────────────────────


def test_add_remove_is_no_relation_of_a_setting() -> None:
    with pytest.raises(ParameterError, match=r"^add-remove-one.*40 of 40"):
        Setting(sizes=(10,), dimension=2, classes=2, neighbours=Neighbours.ADD_REMOVE_ONE)
    with pytest.raises(ParameterError, match=r"^add-remove-one"):
        dataclasses.replace(Setting(sizes=(10,), dimension=2, classes=2), neighbours=Neighbours.ADD_REMOVE_ONE)


def test_no_guarantee_is_stated_or_read_under_add_remove() -> None:
    with pytest.raises(ParameterError, match=r"^add-remove-one"):
        Guarantee(losses=(), neighbours=Neighbours.ADD_REMOVE_ONE)
    forged = {**Guarantee(losses=()).to_json(), "neighbours": "add-remove-one"}
    with pytest.raises(ParameterError, match=r"^add-remove-one"):
        Guarantee.from_json(forged)
    with pytest.raises(ParameterError, match=r"^add-remove-one"):
        _ = Neighbours.ADD_REMOVE_ONE.records


def test_relations_count_the_records_that_are_not_null() -> None:
    assert [relation.records for relation in RELATIONS] == [2, 1]


def test_a_replaced_row_is_a_group_of_two() -> None:
    """μ → 2μ, ε → 2ε, ρ → 4ρ, δ → (1 + e^ε) δ."""
    losses = (GaussianMu(0.1), PureEpsilon(0.2), ZeroConcentrated(0.3), ApproximateDP(0.5, 1e-6))
    special = Guarantee(losses=losses, neighbours=Neighbours.REPLACE_SPECIAL)
    *others, last = losses_under(special, Neighbours.REPLACE_ONE)
    assert others == [GaussianMu(0.2), PureEpsilon(0.4), ZeroConcentrated(1.2)]
    assert isinstance(last, ApproximateDP)
    assert last.epsilon == 1.0
    assert last.delta == pytest.approx((1 + math.exp(0.5)) * 1e-6, rel=1e-9)


@pytest.mark.parametrize("relation", [Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL])
def test_a_relation_in_force_costs_what_was_proved(relation: Neighbours) -> None:
    guarantee = Guarantee(losses=(GaussianMu(0.1),), neighbours=relation)
    assert losses_under(guarantee, relation) == guarantee.losses


def test_nothing_is_converted_to_replace_special() -> None:
    with pytest.raises(ParameterError, match="neighbours=replace-special"):
        losses_under(Guarantee(losses=(GaussianMu(0.1),)), Neighbours.REPLACE_SPECIAL)


@pytest.mark.parametrize("proved", RELATIONS)
def test_add_remove_is_no_relation_to_account_under(proved: Neighbours) -> None:
    with pytest.raises(ParameterError, match=r"add-remove-one.*replace-special"):
        losses_under(Guarantee(losses=(GaussianMu(0.1),), neighbours=proved), Neighbours.ADD_REMOVE_ONE)
