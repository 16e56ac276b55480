"""Ends of refused runs: named, failed in order, never retried."""

from __future__ import annotations

import pytest

from storage.errors import OverspendError, RefusedError
from tasks.runtime.ending import refused


def test_what_is_refused_for_another_reason_than_the_budget_has_another_name() -> None:
    state = refused(RefusedError("clinic is private and svm is not proved"))
    assert (str(state.type.value), state.name) == ("FAILED", "Inadmissible")


def test_a_refusal_is_a_failure_of_that_name() -> None:
    error = OverspendError("epsilon 5 does not fit into the 1 that is left")
    state = refused(error)
    assert (str(state.type.value), state.name) == ("FAILED", "BudgetExhausted")
    assert state.message == "Refused for privacy: epsilon 5 does not fit into the 1 that is left"
    with pytest.raises(OverspendError, match="does not fit"):
        state.result()
