"""One lock file, and one identity of each release, for all Pythons; lower bounds that are the versions tested."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from dpalgos import registry
from tasks.planning import identity
from tests.support.data import REPOSITORY
from tests.support.interpreters import VERSIONS, interpreters, versions_under

LOCK, LOWEST = REPOSITORY / "requirements.lock", REPOSITORY / "requirements-lowest.lock"


@cache
def classes() -> dict[str, type]:
    registry.names("trainers")
    entries = {f"{kind}/{name}": entry for (kind, name), entry in sorted(registry._ENTRIES.items())}
    return {name: entry for name, entry in entries.items() if isinstance(entry, type)}


@cache
def libraries() -> dict[str, str]:
    """Return the packages whose versions enter the code version of a registered class, with what they are here."""
    imported: set[str] = set()
    for cls in classes().values():
        imported |= identity._sources((*identity._DOOR, cls.__module__), set())[1]
    return {package: identity._distribution(package) for package in sorted(imported)}


def asked(*distributions: dict[str, str] | None) -> dict[str, Any]:
    return {"classes": {name: [cls.__module__] for name, cls in classes().items()}, "distributions": distributions}


def locked(lock: Path = LOCK) -> dict[str, list[tuple[str, str]]]:
    """Return the versions of each distribution in a lock file, with what they are for."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, version, marker in re.findall(
        r"^([\w.-]+)==(\S+?)(?: ; (.*?))? \\$", lock.read_text("utf-8"), re.MULTILINE
    ):
        found.setdefault(name, []).append((version, marker))
    return found


@pytest.fixture(params=VERSIONS)
def program(request: pytest.FixtureRequest) -> str:
    found = interpreters().get(request.param)
    if found is None:
        pytest.skip(f"no Python {request.param} is on the path, or named in UNITBALL_TEST_PYTHONS")
    return found


def test_every_class_has_one_code_version_under_all_pythons(program: str) -> None:
    """The mutant: another NumPy, as a lock file that forks by Python versions has, is another identity."""
    here = {name: identity.code_version(cls) for name, cls in classes().items()}
    assert len(here) >= 80
    there, forked = versions_under(program, REPOSITORY, asked(libraries(), {**libraries(), "numpy": "numpy 0"}))
    assert there == here
    assert [name for name in here if forked[name] == here[name]] == []


def test_the_lock_has_one_version_of_everything() -> None:
    versions = locked()
    assert len(versions) > 200
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_what_enters_a_code_version_is_locked_alike_for_all_pythons() -> None:
    versions = locked()
    for package, here in libraries().items():
        if here == "none":
            continue
        name = importlib.metadata.metadata(here.partition(" ")[0])["Name"].lower().replace("_", "-")
        ((version, marker),) = versions[name]
        assert here.partition(" ")[2] == version, package
        assert "python" not in marker, package


def test_a_lower_bound_is_the_version_that_was_tested() -> None:
    """A range without one, or with one below what resolves (the mutant: ``numpy>=2.3``), promises the untried."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    ranges = [Requirement(one) for one in sum(project["optional-dependencies"].values(), project["dependencies"])]
    assert len(ranges) > 30
    bounds = {one.name: [Version(each.version) for each in one.specifier if each.operator == ">="] for one in ranges}
    lowest = locked(LOWEST)
    assert bounds == {name: [Version(version) for version, _ in lowest[name]] for name in bounds}


@pytest.mark.parametrize("lock", [LOCK, LOWEST], ids=lambda lock: lock.name)
def test_a_lock_has_hashes_and_no_address(lock: Path) -> None:
    text = lock.read_text("utf-8")
    assert "://" not in text
    assert "--index" not in text
    for entry in re.split(r"^(?=\S+==)", text, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in entry, entry


@pytest.mark.nightly
def test_in_a_real_environment_of_the_locked_libraries(program: str, tmp_path: Path) -> None:
    """The libraries are those that this Python gets of the lock file, and their versions those that it finds."""
    names = {here.partition(" ")[0].lower().replace("_", "-") for here in libraries().values()}
    entries = re.split(r"^(?=[\w.-]+==)", LOCK.read_text("utf-8"), flags=re.MULTILINE)
    (tmp_path / "lock.txt").write_text("".join(one for one in entries if one.partition("==")[0] in names))
    done = subprocess.run([program, "-m", "venv", tmp_path / "there"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{program} makes no virtual environment: {done.stderr[-300:]}")
    there = tmp_path / "there" / "bin" / "python"
    options = ("--quiet", "--require-hashes", "--no-deps")
    subprocess.run([there, "-m", "pip", "install", *options, "-r", tmp_path / "lock.txt"], check=True)
    here = {name: identity.code_version(cls) for name, cls in classes().items()}
    assert versions_under(str(there), REPOSITORY, asked(None)) == [here]
    shutil.rmtree(tmp_path / "there")
