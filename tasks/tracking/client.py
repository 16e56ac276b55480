"""A client of the MLflow that a root's runs go to, where its files may lie, and the view that opens there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import InputError
from storage.layout import Layout
from tasks.runtime.engine import prepare_tracking
from tasks.runtime.engine_process import locked
from tasks.runtime.settings import refusal, server_address, use_tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient


def require_own_location(artifacts: Path, location: str) -> None:
    """Refuse a location outside a root's folder of artifacts: files there would be read and written as the root's user.

    Parameters
    ----------
    artifacts : Path
    location : str
        An address as MLflow keeps it; links in it are followed.

    Raises
    ------
    InputError
        If it is on another service, or not below that folder.
    """
    from mlflow.utils.file_utils import local_file_uri_to_path
    from mlflow.utils.uri import get_uri_scheme, resolve_uri_if_local

    try:
        path = Path(local_file_uri_to_path(resolve_uri_if_local(location))).resolve()
        inside = get_uri_scheme(location) in ("", "file") and path.is_relative_to(artifacts.resolve())
    except (ValueError, OSError, RuntimeError):
        inside = False
    if not inside:
        raise InputError(
            f"MLflow's location {location!r} is not below {artifacts}, where all files of this root lie; rename "
            "that experiment in MLflow, so that one of this name is made anew here (to log a run again costs nothing)"
        )


@contextmanager
def tracking_client(root: Path) -> Iterator[MlflowClient]:
    """Yield a client, MLflow's own functions pointed to the same place.

    Raises
    ------
    tasks.runtime.settings.TrackingError
        If the server that was named refuses something; what was released is stored, and logging it again is free.
    """
    prepare_tracking(root)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    named = server_address()
    with locked(Layout(root).prefect / ".lock-tracking"), use_tracking_uri(root):
        try:
            yield MlflowClient()
        except MlflowException as error:
            if named is None:
                raise
            raise refusal(error) from error


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
    metrics = ("epsilon_spent", "delta_spent", "mu_spent", metric, f"{metric}_low", f"{metric}_high")
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
