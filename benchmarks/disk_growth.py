"""Growth of the disk by nights: the same training with fresh noise, night after night, in a separate root.

    python benchmarks/disk_growth.py --nights 20

Prefect's database and cached results are what `unitball serve --keep-days` bounds; the rest is what was paid for.

Over 17 nights of iris and two parties a night added 314 kB to Prefect's database and 12 kB of cached results; 101 kB of
MLflow's artifacts and 46 kB to its database; 26 kB of results, 8 kB of releases and 2 kB to the ledger. Thirty nights
of the first two and 365 of the others are below 85 MB.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import pandas as pd

PARTS = {
    "ledger": ("ledger.sqlite", "ledger.head"),
    "releases": ("releases",),
    "results": ("results",),
    "MLflow's database": ("mlflow.db",),
    "MLflow's artifacts": ("artifacts",),
    "Prefect's database": ("prefect/prefect.db", "prefect/prefect.db-wal"),
    "Prefect's cached results": ("prefect/results",),
    "log of events": ("logs",),
}


def sizes(root: Path) -> dict[str, int]:
    """Return the bytes on disk of each part of a root."""

    def used(path: Path) -> int:
        files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
        return sum(file.stat().st_blocks * 512 for file in files)

    return {part: sum(used(root / name) for name in names) for part, names in PARTS.items()}


def main() -> None:
    """Train night after night and print bytes a night, and what a year comes to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, default=20)
    parser.add_argument("--keep-days", type=int, default=30)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        os.environ["UNITBALL_ROOT"] = str(root)
        from tasks.host.engine import prepare_engine, quick_flows

        prepare_engine(root)
        from flows.federated_training import train
        from tasks.planning.configuration import TrainingConfig

        seen = []
        with quick_flows():
            for night in range(arguments.nights):
                config = TrainingConfig(
                    dataset="iris", algorithm="noisy-gd", epsilon=0.5, parties=2, replicate=night, seed=1
                )
                train(config)
                seen.append(sizes(root))
        # The first nights make what all share.
        used, warm = pd.DataFrame(seen), arguments.nights // 4
        growth = used[warm:].diff().mean()
        days = pd.Series(365, growth.index)
        days[["Prefect's database", "Prefect's cached results"]] = arguments.keep_days
        year = used.loc[warm] + growth * days
        print(pd.DataFrame({"kB a night": growth / 1e3, "MB after 365 nights": year / 1e6}).round(1).to_string())
        print(f"together {year.sum() / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
