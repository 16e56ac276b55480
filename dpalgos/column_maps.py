"""Maps of a table's rows, made of its released counts or of none: aggregators, so post-processing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, TypedDict, cast

import numpy as np

from dpalgos.aggregators import Aggregator
from dpalgos.columns import Column, columns_of
from dpalgos.components import Components, principal_components
from dpalgos.evaluators.column_histograms import ColumnHistograms
from dpalgos.evaluators.second_moments import Moments, SecondMoments
from dpalgos.features.centred_components import CentredComponents
from dpalgos.features.column_functions import LEVELS, ColumnFunctions, column_functions, terms
from dpalgos.features.public_map import RowFeatures
from dpalgos.features.unit_rows import UnitRows
from dpalgos.guarantees import GaussianMu, Neighbours, Setting, loss_from_json, loss_to_json
from dpalgos.histograms import ColumnCounts, combined
from dpalgos.models import Statistic
from dpalgos.parameters import COUNT, POSITIVE, Bounded, ParameterError
from dpalgos.registry import lookup, register
from dpalgos.rows import Floats


class ColumnMap(Aggregator[Statistic, RowFeatures]):
    """A map that a table's rows are seen through, made of released counts, or of none."""

    combines: ClassVar[str] = Statistic.kind

    @property
    def counted(self) -> bool:
        """Whether it rests on counts."""
        return False

    @classmethod
    def told(cls, releases: Sequence[tuple[object, Setting]]) -> dict[str, object]:
        """Return the parameters that say how the releases were made which the map rests on: each and its setting."""
        return {}

    @abstractmethod
    def output_dimension(self, dimension: int) -> int:
        """Return the number of features after the map, from the number before it: public before anything is counted."""


class CountParameters(TypedDict):
    """Parameters of :class:`~dpalgos.evaluators.column_histograms.ColumnHistograms`, but for columns and budget."""

    bins: int
    running: bool
    mean_weight: float
    label_range: list[float] | None


class CountSetting(TypedDict):
    """Fields of a :class:`~dpalgos.guarantees.Setting`."""

    sizes: list[int]
    dimension: int
    classes: int
    neighbours: str
    trust: str
    noise_factor: float
    rows_per_person: int


class HowCounted(TypedDict):
    """The way in which a release counted columns, as JSON."""

    parameters: CountParameters
    budget: dict[str, object]
    setting: CountSetting


def how_counted(counts: ColumnHistograms, setting: Setting) -> HowCounted:
    """Return as JSON how columns were counted: what :class:`LearntColumns` decodes a release of it by.

    Parameters
    ----------
    counts : ColumnHistograms
    setting : Setting
        In which it is released.
    """
    return {
        "parameters": {
            "bins": counts.bins,
            "running": counts.running,
            "mean_weight": counts.mean_weight,
            "label_range": None if counts.label_range is None else list(counts.label_range),
        },
        "budget": loss_to_json(counts.budget),
        "setting": _setting_json(setting),
    }


def _setting_json(setting: Setting) -> CountSetting:
    return {
        "sizes": list(setting.sizes),
        "dimension": setting.dimension,
        "classes": setting.classes,
        "neighbours": str(setting.neighbours),
        "trust": str(setting.trust),
        "noise_factor": setting.noise_factor,
        "rows_per_person": setting.rows_per_person,
    }


def _setting_of(facts: CountSetting) -> Setting:
    return Setting(
        sizes=tuple(facts["sizes"]),
        dimension=facts["dimension"],
        classes=facts["classes"],
        neighbours=Neighbours(facts["neighbours"]),
        trust=facts["trust"],
        noise_factor=facts["noise_factor"],
        rows_per_person=facts["rows_per_person"],
    )


def decoded_counts(columns: Sequence[Column], values: Floats, how: HowCounted) -> ColumnCounts:
    """Return the counts of a release that was made as :func:`how_counted` says.

    Raises
    ------
    ParameterError
        If it cannot be one.
    """
    setting, given = _setting_of(how["setting"]), how["parameters"]
    budget = loss_from_json(dict(how["budget"]))
    if not isinstance(budget, GaussianMu):
        raise ParameterError(f"the budget of counts is {budget}; column-histograms needs a Gaussian budget (mu)")
    ends = given["label_range"]
    counts = ColumnHistograms(
        budget=budget,
        columns=columns,
        bins=given["bins"],
        running=given["running"],
        mean_weight=given["mean_weight"],
        label_range=None if ends is None else (ends[0], ends[1]),
    )
    expected = sum(counts.layout(setting).sizes)
    if values.shape != (expected,):
        raise ParameterError(f"a release has {values.shape} numbers; these columns have {expected}")
    return ColumnCounts.of_release(values, counts, setting)


@register("aggregators", "column-functions")
@dataclass(frozen=True, kw_only=True)
class LearntColumns(Bounded, ColumnMap):
    """Functions of a table's columns, by one release of ``column-histograms`` or by several together, or by none.

    Several are combined at the coarsest of their bins by their covariance (:func:`dpalgos.histograms.combined`).
    Post-processing, without privacy cost.

    Parameters
    ----------
    level : str
        Which functions (:data:`dpalgos.features.column_functions.LEVELS`).
    columns : sequence of Column, or of mappings
        Of a row before the map; public.
    dimension : int
        Features of a row before the map.
    classes : int
        1 for numeric labels.
    label_range : (float, float), optional
        Declared range of numeric labels.
    releases : sequence of mapping
        How each of the combined releases counted (:func:`how_counted`): with ``parameters``, ``budget`` and
        ``setting``; empty where nothing is counted.

    Raises
    ------
    ParameterError
        If there is no such level, or columns lie beyond the features.
    """

    level: str
    columns: Sequence[Column | Mapping[str, float]]
    dimension: int = field(metadata=COUNT)
    classes: int = field(metadata=COUNT)
    label_range: Sequence[float] | None = None
    releases: Sequence[HowCounted] = ()

    source: ClassVar[str] = "ours; van der Waerden 1952 (normal scores), Gram and Schmidt under the released masses"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level not in LEVELS:
            raise ParameterError(f"level is {self.level!r}; choose one of {', '.join(LEVELS)}")
        object.__setattr__(self, "columns", columns_of(self.columns, self.dimension))

    def output_dimension(self, dimension: int) -> int:
        """Return the number of functions."""
        numbers = [column for column in self._columns if column.is_number]
        categories = [column for column in self._columns if not column.is_number]
        return len(terms(numbers, categories, self.level, counted=self.counted))

    @classmethod
    def told(cls, releases: Sequence[tuple[object, Setting]]) -> dict[str, object]:
        """Return how each release counted."""
        return {"releases": [how_counted(cast(ColumnHistograms, counts), setting) for counts, setting in releases]}

    @property
    def counted(self) -> bool:
        """Whether the map rests on counts: all levels of numbers and of numeric labels do."""
        return self.level != "categories"

    def combine(self, artefacts: Sequence[Statistic], weights: Floats) -> ColumnFunctions:
        """Return the map; releases are weighed by their noise, and ``weights`` are ignored.

        Raises
        ------
        ParameterError
            If there are more or fewer releases than the parameters describe, or none where columns are counted.
        """
        return column_functions(
            self._columns,
            self.level,
            self.counts_of(artefacts),
            () if self.classes > 1 or self.label_range is None else self.label_range,
        )

    def counts_of(self, artefacts: Sequence[Statistic]) -> ColumnCounts | None:
        """Return the counts that the map is made of, of all releases together; None where it rests on none.

        Raises
        ------
        ParameterError
            If there are more or fewer releases than the parameters describe, or none where columns are counted.
        """
        if len(artefacts) != len(self.releases) or bool(artefacts) != self.counted:
            raise ParameterError(
                f"{len(artefacts)} releases are given and {len(self.releases)} described; the level {self.level} rests "
                f"on {'one at least' if self.counted else 'none'}, each described by how_counted"
            )
        both = zip(artefacts, self.releases, strict=True)
        counts = [decoded_counts(self._columns, one.values, how) for one, how in both]
        return combined(counts) if counts else None

    @property
    def _columns(self) -> tuple[Column, ...]:
        return cast("tuple[Column, ...]", self.columns)


@register("aggregators", "unit-norm")
@dataclass(frozen=True, kw_only=True)
class UnitNormRows(Bounded, ColumnMap):
    """Rows brought to norm 1: the map of tables that stay linear. It rests on no release.

    Parameters
    ----------
    dimension : int
        Features of a row.
    """

    dimension: int = field(metadata=COUNT)

    source: ClassVar[str] = "ours"

    def output_dimension(self, dimension: int) -> int:
        """Return that of the rows before."""
        return dimension

    def combine(self, artefacts: Sequence[Statistic], weights: Floats) -> UnitRows:
        """Return the map.

        Raises
        ------
        ParameterError
            If a release is given.
        """
        if artefacts:
            raise ParameterError(f"{len(artefacts)} releases are given; scaling to norm 1 uses none: omit them")
        return UnitRows(size=np.array([self.dimension], dtype=np.int64))


class HowSummed(TypedDict):
    """The way in which a release formed second moments, as JSON."""

    parameters: dict[str, object]
    budget: dict[str, object]
    setting: CountSetting


def how_summed(moments: SecondMoments, setting: Setting) -> HowSummed:
    """Return as JSON how second moments were formed: what :class:`PrincipalColumns` decodes their release by."""
    given = {one.name: getattr(moments, one.name) for one in fields(moments) if one.name != "budget"}
    listed = {name: list(value) if isinstance(value, Sequence) else value for name, value in given.items()}
    return {"parameters": listed, "budget": loss_to_json(moments.budget), "setting": _setting_json(setting)}


@register("aggregators", "principal-components")
@dataclass(frozen=True, kw_only=True)
class PrincipalColumns(Bounded, ColumnMap):
    """Scores along the leading principal components of one release of ``second-moments``.

    Post-processing, without privacy cost for any number of components.

    Parameters
    ----------
    components : int
        k.
    release : mapping, optional
        How the moments were formed (:func:`how_summed`): with ``parameters``, ``budget`` and ``setting``. None where it
        is not said yet.
    deviations : float, optional
        A score is divided by so many standard deviations of its component, at the upper end of the released margin, and
        by the rows' radius at most. By the radius where None.
    """

    components: int = field(metadata=COUNT)
    release: HowSummed | None = None
    deviations: float | None = field(default=None, metadata=POSITIVE)

    source: ClassVar[str] = "Pearson 1901; Hotelling 1933"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.release is None:
            return
        moments, setting = self.summed()
        moments.check(setting)
        if self.components > (width := moments.width(setting)):
            raise ParameterError(
                f"components is {self.components}; it must lie between 1 and {width} columns that vary"
            )

    @classmethod
    def told(cls, releases: Sequence[tuple[object, Setting]]) -> dict[str, object]:
        """Return how the one release formed moments."""
        ((moments, setting),) = releases
        return {"release": how_summed(cast(SecondMoments, moments), setting)}

    def output_dimension(self, dimension: int) -> int:
        """Return k."""
        return self.components

    @property
    def counted(self) -> bool:
        """Whether it rests on a release: on one of moments."""
        return True

    def summed(self) -> tuple[SecondMoments, Setting]:
        """Return what formed the moments, and the setting in which."""
        how = self.release
        if how is None:
            raise ParameterError("release is None; describe how the moments were computed (how_summed)")
        parameters = {**how["parameters"], "budget": loss_from_json(dict(how["budget"]))}
        return lookup("evaluators", "second-moments")(**parameters), _setting_of(how["setting"])

    def combine(self, artefacts: Sequence[Statistic], weights: Floats) -> CentredComponents:
        """Return the map.

        Raises
        ------
        ParameterError
            If there is another number of releases than one, or it has other numbers than described.
        """
        if len(artefacts) != 1:
            raise ParameterError(f"{len(artefacts)} releases are given; give one release of moments")
        moments, setting = self.summed()
        decoded = moments.decoded(artefacts[0].values, setting)
        found = principal_components(decoded, self.components)
        made = components_map(moments, setting, decoded, found)
        if self.deviations is None:
            return made
        return replace(made, radius=np.minimum(self.deviations * np.sqrt(found.high), moments.radius))


def components_map(
    algorithm: SecondMoments, setting: Setting, moments: Moments, found: Components
) -> CentredComponents:
    """Return the map onto some components of moments, for rows of all features."""
    places = np.arange(setting.dimension) if algorithm.varies is None else np.asarray(algorithm.varies, dtype=np.int64)
    mean = np.array(np.broadcast_to(np.asarray(algorithm.origin, dtype=np.float64), setting.dimension))
    mean[places] += moments.mean
    basis = np.zeros((setting.dimension, found.directions.shape[1]))
    basis[places] = found.directions
    return CentredComponents(mean=mean, basis=basis, radius=np.array([algorithm.radius]))
