"""Where alerts go: only to https, or to this machine; and which automation is made of the setting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prefect.blocks.webhook import Webhook

from deployments import webhook
from storage.errors import InputError
from tasks.runtime.events import Event
from tasks.runtime.settings import WEBHOOK_VARIABLE, webhook_address


@pytest.mark.parametrize("address", ["https://hooks.example/T/secret", "http://127.0.0.1:8080/x", "http://localhost/x"])
def test_where_alerts_may_go(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WEBHOOK_VARIABLE, address)
    assert webhook_address() == address


@pytest.mark.parametrize("address", ["http://hooks.example/token", "ftp://127.0.0.1/token", "token", "https:///token"])
def test_where_they_may_not(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WEBHOOK_VARIABLE, address)
    with pytest.raises(InputError, match=f"{WEBHOOK_VARIABLE} must begin with https://") as error:
        webhook_address()
    assert "token" not in str(error.value)


def test_without_a_setting_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WEBHOOK_VARIABLE, "  ")
    assert webhook_address() is None


class Automations:
    """Stands for the server."""

    def __init__(self) -> None:
        self.standing = {"earlier": None}
        self.made: list[Any] = []

    def read_automations_by_name(self, name: str) -> list[Any]:
        assert name == webhook.AUTOMATION
        return [SimpleNamespace(id=one) for one in self.standing]

    def delete_automation(self, which: str) -> None:
        del self.standing[which]

    def create_automation(self, automation: Any) -> None:
        self.made.append(automation)


def test_one_automation_takes_the_place_of_the_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Any] = []
    block = "11111111-1111-4111-8111-111111111111"

    def save(self: Any, *_: Any, **__: Any) -> str:
        saved.append(self)
        return block

    monkeypatch.setattr(Webhook, "save", save)
    server: Any = Automations()
    webhook.apply_webhook(server, "https://hooks.example/T/secret")
    assert not server.standing
    (automation,) = server.made
    assert automation.trigger.expect == {str(event) for event in Event.alerts()}
    (action,) = automation.actions
    assert str(action.block_document_id) == block
    assert "secret" not in automation.model_dump_json()
    assert saved[0].url.get_secret_value() == "https://hooks.example/T/secret"
    gone: Any = Automations()
    webhook.apply_webhook(gone, None)
    assert not gone.standing
    assert not gone.made
