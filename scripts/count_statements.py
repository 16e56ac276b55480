"""Count the statements of each package: nodes of the syntax tree without docstrings, in all Python that git tracks."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from pathlib import Path


def statements(path: Path) -> int:
    """Return the statements of a file, docstrings left out."""
    return sum(
        isinstance(node, ast.stmt)
        and not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


CORE = ("tasks/planning/", "tasks/preparation/", "tasks/release/", "tasks/accounts/", "tasks/datasets/",
        "tasks/runtime/", "storage/", "dpalgos/")  # fmt: skip
"""What docs/design.md calls the core, without :data:`SHELVES`."""
SHELVES = ("dpalgos/published/", "dpalgos/audit/", "tasks/host/", "tasks/experiments/",
           "tasks/auditing/", "tasks/exports/", "tasks/federation/", "tasks/tracking/", "tasks/upkeep/")  # fmt: skip
"""What can be left unread: the core does not import it."""


def main() -> None:
    """Print a line per package, the sum of what is no test, and of it the core and the shelves."""
    counts: Counter[str] = Counter()
    files: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    for name in subprocess.check_output(["git", "ls-files", "*.py"], text=True).split():
        package = name.split("/", 1)[0]
        counts[package] += statements(Path(name))
        files[package] += 1
        part = "shelves" if name.startswith(SHELVES) else "core" if name.startswith(CORE) else ""
        parts[part] += statements(Path(name))
    for package, count in counts.most_common():
        print(f"{package:<12} {count:>7,} statements {files[package]:>4} files")
    product = counts.total() - counts["tests"]
    print(f"{'all but tests':<12} {product:>6,} statements {files.total() - files['tests']:>4} files")
    for part in ("core", "shelves"):
        print(f"{part:<12} {parts[part]:>7,} statements")


if __name__ == "__main__":
    main()
