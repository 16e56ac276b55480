"""Rows before a release: one function that makes any node of a plan that consists of rows."""

from functools import singledispatch

from tasks.planning.graph import Node
from tasks.preparation.nightly_rows import make_arrived
from tasks.preparation.normalisation import make_normalised
from tasks.preparation.partitions import make_partition
from tasks.preparation.public_maps import make_map, make_mapped


@singledispatch
def make_rows(node: Node) -> object:
    """Make a node of rows, unless it is stored: a version, a public map, the parties' shards."""
    raise TypeError(f"{type(node).__name__} is not a node of rows")


for make in (make_normalised, make_map, make_mapped, make_partition, make_arrived):
    make_rows.register(make)
