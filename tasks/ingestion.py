"""Bringing rows in."""

from __future__ import annotations

from tasks.datasets.description import counts_of, default_normalisation, describe_datasets, find_dataset
from tasks.datasets.queries import query
from tasks.datasets.registration import IngestRequest, ingest

__all__ = [
    "IngestRequest",
    "counts_of",
    "default_normalisation",
    "describe_datasets",
    "find_dataset",
    "ingest",
    "query",
]
