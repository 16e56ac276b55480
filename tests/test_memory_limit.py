"""The memory of a process with four times as many rows as it may keep: measured, in a child of its own."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpalgos import resources as memory
from dpalgos import rows as dpalgos_rows
from dpalgos.guarantees import GaussianMu, Neighbours, Setting
from dpalgos.integer_sums import GradientSums
from dpalgos.linear import LinearTask
from dpalgos.losses import Softmax
from dpalgos.models import LinearModel
from dpalgos.projections.covariance import AnalyzeGauss
from dpalgos.resources import claim, memory_limit, reserve, reserve_some, set_memory_limit
from storage.confined import kept_memory
from storage.refs import Labels
from storage.rowfiles import RowFormat, RowWriter, StoredRows, WrittenRows
from tasks.tracking.predicted_files import predict_file
from tasks.tracking.sklearn_export import to_sklearn
from tests.support import forks
from tests.support.nights import by_night

_ROWS, _FEATURES, _CLASSES = 140_000, 250, 3
_LIMIT = 4 * _ROWS * _FEATURES // 4
# Blocks of 8,192 rows (8 MB) on their way, each read, decoded and encoded, take 20 to 50 MiB; all rows encoded, 137.
_BOUND = 75 * 2**20


def _peak() -> int:
    """Return the largest resident size since it was last forgotten, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _taken(folder: Path, *, keep: bool) -> dict[str, int]:
    """Return the bytes that each pass over the rows takes on top of what the process held before."""
    few, many = (_opened(folder / name) for name in ("few", "many"))
    dpalgos_rows.cores = lambda: 2
    if keep:
        setattr(GradientSums, "_room", lambda self, rows, setting: (memory.Reserved(), rows.count))  # noqa: B010
    set_memory_limit(kept_memory())
    setting = Setting(sizes=(_ROWS,), dimension=_FEATURES, classes=_CLASSES, neighbours=Neighbours.REPLACE_ONE)
    covariance = AnalyzeGauss(budget=GaussianMu(1.0))
    sums = GradientSums(task=LinearTask(loss=Softmax()), clip=0.5, scale=2.0**14)
    weights = np.zeros((_CLASSES, _FEATURES))
    model = LinearModel(np.eye(_CLASSES, _FEATURES))
    names = ("a", "b", "c")
    pipeline = to_sklearn(normalisation="clip", maps=[], model=model, classes=names, dimension=_FEATURES)

    def covered(rows: StoredRows) -> object:
        return covariance.contribution(covariance.initial(setting), rows, setting)

    def descended(rows: StoredRows) -> object:
        return sums.total(weights, sums.prepare(rows, setting), setting)

    def predicted(name: str) -> object:
        return predict_file(pipeline, folder / name / "new.parquet", folder / name / f"predicted-{keep}.parquet")

    passes = {
        "covariance": (partial(covered, few), partial(covered, many)),
        "gradients": (partial(descended, few), partial(descended, many)),
        "prediction": (partial(predicted, "few"), partial(predicted, "many")),
    }
    found = {}
    for name, (warm, passing) in passes.items():
        # Compiled code, library pools and threads are there before what rows take is measured.
        warm()
        # 5 forgets the peak: it starts at what is resident now.
        Path("/proc/self/clear_refs").write_text("5")
        before = _peak()
        passing()
        found[name] = _peak() - before
    return found


def _store(folder: Path, rows: int) -> None:
    """Write rows as they are stored, and the same into a file that somebody asks predictions of."""
    layout, random = RowFormat(_FEATURES, Labels.CLASSES), np.random.default_rng(1)
    # Random rows of one block, again and again: what they hold changes no size.
    block = random.standard_normal((layout.block_rows, _FEATURES), dtype=np.float32) / 16
    batch = layout.encode(block, random.integers(0, _CLASSES, len(block)).astype(np.int32))
    writer = RowWriter(folder / "stored", layout)
    with pq.ParquetWriter(folder / "new.parquet", batch.schema, compression="lz4") as new:
        for start in range(0, rows, len(block)):
            part = batch.slice(0, min(len(block), rows - start))
            writer.write(part)
            new.write_table(pa.Table.from_batches([part]))
    (folder / "written.json").write_text(json.dumps(asdict(writer.close())))


def _opened(folder: Path) -> StoredRows:
    written = WrittenRows(**json.loads((folder / "written.json").read_text()))
    return StoredRows.open(folder / "stored", RowFormat(_FEATURES, Labels.CLASSES), written)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of many rows, and of few for warming up."""
    folder = tmp_path_factory.mktemp("rows")
    for name, count in (("few", 3 * 8192), ("many", _ROWS)):
        (folder / name).mkdir()
        _store(folder / name, count)
    return folder


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux forgets a peak when asked")
@pytest.mark.parametrize("keep", by_night([False, True], {True}), ids=["limit", "mutant-keeps-all"])
def test_a_pass_takes_blocks_and_not_all_rows(rows: Path, keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITBALL_MEMORY", str(_LIMIT))
    assert 4 * _LIMIT == 4 * _ROWS * _FEATURES
    taken = forks.in_child(partial(_taken, rows, keep=keep))
    largest = max(taken, key=lambda name: taken[name])
    shown = {name: f"{size / 2**20:.0f} MiB" for name, size in taken.items()}
    assert (taken[largest] > _BOUND) == keep, shown
    if keep:
        assert largest == "gradients", shown


@pytest.fixture
def _small() -> Iterator[None]:
    limit = memory_limit()
    set_memory_limit(100)
    yield
    set_memory_limit(limit)


@pytest.mark.usefixtures("_small")
def test_claims_take_turns_and_leave_nothing_to_keep() -> None:
    order: list[str] = []
    first, second = threading.Event(), threading.Event()

    def other(size: int, there: threading.Event) -> None:
        with claim(size):
            order.append(f"{size} in")
            there.set()

    waiting = threading.Thread(target=other, args=(50, second))
    with claim(60):
        beside = threading.Thread(target=other, args=(40, first))
        beside.start()
        assert first.wait(300)
        beside.join()
        waiting.start()
        assert not second.wait(0.05)
        assert reserve(41) is None
        assert reserve(40) is not None
        order.append("60 out")
    waiting.join(300)
    assert order == ["40 in", "60 out", "50 in"]
    with claim(1000):
        assert reserve(1) is None
    assert reserve(100) is not None


@pytest.mark.usefixtures("_small")
def test_some_rows_take_their_share_of_half_of_what_is_free() -> None:
    first, rows = reserve_some(3, 100, 1.0)
    assert (first is None, rows) == (False, 16), "48 of 100 bytes"
    second, rows = reserve_some(3, 100, 0.5)
    assert (second is None, rows) == (False, 4), "half of half of 52"
    assert reserve_some(3, 1, 1.0)[1] == 1, "no more than there are"
    assert reserve(41) is None
    del first
    assert reserve(41) is not None, "given back"
    with claim(60):
        assert reserve_some(15, 100, 1.0) == (None, 0)
    assert reserve_some(3, 100, 0.0) == (None, 0)


@pytest.mark.usefixtures("_small")
def test_a_claim_is_given_back_where_it_fails() -> None:
    with pytest.raises(ZeroDivisionError), claim(100):
        _ = 1 / (os.getpid() - os.getpid())
    with claim(100):
        pass
