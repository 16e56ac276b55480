"""Names on pages and in docstrings exist: files, modules, tests, anchors, and command lines with their options."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_group

from deployments.cli import entry_point
from tasks.planning.configuration import TrainingConfig

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("unitball", "flows", "tasks", "dpalgos", "storage", "deployments")
# What readers call their own files on a page.
_EXAMPLES = {"spec.yaml", "schema.yaml", "visits.yaml", "relay.py"}

_SOURCE = r"(?:[\w-]+/)*[\w-]+\.(?:py|md|ya?ml|toml|ipynb|sh|lock)"
_FILE = re.compile(rf"(?<![\w/.*<-])({_SOURCE}|(?:[\w-]+/)+[\w-]+(?:\.\w+)+)\b(?![(.]\w)")
# Not the beginning of a name with a star behind it, nor an attribute.
_TEST = re.compile(r"(?<![\w.])test_\w*[a-z0-9]\b(?![\w*])")
_DOTTED = re.compile(rf"(?<![\w/.@-])((?:{'|'.join(PACKAGES[1:])})(?:\.\w+)+)(?![\w/(*-])")
_ROLE = re.compile(r":(?:mod|class|func|meth|attr|data|exc):`~?([\w.]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"^\s*\$?\s*((?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?unitball [a-z].*)$", re.M)
_INLINE = re.compile(r"`((?:[A-Z_]+=\S+ )*unitball [a-z][^`\n]*)`")


@cache
def tracked() -> tuple[str, ...]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return tuple(sorted(found.stdout.splitlines()))


PAGES = [one for one in tracked() if one.endswith(".md")]
MODULES = [one for one in tracked() if one.endswith(".py") and one.split("/")[0] in PACKAGES]


@cache
def names_of_tests() -> frozenset[str]:
    """Return the names of all tests and of the modules that hold them."""
    paths = [one for one in tracked() if one.startswith("tests/") and one.endswith(".py")]
    named = (re.findall(r"def (test_\w+)\(", (REPOSITORY / path).read_text("utf-8")) for path in paths)
    return frozenset(Path(path).stem for path in paths).union(*named)


def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text("utf-8")


@cache
def docstrings(path: str) -> str:
    """Return all docstrings of a module, and its comments, which name proofs too."""
    text = text_of(path)
    nodes = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    )
    strings = [ast.get_docstring(node, clean=False) or "" for node in nodes]
    return "\n".join([*strings, *re.findall(r"^\s*#.*$", text, flags=re.M)])


@cache
def ends() -> frozenset[str]:
    """Return the paths of all files, and all ends of them."""
    return frozenset("/".join(one.split("/")[start:]) for one in tracked() for start in range(one.count("/") + 1))


def missing_files(text: str) -> set[str]:
    """Return the files that a text names and that no folder holds, by their whole path or the end of it."""
    sources = {one for one in _FILE.findall(text) if one.endswith((".py", ".md", ".sh", ".ipynb")) or "/" in one}
    return {one for one in sources if one not in ends() and one.split("/")[0] in (*_TOP, one)}


_TOP = tuple({one.split("/")[0] for one in tracked() if "/" in one})


@cache
def is_there(dotted: str) -> bool:
    """Whether a dotted name can be imported, or looked up in what can."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return _has(found, parts[length:])
    return False


def _has(found: Any, names: list[str]) -> bool:
    """Whether an object has an attribute of an attribute, fields without a default included."""
    for name in names:
        if not hasattr(found, name):
            return isinstance(found, type) and any(name in inspect.get_annotations(one) for one in found.__mro__)
        found = getattr(found, name)
    return True


def unknown_names(text: str) -> set[str]:
    """Return the tests, modules and what modules hold that a text names and that are not there."""
    # A setting whose name begins so is no test.
    tests = {one for one in _TEST.findall(text) if one not in names_of_tests() | TrainingConfig.model_fields.keys()}
    return tests | {one for one in _DOTTED.findall(text) if not one.endswith(".name.function") and not is_there(one)}


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_what_exists(page: str) -> None:
    text = text_of(page)
    assert missing_files(text) - _EXAMPLES == set()
    assert unknown_names(text) == set()


def test_docstrings_name_what_exists() -> None:
    texts = {path: docstrings(path) for path in MODULES}
    assert {path: found for path, text in texts.items() if (found := missing_files(text))} == {}
    # A method that reads one batch of CIFAR, or asks a party, is no test.
    own = {"test_batch", "test_rows"}
    assert {path: found for path, text in texts.items() if (found := unknown_names(text) - own)} == {}


def test_cross_references_of_docstrings_lead_somewhere() -> None:
    """A role names something in its module, in a class of it, or by its whole path."""
    broken = {}
    for path in MODULES:
        module = importlib.import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        classes = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
        names = set(_ROLE.findall(docstrings(path)))
        elsewhere = {one for one in names if not any(_has(place, one.split(".")) for place in (module, *classes))}
        if found := {one for one in elsewhere if not is_there(one)}:
            broken[path] = found
    assert broken == {}


def _anchors(page: str) -> set[str]:
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+?)\s*$", text, flags=re.M)
    named = set(re.findall(r'<a id="([^"]+)">', text))
    return named | {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", one.lower()).strip()) for one in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere_in_a_clone(page: str) -> None:
    """To a file, a heading, or a class or function of a module; the site's build checks what it makes of them."""
    for link in _LINK.findall(text_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = os.path.normpath((Path(page).parent / target) if target else page)
        assert (REPOSITORY / path).exists(), link
        if path.endswith(".py") and anchor:
            module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
            assert _has(module, anchor.split(".")), link
        elif anchor:
            assert anchor in _anchors(path), link


@cache
def commands() -> Any:
    entry_point.import_all()
    return get_group(entry_point.app)


def command_lines(text: str) -> Iterator[str]:
    """Return the command lines of a page: lines of code, and code between words."""
    joined = re.sub(r"\\\n\s*", " ", text)
    # A quotation goes on over lines.
    quoted = re.compile(r'^ {4}.*unitball [^\n"]*"[^"\n]*\n[^"]*"', flags=re.M)
    joined = quoted.sub(lambda found: found[0].replace("\n", " "), joined)
    yield from _INLINE.findall(joined)
    yield from (line for line in _COMMAND.findall(joined) if "`" not in line)


def fault_of(line: str) -> str | None:
    """Return what its command says of a line's words: an option that it has not, a value too few, a word too many."""
    words = shlex.split(line, comments=True)
    while not words[0].endswith("unitball"):
        words.pop(0)
    words = words[1:]
    for end in ("|", ">", ">>", "&&", ";", "&"):
        words = words[: words.index(end)] if end in words else words
    command, context = commands(), typer.Context(commands(), info_name="unitball")
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return f"no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
        context = typer.Context(command, info_name=command.name, parent=context)
    try:
        _, left, _ = command.make_parser(context).parse_args(list(words))
    except Exception as error:
        return str(error)
    # What a line leaves out: further words.
    more = [one for one in left if one != "…"]
    return f"too many words: {more}" if more else None


@pytest.mark.parametrize("page", PAGES)
def test_command_lines_are_what_commands_take(page: str) -> None:
    assert {line: fault for line in command_lines(text_of(page)) if (fault := fault_of(line))} == {}


def options(command: Any, *named: str) -> Iterator[tuple[str, list[str]]]:
    """Return each command's options, each by all its spellings; not those that help leaves out."""
    for name, below in getattr(command, "commands", {}).items():
        yield from options(below, *named, name)
    for parameter in () if hasattr(command, "commands") else command.params:
        if parameter.param_type_name == "option" and not parameter.hidden and "--help" not in parameter.opts:
            yield " ".join(named), [*parameter.opts, *parameter.secondary_opts]


def test_every_option_is_on_some_page() -> None:
    """What nobody is told of nobody uses: it is removed, or a page says what it is for."""
    told = {word for page in PAGES for word in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text_of(page))}
    assert [one for one in options(commands()) if not told.intersection(one[1])] == []


def test_what_does_not_exist_is_found() -> None:
    """`unitball results --sql` stood on a page, and proofs in modules that were gone."""
    assert fault_of("unitball results --sql") is not None
    assert fault_of("unitball reslts") == "no command reslts"
    assert fault_of('unitball results "SELECT 1" more words') is not None
    assert fault_of("unitball train --dataset digits --epsilon 1 …") is None
    assert missing_files("see `dpalgos/accounting/filters.py`, `successive.py` and `spending.py`") == {
        "dpalgos/accounting/filters.py",
        "successive.py",
    }
    gone = "(`test_that_is_no_more`), `dpalgos.accounting.filters`, `dpalgos.accounting.spending`, test_pages_*"
    assert unknown_names(gone) == {"test_that_is_no_more", "dpalgos.accounting.filters"}
    assert not is_there("storage.refs.NoSuchRef")
    lines = '    unitball results "SELECT a\n      FROM runs"\nand `unitball datasets`.'
    assert list(command_lines(lines)) == ["unitball datasets", 'unitball results "SELECT a       FROM runs"']
