"""The rules of tables: from public numbers alone, sound parts, shares of one whole, and what they say."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from dpalgos.accounting.profiles import epsilon_of_mu, mu_from_epsilon_delta
from dpalgos.algorithms import is_sum_algorithm
from dpalgos.columns import Column
from dpalgos.features.column_functions import LEVELS, terms
from dpalgos.guarantees import GaussianMu, Neighbours, Setting, Trust
from dpalgos.registry import AlgorithmSpec
from dpalgos.systems.recommended import recommend, signal
from dpalgos.systems.system import Arrangement, PublicFacts
from dpalgos.systems.tables import functions, learning, level_of, level_of_nights

ADULT = (7, 16, 7, 14, 6, 5, 2, 41)


def facts_of(rows: int, numbers: int, sizes: tuple[int, ...], classes: int, mu: float, **given: Any) -> PublicFacts:
    columns = [Column(at=place) for place in range(numbers)]
    for size in sizes:
        columns.append(Column(at=numbers + sum(column.values or 0 for column in columns), values=size))
    return PublicFacts(
        sizes=(rows,),
        dimension=numbers + sum(sizes),
        classes=classes,
        epsilon=epsilon_of_mu(mu, 1e-6),
        delta=1e-6,
        **{"columns": tuple(columns), "trust": Trust.CENTRAL, "label_range": (0.0, 50.0), **given},
    )


@pytest.mark.parametrize(
    ("rows", "numbers", "sizes", "classes", "mu", "level"),
    [
        (30_000, 6, ADULT, 2, 0.2, "cubic"),
        (4_000, 15, (51, 3, 2, 2), 2, 0.03, "linear"),
        (4_000, 15, (51, 3, 2, 2), 2, 0.125, "univariate"),
        (5_000, 166, (), 2, 0.03, "linear"),
        (5_000, 166, (), 2, 0.6, "univariate"),
        (15_000, 16, (), 26, 0.03, "linear"),
        (15_000, 16, (), 26, 0.2, "products"),
        (7_000, 256, (), 10, 0.2, "linear"),
        (5_000, 14, (), 1, 0.02, "scores"),
        (18_000, 16, (), 1, 0.02, "univariate"),
        (18_000, 16, (), 1, 0.2, "cubic"),
        (10_000, 0, (3, 5, 4, 4, 3, 2, 3, 3), 4, 0.03, "linear"),
        (10_000, 0, (3, 5, 4, 4, 3, 2, 3, 3), 4, 0.25, "categories"),
    ],
)
def test_the_level_follows_from_public_numbers(
    rows: int, numbers: int, sizes: tuple[int, ...], classes: int, mu: float, level: str
) -> None:
    facts = facts_of(rows, numbers, sizes, classes, mu)
    assert level_of(facts, rows * mu) == level
    column_map = recommend(facts).arrangement.column_map
    assert column_map is not None
    assert column_map.parameters.get("level", "linear") == level


def test_the_functions_that_a_rule_counts_are_those_of_the_map() -> None:
    """But for "other" and indicators, which are hardly ever said."""
    columns = facts_of(1, 5, (3, 4, 2), 2, 1.0).columns
    numbers, categories = columns[:5], columns[5:]
    for level in LEVELS:
        of_level = numbers if level != "categories" else ()
        facts = replace(facts_of(1, 5, (3, 4, 2), 2, 1.0), columns=(*of_level, *categories))
        assert functions(facts, level) == len(terms(of_level, categories, level, counted=False))


SIZES: list[tuple[int, tuple[int, ...]]] = [(6, ADULT), (0, (3, 5, 4)), (1, ()), (167, ()), (40, (2,)), (0, (1,))]


@pytest.mark.parametrize("classes", [1, 2, 26])
@pytest.mark.parametrize(("numbers", "sizes"), SIZES)
def test_every_choice_has_sound_parts_that_share_one_budget(classes: int, numbers: int, sizes: tuple[int, ...]) -> None:
    """Specs are JSON, build, see sums alone, and their guarantees hold in the setting that they meet rows in."""
    for rows, mu, trust, person in product((50, 3_000, 1_000_000), (0.005, 0.2, 3.0), ("central", "secagg"), (1, 4)):
        facts = facts_of(rows, numbers, sizes, classes, mu, trust=trust, rows_per_person=person, noise_factor=1.2)
        choice = recommend(facts)
        chosen = choice.arrangement
        assert all(choice.reasons)
        assert chosen.column_map is not None
        assert json.loads(json.dumps(dict(chosen.column_map.parameters))) == chosen.column_map.parameters
        built = chosen.column_map.build()
        assert built.counted == (chosen.counts is not None)
        assert (chosen.counts_share > 0) == (chosen.counts is not None)
        dimension = built.output_dimension(facts.dimension)
        shares = _shares(chosen)
        assert sum(shares.values()) == pytest.approx(1.0)
        assert all(share > 0 for share in shares.values())
        setting = Setting(
            sizes=facts.sizes, dimension=facts.dimension, classes=classes, trust=trust, rows_per_person=person
        )
        for name, spec in (("counts", chosen.counts), ("projection", chosen.projection), ("trainer", chosen.trainer)):
            if spec is None:
                continue
            algorithm = spec.with_parameters(budget=GaussianMu(mu * math.sqrt(shares[name]))).build()
            assert is_sum_algorithm(type(algorithm))
            met = replace(setting, dimension=facts.dimension if name == "counts" else dimension)
            assert algorithm.guarantee(met).losses == (GaussianMu(mu * math.sqrt(shares[name])),)


def _shares(chosen: Arrangement) -> dict[str, float]:
    centring = chosen.projection_share if chosen.projection is not None else 0.0
    shares = {"counts": chosen.counts_share, "projection": centring}
    shares = {name: share for name, share in shares.items() if share}
    return {**shares, "trainer": 1.0 - sum(shares.values())}


@pytest.mark.parametrize("classes", [1, 2, 6])
def test_half_the_sensitivity_and_more_noise_count_as_rows_do(classes: int) -> None:
    """Twice the rows, replace-special and half the factor of noise are one and the same signal."""
    facts = facts_of(5_000, 8, (3,), classes, 0.1, noise_factor=2.0)
    same = [
        replace(facts, sizes=(10_000,)),
        replace(facts, neighbours=Neighbours.REPLACE_SPECIAL),
        replace(facts, noise_factor=1.0),
    ]
    arrangements = [recommend(one).arrangement for one in same]
    assert arrangements[0] == arrangements[1] == arrangements[2]
    assert arrangements[0] != recommend(facts).arrangement
    # Of people the roster counts, however many rows they have.
    assert recommend(replace(facts, rows_per_person=9)).arrangement == recommend(facts).arrangement


@pytest.mark.parametrize("classes", [2, 6])
def test_what_is_too_little_for_functions_is_what_rows_of_norm_1_get(classes: int) -> None:
    facts = facts_of(300, 8, (3,), classes, 0.05)
    chosen, before = recommend(facts).arrangement, recommend(replace(facts, columns=())).arrangement
    assert chosen.column_map is not None
    assert chosen.column_map.name == "unit-norm"
    assert replace(chosen, column_map=None) == before


def test_shares_are_of_the_whole_budget() -> None:
    """Centring gets its share of what the counts leave, by the signal that is left."""
    facts = facts_of(30_000, 6, ADULT, 2, 0.2)
    strength = signal(facts)
    chosen = learning(facts, strength)
    left = 0.2 * math.sqrt(0.9)
    alone = recommend(replace(facts, columns=(), dimension=176, epsilon=epsilon_of_mu(left, 1e-6))).arrangement
    assert chosen.counts_share == 0.1
    assert chosen.projection_share == pytest.approx(0.9 * alone.projection_share, rel=1e-2)
    assert chosen.trainer.parameters == alone.trainer.parameters
    assert mu_from_epsilon_delta(facts.epsilon, facts.delta) == pytest.approx(0.2)


def test_the_way_of_real_labels_is_no_longer_than_signal_allows() -> None:
    for rows, mu in ((5_000, 0.02), (18_000, 0.2), (10**6, 1.0)):
        trainer = recommend(facts_of(rows, 14, (), 1, mu)).arrangement.trainer
        left = mu * math.sqrt(0.9)
        assert trainer.parameters["step_size"] == pytest.approx(min(4.0, 0.08 * rows * left / 80), rel=5e-3)
        assert trainer.parameters["loss"] == "squared"


def test_reasons_say_what_is_learnt_and_what_it_costs() -> None:
    said = " ".join(recommend(facts_of(30_000, 6, ADULT, 2, 0.2)).reasons)
    for words in ("6 numbers and 8 categories", "products of two scores", "0.1 of the budget", "held-out rows"):
        assert words in said
    assert "too little for functions" in " ".join(recommend(facts_of(300, 6, ADULT, 2, 0.05)).reasons)
    assert "labels are clipped" in " ".join(recommend(facts_of(5_000, 6, (), 1, 0.05)).reasons)


BY_NIGHT: list[tuple[int, int, tuple[int, ...], int, float, float, str]] = [
    (24_000, 6, ADULT, 2, 0.02, 0.03, "products"),
    (24_000, 6, ADULT, 2, 0.02, 0.11, "linear"),
    (24_000, 6, ADULT, 2, 0.0055, 0.03, "univariate"),
    (24_000, 6, ADULT, 2, 0.0016, 0.03, "linear"),
    # 630 pairs of 36 numbers, and 861 of 42.
    (3_500, 36, (), 6, 0.2, 0.05, "univariate"),
    (3_500, 36, (), 6, 0.23, 0.05, "products"),
    (35_000, 42, (), 6, 0.2, 0.05, "univariate"),
    (3_500, 36, (), 6, 0.03, 0.05, "linear"),
    (14_000, 16, (), 1, 0.1, 0.03, "linear"),
    (14_000, 16, (), 1, 0.2, 0.03, "scores"),
    (14_000, 16, (), 1, 0.4, 0.03, "univariate"),
    (14_000, 16, (), 1, 0.4, 0.04, "linear"),
    (10_000, 0, (3, 5, 4, 4, 3, 2, 3, 3), 4, 3.0, 0.001, "linear"),
    (24_000, 6, ADULT, 2, 3.0, math.inf, "linear"),
]


@pytest.mark.parametrize(("rows", "numbers", "sizes", "classes", "mu", "ranks", "level"), BY_NIGHT)
def test_what_nights_learn_follows_from_public_numbers(
    rows: int, numbers: int, sizes: tuple[int, ...], classes: int, mu: float, ranks: float, level: str
) -> None:
    facts = facts_of(rows, numbers, sizes, classes, mu, nightly=ranks)
    assert level_of_nights(facts, rows * mu) == level
    choice = recommend(facts)
    chosen = choice.arrangement
    assert chosen.trainer == AlgorithmSpec("trainers", "sufficient-statistics")
    assert (chosen.counts, chosen.projection, chosen.counts_share) == (None, None, 0.0)
    assert chosen.column_map is not None
    assert chosen.column_map.parameters.get("level", "linear") == level
    assert chosen.column_map.build().counted == (level != "linear")
    assert json.loads(json.dumps(dict(chosen.column_map.parameters))) == chosen.column_map.parameters
    assert ("released before the first night" in " ".join(choice.reasons)) == (level != "linear")
    # Half the sensitivity and half the factor of noise are as good as twice the rows.
    for same in ({"neighbours": Neighbours.REPLACE_SPECIAL}, {"sizes": (rows, rows)}):
        assert recommend(replace(facts, noise_factor=2.0, **same)).arrangement == chosen
