"""The command line: what it prints, its exit codes, and one clear line for everything that is wrong."""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prefect.exceptions import PrefectHTTPStatusError

from deployments.cli import explaining, training
from deployments.cli.entry_point import app, import_all
from deployments.cli.services import _lines
from flows import federated_training
from storage.layout import Layout
from storage.secrets import environment_name
from tasks.accounts.ledger import open_ledger
from tasks.accounts.reports import PartyBudget
from tasks.datasets import registration
from tasks.planning.configuration import SecureSettings, TrainingConfig
from tasks.preparation.tuning import Choice
from tasks.release import prices
from tasks.runtime import standing
from tests.support.called import runs_called
from tests.support.command_line import CommandLine, Outcome, run_command
from tests.support.data import files_of, idx_bytes, temporaries
from tests.support.private_rows import ingestion, write_rows

KEYS = {
    "algorithm",
    "dataset",
    "proved",
    "claim",
    "trust",
    "epsilon_spent",
    "delta_spent",
    "accuracy",
    "metrics",
    "seconds",
    "cached",
    "mlflow_run_id",
}
COMMANDS = ("datasets", "ingest", "algorithms", "train", "compare", "budget", "results")


@pytest.fixture(scope="module")
def shared_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a root that several tests read and add runs to."""
    root = tmp_path_factory.mktemp("shared_root") / "root"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(root))
        yield root


@pytest.fixture
def shared(
    shared_root: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[CommandLine]:
    monkeypatch.setenv("UNITBALL_ROOT", str(shared_root))
    with runs_called():
        yield CommandLine(shared_root, capfd)


DIGITS = ("--dataset", "digits", "--parties", 3, "--rows-per-party", 300, "--dimension", 6)


def charges_of(commands: CommandLine, dataset: str) -> list[tuple[str, str, bool]]:
    report = commands.succeeds("budget", dataset)
    return [
        (party["party"], charge["key"], charge["recharge"])
        for party in report["parties"]
        for charge in party["charges"]
    ]


def nothing_kept(root: Path) -> bool:
    """Whether no rows, releases, charges or half-written files are there."""
    layout = Layout(root)
    return (
        not temporaries(root)
        and not list(layout.datasets.iterdir())
        and not list(layout.parties.iterdir())
        and not list(layout.releases.iterdir())
        and not [account for account in open_ledger().accounts() if open_ledger().charges(account.name)]
    )


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_json_of_a_proved_run(shared: CommandLine) -> None:
    outcome = shared("train", *DIGITS, "--algorithm", "noisy-gd", "--epsilon", 1, "--json")
    assert outcome.code == 0, outcome
    result = json.loads(outcome.out)
    assert result.keys() >= KEYS
    assert (result["algorithm"], result["dataset"], result["trust"]) == ("noisy-gd", "digits", "central")
    assert result["proved"]["epsilon"] == result["epsilon_spent"]
    assert 0.999 < result["epsilon_spent"] <= 1
    assert result["delta_spent"] == 1e-5
    assert result["proved"]["neighbours"] == "replace-one"
    assert result["proved"]["numerics"] == "exact"
    assert result["metrics"]["accuracy"] == result["accuracy"] > 0.5
    assert result["metrics"].keys() >= {"accuracy", "precision", "recall", "f1", "mcc", "auc"}
    assert result["seconds"] > 0
    assert result["cached"] is False
    assert len(result["mlflow_run_id"]) == 32
    assert result["measured_on"] == "test rows"


def test_the_same_words_again_are_served_from_the_cache_and_charge_nothing(shared: CommandLine) -> None:
    arguments = (*DIGITS, "--algorithm", "noisy-gd", "--epsilon", 1)
    first = shared.trained(*arguments)
    before = charges_of(shared, "digits")
    second = shared.trained(*arguments)
    assert second["cached"] is True
    assert charges_of(shared, "digits") == before
    changing = {"cached", "seconds", "prefect_flow_run_id", "releasing_seconds"}
    assert {k: v for k, v in first.items() if k not in changing} == {
        k: v for k, v in second.items() if k not in changing
    }
    timed = shared.succeeds("results", f"SELECT seconds FROM runs WHERE run_key = '{first['run_key']}'")["rows"]
    assert timed != [{"seconds": second["seconds"]}], "the time of a run is that of the run that computed it"


def test_a_deleted_release_is_made_again_with_equal_bytes_and_no_new_charge(shared: CommandLine) -> None:
    arguments = (*DIGITS, "--algorithm", "noisy-gd", "--epsilon", 1)
    first = shared.trained(*arguments)
    before = charges_of(shared, "digits")
    for key in first["releases"]:
        folder = Layout(shared.root).release(key)
        kept = files_of(folder)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        again = shared.trained(*arguments)
        assert again["cached"] is False
        assert files_of(folder) == kept
        assert again["metrics"] == first["metrics"]
        assert again["mlflow_run_id"] == first["mlflow_run_id"]
    assert charges_of(shared, "digits") == before


def test_a_damaged_release_is_named_and_nothing_is_built_on_it(shared: CommandLine) -> None:
    arguments = (*DIGITS, "--algorithm", "noisy-gd", "--epsilon", 1)
    arrays = Layout(shared.root).release(shared.trained(*arguments)["releases"][0]) / "arrays.npz"
    sound = arrays.read_bytes()
    arrays.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    shared("train", *arguments).refused(1, str(arrays), "damaged", "remove it")
    arrays.write_bytes(sound)
    assert shared.trained(*arguments)["cached"] is True


def test_published_and_non_private_runs_say_that_nothing_is_proved(shared: CommandLine) -> None:
    published = shared.trained(*DIGITS, "--algorithm", "fed-dpdr-dpml-published", "--epsilon", 1)
    assert published["proved"] is None
    assert published["epsilon_spent"] is None
    assert published["delta_spent"] is None
    assert published["claim"]["flaw"]
    assert published["claim"]["epsilon"] == 1
    assert published["sound_counterpart"] == "fed-dpdr-dpml"
    # Not needed where no noise is drawn.
    exact = shared.trained(*DIGITS, "--algorithm", "non-private")
    assert exact["proved"] is None
    assert exact["claim"] is None
    assert exact["accuracy"] > 0.6


def test_a_table_for_people(shared: CommandLine) -> None:
    outcome = shared(
        "compare", "--dataset", "digits", "--parties", 2, "--algorithms", "non-private,fed-dpdr-dpml-published"
    )
    assert outcome.code == 0, outcome
    for arguments in ("algorithm", "trust", "proved", "claim", "ε spent", "δ spent", "accuracy", "seconds"):
        assert arguments in outcome.out
    assert "fed-dpdr-dpml-published" in outcome.out
    assert "none" in outcome.out
    assert "Sound counterpart: fed-dpdr-dpml" in outcome.out
    for arguments in ("balanced", "Guessing the most frequent class gives an accuracy of 0."):
        assert arguments in outcome.out
    *_, look, last = outcome.out.splitlines()
    assert look.endswith("unitball serve")
    assert last == f"root: {shared.root}"


def test_compare_names_the_algorithm_that_takes_no_weights(shared: CommandLine) -> None:
    asked = ("compare", "--class-weight", "balanced", "--algorithms")
    refused = shared(*asked, "noisy-gd,fed-dpdr-dpml-published")
    refused.refused(2, "fed-dpdr-dpml-published: ", "class_weight", "--algorithms")
    shared(*asked, "fed-dpdr-dpml").refused(2, "unitball: class_weight is 'balanced'")


def test_compare_prints_one_object(shared: CommandLine) -> None:
    results = shared.succeeds("compare", "--parties", 2, "--algorithms", "non-private")["results"]
    assert [result["algorithm"] for result in results] == ["non-private"]


def test_training_accuracy_is_said_to_be_one(shared: CommandLine) -> None:
    result = shared.trained(*DIGITS, "--algorithm", "non-private", "--test-fraction", 0)
    assert result["measured_on"] == "training rows"
    assert result["metrics"]["train_accuracy"] == result["accuracy"]
    assert "(training rows)" in shared("train", *DIGITS, "--algorithm", "non-private", "--test-fraction", 0).out


def test_budget_of_a_public_set_is_what_its_runs_would_have_cost(shared: CommandLine) -> None:
    shared.trained("--dataset", "iris", "--algorithm", "noisy-gd", "--epsilon", 0.5, "--parties", 2)
    report = shared.succeeds("budget", "iris")
    assert report["cap"] is None
    assert [party["party"] for party in report["parties"]] == ["0", "1"]
    for party in report["parties"]:
        assert party.keys() == {"party", "epsilon_spent", "delta_spent", "charges"}
        assert 0.499 < party["epsilon_spent"] <= 0.5
        assert party["delta_spent"] == 1e-5
        (charge,) = party["charges"]
        assert charge["label"] == "model of all parties"
    shared.trained("--dataset", "iris", "--algorithm", "noisy-gd", "--epsilon", 0.5, "--parties", 2, "--replicate", 1)
    more = shared.succeeds("budget", "iris")["parties"]
    assert all(0.5 < party["epsilon_spent"] <= 1.0 for party in more)
    assert "no cap" in shared("budget", "iris").out


def test_parties_that_stand_alike_are_one_line_and_test_rows_are_their_own() -> None:
    charge: Any = {}

    def party(name: str, spent: float, charges: int = 1) -> PartyBudget:
        return {"party": name, "epsilon_spent": spent, "delta_spent": 1e-5, "charges": [charge] * charges}

    six = [party(str(number), 1.0) for number in range(6)]
    assert list(_lines(six)) == [("0 and 5 others with equal spending", "1", "1e-05", "1")]
    others = [party("6", 2.0), party("7", 1.0, charges=3), party("test", 1.0)]
    assert list(_lines([*six, *others])) == [
        ("0 and 6 others with equal spending", "1", "1e-05", "1 to 3"),
        ("6", "2", "1e-05", "1"),
        ("held-out test rows", "1", "1e-05", "1"),
    ]


def test_results_answer_sql(shared: CommandLine) -> None:
    shared.trained(*DIGITS, "--algorithm", "noisy-gd", "--epsilon", 1)
    rows = shared.succeeds(
        "results",
        "SELECT r.algorithm, r.accuracy, m.value FROM runs r JOIN metrics m USING (run_key) "
        "WHERE r.algorithm = 'noisy-gd' AND r.dataset = 'digits' AND m.party = 'all' AND m.metric = 'accuracy'",
    )["rows"]
    assert rows
    assert all(row["accuracy"] == row["value"] for row in rows)
    joined = (
        "SELECT count(*) AS n FROM charges c JOIN releases r USING (key) WHERE r.reads_rows AND r.losses = c.losses"
    )
    charged = shared.succeeds("results", "SELECT count(*) AS n FROM charges")["rows"]
    assert shared.succeeds("results", joined)["rows"] == charged
    assert "noisy-gd" in shared("results").out
    figure, several = shared.root / "run.png", shared.root / "runs.png"
    shared.succeeds("results", "SELECT * FROM runs WHERE algorithm = 'noisy-gd' LIMIT 1", "--plot", figure)
    shared.succeeds("results", "--plot", several)
    assert figure.read_bytes()[:4] == several.read_bytes()[:4] == b"\x89PNG"
    shared("results", "--plot", figure).refused(2, "run.png exists")
    shared("results", "SELECT algorithm FROM runs", "--plot", shared.root / "no.png").refused(
        2, "the columns algorithm, "
    )
    # Numbers of one data set alone: the other had a panel without a line in it.
    asked = (
        "SELECT dataset, epsilon::DOUBLE AS epsilon, accuracy::DOUBLE AS accuracy FROM "
        "(VALUES ('one', 0.5, 0.7), ('one', 1.0, 0.8), ('two', 1.0, NULL)) t(dataset, epsilon, accuracy)"
    )
    part = shared("results", asked, "--plot", shared.root / "part.png")
    assert "not drawn, because no run has a measured accuracy: two" in part.out
    alone = shared("results", asked.replace(", ('two', 1.0, NULL)", ""), "--plot", shared.root / "alone.png")
    assert "not drawn" not in alone.out
    assert (shared.root / "part.png").read_bytes() == (shared.root / "alone.png").read_bytes()
    up = shared("results", "SELECT 0.99992641::DOUBLE AS epsilon_spent, 0.88882641::DOUBLE AS accuracy").out
    assert "0.999927" in up, "what is spent is rounded up"
    assert "0.888826" in up
    wide = shared("results", "SELECT * FROM runs").out
    assert "row 1 of" in wide, "what is too wide for a table is printed record after record"
    assert "config_epsilon" in wide
    assert "no rows" in shared("results", "SELECT * FROM runs WHERE algorithm = 'absent'").out
    shared("results", "SELECT nothing FROM runs").refused(
        2, "nothing", "the views are: runs, metrics, releases, charges"
    )
    shared("results", "DROP TABLE runs").refused(2, "one SELECT")
    rows = shared.root / "rows.csv"
    shared.succeeds("results", "SELECT * FROM (VALUES ('a, b', 1.5), (NULL, 2)) t(name, value)", "--csv", rows)
    assert rows.read_bytes().decode() == '"name","value"\n"a, b",1.5\n,2.0\n'
    shared("results", "--csv", rows).refused(2, "rows.csv exists")
    empty = shared.root / "empty.csv"
    shared.succeeds("results", "SELECT algorithm, epsilon_spent FROM runs WHERE false", "--csv", empty)
    assert empty.read_bytes() == b'"algorithm","epsilon_spent"\n'


def test_equal_results_in_two_roots_with_a_seed(
    called: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name in ("one", "two"):
        root = tmp_path / name
        monkeypatch.setenv("UNITBALL_ROOT", str(root))
        result = called.trained(*DIGITS, "--algorithm", "fed-dpdr-dpml", "--epsilon", 3, "--seed", 7)
        arrays = {key: (Layout(root).release(key) / "arrays.npz").read_bytes() for key in result["releases"]}
        found.append((result["run_key"], result["metrics"], arrays))
    assert found[0] == found[1]


# ── every option reaches the run ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--dataset", "wine"], "dataset", "wine"),
        (["--algorithm", "dpml"], "algorithm", "dpml"),
        (["--epsilon", "0.3"], "epsilon", 0.3),
        (["--delta", "1e-7"], "delta", 1e-7),
        (["--parties", "7"], "parties", 7),
        (["--dimension", "3"], "dimension", 3),
        (["--rows-per-party", "11"], "rows_per_party", 11),
        (["--sizes", "50,100,200"], "sizes", (50, 100, 200)),
        (["--sizes", "50,100,200"], "partition", "sized"),
        (["--trust", "central"], "trust", "central"),
        (["--trust", "secagg", "--dropouts", "1"], "secure", SecureSettings(dropouts=1)),
        (["--trust", "secagg", "--colluders", "1"], "secure", SecureSettings(colluders=1)),
        (["--trust", "secagg", "--absent", "2:mask,1:share"], "secure", SecureSettings(absent=("2:mask", "1:share"))),
        (["--trust", "secagg", "--consistent-survivors"], "secure", SecureSettings(consistent_survivors=True)),
        (["--neighbours", "replace-special"], "neighbours", "replace-special"),
        (["--partition", "dirichlet"], "partition", "dirichlet"),
        (["--normalisation", "clip"], "normalisation", "clip"),
        (["--test-fraction", "0"], "test_fraction", 0),
        (["--partition-seed", "5"], "partition_seed", 5),
        (["--seed", "9"], "seed", 9),
        (["--replicate", "4"], "replicate", 4),
        (["--no-evaluation"], "evaluation", False),
        (["--roc"], "roc", True),
        (["--mirror"], "mirror", True),
        (["--no-mirror"], "mirror", False),
        (["--roc", "--aim", "recall=0.8"], "aim", "recall=0.8"),
        (["--deadline", "30"], "deadline", 30.0),
        (["--deadline", "9", "--deadline-miss", "1e-8"], "deadline_miss", 1e-8),
        (["--class-weight", "honest=0.04"], "class_weight", {"honest": 0.04}),
        (["--class-weight", "balanced"], "class_weight", "balanced"),
        (["--class-weight", "balanced=0.5"], "class_weight", {"balanced": 0.5}),
        (["--tune", "clip=0.5,1", "--tune", "loss=huber"], "tune", {"clip": (0.5, 1), "loss": ("huber",)}),
        (["--projection", "pca"], "projection", "pca"),
        (["--trainer", "noisy-gd"], "trainer", "noisy-gd"),
        (["--trainer", "noisy-gd"], "algorithm", None),
        (["--aggregation", "weighted-mean"], "aggregation", "weighted-mean"),
        (
            ["--param", "trainer.steps=5", "--param", "loss=huber", "--param", "a=null"],
            "parameters",
            {"trainer.steps": 5, "loss": "huber", "a": None},
        ),
    ],
)
def test_every_option_reaches_the_run(
    arguments: list[str], field: str, value: object, commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[TrainingConfig] = []

    def run(configs: list[TrainingConfig], title: str, *, yes: bool, dask: str | None) -> Any:
        taken.extend(configs)
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "_run", run)
    assert commands("train", *arguments).code != 0
    assert getattr(taken[0], field) == value
    defaults = TrainingConfig()
    changed = {name for name in TrainingConfig.model_fields if getattr(taken[0], name) != getattr(defaults, name)}
    assert changed - {field} <= {"partition", "sizes", "parties", "trust", "trainer", "algorithm", "roc", "deadline"}


def test_a_plan_says_what_a_run_would_ask_and_runs_nothing(called: CommandLine) -> None:
    asked = ("--dataset", "digits", "--algorithm", "noisy-gd", "--epsilon", "0.37", "--plan")
    called.trained("--dataset", "digits", "--algorithm", "noisy-gd", "--epsilon", "1")
    before = charges_of(called, "digits")
    expected = called.succeeds("train", *asked)
    assert expected["rows"] > 0
    assert expected["price"] is None
    assert charges_of(called, "digits") == before
    shown = called("train", *asked)
    assert shown.code == 0
    assert "epsilon 0.37" in shown.out


@pytest.mark.parametrize(
    ("streamed", "people", "said"),
    [
        (0.0, True, "rows kept in memory"),
        (1.0, True, "rows read from disk"),
        (0.7, False, "rows, 30% of them kept in memory"),
        (0.7, True, "rows, at least 30% of them kept in memory"),
    ],
)
def test_a_plan_says_where_rows_are_between_passes(streamed: float, people: bool, said: str) -> None:
    assert explaining._kept(streamed, people) == said


def test_every_option_of_train_is_tested_or_named_elsewhere() -> None:
    """A new option must not go untested: this list is to be extended together with the tests."""
    fields = {*TrainingConfig.model_fields, *SecureSettings.model_fields} - {"parameters", "secure"}
    tested = {"path", "format", "public", "root", "json", "param", "explain", "plan", "yes", "dask", "on"} | fields
    (command,) = [one for one in app.registered_commands if one.callback is training.train]
    assert command.callback is not None
    assert set(command.callback.__annotations__) - {"return"} <= tested


def test_every_command_has_help_with_an_example_json_and_root(commands: CommandLine) -> None:
    import_all()
    known = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    assert set(COMMANDS) <= set(known)
    for name in known:
        outcome = commands(name, "--help")
        assert outcome.code == 0, name
        text = " ".join(outcome.out.split())
        full = commands(name, "--help-all").out
        assert f"Example: unitball {name}" in text, name
        assert "--root" in text, name
        assert "UNITBALL_ROOT" in full, name
        # Services run until Ctrl-C and have no result.
        assert ("--json" in text) != (name == "serve"), name


def test_without_a_command_the_help_is_shown(commands: CommandLine) -> None:
    outcome = commands()
    assert outcome.code == 2
    assert "Commands" in outcome.out + outcome.err


def test_the_version_is_that_of_the_installed_distribution(commands: CommandLine) -> None:
    shown = commands("--version")
    assert (shown.code, shown.out, shown.err) == (0, f"unitball {importlib.metadata.version('unitball')}\n", "")


def test_algorithms_are_listed_with_claim_and_proof(commands: CommandLine) -> None:
    listed = {(entry["kind"], entry["name"]): entry for entry in commands.succeeds("algorithms")["algorithms"]}
    published = listed["systems", "fed-dpdr-dpml-published"]
    assert published["proved"] is None
    assert published["claim"]
    assert published["flaw"]
    assert published["sound_counterpart"] == "fed-dpdr-dpml"
    assert "central" in listed["systems", "noisy-gd"]["trust"]
    assert all(entry["source"] or entry["kind"] == "aggregators" for entry in listed.values())
    proved = commands.succeeds("algorithms", "--proved", "--kind", "systems")["algorithms"]
    assert {entry["name"] for entry in proved} >= {"noisy-gd", "dpml", "dpdr-dpml", "fed-dpdr-dpml"}
    assert all("published" not in entry["name"] and entry["name"] != "non-private" for entry in proved)
    table = commands("algorithms").out
    for arguments in ("name", "kind", "trust", "proved", "claim", "source"):
        assert arguments in table


def test_datasets_are_listed_and_public_ones_answer_sql(commands: CommandLine) -> None:
    names = [entry["name"] for entry in commands.succeeds("datasets")["datasets"]]
    assert "digits" in names
    (digits,) = commands.succeeds("datasets", "digits")["datasets"]
    assert (digits["rows"], digits["dimension"], digits["classes"], digits["visibility"]) == (1797, 64, 10, "public")
    rows = commands.succeeds("datasets", "digits", "--sql", "SELECT count(*) AS n FROM train")["rows"]
    assert rows == [{"n": 1797}]


# ── ingestion on the way ─────────────────────────────────────────────────────────────────────────────────────────────


def test_explain_says_what_would_run_and_why_and_runs_nothing(called: CommandLine) -> None:
    def releases() -> set[Path]:
        return set((called.root / "releases").glob("*"))

    before = releases()
    arguments = ("train", "--dataset", "digits", "--epsilon", 1, "--replicate", 77, "--explain")
    explained = called.succeeds(*arguments)
    assert explained["system"] == "unitball"
    assert "8 x 8" in explained["reasons"][0]
    assert explained["parts"]["projection"]["name"] == "public-whitening"
    said = called(*arguments)
    assert said.code == 0
    assert all(reason in said.out for reason in explained["reasons"])
    assert releases() == before


def test_train_on_a_file_ingested_on_the_way(called: CommandLine, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.txt", 300)
    arguments = ("--dataset", "mine", "--path", rows.path, "--format", "libsvm", "--public", "--parties", 3)
    result = called.trained(*arguments, "--algorithm", "non-private", "--dimension", 4)
    assert result["accuracy"] > 0.85
    assert called.trained(*arguments, "--algorithm", "non-private", "--dimension", 4)["cached"] is True
    (listed,) = called.succeeds("datasets", "mine")["datasets"]
    assert (listed["rows"], listed["visibility"], listed["versions"]) == (300, "public", 1)


def test_ingesting_on_the_way_is_private_unless_said_otherwise(commands: CommandLine, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.txt", 30)
    commands("train", "--dataset", "mine", "--path", rows.path, "--format", "libsvm", "--epsilon", 1).refused(
        3, "mine", "private", "--epsilon-cap"
    )
    assert nothing_kept(commands.root)
    commands("train", "--dataset", "mine", "--public").refused(2, "--path")


# ── private rows ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_private_rows_from_ingestion_to_the_end_of_the_budget(called: CommandLine, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.txt", 500)
    reference = called.succeeds(*ingestion(rows, epsilon=2.0, delta=1e-4))
    assert reference["visibility"] == "private"
    arguments = (
        "--dataset",
        "clinic",
        "--algorithm",
        "noisy-gd",
        "--parties",
        4,
        "--test-fraction",
        0.3,
        "--epsilon",
        1,
    )

    result = called.trained(*arguments, "--no-evaluation")
    assert result["accuracy"] is None
    assert result["metrics"] == {}
    assert result["seconds"] is None
    assert result["releasing_seconds"] is None
    assert 0.999 < result["epsilon_spent"] <= 1
    report = called.succeeds("budget", "clinic")
    assert report["cap"] == {"epsilon": 2.0, "delta": 1e-4}
    assert [party["party"] for party in report["parties"]] == ["0", "1", "2", "3"]
    assert all(party["delta_spent"] == 1e-4 for party in report["parties"])
    assert all(0 < party["epsilon_spent"] < 1 for party in report["parties"]), "at the cap's delta, which is larger"

    # A measured model: it is the same release, and the held-out rows pay for themselves.
    evaluated = called.trained(*arguments, "--roc", "--yes")
    assert evaluated["measured_on"] == "held-out rows, noisy"
    assert 0.5 < evaluated["accuracy"] <= 1
    assert evaluated["metrics"].keys() >= {"accuracy", "precision", "recall", "f1", "mcc", "auc"}
    assert evaluated["epsilon_spent"] <= 1
    assert evaluated["seconds"] is None
    report = called.succeeds("budget", "clinic")
    assert [len(party["charges"]) for party in report["parties"]] == [1, 1, 1, 1, 2]
    assert report["parties"][4]["party"] == "test"

    spent = []
    for replicate in range(1, 12):
        outcome = called("train", *arguments, "--replicate", replicate, "--json")
        if outcome.code:
            break
        spent.append(outcome.json["epsilon_spent"])
    assert 2 <= len(spent) < 11
    kept = files_of(called.root / "releases")
    before = called.succeeds("budget", "clinic")
    outcome.refused(3, "cap of epsilon 2 at delta 0.0001", "remaining: one more run of noisy-gd of epsilon up to")
    assert files_of(called.root / "releases") == kept
    assert called.succeeds("budget", "clinic") == before
    assert before["epsilon_spent"] <= 2.0

    largest = float(outcome.err.split("of epsilon up to ")[1].split(" ")[0])
    fitting = (*arguments[:-1], largest, "--replicate", 99)
    assert called.trained(*fitting)["epsilon_spent"] <= largest
    assert called.succeeds("budget", "clinic")["epsilon_spent"] <= 2.0
    assert "remaining: one more run of unitball of epsilon up to" in called("budget", "clinic").out
    # What was paid for stays free.
    assert called.trained(*arguments, "--roc")["cached"] is True
    assert called.succeeds("budget", "clinic", "--verify") == {"dataset": "clinic", "verified": True, "problems": []}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--algorithm", "fed-dpdr-dpml-published", "--epsilon", "1"], ["not proved", "fed-dpdr-dpml"]),
        (["--algorithm", "non-private"], ["not proved"]),
        (["--algorithm", "noisy-gd", "--epsilon", "1", "--normalisation", "minmax"], ["minmax", "unit-norm"]),
        (["--algorithm", "noisy-gd", "--epsilon", "1", "--seed", "3"], ["seed"]),
        (["--algorithm", "fed-dpdr-dpml", "--epsilon", "1"], ["idealised", "--allow-idealised", "noisy-gd"]),
        (["--algorithm", "noisy-gd", "--epsilon", "1", "--delta", "0.1"], ["delta", "1/n"]),
        (["--algorithm", "noisy-gd", "--epsilon", "1", "--partition", "by-label"], ["by-label", "private"]),
    ],
)
def test_what_may_not_touch_private_rows_is_refused(
    arguments: list[str], named: list[str], called: CommandLine, tmp_path: Path
) -> None:
    called.succeeds(*ingestion(write_rows(tmp_path / "rows.txt", 200)))
    called("train", "--dataset", "clinic", "--parties", 2, *arguments).refused(3, *named)
    assert charges_of(called, "clinic") == []
    assert not list((called.root / "releases").iterdir())


def test_idealised_noise_on_the_owners_word(called: CommandLine, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.txt", 200)
    called.succeeds(*ingestion(rows), "--allow-idealised")
    result = called.trained("--dataset", "clinic", "--parties", 2, "--algorithm", "dpml", "--epsilon", 1)
    assert result["proved"]["numerics"] == "idealised"
    assert result["delta_spent"] == 0


def test_private_rows_do_not_come_back_as_public(commands: CommandLine, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.txt", 60)
    commands.succeeds(*ingestion(rows))
    for name in ("clinic", "open"):
        commands("ingest", name, "--format", "libsvm", "--path", rows.path, "--public").refused(3, "private")
    # Other labels and another order do not make them other rows.
    lines = rows.path.read_text().splitlines()
    other = tmp_path / "other.txt"
    other.write_text("\n".join(("-1" if line[0] == "+" else "+1") + line[2:] for line in reversed(lines)) + "\n")
    commands("ingest", "open", "--format", "libsvm", "--path", other, "--public").refused(3, "private")
    assert [entry["name"] for entry in commands.succeeds("datasets")["datasets"] if entry["visibility"] == "private"]


# ── bad arguments ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--epsilon", "0"], ["epsilon", "greater than 0"]),
        (["--epsilon", "-1"], ["epsilon", "greater than 0", "-1"]),
        (["--epsilon", "nan"], ["epsilon", "finite"]),
        (["--epsilon", "inf"], ["epsilon"]),
        (["--epsilon", "x"], ["--epsilon", "number"]),
        (["--epsilon", "1", "--delta", "1"], ["delta", "less than 1"]),
        (["--epsilon", "1", "--delta", "0"], ["no delta of 0", "--algorithm dpml"]),
        (["--epsilon", "1", "--dimension", "65"], ["65", "64"]),
        (["--epsilon", "1", "--algorithm", "dpdr-dpml", "--dimension", "65"], ["65", "64"]),
        (["--epsilon", "1", "--dimension", "0"], ["dimension"]),
        (["--epsilon", "1", "--algorithm", "noisy-dg"], ["noisy-dg", "nearest", "noisy-gd"]),
        (["--epsilon", "1", "--algorithm", "fed-dpdr-dplm"], ["nearest", "fed-dpdr-dpml"]),
        (["--epsilon", "1", "--trainer", "noisy-gradient"], ["noisy-gradient", "nearest", "noisy-gd"]),
        (["--epsilon", "1", "--projection", "cpa"], ["nearest", "pca"]),
        (["--epsilon", "1", "--aggregation", "weighted-mena", "--algorithm", "dpml"], ["nearest", "weighted-mean"]),
        (["--epsilon", "1", "--algorithm", "dpml", "--trainer", "noisy-gd"], ["--algorithm", "--trainer"]),
        (["--epsilon", "1", "--algorithm", "dpml", "--trust", "central"], ["dpml", "central", "local"]),
        (["--epsilon", "1", "--trust", "nobody"], ["trust", "nobody"]),
        (["--epsilon", "1", "--dataset", "digit"], ["digit", "ingest"]),
        (["--epsilon", "1", "--sizes", "10,x"], ["--sizes", "integer", "'x'"]),
        (["--epsilon", "1", "--sizes", "10,0"], ["sizes", "1"]),
        (["--epsilon", "1", "--sizes", "10,20", "--rows-per-party", "5"], ["--sizes", "--rows-per-party"]),
        # The default of --parties, so that it passed silently.
        (["--epsilon", "1", "--sizes", "10,20", "--parties", "5"], ["--parties 5", "--sizes of 2", "give 2"]),
        (["--epsilon", "1", "--parties", "0"], ["parties"]),
        (["--epsilon", "1", "--test-fraction", "1"], ["--test-fraction", "less than 1"]),
        (["--epsilon", "1", "--seed", "-1"], ["seed"]),
        (["--epsilon", "1", "--replicate", "-1"], ["--replicate"]),
        (["--epsilon", "1", "--param", "regularisation"], ["NAME=VALUE"]),
        (["--epsilon", "1", "--param", "clip=1", "--param", "clip=2"], ["clip", "twice"]),
        (
            ["--algorithm", "noisy-gd", "--epsilon", "1", "--param", "stepp_size=5"],
            ["stepp_size", "nearest", "trainer.step_size"],
        ),
        (["--nonsense"], ["--nonsense"]),
        (
            ["--epsilon=-1", "--delta=x", "--parties=0", "--algorithm=noisy-dg", "--sizes=1,y,z", "--param=clip"],
            ["--epsilon: ", "--delta: ", "--parties: ", "--algorithm: ", "'y'", "'z'", "--param 'clip'"],
        ),
    ],
)
def test_bad_arguments_are_told_at_once(arguments: list[str], named: list[str], commands: CommandLine) -> None:
    """No engine has to start for these: the fixture has none."""
    commands("train", *arguments).refused(2, *named)
    assert not list(Layout(commands.root).prepare().releases.iterdir())
    assert not [one for one in open_ledger().accounts() if open_ledger().charges(one.name)]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--algorithm", "noisy-gd", "--epsilon", "1", "--param", "trainer.clip=-1"], ["clip", "-1"]),
        (["--epsilon", "1", "--rows-per-party", "5000"], ["25000", "1438", "287"]),
        (["--epsilon", "1", "--sizes", "1000,1000"], ["2000", "1438"]),
        (["--epsilon", "1", "--parties", "2000"], ["2000", "1438"]),
        (["--epsilon", "1", "--partition", "evne"], ["evne", "even"]),
        (["--epsilon", "1", "--normalisation", "unit-nrom"], ["unit-nrom", "unit-norm"]),
        (["--epsilon", "1", "--test-fraction", "0.0001"], ["test fraction", "1797"]),
    ],
)
def test_what_does_not_fit_the_rows(arguments: list[str], named: list[str], shared: CommandLine) -> None:
    before = charges_of(shared, "digits")
    kept = sorted(path.name for path in (shared.root / "releases").iterdir())
    shared("train", *arguments).refused(2, *named)
    assert charges_of(shared, "digits") == before
    assert sorted(path.name for path in (shared.root / "releases").iterdir()) == kept
    assert not temporaries(shared.root)


def test_kernel_models_of_several_parties_have_no_mean(called: CommandLine) -> None:
    arguments = ["--dataset", "iris", "--algorithm", "wss2", "--trust", "local", "--parties", "2"]
    called("train", *arguments, "--param", "kernel=rbf").refused(2, "kernel-model", "kernel=linear", "--trust central")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["ingest"], ["name", "unitball ingest --help"]),
        (["budget", "nothere"], ["nothere", "ingest"]),
        (["datasets", "nothere"], ["nothere"]),
        (["datasets", "--sql", "SELECT 1"], ["unitball datasets digits --sql"]),
        (["algorithms", "--kind", "trainer"], ["trainer", "trainers"]),
        (["results", "SELECT * FROM read_csv('/etc/passwd')"], ["query"]),
        (["nonsense"], ["nonsense"]),
    ],
)
def test_other_commands_say_what_is_wrong(arguments: list[str], named: list[str], commands: CommandLine) -> None:
    commands(*arguments).refused(2, *named)


# ── bad input ────────────────────────────────────────────────────────────────────────────────────────────────────────


def text(*lines: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        path = folder / "rows.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        return ["--format", "libsvm", "--path", str(path)]

    return write


def idx(*, images: int = 12, cut: int = 0, labels: int = 12) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        for part in ("train", "t10k"):
            data = idx_bytes(np.arange(images * 4, dtype=np.uint8).reshape(images, 2, 2))
            (folder / f"{part}-images-idx3-ubyte").write_bytes(data[: len(data) - cut])
            (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(labels, dtype=np.uint8) % 3))
        return ["--format", "idx", "--path", str(folder)]

    return write


def damaged_parquet(folder: Path) -> list[str]:
    path = folder / "rows.parquet"
    pq.write_table(pa.table({"a": np.linspace(0, 1, 500), "label": ["x", "y"] * 250}), path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40] = b"\xff" * 40
    path.write_bytes(bytes(data[:-20]))
    return ["--format", "parquet", "--path", str(path)]


BAD_FILES = [
    (text("+1 1:0.5 2:nan", "-1 1:0.1"), ["line 1", "nan"]),
    (text("+1 1:0.5", "-1 1:inf"), ["line 2", "inf"]),
    (text("+1 1:0.5", "-1 1:1e39"), ["line 2", "finite"]),
    (text("+1 1:0.5", "+1 1:0.6"), ["one class"]),
    (text("+1 1:0.5", "-1 1:0.5 oops", "+1 1:0.4"), ["line 2", "oops"]),
    (text("+1 1:0.5", "-1 2:0.5 1:0.5"), ["line 2"]),
    (text("+1 0:0.5", "-1 1:0.5"), ["line 1"]),
    (text(), ["rows"]),
    (idx(cut=5), ["train-images-idx3-ubyte"]),
    (idx(labels=11), ["11", "12"]),
    (damaged_parquet, ["rows.parquet"]),
    (lambda folder: ["--format", "libsvm", "--path", str(folder / "missing")], ["missing"]),
    (lambda folder: ["--format", "lbsvm", "--path", str(folder)], ["lbsvm", "libsvm"]),
    (lambda folder: ["--path", str(folder)], ["--format"]),
]


@pytest.mark.parametrize("place", range(len(BAD_FILES)))
def test_bad_files_leave_nothing_behind(place: int, commands: CommandLine, tmp_path: Path) -> None:
    make, named = BAD_FILES[place]
    folder = tmp_path / "input"
    folder.mkdir()
    arguments = make(folder)
    for outcome in (
        commands("ingest", "mine", *arguments, "--public"),
        commands("train", "--dataset", "mine", *arguments, "--public", "--epsilon", 1),
    ):
        outcome.refused(2, *named)
        assert nothing_kept(commands.root)
        assert "mine" not in [entry["name"] for entry in commands.succeeds("datasets")["datasets"]]


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"--epsilon-cap": None}, 2, ["--epsilon-cap", "--delta-cap"]),
        ({"--epsilon-cap": "0"}, 2, ["epsilon"]),
        ({"--epsilon-cap": "nan"}, 2, ["epsilon"]),
        ({"--delta-cap": "1"}, 2, ["delta"]),
        ({"--delta-cap": "0.05"}, 3, ["0.05", "1/n"]),
        ({"--dimension": None}, 3, ["--dimension"]),
        ({"--classes": None}, 3, ["--classes"]),
        ({"--dimension": "3"}, 2, ["3"]),
        ({"--classes": "-1"}, 2, ["two"]),
        ({"--classes": "0,1"}, 2, ["line 1", "-1"]),
        ({"--normalisation": "minmax"}, 3, ["minmax", "private"]),
        ({"--normalisation": "unit-nrom"}, 2, ["unit-norm"]),
    ],
)
def test_what_is_declared_of_private_rows(
    changes: dict[str, str | None], code: int, named: list[str], commands: CommandLine, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "rows.txt", 40)
    options: dict[str, str | None] = {
        "--dimension": "6",
        "--classes": "-1,1",
        "--epsilon-cap": "1",
        "--delta-cap": "1e-5",
        **changes,
    }
    arguments = [f"{name}={value}" for name, value in options.items() if value is not None]
    commands("ingest", "clinic", "--format", "libsvm", "--path", rows.path, *arguments).refused(code, *named)
    assert nothing_kept(commands.root)
    # What was refused does not stand in the way of the public registration of the same rows.
    commands.succeeds("ingest", "clinic", "--format", "libsvm", "--path", rows.path, "--public")


def test_one_class_of_private_rows_is_not_told(commands: CommandLine, tmp_path: Path) -> None:
    """That all labels agree is something the rows say, and only of public ones is it shared."""
    path = tmp_path / "rows.txt"
    path.write_text("+1 1:0.5\n" * 20)
    declared = ["--dimension", 2, "--classes=-1,1", "--epsilon-cap", 1, "--delta-cap", 1e-5]
    commands.succeeds("ingest", "clinic", "--format", "libsvm", "--path", path, *declared)


def test_an_unwritable_root(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITBALL_ROOT", "")
    place = tmp_path / "file"
    place.write_text("a file, not a folder")
    commands = CommandLine(place, capfd)
    for arguments in (["budget", "digits"], ["train", "--epsilon", 1], ["ingest", "iris", "--public"]):
        commands(*arguments, "--root", place / "root").refused(2, str(place), "--root")
    if os.geteuid() != 0:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        commands("budget", "digits", "--root", closed / "root").refused(2, str(closed), "--root")


def secret_file(root: Path) -> Path:
    (found,) = Layout(root).parties.glob("all/secret.key")
    return found


def test_a_file_of_another_user(commands: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after one command under sudo: the file, why, and the way out."""

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(commands.root / "releases"))

    monkeypatch.setattr("tasks.experiments.results.query", denied)
    commands("results").refused(1, f"cannot open {commands.root / 'releases'}: Permission denied", "chown -R USER ROOT")


def test_secrets_that_are_missing_or_reachable(called: CommandLine, tmp_path: Path) -> None:
    called.succeeds(*ingestion(write_rows(tmp_path / "rows.txt", 200)))
    arguments = ("--dataset", "clinic", "--parties", 2, "--algorithm", "noisy-gd", "--epsilon", 1)
    result = called.trained(*arguments)
    charged = charges_of(called, "clinic")
    path = secret_file(called.root)
    assert path.stat().st_mode & 0o777 == 0o600

    path.chmod(0o644)
    called("train", *arguments, "--replicate", 1).refused(2, str(path), "0644", "chmod 600")
    assert charges_of(called, "clinic") == charged
    path.chmod(0o600)

    # A release that has to be drawn again is not drawn under another secret, and none is made in the lost one's place.
    for file in Layout(called.root).release(result["releases"][0]).iterdir():
        file.unlink()
    aside = path.rename(tmp_path / "kept")
    ended = called("train", *arguments)
    note, _, failure = ended.err.partition("\n")
    assert note.startswith("note: account clinic")
    Outcome(ended.code, ended.out, failure).refused(2, "secret", "all", "missing", "--replicate")
    assert not path.exists()
    assert charges_of(called, "clinic") == charged
    aside.rename(path)
    assert called.trained(*arguments)["releases"] == result["releases"]
    assert charges_of(called, "clinic") == charged


def test_a_secret_that_is_no_secret(commands: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(environment_name("all"), "not hexadecimal")
    rows = write_rows(tmp_path / "rows.txt", 30)
    commands.succeeds(*ingestion(rows))
    from flows.federated_training import chain_inline
    from storage.errors import SecretError

    with pytest.raises(SecretError, match=r"UNITBALL_SECRET_ALL.*64") as caught:
        chain_inline(TrainingConfig(dataset="clinic", parties=2, epsilon=1.0))
    assert "not hexadecimal" not in str(caught.value)


# ── as a process of its own ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.nightly
def test_a_process_of_its_own(prepare_served: Callable[[Path], None], tmp_path: Path) -> None:
    """As a person starts it: engine included, nothing but the object on stdout, no traceback of Prefect's beside it."""
    root = tmp_path / "root"
    prepare_served(root)
    outcome = run_command(root, "train", "--epsilon", 1, "--parties", 2, "--json")
    assert outcome.code == 0, outcome
    assert outcome.json.keys() >= KEYS
    assert outcome.err == ""


TOO_MANY_ROWS = ("train", "--epsilon", 1, "--parties", 2, "--rows-per-party", 5000)


@pytest.mark.nightly
def test_a_process_that_is_refused(prepare_served: Callable[[Path], None], tmp_path: Path) -> None:
    """With an engine of its own, which says nothing of it."""
    root = tmp_path / "root"
    prepare_served(root)
    run_command(root, *TOO_MANY_ROWS).refused(2, "10000", "1438")


def test_more_rows_than_there_are(called: CommandLine) -> None:
    called(*TOO_MANY_ROWS).refused(2, "10000", "1438")


@pytest.mark.parametrize("full", [True, False])
def test_a_prefect_server_that_fails_says_whether_the_disk_is_full_and_what_was_charged(
    full: bool, commands: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the name of an exception of Prefect's, from which nobody learns that the disk is full."""

    def fail(dataset: str) -> None:
        answer = httpx.Response(
            500, json={"exception_message": "..."}, request=httpx.Request("POST", "http://prefect/api")
        )
        raise PrefectHTTPStatusError("Server error '500'", request=answer.request, response=answer)

    monkeypatch.setattr("tasks.accounts.reports.budget_report", fail)
    monkeypatch.setattr("tasks.host.engine.is_full", lambda place: full)
    # What other tests' commands have charged in this process is none of this one's.
    monkeypatch.setattr("tasks.runtime.standing._record", standing._Record())
    outcome = commands("budget", "digits")
    outcome.refused(1, "500", "nothing was charged")
    assert (f"the disk that holds {commands.root} is full" in outcome.err) is full


def test_an_unforeseen_error_is_one_line_too(commands: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(dataset: str) -> None:
        raise RuntimeError("something\nin two lines")

    monkeypatch.setattr("tasks.accounts.reports.budget_report", fail)
    commands("budget", "digits").refused(1, "RuntimeError", "two lines", "UNITBALL_DEBUG=1")


def test_candidates_are_trained_with_the_engine_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect reads at its import which server there is: without one it starts a server of its own, under no secret."""
    steps: list[str] = []

    @contextlib.contextmanager
    def running(_: str) -> Iterator[None]:
        steps.append("ready")
        yield
        steps.append("ended")

    def choose(config: TrainingConfig) -> Choice:
        steps.append("chosen")
        return Choice(config)

    monkeypatch.setattr(explaining, "running", running)
    monkeypatch.setattr(federated_training, "choose", choose)
    monkeypatch.setattr(registration, "find_dataset", lambda name: name)
    monkeypatch.setattr(prices, "with_epsilon", lambda config, _: config)
    asked = TrainingConfig(
        dataset="clinic",
        algorithm="noisy-gd",
        trust="central",
        epsilon=1.0,
        tune={"clip": (0.5, 1.0)},
        tuned_on="drawn",
    )
    assert explaining.chosen(asked) == asked
    assert steps == ["ready", "chosen", "ended"]
