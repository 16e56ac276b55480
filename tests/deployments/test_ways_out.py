"""Messages whose way out leads out: full and read-only disks, quoted words, a scheduler that comes later."""

from __future__ import annotations

import errno
import os
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.cli.entry_point import FAILED, explain
from storage.columns.declarations import declared_texts
from storage.errors import InputError
from tasks import releases
from tasks.host import cluster, engine
from tasks.host.cluster import NoSchedulerError, await_scheduler
from tasks.release.metrics import Evaluation

Disk = namedtuple("Disk", "total used free")


@pytest.mark.parametrize(("number", "word"), [(errno.EROFS, "--root"), (errno.ENOSPC, "free")])
def test_a_disk_that_takes_nothing_is_named(number: int, word: str) -> None:
    code, line = explain(OSError(number, os.strerror(number), "/mnt/root/ledger.sqlite"))
    assert code == FAILED
    assert "/mnt/root/ledger.sqlite" in line
    assert word in line
    assert "OSError" not in line


def test_an_engine_that_a_full_disk_ends_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process: Any = SimpleNamespace(logged=list, log=tmp_path / "engine.log")
    cut_off: Any = SimpleNamespace(logged=lambda: ['  File "alembic/runtime/environ'], log=tmp_path / "engine.log")
    monkeypatch.setattr("shutil.disk_usage", lambda place: Disk(2**30, 2**30, 0))
    assert all("free some" in engine._reason(one) for one in (process, cut_off))
    monkeypatch.setattr("shutil.disk_usage", lambda place: Disk(2**30, 0, 2**30))
    assert "free some" not in engine._reason(process)


@pytest.mark.parametrize(
    ("values", "words"), [([{"early": "<30"}], "the code first"), ([[">30"]], "the code first"), ([False], '"no"')]
)
def test_what_is_declared_wrongly_is_not_told_to_be_quoted_alone(values: list[Any], words: str) -> None:
    with pytest.raises(InputError) as refused:
        declared_texts("schema.yaml, column y: classes", values)
    assert words in str(refused.value)


def test_a_worker_waits_for_its_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended where its scheduler was not there yet; what is wrong with an address still ends it."""
    answers: list[Exception | None] = [NoSchedulerError("none"), NoSchedulerError("none"), None]
    said = []

    def asked(address: str) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    monkeypatch.setattr(cluster, "require_scheduler", asked)
    monkeypatch.setattr(cluster, "_BETWEEN_SECONDS", 0.0)
    await_scheduler("tls://127.0.0.1:8786", waiting=lambda: said.append("waits"))
    assert said == ["waits"]
    assert answers == []
    answers.append(InputError("tcp"))
    with pytest.raises(InputError, match="tcp"):
        await_scheduler("tcp://127.0.0.1:8786", waiting=lambda: said.append("waits"))


def test_the_log_names_charge_and_accuracy() -> None:
    assert releases._spending({"spent_before": 0.5, "spent_after": 1.25}) == ": epsilon 0.5 to 1.25 at the cap's delta"
    assert releases._spending({}) == ""
    evaluation = Evaluation.model_validate({"metrics": {"accuracy": 0.912}})
    assert releases._measured(evaluation) == "accuracy 0.912"
    assert releases._measured(Evaluation()) == "nothing that can be measured"
