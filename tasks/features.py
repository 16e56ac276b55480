"""The step that puts public maps of features before everything else."""

from __future__ import annotations

from storage.refs import DatasetRef
from tasks.planning.plans import FeatureStep
from tasks.preparation.features import is_extracted_whole, map_features
from tasks.runtime.progress import say
from tasks.runtime.steps import step


@step(task_run_name="features of {dataset.name}", whole=is_extracted_whole)
def extract_features(dataset: DatasetRef, features: tuple[FeatureStep, ...]) -> DatasetRef:
    """Store a version of a data set whose rows have passed through public maps; a version that is there is reused."""
    result = map_features(dataset, features)
    say("features", f"{result.rows} rows to {result.dimension} features: {', '.join(each.label for each in features)}")
    return result
