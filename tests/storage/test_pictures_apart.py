"""Pictures are decoded in a process of their own: what ends it is one refused picture, and costs no other."""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from storage.encoder import PictureEncoder
from storage.errors import StorageError
from storage.pictures import reading
from storage.pictures.declaration import Pictures, Pixels
from storage.pictures.decoding import PictureError
from storage.source import ReadOptions, read_source
from tests.support.pictures import GREY, encoded, flat, png, write_pictures


def files(paths: list[str], declared: dict[str, Any]) -> Iterator[bytes]:
    """Answer as the real one does, but for files that end the process."""
    for path in paths:
        name = Path(path).name
        if name == "dies.png":
            os.kill(os.getpid(), signal.SIGSEGV)
        while name == "spins.png":
            pass
        if name == "grows.png":
            raise MemoryError
        if name == "silent.png":
            return
        yield b"\0" + np.full(16 if not name.endswith("short.png") else 15, float(name[0])).tobytes()


def test_what_ends_the_process_is_one_refused_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PROCESS", __name__)
    monkeypatch.setattr(reading, "_SECONDS", 1)
    monkeypatch.setattr(reading, "_MANY", 4)
    names = ["1.png", "dies.png", "spins.png", "2.png", "grows.png", "grows.png", *[f"{n}.png" for n in range(3, 9)]]
    found = [one if isinstance(one, PictureError) else one.tolist() for one in reading.read_files(names, GREY)]
    assert [str(one) if isinstance(one, PictureError) else one[0] for one in found] == [
        1.0, reading._ENDED["died"], reading._ENDED["time"], 2.0, *[reading._ENDED["memory"]] * 2,
        3.0, 4.0, 5.0, 6.0, 7.0, 8.0,
    ]  # fmt: skip
    for name in ("silent.png", "1-short.png"):
        with pytest.raises(StorageError, match="decodes images"):
            list(reading.read_files([name], GREY))


def test_this_process_decodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_pictures(tmp_path, {"cat/a.png": 1, "dog/b.png": 2})

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("a picture was opened in the process that holds the key")

    monkeypatch.setattr("PIL.Image.open", opened)
    for options in (
        ReadOptions(discover=True, pictures=Pictures(side=4)),
        ReadOptions(classes=("cat", "dog"), pictures=GREY),
    ):
        (block,) = read_source("images", folder, options).parts["train"]
        assert block.features.reshape(2, -1)[:, 0].tolist() == [np.float32(1 / 255), np.float32(2 / 255)]
    encoder = PictureEncoder(GREY.document)
    found = encoder.encode([flat(51), b"x", 7, flat(102)])
    assert found.features[[0, 3], 0].tolist() == [0.2, 0.4]
    assert [refusal is None for refusal in found.refusals] == [True, False, False, True]
    assert "int" in str(found.refusals[2])


def test_contents_come_in_their_order_whatever_they_weigh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MUCH", 300)
    monkeypatch.setattr(reading, "_MANY", 3)
    monkeypatch.setattr(reading, "MOST_BYTES", 5000)
    cells: list[Any] = [flat(value) for value in range(0, 250, 10)]
    cells[4], cells[9] = b"x" * 5001, None
    declared = Pictures(side=1, pixels=Pixels.GREY)
    found = [
        str(one) if isinstance(one, PictureError) else round(float(one[0]) * 255)
        for one in reading.read_contents(cells, declared)
    ]
    assert found[:4] + found[5:9] + found[10:] == [value for value in range(0, 250, 10) if value not in (40, 90)]
    assert "5001" in str(found[4])
    assert "NoneType" in str(found[9])


def test_a_bomb_is_one_refused_picture(tmp_path: Path) -> None:
    """By its header, by its format, by the text chunks that it unpacks to."""
    frames = [Image.new("P", (4, 4), number % 200) for number in range(3000)]
    text = (b"zTXt", b"k\0\0" + zlib.compress(b"x" * (1 << 28)))
    bombs = {
        "size.png": png(50_000, 50_000, 8, 0, b"\0" * 50),
        "frames.png": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "text.png": png(2, 2, 8, 0, b"\0ab" * 2, text),
        "lines.png": png(2, 2, 8, 0, b"\0ab" * (1 << 24)),
    }
    for name, content in bombs.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "last.png").write_bytes(flat(51))
    *refused, last = reading.read_files([str(tmp_path / name) for name in (*bombs, "last.png")], GREY)
    said = [str(one) if isinstance(one, PictureError) else "" for one in refused]
    assert "67108864 pixels" in said[0]
    assert "PNG, JPEG" in said[1]
    assert "cannot be read" in said[2]
    # What follows the last line is left packed.
    assert said[3] == ""
    assert not isinstance(last, PictureError)
    assert last[0] == 0.2
