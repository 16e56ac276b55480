"""``unitball train --trust secagg``: rounds as tasks of the flow, simulated dropouts, too few of them left."""

from __future__ import annotations

from storage.layout import Layout
from tests.support.command_line import CommandLine

TRAIN = ("train", "--dataset", "iris", "--trust", "secagg", "--parties", 4, "--epsilon", 1, "--seed", 3)
FEDERATED = (*TRAIN, "--algorithm", "fed-dpdr-dpml", "--dimension", 2, "--dropouts", 1)


def test_rounds_are_cached_tasks_and_a_dropout_changes_the_run(unitball: CommandLine) -> None:
    lost = unitball.succeeds(*FEDERATED, "--absent", "2:mask", "--json")
    assert lost["proved"]["epsilon"] <= 1.0
    assert not lost["cached"]
    assert len(list(Layout(unitball.root).rounds.iterdir())) == 2, "the projection and the trainer, each in rounds"

    again = unitball.succeeds(*FEDERATED, "--absent", "2:mask", "--json")
    assert again["cached"]
    assert again["releases"] == lost["releases"]

    whole = unitball.succeeds(*FEDERATED, "--json")
    assert not set(whole["releases"]) & set(lost["releases"])


def test_too_few_parties_are_one_line_and_the_charge_stands(unitball: CommandLine) -> None:
    failing = (*FEDERATED, "--absent", "2:mask", "--absent", "3:share")
    for _ in range(2):
        outcome = unitball(*failing)
        outcome.refused(1, "2 parties remain", "3 are needed", "new identity")
        assert "party 2" not in outcome.err
    layout = Layout(unitball.root)
    assert list(layout.releases.iterdir()) == []
    stored = {path.name.split("-")[0] for path in layout.rounds.rglob("*") if path.is_file()}
    assert "masked" in stored
    assert not stored & {"block", "survivors", "request", "opened"}, "nothing was decided, so nothing is unmasked"


def test_what_cannot_be_is_said_before_anything_runs(unitball: CommandLine) -> None:
    unitball(*FEDERATED, "--absent", "9:mask").refused(2, "party 9", "0 to 3")
    unitball(*FEDERATED, "--absent", "2:lunch").refused(2, "2:lunch")
    unitball(*TRAIN, "--algorithm", "truex", "--dropouts", 1).refused(2, "4 honest parties")


def test_many_steps_and_the_published_split(unitball: CommandLine) -> None:
    arguments = ("--algorithm", "truex", "--dropouts", 1, "--param", "honest=3", "--absent", "1:mask")
    result = unitball.succeeds(*TRAIN, *arguments, "--param", "iterations=5", "--json")
    assert result["proved"]["numerics"] == "exact"
    assert any("at least 3 parties are honest" in words for words in result["proved"]["assumptions"])


def test_published_laplace_noise_runs_in_shares(unitball: CommandLine) -> None:
    """With an epsilon that hides nothing, the survivors' mean is as accurate as the curator's; proved as published."""
    given = ("train", "--dataset", "breast_cancer", "--parties", 6, "--epsilon", 1000, "--seed", 3)
    for name, proved in (("mpc-op", False), ("pathak", True)):
        curated = unitball.succeeds(*given, "--algorithm", name, "--trust", "central")
        lost = unitball.succeeds(
            *given, "--algorithm", name, "--trust", "secagg", "--dropouts", 1, "--colluders", 1, "--absent", "2:mask"
        )
        assert abs(lost["metrics"]["accuracy"] - curated["metrics"]["accuracy"]) < 0.03
        assert lost["claim"]["flaw"]
        assert (lost["proved"] is not None) is proved
