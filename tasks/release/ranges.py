"""What a table's columns hold, before it has a schema: ranges and categories as charged releases."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpalgos.evaluators.bin_counts import BinCounts, occupied
from dpalgos.guarantees import ApproximateDP, Loss, PureEpsilon, Setting, Trust
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.rows import Floats
from storage.errors import InputError
from storage.readers.bins import BINS, range_of_bins
from storage.readers.drafts import drafted_columns
from storage.readers.keys import text_of
from tasks.accounts.budget import relation_of
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.planning.identity import code_version
from tasks.planning.plans import PlannedRelease
from tasks.preparation.dealing import deal_rows
from tasks.release.door import make_release
from tasks.release.storing import read_release

__all__ = ["private_ranges", "private_values"]


def private_ranges(request: IngestRequest, epsilon: float, delta: float) -> dict[str, tuple[float, float] | None]:
    """Draw the ranges of a table's numeric columns, charged to the account that its rows will belong to.

    The rows are registered as the numbers of public bins (powers of two of either sign), under a name of their own and
    the same account. What is released is how many rows lie in each bin of each column, with discrete Laplace noise:
    epsilon-DP for all columns together (see :class:`dpalgos.evaluators.bin_counts.BinCounts`). A range reaches from the
    first to the last bin whose count stands out of the noise. Asked again for the same rows it is the same release,
    and costs nothing.

    Parameters
    ----------
    request : IngestRequest
        Of format ``table-bins``: name, rows, draft, account and cap.
    epsilon : float
        For all columns together, above 0.
    delta : float
        At which the account states its cost, below 1/n; nothing of it is spent.

    Returns
    -------
    dict of column name to (float, float) or None
        Powers of two; None where no bin stands out.

    Raises
    ------
    RefusedError
        If the account's cap would be exceeded; nothing is drawn then.
    InputError
        If the rows cannot be read, or the draft has no numeric column.
    """
    spec, budget = AlgorithmSpec("evaluators", "bin-counts", {"bins": BINS}), PureEpsilon(epsilon)
    names, planned, counts = _drawn(request, "numeric", spec, budget, delta)
    scale = BinCounts(budget=budget, bins=BINS).law(planned.setting).scale
    found = [occupied(column, scale) for column in counts]
    return {name: None if bins is None else range_of_bins(*bins) for name, bins in zip(names, found, strict=True)}


def private_values(request: IngestRequest, epsilon: float, delta: float) -> dict[str, list[str]]:
    """Draw the values that a table's categories have, as far as enough rows have them; charged like ranges.

    Parameters
    ----------
    request : IngestRequest
        Of format ``table-keys``: name, rows, draft, account and cap.
    epsilon, delta : float
        For all columns together; see :class:`dpalgos.evaluators.key_selection.KeySelection`.

    Returns
    -------
    dict of column name to list of str
        Sorted; empty where no value stands out. Values that few rows have are missing: declare how such rows are
        treated (``--on-violation clip``).

    Raises
    ------
    RefusedError
        If the account's cap would be exceeded; nothing is drawn then.
    InputError
        If the rows cannot be read, or the draft has no category.
    """
    columns = len(drafted_columns(_draft_of(request), "category"))
    spec = AlgorithmSpec("evaluators", "key-selection", {"columns": columns})
    names, _, released = _drawn(request, "category", spec, ApproximateDP(epsilon, delta), delta)
    return {
        name: sorted({text_of(row[1:]) for row in rows if (row[1:] >= 0).all()})
        for name, rows in zip(names, released, strict=True)
    }


def _draft_of(request: IngestRequest) -> Path:
    if request.schema_path is None:
        raise InputError("ranges and values are drawn for the columns of a draft; name it")
    return request.schema_path


def _drawn(
    request: IngestRequest, kind: str, spec: AlgorithmSpec, budget: Loss, delta: float
) -> tuple[tuple[str, ...], PlannedRelease, Floats]:
    """Register the rows, plan, charge and make one release; return the columns, the plan and what was released."""
    names = drafted_columns(_draft_of(request), kind)
    dataset = ingest(request)
    config = TrainingConfig(
        dataset=dataset.name, partition="even", parties=1, test_fraction=0, evaluation=False, epsilon=1.0, delta=delta
    )
    (shard,) = deal_rows(dataset, config).training
    trust = AlgorithmSpec("trusts", str(Trust.CENTRAL))
    planned = PlannedRelease(
        label=f"what the {kind} columns hold",
        code=code_version(lookup(spec.kind, spec.name), lookup(trust.kind, trust.name)),
        dataset=dataset.version,
        partition=shard.partition,
        repetition=0,
        seed=None,
        upstream=(),
        algorithm=spec,
        budget=budget,
        setting=Setting(
            sizes=(shard.rows,),
            dimension=dataset.dimension,
            classes=len(dataset.classes),
            neighbours=relation_of(dataset.name),
            trust=Trust.CENTRAL,
        ),
        trust=trust,
        parties=(shard.party,),
        account=dataset.account,
        delta=delta,
    )
    return names, planned, np.asarray(read_release(make_release(planned, [shard])).values)
