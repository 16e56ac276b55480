"""Out of core: 16,000,000 × 125 synthetic rows (8 GB), from a stream to ten gradient sums, as a table of seconds.

``python benchmarks/out_of_core.py --folder /somewhere/with/20G [--rows 1000000]``. Rows are ingested from a stream,
partitioned over 100 parties, and read from there: a DP covariance, ten steps of noisy gradient descent, nothing kept
between passes. *Bound* is what cannot be saved: each pass's reading of the Parquet files, measured, and its arithmetic
alone, measured with NumPy on one block in memory (covariance in float64, gradient in float32). All on processor time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# As behind the door: blocks go over the cores, a matrix product does not.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from shared import Stage, head, keep_table, line, unit_blocks

from dpalgos.algorithms import TrustedSummation, fit
from dpalgos.guarantees import GaussianMu, Neighbours, Setting
from dpalgos.keystream import KeyedNoise
from dpalgos.partitioning import Even
from dpalgos.registry import lookup
from dpalgos.resources import set_memory_limit
from storage.layout import Layout
from storage.refs import Visibility
from storage.shards import open_shard, write_shards
from storage.source import Block, Source
from storage.staging import staged_dataset

_CLASSES, _STEPS = 10, 10


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Blocks of rows of norm 1, readable again from the start."""

    rows: int
    features: int
    block: int = 8192

    def __iter__(self) -> Iterator[Block]:
        random = np.random.default_rng(2)
        for made in unit_blocks(self.rows, self.features, self.block):
            yield Block(made, random.integers(0, _CLASSES, len(made)))


@contextmanager
def shown(name: str) -> Iterator[Stage]:
    """Measure a stage and print its line."""
    with Stage() as stage:
        yield stage
    line(name, f"{stage.wall:.1f}", f"{stage.seconds:.1f}", f"{stage.peak:.0f}")


def arithmetic(rows: int, features: int) -> tuple[float, float]:
    """Return the processor seconds of a covariance's and a gradient's arithmetic alone, from one block in memory."""
    block = next(iter(Synthetic(65_536, features, 65_536)))
    wide, single = block.features.astype(np.float64), block.features
    targets = np.eye(_CLASSES, dtype=np.float32)[block.labels]
    weights = np.zeros((_CLASSES, features), dtype=np.float32)

    def gradient() -> object:
        powers = np.exp(single @ weights.T)
        slopes = powers / powers.sum(axis=1, keepdims=True) - targets
        lengths = np.linalg.norm(slopes, axis=1, keepdims=True)
        return (slopes * np.minimum(1, 0.5 / lengths)).T @ single

    def taken(work: object) -> float:
        stages = [Stage() for _ in range(4)]
        for stage in stages:
            with stage:
                work()
        return min(stage.seconds for stage in stages) * rows / len(single)

    return taken(lambda: wide.T @ wide), taken(gradient)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=16_000_000)
    parser.add_argument("--features", type=int, default=125)
    parser.add_argument("--parties", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="Where 20 GB are free.")
    parser.add_argument("--output", type=Path, help="Keep the table as JSON.")
    arguments = parser.parse_args()
    set_memory_limit(0)
    head("stage", "wall, s", "processor, s", "peak so far, MiB")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        layout = Layout(Path(folder))
        layout.prepare()
        made = Synthetic(arguments.rows, arguments.features)
        with shown("making the rows up (part of ingesting them)"):
            for _ in made:
                pass
        source = Source(
            format="synthetic",
            place="made up",
            dimension=arguments.features,
            parts={"train": made},
            classes=tuple(map(str, range(_CLASSES))),
        )
        with (
            shown("ingestion"),
            staged_dataset(
                layout, source, name="synthetic", account="synthetic", visibility=Visibility.PUBLIC
            ) as staged,
        ):
            ref = staged.publish()
        with shown(f"partition over {arguments.parties} parties"):
            places = Even(parties=arguments.parties).assign(arguments.rows)
            assignment = {str(party): positions for party, positions in places.items()}
            shards = write_shards(layout, ref, assignment, "even")
            del places, assignment
        with shown("shards' digests verified"):
            parties = [open_shard(layout, shard) for shard in shards]
        with shown("reading once") as reading:
            for party in parties:
                for _ in party.blocks():
                    pass
        setting = Setting(
            sizes=tuple(party.count for party in parties),
            dimension=arguments.features,
            classes=_CLASSES,
            neighbours=Neighbours.REPLACE_ONE,
        )
        noise = KeyedNoise(b"k" * 32, "benchmark")
        with shown("DP covariance") as covariance:
            algorithm = lookup("projections", "analyze-gauss")(budget=GaussianMu(1.0), components=20)
            fit(algorithm, parties, setting, noise, TrustedSummation(noise))
        with shown(f"{_STEPS} gradient sums") as gradients:
            trainer = lookup("trainers", "noisy-gd")(budget=GaussianMu(1.0), iterations=_STEPS)
            fit(trainer, parties, setting, noise, TrustedSummation(noise))
    if arguments.output is not None:
        keep_table(arguments.output, "none")
    squares, sums = arithmetic(arguments.rows, arguments.features)
    for name, stage, bound in (
        ("covariance", covariance, reading.seconds + squares),
        ("gradient sums", gradients, _STEPS * (reading.seconds + sums)),
    ):
        print(f"{name}: bound {bound:.1f} s, taken {stage.seconds:.1f} s, ratio {stage.seconds / bound:.2f}")


if __name__ == "__main__":
    main()
