"""Remove what is older than its time, once a day: cached results, mapped rows, and runs deleted in MLflow."""

import argparse
import time
from pathlib import Path

from storage.kept_rows import remove_kept
from storage.layout import Layout
from tasks.runtime.settings import current_root, has_own_database, keep_private, own_database, restoring


def remove_old_results(root: Path, days: float) -> int:
    """Remove what Prefect cached of tasks long ago; return how many files.

    What is asked for again is made again: releases are found by their keys, at no charge.
    """
    before, count = time.time() - days * 24 * 3600, 0
    for path in (Layout(root).prefect / "results").rglob("*"):
        if path.is_file() and path.stat().st_mtime < before:
            path.unlink(missing_ok=True)
            count += 1
    return count


def _holds_deleted(address: str) -> bool:
    """Whether anything in MLflow's database was deleted (a run, an experiment, a model), at whatever time."""
    from sqlalchemy import MetaData, NullPool, create_engine, select

    engine, tables = create_engine(address, poolclass=NullPool), MetaData()
    tables.reflect(engine)
    stages = [table.c.lifecycle_stage for table in tables.tables.values() if "lifecycle_stage" in table.c]
    with engine.connect() as connection:
        return any(connection.execute(select(one).where(one == "deleted").limit(1)).first() for one in stages)


def remove_deleted_runs(root: Path, days: float) -> None:
    """Remove runs that were deleted in MLflow long ago, with their artifacts, from the root's own database."""
    # Asked first, since MLflow takes seconds to import.
    if not has_own_database(root) or not _holds_deleted(own_database(root)):
        return
    from mlflow.cli import gc

    where = ["--backend-store-uri", own_database(root), "--tracking-uri", own_database(root)]
    # MLflow writes where it is pointed into the environment, and leaves it there.
    with restoring("MLFLOW_TRACKING_URI"):
        gc([*where, "--older-than", f"{int(days * 24 * 3600)}s"], standalone_mode=False)


def main() -> None:
    """Tidy the current root once."""
    keep_private()
    parser = argparse.ArgumentParser(prog="python -m deployments.tidying", description=__doc__)
    parser.add_argument("--days", type=float, required=True)
    days = parser.parse_args().days
    remove_old_results(current_root(), days)
    remove_kept(Layout(current_root()), time.time() - days * 24 * 3600)
    remove_deleted_runs(current_root(), days)


if __name__ == "__main__":
    main()
