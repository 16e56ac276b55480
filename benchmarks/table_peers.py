"""Other libraries' sides of ``benchmarks/tables.py``, each in a process in a separate environment.

``python benchmarks/table_peers.py SYSTEM TABLE.npz`` reads a line of JSON a cell (``epsilon``, ``delta``, ``seed``,
``scores``: where to write) and answers each with a line of JSON (``seconds``). What is written are scores of the test
rows: (m,) for two classes, above 0 for the second; (m, K) for more; (m,) predicted numbers. What each system
needs stands in ``benchmarks/peers-tables.txt``, what diffprivlib needs in ``benchmarks/peers.txt``.

Settings, and whom each guarantee is about:

* ``dp-ebm``: InterpretML's defaults, told the declared ranges. Neighbours differ by a row that is **added or removed**
  (the number of rows is taken as public all the same), which is the weaker relation: a replaced row is two of these.
  A category's list is learnt from the rows, which its guarantee leaves out.
* ``opacus``: one hidden layer of 64 tanh units on the declared columns, DP-SGD with Poisson sampling, one row **added
  or removed**, its PRV accountant. Steps and rate were the better of a few tried on
  held-out rows of Adult (epochs 3 to 20, rates 0.1 to 0.5, at epsilon 0.1 and 1).
* ``diffprivlib``: ``LogisticRegression`` (C = 100, objective perturbation; a class against the rest), pure epsilon, and
  ``LinearRegression`` of the encoded columns, both told the bounds; one row **replaced**.
* ``boosting``: scikit-learn's HistGradientBoosting with its defaults. No privacy.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import warnings
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

Cell = dict[str, Any]


def dp_ebm(table: Any, cell: Cell) -> np.ndarray:
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    train, test = (
        [*part["numbers"].T, *[column.astype(str).astype(object) for column in part["codes"].T]] for part in table.parts
    )
    types = ["continuous"] * len(table.ranges) + ["nominal"] * table.categories
    bounds = {j: tuple(map(float, ends)) for j, ends in enumerate(table.ranges)}
    given: dict[str, Any] = {
        "feature_types": types,
        "epsilon": cell["epsilon"],
        "delta": cell["delta"],
        "random_state": cell["seed"],
        "privacy_bounds": bounds,
        "n_jobs": 1,
    }
    rows, others = (_objects(columns) for columns in (train, test))
    if table.classes == 1:
        low, high = map(float, table.label_range)
        model = DPExplainableBoostingRegressor(**given, privacy_target_min=low, privacy_target_max=high)
        return model.fit(rows, table.parts[0]["labels"]).predict(others)
    model = DPExplainableBoostingClassifier(**given).fit(rows, table.parts[0]["labels"])
    return np.asarray(model.predict_proba(others))[:, 1] - 0.5


def _objects(columns: list[np.ndarray]) -> np.ndarray:
    held = np.empty((len(columns[0]), len(columns)), dtype=object)
    for j, column in enumerate(columns):
        held[:, j] = column
    return held


def boosting(table: Any, cell: Cell) -> np.ndarray:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    rows, others = (np.hstack([part["numbers"], part["codes"]]) for part in table.parts)
    given = {
        "random_state": cell["seed"],
        "categorical_features": [False] * len(table.ranges) + [True] * table.categories,
    }
    if table.classes == 1:
        return HistGradientBoostingRegressor(**given).fit(rows, table.parts[0]["labels"]).predict(others)
    model = HistGradientBoostingClassifier(**given).fit(rows, table.parts[0]["labels"])
    chances = _of_all(model.predict_proba(others), model.classes_, table.classes)
    return chances[:, 1] - 0.5 if table.classes == 2 else chances


def diffprivlib(table: Any, cell: Cell) -> np.ndarray:
    from diffprivlib.models import LinearRegression, LogisticRegression

    (rows, others), labels = (part["encoded"] for part in table.parts), table.parts[0]["labels"]
    given = {"epsilon": cell["epsilon"], "random_state": cell["seed"]}
    if table.classes == 1:
        bounds = tuple(map(float, table.label_range))
        model = LinearRegression(bounds_X=(-1.0, 1.0), bounds_y=bounds, **given)
        return model.fit(rows, labels).predict(others)
    model = LogisticRegression(C=100.0, data_norm=1.0, max_iter=300, **given).fit(rows, labels)
    if table.classes == 2:
        return model.decision_function(others)
    return _of_all(model.predict_proba(others), model.classes_, table.classes)


def _of_all(chances: np.ndarray, known: np.ndarray, classes: int) -> np.ndarray:
    """Return chances of all classes: one that is in no training row has none."""
    whole = np.zeros((len(chances), classes))
    whole[:, known] = chances
    return whole


def network(epsilon: float) -> dict[str, float]:
    """Return the settings of DP-SGD at a budget."""
    if epsilon < 0.3:
        return {"epochs": 8, "batch": 2048, "rate": 0.1, "clip": 1.0}
    return {"epochs": 20, "batch": 1024, "rate": 0.2, "clip": 1.0}


@functools.cache
def noise_multiplier(epsilon: float, delta: float, rate: float, epochs: int) -> float:
    """Return what Opacus calibrates by its PRV accountant: once for all seeds, since it takes longer than training."""
    from opacus.accountants.utils import get_noise_multiplier

    return get_noise_multiplier(
        target_epsilon=epsilon, target_delta=delta, sample_rate=rate, epochs=epochs, accountant="prv"
    )


def opacus(table: Any, cell: Cell) -> np.ndarray:
    import torch
    from opacus import PrivacyEngine
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(cell["seed"])
    torch.set_num_threads(1)
    chosen = {**network(cell["epsilon"]), **cell.get("settings", {})}
    (rows, others), labels = (_declared(table, part) for part in table.parts), table.parts[0]["labels"]
    low, high = map(float, table.label_range)
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    if table.classes == 1:
        target, loss = torch.tensor((labels - middle) / half, dtype=torch.float32)[:, None], nn.MSELoss()
    else:
        target, loss = torch.tensor(labels), nn.CrossEntropyLoss()
    model: Any = nn.Sequential(
        nn.Linear(rows.shape[1], 64), nn.Tanh(), nn.Linear(64, table.classes if table.classes > 1 else 1)
    )
    # Poisson sampling takes a whole number of steps an epoch.
    batch = int(min(chosen["batch"], max(64, len(rows) // 4)))
    loader = DataLoader(TensorDataset(rows, target), batch_size=batch)
    engine = PrivacyEngine(accountant="prv")
    optimiser = torch.optim.SGD(model.parameters(), lr=chosen["rate"], momentum=0.9)
    # As make_private_with_epsilon does it.
    noise = noise_multiplier(cell["epsilon"], cell["delta"], 1.0 / len(loader), int(chosen["epochs"]))
    model, optimiser, loader = engine.make_private(
        module=model,
        optimizer=optimiser,
        data_loader=loader,
        noise_multiplier=noise,
        max_grad_norm=chosen["clip"],
    )
    for _ in range(int(chosen["epochs"])):
        for some, wanted in loader:
            if len(some):
                optimiser.zero_grad()
                loss(model(some), wanted).backward()
                optimiser.step()
    with torch.no_grad():
        scores = model(others).numpy().astype(np.float64)
    if table.classes == 1:
        return scores[:, 0] * half + middle
    return scores[:, 1] - scores[:, 0] if table.classes == 2 else scores


def _declared(table: Any, part: Any) -> Any:
    import torch

    low, high = table.ranges[:, 0], table.ranges[:, 1]
    numbers = np.clip((part["numbers"] - low) / (high - low), 0.0, 1.0) * 2.0 - 1.0
    hot = [np.eye(size)[codes] for size, codes in zip(table.sizes, part["codes"].T, strict=True)]
    return torch.tensor(np.hstack([numbers, *hot]), dtype=torch.float32)


class Stored:
    """A table as ``benchmarks/tables.py`` stores it."""

    def __init__(self, path: str) -> None:
        held = np.load(path)
        self.parts = [
            {name: held[f"{name}_{part}"] for name in ("numbers", "codes", "labels", "encoded")}
            for part in ("train", "test")
        ]
        self.ranges, self.sizes = held["ranges"], held["sizes"].tolist()
        self.categories, self.classes = len(self.sizes), int(held["classes"])
        self.label_range = held["label_range"]


SYSTEMS = {"dp-ebm": dp_ebm, "boosting": boosting, "diffprivlib": diffprivlib, "opacus": opacus}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    system, stored = SYSTEMS[sys.argv[1]], Stored(sys.argv[2])
    for line in sys.stdin:
        wanted = json.loads(line)
        started = time.perf_counter()
        answer: dict[str, Any] = {}
        try:
            np.save(wanted["scores"], np.asarray(system(stored, wanted), dtype=np.float64))
        except Exception as error:  # what a library cannot do at a budget is a finding: it is told and recorded
            answer["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        print(json.dumps({**answer, "seconds": time.perf_counter() - started}), flush=True)
