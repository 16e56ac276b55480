"""Columns learnt once, privately, and a model of functions of them: a trial of the recipe, on public data.

From one vector of noisy counts (128 or more public bins of every numeric column as running sums, every category, the
classes or the bins of a real label) to a map of each column, from there to features, and to a model by the product's
trainers. The rules are ``table_rules.py``'s. Noise comes from NumPy: this is a benchmark, and no release.

*What the counts cost.* One row replaced moves, in each counted column, one bin's count by −1 and another's by +1. Plain
counts of a column so move by √2 at most; running sums, released as C x + z with the square-root factor C (columns c_i),
by max ‖c_i − c_j‖. A row may move all columns at once, and columns are separate coordinates of the one vector, so with
nothing missing

    Δ² = d · max_ij ‖c_i − c_j‖² + 2 (categorical columns + 1),

the last for the classes; a real label is one more column of running sums instead. Noise of Δ/μ′ a coordinate is
μ′-Gaussian-DP, μ′² = share · μ², and the rest of μ² trains. Everything that is made of the counts is post-processing.

*The features.* With F the released distribution of a column (isotonic, 0 to 1): the cell's bin gives its mid-rank and
so the normal score s = Φ⁻¹(F), clipped at ±2.75; s, h₂(s), h₃(s) are made orthonormal under the released masses, a
function with less than 2 % of variance of its own left out (two values have no square) and no other scaled up by more
than 0.3^(-1/2). The linear column is centred at the released median and scaled by the released 5 % and 95 % quantiles,
clipped at ±3. Blocks (linear, scores, squares and cubes, products of two columns, squares times scores, one-hots) have
public weights, each row norm 1.

*Real labels* are clipped to the range between two released quantiles, the narrowest that by the released counts loses
no more than 3 % of the label's variance, so that the label fills the range that it is scaled to.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.isotonic import isotonic_regression
from table_rules import Rule, TableFacts, choose
from table_sets import Part, Table

from dpalgos.accounting.profiles import epsilon_of_mu, mu_from_epsilon_delta
from dpalgos.algorithms import fit
from dpalgos.guarantees import GaussianMu, Neighbours, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import ArrayRows
from dpalgos.systems.recommended import recommend
from dpalgos.systems.system import PublicFacts

Floats = NDArray[np.float64]
_SCORE_BOUND, _LINEAR_BOUND, _FUNCTION_BOUND = 2.75, 3.0, 4.0
_LEAST_VARIANCE, _FLOOR, _LABEL_LOSS = 0.02, 0.3, 0.03


@functools.cache
def square_root_factor(bins: int) -> Floats:
    """Return c_k = C(2k, k)/4^k, k < bins: the first column of the Toeplitz factor C with C² = running sums."""
    factor = np.ones(bins)
    for k in range(1, bins):
        factor[k] = factor[k - 1] * (2 * k - 1) / (2 * k)
    return factor


@functools.cache
def squared_sensitivity(bins: int) -> float:
    """Return max ‖c_i − c_j‖² over the columns of the factor: what one replaced cell moves, nothing missing."""
    factor = square_root_factor(bins)
    columns = np.zeros((bins, bins))
    for j in range(bins):
        columns[j:, j] = factor[: bins - j]
    products = columns.T @ columns
    norms = np.diag(products)
    return float((norms[:, None] + norms[None, :] - 2.0 * products).max())


@dataclass(frozen=True)
class Counts:
    """What is released of the columns.

    Attributes
    ----------
    distributions : array (d, bins)
        Of each numeric column, the share of rows up to and with each bin.
    label : array (bins,) or None
        The same of a real label.
    deviation : float
        Of one count's noise, as a share of the rows.
    """

    distributions: Floats
    label: Floats | None
    deviation: float


def released_counts(table: Table, mu: float, bins: int, noise: np.random.Generator) -> Counts:
    """Return noisy counts of the training rows, which cost ``mu``."""
    rows, numeric = len(table.train), len(table.ranges) + (table.classes == 1)
    plain = len(table.sizes) + (table.classes > 1)
    deviation = math.sqrt(numeric * squared_sensitivity(bins) + 2.0 * plain) / mu
    placed = [places(cells, ends, bins) for cells, ends in zip(table.train.numbers.T, table.ranges, strict=True)]
    if table.classes == 1:
        placed.append(places(table.train.labels, table.label_range, bins))
    sums = [_distribution(np.bincount(column, minlength=bins), deviation, rows, noise) for column in placed]
    label = sums.pop() if table.classes == 1 else None
    return Counts(np.array(sums).reshape(-1, bins), label, deviation / rows)


def places(cells: Floats, ends: Any, bins: int) -> NDArray[np.int64]:
    """Return the bins of cells: equal parts of the declared range, cells outside in the end bins."""
    low, high = ends
    return np.clip(((cells - low) / (high - low) * bins).astype(np.int64), 0, bins - 1)


def _distribution(counts: NDArray[np.int64], deviation: float, rows: int, noise: np.random.Generator) -> Floats:
    bins = len(counts)
    # The release is C x + z; decoded by C it is the running sum of x, and C z.
    decoded = np.convolve(square_root_factor(bins), noise.normal(0.0, deviation, bins))[:bins]
    sums = np.cumsum(counts) + decoded
    sums[-1] = rows
    return np.asarray(np.clip(isotonic_regression(sums), 0.0, rows)) / rows


@dataclass(frozen=True)
class ColumnMap:
    """Functions of one column by bin.

    Attributes
    ----------
    linear : array (bins,)
    functions : tuple of array (bins,) or None
        Of degree 1, 2 and 3; None where too little is left of one.
    """

    linear: Floats
    functions: tuple[Floats | None, ...]


def column_map(distribution: Floats) -> ColumnMap:
    """Return the map of a column from its released distribution alone."""
    bins = len(distribution)
    before = np.concatenate([[0.0], distribution[:-1]])
    masses = np.maximum(distribution - before, 0.0)
    masses /= max(masses.sum(), 1e-9)
    ranks = np.clip((before + distribution) / 2.0, 1e-6, 1.0 - 1e-6)
    score = np.clip(ndtri(ranks), -_SCORE_BOUND, _SCORE_BOUND)
    basis, functions = [np.ones(bins)], []
    for raw in (score, (score**2 - 1.0) / math.sqrt(2.0), (score**3 - 3.0 * score) / math.sqrt(6.0)):
        left = raw
        for known in basis:
            left = left - (masses * left * known).sum() * known
        variance = float((masses * left**2).sum())
        if variance <= _LEAST_VARIANCE:
            functions.append(None)
            continue
        basis.append(left / math.sqrt(variance))
        functions.append(np.clip(left / math.sqrt(max(variance, _FLOOR)), -_FUNCTION_BOUND, _FUNCTION_BOUND))
    middles = (np.arange(bins) + 0.5) / bins * 2.0 - 1.0
    low, median, high = (
        middles[min(int(np.searchsorted(distribution, level)), bins - 1)] for level in (0.05, 0.5, 0.95)
    )
    width = max((high - low) / 3.29, 0.01)
    return ColumnMap(np.clip((middles - median) / width, -_LINEAR_BOUND, _LINEAR_BOUND), tuple(functions))


def features(table: Table, part: Part, maps: list[ColumnMap], rule: Rule) -> NDArray[np.float32]:
    """Return rows (n, p) of norm 1: the blocks that the rule asks for, weighed by their shares of the squared norm."""
    bins = len(maps[0].linear) if maps else 1
    placed = [places(cells, ends, bins) for cells, ends in zip(part.numbers.T, table.ranges, strict=True)]
    by_degree: list[list[tuple[int, Floats]]] = [[], [], []]
    for j, (one, column) in enumerate(zip(maps, placed, strict=True)):
        for held, function in zip(by_degree, one.functions, strict=True):
            if function is not None:
                held.append((j, function[column]))
    first, second, third = by_degree
    made = {
        "linear": [one.linear[column] for one, column in zip(maps, placed, strict=True)],
        "scores": [values for _, values in first],
        "squares": [values for _, values in second],
        "cubes": [values for _, values in third],
        "products": (_products(first, first, ordered=True) if rule.weights.get("products") else []),
        "cubic_products": (_products(second, first, ordered=False) if rule.weights.get("cubic_products") else []),
    }
    blocks = []
    for name, columns in made.items():
        if columns and rule.weights.get(name):
            blocks.append(np.stack(columns, axis=1) * math.sqrt(rule.weights[name] / len(columns)))
    if table.sizes:
        blocks += _one_hot(table, part, rule.weights)
    blocks.append(np.full((len(part), 1), 0.1))
    rows = np.hstack(blocks, dtype=np.float64)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def _products(left: list[tuple[int, Floats]], right: list[tuple[int, Floats]], *, ordered: bool) -> list[Floats]:
    """Return products of functions of two different columns; each pair once where ``ordered``."""
    return [
        np.clip(one * other, -_FUNCTION_BOUND, _FUNCTION_BOUND)
        for i, one in left
        for j, other in right
        if (i < j if ordered else i != j)
    ]


def _one_hot(table: Table, part: Part, weights: Mapping[str, float]) -> list[Floats]:
    groups = [(size, codes) for size, codes in zip(table.sizes, part.codes.T, strict=True)]
    blocks = [
        np.hstack([np.eye(size)[codes] for size, codes in groups]) * math.sqrt(weights["categories"] / len(groups))
    ]
    if weights.get("category_products"):
        pairs = [
            np.eye(size * other_size)[codes * other_size + other]
            for i, (size, codes) in enumerate(groups)
            for other_size, other in groups[i + 1 :]
        ]
        blocks.append(np.hstack(pairs) * math.sqrt(weights["category_products"] / len(pairs)))
    return blocks


def label_range(table: Table, counts: Counts) -> tuple[float, float]:
    """Return the range that a real label is clipped to, from its released distribution and the noise's deviation."""
    low, high = table.label_range
    if counts.label is None:
        return low, high
    distribution, bins = counts.label, len(counts.label)
    width = (high - low) / bins
    uppers = low + (np.arange(bins) + 1.0) * width
    middles = uppers - width / 2.0
    masses = np.diff(distribution, prepend=0.0)
    masses = np.maximum(masses, 0.0) / max(masses.sum(), 1e-9)
    variance = float((masses * (middles - (masses * middles).sum()) ** 2).sum())
    best = low, high
    for tail in (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05):
        if tail < counts.deviation:
            continue
        ends = (
            uppers[int(np.searchsorted(distribution, tail))] - width,
            uppers[min(int(np.searchsorted(distribution, 1.0 - tail)), bins - 1)],
        )
        lost = float((masses * (middles - np.clip(middles, *ends)) ** 2).sum())
        if lost <= _LABEL_LOSS * variance and ends[1] - ends[0] > 8.0 * width:
            best = float(ends[0]), float(ends[1])
    return best


def rule_of(table: Table, epsilon: float, delta: float) -> Rule:
    """Return what the rules choose for a table at a budget."""
    mu = mu_from_epsilon_delta(epsilon, delta)
    return choose(TableFacts(len(table.train), len(table.ranges), table.sizes, table.classes, mu))


def learnt_columns(table: Table, epsilon: float, delta: float, seed: int, rule: Rule) -> Floats:
    """Return the scores of the test rows by a model of learnt columns."""
    mu = mu_from_epsilon_delta(epsilon, delta)
    noise = np.random.default_rng([seed, 48])
    # With no numeric column nothing has to be counted, and all of the budget trains.
    counted = len(table.ranges) + (table.classes == 1) > 0
    share = rule.share if counted else 0.0
    maps: list[ColumnMap] = []
    ends = table.label_range
    if counted:
        counts = released_counts(table, mu * math.sqrt(share), rule.bins, noise)
        maps = [column_map(distribution) for distribution in counts.distributions]
        ends = label_range(table, counts)
    train, test = (features(table, part, maps, rule) for part in (table.train, table.test))
    left = mu * math.sqrt(1.0 - share)
    if rule.recommended:
        return recommended(table, epsilon_of_mu(left, delta), delta, train, test, seed)
    parameters: dict[str, Any] = {
        "budget": GaussianMu(left),
        "loss": "softmax" if table.classes > 1 else "squared",
        "mean_weight": 1.0,
        **rule.descent(len(table.train), left),
    }
    if table.classes == 1:
        parameters["label_range"] = list(ends)
    scores = fitted(table, AlgorithmSpec("trainers", "noisy-gd", parameters), train, test, seed)
    # No prediction lies outside the declared range.
    return np.asarray(np.clip(scores, *table.label_range)) if table.classes == 1 else scores


def linear_columns(table: Table, epsilon: float, delta: float, seed: int) -> Floats:
    """Return the scores of the test rows by a model of linear columns: recommended, or by sufficient statistics."""
    train, test = (_encoded(table, part) for part in (table.train, table.test))
    mu = mu_from_epsilon_delta(epsilon, delta)
    if table.classes == 1:
        parameters = {"budget": GaussianMu(mu), "label_range": list(table.label_range)}
        return fitted(table, AlgorithmSpec("trainers", "sufficient-statistics", parameters), train, test, seed)
    return recommended(table, epsilon, delta, train, test, seed)


def recommended(table: Table, epsilon: float, delta: float, train: Any, test: Any, seed: int) -> Floats:
    """Return the scores of test rows by what the product's rules choose for a table of classes."""
    mu = mu_from_epsilon_delta(epsilon, delta)
    facts = PublicFacts(
        sizes=(len(train),), dimension=train.shape[1], classes=table.classes, epsilon=epsilon, delta=delta,
        neighbours=Neighbours.REPLACE_ONE, trust=Trust.CENTRAL,
    )  # fmt: skip
    chosen = recommend(facts).arrangement
    share = chosen.projection_share if chosen.projection is not None else 0.0
    if chosen.projection is not None:
        centring = chosen.projection.with_parameters(budget=GaussianMu(mu * math.sqrt(share))).build()
        setting = Setting(sizes=(len(train),), dimension=train.shape[1], classes=table.classes, trust=Trust.CENTRAL)
        made: Any = fit(
            centring, [ArrayRows(train, table.train.labels)], setting, KeyedNoise(public_secret(seed), "centring")
        )
        train, test = made.apply(train), made.apply(test)
    trainer = chosen.trainer.with_parameters(budget=GaussianMu(mu * math.sqrt(1.0 - share)))
    return fitted(table, trainer, train, test, seed)


def _encoded(table: Table, part: Part) -> Floats:
    from tables import encoded

    rows = encoded(table, part)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def fitted(table: Table, spec: AlgorithmSpec, train: Any, test: Any, seed: int) -> Floats:
    """Return the scores of test rows by a trainer of the product."""
    setting = Setting(sizes=(len(train),), dimension=train.shape[1], classes=table.classes, trust=Trust.CENTRAL)
    rows = ArrayRows(train, table.train.labels)
    model: Any = fit(spec.build(), [rows], setting, KeyedNoise(public_secret(seed), spec.name))
    scores = np.asarray(test, dtype=np.float64) @ model.weights.T + model.intercept
    return np.asarray(scores[:, 0] if scores.shape[1] == 1 else scores)
