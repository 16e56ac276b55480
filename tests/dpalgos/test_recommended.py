"""The recommended system: over the whole grid of public facts its choice is a plan that its trust model admits."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

import pytest

from dpalgos.errors import ParameterError
from dpalgos.guarantees import Neighbours, Trust
from dpalgos.mechanisms.gaussian import mu_from_epsilon_delta
from dpalgos.registry import lookup
from dpalgos.systems.recommended import recommend, signal
from dpalgos.systems.system import PublicFacts
from tests.support.plans import dataset_of, planned, shards_of

FACTS = PublicFacts(
    sizes=(10_000,) * 5,
    dimension=784,
    classes=10,
    epsilon=1.0,
    delta=1e-5,
    neighbours=Neighbours.REPLACE_ONE,
    trust="central",
    image_shape=(28, 28),
)


def test_the_signal_is_rows_a_class_over_noise() -> None:
    mu = mu_from_epsilon_delta(1.0, 1e-5)
    assert signal(FACTS) == pytest.approx(50_000 * mu / 10)
    special = dataclasses.replace(FACTS, neighbours=Neighbours.REPLACE_SPECIAL)
    assert signal(special) == pytest.approx(2 * signal(FACTS))
    noisier = dataclasses.replace(FACTS, trust="secagg", noise_factor=1.25)
    assert signal(noisier) == pytest.approx(signal(FACTS) / 1.25)
    alone = dataclasses.replace(FACTS, trust="local")
    assert signal(alone) == pytest.approx(signal(FACTS) / 5)


SHAPES: list[tuple[int, tuple[int, ...] | None]] = [(6, None), (123, None), (64, (8, 8)), (784, (28, 28))]


@pytest.mark.parametrize("trust", ["central", "secagg", "local"])
@pytest.mark.parametrize("neighbours", [Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL])
@pytest.mark.parametrize(("dimension", "shape"), SHAPES)
def test_every_choice_is_a_sound_plan(
    trust: str, neighbours: Neighbours, dimension: int, shape: tuple[int, ...] | None
) -> None:
    """The plan is proved and costs no more than the budget; nothing in it goes by anything but public facts."""
    for rows, classes, epsilon in product((300, 60_000), (2, 26), (0.01, 0.5, 8.0)):
        dataset = dataset_of(classes=classes, dimension=dimension, rows=rows, image_shape=shape)
        shards = shards_of(dataset, sizes=(rows // 5,) * 5)
        config: dict[str, Any] = {"algorithm": "unitball", "trust": trust, "neighbours": neighbours}
        plan = planned(shards, epsilon=epsilon, delta=1e-6, **config)
        assert plan.proved
        assert plan.reasons
        for release in plan.releases:
            release.build()
            assert release.setting.trust == trust


def test_real_labels_get_ridge_regression() -> None:
    choice = recommend(dataclasses.replace(FACTS, classes=1, image_shape=None))
    assert choice.arrangement.trainer.name == "sufficient-statistics"


def test_without_a_budget_it_asks_for_one() -> None:
    with pytest.raises(ParameterError, match="--epsilon 1"):
        planned(algorithm="unitball", epsilon=None)


def test_what_is_asked_for_goes_before_the_rules() -> None:
    dataset = dataset_of(dimension=64, image_shape=(8, 8))
    plan = planned(shards_of(dataset), algorithm="unitball", dimension=7, parameters={"floor": 0.5})
    assert plan.projections[0].algorithm.parameters["components"] == 7
    assert plan.projections[0].algorithm.parameters["floor"] == 0.5
    other = planned(shards_of(dataset), algorithm="unitball", projection="hog")
    assert [release.name for release in other.projections] == ["hog"]


def test_its_examples_are_what_it_may_choose() -> None:
    system = lookup("systems", "unitball")
    assert set(system.supported()) == {str(trust) for trust in Trust}
