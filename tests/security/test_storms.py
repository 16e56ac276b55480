"""Storms: kills at random moments, many processes at once, disks of many sizes; nothing lost, nothing charged twice."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import StorageError
from storage.layout import Layout
from storage.releases import ReleaseStore
from tests.support import forks
from tests.support.forks import race
from tests.support.ledgers import open_ledger, release, request, spent


def _charge_and_store(root: Path, start: int, said: Any) -> None:
    """Charge, record and store releases for ever, saying each once it is stored."""
    layout = Layout(root).prepare()
    ledger, store = open_ledger(layout.ledger, marks=root.parent / "marks"), ReleaseStore(layout)
    for number in range(start, start + 1_000_000):
        key, arrays = f"k{number}", {"x": np.full(50, number)}
        ledger.charge(request(release(key)), {})
        ledger.record_output(key, store.digest_of({"n": number}, arrays))
        store.write(key, {"n": number}, arrays)
        said.send(key)


def _storm_of_kills(tmp_path: Path, kills: int, random: np.random.Generator) -> None:
    root = tmp_path / "root"
    layout = Layout(root).prepare()
    ledger = open_ledger(layout.ledger, cap=1e6, marks=tmp_path / "marks")
    said: set[str] = set()
    for attempt in range(kills):
        receiver, sender = forks.Pipe(duplex=False)
        child = forks.start(_charge_and_store, root, attempt * 1_000_000, sender)
        sender.close()
        time.sleep(float(random.uniform(0, 0.15)))
        child.kill()
        child.join()
        try:
            while True:
                said.add(receiver.recv())
        except EOFError:
            pass
    charged = [charge.key for charge in ledger.charges("clinic")]
    store = ReleaseStore(layout)
    assert said <= set(store.keys()) <= set(charged)
    assert len(set(charged)) == len(charged)
    assert spent(ledger) == len(charged)
    assert ledger.verify({key: store.digest_of(*store.read(key)) for key in store.keys()}) == []


def test_a_few_kills_lose_nothing(tmp_path: Path, random: np.random.Generator) -> None:
    _storm_of_kills(tmp_path, 5, random)


@pytest.mark.nightly
def test_500_kills_lose_nothing(tmp_path: Path, random: np.random.Generator) -> None:
    _storm_of_kills(tmp_path, 500, random)


def _storm_of_processes(tmp_path: Path, processes: int) -> None:
    layout = Layout(tmp_path / "root").prepare()
    ledger = open_ledger(layout.ledger, cap=processes // 4, marks=tmp_path / "marks")

    def body(number: int) -> str:
        own = open_ledger(layout.ledger, marks=tmp_path / "marks")
        # Pairs ask for the same release, and both write it.
        key = f"k{number // 2}"
        own.charge(request(release(key)), {})
        arrays = {"x": np.full(10, number // 2)}
        own.record_output(key, ReleaseStore.digest_of({}, arrays))
        ReleaseStore(layout).write(key, {}, arrays)
        return "stored"

    answers = Counter(race(processes, body))
    assert set(answers) <= {"stored", "OverspendError"}
    assert spent(ledger) == len(ledger.charges("clinic")) == len(ReleaseStore(layout).keys()) == processes // 4
    assert ledger.verify() == []


def test_eight_processes_charge_nothing_twice(tmp_path: Path) -> None:
    _storm_of_processes(tmp_path, 8)


@pytest.mark.nightly
def test_64_processes_charge_nothing_twice(tmp_path: Path) -> None:
    _storm_of_processes(tmp_path, 64)


@pytest.mark.nightly
@pytest.mark.parametrize("kilobytes", range(60, 460, 20))
def test_a_full_disk_of_each_size_loses_nothing(kilobytes: int, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a small disk")
    try:
        said: list[str] = []

        def fill() -> None:
            layout = Layout(place / "root").prepare()
            ledger, store = open_ledger(layout.ledger, cap=1e6), ReleaseStore(layout)
            for number in range(10_000):
                ledger.charge(request(release(f"k{number}")), {})
                store.write(f"k{number}", {}, {"x": np.zeros(100)})
                said.append(f"k{number}")

        with pytest.raises(StorageError) as full:
            fill()
        assert "\n" not in str(full.value)
        if not (place / "root" / "ledger.sqlite").exists():
            assert said == []
            return
        # More room: what was said is there, and charging goes on.
        subprocess.run(["mount", "-o", "remount,size=4m", str(place)], check=True)
        ledger = open_ledger(place / "root" / "ledger.sqlite")
        assert ledger.verify() == []
        charged = [charge.key for charge in ledger.charges("clinic")] if ledger.accounts() else []
        assert set(said) <= set(ReleaseStore(Layout(place / "root")).keys()) <= set(charged)
        assert len(set(charged)) == len(charged) <= len(said) + 1
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
