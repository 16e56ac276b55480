"""Write the tables of measurements into the pages: from benchmarks/results/*.json, between two marks.

    python benchmarks/render.py             # write each marked table of docs/*.md and README.md again
    python benchmarks/render.py --check     # list those that differ, and exit with 1

A page marks the place with ``<!-- table: NAME -->`` and ``<!-- end -->``. NAME is a file of ``benchmarks/results``
without its ending, or a table that a function of this module makes of one or several (:data:`MADE`). Each file says
what made it: ``command``, ``made`` (date and commit), ``machine``, ``seeds`` and ``source``; where a file was not
written by its benchmark, ``source`` says from which page its numbers were copied, and ``machine`` may be ``not
recorded``. It holds ``columns`` and ``rows``, or ``cells``, from which a function makes them.

A column is a title, or a title, its ``digits`` behind the point, and ``align: right``. A value is a text, a number,
``[least, largest]``, ``{"mean": …, "spread": …}``, or null for what was not measured.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
SAID = ("command", "made", "machine", "seeds", "source")
"""What each file of results must say of itself."""
_UNSAID = ("none", "not recorded")
_BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.S)

Table = Mapping[str, Any]


def pages() -> list[Path]:
    """Return the pages that may hold tables."""
    return [*sorted((REPOSITORY / "docs").glob("*.md")), REPOSITORY / "README.md"]


def load(name: str, results: Path = RESULTS) -> Table:
    """Return what a file of results holds.

    Raises
    ------
    ValueError
        If it does not record what made it, or the command that repeats it.
    """
    found: Table = json.loads((results / f"{name}.json").read_text("utf-8"))
    if missing := [one for one in SAID if not (isinstance(found, dict) and found.get(one))]:
        raise ValueError(f"benchmarks/results/{name}.json does not say: {', '.join(missing)}")
    if found["command"] in _UNSAID:
        raise ValueError(f"benchmarks/results/{name}.json names no command: give the one that makes it")
    return found


def rendered(text: str, results: Path = RESULTS) -> str:
    """Return a page with each of its marked tables written again."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{table(found[2], results)}\n{found[4]}", text)


def names(text: str) -> list[str]:
    """Return the tables that a page marks."""
    return [found[2] for found in _BLOCK.finditer(text)]


def table(name: str, results: Path = RESULTS) -> str:
    """Return a table in Markdown, with a line below it on how it was measured."""
    files, make = MADE.get(name, ((name,), None))
    each = [load(file, results) for file in files]
    shown = each[0] if make is None else make(*each)
    columns = [{"title": one} if isinstance(one, str) else one for one in shown["columns"]]
    lines = [_line(one["title"] for one in columns)]
    lines.append(_line("--:" if one.get("align") == "right" else "---" for one in columns))
    for row in shown["rows"]:
        if len(row) != len(columns):
            raise ValueError(f"{name}: a row of {len(row)} cells under {len(columns)} columns: {row}")
        lines.append(_line(cell(value, one.get("digits")) for value, one in zip(row, columns, strict=True)))
    seeds = shown["seeds"] if make is not None and "seeds" in shown else [one["seeds"] for one in each]
    made = (_made(one, of) for one, of in zip(each, seeds, strict=True))
    return "\n".join([*lines, "", f"*{' '.join(made)}*", ""])


def _made(found: Table, seeds: str) -> str:
    """Return the line below a table: when and by which command its file was made, where, over how many seeds."""
    about = [one for one in (found["machine"], seeds) if one not in _UNSAID] + found["source"].split("; ")[1:]
    shown = f": {'; '.join(about)}" if about else ""
    return f"Measured on {found['made'].split(',')[0]} by `{found['command']}`{shown}."


def cell(value: Any, digits: int | None = None) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return re.sub(r"(?<!\\)\|", r"\|", value)
    if isinstance(value, list):
        return "–".join(cell(one, digits) for one in value)
    if isinstance(value, dict):
        return f"{cell(value['mean'], digits)} ± {cell(value['spread'], digits)}"
    shown = f"{value:,}" if digits is None else f"{value:,.{digits}f}"
    return shown.replace("-", "−")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _means(cells: list[dict[str, Any]], metric: str, **where: Any) -> float | None:
    """Return the mean of a metric over seeds, or None where no cell has it."""
    known = [one[metric] for one in cells if metric in one and all(one.get(key) == is_ for key, is_ in where.items())]
    return statistics.fmean(known) if known else None


_BINARY = ("adult", "phoneme", "banana", "ring", "churn", "mushroom", "musk", "ijcnn1")
_REAL = ("cpu_act", "house_16H", "wind")
_BEFORE = {"linear": "default"}
_MANY = ("page_blocks", "satimage", "pendigits", "nursery", "letter", "usps", "krkopt")


def _latest(found: Table, again: Table) -> list[Any]:
    """Return the cells of tables, with later runs of both systems in the place of earlier ones where there are some."""
    sets = {one["set"] for one in again["cells"]}
    earlier = [one for one in found["cells"] if one["set"] not in sets or one["system"] not in ("default", "trial")]
    # Until columns were described, linear columns were the default.
    return [*earlier, *({**one, "system": _BEFORE.get(one["system"], one["system"])} for one in again["cells"])]


def tables_by_set(found: Table, again: Table) -> dict[str, Any]:
    """Return accuracy / AUC, or R², of each named set at ε = 1; by later runs of both systems where there are some."""
    cells = _latest(found, again)
    asked = [("default", 1.0), ("trial", 1.0), ("dp-ebm", 1.0), ("diffprivlib", 1.0)]
    titles = ["linear columns", "functions", "DP-EBM", "diffprivlib"]

    def shown(name: str, system: str, epsilon: float | None) -> str:
        metrics = ("r2",) if name in _REAL else ("accuracy", "auc")
        means = [_means(cells, one, set=name, system=system, epsilon=epsilon) for one in metrics]
        if None in means:
            return "–"
        return " / ".join("below −10" if one < -10 else cell(one, 3) for one in means if one is not None)

    rows = [
        [name, *(shown(name, *one) for one in asked), shown(name, "boosting", None)]
        for name in (*_BINARY, *_REAL, *_MANY)
    ]
    return {"columns": ["set", *titles, "boosting, not private"], "rows": rows}


def tables_means(found: Table) -> dict[str, Any]:
    """Return the means over the sets of two classes, and of numeric labels, at each ε."""

    def mean(metric: str, sets: Iterable[str], system: str, epsilon: float) -> float | None:
        each = [_means(found["cells"], metric, set=one, system=system, epsilon=epsilon) for one in sets]
        known = [one for one in each if one is not None]
        return statistics.fmean(known) if len(known) == len(each) else None

    asked = (("accuracy", _BINARY), ("auc", _BINARY), ("r2", _REAL))
    systems = {"default": "linear columns", "trial": "functions of columns", "dp-ebm": "DP-EBM"}
    rows = [
        [cell(epsilon), shown, *(mean(metric, sets, system, epsilon) for metric, sets in asked)]
        for epsilon in (0.1, 0.5, 1, 3)
        for system, shown in systems.items()
    ]
    return {"columns": ["ε", "", *({"title": one, "digits": 3} for one in ("accuracy", "AUC", "R²"))], "rows": rows}


def networks_of_tables(*files: Table) -> dict[str, Any]:
    """Return the accuracy or R² of DP-SGD's network on its sets at each ε, next to functions of columns."""
    asked = [one for file in files for one in file["cells"] if one["system"] in _NETWORKS]
    # Of a cell that was measured again, the later run.
    cells = list({(one["set"], one["epsilon"], one["system"], one["seed"]): one for one in asked}.values())
    epsilons = (0.1, 0.5, 1.0, 3.0)
    rows = []
    for name in dict.fromkeys(one["set"] for one in cells if one["system"] == "opacus"):
        metric = "r2" if name in _REAL else "accuracy"
        for system, shown in _NETWORKS.items():
            here = [one for one in cells if one["set"] == name and one["system"] == system]
            # Where cells differ, of the one with the fewest.
            seeds = min(count for count in (sum(one["epsilon"] == at for one in here) for at in epsilons) if count)
            rows.append([name, shown, seeds, *(_means(here, metric, epsilon=one) for one in epsilons)])
    titles = [{"title": f"ε = {one:g}", "digits": 3} for one in epsilons]
    return {"columns": ["set", "system", "seeds", *titles], "rows": rows}


_NETWORKS = {"trial": "functions of columns", "opacus": "network, DP-SGD"}


def unequal_classes(found: Table) -> dict[str, Any]:
    """Return accuracy / balanced accuracy of each set at each ε, before and after class means were shrunk."""
    epsilons = (0.05, 0.1, 0.3, 1.0, 3.0)
    cells = found["cells"]
    rows = []
    for name, equal, trainer in sorted({(one["set"], one["equal"], one["trainer"]) for one in cells}):
        where = {"set": name, "equal": equal, "trainer": trainer}
        pairs = []
        for epsilon in epsilons:
            each = [
                [
                    _means(cells, metric, **where, epsilon=epsilon, version=version)
                    for metric in ("accuracy", "balanced")
                ]
                for version in ("before", "after")
            ]
            pairs.append(" → ".join(" / ".join(cell(one, 3) for one in pair) for pair in each))
        guess = cell(_means(cells, "guessing", **where), 2)
        rows.append([f"{name}{', equal classes' if equal else ''} ({guess})", f"`{trainer}`", *pairs])
    return {"columns": ["set (guessing)", "trainer", *(f"ε = {cell(one)}" for one in epsilons)], "rows": rows}


def balanced_classes(found: Table) -> dict[str, Any]:
    """Return accuracy / balanced accuracy of the recommended system, with classes as they are and balanced."""
    cells = found["cells"]
    rows = []
    for name in sorted({one["set"] for one in cells}):
        for epsilon in sorted({one["epsilon"] for one in cells if one["set"] == name}):
            at = {"set": name, "epsilon": epsilon}
            guess = cell(_means(cells, "guessing", **at), 2)
            by = next(one["by"] for one in cells if (one["set"], one["epsilon"]) == (name, epsilon))
            each = [
                " / ".join(
                    cell(_means(cells, metric, **at, class_weight=weight), 3) for metric in ("accuracy", "balanced")
                )
                for weight in (None, "balanced")
            ]
            rows.append(
                [f"{name} ({guess})", cell(epsilon), f"`{by}`", *(each if by != "class-means" else [each[0], "–"])]
            )
    return {"columns": ["set (guessing)", "ε", "trainer", "as they are", "`balanced`"], "rows": rows}


def nights_of_tables(found: Table) -> dict[str, Any]:
    """Return means over sets at each ε of a horizon: linear columns, and what the rule takes at q = 0.03."""
    cells = found["cells"]
    epsilons = sorted({one["epsilon"] for one in cells})
    rows = []
    for metric, title in (("accuracy", "accuracy"), ("auc", "AUC"), ("r2", "R²")):
        sets = sorted({one["set"] for one in cells if metric in one})
        for learnt, shown in ((False, "linear columns"), (True, "described columns")):
            row: list[Any] = [f"{title}, {shown}"]
            for epsilon in epsilons:
                means = []
                for name in sets:
                    at = {"set": name, "epsilon": epsilon}
                    taken = next(one["taken"] for one in cells if one["set"] == name and one["epsilon"] == epsilon
                                 and one["q"] == 0.03) if learnt else "linear"  # fmt: skip
                    q = None if taken == "linear" else 0.03
                    mean = _means(cells, metric, **at, level=taken, q=q)
                    assert mean is not None
                    means.append(mean)
                row.append(statistics.fmean(means))
            rows.append(row)
    columns = [{"title": cell(epsilon), "digits": 3} for epsilon in epsilons]
    return {"columns": ["ε of the horizon", *columns], "rows": rows}


def audit_verdicts(found: Table) -> dict[str, Any]:
    """Return the systems and parts of each verdict, with what the audit shows at least where it violates."""
    titles = [one if isinstance(one, str) else one["title"] for one in found["columns"]]
    each = [dict(zip(titles, row, strict=True)) for row in found["rows"]]
    rows = []
    for verdict in ("violates its claim", "tight", "consistent"):
        here = [one for one in each if one["verdict"] == verdict]
        shown: dict[str, str] = {}
        for one in here:
            bound = cell(one["ε at least"], 2) if verdict == "violates its claim" else ""
            shown.setdefault(one["name"], f"{one['name']} {bound}".strip())
        others = verdict == "consistent"
        rows.append([verdict, cell(len(here)), "all others" if others else ", ".join(shown.values())])
    return {"columns": ["verdict", "audits", "of (ε at least, where it violates)"], "rows": rows}


def what_to_expect(mnist: Table, tables: Table) -> dict[str, Any]:
    """Return MNIST's accuracy under replace-one and Adult's AUC at each ε: the README's two lines.

    The line below says over which seeds these two are means, and nothing of the other sets of the files.
    """
    epsilons = (0.1, 1, 3)
    # A mean, and in brackets the least and the largest.
    means = {row[0]: row[1] if isinstance(row[1], float) else float(row[1].split()[0]) for row in mnist["rows"]}
    areas = [_means(tables["cells"], "auc", set="adult", system="trial", epsilon=epsilon) for epsilon in epsilons]
    rows = [
        ["MNIST, five parties, secure sums: accuracy", *(means[epsilon] for epsilon in epsilons)],
        ["Adult, one curator: AUC", *areas],
    ]
    columns = [
        {"title": f"ε = {epsilons[0]}", "digits": 3},
        *({"title": f"{one}", "digits": 3} for one in epsilons[1:]),
    ]
    seeds = {one["seed"] for one in tables["cells"] if (one["set"], one["system"]) == ("adult", "trial")}
    return {"columns": ["set", *columns], "rows": rows, "seeds": [mnist["seeds"], f"mean of {len(seeds)} seeds"]}


_MARGINS = {
    "mae": "mean absolute error up to B",
    "rmse": "RMSE up to B",
    "r2": "R²_B",
    "error_q05": "5 % quantile of the error",
    "error_q50": "median of the error",
    "error_q95": "95 % quantile of the error",
    "rows": "rows of a group",
    "accuracy": "accuracy in a group",
    "balanced_accuracy": "balanced accuracy in a group",
    "majority_rate": "frequency of the largest class in a group",
    "recall": "recall in a group",
    "predicted": "share that a class is predicted for in a group",
    "difference_accuracy": "difference of two groups' accuracies",
    "difference_balanced_accuracy": "difference of two groups' balanced accuracies",
    "difference_recall": "difference of two groups' recalls",
    "difference_predicted": "difference of two groups' shares predicted",
    "interval": "interval of coverage 0.9",
}
# Of fewer runs a share says little.
_FEW_SHOWN = 1_000


def margins_held(found: Table) -> dict[str, Any]:
    """Return for each number the lowest coverage over the simulated cases, and how wide its margins are."""
    rows = []
    for metric, title in _MARGINS.items():
        cells = [one for one in found["cells"] if one["metric"].removesuffix("_a").removesuffix("_b") == metric]
        shown = [one for one in cells if one.get("shown", 0) >= _FEW_SHOWN]
        wide = sorted((one for one in shown if one["width"] is not None), key=lambda one: one["width"])
        rows.append(
            [
                title,
                len(cells),
                min(one["held"] / one["runs"] for one in cells),
                min((one["held_of_shown"] / one["shown"] for one in shown), default=None),
                statistics.median(one["width"] for one in wide) if wide else None,
                wide[-1]["width"] if wide else None,
                _case(wide[-1]) if wide else "–",
            ]
        )
    titles = ["number", "cases", ("lowest coverage", 4), ("… of the runs in which it is shown", 4)]
    titles += [("width, median case", 2), ("width, widest case", 2), "widest case"]
    columns = [one if isinstance(one, str) else {"title": one[0], "digits": one[1]} for one in titles]
    return {"columns": columns, "rows": rows}


def _case(one: Mapping[str, Any]) -> str:
    """Return what is simulated in a cell."""
    if "rows" not in one:
        noise, *after = one["noise"].split(", ")
        return ", ".join([one["of"], f"{noise} noise", *after])
    said = [one["of"], f"{one['rows']:,} rows", f"ε = {one['epsilon']:g}"]
    said += [f"range × {one['wider']:g}"] if one.get("wider", 1) != 1 else []
    said += [f"people of {one['each']} rows"] if one.get("each", 1) > 1 else []
    said += [] if one.get("counted", True) else ["label not counted"]
    return ", ".join([*said, *([one["relation"]] if one["relation"] == "replace-special" else [])])


_SYNTHESIS = {
    "rule": "the rule's choice",
    "tree": "tree",
    "independent": "independent given the class",
    "dpmm-mst": "dpmm, MST",
    "dpmm-aim": "dpmm, AIM",
    "mbi-mst": "mbi, MST",
    "smartnoise-mst": "smartnoise-synth, MST",
    "smartnoise-aim": "smartnoise-synth, AIM",
    "real": "the counted rows",
}


def synthetic_rows(found: Table) -> dict[str, Any]:
    """Return the measures of drawn rows of each set at each ε by each system, as means over the seeds there are."""
    metrics = {"one": 3, "two": 4, "three": 3, "auc boosting": 3, "auc logistic": 3, "seconds": 1}
    cells = [one for one in found["cells"] if "error" not in one]
    rows = []
    for name in dict.fromkeys(one["set"] for one in cells):
        for epsilon in sorted({one["epsilon"] for one in cells}, key=lambda epsilon: (epsilon is None, epsilon or 0.0)):
            for system, title in _SYNTHESIS.items():
                at = {"set": name, "epsilon": epsilon, "system": system}
                several = sum(all(one[key] == is_ for key, is_ in at.items()) for one in cells)
                if several:
                    row = [name, cell(epsilon), title, several]
                    rows.append([*row, *(_means(cells, metric, **at) for metric in metrics)])
    titles = ["TV, columns", "TV, pairs", "TV, triples", "AUC, boosting", "AUC, logistic", "seconds"]
    columns = [{"title": title, "digits": digits} for title, digits in zip(titles, metrics.values(), strict=True)]
    most = max(one["seed"] for one in cells) + 1
    seeds = [f"mean of up to {most} seeds"]
    return {"columns": ["set", "ε", "system", "seeds", *columns], "rows": rows, "seeds": seeds}


_SMALL = 2000
"""Sets with fewer training rows are read by ``unitball train`` alone; all of them have two classes."""


def expected_accuracy(sizes: Table, found: Table, again: Table, *small: Table) -> dict[str, Any]:
    """Return the default system's accuracy on sets of classes, by number of classes and of training rows."""
    epsilons, cells = (0.1, 0.5, 1.0, 3.0), _latest(found, again)
    rows: list[tuple[int, int, list[Any]]] = []
    for size in (one for one in sizes["cells"] if one["classes"] > 1):
        name = size["set"]
        means = [_means(cells, "accuracy", set=name, system="trial", epsilon=one) for one in epsilons]
        open_ = _means(cells, "accuracy", set=name, system="boosting")
        rows.append((size["classes"], size["rows"], [name, size["columns"], size["guessing"], *means, open_]))
    read: dict[tuple[str, int, float | None], dict[float, float]] = {}
    for name, epsilon, accuracy, *_ in (row for each in small for row in each["rows"]):
        title, count, second = re.match(r"(.+) \(([\d,]+), ([\d.]+)", name).groups()  # type: ignore[union-attr]
        # Larger sets are above, with functions of their columns.
        if (training := int(count.replace(",", ""))) < _SMALL:
            guessing = float(second) if "." in second else None
            read.setdefault((title, training, guessing), {})[epsilon] = accuracy["mean"]
    for (title, training, guessing), by_epsilon in read.items():
        rows.append((2, training, [title, None, guessing, *map(by_epsilon.get, epsilons), None]))
    titles = ["classes", "training rows", "set", "columns"]
    shown = [{"title": one, "digits": 3} for one in ("guessing", *(f"ε = {one:g}" for one in epsilons), "not private")]
    return {
        "columns": [*titles, *shown],
        "rows": [[k, n, *more] for k, n, more in sorted(rows, key=lambda one: one[:2])],
    }


def expected_r2(sizes: Table, found: Table) -> dict[str, Any]:
    """Return the default system's R² on sets of numeric labels, by number of training rows."""
    rows = []
    for size in sorted((one for one in sizes["cells"] if one["classes"] == 1), key=lambda one: one["rows"]):
        asked = [("trial", 0.1), ("trial", 0.5), ("trial", 1.0), ("trial", 3.0), ("boosting", None)]
        means = [_means(found["cells"], "r2", set=size["set"], system=one, epsilon=at) for one, at in asked]
        rows.append([size["rows"], size["set"], size["columns"], *means])
    shown = [{"title": one, "digits": 3} for one in ("ε = 0.1", "ε = 0.5", "ε = 1", "ε = 3", "not private")]
    return {"columns": ["training rows", "set", "columns", *shown], "rows": rows}


def synthetic_rows_without(found: Table) -> dict[str, Any]:
    """Return the cells in which a system has drawn no rows, and why."""
    failed = [one for one in found["cells"] if "error" in one]
    rows = [[one["set"], cell(one["epsilon"]), _SYNTHESIS[one["system"]], one["error"]] for one in failed]
    return {"columns": ["set", "ε", "system", "outcome"], "rows": rows}


def tuning_on_synthetic(found: Table) -> dict[str, Any]:
    """Return the accuracy of each set's runs by how parameters were chosen, and what was chosen on synthetic rows."""
    rows = []
    for name in dict.fromkeys(one["set"] for one in found["cells"]):
        of_set = [one for one in found["cells"] if one["set"] == name]
        by_system = [_means(of_set, "accuracy", system=system) for system in _TUNING]
        steps = {f"{one['step']:g}" for one in of_set if "step" in one}
        rows.append([name, *by_system, ", ".join(sorted(steps))])
    columns = [{"title": title, "digits": 3} for title in _TUNING.values()]
    return {"columns": ["set", *columns, "step"], "rows": rows}


_TUNING = {
    "default": "`noisy-gd`, its default",
    "paid": "tuned on private rows",
    "drawn": "tuned on synthetic rows",
    "rules": "`unitball`, its rules",
    "rules at both": "… at the ε of synthesis and run",
}


MADE: dict[str, tuple[tuple[str, ...], Callable[..., dict[str, Any]]]] = {
    "tables-by-set": (("tables", "tables-many-classes"), tables_by_set),
    "tables-means": (("tables",), tables_means),
    "networks-of-tables": (("tables", "tables-many-classes", "tables-networks"), networks_of_tables),
    "unequal-classes": (("unequal-classes",), unequal_classes),
    "balanced-classes": (("balanced-classes",), balanced_classes),
    "nights-of-tables": (("nightly-tables",), nights_of_tables),
    "audit-verdicts": (("audit-all",), audit_verdicts),
    "synthetic-rows": (("synthesis",), synthetic_rows),
    "synthetic-rows-without": (("synthesis",), synthetic_rows_without),
    "tuning-on-synthetic": (("synthesis-tuning",), tuning_on_synthetic),
    "margins-held": (("margins",), margins_held),
    "what-to-expect": (("mnist", "tables"), what_to_expect),
    "expected-accuracy": (
        ("table-sizes", "tables", "tables-many-classes", "sets-read-once", "sets-read-again"),
        expected_accuracy,
    ),
    "expected-r2": (("table-sizes", "tables"), expected_r2),
}
"""Tables that are made of files' cells or rows: the files, and what makes them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    stale = {page: text for page in pages() if (text := rendered(page.read_text("utf-8"))) != page.read_text("utf-8")}
    for page, text in stale.items():
        print(page.relative_to(REPOSITORY))
        if not given.check:
            page.write_text(text, "utf-8")
    sys.exit(1 if stale and given.check else 0)


if __name__ == "__main__":
    main()
