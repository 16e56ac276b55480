"""Three parties under three operating-system users, and a coordinator that none of them trusts with a row."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.support.command_line import Outcome, start_command
from tests.support.private_rows import CLASSES, DIMENSION, write_rows
from tests.support.serving import PATIENCE, REPOSITORY, UNITBALL, Served, attacks, wait_for

USERS = {"berlin": 61001, "lyon": 61002, "turin": 61003}
CAPS = {"berlin": 3.0, "lyon": 3.0, "turin": 0.9}

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="three operating-system users need root"),
]


def interpreter() -> str:
    """Return a Python of this version that every user may run; the tests' own may lie in somebody's home."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for found in (
        sys.executable,
        os.path.realpath(sys.executable),
        shutil.which(version, path="/usr/local/bin:/usr/bin"),
    ):
        if found and _runs(found):
            return found
    pytest.skip(f"no {version} that other users may run")


def _runs(python: str) -> bool:
    try:
        done = subprocess.run([python, "-c", "import ssl, sqlite3"], user=USERS["berlin"], group=61000, extra_groups=[])
    except PermissionError:
        return False
    return done.returncode == 0


@dataclass
class Site:
    """A party's machine: its user, its home and root, and its process."""

    name: str
    home: Path
    python: str
    variables: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    @property
    def root(self) -> Path:
        return self.home / "root"

    def _options(self) -> dict[str, object]:
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "PYTHONPATH": f"{REPOSITORY}:{packages}",
            "PYTHONUNBUFFERED": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "NUMBA_CACHE_DIR": str(self.home / "numba"),
            "MPLCONFIGDIR": str(self.home / "matplotlib"),
            "DO_NOT_TRACK": "1",
            "UNITBALL_ROOT": str(self.root),
            **self.variables,
        }
        user = USERS[self.name]
        return {
            "user": user,
            "group": user,
            "extra_groups": [],
            "env": environment,
            "cwd": str(self.home),
            "text": True,
        }

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [self.python, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, timeout=PATIENCE, **self._options())  # type: ignore[call-overload,no-any-return]  # by name

    def unitball(self, *arguments: object) -> str:
        done = self.run(*UNITBALL, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve(self, roster: Path) -> None:
        output = (self.home.parent / f"{self.name}.log").open("w")
        command = [self.python, *UNITBALL, "party", "serve", "clinic", "--roster", str(roster)]
        options = {"stdout": output, "stderr": subprocess.STDOUT, **self._options()}
        process = self.process = subprocess.Popen(command, **options)  # type: ignore[call-overload]  # by name
        log = self.home.parent / f"{self.name}.log"
        wait_for(f"{self.name} serves", lambda: "serving" in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(300)


@pytest.fixture(scope="module")
def sites() -> Iterator[dict[str, Site]]:
    """Let three users each bring their rows in, in a home that is theirs alone."""
    python = interpreter()
    folder = Path(tempfile.mkdtemp(prefix="unitball-parties-"))
    folder.chmod(0o755)
    found = {}
    try:
        for number, (name, user) in enumerate(USERS.items()):
            home = folder / name
            home.mkdir(mode=0o700)
            rows = write_rows(home / "rows.txt", 150, seed=number).path
            for path in (home, rows):
                os.chown(path, user, user)
            rows.chmod(0o600)
            site = found[name] = Site(name, home, python)
            declared = ["--format", "libsvm", "--party", f"{name}={rows}", "--dimension", DIMENSION]
            cap = ["--epsilon-cap", CAPS[name], "--delta-cap", 1e-4, f"--classes={','.join(CLASSES)}"]
            site.unitball("party", "ingest", "clinic", *declared, *cap)
        yield found
    finally:
        for site in found.values():
            site.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def federation(sites: dict[str, Site], served: Served) -> dict[str, Site]:
    """Let each party serve at the coordinator's server, whose password it knows."""
    shown = [json.loads(site.unitball("party", "show", "clinic", "--json")) for site in sites.values()]
    roster = next(iter(sites.values())).home.parent / "roster.yaml"
    roster.write_text(yaml.safe_dump({"parties": {one["party"]: one["fingerprint"] for one in shown}}, sort_keys=False))
    # The other users read it, whatever umask a command of this process has set.
    roster.chmod(0o644)
    for site in sites.values():
        site.variables = {"PREFECT_API_URL": served.api, "PREFECT_API_AUTH_STRING": served.secret.basic}
        site.serve(roster)
    return sites


def federating(served: Served, sites: dict[str, Site], *arguments: object) -> subprocess.Popen[str]:
    """Begin a run as the coordinator."""
    roster = str(next(iter(sites.values())).home.parent / "roster.yaml")
    given = ["--roster", roster, "--dataset", "study", "--patience", "240", *map(str, arguments)]
    return start_command(served.root, "federate", *given, "--json")


def federate(served: Served, sites: dict[str, Site], *arguments: object) -> Outcome:
    process = federating(served, sites, *arguments)
    out, err = process.communicate(timeout=7 * PATIENCE)
    return Outcome(process.returncode, out, err)


SECURE = ("--algorithm", "secagg-output-perturbation", "--trust", "secagg")


def spent(site: Site) -> float:
    return float(json.loads(site.unitball("budget", "clinic", "--json"))["epsilon_spent"])


def test_no_user_opens_what_is_anothers(sites: dict[str, Site]) -> None:
    for site in sites.values():
        for other in sites.values():
            done = site.run("-c", f"import os; os.listdir({str(other.root / 'private')!r})")
            assert (done.returncode == 0) == (site is other), (site.name, other.name, done.stderr)
            done = site.run("-c", f"open({str(other.home / 'rows.txt')!r}).read()")
            assert (done.returncode == 0) == (site is other)


def test_one_refuses_and_nobody_pays(federation: dict[str, Site], served: Served) -> None:
    done = federate(served, federation, *SECURE, "--epsilon", 2)
    assert done.code == 3, done
    assert "party turin refuses" in done.err
    for site in federation.values():
        report = json.loads(site.unitball("budget", "clinic", "--json"))
        assert report["epsilon_spent"] == 0
        assert report["reserved"] == []


DESCENT = ("--algorithm", "noisy-gd", "--param", "iterations=3", "--trust", "secagg")


@pytest.mark.parametrize("trust", [SECURE, DESCENT, ("--trainer", "output-perturbation", "--trust", "local")])
def test_each_pays_for_its_own_part(federation: dict[str, Site], served: Served, trust: tuple[str, ...]) -> None:
    before = {name: spent(site) for name, site in federation.items()}
    done = federate(served, federation, *trust, "--epsilon", 0.3)
    assert done.code == 0, done
    made = done.json
    assert made["took_part"] == list(USERS)
    assert all(spent(site) > before[name] for name, site in federation.items())
    # What the coordinator keeps holds nobody's rows.
    kept = b"".join(path.read_bytes() for path in served.root.rglob("*") if path.is_file())
    for site in federation.values():
        numbers = [part.split(b":")[1] for part in (site.home / "rows.txt").read_bytes().split() if b":" in part]
        assert not any(number in kept for number in numbers[::97])


def test_one_is_killed_in_the_middle_and_goes_on_when_it_is_back(federation: dict[str, Site], served: Served) -> None:
    """Lyon is gone when all have paid; the sum is not opened. Back again, it sends the same, and nobody pays twice."""
    lyon, roster = federation["lyon"], next(iter(federation.values())).home.parent / "roster.yaml"
    given = (*SECURE, "--epsilon", "0.31")

    before = {name: spent(site) for name, site in federation.items()}
    command = federating(served, federation, *given)
    assert command.stderr is not None
    said = "".join(itertools.takewhile(lambda line: not line.strip().startswith("commit:"), command.stderr))
    lyon.stop()
    _, error = command.communicate(timeout=4 * PATIENCE)
    assert command.returncode == 1, said + error
    after = {name: spent(site) for name, site in federation.items()}
    assert all(after[name] > before[name] for name in federation)
    lyon.serve(roster)
    done = federate(served, federation, *given)
    assert done.code == 0, done
    assert done.json["took_part"] == list(USERS)
    assert {name: spent(site) for name, site in federation.items()} == after


def test_the_coordinators_password_does_not_choose_what_a_party_runs(
    federation: dict[str, Site], served: Served, tmp_path: Path
) -> None:
    """Pull steps, another entry point, job variables and odd parameters, set by whoever holds the password."""
    canary = federation["berlin"].home.parent / "canary"
    canary.with_suffix(".py").write_text(f"import pathlib\npathlib.Path({str(canary)!r}).touch()\n")
    (deployment,) = [one for one in served.ask("/deployments/filter") if one["name"] == "berlin"]
    for change in attacks(canary):
        served.call("PATCH", f"/deployments/{deployment['id']}", change)
    # Otherwise the server refuses them by the schema that the party has registered.
    served.call("PATCH", f"/deployments/{deployment['id']}", {"enforce_parameter_schema": False})
    for parameters in ({"request": {"ask": "rows", "config": {}}}, {"path": "/etc"}):
        body = {
            "parameters": parameters,
            "job_variables": {"command": f"touch {canary}"},
            "state": {"type": "SCHEDULED"},
        }
        run = served.call("POST", f"/deployments/{deployment['id']}/create_flow_run", body)
        assert served.finished(run["id"])["state_type"] in ("FAILED", "CRASHED")
    done = federate(served, federation, "--trainer", "output-perturbation", "--trust", "local", "--epsilon", 0.05)
    assert done.code == 0, done
    assert not canary.exists()
