"""The plan of a synthesis: stages by public numbers, budgets, identities; what is refused beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from dpalgos.accounting.costs import allocate
from dpalgos.column_maps import how_counted
from dpalgos.evaluators.column_histograms import ColumnHistograms, bins_for
from dpalgos.evaluators.pair_counts import PairCounts
from dpalgos.guarantees import GaussianMu, Setting, Trust
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.synthesis.drawing import Drawing
from dpalgos.synthesis.stages import PAIR_PARTS, stages_for
from storage.datasets import origins
from storage.errors import InputError
from storage.refs import DatasetRef
from tasks.accounts.ledger import open_ledger
from tasks.accounts.terms import gaussian_delta, opening_cap, relation_of
from tasks.datasets.registration import require_derivable
from tasks.datasets.scales import declared_schema, scales_of
from tasks.datasets.synthetic_cells import require_drawable
from tasks.planning.column_statistics import SynthesisPlan, SynthesisRequest
from tasks.planning.configuration import TrainingConfig
from tasks.planning.identity import code_version
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.planning.rows import Partition
from tasks.preparation.paid_counts import NAME, counted_columns, described_columns
from tasks.preparation.partitions import plan_partition, shards_of
from tasks.release.column_counts import version_of
from tasks.release.column_pairs import two_names
from tasks.release.drawn_rows import require_output
from tasks.release.prices import RUN_EPSILON
from tasks.runtime.settings import current_layout

# What histograms that were released before must be worth, of the mu² that the plan would pay for its own.
_GOOD_ENOUGH = 0.5


@dataclass(frozen=True, slots=True)
class _Draft:
    """Fields that all releases of a plan share."""

    dataset: DatasetRef
    config: TrainingConfig
    trust: AlgorithmSpec
    partition: str
    parties: tuple[str, ...]
    sizes: tuple[int, ...]

    def setting(self, dimension: int) -> Setting:
        return Setting(
            sizes=self.sizes,
            dimension=dimension,
            classes=max(len(self.dataset.classes), 1),
            neighbours=relation_of(self.dataset.name),
            trust=self.trust.name,
            noise_factor=self.trust.build().noise_factor(len(self.parties)),
            rows_per_person=self.dataset.rows_per_person,
        )

    def release(
        self,
        label: str,
        name: str,
        parameters: Mapping[str, object],
        mu: float,
        dimension: int,
        upstream: Sequence[str],
    ) -> PlannedRelease:
        spec = AlgorithmSpec("evaluators", name, parameters)
        return PlannedRelease(
            label=label,
            code=code_version(*spec.classes(), lookup(self.trust.kind, self.trust.name)),
            dataset=self.dataset.version,
            partition=self.partition,
            replicate=0,
            seed=None,
            upstream=tuple(upstream),
            algorithm=spec,
            budget=GaussianMu(mu),
            setting=self.setting(dimension),
            trust=self.trust,
            parties=self.parties,
            account=self.dataset.account,
            delta=self.config.stated_delta,
            drawn_from=self.dataset.drawn_from,
        )

    def combination(
        self, label: str, name: str, parameters: Mapping[str, object], upstream: Sequence[str]
    ) -> PlannedCombination:
        spec = AlgorithmSpec("aggregators", name, parameters)
        return PlannedCombination(
            label=label,
            code=code_version(lookup(spec.kind, spec.name)),
            dataset=self.dataset.version,
            partition=self.partition,
            replicate=0,
            seed=None,
            upstream=tuple(upstream),
            algorithm=spec,
            weights=(),
        )


def plan_synthesis(request: SynthesisRequest) -> SynthesisPlan:
    """Return the plan of a synthesis of a data set's newest version; no row is read and nothing is charged.

    Raises
    ------
    InputError
        If the version has no declared columns, a column cannot be drawn, Gaussian noise has no delta, the output
        exists, or the derived data set's name cannot be used.
    RefusedError
        If data or an account of that name are registered that are not derived.
    ParameterError
        For numbers beyond their bounds, or a trust model that does not admit it.
    """
    dataset = version_of(request.dataset)
    schema, epsilon = declared_schema(dataset), RUN_EPSILON if request.epsilon is None else request.epsilon
    require_drawable(schema)
    require_output(request.output)
    require_derivable(request.called)
    config = TrainingConfig(
        dataset=dataset.name, epsilon=epsilon, delta=request.delta, test_fraction=request.test_fraction
    )
    if not (several := bool(origins(current_layout(), dataset))):
        config = config.model_copy(update={"partition": "even", "parties": 1})
    cap = opening_cap(dataset.name)
    if request.delta is None and cap is not None:
        config = config.model_copy(update={"delta": gaussian_delta(cap.delta)})
    if not config.stated_delta > 0:
        raise InputError(
            "the stages of a synthesis use Gaussian noise, which needs a delta above 0, and delta is "
            f"{config.stated_delta:g}: give --delta, below the delta of the cap of account {dataset.account}"
        )
    if request.trust is not None and not several:
        raise InputError(
            f"{dataset.name} has one party's rows, so --trust has no effect; omit it, or ingest the parties' own "
            f"files: unitball ingest {dataset.name} --party PARTY=PATH"
        )
    trust = AlgorithmSpec("trusts", request.trust or str(Trust.LOCAL) if several else str(Trust.CENTRAL))
    partition = plan_partition(dataset, config)
    shards = shards_of(partition).training
    draft = _Draft(
        dataset,
        config,
        trust,
        partition.name,
        tuple(shard.party for shard in shards),
        tuple(shard.rows for shard in shards),
    )
    # Rows that cannot be drawn are refused here, before any charge.
    Drawing(request.seed, request.rows or sum(draft.sizes))
    mu = cast(GaussianMu, allocate([GaussianMu], [1.0], epsilon, config.stated_delta).losses[0]).mu
    return _planned(request, draft, partition, mu, epsilon)


def _planned(
    request: SynthesisRequest, draft: _Draft, partition: Partition, mu: float, epsilon: float
) -> SynthesisPlan:
    """Return the plan over histograms that were released before: of the plans there have been, the one that is charged.

    Histograms that come later neither change a charged synthesis nor charge it again. One that is not charged takes all
    that there are, if they are good enough.
    """
    described = described_columns(draft.dataset, relation_of(draft.dataset.name), draft.trust.name)
    newest = _planned_over(request, draft, partition, mu, epsilon, described)
    if not described or _is_charged(newest):
        return newest
    for number in reversed(range(len(described))):
        try:
            earlier = _planned_over(request, draft, partition, mu, epsilon, described[:number])
        except ParameterError:
            # A plan that cannot be made without the newer histograms was not charged without them.
            continue
        if _is_charged(earlier):
            return earlier
    return newest


def _is_charged(plan: SynthesisPlan) -> bool:
    return bool(open_ledger().charged({plan.tables.key}))


def _planned_over(
    request: SynthesisRequest,
    draft: _Draft,
    partition: Partition,
    mu: float,
    epsilon: float,
    before: Sequence[PlannedRelease],
) -> SynthesisPlan:
    """Return the plan that takes some released histograms, if they are good enough, and otherwise pays for its own."""
    dataset, columns = draft.dataset, counted_columns(draft.dataset)
    classes, rows = max(len(dataset.classes), 1), sum(draft.sizes)
    named = _named_pairs(dataset, request.pairs)
    # Noise of several parties adds up; rules go by what is left of the budget.
    worth = mu / draft.setting(dataset.dimension).noise_factor
    values = [one.values for one in dataset.columns if one.values is not None]
    stages = stages_for(rows, len(columns), classes, worth, named=named, values=values)
    there = math.fsum(cast(GaussianMu, one.budget).mu ** 2 for one in before)
    if there >= _GOOD_ENOUGH * stages.shares[0] * mu**2:
        stages = stages_for(rows, len(columns), classes, worth, named=named, values=values, paid=True)
    else:
        before = ()
    mus = [mu * math.sqrt(share) for share in stages.shares]
    label_range = None if dataset.label_range is None else list(dataset.label_range)
    counts = list(before)
    if not counts:
        bins = bins_for(rows, len(columns) + 1, mus[0] / draft.setting(dataset.dimension).noise_factor)
        counting: dict[str, object] = {"columns": columns, "bins": bins, "label_range": label_range}
        counts = [draft.release("histograms of the columns", NAME, counting, mus[0], dataset.dimension, ())]
    known: dict[str, object] = {
        "columns": columns,
        "dimension": dataset.dimension,
        "rows": rows,
        "releases": [how_counted(cast(ColumnHistograms, one.build()), one.setting) for one in counts],
    }
    upstream = [one.key for one in counts]
    tree: dict[str, object] = {
        **known,
        "classes": stages.label_parts,
        "pairs": [list(pair) for pair in stages.pairs],
        "parts": stages.parts,
        "parent_parts": stages.parent_parts,
    }
    pair_groups = pairs = None
    if stages.pairs:
        pair_groups = draft.combination(
            "groups of the columns", "pair-groups", {**known, "parts": PAIR_PARTS}, upstream
        )
        pairs = draft.release(
            f"{len(stages.pairs)} table{'s' * (len(stages.pairs) > 1)} of pairs",
            "pair-counts",
            stages.counting_pairs(len(columns), label_range),
            mus[1],
            len(columns),
            [pair_groups.key],
        )
        upstream = [*upstream, pairs.key]
        tree |= {"pair_parts": PAIR_PARTS, "pair_deviation": _deviation(pairs)}
    features = (2 if stages.pairs else 1) * len(columns)
    # What it is made of does not depend on the map before it.
    counted = stages.counting_tree(len(columns), label_range)
    label = f"{len(columns)} table{'s, one per column' if len(columns) > 1 else ' of the column'}"
    tree["deviation"] = _deviation(draft.release(label, "pair-counts", counted, mus[2], features, ()))
    tree_groups = draft.combination("groups of the columns and of their parents", "tree-groups", tree, upstream)
    tables = draft.release(label, "pair-counts", counted, mus[2], features, [tree_groups.key])
    synthesis = draft.combination("synthesis", "tree-synthesis", tree, [*upstream, tables.key])
    return SynthesisPlan(
        dataset=dataset,
        partition=partition,
        counts=tuple(counts),
        before=tuple(one.key for one in before),
        pair_groups=pair_groups,
        pairs=pairs,
        tree_groups=tree_groups,
        tables=tables,
        synthesis=synthesis,
        reason=stages.reason,
        epsilon=epsilon,
        delta=draft.config.stated_delta,
    )


def _deviation(planned: PlannedRelease) -> float:
    """Return the deviation of the noise of a released count, of all parties together."""
    return cast(PairCounts, planned.build()).deviation(planned.setting) * planned.setting.noise_factor


def _named_pairs(dataset: DatasetRef, given: Sequence[str]) -> list[tuple[int, int]]:
    names = [scale.name for scale in scales_of(dataset)]
    found = []
    for pair in given:
        one, other = two_names(pair, names)
        if unknown := [name for name in (one, other) if name not in names]:
            raise InputError(
                f"--pairs {pair}: {unknown[0]!r} is not a column of {dataset.name}; it has {', '.join(names[:20])}"
                f"{', …' if len(names) > 20 else ''}"
            )
        found.append((names.index(one), names.index(other)))
    return found
