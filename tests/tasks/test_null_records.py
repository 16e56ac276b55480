"""Rows that a schema rejects, through the door: private ones are counted, and nothing of them is in a release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from storage.refs import Visibility
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tests.support.chains import prepare
from tests.support.data import SCHEMA
from tests.support.plans import planned

GOOD = [f"0.{place % 10},{1 - place % 2},{'yes' if place % 3 else 'no'}" for place in range(60)]


def bring_in(folder: Path, name: str, lines: list[str], visibility: Visibility) -> None:
    (folder / "schema.yaml").write_text(SCHEMA)
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    private: dict[str, Any] = {}
    if visibility is Visibility.PRIVATE:
        private = {"epsilon_cap": 3.0, "delta_cap": 1e-4, "account": "people"}
    ingest(
        IngestRequest(
            name=name,
            format="csv",
            path=folder / f"{name}.csv",
            schema_path=folder / "schema.yaml",
            on_violation="drop",
            visibility=visibility,
            **private,
        )
    )


def public_facts(name: str) -> list[Any]:
    plan = prepare(name, projection="analyze-gauss", trainer="sufficient-statistics", dimension=1).plan
    return [(release.setting, release.guarantee()) for release in plan.releases]


def test_whether_a_private_row_is_rejected_shows_in_no_public_fact(root: Path, tmp_path: Path) -> None:
    """The neighbours of an attack on the number of rows: one row inside the schema, or out of it."""
    bring_in(tmp_path, "whole", GOOD, Visibility.PRIVATE)
    bring_in(tmp_path, "rejected", [*GOOD[:-1], "7,7,no"], Visibility.PRIVATE)
    assert find_dataset("whole").rows == find_dataset("rejected").rows == len(GOOD)
    assert public_facts("whole") == public_facts("rejected")


def test_public_rows_are_left_out_and_tell_so(root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path, "open", [*GOOD[:-1], "7,7,no"], Visibility.PUBLIC)
    assert find_dataset("open").rows == len(GOOD) - 1


def test_a_private_set_with_null_records_is_trained_on_and_evaluated(root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path, "clinic", [*GOOD, *["7,7,no"] * 20], Visibility.PRIVATE)
    made = prepare("clinic", algorithm="noisy-gd", neighbours="replace-special").make()
    assert made


def test_the_plans_of_both_relations_differ() -> None:
    one, other = (planned(algorithm="noisy-gd", neighbours=name) for name in ("replace-one", "replace-special"))
    assert {release.key for release in one.releases}.isdisjoint(release.key for release in other.releases)
