"""A pytest plugin: where real parts are required, a test that was skipped for want of one fails."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

PARTS = ("postgresql", "browser")
VARIABLE = "UNITBALL_REQUIRE_PARTS"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Turn a skip of a test that is marked with a part into a failure, where ``UNITBALL_REQUIRE_PARTS`` is set."""
    report = yield
    if report.skipped and os.environ.get(VARIABLE) and any(item.get_closest_marker(part) for part in PARTS):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped although {VARIABLE} is set: {report.longrepr}"
    return report
