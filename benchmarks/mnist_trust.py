"""Accuracy under three trust models, side by side: secure aggregation against a curator, noise at each party beside.

    UNITBALL_DATA=/path/to/data python benchmarks/mnist_trust.py [--seeds 5] [--rows 10000] [--dimension 60]

MNIST (``$UNITBALL_DATA/mnist``), 5 parties of 10,000 rows, epsilon 1 and delta 1e-5 for everything that a run releases,
replace-one. Every point is a whole run of the chain (ingestion, plan, charge, door) in a root of its own that is thrown
away; seeds of the noise are public. ``noisy-gd`` under ``local`` is each party's own model, averaged.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from dpalgos.guarantees import Trust

EPSILON, DELTA = 1.0, 1e-5
SYSTEMS = ("fed-dpdr-dpml", "noisy-gd")
TRUSTS = (Trust.LOCAL, Trust.CENTRAL, Trust.SECAGG)
TARGET = 0.01


def main() -> None:
    """Run all points and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000, help="rows of each of the five parties")
    parser.add_argument("--dimension", type=int, default=20, help="k of the projection")
    given = parser.parse_args()
    place = os.environ.get("UNITBALL_DATA")
    if not place:
        parser.error("UNITBALL_DATA is not set: name the folder that holds mnist/")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["UNITBALL_ROOT"] = folder
        run(Path(place) / "mnist", given.seeds, given.rows, given.dimension)


def run(data: Path, seeds: int, rows: int, dimension: int) -> None:
    """Measure every system under every trust model."""
    # The chain's modules are imported when the root is known.
    from flows.federated_training import chain_inline
    from storage.refs import Visibility
    from tasks.datasets.registration import ingest
    from tasks.datasets.request import IngestRequest
    from tasks.planning.configuration import TrainingConfig

    ingest(IngestRequest(name="mnist", format="idx", path=data, visibility=Visibility.PUBLIC))

    def accuracy(system: str, trust: Trust, seed: int) -> float:
        alone = system == "noisy-gd" and trust is Trust.LOCAL
        what = (
            {"algorithm": None, "trainer": system, "aggregation": "weighted-mean"} if alone else {"algorithm": system}
        )
        config = TrainingConfig(
            dataset="mnist",
            epsilon=EPSILON,
            delta=DELTA,
            trust=trust,
            parties=5,
            rows_per_party=rows,
            dimension=dimension,
            seed=seed,
            **what,
        )
        result = chain_inline(config).result
        if result.accuracy is None:
            raise SystemExit("no test rows to measure on")
        return result.accuracy

    print(f"5 x {rows} rows, epsilon {EPSILON:g}, delta {DELTA:g}, k = {dimension}, {seeds} seeds")
    print(f"{'system':<16}{'trust':<10}{'mean':>8}{'smallest':>10}{'largest':>9}{'seconds':>9}")
    for system in SYSTEMS:
        means = {}
        for trust in TRUSTS:
            started = time.monotonic()
            found = [accuracy(system, trust, seed) for seed in range(seeds)]
            means[trust] = statistics.fmean(found)
            spent = (time.monotonic() - started) / seeds
            print(
                f"{system:<16}{trust:<10}{means[trust]:>8.4f}{min(found):>10.4f}{max(found):>9.4f}{spent:>9.1f}",
                flush=True,
            )
        gap = abs(means[Trust.SECAGG] - means[Trust.CENTRAL])
        verdict = "met" if gap <= TARGET else "NOT met"
        print(f"{system}: |secagg - central| = {gap:.4f}, target at most {TARGET:g}: {verdict}", flush=True)


if __name__ == "__main__":
    main()
