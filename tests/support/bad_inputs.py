"""Bad input for the command line, generated: every option with every kind of value that does not belong there."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from storage.source import reader_names

ODD_NUMBERS = ("", " ", "x", "nan", "inf", "-inf", "1e400", "-1", "0x10", "1,5", "9" * 5000, "\x00", "½")
ODD_COUNTS = (*ODD_NUMBERS, "1.5", "1e3", str(10**30))
ODD_NAMES = (
    "",
    " ",
    ".",
    "..",
    "../up",
    "a/b",
    "a\nb",
    "a\x00b",
    "\x1b[31mred",
    "n" * 5000,
    "\u202eevil",
    "-",
    "é" * 200,
)

NUMBERS = ("--epsilon", "--delta", "--test-fraction")
COUNTS = ("--parties", "--rows-per-party", "--dimension", "--replicate", "--seed", "--partition-seed", "--dropouts")
NAMES = ("--dataset", "--algorithm", "--projection", "--trainer", "--aggregation", "--partition", "--normalisation")

SCHEMAS = {
    "nothing": "",
    "null": "null",
    "number": "3",
    "list": "- a\n- b\n",
    "text": "columns",
    "empty": "{}",
    "columns is a number": "columns: 3",
    "columns is null": "columns: null",
    "columns are numbers": "columns: [1, 2]",
    "a column is a list": "columns: [[a]]",
    "a column without a name": "columns: [{kind: number}]",
    "two columns of one name": "columns: [{name: a, kind: number}, {name: a, kind: number}]",
    "range of one": "columns: [{name: a, kind: number, range: [1]}]\nlabel: {name: b, classes: [x, y]}",
    "range the wrong way": "columns: [{name: a, kind: number, range: [1, 0]}]\nlabel: {name: b, classes: [x, y]}",
    "range of nan": "columns: [{name: a, kind: number, range: [.nan, 1]}]\nlabel: {name: b, classes: [x, y]}",
    "range of infinity": "columns: [{name: a, kind: number, range: [0, .inf]}]\nlabel: {name: b, classes: [x, y]}",
    "range of words": "columns: [{name: a, kind: number, range: [low, high]}]\nlabel: {name: b, classes: [x, y]}",
    "range of a huge whole number": f"columns: [{{name: a, kind: number, range: [0, {10**400}]}}]\nlabel: b",
    "label is a number": "columns: [{name: a, kind: number, range: [0, 1]}]\nlabel: 3",
    "one class": "columns: [{name: a, kind: number, range: [0, 1]}]\nlabel: {name: b, classes: [x]}",
    "unknown keys": "colums: []\nlabels: x",
    "tabs": "columns:\n\t- a",
    "an open bracket": "columns: [",
    "a Python object": "!!python/object/apply:os.system ['true']",
    "aliases of aliases": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{n}: &{n} [{','.join(['*' + p] * 9)}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True)),
    "deeply nested": "[" * 20_000,
    "control characters": "columns: [{name: 'a\x07', kind: number}]",
    "two documents": "a: 1\n---\nb: 2\n",
    "a date for a range": "columns: [{name: a, kind: number, range: [2020-01-01, 2020-13-01]}]",
}

SWEEPS = {
    **SCHEMAS,
    "no name": "grid: {epsilon: [1]}",
    "an absurd grid": "name: a\ngrid: {epsilon: [1], parties: ["
    + ",".join(map(str, range(1, 2000)))
    + "], replicate: ["
    + ",".join(map(str, range(2000)))
    + "]}",
    "an odd epsilon": "name: a\ngrid: {epsilon: [.nan]}",
    "a name with a control character": 'name: "a\\x07"\ngrid: {epsilon: [1]}',
    "set is a list": "name: a\nset: [epsilon]",
    "grid is a number": "name: a\ngrid: 3",
    "values are no list": "name: a\ngrid: {epsilon: 1}",
    "keys are numbers": "name: a\ngrid: {1: [1]}",
    "unhashable key": "name: a\ngrid: {[1]: [1]}",
    "an unknown data set": "name: a\nset: {dataset: nothere}\ngrid: {epsilon: [1]}",
}

BYTES = {
    "empty": b"",
    "zeros": bytes(4096),
    "binary": bytes(range(256)) * 16,
    "a wrong byte": b"+1 1:0.5\n-1 1:\xff\xfe\n",
    "utf-16": "a,b\n1,2\n".encode("utf-16"),
    "a broken gzip": b"\x1f\x8b\x08" + bytes(40),
    "one line": b"1" * 200_000,
    "parquet's magic alone": b"PAR1PAR1",
    "html": b"<html><body>404</body></html>\n",
    "a huge index": b"+1 4000000000:1\n-1 1:1\n",
    "a huge number": b"+1 1:" + b"9" * 5000 + b"\n-1 1:1\n",
    "a quote that never closes": b'a,b\n"1,2\n3,4\n',
}

QUERIES = (
    "",
    " ",
    ";",
    "SELECT",
    "SELECT * FROM nothere",
    "DROP TABLE runs",
    "SELECT 1; SELECT 2",
    "\x00",
    "'",
    "(" * 5000,
    "COPY runs TO '/tmp/x'",
    "ATTACH 'x.db'",
    "PRAGMA x",
    "SELECT 'é' ||",
)


def odd_places(folder: Path) -> dict[str, str]:
    """Return paths that are no file of rows: folders, devices, pipes, what is missing, what loops."""
    places = {
        "folder": folder / "folder",
        "missing": folder / "missing",
        "pipe": folder / "pipe",
        "socket": folder / "socket",
        "dangling link": folder / "dangling",
        "link to itself": folder / "loop",
    }
    places["folder"].mkdir()
    os.mkfifo(places["pipe"])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(places["socket"]))
    listener.close()
    places["dangling link"].symlink_to(folder / "nowhere")
    places["link to itself"].symlink_to(places["link to itself"])
    devices = {name: f"/dev/{name}" for name in ("zero", "null", "full", "urandom")}
    odd = {"nothing": "", "a zero byte": "a\x00b", "long": "n" * 5000, "a file as a folder": "/dev/null/x"}
    return {**{name: str(path) for name, path in places.items()}, **devices, **odd}


def bad_inputs(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield labels and arguments; every one must be refused. Files are made in ``folder``."""
    places = odd_places(folder)
    files = folder / "files"
    files.mkdir()

    def file(name: str, content: bytes, suffix: str = "") -> str:
        path = files / (name.replace(" ", "-") + suffix)
        path.write_bytes(content)
        return str(path)

    yield from _arguments()
    yield from _roots(places)
    rows = file("rows", b"a,b\n0.1,x\n0.2,y\n", ".csv")
    schema = ["--schema", file("good", b"header: true\ncolumns: [{name: a, kind: number, range: [0, 1]}]\n")]
    for format in reader_names():
        for name, path in places.items():
            yield (
                f"ingest {format} from {name}",
                ["ingest", "mine", "--public", f"--format={format}", f"--path={path}", *schema],
            )
        for name, content in BYTES.items():
            given = ["--format", format, "--path", file(f"{name} {format}", content), *schema]
            yield f"ingest {format}: {name}", ["ingest", "mine", "--public", *given]
            private = ["--epsilon-cap=1", "--delta-cap=1e-6", "--dimension=2", "--classes=0,1"]
            yield f"ingest private {format}: {name}", ["ingest", "mine", *given, *private]
    for name, path in places.items():
        yield f"party from {name}", ["ingest", "mine", "--public", "--format=libsvm", f"--party=a={path}"]
        yield (
            f"schema from {name}",
            ["ingest", "mine", "--public", "--format=csv", f"--path={rows}", f"--schema={path}"],
        )
        yield f"sweep from {name}", ["sweep", path, "--dry-run"]
        yield f"train from {name}", ["train", "--public", "--dataset=mine", "--format=csv", f"--path={path}"]
    for name, content in BYTES.items():
        for format in ("csv", "libsvm", "parquet"):
            given = ["--dataset=mine", f"--format={format}", "--path", file(f"train {name} {format}", content)]
            yield f"train on {format}: {name}", ["train", "--epsilon=1", "--public", *given]
            yield f"train on private {format}: {name}", ["train", "--epsilon=1", *given]
    for name, text in SCHEMAS.items():
        given = ["--format=csv", f"--path={rows}", "--schema", file(f"schema {name}", text.encode(), ".yaml")]
        yield f"schema: {name}", ["ingest", "mine", "--public", *given]
    for name, text in SWEEPS.items():
        yield f"sweep: {name}", ["sweep", file(f"sweep {name}", text.encode("utf-8", "surrogateescape"), ".yaml")]


def _arguments() -> Iterator[tuple[str, list[str]]]:
    for option in NUMBERS:
        for value in ODD_NUMBERS:
            yield (
                f"train {option} {value[:20]!r}",
                ["train", *(["--epsilon=1"] if option != "--epsilon" else []), f"{option}={value}"],
            )
    for option in COUNTS:
        for value in ODD_COUNTS:
            yield f"train {option} {value[:20]!r}", ["train", "--epsilon=1", f"{option}={value}"]
    for option in NAMES:
        for value in ODD_NAMES:
            yield f"train {option} {value[:20]!r}", ["train", "--epsilon=1", f"{option}={value}"]
    for name in ODD_NAMES:
        cap = ["--epsilon-cap=1", "--delta-cap=1e-6"]
        yield f"ingest {name[:20]!r}", ["ingest", "--public", "--", name]
        yield f"ingest account {name[:20]!r}", ["ingest", "iris", f"--account={name}", *cap, "--normalisation=x"]
        yield f"party {name[:20]!r}", ["ingest", "mine", "--public", "--format=libsvm", f"--party={name}=/dev/null"]
        yield f"budget {name[:20]!r}", ["budget", "--", name]
        yield f"datasets {name[:20]!r}", ["datasets", "--", name]
        yield f"report {name[:20]!r}", ["report", "--", name]
        yield f"reproduce {name[:20]!r}", ["reproduce", "--", name]
        yield f"scale {name[:20]!r}", ["reproduce", "wang2024-fig3", f"--scale={name}"]
        yield f"compare {name[:20]!r}", ["compare", f"--algorithms={name}"]
        yield f"format {name[:20]!r}", ["ingest", "mine", "--public", "--path=/dev/null", f"--format={name}"]
        yield f"parameter {name[:20]!r}", ["train", "--epsilon=1", f"--param={name}=1"]
        yield f"kind {name[:20]!r}", ["algorithms", f"--kind={name}"]
    for number in ODD_NUMBERS:
        iris = ["ingest", "iris", "--account=a", "--delta-cap=1e-6"]
        yield f"epsilon cap {number[:20]!r}", [*iris, f"--epsilon-cap={number}"]
        yield f"delta cap {number[:20]!r}", ["ingest", "iris", "--epsilon-cap=1", f"--delta-cap={number}"]
        yield f"label range {number[:20]!r}", ["ingest", "iris", "--public", f"--label-range={number},0"]
        yield f"raise {number[:20]!r}", ["budget", "iris", f"--raise-epsilon-cap={number}"]
        yield f"parameter of {number[:20]!r}", ["train", "--epsilon=1", f"--param=trainer.clip={number}"]
        yield f"sizes {number[:20]!r}", ["train", "--epsilon=1", f"--sizes=0,{number}"]
        yield f"absent {number[:20]!r}", ["train", "--epsilon=1", "--trust=secagg", f"--absent={number}:mask"]
        yield f"workers {number[:20]!r}", ["reproduce", "wang2024-fig3", f"--workers={number}"]
    for count in ODD_COUNTS:
        yield f"group {count[:20]!r}", ["ingest", "iris", f"--group-size={count}"]
        yield f"dimension {count[:20]!r}", ["ingest", "mine", "--public", "--path=/dev/null", f"--dimension={count}"]
    for sql in QUERIES:
        yield f"results {sql[:20]!r}", ["results", "--", sql]
        yield f"sql {sql[:20]!r}", ["datasets", "iris", f"--sql={sql}"]
    for address in ("tls://", "nowhere", "tls://127.0.0.1:1", "tcp://127.0.0.1:1", "tls://[", "\x00"):
        yield f"dask {address!r}", ["reproduce", "wang2024-fig3", f"--dask={address}"]
    many = ["--parties=1000000", "--rows-per-party=1000000"]
    yield "a million parties", ["train", "--epsilon=1", *many]
    yield "a size beyond reason", ["train", "--epsilon=1", f"--sizes={10**18}"]
    yield "a hundred thousand sizes", ["train", "--epsilon=1", "--sizes=" + ",".join(["1"] * 100_000)]
    yield "parameters nested deeply", ["train", "--epsilon=1", "--param=clip=" + "[" * 20_000]
    yield "a whole number of five thousand digits", ["train", "--epsilon=1", "--param=trainer.steps=" + "9" * 5000]


def _roots(places: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    for name, path in places.items():
        if name not in ("folder", "missing", "dangling link", "nothing"):
            yield f"root is {name}", ["budget", "digits", f"--root={path}"]
            yield f"train in {name}", ["train", "--epsilon=1", f"--root={path}"]
