"""Files that unfold to more than memory or time can hold: refused by a named limit, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage.errors import InputError
from storage.readers.files import limited
from storage.readers.registry import read_source
from storage.refs import Visibility
from storage.source import ReadOptions

_MOST_MEGABYTES = 500
_SCHEMA = "format_version: 1\nheader: false\ncolumns:\n  - {name: a, type: numeric, range: [0, 1]}\n"
_SCHEMA += "  - {name: b, type: label, classes: ['0', '1']}\n"

_INGEST = """
import sys
from pathlib import Path
from storage.errors import InputError
from storage.datasets import write_dataset
from storage.layout import Layout
from storage.readers.registry import read_source
from storage.source import ReadOptions
form, path, schema, root = sys.argv[1:]
options = ReadOptions(discover=True, schema=Path(schema) if schema else None)
layout = Layout(Path(root)).prepare()
try:
    write_dataset(layout, read_source(form, path, options), name="bomb", account="bomb", visibility="public")
    print("taken in")
except InputError as error:
    print(error)
# The peak of this program: what getrusage tells is inherited from the process that started it.
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def _zipped(path: Path, piece: bytes, megabytes: int, *, before: bytes = b"", opener: Any = gzip.open) -> Path:
    """Write a compressed file of one piece over and over."""
    block = piece * ((1 << 20) // len(piece))
    with opener(path, "wb") as file:
        file.write(before)
        for _ in range(megabytes):
            file.write(block)
    return path


def _libsvm(folder: Path, megabytes: int) -> tuple[str, Path]:
    return "libsvm", _zipped(folder / "bomb.gz", b"1 1:0.5\n0 2:0.5\n", megabytes)


def _bzip2(folder: Path, megabytes: int) -> tuple[str, Path]:
    return "libsvm", _zipped(folder / "bomb.bz2", b"1 1:0.5\n0 2:0.5\n", megabytes, opener=bz2.open)


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
    return "csv", _zipped(folder / "quoted.csv.gz", b"x\n" * 512, megabytes, before=b'"')


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
    "an index of 4e9": (_index, "--dimension"),
}


def _attacked(folder: Path, name: str, megabytes: int) -> None:
    make, limit = _ATTACKS[name]
    form, path = make(folder, megabytes)
    schema = ""
    if form == "csv":
        (folder / "schema.yaml").write_text(_SCHEMA)
        schema = str(folder / "schema.yaml")
    arguments = [sys.executable, "-c", _INGEST, form, str(path), schema, str(folder / "root")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=True)
    told, peak = done.stdout.splitlines()
    assert limit in told
    assert int(peak) < _MOST_MEGABYTES, f"{name}: {peak} MB"
    assert not list((folder / "root" / "private" / "datasets").iterdir())


@pytest.mark.parametrize("name", ["a line of LIBSVM", "a line of CSV", "a quoted cell", "an index of 4e9"])
def test_an_attack_is_refused_in_bounded_memory(name: str, tmp_path: Path) -> None:
    _attacked(tmp_path, name, 64)


@pytest.mark.nightly
@pytest.mark.parametrize("name", _ATTACKS)
def test_a_large_attack_is_refused_in_bounded_memory(name: str, tmp_path: Path) -> None:
    _attacked(tmp_path, name, 3000)


@pytest.mark.parametrize("name", ["gzip of LIBSVM", "bzip2 of LIBSVM", "gzip of CSV"])
def test_bytes_are_bounded_after_decompression(name: str, tmp_path: Path) -> None:
    form, path = _ATTACKS[name][0](tmp_path, 2)
    (tmp_path / "schema.yaml").write_text(_SCHEMA)
    options = ReadOptions(dimension=2 if form != "csv" else None, classes=("0", "1") if form != "csv" else None)
    if form == "csv":
        options = ReadOptions(schema=tmp_path / "schema.yaml")
    with limited(size=1 << 20), pytest.raises(InputError, match=r"more than 1048576 bytes.*--max-bytes"):
        list(read_source(form, path, options).parts["train"])
    with limited(size=4 << 20):
        assert sum(len(block.labels) for block in read_source(form, path, options).parts["train"]) > 10_000


def test_rows_are_bounded(tmp_path: Path) -> None:
    from storage.datasets import write_dataset
    from storage.layout import Layout

    path = tmp_path / "rows.libsvm"
    path.write_text("1 1:0.5\n0 2:0.5\n" * 50)
    layout = Layout(tmp_path / "root").prepare()
    for most in (99, 100):
        source = read_source("libsvm", path, ReadOptions(discover=True))
        with limited(rows=most):
            if most == 100:
                write_dataset(layout, source, name="rows", account="rows", visibility=Visibility.PUBLIC)
                continue
            with pytest.raises(InputError, match=r"more than 99 train rows.*--max-rows"):
                write_dataset(layout, source, name="rows", account="rows", visibility=Visibility.PUBLIC)
