"""Private ranges of columns that have no schema yet: ranges and lists of values as one charged plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from dpalgos.algorithms import require_people
from dpalgos.evaluators.noisy_sums import BinCounts, occupied
from dpalgos.guarantees import ApproximateDP, Loss, PureEpsilon, Setting, Trust
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.rows import Floats
from storage.errors import InputError
from storage.readers.drafts import BINS, WIDTH, drafted_columns, range_of_bins, text_of
from storage.refs import DatasetRef, ShardRef
from storage.schema import read_declaration
from tasks.accounts.terms import relation_of
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.planning.identity import code_version
from tasks.planning.releases import PlannedRelease
from tasks.preparation.partitions import make_partition, plan_partition
from tasks.release.admission import admit
from tasks.release.door import make_release
from tasks.release.storing import read_release
from tasks.runtime.stores import open_catalog

_MOST_VALUES = 256
# Of the cap's delta, the part that lists of values take by default; and what pure epsilons state their cost at where
# the cap has none. None of that is spent.
_OF_CAP, _UNSPENT = 100, 1e-12


@dataclass(frozen=True)
class ColumnContents:
    """What was drawn.

    Attributes
    ----------
    ranges : dict of column name to (float, float) or None
        Powers of two, or 0; None where no bin stands out.
    values : dict of column name to list of str
        Sorted; empty where no value was selected.
    full : tuple of str
        Columns with as many values as a release holds: there may be more.
    delta, cap_delta : float
        What the values spend, of the account's.
    """

    ranges: dict[str, tuple[float, float] | None]
    values: dict[str, list[str]]
    full: tuple[str, ...] = ()
    delta: float = 0.0
    cap_delta: float = 0.0


def private_contents(request: IngestRequest, epsilon: float, delta: float | None) -> ColumnContents:
    """Draw ranges of a draft's numeric columns and values of its categories, in one plan.

    The rows are registered as the numbers of public bins and the bytes of texts, under a name of their own and the
    account that the rows will belong to, which is charged once for everything before anything is drawn. *Ranges*: how
    many rows lie in each bin, with discrete Laplace noise (:class:`dpalgos.evaluators.noisy_sums.BinCounts`), from
    the first to the last bin that stands out of it. *Values*: by optimal partition selection
    (:class:`dpalgos.evaluators.noisy_sums.KeySelection`). Where both are drawn, each has half of epsilon. Asked
    again for the same rows it is the same release, and costs nothing.

    Parameters
    ----------
    request : IngestRequest
        Of format ``table-draft``: name, rows, draft, account and cap.
    epsilon : float
        For all columns together, above 0.
    delta : float or None
        Below 1/n: what the values spend, and at which the account states its cost; ranges spend none. If None a
        hundredth of the cap's: values are selected at a true delta without any Gaussian-DP, so filters add it up.

    Raises
    ------
    RefusedError
        If the account's cap would be exceeded; nothing is drawn then.
    InputError
        If the rows cannot be read, or the draft has no column that could be drawn.
    """
    if request.schema_path is None:
        raise InputError("ranges and values are drawn for the columns of a draft; name it")
    drafted = drafted_columns(request.schema_path)
    numbers, texts = drafted["numeric"], drafted["category"]
    if texts and any(one.get("type") == "person" for one in read_declaration(request.schema_path)["columns"]):
        require_people(lookup("evaluators", "key-selection"))
    share = epsilon / (bool(numbers) + bool(texts))
    dataset = ingest(request)
    cap = open_catalog().account_of(dataset.name).cap
    of_cap = 1.0 if cap is None else cap.delta
    if texts and not (delta or of_cap):
        raise InputError(f"values of categories are drawn with a delta only, and the cap of {dataset.account} has none")
    delta = delta or of_cap / _OF_CAP or _UNSPENT
    shard = _shard(dataset, delta)
    of_texts = {"columns": len(texts), "width": WIDTH, "first": len(numbers), "most": _MOST_VALUES}
    wanted: dict[str, tuple[tuple[str, ...], str, dict[str, int], Loss]] = {
        "ranges": (numbers, "bin-counts", {"bins": BINS, "columns": len(numbers)}, PureEpsilon(share)),
        "values": (texts, "key-selection", of_texts, ApproximateDP(share, delta)),
    }
    planned = {
        what: _planned(f"the {what} of columns", name, parameters, budget, shard, delta)
        for what, (columns, name, parameters, budget) in wanted.items()
        if columns
    }
    admit(list(planned.values()), [shard], run="what the columns hold")
    ranges = _ranges(numbers, planned["ranges"], shard) if numbers else {}
    values = _values(texts, planned["values"], shard) if texts else {}
    full = tuple(name for name, listed in values.items() if len(listed) == _MOST_VALUES)
    return ColumnContents(ranges, values, full, delta if texts else 0.0, of_cap)


def _released(planned: PlannedRelease, shard: ShardRef) -> Floats:
    return np.asarray(read_release(make_release(planned, [shard])).values)


def _ranges(names: tuple[str, ...], planned: PlannedRelease, shard: ShardRef) -> dict[str, tuple[float, float] | None]:
    counts = cast(BinCounts, planned.build())
    scale = counts.distribution(planned.setting).scale / counts.units(planned.setting)
    ranges = [occupied(column, scale) for column in _released(planned, shard)]
    return {name: None if ends is None else range_of_bins(*ends) for name, ends in zip(names, ranges, strict=True)}


def _values(names: tuple[str, ...], planned: PlannedRelease, shard: ShardRef) -> dict[str, list[str]]:
    released = [keys[(keys >= 0).all(axis=1)] for keys in _released(planned, shard)]
    return {name: sorted({text_of(key) for key in keys}) for name, keys in zip(names, released, strict=True)}


def _shard(dataset: DatasetRef, delta: float) -> ShardRef:
    """Return all rows as one party's."""
    whole = TrainingConfig(
        dataset=dataset.name, partition="even", parties=1, test_fraction=0, evaluation=False, epsilon=1.0, delta=delta
    )
    (shard,) = make_partition(plan_partition(dataset, whole)).training
    return shard


def _planned(
    label: str, name: str, parameters: Mapping[str, object], budget: Loss, shard: ShardRef, delta: float
) -> PlannedRelease:
    dataset, trust = shard.dataset, AlgorithmSpec("trusts", str(Trust.CENTRAL))
    return PlannedRelease(
        label=label,
        code=code_version(lookup("evaluators", name), lookup(trust.kind, trust.name)),
        dataset=dataset.version,
        partition=shard.partition,
        replicate=0,
        seed=None,
        upstream=(),
        algorithm=AlgorithmSpec("evaluators", name, dict(parameters)),
        budget=budget,
        setting=Setting(
            sizes=(shard.rows,),
            dimension=dataset.dimension,
            classes=len(dataset.classes),
            neighbours=relation_of(dataset.name),
            trust=Trust.CENTRAL,
            rows_per_person=dataset.rows_per_person,
        ),
        trust=trust,
        parties=(shard.party,),
        account=dataset.account,
        delta=delta,
    )
