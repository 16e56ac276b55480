"""Several maps of the same images, their features side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpalgos.algorithms import Work
from dpalgos.features.public_map import ImageMap, PublicMap, RowFeatures
from dpalgos.guarantees import Setting
from dpalgos.models import Projection, decode, released_kind
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, register
from dpalgos.rows import Array, Floats


def beginning_with(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays whose names begin so, under the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


@released_kind("side-by-side-features")
class SideBySideFeatures(RowFeatures):
    """The features of several public maps, one map's after the other's.

    Parameters
    ----------
    kinds : array of uint8
        The maps' kinds, a comma between them, as UTF-8 bytes.
    **of_maps : arrays
        Those of the maps, each with ``map0_``, ``map1_``, … before its name.
    """

    kept: ClassVar[bool] = True

    def __init__(self, kinds: NDArray[np.uint8], **of_maps: Array) -> None:
        self._kinds, self._of_maps = kinds, of_maps
        self.maps: list[RowFeatures] = [
            decode(kind, beginning_with(f"map{number}_", of_maps))
            for number, kind in enumerate(kinds.tobytes().decode().split(","))
        ]

    @classmethod
    def of(cls, maps: Sequence[RowFeatures | Projection]) -> Self:
        """Return the map made of these."""
        arrays = {
            f"map{number}_{name}": array for number, one in enumerate(maps) for name, array in one.arrays().items()
        }
        return cls(np.frombuffer(",".join(one.kind for one in maps).encode(), dtype=np.uint8), **arrays)

    @property
    def classes(self) -> tuple[type, ...]:
        """Its own and those of the maps."""
        return (SideBySideFeatures, *(cls for one in self.maps for cls in one.classes))

    @property
    def dimension(self) -> int:
        """Number of all features."""
        return sum(self.blocks)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Numbers of the maps' features."""
        return tuple(one.dimension for one in self.maps)

    def transform(self, features: Floats) -> Floats:
        """Map (m, d) to (m, dimension)."""
        return np.hstack([one.transform(features) for one in self.maps])

    def arrays(self) -> dict[str, Array]:
        """Return the kinds and the arrays of the maps."""
        return {"kinds": self._kinds, **self._of_maps}


@register("projections", "side-by-side")
@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide(ImageMap):
    """Several public maps of the same rows, their features side by side.

    Guarantee
    ---------
    Costs nothing: each of the maps does. Norms are not bounded by 1: whatever reads the rows next clips them, or
    :class:`~dpalgos.features.whitening.PublicWhitening` brings them to the unit sphere.

    Parameters
    ----------
    maps : mapping
        Names of registered public maps to their parameters.
    mirror : bool, optional
        Handed to each of the maps where it is given.
    shape : sequence of int, optional
        Of images, handed to the maps.
    """

    maps: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"scattering": {}, "dictionary": {}})
    mirror: bool | None = None
    source: ClassVar[str] = "ours"
    kept: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.maps:
            raise ParameterError("maps is empty; name public maps, for example scattering and dictionary")

    def output_dimension(self, dimension: int) -> int:
        """Return the number of all features."""
        return sum(one.output_dimension(dimension) for one in self.parts())

    def map_for(self, dimension: int) -> SideBySideFeatures:
        """Return the map."""
        return SideBySideFeatures.of([one.map_for(dimension) for one in self.parts()])

    @classmethod
    def composed_of(cls, parameters: Mapping[str, Any]) -> tuple[type, ...]:
        """Return the maps' classes: their code is this one's too."""
        maps = parameters.get("maps", {"scattering": {}, "dictionary": {}})
        return tuple(one for name, own in maps.items() for one in AlgorithmSpec("projections", name, own).classes())

    def work(self, setting: Setting) -> Work:
        """Return that of all maps."""
        works = [one.work(setting) for one in self.parts()]
        return Work(operations=sum(work.operations for work in works), row=sum(work.row for work in works))

    def parts(self) -> list[PublicMap]:
        """Return the maps."""
        shared = {"mirror": self.mirror, "shape": self.shape}
        known = {name: value for name, value in shared.items() if value is not None}
        return [built_map(name, {**known, **own}) for name, own in self.maps.items()]


def built_map(name: str, parameters: Mapping[str, Any]) -> PublicMap:
    """Return a registered map, built, unless it reads rows."""
    inner = AlgorithmSpec("projections", name, parameters).build()
    if not isinstance(inner, PublicMap):
        raise ParameterError(f"features is {name!r}, which reads rows; name a public map: scattering, hog")
    return inner
