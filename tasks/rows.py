"""The steps of rows: from a registered data set to the parties' shards."""

from typing import Any

from storage.refs import DatasetRef
from tasks.datasets.registration import ensure_registered, find_dataset
from tasks.planning.graph import materialise
from tasks.planning.nights import ArrivedRows
from tasks.planning.plans import RunPlan
from tasks.planning.rows import FeatureStep, MappedRows, NormalisedRows, Partition, Shards
from tasks.preparation.making import make_rows
from tasks.preparation.mapped_rows import keep_under
from tasks.preparation.nightly_rows import make_arrived
from tasks.preparation.normalisation import is_stored_whole, make_normalised
from tasks.preparation.partitions import are_stored_whole, make_partition
from tasks.preparation.public_maps import kept_maps, make_map, make_mapped
from tasks.release.deadlines import prepare_in_time
from tasks.runtime.progress import report_progress
from tasks.runtime.steps import step


@step(task_run_name="resolve {name}", cached=False)
def resolve_dataset(name: str) -> DatasetRef:
    """Return the newest registered version of a data set, registering a set that scikit-learn brings along.

    Never cached: a name means another version once its owner has registered one.
    :func:`tasks.datasets.registration.ingest` ingests the rows of files, at the owner's command and not during a run.
    """
    ensure_registered(name)
    dataset = find_dataset(name)
    report_progress("data set", f"{dataset.rows} {dataset.unit.several} of {name}")
    return dataset


@step(task_run_name="normalise {node.source.name}", whole=is_stored_whole)
def normalise(node: NormalisedRows) -> DatasetRef:
    """Store a version of a data set whose rows are mapped as a run wants them; a version that is there is reused."""
    result = make_normalised(node)
    report_progress("normalisation", f"{result.rows} {result.unit.several} to {result.normalisation}")
    return result


@step(task_run_name="map {feature.label}", cached=False)
def make_public_map(feature: FeatureStep) -> str:
    """Make a public map and keep it among the releases; one that is stored is left there. Return its key."""
    make_map(feature)
    report_progress("features", feature.label)
    return feature.key


@step(task_run_name="features of {node.source.name}", whole=is_stored_whole)
def extract_features(node: MappedRows) -> DatasetRef:
    """Keep a version's rows as public maps show them, where there is room; those that are kept are reused."""
    result = make_mapped(node)
    of, maps = f"{result.rows} {result.unit.several}", ", ".join(each.label for each in node.maps)
    report_progress("features", f"{of} to {result.dimension} features: {maps}")
    return result


@step(task_run_name="partition {node.rows.name}", whole=are_stored_whole)
def partition(node: Partition) -> Shards:
    """Divide a data set's rows among parties by a rule that is fixed before any row is read."""
    shards = make_partition(node)
    of = f"{sum(shard.rows for shard in shards.training)} {node.rows.unit.several}"
    report_progress("partition", f"{of} to {len(shards.training)} parties")
    return shards


@step(task_run_name="rows of {node.release.label}", cached=False)
def arrive(node: ArrivedRows) -> Shards:
    """Write what arrived in a night to the parties' own stores; each notes what and where, for later nights."""
    shards, unit = make_arrived(node), node.registered.unit.several
    report_progress("arrival", f"{sum(shard.rows for shard in shards.training)} {unit}, {node.release.label}")
    return shards


@step(task_run_name="prepare the rows of {plan.system}", cached=False)
def prepare_rows(plan: RunPlan, nodes: list[NormalisedRows | MappedRows | Partition]) -> dict[str, Any]:
    """Normalise, map and partition private rows whose releases have a deadline, to one clock; return what was made.

    Never cached: whether anything is to be done follows from which releases are stored. Nothing is made then.
    """
    dataset = nodes[-1].rows
    what = f"the partition of {dataset.name}"
    planned = {node.key: node for node in nodes}
    stored = {key for node in nodes for key in node.inputs} - planned.keys()
    maps = kept_maps(plan)

    def prepare() -> dict[str, Any]:
        made: dict[str, Any] = materialise(planned, lambda node, _: make_rows(node), at_hand=stored)
        for shards in made.values():
            if isinstance(shards, Shards):
                keep_under(shards, maps)
        return made

    made = prepare_in_time(plan, what, prepare)
    report_progress("preparation", f"{dataset.rows} {dataset.unit.several} of {dataset.name}")
    return made or {}
