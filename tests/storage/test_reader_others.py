"""Parquet, CIFAR-10, scikit-learn's sets, OpenML, and the registry of readers."""

from __future__ import annotations

import io
import json
import os
import pickle
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_diabetes, load_digits

from storage.datasets import ingestion_report, open_dataset, origins
from storage.errors import InputError, RefusedError, StorageError
from storage.layout import Layout
from storage.readers import by_name as openml
from storage.readers.images import CLASSES
from storage.refs import Labels, OnViolation
from storage.source import ReadOptions, concatenate, read_source
from tests.support.data import flip, gathered, source_of, stored, synthetic, temporaries
from tests.support.stating import stating

PUBLIC = ReadOptions(discover=True)
SCHEMA = """
scaling: unit-interval
columns:
  - {name: age, type: numeric, range: [0, 10]}
  - {name: kind, type: category, values: ["1", b]}
  - {name: y, type: label, classes: ["0", "1"]}
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def _declared(tmp_path: Path, **more: Any) -> ReadOptions:
    path = tmp_path / "schema.yaml"
    path.write_text(SCHEMA)
    return ReadOptions(schema=path, **more)


def test_an_unknown_format_meets_the_nearest_names() -> None:
    with pytest.raises(InputError, match="'libsmv'"):
        read_source("libsmv", "x")


def test_an_option_that_a_format_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, check=stating(value="schema", bound="idx")):
        read_source("idx", tmp_path, ReadOptions(schema=Path("adult")))
    with pytest.raises(InputError, check=stating(value="test", bound="sklearn")):
        read_source("sklearn", "digits", ReadOptions(test=tmp_path))
    with pytest.raises(InputError, check=stating(value="on_violation", bound="libsvm")):
        read_source("libsvm", tmp_path, ReadOptions(on_violation=OnViolation.DROP))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dimension": 0}, "dimension.*0:.*1"),
        ({"classes": ("1",)}, r"classes.*\['1'\]"),
        ({"classes": ("1", "+1")}, r"classes.*\['1', '\+1'\]"),
        ({"classes": ("0", "1"), "label_range": (0.0, 1.0)}, "classes.*label range"),
        ({"label_range": (1.0, 1.0)}, r"label range.*\[1\.0, 1\.0\]"),
        ({"label_range": (0.0, float("inf"))}, r"label range.*\[0\.0, inf\]"),
    ],
)
def test_wrong_declarations_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ReadOptions(**given)


def test_bundled_sets_equal_the_peer(layout: Layout) -> None:
    ref = stored(layout, read_source("sklearn", "digits"), name="digits")
    assert (ref.rows, ref.dimension, ref.classes) == (1797, 64, tuple("0123456789"))
    features, labels = gathered(open_dataset(layout, ref))
    peer = load_digits()
    assert np.array_equal(features, peer.data)
    assert np.array_equal(labels, peer.target)
    real = stored(layout, read_source("sklearn", "diabetes"), name="diabetes")
    assert (real.labels, real.label_range, real.classes) == (Labels.REAL, (25.0, 346.0), ())
    assert np.array_equal(gathered(open_dataset(layout, real))[1], load_diabetes().target)
    assert read_source("sklearn", "breast-cancer").classes == ("malignant", "benign")
    with pytest.raises(InputError, match=r"'mnist'.*breast_cancer, diabetes.*iris, wine"):
        read_source("sklearn", "mnist")


def _lists(tmp_path: Path, features: Any, labels: Any, kind: Any = None, name: str = "rows.parquet") -> Path:
    path = tmp_path / name
    pq.write_table(pa.table({"features": pa.array(features, kind), "label": pa.array(labels), "more": labels}), path)
    return path


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float32(), 3), pa.list_(pa.float64()), pa.large_list(pa.float32()), pa.list_(pa.int16(), 3)],
    ids=str,
)
def test_parquet_lists_are_rows(tmp_path: Path, layout: Layout, kind: Any) -> None:
    features = [[1, 2, 3], [4, 5, 6], [0, 0, 1]]
    path = _lists(tmp_path, features, ["a", "b", "a"], kind)
    source = read_source("parquet", path, PUBLIC)
    assert (source.dimension, source.classes) == (3, ("a", "b"))
    ref = stored(layout, source)
    assert gathered(open_dataset(layout, ref))[0].tolist() == features
    declared = read_source("parquet", path, ReadOptions(dimension=3, classes=("b", "a")))
    assert declared.found == frozenset()
    assert gathered(open_dataset(layout, stored(layout, declared, private=True)))[1].tolist() == [1, 0, 1]
    with pytest.raises(RefusedError, match="--dimension"):
        read_source("parquet", path)


def test_a_folder_of_parquet_files_is_one_set(tmp_path: Path, layout: Layout) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(3):
        _lists(folder, [[float(number), 1.0]], [number % 2], name=f"{number}.parquet")
    features, labels = gathered(open_dataset(layout, stored(layout, read_source("parquet", folder, PUBLIC))))
    assert features[:, 0].tolist() == [0, 1, 2]
    assert labels.tolist() == [0, 1, 0]
    with pytest.raises(InputError, match=r"root.*\.parquet file"):
        read_source("parquet", tmp_path / "root", PUBLIC)


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        ([[1.0, 2.0], [1.0]], [0, 1], "row 2: 1.*2"),
        ([[1.0, 2.0], None], [0, 1], "row 2, column features"),
        ([[1.0, 2.0], [1.0, None]], [0, 1], "row 2: feature 2"),
        ([[1.0, 2.0], [1.0, 2.0]], [0, None], "row 2, column label"),
        ([[1.0, float("nan")], [1.0, 2.0]], [0, 1], "row 1: feature 2"),
        ([[1.0, 2.0], [float("-inf"), 2.0]], [0, 1], "row 2: feature 1.*-inf"),
        (["ab", "cd"], [0, 1], "column features: type.*string"),
        ([[1.0, 2.0], [1.0, 2.0]], [0, 0], "one class"),
    ],
)
def test_bad_parquet_rows_are_named(tmp_path: Path, layout: Layout, features: Any, labels: Any, message: str) -> None:
    path = _lists(tmp_path, features, labels)
    with pytest.raises(InputError, match=message):
        stored(layout, read_source("parquet", path, ReadOptions(dimension=2, discover=True)))
    assert list(layout.datasets.iterdir()) == []
    assert not temporaries(layout.root)


def test_damaged_parquet_is_refused(tmp_path: Path, layout: Layout) -> None:
    features, labels = synthetic(3000, 4, seed=81)
    path = _lists(tmp_path, features.tolist(), labels)
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"PAR1", b"no parquet at all, but long enough to look", whole[4:]):
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"rows.parquet.*damaged"):
            stored(layout, read_source("parquet", path, ReadOptions(dimension=4, classes=("0", "1"))))
    path.write_bytes(b"")
    with pytest.raises(InputError, match="is empty"):
        read_source("parquet", path, PUBLIC)
    with pytest.raises(InputError, match=r"none\.parquet.*--path"):
        read_source("parquet", tmp_path / "none.parquet", PUBLIC)
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(InputError, match="column 'features'"):
        read_source("parquet", path, PUBLIC)
    assert list(layout.datasets.iterdir()) == []


def test_parquet_columns_by_schema(tmp_path: Path, layout: Layout) -> None:
    path = tmp_path / "table.parquet"
    table = pa.table({"more": ["x", "y", "z"], "y": [0, 1, 1], "kind": ["1", "b", "1"], "age": [5, 10, None]})
    pq.write_table(table, path)
    with pytest.raises(InputError, match="row 3, column age"):
        stored(layout, read_source("parquet", path, _declared(tmp_path)), private=True)
    pq.write_table(table.slice(0, 2), path)
    features, labels = gathered(
        open_dataset(layout, stored(layout, read_source("parquet", path, _declared(tmp_path)), private=True))
    )
    assert features.tolist() == [[0.5, 1, 0], [1, 0, 1]]
    assert labels.tolist() == [0, 1]
    pq.write_table(pa.table({"y": [0, 1], "kind": [1, 2], "age": [5.0, 70.0]}), path)
    with pytest.raises(InputError, match=r"row 2.*'70.0'"):
        stored(layout, read_source("parquet", path, _declared(tmp_path)), private=True)
    ref = stored(layout, read_source("parquet", path, _declared(tmp_path, on_violation=OnViolation.CLIP)), private=True)
    assert gathered(open_dataset(layout, ref))[0].tolist() == [[0.5, 1, 0], [1, 0, 0]]
    assert ingestion_report(layout, ref).counts["train"]["clipped"] == 1
    pq.write_table(pa.table({"y": [0, 1], "age": [5.0, 70.0]}), path)
    with pytest.raises(InputError, match="column 'kind'"):
        stored(layout, read_source("parquet", path, _declared(tmp_path)), private=True)


def _cifar(folder: Path, kind: str, batches: int = 2, rows: int = 20) -> np.ndarray[Any, Any]:
    folder.mkdir()
    random = np.random.default_rng(82)
    pixels = random.integers(0, 256, ((batches + 1) * rows, 3072), dtype=np.uint8)
    labels = np.arange(len(pixels)) % 10
    for number in range(batches + 1):
        part = slice(number * rows, (number + 1) * rows)
        name = f"data_batch_{number + 1}" if number < batches else "test_batch"
        if kind == "binary":
            records = np.concatenate([labels[part, None].astype(np.uint8), pixels[part]], axis=1)
            (folder / f"{name}.bin").write_bytes(records.tobytes())
        else:
            batch = {
                b"data": pixels[part],
                b"labels": labels[part].tolist(),
                b"batch_label": b"x",
                b"filenames": [b"f"],
            }
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2 if kind == "python" else 4))
    return pixels


@pytest.mark.parametrize("kind", ["binary", "python", "python-4"])
def test_cifar_batches(tmp_path: Path, layout: Layout, kind: str) -> None:
    pixels = _cifar(tmp_path / "cifar", kind)
    source = read_source("cifar10", tmp_path / "cifar")
    assert (source.dimension, source.classes, source.found) == (3072, CLASSES, frozenset())
    ref = stored(layout, source)
    assert (ref.rows, ref.test_rows) == (40, 20)
    features, labels = gathered(open_dataset(layout, ref))
    assert np.array_equal(features, (pixels[:40].astype(np.float32) / np.float32(255)).astype(np.float64))
    assert labels.tolist() == (np.arange(40) % 10).tolist()


class _Evil:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch evil-was-here",)


def test_a_pickle_that_calls_something_is_refused(
    tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _cifar(tmp_path / "cifar", "python")
    path = tmp_path / "cifar" / "data_batch_2"
    for payload in (
        {b"data": _Evil(), b"labels": []},
        [_Evil()],
        {b"data": np.array([_Evil()], dtype=object), b"labels": [1]},
    ):
        path.write_bytes(pickle.dumps(payload, protocol=2))
        with pytest.raises(InputError, match=r"data_batch_2.*CIFAR-10"):
            stored(layout, read_source("cifar10", tmp_path / "cifar"))
    assert not (tmp_path / "evil-was-here").exists()
    # The peer is not so careful: the payload is real.
    pickle.Unpickler(io.BytesIO(pickle.dumps([_Evil()], protocol=2))).load()  # noqa: S301 - made a line above
    assert (tmp_path / "evil-was-here").exists()
    assert list(layout.datasets.iterdir()) == []


def test_broken_cifar_batches_are_named(tmp_path: Path, layout: Layout) -> None:
    folder = tmp_path / "cifar"
    _cifar(folder, "binary")
    path = folder / "data_batch_2.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=r"data_batch_2.bin.*61459.*3073"):
        stored(layout, read_source("cifar10", folder))
    path.write_bytes(whole[: 3073 * 2] + b"\x0a" + whole[3073 * 2 + 1 :])
    with pytest.raises(InputError, match=r"data_batch_2.bin, row 3: label 10.*0.*9"):
        stored(layout, read_source("cifar10", folder))
    path.rename(folder / "data_batch_3.bin")
    with pytest.raises(InputError, match=r"data_batch_2.bin.*batches"):
        read_source("cifar10", folder)
    with pytest.raises(InputError, match=r"neither data_batch_1\.bin nor data_batch_1"):
        read_source("cifar10", tmp_path / "root")
    python = tmp_path / "python"
    _cifar(python, "python")
    path = python / "data_batch_1"
    whole = path.read_bytes()
    for data in (whole[:500], b"\x80\x02}.", pickle.dumps({b"data": [1], b"labels": [1]}), b"garbage"):
        path.write_bytes(data)
        with pytest.raises(InputError, match="data_batch_1 is"):
            stored(layout, read_source("cifar10", python))
    path.write_bytes(pickle.dumps({b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]}))
    with pytest.raises(InputError, match=r"shape \(2, 5\).*2"):
        stored(layout, read_source("cifar10", python))
    assert list(layout.datasets.iterdir()) == []


ARFF = """% stored answer, shortened
@relation flowers
@attribute 'petal length' numeric
@attribute colour {red,'dark blue'}
@attribute note string
@attribute class {setosa, 'vir"ginica'}
@DATA
1.5,red,'it''s',setosa
% comment
2.5,'dark blue',"a, b",setosa
-3,?,x,'vir"ginica'
4e0,red,x,'vir"ginica'
"""
ANSWERS: dict[str, Any] = {
    "data/list/data_name/flowers/status/active": {
        "data": {"dataset": [{"did": 70, "version": "3"}, {"did": 61, "version": 1, "name": "flowers"}]}
    },
    "data/61": {
        "data_set_description": {
            "id": "61",
            "format": "ARFF",
            "url": "http://api.openml.org/data/v1/download/61/flowers.arff",
            "md5_checksum": "",
            "default_target_attribute": "class",
        }
    },
    "data/features/61": {
        "data_features": {
            "feature": [
                {"index": "3", "name": "class", "data_type": "nominal", "nominal_value": ["setosa", 'vir"ginica']},
                {"index": "0", "name": "petal length", "data_type": "numeric", "is_ignore": "false"},
                {"index": "1", "name": "colour", "data_type": "nominal", "nominal_value": ["red", "dark blue"]},
                {"index": "2", "name": "note", "data_type": "string"},
            ]
        }
    },
}


class _OpenML:
    """The public API from stored answers; anything else is asked in vain."""

    def __init__(self, answers: dict[str, Any], files: dict[str, bytes]) -> None:
        self.answers = answers
        self.files = files
        self.asked: list[str] = []

    def __call__(self, address: str) -> IO[bytes]:
        self.asked.append(address)
        assert address.startswith("https://")
        path = address.removeprefix(f"{openml.API}/")
        if path in self.answers:
            return io.BytesIO(json.dumps(self.answers[path]).encode())
        if address in self.files:
            return io.BytesIO(self.files[address])
        raise InputError(f"OpenML answers 412 to {address}; check the name of the set")


ARFF_ADDRESS = "https://api.openml.org/data/v1/download/61/flowers.arff"


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> _OpenML:
    web = _OpenML(json.loads(json.dumps(ANSWERS)), {ARFF_ADDRESS: ARFF.encode()})
    monkeypatch.setattr(openml, "fetch", web)
    return web


def test_a_set_of_openml_by_name(layout: Layout, web: _OpenML) -> None:
    source = read_source("openml", "flowers", ReadOptions(discover=True, on_violation=OnViolation.DROP))
    assert (source.dimension, source.classes) == (3, ("setosa", 'vir"ginica'))
    ref = stored(layout, source)
    features, labels = gathered(open_dataset(layout, ref))
    assert features.tolist() == [[1.5, 1, 0], [2.5, 0, 1], [4, 1, 0]]
    assert labels.tolist() == [0, 0, 1]
    assert ingestion_report(layout, ref).counts["train"]["incomplete"] == 1
    assert ingestion_report(layout, ref).publishable
    with pytest.raises(InputError, match=r"line 11.*'\?'"):
        stored(layout, read_source("openml", "61", PUBLIC))
    with pytest.raises(InputError, match=r"version 2.*\[1, 3\]"):
        read_source("openml", "flowers@2", PUBLIC)
    with pytest.raises(InputError, match="answers 412"):
        read_source("openml", "weeds", PUBLIC)
    with pytest.raises(InputError, match=r"'a/b'.*OpenML"):
        read_source("openml", "a/b", PUBLIC)


def test_openml_checksums_are_verified(layout: Layout, web: _OpenML) -> None:
    web.answers["data/61"]["data_set_description"]["md5_checksum"] = "0" * 32
    with pytest.raises(InputError, match=r"flowers\.arff.*checksum"):
        read_source("openml", "61", PUBLIC)


def test_openml_real_targets_and_parquet(layout: Layout, web: _OpenML) -> None:
    features = web.answers["data/features/61"]["data_features"]["feature"]
    features[0] = {"index": "3", "name": "class", "data_type": "numeric"}
    description = web.answers["data/61"]["data_set_description"]
    description.update(format="Parquet", parquet_url="https://data.openml.org/61.pq")
    buffer = io.BytesIO()
    columns = {"petal length": [1.0, 2.0], "colour": ["red", "dark blue"], "note": ["", ""], "class": [0.5, 2.5]}
    pq.write_table(pa.table(columns), buffer)
    web.files["https://data.openml.org/61.pq"] = buffer.getvalue()
    with pytest.raises(RefusedError, match="--label-range"):
        read_source("openml", "61")
    source = read_source("openml", "61", PUBLIC)
    assert source.label_range == (0.5, 2.5)
    assert source.found == {"classes"}
    ref = stored(layout, source)
    assert gathered(open_dataset(layout, ref))[1].tolist() == [0.5, 2.5]
    declared = read_source("openml", "61", ReadOptions(label_range=(0.0, 3.0)))
    assert (declared.label_range, declared.found) == ((0.0, 3.0), frozenset())


def test_odd_answers_of_openml_are_no_tracebacks(web: _OpenML) -> None:
    for path in list(web.answers):
        whole = web.answers[path]
        odd: list[Any] = [{}, [], {"data": 1}, {"data_set_description": {}}, {"data_features": {"feature": [{}]}}, None]
        for answer in odd:
            web.answers[path] = answer
            with pytest.raises(InputError, match=r"OpenML.*--format csv"):
                read_source("openml", "flowers", PUBLIC)
        web.answers[path] = whole
    web.files[ARFF_ADDRESS] = b"@data\n{0 1.5}\n"
    with pytest.raises(InputError, match=r"line 2:.*ARFF"):
        list(read_source("openml", "61", PUBLIC).parts["train"])


def test_openml_without_a_network_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_arguments: object, **_options: object) -> None:
        raise urllib.error.URLError(OSError(101, "Network is unreachable"))

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with pytest.raises(StorageError, match=r"OpenML.*Network.*--format"):
        read_source("openml", "iris", PUBLIC)

    def absent(address: str, **_options: object) -> None:
        raise urllib.error.HTTPError(address, 412, "Precondition Failed", {}, None)  # type: ignore[arg-type]  # headers are not read

    monkeypatch.setattr(urllib.request, "urlopen", absent)
    with pytest.raises(InputError, match="answers 412"):
        read_source("openml", "weeds", PUBLIC)
    with pytest.raises(InputError, match=r"file:///etc/hostname.*https"):
        openml.fetch("file:///etc/hostname")


def test_parties_bring_their_own_files(tmp_path: Path, layout: Layout) -> None:
    for name, rows in (("a", 3), ("b", 5)):
        (tmp_path / name).write_text("".join(f"{row % 2} 1:{row} 2:1\n" for row in range(rows)))
    (tmp_path / "test").write_text("0 1:9\n")
    options = ReadOptions(dimension=2, classes=("0", "1"), test=tmp_path / "test")
    sources = {f"clinic-{name}": read_source("libsvm", tmp_path / name, options) for name in ("a", "b")}
    ref = stored(layout, concatenate(sources), private=True)
    assert (ref.rows, ref.test_rows) == (8, 1)
    assert origins(layout, ref) == (("clinic-a", 3), ("clinic-b", 5))
    assert gathered(open_dataset(layout, ref))[0][:, 0].tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    single = stored(layout, sources["clinic-a"], private=True)
    assert origins(layout, single) == ()


def test_parties_must_agree_and_none_may_be_empty(tmp_path: Path, layout: Layout) -> None:
    (tmp_path / "a").write_text("0 1:1\n1 1:2\n")
    (tmp_path / "empty").write_text("# nobody\n")

    def read(name: str, dimension: int = 2) -> Any:
        return read_source("libsvm", tmp_path / name, ReadOptions(dimension=dimension, classes=("0", "1")))

    with pytest.raises(InputError, match=r"'a'.*'b'.*2.*3"):
        concatenate({"a": read("a"), "b": read("a", 3)})
    with pytest.raises(InputError, match="party 'b'"):
        stored(layout, concatenate({"a": read("a"), "b": read("empty")}), private=True)
    for name in ("test", "all", "server", "../a"):
        with pytest.raises(InputError, match="name"):
            concatenate({name: read("a")})
    with pytest.raises(InputError, match="NAME=PATH"):
        concatenate({})
    assert list(layout.datasets.iterdir()) == []


def test_origins_are_part_of_what_a_version_is(layout: Layout) -> None:
    features, labels = synthetic(10, 3, seed=83)

    def version(cut: int) -> str:
        parties = {"a": source_of((features[:cut], labels[:cut])), "b": source_of((features[cut:], labels[cut:]))}
        return stored(layout, concatenate(parties)).version

    assert version(5) != version(6)
    assert version(5) == version(5)


def test_a_flipped_byte_in_a_parquet_file_never_passes_silently_as_other_rows(tmp_path: Path, layout: Layout) -> None:
    features, labels = synthetic(500, 4, seed=84)
    path = _lists(tmp_path, features.tolist(), labels)
    flip(path, 0.99)
    with pytest.raises(InputError, match=r"rows.parquet"):
        stored(layout, read_source("parquet", path, ReadOptions(dimension=4, classes=("0", "1"))))
