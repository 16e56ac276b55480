"""The chain without its engine: prepared shards and plans, and the door called as the tasks call it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.federated_training import chain_inline
from storage.refs import DatasetRef, ReleaseRef, Visibility
from storage.releases import ReleaseStore
from tasks.accounts.ledger import open_ledger
from tasks.datasets.registration import ensure_registered, find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.planning.configuration import TrainingConfig
from tasks.planning.graph import materialise
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.planning.rows import Shards
from tasks.preparation import prepare as planning
from tasks.preparation.making import make_rows
from tasks.release.door import charge_plan, make_release
from tasks.releases import aggregate
from tasks.runtime.settings import current_layout
from tasks.tracking.results import RunResult
from tests.support.private_rows import CLASSES, DIMENSION, PrivateRows, write_rows


def ingest_private(folder: Path, count: int = 200, name: str = "clinic", seed: int = 0, **request: Any) -> PrivateRows:
    """Bring synthetic private rows in, with a cap."""
    folder.mkdir(exist_ok=True)
    rows = write_rows(folder / f"{name}.txt", count, seed=seed)
    given: dict[str, Any] = {"epsilon_cap": 3.0, "delta_cap": 1e-4, **request}
    ingest(
        IngestRequest(
            name=name,
            format="libsvm",
            path=rows.path,
            visibility=Visibility.PRIVATE,
            dimension=DIMENSION,
            classes=CLASSES,
            **given,
        )
    )
    return rows


@dataclass(frozen=True)
class Prepared:
    """A run up to its plan."""

    dataset: DatasetRef
    shards: Shards
    plan: RunPlan

    def charge(self) -> dict[str, Any]:
        return charge_plan(self.plan, self.shards.all)

    def make(self) -> dict[str, ReleaseRef]:
        """Make every release and combination, one after another."""

        def make(node: PlannedRelease | PlannedCombination, upstream: list[ReleaseRef]) -> ReleaseRef:
            if isinstance(node, PlannedCombination):
                return aggregate.fn(node, upstream)
            return make_release(node, self.shards.of(node.parties) if node.reads_rows else [], upstream)

        return materialise(self.plan.nodes, make, at_hand=self.plan.partitions)


def configured(dataset: str = "clinic", **config: Any) -> TrainingConfig:
    """Epsilon 1 and two parties unless said otherwise; private rows are measured, at a charge, where it is said."""
    ensure_registered(dataset)
    public = find_dataset(dataset).visibility is Visibility.PUBLIC
    given = {"dataset": dataset, "epsilon": 1.0, "parties": 2, "evaluation": public, **config}
    return TrainingConfig.model_validate(given)


def prepare(dataset: str = "clinic", **config: Any) -> Prepared:
    """Normalise, partition and plan; epsilon 1 and two parties unless said otherwise."""
    prepared = planning.whole(planning.prepare(configured(dataset, **config)))
    materialise(prepared.rows, lambda node, _: make_rows(node))
    return Prepared(prepared.shards.training[0].dataset, prepared.shards, prepared.plan)


def followed(dataset: str = "clinic", **config: Any) -> RunResult:
    """Run the whole chain up to its result, without Prefect and MLflow."""
    return chain_inline(configured(dataset, **config)).result


def charges(account: str = "clinic") -> list[tuple[str, bool]]:
    """Return what is on record: keys of charged releases, and whether each is a re-charge."""
    return [(charge.key, charge.plan.recharge) for charge in open_ledger().charges(account)]


def digests() -> dict[str, str]:
    """Return a digest of each stored release's files."""
    layout = current_layout()
    return {
        key: hashlib.sha256(b"".join(path.read_bytes() for path in sorted(layout.release(key).iterdir()))).hexdigest()
        for key in ReleaseStore(layout).keys()
    }
