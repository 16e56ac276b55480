"""The ways of ε, of a shard and of a release through the real command, as docs/design.md has them.

Nothing is replaced: where something arrives, the files on the stack are noted, and it is done as ever. A release is
made in a thread of its own, so that its way is what stands on the stacks of several threads together.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpalgos.accounting import costs
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.partitioning import Even
from dpalgos.trainers.gradient_descent import NoisyGradientDescent
from storage.ledger.ledger import Ledger
from storage.releases import ReleaseStore
from tasks.preparation import partitions, prepare
from tasks.release import seen_rows
from tests.support.command_line import CommandLine

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


def followed(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, set[str]], Counter[str]]:
    """Note whose frames are on the stack where something arrives, and how often each of these functions is called."""
    ways: dict[str, set[str]] = {what: set() for what in PLACES}
    calls: Counter[str] = Counter()

    def noting(what: str | None, name: str, called: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            calls[name] += 1
            for frame, _ in traceback.walk_stack(sys._getframe(1)) if what is not None else ():
                path = Path(frame.f_code.co_filename)
                if path.is_relative_to(REPOSITORY):
                    ways[str(what)].add(str(path.relative_to(REPOSITORY).with_suffix("")))
            return called(*given, **named)

        return call

    for what, places in PLACES.items():
        for owner, name in places:
            monkeypatch.setattr(owner, name, noting(what, name, getattr(owner, name)))
    for name in ("plan_run", "with_default_delta"):
        monkeypatch.setattr(prepare, name, noting(None, name, getattr(prepare, name)))
    return ways, calls


def test_three_ways(unitball: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    ways, calls = followed(monkeypatch)
    algorithm = ["--algorithm", "noisy-gd", "--param", "iterations=1"]
    unitball.succeeds("train", "--dataset", "iris", "--epsilon", 1, *algorithm, "--parties", 2, "--no-evaluation")
    page, found = (REPOSITORY / "docs" / "design.md").read_text(), {}
    for what, files in ways.items():
        mine = {name for name in files if name.partition("/")[0] in PACKAGES} - MACHINERY
        print(what, len(mine), ", ".join(sorted(mine)))
        line = re.search(rf"^- \*\*{what},.*$", page, re.MULTILINE)
        written = set(re.findall(r"`([a-z_/]+)`", line.group(0))) if line else set()
        found[what] = (sorted(mine - written), sorted(written - mine))
    assert all(pair == ([], []) for pair in found.values()), found
    # Looked at before the engine starts and carried out after: one plan, made once.
    assert (calls["plan_run"], calls["with_default_delta"]) == (1, 1)
