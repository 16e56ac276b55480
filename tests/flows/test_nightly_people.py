"""Nights of people: newcomers make a night, who comes back takes part as declared, and horizons add up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.audit.bounds import compare
from dpalgos.mechanisms.factorisation import ToeplitzFactor
from dpalgos.rows import Ints
from flows.federated_training import chain_inline
from storage import arriving_people, catalog, datasets, shards
from storage.errors import InputError, RefusedError
from storage.layout import Layout
from storage.people import at_most, row_digests
from storage.refs import DatasetRef, Visibility
from tasks.auditing import traces
from tasks.datasets.horizons import rows_left_out
from tasks.exports.archive import export_run
from tasks.exports.verifying import verify
from tasks.planning import nights as planning
from tasks.planning.identity import identity
from tasks.planning.nights import PlannedNight
from tasks.runtime.settings import current_layout, isolated_root
from tasks.runtime.stores import open_catalog
from tasks.tracking.results import Chained, append_result
from tests.flows.test_nightly import frozen, released, spent, tonight
from tests.support.chains import charges, configured
from tests.support.command_line import CommandLine
from tests.support.noise import without_noise
from tests.tasks.test_people import SCHEMA, WEIGHT, bring_in, visits

NIGHTS = 3


def rows_of(person: str, number: float, sick: str, count: int) -> list[str]:
    return [f"{person},{number},{0.9 if sick == 'yes' else -0.9},{sick}"] * count


def night(**config: Any) -> tuple[PlannedNight, Any]:
    # With all bands each night's sum is kept, to be looked at.
    kept = {"bands": config.get("horizon", NIGHTS)} if "participations" in config else {}
    return tonight(**{"dataset": "visits", "horizon": NIGHTS, **kept, **config})


def sums(release: PlannedNight) -> list[Ints]:
    """The exact sums of the nights so far, of all parties."""
    each = range(1, release.stream.night + 1)
    return [np.sum([frozen(release, party, one) for party in release.parties], axis=0) for one in each]


def counted(release: PlannedNight) -> list[float]:
    """How many people's rows are in each night's sums, nearly: k rows add k ⌊a/k⌋ of a each."""
    unit = release.build().inner.class_sums(release.setting).unit  # type: ignore[attr-defined]  # of running sums
    return [float(one[:, -1].sum() / unit) for one in sums(release)]


# ── who takes part ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_newcomers_make_a_night_and_who_comes_back_is_left_out(root: Path, tmp_path: Path) -> None:
    first, second = visits([3, 1, 2] * 4), visits([2] * 5, first=12)
    again = [*rows_of("p0", 7, "yes", 4), *rows_of("p1", 8, "no", 2)]
    bring_in(tmp_path / "input", first)
    release, _ = night()
    frozen_before = sums(release)[0]
    price = spent("visits")
    # Nobody is new: no night, and nothing is said of it but to the owner.
    ref = bring_in(tmp_path / "input", [*first, *again])
    assert rows_left_out("visits", ref) == (0, 4 + 2)
    assert night()[0].key == release.key
    ref = bring_in(tmp_path / "input", [*again, *second, *first])
    assert rows_left_out("visits", ref) == (2, 0)
    release, result = night()
    assert (release.stream.night, release.stream.arrived) == (2, (3, 2))
    assert counted(release) == pytest.approx([12, 5], rel=1e-3)
    np.testing.assert_array_equal(sums(release)[0], frozen_before)
    assert spent("visits") == price
    assert len(charges("visits")) == NIGHTS
    (horizon,) = open_catalog().horizons("visits")
    assert [one.rows for one in horizon.arrivals] == [12, 5]
    assert "person-in-one-night" in result.proved.assumptions


def test_who_comes_back_takes_part_as_often_and_as_far_apart_as_is_declared(root: Path, tmp_path: Path) -> None:
    """p0 comes every night with a row of its own, and takes part in the first and third, there with the rows since."""
    given = {"horizon": 5, "participations": 2, "separation": 2, "normalisation": "clip"}
    lines: list[str] = []
    for number in range(1, 6):
        lines = [f"p0,{100 * number},0.5,yes", *lines, *visits([1] * 4, first=4 * number)]
        bring_in(tmp_path / "input", lines)
        # Of the second night no release is made that night.
        if number != 2:
            release, _ = night(**given)
    found = sums(release)
    assert counted(release) == pytest.approx([5, 4, 5, 4, 4], rel=1e-3)
    told = [
        float(one[:, 0].sum() / one[:, 2].sum() * 1000 * WEIGHT * n)
        for one, n in zip(found, (5, 4, 5, 4, 4), strict=True)
    ]
    assert told == pytest.approx([100 + 22, 38, (200 + 300) / 2 + 54, 70, 86], rel=2e-3)
    # Public are the turns: those who are new, and those of two nights before whether they come or not.
    assert sum(release.stream.arrived) == 8
    once, declared = (_sigma(release, **one) for one in ({}, {"participations": 2, "separation": 2}))
    assert declared / once == pytest.approx(release.stream.factor.norm / ToeplitzFactor(nights=5).norm, rel=1e-9)


def _sigma(release: PlannedNight, **declared: int) -> float:
    stream = release.stream
    assert stream is not None
    changed = stream.model_copy(update={"participations": 1, "separation": 1, **declared})
    night: Any = release.model_copy(update={"stream": changed}).build()
    return float(night.inner.distribution(release.setting).sigma)


def _by_fingerprint_alone(*arguments: Any) -> Any:
    return at_most(*arguments[:4])


@pytest.mark.parametrize("mutant", [False, True])
def test_new_rows_count_beside_any_number_of_older_ones(
    mutant: bool, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p0 came with fifty times the limit, and brings two rows more: in their second night these two count, alone.

    By fingerprint alone, both are among the eight in one of 2,900 roots.
    """
    if mutant:
        monkeypatch.setattr(arriving_people, "at_most", _by_fingerprint_alone)
    many = [f"p0,{number},0.5,yes" for number in range(1, 401)]
    lines = [*many, *visits([1] * 4, first=4)]
    bring_in(tmp_path / "input", lines)
    night(participations=2, normalisation="clip")
    lines = [*many, "p0,500,0.5,yes", "p0,300.5,0.5,yes", *lines[len(many) :], *visits([1] * 2, first=20)]
    ref = bring_in(tmp_path / "input", lines)
    stored = people_of_rows(ref)
    assert len(stored) == 8 + 4 + 2
    release, _ = night(participations=2, normalisation="clip")
    # p4 to p7 have no row since; p20 and p21 are new, and p0 is the mean of what came.
    found = sums(release)[1]
    told = float(found[:, 0].sum() / found[:, 2].sum() * 1000 * WEIGHT * 3)
    assert (told == pytest.approx(20 + 21 + 400, rel=2e-3)) is not mutant


def people_of_rows(ref: DatasetRef) -> Any:
    found = datasets.open_people(current_layout(), ref)
    assert found is not None
    return found.positions["train"]


# ── how far one person's rows move a horizon ─────────────────────────────────────────────────────────────────────────

OTHERS = [visits([2, 1, 3, 1], seed=number, first=10 * number) for number in range(1, NIGHTS + 1)]
FAR, OPPOSITE = ("yes", 1000.0), ("yes", -1000.0)
WORLDS: dict[str, list[list[str]]] = {
    "many": [rows_of("p0", FAR[1], "yes", 50 + 4 * number) for number in range(NIGHTS)],
    "opposite": [rows_of("p0", OPPOSITE[1], "yes", 1 + 2 * number) for number in range(NIGHTS)],
    # A row outside the schema: p0 is in the register, with nothing the first night, and comes later.
    "later": [["p0,5000,0,no"], *(rows_of("p0", OPPOSITE[1], "yes", 3 * number) for number in range(1, NIGHTS))],
}


def versions(own: Sequence[list[str]]) -> list[list[str]]:
    return [[*own[number], *itertools.chain.from_iterable(OTHERS[: number + 1])] for number in range(NIGHTS)]


def run_nights(folder: Path, own: Sequence[list[str]], **config: Any) -> PlannedNight:
    for lines in versions(own):
        bring_in(folder, lines, on_violation="drop")
        release, _ = night(**config)
    return release


def moved(tmp_path: Path, worlds: Sequence[str], **config: Any) -> float:
    """How far the exact stream Ĉx of two worlds is apart, in what the noise is made for."""
    streams = []
    for name in worlds:
        with isolated_root(tmp_path / name / "root"):
            release = run_nights(tmp_path / name, WORLDS[name], **config)
            coefficients, exact = release.stream.factor.coefficients, sums(release)
            norm = release.stream.factor.norm
            streams.append(
                np.concatenate(
                    [
                        np.sum([coefficients[one - s] * exact[s] for s in range(one + 1)], axis=0).ravel()
                        for one in range(NIGHTS)
                    ]
                ).astype(np.float64)
            )
    last: Any = release.build()
    (loss,) = last.inner.guarantee(release.setting).losses
    # μ of a sum is its sensitivity over σ, and that of the horizon is at most ‖Ĉ‖ times it.
    most: float = loss.mu * last.inner.distribution(release.setting).sigma * norm
    return float(np.linalg.norm(streams[0] - streams[1])) / most


PAIRS = [("many", "opposite"), ("many", "later")]


@pytest.mark.parametrize(
    ("pair", "declared"),
    [
        (PAIRS[0], {}),
        (PAIRS[1], {"participations": 2}),
        (PAIRS[0], {"participations": 2, "separation": 2}),
    ],
)
def test_no_rows_of_one_person_move_a_horizon_farther_than_one_record(
    pair: tuple[str, str], declared: dict[str, int], root: Path, tmp_path: Path
) -> None:
    assert 0.3 < moved(tmp_path, pair, **declared) <= 1.0


def _in_every_night(self: catalog.Horizon, number: int, *, people: bool) -> tuple[Any, ...]:
    return self.arrivals[number - 1 :: -1]


@pytest.mark.parametrize(
    ("of", "name", "mutant"),
    [
        # Whoever comes back is in every night, whatever is declared; each row counts as if it were the only one.
        (catalog.Horizon, "taking_part", _in_every_night),
        (shards, "record_sizes", lambda positions, records: (positions >= 0).astype(np.int32)),
    ],
)
def test_a_person_who_takes_part_too_often_is_caught(
    of: object, name: str, mutant: Callable[..., Any], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of, name, mutant)
    assert moved(tmp_path, PAIRS[0]) > 1.05


@pytest.mark.parametrize("mutant", [False, True])
def test_a_row_equal_to_another_persons_moves_nobodys(
    mutant: bool, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: p0 has on the first night the row that p1 brings on the second, and has gone by then."""
    if mutant:
        monkeypatch.setattr(
            arriving_people, "row_digests", lambda digests, *row: row_digests(np.zeros_like(digests), *row)
        )
    told = []
    for name, row in (("apart", "p0,5,0.1,no"), ("equal", "p0,900,0.9,yes")):
        with isolated_root(tmp_path / name / "root"):
            one = [f"{row}", *rows_of("p1", 100, "no", 1)]
            bring_in(tmp_path / name, [*one, *OTHERS[0]])
            night(participations=2)
            bring_in(tmp_path / name, [*one[1:], "p1,900,0.9,yes", *OTHERS[0], *OTHERS[1]])
            release, _ = night(participations=2)
            told.append(sums(release)[1])
    assert np.array_equal(told[0], told[1]) is not mutant


# ── what it costs ────────────────────────────────────────────────────────────────────────────────────────────────────


def two_horizons(folder: Path) -> tuple[float, float]:
    """Return the ε that is spent after one horizon and after two; the same people are in both."""
    found = []
    for number in range(2):
        bring_in(folder, versions(WORLDS["many"])[number])
        release, _ = night(horizon=1, epsilon=1.0)
        assert release.stream.horizon == number + 1
        assert counted(release) == pytest.approx([5 + 4 * number], rel=1e-3), "everybody, those of the first as well"
        found.append(spent("visits"))
    return found[0], found[1]


def test_horizons_of_the_same_people_add_up(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack on the maximum that horizons of rows cost: p0's rows are in what both release."""
    once, twice = two_horizons(tmp_path / "honest")
    assert twice > 1.35 * once
    with isolated_root(tmp_path / "mutant" / "root"):

        def forgets_the_number(**parts: Any) -> str:
            return identity(**{**parts, "nights": []} if "nights" in parts else parts)

        monkeypatch.setattr(planning, "identity", forgets_the_number)
        once, twice = two_horizons(tmp_path / "mutant")
        assert twice == once, "the maximum: the test above sees it"


def test_the_next_horizon_needs_somebody_new(root: Path, tmp_path: Path) -> None:
    first, second, _ = versions(WORLDS["many"])
    bring_in(tmp_path / "input", first)
    night(horizon=1)
    bring_in(tmp_path / "input", [*first, *rows_of("p0", 3, "no", 2)])
    with pytest.raises(InputError, match="since"):
        night(horizon=1)
    bring_in(tmp_path / "input", second)
    release, _ = night(horizon=1)
    assert release.stream.arrived == (5, 4)


# ── what is seen ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("declared", [{}, pytest.param({"participations": 2}, marks=pytest.mark.nightly)])
def test_nothing_beside_noise_tells_how_many_rows_a_person_has(
    declared: dict[str, int], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 row against 50, in some nights or in others: files, ledger, plan and report of the last night."""
    runs: list[Chained] = []
    roles = traces._roles

    def of_all_nights(layout: Layout, made: Sequence[Any], run: str) -> dict[str, str]:
        # Each night has releases of its own, whose names are random and whose places in a list are, too.
        plans = [one.plan for one in runs]
        named = {
            node.key: f"<{number}: {node.label}>"
            for number, plan in enumerate(plans)
            for node in plan.training.values()
        }
        return named | roles(layout, made, run)

    monkeypatch.setattr(traces, "_roles", of_all_nights)
    one = [rows_of("p0", 1, "no", 1), rows_of("p0", 1, "no", 1), rows_of("p0", 1, "no", 2)]
    # If no person takes part twice, the third night is like the second.
    nights = NIGHTS if declared else 2
    seen = []
    # The mutant: another newcomer in place of more rows.
    more = [] if declared else 2 * [[[*own, "p99,1,0,no"] for own in one]]
    for number, own in enumerate((one, one, WORLDS["many"], WORLDS["many"], *more)):
        runs.clear()
        with isolated_root(tmp_path / str(number) / "root"):
            for lines in versions(own)[:nights]:
                bring_in(tmp_path / str(number), lines)
                config = configured("visits", horizon=NIGHTS, trust="secagg", trainer="class-means", **declared)
                runs.append(chain_inline(config))
            seen.append(traces.observe(current_layout(), config, runs[-1]))
    report = compare(seen[:2], seen[2:4], delta=1e-5, confidence=0.99)
    assert without_noise(report.differing) == []
    assert report.fields > 300
    if more:
        assert len(without_noise(compare(seen[:2], seen[4:], delta=1e-5, confidence=0.99).differing)) > 5


def test_the_owner_is_told_of_rows_that_are_in_no_night(commands: CommandLine, tmp_path: Path) -> None:
    schema, path = tmp_path / "schema.yaml", tmp_path / "rows.csv"
    schema.write_text(SCHEMA.format(kind="person", label='classes: ["no", "yes"]'))
    bring = ("ingest", "visits", "--format", "csv", "--path", path, "--schema", schema)

    def said(lines: Sequence[str]) -> str:
        path.write_text("\n".join(["Patient,number,other,sick", *lines]) + "\n")
        return " ".join(commands(*bring, "--epsilon-cap", 3, "--delta-cap", 1e-4).out.split())

    first, again = versions(WORLDS["opposite"])[0], rows_of("p0", 3, "no", 2)
    assert "night" not in said(first)
    night()
    assert "not a night of the horizon: no person is new; 2 new rows" in said([*first, *again])
    assert "night 2 of the horizon; 0 new rows" in said([*first, *again, *OTHERS[1]])
    night()
    assert "person (column Patient)" in commands("budget", "visits").out


# ── parties, archives, refusals ──────────────────────────────────────────────────────────────────────────────────────


def test_who_is_in_two_files_counts_in_the_first_by_roster_every_night(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "input"
    bring_in(folder, ["p0,1,0.5,yes"], name="unused")

    def bring(north: Sequence[str], south: Sequence[str]) -> None:
        from tasks.datasets.registration import ingest
        from tasks.datasets.request import IngestRequest

        paths = {"north": tmp_path / "north.csv", "south": tmp_path / "south.csv"}
        for lines, path in zip((north, south), paths.values(), strict=True):
            path.write_text("\n".join(["Patient,number,other,sick", *lines]) + "\n")
        ingest(
            IngestRequest(
                name="visits",
                format="csv",
                parties=paths,
                schema_path=folder / "schema.yaml",
                epsilon_cap=3.0,
                delta_cap=1e-4,
            )
        )

    bring(OTHERS[0], visits([1, 2], first=30))
    assert night()[0].parties == ("north", "south")
    # Of south's people of the first night one comes to north, too, with two who are new there.
    bring(
        [*OTHERS[0], *rows_of("p30", 4, "yes", 3), *visits([2, 2], first=40)], [*visits([1, 2], first=30), "p50,1,0,no"]
    )
    release, _ = night()
    assert release.stream.arrived == (3, 1)
    unit = release.build().inner.class_sums(release.setting).unit  # type: ignore[attr-defined]  # of running sums
    assert frozen(release, "north", 2)[:, -1].sum() == pytest.approx(2 * unit, rel=1e-3), "p30 is counted, and null"
    assert frozen(release, "south", 2)[:, -1].sum() == pytest.approx(unit, rel=1e-3)


@pytest.mark.parametrize(
    ("trainer", "missed"), [("ftrl", False), ("sufficient-statistics", False), ("sufficient-statistics", True)]
)
def test_a_night_of_people_is_exported_and_verified(trainer: str, missed: bool, root: Path, tmp_path: Path) -> None:
    """Also where its run releases the night before as well, of which no run was made that night."""
    given = {"trainer": trainer, "participations": 2, "trust": "secagg", "parties": 3, "secure": {"dropouts": 1}}
    for number, lines in enumerate(versions(WORLDS["many"]), 1):
        bring_in(tmp_path / "input", lines)
        if not (missed and number == 2):
            _, result = night(**given)
    # Of three nights the model of the last is a combination as well.
    assert len(result.releases) == (3 if missed else 2)
    append_result(configured("visits", **{"horizon": NIGHTS, **given}), result)
    data, _, _ = export_run(result.run_key[:10])
    (tmp_path / "night.zip").write_bytes(data)
    checks = {check.what: (check.holds, check.detail) for check in verify(tmp_path / "night.zip").checks}
    assert all(holds is not False for holds, _ in checks.values()), checks
    assert checks["guarantees"][0]


def test_what_has_no_roster_of_who_came_when_is_refused_in_a_line(root: Path, tmp_path: Path) -> None:
    lines = versions(WORLDS["many"])
    bring_in(tmp_path / "open", lines[0], name="open", visibility=Visibility.PUBLIC)
    with pytest.raises(RefusedError, match="Patient") as caught:
        night(dataset="open")
    assert "\n" not in str(caught.value)
    bring_in(tmp_path / "input", lines[0])
    night()
    known = open_catalog().registrations("visits")
    others = visits([1, 2, 2], seed=5, first=500)
    with pytest.raises(RefusedError, match="account visits"):
        bring_in(tmp_path / "input", others, account="others", disjoint_people="another clinic")
    assert open_catalog().registrations("visits") == known
    assert math.isfinite(spent("visits"))
    assert len(released(night()[0])) == 1
