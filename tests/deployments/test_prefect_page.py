"""Prefect's page in a real browser: it asks for the secret, refuses a wrong one, and works with the right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.browser import chromium, needs_browser
from tests.support.serving import Served, wait_for

pytestmark = needs_browser
FORM = ["Data set", "Epsilon", "Algorithm", "Trust", "Features", "Name", "Seed of public runs", "More"]


@pytest.mark.parametrize(
    ("name", "runs"), [("localhost", False), pytest.param("127.0.0.1", True, marks=pytest.mark.nightly)]
)
def test_the_page_works_with_the_secret_typed_in(served: Served, tmp_path: Path, name: str, runs: bool) -> None:
    """A wrong secret is refused. Logged in, an epsilon of two million is refused in the form and makes no run; the same
    form with 0.5 starts one.

    In both versions of the pages the form has the same eight fields, in order, and shows no default that it cannot.
    """
    from selenium.webdriver.common.keys import Keys

    (deployment,) = [one for one in served.ask("/deployments/filter") if one["name"] == "train"]
    page = f"http://{name}:{urlsplit(served.api).port}"
    known = {run["id"] for run in served.ask("/flow_runs/filter")}

    def made() -> list[dict[str, Any]]:
        return [run for run in served.ask("/flow_runs/filter") if run["id"] not in known and not run["auto_scheduled"]]

    with chromium(tmp_path / "profile", width=1500) as browser:

        def text() -> str:
            return str(browser.execute_script("return document.body.innerText"))

        def asked() -> Any:
            return next(iter(browser.find_elements("css selector", "input")), None)

        def box(title: str) -> Any:
            """Return the box that a label of the form is for."""
            return browser.execute_script(
                """
                const label = [...document.querySelectorAll('label')].find(
                    item => item.innerText.trim().startsWith(arguments[0]));
                return label && document.getElementById(label.getAttribute('for'));
                """,
                title,
            )

        def submit() -> bool:
            # By the page's own event: its message of the refusal may lie over the button.
            browser.execute_script(
                "[...document.querySelectorAll('button')].find(item => item.innerText === 'Submit')?.click()"
            )
            return True

        def write(epsilon: str) -> None:
            # The page looks at a value when the box is left.
            box("Epsilon").send_keys(Keys.CONTROL + "a" + Keys.NULL + epsilon + Keys.TAB)

        def looks_right() -> None:
            labels = "return [...document.querySelectorAll('label')].map(item => item.innerText.split(' (')[0].trim())"
            order = [label for label in browser.execute_script(labels) if label in FORM]
            assert order == FORM
            for said in ("Epsilon (Optional)", "smaller protects more", "Further options of a training"):
                assert said in text(), said
            assert "[object Object]" not in text()
            boxes = "return [...document.querySelectorAll('input, textarea')].map(item => item.value)"
            assert not [one for one in browser.execute_script(boxes) if "[object" in one]

        browser.get(f"{page}/")
        wait_for("the question for the secret", lambda: "login" in browser.current_url and asked())
        assert "Flow Runs" not in text()
        asked().send_keys("unitball:guessed" + Keys.ENTER)
        wait_for("the refusal", lambda: "Invalid credentials" in text())
        asked().send_keys(Keys.CONTROL + "a")
        asked().send_keys(served.secret.basic + Keys.ENTER)
        wait_for("the dashboard", lambda: "dashboard" in browser.current_url and "Flow Runs" in text())
        browser.get(f"{page}/v2/deployments")
        wait_for("the deployments", lambda: "arrivals" in text())
        browser.get(f"{page}/v2/deployments/deployment/{deployment['id']}/run")
        wait_for("the form", lambda: box("Epsilon"))
        looks_right()
        write("2000000")
        submit()
        # The box's own message: the schema's bound is the page's.
        refused = "return arguments[0].validationMessage"
        wait_for("the refusal", lambda: "1000" in browser.execute_script(refused, box("Epsilon")))
        assert made() == []
        if runs:
            write("0.5")
            wait_for("a run", lambda: made() or (submit() and None), every=3)
        browser.get(f"{page}/deployments/deployment/{deployment['id']}/run")
        wait_for("the form of the other version", lambda: "Seed of public runs" in text())
        looks_right()
        # Blocked by the policy, before any name is looked up.
        outside = [line["message"] for line in browser.get_log("browser") if "ERR_NAME_NOT_RESOLVED" in line["message"]]
        assert not outside
    if not runs:
        return
    run, *_ = made()
    assert run["parameters"]["epsilon"] == 0.5
    assert served.finished(run["id"])["state_type"] == "COMPLETED"
