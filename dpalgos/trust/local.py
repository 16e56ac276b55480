"""Local trust: each party adds all the noise that its own guarantee needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpalgos.registry import register
from dpalgos.systems.system import Scope
from dpalgos.trust.model import EVERYONE, TrustModel

__all__ = ["Local"]


@register("trusts", "local")
@dataclass(frozen=True, slots=True, kw_only=True)
class Local(TrustModel):
    """The server sees each party's noisy release; a party's guarantee needs nobody else."""

    scope: ClassVar[Scope] = Scope.PARTY
    summary: ClassVar[str] = "The server sees each party's noisy release."

    def owner(self, parties: Sequence[str]) -> str:
        """Return the party, or everyone where a system has one release of all even so."""
        return parties[0] if len(parties) == 1 else EVERYONE
