"""The view of an experiment that MLflow opens without any set-up: accuracy against budget, guarantees in the columns.

MLflow's page keeps named views in tags of the experiment. One is written when an experiment is made; it is listed in
the page's menu of views, and has an address of its own. It is MLflow's own chart, drawn from whatever runs there are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

VIEW_NAME = "Accuracy against budget"
_VIEW_KEY = "accuracy-budget"
VIEW_TAG = f"mlflow.sharedViewState.{_VIEW_KEY}"
_SECTION = "unitball"


def view_path(experiment_id: str) -> str:
    """Return the address of the view, behind the address of any MLflow server on the same database."""
    query = f"workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey={_VIEW_KEY}"
    return f"#/experiments/{experiment_id}/runs?{query}"


def _card(kind: str, uuid: str, **settings: object) -> dict[str, object]:
    common = {"runsCountToCompare": 100, "metricSectionId": _SECTION, "deleted": False, "isGenerated": False}
    return {"uuid": f"{_SECTION}-{uuid}", "type": kind, **common, **settings}


def view_envelope(
    facts: Sequence[str],
    *,
    search: str = "",
    axes: Sequence[str] = ("algorithm", "trust"),
    metric: str = "accuracy",
) -> str:
    """Return the view as the page stores it: a name, a time, and its state as JSON.

    Parameters
    ----------
    facts : sequence of str
        Parameters shown as columns of the table.
    search : str
        Which runs are shown, in MLflow's language, the best first; all that have no parent if empty.
    axes : sequence of str
        Parameters that the parallel coordinates run through on their way to the metric.
    metric : str
        What the runs are compared by.
    """
    metrics = ("epsilon_spent", "delta_spent", "mu_spent", metric)
    charts = [
        _card(
            "SCATTER",
            "scatter",
            xaxis={"key": "epsilon_spent", "type": "METRIC"},
            yaxis={"key": metric, "type": "METRIC"},
        ),
        _card("BAR", metric, metricKey=metric),
        _card(
            "PARALLEL",
            "parallel",
            selectedParams=list(axes),
            selectedMetrics=["epsilon_spent", metric],
            showAllRuns=False,
        ),
    ]
    section = {"uuid": _SECTION, "name": f"Privacy and {metric}", "display": True, "isReordered": True}
    state = {
        "searchFilter": search,
        # Children are folded into their parents in the order of time, and only there.
        "orderByKey": f"metrics.`{metric}`" if search else "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": [
            *(f"metrics.`{name}`" for name in metrics),
            *(f"params.`{name}`" for name in facts),
        ],
        "columnOrder": [],
        "columnWidths": {},
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runsVisibilityMap": {},
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": charts,
        "compareRunSections": [section],
        "isAccordionReordered": True,
        "viewMaximized": False,
        "runListHidden": False,
        "groupBy": None,
        "groupsExpanded": {},
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "autoRefreshEnabled": True,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }
    compact = json.dumps(state, separators=(",", ":"))
    return json.dumps({"name": VIEW_NAME, "createdAt": int(time.time() * 1000), "state": compact})
