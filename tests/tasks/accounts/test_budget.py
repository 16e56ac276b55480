"""Accounts over the whole chain: what is spent, what is left, what never refills, and what the ledger notices."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.accounting.composition import compose
from dpalgos.accounting.costs import PlanCost
from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.accounting.selection import candidate_mu
from dpalgos.accounting.spending import RESERVED
from dpalgos.guarantees import (
    GaussianMu,
    Guarantee,
    Loss,
    Neighbours,
    PrivateSelection,
)
from storage.errors import InputError, OverspendError, RefusedError
from storage.ledger.charges import AccountTerms, Cap, CapChange, Decision, History, PlanRecord, ReleaseCharge
from storage.releases import ReleaseStore
from tasks.accounts.ledger import change_cap, open_ledger, verify_ledger
from tasks.accounts.pricing import AccountingPolicy
from tasks.accounts.reports import budget_report, cap_of, read_account, runs_left
from tasks.accounts.room import one_more_run
from tasks.accounts.terms import relation_of
from tasks.datasets.registration import ensure_registered, find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.release.admission import runs_that_fit
from tasks.runtime.settings import current_layout
from tasks.tracking import artifacts
from tests.support.chains import charges, ingest_private, prepare
from tests.support.plans import planned
from tests.support.private_rows import CLASSES, DIMENSION, PrivateRows

NOISY: dict[str, Any] = {"algorithm": "noisy-gd"}
SLACK = 1e-6


@pytest.fixture
def clinic(root: Path, tmp_path: Path) -> PrivateRows:
    return ingest_private(tmp_path / "input", epsilon_cap=2.0)


def spent(dataset: str = "clinic") -> float:
    report = budget_report(dataset)
    assert report["epsilon_spent"] is not None
    return float(report["epsilon_spent"])


# ── reports ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_report_is_what_composition_says(clinic: PrivateRows) -> None:
    prepared = prepare(**NOISY)
    prepared.make()
    report = budget_report("clinic")
    assert report["cap"] == {"epsilon": 2.0, "delta": 1e-4}
    exact = compose(prepared.plan.releases[0].guarantee().losses).epsilon(1e-4)
    for party in report["parties"]:
        assert party["epsilon_spent"] == pytest.approx(exact, rel=1e-6)
        assert (party["epsilon_spent"] or 0) >= exact - 1e-12
    assert report["plans"][0]["parties"].keys() == {party["party"] for party in report["parties"]}
    assert report["plans"][0]["epsilon"] == pytest.approx(prepared.plan.epsilon, rel=1e-6)
    json.dumps(report, allow_nan=False)


def test_an_account_without_a_charge(clinic: PrivateRows) -> None:
    report = budget_report("clinic")
    assert (report["epsilon_spent"], report["plans"], report["parties"]) == (0.0, [], [])
    assert runs_left("clinic") is None


def test_the_unproved_is_unbounded_and_json_has_no_infinity(root: Path) -> None:
    prepare("iris", algorithm="non-private", epsilon=None, dimension=2).charge()
    report = budget_report("iris")
    assert report["cap"] is None
    assert report["left"] is None
    assert [party["epsilon_spent"] for party in report["parties"]] == [None, None]
    json.dumps(report, allow_nan=False)


def test_parties_of_one_partition_do_not_add_up_and_partitions_do(clinic: PrivateRows) -> None:
    prepare(**NOISY).charge()
    one = spent()
    local = prepare(algorithm="noisy-gd", trust="secagg")
    local.charge()
    two = spent()
    assert one < two
    # Another partition of the same rows: whoever sits where, both are paid.
    prepare(**NOISY, partition_seed=1, replicate=1, epsilon=0.3).charge()
    three = spent()
    assert two < three
    # One more party's share of a local release costs only that party.
    report = budget_report("clinic")
    assert all((party["epsilon_spent"] or math.inf) <= three + SLACK for party in report["parties"])


def test_runs_left_counts_runs_like_the_last(clinic: PrivateRows) -> None:
    fitting = runs_that_fit(prepare(**NOISY, epsilon=0.5).plan)
    prepare(**NOISY, epsilon=0.5).charge()
    left = runs_left("clinic")
    assert left is not None
    assert left > 2
    assert fitting == left + 1
    for night in range(1, left + 1):
        prepare(**NOISY, epsilon=0.5, replicate=night).charge()
    assert runs_left("clinic") == 0
    with pytest.raises(OverspendError):
        prepare(**NOISY, epsilon=0.5, replicate=left + 1).charge()
    assert spent() <= 2.0


def test_a_cached_run_shows_what_is_spent_and_left(clinic: PrivateRows, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr(
        artifacts,
        "create_table_artifact",
        lambda table, **_: shown.append({one["what"]: one["value"] for one in table}),
    )
    outcomes = [prepare(**NOISY).charge() for _ in range(2)]
    assert [one["charged"] for one in outcomes] == [1, 0]
    for outcome in outcomes:
        artifacts.show_budget(find_dataset("clinic"), outcome)
    first, cached = shown
    assert first.keys() == cached.keys()
    assert (first["epsilon spent before"], cached["epsilon spent before"]) == ("0", first["epsilon spent after"])
    assert cached["epsilon spent after"] == first["epsilon spent after"] != "0"
    left = one_more_run("clinic")
    assert left is not None
    assert cached[f"remaining: {left.run} of"] == left.amount
    artifacts.show_budget(find_dataset("clinic"), {**outcomes[0], "spent_after": 0.98232})
    assert shown[-1]["epsilon spent after"] == "0.9824", "never less than was spent"


SERIES = {"reserved": RESERVED}


def agreed(**terms: Any) -> AccountTerms:
    """Return the terms of an account that was opened as a data set's is."""
    return AccountTerms(deltas=SERIES, **terms)


def one_release(loss: Loss) -> list[ReleaseCharge]:
    return [ReleaseCharge("model", ("0", "1"), Guarantee((loss,)).to_json(), "model")]


def selection(epsilon: float, delta: float) -> list[ReleaseCharge]:
    return one_release(PrivateSelection(epsilon, delta, candidate_mu(epsilon, delta, 4, 0.5), 4, 0.5))


def test_a_selection_is_booked_as_what_leaves_more_and_stays_booked() -> None:
    policy, cap = AccountingPolicy(), Cap(3.0, 1e-5)
    new = selection(1.0, 1e-5)
    together, selected = policy.prices(new, 1e-5)
    assert (together["0"].totals.slack, selected["0"].totals.slack) == (0.0, 1e-5)
    decision = policy.decide(History(), new, partition="even", delta=1e-5, terms=agreed(cap=cap))
    assert decision.costs["0"] == together["0"].to_json()
    # Booked at its own delta it would close the account, as a plan that was booked is never priced anew.
    old = PlanRecord("even", {party: cost.to_json() for party, cost in selected.items()})
    run = one_release(GaussianMu(mu_from_epsilon_delta(0.5, 1e-6)))
    assert not policy.decide(History([old]), run, partition="even", delta=1e-6, terms=agreed(cap=cap)).admitted
    booked = PlanRecord("even", decision.costs)
    assert policy.decide(History([booked]), run, partition="even", delta=1e-6, terms=agreed(cap=cap)).admitted
    # Also where basic sums, which look least at first, would hold: they would leave less to whatever comes.
    small = selection(1.0, 1e-6)
    decision = policy.decide(History(), small, partition="even", delta=1e-6, terms=agreed(cap=cap))
    assert decision.costs["0"]["slack"] == 0.0
    # Sixty-four candidates at a large epsilon and a tiny delta cost more together than one selection does.
    mu = candidate_mu(0.01, 1e-9, 64, 2.0**-10)
    many = [replace(new[0], guarantee=Guarantee((PrivateSelection(0.01, 1e-9, 20 * mu, 64, 2.0**-10),)).to_json())]
    cheaper = policy.decide(History(), many, partition="even", delta=1e-9, terms=agreed(cap=cap))
    assert cheaper.costs["0"]["slack"] == 1e-9


@pytest.mark.parametrize(("candidates", "share"), [(2, 0.882), (8, 0.919)])
def test_the_only_plan_is_read_off_the_selections_curve_however_it_is_booked(candidates: int, share: float) -> None:
    """At the cap's delta, not at the plan's: it is less, and a cap of that much admits it."""
    point = PrivateSelection(1.0, 1e-6, candidate_mu(1.0, 1e-6, candidates, 0.5), candidates, 0.5)
    new, policy = one_release(point), AccountingPolicy()
    for cap, fits in ((share + 1e-3, True), (share - 1e-3, False)):
        terms = agreed(cap=Cap(cap, 1e-5))
        decision = policy.decide(History(), new, partition="even", delta=1e-6, terms=terms)
        assert decision.admitted is fits
        assert decision.details["spent_after"] == pytest.approx(share, abs=1e-3)
        for costs in policy.prices(new, 1e-6):
            record = PlanRecord("even", {party: cost.to_json() for party, cost in costs.items()})
            assert read_account(History([record]), terms.cap, terms).epsilon == pytest.approx(share, abs=1e-3)
            # A second plan, and filters add up what was booked: no curve is left.
            two = read_account(History([record, record]), terms.cap, terms).epsilon
            assert two is None or two > 1.2


# ── what never refills ───────────────────────────────────────────────────────────────────────────────────────────────


def write(rows: PrivateRows, lines: list[str], name: str) -> Path:
    path = rows.path.parent / name
    path.write_text("\n".join(lines) + "\n")
    return path


def again(path: Path, name: str = "clinic", **more: Any) -> None:
    ingest(
        IngestRequest(
            name=name, format="libsvm", path=path, dimension=DIMENSION, classes=CLASSES, **{"account": None, **more}
        )
    )


def changed_row(rows: PrivateRows) -> Path:
    lines = rows.path.read_text().splitlines()
    return write(rows, ["+1 1:0.987654", *lines[1:]], "changed.txt")


def appended_row(rows: PrivateRows) -> Path:
    return write(rows, [*rows.path.read_text().splitlines(), "+1 1:0.987654"], "appended.txt")


def reordered(rows: PrivateRows) -> Path:
    return write(rows, rows.path.read_text().splitlines()[::-1], "reordered.txt")


def the_same(rows: PrivateRows) -> Path:
    return rows.path


@pytest.mark.parametrize("edit", [changed_row, appended_row, reordered, the_same])
def test_new_rows_do_not_refill_the_account(edit: Any, clinic: PrivateRows) -> None:
    prepare(**NOISY, epsilon=1.9).make()
    before, versions = spent(), find_dataset("clinic").version
    again(edit(clinic))
    assert (find_dataset("clinic").version == versions) is (edit is the_same)
    assert spent() >= before
    with pytest.raises(OverspendError):
        prepare(**NOISY, epsilon=1.9, replicate=1).charge()


def test_a_rotated_key_does_not_refill_the_account(clinic: PrivateRows) -> None:
    prepare(**NOISY, epsilon=1.9).make()
    current_layout().party_secret("all").unlink()
    before = spent()
    with pytest.raises(OverspendError):
        prepare(**NOISY, epsilon=1.9, replicate=1).charge()
    assert spent() == before


def test_another_name_with_the_same_account_does_not_refill_it(clinic: PrivateRows) -> None:
    prepare(**NOISY, epsilon=1.9).make()
    again(changed_row(clinic), name="clinic-two", account="clinic")
    with pytest.raises(OverspendError):
        prepare("clinic-two", **NOISY, epsilon=1.9).charge()
    assert budget_report("clinic-two")["epsilon_spent"] == spent()


def test_only_a_recorded_declaration_opens_another_account(clinic: PrivateRows) -> None:
    prepare(**NOISY, epsilon=1.9).make()
    with pytest.raises(RefusedError, match="disjoint"):
        again(changed_row(clinic), account="others", epsilon_cap=2.0, delta_cap=1e-4)
    again(changed_row(clinic), account="others", epsilon_cap=2.0, delta_cap=1e-4, disjoint_people="another clinic")
    prepare(**NOISY, epsilon=1.9).charge()
    assert open_ledger().account("others").disjoint_people
    assert len(charges("clinic")) == len(charges("others")) == 1


def test_several_rows_a_person_cost_more(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", epsilon_cap=9.0, group_size=2)
    prepare(**NOISY).charge()
    report = budget_report("clinic")
    assert report["group_size"] == 2
    assert report["epsilon_spent"] is not None
    assert report["epsilon_spent"] > 1.5


# ── caps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cap_is_raised_on_record_only(clinic: PrivateRows) -> None:
    with pytest.raises(InputError, match="--reason"):
        change_cap("clinic", 3.0, " ")
    change_cap("clinic", 3.0, "the board agreed on 1 May")
    assert budget_report("clinic")["cap"] == {"epsilon": 3.0, "delta": 1e-4}
    (change,) = open_ledger().account("clinic").changes
    assert change.why == "the board agreed on 1 May"
    with pytest.raises(InputError, match=r"epsilon is 0\.0"):
        change_cap("clinic", 0.0, "why not")
    ensure_registered("iris")
    with pytest.raises(RefusedError, match="public"):
        change_cap("iris", 1.0, "no")


def test_a_raised_cap_is_the_old_cap_and_a_new_filter(clinic: PrivateRows) -> None:
    """Nothing unspent is carried over, a plan is within one filter, and the theorem is the cap."""
    prepare(**NOISY, epsilon=0.5).charge()
    before = spent()
    change_cap("clinic", 3.0, "one more study")
    report = budget_report("clinic")
    # The first filter counts whole: 2 of 3, although a fraction of it was spent.
    assert report["epsilon_spent"] == pytest.approx(2.0)
    assert report["left"] is not None
    assert report["left"]["epsilon"] < 1.0, "of the new filter's one, at its own part of delta"
    assert report["promised"] == {"epsilon": 3.0, "delta": 1e-4}
    assert before < 0.7
    # 1.2 would have fitted beside what was spent, by a rule that carries rests over.
    with pytest.raises(OverspendError) as refused:
        prepare(**NOISY, epsilon=1.2, replicate=1).charge()
    assert refused.value.bound == 3.0 < (refused.value.value or 0.0) < 4.0
    # The new filter has its own part of delta, a 32nd, so that less than 1 fits at the run's delta.
    prepare(**NOISY, epsilon=0.5, replicate=1).charge()
    assert 2.6 < spent() < 2.7
    assert runs_left("clinic") == 1


def test_a_cap_is_lowered_to_what_is_spent_and_the_theorem_stays(clinic: PrivateRows) -> None:
    prepare(**NOISY, epsilon=1.0).charge()
    before = spent()
    with pytest.raises(OverspendError, match="'clinic'") as refused:
        change_cap("clinic", 0.8, "prudence")
    assert refused.value.value == pytest.approx(before)
    assert refused.value.bound == 0.8
    change_cap("clinic", 1.2, "prudence")
    report = budget_report("clinic")
    assert report["cap"] == {"epsilon": 1.2, "delta": 1e-4}
    assert (report["promised"] or {})["epsilon"] == 2.0
    with pytest.raises(OverspendError):
        prepare(**NOISY, epsilon=1.0, replicate=1).charge()
    # Up to the old height no filter is opened, and what was charged counts as it did.
    change_cap("clinic", 2.0, "less prudence")
    assert spent() == pytest.approx(report["epsilon_spent"])
    prepare(**NOISY, epsilon=0.9, replicate=1).charge()


def test_a_soft_limit_is_lifted_on_the_filter_of_the_cap(root: Path, tmp_path: Path) -> None:
    """Opened at 4 with a limit of 3, an account admits after the lifting exactly what one opened at 4 does."""
    for seed, (name, limit) in enumerate((("soft", 3.0), ("whole", None))):
        ingest_private(tmp_path / name, name=name, seed=seed, epsilon_cap=4.0, soft_limit=limit)
        prepare(dataset=name, **NOISY, epsilon=2.9).charge()
    soft, whole = (budget_report(name) for name in ("soft", "whole"))
    assert (soft["cap"], soft["promised"]) == ({"epsilon": 3.0, "delta": 1e-4}, {"epsilon": 4.0, "delta": 1e-4})
    assert soft["epsilon_spent"] == whole["epsilon_spent"]
    # As cards, tables and prices say it.
    assert (cap_of(soft), cap_of(whole)) == ("3 (a soft limit; the cap is 4)", "4")
    assert soft["left"] is not None
    assert whole["left"] is not None
    assert soft["left"]["epsilon"] < 1 < whole["left"]["epsilon"]
    with pytest.raises(OverspendError, match=r"epsilon 3.*epsilon 4", check=lambda e: e.bound == 3):
        prepare(dataset="soft", **NOISY, epsilon=1.0, replicate=1).charge()
    change_cap("soft", 4.0, "one more study")
    lifted = budget_report("soft")
    assert (lifted["cap"], lifted["earlier"]) == (lifted["promised"], 0.0)
    assert lifted["left"] == whole["left"], "the same filter, at the same delta"
    prepare(dataset="soft", **NOISY, epsilon=whole["left"]["epsilon"], replicate=1).charge()


def test_the_series_of_deltas_is_the_one_recorded_at_opening(clinic: PrivateRows) -> None:
    terms = open_ledger().account("clinic")
    assert terms.deltas == {"reserved": 1 / 16}
    plan = PlanRecord(partition="p", costs={"0": PlanCost.of([GaussianMu(0.3)], 1e-4).to_json()}, sequence=5)
    change = CapChange(cap=Cap(3.0, 1e-4), before=Cap(2.0, 1e-4), by="b", why="w", recorded_at="", sequence=9)

    def after(deltas: dict[str, float]) -> float:
        raised = AccountTerms(deltas=deltas, changes=(change,))
        late = PlanRecord(partition="p", costs=plan.costs, sequence=12)
        found = AccountingPolicy().decide(
            History([plan, late]), (), partition="", delta=1e-4, terms=replace(raised, cap=Cap(3.0, 1e-4))
        )
        return float(found.details["spent_after"])

    # With half of delta reserved, the filter of the first raise has a quarter instead of a 32nd.
    assert 2 < after({"reserved": 0.5}) < after({"reserved": 1 / 16})
    with pytest.raises(KeyError):
        after({})


def test_a_first_plan_that_takes_the_whole_delta_leaves_nothing_to_raise_with(clinic: PrivateRows) -> None:
    prepare(**NOISY, epsilon=2.0, delta=1e-4).charge()
    with pytest.raises(OverspendError, match=r"'clinic'.*delta"):
        change_cap("clinic", 3.0, "one more study")
    assert (budget_report("clinic")["cap"] or {})["epsilon"] == 2.0


def test_a_larger_version_must_still_fit_the_caps_delta(root: Path, tmp_path: Path) -> None:
    """A delta below 1/200 may be above 1/n of the rows that come later."""
    clinic = ingest_private(tmp_path / "input", epsilon_cap=2.0, delta_cap=4.5e-3)
    lines = clinic.path.read_text().splitlines()
    again(write(clinic, lines[:150], "fewer.txt"))
    kept = sorted(path.name for path in current_layout().datasets.iterdir())
    with pytest.raises(RefusedError, match="1/n"):
        again(write(clinic, [*lines, *lines[:100]], "more.txt"))
    assert sorted(path.name for path in current_layout().datasets.iterdir()) == kept


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_sound_books(clinic: PrivateRows) -> None:
    assert verify_ledger() == []
    prepare(**NOISY).make()
    prepare("iris", algorithm="fed-dpdr-dpml", dimension=2).make()
    prepare("iris", algorithm="noisy-gd", projection="identity").make()
    assert verify_ledger() == []


def test_an_altered_release_is_noticed(clinic: PrivateRows) -> None:
    prepared = prepare(**NOISY)
    prepared.make()
    key = prepared.plan.releases[0].key
    store = ReleaseStore(current_layout())
    manifest, arrays = store.read(key)
    shutil.rmtree(current_layout().release(key))
    # With digests of its own it is whole; only the ledger knows that it is not what was released.
    store.write(key, manifest, {name: array + 1e-9 for name, array in arrays.items()})
    assert store.read(key)
    (problem,) = verify_ledger()
    assert key in problem
    assert "altered" in problem


def test_a_release_that_was_never_charged_is_noticed(clinic: PrivateRows, tmp_path: Path) -> None:
    """As after an old back-up of the ledger was restored."""
    prepare(**NOISY, epsilon=0.3).charge()
    layout = current_layout()
    backup = layout.ledger.read_bytes()
    prepared = prepare(**NOISY, epsilon=0.4)
    prepared.make()
    layout.ledger.write_bytes(backup)
    problems = verify_ledger()
    assert any(prepared.plan.releases[0].key in problem and "never charged" in problem for problem in problems)
    assert len(problems) > 1, "the chain's own high-water mark notices, too"


def test_a_damaged_release_is_a_problem_and_no_crash(clinic: PrivateRows) -> None:
    prepared = prepare(**NOISY)
    prepared.make()
    arrays = current_layout().release(prepared.plan.releases[0].key) / "arrays.npz"
    arrays.write_bytes(arrays.read_bytes()[:-3])
    (problem,) = verify_ledger()
    assert "damaged" in problem


# ── the policy ───────────────────────────────────────────────────────────────────────────────────────────────────────


def priced(plan: Any) -> list[ReleaseCharge]:
    return [
        ReleaseCharge(key=release.key, parties=release.parties, guarantee=release.guarantee().to_json())
        for release in plan.releases
        if release.reads_rows
    ]


def test_the_policy_prices_a_plan_as_it_is_reported() -> None:
    plan = planned(algorithm="fed-dpdr-dpml")
    decision = AccountingPolicy().decide(
        History(), priced(plan), partition="p", delta=1e-5, terms=agreed(cap=Cap(1.0, 1e-5))
    )
    assert decision.admitted
    assert set(decision.costs) == {"0", "1", "2"}
    refused = AccountingPolicy().decide(
        History(), priced(plan), partition="p", delta=1e-5, terms=agreed(cap=Cap(0.99, 1e-5))
    )
    assert not refused.admitted
    json.dumps(refused.details, allow_nan=False)


def test_what_is_not_proved_fits_under_no_cap_and_never_counts_as_zero() -> None:
    charges = priced(planned(algorithm="non-private", epsilon=None))
    decision = AccountingPolicy().decide(History(), charges, partition="p", delta=1e-5, terms=agreed(cap=Cap(1e6, 0.1)))
    assert not decision.admitted
    assert "no proved guarantee" in decision.reason
    public = AccountingPolicy().decide(History(), charges, partition="p", delta=1e-5, terms=AccountTerms())
    assert public.admitted
    assert Guarantee.from_json(dict(charges[0].guarantee)).proved is False


def test_random_histories_stay_below_the_cap(root: Path, tmp_path: Path, random: np.random.Generator) -> None:
    """Whatever order small and large runs come in, what is spent stays below the cap, and what fits is admitted."""
    ingest_private(tmp_path / "input", epsilon_cap=1.0)
    admitted = 0
    for number in range(15):
        try:
            prepare(**NOISY, epsilon=float(random.choice([0.05, 0.2, 0.6])), replicate=number).charge()
            admitted += 1
        except OverspendError:
            assert spent() > 0.3
        assert spent() <= 1.0
    assert admitted >= 2


# ── one relation an account ──────────────────────────────────────────────────────────────────────────────────────────


def charged(
    proved: Neighbours, mu: float = 0.2, relation: str = "replace-one", group: int = 1
) -> tuple[PlanRecord, Decision]:
    """Charge one release proved under a relation to an account under another, nothing before it."""
    guarantee = Guarantee(losses=(GaussianMu(mu),), neighbours=proved)
    charge = ReleaseCharge(key="k", parties=("0",), guarantee=guarantee.to_json())
    terms = agreed(relation=relation, group_size=group, cap=Cap(2.0, 1e-4))
    decision = AccountingPolicy().decide(History(), [charge], partition="p", delta=1e-5, terms=terms)
    return PlanRecord(partition="p", costs=decision.costs), decision


def test_a_release_is_converted_to_the_accounts_relation_at_its_price() -> None:
    direct, converted = (charged(Neighbours(name))[0] for name in ("replace-one", "replace-special"))
    assert converted.costs["0"]["mu_squared"] == pytest.approx(4 * direct.costs["0"]["mu_squared"])
    assert charged(Neighbours.REPLACE_SPECIAL, relation="replace-special")[0].costs == direct.costs
    families = charged(Neighbours.REPLACE_SPECIAL, relation="replace-special", group=3)[0]
    assert families.costs["0"]["mu_squared"] == pytest.approx(9 * direct.costs["0"]["mu_squared"])


def test_nothing_else_is_charged_to_an_account_under_replace_special() -> None:
    with pytest.raises(ValueError, match="neighbours"):
        charged(Neighbours.REPLACE_ONE, relation="replace-special")


@pytest.mark.parametrize("relation", ["add-remove-one", "no-such-relation"])
def test_no_account_keeps_a_relation_without_proofs(relation: str) -> None:
    with pytest.raises(ValueError, match=relation):
        charged(Neighbours.REPLACE_ONE, relation=relation)


def test_runs_keep_the_accounts_relation_unless_they_name_their_own(root: Path, tmp_path: Path) -> None:
    """Under replace-special less noise is drawn, a run proves it, and one under replace-one is refused, uncharged."""
    open_ledger().open_account("clinic", cap=Cap(2.0, 1e-4), relation="replace-special", deltas=SERIES)
    ingest_private(tmp_path / "input", epsilon_cap=2.0)
    assert relation_of("clinic") is Neighbours.REPLACE_SPECIAL
    assert budget_report("clinic")["relation"] == "replace-special"
    prepared = prepare(**NOISY)
    (release,) = {planned.setting.neighbours for planned in prepared.plan.releases if planned.reads_rows}
    assert release is Neighbours.REPLACE_SPECIAL
    prepared.make()
    one = spent()
    assert one == pytest.approx(compose(prepared.plan.releases[0].guarantee().losses).epsilon(1e-4), rel=1e-6)
    with pytest.raises(ValueError, match="neighbours=replace-special"):
        prepare(**NOISY, neighbours="replace-one").charge()
    assert spent() == one


def test_a_run_under_replace_special_pays_twice_where_the_account_keeps_replace_one(clinic: PrivateRows) -> None:
    direct = prepare(**NOISY)
    direct.charge()
    special = prepare(**NOISY, neighbours="replace-special", replicate=1)
    outcome = (
        AccountingPolicy()
        .decide(History(), priced(special.plan), partition="p", delta=1e-5, terms=AccountTerms())
        .costs
    )
    before = (
        AccountingPolicy().decide(History(), priced(direct.plan), partition="p", delta=1e-5, terms=AccountTerms()).costs
    )
    for party, cost in before.items():
        assert outcome[party]["mu_squared"] == pytest.approx(4 * cost["mu_squared"], rel=1e-6)
