"""Runs over parties of their own, each with a root of its own: who pays, who sees what, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpalgos.parameters import ParameterError
from dpalgos.secure import primitives as keys
from dpalgos.secure import summation as stepwise
from dpalgos.secure.messages import Introduction, UnmaskRequest, numbers_digest
from dpalgos.secure.primitives import TooFewPartiesError
from flows.federated_training import chain_inline
from storage.errors import InputError, RefusedError, StorageError
from storage.layout import Layout
from storage.refs import Visibility
from storage.releases import ReleaseStore
from storage.secrets import party_secret, root_secret
from tasks.accounts.ledger import check_releases, open_ledger, restore_ledger
from tasks.accounts.reports import budget_report
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.exports.archive import Archive, export_run, read
from tasks.exports.verifying import verify_archive
from tasks.federation.coordinator import Federated, federate
from tasks.federation.messages import (
    Answer,
    Ask,
    Floors,
    Purpose,
    Request,
    Roster,
    Sent,
    Signed,
    fingerprint,
    identity_key,
    packed,
    unpacked,
)
from tasks.federation.party import Party
from tasks.planning.configuration import TrainingConfig
from tasks.release.door import open_release
from tasks.release.storing import read_release
from tasks.runtime import standing
from tasks.runtime.settings import current_layout, current_root, isolated_root
from tasks.tracking.model_files import load_model
from tasks.tracking.model_versions import find_model
from tasks.tracking.reporting import keep_run
from tasks.tracking.results import append_result
from tasks.tracking.runs import tracking_client
from tests.support.encoders import BOTH, encoder_run
from tests.support.nights import spanning
from tests.support.private_rows import CLASSES, DIMENSION, PrivateRows, write_rows

NAMES = ("berlin", "lyon", "turin")
CAP = 1.5


@dataclass
class Federation:
    """Three parties, each with its root, and the coordinator's."""

    folder: Path
    rows: dict[str, PrivateRows]
    roster: Roster
    at_party: dict[str, Roster] = field(default_factory=dict)
    lost: set[tuple[str, Ask]] = field(default_factory=set)
    meddle: Callable[[str, Request], Request] = lambda party, request: request
    seen: list[tuple[str, Request, Answer]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def root(self, party: str) -> Path:
        return self.folder / party

    def transport(self, party: str, request: Request) -> Answer | None:
        """Bring a request to a party, as text, and its answer back."""
        if (party, request.ask) in self.lost:
            return None
        asked = Request.model_validate_json(self.meddle(party, request).model_dump_json())
        with isolated_root(self.root(party)):
            said = Party("clinic", self.at_party.get(party, self.roster)).answer(asked)
        self.seen.append((party, request, said))
        return Answer.model_validate_json(said.model_dump_json())

    def run(self, *, measured_on: str | None = None, **config: Any) -> Federated:
        given = {"dataset": "study", "epsilon": 1.0, "delta": 1e-5, "evaluation": False, **config}
        with isolated_root(self.root("coordinator")):
            current_layout()
            return federate(
                TrainingConfig(**given),
                self.roster,
                self.transport,
                measured_on=measured_on,
                progress=self.told.append,
            )

    def at(self, party: str, look: Callable[[], Any]) -> Any:
        with isolated_root(self.root(party)):
            return look()

    def layout(self, party: str) -> Layout:
        return Layout(self.root(party))

    def spent(self, party: str) -> float:
        return float(self.at(party, lambda: budget_report("clinic"))["epsilon_spent"])

    def reserved(self, party: str) -> list[str]:
        return list(self.at(party, lambda: budget_report("clinic"))["reserved"])

    def messages(self, ask: Ask) -> list[str]:
        return [party for party, request, _ in self.seen if request.ask is ask]


def clinic(party: str, path: Path) -> IngestRequest:
    return IngestRequest(
        name="clinic",
        format="libsvm",
        parties={party: path},
        visibility=Visibility.PRIVATE,
        dimension=DIMENSION,
        classes=CLASSES,
        epsilon_cap=CAP,
        delta_cap=1e-4,
    )


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, PrivateRows], Roster]:
    """Let each party bring its rows in, once."""
    folder = tmp_path_factory.mktemp("parties")
    rows, fingerprints = {}, {}
    for number, name in enumerate(NAMES):
        rows[name] = write_rows(folder / f"{name}.txt", 120 + 30 * number, seed=number)
        with isolated_root(folder / name):
            ingest(clinic(name, rows[name].path))
            fingerprints[name] = fingerprint(identity_key(root_secret(current_layout())).public_key())
    return folder, rows, Roster(parties=fingerprints)


@pytest.fixture
def parties(
    ingested: tuple[Path, dict[str, PrivateRows], Roster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Federation:
    folder, rows, roster = ingested
    for name in NAMES:
        for one in (name, f"{name}-marks"):
            shutil.copytree(folder / one, tmp_path / one, symlinks=True)
    # One request after another: a root is an environment variable of the whole process here.
    monkeypatch.setattr("tasks.federation.coordinator.ThreadPoolExecutor", _OneByOne)
    # MLflow takes seconds in a fresh root; one test below looks at what is logged.
    monkeypatch.setattr("tasks.federation.coordinator.keep_run", lambda config, run, columns: run.result)
    return Federation(tmp_path, rows, roster)


class _OneByOne:
    def __init__(self, workers: int) -> None:
        del workers

    def __enter__(self) -> _OneByOne:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    map = staticmethod(map)


SECURE: dict[str, Any] = {"algorithm": "secagg-output-perturbation", "trust": "secagg"}
LOCAL: dict[str, Any] = {"trainer": "output-perturbation", "trust": "local"}


def summed(parties: Federation) -> dict[str, Any]:
    """Return what the parties' own vectors, each formed once more at its party, make together."""
    request = next(request for _, request, _ in parties.seen if request.ask is Ask.RESERVE)
    total: Any = 0
    for number, name in enumerate(NAMES):
        with isolated_root(parties.root(name)):
            asked = Party("clinic", parties.roster)._charged(request)
            release, shard, session = asked.release, asked.shard, asked.session
            algorithm, setting = cast(Any, release.build()), release.setting
            tolerance = cast(Any, release.trust_model()).tolerance(len(NAMES))
            with open_release(release, [shard]) as opened:
                rows, noise = opened.rows[0], opened.noises[0]
                total = total + stepwise.vector_of(algorithm, rows, setting, tolerance, number, noise)
    whole = stepwise.sum_of(algorithm, total, range(len(NAMES)), session.setting)
    return dict(stepwise.result_of(algorithm, [whole], session.setting).arrays())


def averaged(parties: Federation) -> dict[str, Any]:
    """Return the mean of the models that the parties have sent, by their rows."""
    sent = [answer for _, request, answer in parties.seen if request.ask is Ask.RELEASE]
    arrays = [answer.sent.opened("")[1] for answer in sent if answer.sent is not None]
    rows = [len(parties.rows[answer.party].labels) for answer in sent]
    return {name: np.average([one[name] for one in arrays], axis=0, weights=rows) for name in arrays[0]}


@pytest.mark.parametrize("config", [pytest.param(LOCAL, marks=pytest.mark.nightly), SECURE], ids=["local", "secagg"])
def test_each_party_pays_for_itself_and_the_model_is_of_all(parties: Federation, config: dict[str, Any]) -> None:
    made = parties.run(**config, epsilon=1.0)
    assert made.took_part == NAMES
    for name in NAMES:
        # At the cap's larger delta the run's (1, 1e-5) is a smaller epsilon.
        assert 0.8 < parties.spent(name) <= 1.0
        assert parties.reserved(name) == []
        assert parties.at(name, open_ledger).verify() == []
    _, arrays = parties.at("coordinator", lambda: ReleaseStore(current_layout()).read(made.model.key))
    expected = summed(parties) if made.trust == "secagg" else averaged(parties)
    assert arrays.keys() == expected.keys()
    assert all(np.allclose(arrays[name], expected[name], rtol=1e-12) for name in arrays)
    assert parties.at("coordinator", check_releases) == []
    # Asked again, everything is found; nobody pays twice, and nobody is asked for rows.
    before = len(parties.messages(Ask.MASK) + parties.messages(Ask.RELEASE))
    assert parties.run(**config) == made
    assert len(parties.messages(Ask.MASK) + parties.messages(Ask.RELEASE)) == before
    assert parties.spent("berlin") < 0.9


@pytest.mark.nightly
def test_the_coordinator_never_holds_a_row_or_secret_nor_a_party_anothers(parties: Federation) -> None:
    parties.run(**SECURE)
    secrets = [path.read_bytes() for name in NAMES for path in (parties.root(name) / "private").rglob("*.key")]
    assert len(secrets) >= 6
    said = b"".join(answer.model_dump_json().encode() for _, _, answer in parties.seen)
    for name in ("coordinator", *NAMES):
        held = b"".join(path.read_bytes() for path in parties.root(name).rglob("*") if path.is_file())
        for other, rows in parties.rows.items():
            if other != name:
                assert not any(needle in held or needle in said for needle in rows.needles()), (name, other)
    coordinators = b"".join(p.read_bytes() for p in parties.root("coordinator").rglob("*") if p.is_file())
    assert not any(secret in coordinators or secret in said for secret in secrets)


def taken_elsewhere(parties: Federation, made: Federated, config: dict[str, Any]) -> dict[str, bytes]:
    """Return the members of the run's archive, as the coordinator exports it."""

    def export() -> dict[str, bytes]:
        given = {"dataset": "study", "epsilon": 1.0, "delta": 1e-5, "evaluation": False, **config}
        append_result(TrainingConfig(**given), made.result)
        path = parties.folder / "run.zip"
        path.write_bytes(export_run(made.result.run_key)[0])
        return dict(read(path).members)

    return dict(parties.at("coordinator", export))


def test_a_sum_of_which_nothing_signed_is_left_is_neither_stored_nor_exported(parties: Federation) -> None:
    made = parties.run(**SECURE)
    layout, key = parties.layout("coordinator"), made.model.key
    (layout.round(key) / "evidence").unlink()
    with pytest.raises(InputError, match="--replicate"):
        taken_elsewhere(parties, made, SECURE)
    (signed,) = layout.round(key).glob("signed-*")
    kept = signed.read_bytes()
    signed.unlink()
    shutil.rmtree(layout.release(key))
    for _ in range(2):
        with pytest.raises(StorageError, match="signed-0"):
            parties.run(**SECURE)
        assert not layout.release(key).exists()
    signed.write_bytes(kept)
    assert parties.run(**SECURE).model == made.model
    assert taken_elsewhere(parties, made, SECURE)


def _resigned(one: dict[str, Any]) -> dict[str, Any]:
    """Return something signed by a key of the coordinator's own."""
    return Signed.by(Ed25519PrivateKey.generate(), Purpose.CHARGE, "", one["party"], one["body"]).model_dump()


def _other_body(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "body": "AAAAAAAAAAA=" + one["body"][12:]}


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "a charge is missing": lambda said: said["charges"].pop(),
    "a charge of other releases": lambda said: said["charges"].append(_other_body(said["charges"].pop())),
    "a charge twice": lambda said: said["charges"].append(said["charges"][0]),
    "a charge by another key": lambda said: said["charges"].append(_resigned(said["charges"].pop())),
    "a description of more rows": lambda said: said["descriptions"][0].update(
        body=said["descriptions"][0]["body"].replace('"rows":120', '"rows":99120')
    ),
    "another budget": lambda said: said["config"].update(epsilon=0.05),
    "another message": lambda said: said["messages"][0].append(_other_body(said["messages"][0].pop())),
    "no message": lambda said: said["messages"].clear(),
    "others took part": lambda said: said["took_part"].append("paris"),
    "another roster": lambda said: said["roster"]["parties"].update(berlin="0" * 64),
}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(LOCAL, marks=pytest.mark.nightly),
        SECURE,
        pytest.param(
            {"algorithm": "noisy-gd", "parameters": {"iterations": 2}, "trust": "local"}, marks=pytest.mark.nightly
        ),
    ],
    ids=["own releases", "secure sums", "noisy sums"],
)
def test_what_the_parties_have_signed_is_taken_elsewhere_and_checked(
    parties: Federation, config: dict[str, Any]
) -> None:
    made = parties.run(**config)
    members = taken_elsewhere(parties, made, config)

    def found(changes: dict[str, bytes]) -> dict[str, bool | None]:
        checks = verify_archive(Archive({**members, **changes}, "the coordinator")).checks
        return {check.what: check.holds for check in checks}

    sound = verify_archive(Archive(members, "the coordinator"))
    assert sound.holds, [check for check in sound.checks if check.holds is False]
    assert sound.epsilon == pytest.approx(1.0, rel=1e-3)
    assert found({})["parties"] is True
    for name, fingerprint_ in parties.roster.parties.items():
        assert any(name in who and fingerprint_[:16] in who for who in sound.unverified)
    signed = [name for name in members if name.endswith("signed.json")]
    assert signed
    for how, forge in FORGED.items():
        said = json.loads(members[signed[0]])
        forge(said)
        holds = found({signed[0]: json.dumps(said).encode()})
        assert holds["parties"] is False, (how, holds)
    without = Archive({name: data for name, data in members.items() if name not in signed}, "the coordinator")
    assert not verify_archive(without).holds
    # Numbers of the coordinator's own, in the place of those that follow from what the parties have signed.
    key = signed[0].split("/")[1]
    manifest, arrays = parties.at("coordinator", lambda: ReleaseStore(current_layout()).read(key))
    other = ReleaseStore(Layout(parties.folder / "forger").prepare())
    other.write(key, manifest, {name: array + 1 for name, array in arrays.items()})
    holds = found({f"releases/{key}/{name}": data for name, data in other.files(key).items()})
    # What a secure sum opens to is the coordinator's word, and said to be.
    assert holds["parties"] is (config is SECURE)
    assert any("the sums follow" in said for said in sound.unverified.values()) is (config is SECURE)


def test_one_refuses_and_all_get_back_what_they_reserved(parties: Federation) -> None:
    parties.at("turin", lambda: open_ledger().raise_cap("clinic", _cap(0.4), by="owner", why="less"))
    with pytest.raises(RefusedError, match="party turin"):
        parties.run(**SECURE)
    for name in NAMES:
        assert parties.spent(name) == 0.0
        assert parties.reserved(name) == []
    assert not parties.messages(Ask.COMMIT)
    assert not parties.messages(Ask.ADVERTISE)
    # At a budget that turin can pay, all go on.
    assert parties.run(**SECURE, epsilon=0.3).took_part == NAMES


def _cap(epsilon: float) -> Any:
    from storage.ledger.charges import Cap

    return Cap(epsilon, 1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("wanting", ["lyon", "coordinator"])
def test_what_one_of_all_will_not_be_able_to_keep_costs_nobody_anything(parties: Federation, wanting: str) -> None:
    """A party that cannot store its release, a coordinator that cannot log the model."""
    layout = parties.layout(wanting)
    if wanting == "coordinator":
        with isolated_root(layout.root):
            current_layout()
        (layout.artifacts / "study").write_text("")
    else:
        shutil.rmtree(layout.releases, ignore_errors=True)
        # Where nobody can write, not even who may write everywhere.
        layout.releases.symlink_to("/proc/self/task", target_is_directory=True)
    said = {"lyon": "lyon did not reserve", "coordinator": "Nothing was charged"}
    with pytest.raises(StorageError, match=said[wanting]):
        parties.run()
    if wanting == "lyon":
        layout.releases.unlink()
    assert [parties.spent(name) for name in NAMES] == [0.0, 0.0, 0.0]
    assert [parties.reserved(name) for name in NAMES] == [[], [], []]


def test_one_that_does_not_answer_in_time_costs_nobody_anything(parties: Federation) -> None:
    parties.lost = {("lyon", Ask.RESERVE)}
    with pytest.raises(StorageError, match="lyon"):
        parties.run(**LOCAL)
    assert [parties.reserved(name) for name in NAMES] == [[], [], []]
    parties.lost = set()
    assert parties.run(**LOCAL).took_part == NAMES


@pytest.mark.nightly
def test_what_is_reserved_cannot_be_spent_by_another_run(parties: Federation) -> None:
    parties.lost = {(name, Ask.COMMIT) for name in NAMES}
    dear: dict[str, Any] = {**LOCAL, "epsilon": 1.5}
    with pytest.raises(StorageError):
        parties.run(**dear)
    assert all(len(parties.reserved(name)) == 1 for name in NAMES)
    reserved = parties.spent("berlin")
    assert 1.0 < reserved < CAP
    with pytest.raises(RefusedError, match="berlin refuses"):
        parties.run(**SECURE)
    parties.lost = set()
    assert parties.run(**dear).took_part == NAMES
    assert parties.spent("berlin") == pytest.approx(reserved)


def test_a_party_lost_in_the_middle_is_done_without_as_far_as_is_tolerated(parties: Federation) -> None:
    parties.lost = {("lyon", Ask.MASK), ("lyon", Ask.UNMASK)}
    parties.roster = with_floors(parties, consistent_survivors=True)
    tolerant: dict[str, Any] = {**SECURE, "secure": {"dropouts": 1, "consistent_survivors": True}, "epsilon": 0.4}
    assert parties.run(**tolerant).took_part == ("berlin", "turin")
    # It comes back too late: its vector is not opened, and what was made stays.
    parties.lost = set()
    assert parties.run(**tolerant).took_part == ("berlin", "turin")


def test_a_party_killed_after_it_paid_sends_the_same_when_it_is_back(parties: Federation) -> None:
    parties.lost = {("lyon", Ask.MASK)}
    with pytest.raises(TooFewPartiesError):
        parties.run(**SECURE)
    parties.lost = set()
    assert parties.run(**SECURE).took_part == NAMES
    sent = [answer.message for party, request, answer in parties.seen if party == "berlin" and request.ask is Ask.MASK]
    assert len(sent) == 2
    assert len(set(sent)) == 1
    assert parties.spent("berlin") < 0.9


def test_a_coordinator_in_the_middle_is_found_out(parties: Federation) -> None:
    """It puts its own public keys in the place of the parties'; without the signatures it would see every vector."""

    def other_keys(party: str, request: Request) -> Request:
        if request.ask is not Ask.SHARE:
            return request
        introduction = Introduction.decode(request.message.encode())
        own = keys.public_key(bytes(32), introduction.session, 9)
        forged = Introduction(
            session=introduction.session,
            recipient=introduction.recipient,
            public_keys=dict.fromkeys(introduction.public_keys, own),
        )
        return request.model_copy(update={"message": forged.encode().decode()})

    parties.meddle = other_keys
    with pytest.raises(RefusedError, match="'lyon'"):
        parties.run(**SECURE)
    assert not parties.messages(Ask.MASK)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda request: {"descriptions": request.descriptions[:2]}, "roster names"),
        (lambda request: {"descriptions": (*request.descriptions[:2], request.descriptions[0])}, "roster names"),
        (
            lambda request: {
                "descriptions": tuple(
                    one.model_copy(update={"body": one.body.replace('"rows":', '"rows":9')})
                    for one in request.descriptions
                )
            },
            "lacks its signature",
        ),
        (lambda request: {"config": request.config.model_copy(update={"seed": 1})}, "seed"),
        (lambda request: {"config": request.config.model_copy(update={"trust": "central"})}, "trust central"),
        (lambda request: {"config": request.config.model_copy(update={"features": "onnx:e.onnx"})}, "encoder"),
    ],
)
def test_a_party_derives_the_run_itself_and_refuses_what_it_does_not_do(
    parties: Federation, change: Callable[[Request], dict[str, Any]], reason: str
) -> None:
    def changed(party: str, request: Request) -> Request:
        return request.model_copy(update=change(request)) if request.ask is Ask.RESERVE else request

    parties.meddle = changed
    with pytest.raises(RefusedError, match=reason):
        parties.run(**SECURE)
    assert all(parties.reserved(name) == [] for name in NAMES)


def test_nothing_is_drawn_for_what_was_not_committed(parties: Federation) -> None:
    """A coordinator that leaves reserving or committing out gets no message."""
    parties.lost = {(name, Ask.COMMIT) for name in NAMES}
    with pytest.raises(StorageError):
        parties.run(**SECURE)
    _, reserved, _ = next(one for one in parties.seen if one[1].ask is Ask.RESERVE)
    for ask in (Ask.RELEASE, Ask.ADVERTISE, Ask.SHARE, Ask.MASK, Ask.UNMASK):
        answer = parties.transport("berlin", reserved.model_copy(update={"ask": ask}))
        assert answer is not None
        assert answer.status == "refused"
        assert "not charged" in answer.reason
    assert not list((parties.root("berlin") / "private" / "parties").glob("*/rounds"))


@pytest.mark.nightly
def test_one_party_takes_part_in_one_session_with_the_same_noise(parties: Federation) -> None:
    """Another partner with other rows of the same size is another session: the same noise must not hide two sums."""
    parties.run(**SECURE)
    again = {"config": None}

    def another_session(party: str, request: Request) -> Request:
        config = request.config.model_copy(update={"dataset": "another"})
        return request.model_copy(update={**again, "config": config})

    parties.meddle = another_session
    given: dict[str, Any] = {"dataset": "another", "epsilon": 1.0, **SECURE}
    with pytest.raises(RefusedError, match="--replicate"):
        parties.run(**given)


def test_who_is_no_party_of_the_roster_does_not_serve(parties: Federation) -> None:
    strange = Roster(parties={**parties.roster.parties, "turin": "0" * 64})
    with isolated_root(parties.root("turin")), pytest.raises(InputError, match=r"line.*turin"):
        Party("clinic", strange)
    with isolated_root(parties.root("turin")):
        Party("clinic", parties.roster)


def test_what_goes_wrong_inside_is_for_the_party_alone(parties: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("row 17 holds 0.123457")

    monkeypatch.setattr("tasks.federation.party.make_release", broken)
    with pytest.raises(StorageError, match="log") as failed:
        parties.run(**LOCAL)
    assert "0.123457" not in str(failed.value)


def in_one_root(folder: Path, parties: Federation, **config: Any) -> dict[str, Any]:
    """Return the model that one root makes of the same rows without noise to speak of."""
    with isolated_root(folder / "together"):
        ingest(
            IngestRequest(
                name="study",
                format="libsvm",
                parties={name: parties.rows[name].path for name in NAMES},
                visibility=Visibility.PRIVATE,
                dimension=DIMENSION,
                classes=CLASSES,
                epsilon_cap=1e4,
                delta_cap=1e-4,
            )
        )
        chained = chain_inline(TrainingConfig(**{"dataset": "study", "delta": 1e-5, "evaluation": False, **config}))
        return dict(read_release(chained.models["all"][-1]).arrays())


DESCENT: dict[str, Any] = {"algorithm": "noisy-gd", "parameters": {"iterations": 3}, "trust": "secagg"}


@pytest.mark.parametrize("trust", ["secagg", pytest.param("local", marks=pytest.mark.nightly)])
def test_gradient_descent_over_parties_is_that_of_one_root(parties: Federation, trust: str) -> None:
    """Three secure sums of gradients; at a budget whose noise is below a thousandth, the model is one root's."""
    for name in NAMES:
        parties.at(name, lambda: open_ledger().raise_cap("clinic", _cap(1e4), by="owner", why="to compare"))
    given = {**DESCENT, "trust": trust, "epsilon": 900.0}
    made = parties.run(**given)
    arrays = parties.at("coordinator", lambda: ReleaseStore(current_layout()).read(made.model.key))[1]
    expected = in_one_root(parties.folder, parties, **given)
    assert all(np.allclose(arrays[name], expected[name], atol=2e-2) for name in expected)
    assert np.abs(expected["weights"]).max() > 0.2
    asked = Ask.MASK if trust == "secagg" else Ask.SUM
    assert [parties.messages(asked).count(name) for name in NAMES] == [3, 3, 3]
    assert parties.run(**given) == made
    assert len(parties.messages(asked)) == 9


@pytest.mark.nightly
def test_the_recommended_system_is_centred_trained_measured_and_logged(
    parties: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A basis, a trainer of many steps and held-out rows; the log is that of a run in one root."""
    monkeypatch.setattr("tasks.federation.coordinator.keep_run", keep_run)
    given: dict[str, Any] = {"trust": None, "evaluation": True, "parameters": {"iterations": 2, "step_size": 2.0}}
    made = parties.run(**given, epsilon=1.4)
    assert made.trust == "secagg"
    assert made.algorithm == "unitball"
    result = made.result
    assert result.measured_on == "held-out rows, noisy"
    assert {"accuracy", "accuracy_noise"} <= result.metrics.keys()
    for name in NAMES:
        # Held-out rows are others than those that train, so their counts cost the account nothing more.
        assert 0.8 < parties.spent(name) <= 1.4
    with isolated_root(parties.root("coordinator")):
        logged = find_model(current_root(), "study.unitball")
        assert logged.run_id == result.mlflow_run_id
        predicted = load_model(current_root(), logged).predict(parties.rows["lyon"].features)
        with tracking_client(current_root()) as client:
            run = client.get_run(logged.run_id)
        assert run.data.metrics["epsilon_spent"] == pytest.approx(result.epsilon_spent)
        assert run.data.metrics["accuracy"] == pytest.approx(result.accuracy)
    assert np.mean(predicted.astype(float) == parties.rows["lyon"].labels) > 0.7
    assert "each party has paid" in logged.card.lower()


@pytest.mark.nightly
def test_features_a_noisy_covariance_and_public_test_rows(parties: Federation) -> None:
    """A public map at every party, a basis from a secure sum, a model measured on public rows of the coordinator's."""
    measured = write_rows(parties.folder / "public.txt", 60, seed=9)
    request = IngestRequest(
        name="public", format="libsvm", path=measured.path, visibility=Visibility.PUBLIC, dimension=DIMENSION
    )
    parties.at("coordinator", lambda: ingest(request.model_copy(update={"classes": CLASSES})))
    given: dict[str, Any] = {"features": "signed-root", "projection": "analyze-gauss", "dimension": 3, **DESCENT}
    made = parties.run(**given, measured_on="public", epsilon=1.4)
    assert made.result.measured_on == "test rows"
    assert made.result.accuracy is not None
    assert parties.messages(Ask.MASK).count("lyon") == 4


@pytest.mark.nightly
def test_each_party_makes_the_encoder_and_the_map_beside_it_by_itself(parties: Federation) -> None:
    made = parties.run(**encoder_run((2, 3)), trust="secagg", epsilon=1.4)
    arrays = parties.at("coordinator", lambda: ReleaseStore(current_layout()).read(made.model.key))[1]
    assert arrays["weights"].shape[1] == BOTH

    def maps() -> list[dict[str, Any]]:
        """The one that is planned, and the one with more directions that it is a part of."""
        store = ReleaseStore(current_layout())
        stored = [one for one in (store.read(key)[1] for key in store.keys()) if "map1_map_kernels" in one]
        return sorted(stored, key=lambda one: one["map1_basis"].shape[1])

    first, *others = (parties.at(name, maps) for name in (*NAMES, "coordinator"))
    assert first[0]["map1_basis"].shape[1] == 4
    for other in others:
        assert all(np.array_equal(other[0][name], array) for name, array in first[0].items())


# ── a coordinator that does not follow the protocol ──────────────────────────────────────────────────────────────────


def answered(parties: Federation, ask: Ask, party: str = "berlin", place: int = -1) -> tuple[Request, Answer]:
    """Return a request of one kind, and what the party answered."""
    found = [(request, answer) for name, request, answer in parties.seen if (name, request.ask) == (party, ask)]
    return found[place]


def with_floors(parties: Federation, **floors: Any) -> Roster:
    """Return the roster as owners write it who ask for more, or for less, than they do by default."""
    return Roster(parties=parties.roster.parties, floors=Floors(**floors))


ASSUMED = {"dropouts": 1, "colluders": 1, "consistent_survivors": True}


@pytest.mark.parametrize(
    ("floors", "secure", "reason"),
    [
        ({}, {"colluders": 0}, "0 colluders of 3 parties"),
        ({"colluders": 2}, {"colluders": 1}, "requires 2"),
        ({}, ASSUMED, "--consistent-survivors"),
        ({"consistent_survivors": True, "survivors": 3}, ASSUMED, "2 of 3 parties"),
        ({}, {"dropouts": 1, "colluders": 1}, "--consistent-survivors"),
    ],
)
def test_a_fault_model_below_an_owners_floors_is_refused_before_anything_is_reserved(
    parties: Federation, floors: dict[str, Any], secure: dict[str, Any], reason: str
) -> None:
    """Who writes the plan would choose how little noise is enough, and how many sums of one step are opened."""
    theirs = with_floors(parties, **floors)
    parties.at_party = dict.fromkeys(NAMES, theirs)
    with pytest.raises((RefusedError, ParameterError), match=reason):
        parties.run(**SECURE, secure=secure)
    assert [parties.reserved(name) for name in NAMES] == [[], [], []]
    assert not parties.messages(Ask.COMMIT)


def test_an_owner_who_asks_for_less_says_so_in_its_roster_and_its_ledger(parties: Federation) -> None:
    parties.roster = with_floors(parties, consistent_survivors=True)
    parties.lost = {(name, Ask.COMMIT) for name in NAMES}
    with pytest.raises(StorageError):
        parties.run(**SECURE, secure=ASSUMED)
    (left,) = parties.at("lyon", lambda: open_ledger().reservations("clinic"))
    assert "assumed by its owner's consent" in left.plan.run


def test_as_many_colluders_are_tolerated_as_the_owners_ask_for(parties: Federation) -> None:
    parties.lost = {("lyon", Ask.RESERVE)}
    with pytest.raises(StorageError):
        parties.run(**SECURE)
    assert {one.config.secure.colluders for _, one, _ in parties.seen if one.ask is Ask.RESERVE} == {1}


def put_back(parties: Federation, party: str, saved: Path, part: str = ".") -> None:
    shutil.rmtree(parties.root(party) / part)
    shutil.copytree(saved / part, parties.root(party) / part, symlinks=True)


@pytest.mark.parametrize(
    ("trust", "part"),
    spanning(
        ["secagg", "local"],
        [pytest.param(".", id="the whole root"), pytest.param("private/parties", id="its notes alone")],
    ),
)
def test_a_folder_that_is_put_back_after_a_commitment_answers_nothing_twice(
    parties: Federation, trust: str, part: str
) -> None:
    """Its seeds are drawn, its pads used and its sums told: put back, it would use one pad for two vectors."""
    given, first = ({**DESCENT, "trust": "local"}, Ask.SUM) if trust == "local" else (SECURE, Ask.MASK)
    saved = parties.folder / "saved"

    def save(party: str, request: Request) -> Request:
        if party == "berlin" and request.ask is first and not saved.exists():
            shutil.copytree(parties.root("berlin"), saved, symlinks=True)
        return request

    parties.meddle = save
    parties.run(**given)
    put_back(parties, "berlin", saved, part)
    request, _ = answered(parties, first, place=0)
    said = parties.transport("berlin", request)
    assert said is not None
    assert said.status == "refused", said
    assert "older than its recorded answers" in said.reason or "answers were given from" in said.reason
    assert said.message == ""


def test_what_was_committed_before_an_older_ledger_was_accepted_is_not_answered(parties: Federation) -> None:
    saved = parties.folder / "saved"

    def save(party: str, request: Request) -> Request:
        if party == "berlin" and request.ask is Ask.MASK and not saved.exists():
            shutil.copytree(parties.root("berlin"), saved, symlinks=True)
        return request

    parties.meddle = save
    parties.run(**SECURE)
    put_back(parties, "berlin", saved)
    parties.at("berlin", lambda: restore_ledger("the disk was lost", None, None))
    said = parties.transport("berlin", answered(parties, Ask.MASK, place=0)[0])
    assert said is not None
    assert said.status == "refused", said
    assert "--replicate" in said.reason


def forged(sent: Sent, folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Sent:
    """Return a release with other arrays or another manifest, its digests in order."""
    manifest, arrays = sent.opened("the test")
    change(manifest, arrays)
    store = ReleaseStore(Layout(folder / str(next(_NUMBERS))).prepare())
    key = str(manifest["key"])
    store.write(key, manifest, arrays)
    files = store.files(key)
    return Sent(manifest=packed(files["manifest.json"]), arrays=packed(files["arrays.npz"]))


_NUMBERS = itertools.count()


def one_output_too_many(threshold: float) -> Callable[[dict[str, Any], dict[str, Any]], object]:
    """Return what the audit sent: a third class wins where w·x > t, and its cell of the matrix does not exist."""

    def change(_: dict[str, Any], arrays: dict[str, Any]) -> None:
        direction = np.linspace(0.6, 0.1, DIMENSION)
        arrays["weights"] = np.stack([np.zeros(DIMENSION), np.zeros(DIMENSION), direction])
        arrays["intercept"] = np.array([0.0, 0.0, -threshold])

    return change


def changed(name: str, value: object) -> Callable[[dict[str, Any], dict[str, Any]], object]:
    def change(_: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays[name] = np.full_like(arrays[name], value) if isinstance(value, float) else arrays[name].astype(value)

    return change


WRONG: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "an output too many, for all rows": one_output_too_many(-5.0),
    "an output too many, for no row": one_output_too_many(5.0),
    "no number": changed("weights", np.nan),
    "infinite": changed("intercept", np.inf),
    "beyond the bound": changed("weights", 1e300),
    "another type": changed("weights", "<f4"),
    "one array more": lambda _, arrays: arrays.update(extra=np.zeros(1)),
    "one array less": lambda _, arrays: arrays.pop("intercept"),
    "another kind": lambda manifest, _: manifest.update(artefact="kernel-model"),
    "no kind": lambda manifest, _: manifest.pop("artefact"),
    "another key": lambda manifest, _: manifest.update(key="0" * 64),
}


@pytest.mark.parametrize("config", [SECURE, pytest.param(LOCAL, marks=pytest.mark.nightly)], ids=["secagg", "local"])
def test_a_poisoned_model_is_refused_whatever_the_rows_are(
    parties: Federation, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    """A model that raises for some rows and not for others tells, without noise, whether such rows are there."""
    answers: dict[str, set[str]] = {}
    read: list[str] = []

    def poisoned(party: str, request: Request) -> Request:
        if not request.upstream:
            return request
        monkeypatch.setattr("tasks.release.door.rows_of", lambda *_: read.append(party))
        for wrong, change in WRONG.items():
            sent = forged(request.upstream[-1], parties.folder / "forged", change)
            again = request.model_copy(update={"upstream": (*request.upstream[:-1], sent)})
            with isolated_root(parties.root(party)):
                said = Party("clinic", parties.roster).answer(again)
            answers.setdefault(wrong, set()).add(said.status)
            assert "differs from the plan" in said.reason, (wrong, said.reason)
        monkeypatch.undo()
        raise KeyboardInterrupt

    parties.meddle = poisoned
    with pytest.raises(KeyboardInterrupt):
        parties.run(**config, evaluation=True)
    assert answers == {wrong: {"refused"} for wrong in WRONG}
    assert read == []


def test_a_server_chooses_what_rows_are_seen_through_once_and_in_the_planned_form(parties: Federation) -> None:
    """Any model of the planned form is measured with the planned noise; a second one would be a second release."""
    said: list[Answer] = []

    def another(party: str, request: Request) -> Request:
        if not request.upstream:
            return request
        for weight in (0.5, 0.25):
            sent = forged(request.upstream[-1], parties.folder / "forged", changed("weights", weight))
            with isolated_root(parties.root(party)):
                asked = request.model_copy(update={"upstream": (*request.upstream[:-1], sent)})
                said.append(Party("clinic", parties.roster).answer(asked))
        raise KeyboardInterrupt

    parties.meddle = another
    with pytest.raises(KeyboardInterrupt):
        parties.run(**SECURE, evaluation=True)
    assert [one.status for one in said] == ["done", "refused"]
    assert "may use only that one" in said[1].reason


@pytest.mark.parametrize(
    ("ask", "stands_then"),
    [
        (
            Ask.RESERVE,
            r"no party was charged; their reservations for run ([0-9a-f]+) remain: .*",
        ),
        (Ask.RELEASE, r"the charges to the parties' accounts for run [0-9a-f]+ remain: run it again: .*"),
    ],
)
def test_a_run_that_is_stopped_says_what_the_parties_have_charged(
    ask: Ask, stands_then: str, parties: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next start says that they were charged before."""
    monkeypatch.setattr("tasks.runtime.standing._record", standing._Record())
    said: list[str] = []

    def stopped(party: str, request: Request) -> Request:
        if request.ask is ask:
            said.append(standing.stands())
            raise KeyboardInterrupt
        return request

    parties.meddle = stopped
    with pytest.raises(KeyboardInterrupt):
        parties.run(**LOCAL)
    assert re.fullmatch(stands_then, said[0])
    before = "already charged for this run, at no further cost"
    assert not any(before in line for line in parties.told)
    parties.meddle = lambda party, request: request
    parties.run(**LOCAL)
    assert any(before in line for line in parties.told) == (ask is Ask.RELEASE)


def test_a_poisoned_release_of_a_party_does_not_become_the_model(parties: Federation) -> None:
    transport = parties.transport
    for wrong, change in {**WRONG, "another's key": lambda manifest, _: manifest.update(dataset="0" * 32)}.items():

        def poisoned(party: str, request: Request, change: Any = change) -> Answer | None:
            said = transport(party, request)
            if party != "lyon" or said is None or said.sent is None:
                return said
            return said.model_copy(update={"sent": forged(said.sent, parties.folder / "forged", change)})

        parties.transport = poisoned  # type: ignore[method-assign]  # the transport
        with pytest.raises(RefusedError, match="lyon"):
            parties.run(**LOCAL)
        assert len(list((parties.root("coordinator") / "releases").glob("*/arrays.npz"))) == 1, wrong
    parties.transport = transport  # type: ignore[method-assign]  # the transport
    assert parties.run(**LOCAL).took_part == NAMES


def test_what_is_sent_again_is_answered_alike_or_refused(parties: Federation) -> None:
    """Old requests, other noise, other sums, another's release: nothing new leaves a party, and nothing is charged."""
    parties.run(**DESCENT)
    spent = [parties.spent(name) for name in NAMES]
    for request, before in (
        answered(parties, ask) for ask in (Ask.RESERVE, Ask.COMMIT, Ask.SHARE, Ask.MASK, Ask.UNMASK)
    ):
        again = parties.transport("berlin", request)
        assert again is not None
        assert (again.status, again.message) == (before.status, before.message), request.ask

    mask, _ = answered(parties, Ask.MASK)
    unmask, _ = answered(parties, Ask.UNMASK)
    other = packed(bytes(len(unpacked(mask.sum_before))))
    fewer = {"dropouts": 1, "consistent_survivors": True}
    for request, reason in (
        (mask.model_copy(update={"sum_before": other}), "a step has one sum"),
        (mask.model_copy(update={"sum_before": packed(b"12345")}), "whole numbers"),
        (mask.model_copy(update={"block": 3}), "sessions"),
        (mask.model_copy(update={"release": 7}), "reads none of its rows"),
        (mask.model_copy(update={"ask": Ask.SUM}), "cannot be formed in this way"),
        (mask.model_copy(update={"ask": Ask.RELEASE}), "a sum over all parties"),
        (mask.model_copy(update={"config": mask.config.model_copy(update={"epsilon": 0.9})}), "not charged"),
        # The same rows and budget, shared out as if one might be lost: other noise, another release.
        (mask.model_copy(update={"config": with_secure(mask.config, fewer)}), "not charged"),
        (unmask.model_copy(update={"message": other_survivors(unmask)}), "survivor"),
    ):
        said = parties.transport("berlin", request)
        assert said is not None
        assert said.status == "refused", (reason, said)
        assert reason in said.reason
    assert [parties.spent(name) for name in NAMES] == spent
    assert all(parties.reserved(name) == [] for name in NAMES)


def test_no_party_adds_up_more_steps_than_it_paid(parties: Federation) -> None:
    """Noise hides each sum, and the account has paid for as many as the algorithm has."""
    parties.run(algorithm="noisy-gd", parameters={"iterations": 1}, trust="local")
    asked, (_, first) = parties.messages(Ask.SUM), answered(parties, Ask.SUM)
    assert asked == list(NAMES)
    request, _ = answered(parties, Ask.SUM)
    assert first.signed is not None
    said = parties.transport("berlin", request.model_copy(update={"step": 1, "sum_before": first.signed.body}))
    assert said is not None
    assert said.status == "refused", said
    assert "1 sum" in said.reason
    assert said.signed is None


def with_secure(config: TrainingConfig, secure: dict[str, Any]) -> TrainingConfig:
    return TrainingConfig.model_validate({**config.model_dump(), "secure": secure})


def other_survivors(request: Request) -> str:
    """Return a request to unmask the same step without one of those whose vectors the sum holds."""
    asked = UnmaskRequest.decode(request.message.encode())
    fewer = dataclasses.replace(
        asked,
        survivors=asked.survivors[:-1],
        dropped=asked.survivors[-1:],
        numbers=numbers_digest(asked.survivors[:-1]),
    )
    return fewer.encode().decode()


def test_no_sum_is_opened_for_two_sets_of_survivors(parties: Federation) -> None:
    """A server that forgets whose vectors it had, and asks without one of them: two sums would differ by that party."""
    parties.roster = with_floors(parties, consistent_survivors=True)
    tolerant: dict[str, Any] = {**SECURE, "secure": {"dropouts": 1, "consistent_survivors": True}}
    made = parties.run(**tolerant)
    coordinator = parties.root("coordinator")
    shutil.rmtree(next(path for path in coordinator.rglob(made.model.key) if path.parent.name == "releases"))
    shutil.rmtree(next(path for path in coordinator.rglob(made.model.key) if path.parent.name == "rounds"))
    parties.lost = {("lyon", Ask.MASK)}
    with pytest.raises(RefusedError, match="step 0"):
        parties.run(**tolerant)


def test_other_plans_for_other_parties_end_before_anything_is_charged(parties: Federation) -> None:
    """What one was made to set aside for a run that nobody else knows, its owner takes back."""

    def other(party: str, request: Request) -> Request:
        config = request.config.model_copy(update={"epsilon": 1.2})
        return (
            request.model_copy(update={"config": config}) if (party, request.ask) == ("lyon", Ask.RESERVE) else request
        )

    parties.meddle = other
    with pytest.raises(RefusedError, match="lyon derives"):
        parties.run(**SECURE)
    assert not parties.messages(Ask.COMMIT)
    assert [len(parties.reserved(name)) for name in NAMES] == [0, 1, 0]
    (left,) = parties.at("lyon", lambda: open_ledger().reservations("clinic"))
    parties.at("lyon", lambda: open_ledger().give_back("clinic", left.name, why="by its owner"))
    parties.meddle = lambda party, request: request
    assert parties.run(**SECURE).took_part == NAMES


def test_a_party_that_is_left_out_after_it_reserved_has_sent_nothing(parties: Federation) -> None:
    parties.lost = {("lyon", Ask.COMMIT)}
    with pytest.raises(StorageError, match="lyon"):
        parties.run(**SECURE)
    assert not parties.messages(Ask.ADVERTISE)
    (left,) = parties.at("lyon", lambda: open_ledger().reservations("clinic"))
    parties.at("lyon", lambda: open_ledger().give_back("clinic", left.name, why="by its owner"))
    assert parties.spent("lyon") == 0.0
    with pytest.raises(RefusedError, match=r"reservation.*charged"):
        parties.at("berlin", lambda: open_ledger().give_back("clinic", left.name, why="by its owner"))
    parties.lost = set()
    assert parties.run(**SECURE).took_part == NAMES


@pytest.mark.nightly
def test_rows_that_changed_begin_another_run(parties: Federation) -> None:
    parties.lost = {(name, Ask.COMMIT) for name in NAMES}
    with pytest.raises(StorageError):
        parties.run(**SECURE)
    old, _ = answered(parties, Ask.RESERVE)
    more = write_rows(parties.folder / "more.txt", 130, seed=7)
    parties.at("berlin", lambda: ingest(clinic("berlin", more.path)))
    parties.lost = set()
    for ask in (Ask.RESERVE, Ask.COMMIT, Ask.MASK):
        said = parties.transport("berlin", old.model_copy(update={"ask": ask}))
        assert said is not None
        assert "differ from the request's description" in said.reason
    assert parties.run(**SECURE, epsilon=0.4).took_part == NAMES


@pytest.mark.parametrize(
    "config",
    [
        SECURE,
        {"algorithm": "noisy-gd", "parameters": {"iterations": 2}, "trust": "local"},
        pytest.param(DESCENT, marks=pytest.mark.nightly),
    ],
    ids=["secure sum", "noisy sums", "secure sums"],
)
def test_a_party_that_dies_at_any_step_goes_on_and_pays_once(parties: Federation, config: dict[str, Any]) -> None:
    """Each request is handled and its answer lost, once at each party; the model is the one of an undisturbed run."""
    fresh = parties.folder / "undisturbed"
    for name in NAMES:
        # Made at the first charge otherwise, in each copy another.
        parties.at(name, partial(party_secret, parties.layout(name), name))
    for name in (*NAMES, *(f"{name}-marks" for name in NAMES)):
        shutil.copytree(parties.folder / name, fresh / name, symlinks=True)
    expected = Federation(fresh, parties.rows, parties.roster).run(**config)
    dead: set[tuple[str, str, str]] = set()
    transport = parties.transport

    def dying(party: str, request: Request) -> Answer | None:
        answer, died = transport(party, request), (party, request.ask, request.message + request.sum_before)
        if party == "lyon" and died not in dead:
            dead.add(died)
            return None
        return answer

    parties.transport = dying  # type: ignore[method-assign]  # the transport
    made = None
    for _ in range(40):
        try:
            made = parties.run(**config)
            break
        except (StorageError, TooFewPartiesError):
            continue
    assert made is not None
    assert len(dead) > 5
    assert made.model.key == expected.model.key
    kept = [parties.at("coordinator", lambda: read_release(made.model)), None]
    with isolated_root(fresh / "coordinator"):
        kept[1] = read_release(expected.model)
    assert all(np.array_equal(kept[0].arrays()[name], kept[1].arrays()[name]) for name in kept[0].arrays())
    assert parties.spent("lyon") <= 1.0
