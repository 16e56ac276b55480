"""Where the transformers of :mod:`dpalgos.pipeline` were before: models logged then name their classes by this path."""

from dpalgos.pipeline import ReleasedMap, UnitBallClipper

__all__ = ["ReleasedMap", "UnitBallClipper"]
