"""A small table with a column of every type, and models of it: of two classes, of three, and of a number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import yaml
from sklearn.pipeline import Pipeline

from dpalgos.models import predicted_classes
from dpalgos.rows import Floats
from flows.federated_training import chain_inline
from storage.refs import Visibility
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.tracking.results import Chained

LABELS: dict[str, dict[str, object]] = {
    "two": {"classes": ["well", "ill"]},
    "three": {"classes": ["well", "ill", "unclear"]},
    "real": {"range": [0, 100]},
}
ROWS = {"two": 1200, "three": 1200, "real": 2000}


def columns_of(label: str) -> list[dict[str, object]]:
    return [
        {"name": "age", "type": "numeric", "range": [18, 100]},
        {"name": "income", "type": "numeric", "range": [0, 1_000_000], "scale": "log"},
        {"name": "dose", "type": "numeric", "ordered": ["low", "middle", "high"]},
        {"name": "admitted", "type": "date", "range": ["2020-01-01", "2024-12-31"]},
        {"name": "ward", "type": "category", "values": ["north", "south", "east", "west"]},
        {"name": "doctor", "type": "category", "hash": 8},
        {"name": "smoker", "type": "boolean"},
        {"name": "pressure", "type": "numeric", "range": [60, 240], "missing": "indicator"},
        {"name": "outcome", "type": "label", **LABELS[label]},
    ]


def table_of(label: str, count: int, seed: int = 0) -> pd.DataFrame:
    """Return rows whose label depends on the square of an age and on a ward; one ward is rare."""
    random = np.random.default_rng(seed)
    age = random.integers(18, 101, count)
    score = ((age - 59) / 41.0) ** 2 + 0.1 * random.normal(size=count)
    ward = random.choice(["north", "south", "east"], count, p=[0.5, 0.3, 0.2]).astype(object)
    ward[0] = "west"
    score = score + 0.5 * (ward == "north")
    outcome: Any = np.where(score > 0.5, "ill", "well")
    if label == "three":
        outcome = np.where(score > 0.9, "unclear", outcome)
    elif label == "real":
        outcome = np.clip(2 + 40 * score, 0, 100).round(3)
    pressure = random.integers(60, 241, count).astype(object)
    pressure[random.random(count) < 0.2] = ""
    return pd.DataFrame(
        {
            "age": age,
            "income": np.exp(random.uniform(0, 13, count)).round(2),
            "dose": random.choice(["low", "middle", "high"], count),
            "admitted": (np.datetime64("2020-01-01") + random.integers(0, 1800, count)).astype(str),
            "ward": ward,
            "doctor": [f"Dr {number}" for number in random.integers(0, 40, count)],
            "smoker": random.choice(["yes", "no"], count),
            "pressure": pressure,
            "outcome": outcome,
        }
    )


def train_on_table(
    folder: Path, label: str = "two", *, visits: int = 1, declared: str | None = None, **config: object
) -> tuple[TrainingConfig, Chained]:
    """Bring such a table in as private rows, and train on it without an engine; of people with several visits each.

    ``declared`` is the schema's positive class.
    """
    columns, rows = columns_of(label), table_of(label, ROWS[label])
    columns[-1] |= {} if declared is None else {"positive": declared}
    if visits > 1:
        columns.insert(0, {"name": "patient", "type": "person", "rows_per_person": visits})
        rows["patient"] = [f"P{row // visits}" for row in range(len(rows))]
    (folder / "visits.yaml").write_text(yaml.safe_dump({"format_version": 1, "columns": columns}, sort_keys=False))
    rows.to_csv(folder / "visits.csv", index=False)
    ingest(
        IngestRequest(
            name="visits",
            format="csv",
            path=folder / "visits.csv",
            schema_path=folder / "visits.yaml",
            visibility=Visibility.PRIVATE,
            epsilon_cap=60.0,
            delta_cap=1e-5,
        )
    )
    given = {
        "algorithm": "unitball",
        "epsilon": 20.0,
        "parties": 1,
        "evaluation": False,
        "parameters": {"trainer.iterations": 20},
        **config,
    }
    asked = TrainingConfig.model_validate({"dataset": "visits", **given})
    return asked, chain_inline(asked)


@dataclass(frozen=True)
class Trained:
    """A run over a small table, its model as it is logged, and what its releases say of new rows."""

    root: Path
    label: str
    pipeline: Pipeline
    classes: tuple[str, ...]
    path: list[Any]
    rows: pd.DataFrame
    run_key: str
    name: str

    @property
    def features(self) -> Floats:
        """The encoded rows, as they are stored: in single precision."""
        return np.asarray(self.pipeline[0].transform(self.rows).astype(np.float32).astype(np.float64))

    def seen(self) -> Floats:
        """What the door's model sees of the encoded rows."""
        seen = self.features
        for one in self.path[:-1]:
            seen = one.apply(seen)
        return seen

    def released(self) -> list[Any]:
        """The predictions of the releases themselves, numbers within the declared range."""
        scores = self.path[-1].apply(self.seen())
        if self.classes:
            return [self.classes[place] for place in predicted_classes(scores)]
        low, high = cast(list[float], LABELS[self.label]["range"])
        return list(np.clip(scores[:, 0], low, high).tolist())
