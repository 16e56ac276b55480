"""CSV typed column by column gives what looking at every cell gives, and stops where something needs a closer look."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from storage.errors import InputError
from storage.readers import tables as module
from storage.refs import OnViolation
from storage.schema import Table
from storage.source import ReadOptions, Source, read_source

SCHEMA = """
format_version: 1
header: true
columns:
  - {name: age, type: numeric, range: [0, 100]}
  - {name: colour, type: category, values: [red, green, "1"]}
  - {name: note, type: ignore}
  - {name: sick, type: label, classes: ["no", "yes"], suffix: "."}
missing: {marker: "?", rows: drop}
"""

GOOD = ["50,red,a,no", "1e1, green ,b,yes.", "0,1.0,c,no", "100,1,,yes", "-0.0,red,é,no"]
ODD = [
    "+7,red,a,no",
    '5,"red",a,no',
    '5,red,"a, b",no',
    "101,red,a,no",
    "5,blue,a,no",
    "?,red,a,no",
    "5,red,no",
    "1_0,red,a,no",
]

# Of these no line has to be looked at: columns say what is missing or outside.
ODD_CELLS = ["101,red,a,no", "5,blue,a,no", "?,red,a,no", "1_0,red,a,no", "nan,red,a,no", "5,?,a,no"]
ODD += ["1_0,red,a,no", "5,?,a,no", "5,red,a, ?", "nan,red,a,no", " 5 ,red,a,no"]


def source(
    folder: Path, lines: list[str], on_violation: OnViolation = OnViolation.DROP, *, public: bool = True
) -> Source:
    (folder / "schema.yaml").write_text(SCHEMA)
    (folder / "rows.csv").write_text("\n".join(["age,colour,note,sick", *lines]) + "\n")
    options = ReadOptions(schema=folder / "schema.yaml", on_violation=on_violation, discover=public)
    return read_source("csv", folder / "rows.csv", options)


def by_python(*_: object) -> Generator[Table, None, int]:
    """Read no row column by column."""
    yield from ()
    return 0


def only_columns(rows: object, done: int | None, *_: object) -> None:
    """Read no row otherwise."""
    assert done is None


def taken(found: Source) -> tuple[list[list[float]], list[str], dict[str, int]]:
    blocks = list(found.parts["train"])
    features = [row for block in blocks for row in np.asarray(block.features).tolist()]
    return features, [str(label) for block in blocks for label in block.labels], found.tallies["train"].to_json()


@pytest.mark.parametrize("public", [True, False])
@pytest.mark.parametrize("odd", [[], *([one] for one in ODD), ODD])
def test_it_gives_what_looking_at_every_cell_gives(
    odd: list[str], public: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random: np.random.Generator
) -> None:
    lines = [GOOD[number] for number in random.integers(0, len(GOOD), 300)]
    for line in odd:
        lines.insert(int(random.integers(150, 300)), line)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 512)
    typed = taken(source(tmp_path, lines, public=public))
    monkeypatch.setattr(module, "_arrow_rows", by_python)
    assert typed == taken(source(tmp_path, lines, public=public))
    assert len(typed[0]) >= 300


def test_a_line_ends_alike_in_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(["age,colour,note,sick", *GOOD * 20])
    found, expected = source(tmp_path, []), taken(source(tmp_path, GOOD * 20))
    monkeypatch.setattr(module, "_BLOCK_BYTES", 97)
    for written in (text, text.replace("\n", "\r\n"), "\ufeff" + text + "\n" * 3):
        (tmp_path / "rows.csv").write_bytes(written.encode())
        assert taken(found) == expected
    (tmp_path / "rows.csv").write_bytes(text.replace("\n", "\r").encode())
    with pytest.raises(InputError, match="line 1: new-line character"):
        taken(found)


def test_what_is_in_order_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would compare one way with itself."""
    monkeypatch.setattr(module, "islice", only_columns)
    features, _, tally = taken(source(tmp_path, [*GOOD * 100, *ODD_CELLS]))
    assert len(features) == 500
    assert tally["dropped"] == len(ODD_CELLS)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("101,red,a,no", "line 402, column age: '101'"),
        ("5,red,a", "line 402: 3 cells"),
        ("5,red,\udcff,no", "line 402: byte 0xff is not UTF-8"),
    ],
)
def test_the_faulty_line_is_named(line: str, told: str, tmp_path: Path) -> None:
    found = source(tmp_path, [*GOOD * 80, *GOOD], OnViolation.REFUSE)
    with (tmp_path / "rows.csv").open("wb") as file:
        lines = ["age,colour,note,sick", *GOOD * 80, line, *GOOD]
        file.write("\n".join(lines).encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=told):
        taken(found)


def test_columns_whose_texts_repeat_are_typed_text_by_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "schema.yaml").write_text("""
format_version: 1
columns:
  - {name: came, type: date, range: [2020-01-01, 2026-12-31], parts: [days, month]}
  - {name: paid, type: numeric, range: [0, 5000], currency: "€", thousands: ","}
  - {name: street, type: category, hash: 4}
  - {name: smokes, type: boolean}
  - {name: sick, type: label, classes: ["no", "yes"]}
""")
    lines = ["2021-03-04,€ 12.5,Main,Yes,no", '2026-12-31 ,"€ 1,200",Side, n ,yes', "2020-01-01,7,Main,1,no"]
    (tmp_path / "rows.csv").write_text("\n".join(["came,paid,street,smokes,sick", *lines * 50]) + "\n")
    options = ReadOptions(schema=tmp_path / "schema.yaml", discover=True)
    with monkeypatch.context() as typed_only:
        typed_only.setattr(module, "islice", only_columns)
        typed = taken(read_source("csv", tmp_path / "rows.csv", options))
    monkeypatch.setattr(module, "_arrow_rows", by_python)
    assert typed == taken(read_source("csv", tmp_path / "rows.csv", options))


BESIDE = """
format_version: 1
columns:
  - {name: note, type: ignore}
  - {name: remark, type: ignore}
  - {name: age, type: numeric, range: [0, 100]}
  - {name: born, type: date, range: [2000-01-01, 2026-12-31]}
  - {name: sick, type: label, classes: ["no", "yes"], suffix: "."}
missing: {marker: "", rows: indicator}
"""
OTHERS = ["a,b,5,2001-01-01,no", "a,b,x,2001-01-01,no", "a,b,5\x1f,,no", "a,b,5,,no", "a,b,5,no"]


@pytest.mark.parametrize("block", [40, 1 << 22])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    "row", ["a,b,7\x1f,2001-01-01,no", 'a, "b,c",7,2001-01-01,no', ' "a,b",7,2001-01-01,no', "a,b,7,2001-01-01,no. "]
)
def test_a_row_is_the_same_beside_other_rows(
    row: str, other: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one row would move others: whole columns are read together, or line by line where a row asks for it."""
    monkeypatch.setattr(module, "_BLOCK_BYTES", block)
    (tmp_path / "schema.yaml").write_text(BESIDE)
    options = ReadOptions(schema=tmp_path / "schema.yaml", on_violation=OnViolation.DROP, discover=False)
    found = []
    for lines in ([row], [other, row], [other, other, row]):
        text = "\n".join(["note,remark,age,born,sick", *lines]) + "\n"
        (tmp_path / "rows.csv").write_text(text, encoding="utf-8")
        block_of_it = list(read_source("csv", tmp_path / "rows.csv", options).parts["train"])[-1]
        null = block_of_it.null is not None and bool(block_of_it.null[-1])
        found.append((null, block_of_it.features[-1].tolist(), None if null else str(block_of_it.labels[-1])))
    assert found == [found[0]] * 3


def test_a_cell_of_two_lines_is_whole_where_a_block_ends_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f'{age},red,a,"no\n"' for age in range(10)] + ['7,red,a,"no\nt"']
    for size in range(20, 60):
        monkeypatch.setattr(module, "_BLOCK_BYTES", size)
        tally = taken(source(tmp_path, lines))[2]
        assert (tally["read"], tally["kept"], tally["dropped"]) == (11, 10, 1), size


def test_a_cell_that_begins_with_a_mark_of_order_is_none_of_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the beginning of a block as anywhere else but in the file's first line."""
    for size in range(20, 60):
        monkeypatch.setattr(module, "_BLOCK_BYTES", size)
        found = source(tmp_path, [*GOOD, "\ufeff1,red,a,no", *GOOD] * 3)
        assert taken(found)[2]["dropped"] == 3, size


LAST = """
format_version: 1
columns:
  - {name: sick, type: label, classes: ["no", "yes"]}
  - {name: age, type: numeric, range: [0, 100]}
  - {name: note, type: ignore}
"""


def test_a_cell_of_two_lines_is_whole_wherever_it_stands(tmp_path: Path) -> None:
    """Otherwise a longer cell before it would make two rows of one, and move all that follow."""
    (tmp_path / "schema.yaml").write_text(LAST)
    options = ReadOptions(schema=tmp_path / "schema.yaml")
    head, filler = "sick,age,note\n", "no,5,a\n"
    whole, rest = divmod((1 << 20) - len(head) - 20, len(filler))
    for wider in range(0, 24, 2):
        first = f"no,5,{'a' * (1 + rest + wider)}\n"
        (tmp_path / "rows.csv").write_text(head + first + filler * (whole - 1) + 'no,7,"x\nno,5,y"\n' + filler * 40)
        blocks = read_source("csv", tmp_path / "rows.csv", options).parts["train"]
        assert sum(len(block.labels) for block in blocks) == whole + 41, wider


def test_a_cell_without_end_is_refused_in_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = source(tmp_path, [*GOOD, f"5,red,{'a' * 131_073},no", *GOOD])
    for _ in range(2):
        with pytest.raises(InputError, match="line 7: field larger than field limit"):
            taken(found)
        monkeypatch.setattr(module, "_arrow_rows", by_python)
    assert len(taken(source(tmp_path, [*GOOD, f"5,red,{'é' * 131_072},no"]))[0]) == len(GOOD) + 1
