"""What is published without a proof is apart: the rest is proved or draws no noise."""

from __future__ import annotations

import pytest

from dpalgos.algorithms import Unproved
from dpalgos.registry import lookup, names


@pytest.mark.parametrize("kind", ["projections", "trainers", "evaluators"])
def test_all_that_draws_noise_without_a_proof_is_in_published_and_nothing_proved_is(kind: str) -> None:
    for name in names(kind):
        cls = lookup(kind, name)
        if cls.__module__.startswith("dpalgos.published."):
            assert issubclass(cls, Unproved), name
        elif issubclass(cls, Unproved):
            assert not cls.budgets, name
