"""What is left: whatever has been charged, the epsilon that is said fits, and a thousandth more does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpalgos.accounting.costs import allocate
from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.guarantees import (
    ApproximateDP,
    GaussianMu,
    Guarantee,
    Loss,
    Neighbours,
    NoGuarantee,
    PureEpsilon,
    SlackGaussian,
    ZeroConcentrated,
    rounded_down,
)
from storage.errors import OverspendError
from storage.ledger.charges import Cap, PlanRequest, ReleaseCharge
from tasks.accounts import room
from tasks.accounts.ledger import open_ledger
from tasks.accounts.room import OneMore, largest_that_fits, one_more_run
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.usefixtures("root")

CAP = Cap(3.0, 1e-5)
CLINIC = Path(__file__).parents[3] / "docs" / "examples" / "clinic.csv"
DELTA = 8.20312e-6
SERIES = {"reserved": 1 / 16}
PARTIES = ("0", "1", "2")
NAMES = itertools.count()


def request(
    losses: list[Loss],
    parties: tuple[str, ...] = PARTIES,
    partition: str = "even",
    delta: float = DELTA,
    relation: str = "replace-one",
) -> PlanRequest:
    """Return a plan of one release, of a key of its own."""
    proved = Guarantee(tuple(losses), neighbours=Neighbours(relation))
    release = ReleaseCharge(f"key-{next(NAMES)}", parties, proved.to_json(), "model")
    return PlanRequest("clinic", partition, (release,), delta, "a run")


def gaussian(epsilon: float, parties: tuple[str, ...] = PARTIES, partition: str = "even") -> PlanRequest:
    relation = open_ledger().account("clinic").relation
    losses = list(allocate([GaussianMu], [1.0], epsilon, DELTA).losses)
    return request(losses, parties, partition, relation=str(relation))


def charge(plan: PlanRequest) -> None:
    open_ledger().charge(plan, {})


def left() -> float:
    found = one_more_run("clinic")
    assert found is not None
    return found.epsilon


MU = mu_from_epsilon_delta(0.4, DELTA)
HISTORIES: dict[str, list[PlanRequest]] = {
    "nothing": [],
    "Gaussian": [request([GaussianMu(MU)]), request([GaussianMu(2 * MU)])],
    "one that is nearly the cap": [request([GaussianMu(mu_from_epsilon_delta(2.99, DELTA))])],
    "pure": [request([PureEpsilon(0.3)]), request([PureEpsilon(0.2)])],
    "zCDP": [request([ZeroConcentrated(0.01)]), request([GaussianMu(MU)])],
    "approximate": [request([ApproximateDP(0.3, 1e-7)], delta=1e-7), request([GaussianMu(MU)])],
    "with a slack, as amplified ones": [request([SlackGaussian(MU, 1e-7)], delta=1e-6), request([PureEpsilon(0.1)])],
    "one party's": [request([GaussianMu(4 * MU)], ("1",)), request([GaussianMu(MU)], ("2",))],
    "of two partitions": [request([GaussianMu(2 * MU)], ("0",)), request([GaussianMu(2 * MU)], ("x",), "by file")],
    "all of delta": [request([ApproximateDP(0.1, 9e-6)], delta=9e-6), request([ApproximateDP(0.1, 1e-7)], delta=1e-7)],
}


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("kind", HISTORIES)
def test_what_is_said_to_be_left_fits_and_a_thousandth_more_does_not(kind: str, group: int) -> None:
    ledger = open_ledger()
    ledger.open_account("clinic", CAP, group_size=group, deltas=SERIES)
    for plan in HISTORIES[kind]:
        # What a group of three loses may be more than the cap: then it is a shorter history.
        try:
            charge(plan)
        except OverspendError:
            assert group > 1 or kind == "all of delta"
    said = left()
    assert said == rounded_down(said, 4)
    # Of any rows, whichever have paid most, and of a partition that there was or was not.
    for partition in ("even", "by file", "one that is new"):
        if said:
            ledger.require_affordable(gaussian(said, partition=partition))
            ledger.require_affordable(gaussian(said, ("0",), partition))
    with pytest.raises(OverspendError):
        ledger.require_affordable(gaussian(max(1.001 * said, 2e-4), ("all rows",), "one that is new"))
    if said:
        charge(gaussian(said, ("all rows",), "one that is new"))
        assert left() < 0.1 * said + 1e-3


def test_random_histories_with_raised_caps_leave_what_is_said() -> None:
    """Sixty random charges and raises in three accounts, asked after each."""
    random = np.random.default_rng(7)
    ledger = open_ledger()
    kinds: list[Callable[[float], Loss]] = [
        lambda size: GaussianMu(size),
        lambda size: PureEpsilon(size),
        lambda size: ZeroConcentrated(size**2 / 2),
        lambda size: SlackGaussian(size, 1e-9),
    ]
    ledger.open_account("clinic", CAP, deltas=SERIES, relation="replace-special")
    for step in range(20):
        loss = kinds[random.integers(len(kinds))](float(random.uniform(0.01, 0.25)))
        parties = tuple(PARTIES[: random.integers(1, 4)])
        plan = request([loss], parties, f"partition {random.integers(2)}", relation="replace-special")
        try:
            charge(plan)
        except OverspendError:
            cap = ledger.account("clinic").cap
            assert cap is not None
            ledger.raise_cap("clinic", Cap(cap.epsilon + 0.5, cap.delta), by="owner", why="more")
        if step % 4 == 0:
            said = left()
            if said:
                ledger.require_affordable(gaussian(said, ("all rows",), "new"))
            with pytest.raises(OverspendError):
                ledger.require_affordable(gaussian(max(1.001 * said, 2e-4), ("all rows",), "new"))


def test_under_a_cap_without_delta_it_is_a_pure_epsilon() -> None:
    ledger = open_ledger()
    ledger.open_account("clinic", Cap(2.0, 0.0), deltas=SERIES)
    charge(request([PureEpsilon(0.5)], delta=0.0))
    found = one_more_run("clinic")
    assert found == OneMore(epsilon=1.5, delta=0.0, run="one more run with pure epsilon")
    ledger.require_affordable(request([PureEpsilon(1.5)], delta=0.0))


def test_public_rows_have_no_cap_and_an_account_that_nothing_bounds_has_nothing_left() -> None:
    ledger = open_ledger()
    ledger.open_account("public", None)
    assert one_more_run("public") is None
    ledger.open_account("clinic", Cap(1.0, 1e-6), deltas=SERIES)
    with pytest.raises(OverspendError):
        charge(request([NoGuarantee("nobody has proved it")]))
    # As the only plan it is read at the cap's whole delta, of which a second one's filter has a part.
    charge(request([GaussianMu(mu_from_epsilon_delta(1.0, 1e-6))], delta=1e-6))
    found = one_more_run("clinic")
    assert found is not None
    assert found.epsilon == 0.0
    assert found.said == "remaining: nothing; no epsilon allows one more run with Gaussian noise at delta 8.20312e-07"


@pytest.mark.parametrize("limit", [0.00012345, 0.0999951, 0.1, 1.0, 1.00099, 2.6189999, 9.9995, 731.25])
def test_the_largest_is_the_last_number_of_four_digits_that_fits(limit: float) -> None:
    asked = []

    def fits(epsilon: float) -> bool:
        asked.append(epsilon)
        return epsilon <= limit

    for most in (1000.0, 1000.0 * limit, limit, 2 * limit):
        assert largest_that_fits(fits, most) == rounded_down(min(limit, most), 4)
        assert largest_that_fits(fits, most) in asked, "what is said was tried"
        asked.clear()
        for off, tries in ((1.0, 3), (0.9991, 9), (0.3, 40), (1.4, 40), (1e-9, 40)):
            assert largest_that_fits(fits, most, off * limit) == rounded_down(min(limit, most), 4), off
            assert len(asked) <= tries, (off, asked)
            asked.clear()
    assert largest_that_fits(lambda _: False, 3.0) == largest_that_fits(lambda _: False, 3.0, 1.0) == 0.0


def test_what_is_said_without_room_to_all_partitions_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: one more run as if it were of rows of one partition that have paid nothing in the other."""
    monkeypatch.setattr(room, "_ANOTHER", "by file")
    with pytest.raises(OverspendError):
        test_what_is_said_to_be_left_fits_and_a_thousandth_more_does_not("of two partitions", 1)


def test_a_budget_says_what_is_left_first_and_the_cost_of_each_charge(commands: CommandLine, tmp_path: Path) -> None:
    ledger = open_ledger()
    ledger.open_account("clinic", CAP, deltas=SERIES)
    lines = commands("budget", "clinic").out.splitlines()
    assert lines[0] == "account clinic: cap ε = 3 at δ = 1e-05"
    assert lines[1].startswith("remaining: one more run with Gaussian noise of epsilon up to 3.0")
    assert "party" not in " ".join(lines), "no empty table"
    charge(gaussian(0.5, tuple(map(str, range(6)))))
    charge(request([GaussianMu(MU)], (*map(str, range(6)), "test")))
    said = " ".join(commands("budget", "clinic").out.split())
    assert "0 and 5 others with equal spending" in said
    assert "held-out test rows" in said
    assert "a run 0.5 8.20312e-06 model" in said, "each charge with its run, its own epsilon and delta"
    report = commands.succeeds("budget", "clinic")
    assert report["left"]["epsilon"] == left()
    assert [plan["epsilon"] for plan in report["plans"]] == [pytest.approx(0.5, rel=1e-9), pytest.approx(0.4, rel=1e-9)]
    assert set(report["plans"][1]["parties"]) == {*map(str, range(6)), "test"}


def test_the_budget_of_an_account_that_only_a_draft_has_opened(commands: CommandLine, tmp_path: Path) -> None:
    terms = ("--account", "wards", "--epsilon-cap", 3, "--delta-cap", 1e-5)
    drawn = ("--numeric", "age", "--range-epsilon", 0.5)
    commands.succeeds("schema", "draft", CLINIC, "--output", tmp_path / "wards.yaml", *drawn, *terms)
    for name in ("wards", "wards-columns"):
        said = " ".join(commands("budget", name).out.split())
        assert "remaining: one more run " in said
        assert "what the columns hold 0.5 8.20312e-06 the ranges of columns" in said, "what the draft cost"
    report = commands.succeeds("budget", "wards")
    assert report["left"]["epsilon"] == pytest.approx(2.933, abs=0.02)
    (plan,) = report["plans"]
    assert plan["epsilon"] == pytest.approx(0.5)


def test_a_draft_of_lists_of_values_has_a_cost_too(commands: CommandLine, tmp_path: Path) -> None:
    """It states its plan at the little delta of the lists, where Gaussian noise has no finite epsilon."""
    terms = ("--account", "wards", "--epsilon-cap", 2, "--delta-cap", 2.5e-6)
    drawn = ("--numeric", "age", "--categories", "ward", "--range-epsilon", 0.2)
    commands.succeeds("schema", "draft", CLINIC, "--output", tmp_path / "wards.yaml", *drawn, *terms)
    said = " ".join(commands("budget", "wards").out.split())
    assert "unbounded" not in said
    assert "3e-06" not in said, "delta is what it is"
    (plan,) = commands.succeeds("budget", "wards")["plans"]
    assert plan["delta"] == 2.5e-6
    assert 0.1 < plan["epsilon"] <= 0.2, "epsilon 0.2 at most, it was said when they were drawn"


def test_a_budget_under_a_raised_cap_says_what_counts_as_spent(commands: CommandLine) -> None:
    """And an account is named as it is elsewhere: none of rows that were brought in is needed."""
    open_ledger().open_account("clinic", CAP, deltas=SERIES)
    charge(gaussian(0.5))
    lines = commands("budget", "clinic", "--raise-epsilon-cap", "4", "--reason", "one more study").out.splitlines()
    (spent,) = (line for line in lines if line.startswith("spent ε"))
    assert spent == "spent ε = 3 of 4; nothing was charged since the cap was raised"
    assert "The spent ε includes the earlier cap of 3, which counts in full" in " ".join(lines)
    with pytest.raises(OverspendError) as refusal:
        charge(gaussian(2.0))
    assert "from epsilon 3 to " in str(refusal.value), "as budget says it, and not 3.001"
    assert "above the cap of epsilon 4 (the earlier cap of 3, plus later charges at delta 3.125e-07)" in str(
        refusal.value
    )


def test_nights_stand_in_their_order(commands: CommandLine) -> None:
    open_ledger().open_account("clinic", CAP, deltas=SERIES)
    proved = Guarantee((GaussianMu(0.01),), neighbours=Neighbours("replace-one")).to_json()
    nights = (ReleaseCharge(f"night-{night}", PARTIES, proved, f"night {night} of 12") for night in range(1, 13))
    charge(PlanRequest("clinic", "even", tuple(nights), DELTA, "a run"))
    said = " ".join(commands("budget", "clinic").out.split())
    assert "12 releases, among them night 1 of 12, night 2 of 12, night 3 of 12" in said
