"""Models of a small table, trained once a session, and what their releases say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.release.storing import read_release
from tasks.runtime.steps import inline
from tasks.tracking.reporting import keep_run, run_report
from tests.support.tables import Trained, table_of, train_on_table


@pytest.fixture(scope="session", params=["two", "three", "real"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(folder / "root"))
        patch.setenv("UNITBALL_LEDGER_MARK", str(folder / "marks"))
        config, run = train_on_table(folder, request.param)
        report = run_report(config, run)
        with inline():
            keep_run(config, run)
        assert report.model is not None
        (references,) = run.models.values()
        yield Trained(
            root=folder / "root",
            label=request.param,
            pipeline=report.model.pipeline,
            classes=run.dataset.classes,
            path=[read_release(reference) for reference in references],
            rows=table_of(request.param, 300, seed=9).drop(columns="outcome"),
            run_key=run.result.run_key,
            name="visits.unitball",
        )
