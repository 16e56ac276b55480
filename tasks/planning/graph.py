"""The graph of a plan: nodes with keys, each after what it is made of, and the one function that walks them."""

from collections.abc import Callable, Container, Mapping
from typing import Protocol, TypeVar


class Node(Protocol):
    """A node that is made once: rows, a public map, a release, or a combination of releases."""

    @property
    def key(self) -> str:
        """Identity of the node: if a result of this key exists, it is not made again."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """The keys of what it is made of."""
        ...


OneNode = TypeVar("OneNode", bound=Node)
Made = TypeVar("Made")


def materialise(
    nodes: Mapping[str, OneNode],
    make: Callable[[OneNode, list[Made]], Made],
    existing: Mapping[str, Made] | None = None,
    at_hand: Container[str] = (),
) -> dict[str, Made]:
    """Make each node of what its inputs became: the one place where a plan is carried out.

    Parameters
    ----------
    nodes : mapping of key to node
        In an order in which each comes after its inputs.
    make : callable
        From a node and what its inputs became to what it becomes itself: the future of a task, a reference, an artefact
        in memory, what parties answer.
    existing : mapping, optional
        By key, what nodes are made of that is there already.
    at_hand : container of str
        Keys of what ``make`` has by itself and is not handed: rows in memory, or rows that their owners keep.

    Returns
    -------
    dict
        What the nodes became, by key, in their order.
    """
    made: dict[str, Made] = {}
    for key, node in nodes.items():
        inputs = [one for one in node.inputs if one not in at_hand]
        made[key] = make(node, [made[one] if one in made else (existing or {})[one] for one in inputs])
    return made
