"""The page of guarantees is what the registry says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from dpalgos.registry import lookup, names
from dpalgos.systems.system import System
from tasks.experiments.registered import PARTS, example_guarantee, render

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guarantees.md"


def test_the_committed_page_is_the_registrys() -> None:
    message = "write it anew: unitball algorithms --markdown > docs/guarantees.md"
    assert PAGE.read_text() == render(), message


def test_every_system_and_part_has_a_section() -> None:
    text = render()
    for kind in ("systems", "projections", "trainers", "evaluators"):
        for name in names(kind):
            assert f"### {name}\n" in text


@pytest.mark.parametrize("kind", PARTS)
def test_each_part_leads_to_the_docstring_that_has_its_guarantee(kind: str) -> None:
    """The page says what is proved; the argument is in the class that it links to, and nowhere else."""
    text = render()
    for name in names(kind):
        cls = lookup(kind, name)
        section = text.partition(f'<a id="{kind}-{name}"></a>')[2].partition("\n### ")[2].partition("\n### ")[0]
        assert f"](../{cls.__module__.replace('.', '/')}.py#{cls.__qualname__})" in section, name
        assert re.search(r"^Guarantee\n-+\n\S", inspect.getdoc(cls) or "", flags=re.MULTILINE), name


def test_what_is_proved_of_a_system_is_said_of_each_trust_model() -> None:
    """Of `ag-dpsvm` the page said the curator's exact μ-GDP alone; a party's objective perturbation is idealised."""
    text = render()
    for name in names("systems"):
        system: System = lookup("systems", name)
        section = text.partition("## Systems")[2].partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        lines = re.findall(r"^- \*\*Under (.+?):\*\* (.+)$", section, flags=re.MULTILINE)
        said = {trust: line for trusts, line in lines for trust in trusts.split(", ")}
        assert said.keys() == {str(trust) for trust in system.supported()}, name
        for trust, arrangement in system.arrangements.items():
            guarantee = example_guarantee("trainers", arrangement.trainer.name, trust)
            assert (str(guarantee.numerics) in said[str(trust)]) or "nothing proved" in said[str(trust)], (name, trust)
    local = re.search(r"\n### ag-dpsvm\n.*?\*\*Under local:\*\* (.*?)\n", text, flags=re.DOTALL)
    assert local is not None
    assert local[1].startswith("μ-GDP, exact and ε-DP, idealised")
