"""Federations of tables: all see rows through functions of columns that each makes itself of the released counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.evaluators.column_histograms import MOST_BINS
from storage.errors import InputError, RefusedError
from storage.layout import Layout
from storage.refs import ReleaseRef, Visibility
from storage.releases import ReleaseStore
from storage.secrets import root_secret
from tasks.accounts.ledger import check_releases, open_ledger
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.exports.archive import Archive
from tasks.exports.verifying import verify_archive
from tasks.federation.messages import (
    _MOST_MESSAGE,
    Answer,
    Ask,
    Description,
    Purpose,
    Request,
    Roster,
    Signed,
    fingerprint,
    identity_key,
)
from tasks.federation.party import Party
from tasks.host.engine import _QUIET, keep_quiet
from tasks.release.storing import read_release
from tasks.runtime.settings import current_layout, isolated_root
from tests.tasks.federation.conftest import LOGGED
from tests.tasks.federation.test_federation import Federation, _OneByOne, answered, changed, forged, taken_elsewhere

NAMES = ("berlin", "lyon", "turin")
LABELS = {"classes": "classes: ['no', 'yes']", "real": "range: [-3, 3]"}
SCHEMA = """
missing: {{marker: "", rows: indicator}}
columns:
  - {{name: age, type: numeric, range: [0, 100]}}
  - {{name: income, type: numeric, range: [0, 100000]}}
  - {{name: city, type: category, values: [a, b, c]}}
  - {{name: sick, type: label, {label}}}
"""
CATEGORY = "  - {{name: city, type: category, values: [a, b, c]}}\n"
# The same features, of which others are a number's.
SWAPPED = SCHEMA.replace(CATEGORY, "").replace("columns:\n", "columns:\n" + CATEGORY)
# Enough for functions of columns, and few steps.
SHORT: dict[str, Any] = {"epsilon": 20.0, "trust": "secagg", "parameters": {"iterations": 2}}
pytestmark = pytest.mark.usefixtures("logged_in_memory")


def table(rows: int, label: str, seed: int) -> str:
    """Return rows of which some have no age, and some no city."""
    random = np.random.default_rng(seed)
    lines = ["age,income,city,sick"]
    for _ in range(rows):
        age, income, city = random.uniform(0, 90), np.exp(random.normal(8, 1)), random.integers(4)
        sick = abs(age - 45) / 30 - 0.5 * (city == 1) + 0.2 * random.standard_normal()
        said = f"{np.clip(sick, -3, 3):.3f}" if label == "real" else ("yes" if sick > 0.6 else "no")
        written = "" if random.random() < 0.1 else f"{age:.1f}"
        lines.append(f"{written},{min(income, 1e5):.2f},{'abc'[city] if city < 3 else ''},{said}")
    return "\n".join(lines) + "\n"


def bring_in(
    folder: Path, rows: int, *, label: str = "classes", seed: int = 0, schema: str = SCHEMA, **more: Any
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.csv").write_text(table(rows, label, seed))
    (folder / "schema.yaml").write_text(schema.format(label=LABELS[label]))
    request = {"name": "clinic", "visibility": Visibility.PRIVATE, "epsilon_cap": 30.0, "delta_cap": 1e-4, **more}
    if "parties" in request:
        request["parties"] = {request["parties"]: folder / "rows.csv"}
    else:
        request["path"] = folder / "rows.csv"
    ingest(IngestRequest(format="csv", schema_path=folder / "schema.yaml", **request))


def federation(folder: Path, *, label: str = "classes", schemas: Sequence[str] = (SCHEMA,) * 3) -> Federation:
    fingerprints = {}
    for number, name in enumerate(NAMES):
        with isolated_root(folder / name):
            bring_in(folder / f"{name}-input", 250, label=label, seed=number, schema=schemas[number], parties=name)
            fingerprints[name] = fingerprint(identity_key(root_secret(current_layout())).public_key())
    return Federation(folder, {}, Roster(parties=fingerprints))


def artefact_of(key: str) -> Any:
    return read_release(ReleaseRef(key=key, kind="", party=""))


def same(one: Any, other: Any) -> bool:
    ours, theirs = one.arrays(), other.arrays()
    return bool(ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours))


def own_map(parties: Federation, name: str) -> str:
    """Return the key of a party's own map; in its root."""
    planned = Party("clinic", parties.roster)._planned(answered(parties, Ask.RESERVE, name)[0]).own.column_map
    assert planned is not None
    return planned.key


@pytest.mark.parametrize(
    ("label", "trust"),
    [
        ("classes", "secagg"),
        pytest.param("real", "secagg", marks=pytest.mark.nightly),
        pytest.param("classes", "local", marks=pytest.mark.nightly),
        pytest.param("real", "local", marks=pytest.mark.nightly),
    ],
)
def test_all_see_rows_through_the_map_that_follows_from_the_counts(label: str, trust: str, tmp_path: Path) -> None:
    parties = federation(tmp_path, label=label)
    config: dict[str, Any] = {**SHORT, "trust": trust, "evaluation": True, "test_fraction": 0.2}
    made = parties.run(**config)
    _, run, columns = LOGGED[0]
    plan = run.plan
    assert plan.column_map is not None
    assert plan.normalisation == "none"
    assert columns.encoder is not None
    assert made.took_part == NAMES
    assert plan.releases[0].label == "columns of all parties"
    counts, expected = (
        parties.at("coordinator", partial(artefact_of, one.key)) for one in (*plan.counts, plan.column_map)
    )
    assert same(plan.column_map.combine([counts]), expected)
    for name in NAMES:
        with isolated_root(parties.root(name)):
            assert same(artefact_of(own_map(parties, name)), expected)
        # Counts, training and what is measured are one plan; the account pays once for all of it.
        assert 15.0 < parties.spent(name) <= 20.0
        assert parties.at(name, open_ledger).verify() == []
    assert parties.at("coordinator", check_releases) == []
    # No map travels: what nobody is sent nobody can exchange.
    sent = {one.opened("")[0]["artefact"] for _, request, _ in parties.seen for one in request.upstream}
    assert "statistic" in sent
    assert "column-functions" not in sent
    members = taken_elsewhere(parties, made, config)
    sound = verify_archive(Archive(members, "the coordinator"))
    assert sound.holds, [check for check in sound.checks if check.holds is False]
    # A map of the coordinator's own does not follow from the counts that are in the archive beside it.
    key = plan.column_map.key
    manifest, arrays = parties.at("coordinator", lambda: ReleaseStore(current_layout()).read(key))
    forger = ReleaseStore(Layout(tmp_path / "forger").prepare())
    forger.write(key, manifest, {**arrays, "tables": 0.9 * arrays["tables"]})
    other = {f"releases/{key}/{name}": data for name, data in forger.files(key).items()}
    assert not verify_archive(Archive({**members, **other}, "the coordinator")).holds
    assert parties.run(**config) == made


def first_look(request: Request) -> bool:
    """Whether a request is one to look at rows through functions of columns, with what these are made of."""
    return request.ask in (Ask.MASK, Ask.SUM) and bool(request.upstream)


Change = Callable[[dict[str, Any], dict[str, Any]], object]
WRONG: dict[str, Change] = {
    "no number": changed("values", np.nan),
    "beyond the bound": changed("values", 1e300),
    "another type": changed("values", "<f4"),
    "a count more": lambda _, arrays: arrays.update(values=np.append(arrays["values"], 0.0)),
    "one array more": lambda _, arrays: arrays.update(extra=np.zeros(1)),
    "another kind": lambda manifest, _: manifest.update(artefact="column-functions"),
    "another key": lambda manifest, _: manifest.update(key="0" * 64),
}


def test_nobody_can_put_another_map_in_the_place_of_the_one_that_follows_from_the_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that sends a map of its own, counts that are none, and other counts when asked again."""
    parties = federation(tmp_path)
    said: dict[str, Answer] = {}
    read: list[str] = []
    a_map: list[Any] = []

    def keep_map(manifest: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Write functions of columns that were chosen otherwise, under the key that is asked for."""
        with isolated_root(parties.root("coordinator")):
            (path,) = [one for one in current_layout().releases.glob("*/manifest.json") if "unction" in one.read_text()]
            other = artefact_of(path.parent.name).arrays()
        manifest.update(artefact="column-functions")
        arrays.clear()
        arrays.update({**other, "tables": other["tables"][:, :, ::-1].copy()})

    def meddled(party: str, request: Request) -> Request:
        if not first_look(request):
            return request

        def asked(name: str, change: Change, *, whole: bool = False) -> None:
            sent = forged(request.upstream[0], parties.folder / "forged", change)
            upstream = (sent,) if whole else (sent, *request.upstream[1:])
            with isolated_root(parties.root(party)):
                again = request.model_copy(update={"upstream": upstream})
                said[name] = Party("clinic", parties.roster).answer(again)

        monkeypatch.setattr("tasks.release.door.rows_of", lambda *_: read.append(party))
        monkeypatch.setattr("tasks.release.rounds.rows_of", lambda *_: read.append(party), raising=False)
        for wrong, change in WRONG.items():
            asked(wrong, change)
        asked("a map", keep_map)
        monkeypatch.undo()
        monkeypatch.setattr("tasks.federation.coordinator.ThreadPoolExecutor", _OneByOne)
        assert {one.status for one in said.values()} == {"refused"}, said
        assert all("what was sent as columns of all parties" in one.reason for one in said.values()), said
        assert read == []
        # Counts of the planned form are what nobody can tell from the sum; what was sent first stands.
        asked("other counts", lambda _, arrays: arrays.update(values=arrays["values"][::-1].copy()))
        asked("then those that were", lambda *_: None)
        with isolated_root(parties.root(party)):
            a_map.append(artefact_of(own_map(parties, party)))
        raise KeyboardInterrupt

    parties.meddle = meddled
    with pytest.raises(KeyboardInterrupt):
        parties.run(**SHORT)
    assert said["other counts"].status == "done", said
    assert said["then those that were"].status == "refused"
    assert "use that one only" in said["then those that were"].reason
    with isolated_root(parties.root("coordinator")):
        (counts,) = [one for one in map(artefact_of, stored()) if one.kind == "statistic"]
    with isolated_root(parties.root("berlin")):
        planned = Party("clinic", parties.roster)._planned(answered(parties, Ask.RESERVE)[0]).own.column_map
    assert planned is not None
    assert same(a_map[0], planned.combine([type(counts)(values=counts.values[::-1].copy())]))


def stored() -> list[str]:
    """Return the keys of the releases in a root."""
    return [path.parent.name for path in current_layout().releases.glob("*/manifest.json")]


def test_columns_are_said_signed_and_agreed_on(tmp_path: Path) -> None:
    parties = federation(tmp_path, schemas=(SCHEMA, SCHEMA, SWAPPED))
    with pytest.raises(RefusedError, match="columns"):
        parties.run(**SHORT)
    assert not parties.messages(Ask.RESERVE)


def test_a_party_whose_columns_are_described_otherwise_refuses(tmp_path: Path) -> None:
    """All others, and the coordinator, say that a number's range is another one: its cells would be in other bins."""
    parties = federation(tmp_path)
    parties.lost = {(name, Ask.COMMIT) for name in NAMES}
    with pytest.raises(Exception, match="commit"):
        parties.run(**SHORT)
    request = answered(parties, Ask.RESERVE)[0]

    def other(one: Signed, party: str) -> Signed:
        description = Description.model_validate_json(one.body)
        first, *others = description.columns
        narrower = first.model_copy(update={"high": first.high / 2})
        body = description.model_copy(update={"columns": (narrower, *others)}).written()
        with isolated_root(parties.root(party)):
            key = identity_key(root_secret(current_layout()))
        return Signed.by(key, Purpose.DESCRIPTION, "", one.party, body)

    berlin, *rest = request.descriptions
    for descriptions, told in (
        ((berlin, *(other(one, one.party) for one in rest)), "differ in columns"),
        (tuple(other(one, one.party) for one in (berlin, *rest)), "not as the request describes"),
        (tuple(other(one, "lyon") for one in (berlin, *rest)), "not the roster's"),
    ):
        said = parties.transport("berlin", request.model_copy(update={"descriptions": descriptions}))
        assert said is not None
        assert said.status == "refused"
        assert told in said.reason, said.reason


def test_a_model_of_columns_is_measured_on_rows_of_these_columns(tmp_path: Path) -> None:
    parties = federation(tmp_path)
    with isolated_root(parties.root("coordinator")):
        bring_in(tmp_path / "same", 300, seed=7, name="same", visibility=Visibility.PUBLIC, **NO_CAP)
        bring_in(tmp_path / "other", 300, seed=7, schema=SWAPPED, name="other", visibility=Visibility.PUBLIC, **NO_CAP)
    with pytest.raises(InputError, match="columns"):
        parties.run(**SHORT, measured_on="other")
    assert not parties.messages(Ask.RESERVE)
    made = parties.run(**SHORT, measured_on="same")
    assert made.result.accuracy is not None
    assert made.result.accuracy > 0.7


NO_CAP: dict[str, Any] = {"epsilon_cap": None, "delta_cap": None}


def test_messages_have_room_where_a_root_serves_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of 60 numbers are more than Prefect's server takes in a parameter if it is not told."""
    for name in _QUIET:
        # So that it is as it was afterwards, also where it was not there.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    keep_quiet()
    room = int(os.environ["PREFECT_SERVER_API_MAX_PARAMETER_SIZE"])
    assert room >= _MOST_MESSAGE > 60 * MOST_BINS * 8 * 4 / 3 > 2**19
