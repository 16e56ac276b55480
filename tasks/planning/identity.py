"""Identities: digests of everything that a result depends on, the code that computes it included.

*The code version* is a digest of the mathematics that computes a release, not of its text. A module enters as its
syntax tree without positions, comments, docstrings, texts of errors and empty fields, so that Python 3.11 to 3.13 agree
and rewording causes no new charge; a changed constant is another version. The modules are the static closure of the
imports, those inside functions included, that starts at the classes given (an algorithm, a trust model) and at the
door; data files in the same folders count byte by byte. Of other distributions that they import the version
counts. A class from another distribution brings that one's modules, name and version; other plug-ins change nothing.

Parsing three hundred modules takes a second. What it gives depends on their bytes and on this module alone, so it is
kept next to the bytecode of this module, under the rules of bytecode (``PYTHONDONTWRITEBYTECODE``,
``PYTHONPYCACHEPREFIX``): who can write there can change the code itself.
"""

import ast
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path

from pydantic import BaseModel

from storage.atomic import write_bytes
from storage.errors import StorageError

# Where the door makes noise and shows rows; what else it does changes no released number.
_DOOR = ("tasks.release.door", "tasks.release.night_rows", "tasks.release.noise_secrets", "tasks.release.seen_rows")
_OWN = "dpalgos"
# Our other packages, whose version is not that of the mathematics.
_AROUND = frozenset({"deployments", "flows", "storage", "tasks", "unitball"})
# Entering a name under which an algorithm is found changes none of its numbers, nor does checking what was read, nor
# what the sentences of guarantees say, which hold their codes.
_LEFT_OUT = frozenset({"dpalgos.registry", "dpalgos.sentences", "pydantic"})
_DISTRIBUTIONS = {"sklearn": "scikit-learn", "skimage": "scikit-image"}
# CPython 3.11 cannot parse in two threads at once.
_PARSING = threading.RLock()


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """Return the parts of an f-string with neighbouring texts made one; parsers differ in where they cut."""
    expressions: list[ast.expr] = []
    for value in values:
        last = expressions[-1] if expressions else None
        if isinstance(value, ast.Constant) and isinstance(last, ast.Constant):
            expressions[-1] = ast.Constant(f"{last.value!s}{value.value!s}")
        elif not (isinstance(value, ast.Constant) and value.value == ""):
            expressions.append(value)
    return expressions


def _normal(tree: object) -> str:
    """Return a normal form of a syntax tree."""
    parts: list[str] = []
    _write(tree, False, parts.append)
    return "".join(parts)


def _write(value: object, raised: bool, put: Callable[[str], None]) -> None:
    """Write a node's normal form; of what is ``raised``, which releases nothing, without the sentences."""
    if raised and _is_sentence(value):
        put("text;")
    elif isinstance(value, ast.Constant):
        put(f"{type(value.value).__name__} {value.value!r};")
    elif isinstance(value, ast.AST):
        put(f"{type(value).__name__}(")
        raised = raised or isinstance(value, ast.Raise)
        for name in value._fields:
            if name in {"ctx", "type_comment"}:
                continue
            field = getattr(value, name, None)
            if isinstance(value, ast.JoinedStr) and name == "values":
                field = _joined(value.values)
            if field is not None and field != []:
                put(f"{name}=")
                _write(field, raised, put)
        put(")")
    elif isinstance(value, list):
        put("[")
        for item in value:
            if not _is_text_alone(item):
                _write(item, raised, put)
        put("]")
    else:
        put(f"{value!r};")


def _is_sentence(value: object) -> bool:
    """Whether an expression is a text that is written for people: an f-string, or words with a space between."""
    return isinstance(value, ast.JoinedStr) or (
        isinstance(value, ast.Constant) and isinstance(value.value, str) and " " in value.value
    )


def _is_text_alone(item: object) -> bool:
    """Whether a statement is a string, such as a docstring, which does nothing."""
    return isinstance(item, ast.Expr) and isinstance(getattr(item.value, "value", None), str)


def normalised_digest(source: str) -> str:
    """Return the SHA-256 digest (hex) of a module's normalised syntax tree, equal under Python 3.11 to 3.13.

    Raises
    ------
    SyntaxError
        If the text is not Python.
    """
    with _PARSING:
        return _digest(ast.parse(source))


def _digest(tree: ast.Module) -> str:
    return hashlib.sha256(_normal(tree).encode("utf-8", "surrogatepass")).hexdigest()


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the names of the modules (or of what is in them) that a module imports anywhere but for type checkers."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in {
            getattr(node.test, "id", ""),
            getattr(node.test, "attr", ""),
        }:
            waiting.extend(node.orelse)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, (ast.stmt, ast.Module, ast.excepthandler, ast.match_case)):
            waiting.extend(ast.iter_child_nodes(node))


@cache
def _folder(top: str) -> Path | None:
    """Return the folder in which a top-level package or module lies, or None where there is no source."""
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        locations = list(spec.submodule_search_locations or ()) if spec is not None else []
        return Path(locations[0]).parent if locations else None
    origin = Path(spec.origin)
    return origin.parent.parent if spec.submodule_search_locations is not None else origin.parent


@cache
def _source_of(name: str) -> Path | None:
    """Return the file of a module of a followed package, or None where the name is no module."""
    folder = _folder(name.split(".", maxsplit=1)[0])
    if folder is None:
        return None
    path = folder.joinpath(*name.split("."))
    candidates = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


@cache
def _module(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the digest of a module's tree, and the dotted names it imports; None where the name is no module."""
    source = _source_of(name)
    if source is None:
        return None
    package = name if source.name == "__init__.py" else name.rpartition(".")[0]
    text = source.read_bytes()
    key = f"{package} {hashlib.sha256(text).hexdigest()}"
    with _PARSING:
        kept = _kept_modules()
        if key not in kept:
            tree = ast.parse(text)
            kept[key] = [_digest(tree), *dict.fromkeys(_imports(tree, package))]
        digest, *imported = kept[key]
    return digest, tuple(imported)


def _kept_file() -> Path:
    return Path(importlib.util.cache_from_source(__file__)).with_suffix(".json")


@cache
def _kept_modules() -> dict[str, list[str]]:
    """Return the digests and imports of modules that earlier processes parsed, by their package and bytes."""
    with contextlib.suppress(OSError, NotImplementedError):
        digest, _, kept = _kept_file().read_text("utf-8").partition("\n")
        if digest == _digest_of_kept(kept):
            return dict(json.loads(kept))
    return {}


def _digest_of_kept(kept: str) -> str:
    # This module makes the digests: where it is another, so are they.
    return hashlib.sha256(Path(__file__).read_bytes() + kept.encode()).hexdigest()


def _keep_modules(modules: dict[str, list[str]]) -> None:
    """Keep what was parsed for later processes; where that is not possible, they parse again."""
    if sys.dont_write_bytecode:
        return
    kept = json.dumps(modules)
    with contextlib.suppress(OSError, StorageError, NotImplementedError):
        write_bytes(_kept_file(), f"{_digest_of_kept(kept)}\n{kept}".encode())


def _closure(roots: tuple[str, ...], followed: frozenset[str]) -> tuple[dict[str, str], set[str]]:
    """Return the digests of all modules that importing ``roots`` runs, and the other packages that they import."""
    sources: dict[str, str] = {}
    others: set[str] = set()
    known = len(_kept_modules())
    waiting, seen = list(roots), set(_LEFT_OUT)
    while waiting:
        # The packages above a module are run too when it is imported.
        for name in accumulate(waiting.pop().split("."), "{}.{}".format):
            if name in seen:
                continue
            seen.add(name)
            if not any(name == each or name.startswith(f"{each}.") for each in followed):
                if "." not in name and name not in sys.stdlib_module_names | _AROUND:
                    others.add(name)
            elif (module := _module(name)) is not None:
                sources[name], imported = module
                waiting.extend(imported)
    if len(modules := _kept_modules()) > known:
        _keep_modules(modules)
    return sources, others


@cache
def _data_files(folder: Path) -> dict[str, str]:
    """Return the digests of the files in a folder, and in folders in it that are no packages, that are no code."""
    digests: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "__pycache__")) or path.suffix in {".py", ".pyc"} or path.name == "py.typed":
            continue
        if path.is_dir() and not (path / "__init__.py").exists():
            digests |= {f"{path.name}/{name}": digest for name, digest in _data_files(path).items()}
        elif path.is_file():
            digests[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


@cache
def _distribution(top: str) -> str:
    """Return the name and version of the distribution that has a top-level package, or that there is none."""
    name = _DISTRIBUTIONS.get(top, top)
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        if importlib.util.find_spec(top) is None:
            return "none"
        # Reads every distribution's list of files: only where the names differ.
        names = importlib.metadata.packages_distributions().get(top, [])
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(names)) or "none"


@cache
def code_version(*classes: type) -> str:
    """Return the version of everything that computes a release, 16 hex digits.

    Parameters
    ----------
    *classes : type
        What the release is made by: its algorithm's class, and its trust model's. Without any, the version of all
        mathematics, for objects that are not releases.
    """
    roots = (*_DOOR, *(cls.__module__ for cls in classes), *(() if classes else _all_modules()))
    parts, others = _sources(roots, _plugins(classes))
    return _version({**parts, "distributions": {name: _distribution(name) for name in others | _plugins(classes)}})


@cache
def mathematics_version(*classes: type) -> str:
    """Return the version of our own code that some classes' numbers are made by, 16 hex digits.

    Unlike :func:`code_version` without the door, and without the versions of other packages.
    """
    return _version(_sources(tuple(cls.__module__ for cls in classes), _plugins(classes))[0])


def _plugins(classes: tuple[type, ...]) -> set[str]:
    return {cls.__module__.split(".", maxsplit=1)[0] for cls in classes} - {_OWN}


def _sources(roots: tuple[str, ...], plugins: set[str]) -> tuple[dict[str, object], set[str]]:
    """Return the digests of the modules that importing ``roots`` runs and of the data beside them; other packages."""
    modules, others = _closure(roots, frozenset({_OWN, *_DOOR, *plugins}))
    # What lies beside the modules of a package; a module without one has no data.
    sources = {name: source for name in modules if (source := _source_of(name)) is not None}
    packages = {name if source.name == "__init__.py" else name.rpartition(".")[0] for name, source in sources.items()}
    data = {name: digests for name in packages & sources.keys() if (digests := _data_files(sources[name].parent))}
    return {"modules": modules, "data": data}, others


def _version(parts: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@cache
def _all_modules() -> tuple[str, ...]:
    folder = _folder(_OWN)
    assert folder is not None
    files = sorted((folder / _OWN).rglob("*.py"))
    return tuple(".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__") for file in files)


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot digest a {type(value).__name__}")


def identity_json(value: object) -> str:
    """Return the one JSON text of a value: keys sorted, no spaces, exact floats; NaN refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain, allow_nan=False)


def identity(**parts: object) -> str:
    """Return the SHA-256 digest (64 hex digits) of named parts."""
    return hashlib.sha256(identity_json(parts).encode()).hexdigest()


@cache
def source_digest(cls: type) -> str:
    """Return the digest of a class's normalised syntax tree, as :func:`normalised_digest` does of a module's."""
    with _PARSING:
        return normalised_digest(textwrap.dedent(inspect.getsource(cls)))


@cache
def package_digest(*packages: str) -> str:
    """Return the digest of all files of some of our packages: sources, and the data files next to them."""
    here = Path(__file__).resolve().parent.parent.parent
    found = sorted(source for package in packages for source in (here / package).rglob("*"))
    files = [source for source in found if source.is_file() and "__pycache__" not in source.parts]
    return identity(**{str(file.relative_to(here)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files})


@cache
def required_versions() -> tuple[str, ...]:
    """Return names and versions of the distributions that Unitball requires, those of its extras where installed."""
    required = importlib.metadata.requires("unitball") or ()
    names = {re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in required}
    return tuple(f"{name}: {_distribution(name)}" for name in sorted(names))
