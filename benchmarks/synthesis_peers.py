"""Other libraries' sides of ``benchmarks/synthesis.py``, each in a process in a separate environment.

``python benchmarks/synthesis_peers.py SYSTEM TABLE.npz`` reads a line of JSON per cell (``epsilon``, ``delta``,
``seed``, ``drawn``: where to write) and answers each with a line of JSON (``seconds``). ``drawn`` gets the drawn rows:
``numbers``, ``codes`` and ``labels``, as in ``TABLE.npz``.

Neighbours differ by a row that is **added or removed** (the number of rows is taken as public all the same). This is
the weaker relation: a replaced row is two of these.

* ``dpmm-mst``, ``dpmm-aim``: dpmm's pipelines, told the declared ranges and categories. A tenth of epsilon is for its
  private choice of bins (its own ratio at epsilon 1), the rest and all of delta for the model, so that both together
  are (epsilon, delta). AIM's model has at most 80 MB, as published (the pipeline's own default has no limit).
* ``mbi-mst``: mbi 2.0.0 has estimators and no mechanism. The mechanism is MST as published (McKenna, Miklau, Sheldon,
  J. Privacy and Confidentiality 11, 2021): noisy columns, values below three deviations of noise merged, a tree of
  pairs by the exponential mechanism, noisy pairs, a third of the budget each. Numbers are in 24 equal bins of their
  declared ranges. The model is estimated by mbi's mirror descent.
* ``smartnoise-mst``, ``smartnoise-aim``: smartnoise-synth's, told the codes of the same 24 bins, without a
  preprocessing budget. Both need private-pgm as it was before mbi 1.0.0, which no package index has. dpmm's copy of it
  takes its place.

Seconds are CPU seconds of this process: counting, drawing and what a library compiles.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JAX_ENABLE_X64", "1")

import numpy as np

Cell = dict[str, Any]
_BINS_SHARE = 0.1
_BINS = 24


def of_dpmm(name: str) -> Callable[[Any, Cell], dict[str, np.ndarray]]:
    """Return what draws rows by a pipeline of dpmm."""

    def drawn(held: Any, cell: Cell) -> dict[str, np.ndarray]:
        import pandas as pd
        from dpmm import pipelines

        ranges, sizes, classes = held["ranges"], held["sizes"].tolist(), int(held["classes"])
        columns: dict[str, Any] = {f"x{at}": column for at, column in enumerate(held["numbers_train"].T)}
        domain: dict[str, Any] = {
            f"x{at}": {"lower": low, "upper": high} for at, (low, high) in enumerate(ranges.tolist())
        }
        for at, size, column in zip(range(len(sizes)), sizes, held["codes_train"].T, strict=True):
            columns[f"c{at}"] = column.astype(str)
            domain[f"c{at}"] = {"categories": [str(code) for code in range(size)]}
        columns["y"] = held["labels_train"].astype(str)
        domain["y"] = {"categories": [str(label) for label in range(classes)]}
        frame = pd.DataFrame(columns)
        bins = _BINS_SHARE * cell["epsilon"] if len(ranges) else 0.0
        given: dict[str, Any] = {"epsilon": cell["epsilon"] - bins, "delta": cell["delta"], "n_jobs": 1}
        given |= {"proc_epsilon": bins} if bins else {"proc_epsilon": None}
        given |= {"max_model_size": 80} if name == "AIMPipeline" else {}
        pipeline = getattr(pipelines, name)(**given)
        pipeline.fit(frame, domain, random_state=cell["seed"])
        rows = pipeline.generate(n_records=len(frame), random_state=cell["seed"])
        numbers = rows[[f"x{at}" for at in range(len(ranges))]].to_numpy(np.float64)
        codes = rows[[f"c{at}" for at in range(len(sizes))]].astype(str).astype(np.int64).to_numpy()
        return {"numbers": numbers, "codes": codes, "labels": rows["y"].astype(str).astype(np.int64).to_numpy()}

    return drawn


def coded(held: Any) -> tuple[np.ndarray, list[int]]:
    """Return rows as codes, numbers in equal bins, the label last; and how many codes each column has."""
    low, high = held["ranges"].reshape(-1, 2).T
    numbers = held["numbers_train"]
    bins = np.clip(np.floor((numbers - low) / (high - low) * _BINS), 0, _BINS - 1).astype(np.int64)
    rows = np.column_stack([bins, held["codes_train"], held["labels_train"]]).astype(np.int64)
    sizes = [_BINS] * numbers.shape[1] + [size + 1 for size in held["sizes"].tolist()] + [int(held["classes"])]
    return rows, sizes


def decoded(held: Any, rows: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return codes as rows of the table; numbers evenly within their bins."""
    low, high = held["ranges"].reshape(-1, 2).T
    count = len(low)
    shares = (rows[:, :count] + random.random((len(rows), count))) / _BINS
    return {"numbers": low + (high - low) * shares, "codes": rows[:, count:-1], "labels": rows[:, -1]}


def zcdp(epsilon: float, delta: float) -> float:
    """Return the largest rho of which (epsilon, delta)-DP follows (Canonne, Kamath, Steinke 2020, Proposition 12)."""

    def implied(rho: float) -> float:
        orders = 1.0 + np.geomspace(1e-4, 1e4, 4000)
        logs = (orders - 1) * (orders * rho - epsilon) + orders * np.log1p(-1 / orders) - np.log(orders - 1)
        return float(np.exp(min(0.0, logs.min())))

    low, high = 0.0, epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if implied(middle) <= delta else (low, middle)
    return low


def mbi_mst(held: Any, cell: Cell) -> dict[str, np.ndarray]:
    """Return rows of MST, its model estimated by mbi."""
    from mbi import Domain, LinearMeasurement, estimation

    random = np.random.default_rng(cell["seed"])
    np.random.seed(cell["seed"])
    rows, sizes = coded(held)
    third = zcdp(cell["epsilon"], cell["delta"]) / 3.0
    names = [f"a{at}" for at in range(len(sizes))]
    # Each of m tables has sensitivity 1 under addition or removal.
    deviation = math.sqrt(len(sizes) / (2.0 * third))
    merged, kept = [], []
    ones = []
    for at, size in enumerate(sizes):
        noisy = np.bincount(rows[:, at], minlength=size) + random.normal(0.0, deviation, size)
        own = noisy >= 3.0 * deviation
        places = np.where(own, np.cumsum(own) - 1, own.sum())
        merged.append(places)
        counts = np.bincount(places, weights=noisy)
        ones.append((counts, np.sqrt(np.bincount(places)) * deviation))
        kept.append(len(counts))
    small = np.column_stack([merged[at][rows[:, at]] for at in range(len(sizes))])
    domain = Domain(names, kept)
    measured = [
        LinearMeasurement(counts, (name,), stddev=float(deviations.max()))
        for name, (counts, deviations) in zip(names, ones, strict=True)
    ]
    estimate = estimation.MirrorDescent().estimate
    total = float(len(rows))
    model = estimate(domain, measured, known_total=total, tol=1e-6)
    # A model of single columns has independent pairs; mbi's own projection compiles one program per pair.
    singles = [np.asarray(model.project((name,)).datavector()) for name in names]
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    tables, scores = {}, {}
    for one, other in pairs:
        exact = np.zeros((kept[one], kept[other]))
        np.add.at(exact, (small[:, one], small[:, other]), 1.0)
        tables[one, other] = exact
        expected = np.outer(singles[one], singles[other]) / total
        scores[one, other] = float(np.abs(exact - expected).sum())
    edges, part = [], list(range(len(sizes)))
    epsilon = math.sqrt(8.0 * third / (len(sizes) - 1))
    while len(edges) < len(sizes) - 1:
        open_pairs = [pair for pair in pairs if part[pair[0]] != part[pair[1]]]
        logits = np.array([0.5 * epsilon * scores[pair] for pair in open_pairs])
        edge = open_pairs[int(np.argmax(logits + random.gumbel(size=len(logits))))]
        edges.append(edge)
        part = [part[edge[0]] if one == part[edge[1]] else one for one in part]
    deviation = math.sqrt(len(edges) / (2.0 * third))
    measured += [
        LinearMeasurement(
            (tables[edge] + random.normal(0.0, deviation, tables[edge].shape)).ravel(),
            (names[edge[0]], names[edge[1]]),
            stddev=deviation,
        )
        for edge in edges
    ]
    model = estimate(domain, measured, known_total=total, tol=1e-6)
    drawn = model.synthetic_data(len(rows))
    found = np.column_stack([np.asarray(drawn.to_dict()[name]) for name in names]).astype(np.int64)
    for at in range(len(sizes)):
        # A merged value stands for any of those that are merged.
        values, first = np.argsort(merged[at], kind="stable"), np.cumsum([0, *np.bincount(merged[at])])
        places = found[:, at]
        found[:, at] = values[random.integers(first[places], first[places + 1])]
    return decoded(held, found, random)


def of_smartnoise(name: str) -> Callable[[Any, Cell], dict[str, np.ndarray]]:
    """Return what draws rows by a synthesiser of smartnoise-synth."""

    def drawn(held: Any, cell: Cell) -> dict[str, np.ndarray]:
        import pandas as pd

        sys.modules["mbi"] = importlib.import_module("dpmm.models.base.mbi")
        from snsynth import Synthesizer

        random = np.random.default_rng(cell["seed"])
        np.random.seed(cell["seed"])
        rows, _ = coded(held)
        names = [f"a{at}" for at in range(rows.shape[1])]
        frame = pd.DataFrame(rows, columns=names)
        synthesiser = Synthesizer.create(name, epsilon=cell["epsilon"], delta=cell["delta"])
        synthesiser.fit(frame, categorical_columns=names, preprocessor_eps=0.0)
        return decoded(held, synthesiser.sample(len(rows)).to_numpy(np.int64), random)

    return drawn


SYSTEMS = {
    "dpmm-mst": of_dpmm("MSTPipeline"),
    "dpmm-aim": of_dpmm("AIMPipeline"),
    "mbi-mst": mbi_mst,
    "smartnoise-mst": of_smartnoise("mst"),
    "smartnoise-aim": of_smartnoise("aim"),
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    system, stored = SYSTEMS[sys.argv[1]], dict(np.load(sys.argv[2]))
    # What a library prints is no answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        wanted = json.loads(line)
        started = time.process_time()
        answer: dict[str, Any] = {}
        try:
            np.savez(wanted["drawn"], **system(stored, wanted))
        except Exception as error:  # what a library cannot do at a budget is a finding: it is told and recorded
            answer["error"] = f"{type(error).__name__}: {str(error)[:200]}"
        print(json.dumps({**answer, "seconds": time.process_time() - started}), file=answers, flush=True)
