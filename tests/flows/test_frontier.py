"""The frontier: which runs it is made of; the command draws nothing of private rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.cli import experiments
from dpalgos.parameters import UnknownNameError
from flows.sweep import frontier_sweep
from tasks.planning.configuration import TrainingConfig
from tasks.tracking.reporting import command_of


def test_every_algorithm_runs_at_every_budget_and_those_without_noise_once_a_seed() -> None:
    config = TrainingConfig(dataset="digits", trust="secagg", parties=3)
    points = frontier_sweep(config, ["unitball", "dpml", "unitball-without-noise"], [0.5, 2.0], seeds=3).points()
    of = {name: [point.config for point in points if point.label == name] for name in {one.label for one in points}}
    assert len(of["unitball"]) == len(of["dpml"]) == 6
    assert len(of["unitball-without-noise"]) == 3
    assert {one.epsilon for one in of["unitball"]} == {0.5, 2.0}
    assert {one.epsilon for one in of["unitball-without-noise"]} == {None}
    assert {one.parties for one in of["dpml"]} == {3}
    # A trust model is asked of those that run under it.
    assert {one.trust for one in of["unitball"]} == {"secagg"}
    assert {one.trust for one in of["dpml"]} == {None}
    assert {one.seed for one in of["unitball"]} == {0, 1, 2}


def test_what_is_declared_of_mirror_images_is_asked_of_those_that_look_at_images() -> None:
    names = ["unitball", "dpml", "unitball-without-noise"]
    points = frontier_sweep(TrainingConfig(mirror=False), names, [1.0], seeds=1).points()
    assert [point.config.mirror for point in points] == [False, None, False]


def test_the_commands_own_algorithms_can_be_drawn_on_the_data_set_of_make_run() -> None:
    names = experiments._FRONTIER.split(",")
    points = frontier_sweep(TrainingConfig(dataset="digits"), names, [1.0], seeds=1).points()
    assert [point.config.algorithm for point in points] == names


def test_an_unknown_algorithm_is_named() -> None:
    with pytest.raises(UnknownNameError, match="unitbal"):
        frontier_sweep(TrainingConfig(), ["unitbal"], [1.0], seeds=1)


@pytest.mark.usefixtures("root")
def test_private_rows_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from deployments.cli import main
    from tasks.runtime.settings import current_root
    from tests.support.chains import ingest_private

    ingest_private(tmp_path / "rows")
    for words, code, said in (
        (["--dataset", "clinic"], 3, "public"),
        (["--dataset", "digits", "--epsilons", "1,x"], 2, "--epsilons"),
        (["--dataset", "digits", "--epsilons", "0"], 2, "above 0"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["frontier", *words, "--root", str(current_root())])
        assert ended.value.code == code
        assert said in capsys.readouterr().err


def test_the_command_that_is_printed_draws_the_same() -> None:
    config = TrainingConfig(dataset="mnist", rows_per_party=10_000, trust="secagg")
    asked = command_of(config.model_copy(update={"algorithm": None}), "frontier")
    assert asked == "unitball frontier --dataset mnist --trust secagg --rows-per-party 10000"
