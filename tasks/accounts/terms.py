"""An account's terms (neighbouring relation, opening cap), and the deltas that runs under its cap take."""

from dpalgos.accounting.spending import GAUSSIAN_PART
from dpalgos.guarantees import Neighbours, rounded_down
from storage.ledger.charges import Cap
from tasks.runtime.stores import open_catalog


def relation_of(dataset: str) -> Neighbours:
    """Return the neighbouring relation of a data set's account, fixed at opening."""
    return Neighbours(open_catalog().account_of(dataset).relation)


def tenth(delta: float) -> float:
    """Return the delta of a run that leaves room for others under a cap of this delta."""
    return float(f"{delta / 10:.6g}")


def gaussian_delta(delta: float) -> float:
    """Return the delta of a run of Gaussian losses alone under a cap of this delta: six digits, as it is printed.

    Rounded down, so that under a cap of the run's own epsilon the filter holds all of it.
    """
    return rounded_down(GAUSSIAN_PART * delta, 6)


def opening_cap(dataset: str) -> Cap | None:
    """Return the cap with which a data set's account was opened, before any later change; None if public."""
    return open_catalog().account_of(dataset).opening_cap
