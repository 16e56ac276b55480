"""The wheel, in environments that hold nothing else, of the newest and the lowest versions of what it needs.

README's two commands in a clone, under each Python that is named by the classifiers and found here.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tomllib
import urllib.error
import urllib.request
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.interpreters import VERSIONS, interpreters
from tests.support.serving import free_port, wait_for

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("unitball", "flows", "tasks", "dpalgos", "storage", "deployments")
LICENCES = ("LICENSE", "NOTICE")
ENCODER = "dpalgos/features/encoder"
ORIGIN = {f"{ENCODER}/__init__.py", f"{ENCODER}/big.npz", f"{ENCODER}/small.npz"}
"""The weights of the encoder, and where they come from."""
MINUTES = 60.0

pytestmark = pytest.mark.nightly


def outside(**more: str) -> dict[str, str]:
    """Return an environment in which nothing of this checkout can be imported."""
    ours = ("PREFECT", "MLFLOW", "UNITBALL", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


def run(*command: object, cwd: Path, **variables: str) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=outside(**variables), capture_output=True, text=True, timeout=20 * MINUTES, check=False
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def environment(folder: Path) -> Path:
    """Make an empty environment and return its programs."""
    venv.create(folder, with_pip=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clone") / "unitball"
    run("git", "clone", "--quiet", REPOSITORY, folder, cwd=folder.parent)
    return folder


@pytest.fixture(scope="module")
def built(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive that is built of a clone, and the wheel that is built of that."""
    folder = tmp_path_factory.mktemp("built")
    programs = environment(folder / "builder")
    run(programs / "pip", "install", "--quiet", "build", cwd=folder)
    run(programs / "python", "-m", "build", "--outdir", folder / "dist", clone, cwd=folder)
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def project(clone: Path) -> dict[str, Any]:
    declared: dict[str, Any] = tomllib.loads((clone / "pyproject.toml").read_text("utf-8"))["project"]
    return declared


def tracked(clone: Path) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=clone, capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def test_what_is_in_the_wheel(wheel: Path, clone: Path) -> None:
    """Every tracked file of the packages and no other, with the licences and one command."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (information,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        commands = archive.read(f"{information}/entry_points.txt").decode()
        for licence in LICENCES:
            assert archive.read(f"{information}/licenses/{licence}") == (clone / licence).read_bytes()
    assert sorted(name for name in names if not name.startswith(information)) == sorted(tracked(clone))
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    assert set(names) >= ORIGIN
    assert re.findall(r"^\w+ = .*$", commands, re.MULTILINE) == ["unitball = deployments.cli:main"]


def test_what_is_in_the_source_archive(built: Path, clone: Path) -> None:
    """What the wheel is made of and what is read before; no test, no golden root's secrets, no cache, no result."""
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames()]
    read = {"CHANGELOG.md", "README.md", "SECURITY.md", "requirements.lock", *LICENCES}
    assert sorted(names) == sorted({*tracked(clone), *read, "pyproject.toml", "PKG-INFO", ".gitignore"})
    assert set(names) >= ORIGIN


def test_metadata(wheel: Path, clone: Path, project: dict[str, Any]) -> None:
    """Complete, true, and of the version that the changelog begins with; no address stands there, since none is."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_string(archive.read(name).decode())
    newest = re.findall(r"^## (\S+)", (clone / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[0]
    assert metadata["Name"] == "unitball"
    assert wheel.name == f"unitball-{newest}-py3-none-any.whl"
    assert metadata["Version"] == project["version"] == newest
    assert metadata["Summary"] == project["description"]
    assert metadata["Maintainer"] == "The Unitball maintainers"
    assert metadata["Keywords"] == ",".join(project["keywords"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert tuple(metadata.get_all("License-File", [])) == LICENCES
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).strip() == (clone / "README.md").read_text("utf-8").strip()
    absent = ("Home-page", "Project-URL", "Author-email", "Maintainer-email", "License")
    assert [one for one in absent if one in metadata] == []
    classifiers = metadata.get_all("Classifier", [])
    assert classifiers == project["classifiers"]
    # An index refuses it, and says so by this name.
    assert "Private :: Do Not Upload" in classifiers
    for kind in ("Development Status", "Intended Audience", "Operating System", "Programming Language", "Typing"):
        assert any(one.startswith(f"{kind} :: ") for one in classifiers), kind
    # A licence is said by its expression alone (PEP 639).
    assert not [one for one in classifiers if one.startswith("License ::")]
    assert set(metadata.get_all("Provides-Extra", [])) == {"dask", "onnx", "postgresql"}


def main_job(command: Path, folder: Path) -> None:
    """The systems on digits, and a folder of pictures of one's own, mirrored so that the encoder's weights are read."""
    root = {"UNITBALL_ROOT": str(folder / "root")}
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    assert run(command, "--version", cwd=folder, **root) == f"unitball {declared['version']}\n"
    compared = run(command, "compare", "--dataset", "digits", "--epsilon", 1, cwd=folder, **root)
    assert "fed-dpdr-dpml-published" in compared
    example = REPOSITORY / "docs" / "examples" / "make_pictures.py"
    run(command.parent / "python", example, folder / "signs", "--classes", 3, "--each", 120, cwd=folder)
    signs = ("train", "--dataset", "signs", "--format", "images", "--path", folder / "signs", "--public", "--mirror")
    trained = run(command, *signs, "--epsilon", 20, "--json", cwd=folder, **root)
    assert '"accuracy"' in trained
    (shown,) = run(command.parent / "python", "-c", _MAPS, cwd=folder, **root).splitlines()
    assert shown == "encoder"


_MAPS = """
from dpalgos.features.encoder import network
import numpy as np
assert "site-packages" in network.__file__, network.__file__
print("encoder")
"""


def test_by_the_lowest_versions(wheel: Path, tmp_path: Path) -> None:
    """The ranges still resolve to what the lower bounds name, and the main job runs on it."""
    programs = environment(tmp_path / "empty")
    run(programs / "pip", "install", "--quiet", "uv", cwd=tmp_path)
    lowest = ("--quiet", "--python", programs / "python", "--resolution", "lowest-direct")
    # What pyproject.toml names is direct; of a wheel's requirements uv would take the newest.
    extras = [word for extra in ("dask", "onnx", "postgresql") for word in ("--extra", extra)]
    run(programs / "uv", "pip", "install", *lowest, "-r", REPOSITORY / "pyproject.toml", *extras, cwd=tmp_path)
    run(programs / "uv", "pip", "install", "--quiet", "--python", programs / "python", "--no-deps", wheel, cwd=tmp_path)
    shown = "import numpy, skops; print(numpy.__version__, skops.__version__)"
    found = run(programs / "python", "-c", shown, cwd=tmp_path)
    locked = (REPOSITORY / "requirements-lowest.lock").read_text("utf-8")
    for name, version in zip(("numpy", "skops"), found.split(), strict=True):
        assert f"\n{name}=={version} " in locked
    assert "--epsilon" in run(programs / "unitball", "train", "--help", cwd=tmp_path)
    main_job(programs / "unitball", tmp_path)


def test_by_pip(wheel: Path, tmp_path: Path) -> None:
    """Of the newest versions that the ranges admit."""
    programs = environment(tmp_path / "empty")
    run(programs / "pip", "install", "--quiet", wheel, cwd=tmp_path)
    main_job(programs / "unitball", tmp_path)


def test_by_pipx(wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path / "tools")
    run(programs / "pip", "install", "--quiet", "pipx", cwd=tmp_path)
    places = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    run(programs / "pipx", "install", wheel, cwd=tmp_path, **places)
    main_job((tmp_path / "bin" / "unitball").resolve(), tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_by_the_two_commands_of_the_readme(version: str, clone: Path, tmp_path: Path) -> None:
    """What the README prints is what is typed: the first compares, the second serves until Ctrl-C."""
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"no Python {version} is on the path, or named in UNITBALL_TEST_PYTHONS")
    shutil.rmtree(clone / ".venv", ignore_errors=True)
    section = (clone / "README.md").read_text().split("## Two commands", 1)[1].split("\n## ", 1)[0]
    first, second = re.findall(r"^    (\S.*?)(?:\s+#.*)?$", section, re.MULTILINE)
    root = {"UNITBALL_ROOT": str(tmp_path / "root")}
    assert "fed-dpdr-dpml-published" in run(*first.split(), cwd=clone, PYTHON=python, **root)
    prefect, mlflow = free_port(), free_port()
    output = tmp_path / "served.txt"
    with output.open("w") as written:
        serving = subprocess.Popen(
            [*second.split(), "--prefect-port", str(prefect), "--mlflow-port", str(mlflow)],
            cwd=clone,
            env=outside(PYTHONUNBUFFERED="1", **root),
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:

        def ready() -> bool:
            assert serving.poll() is None, output.read_text()
            return "ready; Ctrl-C" in output.read_text()

        wait_for("what is served", ready)
        # Whoever shows no secret is told to.
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{mlflow}/", timeout=300)
    finally:
        serving.send_signal(signal.SIGINT)
        serving.wait(timeout=2 * MINUTES)
    assert serving.returncode == 0, output.read_text()
