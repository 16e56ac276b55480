"""A notebook's kernel: a process of its own that fits estimators, and may be killed at a step of the door."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unitball
from tasks.release import checkpoints
from tests.support import forks
from unitball import BudgetError, PrivateClassifier

# What a fit imports: two seconds of each child's.
forks.preload("flows.federated_training")

BOUNDS, CLASSES = (-3.0, 3.0), ["ill", "well"]
OPENING: dict[str, Any] = {"epsilon": 1.6, "delta": 1e-6}


def drawn(rows: Sequence[int] | None = None, seed: int = 5) -> tuple[Any, Any]:
    """Return 240 rows of two classes, or some of them in the order that is given."""
    random = np.random.default_rng(seed)
    labels = np.arange(240) % 2
    features = random.normal(size=(240, 3)) + 1.5 * (2 * labels[:, None] - 1)
    chosen = np.arange(240) if rows is None else np.asarray(rows)
    return features[chosen], np.where(labels, "ill", "well")[chosen]


class Kernel:
    """A child process that opens the account and carries out what it is asked, in order.

    It is forked from a process that has the imports of a notebook behind it, and nothing else.

    Parameters
    ----------
    *asked : mapping
        ``{"given": parameters, "rows": positions, "seed": int, "kill": step}``.
    root : Path
    folder : Path, optional
        Where it starts.
    """

    def __init__(self, *asked: Mapping[str, Any], root: Path, folder: Path | None = None) -> None:
        self._receiver, sender = forks.Pipe(duplex=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("UNITBALL_ROOT", str(root))
            patch.chdir(folder or Path.cwd())
            self._child = forks.start(_work, sender, asked)
        sender.close()

    def answers(self) -> list[dict[str, Any]]:
        """Wait for it, and return what came of each; ``err`` is what ended it before."""
        found: list[dict[str, Any]] = []
        self.err = ""
        try:
            while not self.err:
                answer = self._receiver.recv()
                if isinstance(answer, str):
                    self.err = answer
                else:
                    found.append(answer)
        except EOFError:
            pass
        self._child.join()
        self.code = self._child.exitcode
        return found


def _killed(at: str, step: str) -> None:
    if step == at:
        os.kill(os.getpid(), signal.SIGKILL)


def _work(sender: Any, asked: Sequence[Mapping[str, Any]]) -> None:
    try:
        unitball.open_account("clinic", **OPENING)
    except Exception as error:
        sender.send(str(error))
        return
    for kernel in asked:
        if kernel.get("kill"):
            checkpoints.reached = partial(_killed, kernel["kill"])
        model = PrivateClassifier(
            **{"epsilon": 1.0, "account": "clinic", "bounds": BOUNDS, "classes": CLASSES, **kernel.get("given", {})}
        )
        try:
            model.fit(*drawn(kernel.get("rows"), kernel.get("seed", 5)))
        except (BudgetError, Exception) as error:
            sender.send({"error": str(error), "kind": type(error).__name__})
        else:
            sender.send({"coef": model.coef_.tolist(), "said": str(model.guarantee_)})
