"""What a trust model is: the contract that every file of this folder keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpalgos.algorithms import Algorithm, SumAlgorithm, Summation, TrustedSummation
from dpalgos.guarantees import Guarantee, Setting, Trust
from dpalgos.rows import NoiseSource
from dpalgos.secure.rounds import SumRecord
from dpalgos.secure.summation import Masking
from dpalgos.systems.system import Arrangement, Scope, sums_only

EVERYONE = "all"
"""Whose release a joint one is: a curator's secret keys its noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustModel:
    """Who sees what; a subclass's fields are its own settings, checked when it is made.

    Attributes
    ----------
    scope : Scope
        Who forms a group where a run is put together of parts: each party by itself, or all of them.
    summary : str
        One sentence.
    """

    scope: ClassVar[Scope] = Scope.JOINT
    summary: ClassVar[str] = ""

    @classmethod
    def derived(cls, arrangements: Mapping[str, Arrangement]) -> Arrangement | None:
        """Return how a system that does not name this trust model runs under it all the same; None where it cannot."""
        return None

    def owner(self, parties: Sequence[str]) -> str:
        """Return whose release it is that reads these parties' rows: a party's own, or :data:`EVERYONE`'s."""
        return EVERYONE

    def noise_contributors(self, parties: Sequence[str]) -> tuple[str, ...]:
        """Return whose secrets key the noise of a release."""
        return (self.owner(parties),)

    def noise_factor(self, parties: int) -> float:
        """Return how many times its distribution's standard deviation the noise of a sum over these parties has."""
        return 1.0

    def require(self, algorithm: Algorithm, setting: Setting) -> None:
        """Refuse, from public facts and before anything is charged, what cannot run.

        Raises
        ------
        ParameterError
            Naming what does not fit.
        """

    def guarantee(self, algorithm: Algorithm, setting: Setting) -> Guarantee:
        """Return what is proved of an algorithm whose sums are formed here: its own guarantee and what can fail."""
        return algorithm.guarantee(setting)

    def in_rounds(self, algorithm: Algorithm, setting: Setting) -> bool:
        """Whether parties and server exchange messages of :mod:`dpalgos.secure` that may each be a task of its own."""
        return False

    def masking(self, parties: int) -> Masking | None:
        """Return how this many parties mask what they send; None where each one's own noise hides its sum."""
        return None

    def travels(self, algorithm: Algorithm, setting: Setting) -> bool:
        """Whether each party of a sum makes its part by itself, so that it may come from another machine."""
        return False

    def summation(
        self,
        algorithm: SumAlgorithm,
        setting: Setting,
        noises: Sequence[NoiseSource],
        identity: str,
        record: SumRecord | None,
    ) -> Summation:
        """Return how the sums of a release are formed.

        Parameters
        ----------
        algorithm : SumAlgorithm
        setting : Setting
        noises : sequence of NoiseSource
            One for each of :meth:`noise_contributors`.
        identity : str
            The release's.
        record : SumRecord or None
            None keeps nothing: for simulations that release nothing.
        """
        return TrustedSummation(noises[0])


class NoiseOfEach(TrustModel):
    """A trust model in which each party adds noise to its own sums, from its own secret."""

    __slots__ = ()

    @classmethod
    def derived(cls, arrangements: Mapping[str, Arrangement]) -> Arrangement | None:
        """Return the curator's arrangement, where its parts see rows through sums alone."""
        central = arrangements.get(Trust.CENTRAL)
        return central if central is not None and sums_only(central) else None

    def noise_contributors(self, parties: Sequence[str]) -> tuple[str, ...]:
        """Return the parties."""
        return tuple(parties)
