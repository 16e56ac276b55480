"""The walk of ε: the files on the stacks between the command and the draw, of which docs/design.md speaks."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import deployments.cli.training as command
from deployments.cli import main
from dpalgos.accounting import costs
from dpalgos.mechanisms.distributions import RoundedGaussian
from flows.federated_training import chain_inline
from tasks.planning.configuration import TrainingConfig

REPOSITORY = Path(__file__).parents[2]
PACKAGES = {"deployments", "flows", "tasks", "dpalgos", "storage"}
# It starts whatever command there is, and is handed no parameter.
STARTING = {"deployments/cli/entry_point"}
# What holds it meanwhile has returned by then, or runs within the compiled frames of pydantic.
HOLDING = {"tasks/planning/configuration", "tasks/planning/plans"}
EPSILON = {
    "deployments/cli/common",
    "deployments/cli/training",
    "tasks/planning/configuration",
    "flows/federated_training",
    "dpalgos/accounting/costs",
    "tasks/planning/plans",
    "tasks/steps",
    "tasks/release/door",
    "dpalgos/algorithms",
    "dpalgos/trainers/gradient_descent",
    "dpalgos/mechanisms/distributions",
}


def walked(monkeypatch: pytest.MonkeyPatch, *places: tuple[object, str]) -> set[str]:
    """Collect the files of ours on the stack wherever one of these functions is called."""
    files: set[str] = set()

    def noting(called: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            for frame, _ in traceback.walk_stack(sys._getframe(1)):
                path = Path(frame.f_code.co_filename)
                if path.is_relative_to(REPOSITORY):
                    files.add(str(path.relative_to(REPOSITORY).with_suffix("")))
            return called(*given, **named)

        return call

    for owner, name in places:
        monkeypatch.setattr(owner, name, noting(getattr(owner, name)))
    return files


@pytest.mark.usefixtures("root")
def test_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(configs: Sequence[TrainingConfig], *_: object) -> list[Any]:
        return [chain_inline(configs[0]).result]

    monkeypatch.setattr(command, "_run", run)
    files = walked(
        monkeypatch,
        (costs, "mu_from_epsilon_delta"),
        (RoundedGaussian, "__post_init__"),
        (RoundedGaussian, "sample"),
    )
    budget, algorithm = ["--epsilon", "1"], ["--algorithm", "noisy-gd", "--param", "iterations=1"]
    with pytest.raises(SystemExit) as ended:
        main(["train", *budget, *algorithm, "--parties", "2", "--json"])
    assert not ended.value.code
    walk = {name for name in files if name.partition("/")[0] in PACKAGES}
    assert walk - STARTING | HOLDING == EPSILON
