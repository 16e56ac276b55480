"""Secure aggregation: the server sees masked sums only, and the parties' noise shares add up to the noise of a sum."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from dpalgos.algorithms import Algorithm, SumAlgorithm, Summation, is_sum_algorithm
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Guarantee, Setting
from dpalgos.registry import register
from dpalgos.rows import NoiseSource
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
from dpalgos.secure.tolerance import Tolerance
from dpalgos.trust.model import NoiseOfEach

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
        that shows different ones could have two sums opened, 2 (N - D) <= N + C, are refused.
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
                    f"absent is {entry!r}; give a party's number and the round from which it is gone (advertise, "
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
            If it leaves no noise that the adversary does not know, or allows two survivor sets, or if a party that
            does not exist is said to be absent.
        """
        self.absences(parties)
        tolerance = Tolerance(parties=parties, dropouts=self.dropouts, colluders=self.colluders)
        if not tolerance.forces_one_survivor_set and not self.consistent_survivors:
            raise ParameterError(
                f"with {parties} parties, {self.dropouts} dropouts and {self.colluders} colluders tolerated, a server "
                f"that shows the parties different survivors could have two sums opened, as 2 (parties - dropouts) = "
                f"{2 * tolerance.quorum} is not above parties + colluders = {parties + self.colluders}; tolerate fewer "
                "dropouts or colluders, bring more parties, or assume that it does not (--consistent-survivors)"
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
                raise ParameterError(f"absent names party {party}; parties have the numbers 0 to {parties - 1}")
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
        """Whether there is one sum, over parties few enough to mask with each other."""
        return graph_for(self.tolerance(len(setting.sizes))) is None and _sums(algorithm).steps(setting) == 1

    def travels(self, algorithm: Algorithm, setting: Setting) -> bool:
        """Whether the parties are few enough to mask with each other."""
        return is_sum_algorithm(algorithm) and graph_for(self.tolerance(len(setting.sizes))) is None

    def summation(
        self,
        algorithm: SumAlgorithm,
        setting: Setting,
        noises: Sequence[NoiseSource],
        identity: str,
        record: SumRecord | None,
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
            f"{type(algorithm).__name__} reads rows otherwise than through sums, and secure aggregation forms sums; "
            "choose --trust central or local"
        )
    return cast(SumAlgorithm, algorithm)
