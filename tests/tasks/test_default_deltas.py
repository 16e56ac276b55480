"""The delta that a run takes by itself: by what its plan costs, a constant of the account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpalgos.accounting.costs import PlanCost, allocate
from dpalgos.accounting.profiles import epsilon_of_mu, mu_from_epsilon_delta
from dpalgos.accounting.spending import GAUSSIAN_PART, RESERVED, FilterCap, SummedHistory, apply_filter, delta_parts
from dpalgos.guarantees import GaussianMu
from storage.errors import OverspendError
from tasks.accounts.ledger import change_cap, open_ledger
from tasks.accounts.terms import gaussian_delta, tenth
from tasks.planning.configuration import TrainingConfig
from tasks.preparation import partitions
from tasks.preparation import prepare as planning
from tasks.release.preflight import largest_epsilon, require_feasible
from tests.support.chains import configured, ingest_private, prepare

CAP = 1e-4
NOISY: dict[str, Any] = {"algorithm": "noisy-gd", "trust": "central"}
PART, TENTH = gaussian_delta(CAP), tenth(CAP)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a root with two private sets, one of them under replace-special; nothing is charged to them."""
    folder = tmp_path_factory.mktemp("deltas")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(folder / "root"))
        account: dict[str, Any] = {"delta_cap": CAP, "allow_idealised": True}
        ingest_private(folder / "one", 400, **account)
        ingest_private(folder / "two", 400, name="special", seed=1, relation="replace-special", **account)
        yield folder / "root"


@pytest.fixture
def sets(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", str(stored))


KINDS: dict[str, tuple[dict[str, Any], float]] = {
    "central": (NOISY, PART),
    "secure sums": ({"algorithm": "noisy-gd", "trust": "secagg"}, PART),
    "local": ({"algorithm": None, "trainer": "noisy-gd", "trust": "local"}, PART),
    "recommended": ({"algorithm": "unitball"}, PART),
    "measured": ({**NOISY, "evaluation": True, "roc": True}, PART),
    "weights from counts": ({**NOISY, "class_weight": "balanced"}, PART),
    "nights": ({"algorithm": "unitball", "horizon": 30, "trust": "central"}, PART),
    "64 parties": ({"algorithm": "noisy-gd", "trust": "secagg", "parties": 64}, PART),
    "a sparse graph": ({"algorithm": "noisy-gd", "trust": "secagg", "parties": 65}, TENTH),
    "pure": ({"algorithm": "dpml"}, TENTH),
    "one pure release": ({"algorithm": "local-output"}, TENTH),
    "pure and Gaussian": ({"algorithm": "mod-sulq-dpsvm", "trust": "local"}, TENTH),
    "stated (epsilon, delta)": ({"algorithm": "dppca-dpsvm", "trust": "central"}, TENTH),
    "tuned": ({**NOISY, "tune": {"clip": (0.5, 0.25)}}, TENTH),
    "deadline": ({**NOISY, "deadline": 5.0, "deadline_miss": 1e-9}, TENTH),
}


@pytest.mark.parametrize("kind", KINDS)
def test_which_delta_each_kind_of_plan_takes(kind: str, sets: None) -> None:
    given, delta = KINDS[kind]
    assert planning.prepare(configured(**given)).config.delta == delta
    assert planning.prepare(configured(**given, delta=3e-6)).config.delta == 3e-6, "one that was given is kept"


def test_random_batches_take_a_tenth(sets: None) -> None:
    sampled = {"algorithm": None, "trainer": "dp-sgd", "trust": "central"}
    assert planning.prepare(configured("special", **sampled)).config.delta == TENTH
    assert planning.prepare(configured("special", **NOISY)).config.delta == PART


def test_public_rows_have_their_own() -> None:
    assert planning.prepare(configured("iris", **NOISY)).config.delta == 1e-5


def test_a_gaussian_run_is_told_by_the_delta_that_it_takes(sets: None) -> None:
    """Without an epsilon too, of which `budget` looks for the largest."""
    left = largest_epsilon(TrainingConfig(dataset="clinic", **NOISY, evaluation=False))
    largest = left.epsilon
    assert left.delta == PART
    # All of the account, read at the cap's delta.
    assert epsilon_of_mu(mu_from_epsilon_delta(largest, PART), CAP) == pytest.approx(3.0, rel=0.01)
    assert largest > 3.0


def test_rows_are_held_out_by_a_tenth_whatever_the_run_takes(sets: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def noted(rows: int, classes: int, epsilon: float, delta: float) -> float:
        seen.append(delta)
        return 0.25

    monkeypatch.setattr(partitions, "held_out_fraction", noted)
    names = {
        prepare(**given, evaluation=True).shards.training[0].partition
        for given in (NOISY, {"algorithm": "dpml"}, {**NOISY, "delta": PART}, {**NOISY, "delta": 1e-7})
    }
    assert set(seen) == {TENTH}
    assert len(names) == 1, "one partition, so that a row does not pay for several"


# ── a constant of the account ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("first", [NOISY, {"algorithm": "dpml"}, {"algorithm": "dppca-dpsvm", "trust": "central"}])
def test_neither_the_first_plan_nor_a_raised_cap_moves_it(first: dict[str, Any], root: Path, tmp_path: Path) -> None:
    """The same command is the same release, and is charged once."""
    ingest_private(tmp_path / "rows", 400, delta_cap=CAP, epsilon_cap=3.0, allow_idealised=True)
    prepare(**first, epsilon=0.3, replicate=7).charge()
    before = prepare(**NOISY, epsilon=0.5)
    assert before.charge()["charged"] == 1
    change_cap("clinic", 5.0, "another study")
    after = prepare(**NOISY, epsilon=0.5)
    assert (after.plan.run_key, after.plan.delta) == (before.plan.run_key, PART)
    assert [one.key for one in after.plan.releases] == [one.key for one in before.plan.releases]
    assert after.charge()["charged"] == 0


def test_where_gaussian_dp_has_the_small_part_the_refusal_names_what_fits(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "rows", 400, delta_cap=CAP, epsilon_cap=1.0, allow_idealised=True)
    # zCDP suits pure releases best, and has the favourite part of such an account.
    prepare(algorithm="local-output", epsilon=0.1).charge()
    (first,) = open_ledger().history("clinic").plans
    parts = delta_parts([PlanCost.from_json(dict(cost)) for cost in first.costs.values()], CAP, RESERVED)
    assert parts["gdp"] < 0.06
    asked = configured(**NOISY, epsilon=0.9)
    with pytest.raises(OverspendError, match="epsilon") as caught:
        require_feasible(asked)
    assert 0.0 < caught.value.fits < 0.9
    require_feasible(asked.model_copy(update={"epsilon": caught.value.fits}))


# ── what it buys ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("delta", [1e-5, 1e-6, 3.3e-7, 1 / 3 * 1e-6])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 10.0])
def test_a_run_of_the_whole_cap_fits_a_fresh_account(epsilon: float, delta: float) -> None:
    """Alone at the whole delta it needs less; and what it asks for is what the filter holds, to the last digits."""
    cap = FilterCap(epsilon, delta, reserved=RESERVED)
    loss = _whole(epsilon, GAUSSIAN_PART * delta)
    plan = ("even", {"0": _cost(loss, delta)})
    alone = apply_filter(SummedHistory(), plan, cap)
    assert alone.admitted
    assert alone.after.epsilon < epsilon
    # The same mu in two plans: no single plan's composition, only the filter's part of delta.
    half = _cost(GaussianMu(loss.mu / 2**0.5), delta)
    two = SummedHistory().with_plan("even", {"0": half})
    assert delta_parts(two.first, delta, RESERVED)["gdp"] * delta == GAUSSIAN_PART * delta
    assert apply_filter(two, ("even", {"0": half}), cap).after.epsilon == pytest.approx(epsilon, rel=1e-9)
    # A mutant that states it at more asks for more than the filter holds.
    more = _whole(epsilon, 0.9 * delta)
    more_than_half = _cost(GaussianMu(more.mu / 2**0.5), delta)
    assert not apply_filter(
        SummedHistory().with_plan("even", {"0": more_than_half}), ("even", {"0": more_than_half}), cap
    ).admitted


def _whole(epsilon: float, delta: float) -> GaussianMu:
    (loss,) = allocate([GaussianMu], [1.0], epsilon, delta).losses
    assert isinstance(loss, GaussianMu)
    return loss


def _cost(loss: GaussianMu, delta: float) -> PlanCost:
    return PlanCost.of([loss], GAUSSIAN_PART * delta)


def test_the_part_is_exact_and_the_delta_is_said_whole() -> None:
    """What is printed and given again with --delta is the same number, and so the same release."""
    assert GAUSSIAN_PART.as_integer_ratio() == (105, 128)
    for cap in (1e-4, 1e-5, 1e-6, 3.3e-7, 1 / 3 * 1e-6):
        assert float(f"{gaussian_delta(cap):g}") == gaussian_delta(cap)
        assert (1 - 2e-6) * GAUSSIAN_PART * cap < gaussian_delta(cap) <= GAUSSIAN_PART * cap


@pytest.mark.parametrize(("epsilon", "more"), [(0.1, 0.162), (0.3, 0.140), (1.0, 0.119), (3.0, 0.099)])
def test_how_much_more_noise_a_tenth_would_take(epsilon: float, more: float) -> None:
    before, now = (1 / mu_from_epsilon_delta(epsilon, delta) for delta in (1e-6, GAUSSIAN_PART * 1e-5))
    assert before / now - 1 == pytest.approx(more, abs=5e-4)
