"""``unitball``, the recommended system: map, trainer and their parameters by written rules from public facts alone.

The rules were found on training rows of MNIST, digits, USPS and Adult (``benchmarks/recommended_rules.py``; the numbers
stand in ``docs/accuracy.md``). What they go by is the **signal** s = n μ r / (f K): rows a class, in units of the noise
that the largest row would need to be hidden among them (μ of Gaussian-DP that the budget buys; r = 1 under replace-one
and 2 under replace-special, where sums move half as far; f the factor by which secure sums have more noise).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpalgos.guarantees import Neighbours, Trust
from dpalgos.mechanisms.gaussian import mu_from_epsilon_delta
from dpalgos.registry import AlgorithmSpec, register
from dpalgos.systems.arranging import averaged, summed
from dpalgos.systems.system import Arrangement, Choice, PublicFacts, System

__all__ = ["recommend", "signal"]


@dataclass(frozen=True, slots=True)
class _Images:
    """What images get from a signal on.

    Parameters
    ----------
    signal : float
        Least s.
    components : int
        Directions k of the whitening.
    floor : float
        Of the whitening.
    iterations : int
        T; 0 releases the discriminant of the class means.
    step_size : float
    first_share : float
        Share of μ² for the class means.
    """

    signal: float
    components: int
    floor: float
    iterations: int = 0
    step_size: float = 1.0
    first_share: float = 0.5


_IMAGES = (
    _Images(2400.0, 800, 1e-4, 120, 16.0, 0.1),
    _Images(1000.0, 400, 1e-4, 100, 12.0, 0.1),
    _Images(400.0, 400, 1e-4, 60, 6.0, 0.3),
    _Images(100.0, 200, 3e-4, 25, 3.0, 0.7),
    _Images(30.0, 100, 3e-4),
    _Images(0.0, 50, 1e-3),
)


def signal(facts: PublicFacts) -> float:
    """Return s = n μ r / (f K); n is a party's where each makes a release of its own."""
    mu = mu_from_epsilon_delta(facts.epsilon, facts.delta)
    rows = min(facts.sizes) if facts.trust == Trust.LOCAL else facts.rows
    halved = 2.0 if facts.neighbours is Neighbours.REPLACE_SPECIAL else 1.0
    return rows * mu * halved / (facts.noise_factor * max(facts.classes, 2))


def recommend(facts: PublicFacts) -> Choice:
    """Choose the parts of a run.

    Parameters
    ----------
    facts : PublicFacts

    Returns
    -------
    Choice
    """
    strength = signal(facts)
    if facts.classes < 2:
        trainer, projection = AlgorithmSpec("trainers", "sufficient-statistics"), None
        reasons = ["labels are real numbers: ridge regression from one noisy sum of second moments"]
    elif facts.image_shape is not None:
        trainer, projection, reasons = _of_images(facts, facts.image_shape, strength)
    else:
        trainer, projection = AlgorithmSpec("trainers", "noisy-gd"), None
        reasons = ["no map: rows are not declared to be images"]
    return Choice(arrangement=_arranged(trainer, projection, facts), reasons=tuple(reasons))


def _of_images(
    facts: PublicFacts, shape: tuple[int, ...], strength: float
) -> tuple[AlgorithmSpec, AlgorithmSpec, list[str]]:
    rule = next(rule for rule in _IMAGES if strength >= rule.signal)
    scales = min(2, int(math.log2(min(shape[-2:]))))
    components = facts.components or min(rule.components, facts.dimension)
    projection = AlgorithmSpec(
        "projections",
        "public-whitening",
        {
            "feature_parameters": {"scales": scales},
            "components": components,
            "floor": rule.floor,
            "shape": list(shape),
        },
    )
    size = " x ".join(str(side) for side in shape)
    known = f"rows a class stand {strength:.3g} times above the noise (n mu / K)"
    reasons = [
        f"map: rows are images of {size}, so scattering, whitened by made-up images at no cost",
        f"{components} directions, as " + ("asked for" if facts.components else known),
    ]
    if rule.iterations == 0:
        return AlgorithmSpec("trainers", "class-means"), projection, [*reasons, "class means alone: steps would lose"]
    trainer = AlgorithmSpec(
        "trainers",
        "discriminant-gd",
        {"iterations": rule.iterations, "step_size": rule.step_size, "first_share": rule.first_share},
    )
    reasons.append(
        f"class means get {rule.first_share:g} of mu^2, then {rule.iterations} steps of {rule.step_size:g}: {known}"
    )
    return trainer, projection, reasons


def _arranged(trainer: AlgorithmSpec, projection: AlgorithmSpec | None, facts: PublicFacts) -> Arrangement:
    if facts.trust == Trust.LOCAL:
        return averaged(trainer, projection)[Trust.LOCAL]
    return summed(trainer, projection)[Trust.CENTRAL]


_EXAMPLE = (AlgorithmSpec("trainers", "discriminant-gd"), AlgorithmSpec("projections", "public-whitening"))

register("systems", "unitball")(
    System(
        summary="The recommended one: map, trainer and parameters chosen from public facts, by written rules.",
        source="ours; systems.recommended",
        arrangements={**summed(*_EXAMPLE), **averaged(*_EXAMPLE)},
        choose=recommend,
    )
)
