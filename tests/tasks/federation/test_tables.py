"""Federations of tables: all see rows through functions of columns that each makes itself of the released counts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from dpalgos.evaluators.column_histograms import MOST_BINS
from dpalgos.evaluators.pair_counts import PairCounts
from dpalgos.guarantees import GaussianMu
from storage.datasets import open_dataset
from storage.errors import InputError, RefusedError, StorageError
from storage.layout import Layout
from storage.refs import ReleaseRef, Visibility
from storage.releases import ReleaseStore
from storage.secrets import root_secret
from tasks.accounts.ledger import check_releases, open_ledger
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.exports.archive import Archive, export_run, read
from tasks.exports.verifying import verify_archive
from tasks.federation.coordinator import federate_counts
from tasks.federation.messages import (
    _MOST_MESSAGE,
    Answer,
    Ask,
    Counted,
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
from tasks.planning.configuration import TrainingConfig
from tasks.release.column_pairs import PairsPlan
from tasks.release.pair_descriptions import PairsDescription
from tasks.release.storing import read_release
from tasks.runtime.settings import current_layout, isolated_root
from tasks.tracking.descriptions import record_description
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


def federation(
    folder: Path, *, label: str = "classes", schemas: Sequence[str] = (SCHEMA,) * 3, names: Sequence[str] = NAMES
) -> Federation:
    fingerprints = {}
    for number, name in enumerate(names):
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
        assert all("the message for columns of all parties" in one.reason for one in said.values()), said
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
    assert "may use only that one" in said["then those that were"].reason
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
        (tuple(other(one, one.party) for one in (berlin, *rest)), "differ from the request's description"),
        (tuple(other(one, "lyon") for one in (berlin, *rest)), "not in the roster"),
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


def exact_tables(parties: Federation, plan: PairsPlan) -> list[Any]:
    """Return the tables of all parties' rows together, counted without noise, in the order of the plan's tables."""
    algorithm, total = plan.counts.planned.build(), np.zeros(0)
    assert isinstance(algorithm, PairCounts)
    for name in parties.roster.names:
        with isolated_root(parties.root(name)):
            ref = find_dataset("clinic")
            rows = open_dataset(current_layout(), ref)
            setting = replace(plan.counts.planned.setting, sizes=(ref.rows,))
            counted = [
                algorithm.of_block(x.astype(np.float64), y, np.ones(len(y), np.int64), setting)
                for x, y, *_ in rows.blocks()
            ]
            whole = np.sum(counted, axis=0)
        total = whole if not len(total) else total + whole
    return list(algorithm.tables_of(total.astype(float), plan.counts.planned.setting).values())


@pytest.mark.parametrize("trust", ["secagg", "local"])
def test_parties_count_pairs_and_each_is_charged_for_all_tables(
    trust: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parties. Mutants: a sensitivity without one pair; a charge that one party does not make or has not signed."""
    monkeypatch.setattr("tasks.tracking.descriptions.track_run", lambda root, report: "0" * 32)
    parties = federation(tmp_path, names=NAMES[:2])
    config = TrainingConfig(dataset="study", epsilon=4.0, delta=1e-5, trust=trust, evaluation=False)
    counted = Counted(pairs=("age,sick", "city,age", "income,sick"))

    def describe() -> tuple[PairsPlan, PairsDescription]:
        with isolated_root(parties.root("coordinator")):
            current_layout()
            plan, found = federate_counts(config, counted, parties.roster, parties.transport)
            assert isinstance(plan, PairsPlan)
            assert isinstance(found, PairsDescription)
            record_description(plan, found, lambda _: b"")
            return plan, found

    parties.lost = {("lyon", Ask.COMMIT)}
    with pytest.raises(StorageError, match="lyon"):
        describe()
    parties.lost = set()
    plan, found = describe()
    planned = plan.counts.planned
    # A row moves a count by one in two cells of each of three tables.
    loss = planned.budget
    assert isinstance(loss, GaussianMu)
    wanted = np.sqrt(2 * 3) / loss.mu * (np.sqrt(2) if trust == "local" else planned.setting.noise_factor)
    algorithm = planned.build()
    assert isinstance(algorithm, PairCounts)
    deviation = algorithm.deviation(planned.setting) * planned.setting.noise_factor
    # Rounding adds a twelfth per party to the variance.
    assert deviation == pytest.approx(np.hypot(wanted, np.sqrt(2 / 12)), rel=1e-3)
    released = parties.at("coordinator", lambda: algorithm.tables_of(artefact_of(planned.key).values, planned.setting))
    noise = np.concatenate(
        [(a - b).ravel() for a, b in zip(released.values(), exact_tables(parties, plan), strict=True)]
    )
    assert np.abs(noise).max() < 6.5 * wanted
    # A sum of squares of so many normal numbers lies between with a probability of all but 1e-9.
    low, high = chi2.ppf([5e-10, 1 - 5e-10], len(noise)) / len(noise)
    assert low < np.mean(np.square(noise)) / deviation**2 < high
    assert [(pair.first, pair.second) for pair in found.pairs] == [("age", "sick"), ("city", "age"), ("income", "sick")]
    for name in parties.roster.names:
        assert 3.0 < parties.spent(name) <= 4.0
        assert parties.at(name, open_ledger).verify() == []
    before = len(parties.seen)
    assert describe()[1] == found
    assert not {request.ask for _, request, _ in parties.seen[before:]} & {Ask.MASK, Ask.SUM}
    # Taken elsewhere, it is checked without rows; a charge that is missing is found.
    with isolated_root(parties.root("coordinator")):
        (tmp_path / "run.zip").write_bytes(export_run(found.terms.description[:12])[0])
        members = dict(read(tmp_path / "run.zip").members)
    sound = verify_archive(Archive(members, "the coordinator"))
    assert sound.holds, [check for check in sound.checks if check.holds is False]
    assert sound.epsilon == pytest.approx(4.0, rel=1e-3)
    (signed,) = [name for name in members if name.endswith("signed.json")]
    changes: list[Callable[[Any], object]] = [
        lambda said: said["charges"].pop(),
        lambda said: said["counted"]["pairs"].pop(),
        lambda said: said["config"].update(epsilon=1.0),
    ]
    for change in changes:
        said = json.loads(members[signed])
        change(said)
        forged_ = verify_archive(Archive({**members, signed: json.dumps(said).encode()}, "the coordinator"))
        assert not forged_.holds


def test_parties_describe_all_columns_and_refuse_another_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties = federation(tmp_path, names=NAMES[:2])
    config = TrainingConfig(dataset="study", epsilon=4.0, delta=1e-5, evaluation=False)

    def describe(**asked: Any) -> Any:
        with isolated_root(parties.root("coordinator")):
            current_layout()
            return federate_counts(config, Counted(**asked), parties.roster, parties.transport)[1]

    with pytest.raises(InputError, match="nowhere"):
        describe(pairs=("age,nowhere",))
    assert not parties.messages(Ask.RESERVE)

    def meddled(party: str, request: Request) -> Request:
        if request.ask is not Ask.RESERVE or request.counted is None:
            return request
        other = request.counted.table.replace("100000", "90000")
        return request.model_copy(update={"counted": request.counted.model_copy(update={"table": other})})

    parties.meddle = meddled
    with pytest.raises(RefusedError, match="schema"):
        describe()
    parties.meddle = lambda party, request: request
    found = describe()
    assert [column.name for column in found.columns] == ["age", "income", "city"]
    (share,) = [one for one in found.label.figures if one.of == "yes"]
    assert 0.0 < share.low < share.value < share.high < 1.0
    assert all(3.0 < parties.spent(name) <= 4.0 for name in parties.roster.names)
