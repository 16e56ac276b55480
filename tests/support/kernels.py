"""A notebook's kernel: a Python of its own that fits estimators, and may be killed at a step of the door."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.processes import clean_environment

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
    """A child process that carries out what it is asked, in order.

    Parameters
    ----------
    *asked : mapping
        Of :func:`main`.
    root : Path
    folder : Path, optional
        Where it starts.
    """

    def __init__(self, *asked: Mapping[str, Any], root: Path, folder: Path | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.kernels"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=clean_environment(UNITBALL_ROOT=str(root)),
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked))
        self._process.stdin.close()
        self._process.stdin = None

    def answers(self) -> list[dict[str, Any]]:
        """Wait for it, and return what came of each."""
        out, self.err = self._process.communicate()
        self.code = self._process.returncode
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def _killed(at: str, step: str) -> None:
    if step == at:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Answer a list of ``{"given": parameters, "rows": positions, "seed": int, "kill": step}``, a line each."""
    asked = json.loads(sys.stdin.read())
    import unitball
    from tasks.release import checkpoints

    unitball.open_account("clinic", **OPENING)
    for one in asked:
        if one.get("kill"):
            checkpoints.reached = partial(_killed, one["kill"])
        model = unitball.PrivateClassifier(
            **{"epsilon": 1.0, "account": "clinic", "bounds": BOUNDS, "classes": CLASSES, **one.get("given", {})}
        )
        try:
            model.fit(*drawn(one.get("rows"), one.get("seed", 5)))
        except (unitball.BudgetError, Exception) as error:
            answer: dict[str, Any] = {"error": str(error), "kind": type(error).__name__}
        else:
            answer = {"coef": model.coef_.tolist(), "said": str(model.guarantee_)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
