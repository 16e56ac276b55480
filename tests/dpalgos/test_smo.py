"""SMO against LIBSVM, against its own definitions, and on rows that are hard on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from dpalgos.guarantees import Setting
from dpalgos.kernels import GaussianKernel, Kernel, LinearKernel, squared_norms
from dpalgos.models import KernelModel, LinearModel, decode
from dpalgos.parameters import ParameterError
from dpalgos.published.kernel_rows import KernelRows
from dpalgos.published.machines import Smo, gather_raw
from dpalgos.published.smo import (
    RULES,
    Active,
    ConstantFactor,
    Extremes,
    FirstConstantFactor,
    MaximalViolatingPair,
    PrivateSelection,
    SecondOrder,
    Selector,
    Solution,
    WorkingSetRule,
    solve,
)
from dpalgos.rows import ArrayRows
from tests.support.nights import spanning
from tests.support.streams import seeded
from tests.support.training import noise

Floats = NDArray[np.float64]
TOLERANCE = 1e-3


def kernel_matrix(kernel: Kernel, features: Floats) -> Floats:
    squares = squared_norms(features)
    return np.stack([kernel.of_products(features @ row, squares, float(row @ row)) for row in features])


def run(
    features: Any,
    y: Floats,
    *,
    kernel: Kernel | None = None,
    cost: float = 1.0,
    rule: WorkingSetRule | None = None,
    shrinking: bool = True,
    tolerance: float = TOLERANCE,
) -> Solution:
    return solve(
        kernel or LinearKernel(),
        features,
        y,
        cost=cost,
        tolerance=tolerance,
        rule=rule or SecondOrder(),
        shrinking=shrinking,
    )


def two_classes(name: str) -> tuple[Floats, Floats]:
    """Return standardised rows of a bundled set and ±1 labels; no set here can be separated by its first classes."""
    loaders: dict[str, Callable[..., Any]] = {
        "breast-cancer": load_breast_cancer,
        "digits": load_digits,
        "iris": load_iris,
        "wine": load_wine,
    }
    pairs = {"breast-cancer": (0, 1), "digits": (3, 8), "iris": (1, 2), "wine": (0, 1)}
    features, labels = loaders[name](return_X_y=True)
    kept = np.isin(labels, pairs[name])
    return (
        StandardScaler().fit_transform(features[kept]),
        np.where(labels[kept] == pairs[name][1], 1.0, -1.0),
    )


def overlapping(rows: int, dimension: int, seed: int) -> tuple[Floats, Floats]:
    random = np.random.default_rng(seed)
    y = np.where(random.random(rows) < 0.4, 1.0, -1.0)
    return random.normal(size=(rows, dimension)) + 0.5 * y[:, None], y


def check(solution: Solution, kernel: Kernel, features: Floats, y: Floats, cost: float) -> None:
    """Check feasibility, optimality and every reported number against the whole kernel matrix."""
    alpha = y * solution.coefficients
    assert (alpha >= 0).all()
    assert (alpha <= cost).all()
    assert abs(solution.coefficients.sum()) <= 1e-12 * cost * len(y) * max(1, solution.iterations)
    scores = kernel_matrix(kernel, features) @ solution.coefficients
    norm = solution.coefficients @ scores
    assert solution.objective == pytest.approx(0.5 * norm - alpha.sum(), rel=1e-9, abs=1e-9)
    primal = 0.5 * norm + cost * np.maximum(0.0, 1.0 - y * (scores + solution.bias)).sum()
    assert solution.duality_gap == pytest.approx(primal + solution.objective, rel=1e-6, abs=1e-7 * cost * len(y))
    v = y - scores
    up, low = np.where(y > 0, alpha < cost, alpha > 0), np.where(y > 0, alpha > 0, alpha < cost)
    if up.any() and low.any():
        assert max(0.0, v[up].max() - v[low].min()) == pytest.approx(solution.violation, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "kernel", "shrinking", "selection"),
    spanning(
        ["breast-cancer", "digits", "iris", "wine"],
        [pytest.param(LinearKernel(), id="linear"), pytest.param(GaussianKernel(0.05), id="rbf")],
        [True, False],
        sorted(RULES),
    ),
)
def test_objective_and_scores_are_those_of_libsvm(name: str, kernel: Kernel, shrinking: bool, selection: str) -> None:
    features, y = two_classes(name)
    gamma = {"kernel": "linear"} if isinstance(kernel, LinearKernel) else {"kernel": "rbf", "gamma": 0.05}
    oracle = SVC(C=1.0, tol=1e-5, **gamma).fit(features, y)
    coefficients = np.zeros(len(y))
    coefficients[oracle.support_] = oracle.dual_coef_[0]
    matrix = kernel_matrix(kernel, features)
    reference = 0.5 * coefficients @ matrix @ coefficients - np.abs(coefficients).sum()
    solution = run(features, y, kernel=kernel, rule=RULES[selection](0.7), shrinking=shrinking)
    assert solution.converged
    assert solution.objective == pytest.approx(reference, rel=1e-4)
    assert solution.objective >= reference - 1e-6
    check(solution, kernel, features, y, 1.0)
    scores = matrix @ solution.coefficients + solution.bias
    # One of LIBSVM's bound multipliers may differ; the function hardly does.
    assert np.abs(scores - oracle.decision_function(features)).max() < 0.05


@pytest.mark.parametrize("selection", sorted(RULES))
def test_the_objective_does_not_depend_on_the_order_of_rows(selection: str) -> None:
    features, y = overlapping(300, 5, 0)
    order = np.random.default_rng(1).permutation(len(y))
    rule = RULES[selection](0.7)
    first, second = run(features, y, rule=rule), run(features[order], y[order], rule=rule)
    assert first.objective == pytest.approx(second.objective, abs=first.duality_gap + second.duality_gap)
    assert first.duality_gap < 0.05


@pytest.mark.parametrize("cost", [1e-3, 10.0])
def test_shrinking_changes_neither_objective_nor_bias(cost: float) -> None:
    """3,000 rows, so that shrinking happens; the bound is the two duality gaps."""
    features, y = overlapping(3000, 3, 2)
    on, off = run(features, y, cost=cost), run(features, y, cost=cost, shrinking=False)
    assert on.objective == pytest.approx(off.objective, abs=on.duality_gap + off.duality_gap)
    assert on.converged
    assert off.converged
    assert on.bias == pytest.approx(off.bias, abs=0.02)


def test_shrinking_sets_rows_aside_and_takes_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    restored: list[int] = []
    keep, restore = KernelRows.keep, KernelRows.restore

    def noted_keep(self: KernelRows, positions: NDArray[np.int64]) -> None:
        kept.append(len(positions))
        keep(self, positions)

    def noted_restore(self: KernelRows, order: NDArray[np.int64]) -> None:
        restored.append(1)
        restore(self, order)

    monkeypatch.setattr(KernelRows, "keep", noted_keep)
    monkeypatch.setattr(KernelRows, "restore", noted_restore)
    features, y = overlapping(3000, 3, 2)
    run(features, y, cost=10.0)
    assert min(kept) < 2000
    assert restored


@pytest.mark.parametrize(("selection", "shrinking"), spanning(sorted(RULES), [True, False]))
def test_hard_rows(selection: str, shrinking: bool) -> None:
    """Each ends, is optimal, and says so; nothing is assumed of the rows."""
    random = np.random.default_rng(3)
    y = np.where(random.random(40) < 0.5, 1.0, -1.0)
    y[:2] = 1.0, -1.0
    features = random.normal(size=(40, 4))
    cases: dict[str, tuple[Floats, Floats, float]] = {
        "all rows equal": (np.tile(features[:1], (40, 1)), y, 1.0),
        "rank one": (np.outer(np.linspace(-1, 1, 40), features[0]), y, 1.0),
        "zeros": (np.zeros((40, 4)), y, 1.0),
        "duplicated": (np.repeat(features[:10], 4, axis=0), y, 1.0),
        "as many rows as features": (np.eye(40), y, 1.0),
        "two rows": (features[:2], y[:2], 1.0),
        "tiny C": (features, y, 1e-8),
        "large C, separable": (features + 3 * y[:, None], y, 1e6),
        "large C, not separable": (features[:, :2], y, 1e3),
        "tiny rows": (1e-9 * features, y, 1.0),
        "long rows": (1e6 * features, y, 1e-10),
    }
    for name, (rows, labels, cost) in cases.items():
        solution = run(rows, labels, cost=cost, rule=RULES[selection](0.7), shrinking=shrinking)
        assert solution.converged, name
        assert solution.violation < TOLERANCE, name
        check(solution, LinearKernel(), rows, labels, cost)


@pytest.mark.parametrize("selection", sorted(RULES))
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_class_or_one_row_gives_the_class(selection: str, sign: float) -> None:
    for rows in (1, 7):
        solution = run(np.ones((rows, 2)), np.full(rows, sign), rule=RULES[selection](0.7))
        assert (solution.bias, solution.iterations, solution.objective) == (sign, 0, 0.0)
        assert solution.converged
        assert not solution.support.size


def test_no_rows_give_zero() -> None:
    solution = run(np.zeros((0, 3)), np.zeros(0))
    assert (solution.bias, solution.objective, solution.duality_gap, solution.iterations) == (0.0, 0.0, 0.0, 0)


def test_two_points_have_the_known_solution() -> None:
    """±x at distance 2‖x‖ = 2: α = 1/2 each, w = x, objective −1/2; with C = 1/4 both are at the bound."""
    features, y = np.array([[0.6, 0.8], [-0.6, -0.8]]), np.array([1.0, -1.0])
    solution = run(features, y)
    assert solution.coefficients == pytest.approx([0.5, -0.5])
    assert solution.objective == pytest.approx(-0.5)
    assert solution.bias == pytest.approx(0.0)
    bounded = run(features, y, cost=0.25)
    assert bounded.coefficients.tolist() == [0.25, -0.25]
    assert bounded.objective == pytest.approx(0.5 * 0.25 - 0.5)


class Recorded:
    """A rule that notes, before every step, what it chose among what."""

    def __init__(self, rule: WorkingSetRule) -> None:
        self.rule = rule
        self.steps: list[dict[str, Any]] = []

    def selector(self, rows: int, tolerance: float) -> Selector:
        inner = self.rule.selector(rows, tolerance)

        def select(active: Active, ends: Extremes) -> tuple[int, int] | None:
            pair = inner(active, ends)
            if pair is not None:
                self.steps.append(
                    {
                        "pair": pair,
                        "ids": (int(active.ids[pair[0]]), int(active.ids[pair[1]])),
                        "v": active.v.copy(),
                        "up": active.up.astype(bool),
                        "low": active.low.astype(bool),
                        "row": active.row(pair[0]).copy(),
                        "diagonal": active.diagonal.copy(),
                    }
                )
            return pair

        return select


def recorded(rule: WorkingSetRule, seed: int = 4) -> list[dict[str, Any]]:
    features, y = overlapping(120, 3, seed)
    watch = Recorded(rule)
    run(features, y, cost=2.0, rule=watch)
    assert len(watch.steps) > 50
    return watch.steps


def gains(step: dict[str, Any]) -> Floats:
    """Return (v_i − v_t)²/curvature for all t, −inf where (i, t) is not a violating pair."""
    i, v = step["pair"][0], step["v"]
    curvature = step["diagonal"][i] + step["diagonal"] - 2.0 * step["row"]
    gain = (v[i] - v) ** 2 / np.where(curvature > 0, curvature, 1e-12)
    return np.where(step["low"] & (v < v[i]), gain, -np.inf)


def spread(step: dict[str, Any]) -> tuple[float, float]:
    return float(step["v"][step["up"]].max()), float(step["v"][step["low"]].min())


def test_wss1_takes_both_extremes() -> None:
    for step in recorded(MaximalViolatingPair()):
        i, j = step["pair"]
        assert (step["v"][i], step["v"][j]) == spread(step)


def test_wss2_takes_the_largest_second_order_gain() -> None:
    for step in recorded(SecondOrder()):
        i, j = step["pair"]
        assert step["v"][i] == spread(step)[0]
        assert gains(step)[j] == pytest.approx(gains(step).max(), rel=1e-12)


@pytest.mark.parametrize("sigma", [0.1, 0.7, 1.0])
def test_wss3_takes_pairs_within_the_constant_factor(sigma: float) -> None:
    for step in recorded(ConstantFactor(sigma)):
        (i, j), (m, smallest) = step["pair"], spread(step)
        assert step["up"][i]
        assert step["low"][j]
        assert step["v"][i] - step["v"][j] >= sigma * (m - smallest) * (1 - 1e-12) > 0


def test_wss3_uses_its_freedom() -> None:
    """A rule that always took the largest violator would be WSS 4."""
    assert any(step["v"][step["pair"][0]] < spread(step)[0] for step in recorded(ConstantFactor(0.5)))


@pytest.mark.parametrize("sigma", [0.1, 0.7, 1.0])
def test_wss4_takes_the_largest_violator_and_a_partner_within_the_factor(sigma: float) -> None:
    for step in recorded(FirstConstantFactor(sigma)):
        (i, j), (m, smallest) = step["pair"], spread(step)
        assert step["v"][i] == m
        assert step["low"][j]
        assert m - step["v"][j] >= sigma * (m - smallest) * (1 - 1e-12) > 0
        admitted = np.where(m - step["v"] >= sigma * (m - smallest), gains(step), -np.inf)
        assert gains(step)[j] == pytest.approx(max(admitted.max(), gains(step)[j]), rel=1e-12)


def test_the_constant_factor_runs_from_second_order_to_the_extremes() -> None:
    """σ → 0 makes WSS 4 WSS 2, step by step; σ = 1 makes WSS 3 and WSS 4 WSS 1, which differ in breaking ties."""

    def pairs(rule: WorkingSetRule) -> list[tuple[int, int]]:
        return [step["ids"] for step in recorded(rule)]

    assert pairs(FirstConstantFactor(1e-300)) == pairs(SecondOrder())
    for rule in (FirstConstantFactor(1.0), ConstantFactor(1.0)):
        for step in recorded(rule):
            assert tuple(step["v"][list(step["pair"])]) == pytest.approx(spread(step), rel=1e-12)
    assert pairs(SecondOrder()) != pairs(MaximalViolatingPair())


@pytest.mark.parametrize("shrinking", [True, False])
@pytest.mark.parametrize("places", [2, 900])
def test_steps_taken_at_once_are_those_taken_one_by_one(
    places: int, shrinking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WSS 2 in one compiled loop, also with no room for more than two kernel rows, against the rule asked each time."""
    monkeypatch.setattr(KernelRows.__init__, "__defaults__", (8 * 900 * places,))
    features, y = overlapping(900, 3, 6)
    one_by_one = run(features, y, cost=3.0, rule=Recorded(SecondOrder()), shrinking=shrinking)
    at_once = run(features, y, cost=3.0, rule=SecondOrder(), shrinking=shrinking)
    assert at_once.converged
    assert at_once.iterations == pytest.approx(one_by_one.iterations, rel=0.01)
    assert at_once.objective == pytest.approx(one_by_one.objective, abs=at_once.duality_gap + one_by_one.duality_gap)


def test_every_step_lowers_the_objective() -> None:
    features, y = overlapping(120, 3, 5)
    watch = Recorded(SecondOrder())
    run(features, y, rule=watch, shrinking=False)
    # Kernel rows are rounded to float32.
    matrix = (features @ features.T).astype(np.float32).astype(np.float64)
    # Along the pair's line the objective falls for steps up to gap/curvature, where it has its minimum.
    for before, after in zip(watch.steps, watch.steps[1:], strict=False):
        i, j = before["pair"]
        moved = before["v"] - after["v"]
        delta = moved[i] / (matrix[i, i] - matrix[i, j])
        gap = before["v"][i] - before["v"][j]
        curvature = before["diagonal"][i] + before["diagonal"][j] - 2 * matrix[i, j]
        assert 0 < delta <= gap / curvature * (1 + 1e-9)
        assert moved == pytest.approx(delta * (matrix[i] - matrix[j]), abs=1e-9)


@pytest.mark.parametrize("kernel", [LinearKernel(), GaussianKernel(0.5)], ids=["linear", "rbf"])
def test_sparse_rows_give_what_dense_rows_give(kernel: Kernel) -> None:
    features, y = overlapping(1500, 6, 6)
    features[np.random.default_rng(7).random(features.shape) < 0.8] = 0.0
    dense, sparse = run(features, y, kernel=kernel), run(csr_matrix(features), y, kernel=kernel)
    assert sparse.objective == pytest.approx(dense.objective, abs=dense.duality_gap + sparse.duality_gap)


@pytest.mark.parametrize("wide", [False, True])
def test_kernel_rows_are_right_and_take_bounded_memory(wide: bool) -> None:
    features = np.random.default_rng(8).normal(size=(200, 3))
    whole, within = kernel_matrix(GaussianKernel(0.3), features), 1e-12 if wide else 2.0**-24
    rows = KernelRows(GaussianKernel(0.3), features, cache_bytes=10 * 200 * 8)
    assert rows.rounding == 2.0**-24
    assert len(rows.held) == 20
    if wide:
        rows.widen()
        assert len(rows.held) == 10
    order = np.random.default_rng(9).integers(0, 200, 500)
    for position in order:
        np.testing.assert_allclose(rows.row(int(position)), whole[position], rtol=0.0, atol=within)
        assert rows.held.nbytes <= 10 * 200 * 8
    kept = np.random.default_rng(10).permutation(200)[:67]
    rows.keep(kept)
    for position in range(len(kept)):
        np.testing.assert_allclose(rows.row(position), whole[kept[position]][kept], rtol=0.0, atol=within)
    assert rows.diagonal == pytest.approx(np.ones(len(kept)))
    again = np.arange(0, len(kept), 2)
    rows.keep(again)
    assert rows.row(3) == pytest.approx(whole[kept[again[3]]][kept[again]], abs=within)
    order = np.random.default_rng(11).permutation(200)
    rows.restore(order)
    assert rows.row(7) == pytest.approx(whole[order[7]][order], abs=within)


def test_what_is_remembered_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    features, y = overlapping(900, 3, 6)
    all_kept = run(features, y, cost=3.0)
    monkeypatch.setattr(KernelRows.__init__, "__defaults__", (0,))
    two_kept = run(features, y, cost=3.0)
    assert two_kept.iterations == all_kept.iterations
    assert np.array_equal(two_kept.coefficients, all_kept.coefficients)


def test_what_rounding_hides_is_found_and_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tolerance far below what float32 resolves at this C is reached, by rows in float64; without them it is not."""
    features, y = overlapping(300, 3, 13)
    options: dict[str, Any] = {"kernel": GaussianKernel(0.5), "cost": 100.0, "tolerance": 1e-7}
    solution = run(features, y, **options)
    check(solution, options["kernel"], features, y, 100.0)
    assert solution.converged
    assert solution.violation < 1e-7
    monkeypatch.setattr(Active, "settle", lambda state, tolerance: state.restore() or 0.0)
    unsettled = run(features, y, **options)
    with pytest.raises(AssertionError):
        check(unsettled, options["kernel"], features, y, 100.0)


def machine(rows: ArrayRows, classes: int, **options: Any) -> tuple[Any, dict[str, float]]:
    setting = Setting(sizes=(rows.count,), dimension=rows.dimension, classes=classes)
    return Smo(**options).diagnostics([rows], setting, noise())


@pytest.mark.parametrize("options", [{"kernel": "linear"}, {"kernel": "rbf", "gamma": 0.05}], ids=["linear", "rbf"])
def test_three_classes_are_three_machines(options: dict[str, Any]) -> None:
    features, labels = load_wine(return_X_y=True)
    features = StandardScaler().fit_transform(features)
    model, numbers = machine(ArrayRows(features, labels), 3, tolerance=1e-4, **options)
    objective = 0.0
    for index in range(3):
        oracle = SVC(C=1.0, tol=1e-4, **options).fit(features, labels == index)
        assert model.scores(features)[:, index] == pytest.approx(oracle.decision_function(features), abs=0.02)
        kernel: Kernel = LinearKernel() if options["kernel"] == "linear" else GaussianKernel(0.05)
        dual = oracle.dual_coef_[0]
        objective += 0.5 * dual @ kernel_matrix(kernel, features[oracle.support_]) @ dual - np.abs(dual).sum()
    assert numbers["objective"] == pytest.approx(objective, rel=1e-4)
    assert numbers["train_accuracy"] == pytest.approx(np.mean(model.predict(features) == labels))
    assert numbers["converged"] == 1.0
    assert isinstance(model, LinearModel if options["kernel"] == "linear" else KernelModel)
    again = decode(model.kind, model.arrays())
    assert np.array_equal(again.scores(features), model.scores(features))


def test_class_one_is_positive_and_the_intercept_counts() -> None:
    features, y = two_classes("wine")
    # A shift of all rows moves the intercept and nothing else.
    shifted = ArrayRows(features + 5.0, (y > 0).astype(np.int64))
    model, numbers = machine(shifted, 2)
    centred, _ = machine(ArrayRows(features, shifted.labels), 2)
    assert model.weights == pytest.approx(centred.weights, abs=0.02)
    assert abs(model.intercept[0] - centred.intercept[0] + 5.0 * centred.weights.sum()) < 0.1
    assert numbers["train_accuracy"] == 1.0


def test_rows_are_taken_as_they_are() -> None:
    """Rows of norm 10 are not clipped: ±10 in one dimension give w = 1/10; clipped they would give 1."""
    rows = ArrayRows(np.array([[10.0], [-10.0]]), np.array([1, 0]))
    model, _ = machine(rows, 2)
    assert model.weights == pytest.approx(np.array([[0.1]]))


def test_gathering_is_total_and_sparse_where_that_is_smaller() -> None:
    features = np.zeros((20, 40))
    features[np.arange(20), np.arange(20)] = 1.0
    features[0], features[1, 1], features[2, 2] = np.nan, np.inf, 1e60
    known = np.where(np.arange(20) == 7, 7.0, 1.0)
    gathered, labels = gather_raw([ArrayRows(features, known, block=6)], 2, 40)
    assert not isinstance(gathered, np.ndarray)
    # Null records, two by their features and one by its label, are left out.
    assert gathered.toarray()[:1].tolist() == np.zeros((1, 40)).tolist()
    assert gathered.toarray()[1:].tolist() == features[[*range(3, 7), *range(8, 20)]].tolist()
    assert labels.tolist() == [1] * 17
    dense, _ = gather_raw([ArrayRows(np.ones((20, 4)), np.zeros(20))] * 2, 2, 4)
    assert isinstance(dense, np.ndarray)
    assert dense.shape == (40, 4)


def test_parties_are_pooled() -> None:
    features, y = overlapping(60, 3, 10)
    labels = (y > 0).astype(np.int64)
    parties = [ArrayRows(features[:20], labels[:20]), ArrayRows(features[20:], labels[20:])]
    setting = Setting(sizes=(20, 40), dimension=3, classes=2)
    together, _ = machine(ArrayRows(features, labels), 2)
    assert np.array_equal(Smo().fit(parties, setting, noise()).scores(features), together.scores(features))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"C": 0.0}, "C"),
        ({"C": float("nan")}, "C"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"kernel": "poly"}, "kernel"),
        ({"kernel": "rbf", "gamma": -1.0}, "gamma"),
        ({"selection": "wss5"}, "selection"),
        ({"selection": "wss3", "sigma": 0.0}, "sigma"),
        ({"selection": "wss4", "sigma": 1.5}, "sigma"),
    ],
)
def test_parameters_are_checked(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        Smo(**options)


def test_a_model_refuses_an_intercept_of_another_shape() -> None:
    with pytest.raises(ParameterError, match="intercept"):
        LinearModel(weights=np.zeros((3, 2)), intercept=np.zeros(2))
    assert LinearModel(weights=np.zeros((3, 2))).intercept.tolist() == [0.0, 0.0, 0.0]


def test_importing_the_registry_does_not_start_the_compiler() -> None:
    code = "import sys; from dpalgos.registry import names; names('trainers'); sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_compiles_where_nothing_can_be_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba raises RuntimeError where neither the package's folder nor the user's cache can be written to."""
    import numba

    from dpalgos.compiling import compiled

    real = numba.njit

    def unwritable(**options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(numba, "njit", unwritable)

    def double(x: float) -> float:
        return 2 * x

    assert compiled(double)(21) == 42


def test_private_selection_draws_each_pair_once() -> None:
    steps = recorded(PrivateSelection(sigma=0.5, epsilon=1.0, stream=seeded(11)))
    pairs = [step["ids"] for step in steps]
    assert len(set(pairs)) == len(pairs)


def test_iterations_are_libsvms() -> None:
    """Within a fiftieth on uneven classes, where beginning pairs on the other side takes a twentieth more at least."""
    random = np.random.default_rng(12)
    y = np.where(random.random(1500) < 0.1, 1.0, -1.0)
    features = random.normal(size=(1500, 10)) + 0.5 * y[:, None]
    own, mirrored = (run(features, sign * y, kernel=GaussianKernel(0.1), shrinking=False) for sign in (1.0, -1.0))
    machine = SVC(C=1.0, gamma=0.1, tol=1e-3, shrinking=False).fit(features, y)
    assert abs(own.iterations - machine.n_iter_[0]) <= 0.02 * machine.n_iter_[0]
    assert mirrored.iterations > 1.05 * machine.n_iter_[0]
    assert own.objective == pytest.approx(mirrored.objective, abs=own.duality_gap + mirrored.duality_gap)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_iterations_with_a_linear_kernel_are_exactly_libsvms(sign: float) -> None:
    """Thousands of steps, each rounded as LIBSVM rounds it; scikit-learn's adds up sparse rows in order."""
    features, y = overlapping(700, 6, 14)
    features[np.random.default_rng(15).random(features.shape) < 0.5] = 0.0
    machine = SVC(kernel="linear", C=10.0, tol=1e-3, shrinking=False).fit(csr_matrix(features), sign * y)
    assert machine.n_iter_[0] > 3000
    for rows in (features, csr_matrix(features)):
        assert run(rows, sign * y, cost=10.0, shrinking=False).iterations == machine.n_iter_[0]


def test_shrinking_keeps_libsvms_order() -> None:
    """Up to the first time that rows are taken back, every step is LIBSVM's: here that is near the end."""
    features, y = overlapping(3000, 3, 2)
    machine = SVC(kernel="linear", C=1.0, tol=1e-3).fit(csr_matrix(features), y)
    assert machine.n_iter_[0] > 1000
    assert run(features, y).iterations == pytest.approx(machine.n_iter_[0], rel=0.02)
