"""Local trust: each party adds all the noise that its own guarantee needs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpalgos.algorithms import Algorithm, IntegerNoise, SumAlgorithm, Summation, TrustedSummation, is_sum_algorithm
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Setting
from dpalgos.registry import register
from dpalgos.rows import Ints, NoiseSource
from dpalgos.secure.rounds import SumRecord
from dpalgos.systems.system import Scope
from dpalgos.trust.model import EVERYONE, NoiseOfEach


@register("trusts", "local")
@dataclass(frozen=True, slots=True, kw_only=True)
class Local(NoiseOfEach):
    """The server sees each party's noisy release; a party's guarantee needs nobody else.

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
        """Refuse a release of several parties that is no sum of what each of them sends."""
        if len(setting.sizes) > 1 and not is_sum_algorithm(algorithm):
            raise ParameterError(
                f"{type(algorithm).__name__} reads all parties' rows together, and here each shows its own noisy "
                "release only; choose --trust central"
            )

    def travels(self, algorithm: Algorithm, setting: Setting) -> bool:
        """Whether there are sums: each party's has all of its noise before it leaves."""
        return is_sum_algorithm(algorithm)

    def summation(
        self,
        algorithm: SumAlgorithm,
        setting: Setting,
        noises: Sequence[NoiseSource],
        identity: str,
        record: SumRecord | None,
    ) -> Summation:
        """Return the sum of the parties' own noisy sums."""
        return _SumOfNoisySums(tuple(noises))


@dataclass(frozen=True, slots=True)
class _SumOfNoisySums:
    """Each party's sum with noise of its own, added up by the server."""

    noises: Sequence[NoiseSource]

    def release(self, step: str, contributions: Sequence[Ints], distribution: IntegerNoise) -> Ints:
        """Return the sum of all parties' noisy sums."""
        noisy = (
            TrustedSummation(noise).release(step, [contribution], distribution)
            for noise, contribution in zip(self.noises, contributions, strict=True)
        )
        return sum(noisy, start=next(noisy))
