"""Other libraries' sides of ``benchmarks/synthesis.py``, each in a process of an environment of its own.

``python benchmarks/synthesis_peers.py SYSTEM TABLE.npz`` reads a line of JSON per cell (``epsilon``, ``delta``,
``seed``, ``drawn``: where to write) and answers each with a line of JSON (``seconds``). ``drawn`` gets the drawn rows:
``numbers``, ``codes`` and ``labels``, as in ``TABLE.npz``.

* ``dpmm-mst``: dpmm's pipeline of MST, told the declared ranges and categories. A tenth of epsilon is for its
  private choice of bins (its own ratio at epsilon 1), the rest and all of delta for the model, so that both together
  are (epsilon, delta). Neighbours differ by a row that is **added or removed** (the number of rows is taken as public
  all the same), which is the weaker relation: a replaced row is two of these.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

Cell = dict[str, Any]
_BINS_SHARE = 0.1


def dpmm_mst(held: Any, cell: Cell) -> dict[str, np.ndarray]:
    """Return rows that dpmm's MST draws."""
    from dpmm.pipelines import MSTPipeline

    ranges, sizes, classes = held["ranges"], held["sizes"].tolist(), int(held["classes"])
    columns: dict[str, Any] = {f"x{at}": column for at, column in enumerate(held["numbers_train"].T)}
    domain: dict[str, Any] = {f"x{at}": {"lower": low, "upper": high} for at, (low, high) in enumerate(ranges.tolist())}
    for at, size, column in zip(range(len(sizes)), sizes, held["codes_train"].T, strict=True):
        columns[f"c{at}"] = column.astype(str)
        domain[f"c{at}"] = {"categories": [str(code) for code in range(size)]}
    columns["y"] = held["labels_train"].astype(str)
    domain["y"] = {"categories": [str(label) for label in range(classes)]}
    frame = pd.DataFrame(columns)
    bins = _BINS_SHARE * cell["epsilon"] if len(ranges) else 0.0
    given: dict[str, Any] = {"epsilon": cell["epsilon"] - bins, "delta": cell["delta"], "n_jobs": 1}
    given |= {"proc_epsilon": bins} if bins else {"proc_epsilon": None}
    pipeline = MSTPipeline(**given)
    pipeline.fit(frame, domain, random_state=cell["seed"])
    drawn = pipeline.generate(n_records=len(frame), random_state=cell["seed"])
    numbers = drawn[[f"x{at}" for at in range(len(ranges))]].to_numpy(np.float64)
    codes = drawn[[f"c{at}" for at in range(len(sizes))]].astype(str).astype(np.int64).to_numpy()
    return {"numbers": numbers, "codes": codes, "labels": drawn["y"].astype(str).astype(np.int64).to_numpy()}


SYSTEMS = {"dpmm-mst": dpmm_mst}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    system, stored = SYSTEMS[sys.argv[1]], dict(np.load(sys.argv[2]))
    # What a library prints is no answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        wanted = json.loads(line)
        started = time.perf_counter()
        answer: dict[str, Any] = {}
        try:
            np.savez(wanted["drawn"], **system(stored, wanted))
        except Exception as error:  # what a library cannot do at a budget is a finding: it is told and recorded
            answer["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        print(json.dumps({**answer, "seconds": time.perf_counter() - started}), file=answers, flush=True)
