"""A run taken elsewhere: what the archive holds, what checking it proves, and what no change of it survives."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import itertools
import json
import math
import pkgutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpalgos.trainers.objective_perturbation import ObjectivePerturbation
from storage.errors import DamagedError, InputError, StorageError
from storage.layout import Layout
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.exports import verifying
from tasks.exports.archive import CHARGES, RUN, Archive, export_run, pack, read, release_member
from tasks.exports.verifying import verify, verify_archive
from tasks.planning.plans import RunIdentity
from tasks.tracking.results import append_result
from tests.support.chains import configured, followed, ingest_private
from tests.support.command_line import CommandLine
from tests.support.encoders import encoder_run
from tests.support.private_rows import PrivateRows

Exported = tuple[Path, Path, PrivateRows]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Return an archive of a run on private rows, the root it comes from, and these rows."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(folder / "root"))
        patch.setenv("UNITBALL_LEDGER_MARK", str(folder / "marks"))
        rows = ingest_private(folder / "rows", allow_idealised=True, soft_limit=2.0)
        config: dict[str, Any] = {"algorithm": "fed-dpdr-dpml", "dimension": 2, "evaluation": True}
        result = followed(**config)
        append_result(configured(**config), result)
        assert result.evaluations
        data, key, _ = export_run(result.run_key[:10])
        assert key == result.run_key
        (folder / "run.zip").write_bytes(data)
    return folder / "run.zip", folder / "root", rows


def outcomes(path: Path, **options: Any) -> dict[str, bool | None]:
    return {check.what: check.holds for check in verify(path, **options).checks}


def changed(path: Path, to: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Write the archive anew with other members, signed by somebody else's key."""
    members = dict(read(path).members)
    change(members)
    to.write_bytes(pack(members, Ed25519PrivateKey.generate()))
    return to


def test_all_that_can_be_checked_elsewhere_holds(exported: Exported, root: Path) -> None:
    archive, _, _ = exported
    found = verify(archive, signer=read(archive).signer)
    assert found.holds
    assert {check.what for check in found.checks if check.holds} >= {
        "signature",
        "members",
        "digests",
        "identities",
        "run",
        "guarantees",
        "prices",
        "epsilon",
        "cap",
        "chain of entries",
    }
    # Of another machine's ledger, of audits that nobody made and of parties that there are not nothing is said.
    assert {check.what for check in found.checks if check.holds is None} == {"ledger", "audit", "parties", "numbers"}
    assert found.epsilon == pytest.approx(1.0, rel=1e-3)
    (said,) = (check.detail for check in found.checks if check.what == "cap")
    assert "of 2 (a soft limit; the cap is 3)" in said
    assert outcomes(archive, signer="0" * 64)["signature"] is False


def test_under_its_own_root_the_entries_are_compared(
    exported: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive, home, _ = exported
    monkeypatch.setenv("UNITBALL_ROOT", str(home))
    monkeypatch.setenv("UNITBALL_LEDGER_MARK", str(home.parent / "marks"))
    assert outcomes(archive)["ledger"] is True

    def cheaper(members: dict[str, bytes]) -> None:
        charges = json.loads(members[CHARGES])
        charges["entries"][0]["recorded_at"] = "2020-01-01T00:00:00.000+00:00"
        members[CHARGES] = json.dumps(charges).encode()

    assert outcomes(changed(archive, tmp_path / "changed.zip", cheaper))["ledger"] is False


def test_no_row_secret_or_place_is_in_it(exported: Exported) -> None:
    archive, home, rows = exported
    layout = Layout(home)
    secrets = [path.read_bytes() for path in layout.private.rglob("*.key")]
    assert len(secrets) >= 3
    with zipfile.ZipFile(archive) as file:
        whole = b"".join(file.read(name) for name in file.namelist())
    for needle in [*rows.needles(), *secrets, *(secret.hex().encode() for secret in secrets), str(home).encode()]:
        assert needle not in whole


def test_each_changed_byte_of_a_member_is_noticed(exported: Exported, tmp_path: Path) -> None:
    """Without the signing key no member can be changed, added, removed or exchanged."""
    archive, _, _ = exported
    with zipfile.ZipFile(archive) as file:
        members = {name: file.read(name) for name in file.namelist()}
    names = list(members)

    def written(content: dict[str, bytes]) -> Path:
        with zipfile.ZipFile(tmp_path / "changed.zip", "w") as file:
            for name, data in content.items():
                file.writestr(name, data)
        return tmp_path / "changed.zip"

    assert read(written(members)).members
    for name in names:
        for other in (members[name][:-1] + bytes([members[name][-1] ^ 1]), members[name] + b" ", None):
            if name == "signature.json" and other == members[name] + b" ":
                continue  # The same signature.
            content = {one: data for one, data in {**members, name: other}.items() if data is not None}
            with pytest.raises(DamagedError):
                read(written(content))
    with pytest.raises(DamagedError, match="added"):
        read(written({**members, "more.txt": b"more"}))


# ── whose word the unit is ──


def as_people(members: dict[str, bytes]) -> None:
    """State that rows are people: nothing in an archive tells a record of one from a record of the other."""
    run, charges = json.loads(members[RUN]), json.loads(members[CHARGES])
    run["identity"]["dataset"]["person"] = run["proved"]["person"] = "patient"
    identity = RunIdentity.model_validate(run["identity"])
    run |= {"identity": identity.model_dump(mode="json"), "run_key": identity.key}
    for entry in charges["entries"]:
        if entry["kind"] == "account":
            entry["content"] = json.dumps({**json.loads(entry["content"]), "unit": "person"})
    members[RUN], members[CHARGES] = json.dumps(run).encode(), json.dumps(charges).encode()


def test_a_rows_epsilon_that_is_stated_as_a_persons_is_said_to_be_the_signers_word(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever signs can state it, so what is derived here names no unit, and the unit whose word it is."""
    ingest_private(tmp_path / "rows", group_size=1)
    result = followed(algorithm="noisy-gd", trust="central")
    append_result(configured(algorithm="noisy-gd", trust="central"), result)
    data, _, _ = export_run(result.run_key)
    (tmp_path / "run.zip").write_bytes(data)
    stated = changed(tmp_path / "run.zip", tmp_path / "people.zip", as_people)
    unlike = changed(tmp_path / "run.zip", tmp_path / "unlike.zip", _person_in_the_proof_alone)
    monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / "elsewhere"))
    for archive, unit, unknown in (
        (tmp_path / "run.zip", "row", "how many rows a person has"),
        (stated, "person (column patient)", "that the column names people"),
    ):
        found = verify(archive)
        assert found.holds, [one for one in found.checks if one.holds is False]
        assert found.unit == unit
        checks = {check.what: check for check in found.checks}
        assert checks["unit"].basis == "stated by the signer"
        assert "Checked here" in checks["unit"].detail
        assert unknown in checks["unit"].detail.split("Not in the archive")[1]
        # What is derived on this machine says nothing that it does not know.
        assert not any(word in checks["epsilon"].detail for word in ("patient", "person", "row"))
        (beyond,) = found.unverified.values()
        assert ("person (patient)" if unit != "row" else "how many rows each person has") in beyond
    assert outcomes(unlike)["unit"] is False


def _person_in_the_proof_alone(members: dict[str, bytes]) -> None:
    _run(members, lambda run: run["proved"].update(person="patient"))


# ── every field of every manifest, of the run and of the ledger's entries ────────────────────────────────────────────

Place = tuple[str | int, ...]
_FREE = {
    # Texts for people, and what the accountant notes for itself: nothing that is said hangs on them.
    "label", "diagnostics", "run", "key_ids", "totals", "loss", "recharge", "disjoint_from", "disjoint_people",
    "idealised_allowed",
    # What a release is made of is compared by the ledger alone, where a release is made again.
    "made_of",
    "left", "filter", "spent_before", "earlier", "reserved", "recorded_at", "subject", "account", "digest", "previous",
    # What was measured and how a run came about is the signer's word, and not said.
    "accuracy", "measured_on", "classes", "confusion", "roc", "calibration", "split", "claim", "sound_counterpart",
    "many_classes", "predicts_only", "positive", "seconds", "releasing_seconds", "mlflow_run_id", "prefect_flow_run_id",
}  # fmt: skip


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield where something stands in a document, whole branches included; of a list, the first and the last."""
    if isinstance(value, dict | list):
        for name in value if isinstance(value, dict) else sorted({0, len(value) - 1} & set(range(len(value)))):
            yield (*place, name)
            yield from places(value[name], (*place, name))


def at(value: Any, place: Place) -> Any:
    for name in place:
        value = value[name]
    return value


def mutants(value: Any, place: Place, others: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield a document with one field of it changed, and how."""
    *above, last = place
    before = at(value, place)
    zero = type(before)() if before is not None else 0
    changes = {"nulled": None, "NaN": math.nan, "infinite": -math.inf, "zeroed": zero, "halved": _halved(before)}
    for number, other in enumerate(others):
        with contextlib.suppress(LookupError, TypeError):
            changes[f"swapped {number}"] = at(other, place)
    for how, change in changes.items():
        if not (type(change) is type(before) and change == before):
            mutant = copy.deepcopy(value)
            at(mutant, tuple(above))[last] = change
            yield how, mutant
    mutant = copy.deepcopy(value)
    del at(mutant, tuple(above))[last]
    yield "removed", mutant
    if isinstance(last, str):
        mutant = copy.deepcopy(value)
        at(mutant, tuple(above))["more"] = before
        yield "unknown", mutant


def _halved(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value / 2 if isinstance(value, int | float) else value


def resealed(members: Mapping[str, bytes], name: str, body: dict[str, Any]) -> dict[str, bytes]:
    """Return the members with a manifest changed, and every digest that somebody without the ledger's key can mend."""
    forged, key = dict(members), name.split("/")[1]
    arrays = forged[release_member(key, "arrays.npz")]
    text = json.dumps(body["manifest"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(text.encode() + b"\0" + arrays).hexdigest()
    charges = json.loads(forged[CHARGES])
    for row in charges["entries"]:
        if row["kind"] == "output" and row["subject"] == key:
            row["content"] = json.dumps({"digest": digest})
    forged[CHARGES] = json.dumps(charges).encode()
    body = {**body, "release": digest}
    body.pop("digest")
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    forged[name] = json.dumps({**body, "digest": hashlib.sha256(text.encode()).hexdigest()}).encode()
    return forged


@pytest.fixture
def derived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what depends on its arguments alone, and takes long, be computed once for thousands of archives."""
    known: dict[Any, Any] = {}

    def once(place: str, key: Callable[..., Any]) -> None:
        owner, name = place.rsplit(".", 1)
        function = getattr(pkgutil.resolve_name(owner), name)

        def remembered(*arguments: Any, **named: Any) -> Any:
            asked = (name, key(*arguments, **named))
            if asked not in known:
                known[asked] = function(*arguments, **named)
            return known[asked]

        monkeypatch.setattr(place, remembered)

    once("tasks.release.storing.whole_promise", tuple)
    once("tasks.exports.verifying.proved_of", lambda plan: plan.model_dump_json())
    once("tasks.exports.verifying.installed", lambda: 0)
    for name in ("prices", "decide"):
        once(f"tasks.accounts.pricing.AccountingPolicy.{name}", lambda *of, **named: repr((of, named)))
    # The root's own ledger, which knows nothing of the run.
    once("tasks.exports.verifying.open_ledger_database", lambda *_: 0)


def verdict(members: Mapping[str, bytes]) -> tuple[Any, ...] | None:
    """Return what is said of an archive that somebody else has signed; None where it is refuted."""
    try:
        found = verify_archive(Archive(members, "somebody else"))
    except (InputError, StorageError):
        return None
    said = [(check.what, check.holds) for check in found.checks]
    return (found.run, found.algorithm, found.dataset, found.epsilon, found.delta, said) if found.holds else None


def _reads_nothing(members: dict[str, bytes]) -> None:
    """Every release but one says that it reads no rows, and the run states what is left."""
    names = [name for name in members if name.endswith("manifest.json")]
    for name in names[:-1]:
        body = json.loads(members[name])
        if "post_processing" not in body["manifest"]:
            body["manifest"]["reads_rows"] = False
            members.update(resealed(members, name, body))
    _run(members, lambda run: run["proved"].update(epsilon=0.05))


@pytest.mark.usefixtures("root", "derived_once")
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "all"])
def test_no_change_of_any_field_makes_the_verdict_say_something_else(exported: Exported, every: bool) -> None:
    """By night each field in each way; by day one in fifteen of these, in turn."""
    members = dict(read(exported[0]).members)
    sound = verdict(members)
    assert sound is not None
    survived: dict[str, set[str]] = {}
    met = tried = 0

    def attempt(name: str, place: Place, how: str, forged: Mapping[str, bytes]) -> None:
        nonlocal met, tried
        met += 1
        if not every and met % 15:
            return
        tried += 1
        if (said := verdict(forged)) is not None:
            assert said == sound, f"{name} {place} {how}: {said}"
            survived.setdefault(".".join(map(str, place)), set()).add(how)

    bodies = {name: json.loads(data) for name, data in members.items() if name.endswith("manifest.json")}
    for number, (name, body) in enumerate(bodies.items()):
        # Where releases of a kind stand beside each other one of them is the next.
        others = [[*bodies.values()][(number + 1) % len(bodies)]["manifest"]]
        for place in places(body["manifest"]):
            for how, manifest in mutants(body["manifest"], place, others):
                attempt(name, place, how, resealed(members, name, {**body, "manifest": manifest}))
    run = json.loads(members[RUN])
    for place in places(run):
        for how, mutant in mutants(run, place, ()):
            attempt(RUN, place, how, {**members, RUN: json.dumps(mutant).encode()})
    charges = json.loads(members[CHARGES])
    rows = [{**row, "content": json.loads(row["content"])} for row in charges["entries"]]
    for number, row in enumerate(rows):
        for place in places(row):
            for how, mutant in mutants(row, place, [rows[number - 1], rows[(number + 1) % len(rows)]]):
                stored = [*charges["entries"]]
                stored[number] = mutant | ({"content": json.dumps(mutant["content"])} if "content" in mutant else {})
                forged = {**members, CHARGES: json.dumps({**charges, "entries": stored}).encode()}
                attempt(CHARGES, place, how, forged)
    print(f"{tried} archives, of which {sum(map(len, survived.values()))} say the same")
    # Accounts of the first version name neither; what is assumed of them is what this one has.
    for named, free in (("content.relation", {"removed"}), ("content.deltas", {"removed", "zeroed"})):
        survived[named] = survived.get(named, set()) - free
    said = {
        place: how for place, how in survived.items() if how and not (_FREE | {"diagnostics"}) & set(place.split("."))
    }
    print(said)
    assert not {place: how for place, how in said.items() if not place.startswith("config_")}
    assert tried > (2000 if every else 180)


@pytest.mark.usefixtures("root", "derived_once")
def test_a_field_that_is_said_twice_is_refused(exported: Exported) -> None:
    """Whoever reads the first and whoever reads the last would read another release."""
    members = dict(read(exported[0]).members)
    for name in (RUN, CHARGES, *(name for name in members if name.endswith("manifest.json"))):
        for field in json.loads(members[name]):
            doubled = members[name].decode().replace("{", f'{{"{field}": 0, ', 1).encode()
            assert verdict({**members, name: doubled}) is None, (name, field)


def _entry(members: dict[str, bytes], kind: str, change: Callable[[dict[str, Any]], None]) -> None:
    charges = json.loads(members[CHARGES])
    row = next(row for row in charges["entries"] if row["kind"] == kind)
    content = json.loads(row["content"])
    change(content)
    row["content"] = json.dumps(content)
    members[CHARGES] = json.dumps(charges).encode()


def _smaller_loss(content: dict[str, Any]) -> None:
    content["guarantee"]["losses"][0] = {"kind": "pure-epsilon", "epsilon": 0.001}


def _lower_price(content: dict[str, Any]) -> None:
    for cost in content["costs"].values():
        cost["epsilon"] /= 2


def _run(members: dict[str, bytes], change: Callable[[dict[str, Any]], None]) -> None:
    run = json.loads(members[RUN])
    change(run)
    members[RUN] = json.dumps(run).encode()


def _nothing_spent(content: dict[str, Any]) -> None:
    content["details"]["spent_after"] = 0.0


def _half_epsilon(run: dict[str, Any]) -> None:
    run["proved"]["epsilon"] /= 2


def _forget_a_release(members: dict[str, bytes]) -> None:
    run = json.loads(members[RUN])
    forgotten = run["evaluations"].pop()
    members[RUN] = json.dumps(run).encode()
    del members[release_member(forgotten, "manifest.json")], members[release_member(forgotten, "arrays.npz")]


def _swap_arrays(members: dict[str, bytes]) -> None:
    one, other, *_ = sorted(name for name in members if name.endswith("arrays.npz"))
    members[one], members[other] = members[other], members[one]


def _without_output(members: dict[str, bytes]) -> None:
    charges = json.loads(members[CHARGES])
    charges["entries"] = [row for row in charges["entries"] if row["kind"] != "output"]
    members[CHARGES] = json.dumps(charges).encode()


def _reordered(members: dict[str, bytes]) -> None:
    charges = json.loads(members[CHARGES])
    charges["entries"].reverse()
    members[CHARGES] = json.dumps(charges).encode()


@pytest.mark.parametrize(
    ("forge", "fails"),
    [
        (lambda members: _entry(members, "charge", _smaller_loss), {"guarantees", "prices"}),
        (lambda members: _entry(members, "plan", _lower_price), {"prices"}),
        (lambda members: _entry(members, "plan", lambda plan: plan["releases"].pop()), {"prices"}),
        (lambda members: _entry(members, "plan", lambda plan: plan["details"].update(spent_after=99.0)), {"cap"}),
        (lambda members: _entry(members, "account", lambda account: account.update(unit="person")), {"prices"}),
        (lambda members: _entry(members, "output", lambda output: output.update(digest="0" * 64)), {"digests"}),
        (lambda members: _run(members, _half_epsilon), {"epsilon"}),
        (_forget_a_release, {"run"}),
        (_reads_nothing, {"identities", "epsilon"}),
        (lambda members: _run(members, lambda run: run.update(proved=None)), {"epsilon"}),
        (lambda members: _run(members, lambda run: run.update(run_key="0" * 64)), {"run"}),
        (lambda members: _run(members, lambda run: run["identity"].update(target=[0.05, 1e-5])), {"run"}),
        (lambda members: _entry(members, "plan", _nothing_spent), {"cap"}),
        (_swap_arrays, {"digests"}),
        (_without_output, {"digests"}),
        (_reordered, {"chain of entries"}),
        (lambda members: members.update({"rows.csv": b"1,2"}), {"members"}),
    ],
)
def test_whoever_signs_a_changed_archive_with_another_key_is_still_caught(
    exported: Exported,
    root: Path,
    tmp_path: Path,
    forge: Callable[[dict[str, bytes]], None],
    fails: set[str],
) -> None:
    archive, _, _ = exported
    forged = changed(archive, tmp_path / "forged.zip", forge)
    found = outcomes(forged)
    assert fails <= {what for what, holds in found.items() if holds is False}
    assert read(forged).signer != read(archive).signer
    if not fails:
        # What is consistent in itself, such as a run that names fewer releases, is told by the key alone.
        assert outcomes(forged, signer=read(archive).signer)["signature"] is False


def test_the_guarantee_is_the_one_derived_here(exported: Exported, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the installed code proves less than was charged, the check fails: it is no reading of the manifest."""
    archive, _, _ = exported
    proper = ObjectivePerturbation.guarantee

    def dearer(self: Any, setting: Any) -> Any:
        found = proper(self, setting)
        return type(found)(found.losses * 2, found.neighbours, found.numerics, found.assumptions)

    monkeypatch.setattr(ObjectivePerturbation, "guarantee", dearer)
    assert outcomes(archive)["guarantees"] is False


def test_what_is_no_run_and_no_archive_is_said(commands: CommandLine, tmp_path: Path) -> None:
    commands("export", "abc", "-o", tmp_path / "x.zip").refused(2, "too short")
    commands("export", "abcdef12", "-o", tmp_path / "x.zip").refused(2, "no run")
    commands("verify", tmp_path / "none.zip").refused(2, "no file")
    (tmp_path / "text.zip").write_text("text")
    commands("verify", tmp_path / "text.zip").refused(2, "not an archive")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("a.txt", "a")
    commands("verify", tmp_path / "other.zip").refused(1, "not an archive")
    (tmp_path / "signed.zip").write_bytes(pack({"a.txt": b"a"}, Ed25519PrivateKey.generate()))
    commands("verify", tmp_path / "signed.zip").refused(2, "run.json")


def test_from_one_command_to_the_other(
    exported: Exported, commands: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, home, _ = exported
    run = json.loads(read(archive).members[RUN])["run_key"]
    made = commands.succeeds("export", run[:8], "--out", tmp_path / "run.zip", "--root", home)
    assert (tmp_path / "run.zip").read_bytes() == archive.read_bytes(), "equal runs, equal bytes"
    report = commands.succeeds("verify", tmp_path / "run.zip", "--signer", made["signer"], "--root", tmp_path / "other")
    assert report["holds"]
    failed = commands("verify", tmp_path / "run.zip", "--signer", "ab" * 32)
    assert failed.code == 1
    assert "FAILS" in failed.out


def test_nothing_is_read_beyond_the_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.exports.archive._MOST_BYTES", 1000)
    (tmp_path / "bomb.zip").write_bytes(pack({"zeros": bytes(10_000)}, Ed25519PrivateKey.generate()))
    with pytest.raises(InputError, match="1,000 bytes"):
        read(tmp_path / "bomb.zip")


def test_a_run_of_people_is_checked_as_one(root: Path, tmp_path: Path) -> None:
    """And not where its account is said to be of rows, or its releases are said to be of people with other rows."""
    lines = [f"{row % 80},{row % 7 / 10},{row % 2}" for row in range(200)]
    (tmp_path / "visits.csv").write_text("\n".join(["Patient,x,y", *lines]) + "\n")
    columns = ["{name: Patient, type: person, rows_per_person: 3}", "{name: x, type: numeric, range: [0, 1]}"]
    columns += ['{name: y, type: label, classes: ["0", "1"]}']
    (tmp_path / "visits.yaml").write_text("columns:\n" + "".join(f"  - {one}\n" for one in columns))
    caps: dict[str, Any] = {"epsilon_cap": 5.0, "delta_cap": 1e-4}
    paths: dict[str, Any] = {"path": tmp_path / "visits.csv", "schema_path": tmp_path / "visits.yaml"}
    ingest(IngestRequest(name="visits", format="csv", **paths, **caps))
    config: dict[str, Any] = {"algorithm": "noisy-gd", "parties": 1, "epsilon": 1.0}
    result = followed("visits", **config)
    append_result(configured("visits", **config), result)
    archive = tmp_path / "run.zip"
    archive.write_bytes(export_run(result.run_key[:10])[0])
    checked = {check.what: check for check in verify(archive).checks}
    assert not [what for what, check in checked.items() if check.holds is False]
    assert "one record is a person (column Patient), declared" in checked["unit"].detail

    def of_rows(members: dict[str, bytes]) -> None:
        _entry(members, "account", lambda account: account.pop("unit"))

    def of_group(members: dict[str, bytes]) -> None:
        _entry(members, "account", lambda account: account.update(group_size=2))

    def of_others(members: dict[str, bytes]) -> None:
        _run(members, lambda run: run["identity"]["dataset"].update(rows_per_person=9))

    for forge, fails in ((of_rows, {"prices"}), (of_group, {"prices"}), (of_others, {"run", "guarantees"})):
        found = outcomes(changed(archive, tmp_path / f"{forge.__name__}.zip", forge))
        assert fails <= {what for what, holds in found.items() if holds is False}


@pytest.mark.nightly
def test_a_run_behind_the_encoder_is_checked_as_one(root: Path, tmp_path: Path) -> None:
    """Its map is public and costs nothing: it is in the archive, and what is proved of the model is derived there."""
    ingest_private(tmp_path / "rows", 60)
    config: dict[str, Any] = {"trust": "central", **encoder_run((2, 3))}
    result = followed(**config)
    append_result(configured(**config), result)
    archive = tmp_path / "run.zip"
    archive.write_bytes(export_run(result.run_key[:10])[0])
    verified = verify(archive)
    assert not [check for check in verified.checks if check.holds is False]
    assert verified.epsilon == pytest.approx(1.0, abs=1e-3)
    run = json.loads(read(archive).members[RUN])
    arrays = [np.load(io.BytesIO(read(archive).members[release_member(key, "arrays.npz")])) for key in run["releases"]]
    assert [one for one in arrays if "map1_map_kernels" in one.files], "its weights"


def test_arrays_are_compared_as_their_numbers_are() -> None:
    """Whole arrays at once, with the outcome of one number after another."""
    numbers = [0.0, -0.0, 1.0, 1.0 + 9e-6, 1.0 + 2e-5, -1.0, 5e-13, 2e-12, 1e300, math.inf, -math.inf, math.nan]
    arrays = [*map(np.array, numbers), np.array(1), np.array(1, np.uint8), np.array(2), np.array(True), np.array("1")]
    arrays += [np.array([1.0, 2.0]), np.array([[1.0, 2.0]]), np.array([1.0, 2.1]), np.zeros(0)]
    for one, other in itertools.product(arrays, repeat=2):
        expected = verifying._equal(one.tolist(), other.tolist())
        assert verifying._same_arrays({"a": one}, {"a": other}) == expected, (one, other)
    assert not verifying._same_arrays({"a": arrays[0]}, {"b": arrays[0]})
