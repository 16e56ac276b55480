"""How fast each piece of work is beside what others need for it: one table, alternating, medians, ratios.

``python benchmarks/performance.py [rows …] [--repeat 5]``. Both sides of a row run in turn in one
process after one warm-up, so that a busy machine slows both; what counts is the ratio. What is a process of its own is
run beside an empty one, its children included, with the peak of its memory. Rows are made up, or scikit-learn's digits;
the environment's ``OMP_NUM_THREADS`` applies to both.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Pair:
    """Our work and another's; with ``once``, each is done a single time and nothing before it."""

    ours: Work
    other: Work
    name: str
    once: bool = False


_ROWS: dict[str, tuple[str, Callable[[Path], Pair]]] = {}


def row(name: str, title: str) -> Callable[[Callable[[Path], Pair]], Callable[[Path], Pair]]:
    """Add a row to the table."""

    def add(make: Callable[[Path], Pair]) -> Callable[[Path], Pair]:
        _ROWS[name] = (title, make)
        return make

    return add


def unit_rows(rows: int, dimension: int) -> np.ndarray:
    """Return rows of norm 1 in float32."""
    made = np.random.default_rng(1).standard_normal((rows, dimension), dtype=np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


@row("csv", "CSV to Parquet, 100,000 × 51")
def _csv(folder: Path) -> Pair:
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as pq

    from storage.datasets import write_dataset
    from storage.layout import Layout
    from storage.readers.csv import read_csv
    from storage.refs import Visibility
    from storage.source import ReadOptions

    table = np.random.default_rng(2).standard_normal((100_000, 50))
    labels = np.random.default_rng(3).integers(0, 2, 100_000)
    path, schema = folder / "rows.csv", folder / "rows.yaml"
    np.savetxt(path, np.column_stack([np.clip(table, -5, 5), labels]), delimiter=",", fmt=["%.5f"] * 50 + ["%d"])
    columns = [f"  - {{name: x{place}, type: numeric, range: [-5, 5]}}" for place in range(50)]
    schema.write_text(
        "header: false\ncolumns:\n" + "\n".join(columns) + '\n  - {name: y, type: label, classes: ["0", "1"]}\n'
    )

    def ours() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as root:
            source = read_csv(path, ReadOptions(schema=schema, discover=True))
            layout = Layout(Path(root))
            layout.prepare()
            write_dataset(layout, source, name="rows", account="rows", visibility=Visibility.PUBLIC)

    def other() -> None:
        found = arrow_csv.read_csv(path, read_options=arrow_csv.ReadOptions(autogenerate_column_names=True))
        pq.write_table(found, folder / "other.parquet", compression="zstd", compression_level=1)

    return Pair(ours, other, "pyarrow.csv and pyarrow.parquet")


@row("libsvm", "LIBSVM reading, 50,000 sparse rows")
def _libsvm(folder: Path) -> Pair:
    from scipy import sparse
    from sklearn.datasets import dump_svmlight_file, load_svmlight_file

    from storage.readers.libsvm import read_libsvm
    from storage.source import ReadOptions

    matrix = sparse.random(50_000, 2_000, density=0.01, random_state=4, format="csr")
    path = folder / "rows.svm"
    dump_svmlight_file(matrix, np.random.default_rng(5).integers(0, 2, 50_000), str(path), zero_based=False)

    def ours() -> None:
        for _ in read_libsvm(path, ReadOptions(dimension=2_000, classes=("0", "1"))).parts["train"]:
            pass

    return Pair(ours, lambda: load_svmlight_file(str(path), n_features=2_000), "load_svmlight_file")


def _gradient(rows: int, dimension: int) -> Pair:
    from dpalgos.gradient_sums import GradientSums
    from dpalgos.guarantees import Neighbours, Setting
    from dpalgos.linear import LinearTask
    from dpalgos.losses import Softmax
    from dpalgos.rows import ArrayRows

    features = unit_rows(rows, dimension)
    labels = np.random.default_rng(6).integers(0, 10, rows)
    setting = Setting(sizes=(rows,), dimension=dimension, classes=10, neighbours=Neighbours.REPLACE_ONE)
    sums = GradientSums(task=LinearTask(loss=Softmax()), clip=0.5, scale=2.0**14)
    prepared = sums.prepare(ArrayRows(features.astype(np.float64), labels), setting)
    weights = np.random.default_rng(7).standard_normal((10, dimension)) * 0.1
    single, targets = weights.astype(np.float32), np.eye(10, dtype=np.float32)[labels]

    def other() -> np.ndarray:
        scores = features @ single.T
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        slopes = powers / powers.sum(axis=1, keepdims=True) - targets
        norms = np.linalg.norm(slopes, axis=1, keepdims=True)
        return (slopes * np.minimum(1, 0.5 / np.maximum(norms, 1e-30))).T @ features

    return Pair(lambda: sums.total(weights, prepared, setting), other, "NumPy, float32")


@row("gradient-wide", "one gradient sum, 20,000 × 1,296 × 10")
def _gradient_wide(folder: Path) -> Pair:
    return _gradient(20_000, 1_296)


@row("gradient-long", "one gradient sum, 100,000 × 50 × 10")
def _gradient_long(folder: Path) -> Pair:
    return _gradient(100_000, 50)


def stored_rows(folder: Path, rows: int, dimension: int) -> object:
    """Store made-up rows in a stream and open them."""
    from storage.refs import Labels
    from storage.rowfiles import RowFormat, RowWriter, StoredRows

    layout = RowFormat(dimension, Labels.CLASSES)
    writer = RowWriter(folder / f"rows-{rows}-{dimension}", layout)
    random = np.random.default_rng(8)
    for start in range(0, rows, layout.block_rows):
        count = min(layout.block_rows, rows - start)
        features = random.standard_normal((count, dimension), dtype=np.float32)
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        writer.write(layout.encode(features, (features[:, 0] > 0).astype(np.int32)))
    written = writer.close()
    return StoredRows.open(folder / f"rows-{rows}-{dimension}", layout, written)


@row("covariance", "covariance of 70,000 × 784 stored rows")
def _covariance(folder: Path) -> Pair:
    from dpalgos.guarantees import GaussianMu, Neighbours, Setting
    from dpalgos.registry import lookup

    rows = stored_rows(folder, 70_000, 784)
    setting = Setting(sizes=(70_000,), dimension=784, classes=2, neighbours=Neighbours.REPLACE_ONE)
    algorithm = lookup("projections", "analyze-gauss")(budget=GaussianMu(1.0), components=20)
    held = np.concatenate([features for features, _ in rows.blocks()]).astype(np.float64)
    return Pair(
        lambda: algorithm.contribution(algorithm.initial(setting), rows, setting),
        lambda: held.T @ held,
        "NumPy in memory, float64",
    )


@row("dp-pca", "DP-PCA, 20,000 × 784 to 20")
def _dp_pca(folder: Path) -> Pair:
    from sklearn.decomposition import PCA

    from dpalgos.algorithms import fit
    from dpalgos.guarantees import GaussianMu, Neighbours, Setting
    from dpalgos.keystream import KeyedNoise
    from dpalgos.registry import lookup
    from dpalgos.rows import ArrayRows
    from dpalgos.summation import TrustedSummation

    features = unit_rows(20_000, 784).astype(np.float64)
    rows = ArrayRows(features, np.zeros(20_000, dtype=np.int64))
    setting = Setting(sizes=(20_000,), dimension=784, classes=2, neighbours=Neighbours.REPLACE_ONE)
    algorithm = lookup("projections", "analyze-gauss")(budget=GaussianMu(1.0), components=20)
    noise = KeyedNoise(b"k" * 32, "benchmark")
    return Pair(
        lambda: fit(algorithm, [rows], setting, noise, TrustedSummation(noise)),
        lambda: PCA(20, svd_solver="covariance_eigh").fit(features),
        "scikit-learn's PCA, not private",
    )


@row("hog", "HOG, 2,000 images of 28 × 28")
def _hog(folder: Path) -> Pair:
    from skimage.feature import hog

    from dpalgos.registry import lookup

    images = np.random.default_rng(9).random((2_000, 784))
    made = lookup("projections", "hog")()._features(784)

    def other() -> None:
        for image in images:
            hog(image.reshape(28, 28), pixels_per_cell=(4, 4), cells_per_block=(2, 2))

    return Pair(lambda: made.transform(images), other, "scikit-image")


@row("smo", "SMO, 5,000 rows of 22 features, one in ten of the class, Gaussian kernel")
def _smo(folder: Path) -> Pair:
    from sklearn.svm import SVC

    from dpalgos.kernels import GaussianKernel
    from dpalgos.smo.solver import solve
    from dpalgos.smo.working_sets import SecondOrder

    random = np.random.default_rng(12)
    signs = np.where(random.random(5_000) < 0.1, 1.0, -1.0)
    features = random.normal(size=(5_000, 22)) + 0.4 * signs[:, None]
    kernel, rule = GaussianKernel(1 / 22), SecondOrder()
    return Pair(
        lambda: solve(kernel, features, signs, cost=1.0, tolerance=1e-3, rule=rule, shrinking=True),
        lambda: SVC(C=1.0, gamma=1 / 22, tol=1e-3, cache_size=200).fit(features, signs),
        "LIBSVM (scikit-learn's SVC)",
    )


@row("charge", "a charge of ten releases, high-water marks included")
def _charge(folder: Path) -> Pair:
    import itertools
    import sqlite3

    from dpalgos.guarantees import GaussianMu, Guarantee, Neighbours, Numerics
    from storage.ledger.charges import Cap, PlanRequest, ReleaseCharge
    from storage.ledger.database import open_database
    from storage.ledger.ledger import Ledger
    from tasks.accounts.budget import AccountingPolicy

    (folder / "private").mkdir()
    ledger = Ledger(open_database(folder / "ledger.sqlite", marks=folder / "marks"), AccountingPolicy())
    ledger.open_account("a", Cap(5.0, 1e-5))
    losses = (GaussianMu(0.001),)
    proved = Guarantee(losses=losses, neighbours=Neighbours.REPLACE_ONE, numerics=Numerics.EXACT).to_json()
    plain, numbers = sqlite3.connect(folder / "plain.sqlite"), itertools.count()
    plain.execute("CREATE TABLE entries (content TEXT)")

    def ours() -> None:
        number = next(numbers)
        releases = tuple(ReleaseCharge(f"{number}-{party}", (str(party),), proved) for party in range(10))
        ledger.charge(PlanRequest("a", "even", releases, 1e-7), {str(party): "key" for party in range(10)})

    def other() -> None:
        with plain:
            plain.execute("INSERT INTO entries VALUES ('x')")

    return Pair(ours, other, "one commit of SQLite")


@row("gaussian", "300,000 rounded Gaussians")
def _gaussian(folder: Path) -> Pair:
    from dpalgos.keystream import KeyedNoise
    from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian

    law, noise, random = RoundedGaussian(1e5), KeyedNoise(b"k" * 32, "benchmark"), np.random.default_rng(10)
    value = np.arange(10)
    return Pair(
        lambda: law.sample(300_000, noise.stream("draw", value)),
        lambda: np.rint(random.standard_normal(300_000) * 1e5).astype(np.int64),
        "NumPy's normals, rounded",
    )


def _unitball(*arguments: str, root: Path | None = None) -> int:
    """Run the command line as a process of its own; return the peak of its memory in bytes."""
    environment = {**os.environ, **({} if root is None else {"UNITBALL_ROOT": str(root)})}
    command = [sys.executable, "-c", "from deployments.cli import main; main()", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"unitball {' '.join(arguments)} ended with {process.returncode}")
    return used.ru_maxrss * 1024


def _nothing() -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True)


_EMPTY = "an empty process"
_TRAIN = ("train", "--dataset", "digits", "--algorithm", "noisy-gd")


@row("help", "unitball --help")
def _help(folder: Path) -> Pair:
    return Pair(lambda: _unitball("--help"), _nothing, _EMPTY)


@row("algorithms", "unitball algorithms")
def _algorithms(folder: Path) -> Pair:
    return Pair(lambda: _unitball("algorithms", root=folder), _nothing, _EMPTY)


@row("train-new", "unitball train on digits in a new root, engine included")
def _train_new(folder: Path) -> Pair:
    def ours() -> int:
        with tempfile.TemporaryDirectory(dir=folder) as root:
            return _unitball(*_TRAIN, "--epsilon", "1", root=Path(root))

    return Pair(ours, _nothing, _EMPTY)


@row("train", "unitball train on digits in a used root, engine included")
def _train(folder: Path) -> Pair:
    import itertools

    budgets = itertools.count(1)
    return Pair(lambda: _unitball(*_TRAIN, "--epsilon", str(next(budgets)), root=folder), _nothing, _EMPTY)


@row("million", "noisy-gd on 1,000,000 × 50, process and engine included, rows ingested before")
def _million(folder: Path) -> Pair:
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(13)
    kind = pa.list_(pa.float32(), 50)
    columns = pa.schema([("features", kind), ("label", pa.string())])
    with pq.ParquetWriter(folder / "made.parquet", columns) as writer:
        for _ in range(10):
            features = random.standard_normal((100_000, 50), dtype=np.float32)
            labels = np.where(features[:, 0] + 0.5 * random.standard_normal(100_000) > 0, "a", "b")
            listed = pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), 50)
            writer.write_table(pa.table([listed, pa.array(labels)], schema=columns))
    root, made = folder / "root", str(folder / "made.parquet")
    _unitball("ingest", "made", "--path", made, "--public", "--format", "parquet", root=root)
    asked = ("train", "--dataset", "made", "--algorithm", "noisy-gd", "--epsilon", "1")
    return Pair(lambda: _unitball(*asked, root=root), _nothing, _EMPTY, once=True)


@row("flow", "a further flow in a warm process, digits")
def _flow(folder: Path) -> Pair:
    import itertools

    os.environ["UNITBALL_ROOT"] = str(folder)
    from tasks.runtime.engine import prepare_engine

    prepare_engine(folder)
    from flows.federated_training import train
    from tasks.planning.configuration import TrainingConfig
    from tasks.runtime.engine import quick_flows

    budgets = itertools.count(1)

    def ours() -> None:
        asked = {"dataset": "digits", "algorithm": "noisy-gd", "epsilon": next(budgets)}
        with quick_flows():
            train(TrainingConfig.model_validate(asked))

    return Pair(ours, lambda: None, "nothing")


@dataclass(frozen=True, slots=True)
class Taken:
    """Medians of one side of a row: seconds, and the most memory that a process of its own took, in bytes."""

    wall: float
    processor: float
    peak: int


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + used.ru_utime + used.ru_stime


def measured(pair: Pair, repeat: int) -> tuple[Taken, Taken]:
    """Return the medians of both sides, run in turn after a warm-up."""
    sides = (pair.ours, pair.other)
    found: tuple[list[Taken], list[Taken]] = ([], [])
    if not pair.once:
        for work in sides:
            work()
    for _ in range(1 if pair.once else repeat):
        for work, taken in zip(sides, found, strict=True):
            wall, processor = time.perf_counter(), _processor()
            peak = work()
            taken.append(
                Taken(time.perf_counter() - wall, _processor() - processor, peak if isinstance(peak, int) else 0)
            )
    ours, other = (
        Taken(
            statistics.median(one.wall for one in taken),
            statistics.median(one.processor for one in taken),
            max(one.peak for one in taken),
        )
        for taken in found
    )
    return ours, other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", default=list(_ROWS))
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    print("| work | ours, s | processor, s | peak, MiB | other | its s | ratio | ratio of processor time |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in arguments.rows:
        title, make = _ROWS[name]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            pair = make(Path(folder))
            ours, other = measured(pair, arguments.repeat)
        ratios = [ours.wall / other.wall, ours.processor / other.processor if other.processor > 0 else math.inf]
        shown = [f"{value:.2f}" if value < 1e4 else "–" for value in ratios]
        peak = f"{ours.peak / 2**20:.0f}" if ours.peak else ""
        numbers = [f"{ours.wall:.4g}", f"{ours.processor:.4g}", peak, pair.name, f"{other.wall:.4g}", *shown]
        print(f"| {title} | {' | '.join(numbers)} |", flush=True)


if __name__ == "__main__":
    main()
