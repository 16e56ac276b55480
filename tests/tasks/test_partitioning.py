"""Dealing rows to parties: disjoint, by public rules, the same in every root, each party's in a store of its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.held_out import held_out_fraction
from dpalgos.parameters import ParameterError
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef, ShardRef
from storage.shards import open_shard
from tasks.datasets.registration import ensure_registered, find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.planning.graph import materialise
from tasks.planning.rows import Shards
from tasks.preparation import nightly_rows
from tasks.preparation.making import make_rows
from tasks.preparation.partitions import are_stored_whole
from tasks.preparation.prepare import PreparedNight, prepare, record_night
from tasks.runtime.settings import current_layout
from tests.support.chains import ingest_private
from tests.support.data import SCHEMA, gathered, write_idx
from tests.support.private_rows import CLASSES, DIMENSION, write_rows
from tests.support.rows import divided, normalised


def divide(dataset: DatasetRef | str = "digits", **config: Any) -> Shards:
    if isinstance(dataset, str):
        ensure_registered(dataset)
    reference = find_dataset(dataset) if isinstance(dataset, str) else dataset
    return divided(reference, TrainingConfig(**{"dataset": reference.name, "epsilon": 1.0, **config}))


def rows_of(shards: Shards) -> list[list[bytes]]:
    """Return every party's rows as bytes, the held-out ones last; digits has no two equal rows."""
    every = [*shards.training, *([shards.held_out] if shards.held_out else [])]
    return [[row.tobytes() for row in gathered(open_shard(current_layout(), shard))[0]] for shard in every]


def test_even_parts_and_held_out_rows_are_disjoint_and_complete(root: Path) -> None:
    shards = divide(parties=7)
    parts = rows_of(shards)
    assert [shard.party for shard in shards.training] == [str(party) for party in range(7)]
    assert shards.held_out is not None
    assert shards.held_out.rows == round(0.2 * 1797)
    sizes = [shard.rows for shard in shards.training]
    assert sizes == [len(part) for part in parts[:-1]]
    assert max(sizes) - min(sizes) <= 1
    flat = [row for part in parts for row in part]
    assert len(flat) == 1797
    assert len(set(flat)) == 1797


def test_the_same_words_deal_the_same_rows_in_every_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in ("one", "two"):
        monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / name))
        shards = divide(parties=3)
        found.append((shards, rows_of(shards)))
    assert found[0] == found[1]


def test_another_seed_is_another_partition(root: Path) -> None:
    first, second = divide(partition_seed=0), divide(partition_seed=1)
    assert first.training[0].partition != second.training[0].partition
    assert rows_of(first) != rows_of(second)
    assert rows_of(first)[-1] != rows_of(second)[-1], "the held-out rows are drawn by the same public seed"


@pytest.mark.parametrize(
    "config",
    [
        {"parties": 4},
        {"rows_per_party": 50},
        {"test_fraction": 0.3},
        {"test_fraction": 0},
        {"sizes": (50, 100), "partition": "sized"},
        {"partition": "by-label"},
        {"partition": "dirichlet"},
        {"partition": "dirichlet", "parameters": {"partition.concentration": 0.1}},
        {"normalised": True},
    ],
)
def test_what_names_a_partition(config: dict[str, Any], root: Path) -> None:
    """Charges of one partition compose by the maximum, so two ways of dealing must never share a name."""
    base = divide()
    if config.pop("normalised", False):
        other = divide(normalised(find_dataset("digits"), "unit-norm"))
    else:
        other = divide(**config)
    assert other.training[0].partition != base.training[0].partition


def test_given_sizes(root: Path) -> None:
    shards = divide(sizes=(50, 100, 500), partition="sized")
    assert [shard.rows for shard in shards.training] == [50, 100, 500]
    assert [len(part) for part in rows_of(shards)][:3] == [50, 100, 500]
    with pytest.raises(InputError, match="--sizes"):
        divide(partition="sized")


def test_rows_per_party(root: Path) -> None:
    assert [shard.rows for shard in divide(parties=3, rows_per_party=11).training] == [11, 11, 11]


def test_all_rows_train_where_none_are_held_out(root: Path) -> None:
    shards = divide(test_fraction=0)
    assert shards.held_out is None
    assert sum(shard.rows for shard in shards.training) == 1797


def test_a_set_with_test_rows_of_its_own_is_not_split(root: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for prefix, count in (("train", 40), ("t10k", 15)):
        images = random.integers(1, 255, size=(count, 2, 2)).astype(np.uint8)
        write_idx(tmp_path / "idx", prefix, images, (np.arange(count) % 3).astype(np.uint8), zipped=False)
    ingest(IngestRequest(name="small", format="idx", path=tmp_path / "idx", visibility="public"))
    shards = divide("small", parties=2)
    assert [shard.rows for shard in shards.training] == [20, 20]
    assert shards.held_out is not None
    assert shards.held_out.rows == 15
    assert divide("small", parties=2, test_fraction=0).held_out is not None, "rows of a test file never train"


def test_every_party_has_a_private_store_of_its_own(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input")
    shards = divide("clinic", parties=3)
    stores = {current_layout().party(shard.party) for shard in shards.training}
    assert len(stores) == 3
    for store in stores:
        assert all(path.stat().st_mode & 0o077 == 0 for path in [store, *store.rglob("*")] if path.is_dir())
    assert are_stored_whole(shards)
    for path in stores.pop().rglob("*.parquet"):
        path.unlink()
    assert not are_stored_whole(shards)
    assert divide("clinic", parties=3) == shards
    assert are_stored_whole(shards)


@pytest.mark.parametrize("rule", ["by-label", "dirichlet"])
def test_who_gets_a_private_row_does_not_depend_on_its_content(rule: str, root: Path, tmp_path: Path) -> None:
    """Otherwise replacing one row could move others, and parties would no longer be disjoint mechanisms."""
    ingest_private(tmp_path / "input")
    with pytest.raises(RefusedError, match="private"):
        divide("clinic", partition=rule)
    assert not list(current_layout().parties.iterdir())


OLD, ALL = 30, 150
LINES = [f"0.{row + 100},{row % 2},{'yes' if row % 3 else 'no'}" for row in range(ALL)]
NEIGHBOURS = {
    "equal to an older row": (37, LINES[3]),
    "equal to a newer row": (37, LINES[110]),
    "null": (37, "7,7,no"),
    "another label": (37, LINES[37].replace("yes", "no")),
    "first": (0, "0.5,0,yes"),
    "an older row, null": (3, "7,7,no"),
    "last": (ALL - 1, "0.5,0,yes"),
}


def bring_in(folder: Path, name: str, lines: list[str], *, own: bool) -> None:
    """Register private rows, of one owner or of two parties with half of them each."""
    (folder / "schema.yaml").write_text(SCHEMA)
    paths = {}
    for party, part in (
        (("north", lines[: len(lines) // 2]), ("south", lines[len(lines) // 2 :])) if own else (("", lines),)
    ):
        paths[party] = folder / f"{name}{party}.csv"
        paths[party].write_text("\n".join(part) + "\n")
    ingest(
        IngestRequest(
            name=name,
            format="csv",
            schema_path=folder / "schema.yaml",
            on_violation="drop",
            visibility="private",
            account="people",
            epsilon_cap=3.0,
            delta_cap=1e-4,
            **({"parties": paths} if own else {"path": paths[""]}),
        )
    )


def whole_rows(shard: ShardRef) -> list[tuple[bytes, bytes]]:
    features, labels = gathered(open_shard(current_layout(), shard))
    return [(row.tobytes(), label.tobytes()) for row, label in zip(features, labels, strict=True)]


def partitioned(
    folder: Path, name: str, lines: list[str], *, own: bool, **config: Any
) -> list[list[tuple[bytes, bytes]]]:
    """Return every party's rows, the held-out ones last."""
    bring_in(folder, name, lines, own=own)
    shards = divide(name, test_fraction=0.25, **config)
    assert shards.held_out is not None
    return [whole_rows(shard) for shard in [*shards.training, shards.held_out]]


def dealt_by_night(
    folder: Path, name: str, lines: list[str], *, own: bool, newest_first: bool = False
) -> list[list[tuple[bytes, bytes]]]:
    """Return every party's rows of each of two nights."""
    parties = 2 if own else 3
    config = TrainingConfig(
        dataset=name, epsilon=1.0, horizon=4, trainer="class-means", trust="central", parties=parties
    )
    old, new = ([lines[:15], lines[75:90]], [lines[:75], lines[75:]]) if own else ([lines[:OLD]], [lines])
    if newest_first:
        new = [[*lines[OLD:], *lines[:OLD]]]
    parts = []
    for version in (old, new):
        bring_in(folder, name, [line for part in version for line in part], own=own)
        tonight = prepare(config)
        assert isinstance(tonight, PreparedNight)
        assert record_night(tonight)
        shards: Any = list(materialise(tonight.rows, lambda node, _: make_rows(node)).values())[-1]
        parts += [whole_rows(shard) if shard.rows else [] for shard in shards.training]
    return parts


def test_whatever_is_configured_names_a_horizon_but_how_it_is_measured() -> None:
    config = TrainingConfig(dataset="clinic", epsilon=1.0, horizon=4, trainer="class-means", trust="central")
    name = nightly_rows._key(config, 1)
    assert nightly_rows._key(config.model_copy(update={"evaluation": False}), 1) == name
    for given in ({"mirror": False}, {"class_weight": "balanced"}, {"epsilon": 2.0}, {"replicate": 1}):
        assert nightly_rows._key(config.model_copy(update=given), 1) != name
    assert nightly_rows._key(config, 2) != name


def moved(found: list[list[Any]], other: list[list[Any]]) -> int:
    """Return in how many places rows differ; sizes are public, and must be equal."""
    assert [len(part) for part in found] == [len(part) for part in other]
    return sum(
        ours != theirs for part, its in zip(found, other, strict=True) for ours, theirs in zip(part, its, strict=True)
    )


@pytest.mark.parametrize(
    ("split", "config"),
    [
        (partitioned, {"own": False, "parties": 3}),
        (partitioned, {"own": False, "parties": 3, "rows_per_party": 11}),
        (partitioned, {"own": False, "partition": "sized", "sizes": (20, 50)}),
        (partitioned, {"own": True}),
        (partitioned, {"own": True, "partition": "even", "parties": 3}),
        (dealt_by_night, {"own": False}),
        pytest.param(dealt_by_night, {"own": True}, marks=pytest.mark.nightly),
    ],
)
def test_replacing_a_row_moves_no_other(split: Any, config: dict[str, Any], root: Path, tmp_path: Path) -> None:
    """Where a row goes is decided by its position and public facts: neighbours differ in one row, at one place."""
    whole = split(tmp_path, "base", LINES, **config)
    touched = 0
    for number, (place, line) in enumerate(NEIGHBOURS.values()):
        changed = moved(whole, split(tmp_path, f"other{number}", [*LINES[:place], line, *LINES[place + 1 :]], **config))
        assert changed <= 1, line
        touched += changed
    # Of few rows a party some of those that change are nobody's.
    assert touched >= 3


def test_which_of_two_equal_rows_is_new_moves_others_where_old_rows_stand_last(root: Path, tmp_path: Path) -> None:
    """The mutant of the test above, and why such versions are refused where parties are told apart."""
    place, line = NEIGHBOURS["equal to an older row"]
    neighbour = [*LINES[:place], line, *LINES[place + 1 :]]
    found = [
        dealt_by_night(tmp_path, name, lines, own=False, newest_first=True)
        for name, lines in (("base", LINES), ("other", neighbour))
    ]
    assert moved(*found) > 100


def test_the_parties_own_files_are_a_partition(root: Path, tmp_path: Path) -> None:
    files = {name: write_rows(tmp_path / f"{name}.txt", count, seed=count).path for name, count in PARTIES.items()}
    cap = {"epsilon_cap": 1.0, "delta_cap": 1e-4}
    ingest(IngestRequest(name="clinics", format="libsvm", parties=files, dimension=6, classes=CLASSES, **cap))
    shards = divide("clinics", partition="own", test_fraction=0.25)
    assert [shard.party for shard in shards.training] == list(PARTIES)
    assert shards.held_out is not None
    assert sum(shard.rows for shard in shards.training) + shards.held_out.rows == 150
    whole = divide("clinics", partition="own", test_fraction=0)
    assert [shard.rows for shard in whole.training] == [100, 50]
    assert divide("clinics", test_fraction=0) == whole, "who brings files is a party unless others are asked for"
    assert len(divide("clinics", partition="even", parties=3, test_fraction=0).training) == 3
    with pytest.raises(InputError, match=r"2.*3.*--partition"):
        divide("clinics", parties=3)
    with pytest.raises(InputError, match="--party PARTY=PATH"):
        divide("digits", partition="own")


PARTIES = {"north": 100, "south": 50}


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({"parties": 1439}, ParameterError, "^1438 rows.*1439 parties"),
        ({"rows_per_party": 288}, ParameterError, "288 rows.*1440.*1438"),
        ({"sizes": (1000, 439), "partition": "sized"}, ParameterError, "1439 rows.*1438"),
        ({"test_fraction": 1e-4}, InputError, "0 of 1797"),
        ({"test_fraction": 0.9999}, InputError, "1797 of 1797"),
        ({"partition": "evne"}, ValidationError, "even"),
    ],
)
def test_what_does_not_fit(config: dict[str, Any], error: type[Exception], words: str, root: Path) -> None:
    with pytest.raises(error, match=words):
        divide(**config)
    assert not list(current_layout().parties.iterdir())


# ── private rows held out ────────────────────────────────────────────────────────────────────────────────────────────


def test_held_out_rows_stay_held_out_when_rows_are_added(root: Path, tmp_path: Path) -> None:
    """What trained an earlier version must not measure a later one; the split of a permutation of n changes with n."""
    lines = write_rows(tmp_path / "rows.txt", 300).path.read_text().splitlines()
    held, trained = [], []
    for count in (200, 300):
        path = tmp_path / f"{count}.txt"
        path.write_text("\n".join(lines[:count]) + "\n")
        cap = {"epsilon_cap": 5.0, "delta_cap": 1e-4}
        ingest(IngestRequest(name="clinic", format="libsvm", path=path, dimension=DIMENSION, classes=CLASSES, **cap))
        shards = divide("clinic", epsilon=1.0)
        assert shards.held_out is not None
        *parts, test = rows_of(shards)
        held.append(set(test))
        trained.append({row for part in parts for row in part})
    assert held[0] <= held[1]
    assert trained[0] <= trained[1]
    assert held[0] | trained[0] < held[1] | trained[1]


def test_smaller_fractions_hold_out_fewer_of_the_same_rows(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", count=300)
    larger, smaller = (rows_of(divide("clinic", test_fraction=fraction))[-1] for fraction in (0.3, 0.1))
    assert set(smaller) < set(larger)


def test_how_many_private_rows_are_held_out_is_worth_it(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", count=300)
    dataset = find_dataset("clinic")
    for epsilon in (0.5, 5.0):
        shards = divide("clinic", epsilon=epsilon)
        assert shards.held_out is not None
        fraction = held_out_fraction(dataset.rows, 2, epsilon, 1e-5)
        assert shards.held_out.rows == pytest.approx(300 * fraction, abs=5 * math.sqrt(300 * fraction))
    assert divide("clinic", epsilon=1.0, evaluation=False).held_out is None
    assert divide("clinic", epsilon=None).held_out is None, "a run without a budget measures nothing of private rows"


def test_the_rule_weighs_noise_against_rows_lost() -> None:
    fractions = [held_out_fraction(rows, 2, 1.0, 1e-6) for rows in (300, 3000, 30_000, 300_000)]
    assert fractions == sorted(fractions, reverse=True)
    assert fractions[0] > fractions[-1]
    assert held_out_fraction(3000, 2, 0.1, 1e-6) > held_out_fraction(3000, 2, 3.0, 1e-6)
    # No other fraction of its ladder is cheaper, by the price in its docstring written down anew.
    rows, classes, epsilon = 5000, 3, 0.7
    sigma = math.sqrt(2) / mu_from_epsilon_delta(epsilon, 1e-6)

    def price(fraction: float) -> float:
        held_out = fraction * rows
        return 0.1 * fraction + math.hypot(0.5 / math.sqrt(held_out), math.sqrt(classes) * sigma / held_out)

    found = held_out_fraction(rows, classes, epsilon, 1e-6)
    assert price(found) <= min(price(1 / parts) for parts in (3, 4, 6, 8, 12, 16, 24, 32))
