"""The choice of which functions of a table's columns are learnt, and how, from public numbers alone.

A trial of rules, to move into the product: :func:`choose` is a pure function of how many rows, numeric columns,
categories and classes there are and of μ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TableFacts:
    """What is public of a table and a budget.

    Attributes
    ----------
    rows : int
        n, to train on.
    numbers : int
        d, numeric columns.
    sizes : tuple of int
        How many categories each categorical column has.
    classes : int
        K; 1 for real labels.
    mu : float
        Of the whole plan.
    """

    rows: int
    numbers: int
    sizes: tuple[int, ...]
    classes: int
    mu: float

    @property
    def known(self) -> float:
        """The product n μ: how many standard deviations of the noise of one sum all rows are worth."""
        return self.rows * self.mu


@dataclass(frozen=True)
class Rule:
    """What is chosen.

    Attributes
    ----------
    level : str
        ``linear`` (nothing is counted), ``scores``, ``univariate``, ``products`` or ``cubic``.
    share : float
        Of μ², what the counts take.
    bins : int
        Of each numeric column, a power of two.
    weights : mapping
        Share of a row's squared norm by block, before rows are brought to norm 1: ``linear``, ``scores``, ``squares``,
        ``cubes``, ``products`` of two scores, ``cubic_products`` (a square times a score), ``categories`` (one-hot),
        ``category_products`` (one-hot pairs).
    way, iterations, largest, clip, momentum, constant
        Of the descent: the step sizes add up to ``way`` · n μ, none above ``largest``; the number of steps, the
        gradients' clip, the momentum, and the constant feature. Without a way the product's own rules choose.
    """

    level: str
    share: float = 0.0
    bins: int = 1024
    weights: Mapping[str, float] = field(default_factory=dict)
    way: float = 0.0
    iterations: int = 80
    largest: float = 0.0
    clip: float = 0.25
    momentum: float = 0.9
    constant: float = 0.25

    def descent(self, rows: int, mu: float) -> dict[str, Any]:
        """Return the parameters of ``noisy-gd`` for ``rows`` rows and what of μ is left."""
        step = min(self.largest, self.way * rows * mu / self.iterations)
        return {
            "iterations": self.iterations,
            "step_size": float(f"{step:.3g}"),
            "clip": self.clip,
            "momentum": self.momentum,
            "intercept_scaling": self.constant,
        }

    @property
    def recommended(self) -> bool:
        """Whether the product's own rules choose the descent (two classes): the rule has no way of its own."""
        return self.way == 0.0

    def shown(self) -> dict[str, Any]:
        """Return what a line of results says of it."""
        return {"level": self.level} if self.level == "linear" else {"level": self.level, "share": self.share}


_LINEAR = Rule("linear")
_SHARE = 0.1
_SCORES = {"linear": 0.5, "scores": 0.5, "categories": 1.0}
_UNIVARIATE = {**_SCORES, "squares": 0.4, "cubes": 0.3}
_PRODUCTS = {**_SCORES, "squares": 0.4, "cubes": 0.4, "products": 0.4}
_CUBIC = {**_SCORES, "squares": 0.5, "cubes": 0.5, "products": 0.5, "cubic_products": 0.5}
_CATEGORY_PRODUCTS = {"categories": 1.0, "category_products": 1.0}
_LEVELS = {"cubic": _CUBIC, "products": _PRODUCTS, "univariate": _UNIVARIATE, "scores": _SCORES}

# Of two classes n μ is at least so many times p^(2/3); with pairs of categories, or many classes and many columns.
_SURE, _SURE_OF_PAIRS = 20.0, 30.0
# Real labels: scores below the first, products from the second on.
_SURE_OF_UNIVARIATE, _SURE_OF_CUBIC = 10.0, 30.0
# Many classes: n μ / K at least.
_SURE_OF_A_CLASS = 30.0
# Products of more columns than this are left out: of 40 columns there are 780.
_MOST_COLUMNS = 40


def functions(facts: TableFacts, level: str) -> int:
    """Return p, how many features a level has at most."""
    d, hot = facts.numbers, sum(facts.sizes) + 1
    pairs = d * (d - 1) // 2
    if level == "categories":
        squares = sum(size**2 for size in facts.sizes)
        return hot + (sum(facts.sizes) ** 2 - squares) // 2
    of_numbers = {"scores": 2 * d, "univariate": 4 * d, "products": 4 * d + pairs, "cubic": 4 * d + 3 * pairs}
    return hot + of_numbers[level]


def sureness(facts: TableFacts, level: str) -> float:
    """Return n μ / p^(2/3)."""
    return facts.known / functions(facts, level) ** (2.0 / 3.0)


def choose(facts: TableFacts) -> Rule:
    """Choose level, share, weights and descent.

    *When maps are learnt at all.* q (how well ranks are known) is not the rule: with running sums a map that is off by
    a tenth of the rows still serves. What decides is whether the descent has signal enough for p functions: for two
    classes, n μ / p^(2/3) ≥ 20, and the richest level for which that holds (the exponent separates, on held-out rows of
    eight sets at five budgets, levels that gain from levels that lose; ½ and 1 do not). Many classes: n μ / K ≥ 30, and
    with more than 40 columns (USPS, which loses a point by its ranks) n μ / p^(2/3) ≥ 30 as well; so with pairs of
    categories.
    Real labels: always, the scores alone where n μ / p^(2/3) < 10 for univariate functions, all products from 30 on:
    what a released distribution of the label and of the columns puts into range outweighs what it costs.

    *Products* of all columns where there are at most 40; beyond that none (random signs of all columns, 30 to 1,000 of
    them, gained nothing on Musk, ring and churn).

    *Share, bins, weights.* A tenth of μ² (a twentieth and a fifth lie within the seeds' spread); 1,024 bins; blocks
    weighted by the table above, in which a factor of two either way changes less than the seeds do.

    *Descent.* Two classes: centring and steps by today's rules, at the dimension p and what of μ is left (without the
    private mean, which takes 3 to 10 %, Adult and ring lose half a point). Many classes: 80 steps whose sizes add up to
    0.38 n μ, and no mean is paid for, as scores are centred by the counts (page_blocks at ε = 0.5: 0.93 for 0.86 with a
    paid mean). Real labels: 80 steps that add up to 0.08 n μ, at most 4 each (longer ways fall below the mean on wind,
    shorter ones waste cpu_act).

    Held-out rows that chose it: ``results/tables-held-out.json``, printed by
    ``tables.py --table --output benchmarks/results/tables-held-out.json``.

    Parameters
    ----------
    facts : TableFacts

    Returns
    -------
    Rule
    """
    if facts.classes == 1:
        return _of_real_labels(facts)
    if facts.numbers == 0:
        return _of_categories(facts)
    if facts.classes == 2:
        for level in ("cubic", "products", "univariate"):
            if _may_multiply(facts, level) and sureness(facts, level) >= _SURE:
                return Rule(level, _SHARE, weights=_LEVELS[level])
        return _LINEAR
    level = "products" if facts.numbers <= _MOST_COLUMNS else "univariate"
    many_columns = level == "univariate" and sureness(facts, level) < _SURE_OF_PAIRS
    if many_columns or facts.known / facts.classes < _SURE_OF_A_CLASS:
        return _LINEAR
    return Rule(level, _SHARE, weights=_LEVELS[level], **_OF_MANY)


_OF_MANY: dict[str, Any] = {
    "way": 0.38, "largest": 32.0, "clip": 0.25, "momentum": 0.9, "constant": 0.05,
}  # fmt: skip


def _may_multiply(facts: TableFacts, level: str) -> bool:
    return level not in ("cubic", "products") or facts.numbers <= _MOST_COLUMNS


def _of_categories(facts: TableFacts) -> Rule:
    if sureness(facts, "categories") < _SURE_OF_PAIRS:
        return _LINEAR
    descent = {} if facts.classes == 2 else _OF_MANY
    return Rule("categories", 0.0, weights=_CATEGORY_PRODUCTS, **descent)


def _of_real_labels(facts: TableFacts) -> Rule:
    if _may_multiply(facts, "cubic") and sureness(facts, "cubic") >= _SURE_OF_CUBIC:
        level = "cubic"
    else:
        level = "univariate" if sureness(facts, "univariate") >= _SURE_OF_UNIVARIATE else "scores"
    return Rule(level, _SHARE, weights=_LEVELS[level], way=0.08, largest=4.0, momentum=0.8)
