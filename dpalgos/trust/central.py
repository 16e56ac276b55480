"""Central trust: one curator sees all rows and adds the noise once."""

from dataclasses import dataclass
from typing import ClassVar

from dpalgos.registry import register
from dpalgos.trust.model import TrustModel


@register("trusts", "central")
@dataclass(frozen=True, slots=True, kw_only=True)
class Central(TrustModel):
    """One trusted curator sees all rows; for comparison, and for an owner of all rows."""

    summary: ClassVar[str] = "One trusted curator sees the rows."
