"""Drawn rows that come back as public ones have the lineage of their synthesis; private rows keep what they have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from storage.errors import InputError, RefusedError
from storage.frames import frame_of
from storage.readers.in_memory import DeclaredFrame
from storage.recognition import BESIDE, LINEAGE, lineage_of_rows
from storage.refs import DatasetRef, Visibility
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.preparation.drawn import drawn_behind
from tasks.runtime.stores import open_catalog
from tests.support.tables import columns_of, table_of

KEY, OTHER = "5" * 64, "6" * 64


def declared() -> dict[str, Any]:
    return {"format_version": 1, "columns": columns_of("two")}


def drawn(name: str = "visits-synthetic", seed: int = 1, synthesis: str = KEY) -> pd.DataFrame:
    """A derived set of 400 rows, registered as a synthesis registers what it draws."""
    rows = table_of("two", 400, seed=seed)
    request = IngestRequest(name=name, visibility=Visibility.DERIVED)
    found = ingest(request, rows=DeclaredFrame(frame=frame_of(rows), schema=declared()), drawn={"synthesis": synthesis})
    assert (found.visibility, found.synthesis, found.private) == (Visibility.DERIVED, synthesis, False)
    return rows


def others(count: int) -> pd.DataFrame:
    return table_of("two", count, seed=99)


def brought_in(folder: Path, rows: pd.DataFrame, name: str = "mine", **given: Any) -> tuple[DatasetRef, list[str]]:
    """Ingest rows from a file, and return what was said of them."""
    told: list[str] = []
    rows.to_csv(folder / f"{name}.csv", index=False)
    (folder / "schema.yaml").write_text(yaml.safe_dump(declared(), sort_keys=False))
    given = {"visibility": Visibility.PUBLIC, **given}
    request = IngestRequest(
        name=name, format="csv", path=folder / f"{name}.csv", schema_path=folder / "schema.yaml", **given
    )
    return ingest(request, told.append), told


def shuffled(rows: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    return rows.sample(frac=1.0, random_state=seed)


@pytest.mark.parametrize(
    ("taken", "more", "copies", "recognised"),
    [
        (400, 0, 1, True),
        (30, 0, 1, True),
        (45, 355, 1, True),
        (35, 365, 1, False),
        (35, 300, 30, True),
        (0, 400, 1, None),
    ],
    ids=["all", "subset", "a tenth", "fewer", "copies of drawn rows", "none"],
)
def test_public_rows_of_which_a_tenth_were_drawn_have_their_lineage(
    root: Path, tmp_path: Path, taken: int, more: int, copies: int, recognised: bool | None
) -> None:
    """In any order, under any name, with other labels; the lineage is in the reference, and so in whatever is run."""
    rows = drawn()
    some = shuffled(
        pd.concat(
            [*[rows.iloc[200 : 200 + taken] if taken < 200 else rows.head(taken)] * copies, others(400).head(more)]
        )
    )
    some = some.assign(outcome=np.where(np.arange(len(some)) % 3 > 0, "ill", "well"))
    found, told = brought_in(tmp_path, some)
    assert found.visibility is (Visibility.DERIVED if recognised else Visibility.PUBLIC)
    assert found.synthesis == (KEY if recognised else "")
    assert find_dataset("mine") == found
    said = [line for line in told if "visits-synthetic" in line]
    assert len(said) == (0 if recognised is None else 1)
    assert ("recognised" in open_catalog().get("mine").manifest) == bool(recognised)
    if recognised:
        assert KEY[:12] in said[0]
        assert "--not-derived" in said[0]
    elif recognised is False:
        assert "10%" in said[0]


def test_copies_of_other_rows_do_not_hide_drawn_ones(root: Path, tmp_path: Path) -> None:
    rows = drawn()
    found, _ = brought_in(tmp_path, pd.concat([rows.head(20), *[others(40)] * 25]))
    assert found.synthesis == KEY


def test_a_declaration_overrides_and_is_recorded(root: Path, tmp_path: Path) -> None:
    rows = drawn()
    found, told = brought_in(tmp_path, rows, not_derived="a census of 2011")
    assert found.synthesis == ""
    assert told == []
    recorded = open_catalog().get("mine").manifest["not_derived"]
    assert recorded["reason"] == "a census of 2011"
    assert [*recorded["shares"].values()] == [1.0]
    # The same rows without it are another version, which has the lineage.
    again, _ = brought_in(tmp_path, rows)
    assert (again.synthesis, again.version != found.version) == (KEY, True)


def test_private_rows_stay_private_whatever_they_equal(root: Path, tmp_path: Path) -> None:
    rows = drawn()
    cap = {"visibility": Visibility.PRIVATE, "epsilon_cap": 1.0, "delta_cap": 1e-6}
    found, told = brought_in(tmp_path, rows, name="ours", **cap)
    assert (found.private, found.account, found.synthesis, told) == (True, "ours", "", [])
    with pytest.raises(InputError, match="--not-derived"):
        brought_in(tmp_path, rows, name="theirs", not_derived="a reason", **cap)
    # What was private before is refused as public, and no declaration changes that.
    for given in ({}, {"not_derived": "a reason"}):
        with pytest.raises(RefusedError, match="private rows"):
            brought_in(tmp_path, rows, name="open", **given)


def test_files_and_frames_carry_their_lineage(root: Path, tmp_path: Path) -> None:
    """Whatever the cells hold: none of these rows is among drawn ones. Private rows keep what they have."""
    rows, lineage = others(60), {"synthesis": OTHER, "dataset": "visits"}
    schema = declared()
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    table = pa.Table.from_pandas(rows.astype(str), preserve_index=False)
    pq.write_table(table.replace_schema_metadata({LINEAGE: json.dumps(lineage)}), tmp_path / "rows.parquet")
    (tmp_path / f"beside.csv{BESIDE}").write_text(json.dumps(lineage))
    file = {"format": "parquet", "path": tmp_path / "rows.parquet", "schema_path": tmp_path / "schema.yaml"}
    rows.attrs |= lineage

    def frame(name: str, **given: Any) -> DatasetRef:
        brought = DeclaredFrame(frame=frame_of(rows), schema=schema, lineage=lineage_of_rows(rows))
        return ingest(IngestRequest(name=name, **given), rows=brought)

    public = {"visibility": Visibility.PUBLIC}
    told: list[str] = []
    for found in (
        ingest(IngestRequest(name="parquet", **file, **public), told.append),
        brought_in(tmp_path, rows, name="beside")[0],
        frame("frame", **public),
    ):
        assert (found.visibility, found.synthesis) == (Visibility.DERIVED, OTHER)
        with pytest.raises(RefusedError, match=OTHER[:12]):
            drawn_behind([found])
    assert "not stored in this root" in told[-1]
    declared_so = ingest(IngestRequest(name="other", not_derived="made by hand", **file, **public))
    assert (declared_so.visibility, declared_so.synthesis) == (Visibility.PUBLIC, "")
    assert open_catalog().get("other").manifest["not_derived"]["lineage"] == OTHER
    drawn()
    (tmp_path / f"both.csv{BESIDE}").write_text(json.dumps(lineage))
    with pytest.raises(InputError, match="2 syntheses"):
        brought_in(tmp_path, table_of("two", 400, seed=1), name="both")
    (tmp_path / f"broken.csv{BESIDE}").write_text('{"synthesis": "abc"}')
    with pytest.raises(InputError, match=r"broken\.csv"):
        brought_in(tmp_path, rows, name="broken")
    private = frame("ours", epsilon_cap=1.0, delta_cap=1e-6)
    assert (private.private, private.synthesis) == (True, "")


def test_rows_of_several_syntheses_are_refused(root: Path, tmp_path: Path) -> None:
    first, second = drawn(), drawn("stays-synthetic", seed=2, synthesis=OTHER)
    with pytest.raises(InputError, match="2 syntheses"):
        brought_in(tmp_path, pd.concat([first.head(50), second.head(50)]))
    # Of one synthesis drawn twice there is one lineage.
    third = drawn("visits-again", seed=3)
    found, _ = brought_in(tmp_path, pd.concat([first.head(50), third.head(50)]))
    assert found.synthesis == KEY


def test_without_derived_sets_nothing_is_compared(root: Path, tmp_path: Path) -> None:
    found, told = brought_in(tmp_path, others(60))
    assert (found.synthesis, told) == ("", [])
    assert "synthesis" not in found.model_dump()
    with pytest.raises(InputError, match="derived"):
        brought_in(tmp_path, others(60), name="made", visibility=Visibility.DERIVED)
