"""Bringing rows in: what has to be declared, what is refused, and that nothing half-made stays behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from storage.datasets import open_dataset
from storage.errors import InputError, RefusedError, StorageError
from storage.refs import Visibility
from tasks.accounts.ledger import account_named, open_ledger
from tasks.datasets import registration
from tasks.datasets.registration import (
    default_normalisation,
    describe_datasets,
    ensure_registered,
    find_dataset,
    ingest,
    query,
)
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.preparation.prepare import prepare as planned
from tasks.release.preflight import require_feasible
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog
from tests.support.chains import ingest_private, prepare
from tests.support.command_line import CommandLine
from tests.support.data import gathered, temporaries
from tests.support.private_rows import CLASSES, DIMENSION, PrivateRows, write_rows
from tests.support.stating import stating


@pytest.fixture
def rows(root: Path, tmp_path: Path) -> PrivateRows:
    return write_rows(tmp_path / "rows.txt", 60)


def request(rows: PrivateRows, **changes: Any) -> IngestRequest:
    given: dict[str, Any] = {
        "name": "clinic",
        "format": "libsvm",
        "path": rows.path,
        "dimension": DIMENSION,
        "classes": CLASSES,
        "epsilon_cap": 1.0,
        "delta_cap": 1e-4,
    }
    return IngestRequest(**{**given, **changes})


def public(rows: PrivateRows, **changes: Any) -> IngestRequest:
    return request(rows, visibility=Visibility.PUBLIC, epsilon_cap=None, delta_cap=None, **changes)


def versions() -> list[str]:
    return sorted(path.name for path in current_layout().datasets.iterdir())


def test_private_is_the_default_and_rows_are_kept_as_they_are(rows: PrivateRows) -> None:
    reference = ingest(request(rows))
    assert reference.visibility is Visibility.PRIVATE
    assert (reference.rows, reference.dimension, reference.classes) == (60, DIMENSION, CLASSES)
    stored, labels = gathered(open_dataset(current_layout(), reference))
    np.testing.assert_allclose(stored, rows.features, rtol=1e-6)
    np.testing.assert_array_equal(labels, (rows.labels > 0).astype(int))
    assert open_ledger().account("clinic").cap is not None
    assert current_layout().private.stat().st_mode & 0o077 == 0


def test_private_versions_have_random_names(rows: PrivateRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest would tell whoever guesses the rows that the guess is right; public versions are named by content."""
    private = [ingest(request(rows)).version]
    assert ingest(request(rows, epsilon_cap=None, delta_cap=None)).version == private[0]
    monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / "another"))
    private.append(ingest(request(rows)).version)
    assert private[0] != private[1]
    named = []
    for name in ("one", "two"):
        monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / name))
        named.append(ingest(public(rows)).version)
    assert named[0] == named[1]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"epsilon_cap": None, "delta_cap": None}, RefusedError, "--epsilon-cap"),
        ({"delta_cap": None}, InputError, "both"),
        ({"delta_cap": 1 / 60}, RefusedError, "1/n"),
        ({"epsilon_cap": float("nan")}, InputError, "epsilon"),
        ({"epsilon_cap": float("inf")}, InputError, "epsilon"),
        ({"epsilon_cap": 1e7}, InputError, r"epsilon.*10000000\.0.*1e\+06"),
        ({"dimension": None}, RefusedError, "--dimension"),
        ({"classes": None}, RefusedError, "--classes"),
        ({"dimension": 5}, InputError, "5"),
        ({"classes": ("0", "1")}, InputError, "line 1"),
        ({"format": "lbsvm"}, ValueError, "libsvm"),
        ({"format": None}, InputError, "--format"),
        ({"normalisation": "minmax"}, RefusedError, "minmax"),
        ({"normalisation": "unit-nrom"}, ValueError, "unit-norm"),
        ({"name": "../escape"}, InputError, "name"),
        ({"account": "a/b"}, InputError, "account"),
        ({"group_size": 0}, InputError, "group size"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(
    changes: dict[str, Any], error: type[Exception], words: str, rows: PrivateRows
) -> None:
    with pytest.raises(error, match=words):
        ingest(request(rows, **changes))
    assert versions() == []
    assert temporaries(current_layout().root) == []
    assert open_ledger().accounts() == []
    assert not open_catalog().registrations("clinic")
    # Nor does it stand in the way.
    ingest(public(rows, name="open"))


def test_a_cap_is_for_private_rows(rows: PrivateRows) -> None:
    with pytest.raises(InputError, match="--public"):
        ingest(request(rows, visibility=Visibility.PUBLIC))


def test_rows_that_could_not_be_registered_are_not_kept(rows: PrivateRows, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise StorageError("the ledger cannot be written")

    with monkeypatch.context() as patch:
        patch.setattr(registration, "_register", fail)
        with pytest.raises(StorageError):
            ingest(request(rows))
    assert versions() == []
    reference = ingest(request(rows))
    # What is registered already is not thrown away by a later failure.
    with monkeypatch.context() as patch:
        patch.setattr(registration, "_register", fail)
        with pytest.raises(StorageError):
            ingest(request(rows))
    assert versions() == [reference.version]


def test_a_cap_is_not_changed_in_passing(rows: PrivateRows) -> None:
    ingest(request(rows))
    with pytest.raises(InputError, match=r"'clinic'.*epsilon"):
        ingest(request(rows, epsilon_cap=5.0))
    assert len(versions()) == 1


@pytest.mark.parametrize("share", [1.0, 0.02])
def test_private_rows_are_not_taken_on_as_public(share: float, rows: PrivateRows, tmp_path: Path) -> None:
    ingest(request(rows))
    fresh = write_rows(tmp_path / "fresh.txt", 50, seed=99)
    lines = fresh.path.read_text().splitlines()
    count = round(share * len(lines))
    mixed = tmp_path / "mixed.txt"
    mixed.write_text("\n".join(rows.path.read_text().splitlines()[:count] + lines[count:]) + "\n")
    with pytest.raises(RefusedError, match="private"):
        ingest(IngestRequest(name="open", format="libsvm", path=mixed, visibility=Visibility.PUBLIC))
    assert len(versions()) == 1


def test_a_name_stays_private_or_public(rows: PrivateRows, tmp_path: Path) -> None:
    ingest(request(rows))
    other = write_rows(tmp_path / "other.txt", 40, seed=5)
    with pytest.raises(RefusedError, check=stating(value="public", bound="private")):
        ingest(public(other))
    ingest(public(other, name="open"))
    with pytest.raises(RefusedError, check=stating(value="private", bound="public")):
        ingest(request(other, name="open"))
    with pytest.raises(RefusedError, match="public"):
        ingest(request(write_rows(tmp_path / "third.txt", 40, seed=6), name="third", account="open"))


def test_a_lookup_ingests_nothing(root: Path) -> None:
    """Only commands, calls from Python and a flow's first step do: what plans a run has no side effects."""
    lookups: dict[str, Callable[[], object]] = {
        "find": lambda: find_dataset("digits"),
        "normalisation": lambda: default_normalisation("digits"),
        "account": lambda: account_named("digits"),
        "query": lambda: query("digits", "SELECT 1"),
        "plan": lambda: planned(TrainingConfig(dataset="digits", epsilon=1.0)),
        "preflight": lambda: require_feasible(TrainingConfig(dataset="digits", epsilon=1.0)),
    }
    for lookup in lookups.values():
        with pytest.raises(InputError, match="'digits'"):
            lookup()
    assert [one["rows"] for one in describe_datasets("digits")] == ["–"]
    assert open_catalog().registrations() == []


def test_public_rows_to_learn_from_are_looked_up_too(root: Path) -> None:
    ensure_registered("iris")
    asked = TrainingConfig(dataset="iris", public_dataset="digits", epsilon=1.0)
    with pytest.raises(InputError, match="'digits'"):
        planned(asked)
    assert {one.name for one in open_catalog().registrations()} == {"iris"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--dataset", "iris", "--epsilon", "1", "--explain"],
        ["train", "--dataset", "iris", "--epsilon", "1", "--plan"],
        ["datasets", "iris"],
        ["datasets", "iris", "--sql", "SELECT count(*) FROM train"],
        ["budget", "iris"],
        ["schedule", "iris", "--nightly", "--epsilon", "1"],
    ],
)
def test_a_command_ingests_what_comes_along(arguments: list[str], commands: CommandLine) -> None:
    commands.succeeds(*arguments)
    assert [one.name for one in open_catalog().registrations()] == ["iris"]


def test_bundled_sets_are_registered_once(root: Path) -> None:
    ensure_registered("digits", None, "iris", "digits", "nowhere")
    reference = find_dataset("digits")
    assert (reference.rows, reference.dimension, len(reference.classes), reference.private) == (1797, 64, 10, False)
    stored, labels = gathered(open_dataset(current_layout(), reference))
    digits = load_digits()
    np.testing.assert_array_equal(stored, digits.data)
    np.testing.assert_array_equal(labels, digits.target)
    ensure_registered("digits")
    assert find_dataset("digits") == reference
    assert len(open_catalog().registrations("digits")) == 1
    with pytest.raises(InputError, match="'digit'", check=stating(value="digit", way_out="ingest")):
        find_dataset("digit")


def test_descriptions_hold_public_words_only(rows: PrivateRows) -> None:
    ingest(request(rows, normalisation="clip"))
    (described,) = describe_datasets("clinic")
    assert described["rows"] == 60
    assert described["visibility"] == "private"
    assert default_normalisation("clinic") == "clip"
    ensure_registered("iris")
    assert default_normalisation("iris") is None
    assert {entry["name"] for entry in describe_datasets()} >= {"clinic", "digits", "iris", "wine"}


def test_sql_is_for_public_rows(rows: PrivateRows) -> None:
    ensure_registered("iris")
    assert query("iris", "SELECT class, count(*) AS n FROM train GROUP BY class ORDER BY class")[0]["n"] == 50
    ingest(request(rows))
    with pytest.raises(RefusedError, match="private"):
        query("clinic", "SELECT count(*) FROM train")


def test_the_declared_normalisation_is_the_runs_default(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", normalisation="clip")
    assert prepare(algorithm="noisy-gd").dataset.normalisation == "clip"
    assert prepare(algorithm="noisy-gd", normalisation="unit-norm").dataset.normalisation == "unit-norm"


@pytest.mark.parametrize(("name", "in_ball"), [("unit-norm", True), ("clip", True), ("none", False), ("minmax", False)])
def test_normalised_rows_are_in_the_ball_as_they_are_stored(name: str, in_ball: bool, root: Path) -> None:
    """After the round trip through float32, in float64."""
    dataset = prepare("digits", algorithm="noisy-gd", normalisation=name).dataset
    stored, _ = gathered(open_dataset(current_layout(), dataset))
    norms = np.linalg.norm(stored, axis=1)
    assert bool(norms.max() <= 1.0) is in_ball
    if name == "unit-norm":
        assert norms.min() > 0.999999


def test_no_row_survives_unmapped(root: Path, tmp_path: Path) -> None:
    """What is stored under a normalisation is the map of what came in, row by row."""
    rows = ingest_private(tmp_path / "input")
    dataset = prepare(algorithm="noisy-gd", normalisation="clip").dataset
    stored, _ = gathered(open_dataset(current_layout(), dataset))
    norms = np.linalg.norm(rows.features, axis=1, keepdims=True)
    np.testing.assert_allclose(stored, rows.features / np.maximum(norms, 1.0), atol=1e-6)


TABLE = """\
columns:
  - {name: age, type: numeric, range: [18, 100]}
  - {name: ward, type: category, values: [north, south]}
  - {name: y, type: label, classes: [ill, well, gone]}
"""
BAD_TABLES = {
    "a cell too many": ("age,ward,y\n50,north,ill,no\n", "line 2: 4 cells.*3 columns"),
    "a name twice": ("age,ward,y,age\n50,north,ill,51\n", "line 1: column 'age' is named"),
    "a column missing": ("age,y\n50,ill\n", "column 'ward' is missing"),
    "an unseen category": ("age,ward,y\n50,moon,ill\n", "column ward: 'moon'.*north, south"),
    "no such label": ("age,ward,y\n50,north,dead\n", "column y: 'dead'.*ill, well, gone"),
    "always missing": ("age,ward,y\n,north,ill\n,south,well\n", "line 2, column age: the value"),
    "another delimiter": ("age;ward;y\n50;north;ill\n", "line 1.*'age;ward;y'"),
    "another decimal": ('age,ward,y\n"50,5",north,ill\n', "column age: '50,5'"),
    "another encoding": ("age,ward,y\n50,nörth,ill\n", "line 2: byte 0xf6.*UTF-8"),
    "names in another encoding": ("age,größe,y\n50,2,ill\n", "line 1: byte 0xf6.*UTF-8"),
    "no rows": ("age,ward,y\n", r"rows\.csv.*no rows"),
}


@pytest.mark.parametrize("bad", BAD_TABLES)
def test_a_bad_table_is_named_and_nothing_is_half_registered(bad: str, root: Path, tmp_path: Path) -> None:
    text, message = BAD_TABLES[bad]
    (tmp_path / "table.yaml").write_text(TABLE)
    (tmp_path / "rows.csv").write_bytes(text.encode("latin-1"))
    given: dict[str, Any] = {
        "name": "clinic",
        "format": "csv",
        "path": tmp_path / "rows.csv",
        "schema_path": tmp_path / "table.yaml",
        "epsilon_cap": 1.0,
        "delta_cap": 1e-4,
    }
    with pytest.raises(InputError, match=message):
        ingest(IngestRequest(**given))
    assert versions() == []
    assert temporaries(current_layout().root) == []
    assert open_ledger().accounts() == []
    assert not open_catalog().registrations("clinic")


def test_a_column_that_is_always_missing_and_a_class_that_never_occurs_are_data(root: Path, tmp_path: Path) -> None:
    """With a mark at the file's beginning, by the rule that the schema declares: the features are the schema's."""
    (tmp_path / "table.yaml").write_text('missing: {marker: "", rows: indicator}\n' + TABLE)
    rows = "".join(f",{('north', 'south')[row % 2]},{('ill', 'well')[row % 2]}\n" for row in range(200))
    (tmp_path / "rows.csv").write_bytes(("age,ward,y\n" + rows).encode("utf-8-sig"))
    given: dict[str, Any] = {"format": "csv", "path": tmp_path / "rows.csv", "schema_path": tmp_path / "table.yaml"}
    stored = ingest(IngestRequest(name="clinic", epsilon_cap=1.0, delta_cap=1e-4, **given))
    assert stored.classes == ("ill", "well", "gone")
    features, labels = gathered(open_dataset(current_layout(), stored))
    assert set(np.asarray(labels).tolist()) == {0, 1}
    assert np.isfinite(features).all()
    assert stored.dimension == features.shape[1]


def test_rows_of_ones_own_do_not_hide_a_bundled_set(root: Path, tmp_path: Path) -> None:
    """Under its name nobody could ask for it any more, and papers' figures are drawn from it."""
    path = write_rows(tmp_path / "rows.txt", 30).path
    given: dict[str, Any] = {"format": "libsvm", "path": path, "visibility": "public"}
    for known in (False, True):
        with pytest.raises(InputError, match="my_digits"):
            ingest(IngestRequest(name="digits", **given))
        if not known:
            ensure_registered("digits")
            assert find_dataset("digits").rows == 1797
    ingest(IngestRequest(name="my_digits", **given))
