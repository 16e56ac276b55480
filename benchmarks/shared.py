"""Shared parts of benchmarks: finding data, timing a stage, tables, line plots. NumPy is all that must be there."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def data(folder: str) -> Path:
    """Return a folder of the user's data sets."""
    place = os.environ.get("UNITBALL_DATA")
    if not place:
        sys.exit(f"UNITBALL_DATA is not set: name the folder that holds {folder}/")
    return Path(place) / folder


def mnist(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return MNIST's images, (n, 784) of bytes, and their labels; ``part`` is ``train`` or ``t10k``."""
    files = ((f"{part}-images-idx3-ubyte.gz", 16), (f"{part}-labels-idx1-ubyte.gz", 8))
    pixels, labels = (
        np.frombuffer(gzip.decompress((data("mnist") / name).read_bytes()), np.uint8, offset=header)
        for name, header in files
    )
    return pixels.reshape(-1, 784), labels.astype(np.int64)


def unit_blocks(rows: int, dimension: int, block: int) -> Iterator[np.ndarray]:
    """Yield synthetic rows of norm 1 in float32, block by block."""
    random = np.random.default_rng(1)
    for start in range(0, rows, block):
        made = random.standard_normal((min(block, rows - start), dimension), dtype=np.float32)
        yield made / np.linalg.norm(made, axis=1, keepdims=True)


def unit_rows(rows: int, dimension: int) -> np.ndarray:
    """Return such rows at once."""
    return next(unit_blocks(rows, dimension, rows))


def stored_rows(folder: Path, rows: int, dimension: int):
    """Store such rows in a stream, labelled by their first feature, and open them."""
    from storage.refs import Labels
    from storage.rowfiles import RowFormat, RowWriter, StoredRows

    layout = RowFormat(dimension, Labels.CLASSES)
    writer = RowWriter(folder, layout)
    for block in unit_blocks(rows, dimension, layout.block_rows):
        writer.write(layout.encode(block, (block[:, 0] > 0).astype(np.int32)))
    return StoredRows.open(folder, layout, writer.close())


def write_schema(path: Path, columns: int, bounds: tuple[float, float], classes: Sequence[str], **more: object) -> None:
    """Write a schema of so many numbers x0, x1, … in a range, and of the label y."""
    numbers = [{"name": f"x{number}", "type": "numeric", "range": list(bounds)} for number in range(columns)]
    # JSON is YAML.
    label = {"name": "y", "type": "label", "classes": list(classes)}
    path.write_text(json.dumps({**more, "columns": [*numbers, label]}))


def write_lists(path: Path, features: np.ndarray, labels: object) -> None:
    """Write rows as a Parquet file of lists, with their labels."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    listed = pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), features.shape[1])
    pq.write_table(pa.table({"features": listed, "label": pa.array(labels)}), path, row_group_size=100_000)


class Stage:
    """Measure a block: its seconds, its processor seconds, and the process's peak in MiB after and beyond before."""

    def __enter__(self) -> Stage:
        self._before = self._peak()
        self._wall, self._processor = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.seconds = time.perf_counter() - self._wall, time.process_time() - self._processor
        self.peak = self._peak()
        self.taken = self.peak - self._before

    @staticmethod
    def _peak() -> float:
        # Of this program alone: what getrusage says, a process inherits from the one that started it.
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def in_a_process(script: str, *arguments: object) -> dict[str, float]:
    """Return what a script prints as JSON in a separate process.

    As behind the door: blocks go over the cores, a matrix product does not.
    """
    command = [sys.executable, script, *map(str, arguments)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=alone).stdout
    return json.loads(output.splitlines()[-1])


_PRINTED: list[list[str]] = []
"""The table that was printed last: its columns, then its rows."""


def line(*cells: object) -> None:
    """Print a line of a Markdown table."""
    _PRINTED.append(list(map(str, cells)))
    print(f"| {' | '.join(_PRINTED[-1])} |", flush=True)


def head(*cells: object) -> None:
    """Print the head of a Markdown table."""
    _PRINTED.clear()
    line(*cells)
    print("|" + "---|" * len(cells), flush=True)


def keep_table(path: Path, seeds: str) -> None:
    """Write the table that was printed last, with what made it: ``benchmarks/render.py`` writes it into the pages."""
    columns, *rows = _PRINTED
    keep(path, {"columns": columns, "rows": rows}, seeds)


def keep(path: Path, found: Mapping[str, Any], seeds: str) -> None:
    """Write a table's columns and rows, or its cells, and what made them; the last list has a line for each."""
    # Where it is written, and what it keeps between runs, is not what made it.
    places = ("--output", "--keep", "--peers-in", "--plot")
    asked = [word for before, word in pairwise(["", *sys.argv[1:]]) if before not in places and word not in places]
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *asked])
    # Cells of earlier runs stay in the file, and so does what made them.
    earlier = json.loads(path.read_text("utf-8")).get("command", "") if "cells" in found and path.exists() else ""
    said = {
        "command": "; ".join(dict.fromkeys([*filter(None, earlier.split("; ")), command])),
        "made": made(),
        "machine": f"{os.cpu_count()} cores, {processor()}",
        "seeds": seeds,
        "source": "measured",
    }
    *given, (name, each) = {**said, **found}.items()
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)},\n" for key, value in given]
    every = ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in each)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(f"{{\n{''.join(lines)} {json.dumps(name)}: [\n  {every}\n ]\n}}\n", "utf-8")
    fresh.replace(path)


def made() -> str:
    """Return the date of today and the commit that is checked out."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return f"{date.today().isoformat()}, {commit.stdout.strip() or 'no commit'}"


def cells_of(path: Path) -> list[dict[str, Any]]:
    """Return the cells that a file of results holds, none where there is no file."""
    return list(json.loads(path.read_text("utf-8"))["cells"]) if path.exists() else []


def processor() -> str:
    """Return the name of this machine's processor."""
    names = [one for one in Path("/proc/cpuinfo").read_text().splitlines() if one.startswith("model name")]
    return names[0].split(":", 1)[1].strip() if names else "an unknown processor"


def draw(table: pd.DataFrame, path: Path, *, style: object = None, subplots: object = False, **labels: object) -> None:
    """Draw the columns of a table over its index."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "unitball"
    axes = table.plot(style=style, subplots=subplots, layout=(1, -1), figsize=(8, 4.5), grid=True)
    for each in np.atleast_1d(axes).flat:
        each.set(**labels)
        # Below the axes, where it hides no line.
        each.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    figure = np.atleast_1d(axes).flat[0].figure
    figure.tight_layout()
    figure.savefig(path, dpi=120, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
