"""How long ingestion and runs take by how many rows each person has: processor seconds, without the engine's start.

    python benchmarks/people_times.py [--repeats 3] [--output benchmarks/results/people-times.json]

2,000 people of 1, 5, 20 and 50 synthetic rows each, 20 features, two parties, secure sums, a fresh root each time, in
this process and without an engine. The median of a few repetitions.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
from shared import Stage, head, keep_table, line

PEOPLE, FEATURES, EACH = 2000, 20, (1, 5, 20, 50)
RUNS = {"`noisy-gd`, measured": "noisy-gd", "`unitball`, measured": "unitball"}


def main() -> None:
    """Measure, and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="also write the table there")
    given = parser.parse_args()
    # Imports are no part of it.
    seconds(1)
    found = {each: [seconds(each) for _ in range(given.repeats)] for each in EACH}
    head("rows each", *map(str, EACH))
    for what in ("`ingest`", *RUNS):
        line(what, *(f"{statistics.median(one[what] for one in found[each]):.1f}" for each in EACH))
    if given.output:
        keep_table(given.output, f"medians of {given.repeats}; load average {os.getloadavg()[1]:.1f}")


def seconds(each: int) -> dict[str, float]:
    """Return the processor seconds of one ingestion and of a run of each kind."""
    from flows.federated_training import chain_inline
    from tasks.datasets.registration import ingest
    from tasks.datasets.request import IngestRequest
    from tasks.planning.configuration import TrainingConfig

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["UNITBALL_ROOT"] = str(folder / "root")
        os.environ["UNITBALL_LEDGER_MARK"] = str(folder / "mark")
        write(folder, each)
        request = IngestRequest(
            name="people",
            format="csv",
            path=folder / "rows.csv",
            schema_path=folder / "schema.yaml",
            epsilon_cap=10.0,
            delta_cap=1e-5,
        )
        with Stage() as stage:
            ingest(request)
        taken = {"`ingest`": stage.seconds}
        for what, algorithm in RUNS.items():
            config = TrainingConfig(dataset="people", algorithm=algorithm, trust="secagg", parties=2, epsilon=1.0)
            with Stage() as stage:
                chain_inline(config)
            taken[what] = stage.seconds
    return taken


def write(folder: Path, each: int) -> None:
    """Write all people's rows and the schema."""
    import yaml

    random = np.random.default_rng(1)
    values = random.uniform(-1.0, 1.0, (PEOPLE * each, FEATURES))
    labels = (values[:, 0] + random.normal(0.0, 0.3, len(values)) > 0).astype(int)
    whose = random.permutation(np.repeat(np.arange(PEOPLE), each))
    names = [f"x{number}" for number in range(FEATURES)]
    rows = (
        f"p{one}," + ",".join(f"{value:.6f}" for value in row) + f",{label}"
        for one, row, label in zip(whose, values, labels, strict=True)
    )
    (folder / "rows.csv").write_text("\n".join([",".join(["person", *names, "y"]), *rows]) + "\n")
    columns = [
        {"name": "person", "type": "person", "rows_per_person": max(EACH)},
        *({"name": name, "type": "numeric", "range": [-1.0, 1.0]} for name in names),
        {"name": "y", "type": "label", "classes": ["0", "1"]},
    ]
    (folder / "schema.yaml").write_text(yaml.safe_dump({"columns": columns}))


if __name__ == "__main__":
    main()
