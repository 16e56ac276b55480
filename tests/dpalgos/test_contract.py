"""The contract that every registered projection, trainer and system keeps, over a table of names and parameters."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpalgos.algorithms import fit, is_sum_algorithm
from dpalgos.errors import ParameterError
from dpalgos.guarantees import (
    ApproximateDP,
    Claim,
    GaussianMu,
    Guarantee,
    Neighbours,
    NoGuarantee,
    PureEpsilon,
    Setting,
    Trust,
    ZeroConcentrated,
)
from dpalgos.mechanisms.gaussian import delta_of_mu
from dpalgos.models import decode
from dpalgos.registry import AlgorithmSpec, lookup, names
from dpalgos.rows import ArrayRows
from dpalgos.systems.system import Arrangement, Scope, System
from tests.dpalgos.parameters import PARAMETERS
from tests.support.training import blobs, noise, parties_of

KINDS = ("projections", "trainers")
REGISTERED = [(kind, name) for kind in KINDS for name in names(kind)]
CASES = [
    pytest.param(kind, name, given, id=f"{name}-{index}")
    for (kind, name) in REGISTERED
    for index, given in enumerate(PARAMETERS.get((kind, name), []))
]
BUDGETS: dict[type[Any], Any] = {
    PureEpsilon: PureEpsilon(1.0),
    GaussianMu: GaussianMu(1.0),
    ZeroConcentrated: ZeroConcentrated(0.5),
    ApproximateDP: ApproximateDP(1.0, 1e-4),
}
DIMENSION, CLASSES = 6, 3


def _with(rows: ArrayRows, features: NDArray[np.float64] | None = None, labels: Any = None) -> ArrayRows:
    return ArrayRows(
        rows.features if features is None else features, rows.labels if labels is None else labels, block=16
    )


def _corrupt(rows: ArrayRows) -> ArrayRows:
    features, labels = rows.features.copy(), rows.labels.astype(np.float64)
    features[0], features[1], features[2, 3], features[3] = np.nan, np.inf, -np.inf, 1e308
    features[4], labels[5], labels[6], labels[7], labels[8] = 1e-320, np.nan, -7.0, 1e12, np.inf
    return _with(rows, features, labels)


def hostile_rows() -> dict[str, ArrayRows]:
    rows = blobs(40, DIMENSION, CLASSES, 0)
    return {
        "plain": rows,
        "equal": _with(rows, np.tile(rows.features[:1], (40, 1))),
        "rank-one": _with(rows, np.outer(np.linspace(-1, 1, 40), rows.features[0])),
        "one-row": _with(rows, rows.features[:1], rows.labels[:1]),
        "empty": _with(rows, rows.features[:0], rows.labels[:0]),
        "one-class": _with(rows, labels=np.zeros_like(rows.labels)),
        "zeros": _with(rows, np.zeros_like(rows.features)),
        "corrupt": _corrupt(rows),
        "long": _with(rows, 1e200 * rows.features),
        "as-many-rows-as-features": _with(rows, rows.features[:DIMENSION], rows.labels[:DIMENSION]),
    }


def setting_for(parties: list[ArrayRows], trust: Trust, classes: int = CLASSES) -> Setting:
    return Setting(sizes=tuple(rows.count for rows in parties), dimension=DIMENSION, classes=classes, trust=trust)


def run(
    kind: str, name: str, given: dict[str, Any], rows: ArrayRows, trust: Trust, *, seed: int = 0, classes: int = CLASSES
) -> Any:
    algorithm = AlgorithmSpec(kind, name, given).build()
    parties = [rows] if trust is Trust.LOCAL else parties_of(rows, 3)
    return fit(algorithm, parties, setting_for(parties, trust, classes), noise(seed))


def same(first: Any, second: Any) -> bool:
    one, two = first.arrays(), second.arrays()
    return one.keys() == two.keys() and all(np.array_equal(one[key], two[key]) for key in one)


def test_every_name_has_test_parameters() -> None:
    """The contract reaches every registered name, so a new one without a row in the table fails here."""
    assert set(PARAMETERS) == set(REGISTERED)
    assert all(PARAMETERS.values())


@pytest.mark.parametrize(("kind", "name"), REGISTERED)
def test_what_an_algorithm_says_about_itself(kind: str, name: str) -> None:
    cls = lookup(kind, name)
    assert vars(cls)["__dataclass_params__"].frozen
    assert all(field.kw_only for field in dataclasses.fields(cls))
    assert isinstance(cls.source, str)
    assert cls.source
    assert cls.claim is None or isinstance(cls.claim, Claim)
    assert cls.trusts
    assert all(isinstance(trust, Trust) for trust in cls.trusts)
    has_budget = "budget" in {field.name for field in dataclasses.fields(cls)}
    assert has_budget == bool(cls.budgets), "a budget field and accepted budgets come together"
    text = inspect.getdoc(cls) or ""
    assert "Guarantee\n---------" in text, "the docstring states what is proved"
    if cls.sound_counterpart is not None:
        assert lookup(kind, cls.sound_counterpart).sound_counterpart is None
        assert lookup(kind, cls.sound_counterpart).budgets
    assert (kind == "projections") == hasattr(cls, "output_dimension")


@pytest.mark.parametrize(("kind", "name", "given"), CASES)
def test_guarantee_and_claim_agree(kind: str, name: str, given: dict[str, Any]) -> None:
    algorithm = AlgorithmSpec(kind, name, given).build()
    setting = Setting(sizes=(40,), dimension=DIMENSION, classes=CLASSES)
    guarantee = algorithm.guarantee(setting)
    assert Guarantee.from_json(guarantee.to_json()) == guarantee
    assert guarantee.neighbours is Neighbours.REPLACE_ONE
    assert guarantee == algorithm.guarantee(setting)
    if algorithm.claim is not None and algorithm.claim.flaw is not None:
        assert not guarantee.proved
        assert algorithm.sound_counterpart is not None
    if not algorithm.reads_rows:
        assert guarantee.losses == ()
    elif not algorithm.budgets:
        assert not guarantee.proved
    if not guarantee.proved:
        assert guarantee.reason
        assert all(isinstance(loss, NoGuarantee) for loss in guarantee.losses)
        assert algorithm.sound_counterpart is not None
    if guarantee.proved and algorithm.budgets:
        budget, (first, *others) = given["budget"], guarantee.losses
        if isinstance(budget, PureEpsilon):
            assert sum(loss.epsilon for loss in guarantee.losses) == pytest.approx(budget.epsilon)
        elif isinstance(budget, ApproximateDP) and isinstance(first, GaussianMu):
            assert not others
            assert delta_of_mu(first.mu, budget.epsilon) <= budget.delta
        else:
            assert guarantee.losses == (budget,)


@pytest.mark.parametrize(("kind", "name", "given"), CASES)
def test_the_worst_pair_are_neighbours(kind: str, name: str, given: dict[str, Any]) -> None:
    """The pair differs in one row of one party, whose size is the one of the setting."""
    setting = Setting(sizes=(9, 5, 0), dimension=DIMENSION, classes=CLASSES, trust=Trust.CENTRAL)
    pair = AlgorithmSpec(kind, name, given).build().neighbouring_pair(setting)
    assert pair.left.count == pair.right.count == setting.sizes[pair.party]
    assert pair.left.dimension == pair.right.dimension == DIMENSION
    differ = (pair.left.features != pair.right.features).any(axis=1) | (pair.left.labels != pair.right.labels)
    assert differ.sum() == 1
    assert max(np.linalg.norm(rows.features, axis=1).max() for rows in (pair.left, pair.right)) <= 1.0


@pytest.mark.parametrize(("kind", "name", "given"), CASES)
def test_budgets_are_validated(kind: str, name: str, given: dict[str, Any]) -> None:
    cls = lookup(kind, name)
    if not cls.budgets:
        return
    for accepted in cls.budgets:
        AlgorithmSpec(kind, name, {**given, "budget": BUDGETS[accepted]}).build()
    for loss_type, budget in BUDGETS.items():
        if loss_type not in cls.budgets:
            with pytest.raises(ParameterError):
                AlgorithmSpec(kind, name, {**given, "budget": budget}).build()
    for field in dataclasses.fields(cls.budgets[0]):
        zero = dataclasses.replace(BUDGETS[cls.budgets[0]], **{field.name: 0.0})
        with pytest.raises(ParameterError, match=field.name):
            AlgorithmSpec(kind, name, {**given, "budget": zero}).build()
    with pytest.raises(ParameterError):
        AlgorithmSpec(kind, name, {**given, "budget": NoGuarantee("none")}).build()


@pytest.mark.parametrize(("kind", "name", "given"), CASES)
def test_unknown_parameters_are_named(kind: str, name: str, given: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="no_such_field"):
        AlgorithmSpec(kind, name, {**given, "no_such_field": 1}).build()


@pytest.mark.parametrize("rows", list(hostile_rows()))
@pytest.mark.parametrize(("kind", "name", "given"), CASES)
def test_total_finite_and_repeatable_on_any_rows(kind: str, name: str, given: dict[str, Any], rows: str) -> None:
    cls = lookup(kind, name)
    for trust in cls.trusts:
        if trust is Trust.SECAGG:
            continue
        taken = hostile_rows()[rows]
        first = run(kind, name, given, taken, trust)
        for array in first.arrays().values():
            assert np.isfinite(np.asarray(array, dtype=np.float64)).all()
        assert same(first, run(kind, name, given, taken, trust))
        assert same(first, decode(first.kind, first.arrays()))


@pytest.mark.parametrize(("kind", "name", "given"), CASES)
def test_shapes_are_public(kind: str, name: str, given: dict[str, Any]) -> None:
    trust = lookup(kind, name).trusts[0]
    shapes = set()
    for rows in ("plain", "equal", "one-class", "zeros", "corrupt"):
        artefact = run(kind, name, given, hostile_rows()[rows], trust)
        shapes.add(tuple(sorted((key, array.shape) for key, array in artefact.arrays().items())))
    if (
        lookup(kind, name).budgets
        and AlgorithmSpec(kind, name, given)
        .build()
        .guarantee(Setting(sizes=(40,), dimension=DIMENSION, classes=CLASSES))
        .proved
    ):
        assert len(shapes) == 1
    if kind == "projections":
        declared = AlgorithmSpec(kind, name, given).build().output_dimension(DIMENSION)
        plain = run(kind, name, given, hostile_rows()["plain"], trust)
        assert plain.transform(np.zeros((2, DIMENSION))).shape == (2, declared)


@pytest.mark.parametrize(("kind", "name", "given"), CASES)
def test_noise_is_drawn_where_it_is_paid_for(kind: str, name: str, given: dict[str, Any]) -> None:
    cls = lookup(kind, name)
    rows = blobs(40, DIMENSION, CLASSES, 1)
    for trust in cls.trusts:
        if trust is Trust.SECAGG:
            continue
        differ = not same(run(kind, name, given, rows, trust, seed=1), run(kind, name, given, rows, trust, seed=2))
        assert differ == bool(cls.budgets)


@pytest.mark.parametrize(("kind", "name", "given"), CASES)
def test_binary_problems_have_one_row_of_weights(kind: str, name: str, given: dict[str, Any]) -> None:
    if kind == "trainers":
        rows = blobs(40, DIMENSION, 2, 2)
        model = run(kind, name, given, rows, lookup(kind, name).trusts[0], classes=2)
        assert model.scores(rows.features).shape == (40, 1)
        assert set(np.unique(model.predict(rows.features))) <= {0, 1}


@pytest.mark.parametrize("name", names("systems"))
def test_systems_are_made_of_registered_parts(name: str) -> None:
    system: System = lookup("systems", name)
    assert system.summary
    assert system.source
    for trust, arrangement in system.arrangements.items():
        for spec in _specs(arrangement):
            cls = lookup(spec.kind, spec.name)
            known = {field.name for field in dataclasses.fields(cls)}
            assert set(spec.parameters) <= known
            if spec.kind == "aggregators" or not cls.reads_rows:
                continue
            # What sees noisy sums alone runs wherever sums are formed.
            assert is_sum_algorithm(cls) if trust is Trust.SECAGG else trust in cls.trusts
        assert 0.0 < arrangement.projection_share < 1.0
        local = trust is Trust.LOCAL
        assert (arrangement.trainer_scope is Scope.PARTY) == local
        if arrangement.model_aggregation is not None:
            assert arrangement.trainer_scope is Scope.PARTY


@pytest.mark.parametrize("name", names("systems"))
def test_systems_say_whether_they_are_proved(name: str) -> None:
    """A system is as good as its worst part; the published ones name a sound system instead."""
    system: System = lookup("systems", name)
    proved = all(_proved(spec) for arrangement in system.arrangements.values() for spec in _specs(arrangement))
    if system.claim is not None and system.claim.flaw is not None:
        assert not proved
    if system.sound_counterpart is not None:
        assert not proved
        sound: System = lookup("systems", system.sound_counterpart)
        assert all(_proved(spec) for arrangement in sound.arrangements.values() for spec in _specs(arrangement))


def _specs(arrangement: Arrangement) -> list[AlgorithmSpec]:
    parts = (
        arrangement.projection,
        arrangement.basis_aggregation,
        arrangement.trainer,
        arrangement.model_aggregation,
    )
    return [part for part in parts if part is not None]


def _proved(spec: AlgorithmSpec) -> bool:
    if spec.kind == "aggregators":
        return True
    cls = lookup(spec.kind, spec.name)
    given: dict[str, Any] = {"budget": BUDGETS[cls.budgets[0]]} if cls.budgets else {}
    algorithm = spec.with_parameters(**given).build()
    setting = Setting(sizes=(400,), dimension=64, classes=10)
    assert math.isfinite(setting.rows)
    return bool(algorithm.guarantee(setting).proved)
