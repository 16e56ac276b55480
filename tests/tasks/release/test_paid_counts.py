"""Histograms that were released before, found again by a run: which of them it may rest on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage.errors import InputError
from tasks.datasets.registration import find_dataset
from tasks.planning.configuration import TrainingConfig
from tasks.preparation.prepare import Prepared, prepare
from tasks.release.column_counts import make_counts, plan_counts
from tests.tasks.release.test_column_counts import bring_in


def described(folder: Path) -> None:
    bring_in(folder)
    make_counts(plan_counts(find_dataset("clinic"), 2.0))


def prepared(**config: Any) -> Prepared:
    return prepare(TrainingConfig.model_validate({"dataset": "clinic", "epsilon": 4.0, "parties": 2, **config}))


def test_counts_of_another_relation_are_not_part_of_a_guarantee(root: Path, tmp_path: Path) -> None:
    """What is proved of counts under replace-one says nothing under replace-special, nor is a run's own loss doubled.

    Printed would be one relation and one epsilon for releases of two.
    """
    described(tmp_path)
    assert prepared().whole.before
    other = prepared(neighbours="replace-special").whole
    assert {str(one.neighbours) for one in other.guarantees} == {"replace-special"}
    assert other.before == ()
    with pytest.raises(InputError, match="replace-special"):
        prepared(neighbours="replace-special", counts_of=find_dataset("clinic").version)
