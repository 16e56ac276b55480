"""Other Pythons of this machine, and what the code version of every registered class is under one of them.

Run by an interpreter that has nothing but its standard library: ``python interpreters.py ROOT`` reads JSON from its
standard input, the modules of each class and the versions of the distributions that they import, and writes the code
versions. What these hang on is the syntax trees, as that interpreter parses them, and the names of its own modules.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

VERSIONS = ("3.11", "3.12", "3.13")
"""The Pythons whose code versions are promised to be equal."""
VARIABLE = "UNITBALL_TEST_PYTHONS"
"""Names interpreters that are not on the path, separated as the path is."""


@cache
def interpreters() -> dict[str, str]:
    """Return the program of each of :data:`VERSIONS` that answers.

    Programs named by the variable come first, then those on the path, then those that pyenv and uv have installed.
    """
    folders = os.environ.get("PATH", "").split(os.pathsep)
    named = filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    on_path = (shutil.which(f"python{version}", path=folder) for folder in folders for version in VERSIONS)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local" / "share" / "uv" / "python"))
    managed = [
        str(program)
        for version in VERSIONS
        for place, pattern in ((pyenv, f"{version}.*"), (uv, f"cpython-{version}.*"))
        for program in sorted(place.glob(f"{pattern}/bin/python{version}"))
    ]
    found: dict[str, str] = {}
    for program in (*named, *filter(None, on_path), *managed):
        done = subprocess.run(
            [program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        version = done.stdout.strip()
        if done.returncode == 0 and version in VERSIONS:
            found.setdefault(version, program)
    return found


def versions_under(program: str, repository: Path, asked: dict[str, Any]) -> list[dict[str, str]]:
    """Return the code versions of all classes under an interpreter; what is asked is that of :func:`main`."""
    done = subprocess.run(
        # Without the user's and the environment's packages.
        [program, "-I", str(Path(__file__)), str(repository)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer: list[dict[str, str]] = json.loads(done.stdout)
    return answer


def main() -> None:
    """Answer ``{"classes": {name: [module, …]}, "distributions": [{package: name and version} or null, …]}``.

    For each of the distributions with the code version of each class, in this order.
    """
    sys.path.insert(0, sys.argv[1])
    # Digests need nothing of it.
    sys.modules.setdefault("pydantic", SimpleNamespace(BaseModel=type("BaseModel", (), {})))  # type: ignore[arg-type]  # no module
    from tasks.planning import identity

    asked = json.load(sys.stdin)
    answer = []
    for known in asked["distributions"]:
        if known is not None:
            identity._distribution = known.__getitem__
        answer.append(
            {
                name: identity.code_version(*(type("Named", (), {"__module__": module}) for module in modules))
                for name, modules in asked["classes"].items()
            }
        )
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
