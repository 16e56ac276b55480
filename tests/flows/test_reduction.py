"""`unitball reduce` as a flow: each step has a place in its progress."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

import unitball
from flows import reduction
from tasks.planning.reduction import ReductionRequest
from tasks.release.moments import plan_reduction
from tasks.runtime.progress import observed_by


def test_each_step_has_a_place_in_the_progress(root: Path) -> None:
    random = np.random.default_rng(3)
    frame = pd.DataFrame({"a": random.random(600), "b": random.random(600), "ill": random.choice(["no", "yes"], 600)})
    numbers = [{"name": name, "type": "numeric", "range": [0, 1]} for name in "ab"]
    schema = {"columns": [*numbers, {"name": "ill", "type": "label", "classes": ["no", "yes"]}]}
    unitball.describe(frame, schema=schema, name="ward", epsilon_cap=20.0, delta_cap=1e-5, plan=True)
    request, names = ReductionRequest(dataset="ward", epsilon=6.0, score_counts=True), list[str]()
    with observed_by(names.append):
        found = reduction.chain_inline(plan_reduction(request), 1)
    assert tuple(name.replace("-", "_") for name in names) == reduction.STAGES
    assert len(found.components) == 1
    assert found.scores is not None
