"""Prefect's page in a real browser: it asks for the secret, refuses a wrong one, and works with the right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.browser import chromium, needs_browser
from tests.support.serving import Served, wait_for

pytestmark = needs_browser


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_page_works_with_the_secret_typed_in(name: str, served: Served, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    served.ask("/flow_runs/filter")
    with chromium(tmp_path / "profile", width=1500) as browser:

        def text() -> str:
            return str(browser.execute_script("return document.body.innerText"))

        def box() -> Any:
            return next(iter(browser.find_elements("css selector", "input")), None)

        browser.get(f"http://{name}:{urlsplit(served.api).port}/")
        wait_for("the question for the secret", lambda: "login" in browser.current_url and box(), 60)
        assert "Flow Runs" not in text()
        box().send_keys("unitball:guessed" + Keys.ENTER)
        wait_for("the refusal", lambda: "Invalid credentials" in text(), 60)
        box().send_keys(Keys.CONTROL + "a")
        box().send_keys(served.secret.basic + Keys.ENTER)
        wait_for("the dashboard", lambda: "dashboard" in browser.current_url and "Flow Runs" in text(), 60)
        browser.get(f"http://{name}:{urlsplit(served.api).port}/v2/deployments")
        wait_for("the deployments", lambda: "arrivals" in text(), 60)
