"""Addresses of MLflow's pages of what was tracked, and figures that a session draws once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from storage.refs import DatasetRef, Visibility
from tasks.runtime.plots import Curve, Matrix, draw_measured
from tasks.tracking import descriptions, reporting
from tasks.tracking.effect_figure import draw_effects
from tasks.tracking.effects import Effects
from tasks.tracking.runs import tracking_client, view_path


@contextmanager
def figures_remembered() -> Iterator[None]:
    """Let runs have a figure of their kind that was drawn before: a quarter of a flow's time is two figures.

    Of a kind are figures of so many classes, curves and cells, measured on the same, and all of one function's of
    descriptions. Tests of what is drawn draw.
    """
    honest, kept = draw_measured, dict[object, bytes]()
    of_effects = draw_effects

    def drawn(classes: Sequence[str], confusion: Matrix, roc: Sequence[Curve], measured_on: str) -> bytes:
        kind = (len(classes), len(confusion), len(roc), measured_on)
        if kind not in kept:
            kept[kind] = honest(classes, confusion, roc, measured_on)
        return kept[kind]

    def effects_drawn(found: Effects) -> bytes:
        kind = (found.scores, found.counted, len(found.columns))
        if kind not in kept:
            kept[kind] = of_effects(found)
        return kept[kind]

    of_description = descriptions._figures

    def description_drawn(found: Any, draw: Callable[[Any], bytes]) -> dict[str, bytes]:
        if draw not in kept:
            kept[draw] = of_description(found, draw)[descriptions.FIGURE]
        return {descriptions.FIGURE: kept[draw]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(descriptions, "_figures", description_drawn)
        patch.setattr(reporting, "draw_measured", drawn)
        patch.setattr(reporting, "draw_effects", effects_drawn)
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
