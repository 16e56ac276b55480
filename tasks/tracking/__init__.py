"""Runs, models and sweeps in MLflow, artifacts in Prefect."""
