"""Optimal partition selection: what is drawn satisfies the definition exactly, and no selection releases more."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from dpalgos.evaluators.key_selection import KeySelection
from dpalgos.guarantees import RELATIONS, ApproximateDP, Neighbours, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.mechanisms.distributions import PartitionSelection
from dpalgos.parameters import ParameterError
from dpalgos.rows import ArrayRows

BUDGETS = [(0.05, 1e-9), (0.5, 1e-5), (1.0, 1e-12), (3.0, 1e-3), (20.0, 0.4)]
BY_BUDGET = pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)


def closed_form(epsilon: float, delta: float, rows: int) -> float:
    """Theorem 2 of Desfontaines et al. 2022."""
    growth = math.exp(epsilon)
    first = 1 + math.floor(math.log((growth + 2 * delta - 1) / (delta * (growth + 1))) / epsilon)

    def rising(count: int) -> float:
        return math.expm1(count * epsilon) / (growth - 1) * delta

    if rows <= first:
        return min(rising(rows), 1.0)
    more = rows - first
    found = -math.expm1(-more * epsilon) * (1 + delta / (growth - 1)) + math.exp(-more * epsilon) * rising(first)
    return min(found, 1.0)


@BY_BUDGET
def test_the_table_is_the_papers_closed_form(epsilon: float, delta: float) -> None:
    table = PartitionSelection(epsilon, delta).table
    for rows, found in enumerate(table):
        assert found / 2**128 == pytest.approx(closed_form(epsilon, delta, rows), abs=1e-9, rel=1e-9), rows


def enclosed(epsilon: float) -> Fraction:
    """A lower bound of e^epsilon by its series in exact fractions, within one part in 10^60."""
    exact, term, total = Fraction(epsilon), Fraction(1), Fraction(0)
    for number in range(1, 150):
        total += term
        term = term * exact / number
    return Fraction(int(total * 2**256), 2**256)


@BY_BUDGET
def test_every_step_satisfies_the_definition_in_exact_fractions(epsilon: float, delta: float) -> None:
    law = PartitionSelection(epsilon, delta)
    least, exact_delta = enclosed(epsilon), Fraction(delta)
    found = [Fraction(number, 2**128) for number in law.table] + [Fraction(1)]
    assert found[0] == 0
    assert found[-2] == 1
    for before, after in itertools.pairwise(found):
        assert before <= after
        assert after <= least * before + exact_delta
        assert 1 - before <= least * (1 - after) + exact_delta
        # And it is as large as these allow, but for the grid.
        room = min(least * before + exact_delta, 1 - (1 - before - exact_delta) / least, Fraction(1))
        assert room - after < Fraction(1, 2**120)


def divergence(one: dict[tuple[bool, ...], float], other: dict[tuple[bool, ...], float], epsilon: float) -> float:
    return sum(max(one[outcome] - math.exp(epsilon) * other[outcome], 0.0) for outcome in one)


def outcomes(law: PartitionSelection, counts: tuple[int, ...]) -> dict[tuple[bool, ...], float]:
    last = len(law.table) - 1
    chances = [law.table[min(count, last)] / 2**128 for count in counts]
    return {
        chosen: math.prod(chance if yes else 1 - chance for chance, yes in zip(chances, chosen, strict=True))
        for chosen in itertools.product((False, True), repeat=len(counts))
    }


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-3), (3.0, 1e-6), (0.5, 0.05)])
def test_a_key_lost_and_one_gained_stay_within_the_budget_exactly(
    epsilon: float, delta: float, relation: Neighbours
) -> None:
    """All pairs of counts, one column: the divergence of what is released, and of mutants that forget the pair."""
    setting = Setting(sizes=(50,), dimension=2, classes=2, neighbours=relation, trust=Trust.CENTRAL)
    law = KeySelection(budget=ApproximateDP(epsilon, delta)).distribution(setting)
    assert law.epsilon * relation.records <= epsilon
    assert law.delta * relation.records <= delta
    replaced = relation is Neighbours.REPLACE_ONE

    def worst(law: PartitionSelection) -> float:
        lost, gained = range(1, len(law.table) + 1), range(len(law.table) + 1) if replaced else [0]
        pairs = [((a, b), (a - 1, b + replaced)) for a in lost for b in gained]
        ways = [(outcomes(law, one), outcomes(law, other)) for one, other in pairs]
        return max(max(divergence(one, other, epsilon), divergence(other, one, epsilon)) for one, other in ways)

    found = worst(law)
    assert found <= delta * (1 + 1e-9)
    # The bound is nearly attained.
    assert found >= 0.49 * delta
    if replaced:
        for mutant in (PartitionSelection(epsilon, delta / 2), PartitionSelection(epsilon / 2, delta)):
            assert worst(mutant) > 1.3 * delta


def test_more_is_released_than_by_noise_and_a_threshold() -> None:
    """At the budget of the documentation: half of the time from 162 rows on, where the Laplace threshold takes 191."""
    setting = Setting(sizes=(500,), dimension=2, classes=2, trust=Trust.CENTRAL)
    law = KeySelection(budget=ApproximateDP(0.2, 1e-8)).distribution(setting)
    assert law.likely() == 162
    assert 10 * math.log(2 / 1e-8) == pytest.approx(191, abs=1)


def test_draws_have_the_stated_chances() -> None:
    """4,000 draws for each count: within six standard errors."""
    law = PartitionSelection(0.5, 1e-3)
    counts = np.arange(0, len(law.table) + 2)
    noise = KeyedNoise(public_secret(3), "draws")
    drawn = np.array([law.select(counts, noise.stream(f"draw-{number}", counts)) for number in range(4000)])
    for count, share in zip(counts, drawn.mean(axis=0), strict=True):
        chance = law.table[min(int(count), len(law.table) - 1)] / 2**128
        assert abs(share - chance) <= 6 * math.sqrt(chance * (1 - chance) / 4000), count
    assert not drawn[:, 0].any()
    assert drawn[:, -1].all()


def test_frequent_keys_are_released_and_rare_ones_are_not() -> None:
    setting = Setting(sizes=(50,), dimension=2, classes=2, trust=Trust.CENTRAL)
    algorithm = KeySelection(budget=ApproximateDP(1.0, 1e-9))
    rows = np.zeros((202, 2))
    rows[:200] = [65 / 255, 66 / 255]
    rows[200] = [67 / 255, 0]
    given = ArrayRows(rows, np.zeros(202, dtype=np.int64))
    for seed in range(300):
        values = algorithm.fit([given], setting, KeyedNoise(public_secret(seed), "keys")).values
        assert values[0, 0].tolist() == [65, 66]
        assert (values[0, 1:] == -1).all()


def test_what_cannot_be_drawn_is_refused() -> None:
    setting = Setting(sizes=(50,), dimension=2, classes=2, trust=Trust.CENTRAL)
    with pytest.raises(ParameterError, match=r"^2 features.*3 columns"):
        KeySelection(budget=ApproximateDP(1.0, 1e-6), columns=3).guarantee(setting)
    with pytest.raises(ParameterError, match=r"1.*feature 2"):
        KeySelection(budget=ApproximateDP(1.0, 1e-6), first=2).guarantee(setting)
    with pytest.raises(ParameterError, match=r"epsilon.*key.*5e-05"):
        KeySelection(budget=ApproximateDP(1e-4, 1e-6)).guarantee(setting)
    with pytest.raises(ParameterError, match="delta"):
        KeySelection(budget=ApproximateDP(1.0, 1e-40)).guarantee(setting)
    with pytest.raises(ParameterError, match=r"^first.*-1"):
        KeySelection(budget=ApproximateDP(1.0, 1e-6), first=-1)
