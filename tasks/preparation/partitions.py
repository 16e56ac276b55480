"""Partitions: which rows each party has, and which are held out, by a rule from public facts."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpalgos.held_out import held_out_fraction
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup
from storage.datasets import open_dataset, origins
from storage.errors import InputError, RefusedError, StorageError
from storage.refs import DatasetRef, ShardRef
from storage.shards import open_shard, write_shards
from tasks.accounts.terms import opening_cap, tenth
from tasks.planning.configuration import BudgetSettings, EvaluationSettings, PartitionSettings, TrainingConfig
from tasks.planning.identity import identity
from tasks.planning.resolution import parameters_of
from tasks.planning.rows import Partition, Shards
from tasks.runtime.settings import current_layout

HELD_OUT = "test"


OWN_FILES = "own"


_PUBLIC_FRACTION = 0.2


def plan_partition(rows: DatasetRef, config: TrainingConfig, registered: DatasetRef | None = None) -> Partition:
    """Return whose rows are whose, and which are held out, by a rule that is fixed before any row is read.

    Held-out rows are a party of the same partition: they are disjoint from the others', so an evaluation of them
    charges no other rows.

    Parameters
    ----------
    rows : DatasetRef
        Whose rows are divided; it need not be stored yet.
    config : TrainingConfig
        How many parties, of which sizes; and what the rule for held-out rows goes by: the budget, and whether a model
        is measured.
    registered : DatasetRef, optional
        The version that ``rows`` is made of, where it is not stored yet.

    Raises
    ------
    RefusedError
        If the rule depends on what private rows contain.
    InputError, ParameterError
        If the rule does not fit, or there are not enough rows.
    """
    files = origins(current_layout(), registered or rows)
    fraction, seed = _test_fraction(rows, config.test_fraction, config, config), config.partition_seed
    spec = _spec(rows, config, parameters_of(config, "partition"), files)
    own = files if spec is None else ()
    if spec is None:
        require_owners(own)
    held: list[object] = [fraction, seed, *(["by position"] if rows.private else [])]
    name = identity(
        dataset=rows.version,
        rule=OWN_FILES if spec is None else spec.name,
        parameters=dict(spec.parameters) if spec else list(own),
        held_out=held if fraction else None,
    )[:32]
    return Partition(name=name, rows=rows, rule=spec, files=files, fraction=fraction, seed=seed)


def shards_of(partition: Partition) -> Shards:
    """Return the shards of a partition; no row is read, unless only what rows contain decides whose they are.

    Raises
    ------
    InputError
        If there are not enough rows.
    """
    return _references(partition, positions_by_party(partition))


def make_partition(partition: Partition) -> Shards:
    """Divide the rows of a stored version among the parties; shards that are there already are kept.

    Raises
    ------
    InputError
        If there are not enough rows.
    """
    assignment = positions_by_party(partition)
    write_shards(current_layout(), partition.rows, assignment, partition.name)
    if partition.rows.test_rows:
        write_test_rows(partition.rows, partition.name)
    return _references(partition, assignment)


def write_test_rows(dataset: DatasetRef, name: str) -> ShardRef:
    """Write a data set's own test rows as the held-out shard of a partition."""
    everything = {HELD_OUT: np.arange(dataset.test_rows, dtype=np.int64)}
    return write_shards(current_layout(), dataset, everything, name, part="test")[0]


def _references(partition: Partition, assignment: Mapping[str, NDArray[np.int64]]) -> Shards:
    """Return the shards of a partition; of held-out rows the data set's own test rows, where it has any."""
    sizes = {party: len(positions) for party, positions in assignment.items()}
    if partition.rows.test_rows:
        sizes[HELD_OUT] = partition.rows.test_rows
    shards = {
        party: ShardRef(dataset=partition.rows, partition=partition.name, party=party, rows=rows)
        for party, rows in sizes.items()
    }
    held_out = shards.pop(HELD_OUT, None)
    return Shards(training=tuple(shards.values()), held_out=held_out)


def positions_by_party(partition: Partition) -> dict[str, NDArray[np.int64]]:
    """Return each party's positions among the training rows, in order; of those held out as well.

    Raises
    ------
    InputError
        If there are not enough rows.
    """
    rows, rule = partition.rows, partition.rule
    held = _held_out(rows, partition.fraction, partition.seed, partition.files)
    training = np.ones(rows.rows, dtype=np.bool_)
    training[held] = False
    kept = np.flatnonzero(training)
    if rule is None:
        assignment = own_positions(partition.files, kept)
        if empty := [party for party, inside in assignment.items() if not len(inside)]:
            raise InputError(f"party {empty[0]!r} has no training rows left; choose a smaller --test-fraction")
    else:
        labels = None
        if partition.reads_rows:
            blocks = open_dataset(current_layout(), rows).blocks()
            labels = np.concatenate([labels for _, labels, _ in blocks])[kept]
        assigned = rule.build().assign(len(kept), labels)
        assignment = {str(party): kept[positions] for party, positions in assigned.items()}
    return {**assignment, **({HELD_OUT: held} if len(held) else {})}


def _test_fraction(
    dataset: DatasetRef, asked: float | None, evaluation: EvaluationSettings, budget: BudgetSettings
) -> float:
    """Return the share of rows to hold out: none beside test rows, what is asked for, or by a public rule."""
    if dataset.test_rows:
        return 0.0
    if asked is not None:
        return asked
    if not dataset.private:
        return _PUBLIC_FRACTION
    cap = opening_cap(dataset.name)
    # The account's own, so that all its runs of one epsilon hold out the same rows at any delta: another
    # partition of the same rows would be charged on top.
    delta = budget.stated_delta if cap is None else tenth(cap.delta)
    return private_fraction(evaluation, budget.epsilon, delta, dataset.rows, len(dataset.classes))


def private_fraction(
    evaluation: EvaluationSettings, epsilon: float | None, delta: float, rows: int, classes: int
) -> float:
    """Return the default share of private rows to hold out: by a rule from public numbers.

    Parameters
    ----------
    evaluation : EvaluationSettings
        Nothing is held out where nothing is measured.
    epsilon : float or None
        Of the run.
    delta : float
        A tenth of the cap's; the run's own where no cap is known here.
    rows, classes : int
    """
    if not evaluation.evaluation or epsilon is None or not rows:
        return 0.0
    return held_out_fraction(rows, classes, epsilon, delta)


def _held_out(dataset: DatasetRef, fraction: float, seed: int, files: Sequence[tuple[str, int]]) -> NDArray[np.int64]:
    """Return the positions held out; positions and a public seed decide, never what rows contain.

    Of private rows each is decided by its own position within its file, so that it stays held out in every version
    that adds rows at the end, and a smaller fraction holds out fewer of the same rows. How many there are follows from
    n and the seed: it is public.

    Raises
    ------
    InputError
        If a fraction other than 0 would leave no row on either side.
    """
    if fraction == 0:
        return np.arange(0, dtype=np.int64)
    if dataset.private:
        places = [_places(seed, party, rows) for party, rows in files or [("", dataset.rows)]]
        held = np.flatnonzero(np.concatenate(places) < fraction)
    else:
        held = np.sort(np.random.default_rng([seed, 1]).permutation(dataset.rows)[: round(fraction * dataset.rows)])
    if not 0 < len(held) < dataset.rows:
        raise InputError(
            f"a test fraction of {fraction:g} holds out {len(held)} of {dataset.rows} {dataset.unit.several}; "
            f"choose one between {1 / dataset.rows:.3g} and {1 - 1 / dataset.rows:.3g}, or 0 to train on all"
        )
    return held


def held_out_rows(party: str, rows: int, fraction: float, seed: int) -> int:
    """Return how many of a party's own private rows are held out: public, from their number and a public seed."""
    return int(np.count_nonzero(_places(seed, party, rows) < fraction))


def _places(seed: int, party: str, rows: int) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each position in a party's file, which does not depend on how many follow."""
    name = int.from_bytes(hashlib.sha256(party.encode()).digest()[:8])
    return np.random.default_rng([seed, 2, name]).random(rows)


def _spec(
    dataset: DatasetRef, config: PartitionSettings, given: Mapping[str, object], files: Sequence[tuple[str, int]]
) -> AlgorithmSpec | None:
    """Return the rule as a specification; None where the parties' own files decide, as they do where there are any."""
    name = config.partition or (OWN_FILES if files else "even")
    if name == OWN_FILES:
        require_own_number(dataset.name, config, files)
        return None
    cls = lookup("partitions", name)
    if cls.content_dependent and dataset.private:
        raise RefusedError(
            f"the partition {name!r} depends on the contents of rows, and {dataset.name} is private; choose even, "
            "sized or the parties' own files"
        )
    if cls.content_dependent and dataset.person:
        raise RefusedError(
            f"the partition {name!r} divides rows by label, and the rows of {dataset.name} belong to people, whose "
            "rows stay together; use even, sized or the parties' own files"
        )
    offered: dict[str, object] = {
        "parties": config.parties,
        "sizes": list(config.sizes) if config.sizes else None,
        "rows_per_party": config.rows_per_party,
        "seed": config.partition_seed,
    }
    fields = cls.__dataclass_fields__
    if unknown := [field for field in given if field not in fields]:
        known = ", ".join(sorted(fields))
        raise ParameterError(f"the partition {name!r} has no parameter {unknown[0]!r}; it has: {known}")
    if config.rows_per_party is not None and "rows_per_party" not in fields:
        raise InputError(f"the partition {name!r} takes no --rows-per-party; omit one of them")
    parameters = {field: value for field, value in offered.items() if field in fields and value is not None} | dict(
        given
    )
    if "sizes" in fields and "sizes" not in parameters:
        raise InputError(f"the partition {name!r} needs the parties' sizes: --sizes 50,100,500")
    return AlgorithmSpec("partitions", name, parameters)


def own_positions(files: Sequence[tuple[str, int]], positions: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return those of some positions that stand in each party's file."""
    ends = np.cumsum([0, *(rows for _, rows in files)])
    return {
        party: positions[(positions >= start) & (positions < end)]
        for (party, _), (start, end) in zip(files, pairwise(ends.tolist()), strict=True)
    }


def require_own_number(name: str, config: PartitionSettings, files: Sequence[object]) -> None:
    """Refuse a number of parties other than the number of files of a data set.

    Raises
    ------
    InputError
    """
    # Forms fill in the default, so that it cannot be told from not asking.
    if files and config.parties not in (len(files), PartitionSettings.model_fields["parties"].default):
        raise InputError(
            f"{name} has {len(files)} parties with files, and {config.parties} were requested; omit --parties, or "
            "divide the rows among simulated parties with --partition even"
        )


def require_owners(files: Sequence[object]) -> None:
    """Refuse the parties' own files as a partition of a data set that has none."""
    if not files:
        raise InputError("this data set has no parties' files; ingest them: unitball ingest NAME --party PARTY=PATH")


def are_stored_whole(shards: Shards) -> bool:
    """Whether all shards are there."""
    layout = current_layout()
    try:
        for shard in shards.all:
            open_shard(layout, shard)
    except StorageError:
        return False
    return True
