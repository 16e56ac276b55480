"""Speed of each piece of work compared with other libraries: one table, alternating, medians, ratios.

``python benchmarks/performance.py [rows …] [--repeat 5] [--peers PYTHON] [--json FILE]``. All sides of a row run in
turn after one warm-up, so that a busy machine slows all; what counts is the ratio. Libraries that Unitball does not
need run in a separate environment (``benchmarks/peers.py``), whose interpreter ``--peers`` names; without it their
lines are left out. A separate process is compared with an empty one, its children included, with its peak memory. Rows
are synthetic, or scikit-learn's digits, or read from ``UNITBALL_DATA``; the environment's ``OMP_NUM_THREADS`` applies
to all.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import math
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from peers import PEERS
from scipy import sparse
from scipy.sparse import csr_matrix
from shared import head, line, stored_rows, unit_rows, write_lists, write_schema
from sklearn.datasets import dump_svmlight_file, load_svmlight_file
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.svm import SVC, LinearSVC
from threadpoolctl import threadpool_limits

from dpalgos.accounting.spending import RESERVED
from dpalgos.algorithms import TrustedSummation, fit
from dpalgos.guarantees import GaussianMu, Guarantee, Neighbours, Numerics, Setting
from dpalgos.integer_sums import GradientSums
from dpalgos.kernels import GaussianKernel, LinearKernel
from dpalgos.keystream import KeyedNoise
from dpalgos.linear import LinearTask
from dpalgos.losses import Softmax
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.models import LinearModel
from dpalgos.projections.centring import CentredRows
from dpalgos.published.smo import SecondOrder, solve
from dpalgos.registry import lookup
from dpalgos.resources import memory_limit, set_memory_limit
from dpalgos.rows import ArrayRows, MappedRows
from storage.encoder import TableEncoder
from storage.layout import Layout
from storage.ledger.charges import Cap, PlanRequest, ReleaseCharge
from storage.ledger.database import Memory, open_database
from storage.ledger.ledger import Ledger
from storage.readers.csv import read_csv
from storage.readers.libsvm import read_libsvm
from storage.refs import Labels, Visibility
from storage.rowfiles import RowFormat, RowWriter, StoredRows
from storage.source import ReadOptions, read_source
from storage.staging import staged_dataset
from tasks.planning.configuration import TrainingConfig

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Beside:
    """Our work and others', by name; with ``once``, each is done a single time and nothing before it."""

    ours: Work
    others: dict[str, Work]
    once: bool = False


_ROWS: dict[str, tuple[str, Callable[[Path], Beside]]] = {}


def row(name: str, title: str) -> Callable[[Callable[[Path], Beside]], Callable[[Path], Beside]]:
    """Add a row to the table."""

    def add(make: Callable[[Path], Beside]) -> Callable[[Path], Beside]:
        _ROWS[name] = (title, make)
        return make

    return add


@row("csv", "CSV to Parquet, 100,000 × 51")
def _csv(folder: Path) -> Beside:

    table = np.random.default_rng(2).standard_normal((100_000, 50))
    labels = np.random.default_rng(3).integers(0, 2, 100_000)
    path, schema = folder / "rows.csv", folder / "rows.yaml"
    np.savetxt(path, np.column_stack([np.clip(table, -5, 5), labels]), delimiter=",", fmt=["%.5f"] * 50 + ["%d"])
    write_schema(schema, 50, (-5, 5), ("0", "1"), header=False)

    def ours() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as root:
            source = read_csv(path, ReadOptions(schema=schema, discover=True))
            layout = Layout(Path(root))
            layout.prepare()
            with staged_dataset(layout, source, name="rows", account="rows", visibility=Visibility.PUBLIC) as staged:
                staged.publish()

    def other() -> None:
        found = arrow_csv.read_csv(path, read_options=arrow_csv.ReadOptions(autogenerate_column_names=True))
        pq.write_table(found, folder / "other.parquet", compression="zstd", compression_level=1)

    return Beside(ours, {"pyarrow.csv and pyarrow.parquet": other})


@row("libsvm", "LIBSVM reading, 50,000 sparse rows")
def _libsvm(folder: Path) -> Beside:

    matrix = sparse.random(50_000, 2_000, density=0.01, random_state=4, format="csr")
    path = folder / "rows.svm"
    dump_svmlight_file(matrix, np.random.default_rng(5).integers(0, 2, 50_000), str(path), zero_based=False)

    def ours() -> None:
        for _ in read_libsvm(path, ReadOptions(dimension=2_000, classes=("0", "1"))).parts["train"]:
            pass

    return Beside(ours, {"load_svmlight_file": lambda: load_svmlight_file(str(path), n_features=2_000)})


def _gradient(rows: int, dimension: int) -> Beside:

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

    return Beside(lambda: sums.total(weights, prepared, setting), {"NumPy, float32": other})


row("gradient-wide", "one gradient sum, 20,000 × 1,296 × 10")(lambda folder: _gradient(20_000, 1_296))


row("gradient-long", "one gradient sum, 100,000 × 50 × 10")(lambda folder: _gradient(100_000, 50))


# Categories of each column of a hospital's table, and its numbers; its rows, and whose they are.
_CATEGORIES, _NUMBERS, _VISITS, _PATIENTS = (72, 70, 68, 60, 60, 30, 26, 21, 17, 10, 10, *[3] * 25), 8, 101_766, 71_518


def _one_hot_rows(folder: Path) -> StoredRows:
    """Store rows of one category of each column and some numbers, of people with up to six rows, and open them."""
    random = np.random.default_rng(14)
    whose = np.sort(np.concatenate([np.arange(_PATIENTS), random.integers(0, _PATIENTS, _VISITS - _PATIENTS)]))
    each = np.bincount(whose)[whose].astype(np.int32)
    ends = np.cumsum(_CATEGORIES)
    layout = RowFormat(int(ends[-1]) + _NUMBERS, Labels.CLASSES, shares=True)
    writer = RowWriter(folder, layout)
    for start in range(0, _VISITS, layout.block_rows):
        count = min(layout.block_rows, _VISITS - start)
        features = np.zeros((count, layout.dimension))
        for size, end in zip(_CATEGORIES, ends, strict=True):
            # Some categories are rare.
            features[np.arange(count), end - size + (size * random.random(count) ** 2).astype(int)] = 1.0
        features[:, ends[-1] :] = random.random((count, _NUMBERS))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        part = slice(start, start + count)
        writer.write(layout.encode(features, random.integers(0, 3, count), (each[part], whose[part].astype(np.int32))))
    return StoredRows.open(folder, layout, writer.close(), records=_PATIENTS)


@row("png", "reading 10,000 PNG images of 28 × 28, checked")
def _png(folder: Path) -> Beside:
    from PIL import Image

    pixels = np.random.default_rng(15).integers(0, 256, (10_000, 28, 28), dtype=np.uint8)
    files = [folder / "images" / str(number % 10) / f"{number}.png" for number in range(len(pixels))]
    for file, image in zip(files, pixels, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)

    def ours() -> None:
        for _ in read_source("images", folder / "images", ReadOptions(discover=True)).parts["train"]:
            pass

    return Beside(ours, {"Pillow": lambda: [np.asarray(Image.open(file)) for file in files]})


@row("predict", "predicting 1,000,000 table rows of 20 columns, Parquet to Parquet")
def _predict(folder: Path) -> Beside:
    from tasks.tracking.predicted_files import predict_file
    from tasks.tracking.sklearn_export import to_sklearn

    random, names = np.random.default_rng(16), [f"x{number}" for number in range(20)]
    rows = random.random((1_000_000, 20))
    source = folder / "rows.parquet"
    pq.write_table(pa.table(dict(zip(names, rows.T, strict=True))), source)
    columns: list[dict[str, object]] = [{"name": name, "type": "numeric", "range": [0, 1]} for name in names]
    encoder = TableEncoder({"columns": [*columns, {"name": "y", "type": "label", "classes": ["no", "yes"]}]})
    width = encoder.declared.dimension
    model = LinearModel(random.standard_normal((1, width)))
    ours = to_sklearn(
        normalisation="unit-norm", maps=[], model=model, classes=("no", "yes"), dimension=width, encoder=encoder
    )
    theirs = make_pipeline(MinMaxScaler(), LinearSVC()).fit(rows[:1000], rows[:1000, 0] > 0.5)

    def other() -> None:
        table = pq.read_table(source).to_pandas().to_numpy()
        pq.write_table(pa.table({"prediction": theirs.predict(table)}), folder / "other.parquet")

    numbers = itertools.count()
    return Beside(
        lambda: predict_file(ours, source, folder / f"predicted-{next(numbers)}.parquet"),
        {"scikit-learn, all rows in memory": other},
    )


@row("wide-people", "20 steps of noisy-gd on 101,766 × 527 centred one-hot rows of 71,518 people, 2 GB for rows")
def _wide_people(folder: Path) -> Beside:

    stored = _one_hot_rows(folder / "rows")
    dimension = stored.dimension
    centred = MappedRows(stored, [CentredRows(mean=np.full(dimension, 0.02)).transform], dimension)
    setting = Setting(sizes=(_PATIENTS,), dimension=dimension, classes=3, rows_per_person=64)
    algorithm = lookup("trainers", "noisy-gd")(budget=GaussianMu(0.2), iterations=20, mean_weight=1.0)
    noise, found = KeyedNoise(b"k" * 32, "benchmark"), {}

    def fitted(memory: int) -> None:
        limit = memory_limit()
        set_memory_limit(memory)
        try:
            found[memory] = fit(algorithm, [centred], setting, noise, TrustedSummation(noise)).weights
        finally:
            set_memory_limit(limit)
        assert np.array_equal(found[memory], found.setdefault(0, found[memory])), "kept or not: the same model"

    return Beside(lambda: fitted(2 * 10**9), {"encoded anew at every step": lambda: fitted(0)})


@row("covariance", "covariance of 70,000 × 784 stored rows")
def _covariance(folder: Path) -> Beside:

    rows = stored_rows(folder / "rows", 70_000, 784)
    setting = Setting(sizes=(70_000,), dimension=784, classes=2, neighbours=Neighbours.REPLACE_ONE)
    algorithm = lookup("projections", "analyze-gauss")(budget=GaussianMu(1.0), components=20)
    single = np.concatenate([features for features, *_ in rows.blocks()])
    double = single.astype(np.float64)
    return Beside(
        lambda: algorithm.contribution(algorithm.initial(setting), rows, setting),
        {
            "NumPy in memory, float64": lambda: double.T @ double,
            "NumPy in memory, float32": lambda: single.T @ single,
        },
    )


@row("dp-pca", "DP-PCA, 20,000 × 784 to 20")
def _dp_pca(folder: Path) -> Beside:

    features = unit_rows(20_000, 784).astype(np.float64)
    rows = ArrayRows(features, np.zeros(20_000, dtype=np.int64))
    setting = Setting(sizes=(20_000,), dimension=784, classes=2, neighbours=Neighbours.REPLACE_ONE)
    algorithm = lookup("projections", "analyze-gauss")(budget=GaussianMu(1.0), components=20)
    noise = KeyedNoise(b"k" * 32, "benchmark")
    return Beside(
        lambda: fit(algorithm, [rows], setting, noise, TrustedSummation(noise)),
        {"scikit-learn's PCA, not private": lambda: PCA(20, svd_solver="covariance_eigh").fit(features)},
    )


def _plain_hog(images: np.ndarray, cell: int, bins: int, out: np.ndarray) -> None:
    """Write the histograms of square images (m, side, side) to out (m, features), blocks of two by two cells."""
    side = images.shape[1]
    cells = np.empty((side // cell, side // cell, bins), np.float32)
    for index in range(len(images)):
        image = images[index]
        cells[:] = 0
        for y in range(side):
            for x in range(side):
                dy = image[y + 1, x] - image[y - 1, x] if 0 < y < side - 1 else np.float32(0)
                dx = image[y, x + 1] - image[y, x - 1] if 0 < x < side - 1 else np.float32(0)
                place = math.floor(math.atan2(dy, dx) * np.float32(bins / math.pi)) % bins
                cells[y // cell, x // cell, place] += math.sqrt(dx * dx + dy * dy)
        at, whole = 0, np.float32(0)
        for top in range(side // cell - 1):
            for left in range(side // cell - 1):
                block = cells[top : top + 2, left : left + 2] / np.float32(cell * cell)
                block = block / np.sqrt((block * block).sum() + np.float32(1e-10))
                block = np.minimum(block, np.float32(0.2))
                block = block / np.sqrt((block * block).sum() + np.float32(1e-10))
                for value in block.flat:
                    out[index, at] = value
                    whole += value * value
                    at += 1
        if whole > 0:
            out[index] /= np.sqrt(whole)


@row("hog", "HOG, 2,000 images of 28 × 28")
def _hog(folder: Path) -> Beside:
    import numba
    from skimage.feature import hog

    images = np.random.default_rng(9).random((2_000, 784))
    made = lookup("projections", "hog")().map_for(784)
    loop = numba.njit(_plain_hog)
    pixels, out = images.astype(np.float32).reshape(-1, 28, 28), np.empty((2_000, made.dimension), np.float32)
    loop(pixels, 4, 9, out)
    assert np.abs(out - made.transform(images)).max() < 1e-5

    shaped = {"pixels_per_cell": (4, 4), "cells_per_block": (2, 2)}
    return Beside(
        lambda: made.transform(images),
        {
            "a plain numba loop, float32": lambda: loop(pixels, 4, 9, out),
            "scikit-image": lambda: [hog(image.reshape(28, 28), **shaped) for image in images],
        },
    )


def _support_vectors(features: Any, signs: np.ndarray, gamma: float | None) -> Beside:

    kernel = LinearKernel() if gamma is None else GaussianKernel(gamma)
    named = {"kernel": "linear"} if gamma is None else {"gamma": gamma}
    return Beside(
        lambda: solve(kernel, features, signs, cost=1.0, tolerance=1e-3, rule=SecondOrder(), shrinking=True),
        {"LIBSVM (scikit-learn's SVC)": lambda: SVC(C=1.0, tol=1e-3, cache_size=200, **named).fit(features, signs)},
    )


@row("smo", "SMO, 5,000 synthetic rows of 22 features, one in ten of the class, Gaussian kernel")
def _smo(folder: Path) -> Beside:
    random = np.random.default_rng(12)
    signs = np.where(random.random(5_000) < 0.1, 1.0, -1.0)
    return _support_vectors(random.normal(size=(5_000, 22)) + 0.4 * signs[:, None], signs, 1 / 22)


row("smo-a1a", "SMO, a1a, linear kernel")(lambda folder: _support_vectors(*_libsvm_set("a1a", 123), None))


row("smo-ijcnn1", "SMO, ijcnn1, Gaussian kernel")(
    lambda folder: _support_vectors(*_libsvm_set("ijcnn1.trn.bz2", 22), 1 / 22)
)


@row("smo-w5a", "SMO, 9,888 × 300 synthetic sparse rows of w5a's shape, 3 % of the class, linear kernel")
def _smo_w5a(folder: Path) -> Beside:

    random = np.random.default_rng(5)
    signs = np.where(random.random(9_888) < 0.03, 1.0, -1.0)
    common = 1 / np.arange(1, 301) ** 0.8
    common *= 12 / common.sum()
    of_class = np.minimum(common * np.exp(0.8 * random.normal(size=300)), 0.9)
    entries = random.random((9_888, 300)) < np.where(signs[:, None] > 0, of_class, common)
    return _support_vectors(csr_matrix(entries.astype(np.float64)), signs, None)


def _libsvm_set(name: str, features: int) -> tuple[np.ndarray, np.ndarray]:

    found = Path(os.environ.get("UNITBALL_DATA", "../shared/data")) / "libsvm" / name
    if not found.exists():
        raise LeftOutError(f"{found} is missing; UNITBALL_DATA names the folder of data sets")
    rows, signs = load_svmlight_file(str(found), n_features=features)
    return rows.toarray(), signs


def _charging(folder: Path, before: int) -> Work:
    """Return what charges ten releases to an account of so many plans."""
    from tasks.accounts.pricing import AccountingPolicy

    folder.mkdir()
    (folder / "private").mkdir()
    ledger = Ledger(
        open_database(folder / "ledger.sqlite", marks=folder / "marks", memory=Memory()), AccountingPolicy()
    )
    ledger.open_account("a", Cap(5.0, 1e-5), deltas={"reserved": RESERVED})
    losses = (GaussianMu(0.001),)
    proved = Guarantee(losses=losses, neighbours=Neighbours.REPLACE_ONE, numerics=Numerics.EXACT).to_json()
    numbers = itertools.count()

    def charge() -> None:
        number = next(numbers)
        releases = tuple(ReleaseCharge(f"{number}-{party}", (str(party),), proved) for party in range(10))
        ledger.charge(PlanRequest("a", "even", releases, 1e-7), {str(party): "key" for party in range(10)})

    for _ in range(before):
        charge()
    return charge


@row("charge", "a charge of ten releases, high-water marks included")
def _charge(folder: Path) -> Beside:

    plain = sqlite3.connect(folder / "plain.sqlite")
    plain.execute("CREATE TABLE entries (content TEXT)")

    def commit() -> None:
        with plain:
            plain.execute("INSERT INTO entries VALUES ('x')")

    return Beside(_charging(folder / "ours", 0), {"one commit of SQLite": commit})


row("charge-growth", "a charge of ten releases after 1,000 plans")(
    lambda folder: Beside(_charging(folder / "many", 1_000), {"the same after 10": _charging(folder / "few", 10)})
)


@row("gaussian", "300,000 rounded Gaussians")
def _gaussian(folder: Path) -> Beside:

    distribution, noise, random = RoundedGaussian(1e5), KeyedNoise(b"k" * 32, "benchmark"), np.random.default_rng(10)
    value = np.arange(10)
    return Beside(
        lambda: distribution.sample(300_000, noise.stream("draw", value)),
        {"NumPy's normals, rounded": lambda: np.rint(random.standard_normal(300_000) * 1e5).astype(np.int64)},
    )


def _unitball(*arguments: str, root: Path | None = None) -> int:
    """Run the command line as a separate process; return the peak of its memory in bytes."""
    environment = {**os.environ, **({} if root is None else {"UNITBALL_ROOT": str(root)})}
    command = [sys.executable, "-c", "from deployments.cli import main; main()", *arguments]
    # Started by an empty process: what the starter holds counts as held by what it starts.
    starter = [sys.executable, "-I", "-S", "-c", _STARTER]
    done = subprocess.run([*starter, *command], stdout=subprocess.PIPE, env=environment, check=True)
    return int(done.stdout) * 1024


_STARTER = """import os, sys
silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
_, status, used = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=silent), 0)
print(used.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
_EMPTY = {"an empty process": lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)}
_TRAIN = ("train", "--dataset", "digits", "--algorithm", "noisy-gd")


row("help", "unitball --help")(lambda folder: Beside(lambda: _unitball("--help"), _EMPTY))


row("algorithms", "unitball algorithms")(lambda folder: Beside(lambda: _unitball("algorithms", root=folder), _EMPTY))


@row("train-new", "unitball train on digits in a new root, engine included")
def _train_new(folder: Path) -> Beside:
    def ours() -> int:
        with tempfile.TemporaryDirectory(dir=folder) as root:
            return _unitball(*_TRAIN, "--epsilon", "1", root=Path(root))

    return Beside(ours, _EMPTY)


@row("train", "unitball train on digits in a used root, engine included")
def _train(folder: Path) -> Beside:

    budgets = itertools.count(1)
    return Beside(lambda: _unitball(*_TRAIN, "--epsilon", str(next(budgets)), root=folder), _EMPTY)


@row("describe", "unitball describe on 100,000 × 45 in a used root, rows ingested before")
def _describe(folder: Path) -> Beside:
    table = pd.DataFrame(
        np.random.default_rng(17).random((100_000, 45)).round(4), columns=[f"x{number}" for number in range(45)]
    )
    table["y"] = np.where(table["x0"] > 0.5, "a", "b")
    rows, schema, root = folder / "rows.csv", folder / "rows.yaml", folder / "root"
    table.to_csv(rows, index=False)
    write_schema(schema, 45, (0, 1), ("a", "b"))
    given = ("--path", str(rows), "--format", "csv", "--schema", str(schema), "--public")
    _unitball("ingest", "rows", *given, root=root)
    others = {**_EMPTY, "pandas, read_csv and describe": lambda: pd.read_csv(rows).describe()}
    return Beside(lambda: _unitball("describe", "rows", "--epsilon", "1", root=root), others, once=True)


@row("million", "noisy-gd on 1,000,000 × 50, process and engine included, rows ingested before")
def _million(folder: Path) -> Beside:
    random = np.random.default_rng(13)
    features = random.standard_normal((1_000_000, 50), dtype=np.float32)
    labels = np.where(features[:, 0] + 0.5 * random.standard_normal(1_000_000) > 0, "a", "b")
    write_lists(folder / "made.parquet", features, labels)
    root, made = folder / "root", str(folder / "made.parquet")
    _unitball("ingest", "made", "--path", made, "--public", "--format", "parquet", root=root)
    asked = ("train", "--dataset", "made", "--algorithm", "noisy-gd", "--epsilon", "1")
    return Beside(lambda: _unitball(*asked, root=root), _EMPTY, once=True)


@row("flow", "a further flow in a warm process, digits")
def _flow(folder: Path) -> Beside:
    train, budgets = _warm(folder).train, itertools.count(1)
    asked = {"dataset": "digits", "algorithm": "noisy-gd"}
    return Beside(
        lambda: train(TrainingConfig.model_validate({**asked, "epsilon": next(budgets)})), {"nothing": lambda: None}
    )


@row("sweep", "200 points of a sweep on digits, two descents a point, one thread")
def _sweep(folder: Path) -> Beside:
    chain_inline, run_sweep = _warm(folder).chain_inline, importlib.import_module("flows.sweep").run_sweep
    # Imported here: behind the door the library keeps to one thread, and what it is compared with must not.
    from tasks.experiments.specifications import SweepSpec

    asked = {"dataset": "digits", "algorithm": "noisy-gd", "param.iterations": 2}

    def points(first: float) -> SweepSpec:
        grid = {"epsilon": [first + number / 200 for number in range(200)]}
        return SweepSpec.model_validate({"name": "overhead", "set": asked, "grid": grid})

    def once(spec: SweepSpec) -> None:
        assert not run_sweep(spec, workers=1).failed

    # The first point pays for imports and for preparing the rows; it is not what a point of a sweep costs.
    once(points(9.0).model_copy(update={"grid": {"epsilon": [8.0]}}))
    others = {
        "the same work without a sweep": lambda: [chain_inline(each.config) for each in points(3.0).points()],
        "the same points, finished before": lambda: once(points(1.0)),
    }
    return Beside(lambda: once(points(1.0)), others, once=True)


def _warm(folder: Path) -> ModuleType:
    """Start an engine in this process and return the module of flows."""
    os.environ["UNITBALL_ROOT"] = str(folder)
    from tasks.host.engine import prepare_engine, quick_flows

    prepare_engine(folder)
    _ENGINE.enter_context(quick_flows())
    return importlib.import_module("flows.federated_training")


_ENGINE = contextlib.ExitStack()


@dataclass(frozen=True, slots=True)
class Taken:
    """One side of a row: wall and processor seconds, and the most memory that a separate process took, in bytes."""

    wall: float
    processor: float
    peak: float = 0


class LeftOutError(Exception):
    """A row for which something is missing."""


def _peer(interpreter: str, name: str) -> Taken:
    """Return what another library's side of a row took, in a process of another environment."""
    command = [interpreter, str(Path(__file__).with_name("peers.py")), name]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise LeftOutError(f"{' '.join(command)} ended with {process.returncode}: {process.stderr[-200:]}")
    return Taken(**json.loads(process.stdout.splitlines()[-1]))


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + used.ru_utime + used.ru_stime


def _once(work: Work, threads: int | None, *, warm: bool) -> Taken:
    # Threads of OpenBLAS go on looking for work for a while after the side before.
    time.sleep(0.1)
    with threadpool_limits(threads, user_api="blas"):
        if warm:
            work()
        wall, processor = time.perf_counter(), _processor()
        found = work()
    if isinstance(found, Taken):
        return found
    peak = found if isinstance(found, int) else 0
    return Taken(time.perf_counter() - wall, _processor() - processor, peak)


def measured(beside: Beside, repeat: int) -> list[Taken]:
    """Return the medians of all sides, ours first, run in turn after a warm-up.

    Ours runs as the door runs it, one thread a matrix product; the others' as they come.
    """
    sides = [(beside.ours, 1), *((work, None) for work in beside.others.values())]
    if not beside.once:
        for side in sides:
            _once(*side, warm=False)
    # What takes milliseconds is slower after a pause, and is done once more before it is timed.
    warm = not beside.once and all(_once(*side, warm=False).wall < 0.1 for side in sides)
    found = np.array(
        [[astuple(_once(*side, warm=warm)) for side in sides] for _ in range(1 if beside.once else repeat)]
    )
    return [
        Taken(*median[:2], peak) for median, peak in zip(np.median(found, axis=0), found[:, :, 2].max(0), strict=True)
    ]


def measure(name: str, repeat: int, interpreter: str | None) -> tuple[str, dict[str, Taken]]:
    """Return a row's title and what each of its sides took, ours as ``unitball``.

    Raises
    ------
    LeftOutError
        If something that the row needs is missing.
    """
    title, make = _ROWS[name]
    # What runs in this process ends before its folder does.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, _ENGINE:
        beside = make(Path(folder))
        if interpreter is not None and name in PEERS:
            try:
                _peer(interpreter, name)
                beside.others[PEERS[name][0]] = partial(_peer, interpreter, name)
            except LeftOutError as error:
                print(f"{PEERS[name][0]}: left out; {error}", file=sys.stderr)
        return title, dict(zip(("unitball", *beside.others), measured(beside, repeat), strict=True))


def show(title: str, sides: dict[str, Taken]) -> None:
    """Print a row of the table for each of the others."""
    (_, ours), *others = sides.items()
    for name, other in others:
        ratios = [ours.wall / other.wall, ours.processor / other.processor if other.processor > 0 else math.inf]
        shown = ["–" if value > 1e4 else f"{value:.2f}" if value > 0.1 else f"{value:.1g}" for value in ratios]
        peak = f"{ours.peak / 2**20:.0f}" if ours.peak else ""
        line(title, f"{ours.wall:.4g}", f"{ours.processor:.4g}", peak, name, f"{other.wall:.4g}", *shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", default=list(_ROWS), help=", ".join(_ROWS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peers", help="Interpreter of the environment that benchmarks/peers.txt describes.")
    parser.add_argument("--json", type=Path, help="Write what each side took, by row.")
    arguments = parser.parse_args()
    head("work", "ours, s", "processor, s", "peak, MiB", "other", "its s", "ratio", "ratio of processor time")
    written: dict[str, dict[str, object]] = {}
    for name in arguments.rows:
        try:
            title, sides = measure(name, arguments.repeat, arguments.peers)
        except LeftOutError as error:
            print(f"{name}: left out; {error}", file=sys.stderr)
            continue
        show(title, sides)
        written[name] = {side: asdict(taken) for side, taken in sides.items()}
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(written, indent=1))


if __name__ == "__main__":
    main()
