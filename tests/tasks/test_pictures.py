"""Pictures through the chain: their places in parties, nights and held-out part, people, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.parameters import ParameterError
from storage.datasets import ingestion_report, is_complete, open_dataset, open_people
from storage.encoder import PictureEncoder, encoder_of
from storage.errors import DamagedError, InputError, RefusedError
from storage.history import lost_history
from storage.layout import PATTERNS, PLACES
from storage.pictures.declaration import Pixels
from storage.readers import picture_files
from storage.recognition import remake_fingerprints
from storage.refs import DatasetRef, Visibility
from storage.shards import open_shard
from storage.transforming import transform_dataset
from tasks.accounts.ledger import open_ledger
from tasks.datasets.registration import describe_datasets, find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.datasets.scales import declared_schema
from tasks.planning.configuration import TrainingConfig
from tasks.planning.graph import materialise
from tasks.preparation.making import make_rows
from tasks.preparation.prepare import PreparedNight, prepare, record_night
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog
from tests.support.data import gathered
from tests.support.pictures import encoded, halves, write_pictures
from tests.support.rows import divided
from tests.support.stating import stating

write = partial(write_pictures, make=halves)
CLASSES = ("cat", "dog")
SEEN = 120
"""Pictures of the first version; of some two hundred values a picture is known by its own."""


def bring_in(folder: Path, name: str = "animals", **changes: Any) -> DatasetRef:
    given: dict[str, Any] = {
        "path": None if "parties" in changes else folder,
        "classes": CLASSES,
        "side": 2,
        "pixels": "grey",
        "epsilon_cap": 100.0,
        "delta_cap": 1e-4,
    }
    return ingest(IngestRequest(name=name, format="images", **{**given, **changes}))


def pictures(values: Sequence[int], cats: Mapping[int, bool] | None = None, prefix: str = "") -> dict[str, int]:
    """Return names in an order of their own, every other picture a cat's; ``cats`` says otherwise of some."""
    is_cat = {value: value % 2 == 0 for value in values} | dict(cats or {})
    return {f"{prefix}{'cat' if is_cat[one] else 'dog'}/{(one * 37) % 251:03d}.png": one for one in values}


def told_by(rows: Any) -> list[int]:
    """Return the values of stored pictures, whatever their rows were scaled by."""
    features = gathered(rows)[0]
    values = np.rint(255 * features[:, 0] / (features[:, 0] + features[:, 1]))
    return [int(value) for value in values]


def values_of(ref: DatasetRef, part: str = "train") -> list[int]:
    return told_by(open_dataset(current_layout(), ref, part))


def dealt(ref: DatasetRef, **config: Any) -> dict[str, list[int]]:
    """Return the pictures of each party, and of the held-out part."""
    given = {"dataset": ref.name, "epsilon": 1.0, "parties": 3, "test_fraction": 0.25, **config}
    given = {key: value for key, value in given.items() if value is not None}
    shards = divided(ref, TrainingConfig.model_validate(given)).all
    return {shard.party: told_by(open_shard(current_layout(), shard)) for shard in shards}


def by_whole_paths(files: Sequence[Any], earlier: Sequence[bytes], place: str) -> list[Any]:
    """The mutant: the order of whole paths."""
    return sorted(files, key=lambda file: file.name)


# ── places ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mutant", [False, True])
def test_a_picture_of_another_class_leaves_every_other_with_its_party(
    mutant: bool, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours: one picture is in another class folder. All others are where they were, and so is that one."""
    if mutant:
        monkeypatch.setattr("storage.readers.pictures.arranged", by_whole_paths)
    values = range(1, SEEN + 1)
    one = bring_in(write(tmp_path / "one", pictures(values)), "one", account="a")
    other = bring_in(write(tmp_path / "other", pictures(values, {60: False})), "other", account="a")
    assert (dealt(one) == dealt(other)) is not mutant
    assert len(dealt(one)["test"]) > 10


def test_new_names_between_old_ones_leave_every_other_where_it_was(root: Path, tmp_path: Path) -> None:
    first = bring_in(write(tmp_path / "set", pictures(range(1, SEEN + 1))))
    before, held = values_of(first), dealt(first)["test"]
    names = sorted(f"{(one * 37) % 251:03d}" for one in range(1, SEEN + 1))
    assert before != sorted(before)
    new = pictures(range(SEEN + 1, 201))
    assert any(names[0] < name.rpartition("/")[2] < names[-1] for name in new), "between, not behind"
    second = bring_in(write(tmp_path / "set", new))
    assert second.rows == 200
    assert values_of(second)[:SEEN] == before
    assert [one for one in dealt(second)["test"] if one <= SEEN] == held
    # A third has the order of the second, not that of names.
    after = values_of(second)
    write(tmp_path / "set", {"cat/000.png": 250})
    assert values_of(bring_in(tmp_path / "set")) == [*after, 250]
    assert values_of(bring_in(tmp_path / "set", "fresh", account="animals")) != [*after, 250], (
        "as if it were a first version"
    )


def test_parties_pictures_stay_with_their_party_and_place(root: Path, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("north", "south")}
    for place, folder in enumerate(folders.values()):
        write(folder, pictures(range(1 + 60 * place, 61 + 60 * place)))
    first = dealt(bring_in(tmp_path, parties=folders), parties=None)
    write(folders["north"], pictures(range(SEEN + 1, SEEN + 41)))
    second = dealt(bring_in(tmp_path, parties=folders), parties=None)
    assert set(first) == {"north", "south", "test"}
    for party, found in first.items():
        assert [one for one in second[party] if one <= SEEN] == found
    assert len(second["north"]) > len(first["north"])
    # A party that is away for a version finds its places again.
    bring_in(tmp_path, parties={"south": folders["south"]})
    assert dealt(bring_in(tmp_path, parties=folders), parties=None) == second


def night(name: str) -> dict[str, list[int]]:
    """Return the pictures of the newest night, party by party."""
    config = TrainingConfig(dataset=name, epsilon=1.0, horizon=4, trainer="class-means", trust="central", parties=3)
    tonight = prepare(config)
    assert isinstance(tonight, PreparedNight)
    assert record_night(tonight)
    shards: Any = list(materialise(tonight.rows, lambda node, _: make_rows(node)).values())[-1]
    return {shard.party: told_by(open_shard(current_layout(), shard)) for shard in shards.training if shard.rows}


@pytest.mark.parametrize("mutant", [False, True])
def test_nights_of_pictures(mutant: bool, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New names stand between old ones, and one picture is of another class: nobody else is in another night or party.

    The mutant orders by whole paths.
    """
    if mutant:
        monkeypatch.setattr("storage.readers.pictures.arranged", by_whole_paths)
    found = []
    for name, cats in (("one", {}), ("other", {60: False})):
        folder, nights = tmp_path / name, []
        for values in (range(1, SEEN + 1), range(SEEN + 1, 201)):
            bring_in(write(folder, pictures(values, cats)), name, account="a")
            nights.append(night(name))
        assert sorted(one for part in nights[0].values() for one in part) == [*range(1, SEEN + 1)]
        assert sorted(one for part in nights[1].values() for one in part) == [*range(SEEN + 1, 201)]
        found.append(nights)
    assert (found[0] == found[1]) is not mutant


def test_versions_store_what_places_need_and_no_more(root: Path, tmp_path: Path) -> None:
    layout = current_layout()
    ref = bring_in(write(tmp_path / "set", pictures(range(1, 21))))
    file = layout.dataset(ref.version) / PLACES
    assert file.stat().st_mode & 0o077 == 0
    # The same pictures again are the same version; under other names they have other places.
    assert bring_in(tmp_path / "set").version == ref.version
    (tmp_path / "set" / "dog" / "037.png").rename(tmp_path / "set" / "dog" / "renamed.png")
    renamed = bring_in(tmp_path / "set")
    assert renamed.version != ref.version
    assert values_of(renamed)[-1] == 1
    # Mapped rows have none of their own.
    mapped = transform_dataset(layout, ref, lambda rows: rows / 2, normalisation="halved")
    assert not (layout.dataset(mapped.version) / PLACES).exists()
    assert is_complete(layout, mapped.version)
    # Lost places are said, and no order is made up.
    for version in (ref, renamed):
        (layout.dataset(version.version) / PLACES).unlink()
    assert lost_history(layout, renamed.version) == [PLACES]
    write(tmp_path / "set", {"cat/new.png": 99})
    with pytest.raises(DamagedError, match=r"places\.npz", check=stating(value="places.npz", bound="present")):
        bring_in(tmp_path / "set")


def test_two_versions_at_once_do_not_share_a_place(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: another version is registered between the order that was decided and its registration."""
    bring_in(write(tmp_path / "set", pictures(range(1, 21))))
    write(tmp_path / "set", {"cat/x.png": 50})
    honest, busy = picture_files.folder_files, list[bool]()

    def meanwhile(folder: Path, passed: Counter[str]) -> list[Any]:
        if not busy:
            busy.append(True)
            write(tmp_path / "else", {**pictures(range(1, 21)), "cat/y.png": 60})
            bring_in(tmp_path / "else")
        return honest(folder, passed)

    monkeypatch.setattr("storage.readers.pictures.folder_files", meanwhile)
    with pytest.raises(InputError, match="version of animals"):
        bring_in(tmp_path / "set")
    assert values_of(bring_in(tmp_path / "set"))[-1] == 50


# ── people ───────────────────────────────────────────────────────────────────────────────────────────────────────────


RULE = r".*/(\d+)_\d+\.png"


def of_people(counts: Mapping[int, int]) -> dict[str, int]:
    """Return so many pictures of each person, each of the person's value; persons are in both classes."""
    return {f"{CLASSES[one % 2]}/{who}_{one}.png": who for who, count in counts.items() for one in range(count)}


def test_a_person_with_one_picture_more_leaves_every_other_where_they_were(root: Path, tmp_path: Path) -> None:
    counts = {who: 1 + who % 3 for who in range(1, 101)}
    folders = [write(tmp_path / "few", of_people(counts))]
    folders.append(write(tmp_path / "many", of_people({**counts, 40: 6})))
    found = []
    for place, folder in enumerate(folders):
        ref = bring_in(folder, f"set-{place}", person_from=RULE, account="people")
        assert (ref.rows, ref.person) == (100, f"path, by {RULE}")
        found.append({party: sorted(set(values)) for party, values in dealt(ref).items()})
    assert found[0] == found[1]
    assert sum(map(len, found[0].values())) == 100, "nobody is in two parts"


def test_somebody_in_train_and_test_counts_in_train(root: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "set", {f"train/{name}": who for name, who in of_people({1: 2, 2: 1, 3: 1}).items()})
    write(folder, {f"test/{name}": who for name, who in of_people({1: 1, 8: 2}).items()})
    ref = bring_in(folder, person_from=RULE)
    people = open_people(current_layout(), ref)
    assert people is not None
    assert sorted(values_of(ref)) == [1, 1, 2, 3]
    assert values_of(ref, "test") == [8, 8], "the pictures of whoever trains are not measured on"
    assert ref.rows == 3


def test_people_s_null_records_and_limits(root: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "set", of_people({1: 5, 2: 1, 3: 1}))
    (folder / "cat" / "9_0.png").write_bytes(b"bad")
    told: list[str] = []
    request = IngestRequest(
        name="animals", format="images", path=folder, classes=CLASSES, side=2, pixels="grey", epsilon_cap=1.0,
        delta_cap=1e-4, person_from=RULE, rows_per_person=2, namespace="zoo", on_violation="drop",
    )  # fmt: skip
    ref = ingest(request, told.append)
    assert (ref.rows, ref.rows_per_person) == (4, 2), "a person whose picture cannot be read is a record"
    assert sorted(values_of(ref)) == [1, 1, 2, 3]
    assert len(told) == 1
    assert "9_0.png is not a PNG" in told[0]
    registered = open_catalog().get("animals").people
    assert registered is not None
    assert registered.namespace == "zoo"


def test_a_set_of_people_takes_no_pictures_by_themselves(root: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "set", of_people({1: 2, 2: 1, 3: 1}))
    bring_in(folder, person_from=RULE)
    with pytest.raises((InputError, RefusedError), match="person"):
        bring_in(folder)


def test_doubts_about_people_are_told_before_the_account_is_opened(root: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "set", of_people({1: 2, 2: 4, 3: 2}))
    noted: list[tuple[str, bool]] = []

    def note(line: str) -> None:
        noted.append((line, open_catalog().account("people") is None))

    request = IngestRequest(
        name="animals", format="images", path=folder, classes=CLASSES, side=2, pixels=Pixels.GREY, account="people",
        epsilon_cap=1.0, delta_cap=1e-4, person_from=RULE, rows_per_person=3,
    )  # fmt: skip
    ref = ingest(request, noted=note)
    assert [(line.partition(" people have")[0], unopened) for line, unopened in noted] == [
        (f"{folder}: 3 of 3", True), (f"{folder}: 1 of 3", True),
    ]  # fmt: skip
    assert open_catalog().account("people") is not None
    # For the owner's screen alone: no file of the root holds it.
    stored = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert ref.name.encode() in stored
    assert b"several classes" not in stored


def test_another_rule_for_whose_pictures_they_are_is_refused(root: Path, tmp_path: Path) -> None:
    """The attack: by another rule everybody would be somebody new in the same account, and have a record in each."""
    folder = write(tmp_path / "set", of_people({1: 2, 2: 1, 3: 1}))
    bring_in(folder, person_from=RULE)
    with pytest.raises(RefusedError, match=r"declared.*now"):
        bring_in(folder, person_from=r".*/(\d+_\d+)\.png")
    assert len(open_catalog().registrations("animals")) == 1
    assert bring_in(folder, person_from=RULE).rows == 3


# ── private ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_asked_of_columns_is_refused(root: Path, tmp_path: Path) -> None:
    """Groups by a column, and descriptions of columns: pictures have none, and say so."""
    ref = bring_in(write(tmp_path / "set", pictures(range(1, 41))))
    with pytest.raises(ParameterError, match=r"animals.*--by"):
        prepare(TrainingConfig(dataset="animals", epsilon=1.0, by="colour"))
    with pytest.raises(InputError, match=r"^animals"):
        declared_schema(ref)


def test_what_is_refused_leaves_nothing_behind(root: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "set", pictures(range(1, 21)))
    (folder / "cat" / "bad.png").write_bytes(halves(1)[:30])
    for changes, words in (
        ({}, r"cat/bad\.png"),
        ({"classes": None}, "--classes"),
        ({"pixels": None}, "--pixels"),
        ({"side": 2000}, "side.*2000"),
        ({"person_from": "(x)"}, r"'\(x\)'"),
        ({"scaling": "unit-interval"}, "format images.*scaling"),
        ({"schema_path": Path("adult")}, "format images.*schema"),
    ):
        with pytest.raises((InputError, RefusedError), match=words):
            bring_in(folder, **changes)
    assert open_ledger().accounts() == []
    assert [path.name for path in current_layout().datasets.iterdir()] == []
    ref = bring_in(folder, on_violation="drop")
    assert ref.rows == 21, "a null record counts"
    assert ingestion_report(current_layout(), ref).counts["train"]["null"] == 1


def test_no_path_leaves_the_owner_s_screen(root: Path, tmp_path: Path) -> None:
    """Names of files are in the private folder alone: in no ledger, catalogue, log or reference."""
    folder = write(tmp_path / "set", {"cat/needle-one.png": 1, "dog/needle-two.png": 2, "dog/needle-three.png": 3})
    (folder / "cat" / "needle-four.png").write_bytes(b"bad")
    bring_in(folder, on_violation="drop")
    layout = current_layout()
    outside = [path for path in layout.root.rglob("*") if path.is_file() and layout.private not in path.parents]
    assert outside
    for path in outside:
        assert b"needle" not in path.read_bytes(), path
    for path in layout.datasets.rglob("dataset.json"):
        assert b"needle" not in path.read_bytes()


def test_public_pictures_have_one_version_in_every_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "set", pictures(range(1, 21)))
    public: dict[str, Any] = {
        "visibility": Visibility.PUBLIC,
        "epsilon_cap": None,
        "delta_cap": None,
        "classes": None,
        "pixels": None,
    }
    versions = []
    for name in ("one", "two"):
        monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / name))
        versions.append(bring_in(folder, **public))
    assert versions[0].version == versions[1].version
    assert (versions[0].classes, versions[0].image_shape, versions[0].dimension) == (CLASSES, (2, 2), 4)
    assert describe_datasets("animals")[0]["class_names"] == ["cat", "dog"]
    # Another way to read them is another version.
    monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / "one"))
    assert bring_in(folder, **{**public, "fit": "pad"}).version != versions[0].version


# ── what a model does with them ──────────────────────────────────────────────────────────────────────────────────────


def test_the_encoder_reads_what_ingestion_read(root: Path, tmp_path: Path) -> None:
    from storage.datasets import declared_table

    folder = write(tmp_path / "set", pictures(range(1, 21)))
    ref = bring_in(folder)
    encoder = encoder_of(declared_table(current_layout(), find_dataset("animals")))
    assert isinstance(encoder, PictureEncoder)
    stored = gathered(open_dataset(current_layout(), ref))[0]
    contents = [halves(value) for value in values_of(ref)]
    assert np.array_equal(encoder.transform(contents).astype(np.float32), stored.astype(np.float32))
    assert np.array_equal(encoder.transform(stored), stored), "numbers are taken as they are"
    for wrong, message in (
        ([b"bad"], "row 1.*PNG"),
        ([halves(1), "/etc/passwd"], "row 2.*str"),
        (np.zeros((2, 5)), r"\(m, 4\)"),
        (np.full((1, 4), np.nan), "row 1"),
        (np.array([[0.0, 1.0, 0.5, 0.0], [0, 255, 0, 0]]), "row 2.*image.*255"),
        (np.full((1, 4), -0.5), "row 1.*image.*-0.5"),
        (b"one", "^a single bytes"),
    ):
        with pytest.raises(InputError, match=message):
            encoder.transform(wrong)


@pytest.mark.parametrize(
    "changes", [{"side": 12}, {"side": 4, "person_from": r".*/(\d+)\.png"}, {"side": 8, "fit": "pad"}]
)
def test_pictures_of_another_side_are_known_again(
    changes: dict[str, Any], root: Path, tmp_path: Path, random: np.random.Generator
) -> None:
    """The attack: the same pictures, brought to another side, under another account: their budget would be new."""
    made = {}
    for place in range(40):
        made[f"{CLASSES[place % 2]}/{place:02d}.png"] = encoded(random.integers(0, 256, (48, 48), dtype=np.uint8))
    for folder, names in (("set", made), ("other", {name: made[name] for name in list(made)[:4]})):
        for name, content in names.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    known = bring_in(tmp_path / "set", side=8, delta_cap=1e-3)
    assert known.rows == 40
    with pytest.raises(RefusedError, match="animals"):
        bring_in(tmp_path / "set", "again", delta_cap=1e-3, **changes)
    # Some of them are enough, and what is remade of stored rows knows them as well.
    layout = current_layout()
    before = (layout.dataset(known.version) / PATTERNS).read_bytes()
    assert remake_fingerprints(layout, known.version)
    assert (layout.dataset(known.version) / PATTERNS).read_bytes() == before
    with pytest.raises(RefusedError, match="animals"):
        bring_in(tmp_path / "other", "again", delta_cap=1e-3, **changes)


def test_other_pictures_are_others(root: Path, tmp_path: Path, random: np.random.Generator) -> None:
    for name in ("one", "other"):
        for place in range(60):
            path = tmp_path / name / CLASSES[place % 2] / f"{place:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(random.integers(0, 256, (16, 16), dtype=np.uint8)))
        bring_in(tmp_path / name, name, side=8, delta_cap=1e-3)
