"""A horizon whose ledger was put back: what was released of it stands for the rows that it holds, and for no others."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.mechanisms.factorisation import ToeplitzFactor
from storage.errors import RefusedError
from tasks.accounts.budget import restore_ledger
from tasks.planning.plans import PlannedRelease
from tasks.runtime.settings import current_root
from tests.flows.test_nightly import arrive, frozen, lines, tonight

NIGHTS = 5
A, B, C = slice(0, 30), slice(30, 50), slice(50, 60)
"""Rows by when they come at first: so many that a sum's count tells whose it is."""
GIVEN: dict[str, Any] = {"horizon": NIGHTS, "parties": 1}


def back_up(place: Path) -> None:
    place.mkdir()
    for name in ("ledger.sqlite", "ledger.head"):
        shutil.copy(current_root() / name, place / name)


def put_back(place: Path) -> None:
    for name in ("ledger.sqlite", "ledger.head"):
        shutil.copy(place / name, current_root() / name)


def counts(release: PlannedRelease) -> list[int]:
    """How many rows stand in the party's frozen sum of each night so far."""
    inner = release.build().inner  # type: ignore[attr-defined]  # of running sums
    unit, stream = inner.class_sums(release.setting).unit, release.stream
    assert stream is not None
    return [round(float(frozen(release, "0", night)[:, -1].sum() / unit)) for night in range(1, stream.night + 1)]


def lost(factor: ToeplitzFactor, *nights: int) -> float:
    """mu of a row that stands in the sums of these nights, in units of the horizon's."""
    columns = [np.r_[np.zeros(night - 1), factor.coefficients[: factor.nights - night + 1]] for night in nights]
    return float(np.linalg.norm(np.sum(columns, axis=0)) / factor.norm)


def test_a_horizon_that_begins_again_takes_no_sum_of_other_rows(root: Path, tmp_path: Path) -> None:
    """The attack: rows of one version in the sums of two nights, those of another in none."""
    rows = lines(60, tmp_path / "rows")
    back_up(tmp_path / "back-up") if (current_root() / "ledger.sqlite").exists() else None
    arrive(rows[A], tmp_path)
    back_up(tmp_path / "old")
    tonight(**GIVEN)
    arrive([*rows[A], *rows[B]], tmp_path)
    tonight(**GIVEN)
    put_back(tmp_path / "old")
    restore_ledger("disk lost", None, None)
    release, _ = tonight(**GIVEN)
    for more in ([*rows[A], *rows[C]], [*rows[A], *rows[C], *rows[B]]):
        arrive(more, tmp_path)
        release, _ = tonight(**GIVEN)
    print(counts(release), lost(ToeplitzFactor(nights=5), 2, 3), lost(ToeplitzFactor(nights=365), 2, 3))
    assert sorted(counts(release)) == [10, 20, 30]
