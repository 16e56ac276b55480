"""Trust models: the contract that each keeps, and the three there are, by who sees rows and who draws the noise."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from dpalgos.algorithms import Algorithm, IntegerNoise, SumAlgorithm, Summation, TrustedSummation, is_sum_algorithm
from dpalgos.guarantees import Guarantee, Setting, Trust
from dpalgos.parameters import ParameterError
from dpalgos.registry import register
from dpalgos.rows import Ints, NoiseSource
from dpalgos.secure.messages import Tolerance
from dpalgos.secure.rounds import SumRecord
from dpalgos.secure.summation import (
    Absences,
    Masking,
    SecureSummation,
    graph_for,
    require_shareable,
    secagg_guarantee,
    weights_of,
)
from dpalgos.systems.system import Arrangement, Scope, sums_only

Noises = Sequence[NoiseSource]

EVERYONE = "all"
"""Whose release a joint one is: a curator's secret keys its noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustModel:
    """Trust model: what each side sees. A subclass's fields are its settings, checked at construction.

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
        """Whether parties and server exchange messages of :mod:`dpalgos.secure` that may each be a separate task."""
        return False

    def masking(self, parties: int) -> Masking | None:
        """Return how this many parties mask what they send; None where each party's noise hides its sum."""
        return None

    def travels(self, algorithm: Algorithm, setting: Setting) -> bool:
        """Return whether each party of a sum makes its part by itself, so that it may come from another machine."""
        return False

    def summation(
        self, algorithm: SumAlgorithm, setting: Setting, noises: Noises, identity: str, record: SumRecord | None
    ) -> Summation:
        """Return how the sums of a release are formed: with one noise by a curator, with each party's by the server.

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
        return TrustedSummation(noises[0]) if len(noises) == 1 else _SumOfNoisySums(tuple(noises))


@dataclass(frozen=True, slots=True)
class _SumOfNoisySums:
    """Each party's sum with independent noise, added up by the server."""

    noises: Noises

    def release(self, step: str, contributions: Sequence[Ints], distribution: IntegerNoise) -> Ints:
        """Return the sum of all parties' noisy sums."""
        noisy = (
            TrustedSummation(noise).release(step, [contribution], distribution)
            for noise, contribution in zip(self.noises, contributions, strict=True)
        )
        return sum(noisy, start=next(noisy))


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


@register("trusts", "central")
@dataclass(frozen=True, slots=True, kw_only=True)
class Central(TrustModel):
    """One trusted curator sees all rows; for comparison, and for an owner of all rows."""

    summary: ClassVar[str] = "One trusted curator sees the rows."


@register("trusts", "local")
@dataclass(frozen=True, slots=True, kw_only=True)
class Local(NoiseOfEach):
    """The server sees each party's noisy release; a party's guarantee does not depend on others.

    Guarantee
    ---------
    The algorithm's own, against the server and all other parties together. Where a release adds up several parties'
    sums, each of them has the whole noise of the distribution before it leaves its party: neighbours differ in one row
    of one party, whose sum moves by at most the sensitivity; the server's addition, and what the other parties send in
    view of earlier sums, are post-processing and adaptivity that the composition of Gaussian mechanisms covers. The sum
    of N parties has √N times the noise of a curator's.
    """

    scope: ClassVar[Scope] = Scope.PARTY
    summary: ClassVar[str] = "The server sees each party's noisy release."

    def owner(self, parties: Sequence[str]) -> str:
        """Return the party, or everyone where a release adds up several parties' sums."""
        return parties[0] if len(parties) == 1 else EVERYONE

    def noise_factor(self, parties: int) -> float:
        """Return √N: each party's sum has the distribution's noise."""
        return math.sqrt(parties)

    def require(self, algorithm: Algorithm, setting: Setting) -> None:
        """Refuse a release of several parties that is not a sum of their messages."""
        if len(setting.sizes) > 1 and not is_sum_algorithm(algorithm):
            raise ParameterError(
                f"{type(algorithm).__name__} reads all parties' rows together, and under trust local each party "
                "releases only its own noisy result; choose --trust central"
            )

    def travels(self, algorithm: Algorithm, setting: Setting) -> bool:
        """Return whether there are sums: each party's has all of its noise before it leaves."""
        return is_sum_algorithm(algorithm)


_ABSENCE = re.compile(r"(\d{1,7}):(advertise|share|mask|unmask)")


@register("trusts", "secagg")
@dataclass(frozen=True, slots=True, kw_only=True)
class SecureAggregation(NoiseOfEach):
    """The server sees the masked sum only (:mod:`dpalgos.secure`).

    Guarantee
    ---------
    :func:`dpalgos.secure.summation.secagg_guarantee`: the algorithm's own towards the server with all colluders and
    towards every single party, as long as no more parties are lost than tolerated; where the graph is sparse, its
    probability to fail on top.

    Parameters
    ----------
    dropouts : int
        D: parties that may be lost during the run.
    colluders : int
        C: parties that may pool what they know with each other and with the server.
    absent : tuple of str
        Simulated: who is gone from which round on, ``"2:mask"``.
    consistent_survivors : bool
        Assume that the server shows every party the same survivors. Without that assumption settings in which a server
        that shows different ones could have two sums opened, 2 (N - D) <= N + C, are refused. What a broken assumption
        costs: half of the parties open the sum of all, the other half the sum without one party, and the difference is
        that party's vector under its own share of the noise, sigma^2 / u. Its mu is sqrt(u) times the planned one.
    """

    summary: ClassVar[str] = "The server sees the noisy sum and nothing else."

    dropouts: int = 0
    colluders: int = 0
    absent: tuple[str, ...] = ()
    consistent_survivors: bool = False

    def __post_init__(self) -> None:
        for entry in self.absent:
            if _ABSENCE.fullmatch(entry) is None:
                raise ParameterError(
                    f"absent is {entry!r}; give a party's number and the round from which it is absent (advertise, "
                    "share, mask or unmask), for example 2:mask"
                )
        # In one order, since it is part of the identity of what is released.
        object.__setattr__(self, "absent", tuple(sorted(set(self.absent))))

    def noise_factor(self, parties: int) -> float:
        """Return √(N / u): every one of N parties adds 1/u of the variance, so that any u of them suffice."""
        return math.sqrt(parties / self.tolerance(parties).unknown_shares)

    def tolerance(self, parties: int) -> Tolerance:
        """Return the fault model of this many parties.

        Raises
        ------
        ParameterError
            If it leaves no noise that the adversary does not know, or allows two survivor sets, or if the party named
            as absent does not exist.
        """
        self.absences(parties)
        tolerance = Tolerance(parties=parties, dropouts=self.dropouts, colluders=self.colluders)
        if not tolerance.forces_one_survivor_set and not self.consistent_survivors:
            raise ParameterError(
                f"with {parties} parties, {self.dropouts} dropouts and {self.colluders} colluders tolerated, a server "
                "that sends the parties different survivor sets could open two sums, because 2 (parties - dropouts) = "
                f"{2 * tolerance.quorum} does not exceed parties + colluders = {parties + self.colluders}; tolerate "
                "fewer dropouts or colluders, add parties, or assume a consistent server (--consistent-survivors)"
            )
        return tolerance

    def absences(self, parties: int) -> Absences:
        """Return who drops out where, in the simulation.

        Raises
        ------
        ParameterError
            If there is no party of such a number.
        """
        gone: dict[str, set[int]] = {}
        for entry in self.absent:
            party, stage = entry.split(":")
            if int(party) >= parties:
                raise ParameterError(f"absent names party {party}; parties are numbered from 0 to {parties - 1}")
            gone.setdefault(stage, set()).add(int(party))
        return {stage: frozenset(numbers) for stage, numbers in gone.items()}

    def masking(self, parties: int) -> Masking:
        """Return the fault model, the parties that drop out in the simulation, and what is assumed of the server."""
        return Masking(self.tolerance(parties), self.absences(parties), self.consistent_survivors)

    def require(self, algorithm: Algorithm, setting: Setting) -> None:
        """Refuse what does not see rows through sums, and noise that the parties cannot share."""
        require_shareable(_sums(algorithm), setting, self.tolerance(len(setting.sizes)))

    def guarantee(self, algorithm: Algorithm, setting: Setting) -> Guarantee:
        """Return the algorithm's guarantee with the assumptions of the protocol, and what a sparse graph may lose."""
        sums = _sums(algorithm)
        return secagg_guarantee(sums.guarantee(setting), self.tolerance(len(setting.sizes)), sums.steps(setting))

    def in_rounds(self, algorithm: Algorithm, setting: Setting) -> bool:
        """Return whether there is one sum, over parties few enough to mask with each other."""
        return graph_for(self.tolerance(len(setting.sizes))) is None and _sums(algorithm).steps(setting) == 1

    def travels(self, algorithm: Algorithm, setting: Setting) -> bool:
        """Return whether the parties are few enough to mask with each other."""
        return is_sum_algorithm(algorithm) and graph_for(self.tolerance(len(setting.sizes))) is None

    def summation(
        self, algorithm: SumAlgorithm, setting: Setting, noises: Noises, identity: str, record: SumRecord | None
    ) -> Summation:
        """Return the protocol in one process, parties and server simulated message by message."""
        return SecureSummation(
            identity=identity,
            tolerance=self.tolerance(len(setting.sizes)),
            sizes=setting.sizes,
            noises=noises,
            steps=algorithm.steps(setting),
            absences=self.absences(len(setting.sizes)),
            scaled=True,
            weights=weights_of(algorithm, setting),
            record=record,
        )


def _sums(algorithm: Algorithm) -> SumAlgorithm:
    if not is_sum_algorithm(algorithm):
        raise ParameterError(
            f"{type(algorithm).__name__} does not consist of sums over rows, as secure aggregation needs; choose "
            "--trust central or local"
        )
    return cast(SumAlgorithm, algorithm)
