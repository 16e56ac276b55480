"""Ends of refused runs: named, failed in order, never retried."""

from __future__ import annotations

import logging

import pytest
from prefect import flow

from storage.errors import OverspendError, RefusedError
from tasks.runtime.ending import announcing_failures, refused
from tasks.runtime.standing import stands
from tasks.runtime.steps import step
from tests.support.engines import Engine


def test_what_is_refused_for_another_reason_than_the_budget_has_another_name() -> None:
    state = refused(RefusedError("clinic is private and svm is not proved"))
    assert (str(state.type.value), state.name) == ("FAILED", "Inadmissible")


def test_a_refusal_is_a_failure_of_that_name() -> None:
    error = OverspendError("epsilon 5 does not fit into the 1 that is left")
    state = refused(error)
    assert (str(state.type.value), state.name) == ("FAILED", "BudgetExhausted")
    assert state.message == "Refused for privacy: epsilon 5 does not fit into the 1 that is left"
    with pytest.raises(OverspendError, match=r"^epsilon 5"):
        state.result()


def test_the_log_of_a_run_names_its_steps(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Prefect itself says nine times "Finished in state Completed()"."""

    @step(task_run_name="count rows of {name}", cached=False)
    def counted(name: str) -> str:
        return name

    @flow(persist_result=False, flow_run_name="clinic's run")
    def run() -> str:
        return counted("clinic")

    loggers = [logging.getLogger(f"prefect.{kind}_runs") for kind in ("flow", "task")]
    for logger in loggers:
        logger.addHandler(caplog.handler)
    try:
        assert run() == "clinic"
    finally:
        for logger in loggers:
            logger.removeHandler(caplog.handler)
    said = [record.getMessage() for record in caplog.records]
    assert {"count rows of clinic: done", "clinic's run: done"} <= set(said)
    assert not any("Completed()" in line for line in said)


def test_a_run_that_is_stopped_says_in_its_own_log_what_stands(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    @flow(persist_result=False)
    def stopped() -> None:
        with announcing_failures("unitball.test"):
            raise KeyboardInterrupt

    logger = logging.getLogger("prefect.flow_runs")
    logger.addHandler(caplog.handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            stopped()
    finally:
        logger.removeHandler(caplog.handler)
    assert f"stopped: {stands()}" in [record.getMessage() for record in caplog.records]
