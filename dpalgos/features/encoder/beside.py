"""The rule of when the encoder is combined with another map of images, and at which weight."""

from __future__ import annotations

from dpalgos.registry import AlgorithmSpec

WEIGHT = 0.7
"""Weight of the encoder's features next to those of a whitened map, both of norm 1.

Chosen in trials on CIFAR-10 and, in grey, Fashion-MNIST; CIFAR-10 in grey would gain 0.008 more with 1.
"""
LEAST_SIGNAL = 100.0
"""n μ / (f K) at least.

Of 16,000 images of CIFAR-10, measured on 4,000 others: nothing gained at 52, 0.009 at 142, 0.021 at 429, 0.028 at
1,151; in grey 0.024 lost at 28 and 0.010 at 52, gained 0.017 at 98 and 0.044 at 429 and 1,151.
"""
_MOST = 400
# For one channel and for three: the network, and the directions of the other map at which it has all its own (at
# fewer it has fewer in proportion). In grey the smaller one is better on clothes at half the time; in colour it is
# 0.010 behind the big one at a signal of 429.
_NETS = {1: ("small", 400), 3: ("big", 800)}


def beside(
    today: AlgorithmSpec, *, mirror: bool | None, strength: float, asked: bool = False
) -> tuple[AlgorithmSpec, str]:
    """Return a map of images, combined with the encoder where that raises accuracy; and the reason.

    The encoder was trained to ignore mirroring and colour, which distinguish signs, digits and letters. It is therefore
    added only where the owner declares that a mirrored image keeps its class, and the signal is strong enough. Without
    a declaration it is not added, for colour images either: traffic signs lose more by it than photographs gain.

    Parameters
    ----------
    today : AlgorithmSpec
        A ``public-whitening`` with its ``processes``, ``components`` and ``shape``.
    mirror : bool or None
        The owner's declaration; None where there is none.
    strength : float
        n μ / (f K), public (:func:`dpalgos.systems.recommended.signal`).
    asked : bool
        Whether so many components were asked for: then both maps have so many together.

    Returns
    -------
    AlgorithmSpec
    str
        Half a sentence.
    """
    built = today.build()
    shape = list(built.shape)
    channels = shape[0] if len(shape) == 3 else 1
    if channels not in _NETS:
        return today, f"without the encoder, which takes images of one channel or three; these have {channels}"
    if mirror is None:
        return today, (
            "without the encoder, which ignores mirroring: declare --mirror if a mirrored image keeps its class "
            "(photographs, clothes; not signs, digits or letters)"
        )
    if not mirror:
        return today, "without the encoder, which ignores mirroring"
    if strength < LEAST_SIGNAL:
        return today, f"without the encoder, whose directions are mostly noise below a signal of {LEAST_SIGNAL:g}"
    net, whole = _NETS[channels]
    total = built.components
    components = min(_MOST, total * _MOST // (whole + _MOST) if asked else _MOST * total // whole)
    if components < 1:
        return today, f"without the encoder, for which {total} directions are too few"
    other = today.with_parameters(components=total - components) if asked else today
    encoder = {"net": net, "components": components, "processes": list(built.processes), "shape": shape}
    both = AlgorithmSpec(
        "projections",
        "side-by-side",
        {
            "maps": {today.name: dict(other.parameters), "encoder": encoder},
            "weights": {today.name: 1.0, "encoder": WEIGHT},
        },
    )
    return both, (
        f"combined with {components} directions of the {net} encoder at weight {WEIGHT:g}, which was trained on random "
        "scenes to ignore mirroring and colour, at no charge"
    )
