"""Prefect flows: only chains of tasks."""
