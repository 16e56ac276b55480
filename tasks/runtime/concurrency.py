"""What differs where a run was started by a deployment: one run a data set at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists
from prefect.runtime import deployment

AT_WORK = "unitball.at-work"
"""Name of the server's concurrency limit for all data sets together; who serves sets how many."""

LEASE_SECONDS = 60
"""A run that dies holds up the next one of its data set for this long at most, and a few seconds more."""


def limit_name(dataset: str) -> str:
    """Return the name of the server's concurrency limit for a data set."""
    return f"unitball.dataset.{dataset}"


@contextmanager
def one_run_a_dataset(dataset: str) -> Iterator[None]:
    """Let the deployed runs of one data set go one after the other; other data sets' runs are not held up by who waits.

    This saves work and keeps the order of charges readable. It protects no budget: the ledger does, whatever runs at
    once. So a lease that cannot be renewed does not end a run. Runs that no deployment started do not wait.
    """
    if not deployment.id:
        yield
        return
    name = limit_name(dataset)
    # Another run may just have made it.
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.upsert_global_concurrency_limit_by_name(name, 1)
    leased = partial(concurrency, lease_duration=LEASE_SECONDS, raise_on_lease_renewal_failure=False)
    # The data set first: who waits for it holds none of the machine's slots.
    with leased(name, strict=True), leased(AT_WORK):
        yield
