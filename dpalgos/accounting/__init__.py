"""Privacy accounting: what releases cost together, what noise a budget buys, and whether the next plan still fits.

- within a plan: :func:`compose`, :func:`allocate`;
- a plan's price for each party: :func:`price`, :class:`PlanCost`; :func:`losses_under` puts a guarantee under the
  relation in force first;
- across plans, parties and partitions: :func:`spent`, :func:`status`, :func:`admit`,
  :func:`repeats_left`.

All functions take plain values and depend on public facts only.
"""

from dpalgos.accounting.calibration import Allocation, allocate, group_loss, losses_under
from dpalgos.accounting.composition import compose
from dpalgos.accounting.costs import PlanCost, price
from dpalgos.accounting.profiles import PrivacyProfile
from dpalgos.accounting.spending import (
    Admission,
    FilterCap,
    Spent,
    admit,
    repeats_left,
    spent,
    status,
)

__all__ = [
    "Admission",
    "Allocation",
    "FilterCap",
    "PlanCost",
    "PrivacyProfile",
    "Spent",
    "admit",
    "allocate",
    "compose",
    "group_loss",
    "losses_under",
    "price",
    "repeats_left",
    "spent",
    "status",
]
