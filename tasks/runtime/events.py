"""Events that schedules, triggers and the webhook listen to; nobody listening is no error."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from tasks.runtime.credentials import use_own_server
from tasks.runtime.event_log import log_event
from tasks.runtime.running_server import running_servers
from tasks.runtime.settings import EMBEDDED_VARIABLE, current_root

NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Event(StrEnum):
    """Names of all events. What they carry is public: names, and numbers that follow from charges alone."""

    REGISTERED = "unitball.dataset.registered"
    """A new version of a data set that was known before."""
    TRAINED = "unitball.training.completed"
    """A deployed run has trained a model and registered it."""
    REFUSED = "unitball.run.refused"
    """A deployed run was refused for privacy: nothing was charged."""
    FAILED = "unitball.run.failed"
    """A run failed for another reason."""
    BUDGET_LOW = "unitball.budget.low"
    """More than 80 % of an account's cap is spent."""
    VIOLATED = "unitball.audit.violated"
    """An audit has refuted what is stated of an algorithm."""
    UNWELL = "unitball.doctor.failed"
    """A check of ``unitball doctor`` has found a problem."""

    @classmethod
    def alerts(cls) -> tuple[Event, ...]:
        """Return those that somebody has to look at."""
        return (cls.REFUSED, cls.FAILED, cls.BUDGET_LOW, cls.VIOLATED, cls.UNWELL)


def dataset_resource(dataset: str) -> str:
    """Return what an event about a data set is about."""
    return f"unitball.dataset.{dataset}"


def account_resource(account: str) -> str:
    """Return what an event about an account is about."""
    return f"unitball.account.{account}"


def announce(
    event: Event, resource: str, payload: Mapping[str, str | float | None], *, labels: Mapping[str, str] = NO_LABELS
) -> None:
    """Log that something happened, and tell a Prefect server; public text only, in labels (which triggers match) too.

    The server is the one of ``PREFECT_API_URL``, or else the one by which ``unitball serve`` serves this root. Without
    either there is nobody to tell.
    """
    subject = {prefix: resource.removeprefix(f"unitball.{prefix}.") for prefix in ("dataset", "account")}
    named = {name: value for name, value in subject.items() if value != resource}
    details = {name: value for name, value in payload.items() if name not in subject}
    log_event(str(event), **named, details=details if named else {**details, "about": resource})
    if not os.environ.get("PREFECT_API_URL"):
        served = running_servers(current_root()).get("prefect")
        # Prefect reads its settings when it is imported.
        if served is None or "prefect" in sys.modules:
            return
        os.environ["PREFECT_API_URL"] = served
    if os.environ["PREFECT_API_URL"] == os.environ.get(EMBEDDED_VARIABLE):
        # A server of this command's own, which nobody watches.
        return
    use_own_server(current_root())
    from prefect.events import emit_event

    emit_event(event=str(event), resource={"prefect.resource.id": resource, **labels}, payload=dict(payload))
