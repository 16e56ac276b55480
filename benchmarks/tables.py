"""Tables: the default, linear columns, the trial of learnt columns, and other libraries, on every named set.

    UNITBALL_DATA=/path/to/data python benchmarks/tables.py [--sets adult,…] [--epsilons 0.1,0.5,1,3] [--seeds 3]
        [--systems default,linear,trial] [--held-out] [--peers] [--output FILE.json] [--table]

Each cell (set, epsilon, system, seed) is computed once and kept in the output file, so that a run that was stopped goes
on where it was; ``--table`` prints what the file holds and computes nothing. Delta is 10⁻⁶ throughout, one curator,
replace-one, for ours; whom the guarantees of the others are about stands in ``table_peers.py``. ``--held-out`` measures
on a fifth of the training rows instead of the test rows: what rules are chosen on. ``--peers`` adds DP-EBM (two classes
and numbers), diffprivlib, a small network by DP-SGD (on adult, house_16H, satimage, usps) and boosting without privacy,
run by ``--peer-python`` (``benchmarks/peers-tables.txt``) and ``--diffprivlib-python`` (``benchmarks/peers.txt``).

* ``default``: ``PrivateClassifier`` and ``PrivateRegressor`` as they are.
* ``linear``: linear columns by the product's encoder; classes by the recommended rules, numeric labels by
  ``sufficient-statistics``.
* ``trial``: columns learnt once, as the recommended system's rules choose, its parts run one after the other in memory.

Accuracy, balanced accuracy, AUC (macro one-vs-rest for many classes) or R².
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata
from shared import cells_of, head, keep, line
from table_sets import SETS, Part, Table, load

from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.algorithms import fit
from dpalgos.column_maps import how_counted
from dpalgos.columns import Column
from dpalgos.guarantees import GaussianMu, Neighbours, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.normalisation import UnitNorm
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import ArrayRows
from dpalgos.systems.recommended import recommend
from dpalgos.systems.system import Arrangement, PublicFacts, summed

DELTA = 1e-6
OURS = ("default", "linear", "trial")
PEERS = ("boosting", "dp-ebm", "diffprivlib", "opacus")
_NETWORK_SETS = ("adult", "house_16H", "satimage", "usps")
_RESULTS = Path(__file__).parent / "results" / "tables.json"

Cell = dict[str, Any]
Floats = NDArray[np.float64]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute the cells that are missing, and print the tables."""
    parser = command(__doc__, sets=SETS, epsilons="0.1,0.5,1,3", seeds=3, systems=OURS, results=_RESULTS)
    parser.add_argument("--peer-python", default=".peers-tables/bin/python")
    parser.add_argument("--diffprivlib-python", default=".peers/bin/python")
    given = parser.parse_args(arguments)
    if not given.table:
        compute(given, systems_of(given, PEERS))
    show(given.output)


def command(
    described: str | None, *, sets: Iterable[str], epsilons: str, seeds: int, systems: Iterable[str], results: Path
) -> argparse.ArgumentParser:
    """Return the options of a benchmark whose cells (set, epsilon, system, seed) are kept in a file."""
    parser = argparse.ArgumentParser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(sets))
    parser.add_argument("--epsilons", default=epsilons)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--systems", default=",".join(systems))
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--rows", type=int, help="the first rows of each set alone: to see that it runs")
    parser.add_argument("--output", type=Path, default=results)
    parser.add_argument("--table", action="store_true", help="print what the file holds")
    return parser


def systems_of(given: argparse.Namespace, peers: Iterable[str]) -> list[str]:
    """Return the systems that are measured, each once."""
    return list(dict.fromkeys([*filter(None, given.systems.split(",")), *(peers if given.peers else ())]))


def lacking(
    given: argparse.Namespace, systems: Sequence[str], found: Sequence[Cell], without: str
) -> Iterator[tuple[Table, list[Cell]]]:
    """Yield each set of which cells are missing, and these cells; the system ``without`` noise has no epsilon."""
    there = {key_of(cell) for cell in found}
    for name in given.sets.split(","):
        wanted = [
            {"set": name, "epsilon": epsilon, "system": system, "seed": seed}
            for seed in range(given.seeds)
            for system in systems
            for epsilon in ([None] if system == without else map(float, given.epsilons.split(",")))
        ]
        if missing := [cell for cell in wanted if key_of(cell) not in there]:
            table = load(name)
            table = table.held_out() if given.held_out else table
            yield table.first(given.rows) if given.rows else table, missing


def compute(given: argparse.Namespace, systems: Sequence[str]) -> None:
    """Compute what the output file lacks, a cell at a time."""
    found = cells_of(given.output)
    for table, missing in lacking(given, systems, found, "boosting"):
        for system in filter(lambda one: runs(one, table), systems):
            for cell in measured(system, table, [one for one in missing if one["system"] == system], given):
                found.append(cell)
                keep(given.output, {"cells": found}, seeds_of(found))


def seeds_of(cells: Sequence[Cell]) -> str:
    """Return over how many seeds the cells of a file are, and which systems of which sets have fewer."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for cell in cells:
        seeds.setdefault((cell["set"], cell["system"]), set()).add(cell["seed"])
    most = max(map(len, seeds.values()))
    fewer: dict[int, list[str]] = {}
    for name in dict.fromkeys(name for name, _ in seeds):
        own = {system: len(several) for (of, system), several in seeds.items() if of == name}
        if len(set(own.values())) == 1:
            fewer.setdefault(min(own.values()), []).append(name)
        else:
            for system, several in own.items():
                fewer.setdefault(several, []).append(f"{system} on {name}")
    fewer.pop(most, None)
    said = [f"{most} seeds per cell", *(f"{several} for {', '.join(which)}" for several, which in fewer.items())]
    return "; ".join(said)


def key_of(cell: Cell) -> tuple[Any, ...]:
    """Return what a cell is known by."""
    return cell["set"], cell["epsilon"], cell["system"], cell["seed"]


def runs(system: str, table: Table) -> bool:
    """Return whether a system is measured on a table: DP-EBM has no many classes, the network runs on four sets."""
    if system == "dp-ebm":
        return table.classes <= 2
    return system != "opacus" or table.name in _NETWORK_SETS


def measured(system: str, table: Table, cells: Sequence[Cell], given: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells with what was measured."""
    if not cells:
        return
    if system in PEERS:
        python = given.diffprivlib_python if system == "diffprivlib" else given.peer_python
        yield from of_peer(system, table, cells, python)
        return
    for cell in cells:
        started = time.perf_counter()
        scores, chosen = _OURS[system](table, cell["epsilon"], cell["seed"])
        seconds = round(time.perf_counter() - started, 2)
        yield {**cell, **metrics(scores, table), "seconds": seconds, **({"chosen": chosen} if chosen else {})}


def of_peer(system: str, table: Table, cells: Sequence[Cell], python: str) -> Iterator[Cell]:
    """Run another library's side in its own environment."""
    with tempfile.TemporaryDirectory() as folder:
        stored, scores = Path(folder) / "table.npz", Path(folder) / "scores.npy"
        store(table, stored)
        script = str(Path(__file__).with_name("table_peers.py"))
        if not Path(python).exists():
            sys.exit(f"{python} is not there: make the environment as benchmarks/peers-tables.txt and peers.txt say")
        with subprocess.Popen(
            [python, script, system, str(stored)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for cell in cells:
                print(json.dumps({**cell, "delta": DELTA, "scores": str(scores)}), file=process.stdin, flush=True)
                answer = json.loads(process.stdout.readline() or '{"error": "the process ended"}')
                if "error" in answer:
                    yield {**cell, "error": answer["error"]}
                    continue
                yield {**cell, **metrics(np.load(scores), table), "seconds": round(answer["seconds"], 2)}
            process.stdin.close()


def store(table: Table, path: Path) -> None:
    """Write a table for a peer, with the cells and the product's linear encoding."""
    arrays: dict[str, Any] = {
        "ranges": table.ranges, "sizes": np.array(table.sizes, dtype=np.int64), "classes": table.classes,
        "label_range": np.array(table.label_range),
    }  # fmt: skip
    for name, part in (("train", table.train), ("test", table.test)):
        arrays |= {f"numbers_{name}": part.numbers, f"codes_{name}": part.codes, f"labels_{name}": part.labels}
        arrays[f"encoded_{name}"] = encoded(table, part)
    np.savez(path, **arrays)


def encoded(table: Table, part: Any) -> Floats:
    """Return the product's linear encoding of rows, clipped to norm 1."""
    from storage.encoder import TableEncoder

    rows = TableEncoder(table.schema(), on_violation="clip").transform(table.frame(part))
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0))


def default(table: Table, epsilon: float, seed: int) -> tuple[Floats, Any]:
    """Return the scores of the product's estimator with its defaults."""
    from unitball import PrivateClassifier, PrivateRegressor

    given: dict[str, Any] = {
        "schema": table.schema(), "on_violation": "clip", "public": True, "random_state": seed,
    }  # fmt: skip
    train, test = table.frame(table.train), table.frame(table.test)
    if table.classes == 1:
        model = PrivateRegressor(epsilon, DELTA, **given).fit(train, table.train.labels)
        return np.asarray(model.predict(test)), None
    model = PrivateClassifier(epsilon, DELTA, **given).fit(train, table.train.labels.astype(str))
    return np.asarray(model.decision_function(test)), None


def linear(table: Table, epsilon: float, seed: int) -> tuple[Floats, Any]:
    """Return the scores of a model of the linear columns: recommended, or by sufficient statistics."""
    mu = mu_from_epsilon_delta(epsilon, DELTA)
    rows = [UnitNorm()(encoded(table, part)) for part in (table.train, table.test)]
    if table.classes > 1:
        return descended(recommend(facts_of(table, epsilon, rows[0].shape[1])).arrangement, table, mu, rows, seed), None
    arrangement = summed(AlgorithmSpec("trainers", "sufficient-statistics"))[Trust.CENTRAL]
    return descended(arrangement, table, mu, rows, seed), None


def trial(table: Table, epsilon: float, seed: int) -> tuple[Floats, Any]:
    """Return the scores of a model of learnt columns, and what the rules chose; the default's where it is nothing."""
    mu = mu_from_epsilon_delta(epsilon, DELTA)
    columns, cells = of_table(table)
    train, test = (cells(part) for part in (table.train, table.test))
    facts = replace(
        facts_of(table, epsilon, train.shape[1]),
        columns=columns,
        label_range=table.label_range if table.classes == 1 else None,
    )
    arrangement = recommend(facts).arrangement
    assert arrangement.column_map is not None
    if arrangement.column_map.name == "unit-norm":
        return default(table, epsilon, seed)[0], {"level": "linear"}
    counts, how = [], []
    if arrangement.counts is not None:
        algorithm = arrangement.counts.with_parameters(budget=GaussianMu(mu * arrangement.counts_share**0.5)).build()
        setting = setting_of(table, train)
        noise = KeyedNoise(public_secret(seed), "counts")
        counts.append(fit(algorithm, [ArrayRows(train, table.train.labels)], setting, noise))
        how.append(how_counted(algorithm, setting))
    column_map: Any = arrangement.column_map.with_parameters(releases=how).build().combine(counts, np.ones(len(counts)))
    rows = [column_map.apply(part) for part in (train, test)]
    scores = descended(arrangement, table, mu, rows, seed, [column_map])
    if table.classes == 1:
        # No prediction lies outside the declared range.
        scores = np.clip(scores, *table.label_range)
    return scores, {"level": arrangement.column_map.parameters["level"], "share": arrangement.counts_share}


def of_table(table: Table) -> tuple[tuple[Column, ...], Callable[[Part], Floats]]:
    """Return a table's columns, and what makes rows of cells of a part: shares of the ranges, categories one-hot."""
    numbers = len(table.ranges)
    places = numbers + np.cumsum([0, *table.sizes])
    columns = tuple(Column(at=at) for at in range(numbers)) + tuple(
        Column(at=int(at), values=size) for at, size in zip(places, table.sizes, strict=False)
    )

    def cells(part: Part) -> Floats:
        rows = np.zeros((len(part), int(places[-1])))
        rows[:, :numbers] = (part.numbers - table.ranges[:, 0]) / np.diff(table.ranges, axis=1)[:, 0]
        for at, codes in zip(places, part.codes.T, strict=False):
            rows[np.arange(len(part)), at + codes] = 1.0
        return rows

    return columns, cells


def facts_of(table: Table, epsilon: float, dimension: int) -> PublicFacts:
    """Return the public facts of a run on all rows of one curator."""
    return PublicFacts(
        sizes=(len(table.train),), dimension=dimension, classes=table.classes, epsilon=epsilon, delta=DELTA,
        neighbours=Neighbours.REPLACE_ONE, trust=Trust.CENTRAL,
    )  # fmt: skip


def setting_of(table: Table, rows: Floats) -> Setting:
    """Return the setting of a release of these rows."""
    return Setting(sizes=(len(rows),), dimension=rows.shape[1], classes=table.classes, trust=Trust.CENTRAL)


def descended(
    arrangement: Arrangement, table: Table, mu: float, rows: Sequence[Floats], seed: int, maps: Sequence[Any] = ()
) -> Floats:
    """Return the scores of test rows by an arrangement's projection and trainer, on what its counts leave of μ²."""
    train, test = rows
    seen = list(maps)
    centring = arrangement.projection_share if arrangement.projection is not None else 0.0

    def fitted(spec: AlgorithmSpec, share: float) -> Any:
        given = {"label_range": list(table.label_range)} if table.classes == 1 else {}
        algorithm = spec.with_parameters(budget=GaussianMu(mu * share**0.5), **given).build().informed(seen)
        noise = KeyedNoise(public_secret(seed), spec.name)
        return fit(algorithm, [ArrayRows(train, table.train.labels)], setting_of(table, train), noise)

    if arrangement.projection is not None:
        seen.append(fitted(arrangement.projection, centring))
        train, test = (seen[-1].apply(part) for part in (train, test))
    scores = fitted(arrangement.trainer, 1.0 - arrangement.counts_share - centring).scores(test)
    return np.asarray(scores[:, 0] if scores.shape[1] == 1 else scores)


_OURS: dict[str, Callable[[Table, float, int], tuple[Floats, Any]]] = {
    "default": default,
    "linear": linear,
    "trial": trial,
}


def metrics(scores: Floats, table: Table) -> dict[str, float]:
    """Return R², or accuracy, balanced accuracy (over the classes there are) and AUC."""
    labels, classes = table.test.labels, table.classes
    if classes == 1:
        squares = float(np.square(labels - labels.mean()).sum())
        return {"r2": round(1.0 - float(np.square(scores - labels).sum()) / squares, 4)}
    if classes == 2:
        scores = np.stack([-scores, scores], axis=1)
    predicted = np.where(scores[:, 1] > scores[:, 0], 1, 0) if classes == 2 else scores.argmax(axis=1)
    there = [k for k in range(classes) if 0 < np.count_nonzero(labels == k) < len(labels)]
    recalls = [float(np.mean(predicted[labels == k] == k)) for k in there]
    powers = scores if classes == 2 else _chances(scores)
    return {
        "accuracy": round(float(np.mean(predicted == labels)), 4),
        "balanced": round(float(np.mean(recalls)), 4),
        "auc": round(float(np.mean([auc(powers[:, k], labels == k) for k in there])), 4),
    }


def _chances(scores: Floats) -> Floats:
    """Return the softmax of scores; chances that add up to one as they are."""
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1.0):
        return scores
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def auc(scores: Floats, positive: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve, ties by mid-ranks."""
    several = np.count_nonzero(positive)
    ranks = rankdata(scores)[positive].sum() - several * (several + 1) / 2.0
    return float(ranks / (several * (len(positive) - several)))


def show(path: Path) -> None:
    """Print the tables of a file of results."""
    runs_ = pd.DataFrame(cells_of(path))
    if "error" in runs_:
        for _, cell in runs_[runs_["error"].notna()].drop_duplicates(["set", "system", "epsilon"]).iterrows():
            print(f"{cell['set']}, {cell['system']}, epsilon {cell['epsilon']}: {cell['error']}", file=sys.stderr)
        runs_ = runs_[runs_["error"].isna()]
    order = [system for system in (*OURS, *PEERS) if system in set(runs_["system"])]
    for metric in ("accuracy", "balanced", "auc", "r2"):
        if metric not in runs_ or runs_[metric].isna().all():
            continue
        known = runs_[runs_[metric].notna()]
        found = known.groupby(["set", "system", "epsilon"], dropna=False)[metric].agg(["mean", "std"])
        print(f"\n{ {'r2': 'R²', 'auc': 'AUC', 'balanced': 'Balanced accuracy'}.get(metric, metric.capitalize()) }\n")
        head("set", "ε", *order)
        for name in [name for name in SETS if name in set(known["set"])]:
            for epsilon in sorted(known["epsilon"].dropna().unique()):
                line(name, f"{epsilon:g}", *(_shown(found, name, system, epsilon) for system in order))


def _shown(found: pd.DataFrame, name: str, system: str, epsilon: float) -> str:
    at = found[
        (found.index.get_level_values("set") == name)
        & (found.index.get_level_values("system") == system)
        & ((found.index.get_level_values("epsilon") == epsilon) | (system == "boosting"))
    ]
    if at.empty:
        return "–"
    mean, spread = at.iloc[0]
    return f"{mean:.3f}" if np.isnan(spread) else f"{mean:.3f} ± {spread:.3f}"


if __name__ == "__main__":
    main()
