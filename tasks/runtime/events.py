"""Events that schedules and triggers listen to; nobody listening is no error."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tasks.runtime.credentials import use_own_server
from tasks.runtime.settings import current_root

__all__ = ["REGISTERED", "announce", "registered_resource"]

REGISTERED = "unitball.dataset.registered"
"""A new version of a data set that was known before."""


def registered_resource(dataset: str) -> str:
    """Return what the event of a data set's new version is about."""
    return f"unitball.dataset.{dataset}"


def announce(event: str, resource: str, payload: Mapping[str, str]) -> None:
    """Tell a Prefect server that something happened; public words only.

    Without a server (``PREFECT_API_URL`` not set) there is nobody to tell.
    """
    if not os.environ.get("PREFECT_API_URL"):
        return
    use_own_server(current_root())
    from prefect.events import emit_event

    emit_event(event=event, resource={"prefect.resource.id": resource}, payload=dict(payload))
