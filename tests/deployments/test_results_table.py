"""The table of results at the width of a pipe: what is proved can be read."""

from __future__ import annotations

import io

from rich.console import Console

from deployments.cli.run_results import results_table
from tests.tasks.tracking.test_figures import a_result


def test_a_noisy_measure_leaves_room_for_what_is_proved() -> None:
    result = a_result(
        algorithm="secagg-output-perturbation",
        claim={"statement": "(epsilon, delta)-DP by zCDP", "flaw": ""},
        accuracy=0.841,
        metrics={"accuracy": 0.841, "accuracy_margin": 0.323, "balanced_accuracy": 0.683},
        measured_on="held-out rows, noisy",
    )
    out = io.StringIO()
    Console(file=out, width=132).print(results_table([result]))
    header = next(line for line in out.getvalue().splitlines() if "trust" in line)
    assert header.split() == [
        "algorithm", "trust", "proved", "claim", "ε", "spent", "δ", "spent", "accuracy", "balanced", "seconds"
    ]  # fmt: skip
    assert "0.841 ± 0.323" in out.getvalue()
    assert "secagg-output-perturbation" in out.getvalue()
