"""Two ways to say a thing: neither wins quietly. What is said twice, or of nothing there is, is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

ROWS = "1 1:0.5 2:0.1\n-1 1:0.1 2:0.2\n" * 20
PLAN = ("train", "--epsilon", "1", "--plan")
ZEROS = "0" * 64

PAIRS: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (
        ("ingest", "mine", "--public", "--format", "libsvm", "--path", "ROWS", "--party", "a=ROWS"),
        ("--path", "--party"),
    ),
    (("ingest", "mine", "more", "--public", "--format", "libsvm", "--path", "ROWS"), ("extra argument", "more")),
    (("train", "--epsilon", "1", "more"), ("extra argument", "more")),
    ((*PLAN, "--explain"), ("--plan", "--explain")),
    ((*PLAN, "--dask", "local"), ("--plan", "--dask")),
    (("train", "--epsilon", "1", "--explain", "--dask", "local"), ("--explain", "--dask")),
    ((*PLAN, "--epsilon", "2"), ("--epsilon", "twice")),
    ((*PLAN, "--roc", "--no-evaluation"), ("--roc", "--no-evaluation")),
    ((*PLAN, "--evaluation", "--no-evaluation"), ("--evaluation", "twice")),
    ((*PLAN, "--parties", "3", "--sizes", "500,500"), ("--parties 3", "--sizes")),
    ((*PLAN, "--partition", "even", "--sizes", "500,500"), ("even", "--sizes")),
    ((*PLAN, "--partition", "by-label", "--rows-per-party", "20"), ("by-label", "--rows-per-party")),
    ((*PLAN, "--deadline-miss", "1e-3"), ("--deadline-miss", "--deadline")),
    ((*PLAN, "--algorithm", "dppca-svm", "--dimension", "5", "--param", "components=7"), ("--dimension", "components")),
    (
        (*PLAN, "--algorithm", "noisy-gd", "--class-weight", "balanced", "--param", "class_weight=balanced"),
        ("--class-weight", "--param"),
    ),
    ((*PLAN, "--algorithm", "noisy-gd", "--trainer", "noisy-gd"), ("--trainer", "--algorithm")),
    (("schedule", "digits", "--nightly", "--cron", "", "--epsilon", "1"), ("--nightly", "--cron")),
    (("schedule", "digits", "--remove", "--epsilon", "1"), ("--remove", "--epsilon")),
    (("schedule", "digits", "--remove", "--promote"), ("--remove", "--promote")),
    (
        ("schedule", "digits", "--on-new-version", "--timezone", "Asia/Tokyo", "--epsilon", "1"),
        ("--timezone", "--cron"),
    ),
    (("serve", "--runner-only", "--prefect-port", "4300"), ("--runner-only", "--prefect-port")),
    (("serve", "--runner-only", "--mlflow-port", "4300"), ("--runner-only", "--mlflow-port")),
    (("serve", "--runner-only", "--database", "postgresql://h/x"), ("--runner-only", "--database")),
    (("serve", "--systemd-unit", "--runs", "3"), ("--systemd-unit", "--runs")),
    (("budget", "--verify", "--out", "x.png"), ("--verify", "--out")),
    (("budget", "digits", "--verify", "--algorithm", "noisy-gd"), ("--verify", "--algorithm")),
    (("budget", "digits", "--reason", "none"), ("--reason", "--raise-epsilon-cap")),
    (("budget", "--algorithm", "noisy-gd"), ("--algorithm", "data set")),
    (("budget", "digits", "--out", "x.png", "--delta", "1e-6"), ("--out", "--delta")),
    (("algorithms", "--markdown", "--kind", "systems"), ("--markdown", "--kind")),
    (("algorithms", "--markdown", "--proved"), ("--markdown", "--proved")),
    (("algorithms", "--markdown", "--json"), ("--markdown", "--json")),
    (("reproduce", "wang2024-fig3", "--list"), ("--list", "wang2024-fig3")),
    (("reproduce", "--list", "--scale", "full"), ("--list", "--scale")),
    (("audit", "--all", "--kind", "systems"), ("--all", "--kind")),
    (("audit", "noisy-gd", "--chain", "--kind", "systems"), ("--chain", "--kind")),
    (("audit", "noisy-gd", "--out", "x.png"), ("--out", "--membership")),
    (("audit", "noisy-gd", "--quick", "--trials", "100"), ("--quick", "--trials")),
    (("audit", "noisy-gd", "--all"), ("--all",)),
    (
        ("schema", "draft", "TABLE", "-o", "NEW", "--numeric", "a", "--categories", "a"),
        ("'a'", "--numeric", "--categories"),
    ),
    (("schema", "draft", "TABLE", "-o", "NEW", "--range-delta", "1e-3"), ("--range-delta", "--range-epsilon")),
    (("schema", "draft", "TABLE", "-o", "NEW", "--range-fallback", "0,1"), ("--range-fallback", "--range-epsilon")),
    (("schema", "draft", "TABLE", "-o", "NEW", "--account", "clinic"), ("--account", "--range-epsilon")),
    (("sweep", "SWEEP"), ("epsilon", "set", "grid")),
    (
        ("federate", "--roster", "ROSTER", "--epsilon", "1", "--measure-on", "digits", "--no-evaluation"),
        ("--measure-on", "--no-evaluation"),
    ),
]


class _BegunError(BaseException):
    """Something is begun that had to be refused."""


def _no_engine(*_: object, **__: object) -> None:
    raise _BegunError


@pytest.mark.parametrize(("given", "words"), PAIRS, ids=lambda value: " ".join(value)[:60])
def test_neither_of_two_wins_quietly(
    given: tuple[str, ...],
    words: tuple[str, ...],
    commands: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr("tasks.host.engine.prepare_engine", _no_engine)
    monkeypatch.setattr("deployments.serving.run", _no_engine)
    monkeypatch.setattr("tasks.auditing.subjects.audit_all", _no_engine)
    files = {
        "ROWS": ROWS,
        "TABLE": "a,b,y\n1,2,u\n2,3,v\n",
        "SWEEP": "name: a\nset: {dataset: digits, epsilon: 2}\ngrid: {epsilon: [1]}\n",
        "ROSTER": f"parties: {{a: '{ZEROS}', b: '{ZEROS}'}}\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    arguments = list(given)
    for name in (*files, "NEW"):
        arguments = [one.replace(name, str(tmp_path / name)) for one in arguments]
    commands(*arguments).refused(2, *words)
    assert not (tmp_path / "NEW").exists()


def test_an_option_wins_over_the_environment(commands: CommandLine, tmp_path: Path) -> None:
    """As everywhere on a command line; the root that was taken is said below each answer."""
    other = tmp_path / "other"
    assert f"root: {other}" in commands("schedules", "--root", other).out
