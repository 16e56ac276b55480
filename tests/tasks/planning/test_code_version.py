"""The code version: equal where the mathematics is equal, another where a released number could be another."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from dpalgos.registry import lookup
from tasks.planning import identity as versions
from tasks.planning.identity import code_version, normalised_digest

SAMPLE = '''
"""A module."""
from __future__ import annotations
import numpy as np
from . import other as thing

A: float = 1.5e-3
"""A constant."""

@decorated(key=None)
class Thing(Base, metaclass=Meta):
    """A class."""
    __slots__ = ()
    async def go(self, x, /, y=None, *args, z=-1, **rest) -> "int":
        """Do."""
        async with self as held, open(f"{x!r:>{y}} and {{braces}} " f"{z=}") as file:
            yield {**rest, "k": [*args], b"raw": {1, 2.0, 3j, ..., True}}
        return [a for a in range(3) if a % 2 and not a] or await (lambda q: q)(x[1:2, ..., ::3])

def dispatch(value):
    match value:
        case {"a": [1, *rest], **more} if rest: return more
        case Thing(x=None) | None: pass
        case _: raise ValueError from None
    try:
        global g; g = value if (n := 3) > 2 else ~value
    except* (OSError, ValueError) as error: del error
    else: assert x, "why"
    finally: x @= y; x[0].z += 1
    while True: break
    for i in (): continue
    else: print("a" "b", u"c", 10**30, 1_000, 0x10, end="")
'''
# Made under Python 3.11; 3.12 and 3.13 give the same.
SAMPLE_DIGEST = "90a4d0433013bce01f2a3c5e496377ffd9c46516f299efbfe7150565dd6cdfaa"
TRAINER = "sufficient-statistics"


@pytest.fixture(scope="module", autouse=True)
def _read_once() -> Iterator[None]:
    """Let a text's tree, and a tree's digest, be made once: they depend on nothing else, and take a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "ast", SimpleNamespace(**{**vars(ast), "parse": cache(ast.parse)}))
        patch.setattr(versions, "_digest", cache(versions._digest))
        yield


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sources are read once a process; here they change, and what is kept of them is the test's own."""
    monkeypatch.setattr(versions, "_kept_file", lambda: tmp_path / "kept.json")
    forget()
    yield
    forget()


def forget() -> None:
    for value in vars(versions).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of our packages, as far as a code version reads them."""
    here = Path(versions.__file__).resolve().parents[2]
    shutil.copytree(here / "dpalgos", tmp_path / "dpalgos", ignore=shutil.ignore_patterns("__pycache__"))
    found = versions._folder
    # Much less to read than all that the door imports.
    monkeypatch.setattr(versions, "_DOOR", ("dpalgos.keystream",))
    monkeypatch.setattr(versions, "_folder", lambda top: tmp_path if top == "dpalgos" else found(top))
    return tmp_path


def version(kind: str = "trainers", name: str = TRAINER) -> str:
    forget()
    return code_version(lookup(kind, name))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("damage", "most", "least"),
    [(str, 1, 1), (lambda text: text.replace("dpalgos", "dpalgo5"), 400, 30), (len, 400, 30)],
    ids=["whole", "changed", "no JSON"],
)
def test_a_later_process_parses_what_has_changed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[str], object], most: int, least: int
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    first, kept = version(), tmp_path / "kept.json"
    kept.write_text(str(damage(kept.read_text("utf-8"))), "utf-8")
    edit(tree / "dpalgos" / "keystream.py", "import ", "import abc\nimport ")
    parsed = Mock(side_effect=versions._imports)
    monkeypatch.setattr(versions, "_imports", parsed)
    second = version()
    assert second != first
    assert least <= parsed.call_count <= most
    kept.unlink()
    assert version() == second


def test_what_is_parsed_is_kept_where_bytecode_is(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    version()
    assert not (tmp_path / "kept.json").exists()


def test_the_normal_form_is_the_one_that_was_stored() -> None:
    assert normalised_digest(SAMPLE) == SAMPLE_DIGEST


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""', '"""Another text."""'),
        ('"""A constant."""', "# A comment."),
        ('        """Do."""\n', "\n\n"),
        ("A: float = 1.5e-3", "A: float = (   0.0015)"),
        ('u"c"', "'c'"),
        ('"a" "b"', "'ab'"),
        ('{{braces}} " f"{z=}"', '{{braces}} {z=}"'),
    ],
)
def test_text_that_does_nothing_is_not_in_the_digest(old: str, new: str) -> None:
    assert old in SAMPLE
    assert normalised_digest(SAMPLE.replace(old, new)) == SAMPLE_DIGEST


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.5e-3", "1.5e-4"),
        ("2.0", "2"),
        ("True}", "1}"),
        ("x=None", "x=True"),
        ("**rest, ", "'rest': rest, "),
        ("z=-1", "z=1"),
        ("y=None", "y"),
        ('b"raw"', '"raw"'),
        ("import numpy", "import scipy"),
        ("!r", "!s"),
        (":>{y}", ":<{y}"),
        ("a % 2 and", "a % 2 or"),
    ],
)
def test_whatever_does_something_is(old: str, new: str) -> None:
    assert old in SAMPLE
    assert normalised_digest(SAMPLE.replace(old, new, 1)) != SAMPLE_DIGEST


RAISING = """
def check(x):
    if x < 0:
        raise Bad(f"x is {x}; it must be at least 0", "a sentence", "code", 3)
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("it must be at least 0", "give at least 0", True),
        ("x is {x}; ", "", True),
        ("a sentence", "another sentence", True),
        ('"code"', '"other"', False),
        ("3)", "4)", False),
        ("Bad(", "Worse(", False),
        ("x < 0", "x < 1", False),
    ],
)
def test_texts_of_errors_change_no_version_and_what_they_carry_does(old: str, new: str, same: bool) -> None:
    assert old in RAISING
    assert (normalised_digest(RAISING.replace(old, new)) == normalised_digest(RAISING)) == same


def test_a_sentence_of_a_guarantee_changes_no_version_and_its_code_does(tree: Path) -> None:
    before, solver = version(), version("trainers", "output-perturbation")
    edit(tree / "dpalgos/sentences.py", "for the solver's certificate", "in what the solver certifies")
    assert (version(), version("trainers", "output-perturbation")) == (before, solver)
    edit(tree / "dpalgos/trainers/output_perturbation.py", 'coded("arithmetic-of-solvers")', 'coded("no-noise")')
    assert version() == before
    assert version("trainers", "output-perturbation") != solver


def test_comments_and_docstrings_change_no_version(tree: Path) -> None:
    before = version()
    edit(tree / "dpalgos/trainers/discriminant.py", '"""Models in closed', '"""Models  in  closed')
    edit(tree / "dpalgos/algorithms.py", "_FINEST = 16", "# Reworded.\n\n\n_FINEST   =   16")
    assert version() == before


@pytest.mark.parametrize(
    ("kind", "name", "path", "old", "new"),
    [
        ("trainers", TRAINER, "dpalgos/trainers/discriminant.py", "=1e-3", "=1e-4"),
        ("trainers", TRAINER, "dpalgos/algorithms.py", "_FINEST = 16", "_FINEST = 15"),
        ("trainers", TRAINER, "dpalgos/__init__.py", '"""', 'X = 1\n"""'),
        ("trainers", TRAINER, "dpalgos/keystream.py", "import hmac", "import hmac\n\nEXTRA = 1"),
        # Imported inside a function.
        ("trainers", "smo", "dpalgos/published/_smo.py", "import numpy", "import scipy\nimport numpy"),
    ],
)
def test_a_changed_constant_or_helper_does(tree: Path, kind: str, name: str, path: str, old: str, new: str) -> None:
    before, other = version(kind, name), version("aggregators", "weighted-mean")
    edit(tree / path, old, new)
    assert version(kind, name) != before
    if path.startswith(("dpalgos/trainers", "dpalgos/published")):
        assert version("aggregators", "weighted-mean") == other, "what is not imported is not in it"


def test_what_is_not_imported_changes_nothing(tree: Path) -> None:
    before = version()
    edit(tree / "dpalgos/trainers/tuned.py", "import math", "import math\nNEW = 1")
    edit(tree / "dpalgos/registry.py", "import difflib", "import difflib\nimport html")
    (tree / "dpalgos/trainers/another.py").write_text("NEW = 1\n")
    assert version() == before


def test_files_of_data_count(tree: Path) -> None:
    before = version()
    folder = tree / "dpalgos/mechanisms/tables"
    folder.mkdir()
    (folder / "law.json").write_text("[1]")
    with_data = version()
    assert with_data != before
    (folder / "law.json").write_text("[2]")
    assert version() not in {before, with_data}


def test_versions_of_imported_libraries_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before, smo = version(), version("trainers", "smo")
    found = versions._distribution
    monkeypatch.setattr(versions, "_distribution", lambda top: "numba 99" if top == "numba" else found(top))
    assert version("trainers", "smo") != smo
    monkeypatch.setattr(versions, "_distribution", lambda top: "numpy 99" if top == "numpy" else found(top))
    assert version() != before


def package(folder: Path, name: str, constant: int) -> type:
    """Write a package with a class in a module that imports a helper beside it, and return the class."""
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "__init__.py").write_text("")
    (folder / name / "helper.py").write_text(f"CONSTANT = {constant}\n")
    (folder / name / "trainer.py").write_text(
        "from dpalgos.algorithms import Unproved\n\n\nclass Mine(Unproved):\n    def fit(self):\n"
        "        from .helper import CONSTANT\n        return CONSTANT\n"
    )
    importlib.invalidate_caches()
    cls: type = importlib.import_module(f"{name}.trainer").Mine
    return cls


def test_a_plug_in_brings_its_own_modules_name_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(versions, "_DOOR", ("dpalgos.keystream",))
    ours = version()
    cls = package(tmp_path, "unitball_toy_version", 1)
    before = code_version(cls)
    assert version() == ours, "another plug-in changes nobody's version"
    (tmp_path / "unitball_toy_version/helper.py").write_text("# A comment.\nCONSTANT = 1\n")
    forget()
    assert code_version(cls) == before
    package(tmp_path, "unitball_toy_version", 2)
    forget()
    assert code_version(cls) != before
    installed = tmp_path / "unitball_toy_version-1.0.dist-info"
    installed.mkdir()
    seen = set()
    for number in ("1.0", "2.0"):
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: unitball-toy-version\nVersion: {number}\n")
        forget()
        seen.add(code_version(cls))
    assert len(seen) == 2
    sys.modules.pop("unitball_toy_version", None)


def test_unitballs_own_version_is_in_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new version of Unitball charges nobody again where its mathematics is the same."""

    def found() -> list[object]:
        forget()
        trained = code_version(lookup("trainers", TRAINER), lookup("trusts", "secagg"))
        return [trained, code_version(), versions.mathematics_version(), versions.required_versions()]

    before, honest, asked = found(), importlib.metadata.version, set[str]()

    def newer(name: str) -> str:
        asked.add(name)
        return "999.0" if name == "unitball" else honest(name)

    monkeypatch.setattr(importlib.metadata, "version", newer)
    assert found() == before
    assert "numpy" in asked


def test_the_door_is_in_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = version()
    monkeypatch.setattr(versions, "_DOOR", ("dpalgos.keystream",))
    assert version() != before


def test_trust_models_and_several_classes_enter() -> None:
    one, two = lookup("trainers", TRAINER), lookup("aggregators", "weighted-mean")
    assert len({code_version(one), code_version(two), code_version(one, two), code_version()}) == 4


def test_what_makes_the_noise_and_shows_the_rows_of_releases_is_in_every_version() -> None:
    """A room that is parted takes nothing out of the version: with other keys of noise a release is another one."""
    room = Path(versions.__file__).resolve().parents[1] / "release"
    makers = {
        f"tasks.release.{path.stem}"
        for path in room.glob("*.py")
        if re.search(r"\bKeyedNoise\(|^def rows_of\(", path.read_text(), flags=re.MULTILINE)
    }
    assert len(makers) == 2
    assert makers <= set(versions._DOOR)
