"""What released versions made: this one opens it anywhere, reads it to the bit, and pays for nothing of it twice.

``tests/golden_roots`` holds a root of each format. The version of the code is pinned to what its manifests name. So a
test fails where anything else changed: what a key is made of, how a secret keys noise, how integers are drawn and
rounded, what is written and how it is read. None of these roots is ever made again (CONTRIBUTING.md, *Golden roots*).
"""

from __future__ import annotations

import io
import re
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import unitball
from flows.federated_training import chain_inline
from storage.documents import pack_arrays
from storage.errors import DamagedError, RefusedError, SecretError
from storage.layout import Layout
from storage.releases import ReleaseStore
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.exports.archive import export_run
from tasks.exports.verifying import verify
from tasks.planning.configuration import TrainingConfig
from tasks.release.column_counts import plan_counts, version_of
from tasks.release.descriptions import describe
from tasks.release.storing import recorded_key
from tasks.runtime.stores import open_releases
from tasks.tracking.runs import tracking_client
from tasks.upkeep.checks import check_root
from tests.golden_roots import making
from tests.golden_roots.kept import PLACE, Json, archive_of, ask, known_of, pin_to, predicted, read, unpack, versions
from tests.support.chains import charges
from tests.support.code_versions import pin
from tests.support.data import REPOSITORY, flip

MOST_BYTES = 2**20


@dataclass(frozen=True)
class Golden:
    """A root at a place of the test's own, and what is known of it."""

    place: Path
    known: Json

    @property
    def layout(self) -> Layout:
        return Layout(self.place / "root")

    def files(self) -> dict[str, bytes]:
        """Return the releases, and the end of the ledger's chain, which any entry would move."""
        found = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in self.layout.releases.glob("*/*")}
        return {**found, "end of the chain": (self.layout.root / "ledger.head").read_bytes()}

    def asked(self, function: str) -> dict[str, Json]:
        return {str(at): one for at, one in enumerate(self.known["asked"]) if one["function"] == function}


def opened(place: Path, version: str, patch: pytest.MonkeyPatch) -> Golden:
    """Put a root into a place, as a restored back-up: without the marks of the machine that it comes from."""
    unpack(version, place)
    patch.setenv("UNITBALL_ROOT", str(place / "root"))
    patch.setenv("UNITBALL_LEDGER_MARK", str(place / "marks"))
    known = known_of(version)
    pin_to(patch, known)
    return Golden(place, known)


@pytest.fixture(scope="module", params=versions())
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Golden]:
    """Return a root in which nothing is changed by who looks at it."""
    with pytest.MonkeyPatch.context() as patch:
        yield opened(tmp_path_factory.mktemp("räume 1"), request.param, patch)


@pytest.fixture(params=versions())
def golden(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Golden:
    return opened(tmp_path, request.param, monkeypatch)


def test_every_release_is_read_back_to_the_bit(kept: Golden) -> None:
    assert {key: read(key) for key in open_releases().keys()} == kept.known["releases"]
    for key, release in kept.known["releases"].items():
        manifest, _ = open_releases().read(key)
        assert manifest["code"] in kept.known["code"].values()
        assert release["code"] == manifest["code"]
        if "post_processing" not in manifest:
            assert recorded_key(manifest) == key


def test_nothing_is_wrong_with_it(kept: Golden) -> None:
    """But that the mark is not there, which is kept outside of roots so that a restored one is noticed."""
    assert [found.check for found in check_root() if found.problem is not None] == ["mark"]


def test_accounts_have_paid_what_they_had(kept: Golden) -> None:
    for account, paid in kept.known["accounts"].items():
        now = making.account_now(account)
        assert now["charges"] == paid["charges"]
        assert now["epsilon_spent"] == pytest.approx(paid["epsilon_spent"], rel=1e-6)
        assert now["delta_spent"] == pytest.approx(paid["delta_spent"], rel=1e-6)


def test_the_same_again_computes_and_charges_nothing(kept: Golden) -> None:
    before = kept.files()
    for at, asked in enumerate(kept.known["asked"]):
        known, answer = kept.known["runs"][str(at)], ask(asked)
        if asked["function"] == "describe":
            assert answer.attrs["paid"]
            # How many lines follow from the release is what is shown, and may grow.
            assert answer.attrs["key"] == known["key"]
            assert len(answer)
        else:
            result = answer.result
            assert result.cached is True
            assert (result.run_key, result.mlflow_run_id) == (known["run_key"], known["mlflow_run_id"])
            assert result.epsilon_spent == pytest.approx(known["epsilon_spent"], rel=1e-9)
    assert kept.files() == before


def test_rows_that_come_back_are_the_version_that_was_charged(kept: Golden) -> None:
    before, rows = kept.files(), kept.place / "rows"
    again = ingest(IngestRequest(name="visits", format="csv", path=rows / "all.csv", schema_path=rows / "schema.yaml"))
    assert again.version == kept.known["versions"]["visits"]
    assert kept.files() == before


def test_rows_that_come_back_in_another_order_pay_from_the_same_account(golden: Golden) -> None:
    """They are known by fingerprints that the older version has stored."""
    header, *lines = (golden.place / "rows" / "all.csv").read_text().splitlines()
    (golden.place / "some.csv").write_text("\n".join([header, *reversed(lines[: len(lines) // 2])]) + "\n")
    schema = golden.place / "rows" / "schema.yaml"
    given: Any = {"path": golden.place / "some.csv", "schema_path": schema, "epsilon_cap": 1.0, "delta_cap": 1e-4}
    with pytest.raises(RefusedError, match="visits"):
        ingest(IngestRequest(name="others", account="others", format="csv", **given))


def test_models_predict_what_they_did_and_runs_are_found(kept: Golden) -> None:
    for model, classes in kept.known["predicted"].items():
        assert predicted(model, kept.place / "rows" / f"{model.split('.')[0]}.csv") == classes
    ids = {run["mlflow_run_id"] for run in kept.known["runs"].values() if "mlflow_run_id" in run}
    assert ids <= set(unitball.results("SELECT mlflow_run_id FROM runs")["mlflow_run_id"])
    with tracking_client(kept.layout.root) as client:
        assert {client.get_run(run).info.run_id for run in ids} == ids


def test_a_run_of_it_is_proved_elsewhere(kept: Golden, tmp_path: Path) -> None:
    for at in kept.asked("train"):
        contents, *_ = export_run(kept.known["runs"][at]["run_key"])
        (tmp_path / f"{at}.zip").write_bytes(contents)
        found = verify(tmp_path / f"{at}.zip")
        assert found.holds, [check for check in found.checks if check.holds is False]


def again(golden: Golden, at: object) -> None:
    """Do what a release is made by, without MLflow and figures."""
    asked = golden.known["asked"][at]
    if asked["function"] == "describe":
        describe(plan_counts(version_of(asked["dataset"], None), **asked["settings"]))
    else:
        chain_inline(TrainingConfig.model_validate({"dataset": asked["dataset"], **asked["settings"]}))


def test_integer_releases_are_made_again_to_the_bit(golden: Golden) -> None:
    """From the stored rows and secrets, under the code version that the manifest names; nothing is charged for it."""
    before = golden.files()
    assert golden.known["again"]
    for key, at in golden.known["again"].items():
        shutil.rmtree(golden.layout.release(key))
        again(golden, at)
        assert read(key) == golden.known["releases"][key]
    assert golden.files() == before


def test_other_mathematics_is_another_release_and_pays(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    before = golden.files()
    pin(monkeypatch, lambda *_: "f" * 16, lambda *_: "f" * 16)
    for at in {**golden.asked("describe"), **golden.asked("train")}:
        asked = golden.known["asked"][int(at)]
        if "horizon" in asked["settings"]:
            # Its charge pays for this code's nights alone.
            continue
        paid = charges(asked["dataset"])
        again(golden, int(at))
        assert len(charges(asked["dataset"])) > len(paid)
    assert {name: golden.files()[name] for name in before if name != "end of the chain"} == {
        name: content for name, content in before.items() if name != "end of the chain"
    }


@pytest.mark.parametrize("file", ["arrays.npz", "manifest.json"])
def test_a_flipped_byte_is_refused(golden: Golden, file: str) -> None:
    for key, at in golden.known["again"].items():
        flip(golden.layout.release(key) / file)
        with pytest.raises(DamagedError, match=key[:12]):
            read(key)
        with pytest.raises(DamagedError):
            again(golden, at)
    problems = " ".join(str(found.problem) for found in check_root() if found.check == "releases")
    assert all(key[:12] in problems for key in golden.known["again"])


def test_other_numbers_are_refused_however_well_they_are_stored(golden: Golden) -> None:
    """The mutant: digests that nobody compares, where the archive of the arrays is whole."""
    for key, at in golden.known["again"].items():
        _, arrays = open_releases().read(key)
        (golden.layout.release(key) / "arrays.npz").write_bytes(pack_arrays({one: a + 1 for one, a in arrays.items()}))
        with pytest.raises(DamagedError, match=key[:12]):
            read(key)
        with pytest.raises(DamagedError):
            again(golden, at)


def test_no_noise_is_drawn_of_another_secret(golden: Golden) -> None:
    for key in golden.known["again"]:
        shutil.rmtree(golden.layout.release(key))
    for secret in golden.layout.parties.glob("*/secret.key"):
        flip(secret)
    for at in golden.known["again"].values():
        with pytest.raises(SecretError, match=r"secret\.key"):
            again(golden, at)
    assert not set(golden.known["again"]) & set(ReleaseStore(golden.layout).keys())


def test_the_promise_begins_with_the_version_that_left_the_first_root() -> None:
    """The page that promises names it, and tests of each promise; the changelog's first version is that one."""
    page = (REPOSITORY / "docs" / "compatibility.md").read_text("utf-8")
    (begins,) = re.findall(r"\*\*These promises begin with (\S+),", page)
    changelog = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")
    changes = re.findall(r"^## (\S+)", changelog, re.MULTILINE)
    assert begins == versions()[0] == changes[-1]
    assert f"`tests/golden_roots/{begins}.tar.xz`" in page
    promises = re.findall(r"^- \*\*.*$", page.split("## What never changes")[1].split("\n## ")[0], re.MULTILINE)
    assert len(promises) == 5
    for promise in promises:
        assert re.search(r"Tests[^:]*: `test", promise), promise


_OF_A_MACHINE = re.compile(rb"file:/|/(?:home|root|work|Users|mnt|opt|usr|var|tmp|dev/shm)/")


@pytest.mark.parametrize("version", versions())
def test_it_is_small_and_names_no_place_of_whoever_made_it(version: str, tmp_path: Path) -> None:
    assert archive_of(version).stat().st_size <= MOST_BYTES
    unpack(version, tmp_path)
    looked_at = 0
    for path in tmp_path.rglob("*"):
        if path.is_file():
            for name, content in _contents(path.name, path.read_bytes()):
                looked_at += 1
                places = _OF_A_MACHINE.findall(content.replace(f"{PLACE.as_uri()}/root".encode(), b""))
                assert places == [], (path, name)
    assert looked_at > 100


def _contents(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a file, and what is in it where it is a ZIP archive, as models and arrays are."""
    yield name, content
    if content.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                yield from _contents(f"{name}/{member}", archive.read(member))


@pytest.mark.nightly
def test_a_root_is_made_as_those_were(tmp_path: Path, monkeypatch: Any) -> None:
    known = making.make(tmp_path / "made")
    assert len(making.pack(tmp_path / "made")) <= MOST_BYTES
    newest = known_of(versions()[-1])
    assert known["asked"] == newest["asked"]
    assert known["code"].keys() == newest["code"].keys()
    assert [len(one["charges"]) for one in known["accounts"].values()] == [
        len(one["charges"]) for one in newest["accounts"].values()
    ]
