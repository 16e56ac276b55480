"""Private ranges of a table's columns, before it has a schema: one charged release of noisy counts of public bins."""

from __future__ import annotations

import numpy as np

from dpalgos.evaluators.bin_counts import BinCounts, occupied
from dpalgos.guarantees import PureEpsilon, Setting, Trust
from dpalgos.registry import AlgorithmSpec, lookup
from storage.errors import InputError
from storage.readers.bins import BINS, binned_columns, range_of_bins
from tasks.accounts.budget import relation_of
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.planning.identity import code_version
from tasks.planning.plans import PlannedRelease
from tasks.preparation.dealing import deal_rows
from tasks.release.door import make_release
from tasks.release.storing import read_release

__all__ = ["private_ranges"]


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
    if request.schema_path is None:
        raise InputError("ranges are drawn for the numeric columns of a draft; name it")
    dataset = ingest(request)
    config = TrainingConfig(
        dataset=dataset.name,
        partition="even",
        parties=1,
        test_fraction=0,
        evaluation=False,
        epsilon=epsilon,
        delta=delta,
    )
    (shard,) = deal_rows(dataset, config).training
    budget = PureEpsilon(epsilon)
    trust = AlgorithmSpec("trusts", str(Trust.CENTRAL))
    planned = PlannedRelease(
        label="ranges of columns",
        code=code_version(BinCounts, lookup(trust.kind, trust.name)),
        dataset=dataset.version,
        partition=shard.partition,
        repetition=0,
        seed=None,
        upstream=(),
        algorithm=AlgorithmSpec("evaluators", "bin-counts", {"bins": BINS}),
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
    counts = np.asarray(read_release(make_release(planned, [shard])).values)
    scale = BinCounts(budget=budget, bins=BINS).law(planned.setting).scale
    found = [occupied(column, scale) for column in counts]
    names = binned_columns(request.schema_path)
    return {name: None if bins is None else range_of_bins(*bins) for name, bins in zip(names, found, strict=True)}
