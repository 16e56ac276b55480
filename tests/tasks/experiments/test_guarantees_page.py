"""The page of guarantees is what the registry says."""

from __future__ import annotations

from pathlib import Path

from dpalgos.registry import names
from tasks.experiments.registered import render

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guarantees.md"


def test_the_committed_page_is_the_registrys() -> None:
    message = "write it anew: unitball algorithms --markdown > docs/guarantees.md"
    assert PAGE.read_text() == render(), message


def test_every_system_and_part_has_a_section() -> None:
    text = render()
    for kind in ("systems", "projections", "trainers", "evaluators"):
        for name in names(kind):
            assert f"### {name}\n" in text
