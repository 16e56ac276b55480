"""Prefect's log of a run names each step that is done: of itself it says "Finished in state Completed()" for each."""

import logging

_DONE = {
    "Finished in state Completed()": "done",
    "Finished in state Cached(type=COMPLETED)": "was made before and is read from the cache",
}


def _named(record: logging.LogRecord) -> bool:
    """Say which step or run is done; what the engine says otherwise stays as it is."""
    said = _DONE.get(str(record.msg))
    name = getattr(record, "task_run_name", None) or getattr(record, "flow_run_name", None)
    if said is not None and name is not None:
        record.msg = f"{name}: {said}"
    return True


def name_steps() -> None:
    """Let the log of runs name steps, in this process. Called again it changes nothing."""
    for name in ("prefect.task_runs", "prefect.flow_runs"):
        logging.getLogger(name).addFilter(_named)
