"""The reader of pictures: folders and tables, what is refused, what is left out, and how they are placed."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.encoder import PictureEncoder
from storage.errors import InputError, RefusedError
from storage.people import People
from storage.pictures.declaration import Pictures, Pixels
from storage.readers.picture_files import asked_pictures, count_asked
from storage.refs import OnViolation
from storage.source import ReadOptions, Source, concatenate, limited, read_source
from tests.support.data import write_idx
from tests.support.pictures import GREY, encoded, flat, write_pictures
from tests.support.stating import stating

PRIVATE = ReadOptions(classes=("cat", "dog"), pictures=GREY)
PUBLIC = ReadOptions(discover=True, pictures=Pictures(side=4))
ANIMALS = {"cat/b.png": 1, "cat/d.PNG": 3, "dog/a.png": 10, "dog/c.png": 12}


def read(path: Path, options: ReadOptions = PRIVATE, **changes: Any) -> Source:
    given = {name: getattr(options, name) for name in options.__slots__}
    return read_source("images", path, ReadOptions(**{**given, **changes}))


def values(source: Source, part: str = "train") -> list[int]:
    """Return the value of each flat picture, in the order of places; -1 for a null record."""
    found: list[int] = []
    for block in source.parts[part]:
        numbers = np.rint(block.features[:, 0].astype(np.float64) * 255).astype(int)
        found += np.where(block.null, -1, numbers).tolist() if block.null is not None else numbers.tolist()
    return found


def labels(source: Source) -> list[str]:
    return [str(label) for block in source.parts["train"] for label in block.labels]


def write_table(folder: Path, *lines: str, name: str = "table.csv", head: str = "path,label") -> Path:
    (folder / name).write_text("\n".join([head, *lines]) + "\n", "utf-8")
    return folder / name


# ── places ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_private_pictures_are_placed_below_their_class_folders_and_public_ones_by_whole_paths(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, ANIMALS)
    assert values(read(folder)) == [10, 1, 12, 3]
    assert labels(read(folder)) == ["dog", "cat", "dog", "cat"]
    public = read(folder, PUBLIC)
    assert values(public) == [1, 3, 10, 12]
    assert (public.classes, public.image_shape) == (("cat", "dog"), (4, 4))
    assert public.found == {"classes", "pixels"}


def test_a_picture_of_another_class_moves_no_other(tmp_path: Path) -> None:
    """The attack: in the order of whole paths every file between the two class folders would move."""
    before = values(read(write_pictures(tmp_path, ANIMALS)))
    (tmp_path / "cat" / "b.png").rename(tmp_path / "dog" / "b.png")
    assert values(read(tmp_path)) == before
    assert values(read(tmp_path, PUBLIC)) != values(read(write_pictures(tmp_path / "as it was", ANIMALS), PUBLIC))


def test_names_that_were_there_come_first_in_their_order(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, {**ANIMALS, "cat/a0.png": 50, "dog/zz/a.png": 60})
    assert values(read(folder)) == [10, 50, 1, 12, 3, 60], "without versions before"
    # Bytes: "d.PNG" came before "c.png" in the version before, and "gone.png" is there no more.
    known = (b"d.PNG", b"gone.png", b"c.png", b"a.png")
    later = read(folder, earlier={"train": known})
    assert values(later) == [3, 12, 10, 50, 1, 60]
    assert later.places[""]["train"].known == (*known, b"a0.png", b"b.png", b"zz/a.png")
    assert later.places[""]["train"].present == (
        *(name for name in known if name != b"gone.png"),
        b"a0.png",
        b"b.png",
        b"zz/a.png",
    )
    # One that was away has the place again that it had.
    write_pictures(folder, {"dog/gone.png": 70})
    assert values(read(folder, earlier={"train": later.places[""]["train"].known})) == [3, 70, 12, 10, 50, 1, 60]


def test_equal_paths_below_class_folders_are_refused_and_the_table_is_the_way_out(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, {**ANIMALS, "dog/b.png": 11})
    with pytest.raises(InputError, match=r"cat/b\.png.*dog/b\.png"):
        read(folder)
    assert values(read(folder, PUBLIC)) == [1, 3, 10, 11, 12], "on public sets whole paths decide"
    table = write_table(tmp_path, "dog/b.png,dog", "cat/b.png,cat", "dog/a.png,dog")
    assert values(read(table)) == [11, 1, 10]
    parts = write_pictures(tmp_path / "parts", {"train/cat/b.png": 1, "test/dog/b.png": 2, "train/dog/a.png": 3})
    assert values(read(parts)) == [3, 1], "once in train/ and once in test/ is no clash"


def test_a_table_s_line_is_the_place(tmp_path: Path) -> None:
    write_pictures(tmp_path, ANIMALS)
    table = write_table(tmp_path, "dog/c.png,dog", "./cat/b.png,cat", "cat/d.PNG,dog")
    assert values(read(table)) == [12, 1, 3]
    assert labels(read(table)) == ["dog", "cat", "dog"], "the table says the class, and no folder"
    pq.write_table(pa.table({"label": ["dog", "cat"], "path": ["dog/c.png", "cat/b.png"]}), tmp_path / "t.parquet")
    assert values(read(tmp_path / "t.parquet")) == [12, 1]
    semicolons = tmp_path / "excel.csv"
    write_pictures(tmp_path, {"Kätze/ä.png": 99})
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        semicolons.write_bytes("path;label\nKätze/ä.png;cat\ncat/b.png;dog\n".encode(encoding))
        assert values(read(semicolons)) == [99, 1]
    semicolons.write_bytes("path;label\nKätze/ä.png;cat\n".encode("cp1252"))
    with pytest.raises(InputError, match=r"line 2: byte 0xe4.*UTF-8"):
        read(semicolons)


def test_train_and_test(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, {"train/cat/b.png": 1, "train/dog/a.png": 2, "test/dog/z.png": 3})
    source = read(folder)
    assert (values(source), values(source, "test")) == ([2, 1], [3])
    assert source.expected == {"train": 2, "test": 1}
    table = write_table(folder, "test/dog/z.png,dog", "train/cat/b.png,cat")
    source = read(table)
    assert (values(source), values(source, "test")) == ([1], [3])
    write_pictures(folder, {"other/x.png": 9})
    with pytest.raises(InputError, match=r"train/.*other;"):
        read(folder)
    with pytest.raises(InputError, match=r"line 2: other/x.png.*train/.*test/"):
        read(write_table(folder, "other/x.png,cat"))
    vehicles = write_pictures(tmp_path / "vehicles", {"train/a.png": 1, "bus/b.png": 2})
    assert labels(read(vehicles, classes=("bus", "train"))) == ["train", "bus"], "a class may be called train"


# ── what is declared ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_classes_and_pixels_of_private_pictures_are_declared(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, ANIMALS)
    with pytest.raises(RefusedError, match="--classes"):
        read(folder, classes=None)
    with pytest.raises(RefusedError, match="--pixels"):
        read(folder, pictures=Pictures(side=4))
    with pytest.raises(InputError, match=r"dimension 16.*17"):
        read(folder, dimension=17)
    with pytest.raises(InputError, match="clipped; --on-violation"):
        read(folder, on_violation=OnViolation.CLIP)
    with pytest.raises(InputError, match=r"classes.*label range"):
        read(folder, classes=None, label_range=(0.0, 1.0))
    with pytest.raises(InputError, match="side 4", check=stating(value="pictures", bound="idx")):
        read_source("idx", folder, PRIVATE)
    with pytest.raises(InputError, check=stating(value="people", bound="csv")):
        read_source("csv", folder, ReadOptions(people=People("x")))


def test_pixels_of_public_pictures_are_found_in_all_of_them(tmp_path: Path) -> None:
    """The attack: the first picture alone is grey, and all others would lose their colours."""
    folder = write_pictures(tmp_path, ANIMALS)
    (folder / "dog" / "z.png").write_bytes(encoded(np.zeros((3, 3, 3), np.uint8)))
    assert read(folder, PUBLIC).image_shape == (3, 4, 4)
    (folder / "dog" / "deep.png").write_bytes(encoded(np.zeros((3, 3), np.uint16)))
    with pytest.raises(InputError, match=r"8.*16.*--pixels"):
        read(folder, PUBLIC)


def test_names_of_folders_are_classes_in_one_spelling(tmp_path: Path) -> None:
    """As macOS spells an umlaut, with blanks, and numbers with noughts before them: 00014 is not 14."""
    folder = write_pictures(tmp_path, {"Ku\u0308he/a.png": 1, "00014/b.png": 2})
    assert labels(read(folder, classes=("K\u00fche", "00014"))) == ["K\u00fche", "00014"]
    with pytest.raises(InputError, match="class '00014'"):
        values(read(folder, classes=("K\u00fche", "14")))


# ── what is left out ─────────────────────────────────────────────────────────────────────────────────────────────────


def _with_faults(folder: Path) -> Path:
    write_pictures(folder, {**ANIMALS, "cow/k.png": 7, "e.png": 8})
    (folder / "dog" / "bad.png").write_bytes(flat(1)[:40])
    return folder


def test_bad_pictures_are_named_all_at_once(tmp_path: Path) -> None:
    source = read(_with_faults(tmp_path))
    with pytest.raises(InputError) as refusal:
        list(source.parts["train"])
    for words in (
        "3 images cannot be read",
        "dog/bad.png is not a PNG",
        "cow/k.png is of class 'cow'",
        "e.png is of no class",
    ):
        assert words in str(refusal.value)
    many = write_pictures(tmp_path / "many", {f"cow/{place:03d}.png": 1 for place in range(30)})
    with pytest.raises(InputError, match=r"30.*cow/019\.png"):
        list(read(many).parts["train"])


def test_files_that_are_passed_over_are_counted_by_their_endings(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, {"cat/a.png": 1, "dog/b.png": 2})
    told: list[str] = []
    read(folder, told=told.append)
    assert told == []
    for name in ("cat/c.webp", "cat/d.WEBP", "dog/notes.txt", "dog/README"):
        (folder / name).write_bytes(b"x")
    read(folder, told=told.append)
    (line,) = told
    assert "4 files are passed over (2 .webp, 1 " in line
    assert "1 .txt" in line
    assert "1 without an ending" in line
    assert "end in .png, .jpg" in line


def test_a_bound_of_bytes_is_not_for_pictures(tmp_path: Path) -> None:
    """It was taken and ignored."""
    folder = write_pictures(tmp_path, {"cat/a.png": 1, "dog/b.png": 2})
    with limited(size=5), pytest.raises(InputError, match="--max-bytes 5"):
        read(folder)


def test_what_is_left_out_keeps_its_place_as_a_null_record_and_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    source = read(_with_faults(tmp_path), on_violation=OnViolation.DROP, told=told.append)
    assert values(source) == [10, 1, -1, 12, 3, -1, -1]
    assert source.tallies["train"].to_json() == {
        "read": 7, "incomplete": 0, "outside": 3, "clipped": 0, "dropped": 0, "null": 3, "kept": 4,
    }  # fmt: skip
    assert len(told) == 3
    assert all(line.endswith("counts as a null record") for line in told)
    public = read(tmp_path, PUBLIC, classes=("cat", "dog"), on_violation=OnViolation.DROP)
    assert values(public) == [1, 3, 10, 12]
    assert public.tallies["train"]["dropped"] == 3
    # Lines without a label or a file.
    table = write_table(tmp_path, "cat/b.png,", "nowhere.png,cat", "cat/d.PNG,cat")
    assert values(read(table, on_violation=OnViolation.DROP)) == [-1, -1, 3]


def test_the_end_of_a_name_alone_makes_a_picture(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, ANIMALS)
    for name in ("cat/Thumbs.db", "dog/readme", "notes.txt", "cat/x.png.txt", "dog/y.gif"):
        (folder / name).write_bytes(flat(200))
    assert values(read(folder)) == [10, 1, 12, 3]


HIDDEN = (
    "cat/@eaDir/b.png/SYNOPHOTO_THUMB_M.jpg", "cat/.ipynb_checkpoints/b-checkpoint.png", "dog/._a.png", "dog/.DS_Store",
    "__MACOSX/cat/._b.png", ".hidden/a.png", "@EADIR/deep/er/a.png", "#recycle/a.png", "cat/x/.thumbs/y/z.png",
)  # fmt: skip


@pytest.mark.parametrize("part", ["", "train/"])
def test_what_is_hidden_or_a_system_s_is_no_picture_and_no_class(part: str, tmp_path: Path) -> None:
    """Each was a row, so that the picture that it was a copy of counted twice, and at the top a class."""
    folder = write_pictures(tmp_path, {f"{part}{name}": value for name, value in ANIMALS.items()})
    write_pictures(folder, {f"{part}{name}": 200 for name in HIDDEN} | ({} if not part else {"@eaDir/x/y.png": 1}))
    for options, expected in ((PRIVATE, [10, 1, 12, 3]), (PUBLIC, [1, 3, 10, 12])):
        told: list[str] = []
        source = read(folder, options, told=told.append)
        assert (values(source), source.classes) == (expected, ("cat", "dog"))
        assert "9 files are passed over (9 hidden" in told[0]
    assert [name for one in asked_pictures(folder, 3) for name in one.names] == sorted(
        f"{part}{name}" for name in ANIMALS
    )
    passed = Counter[str]()
    assert (count_asked(folder, passed), passed.total()) == (4, 9 if not part else 10)


# ── what is refused whatever is declared ─────────────────────────────────────────────────────────────────────────────


DROPPED = ReadOptions(classes=("cat", "dog"), pictures=GREY, on_violation=OnViolation.DROP)


@pytest.mark.parametrize(
    ("link", "target"),
    [("cat/l.png", "b.png"), ("cat/loop", ".."), ("dog/out", "/etc"), ("cow", "cat"), ("dog/gone.png", "nowhere")],
)
def test_a_link_is_one_refused_picture(link: str, target: str, tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, ANIMALS)
    (folder / link).symlink_to(target)
    with pytest.raises(InputError, match=f"1 .*{link} is a link"):
        values(read(folder))
    told: list[str] = []
    found = values(read(folder, DROPPED, told=told.append))
    assert sorted(found) == [-1, 1, 3, 10, 12]
    assert [line for line in told if f"{link} is a link" in line] == told[-1:]
    asked = [name for one in asked_pictures(folder, 3) for name in one.names]
    assert asked == sorted([*ANIMALS, link])
    encoding = PictureEncoder(GREY.document).encode_files([str(folder / name) for name in asked])
    assert [name for name, refusal in zip(asked, encoding.refusals, strict=True) if refusal] == [link]
    assert "is a link" in str(encoding.refusals[asked.index(link)])


def test_a_link_to_a_file_that_is_no_picture_is_passed_over(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, ANIMALS)
    (folder / "cat" / "notes.txt").symlink_to("/etc/hostname")
    assert values(read(folder)) == [10, 1, 12, 3]


def test_a_part_that_is_a_link_is_refused(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "set", {"train/cat/a.png": 1})
    (folder / "test").symlink_to(write_pictures(tmp_path / "else", {"cat/b.png": 2}))
    with pytest.raises(InputError, match="test is a"):
        read(folder, DROPPED)


def test_a_pipe_is_no_picture(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, ANIMALS)
    os.mkfifo(folder / "cat" / "p.png")
    with pytest.raises(InputError, match=r"cat/p\.png.*a file"):
        values(read(folder))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["../secret.png,cat"], "line 2: '../secret.png'"),
        (["cat/../../secret.png,cat"], "line 2:.*path below"),
        (["/etc/secret.png,cat"], "line 2:.*path below"),
        (["cat\\b.png,cat"], "line 2:.*path below"),
        (["cat/b.png,cat", "cat//./b.png,dog"], "line 3: cat//./b.png.*line 2"),
        (["out/b.png,cat"], "line 2: out is a link"),
        (["cat/l.png,cat"], "cat/l.png"),
        (["table.csv,cat"], r"'table\.csv'.*\.png"),
        ([",cat"], "line 2: the path"),
        (["cat/b.png"], "line 2:.*cells"),
    ],
)
def test_lines_that_are_refused(lines: list[str], message: str, tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "set", ANIMALS)
    write_pictures(tmp_path, {"secret.png": 1})
    (folder / "out").symlink_to(tmp_path)
    (folder / "cat" / "l.png").symlink_to("b.png")
    with pytest.raises(InputError, match=message):
        read(write_table(folder, *lines), DROPPED)


@pytest.mark.parametrize(("head", "message"), [("file,label", "column 'path'"), ("path,class", "column 'label'")])
def test_a_table_s_columns_are_named(head: str, message: str, tmp_path: Path) -> None:
    write_pictures(tmp_path, ANIMALS)
    with pytest.raises(InputError, match=message):
        read(write_table(tmp_path, "cat/b.png,cat", head=head))


def test_empty_folders(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(InputError, match=r"no images.*\.png"):
        read(tmp_path)
    with pytest.raises(InputError, match=r"nowhere.*path, label"):
        read(tmp_path / "nowhere")
    write_pictures(tmp_path, {"dog/a.png": 1})
    assert values(read(tmp_path)) == [1], "a class of which there is none is a class"
    with limited(rows=1), pytest.raises(InputError, match=r"1 images.*--max-rows"):
        read(write_pictures(tmp_path, ANIMALS))


def test_names_that_are_no_text_are_pictures_and_are_shown(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, ANIMALS)
    odd = os.fsdecode(os.fsencode(folder / "cat") + b"/\xff\n.png")
    Path(odd).write_bytes(flat(77))
    assert values(read(folder)) == [10, 1, 12, 3, 77]
    Path(odd).write_bytes(b"bad")
    with pytest.raises(InputError, match=r"cat/\\udcff"):
        values(read(folder))
    Path(odd).unlink()
    (folder / "dog").rename(os.fsdecode(os.fsencode(folder) + b"/d\xf6g"))
    for options in (PUBLIC, ReadOptions(classes=("cat", "d\udcf6g"), pictures=GREY)):
        with pytest.raises(InputError, match=r"d\\udcf6g"):
            read(folder, options)


# ── people ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def people(source: Source) -> list[str]:
    return [str(one) for block in source.parts["train"] for one in (() if block.people is None else block.people)]


RULE = r".*/(\d+)_\d+\.png"


def test_a_rule_finds_people_in_the_paths_of_files(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, {"cat/007_1.png": 1, "dog/007_1.png": 2, "dog/x/12_3.png": 3})
    source = read(folder, person_from=RULE)
    assert people(source) == ["007", "007", "12"], "equal paths are no matter: the roster decides"
    assert source.people == People(f"path, by {RULE}"), "another rule names other people"
    assert source.places == {}
    write_pictures(folder, {"dog/12_3_copy.png": 4})
    with pytest.raises(InputError, match=r"12_3_copy\.png: --person-from '\.\*/\(\\d\+\)_"):
        read(folder, DROPPED, person_from=RULE)
    for rule, message in ((r"\d+", "0 groups"), (r"(\d)(\d)", "2 groups")):
        with pytest.raises(InputError, match=message):
            read(folder, person_from=rule)
    with pytest.raises(InputError, match=r"not a table.*'person'"):
        read(folder, people=People("person"))
    with pytest.raises(InputError, match=r"image.*--person-from.*--person"):
        read(folder, people=People(""))


def test_a_rule_takes_folders_and_no_part(tmp_path: Path) -> None:
    """The attack: numbers that begin again in each folder made 75 people of 1,307 tracks, for good."""
    tracks = {
        f"{name}/{track:05d}_{frame:05d}.png": track
        for name in ("00003", "00014")
        for track in (1, 2)
        for frame in (0, 1)
    }
    parts = {"train/00003/00001_00000.png": 1, "test/00003/00001_00001.png": 1, "train/00014/00001_00000.png": 1}
    whole = r"(\d+/\d+)_\d+\.png"
    source = read(write_pictures(tmp_path / "flat", tracks), classes=("00003", "00014"), person_from=whole)
    assert len(set(people(source))) == 4
    folder = write_pictures(tmp_path / "parts", parts)
    lines = [f"{name},x" for name in parts]
    for given in (folder, write_table(folder, *lines)):
        source = read(given, classes=("00003", "00014") if given == folder else ("x", "y"), person_from=whole)
        found = {
            part: [one for block in rows for one in (() if block.people is None else block.people)]
            for part, rows in source.parts.items()
        }
        assert {part: sorted(names) for part, names in found.items()} == {
            "train": ["00003/00001", "00014/00001"], "test": ["00003/00001"],
        }, "a person in both is one"  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ("(?=x)(a)", r"\(\?="),
        (r"(a)\1", r"\\1"),
        ("(a++)", r"\+\+"),
        (r"(a)\Z", r"\\Z"),
        ("(?>a)(b)", r"\(\?>"),
        ("(", r"\("),
    ],
)
def test_a_rule_that_re2_does_not_know_is_refused_by_name(rule: str, named: str, tmp_path: Path) -> None:
    folder = write_pictures(tmp_path, ANIMALS)
    with pytest.raises(InputError, match=f"--person-from.*: [a-z )]+: {named}.*RE2"):
        read(folder, person_from=rule)


def test_a_rule_takes_linear_time(tmp_path: Path) -> None:
    """The attack: of one that goes back, each digit more doubled the time; this one would take longer than a life."""
    folder = write_pictures(tmp_path, {f"cat/{'1' * 200}x.png": 1, "dog/1.png": 2})
    for rule in (r".*/((?:\d+)+)\.png", r".*/((?:\d|\d\d|[0-9])*)\.png", r"(?:.*.*.*.*.*/)((?:1*)*)\.png"):
        with pytest.raises(InputError, match=r"1x\.png: --person-from"):
            read(folder, person_from=rule)


def test_doubts_about_people_are_told_before_a_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.pictures.reading.confined", None)
    tracks = {f"{name}/{track}_{frame}.png": 1 for name in ("cat", "dog") for track in range(5) for frame in range(3)}
    folder = write_pictures(tmp_path / "few", tracks)
    noted, told = list[str](), list[str]()
    for rule, most in ((RULE, 64), (RULE, 5), (r"(\w+/\d+)_\d\.png", 3)):
        read(folder, person_from=rule, people=People("", most), noted=noted.append, told=told.append)
    assert told == []
    classes, *rest = noted
    assert "5 of 5 people have images of several classes, up to 2" in classes
    assert rest[0] == classes
    assert "5 of 5 people have more than 5 images, up to 6" in rest[1]
    assert rest[2:] == [], "a person in each folder is in one, and has three"


def test_a_table_says_whose_pictures_they_are(tmp_path: Path) -> None:
    write_pictures(tmp_path, ANIMALS)
    lines = ["cat/b.png,cat,7", "dog/a.png,dog,P-1", "dog/c.png,dog, 7"]
    table = write_table(tmp_path, *lines, head="path,label,person")
    assert people(read(table)) == ["7", "P-1", "7"]
    assert read(table).people == People("person")
    other = write_table(tmp_path, *lines, name="other.csv", head="path,label,Patient")
    assert read(other).people is None
    with pytest.raises(InputError, match=r"column 'Person'.*--person Person"):
        read(write_table(tmp_path, *lines, name="capital.csv", head="path,label,Person"))
    source = read(other, people=People("Patient", 3, "hospital"))
    assert people(source) == ["7", "P-1", "7"]
    assert source.people == People("Patient", 3, "hospital")
    with pytest.raises(InputError, match=r"no column 'person'.*Patient"):
        read(other, people=People("person"))
    with pytest.raises(InputError, match=r"has a column 'person'.*--person-from"):
        read(table, person_from=r"(.)\.png")
    with pytest.raises(InputError, match=r"line 2, cat/b\.png.*''"):
        read(write_table(tmp_path, "cat/b.png,cat,", "dog/a.png,dog,1", head="path,label,person"), DROPPED)


def test_lists_in_parquet_name_people_by_a_column(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"features": [[1.0], [2.0]], "label": ["a", "b"], "who": [7, 8]}), path)
    options: dict[str, Any] = {"dimension": 1, "classes": ("a", "b")}
    source = read_source("parquet", path, ReadOptions(people=People("who"), **options))
    assert people(source) == ["7", "8"]
    with pytest.raises(InputError, match=r"rows.parquet.*--person"):
        read_source("parquet", path, ReadOptions(people=People(""), **options))
    with pytest.raises(InputError, match=r"type: person.*--person"):
        read_source("parquet", path, ReadOptions(people=People("who"), schema=Path("adult")))


def test_parties_pictures_are_placed_each_in_its_own_folder(tmp_path: Path) -> None:
    folders = {name: write_pictures(tmp_path / name, {f"{name}/cat/{name}.png": 1}) / name for name in ("one", "two")}
    joined = concatenate({name: read(folder, earlier={"train": (b"old.png",)}) for name, folder in folders.items()})
    assert {party: parts["train"].present for party, parts in joined.places.items()} == {
        "one": (b"one.png",),
        "two": (b"two.png",),
    }
    assert joined.expected == {"train": 2}


# ── IDX and CIFAR's form with any classes ────────────────────────────────────────────────────────────────────────────


SIGNS = tuple(f"sign {number}" for number in range(43))


def test_idx_takes_names_of_classes(tmp_path: Path, random: np.random.Generator) -> None:
    images = random.integers(0, 256, (43, 2, 2), dtype=np.uint8)
    write_idx(tmp_path, "train", images, np.arange(43, dtype=np.uint8), zipped=False)
    assert labels(read_source("idx", tmp_path, ReadOptions(dimension=4, classes=SIGNS))) == list(SIGNS)
    numbers = tuple(str(number) for number in range(43))
    assert labels(read_source("idx", tmp_path, ReadOptions(dimension=4, classes=numbers))) == list(numbers)
    with pytest.raises(InputError, match=r"row 11: label 10.*10"):
        labels(read_source("idx", tmp_path, ReadOptions(dimension=4, classes=SIGNS[:10])))


@pytest.mark.parametrize("last", [True, False])
def test_idx_of_colours_has_a_shape(last: bool, tmp_path: Path, random: np.random.Generator) -> None:
    images = random.integers(0, 256, (3, 3, 4, 5), dtype=np.uint8)
    written = images.transpose(0, 2, 3, 1) if last else images
    write_idx(tmp_path, "train", np.ascontiguousarray(written), np.array([0, 1, 1], dtype=np.uint8), zipped=False)
    source = read_source("idx", tmp_path, ReadOptions(discover=True))
    assert source.image_shape == (3, 4, 5)
    (block,) = source.parts["train"]
    assert np.array_equal(block.features, images.reshape(3, -1).astype(np.float32) / np.float32(255))


def test_cifar_s_form_takes_any_classes(tmp_path: Path, random: np.random.Generator) -> None:
    pixels = random.integers(0, 256, (43, 3072), dtype=np.uint8)
    numbers = np.arange(43, dtype=np.uint8)[:, None]
    (tmp_path / "data_batch_1.bin").write_bytes(np.concatenate([numbers, pixels], axis=1).tobytes())
    source = read_source("cifar10", tmp_path, ReadOptions(classes=SIGNS))
    assert (source.classes, labels(source)) == (SIGNS, list(SIGNS))
    with pytest.raises(InputError, match=r"row 11: label 10.*0.*9"):
        labels(read_source("cifar10", tmp_path))
    with pytest.raises(InputError, match=r"^.*300 classes"):
        read_source("cifar10", tmp_path, ReadOptions(classes=tuple(map(str, range(300)))))


def test_fine_labels(tmp_path: Path, random: np.random.Generator) -> None:
    pixels, fine = random.integers(0, 256, (4, 3072), dtype=np.uint8), np.array([2, 0, 1, 2], dtype=np.uint8)
    coarse = np.full(4, 9, dtype=np.uint8)
    content = np.concatenate([coarse[:, None], fine[:, None], pixels], axis=1).tobytes()
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=r"fine_label_names\.txt"):
        read_source("cifar100", tmp_path)
    (tmp_path / "fine_label_names.txt").write_text("apple\naquarium_fish\nbaby\n")
    source = read_source("cifar100", tmp_path)
    assert (source.classes, sorted(source.parts)) == (("apple", "aquarium_fish", "baby"), ["test", "train"])
    assert labels(source) == ["baby", "apple", "aquarium_fish", "baby"]
    (block,) = source.parts["train"]
    assert np.array_equal(block.features, pixels.astype(np.float32) / np.float32(255))
    assert labels(read_source("cifar100", tmp_path, ReadOptions(classes=("x", "y", "z")))) == ["z", "x", "y", "z"]


def test_mnist_as_a_folder_is_mnist_as_idx(tmp_path: Path, random: np.random.Generator) -> None:
    """The oracle: the same pixels by another reader, to the bit."""
    images = random.integers(0, 256, (6, 28, 28), dtype=np.uint8)
    write_idx(tmp_path / "idx", "train", images, np.arange(6, dtype=np.uint8) % 2, zipped=False)
    for number, image in enumerate(images):
        path = tmp_path / "folder" / str(number % 2) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(image))
    options = ReadOptions(classes=("0", "1"), pictures=Pictures(side=28, pixels=Pixels.GREY))
    (one,) = read_source("images", tmp_path / "folder", options).parts["train"]
    (other,) = read_source("idx", tmp_path / "idx", ReadOptions(dimension=784, classes=("0", "1"))).parts["train"]
    assert np.array_equal(one.features, other.features)
    assert [int(label) for label in one.labels] == [int(label) for label in other.labels]
