"""The ways of ε, of a shard and of a release through the real command, as docs/where-things-are.md has them.

Nothing is replaced: where something arrives, the files on the stack are noted, and it is done as ever. A release is
made in a thread of its own, so that its way is what stands on the stacks of several threads together. How often a plan
is made is counted where it is made: once for a run, whatever the rows are.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpalgos.accounting import costs
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.partitioning import Even
from dpalgos.trainers.gradient_descent import NoisyGradientDescent
from flows import federated_training
from storage.ledger.ledger import Ledger
from storage.refs import Visibility
from storage.releases import ReleaseStore
from tasks.accounts.terms import gaussian_delta
from tasks.datasets import registration
from tasks.datasets.request import IngestRequest
from tasks.planning import plans
from tasks.preparation import nightly_rows, partitions, prepare
from tasks.release import preflight, seen_rows
from tests.support.command_line import CommandLine

ROWS, DELTA = 300, 1e-4
REPOSITORY = Path(__file__).parents[2]
PACKAGES = {"deployments", "flows", "tasks", "dpalgos", "storage"}
# What every command, step and file passes, whatever it is about: it is handed no parameter, or any.
MACHINERY = {
    *("deployments/cli/entry_point", "deployments/cli/common", "tasks/runtime/steps", "tasks/planning/graph"),
    # What is looked at on the way is handed to it as a function.
    "tasks/planning/parts",
}
PLACES: dict[str, list[tuple[Any, str]]] = {
    "epsilon": [
        (costs, "mu_from_epsilon_delta"),
        (RoundedGaussian, "__post_init__"),
        (RoundedGaussian, "sample"),
    ],
    "a shard": [
        (Even, "assign"),
        (partitions, "write_shards"),
        (seen_rows, "open_shard"),
        (NoisyGradientDescent, "contribution"),
    ],
    "a release": [(Ledger, "charge"), (Ledger, "record_output"), (ReleaseStore, "write")],
}


def followed(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Note whose frames are on the stack where something arrives."""
    ways: dict[str, set[str]] = {what: set() for what in PLACES}

    def noting(what: str, called: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            for frame, _ in traceback.walk_stack(sys._getframe(1)):
                path = Path(frame.f_code.co_filename)
                if path.is_relative_to(REPOSITORY):
                    ways[what].add(str(path.relative_to(REPOSITORY).with_suffix("")))
            return called(*given, **named)

        return call

    for what, places in PLACES.items():
        for owner, name in places:
            monkeypatch.setattr(owner, name, noting(what, getattr(owner, name)))
    return ways


# What a plan is made by, each looked up where it is called: all of them, so that a plan made beside the others counts.
PLANNING: list[tuple[Any, str]] = [
    *((prepare, name) for name in ("check_parts", "prepare_over", "prepare_divided", "draft_run")),
    *((prepare, name) for name in ("plan_nights", "plan_night", "record_tonight")),
    (plans.Draft, "fitted"),
    (nightly_rows, "record_horizon"),
    (nightly_rows, "fix_terms"),
]
A_RUN = {"check_parts": 1, "prepare_over": 1, "prepare_divided": 1, "draft_run": 1, "fitted": 1}
# Its terms are fixed with the first night.
FIRST_NIGHT = {
    "check_parts": 1,
    "prepare_over": 1,
    "plan_nights": 1,
    "plan_night": 1,
    "fix_terms": 1,
    "record_tonight": 1,
    "record_horizon": 1,
}
LATER_NIGHT = {name: count for name, count in FIRST_NIGHT.items() if name != "fix_terms"}


@pytest.fixture
def planning(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls that make or record a plan."""
    calls: Counter[str] = Counter()

    def counting(name: str, called: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            calls[name] += 1
            return called(*given, **named)

        return call

    for owner, name in PLANNING:
        monkeypatch.setattr(owner, name, counting(name, getattr(owner, name)))
    return calls


def test_three_ways(unitball: CommandLine, planning: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ways = followed(monkeypatch)
    algorithm = ["--algorithm", "noisy-gd", "--param", "iterations=1"]
    unitball.succeeds("train", "--dataset", "iris", "--epsilon", 1, *algorithm, "--parties", 2, "--no-evaluation")
    page, found = (REPOSITORY / "docs" / "where-things-are.md").read_text(), {}
    for what, files in ways.items():
        mine = {name for name in files if name.partition("/")[0] in PACKAGES} - MACHINERY
        print(what, len(mine), ", ".join(sorted(mine)))
        line = re.search(rf"^- \*\*{what},.*$", page, re.MULTILINE)
        written = set(re.findall(r"`([a-z_/]+)`", line.group(0))) if line else set()
        found[what] = (sorted(mine - written), sorted(written - mine))
    assert all(pair == ([], []) for pair in found.values()), found
    # Looked at before the engine starts and carried out after: one plan, made once.
    assert planning == A_RUN


@pytest.mark.parametrize("kind", ["table", "people"])
def test_a_private_run_without_a_delta_is_planned_once(
    kind: str, called: CommandLine, planning: Counter[str], tmp_path: Path
) -> None:
    """Its delta follows from the draft whose budgets are then fitted; it pays for counts of its own columns."""
    given = ["--dataset", kind, "--epsilon", 1, "--no-evaluation", "--param", "trainer.iterations=1"]
    _ingest(tmp_path, kind)
    result = called.succeeds("train", *given)
    assert result["identity"]["target"][1] == gaussian_delta(DELTA)
    assert planning == A_RUN
    # Repeated, it is planned once more, and nothing is charged.
    planning.clear()
    assert called.succeeds("train", *given)["releases"] == result["releases"]
    assert planning == A_RUN


def test_a_described_table_is_planned_once(called: CommandLine, planning: Counter[str], tmp_path: Path) -> None:
    """Of the plans over none, one and two released histograms, the newest is looked at first."""
    _ingest(tmp_path, "table")
    for epsilon in (0.1, 0.2):
        called.succeeds("describe", "table", "--epsilon", epsilon)
    planning.clear()
    given = ["--dataset", "table", "--epsilon", 1, "--no-evaluation", "--param", "trainer.iterations=1"]
    result = called.succeeds("train", *given)
    assert planning == A_RUN
    planning.clear()
    assert called.succeeds("train", *given)["releases"] == result["releases"]
    assert planning == A_RUN


def test_a_night_is_planned_once_and_recorded_once(called: CommandLine, planning: Counter[str], tmp_path: Path) -> None:
    given = ["--dataset", "table", "--epsilon", 1, "--horizon", 3, "--trust", "central", "--no-evaluation"]
    for count, expected in ((ROWS, FIRST_NIGHT), (ROWS + 50, LATER_NIGHT)):
        _ingest(tmp_path, "table", count)
        planning.clear()
        assert called.succeeds("train", *given)["identity"]["target"][1] == gaussian_delta(DELTA)
        assert planning == expected


def test_a_plan_that_is_made_again_is_noticed(
    called: CommandLine, planning: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutants: a flow that plans what was planned before it started, and a command that looks twice."""
    given = ["train", "--dataset", "iris", "--epsilon", 1, "--algorithm", "noisy-gd", "--no-evaluation"]
    with monkeypatch.context() as patch:
        patch.setattr(federated_training, "is_current", lambda prepared: False)
        called.succeeds(*given, "--param", "iterations=1")
    assert planning == dict.fromkeys(A_RUN, 2)
    planning.clear()
    with monkeypatch.context() as patch:
        feasible = preflight.require_feasible
        patch.setattr(preflight, "require_feasible", lambda config: (feasible(config), feasible(config))[0])
        called.succeeds(*given, "--param", "iterations=2")
    assert planning == dict.fromkeys(A_RUN, 2)


def _ingest(folder: Path, kind: str, count: int = ROWS) -> None:
    """Bring a private table in; people have one to three rows each."""
    columns: list[dict[str, object]] = [
        {"name": "age", "type": "numeric", "range": [0, 100]},
        {"name": "sick", "type": "label", "classes": ["no", "yes"]},
    ]
    people = [{"name": "patient", "type": "person", "rows_per_person": 3}] if kind == "people" else []
    (folder / "schema.yaml").write_text(yaml.safe_dump({"format_version": 1, "columns": [*people, *columns]}))
    random = np.random.default_rng(0)
    ages = random.uniform(0, 100, count)
    lines = ["patient,age,sick" if people else "age,sick"]
    for number, age in enumerate(ages):
        lines.append(f"{f'p{number // 3},' if people else ''}{age:.6f},{'yes' if age > 50 else 'no'}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    registration.ingest(
        IngestRequest(
            name=kind,
            format="csv",
            path=folder / "rows.csv",
            schema_path=folder / "schema.yaml",
            visibility=Visibility.PRIVATE,
            epsilon_cap=10.0,
            delta_cap=DELTA,
        )
    )
