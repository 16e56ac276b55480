"""Names listed in help and on pages: nothing registered is missing, nothing that is gone is named."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from deployments.cli.experiments import audit
from deployments.cli.results import algorithms
from dpalgos.registry import names
from dpalgos.secure.rounds import Stage
from dpalgos.trust.model import SecureAggregation
from storage.columns.types import TYPES, parse_column
from storage.source import reader_names
from tasks.auditing.subjects import KINDS
from tasks.datasets.request import IngestRequest
from tasks.experiments.registered import describe_all
from tasks.planning.configuration import SecureSettings, TrainingConfig
from tasks.runtime.ending import EndState
from tasks.runtime.events import Event

DOCS = Path(__file__).parents[2] / "docs"


def words(text: str | None) -> set[str]:
    return set(re.findall(r"[\w.-]*\w", text or ""))


@pytest.mark.parametrize(
    ("field", "kind", "besides"),
    [("trust", "trusts", set()), ("partition", "partitions", {"own"}), ("normalisation", "normalisations", set())],
)
def test_the_options_with_few_values_name_them_all(field: str, kind: str, besides: set[str]) -> None:
    assert {*names(kind), *besides} <= words(TrainingConfig.model_fields[field].description)


def _help(command: Callable[..., None], name: str) -> set[str]:
    (option,) = inspect.signature(command).parameters[name].annotation.__metadata__
    return words(option.help)


def test_the_formats_of_readers() -> None:
    """The help said that an unknown name lists all, and the command named the nearest."""
    assert set(reader_names()) - {"table-draft"} <= words(IngestRequest.model_fields["format"].description)


def test_the_kinds_of_what_is_registered() -> None:
    assert {entry["kind"] for entry in describe_all()} <= _help(algorithms, "kind")
    assert set(KINDS) <= _help(audit, "kind")


def test_the_stages_of_a_secure_sum() -> None:
    assert {str(stage) for stage in Stage} <= words(SecureSettings.model_fields["absent"].description)
    for stage in Stage:
        assert SecureSettings(absent=(f"2:{stage}",)).absent == SecureAggregation(absent=(f"2:{stage}",)).absent


@pytest.mark.parametrize(
    "listed", [[*map(str, Event)], [*map(str, EndState)], TYPES], ids=["events", "end states", "column types"]
)
def test_some_page_names_each(listed: Iterable[str]) -> None:
    parse_column(1, {"name": "age", "type": "numeric", "range": [0, 99]}, "schema")
    pages = words(" ".join(page.read_text("utf-8") for page in DOCS.glob("*.md")))
    assert listed
    assert set(listed) <= pages
