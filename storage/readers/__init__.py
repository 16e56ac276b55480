"""Readers: one file a format, found by walking this package."""

from storage.readers.registry import read_source, reader_names, register_reader
from storage.source import Block, OnViolation, ReadOptions, Source, Tally, concatenate

__all__ = [
    "Block",
    "OnViolation",
    "ReadOptions",
    "Source",
    "Tally",
    "concatenate",
    "read_source",
    "reader_names",
    "register_reader",
]
