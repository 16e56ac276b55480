"""The recommended system: over the whole grid of public facts its choice is a plan that its trust model admits."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.datasets import load_digits

from dpalgos.accounting.costs import allocate
from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.guarantees import GaussianMu, Neighbours, Setting, Trust
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup
from dpalgos.rows import ArrayRows
from dpalgos.systems.recommended import recommend, signal
from dpalgos.systems.system import PublicFacts
from tasks.planning.configuration import TrainingConfig
from tests.support.plans import dataset_of, planned, shards_of
from tests.support.training import fit, noise

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


SHAPES: list[tuple[int, tuple[int, ...] | None]] = [(6, None), (123, None), (64, (8, 8)), (784, (28, 28))]
SHAPES += [(3072, (3, 32, 32)), (192, (3, 8, 8))]


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


def test_a_public_head_is_where_training_starts_and_no_guess() -> None:
    choice = recommend(dataclasses.replace(FACTS, image_shape=None, encoded=True, public_head=True, epsilon=1e-4))
    assert choice.arrangement.trainer.parameters["public_start"] == 16.0
    assert choice.warning is None
    shards = shards_of(dataset_of(classes=3, dimension=20, rows=900))
    given: dict[str, Any] = {"algorithm": "unitball", "public_dataset": "others"}
    plan = planned(shards, parameters={"public.head": 0.7}, **given)
    assert plan.models[0].algorithm.parameters["public_start"] == 16.0
    assert "public_start" not in planned(shards, **given).models[0].algorithm.parameters


def test_tables_are_centred_where_the_mean_can_be_afforded() -> None:
    """Two classes: always, for 3 to 10 % of mu². More: where the mean's noise is at most 0.4 long."""
    table = dataclasses.replace(FACTS, image_shape=None, dimension=64)
    for sizes, classes, centred in (((300,), 2, True), ((60_000,), 2, True), ((600,), 10, False), ((1500,), 10, True)):
        arrangement = recommend(dataclasses.replace(table, sizes=sizes, classes=classes)).arrangement
        assert (arrangement.projection is not None) == centred, (sizes, classes)
        assert not centred or 0.03 <= arrangement.projection_share <= 0.1


@pytest.mark.parametrize(("epsilon", "least"), [(0.3, 0.955), pytest.param(1.0, 0.993, marks=pytest.mark.nightly)])
def test_many_columns_are_descended_in_few_steps(epsilon: float, least: float) -> None:
    """Counts of 700 words: with as long a way as rows of few columns get, 0.927 and 0.986."""
    random, topics, words, texts = np.random.default_rng(7), 3, 700, 4_000
    common = random.dirichlet(np.full(words, 0.05))
    law = [0.8 * common + 0.2 * random.dirichlet(np.full(words, 0.02)) for _ in range(topics)]
    labels = random.integers(0, topics, texts)
    counts = np.stack([random.multinomial(60, law[topic]) for topic in labels]).astype(float)
    rows = counts / np.linalg.norm(counts, axis=1, keepdims=True)
    facts = dataclasses.replace(FACTS, sizes=(3_000,), dimension=words, classes=topics, epsilon=epsilon)
    chosen = recommend(dataclasses.replace(facts, image_shape=None)).arrangement
    setting = Setting(sizes=(3_000,), dimension=words, classes=topics, trust=Trust.CENTRAL)
    specs = [spec for spec in (chosen.projection, chosen.trainer) if spec is not None]
    shares = [chosen.projection_share, 1 - chosen.projection_share] if len(specs) == 2 else [1.0]
    budgets = allocate([GaussianMu] * len(specs), shares, epsilon, 1e-5).losses
    seen, artefact = rows, None
    for spec, budget in zip(specs, budgets, strict=True):
        seen = seen if artefact is None else artefact.apply(seen)
        training = ArrayRows(seen[:3_000], labels[:3_000])
        artefact = fit(spec.with_parameters(budget=budget).build(), [training], setting, noise(1))
    assert artefact is not None
    assert np.mean(artefact.predict(seen[3_000:]) == labels[3_000:]) >= least


def test_without_a_budget_it_asks_for_one() -> None:
    with pytest.raises(ParameterError, match="--epsilon 1"):
        planned(algorithm="unitball", epsilon=None)


def test_what_is_asked_for_goes_before_the_rules() -> None:
    dataset = dataset_of(dimension=64, image_shape=(8, 8))
    plan = planned(shards_of(dataset), algorithm="unitball", dimension=7, parameters={"floor": 0.5})
    assert plan.projections[0].algorithm.parameters["components"] == 7
    assert plan.projections[0].algorithm.parameters["floor"] == 0.5
    # A mirror image is the same thing where it is declared to be.
    mirrored = planned(shards_of(dataset), algorithm="unitball", parameters={"mirror": True})
    assert mirrored.projections[0].algorithm.parameters["mirror"]
    assert planned(shards_of(dataset), algorithm="unitball", mirror=True).projections == mirrored.projections
    other = planned(shards_of(dataset), algorithm="unitball", projection="hog")
    assert [release.name for release in other.projections] == ["hog"]


def test_classes_are_weighed_by_name() -> None:
    shards = shards_of(dataset_of(dimension=8, classes=2))
    for given in ({"algorithm": "unitball"}, {"algorithm": None, "trainer": "noisy-gd"}):
        (trainer,) = planned(shards, class_weight={"0": 0.04}, **given).models
        assert trainer.algorithm.parameters["class_weight"] == [0.04, 1.0]
    with pytest.raises(ParameterError, match=r"'honest'.*0, 1"):
        planned(shards, class_weight={"honest": 0.04})
    with pytest.raises(ParameterError, match="class-means"):
        planned(shards, class_weight={"0": 0.04}, algorithm=None, trainer="class-means")
    (trainer,) = planned(shards, class_weight="balanced", algorithm="unitball").models
    assert trainer.algorithm.parameters["class_weight"] == "balanced"
    with pytest.raises(ParameterError, match=r"'balanced'.*--class-weight.*noisy-gd.*discriminant-gd"):
        planned(shards, class_weight="balanced", algorithm=None, trainer="gradient-perturbation")


def test_mirror_images_are_declared_where_something_averages_over_them() -> None:
    shards = shards_of(dataset_of(dimension=64, image_shape=(8, 8)))
    own = planned(shards, projection="public-whitening", algorithm=None, trainer="noisy-gd", mirror=True)
    assert own.projections[0].algorithm.parameters["mirror"]
    refused: list[dict[str, Any]] = [{"algorithm": "noisy-gd"}, {"algorithm": "unitball", "projection": "hog"}]
    for given in refused:
        with pytest.raises(ParameterError, match="--image-shape"):
            planned(shards, **given, mirror=False)
    with pytest.raises(ParameterError, match=r"^mirror"):
        planned(shards_of(dataset_of()), algorithm="unitball", mirror=True)
    with pytest.raises(ValidationError, match="`mirror`"):
        TrainingConfig(mirror=True, parameters={"projection.mirror": False})


def test_images_of_one_channel_and_of_three_get_a_map_each() -> None:
    """By channels, size and signal alone: mirror images are taken to be the same in colour, and not else."""

    def chosen(shape: tuple[int, ...], **more: Any) -> Any:
        facts = dataclasses.replace(FACTS, image_shape=shape, dimension=int(np.prod(shape)), **more)
        choice = recommend(facts)
        assert choice.arrangement.projection is not None
        assert "CIFAR-10" in choice.reasons[-1], "which sets the rules were found on"
        return choice.arrangement.projection.parameters

    grey, colour, small = chosen((28, 28)), chosen((3, 32, 32)), chosen((3, 8, 8))
    assert (grey["features"], grey["mirror"], grey["components"]) == ("scattering", False, 400)
    assert (colour["features"], colour["mirror"], colour["components"]) == ("side-by-side", True, 800)
    assert set(colour["feature_parameters"]["maps"]) == {"scattering", "dictionary"}
    assert (small["features"], small["mirror"]) == ("scattering", True), "no room for patches"
    assert chosen((3, 16, 16))["features"] == "side-by-side", "the smallest that have room"
    assert chosen((3, 32, 32), epsilon=0.1)["components"] < 400
    # What is declared goes before the rule, and the reasons say so.
    for shape, declared in (((28, 28), True), ((3, 32, 32), False)):
        facts = dataclasses.replace(FACTS, image_shape=shape, dimension=int(np.prod(shape)), mirror=declared)
        parameters: Any = recommend(facts).arrangement.projection.parameters  # type: ignore[union-attr]
        assert parameters.get("maps", {"public-whitening": parameters})["public-whitening"]["mirror"] is declared
        assert ("not averaged" in recommend(facts).reasons[0]) is not declared
        assert "as declared" in recommend(facts).reasons[0]
    assert chosen((1, 28, 28)) == {**grey, "shape": [1, 28, 28]}


@pytest.mark.parametrize(("shape", "net", "whole"), [((3, 32, 32), "big", 800), ((28, 28), "small", 400)])
def test_the_owners_word_on_mirror_images_is_the_switch_of_the_encoder(
    shape: tuple[int, ...], net: str, whole: int
) -> None:
    """What nobody has said is not taken for said: traffic signs and digits get what they got without an encoder."""
    facts = dataclasses.replace(FACTS, image_shape=shape, dimension=int(np.prod(shape)))

    def chosen(**more: Any) -> tuple[Any, str]:
        choice = recommend(dataclasses.replace(facts, **more))
        return choice.arrangement.projection, choice.reasons[0]

    for mirror, said in ((None, "declare --mirror"), (False, "without the encoder, which ignores mirroring")):
        alone, why = chosen(mirror=mirror)
        assert alone.name == "public-whitening"
        assert said in why
    both, why = chosen(mirror=True)
    assert f"400 directions of the {net} encoder" in why
    assert both.build().output_dimension(facts.dimension) == whole + 400
    maps = both.parameters["maps"]
    # The other map is the one that there would be without it.
    assert maps["public-whitening"] == chosen(mirror=True, epsilon=1e-3)[0].parameters | {"components": whole}
    asked, why = chosen(mirror=True, components=90)
    assert asked.build().output_dimension(facts.dimension) == 90
    assert "asked for, including the encoder's" in why
    # Fewer rows' worth of signal, whatever it is lost by, and there is none.
    for weak in ({"epsilon": 0.02}, {"noise_factor": 200.0, "trust": "local"}, {"classes": 2000}):
        assert chosen(mirror=True, **weak)[0].name == "public-whitening"


def test_its_examples_are_what_it_may_choose() -> None:
    system = lookup("systems", "unitball")
    assert set(system.supported()) == {str(trust) for trust in Trust}


def test_no_better_than_guessing_is_said_where_it_is_so() -> None:
    """On digits, below the signal of the warning class means are at most one and a half times as often right as chance.

    Means over 30 draws of the noise on 360 test rows: a standard error of about 0.01. With four times the budget of the
    boundary they are twice as good as chance, and nothing is said of classes of equal size.
    """
    features, labels = _digits()
    facts = dataclasses.replace(FACTS, sizes=(1437,), dimension=64, image_shape=(8, 8), epsilon=1e-3)
    needed = 2.0 / signal(facts) * facts.epsilon
    found = {}
    for times in (0.5, 6.0):
        asked = dataclasses.replace(facts, epsilon=times * needed)
        choice = recommend(asked)
        assert ("at this budget: n" in (choice.warning or "")) == (times < 1)
        map_ = choice.arrangement.projection
        assert map_ is not None
        setting = Setting(sizes=(1437,), dimension=64, classes=10, trust=Trust.CENTRAL)
        seen = map_.with_parameters(images=1500).build().fit((), setting, noise(0)).transform(features)
        rows = ArrayRows(seen[:1437], labels[:1437])
        setting = dataclasses.replace(setting, dimension=seen.shape[1])
        budget = GaussianMu(mu_from_epsilon_delta(asked.epsilon, asked.delta))
        trainer = choice.arrangement.trainer.with_parameters(budget=budget).build()
        models = [fit(trainer, [rows], setting, noise(seed)) for seed in range(30)]
        found[times] = np.mean([(model.predict(seen[1437:]) == labels[1437:]).mean() for model in models])
    assert found[0.5] < 0.15
    assert found[6.0] > 0.2


def test_two_classes_of_a_table_may_be_guessed_by_naming_the_larger() -> None:
    table = dataclasses.replace(FACTS, sizes=(1000,), dimension=20, classes=2, image_shape=None)
    a_unit = table.epsilon / signal(table)

    def said(strength: float) -> str:
        return recommend(dataclasses.replace(table, epsilon=strength * a_unit)).warning or ""

    assert "at this budget: n = 1000" in said(1.0)
    assert "if one class has three quarters of the rows: n = 1000" in said(12.0)
    assert not said(60.0)


@pytest.mark.parametrize("shape", [None, (28, 28)])
@pytest.mark.parametrize("classes", [3, 43])
def test_many_classes_may_be_unequal(classes: int, shape: tuple[int, int] | None) -> None:
    facts = dataclasses.replace(FACTS, sizes=(1307,), dimension=784, classes=classes, image_shape=shape)
    a_unit = facts.epsilon / signal(facts)
    warned = [recommend(dataclasses.replace(facts, epsilon=strength * a_unit)).warning or "" for strength in (1, 5, 30)]
    assert f"at this budget: n = 1307, epsilon = {a_unit:g}, K = {classes}" in warned[0]
    assert "1, 1/2, 1/3" in warned[1]
    assert not warned[2]


def _digits() -> tuple[Any, Any]:
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    rows = bunch.data[order] / np.linalg.norm(bunch.data[order], axis=1, keepdims=True)
    return rows, bunch.target[order].astype(np.int64)


def test_a_delta_of_0_is_refused_with_what_it_would_take() -> None:
    with pytest.raises(ParameterError, match=r"delta.*0.*--algorithm"):
        recommend(dataclasses.replace(FACTS, delta=0.0))


def test_under_local_trust_each_party_noises_its_own_sum() -> None:
    """Of the sum of N parties the noise is √N times the law's, and each party's own secret makes its part."""
    trust: Any = lookup("trusts", "local")()
    assert trust.noise_factor(4) == 2.0
    assert trust.noise_contributors(("a", "b")) == ("a", "b")
    law = RoundedGaussian(100.0)
    zero = [np.zeros(4000, dtype=np.int64)] * 4
    summation = trust.summation(None, None, [noise(seed) for seed in range(4)], "", None)
    total = summation.release("sum-0", zero, law)
    # 4000 draws: the standard deviation is known to 1.1 %; one party's noise alone would be 100.
    assert 190 < total.std() < 210
    with pytest.raises(ParameterError, match=r"^Smo.*--trust central"):
        trust.require(lookup("trainers", "smo")(), Setting(sizes=(5, 5), dimension=2, classes=2))
