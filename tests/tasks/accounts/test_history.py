"""Budgets over time: each point is what the account stood at then, and the forecast is what the ledger then refuses."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from storage.errors import OverspendError
from tasks.accounts import history
from tasks.accounts.history import BudgetHistory, budget_history
from tasks.accounts.ledger import change_cap
from tasks.accounts.pages import budget_page, budget_table, draw_budgets
from tasks.accounts.reports import budget_report, low_budget
from tasks.release.forecasts import budget_histories
from tests.support.chains import ingest_private, prepare
from tests.support.command_line import CommandLine

NOISY: dict[str, Any] = {"algorithm": "noisy-gd", "epsilon": 0.5}


def night(number: int) -> None:
    prepare(**NOISY, replicate=number).charge()


def test_each_point_is_what_the_report_said_then(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", epsilon_cap=1.0)
    assert budget_history("clinic").points == ()
    said = []
    for number in range(3):
        night(number)
        said.append(budget_report("clinic"))
        if number == 1:
            change_cap("clinic", 4.0, "more people agreed")
    found = budget_history("clinic", ["clinic"])
    # Of the first two the later raise changes nothing: they were charged under the first cap.
    assert [point.cap for point in found.points] == [1.0, 1.0, 4.0]
    assert [point.epsilon for point in found.points] == [one["epsilon_spent"] for one in said]
    assert [point.parties for point in found.points] == [
        {party["party"]: party["epsilon_spent"] for party in one["parties"]} for one in said
    ]
    assert found.spent == said[-1]["epsilon_spent"]


def test_what_is_spent_counts_a_raise_before_the_next_charge(root: Path, tmp_path: Path) -> None:
    """A raise carries nothing unspent over: the overview and the warning must not wait for a charge to say so."""
    ingest_private(tmp_path / "input", epsilon_cap=1.0)
    night(0)
    change_cap("clinic", 1.2, "more people agreed")
    said, found = budget_report("clinic"), budget_history("clinic")
    assert said["epsilon_spent"] == 1.0
    assert found.spent == said["epsilon_spent"]
    assert found.low
    assert found.points[-1].epsilon == pytest.approx(0.5, abs=0.05), "what was read at the charge stays"
    assert f"{said['epsilon_spent']:.4g}" in str(budget_table([found]))


def test_the_forecast_is_the_run_that_is_refused(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forecast after the first night happens on that night, and the picture of it is a picture."""
    ingest_private(tmp_path / "input", epsilon_cap=2.0)
    night(0)
    left = budget_history("clinic").runs_left
    assert left is not None
    assert left >= 2
    for number in range(1, left + 1):
        night(number)
    assert budget_history("clinic").runs_left == 0
    with pytest.raises(OverspendError):
        night(left + 1)
    assert len(budget_history("clinic").points) == left + 1
    assert low_budget("clinic")["runs_left"] == 0
    monkeypatch.setattr(history, "_MOST_POINTS", 2)
    few = budget_history("clinic")
    assert len(few.points) <= 2
    assert few.points[-1] == budget_history("clinic").points[-1]
    assert draw_budgets([few]).startswith(b"\x89PNG")


def test_a_budget_is_low_above_four_fifths(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", epsilon_cap=0.5)
    assert low_budget("clinic") == {}
    night(0)
    spent = budget_report("clinic")["epsilon_spent"]
    assert spent is not None
    assert 0.8 * 0.5 < spent < 0.5
    low = low_budget("clinic")
    assert (low["account"], low["epsilon_cap"], low["epsilon_spent"]) == ("clinic", 0.5, spent)
    assert budget_history("clinic").low
    change_cap("clinic", 2.0, "more people agreed")
    assert low_budget("clinic") == {}
    assert not budget_history("clinic").low


def test_where_all_accounts_stand(commands: CommandLine, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", epsilon_cap=2.0)
    night(0)
    first, *_ = commands.succeeds("budget")["accounts"]
    assert (first["account"], first["datasets"]) == ("clinic", ["clinic"])
    page, picture = tmp_path / "all.html", tmp_path / "clinic.png"
    commands("budget", "--out", page)
    commands("budget", "clinic", "--out", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in page.read_text()
    assert "clinic" in page.read_text()
    commands("budget", "--out", tmp_path / "all.txt").refused(2, ".png", ".html")
    commands("budget", "--raise-epsilon-cap", "3", "--reason", "none").refused(2, "--raise-epsilon-cap")
    commands("budget", "nobody", "--out", picture).refused(2, "nobody")


def test_odd_accounts_are_drawn_too() -> None:
    """Public ones, unbounded ones, names that would be markup, and none at all."""
    point = {"at": datetime.now(UTC).isoformat(), "epsilon": None, "cap": 1.0, "parties": {"0": None}}
    common: dict[str, Any] = {"datasets": ("x",), "delta": 1e-5, "runs_left": None, "promised": None}
    odd = [
        BudgetHistory.model_validate({"account": "<b>", "cap": 1.0, "spent": None, "points": [point], **common}),
        BudgetHistory.model_validate({"account": "public", "cap": None, "spent": 0.0, "points": [], **common}),
    ]
    rows = budget_table(odd)
    assert [row["epsilon spent"] for row in rows] == ["unbounded", "0"]
    assert [row["share spent"] for row in rows] == ["all", "–"]
    for chosen in (odd, []):
        picture = draw_budgets(chosen)
        assert picture.startswith(b"\x89PNG")
        assert "<b>" not in budget_page(chosen, picture)


def test_a_share_is_rounded_up() -> None:
    point = history.SpendingPoint(at="2026-03-01T03:00:00+00:00", epsilon=0.9901, cap=1.0, parties={})
    one = BudgetHistory(
        account="a",
        datasets=(),
        delta=1e-5,
        cap=1.0,
        promised=1.5,
        spent=0.9901,
        points=(point,),
        runs_left=None,
    )
    (line,) = budget_table([one])
    assert line["share spent"] == "100 %"
    assert line["cap"] == "1 (a soft limit; the cap is 1.5)"


def test_all_accounts_that_pay_are_there(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", epsilon_cap=2.0)
    ingest_private(tmp_path / "input", name="second", account="clinic", seed=5, epsilon_cap=None, delta_cap=None)
    assert [one.datasets for one in budget_histories()] == [("clinic", "second")]
