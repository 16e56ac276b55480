"""The chain of a night: rows arrive, the night's sums are released, the running sum becomes a model."""

from __future__ import annotations

import time

from dpalgos.models import Statistic
from flows.releasing import Chained, submit, timed
from storage.refs import ReleaseRef
from tasks.aggregation import aggregate
from tasks.arrival import arrive
from tasks.charging import charge
from tasks.datasets.description import default_normalisation
from tasks.evaluation import evaluate
from tasks.features import extract_features
from tasks.ingestion import ingest
from tasks.normalisation import normalise
from tasks.planning.configuration import TrainingConfig
from tasks.planning.nights import plan_night, planned_night
from tasks.planning.plans import Shards
from tasks.planning.resolution import resolve_normalisation
from tasks.preparation.nights import begin_nights, deal_test_rows
from tasks.reduction import reduce_dimension
from tasks.release.metrics import Evaluation
from tasks.runtime.steps import Future
from tasks.tracking.results import summarise
from tasks.training import train_model

__all__ = ["chain_nights"]


def chain_nights(config: TrainingConfig) -> Chained:
    """Run the steps of tonight, and those of nights of which nobody made a release.

    Raises
    ------
    storage.errors.RefusedError
        If a cap would be exceeded, or rows come back that may not; nothing is released then.
    """
    started = time.monotonic()
    version = ingest(config.dataset)
    normalisation = resolve_normalisation(config, default_normalisation(config.dataset))
    nights = begin_nights(config, version, normalisation)
    terms, tonight = nights.terms, nights.unreleased[-1]
    plan = plan_night(terms, config, tonight.night, tonight.shards, nights.arrived, tonight.features)
    made: dict[str, Future[ReleaseRef]] = {}
    for night in nights.unreleased:
        release = planned_night(terms, night.night, night.shards)
        rows = normalise(night.registered, normalisation)
        if night.features:
            extract_features(rows, night.features)
        shards = arrive(config, night, release)
        if not made:
            # All nights are charged with the first of them that comes here.
            charge(plan_night(terms, config, night.night, shards, nights.arrived), Shards(training=shards))
        for projection in plan.projections:
            made[projection.key] = submit(reduce_dimension, projection, list(shards))
        upstream = [made[key] for key in release.upstream]
        made[release.key] = submit(train_model, release, list(shards), upstream)
        made[release.key].result()
    held_out = deal_test_rows(tonight)
    model = plan.model
    assert model is not None
    released = [made[key].result() if key in made else _stored(key, plan.models[0].owner) for key in model.upstream]
    made[model.key] = aggregate.submit(model, released)
    references = {key: future.result() for key, future in made.items()}
    models = {name: [references[key] for key in path] for name, path in plan.paths().items()}
    dealt = Shards(training=shards, held_out=held_out)
    measured = evaluate(plan, models, dealt) if config.evaluation and held_out is not None else Evaluation()
    dataset = tonight.shards[0].dataset
    result = summarise(plan, dataset, measured, list(references.values()))
    return Chained(dataset, plan, timed(result, dataset, started, list(made.values())), models)


def _stored(key: str, owner: str) -> ReleaseRef:
    """Return the reference of a night that was released before."""
    return ReleaseRef(key=key, kind=Statistic.kind, party=owner)
