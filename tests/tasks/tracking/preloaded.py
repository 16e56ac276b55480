"""Imports of a logging process, loaded once for those that are forked from it."""

# First: it walks every module that is loaded before it.
import skops.io  # noqa: F401 - imported ahead of its use

# isort: split
import mlflow.sklearn
import mlflow.store.model_registry.sqlalchemy_store
import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - imported ahead of its use

import tests.tasks.tracking.test_runs  # noqa: F401 - imported ahead of its use
