"""How much of the disk a night takes: the same training with fresh noise, night after night, in a root of its own.

    python benchmarks/disk_growth.py --nights 20

Prefect's database and cached results are what `unitball serve --keep-days` bounds; the rest is what was paid for.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

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
        from tasks.runtime.engine import prepare_engine, quick_flows

        prepare_engine(root)
        from flows.federated_training import train
        from tasks.planning.configuration import TrainingConfig

        seen = []
        with quick_flows():
            for night in range(arguments.nights):
                config = TrainingConfig(
                    dataset="iris", algorithm="noisy-gd", epsilon=0.5, parties=2, repetition=night, seed=1
                )
                train(config)
                seen.append(sizes(root))
        # The first nights make what all share.
        warm = arguments.nights // 4
        nights = arguments.nights - 1 - warm
        growth = {part: (seen[-1][part] - seen[warm][part]) / nights for part in PARTS}
        bounded = ("Prefect's database", "Prefect's cached results")
        year = {
            part: seen[warm][part] + growth[part] * (arguments.keep_days if part in bounded else 365) for part in PARTS
        }
        print(json.dumps({"kB a night": {part: round(each / 1000, 1) for part, each in growth.items()}}, indent=1))
        print(
            json.dumps({"MB after 365 nights": {part: round(each / 1e6, 1) for part, each in year.items()}}, indent=1)
        )
        print(f"together {sum(year.values()) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
