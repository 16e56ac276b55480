"""``unitball``, the recommended system: map, trainer and their parameters by written rules from public facts alone.

The rules were found on training rows of MNIST, digits, USPS and Adult (the numbers stand in ``docs/accuracy.md``).
What they go by is the **signal** s = n μ r / (f K): rows a class, in units of the noise that the largest row would
need to be hidden among them (μ of Gaussian-DP that the budget buys; r = 1 under replace-one and 2 under
replace-special, where sums move half as far; f the factor by which the noise of a sum over the parties is more than a
curator's: √N where each party adds all of its own, 1 to 1.2 or so under secure aggregation).
"""

from __future__ import annotations

import math

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Neighbours, Trust
from dpalgos.mechanisms.gaussian import mu_from_epsilon_delta
from dpalgos.registry import AlgorithmSpec, register
from dpalgos.systems.arranging import joint, summed
from dpalgos.systems.system import Choice, PublicFacts, System

__all__ = ["recommend", "signal", "without_noise"]


# Of images' whitening: directions a unit of signal, their least and most number, and the floor.
_DIRECTIONS, _FEWEST, _MOST, _FLOOR = 1.5, 20, 400, 2e-4
# Below this signal no step pays after the class means.
_STEPS_FROM = 100.0
# Above this one the means know so much that the steps' length counts.
_SURE = 2400.0
# The second layer of wavelets of the larger scale needs room.
_TWO_SCALES_FROM = 16
# Largest stable step of momentum 0.9 on rows of norm 1: about 3 over the curvature of the loss, 1/4 or 1/2.
_LARGEST_STEP = {2: 12.0}
_LARGEST_STEP_OF_MANY = 8.0
# Below this signal a model is no better than guessing: of digits' classes at most one and a half times as often right.
_GUESSING = 2.0
# ... of two classes of a table, one of which is as a rule the larger by far: Adult's larger one is three quarters.
_GUESSING_OF_TWO = 30.0

_EXACT = {"loss": "softmax", "regularisation": 1e-6, "intercept_scaling": 0.25}


def signal(facts: PublicFacts) -> float:
    """Return s = n μ r / (f K)."""
    if facts.delta == 0:
        raise ParameterError(
            "unitball draws Gaussian noise, which has no delta of 0: give --delta (below one over the number of rows), "
            "or an algorithm of pure epsilon: --algorithm dpml"
        )
    mu = mu_from_epsilon_delta(facts.epsilon, facts.delta)
    halved = 2.0 if facts.neighbours is Neighbours.REPLACE_SPECIAL else 1.0
    return facts.rows * mu * halved / (facts.noise_factor * max(facts.classes, 2))


def recommend(facts: PublicFacts) -> Choice:
    """Choose the parts of a run.

    Parameters
    ----------
    facts : PublicFacts

    Returns
    -------
    Choice

    Raises
    ------
    ParameterError
        For a δ of 0, which no Gaussian noise has.
    """
    strength = signal(facts)
    known = (
        f"{facts.rows:,} rows, epsilon {facts.epsilon:g} and {facts.classes} classes make a signal of {strength:.3g}"
    )
    if facts.classes < 2:
        trainer, projection = AlgorithmSpec("trainers", "sufficient-statistics"), None
        reasons = ["labels are real numbers: ridge regression from one noisy sum of second moments"]
    elif facts.image_shape is not None:
        projection, reason = _whitening(facts, facts.image_shape, strength)
        trainer, reasons = _from_means(facts, strength)
        reasons = [reason, known, *reasons]
    elif facts.encoded:
        projection = None
        trainer, reasons = _from_means(facts, strength)
        reasons = ["no map after the one that was asked for", known, *reasons]
    else:
        projection = None
        trainer, reason = _of_tables(facts, strength)
        reasons = [
            "no map: rows are columns of a table as their encoder has them, not declared to be images",
            known,
            reason,
        ]
    return Choice(
        arrangement=summed(trainer, projection)[Trust.CENTRAL],
        reasons=tuple(reasons),
        warning=_warning(facts, strength),
    )


def without_noise(facts: PublicFacts) -> Choice:
    """Choose the map that the best signal would get, and a trainer that draws no noise: the reference to compare with.

    Parameters
    ----------
    facts : PublicFacts

    Returns
    -------
    Choice
    """
    projection = None if facts.image_shape is None else _whitening(facts, facts.image_shape, math.inf)[0]
    trainer = AlgorithmSpec("trainers", "erm", _EXACT if facts.classes > 1 else {**_EXACT, "loss": "squared"})
    return Choice(arrangement=joint(trainer, projection)[Trust.CENTRAL], reasons=("no noise: for comparison",))


def _whitening(facts: PublicFacts, shape: tuple[int, ...], strength: float) -> tuple[AlgorithmSpec, str]:
    """Return the map of images: the stronger the signal, the more directions."""
    scales = 2 if min(shape[-2:]) >= _TWO_SCALES_FROM else 1
    given = {"feature_parameters": {"scales": scales}, "floor": _FLOOR, "shape": list(shape)}
    components = facts.components
    if components is None:
        wanted = round(min(max(_DIRECTIONS * strength, _FEWEST), _MOST))
        features = AlgorithmSpec("projections", "scattering", {"scales": scales, "shape": list(shape)}).build()
        components = min(wanted, features.output_dimension(facts.dimension), facts.dimension)
    size = " x ".join(str(side) for side in shape)
    why = "asked for" if facts.components else f"{_DIRECTIONS:g} a unit of signal, {_FEWEST} to {_MOST}"
    return (
        AlgorithmSpec("projections", "public-whitening", {**given, "components": components}),
        f"map: images of {size}, so scattering whitened by made-up images, which costs nothing; "
        f"{components} directions ({why})",
    )


def _from_means(facts: PublicFacts, strength: float) -> tuple[AlgorithmSpec, list[str]]:
    """Return the trainer on features in which classes are round: class means, and steps from there if they pay."""
    if strength < _STEPS_FROM:
        return AlgorithmSpec("trainers", "class-means"), [
            f"class means from one noisy sum: below a signal of {_STEPS_FROM:g} gradient steps lose"
        ]
    iterations = 200 if strength >= _SURE else round(min(max(strength / 6.0, 15.0), 100.0))
    length = 0.035 if strength < 250.0 else 0.07
    step_size = min(16.0, length * strength * facts.classes / iterations)
    share = min(max(100.0 / strength, 0.05), 0.7)
    given = {"iterations": iterations, "step_size": float(f"{step_size:.3g}"), "first_share": float(f"{share:.3g}")}
    return AlgorithmSpec("trainers", "discriminant-gd", given), [
        f"class means get {share:.2g} of mu^2, {iterations} gradient steps of {step_size:.3g} from there the rest"
    ]


def _of_tables(facts: PublicFacts, strength: float) -> tuple[AlgorithmSpec, str]:
    """Return the trainer on a table's columns: descent as long as the noise of all steps together allows."""
    largest = _LARGEST_STEP.get(facts.classes, _LARGEST_STEP_OF_MANY)
    way = 0.4 * strength * facts.classes
    iterations = round(min(max(way / largest, 20.0), 200.0))
    step_size = float(f"{min(largest, way / iterations):.3g}")
    return (
        AlgorithmSpec(
            "trainers",
            "noisy-gd",
            {
                "iterations": iterations,
                "step_size": step_size,
                "clip": 0.5,
                "mean_weight": 1.0,
                "intercept_scaling": 0.25,
            },
        ),
        f"{iterations} gradient steps of {step_size:g}: together 0.4 n mu, at most {largest:g} each",
    )


def _warning(facts: PublicFacts, strength: float) -> str | None:
    if facts.classes < 2:
        return None
    table = facts.image_shape is None and not facts.encoded
    least = _GUESSING_OF_TWO if table and facts.classes == 2 else _GUESSING
    if strength >= least:
        return None
    return (
        f"expected to be no better than guessing at this budget: n = {facts.rows}, epsilon = {facts.epsilon:g}, "
        f"K = {facts.classes}; about {least / strength:.2g} times as many rows, or as much epsilon, would be needed"
    )


_EXAMPLE = (AlgorithmSpec("trainers", "discriminant-gd"), AlgorithmSpec("projections", "public-whitening"))

register("systems", "unitball")(
    System(
        summary="The recommended one: map, trainer and parameters chosen from public facts, by written rules.",
        source="ours; systems.recommended",
        arrangements=summed(*_EXAMPLE),
        choose=recommend,
    )
)

register("systems", "unitball-without-noise")(
    System(
        summary="What the recommended one gives without privacy: its map, and softmax regression without noise.",
        source="ours; systems.recommended",
        sound_counterpart="unitball",
        arrangements=joint(AlgorithmSpec("trainers", "erm", _EXACT), AlgorithmSpec("projections", "public-whitening")),
        choose=without_noise,
    )
)
