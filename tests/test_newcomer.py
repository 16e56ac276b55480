"""Someone new, with CONTRIBUTING.md alone, adds a trainer, a reader and a trust model: one file and one row each."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PATCHES = sorted((Path(__file__).parent / "support" / "newcomer").glob("*.patch"))
PACKAGES = ("dpalgos", "storage", "tasks", "flows", "unitball", "deployments", "tests")
ADDED = {
    "reader": ("storage/readers/npz.py", "tests/storage/reader_samples.py"),
    "trainer": ("dpalgos/trainers/sign_descent.py", "tests/dpalgos/parameters.py"),
    "trust": ("dpalgos/trust/enclave.py", "tests/dpalgos/parameters.py"),
}


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_patch_is_one_file_and_one_row(patch: Path) -> None:
    sections = re.split(r"^diff --git ", patch.read_text(), flags=re.MULTILINE)[1:]
    new, changed = ADDED[patch.stem]
    assert {section.split()[0].removeprefix("a/") for section in sections} == {new, changed}
    for section in sections:
        lines = section.split("\n@@ ", maxsplit=1)[1].splitlines()[1:]
        assert not [line for line in lines if line.startswith("-")], "nothing that was there is changed"
        if "new file mode" not in section:
            assert len([line for line in lines if line.startswith("+")]) == 1, "one row of test parameters"


def run(tree: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_patch_applies(patch: Path) -> None:
    run(ROOT, "git", "apply", "--check", str(patch))


@pytest.mark.nightly
def test_all_patches_apply_and_keep_every_contract(tmp_path: Path) -> None:
    assert [patch.stem for patch in PATCHES] == sorted(ADDED)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for patch in PATCHES:
        run(tmp_path, "git", "apply", str(patch))
    python = (sys.executable, "-m")
    run(tmp_path, *python, "ruff", "check", "--no-cache", *(new for new, _ in ADDED.values()))
    names = ("dpalgos/test_contract.py", "dpalgos/test_sensitivities.py", "storage/test_reader_contract.py")
    contracts = [f"tests/{name}" for name in names]
    only = "sign-descent or enclave or npz or every_name or every_trust or every_reader"
    told = run(tmp_path, *python, "pytest", "-p", "no:cacheprovider", "-v", "--color=no", *contracts, "-k", only)
    for name in ("test_contract[sign-descent-0]", "test_contract_of_trust_models[enclave]", "again[npz]", "named[npz]"):
        assert f"{name} PASSED" in told
