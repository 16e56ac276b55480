"""The sums of a release over shards of several files, on the workers of a Dask cluster: the bits of one machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from distributed import Client, LocalCluster

from dpalgos.algorithms import TrustedSummation, Work, fit
from dpalgos.guarantees import GaussianMu, Setting, Trust
from dpalgos.keystream import KeyedNoise
from dpalgos.projections.covariance import AnalyzeGauss
from dpalgos.rows import SpreadRows
from dpalgos.trainers.gradient_descent import NoisyGradientDescent
from storage import rowfiles
from storage.layout import Layout
from storage.objects import objects_of
from storage.refs import ShardRef
from storage.shards import open_shard, write_shards
from storage.source import Block, Source
from tasks.host.cluster import security
from tasks.host.dask_workers import SharedSums
from tasks.planning.releases import PlannedRelease
from tasks.release import seen_rows
from tasks.release.redaction import RedactedError
from tasks.release.seen_rows import parts_of, rows_of
from tests.support.data import stored
from tests.support.object_store import running_object_store, use_object_store
from tests.support.untraced import untraced

_MU = GaussianMu(1.0)


@dataclass(frozen=True)
class _Planned:
    """All that is asked of a planned release here."""

    algorithm: Any
    setting: Setting

    def build(self) -> Any:
        return self.algorithm


def released(shards: Sequence[ShardRef], cut: bool = False) -> tuple[bool, list[Any]]:
    """Return whether rows are spread, and what two algorithms make of them, noise included."""
    setting = Setting(sizes=tuple(shard.rows for shard in shards), dimension=6, classes=2, trust=Trust.CENTRAL)
    found, spread = [], []
    for algorithm in (AnalyzeGauss(budget=_MU, components=2), NoisyGradientDescent(budget=_MU, iterations=2)):
        planned = cast(PlannedRelease, _Planned(algorithm, setting)) if cut else None
        parties = [rows_of(shard, [_halved], 6, planned) for shard in shards]
        spread += [isinstance(rows, SpreadRows) and len(rows.parts) >= 2 for rows in parties]
        noise = KeyedNoise(b"k" * 32, "spread")
        arrays = fit(algorithm, parties, setting, noise, TrustedSummation(noise)).arrays()
        found += [arrays[name] for name in sorted(arrays)]
    return all(spread), found


def failing(shard: ShardRef) -> str:
    """Return what is raised where a worker's sum fails, with its causes."""
    rows = rows_of(shard, [_failed], 6)
    assert isinstance(rows, SpreadRows)
    try:
        rows.total(_summed)
    except RedactedError as error:
        return f"{error} {error.__cause__}"
    return "nothing"


def _halved(features: Any) -> Any:
    return features / 2.0


def _failed(features: Any) -> Any:
    if features.any():
        raise ValueError(f"a row is {features[0]}")
    return features


def _summed(rows: Any) -> Any:
    return sum(features.sum() for features, *_ in rows.blocks())


@pytest.fixture(scope="module", params=["files", pytest.param("objects", marks=pytest.mark.nightly)])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Layout, tuple[ShardRef, ...]]]:
    """Yield a root, its rows in files or in an object store, and the shards of two parties."""
    folder = tmp_path_factory.mktemp("spread")
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        if request.param == "objects":
            use_object_store(patch, stack.enter_context(running_object_store(folder / "log")), "spread")
        layout = Layout(folder / "root").prepare()
        random = np.random.default_rng(1)
        block = Block(random.normal(size=(300, 6)), random.integers(0, 2, 300))
        source = Source(format="synthetic", place="made up", dimension=6, parts={"train": [block]}, classes=("0", "1"))
        with pytest.MonkeyPatch.context() as small:
            small.setattr(rowfiles, "_PART_BYTES", 4 * 6 * 40)
            small.setattr(rowfiles, "_BLOCK_ENTRIES", 6 * 40)
            ref = stored(layout, source, private=True, name="spread")
            partitioned = {"a": np.arange(0, 180), "b": np.arange(180, 300)}
            shards = write_shards(layout, ref, partitioned, "even")
        yield layout, shards


@pytest.fixture(scope="module")
def cluster(place: tuple[Layout, tuple[ShardRef, ...]]) -> Iterator[Client]:
    """Yield two workers in threads of this process, which talk over TLS as processes do (tests/flows/test_sweep.py)."""
    own = security(place[0])
    given: dict[str, Any] = {"threads_per_worker": 1, "protocol": "tls", "dashboard_address": None}
    with (
        untraced(),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("UNITBALL_ROOT", str(place[0].root))
        with (
            LocalCluster(n_workers=2, processes=False, security=own, **given) as on,
            Client(on, security=own) as client,
        ):
            client.register_plugin(SharedSums())
            yield client


def test_workers_release_what_one_machine_releases(
    cluster: Client, place: tuple[Layout, tuple[ShardRef, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, shards = place
    monkeypatch.setenv("UNITBALL_ROOT", str(layout.root))
    assert bool(list(layout.private.rglob("*.parquet"))) == (objects_of(layout) is None)
    spread, over_workers = cluster.submit(released, shards).result(timeout=300)
    alone, here = released(shards)
    assert spread
    assert not alone
    assert len(here) == len(over_workers) > 2
    assert all(np.array_equal(one, other) for one, other in zip(here, over_workers, strict=True))


def test_one_file_is_cut_where_that_pays(
    cluster: Client, place: tuple[Layout, tuple[ShardRef, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, too; a run whose sums take no time leaves it whole."""
    layout, _ = place
    monkeypatch.setenv("UNITBALL_ROOT", str(layout.root))
    # Of so few rows nothing pays.
    monkeypatch.setattr(seen_rows, "_DISPATCH_SECONDS", 0.0)
    monkeypatch.setattr(seen_rows, "_NUMBER_SECONDS", 0.0)
    random = np.random.default_rng(2)
    # More rows than two blocks have.
    block = Block(random.normal(size=(17_000, 6)), random.integers(0, 2, 17_000))
    source = Source(format="synthetic", place="made up", dimension=6, parts={"train": [block]}, classes=("0", "1"))
    ref = stored(layout, source, private=True, name="one")
    shards = write_shards(layout, ref, {"a": np.arange(0, 17_000)}, "even")
    assert len(open_shard(layout, shards[0]).files) == 1
    spread, over_workers = cluster.submit(released, shards, cut=True).result(timeout=300)
    alone, here = released(shards)
    assert spread
    assert not alone
    assert all(np.array_equal(one, other) for one, other in zip(here, over_workers, strict=True))


@pytest.mark.parametrize(
    ("work", "rows", "dimension", "parts"),
    [
        # A shard of 20 MB: a covariance of 784 features, and one of 20 through 1,000 random ones.
        (Work(passes=1, operations=2.0 * 6_500 * 784**2), 6_500, 784, 2),
        (Work(passes=1, operations=2.0 * 262_144 * 1_000**2), 262_144, 20, 2),
        # Fifty steps over rows that stay in memory here, and are read at every step there: two classes, and a thousand.
        (Work(passes=50, operations=4.0 * 6_500 * 784 * 50), 6_500, 784, 1),
        (Work(passes=50, operations=4.0 * 6_500 * 784 * 1_000 * 50), 6_500, 784, 2),
        # Few rows, and few features.
        (Work(passes=1, operations=2.0 * 1_000 * 20**2), 1_000, 20, 1),
    ],
)
def test_whether_cutting_pays_goes_by_rows_and_steps(work: Work, rows: int, dimension: int, parts: int) -> None:
    assert parts_of(work, 1.0, rows * dimension, 32, 2) == parts
    # One worker or one block gains nothing.
    assert parts_of(work, 1.0, rows * dimension, 32, 1) == parts_of(work, 1.0, rows * dimension, 1, 2) == 1


def test_what_fails_on_a_worker_is_kept_for_its_owner(
    cluster: Client, place: tuple[Layout, tuple[ShardRef, ...]]
) -> None:
    told = cluster.submit(failing, place[1][0]).result(timeout=300)
    assert "a row is" not in told
    assert "a sum over rows of a failed" in told
    # The other worker has failed too, and may be writing the same file under its temporary name.
    (kept,) = (place[0].private / "errors").glob("even-*.txt")
    assert "a row is" in kept.read_text()
    logs = str(cluster.get_worker_logs())
    assert "a row is" not in logs
