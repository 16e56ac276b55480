"""LIBSVM text: what is read, and every malformed line by its number."""

from __future__ import annotations

import bz2
import gzip
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from storage.cells import canonical_text
from storage.datasets import open_dataset
from storage.errors import InputError, RefusedError
from storage.layout import Layout
from storage.readers import libsvm
from storage.source import ReadOptions, read_source
from storage.transforming import transform_dataset
from tests.support.data import gathered, stored, temporaries
from tests.support.stating import stating

PUBLIC = ReadOptions(discover=True)
GOOD = "+1 1:0.5 3:-2\n-1 2:1e-3 # a comment\n\n# a whole line\n1.0 1:1 2:2 3:3\n-1.0\n"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def _write(tmp_path: Path, text: str | bytes, name: str = "rows") -> Path:
    path = tmp_path / name
    data = text.encode() if isinstance(text, str) else text
    packers: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, "": bytes}
    path.write_bytes(packers[path.suffix](data))
    return path


@pytest.mark.parametrize("name", ["rows", "rows.gz", "rows.bz2"])
def test_rows_and_labels_are_read(tmp_path: Path, layout: Layout, name: str) -> None:
    source = read_source("libsvm", _write(tmp_path, GOOD, name), PUBLIC)
    assert (source.dimension, source.classes) == (3, ("-1", "1"))
    features, labels = gathered(open_dataset(layout, stored(layout, source)))
    expected = np.array([[0.5, 0, -2], [0, 1e-3, 0], [1, 2, 3], [0, 0, 0]], dtype=np.float32)
    assert np.array_equal(features, expected.astype(np.float64))
    assert labels.tolist() == [1, 0, 1, 0]


def test_a_test_file_widens_what_is_found(tmp_path: Path) -> None:
    test = _write(tmp_path, "2 5:1\n", "test")
    source = read_source("libsvm", _write(tmp_path, GOOD), ReadOptions(discover=True, test=test))
    assert (source.dimension, source.classes) == (5, ("-1", "1", "2"))
    assert source.found == {"dimension", "classes"}


def test_declared_rows_are_not_scanned(tmp_path: Path, layout: Layout) -> None:
    source = read_source("libsvm", _write(tmp_path, GOOD), ReadOptions(dimension=7, classes=("-1", "+1")))
    assert (source.dimension, source.classes, source.found) == (7, ("-1", "1"), frozenset())
    assert stored(layout, source, private=True).dimension == 7
    with pytest.raises(RefusedError, check=stating(value=("classes", "dimension"), bound="declared")):
        read_source("libsvm", _write(tmp_path, GOOD))


def test_real_labels_need_a_range(tmp_path: Path, layout: Layout) -> None:
    path = _write(tmp_path, "0.25 1:1\n-3.5 2:1\n")
    ref = stored(layout, read_source("libsvm", path, ReadOptions(dimension=2, label_range=(-4, 1))), private=True)
    assert gathered(open_dataset(layout, ref))[1].tolist() == [0.25, -3.5]
    with pytest.raises(InputError, match=r"line 2: label '-3\.5'.*range \[-1, 1\]"):
        stored(layout, read_source("libsvm", path, ReadOptions(dimension=2, label_range=(-1, 1))))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 1:0.5 x", "malformed pair 'x'"),
        ("1 1:0.5 2", "malformed pair '2'"),
        ("1 :5", "malformed pair ':5'"),
        ("1 a:5", "malformed pair 'a:5'"),
        ("1 1.0:5", "malformed pair '1.0:5'"),
        ("1 -1:5", "malformed pair '-1:5'"),
        ("1 1:5:6", "malformed value in '1:5:6'"),
        ("1 1:", "malformed value in '1:'"),
        ("1 1:five", "malformed value in '1:five'"),
        ("1 1:1_0", "malformed value in '1:1_0'"),
        ("1 0:5", "index 0; indices begin at 1: add 1 to each index of the file"),
        ("1,2 1:5", "2 labels, '1,2'; a row must have one: write one file per label"),
        ("1 1 : 2", "malformed pair '1'; expected '<index>:<value>'"),
        ("1 1 :2", "malformed pair '1'; expected '<index>:<value>'"),
        ("1 1: 2", "malformed"),
        ("1,2,a", "3 labels, '1,2,a'; a row must have one"),
        ("1 2 0 1:5", "3 labels, '1,2,0'; a row must have one"),
        ("1 1:0.5\r0 2:1\r", "a line ends with a single carriage return"),
        ("1 1:\u0663", "malformed value in '1:\u0663'"),
        ("1 2:1 2:1", "index 2 after 2; indices must ascend"),
        ("1 3:1 2:1", "index 2 after 3; indices must ascend"),
        ("1 1:nan", "malformed value in '1:nan'"),
        ("1 1:-inf", "malformed value in '1:-inf'"),
        ("1 1:1e400", "malformed value in '1:1e400'"),
        ("1:0.5 2:1", "the label is missing"),
        ("1 qid:3 1:1", "malformed pair 'qid:3'"),
        ("1 0x2:1", "malformed pair '0x2:1'"),
        (f"1 {'9' * 5000}:1", "malformed pair '9999"),
        ("1 1:1\x002:2", "malformed value"),
    ],
)
@pytest.mark.parametrize("number", [1, 9000])
def test_a_malformed_line_is_named_by_its_number(
    tmp_path: Path, layout: Layout, line: str, message: str, number: int
) -> None:
    before = [f"{row % 2} 1:{row} 3:1" for row in range(number - 1)]
    path = _write(tmp_path, "\n".join([*before, line, "1 1:1", "0 2:2"]))
    with pytest.raises(InputError, match=f"rows, line {number}: ") as caught:
        stored(layout, read_source("libsvm", path, ReadOptions(dimension=3, classes=("0", "1"))))
    assert message in str(caught.value)
    assert list(layout.datasets.iterdir()) == []
    assert not temporaries(layout.root)


def test_a_value_beyond_float32_is_named(tmp_path: Path, layout: Layout) -> None:
    path = _write(tmp_path, "0 1:1\n1 1:1 2:1e39\n")
    with pytest.raises(InputError, match=r"line 2: feature 2.*inf.*3.4e38\)"):
        stored(layout, read_source("libsvm", path, PUBLIC))


def test_what_is_outside_the_declaration_is_named(tmp_path: Path, layout: Layout) -> None:
    path = _write(tmp_path, "0 1:1\n1 2:1\n2 3:1 4:1\n")
    with pytest.raises(InputError, match=r"line 3: index 3.*2.*--dimension"):
        stored(layout, read_source("libsvm", path, ReadOptions(dimension=2, classes=("0", "1", "2"))))
    with pytest.raises(InputError, match=r"line 3: label '2'.*0, 1.*--classes"):
        stored(layout, read_source("libsvm", path, ReadOptions(dimension=4, classes=("0", "1"))))


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_an_empty_file_is_refused(tmp_path: Path, layout: Layout, text: str) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(InputError, match=r"is empty|no rows|no features"):
        stored(layout, read_source("libsvm", path, ReadOptions(discover=True, dimension=2)))


def test_one_class_only_is_refused_for_public_sets_alone(tmp_path: Path, layout: Layout) -> None:
    path = _write(tmp_path, "1 1:1\n1 2:1\n")
    with pytest.raises(InputError, check=stating(value=1, bound=2)):
        stored(layout, read_source("libsvm", path, PUBLIC))
    declared = ReadOptions(dimension=2, classes=("-1", "1"))
    assert stored(layout, read_source("libsvm", path, declared), private=True).rows == 2


def test_many_labels_are_no_classes(tmp_path: Path) -> None:
    path = _write(tmp_path, "".join(f"{row / 7:.6f} 1:1\n" for row in range(1200)))
    with pytest.raises(InputError, match=r"1200.*--label-range"):
        read_source("libsvm", path, PUBLIC)


def test_a_cut_bz2_is_refused(tmp_path: Path, layout: Layout) -> None:
    path = _write(tmp_path, GOOD * 5000, "rows.bz2")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"rows\.bz2.*truncated"):
        read_source("libsvm", path, PUBLIC)
    path.write_bytes(b"not bz2")
    with pytest.raises(InputError, match=r"rows.bz2"):
        read_source("libsvm", path, PUBLIC)


def test_wide_rows_are_stored_sparse_and_equal_the_peer(tmp_path: Path, layout: Layout) -> None:
    random = np.random.default_rng(72)
    dense = np.where(random.random((300, 5000)) < 0.003, random.normal(size=(300, 5000)), 0).astype(np.float32)
    path = tmp_path / "wide"
    dump_svmlight_file(dense, np.arange(300) % 2, str(path), zero_based=False)
    ref = stored(layout, read_source("libsvm", path, ReadOptions(dimension=5000, classes=("0", "1"))))
    rows = open_dataset(layout, ref)
    assert rows.format.sparse
    features, labels = gathered(rows)
    peer, peer_labels = load_svmlight_file(str(path), n_features=5000)
    assert np.array_equal(features, peer.toarray().astype(np.float32).astype(np.float64))
    assert np.array_equal(labels, peer_labels.astype(int))
    size = sum(file.stat().st_size for file in rows.files)
    assert size < dense.nbytes / 50


def test_long_lines_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    line = "1 " + " ".join(f"{index}:0.123456789" for index in range(1, 5001)) + "\n"
    path = _write(tmp_path, line * 200)
    blocks = list(read_source("libsvm", path, ReadOptions(dimension=5000, classes=("0", "1"))).parts["train"])
    assert sum(len(block.labels) for block in blocks) == 200
    assert max(len(block.labels) for block in blocks) < 60


@pytest.mark.parametrize(
    ("raw", "canonical"),
    [
        ("+1", "1"), ("1.0", "1"), (" 1 ", "1"), (1, "1"), (np.float64(1), "1"), (np.uint8(7), "7"), ("-1.0", "-1"),
        ("-0", "0"), ("0.50", "0.5"), ("-2.50", "-2.5"), ("007", "007"), ("1e3", "1e3"), ("<=50K", "<=50K"),
        ("", ""), ("12345678901234567890", "12345678901234567890"), ("١", "١"),
    ],
)  # fmt: skip
def test_labels_have_one_spelling(raw: object, canonical: str) -> None:
    assert canonical_text(raw) == canonical
    assert canonical_text(canonical) == canonical


@settings(max_examples=30, deadline=None)
@given(
    some.lists(
        some.tuples(
            some.sampled_from(["+1", "-1", "1.0"]),
            some.dictionaries(
                some.integers(1, 30), some.floats(width=32, allow_nan=False, allow_infinity=False), max_size=6
            ),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_any_rows_come_back(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, dict[int, float]]]) -> None:
    folder = tmp_path_factory.mktemp("any")
    text = "".join(
        label + "".join(f" {index}:{value!r}" for index, value in sorted(pairs.items())) + "\n" for label, pairs in rows
    )
    layout = Layout(folder / "root").prepare()
    options = ReadOptions(dimension=30, classes=("-1", "1"))
    ref = stored(layout, read_source("libsvm", _write(folder, text), options), private=True)
    features, labels = gathered(open_dataset(layout, ref))
    expected = np.zeros((len(rows), 30))
    for row, (_, pairs) in enumerate(rows):
        for index, value in pairs.items():
            expected[row, index - 1] = value
    assert np.array_equal(features, expected)
    assert labels.tolist() == [0 if label == "-1" else 1 for label, _ in rows]


def test_a_declared_image_shape_stays_with_the_rows(tmp_path: Path, layout: Layout) -> None:
    path = _write(tmp_path, "0 1:1\n1 6:1\n")
    options = ReadOptions(dimension=6, classes=("0", "1"), image_shape=(2, 3))
    ref = stored(layout, read_source("libsvm", path, options))
    assert ref.image_shape == (2, 3)
    mapped = transform_dataset(layout, ref, lambda rows: rows / 2, normalisation="halved")
    assert mapped.image_shape == (2, 3)
    # Features of images are no images.
    assert ref.seen_through(["a-map"], 6).image_shape is None
    with pytest.raises(InputError, match=r"shape.*\[2, 2\].*6"):
        read_source("libsvm", path, replace(options, image_shape=(2, 2)))


def _one_by_one(text: str) -> list[tuple[str, dict[int, float]] | None]:
    """Return the label and the pairs of each line as the format says; None where it does not fit."""
    rows: list[tuple[str, dict[int, float]] | None] = []
    for line in text.encode().split(b"\n"):
        label, *pairs = line.partition(b"#")[0].split() or [b""]
        found: dict[int, float] = {}
        for pair in pairs:
            match = re.fullmatch(rb"([0-9]{1,18}):([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)", pair)
            index, value = (int(match[1]), float(match[2])) if match else (0, np.inf)
            if not max(found, default=0) < index or not np.isfinite(value):
                rows.append(None)
                break
            found[index] = value
        else:
            name = libsvm.label_of(label.decode(errors="replace"))
            rows += [None if b":" in label or b"," in label else (name, found)] if label else []
    return rows


@settings(deadline=None, max_examples=300)
@given(some.lists(some.text(alphabet="0112+-.eE,:::   \t\r#nax\x1f\u00e9\u0663", max_size=24), min_size=1, max_size=6))
def test_lines_at_once_are_what_they_are_one_by_one(lines: list[str]) -> None:
    """Whatever is written, blank, indented or with a comment: the same rows, or the line is named that fits not."""
    text = "\n".join([*lines, ""])
    expected = _one_by_one(text)
    try:
        found = libsvm._parse(Path("rows"), 1, text.encode())
    except InputError as error:
        number = int(re.match(r"rows, line (\d+): ", str(error))[1])  # type: ignore[index]  # else it names no line
        assert _one_by_one(lines[number - 1]) == [None]
        assert None not in _one_by_one("\n".join(lines[: number - 1]))
        return
    rows = zip(found.labels.tolist(), found.pointers[:-1], found.pointers[1:], strict=True)
    assert expected == [
        (label, dict(zip((found.columns[start:stop] + 1).tolist(), found.values[start:stop].tolist(), strict=True)))
        for label, start, stop in rows
    ]


def test_spellings_that_are_read(tmp_path: Path) -> None:
    path = _write(tmp_path, "0x1 05:+1. 7:.5\né٣ 1:1e-400 2:-0\n\xa01\x0c3:+.5e1\n")
    (block,) = read_source("libsvm", path, ReadOptions(dimension=7, classes=("0x1", "é٣"))).parts["train"]
    assert block.labels.tolist() == ["0x1", "é٣", "1"]
    assert block.features.toarray().tolist() == [[0, 0, 0, 0, 1, 0, 0.5], [0] * 7, [0, 0, 5, 0, 0, 0, 0]]


def test_ordinary_lines_need_no_closer_look() -> None:
    text = b"\n+1 1:0.25 7:-1e-3\n-1 \r\n+1\t2:123456789.123456789  3:5\n"
    found = libsvm._columns(text, np.arange(3, 6))
    assert found.pointers.tolist() == [0, 2, 2, 4]
    assert found.columns.tolist() == [0, 6, 1, 2]
    assert found.values.tolist() == [0.25, -1e-3, 123456789.123456789, 5.0]
    assert found.labels.tolist() == ["1", "-1", "1"]


def test_blocks_are_whole_lines_with_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of a block, and without a newline at the end; a fault is named by its line."""
    lines = [f"{number % 2} {1 + number % 7}:{number}" for number in range(40)]
    path = _write(tmp_path, "\n".join(lines))
    options = ReadOptions(dimension=7, classes=("0", "1"))
    for size in (1, 9, 64, 1 << 20):
        monkeypatch.setattr(libsvm, "_BYTES", size)
        monkeypatch.setattr(libsvm, "_LINES", 6)
        blocks = list(read_source("libsvm", path, options).parts["train"])
        assert np.concatenate([block.lines for block in blocks]).tolist() == list(range(1, 41))
        assert max(len(block.labels) for block in blocks) <= 6
        sums = [np.asarray(block.features.sum(axis=1)).ravel() for block in blocks]
        assert np.concatenate(sums).tolist() == list(range(40))
        path.write_text("\n".join([*lines, "0 8:1", "1 1:1"]))
        with pytest.raises(InputError, match="line 41: index 8"):
            list(read_source("libsvm", path, options).parts["train"])
        path.write_text("\n".join([*lines, "0 2:x"]))
        with pytest.raises(InputError, match="line 41: malformed"):
            list(read_source("libsvm", path, options).parts["train"])
        path.write_text("\n".join(lines))
