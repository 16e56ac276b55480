"""What every aggregator is: post-processing of the parties' released artefacts into one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from dpalgos.models import Artefact
from dpalgos.rows import Floats

Released = TypeVar("Released", bound=Artefact)


class Aggregator(ABC, Generic[Released]):
    """Combine what the parties released, with public weights; costs nothing."""

    source: ClassVar[str]
    """Paper and algorithm."""
    combines: ClassVar[str]
    """The kind of artefact it takes and returns."""

    @abstractmethod
    def combine(self, artefacts: Sequence[Released], weights: Floats) -> Released:
        """Return one artefact.

        Parameters
        ----------
        artefacts : sequence
            One a party, all of kind ``combines``.
        weights : array (parties,)
            Not negative, of sum 1.
        """
