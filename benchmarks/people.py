"""Adult with synthetic people: accuracy as people, with a group size of 50, and with one row a person.

    UNITBALL_DATA=/path/to/data python benchmarks/people.py [--seeds 10] [--epsilons 0.5,1,3] [--exponents 1,2]

The training rows are assigned in a random order to people, who get 1 to 50 each by a Zipf distribution (k rows with a
probability of k^-s / sum of all); the set's own test rows are measured, each by itself. Whole runs of the recommended
system for a curator, replace-one, delta 1e-5, through ingestion, partitioning and door, in a root that is then removed.
Per seed:

- as people: all rows under a column of type person, at most 50 each;
- group size 50: all rows as records, at the epsilon whose mu is a fiftieth, which costs a group of 50 what was asked;
- one row a person: the first row of each, as many records as there are people.

One line an exponent and budget: mean and standard deviation of the accuracy, and the difference of the first and the
last, paired by seed, with its standard error.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from shared import data

DELTA, MOST = 1e-5, 50


def main() -> None:
    """Measure, and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epsilons", default="0.5,1,3")
    parser.add_argument("--exponents", default="1,2")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["UNITBALL_ROOT"] = str(Path(folder, "root"))
        for exponent in map(float, given.exponents.split(",")):
            measure(Path(folder), exponent, [float(one) for one in given.epsilons.split(",")], given.seeds)


def measure(folder: Path, exponent: float, epsilons: list[float], seeds: int) -> None:
    from dpalgos.accounting.profiles import gaussian_epsilon, mu_from_epsilon_delta

    train, test = (lines(data("adult") / name) for name in ("adult.data", "adult.test"))
    bring_in(folder, "rows", train, test)
    found = []
    for seed in range(seeds):
        whose = people(len(train), exponent, seed)
        first = np.unique(whose, return_index=True)[1]
        name = f"{exponent:g}-{seed}"
        bring_in(folder, f"people-{name}", train, test, whose)
        bring_in(folder, f"one-{name}", [train[row] for row in first], test)
        for epsilon in epsilons:
            grouped = gaussian_epsilon(mu_from_epsilon_delta(epsilon, DELTA) / MOST, DELTA)
            asked = {
                "as people": (f"people-{name}", epsilon),
                f"group size {MOST}": ("rows", grouped),
                "one row a person": (f"one-{name}", epsilon),
            }
            accuracies = {what: accuracy(dataset, at, seed) for what, (dataset, at) in asked.items()}
            found.append({"epsilon": epsilon, "people": len(first), **accuracies})
    runs = pd.DataFrame(found)
    runs["difference"] = runs["as people"] - runs["one row a person"]
    table = runs.groupby("epsilon").agg(["mean", "std"])
    table["difference", "sem"] = runs.groupby("epsilon")["difference"].sem()
    print(f"exponent {exponent:g}, {seeds} seeds")
    print(table.to_string(float_format="{:.4f}".format), flush=True)


def lines(path: Path) -> list[str]:
    """Return the rows that hold all that the schema asks for."""
    return [line for line in path.read_text().splitlines() if line.strip() and line[0] != "|" and "?" not in line]


def people(rows: int, exponent: float, seed: int) -> np.ndarray:
    """Return whose each row is."""
    random = np.random.default_rng(seed)
    chances = np.arange(1, MOST + 1) ** -exponent
    counts = random.choice(np.arange(1, MOST + 1), size=rows, p=chances / chances.sum())
    return random.permutation(np.repeat(np.arange(rows), counts)[:rows])


def bring_in(folder: Path, name: str, train: list[str], test: list[str], whose: np.ndarray | None = None) -> None:
    """Register rows as public ones, so that they are measured exactly; each test row is a separate person's."""
    from storage.readers import schemas
    from storage.refs import Visibility
    from tasks.datasets.registration import ingest
    from tasks.datasets.request import IngestRequest

    schema = yaml.safe_load(Path(schemas.__path__[0], "adult.yaml").read_text())
    del schema["files"]
    files = {"train": train, "test": test}
    if whose is not None:
        schema["columns"].insert(0, {"name": "person", "type": "person", "rows_per_person": MOST})
        files = {"train": [f"p{one}, {line}" for one, line in zip(whose, train, strict=True)],
                 "test": [f"t{number}, {line}" for number, line in enumerate(test)]}  # fmt: skip
    for part, rows in files.items():
        (folder / f"{part}.csv").write_text("\n".join(rows) + "\n")
    (folder / "schema.yaml").write_text(yaml.safe_dump(schema))
    ingest(
        IngestRequest(
            name=name,
            format="csv",
            path=folder / "train.csv",
            test_path=folder / "test.csv",
            schema_path=folder / "schema.yaml",
            visibility=Visibility.PUBLIC,
        )
    )


def accuracy(dataset: str, epsilon: float, seed: int) -> float:
    from flows.federated_training import chain_inline
    from tasks.planning.configuration import TrainingConfig

    config = TrainingConfig(
        dataset=dataset, algorithm="unitball", epsilon=epsilon, delta=DELTA, parties=1, replicate=seed
    )
    found = chain_inline(config).result.accuracy
    assert found is not None
    return found


if __name__ == "__main__":
    main()
