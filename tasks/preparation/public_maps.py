"""Public maps: made or read from a file, kept among the releases by their identity, and rows seen through them.

No private row has a part in one, so that it has no privacy cost. A model needs its map to predict, so a map is stored
next to the releases, by its identity.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np

from dpalgos.features.public_map import PublicMap, RowFeatures
from dpalgos.features.whitening import PublicRowsWhitening
from dpalgos.guarantees import Setting
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.models import Projection, opened
from dpalgos.registry import AlgorithmSpec, construct
from dpalgos.rows import Array, Features, Floats, RowMap, fits
from storage.datasets import open_dataset
from storage.errors import DamagedError, InputError, RefusedError
from storage.kept_rows import has_kept
from storage.refs import DatasetRef, ShardRef
from tasks.planning.identity import code_version, identity
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedRelease
from tasks.planning.rows import FeatureStep, MappedRows
from tasks.preparation.encoder_files import read_encoder
from tasks.preparation.mapped_rows import Map, Mapped, PublicView, keep_parts
from tasks.runtime.progress import report_progress
from tasks.runtime.settings import current_layout, current_root
from tasks.runtime.stores import open_releases


def make_map(feature: FeatureStep) -> RowFeatures:
    """Return a public map; it is made of what it is planned of, unless it is stored. The rows are not read.

    Raises
    ------
    InputError
        If an encoder's file is no longer there, or no longer the one that was planned with.
    """
    if open_releases().exists(feature.key):
        return stored_map(feature.key)
    if feature.file is not None:
        row_features = _in_file(feature, Path(feature.file))
    elif feature.public is None:
        setting = Setting(sizes=(), dimension=feature.takes, classes=feature.classes)
        row_features = feature.algorithm.build().fit((), setting, KeyedNoise(public_secret(0), feature.key))
    else:
        before, rows = [stored_map(key) for key in feature.before], feature.public.rows
        width = before[-1].dimension if before else rows.dimension
        learner = construct(PublicRowsWhitening, "public", feature.algorithm.parameters)
        row_features = learner.learn(_Mapped(rows, _through(before)), width, rows.rows, max(len(rows.classes), 1))
    return _store(feature.key, feature.label, row_features)


def stored_map(key: str) -> RowFeatures:
    """Return a map that was made, by its identity."""
    manifest, arrays = open_releases().read(key)
    return cast(RowFeatures, opened(manifest["artefact"], arrays))


def are_made(keys: Sequence[str]) -> bool:
    """Whether all of some public maps are stored."""
    return all(open_releases().exists(key) for key in keys)


def public_map(spec: AlgorithmSpec, setting: Setting) -> RowFeatures:
    """Return a map made of parameters and the rows' dimension alone; made once for all runs of a root, then read back.

    Parameters
    ----------
    spec : AlgorithmSpec
        A :class:`~dpalgos.features.public_map.PublicMap` that is ``kept``: it draws no noise.
    setting : Setting
    """
    step = find_public_map(spec, setting)
    if step is not None:
        return step
    whole = spec.build().stored_as(spec, setting.dimension)
    key = map_identity(whole, setting.dimension)
    if open_releases().exists(key):
        open_releases().remove_damaged(key)
    stored = _store(key, spec.name, whole.build().fit((), setting, KeyedNoise(public_secret(0), key)))
    return cast(RowFeatures, spec.build().part_of(stored))


def find_public_map(spec: AlgorithmSpec, setting: Setting) -> RowFeatures | None:
    """Return what :func:`public_map` has made and kept; None where it has not, or where that is damaged."""
    key = map_identity(spec.build().stored_as(spec, setting.dimension), setting.dimension)
    if not open_releases().exists(key):
        return None
    try:
        return cast(RowFeatures, spec.build().part_of(stored_map(key)))
    except DamagedError:
        return None


def public_maps_of(plan: RunPlan) -> list[tuple[PlannedRelease, PublicMap]]:
    """Return the public maps among a plan's projections, with what builds them."""
    built = [(release, release.build()) for release in plan.projections if not release.reads_rows]
    return [(release, algorithm) for release, algorithm in built if isinstance(algorithm, PublicMap)]


def found_map(release: PlannedRelease, algorithm: PublicMap) -> RowFeatures | Projection | None:
    """Return a public map of a plan where it is stored, and None where it is not."""
    if algorithm.kept:
        return find_public_map(release.algorithm, release.setting)
    return stored_map(release.key) if open_releases().exists(release.key) else None


def map_identity(spec: AlgorithmSpec, dimension: int) -> str:
    """Return the identity of a public map that is made of parameters and the rows' dimension."""
    return identity(map=[spec.name, dict(spec.parameters), dimension], code=code_version(*spec.classes()))


def make_mapped(node: MappedRows) -> DatasetRef:
    """Keep rows as public maps show them that are stored, where there is room; otherwise each reader maps them.

    Raises
    ------
    RefusedError
        If a stored map is not one of such rows; none of them is read then.
    """
    dataset, features = node.source, node.maps
    maps = [stored_map(one.key) for one in features]
    if not fits([one.apply for one in maps], dataset.dimension, features[-1].dimension):
        raise RefusedError(
            f"{', '.join(one.label for one in features)} as stored do not map rows of {dataset.dimension} features to "
            f"{features[-1].dimension}; unitball doctor --clean removes damaged releases"
        )
    view = encoding([one.key for one in features])
    # How many rows people have is nobody's business.
    keep_parts(dataset, view, view if dataset.person else _counted(view, dataset.rows + dataset.test_rows))
    return node.rows


def _counted(row_map: Callable[[Features], Mapped], rows: int) -> Callable[[Features], Mapped]:
    done = 0

    def mapped(features: Features) -> Mapped:
        nonlocal done
        mapped_rows = row_map(features)
        done += len(features)
        report_progress("features", f"{done:,} of {rows:,} rows", done / rows)
        return mapped_rows

    return mapped


def are_features_kept(node: MappedRows) -> bool:
    """Whether all rows of a version are kept as public maps show them; none of them is read."""
    if not are_made([one.key for one in node.maps]):
        return False
    view, parts = encoding([one.key for one in node.maps]), ["train", *(["test"] if node.source.test_rows else [])]
    return all(has_kept(current_layout(), node.source, part, view.key) for part in parts)


def kept_maps(plan: RunPlan) -> list[PublicView]:
    """Return the views of a plan's public projections that rows may be kept under, made where they were not.

    No row is read.
    """
    encoded = [encoding([one.key for one in plan.features])] if plan.features else []
    found = [
        public_map(release.algorithm, release.setting)
        if algorithm.kept
        else algorithm.map_for(release.setting.dimension)
        for release, algorithm in public_maps_of(plan)
    ]
    views = [PublicView((one,)) for one in found if isinstance(one, RowFeatures)]
    return [encoded[0].then(one) for one in views] if encoded else views


def views_of(shard: ShardRef, maps: Sequence[RowMap]) -> tuple[list[PublicView], list[RowMap]]:
    """Return the views under which a shard's rows may be kept, the furthest first, and all maps that its rows pass.

    Parameters
    ----------
    shard : ShardRef
        Its reference says through which public maps its rows are seen.
    maps : sequence of callable
        That a release reads them through; those that are public maps are :class:`PublicView`.

    Returns
    -------
    (list of PublicView, list of callable)
        Each view applies some of the maps at the beginning.
    """
    passed: list[RowMap] = [*([encoding(shard.dataset.maps)] if shard.dataset.maps else []), *maps]
    views: list[PublicView] = []
    for one in itertools.takewhile(lambda one: isinstance(one, PublicView), passed):
        views.insert(0, views[0].then(cast(PublicView, one)) if views else cast(PublicView, one))
    return views, passed


def encoding(keys: Sequence[str]) -> PublicView:
    """Return what stored public maps make of rows before anything else, in turn; read once for many parties."""
    return _encoding(current_root(), tuple(keys))


# An encoder's file may have half a gigabyte.
@lru_cache(maxsize=1)
def _encoding(root: Path, keys: tuple[str, ...]) -> PublicView:
    del root
    maps = tuple(stored_map(key) for key in keys)
    if no_map := [key for key, one in zip(keys, maps, strict=True) if not isinstance(one, Map)]:
        raise RefusedError(f"{no_map[0]} is not a public map; rows are read only through public maps")
    return PublicView(maps, encoded=len(maps))


def _in_file(feature: FeatureStep, path: Path) -> RowFeatures:
    """Return the map that an encoder's file holds, if the file is still the one that was planned with."""
    encoder = read_encoder(feature.algorithm, path, feature.takes)
    if encoder.key != feature.key:
        raise InputError(f"{path} has changed since the run was planned: start the run again")
    return encoder.finished()


def _through(maps: Sequence[RowFeatures]) -> Callable[[Floats], Floats]:
    def mapped(features: Floats) -> Floats:
        # No warning says what rows hold.
        with np.errstate(all="ignore"):
            for each in maps:
                features = each.apply(features)
        return features

    return mapped


class _Mapped:
    """The rows of a stored version under a map, block by block, as often as they are read."""

    def __init__(self, rows: DatasetRef, through: Callable[[Floats], Floats]) -> None:
        self._rows, self._through = rows, through

    def __iter__(self) -> Iterator[tuple[Floats, Array]]:
        for features, labels, _ in open_dataset(current_layout(), self._rows).blocks():
            yield self._through(np.asarray(features, dtype=np.float64)), labels


def _store(key: str, label: str, row_features: RowFeatures) -> RowFeatures:
    manifest = {"format_version": 1, "key": key, "artefact": row_features.kind, "label": label, "reads_rows": False}
    open_releases().write(key, manifest, row_features.arrays())
    return row_features
