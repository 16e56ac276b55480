"""Write all texts that people read in errors, warnings and help into one file, whose diff is what is reviewed.

    python scripts/templates.py    writes tests/templates.txt; tests/test_templates.py compares it with the code

The texts are literals of the code, read from its syntax trees, with the places of their values in braces. They are
those of

- ``error``: what is raised or made into an error: in the statement itself, in variables of the function that raises
  it, and in functions that are called there and return text;
- ``warning``: what is warned of or logged;
- ``help``: of commands, options and settings;
- ``guarantee``: sentences that guarantees hold by their codes (``dpalgos/sentences.py``).

A text stands under its module and the function that it is in, without its line, so that moved code changes nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("deployments", "dpalgos", "flows", "storage", "tasks", "unitball")
KEPT = REPOSITORY / "tests" / "templates.txt"
_HEAD = "# Made by `make templates` from the code: errors, warnings, help and guarantees, by module and function.\n"
_HELP = frozenset({"help", "epilog", "short_help", "description", "title"})
_COMMANDS = frozenset({"command", "callback"})
_WARNS = frozenset({"warn", "warning", "error", "info", "exception", "critical"})
_ERROR = re.compile(r"(Error|Exception|Exit|Warning)$")
_SENTENCES = "dpalgos/sentences.py"
_WORD = re.compile(r"[A-Za-z]{2}")
_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def templates() -> str:
    """Return the file's text as it follows from the code."""
    trees = {path: ast.parse(path.read_bytes()) for path in _sources()}
    telling = _telling([node for tree in trees.values() for node in _walk(tree)])
    sections = []
    for path, tree in trees.items():
        place = path.relative_to(REPOSITORY).as_posix()
        lines = dict.fromkeys(_lines(tree, telling, sentences=place == _SENTENCES))
        if lines:
            sections.append("\n".join([f"## {place}", *lines]))
    return "\n\n".join([_HEAD, *sections]) + "\n"


def _sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes under a node, but for names, constants and operators: half of all, and nothing here is one."""
    for field in node._fields:
        value = getattr(node, field)
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, ast.AST) and not isinstance(one, _LEAVES):
                yield one


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    left = [node]
    while left:
        node = left.pop()
        yield node
        left += _children(node)


def _name(node: ast.expr) -> str:
    """Return the last name of what is called: ``warn`` of ``warnings.warn``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _makes_error(node: ast.AST) -> bool:
    """Whether an expression makes an error, or one of the same class that says something else."""
    return isinstance(node, ast.Call) and (_ERROR.search(_name(node.func)) is not None or _name(node.func) == "saying")


def _telling(nodes: Collection[ast.AST]) -> frozenset[str]:
    """Return the names of functions, of these nodes, that return text and are called where an error is made."""
    called = {
        _name(call.func)
        for told in nodes
        if isinstance(told, ast.Raise) or _makes_error(told)
        for call in ast.walk(told)
        if isinstance(call, ast.Call)
    }
    return frozenset(
        node.name
        for node in nodes
        if isinstance(node, Definition)
        and node.name in called
        and node.returns is not None
        and "str" in ast.unparse(node.returns)
    )


def _lines(tree: ast.Module, telling: frozenset[str], *, sentences: bool) -> Iterator[str]:
    """Yield a module's lines in the order of the code: kind, function, text."""
    found: list[tuple[int, int, str, str, str]] = []

    def keep(kind: str, where: str, node: ast.AST) -> None:
        for text in _texts(node):
            found.append((getattr(node, "lineno", 0), getattr(node, "col_offset", 0), kind, where, text))

    def visit(node: ast.AST, where: str, inside: Definition | None) -> None:
        # Options are named, too: the parameters of commands, and the fields of settings.
        field = node.target if isinstance(node, ast.AnnAssign) and inside is None else None
        name = node.arg if isinstance(node, ast.arg) else field.id if isinstance(field, ast.Name) else ""
        if isinstance(node, ast.ClassDef | Definition):
            name = node.name
        where = ".".join(filter(None, (where, name)))
        if isinstance(node, Definition):
            inside = node
            if any(isinstance(each, ast.Call) and _name(each.func) in _COMMANDS for each in node.decorator_list):
                keep("help", where, ast.Constant(ast.get_docstring(node) or "", lineno=node.lineno, col_offset=0))
            if node.name in telling:
                for statement in node.body[bool(ast.get_docstring(node)) :]:
                    keep("error", where, statement)
        if isinstance(node, ast.Raise) or _makes_error(node):
            keep("error", where, node)
            for statement in _assigned(inside, node):
                keep("error", where, statement)
        elif isinstance(node, ast.Call):
            if _name(node.func) in _WARNS:
                keep("warning", where, node)
            elif _name(node.func) == "_Command":
                keep("help", where, node)
            for keyword in node.keywords:
                if keyword.arg in _HELP:
                    keep("help", where, keyword.value)
        elif sentences and isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant):
                    keep("guarantee", str(key.value), value)
        for child in _children(node):
            visit(child, where, inside)

    visit(tree, "", None)
    for _, _, kind, where, text in found:
        yield f"{kind} {where or '(module)'}: {text}"


def _assigned(inside: Definition | None, told: ast.AST) -> Iterator[ast.AST]:
    """Yield what a function assigns to the variables that an error is made of."""
    if inside is None:
        return
    names = {node.id for node in ast.walk(told) if isinstance(node, ast.Name)}
    yield from (value for targets, value in _assignments(inside) if targets & names)


@cache
def _assignments(inside: Definition) -> list[tuple[set[str], ast.expr]]:
    """Return the variables that are assigned to in each assignment of a function, and the value."""
    found = []
    for node in ast.walk(inside):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
            found.append((names, node.value))
    return found


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts under a node: literals with at least a space and a word, values in braces."""
    text = _template(node)
    if text is not None:
        text = " ".join(text.split())
        if " " in text and _WORD.search(text):
            yield text
        inner = _values(node)
    else:
        inner = list(ast.iter_child_nodes(node))
    for child in inner:
        yield from _texts(child)


def _template(node: ast.AST) -> str | None:
    """Return a literal's text with the places of its values; None of what is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{_placeholder(part)}}}" for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _template(node.left), _template(node.right)
        return None if left is None or right is None else left + right
    return None


def _values(node: ast.AST) -> list[ast.AST]:
    return [one.value for one in ast.walk(node) if isinstance(one, ast.FormattedValue)]


def _placeholder(part: ast.AST) -> str:
    """Return what stands for a value: the expression, or dots where that contains other texts or is long."""
    value = part.value if isinstance(part, ast.FormattedValue) else part
    plain = not any(isinstance(one, ast.JoinedStr) or _is_wording(one) for one in ast.walk(value))
    text = ast.unparse(value) if plain else ""
    return text if plain and len(text) <= 60 else "…"


def _is_wording(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


if __name__ == "__main__":
    KEPT.write_text(templates(), encoding="utf-8")
