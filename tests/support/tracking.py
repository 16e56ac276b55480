"""Addresses of MLflow's pages of what was tracked, and figures that a session draws once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from storage.refs import DatasetRef, Visibility
from tasks.tracking import descriptions, reductions, reporting
from tasks.tracking.runs import tracking_client, view_path


@contextmanager
def figures_remembered() -> Iterator[None]:
    """Let runs have a figure of their kind that was drawn before: a quarter of a flow's time is two figures.

    Of a kind are figures of so many classes, curves, cells, groups, rates and components, and all of one function's of
    descriptions. Tests of what is drawn draw.
    """
    kept = dict[object, bytes]()

    def remembered(draw: Callable[..., bytes], kind: Callable[..., object]) -> Callable[..., bytes]:
        def drawn(*given: Any) -> bytes:
            key = draw, kind(*given)
            if key not in kept:
                kept[key] = draw(*given)
            return kept[key]

        return drawn

    of_description = descriptions._figures

    def described(found: Any, draw: Callable[[Any], bytes]) -> dict[str, bytes]:
        return of_description(found, remembered(draw, lambda found: None))

    kinds: list[tuple[ModuleType, str, Callable[..., object]]] = [
        (reporting, "draw_measured", lambda classes, confusion, roc, on: (len(classes), len(confusion), len(roc), on)),
        (reporting, "draw_effects", lambda found: (found.scores, found.counted, len(found.columns))),
        (reporting, "draw_groups", lambda column, groups, rates, on: (len(groups), len(rates), on)),
        (reporting, "draw_group_curves", lambda column, curves, whole, on: (len(curves), len(whole), on)),
        (reductions, "draw_components", lambda read: (read.made.dimension, read.scores is None)),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(descriptions, "_figures", described)
        for module, name, kind in kinds:
            patch.setattr(module, name, remembered(getattr(module, name), kind))
        yield


def comparison_path(root: Path, experiment: str) -> str | None:
    """Return the address of a data set's accuracy–budget chart, behind an MLflow server's; None before a first run."""
    with tracking_client(root) as client:
        found = client.get_experiment_by_name(experiment)
    return None if found is None else view_path(found.experiment_id)


def a_dataset(version: str, *, account: str) -> DatasetRef:
    """Return a version of digits that is in no store: all that MLflow is told of the rows."""
    return DatasetRef(
        name="digits",
        version=version,
        account=account,
        visibility=Visibility.PUBLIC,
        rows=21,
        test_rows=0,
        dimension=8,
        classes=("zero", "one", "two"),
    )
