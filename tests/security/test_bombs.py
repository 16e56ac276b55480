"""Files that unfold to more than memory or time can hold: refused by a named limit, in bounded memory."""

from __future__ import annotations

import base64
import bz2
import gzip
import hashlib
import io
import json
import os
import pickle
import re
import resource
import signal
import struct
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpalgos.features import onnx_sessions
from dpalgos.features.onnx import OnnxEncoder
from dpalgos.parameters import ParameterError
from dpalgos.resources import memory_limit, set_memory_limit
from storage import documents
from storage.documents import pack_arrays, parse_json, parse_yaml, unpack_arrays
from storage.errors import DamagedError, InputError
from storage.layout import Layout
from storage.refs import Visibility
from storage.releases import ReleaseStore
from storage.schema import load_schema
from storage.source import ReadOptions, limited, read_source
from storage.staging import staged_dataset
from tests.support.data import stored
from tests.support.forks import in_child
from tests.support.onnx_models import FLOAT, INTEGER, Ports, model
from tests.support.untraced import calls_of, ratio

_MOST_MEGABYTES = 500
# Against what never ends alone: each takes seconds on a quiet machine.
_HANGS_AFTER = 1200
_SCHEMA = "format_version: 1\nheader: false\ncolumns:\n  - {name: a, type: numeric, range: [0, 1]}\n"
_SCHEMA += "  - {name: b, type: label, classes: ['0', '1']}\n"

# What a program has imported before it meets a file: the children below begin with more, and may grow by less.
_IMPORTED_MEGABYTES = 100


def _peak() -> int:
    return next(int(line.split()[1]) // 1024 for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))


def _grown(work: Callable[[], str]) -> tuple[str, int]:
    """Return what work says, done in a child that has imported what it needs, and by how many megabytes that grew."""

    def child() -> tuple[str, int]:
        signal.alarm(_HANGS_AFTER)
        # From here on the peak is counted anew.
        Path("/proc/self/clear_refs").write_text("5")
        before = _peak()
        try:
            said = work()
        except Exception as error:
            said = f"{type(error).__name__} {' '.join(str(error).split())}"
        ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        return said, max(_peak() - before + _IMPORTED_MEGABYTES, ended)

    said, peak = in_child(child)
    return str(said), int(peak)


def _taken_in(form: str, path: Path, schema: Path | None, root: Path) -> str:
    layout = Layout(root).prepare()
    source = read_source(form, path, ReadOptions(discover=True, schema=schema))
    with staged_dataset(layout, source, name="bomb", account="bomb", visibility=Visibility.PUBLIC) as staged:
        staged.publish()
    return "taken in"


def _zipped(path: Path, piece: bytes, megabytes: int, *, before: bytes = b"", compressor: Any = gzip) -> Path:
    """Write a compressed file of one piece over and over: a megabyte is compressed once, and stands there so often."""
    block = compressor.compress(piece * ((1 << 20) // len(piece)))
    with path.open("wb") as file:
        file.write(compressor.compress(before))
        for _ in range(megabytes):
            file.write(block)
    return path


def _in_one_stream(path: Path) -> None:
    """Compress a file anew as a whole, as usual ones are."""
    compressor: Any = bz2 if path.suffix == ".bz2" else gzip
    path.write_bytes(compressor.compress(compressor.decompress(path.read_bytes())))


def _libsvm(folder: Path, megabytes: int) -> tuple[str, Path]:
    return "libsvm", _zipped(folder / "bomb.gz", b"1 1:0.5\n0 2:0.5\n", megabytes)


def _bzip2(folder: Path, megabytes: int) -> tuple[str, Path]:
    return "libsvm", _zipped(folder / "bomb.bz2", b"1 1:0.5\n0 2:0.5\n", megabytes, compressor=bz2)


def _csv(folder: Path, megabytes: int) -> tuple[str, Path]:
    return "csv", _zipped(folder / "bomb.csv.gz", b"0.5,1\n0.25,0\n", megabytes)


def _idx(folder: Path, megabytes: int) -> tuple[str, Path]:
    count = megabytes << 20
    labels = struct.pack(">BBBBI", 0, 0, 8, 1, count)
    images = struct.pack(">BBBBIII", 0, 0, 8, 3, count, 1, 1)
    _zipped(folder / "train-labels-idx1-ubyte.gz", b"\0", megabytes, before=labels)
    _zipped(folder / "train-images-idx3-ubyte.gz", b"\0", megabytes, before=images)
    return "idx", folder


def _line(folder: Path, megabytes: int) -> tuple[str, Path]:
    return "libsvm", _zipped(folder / "line.gz", b"1 " * 512, megabytes)


def _csv_line(folder: Path, megabytes: int) -> tuple[str, Path]:
    return "csv", _zipped(folder / "line.csv.gz", b"x" * 1024, megabytes)


def _quoted(folder: Path, megabytes: int) -> tuple[str, Path]:
    return "csv", _zipped(folder / "quoted.csv.gz", b"x" * 1023 + b"\n", megabytes, before=b'"')


def _quoted_lines(folder: Path, megabytes: int) -> tuple[str, Path]:
    """As above in lines of two bytes, each of which takes a step: half a minute, so that it is tried by night alone."""
    return "csv", _zipped(folder / "lines.csv.gz", b"x\n" * 512, megabytes, before=b'"')


def _index(folder: Path, megabytes: int) -> tuple[str, Path]:
    path = folder / "index.libsvm"
    path.write_text("1 1:1\n0 4000000000:1\n")
    return "libsvm", path


_ATTACKS = {
    "gzip of LIBSVM": (_libsvm, "--max-bytes"),
    "bzip2 of LIBSVM": (_bzip2, "--max-bytes"),
    "gzip of CSV": (_csv, "--max-bytes"),
    "gzip of IDX": (_idx, "--max-"),
    "a line of LIBSVM": (_line, "is longer than"),
    "a line of CSV": (_csv_line, "is longer than"),
    "a quoted cell": (_quoted, "field larger than field limit"),
    "a quoted cell of many lines": (_quoted_lines, "field larger than field limit"),
    "an index of 4e9": (_index, "--dimension"),
}


def _attacked(folder: Path, name: str, megabytes: int) -> None:
    make, limit = _ATTACKS[name]
    form, path = make(folder, megabytes)
    schema = None
    if form == "csv":
        schema = folder / "schema.yaml"
        schema.write_text(_SCHEMA)
    told, peak = _grown(partial(_taken_in, form, path, schema, folder / "root"))
    assert told.startswith("InputError")
    assert limit in told
    assert peak < _MOST_MEGABYTES, f"{name}: {peak} MB"
    assert not list((folder / "root" / "private" / "datasets").iterdir())


@pytest.mark.parametrize("name", ["a line of LIBSVM", "a line of CSV", "a quoted cell", "an index of 4e9"])
def test_an_attack_is_refused_in_bounded_memory(name: str, tmp_path: Path) -> None:
    _attacked(tmp_path, name, 64)


@pytest.mark.nightly
@pytest.mark.parametrize("name", _ATTACKS)
def test_a_large_attack_is_refused_in_bounded_memory(name: str, tmp_path: Path) -> None:
    _attacked(tmp_path, name, 3000)


@pytest.mark.parametrize("whole", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["whole", "pieces"])
@pytest.mark.parametrize("name", ["gzip of LIBSVM", "bzip2 of LIBSVM", "gzip of CSV"])
def test_bytes_are_bounded_after_decompression(name: str, whole: bool, tmp_path: Path) -> None:
    form, path = _ATTACKS[name][0](tmp_path, 2)
    if whole:
        _in_one_stream(path)
    (tmp_path / "schema.yaml").write_text(_SCHEMA)
    options = ReadOptions(dimension=2 if form != "csv" else None, classes=("0", "1") if form != "csv" else None)
    if form == "csv":
        options = ReadOptions(schema=tmp_path / "schema.yaml")
    with limited(size=1 << 20), pytest.raises(InputError, match=r"1048576.*--max-bytes"):
        list(read_source(form, path, options).parts["train"])
    with limited(size=4 << 20):
        assert sum(len(block.labels) for block in read_source(form, path, options).parts["train"]) > 10_000


def test_rows_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "rows.libsvm"
    path.write_text("1 1:0.5\n0 2:0.5\n" * 50)
    layout = Layout(tmp_path / "root").prepare()
    for most in (99, 100):
        source = read_source("libsvm", path, ReadOptions(discover=True))
        with limited(rows=most):
            if most == 100:
                stored(layout, source)
                continue
            with pytest.raises(InputError, match=r"99 train rows.*--max-rows"):
                stored(layout, source)


@pytest.mark.parametrize("declared", [True, False], ids=["columns", "lists"])
def test_what_parquet_states_of_its_rows_is_looked_at_first(declared: bool, tmp_path: Path) -> None:
    """Not the first row of it is read, which would be refused."""
    table = {"a": [5.0] * 100, "b": ["0"] * 100} if declared else {"features": [[1.0]] * 100, "label": [None] * 100}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    (tmp_path / "schema.yaml").write_text(_SCHEMA.replace("header: false\n", ""))
    options = ReadOptions(dimension=1, classes=("0", "1"))
    if declared:
        options = ReadOptions(schema=tmp_path / "schema.yaml")
    source = read_source("parquet", tmp_path / "rows.parquet", options)
    with limited(rows=99), pytest.raises(InputError, match=r"100.*99.*--max-rows"):
        list(source.parts["train"])
    with limited(rows=100), pytest.raises(InputError, match=r"row 1"):
        list(source.parts["train"])


def _many_rows(path: Path) -> None:
    """Write 150 million rows of nothing."""
    group = pa.table({"a": pa.nulls(15_000_000, pa.float64()), "b": pa.nulls(15_000_000, pa.string())})
    with pq.ParquetWriter(path, group.schema, compression="zstd") as writer:
        for _ in range(10):
            writer.write_table(group, row_group_size=len(group))


@pytest.mark.nightly
def test_a_parquet_file_of_too_many_rows_is_refused_at_once(tmp_path: Path) -> None:
    _many_rows(tmp_path / "rows.parquet")
    (tmp_path / "schema.yaml").write_text(_SCHEMA.replace("header: false\n", "missing: {marker: '', rows: drop}\n"))
    body = """from storage.source import ReadOptions, read_source
options = ReadOptions(schema=path.with_name('schema.yaml'))
for block in read_source('parquet', path, options).parts['train']: pass"""
    told = _told(body, tmp_path / "rows.parquet")
    assert re.search("states 150000000 rows, more than 100000000; .*--max-rows", told)


def test_what_an_idx_header_states_is_looked_at_first(tmp_path: Path) -> None:
    """Before the gigabytes that it unfolds to; of the images nothing is there."""
    for name, head, body in (
        ("train-labels-idx1-ubyte.gz", struct.pack(">BBBBI", 0, 0, 8, 1, 1 << 20), bytes(1 << 20)),
        ("train-images-idx3-ubyte.gz", struct.pack(">BBBBIII", 0, 0, 8, 3, 1 << 20, 64, 64), b""),
    ):
        (tmp_path / name).write_bytes(gzip.compress(head + body))
    options = ReadOptions(dimension=4096, classes=("0", "1"))
    with pytest.raises(InputError, match=r"train-images.*268435456.*--max-bytes"):
        list(read_source("idx", tmp_path, options).parts["train"])


# ── documents, archives, messages, tables and encoders ───────────────────────────────────────────────────────────────


def _run(body: str, path: Path) -> str:
    os.environ["UNITBALL_MEMORY"] = "256M"
    exec(body, {"path": path})
    return "taken in"


def _told(body: str, path: Path, *, megabytes: int = _MOST_MEGABYTES) -> str:
    """Return what lines of Python say that read a file, run where 256 MiB are admitted; its memory is bounded."""
    said, peak = _grown(partial(_run, body, path))
    assert peak < megabytes, f"{peak} MB: {said}"
    return said


def _aliases(levels: int, *, merged: bool = False) -> str:
    """Return YAML of ten aliases of ten aliases of …"""
    item = "<<: [{}]" if merged else "x: [{}]"
    return "a0: &a0 {x: 1}\n" + "".join(
        f"a{level}: &a{level} {{{item.format(', '.join([f'*a{level - 1}'] * 10))}}}\n" for level in range(1, levels)
    )


def test_a_roster_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "roster.yaml").write_text(_aliases(8).replace("a7:", "parties:"))
    told = _told("from flows.party import read_roster\nread_roster(path)", tmp_path / "roster.yaml")
    assert told.startswith(("InputError", "EndedError"))
    assert "expands to more than 1,000,000 values" in told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[" * 100_000, "nested.*100 levels", id="lists"),
        pytest.param("".join(" " * level + "a:\n" for level in range(2000)), "nested.*100 levels", id="mappings"),
        pytest.param(_aliases(12), "1,000,000", id="aliases"),
        pytest.param(_aliases(12, merged=True), "1,000,000", id="merged"),
        pytest.param("&a [*a]", "1,000,000", id="within itself"),
        pytest.param("a: " + "1:" * 100_000 + "1", "200,001", id="base 60"),
        pytest.param("a: !!int '" + "1:" * 100_000 + "1'", "200,001", id="base 60, quoted"),
        pytest.param("a: " + "x" * (1 << 24), "16,777,216", id="long"),
        pytest.param("? [a]\n: b", "not YAML", id="a list as a key"),
        pytest.param("[" + "a," * 1_000_001 + "]", "1,000,000", id="many"),
    ],
)
def test_yaml_is_bounded(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_yaml(text, "the document")


def test_yaml_within_the_bounds_is_what_it_was() -> None:
    long = "x" * 5000
    text = f"a: &a {{b: [1, 2.5, null]}}\nc: *a\nd: {{<<: *a, e: 2020-01-31}}\nf: {long}\ng: '{'1' * 500}'\n"
    found = parse_yaml(text, "the document")
    assert found["c"] == found["a"] == {"b": [1, 2.5, None]}
    assert (found["d"]["b"], found["f"], found["g"]) == ([1, 2.5, None], long, "1" * 500)
    assert parse_yaml("", "the document") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(b"[" * 1_000_000, "nested too", id="deep"),
        pytest.param(b"[" + b"[]," * 2_000_000 + b"[]]", "2,000,000", id="many"),
        pytest.param(b'{"a": 1, "b": 2, "a": 3}', "JSON.*'a'", id="a key twice"),
        pytest.param(b'{"a": NaN}', "NaN", id="NaN"),
        pytest.param(b"1" * 5000, "JSON", id="a long number"),
        pytest.param(b"\xff", "JSON", id="bytes"),
    ],
)
def test_json_is_bounded(text: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_json(text, "the document")
    with pytest.raises(DamagedError, match=r"manifest.*damaged"):
        documents.parse_manifest(text, "the manifest", version=1)


def _wide_schema(folder: Path, columns: int) -> Path:
    lines = [f"  - {{name: c{number}, type: numeric, range: [0, 1]}}\n" for number in range(columns)]
    label = "  - {name: y, type: label, classes: [a, b]}\n"
    path = folder / f"{columns}.yaml"
    path.write_text(f"format_version: 1\ncolumns:\n{''.join(lines)}{label}")
    return path


_LOAD = "from storage.schema import load_schema\nassert load_schema(path).dimension > 1000"


def test_a_schema_of_many_columns_takes_work_in_proportion(tmp_path: Path) -> None:
    few, many = (calls_of(partial(load_schema, _wide_schema(tmp_path, columns))) for columns in (200, 1000))
    assert many < 5.2 * few


@pytest.mark.nightly
def test_a_schema_of_sixty_thousand_columns(tmp_path: Path) -> None:
    assert _told(_LOAD, _wide_schema(tmp_path, 60_000), megabytes=1000) == "taken in"
    few, many = (partial(load_schema, _wide_schema(tmp_path, columns)) for columns in (2_000, 12_000))
    assert ratio(many, few, bound=9.0) <= 9.0


def _zeros(megabytes: int, numbers: int, kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return an ``.npz`` of zeros whose array claims so many numbers."""
    buffer, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (numbers,)})
    with zipfile.ZipFile(buffer, "w", kind, compresslevel=1) as archive, archive.open("weights.npy", "w") as member:
        member.write(header.getvalue())
        for _ in range(megabytes):
            member.write(bytes(1 << 20))
    return buffer.getvalue()


def _sent(arrays: bytes) -> dict[str, str]:
    """Return a release with digests that match, as it travels."""
    manifest = {"artefact": "linear-model", "format_version": 1}
    release = hashlib.sha256(documents.canonical_json(manifest) + b"\0" + arrays).hexdigest()
    body = {"manifest": manifest, "arrays": hashlib.sha256(arrays).hexdigest(), "release": release}
    files = {"manifest": documents.dump_manifest(body, version=1), "arrays": arrays}
    return {name: base64.b64encode(data).decode() for name, data in files.items()}


_OPEN_MESSAGE = """import json
from tasks.federation.messages import Sent
Sent.model_validate(json.loads(path.read_text())).opened("the coordinator")"""


def test_a_message_never_unfolds(tmp_path: Path) -> None:
    """600 MB in 3 MB of text: today's arrays are not compressed, so a message takes what it is long."""
    (tmp_path / "message.json").write_text(json.dumps(_sent(_zeros(600, 600 << 17))))
    told = _told(_OPEN_MESSAGE, tmp_path / "message.json", megabytes=400)
    assert told.startswith("DamagedError")
    assert "an array is compressed" in told


def test_arrays_are_as_long_as_they_claim(tmp_path: Path) -> None:
    listed = io.BytesIO()
    with zipfile.ZipFile(listed, "w") as archive:
        for number in range(1001):
            archive.writestr(f"{number}.npy", b"")
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as archive:
        archive.writestr("a.npy", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", b"2")
    sound = {"weights": np.arange(6.0).reshape(2, 3), "name": np.array(["x"]), "none": np.zeros((0, 4), np.int32)}
    claiming = _zeros(1, 10**9, zipfile.ZIP_STORED)
    with pytest.raises(DamagedError, match=r"shape \(1000000000,\)"):
        unpack_arrays(claiming, "here")
    for data in (claiming, listed.getvalue(), twice.getvalue(), b"", b"PK\x05\x06", pack_arrays(sound)[:-1]):
        with pytest.raises(DamagedError, match=r"^here.*arrays"):
            unpack_arrays(data, "here")
    files = {name: base64.b64decode(data) for name, data in _sent(claiming).items()}
    with pytest.raises(DamagedError):
        ReleaseStore.decode({"manifest.json": files["manifest"], "arrays.npz": files["arrays"]}, tmp_path)
    again = unpack_arrays(pack_arrays(sound), "here")
    assert all(np.array_equal(again[name], sound[name]) for name in sound)
    buffer = io.BytesIO()
    np.savez(buffer, columns=np.asfortranarray(sound["weights"]))
    assert np.array_equal(unpack_arrays(buffer.getvalue(), "here")["columns"], sound["weights"])


@cache
def _zipped_member(megabytes: int) -> tuple[bytes, str]:
    """Return an archive whose one member is zeros, and the member's digest: they take seconds to make."""
    buffer, digest = io.BytesIO(), hashlib.sha256()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("run.json", "w") as member,
    ):
        for _ in range(megabytes):
            member.write(bytes(1 << 20))
            digest.update(bytes(1 << 20))
    return buffer.getvalue(), digest.hexdigest()


def _export(path: Path, megabytes: int, *, signed: bool, stated: int | None = None) -> Path:
    """Write such an archive, signed by somebody, or by nobody."""
    data, digest = _zipped_member(megabytes)
    path.write_bytes(data)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        contents = documents.canonical_json({"format_version": 1, "members": {"run.json": digest}})
        key = Ed25519PrivateKey.generate()
        signature = {"key": key.public_key().public_bytes_raw().hex(), "signature": key.sign(contents).hex()}
        archive.writestr("contents.json", contents if signed else contents + b" ")
        archive.writestr("signature.json", documents.canonical_json(signature))
    if stated is not None:
        # What a member states of itself, in its own head and in the list.
        size, lie = struct.pack("<L", megabytes << 20), struct.pack("<L", stated)
        path.write_bytes(path.read_bytes().replace(size, lie))
    return path


@pytest.mark.parametrize(
    ("signed", "stated", "message"),
    [
        pytest.param(False, None, "contents.json differs from the signed content", id="unsigned"),
        pytest.param(
            True, None, "run.json declares 524,288,000 bytes; the limit is 268,435,456", id="signed by anybody"
        ),
        pytest.param(True, 1000, "run.json is", id="stating less"),
    ],
)
def test_an_export_is_read_within_bounds(tmp_path: Path, signed: bool, stated: int | None, message: str) -> None:
    path = _export(tmp_path / "run.zip", 500, signed=signed, stated=stated)
    body = "from tasks.exports.archive import read\nread(path)"
    assert message in _told(body, path, megabytes=400)


def test_verify_ends_within_its_bounds(tmp_path: Path) -> None:
    """140 MB of one member are admitted; as a document they are refused, in a process of their own."""
    path = _export(tmp_path / "run.zip", 140, signed=True)
    body = "from tasks.exports.verifying import verify_confined\nverify_confined(path)"
    told = _told(body, path, megabytes=900)
    assert told.startswith(("InputError", "EndedError"))
    assert "longer than 134,217,728 bytes" in told or "UNITBALL_MEMORY" in told


def _repeated_cell(path: Path) -> None:
    cells = pa.DictionaryArray.from_arrays(pa.array(np.zeros(40_000, np.int32)), pa.array(["x" * 200_000]))
    pq.write_table(pa.table({"a": cells, "b": pa.array(["0"] * 40_000)}), path, compression="zstd")


def _long_list(path: Path) -> None:
    numbers = pa.array(np.zeros(75_000_000, np.float32))
    lists = pa.ListArray.from_arrays(pa.array([0, len(numbers)]), numbers)
    table = pa.table({"features": lists, "label": ["0"]})
    # Without a dictionary, which is made number by number.
    pq.write_table(table, path, compression="zstd", use_dictionary=False)


def _nested(levels: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        kind = pa.float32()
        for _ in range(levels):
            kind = pa.list_(kind)
        table = pa.table({"features": pa.nulls(2, kind), "a": pa.nulls(2, kind), "label": ["0"] * 2, "b": ["0"] * 2})
        pq.write_table(table, path, store_schema=False)

    return write


_TABLES: dict[str, tuple[Callable[[Path], None], bool, str]] = {
    "a cell repeated": (_repeated_cell, True, r"expands to more than 256 MiB; .*UNITBALL_MEMORY"),
    "a long list": (_long_list, False, r"expands to more than 256 MiB; .*UNITBALL_MEMORY"),
    "a list as a cell": (_nested(1), True, r"column a: a cell has the type list"),
    "two levels": (_nested(2), False, "column features: it nests list"),
    "five hundred levels": (_nested(500), False, "it nests list|damaged"),
}


@pytest.mark.parametrize("name", _TABLES)
def test_parquet_is_read_within_bounds(name: str, tmp_path: Path) -> None:
    make, declared, message = _TABLES[name]
    make(tmp_path / "rows.parquet")
    (tmp_path / "schema.yaml").write_text(_SCHEMA.replace("header: false\n", ""))
    options = "schema=path.with_name('schema.yaml')" if declared else "discover=True"
    body = f"""from storage.source import ReadOptions, read_source
for block in read_source('parquet', path, ReadOptions({options})).parts['train']: pass"""
    told = _told(body, tmp_path / "rows.parquet")
    assert told.startswith(("InputError", "EndedError"))
    assert re.search(message, told)


def test_a_pickle_holds_as_many_pixels_as_its_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "cifar"
    folder.mkdir()
    claimed = pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": np.zeros(1, np.uint8)}, protocol=2)

    class Claimed:
        def __reduce__(self) -> tuple[Any, ...]:
            return np.ndarray, ((1 << 28, 3072), np.dtype(np.uint8))

    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Claimed(), b"labels": []}, protocol=2))
    with pytest.raises(InputError, match="CIFAR-10"):
        list(read_source("cifar10", folder, ReadOptions(discover=True)).parts["train"])
    (folder / "data_batch_1").write_bytes(claimed)
    assert len(list(read_source("cifar10", folder, ReadOptions(discover=True)).parts["train"])) == 1


_ROW: Ports = {"x": (FLOAT, ["rows", 2])}


@pytest.fixture
def _little_memory() -> Any:
    before = memory_limit()
    set_memory_limit(1 << 28)
    onnx_sessions.sessions.cache_clear()
    yield
    set_memory_limit(before)
    onnx_sessions.sessions.cache_clear()


def _filling(size: int | None) -> bytes:
    """Return a model that fills an array of a given length, or of the length that the row names."""
    nodes: list[Any] = [
        ("ConstantOfShape", ["size"], ["filled"], {}),
        ("ReduceMax", ["filled"], ["largest"], {"keepdims": 0}),
        ("Add", ["x", "largest"], ["y"], {}),
    ]
    weights = {"size": np.array([size])}
    if size is None:
        nodes = [
            ("ReduceMax", ["x"], ["most"], {"keepdims": 0}),
            ("Cast", ["most"], ["whole"], {"to": INTEGER}),
            ("Add", ["whole", "one"], ["size"], {}),
            *nodes,
        ]
        weights = {"one": np.array([1])}
    return model(nodes, _ROW, {"y": (FLOAT, ["rows", 2])}, weights)


def test_an_encoder_that_asks_for_gigabytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "encoder.onnx").write_bytes(_filling(1 << 32))
    body = "from dpalgos.features.onnx import OnnxEncoder\nfrom dpalgos.resources import set_memory_limit\n"
    body += "set_memory_limit(1 << 28)\nOnnxEncoder().read(path.read_bytes(), 2)"
    told = _told(body, tmp_path / "encoder.onnx")
    assert told.startswith("ParameterError")


@pytest.mark.usefixtures("_little_memory")
def test_a_row_that_takes_gigabytes_becomes_zero_and_no_other() -> None:
    made = OnnxEncoder().read(_filling(None), 2)
    rows = np.array([[1.0, 2.0], [3e9, 1.0], [5.0, 4.0], [1e8, 1.0], [1.0, 2.0]])
    found = made.transform(rows)
    assert (found.any(axis=1) == [True, False, True, False, True]).all()
    assert np.array_equal(found, np.vstack([made.transform(row[None]) for row in rows]))


@pytest.mark.usefixtures("_little_memory")
def test_an_encoder_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx import TensorProto, helper

    monkeypatch.setattr(onnx_sessions, "_SECONDS", 1)
    scalar = [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", INTEGER), ("c", TensorProto.BOOL))]
    values = [helper.make_tensor_value_info(name, FLOAT, None) for name in ("v", "w")]
    steps = [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Sin", ["v"], ["w"])]
    body = helper.make_graph(
        steps, "body", [*scalar, values[0]], [helper.make_tensor_value_info("d", TensorProto.BOOL, []), values[1]]
    )
    endless = model(
        [("Loop", ["most", "", "x"], ["y"], {"body": body})],
        _ROW,
        {"y": (FLOAT, ["rows", 2])},
        {"most": np.array(2**62)},
    )
    with pytest.raises(ParameterError, match=r"\[2\].*1 s"):
        OnnxEncoder().read(endless, 2)


@pytest.mark.usefixtures("_little_memory")
def test_an_encoder_whose_process_was_killed_is_begun_again() -> None:
    content = model([("Relu", ["x"], ["y"], {})], _ROW, {"y": (FLOAT, ["rows", 2])})
    made, rows = OnnxEncoder().read(content, 2), np.ones((3, 2))
    before = made.transform(rows)
    onnx_sessions.sessions(content, "")._first._process.kill()
    assert np.array_equal(made.transform(rows), before)
    assert before.any()
