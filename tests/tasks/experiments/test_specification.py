"""Specifications: what a grid unfolds to, and errors that name the field, the value and the way out."""

from __future__ import annotations

from typing import Any

import pytest

from dpalgos.parameters import ParameterError
from flows.specs import known_reproductions, load_reproduction
from storage.errors import InputError
from tasks.experiments.specifications import SweepSpec, load
from tasks.planning.configuration import TrainingConfig


def a_spec(text: str) -> SweepSpec:
    return load(SweepSpec, text, "spec.yaml")


def test_a_grid_is_every_combination_once() -> None:
    spec = a_spec("name: a\nset: {algorithm: dpml}\ngrid: {epsilon: [0.1, 1], dimension: [2, 3, 4], seeds: [0, 1]}")
    points = spec.points()
    assert len(points) == 2 * 3 * 2 == len({point.key for point in points})
    assert {(point.config.epsilon, point.config.dimension, point.config.seed) for point in points} == {
        (epsilon, dimension, seed) for epsilon in (0.1, 1) for dimension in (2, 3, 4) for seed in (0, 1)
    }


def test_seeds_set_noise_and_partition_together() -> None:
    (point,) = a_spec("name: a\nset: {algorithm: dpml, epsilon: 1, seeds: 7}").points()
    assert (point.config.seed, point.config.partition_seed) == (7, 7)


def test_any_parameter_of_an_algorithm_is_an_axis() -> None:
    points = a_spec(
        "name: a\nset: {algorithm: dpml, epsilon: 1}\ngrid: {param.trainer.regularisation: [0.1, 0.2]}"
    ).points()
    assert [point.config.parameters for point in points] == [
        {"trainer.regularisation": 0.1},
        {"trainer.regularisation": 0.2},
    ]


def test_what_a_block_sets_is_not_varied_in_it() -> None:
    text = (
        "name: a\ngrid: {epsilon: [1, 2], seeds: [0, 1]}\n"
        "blocks: [{set: {algorithm: dpml}}, {set: {algorithm: non-private, epsilon: null}}]"
    )
    points = a_spec(text).points()
    assert len([point for point in points if point.label == "dpml"]) == 4
    assert len([point for point in points if point.label == "non-private"]) == 2


def test_what_varies_is_called_as_runs_call_it() -> None:
    text = (
        "name: a\ngrid: {epsilon: [1, 2], seeds: [0, 1]}\n"
        "blocks: [{grid: {dimension: [2, 3], param.trainer.width: [1, 2]}}, {grid: {param.width: [1]}}]"
    )
    assert a_spec(text).varied() == ["epsilon", "dimension", "trainer.width"]


def test_a_point_that_two_blocks_name_runs_once() -> None:
    text = "name: a\nset: {algorithm: dpml}\nblocks: [{grid: {epsilon: [1, 2]}}, {grid: {epsilon: [2, 3]}}]"
    assert [point.config.epsilon for point in a_spec(text).points()] == [1, 2, 3]


@pytest.mark.parametrize("name", sorted(set(TrainingConfig.model_fields) - {"parameters"}))
def test_every_field_of_a_run_may_be_set(name: str) -> None:
    default: Any = TrainingConfig.model_fields[name].get_default()
    spec = SweepSpec(name="a", set={name: default})
    assert getattr(spec.points()[0].config, name) == default


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: a\ngrid: {epsilom: [1]}", ["spec.yaml", "grid", "'epsilom'", "epsilon", "param.NAME"]),
        ("name: a\ngrid: {parameters: [1]}", ["'parameters'", "param.NAME"]),
        ("name: a\ngrid: {epsilon: []}", ["epsilon has no values"]),
        ("name: a\ngrid: {epsilon: [1, 1]}", ["epsilon has the value 1 twice"]),
        ("name: a\ngrid: {epsilon: 1}", ["grid.epsilon", "list", "1"]),
        ("name: a\ngrid: {epsilon: [0.5, -1]}", ["a: point (epsilon=-1)", "epsilon", "greater than 0", "-1"]),
        ("name: a\nset: {algorithm: truex-2099}", ["algorithm", "'truex-2099'", "nearest: truex"]),
        ("name: a\nset: {parties: many}", ["parties", "'many'"]),
        ("name: a\nset: {sizes: [3, 4], rows_per_party: 5}", ["`sizes` or `rows_per_party`"]),
        ("name: a\nworkers: 0", ["workers", "0"]),
        ("name: a/b", ["name", "'a/b'"]),
        ("grid: {epsilon: [1]}", ["name", "required"]),
        ("name: a\nnmae: b", ["nmae"]),
        ("[1, 2]", ["mapping"]),
        ("name: [", ["not YAML"]),
        (
            f"name: a\ngrid: {{seeds: {list(range(400))}, partition_seed: {list(range(400))}}}",
            ["160000 points", "100000"],
        ),
    ],
)
def test_errors_name_field_value_and_way_out(text: str, words: list[str]) -> None:
    with pytest.raises((InputError, ParameterError)) as caught:
        a_spec(text).points()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word.lower() in message.lower(), message


def test_the_reproductions_of_the_papers_are_all_there() -> None:
    wanted = {f"wang2024-{name}" for name in ("fig2", "fig3", "fig4", "fig5", "table1", "table3", "causes")}
    wanted |= {f"huang2021-{name}" for name in ("fig1", "fig2", "fig3", "fig4", "table2")}
    wanted |= {f"owusu2021-{name}" for name in ("fig3", "fig4", "fig5", "fig6", "fig7", "table3", "table3-readings")}
    wanted |= {f"sun2021-{name}" for name in ("table3", "fig1", "figs2-5", "figs6-21")}
    assert set(known_reproductions()) == wanted


@pytest.mark.parametrize("name", known_reproductions())
def test_a_reproduction_unfolds_and_its_checks_name_its_series(name: str) -> None:
    reproduction = load_reproduction(name)
    for scale in reproduction.scales().values():
        points = reproduction.sweep(scale, scale.data).points()
        labels = {point.label for point in points}
        assert len({point.key + point.label for point in points}) == len(points)
        for check in reproduction.checks:
            assert check.at_least is not None or check.at_most is not None
            assert {check.of, check.against or check.of} <= labels, check
            # What the paper says of one data set is asked of that one alone.
            named = [need.name for need in scale.data if need.name in check.says.lower().replace("cifar-", "cifar")]
            assert max(named, key=len, default=None) in (None, check.where.get("dataset")), check
        for value in reproduction.paper_values:
            assert value.where["label"] in labels, value
    for need in reproduction.full.data if reproduction.full else []:
        assert need.files, "the list must say which files the user needs"


def test_unknown_reproductions_name_those_there_are() -> None:
    with pytest.raises(ParameterError, match="wang2024-fig3"):
        load_reproduction("wang2024-fig9")
