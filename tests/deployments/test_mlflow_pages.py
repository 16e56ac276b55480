"""MLflow's own pages in a real browser: the runs are there, the columns line up, the chart needs no set-up."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments import serving
from deployments.mlflow_server import add_reader
from dpalgos.models import LinearModel
from tasks.runtime.services import credentials
from tasks.runtime.settings import own_database
from tasks.tracking.runs import (
    FACTS,
    VIEW_NAME,
    Entries,
    ModelReport,
    RunReport,
    SweepTracker,
    track_run,
)
from tasks.tracking.sklearn_export import to_sklearn
from tests.support.browser import chromium, needs_browser
from tests.support.tracking import a_dataset, comparison_path

pytestmark = [*needs_browser, pytest.mark.nightly]

# Accuracy by algorithm and epsilon; None: no noise is drawn.
ACCURACY: dict[str, dict[float | None, float]] = {
    "non-private": {None: 0.97},
    "dpml": {0.5: 0.21, 1.0: 0.3},
    "dpdr-dpml": {0.5: 0.32, 1.0: 0.4},
    "fed-dpdr-dpml": {0.5: 0.5, 1.0: 0.61},
    "fed-dpdr-dpml-published": {0.5: 0.11, 1.0: 0.12},
    "noisy-gd": {0.5: 0.74, 1.0: 0.84},
}


def report(algorithm: str, epsilon: float | None, accuracy: float) -> RunReport:
    model = to_sklearn(
        normalisation="unit-norm", maps=[], model=LinearModel(np.eye(3)), classes=("a", "b", "c"), dimension=3
    )
    proved = None if epsilon is None or algorithm.endswith("published") else f"({epsilon:g}, 1e-05)-DP"
    return RunReport(
        experiment="digits",
        run_key=f"{algorithm}-{epsilon}",
        name=algorithm + ("" if epsilon is None else f" ε={epsilon:g}"),
        facts={"algorithm": algorithm, "dataset": "digits", "trust": "local", "proved": proved},
        params={"epsilon": epsilon, "parties": 2},
        metrics={"accuracy": accuracy} | ({} if epsilon is None else {"epsilon_spent": epsilon, "delta_spent": 1e-5}),
        trained_on=a_dataset("abc123", account="digits"),
        parties=({"party": "party 0", "accuracy": accuracy},),
        # Two with models are enough for the pages; each takes a second.
        model=ModelReport(pipeline=model, dimension=3, classes=("a", "b", "c"), registered_name=f"digits.{algorithm}")
        if algorithm in ("noisy-gd", "fed-dpdr-dpml") and epsilon == 1.0
        else None,
        note=f"**{algorithm}** on **digits**.",
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, tracking_copied: Callable[[Path], None]) -> Path:
    root = tmp_path_factory.mktemp("pages") / "root"
    tracking_copied(root)
    for algorithm, by_epsilon in ACCURACY.items():
        for epsilon, accuracy in by_epsilon.items():
            track_run(root, report(algorithm, epsilon, accuracy))
    sweep = SweepTracker(root, experiment="a-sweep", key="sweep", name="A sweep", tags={}, axes=["epsilon"])
    for key, point in points().items():
        sweep.write(key, point)
    sweep.close(metrics={"points": len(points())}, files={})
    return root


def points() -> dict[str, Entries]:
    """The private systems as points of a sweep."""
    return {
        f"{algorithm}-{epsilon}": Entries(
            name=f"{algorithm} at {epsilon:g}",
            facts={"algorithm": algorithm, "proved": "none" if algorithm.endswith("published") else "proved"},
            params={"epsilon": epsilon},
            metrics={"accuracy": accuracy, "epsilon_spent": epsilon},
        )
        for algorithm, by_epsilon in ACCURACY.items()
        for epsilon, accuracy in by_epsilon.items()
        if epsilon is not None
    }


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-P", "-m", "deployments.mlflow_server", "--root", str(root), "--port", str(port)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30).close()
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, "MLflow's server ended"
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait(300)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, address: str, root: Path) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        # As if name and password had been typed into the browser's own question.
        driver.get(address.replace("//", f"//{credentials(root).basic}@"))
        yield driver


class Page:
    """One page of MLflow, its words awaited."""

    def __init__(self, browser: Any, address: str) -> None:
        self.browser = browser
        # A fresh document each time: a change behind the # alone would keep the old page's state.
        browser.get("about:blank")
        browser.get(address)

    @property
    def text(self) -> str:
        return str(self.browser.execute_script("return document.body.innerText"))

    def wait_for(self, *words: str, seconds: float = 300) -> str:
        return self.wait_until(lambda text: all(word in text for word in words), f"{words}", seconds)

    def wait_until(self, found: Callable[[str], bool], what: str, seconds: float = 300) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found(text := self.text):
                return text
            time.sleep(0.3)
        raise AssertionError(f"{what} not on {self.browser.current_url}:\n{self.text[:3000]}")


def names() -> list[str]:
    return [
        report(algorithm, epsilon, accuracy).name
        for algorithm, values in ACCURACY.items()
        for epsilon, accuracy in values.items()
    ]


def client(root: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=own_database(root), registry_uri=own_database(root))


def parents(root: Path, epsilon: float) -> list[Any]:
    experiment = client(root).get_experiment_by_name("digits").experiment_id
    runs = client(root).search_runs([experiment])
    return [
        run
        for run in runs
        if "mlflow.parentRunId" not in run.data.tags and run.data.params["epsilon"] in (str(epsilon), "None")
    ]


def test_an_experiment_that_is_clicked_opens_on_its_runs(browser: Any, address: str) -> None:
    """From the bare address: what a page is of, traces or runs, a browser that was never asked takes from ours."""
    browser.get(address)
    browser.execute_script("localStorage.clear()")
    page = Page(browser, address)
    page.wait_for("digits")
    click = "[...document.querySelectorAll('a')].find(item => item.innerText.trim() === 'digits').click()"
    browser.execute_script(click)
    text = page.wait_for("noisy-gd ε=1")
    assert "/runs" in browser.current_url
    # MLflow's assistant opens itself on a first visit, and this server refuses it: the page would begin with an error.
    assert "Ask questions about" not in text
    assert "Not served here" not in text
    # Who chose otherwise is left alone.
    browser.execute_script("""localStorage.setItem('mlflow.workflowType_v1', '"genai"')""")
    Page(browser, address).wait_for("digits")
    assert "genai" in browser.execute_script("return localStorage.getItem('mlflow.workflowType_v1')")
    browser.execute_script("localStorage.clear()")


def test_runs_and_their_guarantees_are_in_the_table(browser: Any, address: str, root: Path) -> None:
    path = comparison_path(root, "digits")
    assert path is not None
    table = path.replace("compareRunsMode=CHART&", "")
    text = Page(browser, f"{address}/{table}").wait_for(*names(), "epsilon_spent", "accuracy")
    assert f"{len(names())} matching runs" in text, "parties are no runs of their own"
    for heading in ("delta_spent", "algorithm", "claim"):
        assert heading in text


def test_the_view_counts_the_runs_that_it_shows(browser: Any, address: str, root: Path) -> None:
    """ "12 matching runs" stood under six: the children of runs were counted, too."""
    for experiment, count in (("digits", len(names())), ("a-sweep", len(points()))):
        path = comparison_path(root, experiment)
        assert path is not None
        page = Page(browser, f"{address}/{path.replace('compareRunsMode=CHART&', '')}")

        def columns(text: str) -> list[str]:
            return [line for line in text.splitlines() if line in ("accuracy", "epsilon_spent", "delta_spent")]

        # The count is there before the table's headings are. MLflow misses the view's order of them at times: it puts
        # columns in order when they are made, whether or not it has the view by then.
        page.wait_for(f"{count} matching runs")
        page.wait_until(lambda text: {"accuracy", "epsilon_spent"} <= set(columns(text)), "the headings")


def test_the_page_that_compares_runs_opens_on_the_accuracy(browser: Any, address: str, root: Path) -> None:
    runs = parents(root, 1.0)
    query = urllib.parse.urlencode(
        {
            "runs": json.dumps([run.info.run_id for run in runs]),
            "experiments": json.dumps([runs[0].info.experiment_id]),
        }
    )
    page = Page(browser, f"{address}/#/compare-runs?{query}")

    def chosen(text: str) -> bool:
        return text.partition("Metrics:\n")[2].startswith("accuracy\n")

    page.wait_until(chosen, "accuracy as the metric of the parallel coordinates")


def test_the_chart_shows_without_any_set_up(browser: Any, address: str, root: Path) -> None:
    path = comparison_path(root, "digits")
    page = Page(browser, f"{address}/{path}")
    page.wait_for(VIEW_NAME, "Privacy and accuracy", *names())

    def points(_: str) -> bool:
        return len(drawn()) == sum(len(values) for name, values in ACCURACY.items() if name != "non-private")

    def drawn() -> list[list[float]]:
        found = browser.execute_script(
            """
            const plot = [...document.querySelectorAll('.js-plotly-plot')].find(
                item => item.layout && item.layout.xaxis && item.layout.xaxis.title
                    && String(item.layout.xaxis.title.text).includes('epsilon_spent'));
            if (!plot) return [];
            const points = [];
            for (const trace of plot.data)
                for (let i = 0; i < (trace.x || []).length; i++)
                    if (trace.x[i] !== undefined && trace.y[i] !== undefined && trace.x[i] !== null)
                        points.push([Number(trace.x[i]), Number(trace.y[i])]);
            return points;
            """
        )
        return sorted(found)

    page.wait_until(points, "the points of the accuracy-budget chart")
    want = sorted(
        [epsilon, accuracy] for values in ACCURACY.values() for epsilon, accuracy in values.items() if epsilon
    )
    np.testing.assert_allclose(drawn(), want)


def test_a_sweeps_points_run_through_parallel_coordinates(browser: Any, address: str, root: Path) -> None:
    page = Page(browser, f"{address}/{comparison_path(root, 'a-sweep')}")
    page.wait_for(VIEW_NAME, *(point.name for point in points().values()))

    def lines(_: str) -> bool:
        """Whether a chart has these axes, and a line of its own for every point."""
        axes = browser.execute_script(
            """
            const chart = document.querySelector('.parcoords');
            if (!chart) return [];
            chart.scrollIntoView();
            return [...chart.querySelectorAll('.dimension .label')].map(item => item.textContent);
            """
        )
        return [str(axis) for axis in axes] == ["algorithm", "epsilon", "epsilon_spent", "accuracy"]

    page.wait_until(lines, "parallel coordinates from the algorithm to the accuracy")


def test_the_saved_query_finds_the_best_proved_accuracy(browser: Any, address: str, root: Path) -> None:
    """The search that docs/sweeps.md names, sorted by accuracy."""
    search = 'metrics.epsilon_spent <= 1 and tags.proved != "none"'
    assert search in (Path(serving.__file__).parents[1] / "docs" / "sweeps.md").read_text("utf-8")
    experiment = client(root).get_experiment_by_name("a-sweep").experiment_id
    query = urllib.parse.urlencode(
        {
            "workflowType": "machine_learning",
            "searchFilter": search,
            "orderByKey": "metrics.`accuracy`",
            "orderByAsc": "false",
        }
    )
    page = Page(browser, f"{address}/#/experiments/{experiment}/runs?{query}")
    text = page.wait_for("noisy-gd at 1", "dpml at 0.5")
    assert "published" not in text
    best = [line for line in text.splitlines() if " at " in line and line.split(" at ")[0] in ACCURACY]
    assert best[0] == "noisy-gd at 1"


def test_the_compare_page_lines_up_six_algorithms(browser: Any, address: str, root: Path) -> None:
    runs = parents(root, 1.0)
    assert len(runs) == 6
    query = urllib.parse.urlencode(
        {
            "runs": json.dumps([run.info.run_id for run in runs]),
            "experiments": json.dumps([runs[0].info.experiment_id]),
        }
    )
    page = Page(browser, f"{address}/#/compare-runs?{query}")
    page.wait_for("Comparing 6 Runs", "Run details", "Parameters", "Metrics")

    def cells(heading: str) -> list[str]:
        """Return the values beside a row heading."""
        found = browser.execute_script(
            """
            const rows = [...document.querySelectorAll('tr, [role=row]')];
            const is = item => item.children.length > 1 && item.children[0].innerText.trim() === arguments[0];
            const row = rows.find(is);
            return row ? [...row.children].slice(1).map(item => item.innerText.trim()) : [];
            """,
            heading,
        )
        return [str(cell) for cell in found]

    def shows_six(fact: str, _: str) -> bool:
        return len(cells(fact)) == 6

    for fact in (*FACTS, "epsilon"):
        page.wait_until(partial(shows_six, fact), f"six values of {fact}")
        want = sorted(run.data.params[fact] for run in runs)
        assert sorted(cells(fact)) == want, fact
    assert "none" in cells("proved")

    def metrics(text: str) -> list[str]:
        """Return the words of the metrics' table, which is drawn column by column as far as the window is wide."""
        return text.rsplit("Metrics\n", 1)[1].split("\nArtifacts")[0].split()

    text = page.wait_until(lambda text: len(metrics(text)) >= 6 * 3, "a table of metrics with six columns")
    assert {"accuracy", "epsilon_spent", "delta_spent"} <= set(metrics(text))
    numbers = {float(word) for word in metrics(text) if word[0].isdigit()}
    assert {run.data.metrics["accuracy"] for run in runs} <= numbers


def test_filtering_by_guarantee(browser: Any, address: str, root: Path) -> None:
    experiment = client(root).get_experiment_by_name("digits").experiment_id
    query = urllib.parse.urlencode(
        {
            "workflowType": "machine_learning",
            "searchFilter": "tags.proved = 'none'",
            "orderByKey": "attributes.start_time",
        }
    )
    page = Page(browser, f"{address}/#/experiments/{experiment}/runs?{query}")
    text = page.wait_for("non-private", "fed-dpdr-dpml-published")
    assert "noisy-gd" not in text


def test_a_run_says_all_of_itself(browser: Any, address: str, root: Path) -> None:
    run = next(run for run in parents(root, 1.0) if run.data.params["algorithm"] == "noisy-gd")
    page = Page(browser, f"{address}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}")
    text = page.wait_for("noisy-gd on digits", "epsilon_spent", "(1, 1e-05)-DP", "digits.noisy-gd")
    assert "digits (abc123)" in text.replace("\n", " ")
    link = browser.find_element("link text", VIEW_NAME)
    assert "viewStateShareKey" in link.get_attribute("href")


def test_a_models_page_has_its_metrics(browser: Any, address: str, root: Path) -> None:
    experiment = client(root).get_experiment_by_name("digits").experiment_id
    found = client(root).search_logged_models([experiment], filter_string="tags.algorithm = 'noisy-gd'")
    (model,) = [one.model_id for one in found]
    page = Page(browser, f"{address}/#/experiments/{experiment}/models/{model}")
    page.wait_for("accuracy", "0.84", "epsilon_spent", "(1, 1e-05)-DP", "digits.noisy-gd")


def test_the_pages_contact_nothing_else(browser: Any, address: str, root: Path) -> None:
    path = comparison_path(root, "digits")
    Page(browser, f"{address}/{path}").wait_for("Privacy and accuracy")
    contacted = browser.execute_script("return performance.getEntriesByType('resource').map(item => item.name)")
    assert contacted
    outside = [url for url in contacted if not url.startswith((address, "data:", "blob:"))]
    assert not outside


def test_a_reader_sees_the_comparison_and_a_card(tmp_path: Path, address: str, root: Path) -> None:
    secret = add_reader(root, "anna").read_text().strip()
    with chromium(tmp_path) as driver:
        driver.get(address.replace("//", f"//{secret}@"))
        Page(driver, f"{address}/{comparison_path(root, 'digits')}").wait_for(VIEW_NAME, *names())
        Page(driver, f"{address}/#/models/digits.noisy-gd/versions/1").wait_for("digits.noisy-gd")
