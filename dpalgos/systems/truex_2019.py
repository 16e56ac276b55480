"""The system of Truex et al. 2019, as a row of Table 1 in Wang et al. 2024."""

from __future__ import annotations

from dpalgos.guarantees import Trust
from dpalgos.registry import AlgorithmSpec, register
from dpalgos.systems.arranging import summed
from dpalgos.systems.system import System
from dpalgos.trainers.truex import TruexDescent

__all__: list[str] = []

_TRUSTS = summed(AlgorithmSpec("trainers", "truex"))

register("systems", "truex")(
    System(
        summary="Linear SVM by gradient descent on masked sums; each party adds noise so that t - 1 shares suffice.",
        source="Truex et al. 2019, section 4; Wang et al. 2024, Table 1",
        paper="truex-2019",
        claim=TruexDescent.claim,
        arrangements={trust: _TRUSTS[trust] for trust in (Trust.SECAGG, Trust.CENTRAL)},
    )
)
