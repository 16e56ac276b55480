"""Federations of people: one unit at all parties, a person one record at each, and nothing says how many rows."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpalgos.algorithms import TrustedSummation
from dpalgos.audit.bounds import Value, compare
from dpalgos.parameters import ParameterError
from dpalgos.secure import summation as stepwise
from storage.errors import RefusedError
from storage.releases import ReleaseStore
from storage.secrets import root_secret
from tasks.accounts.ledger import open_ledger
from tasks.accounts.pricing import epsilon_of_person
from tasks.auditing import traces
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.exports.archive import Archive
from tasks.exports.verifying import verify_archive
from tasks.federation.messages import (
    Answer,
    Ask,
    Description,
    Purpose,
    Request,
    Roster,
    Signed,
    fingerprint,
    identity_key,
    unpacked,
)
from tasks.federation.party import Party
from tasks.planning.configuration import TrainingConfig
from tasks.release.storing import read_release
from tasks.runtime.settings import current_layout, isolated_root
from tasks.tracking.reporting import run_report
from tests.support.chains import prepare
from tests.support.noise import differing_each_time, without_noise
from tests.tasks.federation.conftest import LOGGED
from tests.tasks.federation.test_federation import Federation, answered, taken_elsewhere
from tests.tasks.test_people import MOST, bring_in, visits

PAIR = ("berlin", "lyon")
COUNTS = [1, 3, 2, MOST, *([1, 2, 4] * 12)]
DESCENT: dict[str, Any] = {"algorithm": "noisy-gd", "parameters": {"iterations": 2}}
ALONE: dict[str, Any] = {"trainer": "output-perturbation", "trust": "local"}
pytestmark = pytest.mark.usefixtures("logged_in_memory")


def federation(folder: Path, lines: Mapping[str, Sequence[str]], **declared: Mapping[str, Any]) -> Federation:
    """Let each party bring its people in; ``declared`` says what one declares otherwise."""
    fingerprints = {}
    for name, rows in lines.items():
        with isolated_root(folder / name):
            bring_in(folder / f"{name}-input", rows, name="clinic", party=name, **declared.get(name, {}))
            fingerprints[name] = fingerprint(identity_key(root_secret(current_layout())).public_key())
    return Federation(folder, {}, Roster(parties=fingerprints))


def people(heavy: int = 1) -> dict[str, list[str]]:
    """Return the rows of both parties' people; berlin's first has so many."""
    return {"berlin": visits([heavy, *COUNTS[1:]]), "lyon": visits(COUNTS, seed=1, first=len(COUNTS))}


# ── what is agreed on ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"kind": "ignore"}, r"\(column Patient\); lyon"),
        ({"most": MOST - 1}, rf"rows_per_person \(berlin: {MOST}; lyon: {MOST - 1}\)"),
    ],
)
def test_parties_of_another_unit_are_refused_before_anybody_reserves(
    declared: dict[str, Any], told: str, tmp_path: Path
) -> None:
    parties = federation(tmp_path, people(), lyon=declared)
    with pytest.raises(RefusedError, match=told):
        parties.run(**DESCENT)
    assert not parties.messages(Ask.RESERVE)


def signed_by(parties: Federation, party: str, description: Description) -> Signed:
    with isolated_root(parties.root(party)):
        key = identity_key(root_secret(current_layout()))
    return Signed.by(key, Purpose.DESCRIPTION, "", party, description.written())


def test_who_brings_the_descriptions_mixes_no_units(tmp_path: Path) -> None:
    """A coordinator that changes what a party has said, and one that a party helps, asking another to go on."""
    parties = federation(tmp_path, people())
    parties.lost = {(name, Ask.COMMIT) for name in PAIR}
    with pytest.raises(Exception, match="commit"):
        parties.run(**DESCENT)
    parties.lost = set()
    request = answered(parties, Ask.RESERVE)[0]
    berlin, lyon = request.descriptions
    said = Description.model_validate_json(lyon.body)
    assert (said.person, said.rows_per_person, said.rows) == ("Patient", MOST, len(COUNTS))
    for change in ({"person": ""}, {"person": "Nurse"}, {"rows_per_person": 1}, {"person": "", "rows_per_person": 1}):
        other = said.model_copy(update=change)
        unsigned = lyon.model_copy(update={"body": other.written()})
        for message, told in (
            (unsigned, "lacks its signature"),
            (signed_by(parties, "lyon", other), "the parties' rows differ in (unit|rows_per_person)"),
        ):
            for ask in (Ask.RESERVE, Ask.COMMIT, Ask.MASK):
                changed = request.model_copy(update={"ask": ask, "descriptions": (berlin, message)})
                answer = parties.transport("berlin", changed)
                assert answer is not None
                assert answer.status == "refused"
                assert re.search(told, answer.reason), answer.reason
        # Its own word, said of other rows of its root: it knows what its rows are now.
        everybody = [
            signed_by(parties, one.party, Description.model_validate_json(one.body).model_copy(update=change))
            for one in (berlin, lyon)
        ]
        answer = parties.transport("berlin", request.model_copy(update={"descriptions": tuple(everybody)}))
        assert answer is not None
        assert "differ from the request's description" in answer.reason


def test_what_is_said_of_rows_names_no_people(tmp_path: Path) -> None:
    """A run's name is a digest of it."""
    parties = federation(tmp_path, people(), berlin={"kind": "ignore"}, lyon={"kind": "ignore"})
    with isolated_root(parties.root("berlin")):
        said = Party("clinic", parties.roster)._description(
            Request(ask=Ask.DESCRIBE, config=TrainingConfig(dataset="study", trust="local"))
        )
    written = json.loads(said.written())
    assert (written["person"], written["rows_per_person"]) == ("", 1)
    assert Description.model_validate_json(said.written()) == said


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"trainer": "objective-perturbation", "trust": "local"}, "Hessian"),
        ({"trainer": "smo-output-perturbation", "trust": "local"}, "SmoOutputPerturbation"),
    ],
)
def test_what_takes_no_people_is_refused_before_anybody_reserves(
    config: dict[str, Any], told: str, tmp_path: Path
) -> None:
    parties = federation(tmp_path, people())
    with pytest.raises(ParameterError, match=told):
        parties.run(**config)
    assert not parties.messages(Ask.RESERVE)


# ── what is made ─────────────────────────────────────────────────────────────────────────────────────────────────────


def exactly(contribution: Any, *_: object) -> Any:
    """Noise would hide the bits that are compared."""
    return np.asarray(contribution).reshape(-1)


@pytest.mark.parametrize("trust", [pytest.param("local", marks=pytest.mark.nightly), "secagg"])
def test_people_are_trained_on_and_counted_where_they_are_held_out(
    trust: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held-out people are counted, each as one, to the thousandth that shares are cut to."""
    monkeypatch.setattr(stepwise, "noisy_contribution", exactly)
    monkeypatch.setattr(TrustedSummation, "release", lambda _self, _step, one, _law: np.sum(one, axis=0))
    parties = federation(tmp_path, people(MOST))
    made = parties.run(**DESCENT, trust=trust, evaluation=True, test_fraction=0.25)
    _, run, _ = LOGGED[0]
    (evaluation,) = run.plan.evaluations
    with isolated_root(parties.root("coordinator")):
        counts = ReleaseStore(current_layout()).read(evaluation.key)[1]["values"]
    held_out = sum(evaluation.setting.sizes)
    assert 10 < held_out < len(COUNTS)
    assert counts.sum() == pytest.approx(held_out, rel=5e-3)
    assert made.result.metrics["held_out_rows"] == held_out
    assert sum(run.plan.rows().values()) + held_out == 2 * len(COUNTS)
    for name in PAIR:
        assert 0.8 < parties.spent(name) <= 1.0
        assert parties.at(name, open_ledger).verify() == []


def made_by(parties: Federation) -> Any:
    made = parties.run(**DESCENT, trust="secagg", secure={"colluders": 1})
    with isolated_root(parties.root("coordinator")):
        return read_release(made.model).arrays()


def require_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("most", [pytest.param(1, marks=pytest.mark.nightly), MOST])
def test_people_with_one_row_each_give_the_numbers_of_rows(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepwise, "noisy_contribution", exactly)
    once = {"berlin": visits([1] * 40), "lyon": visits([1] * 40, seed=1, first=40)}
    ways: dict[str, dict[str, Any]] = {"people": {"most": most}, "rows": {"kind": "ignore"}}
    models = [
        made_by(federation(tmp_path / name, once, berlin=declared, lyon=declared)) for name, declared in ways.items()
    ]
    require_same(*models)


def test_people_weigh_at_parties_of_their_own_as_they_do_in_one_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    monkeypatch.setattr(stepwise, "noisy_contribution", exactly)
    apart = made_by(federation(tmp_path, people(MOST)))
    files = {name: tmp_path / f"{name}-input" / "train.csv" for name in PAIR}
    caps = {"epsilon_cap": 100.0, "delta_cap": 1e-4}
    schema = tmp_path / "lyon-input" / "schema.yaml"
    ingest(IngestRequest(name="clinic", format="csv", parties=files, schema_path=schema, visibility="private", **caps))
    prepared = prepare(**DESCENT, trust="secagg", secure={"colluders": 1}, delta=1e-5)
    made = prepared.make()
    (path,) = prepared.plan.paths().values()
    require_same(apart, read_release(made[path[-1]]).arrays())


def test_each_account_pays_for_a_person_who_is_in_two_and_the_card_says_what_that_is(tmp_path: Path) -> None:
    """Nobody compares who is where: the run is that of other people, and the loss of two records is said."""
    same = visits(COUNTS)
    parties = federation(tmp_path, {"berlin": same, "lyon": same})
    made = parties.run(**DESCENT, epsilon=1.0)
    assert all(0.8 < parties.spent(name) <= 1.0 for name in PAIR)
    config, run, columns = LOGGED[0]
    twice = epsilon_of_person(run.plan, 2)
    assert 2.0 < twice < 3.0
    with isolated_root(parties.root("coordinator")):
        note = run_report(config, run, columns).note
    assert f"is a group of two records, for whom it is ε = {twice + 5e-4:.3g}"[:-2] in note
    assert "The unit of protection is a person (column Patient)" in note
    assert f"{2 * len(COUNTS)} people of 2 parties" in note
    assert made.result.proved is not None
    assert made.result.proved.person == "Patient"


def test_an_archive_of_people_is_checked_by_what_the_parties_have_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties, given = federation(tmp_path, people()), {**DESCENT, "trust": "local"}
    made = parties.run(**given)
    members = taken_elsewhere(parties, made, given)

    def found(changes: dict[str, bytes]) -> dict[str, bool | None]:
        return {check.what: check.holds for check in verify_archive(Archive({**members, **changes}, "it")).checks}

    assert False not in found({}).values()
    assert found({})["parties"] is True
    signed = next(name for name in members if name.endswith("signed.json"))
    other = members[signed].replace(b'\\"person\\":\\"Patient\\"', b'\\"person\\":\\"\\"')
    assert other != members[signed]
    assert found({signed: other})["parties"] is False
    # What takes no people is not verified, whoever has signed it.
    monkeypatch.setattr("tasks.federation.protocol.require_people", _refuse)
    assert found({})["parties"] is False


def _refuse(*classes: type) -> None:
    raise ParameterError(f"{classes[0].__name__} takes no people")


# ── what is seen ─────────────────────────────────────────────────────────────────────────────────────────────────────


def opened(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer with what it packs: manifests as such, numbers by their length as well."""
    found = dict(message)
    if found["sent"] is not None:
        found["manifest"] = json.loads(unpacked(found["sent"]["manifest"]))
    if found["signed"] is not None:
        found["body (characters)"] = len(found["signed"]["body"])
    return {**found, "message (characters)": len(found["message"])}


def everything_seen(parties: Federation) -> dict[str, Value]:
    """Return all that a run lets be seen, by field: each answer, what is logged, each file outside private folders."""
    told = [
        field
        for number, (party, request, answer) in enumerate(parties.seen)
        for field in traces.fields_of(f"{number} {party} {request.ask}", opened(answer.model_dump(mode="json")))
    ]
    with isolated_root(parties.root("coordinator")):
        report = run_report(*LOGGED[0])
    logged = {name: getattr(report, name) for name in ("name", "facts", "params", "metrics", "note", "files")}
    told += traces.fields_of("logged", {**logged, "result": LOGGED[0][1].result.model_dump(mode="json")})
    ledgers = [
        field for name in PAIR for field in traces._database(f"{name} ledger", parties.root(name) / "ledger.sqlite")
    ]
    # By the order in which they are met, which is the same in every run. Numbers name nothing: a fraction of sixteen
    # digits looks like a name, and one of fifteen does not.
    texts = [value for _, value in (*told, *ledgers) if isinstance(value, str)]
    words = dict.fromkeys(word for text in texts for word in traces._RANDOM.findall(text))
    roles = {word: f"<{number}>" for number, word in enumerate(words)}
    seen: dict[str, Value] = {}
    files = [
        (f"{name} {field}", value)
        for name in (*PAIR, "coordinator")
        for field, value in traces._files(parties.layout(name))
    ]
    for name, value in sorted(((traces._canonical(name, roles), value) for name, value in (*told, *files)), key=_first):
        while name in seen:
            name += "′"
        seen[name] = traces._canonical(value, roles) if isinstance(value, str) else value
    return seen


def _first(field: tuple[str, Value]) -> str:
    return field[0]


def runs(folder: Path, heavy: int, config: Mapping[str, Any], times: int) -> Iterator[dict[str, Value]]:
    for number in range(times):
        parties = federation(folder / f"{heavy}-{number}", people(heavy), **{name: {"most": 64} for name in PAIR})
        parties.run(**config)
        yield everything_seen(parties)


def differing(folder: Path, config: Mapping[str, Any], times: int = 3) -> list[str]:
    """Return what differs where a person has 50 rows for one, but for numbers of noisy counts, which are clipped."""
    seen = [list(runs(folder, heavy, config, times)) for heavy in (1, 50)]
    assert len(seen[0][0]) > 300
    report = compare(seen[0], seen[1], delta=1e-5, confidence=0.99)
    return without_noise(report.differing)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(DESCENT, marks=pytest.mark.nightly),
        pytest.param({**DESCENT, "trust": "local"}, marks=pytest.mark.nightly),
        ALONE,
    ],
    ids=["secagg", "sums", "models"],
)
def test_nothing_that_leaves_a_party_says_how_many_rows_a_person_has(config: dict[str, Any], tmp_path: Path) -> None:
    """One person with 50 rows for one: answers, logs and files are the same but for noise, random names and times."""
    measured, folders = {**config, "evaluation": True, "test_fraction": 0.25}, map(str, itertools.count())
    assert differing_each_time(lambda: differing(tmp_path / next(folders), measured)) == []


def test_a_number_of_rows_in_an_answer_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a party says with each answer how many rows it holds."""
    honest = Party.answer

    def telling(party: Party, request: Request) -> Answer:
        stored = current_layout().datasets.rglob("*.parquet")
        rows = sum(pq.read_metadata(path).num_rows for path in stored)
        return honest(party, request).model_copy(update={"reason": str(rows)})

    monkeypatch.setattr(Party, "answer", telling)
    assert differing(tmp_path, ALONE, times=2)
