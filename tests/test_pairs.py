"""Capabilities in pairs: which test has two of them at once, and a small one for each pair that has no other.

Fourteen capabilities make 91 pairs. Two meet where one configuration, or one root, can hold both. A pair that cannot
meet is refused before anything is charged; why stands beside it, and its test is the refusal.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import unitball
from dpalgos.parameters import ParameterError
from dpalgos.sentences import coded
from storage.errors import InputError, RefusedError, StorageError
from tasks.accounts.ledger import restore_ledger
from tasks.accounts.reports import budget_report
from tasks.exports.archive import export_run
from tasks.exports.verifying import verify
from tasks.federation.coordinator import Federated
from tasks.host.cluster import security
from tasks.runtime.settings import current_layout, isolated_root
from tasks.tracking.results import RunResult, append_result
from tests.support.chains import charges, configured, digests, followed, ingest_private
from tests.support.command_line import CommandLine
from tests.support.nights import by_night
from tests.support.object_store import running_object_store, use_object_store
from tests.support.postgresql import PostgreSQL
from tests.support.stating import stating
from tests.support.untraced import untraced
from tests.tasks.federation import test_federation as rows_of_parties
from tests.tasks.federation import test_people as people_of_parties
from tests.tasks.federation.test_federation import Federation, _OneByOne, ingested, parties
from tests.tasks.test_people import COUNTS, bring_in, visits

__all__ = ["ingested", "parties"]

Config = dict[str, Any]

SETTINGS: dict[str, Config] = {
    "people": {},
    "nights": {"horizon": 3, "trainer": "ftrl"},
    "secure sums": {"trust": "secagg"},
    "deadlines": {"deadline": 8.0},
    "tuning": {"tune": {"clip": [1.0, 0.5]}},
    "weights": {"class_weight": "balanced"},
    "thresholds": {"evaluation": True, "roc": True, "aim": "balanced"},
}
"""What a configuration says; that rows are of people is the data set's."""
PLACES = ("federation", "exports", "restore", "PostgreSQL", "object store", "Dask", "estimators")
CAPABILITIES = (*SETTINGS, *PLACES)

Pair = frozenset[str]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let deadlines pass without waiting: what is made in time is stored at once."""
    now = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None)
    monkeypatch.setattr("tasks.release.deadlines.time", now)


def pair(*both: str) -> Pair:
    assert len(set(both)) == 2, both
    return frozenset(both)


CANNOT_MEET: dict[Pair, tuple[str, str]] = {
    pair("nights", "deadlines"): (
        "`deadline` do not apply to a `horizon`",
        "a night that misses its instant would be made up for by the next one, so that which night brings a sum would "
        "tell of its rows",
    ),
    pair("nights", "tuning"): (
        "`tune` and `tuned_on` do not apply to a `horizon`",
        "a candidate is chosen once, and a horizon's sums are released every night",
    ),
    pair("nights", "thresholds"): (
        "holds out no rows",
        "all rows of a horizon train, each in one night, so none is left to count scores of",
    ),
    pair("secure sums", "tuning"): (
        "all candidates are visible",
        "private selection hides the candidates that lose, and the server of a secure sum sees them all",
    ),
    pair("federation", "nights"): ("horizon:", "who arrives in which night is one catalogue's to say"),
    pair("federation", "deadlines"): ("deadline:", "an answer's time on the way is nobody's to bound"),
    pair("federation", "tuning"): ("tune.*:", "selection needs one curator who sees all candidates"),
}
"""What the refusal says, and why."""

# An estimator is fitted on rows that are all there, by whoever holds them.
NO_PARAMETER = {
    "nights": "horizon",
    "secure sums": "trust",
    "deadlines": "deadline",
    "tuning": "tune",
    "federation": "roster",
}
"""Capabilities that an estimator has no parameter for: what it would be called."""

_MEETING, _AFTER = "test_two_settings_meet_or_are_refused", "test_a_run_is_exported_and_charged_again_after_a_restore"
_SERVERS = "test_a_run_is_the_same_wherever_rows_ledger_and_work_lie"
_OF_PEOPLE = "test_an_estimator_of_people_has_weights_and_survives_a_restore"
SHOWN_BY = {
    **{pair(*both): _MEETING for both in itertools.combinations(SETTINGS, 2)},
    **{pair(after, one): _AFTER for one in SETTINGS for after in ("exports", "restore")},
    pair("exports", "restore"): _AFTER,
    **{pair("federation", one): "test_parties_of_their_own_take_it_or_refuse" for one in SETTINGS},
    pair("federation", "exports"): "test_what_the_parties_have_signed_is_taken_elsewhere_and_checked",
    pair("federation", "restore"): "test_what_was_committed_before_an_older_ledger_was_accepted_is_not_answered",
    pair("federation", "PostgreSQL"): "test_a_party_keeps_its_rows_and_ledger_where_it_likes",
    pair("federation", "object store"): "test_a_party_keeps_its_rows_and_ledger_where_it_likes",
    pair("federation", "Dask"): "test_a_federation_has_no_workers_of_dask",
    **{pair("estimators", one): "test_an_estimator_has_no_such_parameter" for one in NO_PARAMETER},
    pair("estimators", "thresholds"): "test_a_threshold_is_chosen_by_an_aim_and_its_margin_includes_the_choice",
    **{pair("estimators", one): _OF_PEOPLE for one in ("people", "weights", "restore", "exports")},
    **{
        pair("estimators", one): "test_an_estimator_of_people_charges_the_ledger_wherever_it_lies"
        for one in ("PostgreSQL", "object store", "Dask")
    },
    **{pair(*both): _SERVERS for both in itertools.combinations(("PostgreSQL", "object store", "Dask"), 2)},
    **{
        pair(place, other): _SERVERS
        for place in ("PostgreSQL", "object store", "Dask")
        for other in (*SETTINGS, "exports", "restore")
    },
}
"""The table of pairs."""


def test_each_pair_has_a_test() -> None:
    assert set(SHOWN_BY) == {pair(*both) for both in itertools.combinations(CAPABILITIES, 2)}
    assert len(SHOWN_BY) == 91
    texts = (path.read_text("utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    assert set(SHOWN_BY.values()) <= {name for text in texts for name in re.findall(r"def (test_\w+)", text)}


def bring(names: Pair | set[str], folder: Path) -> None:
    """Bring private rows in, of people where the pair says so."""
    if "people" in names:
        bring_in(folder / "input", visits(COUNTS), name="clinic", epsilon_cap=3.0)
    else:
        ingest_private(folder / "input", count=400)


def asked(names: Pair | set[str]) -> Config:
    """Return one configuration of several capabilities."""
    both: Config = {"parties": 2}
    if "nights" not in names:
        both["algorithm"] = "noisy-gd"
    if "tuning" in names and "secure sums" not in names:
        both["trust"] = "central"
    for name in names:
        both |= SETTINGS.get(name, {})
    if {"nights", "weights"} <= names:
        # Nights have no noisy counts of classes to be balanced by.
        both["class_weight"] = {"1": 0.5}
    return both


def spent() -> float:
    return float(budget_report("clinic")["epsilon_spent"] or 0.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("both", itertools.combinations(SETTINGS, 2), ids=" and ".join)
def test_two_settings_meet_or_are_refused(both: tuple[str, str], root: Path, tmp_path: Path) -> None:
    """What runs is charged once, whoever asks again; what is refused is not charged."""
    names = pair(*both)
    bring(names, tmp_path)
    if names in CANNOT_MEET:
        with pytest.raises((ParameterError, RefusedError, ValueError)) as refused:
            followed("clinic", **asked(names))
        assert re.search(CANNOT_MEET[names][0], " ".join(str(refused.value).split()))
        assert charges() == []
        return
    result = followed("clinic", **asked(names))
    charged, stored = charges(), digests()
    assert 0 < (result.epsilon_spent or 0.0) <= 1.0 + 1e-9
    assert result.proved is not None
    _shows(names, result)
    assert followed("clinic", **asked(names)).run_key == result.run_key
    assert charges() == charged
    assert digests() == stored


def _shows(names: Pair, result: RunResult) -> None:
    """Check that a run has what its pair is about."""
    assert result.proved is not None
    assumed = {code.partition("?")[0] for code in result.proved.assumptions}
    assert bool(result.proved.person) is ("people" in names)
    assert bool(assumed & {"record-in-one-night", "person-in-one-night"}) is ("nights" in names)
    assert ("colluders" in assumed) is ("secure sums" in names)
    assert (coded("deadline", seconds="8", miss="1e-09") in result.proved.assumptions) is ("deadlines" in names)
    assert ("secret-candidates" in assumed) is ("tuning" in names)
    assert ("auc" in result.metrics) is ("thresholds" in names)


@contextlib.contextmanager
def rolled_back(root: Path, folder: Path) -> Iterator[None]:
    """Put the ledger back to what it was before, as a back-up would, and accept that."""
    saved = folder / "saved"
    saved.mkdir()
    for name in ("ledger.sqlite", "ledger.head"):
        shutil.copy(root / name, saved / name)
    yield
    for one in saved.iterdir():
        shutil.copy(one, root / one.name)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_is_exported_and_charged_again_after_a_restore(name: str, root: Path, tmp_path: Path) -> None:
    """Whatever it was: an older ledger spends nothing until it is accepted, and nothing is refilled by that."""
    bring({name}, tmp_path)
    config = asked({name})
    with rolled_back(root, tmp_path):
        result = followed("clinic", **config)
        before = spent()
    with pytest.raises((StorageError, RefusedError), match=r"older|restored"):
        followed("clinic", **config)
    restore_ledger("the disk was lost", None, None)
    assert spent() >= before
    if name == "nights":
        with pytest.raises(RefusedError, match="--replicate 1"):
            followed("clinic", **config)
        config["replicate"] = 1
        result = followed("clinic", **config)
    else:
        assert followed("clinic", **config).run_key == result.run_key
    assert spent() > before
    append_result(configured("clinic", **config), result)
    archive = tmp_path / "run.zip"
    archive.write_bytes(export_run(result.run_key[:10])[0])
    assert [check for check in verify(archive).checks if check.holds is False] == []


@pytest.mark.parametrize("name", by_night(SETTINGS, {"people", "secure sums"}))
def test_parties_of_their_own_take_it_or_refuse(
    name: str, parties: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.federation.coordinator.keep_run", lambda config, run, columns: run.result)
    names = pair("federation", name)
    if name == "people":
        parties = people_of_parties.federation(tmp_path / "people", people_of_parties.people())
    config = {"algorithm": "noisy-gd", "parameters": {"iterations": 2}, **SETTINGS[name]}
    if name in ("nights", "tuning"):
        config = {**asked({name})}
        del config["parties"]
    if names in CANNOT_MEET:
        with pytest.raises(RefusedError, match=CANNOT_MEET[names][0]):
            parties.run(**config)
        assert {parties.spent(one) for one in parties.roster.parties} == {0.0}
        return
    made: Federated = parties.run(**config)
    assert set(made.took_part) == set(parties.roster.parties)
    assert all(parties.spent(one) > 0 for one in made.took_part)


@pytest.mark.parametrize("name", NO_PARAMETER)
def test_an_estimator_has_no_such_parameter(name: str) -> None:
    """Its rows are all there, and in one process: nights, parties and instants are of ``unitball.train``."""
    estimators: tuple[Any, ...] = (unitball.PrivateClassifier, unitball.PrivateRegressor)
    for estimator in estimators:
        assert NO_PARAMETER[name] not in inspect.signature(estimator).parameters
        with pytest.raises(TypeError, match=NO_PARAMETER[name]):
            estimator(**{NO_PARAMETER[name]: 1})


def fitted_on_people(root: Path, **given: Any) -> Any:
    """Return a classifier fitted on rows of which three are a person's, in an account that a root keeps."""
    random = np.random.default_rng(0)
    labels = np.arange(240) % 2
    rows = random.normal(size=(240, 3)) * 0.3 + labels[:, None] - 0.5
    with contextlib.suppress(InputError):
        unitball.open_account("wards", epsilon=3.0, delta=1e-4, root=root, people=True)
    model = unitball.PrivateClassifier(
        epsilon=1.0, delta=1e-5, account="wards", root=root, bounds=(-2, 2), classes=[0, 1], rows_per_person=4, **given
    )
    return model.fit(rows, labels, groups=np.arange(240) // 3)


def test_an_estimator_of_people_has_weights_and_survives_a_restore(root: Path, tmp_path: Path) -> None:
    unitball.open_account("wards", epsilon=3.0, delta=1e-4, root=root, people=True)
    with rolled_back(root, tmp_path):
        first = fitted_on_people(root, class_weight={1: 0.5})
        spent = 3.0 - first.remaining_budget()
        assert "for a person" in str(first.guarantee_)
        # A fit is charged like any release, and is no run of the results, of which exports are made.
        with pytest.raises(InputError, match=r"^no run"):
            export_run(first.charges_["key"][0][:10])
    with pytest.raises(
        (StorageError, InputError), check=stating(bound="high-water mark", way_out="unitball ledger restore")
    ):
        fitted_on_people(root, class_weight={1: 0.5})
    restore_ledger("the disk was lost", None, None)
    # The rows came in after the back-up: they are another version, and their fit another release.
    again = fitted_on_people(root, class_weight={1: 0.5})
    assert 3.0 - again.remaining_budget() > spent


# ── where a server is needed, by night ───────────────────────────────────────────────────────────────────────────────


def at_root(root: Path, function: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """Call a function in whichever process this is, on a root."""
    os.environ["UNITBALL_ROOT"] = str(root)
    return function(*args, **given)


@dataclass
class Servers:
    """Where rows, ledger and work lie."""

    root: Path
    folder: Path
    database: PostgreSQL | None = None
    client: Client | None = None

    @classmethod
    @contextlib.contextmanager
    def running(cls, places: set[str], root: Path, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Servers]:
        with contextlib.ExitStack() as stack:
            servers = cls(root, folder)
            if "PostgreSQL" in places:
                servers.database = stack.enter_context(PostgreSQL.running())
                servers._create()
                patch.setenv("UNITBALL_LEDGER", servers.database.url("ledger"))
            if "object store" in places:
                use_object_store(patch, stack.enter_context(running_object_store(folder / "log")), "pairs")
            if "Dask" in places:
                own = security(current_layout())
                stack.enter_context(untraced())
                kind: dict[str, Any] = {"protocol": "tls", "security": own, "dashboard_address": None}
                cluster = stack.enter_context(LocalCluster(n_workers=1, threads_per_worker=1, **kind))
                servers.client = stack.enter_context(Client(cluster, security=own))
            yield servers

    def call(self, function: Callable[..., Any], *args: Any, **given: Any) -> Any:
        """Call a function where the work is done."""
        if self.client is None:
            return function(*args, **given)
        return self.client.submit(at_root, self.root, function, *args, **given, pure=False).result(timeout=300)

    def _create(self) -> None:
        assert self.database is not None
        self.database.run("createdb", "-h", str(self.database.place), "-U", "unitball", "ledger")

    @contextlib.contextmanager
    def rolled_back(self) -> Iterator[None]:
        """As :func:`rolled_back`, of a ledger on PostgreSQL by its own tools."""
        if self.database is None:
            with rolled_back(self.root, self.folder):
                yield
            return
        where = ("-h", str(self.database.place), "-U", "unitball")
        dump = str(self.database.data / "saved.sql")
        self.database.run("pg_dump", *where, "-d", "ledger", "-f", dump)
        heads = {path: path.read_bytes() for path in self.root.rglob("ledger.head")}
        yield
        self.database.run("dropdb", *where, "--force", "ledger")
        self._create()
        self.database.run("psql", *where, "-d", "ledger", "-q", "-f", dump)
        for path, head in heads.items():
            path.write_bytes(head)


def comparable(result: RunResult) -> tuple[Any, ...]:
    return result.run_key, result.epsilon_spent, result.delta_spent, str(result.proved), sorted(result.metrics)


ON_SERVERS = [
    pytest.param(place, marks=[pytest.mark.nightly, *[pytest.mark.postgresql] * ("PostgreSQL" in place)])
    for place in (
        ("PostgreSQL",),
        ("object store",),
        ("Dask",),
        ("PostgreSQL", "object store"),
        ("PostgreSQL", "Dask"),
        ("object store", "Dask"),
    )
]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("places", ON_SERVERS, ids=" and ".join)
def test_a_run_is_the_same_wherever_rows_ledger_and_work_lie(
    places: tuple[str, ...], name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Charged once, exported, and charged again after an older ledger was put back: as on one disk."""
    config = asked({name})
    with Servers.running(set(places), root, tmp_path, monkeypatch) as servers:
        bring({name}, tmp_path)
        with servers.rolled_back():
            result = servers.call(followed, "clinic", **config)
            _shows(frozenset({name}), result)
            charged = charges()
            assert charged
            assert comparable(servers.call(followed, "clinic", **config)) == comparable(result)
            assert charges() == charged
            append_result(configured("clinic", **config), result)
            archive = tmp_path / "run.zip"
            archive.write_bytes(export_run(result.run_key[:10])[0])
            assert [check for check in verify(archive).checks if check.holds is False] == []
            before = spent()
        with pytest.raises((StorageError, RefusedError), match=r"older|restored"):
            servers.call(followed, "clinic", **config)
        restore_ledger("the disk was lost", None, None)
        assert spent() >= before
        if name == "nights":
            config["replicate"] = 1
        assert (servers.call(followed, "clinic", **config).run_key == result.run_key) is (name != "nights")
        assert spent() > before


@pytest.mark.parametrize("places", ON_SERVERS[:3], ids=" and ".join)
def test_an_estimator_of_people_charges_the_ledger_wherever_it_lies(
    places: tuple[str, ...], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Servers.running(set(places), root, tmp_path, monkeypatch) as servers:
        first = servers.call(fitted_on_people, root)
        again = servers.call(fitted_on_people, root)
        assert np.array_equal(first.coef_, again.coef_)
        assert first.remaining_budget() == again.remaining_budget()
        assert first.set_params(delta=1e-4).remaining_budget() < 3.0


@pytest.mark.parametrize("places", ON_SERVERS[:2], ids=" and ".join)
def test_a_party_keeps_its_rows_and_ledger_where_it_likes(
    places: tuple[str, ...], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two has its root on a server of its own, the other on its disk."""
    with pytest.MonkeyPatch.context() as patch, Servers.running(set(places), root, tmp_path, patch) as servers:
        own = {name: os.environ[name] for name in ("UNITBALL_LEDGER", "UNITBALL_OBJECTS") if name in os.environ}

        @contextlib.contextmanager
        def at_its_place(place: Path) -> Iterator[None]:
            with isolated_root(place):
                os.environ.update(own if place.name == "berlin" else {})
                yield

        # The environment, which says where a root is, belongs to the whole process: one party after the other.
        monkeypatch.setattr("tasks.federation.coordinator.ThreadPoolExecutor", _OneByOne)
        for module in (people_of_parties, rows_of_parties):
            monkeypatch.setattr(module, "isolated_root", at_its_place)
        monkeypatch.setattr("tasks.federation.coordinator.keep_run", lambda config, run, columns: run.result)
        there = people_of_parties.federation(tmp_path / "people", people_of_parties.people())
        made: Federated = there.run(**people_of_parties.DESCENT)
        assert set(made.took_part) == {"berlin", "lyon"}
        assert there.spent("berlin") == there.spent("lyon") > 0
        kept = there.root("berlin")
        assert (kept / "ledger.sqlite").exists() is (servers.database is None)
        assert bool(list(kept.rglob("*.parquet"))) is ("object store" not in places)


def test_a_federation_has_no_workers_of_dask(commands: CommandLine) -> None:
    """A party's rows are where it is, and so is the work on them."""
    commands("federate", "clinic", "--dask", "local").refused(2, "No such option", "--dask")
