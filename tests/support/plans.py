"""Plans for tests, over references that need not be stored: planning looks at no row."""

from __future__ import annotations

from typing import Any

from storage.refs import DatasetRef, Labels, ShardRef, Visibility
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.preparation.prepare import AllRows, prepare_over


def dataset_of(classes: int = 3, dimension: int = 64, rows: int = 1000, **changes: Any) -> DatasetRef:
    fields: dict[str, Any] = {
        "name": "made-up",
        "version": "0123456789abcdef",
        "account": "made-up",
        "visibility": Visibility.PUBLIC,
        "rows": rows,
        "test_rows": 0,
        "dimension": dimension,
        "labels": Labels.CLASSES,
        "classes": tuple(str(index) for index in range(classes)),
        "label_range": None,
        "normalisation": "unit-norm",
    }
    return DatasetRef(**{**fields, **changes})


def shards_of(dataset: DatasetRef, sizes: tuple[int, ...] = (200, 300, 500), partition: str = "p") -> list[ShardRef]:
    return [
        ShardRef(dataset=dataset, partition=partition, party=str(party), rows=rows) for party, rows in enumerate(sizes)
    ]


def planned(shards: list[ShardRef] | None = None, held_out: ShardRef | None = None, **config: Any) -> RunPlan:
    """Plan a run; epsilon 1 unless said otherwise."""
    given = {"epsilon": 1.0, **config}
    references = AllRows(training=shards or shards_of(dataset_of()), held_out=() if held_out is None else (held_out,))
    return prepare_over(TrainingConfig(**given), references).plan
