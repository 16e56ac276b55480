"""What a sweep costs beside the mathematics: 200 points on digits, a point's wall time without the work itself.

The work of a point is what it does when it is called directly: normalise, partition, charge, release, evaluate. The
overhead is the sweep's wall time times its threads, less the work, over the points, so that waiting counts too; beside
it the plain difference of wall times is shown for one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["UNITBALL_ROOT"] = folder
        print(json.dumps(measure(arguments.points, arguments.workers), indent=2))


def measure(points: int, workers: int) -> dict[str, float]:
    from tasks.runtime.engine import prepare_engine, quick_flows

    root = Path(os.environ["UNITBALL_ROOT"])
    started = time.monotonic()
    prepare_engine(root)
    engine = time.monotonic() - started

    from flows.sweep import run_sweep
    from tasks.experiments.specification import SweepSpec

    spec = SweepSpec.model_validate(
        {
            "name": "overhead",
            "set": {"dataset": "digits", "algorithm": "noisy-gd", "param.iterations": 2},
            "grid": {"epsilon": [1 + number / points for number in range(points)]},
        }
    )
    # The first point pays for imports and for preparing the rows; it is not what a point of a sweep costs.
    with quick_flows():
        run_sweep(spec.model_copy(update={"name": "warm", "grid": {"epsilon": [0.5]}}), workers=1)
        result = run_sweep(spec, workers=workers)
        again = run_sweep(spec, workers=workers)
    assert not result.failed
    work = sum(outcome.result.seconds or 0.0 for outcome in result.outcomes if outcome.result)
    return {
        "points": points,
        "workers": workers,
        "load": os.getloadavg()[0],
        "engine_seconds": round(engine, 2),
        "sweep_seconds": result.seconds,
        "work_seconds_a_point": round(work / points, 4),
        "overhead_seconds_a_point": round((result.seconds * workers - work) / points / workers, 4),
        "resumed_seconds_a_point": round(again.seconds / points, 4),
    }


if __name__ == "__main__":
    main()
