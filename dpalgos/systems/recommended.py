"""``unitball``, the recommended system: map, trainer and parameters by written rules from public facts alone.

What they go by is the **signal** s = n μ r / (f K): rows a class, in units of the noise that the largest row would need
to be hidden among them (μ of Gaussian-DP that the budget buys; r = 1 under replace-one and 2 under replace-special,
where sums move half as far; f the factor by which the noise of a sum over the parties is more than a curator's: √N
where each party adds its full noise, 1 to 1.2 or so under secure aggregation).

*Where the rules were found*: on training rows of MNIST (50,000 to train on, 10,000 held out), digits, USPS, CIFAR-10
(20,000 of them) and Adult. Accuracies on held-out rows:

- map of one channel: digits at ε = 3 with one scale 0.952, two 0.933; USPS at ε = 1 with two 0.977, one 0.965. Strokes
  and objects together are within 0.003 of the better of the two but on USPS at ε = 0.1 (0.766 for 0.789);
- of three channels (CIFAR-10, the noise of 50,000 rows, ε = 1 and 3): scattering alone 0.648 and 0.682, dictionary
  alone 0.659 and 0.695, side by side 0.692 and 0.727, with scattering of opponent colours added 0.693 and 0.728;
- directions k = 1.5 s: MNIST at s = 145 has 0.955, 0.959, 0.958, 0.957 with k = 145, 218, 290, 400; USPS at s = 46
  0.941, 0.943, 0.939 with 46, 69, 139; digits at s = 28 0.897, 0.916, 0.907 with 27, 41, 82;
- class means alone below s = 100: USPS at s = 74 has 0.964 by them and 0.962 with steps, at s = 140 0.975 and 0.976;
  digits at s = 28 0.912 and 0.901, at s = 171 0.958 and 0.968;
- steps: MNIST at ε = 0.5 with T = 40, 60, 100 0.973, 0.975, 0.977; at ε = 3 with 80, 120, 200 0.983, 0.985, 0.986. Half
  and twice their length lose up to 0.005 (USPS, digits);
- the means' share of μ²: twice of it loses up to 0.02 on USPS at s < 150; MNIST at s = 395 and 1,340 has 0.971 and
  0.979 with half of μ², 0.972 and 0.981 with 100/s;
- after a public head (``public.head``), where it starts: MNIST, 5,000 rows, a head of 500 public rows (0.979 alone)
  0.978, 0.978, 0.979, 0.979 at ε = 0.03, 0.1, 0.5, 1; two and a half times as far, 0.976 at ε = 0.03.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.features.encoder.beside import beside
from dpalgos.guarantees import Neighbours, Trust
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec
from dpalgos.systems.system import Choice, PublicFacts, System, joint, register_systems, summed
from dpalgos.systems.tables import descent_of_classes, learning, learning_of_nights, unit_norm_of
from dpalgos.trainers.discriminant import schedule_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Images:
    """The map of images of one kind.

    Parameters
    ----------
    processes : tuple of str
        Random processes that synthetic images are drawn from.
    images : int
        Pairs of them.
    maps : mapping
        Public maps side by side, and their parameters.
    floor : float
        Of the whitening.
    mirror : bool
        Whether features are averaged over mirror images.
    most : int
        k at most.
    """

    processes: tuple[str, ...]
    images: int
    maps: Mapping[str, Mapping[str, object]]
    floor: float
    mirror: bool
    most: int


_GREY = _Images(
    processes=("strokes", "objects"),
    images=12_000,
    maps={"scattering": {}},
    floor=2e-4,
    mirror=False,
    most=400,
)
_COLOUR = _Images(
    processes=("dead-leaves",),
    images=20_000,
    maps={"scattering": {"opponent": True}, "dictionary": {"filters": 200}},
    floor=5e-4,
    mirror=True,
    most=800,
)
# Directions of images' features: at the least, and for each unit of signal.
_FEWEST, _DIRECTIONS = 20, 1.5
# The second layer of wavelets of the larger scale needs room, and so do patches.
_TWO_SCALES_FROM = 16


# Below this signal a model is no better than guessing: of digits' classes at most one and a half times as often right.
_GUESSING = 2.0
# ... of two classes of a table, as many rows of each or three times as many of the one (Adult's are three quarters).
_GUESSING_OF_TWO, _GUESSING_OF_UNEQUAL = 5.0, 30.0
# ... of more classes whose frequencies are as 1, 1/2, 1/3, …: on training rows of digits, USPS and letter thinned to
# these, shrunk class means are as often right as guessing at s = 4 to 9 (benchmarks/unequal_classes.py --held-out).
_GUESSING_OF_MANY_UNEQUAL = 10.0

_SEEN_OF_TABLES = "found on sub-samples of MNIST, digits, USPS and Adult and on synthetic tables"
_SEEN_OF_IMAGES = (
    "found on training rows of MNIST, digits, USPS and 20,000 of CIFAR-10; the random processes and "
    "the features were chosen in trials on MNIST, Fashion-MNIST and CIFAR-10, so these sets are not unseen"
)

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
    if facts.columns:
        return _learnt(facts, strength)
    share = 0.5
    known = (
        f"{facts.rows:,} rows, epsilon {facts.epsilon:g} and {facts.classes} classes give a signal-to-noise "
        f"ratio of {strength:.3g}"
    )
    if facts.classes < 2:
        trainer, projection = AlgorithmSpec("trainers", "sufficient-statistics"), None
        reasons = ["labels are real numbers: ridge regression from one noisy sum of second moments"]
    elif facts.image_shape is not None:
        projection, reason = None, f"map: {facts.projection}, as asked for"
        if facts.projection is None:
            projection, reason = _whitening(facts, facts.image_shape, strength)
        trainer, reasons = _from_means(facts, strength)
        reasons = [reason, known, *reasons]
    elif facts.public_head:
        projection = None
        trainer, reason = _from_public_head(facts, strength)
        reasons = ["no map after that of the public rows", known, reason]
    elif facts.encoded:
        projection = None
        trainer, reasons = _from_means(facts, strength)
        reasons = ["no map after the one that was asked for", known, *reasons]
    else:
        trainer, projection, share, reasons = descent_of_classes(facts, strength)
        kind = "no public map: rows are columns of a table as their encoder has them, not declared to be images"
        reasons = [kind, known, *reasons]
    if facts.classes > 1:
        seen = _SEEN_OF_TABLES if facts.image_shape is None else _SEEN_OF_IMAGES
        reasons = [*reasons, f"rules {seen}"]
    return Choice(
        arrangement=replace(summed(trainer, projection)[Trust.CENTRAL], projection_share=share),
        reasons=tuple(reasons),
        warning=_warning(facts, strength),
    )


def _learnt(facts: PublicFacts, strength: float) -> Choice:
    """Return the choice for a table whose columns are declared."""
    chosen = learning(facts, strength) if facts.nightly is None else learning_of_nights(facts, strength)
    arrangement = replace(
        summed(chosen.trainer, chosen.projection)[Trust.CENTRAL],
        projection_share=chosen.projection_share,
        counts=chosen.counts,
        column_map=chosen.column_map,
        counts_share=chosen.counts_share,
    )
    nightly = "" if facts.nightly is None else ", released at once with the noise of the last night,"
    said = (
        f"{facts.rows:,} rows{nightly} and epsilon {facts.epsilon:g} give a signal-to-noise ratio of {strength:.3g}",
        *chosen.reasons,
        f"rules found on held-out rows of {'eighteen' if facts.nightly is None else 'twelve'} named tables",
    )
    return Choice(arrangement=arrangement, reasons=said, warning=_warning(facts, strength))


def without_noise(facts: PublicFacts) -> Choice:
    """Choose the map that the best signal would get, and a trainer that draws no noise: a reference."""
    projection = None if facts.image_shape is None else _whitening(facts, facts.image_shape, math.inf)[0]
    trainer = AlgorithmSpec("trainers", "erm", _EXACT if facts.classes > 1 else {**_EXACT, "loss": "squared"})
    arrangement = joint(trainer, projection)[Trust.CENTRAL]
    if facts.columns:
        # Nothing is counted, and so nothing learnt of the columns.
        arrangement = replace(arrangement, column_map=unit_norm_of(facts))
    return Choice(arrangement=arrangement, reasons=("no noise: for comparison",))


def _whitening(facts: PublicFacts, shape: tuple[int, ...], strength: float) -> tuple[AlgorithmSpec, str]:
    """Return the map of images: the stronger the signal, the more directions."""
    channels, sides = shape[0] if len(shape) == 3 else 1, shape[-2:]
    own = _COLOUR if channels == 3 else _GREY
    mirror = own.mirror if facts.mirror is None else facts.mirror
    scales = {"scales": 2 if min(sides) >= _TWO_SCALES_FROM else 1}
    maps = {
        name: {**own_parameters, **scales} if name == "scattering" else dict(own_parameters)
        for name, own_parameters in own.maps.items()
    }
    if min(sides) < _TWO_SCALES_FROM:
        maps = {"scattering": maps["scattering"]}
    alone = len(maps) == 1
    own_parameters = {
        "features": "scattering" if alone else "side-by-side",
        "feature_parameters": maps["scattering"] if alone else {"maps": maps},
        "processes": list(own.processes),
        "images": own.images,
        "floor": own.floor,
        "mirror": mirror,
        "shape": list(shape),
    }
    components = facts.components
    if components is None:
        wanted = round(min(max(_DIRECTIONS * strength, _FEWEST), own.most))
        whole = AlgorithmSpec("projections", "public-whitening", own_parameters).build()
        components = min(wanted, whole.features_of(facts.dimension), facts.dimension)
    size = " x ".join(str(side) for side in shape)
    why = "asked for" if facts.components else f"{_DIRECTIONS:g} per unit of signal, {_FEWEST} to {own.most}"
    seen = ", each averaged over the image and its mirror image," if mirror else ""
    if facts.mirror is not None:
        seen = f"{seen or ', not averaged over mirror images,'} as declared,"
    today = AlgorithmSpec("projections", "public-whitening", {**own_parameters, "components": components})
    chosen, encoder = beside(today, mirror=facts.mirror, strength=strength, asked=facts.components is not None)
    if (chosen != today) and facts.components:
        why = f"{why}, including the encoder's"
    return chosen, (
        f"map: images of {size}, so {' and '.join(maps)}{seen} whitened by synthetic images "
        f"({' and '.join(own.processes)}), at no charge; {components} directions ({why}); {encoder}"
    )


def _from_means(facts: PublicFacts, strength: float) -> tuple[AlgorithmSpec, list[str]]:
    """Return the trainer on features in which classes are round: class means, and steps from there if they pay."""
    steps = schedule_of(strength, facts.classes)
    if steps.iterations == 0:
        return AlgorithmSpec("trainers", "class-means"), [
            f"class means from one noisy sum: at a signal-to-noise ratio of {strength:.3g} gradient steps are worse"
        ]
    return AlgorithmSpec("trainers", "discriminant-gd", asdict(steps)), [
        f"class means take {steps.first_share:.2g} of the budget (mu^2); {steps.iterations} gradient steps of size "
        f"{steps.step_size:.3g} start from them and take the rest"
    ]


def _from_public_head(facts: PublicFacts, strength: float) -> tuple[AlgorithmSpec, str]:
    """Return a trainer that starts at a public head and goes no farther than noise lets it come back."""
    step_size = float(f"{min(16.0, 0.1 * strength * facts.classes / 20):.3g}")
    parameters = {"iterations": 20, "step_size": step_size, "clip": 0.25, "mean_weight": 1.0, "public_start": 16.0}
    return (
        AlgorithmSpec("trainers", "noisy-gd", parameters),
        f"20 gradient steps of {step_size:g} from the head that was trained on public rows",
    )


def _warning(facts: PublicFacts, strength: float) -> str | None:
    # A public head's model is that head's at least, whatever the budget.
    if facts.classes < 2 or facts.public_head:
        return None
    two = facts.classes == 2 and facts.image_shape is None and not facts.encoded
    least, where = (_GUESSING_OF_TWO if two else _GUESSING), ""
    if two and strength >= least:
        least, where = _GUESSING_OF_UNEQUAL, " if one class has three quarters of the rows"
    elif facts.classes > 2 and strength >= least:
        least = _GUESSING_OF_MANY_UNEQUAL
        where = " if the classes are unequal, with frequencies such as 1, 1/2, 1/3 and so on"
    if strength >= least:
        return None
    return (
        f"expected to be no better than guessing at this budget{where}: n = {facts.rows}, epsilon = {facts.epsilon:g}, "
        f"K = {facts.classes}; about {least / strength:.2g} times as many rows, or as much epsilon, would be needed"
    )


_DESCENT = AlgorithmSpec("trainers", "noisy-gd")
_WHITENED = AlgorithmSpec("projections", "public-whitening")
_OURS = {
    "unitball": System(
        summary="The recommended system: written rules choose map, trainer and parameters from public facts.",
        source="ours; systems.recommended",
        arrangements=summed(AlgorithmSpec("trainers", "discriminant-gd"), _WHITENED),
        choose=recommend,
        table_normalisation="none",
    ),
    "unitball-without-noise": System(
        summary="The recommended system without privacy: the same map, then softmax regression without noise.",
        source="ours; systems.recommended",
        sound_counterpart="unitball",
        arrangements=joint(AlgorithmSpec("trainers", "erm", _EXACT), AlgorithmSpec("projections", "public-whitening")),
        choose=without_noise,
        table_normalisation="none",
    ),
    "noisy-gd": System(
        summary="Softmax regression on all rows together by full-batch gradient descent on noisy sums.",
        source="ours; trainers.gradient_descent",
        arrangements=summed(_DESCENT),
    ),
    "hog-noisy-gd": System(
        summary="For images: histograms of oriented gradients (no cost), then noisy-gd.",
        source="ours; features.hog, trainers.gradient_descent",
        arrangements=summed(_DESCENT, AlgorithmSpec("projections", "hog")),
    ),
    "whitened-class-means": System(
        summary="For images: scattering whitened by synthetic images (no cost), then class means from one noisy sum.",
        source="ours; features.whitening, trainers.discriminant",
        arrangements=summed(AlgorithmSpec("trainers", "class-means"), _WHITENED),
    ),
    "whitened-discriminant-gd": System(
        summary="For images: whitened scattering, then softmax regression that starts from noisy class means.",
        source="ours; features.whitening, trainers.discriminant",
        arrangements=summed(AlgorithmSpec("trainers", "discriminant-gd"), _WHITENED),
    ),
    "dpdr-noisy-gd": System(
        summary="Covariances summed with noise once, one decomposition, then noisy-gd in k dimensions.",
        source="ours; projections.covariance, trainers.gradient_descent",
        arrangements=summed(_DESCENT.with_parameters(mean_weight=1.0), AlgorithmSpec("projections", "analyze-gauss")),
    ),
    "sufficient-statistics": System(
        summary="Ridge regression of classes or numeric labels from one noisy sum of second moments.",
        source="ours; trainers.discriminant",
        arrangements=summed(AlgorithmSpec("trainers", "sufficient-statistics")),
    ),
    "ridge": System(
        summary="Ridge regression of classes or numeric labels on all rows together, without noise.",
        source="regularised least squares",
        sound_counterpart="sufficient-statistics",
        arrangements=joint(AlgorithmSpec("trainers", "erm", {"loss": "squared", "regularisation": 1e-3})),
    ),
    "ridge-noisy-gd": System(
        summary="Ridge regression of classes or numeric labels by full-batch gradient descent on noisy sums.",
        source="ours; trainers.gradient_descent",
        arrangements=summed(_DESCENT.with_parameters(loss="squared", mean_weight=1.0)),
    ),
}
register_systems("", _OURS)
