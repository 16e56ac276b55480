"""Private ranges of columns that have no schema yet: ranges and lists of values as one charged plan."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.algorithms import require_people
from dpalgos.evaluators.bin_counts import BinCounts, occupied
from dpalgos.guarantees import ApproximateDP, GaussianMu, Loss, Neighbours, PureEpsilon, Setting, Trust
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.rows import Floats
from storage.errors import InputError
from storage.readers.drafts import BINS, WIDTH, drafted_columns, range_of_bins, text_of
from storage.refs import DatasetRef, ShardRef
from storage.schema import read_declaration
from tasks.accounts.terms import gaussian_delta, relation_of
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
    """Ranges and values that a release drew for columns.

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

    The rows are registered as the numbers of public bins and the bytes of texts, under their own name and the
    account that the rows will belong to, which is charged once for everything before anything is drawn. *Ranges*: how
    many rows lie in each of 103 bins, powers of two of either sign from 2^-10 to 2^40 and one around 0, with Gaussian
    noise (:class:`dpalgos.evaluators.bin_counts.BinCounts`), from the first to the last bin that stands out of
    it. *Values*: by optimal partition selection
    (:class:`dpalgos.evaluators.key_selection.KeySelection`). Where both are drawn, each has half of epsilon. A
    repetition for the same rows is the same release, and is free.

    *How much noise*, in d columns, of which a record moves 2 d counts by one (d under replace-special). Laplace noise
    for epsilon has the scale 2 d / epsilon and the deviation sqrt(2) 2 d / epsilon; Gaussian noise for mu the deviation
    sqrt(2 d) / mu. They are equal at mu = epsilon / (2 sqrt(d)), at which ranges are found as well, while a filter of
    Gaussian losses adds mu² for it, where the pure loss enters as -2 Φ⁻¹(1 / (1 + e^epsilon)): at epsilon = 0.5 these
    are 0.25 / sqrt(d) and 0.62. (Under replace-special it is epsilon / sqrt(2 d).) That mu is taken, but never more
    than what alone is (epsilon, delta)-DP, which is what was asked for. For few columns that is less (for up to four at
    epsilon = 0.5 and a cap's delta of 10⁻⁶), and noise is then more than Laplace's, at a smaller price still. Under a
    cap without delta there are no Gaussian losses, and discrete Laplace noise is used
    (:class:`dpalgos.evaluators.bin_counts.LaplaceBinCounts`).

    Parameters
    ----------
    request : IngestRequest
        Of format ``table-draft``: name, rows, draft, account and cap.
    epsilon : float
        For all columns together, above 0.
    delta : float or None
        Below 1/n: what the values spend, and at which the account states its cost; ranges spend none. If None what a
        run of Gaussian losses alone takes where there are no values, and otherwise a hundredth of the cap's: values are
        selected at a true delta without any Gaussian-DP, so filters add it up.

    Raises
    ------
    RefusedError
        If the account's cap would be exceeded; nothing is drawn then.
    InputError
        If the rows cannot be read, or the draft has no column that could be drawn.
    """
    if request.schema_path is None:
        raise InputError("ranges and values are released for the columns of a draft; give the draft")
    drafted = drafted_columns(request.schema_path)
    numbers, texts = drafted["numeric"], drafted["category"]
    if texts and any(one.get("type") == "person" for one in read_declaration(request.schema_path)["columns"]):
        require_people(lookup("evaluators", "key-selection"))
    share = epsilon / (bool(numbers) + bool(texts))
    dataset = ingest(request)
    cap = open_catalog().account_of(dataset.name).cap
    of_cap = 1.0 if cap is None else cap.delta
    if texts and not (delta or of_cap):
        raise InputError(f"releasing values of categories needs a delta, and the cap of {dataset.account} has none")
    delta = delta or (of_cap / _OF_CAP if texts else gaussian_delta(of_cap)) or _UNSPENT
    shard = _shard(dataset, delta)
    name, loss = _of_ranges(share, delta, len(numbers), relation_of(dataset.name), gaussian=of_cap > 0)
    of_texts = {"columns": len(texts), "width": WIDTH, "first": len(numbers), "most": _MOST_VALUES}
    wanted: dict[str, tuple[tuple[str, ...], str, dict[str, int], Loss]] = {
        "ranges": (numbers, name, {"bins": BINS, "columns": len(numbers)}, loss),
        "values": (texts, "key-selection", of_texts, ApproximateDP(share, delta)),
    }
    planned = {
        what: _planned(f"the {what} of columns", evaluator, parameters, budget, shard, delta)
        for what, (columns, evaluator, parameters, budget) in wanted.items()
        if columns
    }
    admit(list(planned.values()), [shard], run="what the columns hold")
    ranges = _ranges(numbers, planned["ranges"], shard) if numbers else {}
    values = _values(texts, planned["values"], shard) if texts else {}
    full = tuple(name for name, listed in values.items() if len(listed) == _MOST_VALUES)
    return ColumnContents(ranges, values, full, delta if texts else 0.0, of_cap)


def _of_ranges(epsilon: float, delta: float, columns: int, relation: Neighbours, *, gaussian: bool) -> tuple[str, Loss]:
    """Return the evaluator of some columns' ranges and its budget."""
    if not gaussian or not columns:
        return "laplace-bin-counts", PureEpsilon(epsilon)
    # Deviations: sqrt(2) r d / epsilon of Laplace noise, sqrt(r d) / mu of Gaussian noise, r counts a column.
    equal = epsilon / math.sqrt(2.0 * relation.records * columns)
    return "bin-counts", GaussianMu(min(equal, mu_from_epsilon_delta(epsilon, delta)))


def _released(planned: PlannedRelease, shard: ShardRef) -> Floats:
    return np.asarray(read_release(make_release(planned, [shard])).values)


def _ranges(names: tuple[str, ...], planned: PlannedRelease, shard: ShardRef) -> dict[str, tuple[float, float] | None]:
    counts = cast(BinCounts, planned.build())
    threshold = counts.threshold(planned.setting)
    ranges = [occupied(column, threshold) for column in _released(planned, shard)]
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
