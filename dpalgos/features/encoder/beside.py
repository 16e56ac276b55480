"""The rule of when the encoder stands beside another map of images, and at which weight."""

from __future__ import annotations

from dpalgos.registry import AlgorithmSpec

WEIGHT = 0.7
"""What the encoder's features are multiplied by beside those of a whitened map, both of norm 1."""
LEAST_SIGNAL = 150.0
"""n μ / (f K) at least: the weakest signal at which it was tried, and gained (clothes, 50,000 rows, ε = 0.1)."""
# Grey pictures hold less, and the smaller network is as good on them at half the time.
_NETS = {1: "small", 3: "big"}


def beside(today: AlgorithmSpec, *, mirror: bool, strength: float) -> AlgorithmSpec:
    """Return a map of images with the encoder beside it where that pays, else the map itself.

    The encoder was taught to overlook mirror images and colour, which tell signs, digits and letters apart: it stands
    beside where their owner says that mirror images are the same thing, and the signal is not too weak.

    Parameters
    ----------
    today : AlgorithmSpec
        A ``public-whitening`` with its ``processes`` and ``shape``.
    mirror : bool
        The owner's word.
    strength : float
        n μ / (f K), public (:func:`dpalgos.systems.recommended.signal`).
    """
    built = today.build()
    shape = list(built.shape)
    net = _NETS.get(shape[0] if len(shape) == 3 else 1)
    if not mirror or strength < LEAST_SIGNAL or net is None:
        return today
    encoder = {"net": net, "processes": list(built.processes), "shape": shape}
    return AlgorithmSpec(
        "projections",
        "side-by-side",
        {
            "maps": {today.name: dict(today.parameters), "encoder": encoder},
            "weights": {today.name: 1.0, "encoder": WEIGHT},
        },
    )
