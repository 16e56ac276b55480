"""Plans: every release of a run with its identity and price, known before any row is read."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import ValidationError

from dpalgos.accounting.composition import compose
from dpalgos.guarantees import ApproximateDP, GaussianMu, Guarantee, Neighbours, PrivateSelection, PureEpsilon, Trust
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup, names
from dpalgos.trust.model import EVERYONE
from storage.errors import InputError
from storage.refs import ShardRef, TableColumn, Visibility
from tasks.planning import plans as planning
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedRelease
from tests.support.plans import dataset_of, planned, shards_of

SYSTEMS = names("systems")


def plans_of(name: str) -> list[RunPlan]:
    """Return the plan of a system under each trust that it runs under with synthetic parties."""
    plans = []
    for trust in lookup("systems", name).supported():
        try:
            plans.append(planned(algorithm=name, trust=trust))
        except ParameterError:
            # Some are for two classes only.
            plans.append(planned(shards_of(dataset_of(classes=2)), algorithm=name, trust=trust))
    return plans


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_run_is_planned_without_a_row_and_meets_its_target(name: str) -> None:
    """Nothing is stored: what a plan says can depend on public facts only."""
    for plan in plans_of(name):
        assert plan.releases
        proved = all(release.guarantee().proved for release in plan.releases)
        losses_by_party = plan.losses_by_party()
        assert set(losses_by_party) == {"0", "1", "2"}
        if not proved:
            continue
        for losses_of_party in set(losses_by_party.values()):
            pure = all(isinstance(loss, PureEpsilon) for loss in losses_of_party)
            epsilon = compose(losses_of_party).epsilon(0.0 if pure else 1e-5)
            assert epsilon <= 1.0, (plan.trust, losses_of_party)
            # A paper's own system adds its paper's noise, however much of the budget that leaves.
            assert plan.claim is not None or epsilon >= 0.999, (plan.trust, losses_of_party)


@pytest.mark.parametrize("delta", [1e-5, 1e-6, 1e-9])
def test_the_graph_of_many_parties_is_paid_for_within_the_target(delta: float) -> None:
    """Beyond 64 parties a sparse graph may fail, with a probability that comes on top of every sum's noise."""
    shards = shards_of(dataset_of(rows=2000), sizes=(20,) * 100)
    plan = planned(shards, algorithm="noisy-gd", trust=Trust.SECAGG, delta=delta)
    (losses_of_party,) = set(plan.losses_by_party().values())
    assert 0.9999 <= compose(losses_of_party).epsilon(delta) <= 1.0
    assert len(losses_of_party) > 1, "the graph's failure is part of the bill"


@pytest.mark.parametrize("name", SYSTEMS)
def test_identities_are_a_function_of_the_words(name: str) -> None:
    for first, second in zip(plans_of(name), plans_of(name), strict=True):
        assert first == second
        keys = [release.key for release in first.releases] + [
            made.key for made in (first.basis, first.model) if made is not None
        ]
        assert len(set(keys)) == len(keys)
        assert all(len(key) == 64 for key in keys)
        # Every key that something uses is made by the plan.
        used = {key for release in first.releases for key in release.upstream}
        used |= {key for made in (first.basis, first.model) if made for key in made.upstream}
        assert used <= set(keys)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_plan_survives_the_way_through_json(name: str) -> None:
    """Prefect hands tasks their parameters as JSON; what is built from them must be what was priced."""
    for plan in plans_of(name):
        again = RunPlan.model_validate_json(plan.model_dump_json())
        assert again == plan
        for before, after in zip(plan.releases, again.releases, strict=True):
            assert after.guarantee() == before.guarantee()
            assert Guarantee.from_json(after.guarantee().to_json()) == before.guarantee()


CHANGES: list[dict[str, Any]] = [
    {"epsilon": 2.0},
    {"delta": 1e-6},
    {"dimension": 3},
    {"replicate": 1},
    {"seed": 1},
    {"seed": 2},
    {"parameters": {"regularisation": 0.02}},
    {"projection": "identity"},
]


def keys_of(plan: RunPlan) -> set[str]:
    return {release.key for release in plan.releases}


def made_of(plan: RunPlan) -> str:
    assert plan.model is not None
    return plan.model.key


def test_whatever_a_release_depends_on_changes_its_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    base: dict[str, Any] = {"algorithm": "fed-dpdr-dpml"}
    plans = [planned(**base), *(planned(**{**base, **change}) for change in CHANGES)]
    dataset = dataset_of()
    plans += [
        planned(shards_of(dataset.model_copy(update={"version": "another"})), **base),
        planned(shards_of(dataset, partition="q"), **base),
        planned(shards_of(dataset, sizes=(200, 301, 499)), **base),
        planned(shards_of(dataset, sizes=(200, 300)), **base),
    ]
    # A copy with another field has another identity, although the one that is copied has computed its own.
    known = plans[0].releases[0]
    assert known.model_copy(update={"replicate": 7}).key != known.key == known.model_copy().key
    monkeypatch.setattr(planning, "code_version", lambda *classes: "other code or other packages")
    plans.append(planned(**base))
    for first, second in itertools.combinations(plans, 2):
        assert first.run_key != second.run_key
        assert made_of(first) != made_of(second)


def test_what_a_release_does_not_depend_on_leaves_it_alone() -> None:
    """Two runs that share a release share its charge: the evaluation, the labels and another trainer change nothing."""
    base = planned(algorithm="dpdr-dpml", parameters={"trainer.regularisation": 0.01})
    assert planned(algorithm="dpdr-dpml", parameters={"regularisation": 0.01}) == base
    named = planned(algorithm="dpdr-dpml", parameters={"trainer.regularisation": 0.02})
    assert {release.key for release in named.projections} == {release.key for release in base.projections}
    assert keys_of(named) != keys_of(base)
    renamed = dataset_of().model_copy(update={"name": "renamed", "account": "renamed"})
    assert keys_of(planned(shards_of(renamed), algorithm="dpdr-dpml")) == keys_of(planned(algorithm="dpdr-dpml"))


def test_one_run_key_one_result() -> None:
    """A run key says everything that its result says: target, data set and name included."""
    base = planned(algorithm="non-private", epsilon=None)
    assert keys_of(planned(algorithm="non-private", epsilon=1.0)) == keys_of(base)
    assert planned(algorithm="non-private", epsilon=1.0).run_key != base.run_key
    renamed = dataset_of().model_copy(update={"name": "renamed"})
    assert planned(shards_of(renamed), algorithm="non-private", epsilon=None).run_key != base.run_key


def test_ten_classes_are_ten_releases() -> None:
    plan = planned(shards_of(dataset_of(classes=10)), algorithm="dpml")
    for release in plan.models:
        losses = release.guarantee().losses
        assert len(losses) == 10
        assert sum(loss.epsilon for loss in losses if isinstance(loss, PureEpsilon)) == pytest.approx(1.0)
    (loss,) = planned(shards_of(dataset_of(classes=2)), algorithm="dpml").models[0].guarantee().losses
    assert isinstance(loss, PureEpsilon)
    assert loss.epsilon == pytest.approx(1.0)


def test_each_party_pays_for_its_own_and_all_for_what_is_joint() -> None:
    local = planned(algorithm="fed-dpdr-dpml", trust="local")
    assert [release.parties for release in local.projections] == [("0",), ("1",), ("2",)]
    assert [release.owner for release in local.models] == ["0", "1", "2"]
    assert [release.noise_contributors for release in local.models] == [("0",), ("1",), ("2",)]
    joint = planned(algorithm="noisy-gd", trust="central")
    assert [release.parties for release in joint.releases] == [("0", "1", "2")]
    assert joint.releases[0].noise_contributors == (EVERYONE,)
    shared = planned(algorithm="noisy-gd", trust="secagg")
    assert shared.releases[0].noise_contributors == ("0", "1", "2")


def test_parties_weigh_as_they_have_rows() -> None:
    plan = planned(algorithm="fed-dpdr-dpml")
    assert plan.model is not None
    assert plan.model.weights == (0.2, 0.3, 0.5)


def test_the_first_trust_is_the_default() -> None:
    for name in SYSTEMS:
        system = lookup("systems", name)
        first = next(iter(system.supported()))
        try:
            assert planned(algorithm=name).trust == first
        except ParameterError:
            assert planned(shards_of(dataset_of(classes=2)), algorithm=name).trust == first


def test_paths_lead_from_raw_rows_to_each_model() -> None:
    plan = planned(algorithm="fed-dpdr-dpml")
    assert plan.basis is not None
    assert plan.model is not None
    assert plan.paths() == {EVERYONE: [plan.basis.key, plan.model.key]}
    alone = planned(algorithm="dpdr-dpml")
    assert alone.paths() == {
        model.parties[0]: [basis.key, model.key] for basis, model in zip(alone.projections, alone.models, strict=True)
    }


def test_a_charged_evaluation_is_part_of_the_plan_and_pays_from_the_held_out_rows() -> None:
    dataset = dataset_of(visibility=Visibility.PRIVATE)
    shards = shards_of(dataset)
    held_out = ShardRef(dataset=dataset, partition="p", party="test", rows=100)
    plan = planned(shards, held_out, algorithm="noisy-gd")
    assert [release.name for release in plan.evaluations] == ["confusion-matrix"]
    losses_by_party = plan.losses_by_party()
    assert set(losses_by_party) == {"0", "1", "2", "test"}
    for losses_of_party in losses_by_party.values():
        assert 0.999 <= compose(losses_of_party).epsilon(1e-5) <= 1.0
    assert planned(shards, held_out, algorithm="noisy-gd", evaluation=False).evaluations == ()
    assert planned(shards, None, algorithm="noisy-gd").evaluations == ()
    with_roc = planned(shards, held_out, algorithm="noisy-gd", roc=True)
    assert [release.name for release in with_roc.evaluations] == ["confusion-matrix", "score-distribution"]
    assert 0.999 <= compose(with_roc.losses_by_party()["test"]).epsilon(1e-5) <= 1.0


def test_each_partys_model_is_measured_at_the_same_total() -> None:
    dataset = dataset_of(visibility=Visibility.PRIVATE)
    shards = shards_of(dataset)
    held_out = ShardRef(dataset=dataset, partition="p", party="test", rows=100)
    plan = planned(shards, held_out, algorithm="dpdr-dpml")
    assert [list(release.upstream) for release in plan.evaluations] == list(plan.paths().values())
    assert 0.999 <= compose(plan.losses_by_party()["test"]).epsilon(1e-5) <= 1.0


def test_measuring_what_was_trained_without_delta_spends_none() -> None:
    dataset = dataset_of(visibility=Visibility.PRIVATE)
    held_out = ShardRef(dataset=dataset, partition="p", party="test", rows=100)
    plan = planned(shards_of(dataset), held_out, algorithm="dpml")
    assert {release.name for release in plan.evaluations} == {"laplace-confusion-matrix"}
    for losses_of_party in plan.losses_by_party().values():
        assert all(isinstance(loss, PureEpsilon) for loss in losses_of_party)
        assert compose(losses_of_party).epsilon(0.0) <= 1.0


@pytest.mark.parametrize("name", ["mod-sulq-dpsvm", "dpdr-noisy-gd", "sufficient-statistics"])
def test_a_charged_evaluation_costs_the_training_nothing(name: str) -> None:
    """The held-out rows pay for it with a budget of their own; the training's noise is what it is without one."""
    dataset = dataset_of(visibility=Visibility.PRIVATE)
    shards = shards_of(dataset)
    held_out = ShardRef(dataset=dataset, partition="p", party="test", rows=100)
    alone = planned(shards, held_out, algorithm=name, evaluation=False)
    evaluated = planned(shards, held_out, algorithm=name)
    assert evaluated.evaluations
    assert evaluated.models[0].budget == alone.models[0].budget
    assert compose(evaluated.losses_by_party()["0"]).epsilon(1e-5) >= 0.999


def test_names_and_parameters_that_do_not_fit() -> None:
    with pytest.raises(ValidationError, match="fed-dpdr-dpml"):
        planned(algorithm="fed-dpdr-dmpl")
    with pytest.raises(ParameterError, match=r"trainer\.regularisation"):
        planned(algorithm="fed-dpdr-dpml", parameters={"regularization": 0.1})
    with pytest.raises(InputError, match=r"65.*64"):
        planned(algorithm="fed-dpdr-dpml", dimension=65)
    with pytest.raises(InputError, match=r"65.*64"):
        planned(algorithm="fed-dpdr-dpml", parameters={"components": 65})
    with pytest.raises(ParameterError, match="--epsilon"):
        planned(algorithm="noisy-gd", epsilon=None)
    with pytest.raises(ParameterError, match=r"dpml.*central.*local"):
        planned(algorithm="dpml", trust=Trust.CENTRAL)
    assert planned(algorithm="non-private", epsilon=None).split == {}


COMBINATIONS = list(itertools.product((None, *names("projections")), names("trainers")))
MET = {("analyze-gauss", "objective-perturbation"), (None, "noisy-gd")}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "all"])
def test_every_registered_pair_runs_or_says_why_not(every: bool) -> None:
    """By day one pair in five."""
    ran = set()
    for number, (projection, trainer) in enumerate(COMBINATIONS):
        # In turn: trainers are not a multiple of five.
        if not every and number % 5 and (projection, trainer) not in MET:
            continue
        for classes in (2, 3):
            try:
                plan = planned(
                    shards_of(dataset_of(classes=classes)), algorithm=None, projection=projection, trainer=trainer
                )
            except ParameterError:
                continue
            ran.add((projection, trainer))
            assert plan.system == "+".join(part for part in (projection, trainer) if part)
            assert [release.name for release in plan.models] == [trainer] * len(plan.models)
            if all(release.guarantee().proved for release in plan.releases):
                for losses_of_party in plan.losses_by_party().values():
                    assert compose(losses_of_party).epsilon(1e-5) <= 1.0
    assert ran >= MET
    assert len(ran) > len(COMBINATIONS) / (2 if every else 10)


def test_an_exchanged_part_no_longer_carries_the_papers_claim() -> None:
    assert planned(algorithm="fed-dpdr-dpml-published").claim is not None
    assert planned(algorithm="fed-dpdr-dpml-published", aggregation="weighted-mean").claim is None
    changed = planned(algorithm="fed-dpdr-dpml", projection="identity")
    assert changed.system == "fed-dpdr-dpml+identity"
    assert [release.name for release in changed.releases if release.reads_rows] == ["objective-perturbation"] * 3


NUMBERS = tuple(TableColumn(at=at) for at in range(6))


def table(columns: tuple[TableColumn, ...] = NUMBERS, rows: int = 100_000) -> list[ShardRef]:
    return shards_of(dataset_of(classes=2, dimension=6, rows=rows, columns=columns), (rows,))


def mu_squared(release: PlannedRelease) -> float:
    assert isinstance(release.budget, GaussianMu)
    return release.budget.mu**2


@pytest.mark.parametrize("columns", [NUMBERS, ()], ids=["declared columns", "no schema"])
def test_a_projection_that_is_asked_for_has_its_own_share_and_no_reason_of_the_one_it_replaces(
    columns: tuple[TableColumn, ...],
) -> None:
    usual = planned(table(columns), algorithm="unitball", trust="central")
    assert usual.projections[0].name == "private-centring"
    assert any("mean of all rows is estimated and subtracted" in reason for reason in usual.reasons)
    asked = planned(table(columns), algorithm="unitball", trust="central", projection="analyze-gauss")
    assert asked.projections[0].name == "analyze-gauss"
    assert not any("mean of all rows" in reason for reason in asked.reasons)
    assert any("analyze-gauss, as asked for" in reason for reason in asked.reasons)
    # A small share is enough of a mean alone.
    assert mu_squared(usual.projections[0]) < 0.2 * mu_squared(usual.models[0])
    assert mu_squared(asked.projections[0]) == pytest.approx(mu_squared(asked.models[0]))
    # Whoever asks for what is chosen anyway has the same.
    same = planned(table(columns), algorithm="unitball", trust="central", projection="private-centring")
    assert (same.split, same.reasons) == (usual.split, usual.reasons)


def test_of_images_too() -> None:
    images = shards_of(dataset_of(rows=90_000, image_shape=(8, 8)), (90_000,))
    asked = planned(images, algorithm="unitball", projection="hog")
    assert not any("whitened" in reason for reason in asked.reasons)


DRAFTED: dict[str, dict[str, Any]] = {
    "recommended": {},
    "descent": {"algorithm": "noisy-gd"},
    "pure": {"algorithm": "dpml"},
    "two kinds": {"algorithm": "fed-dpdr-dpml"},
    "tuned": {"algorithm": None, "trainer": "noisy-gd", "trust": "central", "tune": {"clip": [0.5, 0.25]}},
}


@pytest.mark.parametrize("name", DRAFTED)
@pytest.mark.parametrize("mutant", [False, True])
def test_a_draft_at_another_delta_is_the_draft_of_that_delta(
    name: str, mutant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant keeps the parts that were chosen, and what is said of them, at the first delta."""
    shards = shards_of(dataset_of(classes=3, dimension=30, rows=6000), (2000,) * 3)
    asked = {delta: TrainingConfig(epsilon=1.0, delta=delta, **DRAFTED[name]) for delta in (1e-3, 1e-7)}
    first = planning.draft_run(asked[1e-3], shards)
    if mutant:
        monkeypatch.setattr(planning, "_resolved", lambda *_: first.resolved)
    moved = first.at_delta(1e-7)
    monkeypatch.undo()
    fresh = planning.draft_run(asked[1e-7], shards)
    assert moved.config == fresh.config
    by_delta = name in ("recommended", "tuned")
    assert (moved.fitted() == fresh.fitted()) is not (mutant and by_delta)


def test_what_is_tuned_is_one_release_at_the_runs_budget() -> None:
    asked: dict[str, Any] = {
        "algorithm": None,
        "trainer": "noisy-gd",
        "tune": {"clip": "0.5,0.25", "momentum": [0, 0.9]},
    }
    plan = planned(**asked, trust=Trust.CENTRAL)
    (model,) = plan.models
    assert plan.system == "noisy-gd+tuned"
    assert model.algorithm.parameters["grid"] == {"clip": [0.5, 0.25], "momentum": [0, 0.9]}
    (loss,) = model.guarantee().losses
    assert isinstance(loss, PrivateSelection)
    assert (loss.selected, loss.candidates) == (ApproximateDP(1.0, 1e-5), 4)
    assert "4 candidates of noisy-gd" in plan.reasons[-1]
    assert RunPlan.model_validate_json(plan.model_dump_json()) == plan
    other = planned(**{**asked, "tune": {"clip": [0.5, 0.25]}}, trust=Trust.CENTRAL)
    assert not keys_of(other) & keys_of(plan)
    surer = planned(**asked, trust=Trust.CENTRAL, parameters={"tuned.enters": 0.75, "regularisation": 0.1})
    assert surer.models[0].algorithm.parameters["enters"] == 0.75
    assert surer.models[0].algorithm.parameters["parameters"] == {"regularisation": 0.1}
    # A rule's own value gives way to the grid.
    images = shards_of(dataset_of(rows=90_000, image_shape=(8, 8)), (30_000,) * 3)
    chosen = planned(images, trust=Trust.CENTRAL, tune={"step_size": [1, 4]})
    assert chosen.system == "unitball+tuned"
    fixed = chosen.models[0].algorithm.parameters["parameters"]
    assert isinstance(fixed, dict)
    assert "iterations" in fixed
    assert "step_size" not in fixed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trust": "secagg"}, "2 candidates.*0.68"),
        ({"trust": "central", "trainer": "objective-perturbation-gaussian"}, "'clip'"),
        ({"trust": "central", "projection": "private-centring"}, "private-centring"),
        ({"trust": "central", "trainer": "erm"}, "^erm"),
        ({"trust": "central", "tune": {"klip": "1"}}, "trainer.clip"),
        ({"trust": "central", "parameters": {"tuned.grid": {}}}, "held_out"),
        ({"trust": "central", "parameters": {"tuned.enters": 0.5}, "tune": {}}, "--tune"),
        ({"trust": "central", "parameters": {"trainer.clip": 0.3}}, "^clip.*tuned"),
        (
            {"trust": "central", "class_weight": "balanced", "tune": {"class_weight": ["balanced", [0.1, 1.0]]}},
            "^class_weight.*tuned",
        ),
    ],
)
def test_what_cannot_be_tuned_is_refused_with_the_way_out(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        planned(**{"algorithm": None, "trainer": "noisy-gd", "tune": {"clip": "0.5,0.25"}, **given})


def test_a_release_with_an_unknown_field_is_refused() -> None:
    release = planned(algorithm="noisy-gd").releases[0]
    with pytest.raises(ValueError, match="extra"):
        PlannedRelease(**{**release.model_dump(), "epsilon": 3})


def test_a_run_under_add_remove_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"add-remove-one.*replace-special"):
        planned(algorithm="noisy-gd", neighbours="add-remove-one")


def test_a_run_under_replace_special_says_so_in_every_guarantee() -> None:
    plan = planned(projection="analyze-gauss", trainer="sufficient-statistics", neighbours="replace-special")
    assert {release.guarantee().neighbours for release in plan.releases} == {Neighbours.REPLACE_SPECIAL}
