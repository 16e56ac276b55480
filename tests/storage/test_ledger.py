"""Charges: to whom, exactly once, and which are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import InputError, OverspendError, RefusedError, StorageError
from storage.ledger.charges import Cap, Decision, ReleaseCharge, require_small_delta
from storage.ledger.entries import writing
from storage.ledger.ledger import Ledger, OutputOutcome
from tests.support.ledgers import (
    ForgetsParties,
    SumOfEpsilons,
    database_of,
    open_ledger,
    opened,
    outputs,
    release,
    request,
    spent,
)

pytestmark = pytest.mark.usefixtures("with_and_without_memory")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(tmp_path / "ledger.sqlite", cap=3)


class TestAccounts:
    def test_the_same_words_again_change_nothing(self, ledger: Ledger) -> None:
        first = ledger.open_account("clinic", Cap(3, 1e-5))
        assert ledger.open_account("clinic", Cap(3, 1e-5)) == first
        assert [account.name for account in ledger.accounts()] == ["clinic"]

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"cap": Cap(9, 1e-5)}, "epsilon 3 at delta 1e-05.*epsilon 9"),
            ({"cap": Cap(3, 1e-6)}, "delta 1e-05.*delta 1e-06"),
            ({"cap": None}, "epsilon 3.*public"),
            ({"group_size": 2}, "group size 1.*2"),
            ({"relation": "replace-special"}, "replace-one.*replace-special"),
            ({"unit": "person"}, "unit row.*person"),
            ({"idealised_allowed": True}, "idealised"),
            ({"disjoint_from": ("x",)}, "disjoint"),
        ],
    )
    def test_other_terms_are_refused_by_name(self, ledger: Ledger, change: dict[str, Any], says: str) -> None:
        ledger.open_account("x", Cap(3, 1e-5))
        options: dict[str, Any] = {"cap": Cap(3, 1e-5), **change}
        with pytest.raises(InputError, match=f"'clinic'.*{says}"):
            ledger.open_account("clinic", **options)

    def test_a_changed_cap_agrees_with_the_one_at_opening_and_the_one_in_force(self, ledger: Ledger) -> None:
        for cap in (5.0, 8.0):
            ledger.raise_cap("clinic", Cap(cap, 1e-5), by="owner", why="a second year")
        for epsilon in (3.0, 8.0):
            assert ledger.open_account("clinic", Cap(epsilon, 1e-5)).cap == Cap(8.0, 1e-5)
        with pytest.raises(InputError, match=r"epsilon 3.*epsilon 8.*epsilon 5"):
            ledger.open_account("clinic", Cap(5.0, 1e-5))

    def test_a_declaration_of_disjoint_people_is_on_record(self, ledger: Ledger) -> None:
        ledger.open_account("next year", Cap(1, 1e-6), disjoint_from=["clinic"], idealised_allowed=True)
        account = ledger.account("next year")
        assert account.disjoint_people
        assert account.disjoint_from == ("clinic",)
        assert account.idealised_allowed
        assert not ledger.account("clinic").disjoint_people

    def test_disjoint_from_an_unknown_account_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(InputError, match=r"'nobody'.*accounts: [a-z]"):
            ledger.open_account("new", None, disjoint_from=["nobody"])
        assert [account.name for account in ledger.accounts()] == ["clinic"]

    @pytest.mark.parametrize(
        "cap",
        [
            Cap(0, 1e-5),
            Cap(-1, 0),
            Cap(float("inf"), 0),
            Cap(float("nan"), 0),
            Cap(1.000001e6, 1e-5),
            Cap(1, 1),
            Cap(1, -1e-9),
            Cap(1, float("nan")),
        ],
    )
    def test_a_cap_that_bounds_nothing_is_refused(self, ledger: Ledger, cap: Cap) -> None:
        with pytest.raises(InputError, match=r"cap's (epsilon|delta)"):
            ledger.open_account("new", cap)
        with pytest.raises(InputError, match=r"cap's (epsilon|delta)"):
            ledger.raise_cap("clinic", cap, by="owner", why="because")

    @pytest.mark.parametrize("name", ["", " clinic", "two\nlines", "nul\0", "x" * 201])
    def test_a_name_that_breaks_a_line_is_refused(self, ledger: Ledger, name: str) -> None:
        with pytest.raises(InputError, match="account's name"):
            ledger.open_account(name, None)

    def test_an_unknown_account_is_named_beside_the_known(self, ledger: Ledger) -> None:
        with pytest.raises(InputError, match="account 'klinik'"):
            ledger.charge(request(release("k"), account="klinik"), {})

    @pytest.mark.parametrize(
        ("delta", "rows", "refused"), [(1e-5, 99_999, False), (1e-5, 100_000, True), (0.5, 1, False)]
    )
    def test_delta_must_be_below_one_in_n(self, delta: float, rows: int, refused: bool) -> None:
        if refused:
            with pytest.raises(RefusedError, match="1/n"):
                require_small_delta(delta, rows)
        else:
            require_small_delta(delta, rows)

    def test_a_delta_that_is_no_number_is_refused(self) -> None:
        with pytest.raises(RefusedError):
            require_small_delta(float("nan"), 10)


class TestCaps:
    def test_raising_is_recorded_and_makes_room(self, ledger: Ledger) -> None:
        ledger.charge(request(release("k", 3)), {})
        with pytest.raises(OverspendError):
            ledger.charge(request(release("more")), {})
        ledger.raise_cap("clinic", Cap(4, 1e-5), by="owner", why="one more study")
        ledger.charge(request(release("more")), {})
        (change,) = ledger.account("clinic").changes
        assert (change.cap, change.before, change.by, change.why) == (
            Cap(4, 1e-5),
            Cap(3, 1e-5),
            "owner",
            "one more study",
        )
        assert ledger.account("clinic").cap == Cap(4, 1e-5)

    def test_never_lowered_below_what_is_spent(self, ledger: Ledger) -> None:
        ledger.charge(request(release("k", 2)), {})
        with pytest.raises(OverspendError, match="'clinic'") as refused:
            ledger.raise_cap("clinic", Cap(1.9, 1e-5), by="owner", why="prudence")
        assert (refused.value.value, refused.value.bound) == (2.0, 1.9)
        assert ledger.account("clinic").cap == Cap(3, 1e-5)
        assert ledger.raise_cap("clinic", Cap(2, 1e-6), by="owner", why="prudence").cap == Cap(2, 1e-6)
        with pytest.raises(OverspendError):
            ledger.charge(request(release("more", 0.1)), {})

    def test_a_smaller_delta_with_a_larger_epsilon_counts_as_lowering(self, ledger: Ledger) -> None:
        class NeedsDelta(SumOfEpsilons):
            def decide(self, *arguments: Any, **options: Any) -> Decision:
                decision = super().decide(*arguments, **options)
                return decision if options["terms"].cap.delta >= 1e-6 else replace(decision, admitted=False)

        strict = Ledger(database_of(ledger), NeedsDelta())
        strict.charge(request(release("k")), {})
        with pytest.raises(OverspendError):
            strict.raise_cap("clinic", Cap(100, 1e-7), by="owner", why="prudence")

    def test_who_and_why_are_needed(self, ledger: Ledger) -> None:
        for by, why in (("", "reason"), ("owner", " ")):
            with pytest.raises(InputError, match=r"author.*reason"):
                ledger.raise_cap("clinic", Cap(4, 1e-5), by=by, why=why)

    def test_the_cap_in_force_again_is_not_recorded(self, ledger: Ledger) -> None:
        ledger.raise_cap("clinic", Cap(3, 1e-5), by="owner", why="again")
        assert ledger.account("clinic").changes == ()

    def test_a_public_account_has_none(self, ledger: Ledger) -> None:
        ledger.open_account("digits", None)
        with pytest.raises(InputError, match=r"'digits'.*public.*cap"):
            ledger.raise_cap("digits", Cap(1, 0), by="owner", why="because")


class TestSoftLimits:
    """A cap of 4 that is lowered to 3 in the entry that opens the account."""

    def test_it_is_a_lowered_cap_from_the_first_charge_on(self, ledger: Ledger) -> None:
        account = ledger.open_account("soft", Cap(4, 1e-5), soft_limit=3.0)
        assert (account.cap, account.promised, account.opening_cap) == (Cap(3, 1e-5), 4, Cap(4, 1e-5))
        ledger.charge(request(release("k", 3), account="soft"), {})
        with pytest.raises(OverspendError, check=lambda refusal: refusal.bound == 3):
            ledger.charge(request(release("more"), account="soft"), {})
        lifted = ledger.raise_cap("soft", Cap(4, 1e-5), by="owner", why="one more study")
        assert (lifted.cap, lifted.promised) == (Cap(4, 1e-5), 4)
        ledger.charge(request(release("more"), account="soft"), {})
        with pytest.raises(OverspendError, check=lambda refusal: refusal.value == 4):
            ledger.raise_cap("soft", Cap(3, 1e-5), by="owner", why="prudence")

    def test_the_same_terms_again_change_nothing(self, ledger: Ledger) -> None:
        opened = ledger.open_account("soft", Cap(4, 1e-5), soft_limit=3.0)
        for epsilon, limit in ((4, 3.0), (4, None), (3, None)):
            assert ledger.open_account("soft", Cap(epsilon, 1e-5), soft_limit=limit) == opened
        for epsilon, limit in ((4, 2.0), (5, 3.0)):
            with pytest.raises(InputError, match=r"epsilon 4.*epsilon 3"):
                ledger.open_account("soft", Cap(epsilon, 1e-5), soft_limit=limit)
        ledger.raise_cap("soft", Cap(4, 1e-5), by="owner", why="lifted")
        assert ledger.open_account("soft", Cap(4, 1e-5), soft_limit=3.0).cap == Cap(4, 1e-5)

    @pytest.mark.parametrize("limit", [4.0, 5.0, 0.0, -1.0, float("nan")])
    def test_one_that_is_not_below_the_cap_is_refused(self, ledger: Ledger, limit: float) -> None:
        with pytest.raises(InputError, match=r"cap's 4", check=lambda refusal: refusal.bound == 4):
            ledger.open_account("soft", Cap(4, 1e-5), soft_limit=limit)
        with pytest.raises(InputError, match="no cap"):
            ledger.open_account("soft", None, soft_limit=3.0)
        assert [account.name for account in ledger.accounts()] == ["clinic"]


class TestCharging:
    def test_a_release_is_charged_once(self, ledger: Ledger) -> None:
        first = ledger.charge(request(release("a"), release("b", parties=("1",))), {"0": "s0", "1": "s1"})
        assert first.charged == ("a", "b")
        assert first.details == {"spent_before": 0, "spent_after": 1}
        again = ledger.charge(request(release("a"), release("b", parties=("1",))), {"0": "other"})
        assert (again.charged, again.already_charged) == ((), ("a", "b"))
        mixed = ledger.charge(request(release("b", parties=("1",)), release("c")), {})
        assert (mixed.charged, mixed.already_charged) == (("c",), ("b",))
        assert spent(ledger) == 2
        assert [charge.key for charge in ledger.charges("clinic")] == ["a", "b", "c"]
        assert ledger.charged(["b", "d", "c"]) == {"b", "c"}
        assert ledger.charged([]) == set()

    def test_what_was_charged_first_is_what_is_told(self, ledger: Ledger) -> None:
        ledger.charge(request(release("a", 0.5), run="first run"), {"0": "s0"})
        ledger.charge(request(release("a", 0.5), run="second run"), {"0": "rotated"})
        charge = ledger.charge_of("a")
        assert charge.plan.key_ids == {"0": "s0"}
        assert (charge.account, charge.plan.partition, charge.parties) == ("clinic", "even-5", ("0",))
        assert (charge.guarantee, charge.label, charge.plan.run) == ({"epsilon": 0.5}, "label of a", "first run")
        assert (charge.plan.delta, charge.plan.recharge) == (1e-6, False)
        assert ledger.is_charged("a")
        assert not ledger.is_charged("b")
        with pytest.raises(InputError, match=r"release '[ab]' was never"):
            ledger.charge_of("b")

    def test_an_overspend_charges_nothing_and_says_what_is_left(self, ledger: Ledger) -> None:
        ledger.charge(request(release("a", 2)), {})
        with pytest.raises(OverspendError) as refused:
            ledger.charge(request(release("b", 0.5), release("c", 0.6)), {})
        assert refused.value.value == pytest.approx(3.1)
        assert refused.value.bound == 3
        assert not ledger.is_charged("b")
        assert spent(ledger) == 2
        ledger.charge(request(release("b", 0.5)), {})

    def test_a_public_account_records_and_never_refuses(self, ledger: Ledger) -> None:
        ledger.open_account("digits", None)
        ledger.charge(request(release("a", 1e9), account="digits"), {})
        ledger.charge(request(release("b", float("inf")), account="digits"), {})
        assert spent(ledger, "digits") == float("inf")
        assert ledger.verify() == []

    def test_an_empty_plan_charges_nothing(self, ledger: Ledger) -> None:
        assert ledger.charge(request(), {}).charged == ()
        assert ledger.history("clinic").plans == ()

    def test_accounts_do_not_share(self, ledger: Ledger) -> None:
        ledger.open_account("other", Cap(1, 1e-5))
        ledger.charge(request(release("a", 3)), {})
        ledger.charge(request(release("b", 1), account="other"), {})
        assert (spent(ledger), spent(ledger, "other")) == (3, 1)

    @pytest.mark.parametrize(
        "other",
        [
            request(release("a", 0.9)),
            request(release("a", 1.1)),
            request(release("a", parties=("1",))),
            request(release("a", parties=("0", "1"))),
            request(release("a"), partition="even-6"),
            request(ReleaseCharge("a", ("0",), {"epsilon": 1.0, "extra": None})),
            request(ReleaseCharge("a", ("0",), {"epsilon": "1.0"})),
            request(ReleaseCharge("a", ("0",), {"epsilon": [1.0]})),
        ],
    )
    def test_one_identity_stands_for_one_release(self, ledger: Ledger, other: Any) -> None:
        ledger.charge(request(release("a")), {})
        with pytest.raises(RefusedError, match=r"'a'.*guarantee, partition"):
            ledger.charge(other, {})

    def test_the_last_bit_of_a_number_makes_no_other_release(self, ledger: Ledger) -> None:
        ledger.charge(request(release("a", 0.1)), {})
        assert ledger.charge(request(release("a", 0.1 + 1e-17)), {}).charged == ()
        assert ledger.charge(request(release("a", np.nextafter(0.1, 1).item())), {}).charged == ()

    def test_a_release_of_private_rows_belongs_to_one_account(self, ledger: Ledger) -> None:
        ledger.open_account("other", Cap(5, 1e-5))
        ledger.open_account("digits", None)
        ledger.open_account("digits again", None)
        ledger.charge(request(release("a")), {})
        ledger.charge(request(release("p"), account="digits"), {})
        for account, key in (("other", "a"), ("digits", "a"), ("clinic", "p")):
            with pytest.raises(RefusedError, match=r"'clinic'.*account$"):
                ledger.charge(request(release(key), account=account), {})
        assert ledger.charge(request(release("p"), account="digits again"), {}).charged == ("p",)

    @pytest.mark.parametrize(
        ("plan", "message"),
        [
            (request(release("a"), release("a")), "twice"),
            (request(release("a", parties=())), "'a'.*party"),
            (request(release("")), "key"),
            (request(release("a", parties=("",))), "party"),
            (request(release("a"), partition=""), "partition"),
            (replace(request(release("a")), delta=1.0), "delta"),
            (replace(request(release("a")), delta=float("nan")), "delta"),
        ],
    )
    def test_a_malformed_plan_is_refused(self, ledger: Ledger, plan: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            ledger.charge(plan, {})
        assert ledger.history("clinic").plans == ()

    def test_a_policy_that_raises_charges_nothing(self, ledger: Ledger) -> None:
        with pytest.raises(KeyError):
            ledger.charge(request(ReleaseCharge("a", ("0",), {"unknown": 1})), {})
        assert not ledger.is_charged("a")
        assert ledger.verify() == []

    def test_a_policy_that_forgets_a_party_charges_nothing(self, ledger: Ledger) -> None:
        broken = Ledger(database_of(ledger), ForgetsParties())
        with pytest.raises(StorageError, match="party '0'"):
            broken.charge(request(release("a")), {})
        assert not ledger.is_charged("a")

    def test_people_with_several_rows_pay_for_them(self, ledger: Ledger) -> None:
        ledger.open_account("families", Cap(9, 1e-5), group_size=4)
        ledger.charge(request(release("a", 1), account="families"), {})
        assert spent(ledger, "families") == 4

    def test_no_order_of_requests_overspends_or_charges_twice(self, tmp_path: Path) -> None:
        """Random requests against a dictionary that says what must happen."""
        rng = np.random.default_rng(20_240_401)
        ledger = open_ledger(tmp_path / "model.sqlite", cap=6)
        paid: set[str] = set()
        refused = 0
        for _ in range(40):
            keys = sorted({f"k{number}" for number in rng.integers(0, 12, size=3)})
            new = [key for key in keys if key not in paid]
            if len(paid) + len(new) <= 6:
                assert set(ledger.charge(request(*map(release, keys)), {}).charged) == set(new)
                paid.update(new)
            else:
                refused += 1
                with pytest.raises(OverspendError):
                    ledger.charge(request(*map(release, keys)), {})
            assert spent(ledger) == len(paid)
        assert refused > 0
        assert len(paid) == 6


class TestOutputs:
    def test_the_first_digest_is_kept_and_the_same_is_free(self, ledger: Ledger) -> None:
        ledger.charge(request(release("a")), {})
        assert ledger.record_output("a", "d1") is OutputOutcome.RECORDED
        assert ledger.record_output("a", "d1") is OutputOutcome.UNCHANGED
        assert spent(ledger) == 1

    def test_other_bytes_cost_once_more(self, ledger: Ledger) -> None:
        ledger.charge(request(release("a"), run="night"), {"0": "s0"})
        ledger.record_output("a", "d1")
        assert ledger.record_output("a", "d2") is OutputOutcome.RECHARGED
        assert ledger.record_output("a", "d2") is OutputOutcome.UNCHANGED
        assert ledger.record_output("a", "d1") is OutputOutcome.UNCHANGED
        assert spent(ledger) == 2
        assert outputs(ledger, "a") == ["d1", "d2"]
        first, second = ledger.charges("clinic")
        assert (first.plan.recharge, second.plan.recharge) == (False, True)
        assert (second.guarantee, second.plan.key_ids, second.plan.run) == (first.guarantee, {"0": "s0"}, "night")
        assert ledger.charge_of("a") == first

    def test_other_bytes_made_of_the_same_cost_nothing(self, ledger: Ledger) -> None:
        ledger.charge(request(release("a"), release("b")), {})
        assert ledger.record_output("a", "d1", "m1") is OutputOutcome.RECORDED
        assert ledger.record_output("a", "d2", "m1") is OutputOutcome.UNCHANGED
        assert outputs(ledger, "a") == ["d1", "d2"]
        assert ledger.verify({"a": "d1"}) == ledger.verify({"a": "d2"}) == []
        assert spent(ledger) == 2
        # What is said of one release is not said of another.
        assert ledger.record_output("b", "d3", "m1") is OutputOutcome.RECORDED
        assert ledger.record_output("a", "d4", "m2") is OutputOutcome.RECHARGED
        assert spent(ledger) == 3

    def test_where_nobody_says_what_it_is_made_of_the_bytes_count(self, ledger: Ledger) -> None:
        ledger.charge(request(release("a")), {})
        ledger.record_output("a", "d1")
        assert ledger.record_output("a", "d2") is OutputOutcome.RECHARGED
        assert ledger.record_output("a", "d3", "m1") is OutputOutcome.RECHARGED
        assert ledger.record_output("a", "d4", "m1") is OutputOutcome.UNCHANGED

    def test_other_bytes_that_do_not_fit_are_refused_and_not_recorded(self, ledger: Ledger) -> None:
        ledger.charge(request(release("a", 2)), {})
        ledger.record_output("a", "d1")
        with pytest.raises(OverspendError, match="'a'") as refused:
            ledger.record_output("a", "d2")
        assert (refused.value.value, refused.value.bound) == (4, 3)
        assert outputs(ledger, "a") == ["d1"]
        assert spent(ledger) == 2

    def test_what_was_never_charged_has_no_output(self, ledger: Ledger) -> None:
        with pytest.raises(RefusedError, match=r"release '[ab]' was never"):
            ledger.record_output("a", "d1")

    def test_a_recharged_release_is_still_charged_once_by_its_plan(self, ledger: Ledger) -> None:
        ledger.charge(request(release("a")), {})
        ledger.record_output("a", "d1")
        ledger.record_output("a", "d2")
        assert ledger.charge(request(release("a")), {}).charged == ()


class TestReports:
    def test_plans_and_charges_by_party(self, ledger: Ledger) -> None:
        ledger.charge(request(release("a", parties=("0", "1")), release("b", parties=("1",)), run="one"), {"0": "s"})
        ledger.charge(request(release("c"), partition="even-6"), {})
        first, second = ledger.history("clinic").plans
        assert (first.releases, first.costs, first.run) == (
            ("a", "b"),
            {"0": {"epsilon": 1}, "1": {"epsilon": 2}},
            "one",
        )
        assert (second.partition, second.delta) == ("even-6", 1e-6)
        by_party = ledger.charges_by_party("clinic")
        assert {party: [charge.key for charge in charges] for party, charges in by_party.items()} == {
            "0": ["a", "c"],
            "1": ["a", "b"],
        }

    @pytest.mark.parametrize("query", ["account", "history", "charges", "status", "charges_by_party"])
    def test_an_unknown_account_is_an_error_not_an_empty_list(self, ledger: Ledger, query: str) -> None:
        with pytest.raises(InputError, match=r"'nobody'.*accounts: [a-z]"):
            getattr(ledger, query)("nobody")

    def test_a_cached_run_needs_no_write_lock(self, ledger: Ledger, tmp_path: Path) -> None:
        ledger.charge(request(release("a")), {})
        # Who needs the lock waits for it in vain, and raises.
        with writing(opened(tmp_path / "ledger.sqlite")):
            assert ledger.charge(request(release("a")), {}).already_charged == ("a",)
