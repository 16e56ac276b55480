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
from dpalgos.parameters import Bound, ParameterError
from dpalgos.registry import AlgorithmSpec, register
from dpalgos.rows import Array, Floats, unit_rows


def beginning_with(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays whose names begin so, under the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


@released_kind("side-by-side-features")
class SideBySideFeatures(RowFeatures):
    """The features of several public maps, one map's after the other's; weighted and brought to norm 1, or as they are.

    Parameters
    ----------
    kinds : array of uint8
        The maps' kinds, a comma between them, as UTF-8 bytes.
    weights : array (maps,), optional
        What each map's features are multiplied by, before the whole is brought to norm 1.
    **of_maps : arrays
        Those of the maps, each with ``map0_``, ``map1_``, … before its name.
    """

    kept: ClassVar[bool] = True

    def __init__(self, kinds: NDArray[np.uint8], weights: Floats | None = None, **of_maps: Array) -> None:
        self._kinds, self._weights, self._of_maps = kinds, weights, of_maps
        self.maps: list[RowFeatures] = [
            decode(kind, beginning_with(f"map{number}_", of_maps))
            for number, kind in enumerate(kinds.tobytes().decode().split(","))
        ]

    @classmethod
    def of(cls, maps: Sequence[RowFeatures | Projection], weights: Sequence[float] | None = None) -> Self:
        """Return the map made of these."""
        arrays = {
            f"map{number}_{name}": array for number, one in enumerate(maps) for name, array in one.arrays().items()
        }
        kinds = np.frombuffer(",".join(one.kind for one in maps).encode(), dtype=np.uint8)
        return cls(kinds, None if weights is None else np.array(weights, dtype=np.float64), **arrays)

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
        mapped = [one.transform(features) for one in self.maps]
        if self._weights is None:
            return np.hstack(mapped)
        return unit_rows(np.hstack([weight * one for weight, one in zip(self._weights, mapped, strict=True)]))

    def arrays(self) -> dict[str, Array]:
        """Return the kinds, the weights where there are some, and the arrays of the maps."""
        weights = {} if self._weights is None else {"weights": self._weights}
        return {"kinds": self._kinds, **weights, **self._of_maps}


@register("projections", "side-by-side")
@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide(ImageMap):
    """Several public maps of the same rows, with their features concatenated.

    Guarantee
    ---------
    No privacy cost, because none of the maps has any. With weights its rows have norm 1 (or 0). Without, norms are not
    bounded by 1: the next step clips them, or :class:`~dpalgos.features.whitening.PublicWhitening`
    brings them to the unit sphere.

    Parameters
    ----------
    maps : mapping
        Names of registered public maps to their parameters.
    weights : mapping, optional
        Names of the same maps to what their features are multiplied by, before the whole is brought to norm 1.
    mirror : bool, optional
        Handed to each of the maps where it is given.
    shape : sequence of int, optional
        Of images, handed to the maps.
    """

    maps: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"scattering": {}, "dictionary": {}})
    weights: Mapping[str, float] | None = None
    mirror: bool | None = None
    source: ClassVar[str] = "ours"
    kept: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.maps:
            raise ParameterError("maps is empty; give public maps, for example scattering and dictionary")
        if self.weights is not None and set(self.weights) != set(self.maps):
            raise ParameterError(
                f"weights are given for {', '.join(sorted(self.weights)) or 'no map'}; give one for each of "
                f"{', '.join(sorted(self.maps))}"
            )
        for name, weight in (self.weights or {}).items():
            Bound(0.0, open_low=True).require(f"the weight of {name}", weight)

    def output_dimension(self, dimension: int) -> int:
        """Return the number of all features."""
        return sum(one.output_dimension(dimension) for one in self.parts())

    def map_for(self, dimension: int) -> SideBySideFeatures:
        """Return the map."""
        return self._of([one.map_for(dimension) for one in self.parts()])

    def _of(self, maps: Sequence[RowFeatures | Projection]) -> SideBySideFeatures:
        weights = None if self.weights is None else [self.weights[name] for name in self.maps]
        return SideBySideFeatures.of(maps, weights)

    def stored_as(self, spec: AlgorithmSpec, dimension: int) -> AlgorithmSpec:
        """Return the map of what is stored for each of the maps."""
        stored = {
            name: dict(part.stored_as(AlgorithmSpec("projections", name, own), dimension).parameters)
            for (name, own), part in zip(self.maps.items(), self.parts(), strict=True)
        }
        return spec if stored == self.maps else spec.with_parameters(maps=stored)

    def part_of(self, stored: RowFeatures) -> SideBySideFeatures:
        """Return the parts of the maps side by side."""
        assert isinstance(stored, SideBySideFeatures)
        return self._of([part.part_of(one) for part, one in zip(self.parts(), stored.maps, strict=True)])

    @classmethod
    def composed_of(cls, parameters: Mapping[str, Any]) -> tuple[type, ...]:
        """Return the maps' classes: their code is this one's too."""
        maps = parameters.get("maps", {"scattering": {}, "dictionary": {}})
        return tuple(one for name, own in maps.items() for one in AlgorithmSpec("projections", name, own).classes())

    def work(self, setting: Setting) -> Work:
        """Return that of all maps, which are made one after the other."""
        works = [one.work(setting) for one in self.parts()]
        return Work(
            operations=sum(work.operations for work in works),
            small_operations=sum(work.small_operations for work in works),
            held=max(work.held for work in works),
            row=sum(work.row for work in works),
        )

    def parts(self) -> list[PublicMap]:
        """Return the maps."""
        shared = {"mirror": self.mirror, "shape": self.shape}
        known = {name: value for name, value in shared.items() if value is not None}
        return [built_map(name, {**known, **own}) for name, own in self.maps.items()]


def built_map(name: str, parameters: Mapping[str, Any]) -> PublicMap:
    """Return a registered map, built, unless it reads rows."""
    inner = AlgorithmSpec("projections", name, parameters).build()
    if not isinstance(inner, PublicMap):
        raise ParameterError(f"features is {name!r}, which reads private rows; give a public map: scattering, hog")
    return inner
