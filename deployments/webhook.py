"""The webhook: what somebody has to look at is sent to an address of the operator's, by an automation of Prefect's."""

from __future__ import annotations

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import CallWebhook
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.types import SecretDict
from pydantic import SecretStr

from tasks.runtime.events import Event
from tasks.runtime.settings import WEBHOOK_VARIABLE

__all__ = ["AUTOMATION", "apply_webhook"]

AUTOMATION = "unitball alerts"
"""Name of the automation in Prefect."""

_BLOCK = "unitball-alerts"
_PAYLOAD = (
    '{"event": {{ event.event | tojson }}, "about": {{ event.resource.id | tojson }}, '
    '"at": {{ event.occurred | string | tojson }}, "payload": {{ event.payload | tojson }} }'
)


def apply_webhook(client: SyncPrefectClient, address: str | None) -> None:
    """Make the automation that sends alerts to an address, in the place of an earlier one; remove it where None.

    Parameters
    ----------
    client : SyncPrefectClient
    address : str or None
        Kept on the server as a secret of a block.
    """
    for earlier in client.read_automations_by_name(AUTOMATION):
        client.delete_automation(earlier.id)
    if address is None:
        return
    block = Webhook(url=SecretStr(address), headers=SecretDict({"Content-Type": "application/json"}))
    automation = AutomationCore(
        name=AUTOMATION,
        description=f"Sends what somebody has to look at to the address of {WEBHOOK_VARIABLE}; made at every start.",
        trigger=EventTrigger(expect={str(event) for event in Event.alerts()}, posture=Posture.Reactive, threshold=1),
        actions=[CallWebhook(block_document_id=block.save(_BLOCK, overwrite=True), payload=_PAYLOAD)],
    )
    client.create_automation(automation)
