"""Changes of the sources, drawn at random under a public seed, and which of them the day suite notices.

    python -m pytest -m "not nightly" -n 3 --dist loadfile --cov --cov-context=test --cov-report= --junitxml=day.xml
    python benchmarks/mutants.py --times day.xml --output mutants.json
    python benchmarks/mutants.py --times day.xml --output after.json --before mutants.json
    python benchmarks/mutants.py --table benchmarks/results/mutants.json --before mutants.json --after after.json

The third is for a suite that was cut: what was killed before has to be killed after. The test that killed a mutant runs
first, then those of its line that are left, and those that are new in their files. The last writes the page's table.
`--seed 2` draws from the modules that were written after the first draw (ADDED), in each of these commands.

Each mutant changes one place: a comparison, an operator, a number, a condition, a statement that is left out. It is
written into this checkout, which must be clean, and taken out again; the tests whose coverage touches its line run, the
quickest first, until one fails. Where a fixture of a module runs the line, all tests of that module do. Lines that run
when a module is imported go with all tests that touch the module. `--share 1/2` and `--share 2/2` are halves, for two
checkouts side by side. A mutant is *unsettled* where the test that failed fails without it as well, after the same
tests of its file.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData
from shared import keep

REPOSITORY = Path(__file__).resolve().parents[1]
Outcome = dict[str, object]


@dataclass(frozen=True)
class Part:
    """How many mutants are drawn from which files and folders."""

    number: int
    places: tuple[str, ...]


FIRST = {
    "tasks/release": Part(30, ("tasks/release",)),
    "storage/ledger": Part(30, ("storage/ledger",)),
    "tasks/accounts": Part(30, ("tasks/accounts",)),
    "dpalgos": Part(60, ("dpalgos",)),
}
# Modules that were written after the first draw.
ADDED = {
    "synthetic rows": Part(
        24,
        (
            "dpalgos/synthesis",
            "tasks/release/synthesis.py",
            "tasks/release/drawn_rows.py",
            "tasks/datasets/synthetic_cells.py",
            "tasks/preparation/drawn.py",
            "tasks/auditing/synthesis_chain.py",
            "tasks/tracking/synthesis_tables.py",
        ),
    ),
    "components": Part(
        13,
        (
            "dpalgos/components.py",
            "dpalgos/evaluators/second_moments.py",
            "dpalgos/features/centred_components.py",
            "tasks/release/moments.py",
            "tasks/preparation/paid_moments.py",
            "tasks/tracking/reductions.py",
        ),
    ),
    "explanations": Part(8, ("dpalgos/shapley.py", "tasks/tracking/explanations.py")),
    "pairs of columns": Part(
        14,
        (
            "dpalgos/pair_tables.py",
            "dpalgos/evaluators/pair_counts.py",
            "tasks/release/column_pairs.py",
            "tasks/release/pair_descriptions.py",
            "tasks/planning/column_statistics.py",
        ),
    ),
    "intervals and sets": Part(
        18,
        (
            "dpalgos/conformal.py",
            "dpalgos/error_margins.py",
            "dpalgos/evaluators/error_distribution.py",
            "dpalgos/features/label_range.py",
            "tasks/tracking/coverings.py",
        ),
    ),
    "class means and groups": Part(
        11,
        (
            "dpalgos/class_means.py",
            "dpalgos/measured.py",
            "dpalgos/elementary.py",
            "dpalgos/confusions.py",
            "dpalgos/group_margins.py",
            "dpalgos/group_curves.py",
            "tasks/release/prices.py",
        ),
    ),
    "cells and files": Part(
        10,
        (
            "storage/raw_cells.py",
            "storage/frames.py",
            "storage/hidden_cells.py",
            "storage/recognition.py",
            "storage/readers/in_memory.py",
            "tasks/tracking/lineage.py",
            "tasks/tracking/predicted_files.py",
        ),
    ),
}
# By seed; any other seed draws from the first parts.
DRAWS = {1: FIRST, 2: ADDED}
_PACKAGES = ("dpalgos", "storage", "tasks")

# Of those that the seeds drew before tests were cut or added: those that no test could detect, because they change no
# result.
EQUIVALENT = {
    "tasks/release/ranges.py:153": "what is zipped has one length already",
    "tasks/release/ranges.py:128": "twice nought is nought",
    "tasks/release/noise_secrets.py:15": "how many secrets are read at once, not which",
    "tasks/accounts/pricing.py:142": "twice nought is nought",
    "tasks/accounts/filters.py:31": "an account's first entry is no plan, so none has the number nought",
    "tasks/accounts/ledger.py:54": "the check is made again below it; it is gone by now",
    "storage/ledger/database.py:568": "SQLite was built to read every name as a URI; where it was not, no ledger opens",
    "storage/ledger/moving.py:164": "parameters are hidden of statements that have none",
    "dpalgos/accounting/composition.py:170": "of a loss μ = 0 both sides are nought",
    "dpalgos/evaluators/column_histograms.py:145": "any two bins are equally far apart",
    "dpalgos/projections/ppca.py:80": "any parameter of the envelope gives the same law, rejecting more or less",
    "dpalgos/trainers/tuned.py:342": "two blocks say the same as one",
    "dpalgos/kernels.py:15": "how many blocks there are, not what is in them",
    "dpalgos/mechanisms/distributions.py:267": "one binary digit more of 320: of sixty scales no threshold changes",
    "dpalgos/mechanisms/distributions.py:225:11873": "at the whole width the conditional distribution function is 1",
    "dpalgos/evaluators/second_moments.py:307:14159": "neighbouring places are copied instead of viewed",
    "dpalgos/error_margins.py:330": "twice 0 is 0",
    "dpalgos/group_margins.py:342": "twice 0 is 0",
    "tasks/tracking/explanations.py:489": "twice 0 is 0",
    "tasks/release/column_pairs.py:262": "of numbers that are not whole the ends rise in any case",
    "tasks/release/drawn_rows.py:325": "every schema has a marker, and the empty one is the least",
}

_OPTIONS = "-x -q --no-header -p no:cacheprovider -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true"

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
}


@dataclass(frozen=True, order=True)
class Mutant:
    """One change: the text from one place of a file to another, and what stands there instead."""

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """Where it is, and what is changed into what."""
        return f"{self.path}:{self.line}:{self.start}: {self.before} -> {self.after}"


def mutated(node: ast.AST) -> Iterator[ast.AST | str]:
    """Yield what a node can be changed into."""
    match node:
        case ast.Compare(left, [op], others) if type(op) in _COMPARISONS:
            yield ast.Compare(left, [_COMPARISONS[type(op)]()], others)
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS and not _is_text(left) and not _is_text(right):
            yield ast.BinOp(left, _OPERATORS[type(op)](), right)
        case ast.BoolOp(ast.And(), values):
            yield ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(ast.Or(), values):
            yield ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(float() as value):
            yield ast.Constant(2 * value)
        case ast.Call(ast.Name("min" | "max" as function), arguments, words):
            other = "max" if function == "min" else "min"
            yield ast.Call(ast.Name(other), arguments, words)
        case ast.IfExp(test, body, other) if ast.unparse(body) != ast.unparse(other):
            yield ast.IfExp(test, other, body)
        case ast.Raise() | ast.Expr(ast.Call()):
            yield "pass"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def mutants_of(path: str) -> list[Mutant]:
    """Return all mutants of a file, in order."""
    source = (REPOSITORY / path).read_bytes()
    starts = [0]
    for text in source.split(b"\n"):
        starts.append(starts[-1] + len(text) + 1)
    found = []
    for node in _code(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = source[start:end].decode()
        for other in mutated(node):
            after = other if isinstance(other, str) else f"({ast.unparse(ast.fix_missing_locations(other))})"
            found.append(Mutant(path, node.lineno, start, end, before, after))
    return sorted(found)


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a tree's nodes without annotations, texts that are put together, and patterns."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, (ast.JoinedStr, ast.pattern)):
                if hasattr(child, "lineno"):
                    yield child
                yield from _code(child)


def drawn(seed: int) -> list[Mutant]:
    """Return the mutants of a seed: of each part its number, all changes equally likely."""
    numbers = random.Random(seed)
    chosen: list[Mutant] = []
    for part in DRAWS.get(seed, FIRST).values():
        places = [one for path in _files(part) for one in mutants_of(_named(path))]
        chosen += sorted(numbers.sample(places, part.number))
    return chosen


def _files(part: Part) -> list[Path]:
    paths = [REPOSITORY / place for place in part.places]
    return sorted(file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py")))


def _named(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


class Tests:
    """Which tests run a line, and how long each takes."""

    def __init__(self, times: Path) -> None:
        self._data = CoverageData(str(REPOSITORY / ".coverage"))
        self._data.read()
        self._files = {_tail(path): path for path in self._data.measured_files()}
        self.seconds: dict[str, float] = {}
        by_module: dict[str, set[str]] = defaultdict(set)
        for case in ElementTree.parse(times).getroot().iter("testcase"):
            name = "::".join([*_file_and_classes(case.get("classname", "")), case.get("name", "")])
            if not any(child.tag == "skipped" for child in case):
                self.seconds[name] = float(case.get("time", 0))
                by_module[name.split("::")[0]].add(name)
        self._by_module = by_module
        self._here = _collected()

    def of(self, mutant: Mutant, first: object = None) -> list[str]:
        """Return the tests of this checkout that run a mutant's line: one that is named, then the quickest."""
        where = self._files.get(mutant.path)
        if where is None:
            return []
        lines = self._data.contexts_by_lineno(where)
        contexts = {one for one in lines.get(mutant.line, ()) if one}
        if not contexts:
            contexts = {one for found in lines.values() for one in found if one}
        tests = set()
        for context in contexts:
            test, _, phase = context.rpartition("|")
            tests |= self._by_module[test.split("::")[0]] if phase == "setup" else {test}
        # File by file, since what a file's tests share is made once only while they follow each other.
        of_file: dict[str, list[str]] = defaultdict(list)
        measured = {test.split("::")[0] for test in tests}
        tests |= {test for test in self._here if test not in self.seconds and test.split("::")[0] in measured}
        for test in sorted(tests & self._here, key=lambda test: (self._of(test), test)):
            of_file[test.split("::")[0]].append(test)
        files = sorted(of_file.values(), key=self._together)
        found = [test for those in files for test in those]
        return [first, *(test for test in found if test != first)] if first in self._here else found

    def _together(self, tests: list[str]) -> float:
        return sum(map(self._of, tests))

    def _of(self, test: str) -> float:
        # A test that is new since they were measured runs at once.
        return self.seconds.get(test, 0.0)

    def in_two(self, tests: list[str], first: float = 30.0) -> list[list[str]]:
        """Return the tests of the first seconds, and the rest: most mutants need no more than the first."""
        spent = 0.0
        for place, test in enumerate(tests):
            spent += self._of(test)
            if spent > first:
                return [tests[: place + 1], tests[place + 1 :]]
        return [tests]


def _file_and_classes(name: str) -> list[str]:
    """Return a test's file and the classes that it is in, of which JUnit's name is put together by points."""
    parts, classes = name.split("."), []
    while len(parts) > 1 and not REPOSITORY.joinpath(*parts).with_suffix(".py").exists():
        classes.insert(0, parts.pop())
    return ["/".join(parts) + ".py", *classes]


def _collected() -> set[str]:
    """Return the names of this checkout's tests by day."""
    command = [sys.executable, "-m", "pytest", "-m", "not nightly", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def _tail(path: str) -> str:
    """Return a measured file's path below the repository, in which checkout soever it was measured."""
    parts = Path(path).parts
    first = next((place for place, part in enumerate(parts) if part in _PACKAGES), 0)
    return "/".join(parts[first:])


def outcome(mutant: Mutant, stages: list[list[str]]) -> Outcome:
    """Write a mutant, run tests until one fails, and take it out again."""
    file = REPOSITORY / mutant.path
    source, stood = file.read_bytes(), file.stat()
    began = time.monotonic()
    killer, fell = None, list[str]()
    try:
        file.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
        for tests in stages:
            if killer is None and (killer := _failing(tests)):
                fell = _up_to(killer, tests)
    finally:
        file.write_bytes(source)
        os.utime(file, ns=(stood.st_atime_ns, stood.st_mtime_ns))
    # A test that fails without the mutant, too, says nothing of it.
    found = "unsettled" if _failing(fell) else "killed"
    return {
        "outcome": found if killer else "survived",
        "by": killer,
        "seconds": round(time.monotonic() - began, 1),
    }


def _up_to(killer: str, tests: list[str]) -> list[str]:
    """Return a test and those of its file that ran before it: what these left may be what it fails of."""
    if killer not in tests:
        return tests
    before = tests[: tests.index(killer)]
    return [*(test for test in before if test.split("::")[0] == killer.split("::")[0]), killer]


def _failing(tests: list[str]) -> str | None:
    """Run tests until one fails, and return which; one that takes ten minutes fails."""
    if not tests:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write("\n".join(tests))
        listed.flush()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *_OPTIONS.split(), f"@{listed.name}"],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # What Python has compiled of the file goes by its time, which is put back.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            check=False,
        )
    if done.returncode == 0:
        return None
    named = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return named[0].partition(" ")[2].partition(" - ")[0] if named else done.stdout[-300:]


def _held(paths: Iterable[Path]) -> dict[str, Outcome]:
    return {name: one for path in paths for name, one in json.loads(path.read_text("utf-8")).items()}


def table(before: dict[str, Outcome], after: dict[str, Outcome], seed: int) -> dict[str, object]:
    """Return how many mutants of each part the tests killed before and after a cut, and how many change nothing."""
    rows = []
    parts = DRAWS.get(seed, FIRST)
    for part in [*parts, ""]:
        places = parts[part].places if part else ("",)
        own = [name for name in before if name.startswith(places)]
        killed = [[name for name in own if each.get(name, {}).get("outcome") == "killed"] for each in (before, after)]
        equal = [name for name in own if any(name.startswith(f"{place}:") for place in EQUIVALENT)]
        if alive := set(killed[0]) - set(killed[1]):
            sys.exit(f"killed before and not after: {sorted(alive)}")
        left = len(own) - len(killed[1]) - len(equal)
        rows.append([part or "all", *map(str, (len(own), *map(len, killed), len(equal), left))])
    titles = ("part", "drawn", "killed before", "killed after", "equivalent", "left")
    columns = [{"title": title, "align": "right" if place else "left"} for place, title in enumerate(titles)]
    return {"columns": columns, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=Path, help="the suite's JUnit file")
    parser.add_argument("--output", type=Path, help="JSON, added to; what it holds is not run again")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", default="1/1", help="which of how many parts of the list")
    parser.add_argument("--before", type=Path, nargs="+", default=[], help="JSON of a run before: those that it killed")
    parser.add_argument("--after", type=Path, nargs="+", default=[], help="JSON of runs after a cut, for --table")
    parser.add_argument("--table", type=Path, help="write the page's table of what --before and --after hold, and end")
    given = parser.parse_args()
    if given.table:
        keep(given.table, table(_held(given.before), _held(given.after), given.seed), f"seed {given.seed}")
        return
    if given.times is None or given.output is None:
        parser.error("give --times, by which the tests of a line are put in order, and --output")
    if subprocess.run(["git", "diff", "--quiet"], cwd=REPOSITORY, check=False).returncode:
        sys.exit("this checkout has changes: commit them first, mutants are written into its files")
    tests = Tests(given.times)
    part, parts = (int(number) for number in given.share.split("/"))
    held = json.loads(given.output.read_text()) if given.output.exists() else {}
    before = _held(given.before)
    chosen = [one for one in drawn(given.seed) if not before or before[one.name]["outcome"] == "killed"]
    for mutant in chosen[part - 1 :: parts]:
        if mutant.name in held:
            continue
        those = tests.of(mutant, before.get(mutant.name, {}).get("by"))
        found = outcome(mutant, tests.in_two(those)) if those else {"outcome": "survived", "by": None, "seconds": 0}
        held[mutant.name] = {**found, "tests": len(those)}
        given.output.write_text(json.dumps(held, indent=1, ensure_ascii=False) + "\n")
        print(f"{found['outcome']:9}{found['seconds']:7} s {len(those):5} tests  {mutant.name}", flush=True)
    counts = defaultdict(int)
    for one in held.values():
        counts[one["outcome"]] += 1
    print(dict(counts))


if __name__ == "__main__":
    main()
