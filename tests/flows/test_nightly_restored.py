"""A horizon whose ledger was put back: what was released of it stands for the rows that it holds, and for no others.

The attacks are those of an owner who restores an older ledger and brings versions in again, in another order or in the
old one. Each is refused, the way out that the refusal names works, and what is booked then is no less than what rows
have lost. The mutants take bindings away, and rows then lose more than is booked.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.accounting.costs import PlanCost
from dpalgos.accounting.spending import worst_totals
from dpalgos.mechanisms.factorisation import ToeplitzFactor
from dpalgos.trainers.continual import NightSum
from dpalgos.trainers.discriminant import ClassMeansDiscriminant
from storage.errors import RefusedError
from storage.ledger.charges import AccountTerms
from storage.ledger.entries import Kind, reading
from tasks.accounts.filters import sum_plans
from tasks.accounts.ledger import open_ledger, restore_ledger
from tasks.planning import identity
from tasks.planning import nights as planning
from tasks.planning.nights import PlannedNight
from tasks.preparation import nightly_rows, public_maps, streams
from tasks.preparation.streams import Arrived, notes_of
from tasks.release import door, night_rows
from tasks.runtime.settings import current_layout, current_root, marks_folder
from tasks.runtime.stores import open_catalog, open_ledger_database, open_releases
from tests.flows import test_nightly_people as people
from tests.flows.test_nightly import arrive, frozen, lines, spent, tonight
from tests.support.command_line import CommandLine
from tests.support.nights import spanning
from tests.support.private_rows import CLASSES, DIMENSION, ingestion, write_rows
from tests.tasks.test_people import bring_in, visits

NIGHTS = 5
A, B, C = slice(0, 30), slice(30, 50), slice(50, 60)
"""Rows by when they come at first: so many that the count of a sum tells whose it is."""
GIVEN: dict[str, Any] = {"horizon": NIGHTS, "parties": 1}
LEDGER = ("ledger.sqlite", "ledger.head")


@pytest.fixture
def rows(tmp_path: Path) -> list[str]:
    return lines(60, tmp_path / "rows")


def back_up(place: Path) -> None:
    place.mkdir()
    for name in LEDGER:
        shutil.copy(current_root() / name, place / name)


def put_back(place: Path, *, marks: bool = True) -> None:
    """An older ledger in the place of the newest; without ``marks`` nobody notices."""
    for name in LEDGER:
        shutil.copy(place / name, current_root() / name)
    if marks:
        restore_ledger("disk lost", None, None)
    else:
        shutil.rmtree(marks_folder())


def counts(release: PlannedNight) -> list[int]:
    """How many rows stand in the party's frozen sum of each night so far."""
    inner = release.build().inner  # type: ignore[attr-defined]  # of running sums
    unit, stream = inner.class_sums(release.setting).unit, release.stream
    assert stream is not None
    return [round(float(frozen(release, "0", night)[:, -1].sum() / unit)) for night in range(1, stream.night + 1)]


def lost(factor: ToeplitzFactor, *nights: int) -> float:
    """mu of a row that stands in the sums of these nights, in units of the horizon's."""
    columns = [np.r_[np.zeros(night - 1), factor.coefficients[: factor.nights - night + 1]] for night in nights]
    return float(np.linalg.norm(np.sum(columns, axis=0)) / factor.norm)


def booked() -> float:
    """mu that the account has booked for every row, in units of the horizon's."""
    plans = open_ledger().history("clinic").plans
    totals = worst_totals(sum_plans(open_ledger().history("clinic"), AccountTerms()))
    one = max(PlanCost.from_json(dict(plan.costs["horizon 1"])).totals.mu_squared for plan in plans if plan.releases)
    return math.sqrt(totals.mu_squared / one)


def begin(rows: list[str], folder: Path, *, before: bool = True) -> PlannedNight:
    """Two nights, A and B; the back-up is from before the horizon, or from after its first night."""
    arrive(rows[A], folder)
    if before:
        back_up(folder / "back-up")
    tonight(**GIVEN)
    if not before:
        back_up(folder / "back-up")
    arrive([*rows[A], *rows[B]], folder)
    return tonight(**GIVEN)[0]


def in_another_order(rows: list[str], folder: Path, **given: Any) -> PlannedNight:
    """After A, C come before B."""
    release, _ = tonight(**GIVEN, **given)
    for more in ([*rows[A], *rows[C]], [*rows[A], *rows[C], *rows[B]]):
        arrive(more, folder)
        release, _ = tonight(**GIVEN, **given)
    return release


# ── the attacks ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_horizon_that_begins_again_takes_no_sum_of_other_rows(root: Path, tmp_path: Path, rows: list[str]) -> None:
    """Rows of one version would be in the sums of two nights, those of another in none."""
    begin(rows, tmp_path)
    put_back(tmp_path / "back-up")
    before = spent()
    with pytest.raises(RefusedError, match=r"nights 1, 2.*--replicate 1"):
        in_another_order(rows, tmp_path)
    # Nothing was opened, and nothing charged, and it stays so.
    assert open_catalog().horizons("clinic") == []
    assert spent() == before
    release = in_another_order(rows, tmp_path, replicate=1)
    assert counts(release) == [30, 10, 20]
    # All that was lost is booked, and the horizon once more.
    assert booked() == pytest.approx(math.sqrt(2), rel=1e-9)
    assert booked() >= math.sqrt(2) * lost(ToeplitzFactor(nights=NIGHTS), 1) * (1 - 1e-12)


def _untied(patch: pytest.MonkeyPatch) -> None:
    """As it was: whatever is there under a key is what the key names."""
    for of, names in {
        nightly_rows: ("require_on_record", "require_current", "require_same_versions"),
        door: ("require_current",),
        night_rows: ("require_positions",),
        streams: ("_require_same",),
    }.items():
        for name in names:
            patch.setattr(of, name, lambda *_, **__: None)
    patch.setattr(night_rows, "unpack_sum", lambda release, night, noted, kept: kept[len(noted.digest) :])
    patch.setattr("storage.catalog.Catalog.epoch", lambda self: "")


def test_the_mutant_without_bindings_books_less_than_rows_lose(
    root: Path, tmp_path: Path, rows: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _untied(monkeypatch)
    begin(rows, tmp_path)
    put_back(tmp_path / "back-up")
    release = in_another_order(rows, tmp_path)
    assert counts(release) == [30, 20, 20], "rows B stand in two nights, and C in none"
    assert booked() == pytest.approx(math.sqrt(2), rel=1e-9)
    assert lost(ToeplitzFactor(nights=NIGHTS), 2, 3) == pytest.approx(1.692, abs=1e-3)
    assert lost(ToeplitzFactor(nights=NIGHTS), 2, 3) > booked()
    assert lost(ToeplitzFactor(nights=365), 2, 3) == pytest.approx(1.888, abs=1e-3)


@pytest.mark.parametrize(("marks", "kept"), spanning([False, True], ["all", "releases", "notes"]))
def test_whatever_is_left_of_a_lost_horizon_tells(
    root: Path, tmp_path: Path, rows: list[str], kept: str, marks: bool
) -> None:
    """With its old marks nobody notices an older ledger: notes and releases do. With new ones keys are new."""
    release = begin(rows, tmp_path)
    if kept == "notes":
        for key in release.night_keys[:2]:
            shutil.rmtree(current_layout().release(key))
    if kept == "releases":
        shutil.rmtree(current_layout().party_round("0", release.stream_key))
    put_back(tmp_path / "back-up", marks=marks)
    if marks and kept == "releases":
        # None of the lost keys is met again.
        again, _ = tonight(**GIVEN)
        assert not set(again.night_keys) & set(release.night_keys)
        return
    left = "are stored" if kept == "releases" else "notes of"
    with pytest.raises(RefusedError, match=f"charge.*{left}"):
        tonight(**GIVEN)
    tonight(**GIVEN, replicate=1)


@pytest.mark.parametrize(("marks", "again"), spanning([True, False], [[B], [C], [C, B]], every=3))
def test_a_horizon_that_is_charged_goes_on_with_its_own_rows_alone(
    root: Path, tmp_path: Path, rows: list[str], again: list[slice], marks: bool
) -> None:
    """The ledger has the charge and the first night; what stands for the second is of a version that it lacks."""
    lost_one = begin(rows, tmp_path, before=False)
    put_back(tmp_path / "back-up", marks=marks)
    more = [line for part in again for line in rows[part]]
    arrive([*rows[A], *more], tmp_path)
    with pytest.raises(RefusedError, match=r"^night 2.*sum.*version.*--replicate 1"):
        tonight(**GIVEN)
    # Nor where the release is gone.
    shutil.rmtree(current_layout().release(lost_one.key))
    with pytest.raises(RefusedError, match="^an older ledger" if marks else "party 0.*for night 2"):
        tonight(**GIVEN)
    release, _ = tonight(**GIVEN, replicate=1)
    assert counts(release) == [30, len(more)]
    assert booked() == pytest.approx(math.sqrt(2), rel=1e-9)


def test_nothing_goes_on_after_a_whole_root_was_put_back(root: Path, tmp_path: Path, rows: list[str]) -> None:
    """Its releases of between are out there, and the root has nothing of them: the same keys would mean other rows."""
    arrive(rows[A], tmp_path)
    first, _ = tonight(**GIVEN)
    shutil.copytree(current_root(), tmp_path / "back-up")
    arrive([*rows[A], *rows[B]], tmp_path)
    tonight(**GIVEN)
    shutil.rmtree(current_root())
    shutil.copytree(tmp_path / "back-up", current_root())
    restore_ledger("disk lost", None, None)
    # What is stored is served.
    assert tonight(**GIVEN)[0].key == first.key
    arrive([*rows[A], *rows[C]], tmp_path)
    with pytest.raises(RefusedError, match=r"^an older ledger.*--replicate 1"):
        tonight(**GIVEN)
    release, _ = tonight(**GIVEN, replicate=1)
    assert counts(release) == [30, 10]
    # The same back-up again, and the same way out: not the same keys.
    shutil.rmtree(current_root())
    shutil.copytree(tmp_path / "back-up", current_root())
    restore_ledger("disk lost", None, None)
    again, _ = tonight(**GIVEN, replicate=1)
    assert not set(again.night_keys) & set(release.night_keys)
    with reading(open_ledger_database()) as entries:
        assert all(entry.content["epoch"] for entry in entries.find(Kind.RESTORE))


@pytest.mark.parametrize(
    ("trust", "bound"),
    [
        ("central", True),
        pytest.param("secagg", True, marks=pytest.mark.nightly),
        pytest.param("central", False, marks=pytest.mark.nightly),
    ],
)
def test_people_keep_their_separation(
    root: Path, tmp_path: Path, trust: str, bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who came in night 2 of the lost horizon, with turns two nights apart, would come in night 3 of this one."""
    # With all bands each night's sum is kept, to be looked at.
    given: dict[str, Any] = {"horizon": NIGHTS, "participations": 2, "separation": 2, "bands": NIGHTS, "trust": trust}
    first, second, third = visits([1] * 6), visits([1] * 5, first=6), visits([1] * 4, first=11)
    folder = tmp_path / "input"
    if not bound:
        _untied(monkeypatch)
    bring_in(folder, first)
    back_up(tmp_path / "back-up")
    people.night(**given)
    bring_in(folder, [*first, *second])
    people.night(**given)
    put_back(tmp_path / "back-up")
    if bound:
        with pytest.raises(RefusedError, match=r"charge.*notes.*--replicate 1"):
            people.night(**given)
        given["replicate"] = 1
    people.night(**given)
    bring_in(folder, [*first, *third])
    people.night(**given)
    bring_in(folder, [*first, *third, *second])
    release, _ = people.night(**given)
    # Who is new in night 3 stands in the mutant's night 2 as well, and not two nights apart.
    assert people.counted(release) == pytest.approx([6, 4 if bound else 5, 5], rel=1e-3)


# ── what is bound ────────────────────────────────────────────────────────────────────────────────────────────────────


def _put(release: PlannedNight, name: str, data: bytes) -> None:
    notes = notes_of(release, "0")
    notes.discard(name)
    notes.put(name, data)


def _noted(release: PlannedNight, night: int) -> Arrived:
    return Arrived.model_validate_json(notes_of(release, "0").require(f"arrived-{night}"))


def _exchange_sums(release: PlannedNight) -> None:
    _put(release, "sum-1", notes_of(release, "0").require("sum-2"))


def _exchange_notes(release: PlannedNight) -> None:
    _put(release, "arrived-1", notes_of(release, "0").require("arrived-2"))


def _other_positions(release: PlannedNight) -> None:
    noted = _noted(release, 1).model_copy(update={"positions": "0" * 64})
    _put(release, "arrived-1", noted.model_dump_json().encode())


def _other_epoch(release: PlannedNight) -> None:
    noted = _noted(release, 1).model_copy(update={"epoch": "0" * 32})
    _put(release, "arrived-1", noted.model_dump_json().encode())


def _other_positions_of_a_night_that_was_missed(release: PlannedNight) -> None:
    _other_positions(release)
    notes_of(release, "0").discard("sum-1")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_exchange_sums, "sum of night 1"),
        (_exchange_notes, "rows for night 1"),
        pytest.param(_other_positions, "sum of night 1", marks=pytest.mark.nightly),
        pytest.param(_other_epoch, "rows for night 1", marks=pytest.mark.nightly),
        (_other_positions_of_a_night_that_was_missed, "night 1.*positions"),
    ],
)
def test_a_sum_of_other_rows_is_not_taken(
    root: Path, tmp_path: Path, rows: list[str], spoil: Callable[[PlannedNight], None], told: str
) -> None:
    """A party's folder that was put together of several."""
    release = begin(rows, tmp_path)
    kept = shutil.copytree(current_layout().party_round("0", release.stream_key), tmp_path / "notes")
    spoil(release)
    arrive(rows, tmp_path)
    with pytest.raises(RefusedError, match=told):
        tonight(**GIVEN)
    # Whole again it goes on.
    shutil.rmtree(current_layout().party_round("0", release.stream_key))
    shutil.copytree(kept, current_layout().party_round("0", release.stream_key))
    assert counts(tonight(**GIVEN)[0]) == [30, 20, 10]


def test_a_release_names_the_versions_that_it_is_a_sum_of(root: Path, tmp_path: Path, rows: list[str]) -> None:
    release = begin(rows, tmp_path)
    (horizon,) = open_catalog().horizons("clinic")
    manifest, _ = open_releases().read(release.key)
    assert manifest["stream"]["versions"] == [arrival.version for arrival in horizon.arrivals]
    assert len(manifest["stream"]["versions"]) == 2


@pytest.fixture
def other_code(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What lets the code of the noise, unit and integers be another from now on."""
    return lambda: monkeypatch.setattr(planning, "mathematics_version", lambda *_: "f" * 16)


def test_other_code_of_sums_is_not_taken_under_the_same_keys(
    root: Path, tmp_path: Path, rows: list[str], other_code: Callable[[], None]
) -> None:
    release = begin(rows, tmp_path)
    other_code()
    # A night that is stored is what it was.
    assert tonight(**GIVEN)[0].key == release.key
    arrive(rows, tmp_path)
    with pytest.raises(RefusedError, match=r"version f{16}.*1"):
        tonight(**GIVEN)
    before = spent()
    again, _ = tonight(**GIVEN, replicate=1)
    assert counts(again) == [30, 20, 10]
    assert spent() > before


def test_rows_that_would_be_seen_through_another_map_are_not_added(
    root: Path, tmp_path: Path, rows: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map of parameters is known by its code and libraries: later nights' would be another one."""
    given = {**GIVEN, "features": "random-fourier", "parameters": {"features.frequencies": 8}}
    arrive(rows[A], tmp_path)
    tonight(**given)
    monkeypatch.setattr(public_maps, "code_version", lambda *classes: "e" * 16)
    arrive(rows, tmp_path)
    with pytest.raises(RefusedError, match=r"features.*--replicate 1"):
        tonight(**given)
    assert tonight(**given, replicate=1)[0].stream.night == 2


def test_the_version_of_the_code_is_of_all_that_a_night_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed default, grid or factor changes it; another version of a numerical library, or the door, does not."""
    classes = ClassMeansDiscriminant, NightSum
    here, honest = identity.mathematics_version(*classes), identity._module
    assert re.fullmatch("[0-9a-f]{16}", here)
    monkeypatch.setattr(identity, "_distribution", lambda top: "another")
    assert identity.mathematics_version.__wrapped__(*classes) == here
    for name, changes in {
        "dpalgos.integer_sums": True,
        "dpalgos.mechanisms.distributions": True,
        "dpalgos.mechanisms.factorisation": True,
        "dpalgos.trainers.continual": True,
        "dpalgos.trainers.discriminant": True,
        "dpalgos.audit": False,
        "tasks.release.door": False,
    }.items():

        def changed(module: str, name: str = name) -> tuple[str, tuple[str, ...]] | None:
            found = honest(module)
            return ("changed", found[1]) if found is not None and module == name else found

        monkeypatch.setattr(identity, "_module", changed)
        assert (identity.mathematics_version.__wrapped__(*classes) != here) is changes, name


# ── by command ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.nightly
def test_the_way_out_is_a_command(unitball: CommandLine, tmp_path: Path) -> None:
    """From a lost disk to the next model, as the refusal says."""
    source = write_rows(tmp_path / "rows.txt", 40, seed=5)
    unitball.succeeds(*ingestion(source))
    back_up(tmp_path / "back-up")
    asked = ["train", "--dataset", "clinic", "--horizon", 3, "--epsilon", 1, "--trust", "central", "--trainer"]
    asked += ["class-means", "--parties", 2]
    first = unitball.succeeds(*asked)
    for name in LEDGER:
        shutil.copy(tmp_path / "back-up" / name, current_root() / name)
    unitball(*asked, "--replicate", 1).refused(1, "ledger restore")
    unitball.succeeds("ledger", "restore", "--reason", "disk lost")
    refused = unitball(*asked)
    refused.refused(3, "no charge for this horizon", "epsilon 1", "for 3 nights", "--replicate 1")
    way_out = re.search(r"--replicate \d+", refused.err)
    assert way_out is not None
    again = unitball.succeeds(*asked, *way_out[0].split())
    assert again["proved"]["epsilon"] <= 1.0
    assert not set(again["releases"]) & set(first["releases"])
    assert booked() == pytest.approx(math.sqrt(2), rel=1e-9)
    assert "restored ledger" in unitball("budget", "clinic").out
    unitball.succeeds("export", again["run_key"], "-o", tmp_path / "night.zip")
    assert unitball("verify", tmp_path / "night.zip").code == 0
    said = unitball("schedule", "clinic", "--nightly", *asked[3:], *way_out[0].split())
    assert "one charge for 3 nights" in said.out


def test_an_older_ledger_is_not_shown_as_if_nothing_had_been_charged(
    root: Path, tmp_path: Path, rows: list[str], commands: CommandLine
) -> None:
    """Nor is a restored one, of which nothing is on record but what was missing."""
    arrive(rows[A], tmp_path)
    back_up(tmp_path / "back-up")
    tonight(**GIVEN)
    sound = commands("budget", "clinic", "--json").json
    assert (sound["behind"], sound["left"]["epsilon"] > 0) == (None, True)
    for name in LEDGER:
        shutil.copy(tmp_path / "back-up" / name, current_root() / name)
    said = " ".join(commands("budget", "clinic").out.split())
    assert "this ledger is older than its high-water marks, and more was spent than it records" in said
    assert "spent ε = 0 of 3 at least" in said
    assert "nothing was charged yet" not in said
    assert commands("budget", "clinic", "--json").json["left"] is None
    restore_ledger("disk lost", None, None)
    restored = commands("budget", "clinic", "--json").json
    assert restored["behind"] is None
    assert restored["epsilon_spent"] == pytest.approx(sound["epsilon_spent"], rel=0.05)
    assert "nothing was charged yet" not in commands("budget", "clinic").out


# ── what was there before ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_owner_is_told_how_many_of_a_nights_rows_were_there_before(
    commands: CommandLine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows, path = lines(420, tmp_path / "rows"), tmp_path / "clinic.txt"
    asked = ["ingest", "clinic", "--format", "libsvm", "--path", path, "--dimension", DIMENSION]
    asked += ["--classes", ",".join(CLASSES), "--epsilon-cap", 3, "--delta-cap", 1e-4]

    def said(given: list[str], *more: object) -> str:
        path.write_text("\n".join(given) + "\n")
        outcome = commands(*asked, *more)
        assert outcome.code == 0, outcome
        return " ".join(outcome.out.split())

    assert "in an earlier version" not in said(rows[:10])
    tonight(**GIVEN)
    assert "night 2 of the horizon: 100 new rows, none of them in an earlier version" in said(rows[:110])
    told = "night 3 of the horizon: 302 new rows, 2 of them in an earlier version (private to you"
    assert told in said([*rows[:410], *rows[:2]])
    # A version that brings none is no night.
    assert "not a night of the horizon: no row is new" in said([*rows[:2], *rows[:410]])
    assert "in an earlier version" not in said([*rows[:410], *rows[:2], *rows[410:]], "--json")
    assert "in an earlier version" not in caplog.text
    outside = [
        one for one in current_root().rglob("*") if one.is_file() and current_layout().private not in one.parents
    ]
    assert not any(b"returning" in one.read_bytes() or b"there before" in one.read_bytes() for one in outside)
