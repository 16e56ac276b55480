"""Progress: of how much how much is done, wherever that is known, and how long the rest will take."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from deployments.cli import common
from storage.readers.raw_tables import expected_rows
from storage.refs import Visibility
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.datasets.schema_checks import check_schema
from tasks.release import deadlines
from tasks.runtime.progress import listen, report_progress
from tests.support.chains import followed

Heard = list[tuple[str, str, float | None]]


@pytest.fixture
def table(tmp_path: Path) -> tuple[Path, Path]:
    schema, rows = tmp_path / "clinic.yaml", tmp_path / "rows.csv"
    schema.write_text(
        "columns:\n  - {name: x, type: numeric, range: [0, 9]}\n  - {name: y, type: label, classes: [ill, well]}\n"
    )
    rows.write_text("x,y\n" + "".join(f"{row % 9},{('ill', 'well')[row % 2]}\n" for row in range(9000)))
    return schema, rows


def test_how_many_rows_there_will_be(table: tuple[Path, Path], tmp_path: Path) -> None:
    assert expected_rows(table[1]) == 9001
    assert expected_rows(tmp_path / "nothing.csv") is None
    assert expected_rows(tmp_path) is None
    (tmp_path / "bad.parquet").write_text("no")
    assert expected_rows(tmp_path / "bad.parquet") is None


def test_reading_checking_and_training_say_their_share(
    root: Path, table: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Until it has passed there is nothing to be told; that it is waited for is tested with deadlines.
    monkeypatch.setattr(deadlines, "_await", lambda timed, what, begun: None)
    schema, rows = table
    heard: Heard = []
    with listen(lambda *said: heard.append(said)):
        check_schema(schema, rows)
        ingest(
            IngestRequest(
                name="clinic",
                format="csv",
                path=rows,
                schema_path=schema,
                epsilon_cap=9.0,
                delta_cap=1e-6,
                visibility=Visibility.PRIVATE,
            )
        )
        followed(algorithm="noisy-gd", epsilon=1.0, delta=1e-7, evaluation=True, parameters={"iterations": 5})
        before = len(heard)
        # Where nothing may show before its time, no step is said to be done.
        followed(
            algorithm="noisy-gd",
            epsilon=1.0,
            delta=1e-7,
            evaluation=True,
            replicate=1,
            deadline=60.0,
            parameters={"iterations": 5},
        )
    for stage in ("checking", "reading train", "steps", "releases"):
        shares = [share for of, _, share in heard if of == stage]
        assert len(shares) > 1 or stage == "releases"
        assert all(share is not None for share in shares), stage
        assert shares[-1] == pytest.approx(1.0, abs=0.01), stage
    assert "steps" not in [stage for stage, _, _ in heard[before:]]


def test_a_terminal_shows_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now, made = [0.0], list[Progress]()

    class Timed(Progress):
        def __init__(self, *columns: Any, **options: Any) -> None:
            super().__init__(*columns, get_time=lambda: now[0], auto_refresh=False, **options)
            made.append(self)

    def left(after: float, stage: str, share: float | None) -> float | None:
        now[0] += after
        report_progress(stage, "rows", share)
        return made[0].tasks[0].time_remaining

    monkeypatch.setattr(common, "Progress", Timed)
    monkeypatch.setattr(common, "Console", lambda stderr: Console(file=io.StringIO(), force_terminal=True))
    with common.progress("ingest"):
        assert left(0.0, "reading", 0.1) is None
        assert left(10.0, "reading", 0.6) == 8
        assert left(0.0, "reading", None) is None
        assert left(1.0, "training", 0.0) is None
        left(100.0, "training", 0.1)
        assert left(100.0, "training", 0.2) == 800
        # A stage of the same name that begins again is timed anew.
        assert left(1.0, "training", 0.05) is None
        assert left(10.0, "training", 0.1) == 180


def test_a_log_is_spared_moving_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        screen = io.StringIO()
        monkeypatch.setattr(
            common, "Console", lambda stderr, file=screen, is_one=terminal: Console(file=file, force_terminal=is_one)
        )
        with common.progress("ingest"):
            report_progress("reading", "10 rows", 0.5)
        assert ("reading · 10 rows" in screen.getvalue()) == terminal
