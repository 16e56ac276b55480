"""Attacks on the server that each run without `unitball serve` starts for itself."""

from __future__ import annotations

import pytest

from tasks.runtime.services import credentials
from tests.security.test_services import (
    PREFECT_OPEN,
    WEBSOCKETS,
    answer,
    prefect_routes,
    refused,
    websocket_refused,
)
from tests.support.engines import Engine


@pytest.mark.parametrize("path", WEBSOCKETS)
def test_websockets_refuse_too(path: str, engine: Engine) -> None:
    websocket_refused(engine.url, path, credentials(engine.root))


def test_the_embedded_server_answers_nobody_without_the_secret(engine: Engine) -> None:
    """Each `train` has a server of its own while it runs; it has no page, and no other path is open."""
    routes = prefect_routes(engine.url)
    refused(engine.url, routes[::3], PREFECT_OPEN)
    status, _ = answer(engine.url, "POST", "/api/work_pools/", {"Content-Type": "application/json"}, b"{}")
    assert status == 401
