"""The chain of a synthesis in memory, each stage a registered release or what the server makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpalgos.algorithms import fit
from dpalgos.column_maps import how_counted
from dpalgos.columns import Column
from dpalgos.evaluators.column_histograms import bins_for
from dpalgos.guarantees import GaussianMu, Neighbours, Setting
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.models import Statistic
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import Array, ArrayRows, Floats, MappedRows, Rows
from dpalgos.synthesis.model import Synthesis
from dpalgos.synthesis.stages import PAIR_PARTS, Stages, stages_for


@dataclass
class Chain:
    """A synthesis of rows at hand: ``made`` has each stage's release and each map, by name."""

    features: Floats
    labels: Array
    columns: Sequence[Column]
    classes: int
    mu: float
    seed: int = 1
    neighbours: Neighbours = Neighbours.REPLACE_ONE
    label_range: tuple[float, float] | None = None
    stages: Stages | None = None
    bins: int | None = None
    made: dict[str, Any] = field(default_factory=dict)
    released: list[tuple[Any, Setting]] = field(default_factory=list)

    def run(self) -> Synthesis:
        columns = len(self.columns)
        values = [one.values for one in self.columns if one.values is not None]
        stages = self.stages or stages_for(len(self.labels), columns, self.classes, self.mu, values=values)
        self.stages = stages
        mus = [self.mu * share**0.5 for share in stages.shares]
        rows = ArrayRows(self.features, self.labels)
        bins = self.bins or bins_for(len(self.labels), columns + 1, mus[0])
        counting = {
            "columns": [one.to_json() for one in self.columns],
            "bins": bins,
            "label_range": self.label_range,
        }
        self.made["counts"], _ = self.release("column-histograms", counting, mus[0], rows, 0)
        common = {
            "columns": [one.to_json() for one in self.columns],
            "dimension": self.features.shape[1],
            "rows": len(self.labels),
            "releases": [how_counted(*self.released[0])],
        }
        made = [self.made["counts"]]
        tree = {
            **common,
            "classes": stages.label_parts,
            "pairs": [list(pair) for pair in stages.pairs],
            "parts": stages.parts,
            "parent_parts": stages.parent_parts,
        }
        if stages.pairs:
            groups = self.combine("pair-groups", {**common, "parts": PAIR_PARTS}, made)
            seen = MappedRows(rows, [groups.apply], groups.dimension)
            parameters = stages.counting_pairs(columns, self.label_range)
            self.made["pairs"], deviation = self.release("pair-counts", parameters, mus[1], seen, 1)
            made.append(self.made["pairs"])
            tree |= {"pair_parts": PAIR_PARTS, "pair_deviation": deviation}
        tree_setting = self._setting(2 * columns if stages.pairs else columns)
        spec = AlgorithmSpec("evaluators", "pair-counts", stages.counting_tree(columns, self.label_range))
        algorithm = spec.with_parameters(budget=GaussianMu(mus[2])).build()
        tree["deviation"] = algorithm.deviation(tree_setting)
        groups = self.combine("tree-groups", tree, made)
        seen = MappedRows(rows, [groups.apply], groups.dimension)
        self.made["tables"], _ = self.release("pair-counts", spec.parameters, mus[2], seen, 2)
        synthesis = self.combine("tree-synthesis", tree, [*made, self.made["tables"]])
        assert isinstance(synthesis, Synthesis)
        return synthesis

    def combine(self, name: str, parameters: Mapping[str, Any], made: Sequence[Statistic]) -> Any:
        spec = AlgorithmSpec("aggregators", name, json.loads(json.dumps(parameters)))
        self.made[name] = spec.build().combine(made, np.zeros(0))
        return self.made[name]

    def release(
        self, name: str, parameters: Mapping[str, Any], mu: float, rows: Rows, stage: int
    ) -> tuple[Statistic, float]:
        algorithm = AlgorithmSpec("evaluators", name, parameters).with_parameters(budget=GaussianMu(mu)).build()
        setting = self._setting(rows.dimension)
        self.released.append((algorithm, setting))
        noise = KeyedNoise(public_secret(self.seed), f"stage {stage}")
        made = fit(algorithm, [rows], setting, noise)
        assert isinstance(made, Statistic)
        return made, algorithm.deviation(setting)

    def _setting(self, dimension: int) -> Setting:
        return Setting(sizes=(len(self.labels),), dimension=dimension, classes=self.classes, neighbours=self.neighbours)
