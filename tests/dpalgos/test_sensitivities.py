"""Sensitivities under each neighbouring relation: what is refused, and that none is below what neighbours attain."""

from __future__ import annotations

import dataclasses

import pytest

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Guarantee, Neighbours, Setting

RELATIONS = (Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL)


# ── add-remove-one is refused ────────────────────────────────────────────────────────────────────────────────────────


def test_add_remove_is_no_relation_of_a_setting() -> None:
    with pytest.raises(ParameterError, match=r"number of rows is public.*40 of 40.*replace-special.*or replace-one"):
        Setting(sizes=(10,), dimension=2, classes=2, neighbours=Neighbours.ADD_REMOVE_ONE)
    with pytest.raises(ParameterError, match="number of rows is public"):
        dataclasses.replace(Setting(sizes=(10,), dimension=2, classes=2), neighbours=Neighbours.ADD_REMOVE_ONE)


def test_old_records_under_add_remove_can_still_be_read() -> None:
    """A manifest says what it said; nothing new can be stated under it."""
    old = Guarantee(losses=(), neighbours=Neighbours.ADD_REMOVE_ONE)
    assert Guarantee.from_json(old.to_json()) == old
    with pytest.raises(ParameterError):
        _ = old.neighbours.records


def test_relations_count_the_records_that_are_not_null() -> None:
    assert [relation.records for relation in RELATIONS] == [2, 1]
