"""Every registered projection, trainer, evaluator and system keeps the contract of ``dpalgos.testing``."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from dpalgos import models, registry, testing
from dpalgos.algorithms import (
    NeighbouringPair,
    OneSum,
    PrivateAlgorithm,
    Refused,
    TrustedSummation,
    admission,
    is_sum_algorithm,
    one_row_apart,
)
from dpalgos.features import patches
from dpalgos.guarantees import Claim, GaussianMu, Guarantee, Loss, Numerics, PureEpsilon, Setting, Trust, nothing_proved
from dpalgos.integer_sums import ClassSums, by_norm, encode_rows, row_weights, squared_limit
from dpalgos.mechanisms.distributions import RoundedGaussian, pack
from dpalgos.models import Statistic, opened
from dpalgos.parameters import ParameterError
from dpalgos.registry import AlgorithmSpec, lookup, names
from dpalgos.rows import ArrayRows, Block, Floats, Ints, Rows, Shares
from dpalgos.systems.system import Arrangement, Scope, System
from dpalgos.testing import BUDGETS, KINDS, check_algorithm, check_trust_model
from dpalgos.trust.model import Central
from tests.dpalgos.parameters import PARAMETERS, TRUSTS
from tests.support.nights import spanning
from tests.support.training import gather

REGISTERED = [(kind, name) for kind in KINDS for name in names(kind)]
CASES = [
    pytest.param(kind, name, given, id=f"{name}-{index}")
    for (kind, name) in REGISTERED
    for index, given in enumerate(PARAMETERS.get((kind, name), []))
]
# By day with one set of parameters a name.
BY_DAY = [
    pytest.param(kind, name, given, id=f"{name}-0")
    for (kind, name) in REGISTERED
    for given in PARAMETERS.get((kind, name), [])[:1]
]


def test_every_name_has_test_parameters() -> None:
    """The contract reaches every registered name, so a new one without a row in the table fails here."""
    assert set(PARAMETERS) == set(REGISTERED)
    assert all(PARAMETERS.values())


@pytest.fixture
def fewer_rows_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the rows: L/k is a whole number of grid units for the most of them, and none for the others."""
    monkeypatch.setattr(testing, "_PEOPLE", (1, 3, 100, 128))


def _check(kind: str, name: str, given: Mapping[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    # Images of six pixels have few patches, and a dictionary of them is learnt once a run.
    monkeypatch.setattr(patches, "_BATCH", 256)
    check_algorithm(kind, name, given)


@pytest.mark.parametrize(("kind", "name", "given"), BY_DAY)
@pytest.mark.usefixtures("fewer_rows_a_person", "coarse_accounting")
def test_contract(kind: str, name: str, given: Mapping[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    _check(kind, name, given, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "name", "given"), CASES)
def test_contract_with_all_parameters_and_a_thousand_rows_a_person(
    kind: str, name: str, given: Mapping[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    _check(kind, name, given, monkeypatch)


def test_unknown_parameters_are_named() -> None:
    with pytest.raises(ParameterError, match="'iteration'"):
        AlgorithmSpec("trainers", "noisy-gd", {"budget": GaussianMu(1.0), "iteration": 1}).build()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count(PrivateAlgorithm, OneSum):
    """How many rows are of class 0, with noise: as simple as an algorithm can be.

    Guarantee
    ---------
    The budget: one row moves the count by at most 1.
    """

    source: ClassVar[str] = "the tests"
    budgets: ClassVar[tuple[type[Loss], ...]] = (GaussianMu,)
    measured: ClassVar[str] = "count"
    norm: ClassVar[int] = 2
    budget: GaussianMu

    def guarantee(self, setting: Setting) -> Guarantee:
        self.check(setting)
        return Guarantee(losses=(self.budget,), neighbours=setting.neighbours, numerics=Numerics.EXACT)

    def sum_shape(self, setting: Setting) -> tuple[int, ...]:
        return (1,)

    def sensitivity(self, setting: Setting) -> float:
        return 1.0

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        return self.contribution(self.initial(setting), rows, setting).astype(np.float64)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        row = np.eye(1, setting.dimension)[0]
        return one_row_apart(setting, row, row, labels=(0, 1))

    def distribution(self, setting: Setting) -> RoundedGaussian:
        return RoundedGaussian(self.sensitivity(setting) / self.budget.mu)

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        return np.array([(gather(rows, setting.classes)[1] == 0).sum()])

    def result(self, state: Ints, setting: Setting) -> Statistic:
        return Statistic(values=state.astype(np.float64))


def mutants() -> dict[str, type]:
    """Count with one part of the contract broken each."""
    parameters = {"frozen": True, "kw_only": True}

    def made(**changed: object) -> type:
        changed = {"__doc__": Count.__doc__, **changed}
        return dataclasses.dataclass(**parameters)(type("Mutant", (Count,), changed))

    def silent(self: Count, setting: Setting) -> Guarantee:
        return nothing_proved("", setting.neighbours)

    def doubled(self: Count, setting: Setting) -> Guarantee:
        return Guarantee(losses=(self.budget, self.budget))

    def raising(self: Count, state: Ints, rows: Rows, setting: Setting) -> Ints:
        assert rows.count, "no rows"
        return Count.contribution(self, state, rows, setting)

    def telling(self: Count, state: Ints, rows: Rows, setting: Setting) -> Ints:
        return np.zeros(1 + any(labels.any() for _, labels, _ in rows.blocks()), dtype=np.int64)

    def unchecked(self: Count, setting: Setting) -> Guarantee:
        return Guarantee(losses=(self.budget,), neighbours=setting.neighbours, numerics=Numerics.EXACT)

    def equal(self: Count, setting: Setting) -> NeighbouringPair:
        pair = Count.neighbouring_pair(self, setting)
        return dataclasses.replace(pair, right=pair.left)

    def counting_all(self: Count, state: Ints, rows: Rows, setting: Setting) -> Ints:
        return np.array([sum((np.asarray(labels, dtype=np.float64) <= 0).sum() for _, labels, _ in rows.blocks())])

    def logging_some(self: Count, state: Ints, rows: Rows, setting: Setting) -> Ints:
        if not all(np.isfinite(features).all() for features, *_ in rows.blocks()):
            logging.getLogger(__name__).warning("some rows are null")
        return Count.contribution(self, state, rows, setting)

    def warning_some(self: Count, state: Ints, rows: Rows, setting: Setting) -> Ints:
        for features, *_ in rows.blocks():
            np.asarray(features).sum()
        return Count.contribution(self, state, rows, setting)

    def raising_later(self: Count, state: Ints, rows: Rows, setting: Setting) -> Ints:
        assert abs(int(state[0])) < 2**40, "no state is so large"
        return Count.contribution(self, state, rows, setting)

    def of_a_cell(self: Count, state: Ints, rows: Rows, setting: Setting) -> Ints:
        for features, *_ in rows.blocks():
            np.zeros(setting.dimension)[np.nan_to_num(features).argmax(axis=1)]
        return Count.contribution(self, state, rows, setting)

    return {
        "log": made(contribution=logging_some),
        "warning": made(contribution=warning_some),
        "sums": made(contribution=raising_later, steps=lambda self, setting: 2),
        "cells": made(contribution=of_a_cell),
        "relations": made(guarantee=unchecked),
        "sensitivity": made(sensitivity=lambda self, setting: 0.5),
        "null records": made(contribution=counting_all),
        "docstring": made(__doc__="Nothing is said."),
        "frozen": type("Mutant", (Count,), {"__doc__": Count.__doc__}),
        "sound counterpart": made(guarantee=silent),
        "flawed": made(claim=Claim("epsilon-DP", "Theorem 1", "a flaw")),
        "budget": made(guarantee=doubled),
        "total": made(contribution=raising),
        "shapes": made(contribution=telling),
        "neighbours": made(neighbouring_pair=equal),
        "noiseless": made(result=lambda self, state, setting: Statistic(values=np.zeros(1))),
        "unvalidated": made(__post_init__=lambda self: None),
    }


SAYS = {
    "log": "Unexpected",
    "warning": "RuntimeWarning",
    "sums": "AssertionError",
    "cells": "IndexError",
}
"""What the contract says of those whose fault shows behind an artefact alone."""


def test_an_honest_algorithm_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ENTRIES, ("evaluators", "mutant"), Count)
    check_algorithm("evaluators", "mutant", {"budget": GaussianMu(0.5)})


@pytest.mark.parametrize("broken", sorted(mutants()))
def test_the_contract_catches(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ENTRIES, ("evaluators", "mutant"), mutants()[broken])
    with pytest.raises(AssertionError, match=SAYS.get(broken, "")):
        check_algorithm("evaluators", "mutant", {"budget": GaussianMu(0.5)})


# ── people ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _forgotten(rows: ArrayRows) -> Iterator[Block]:
    return ((features, labels, None) for features, labels, _ in _BLOCKS(rows))


def _counted_by_block(rows: ArrayRows) -> Iterator[Block]:
    for features, labels, shares in _BLOCKS(rows):
        assert shares is not None
        yield features, labels, np.minimum(shares, np.bincount(shares)[shares])


def _too_much(shares: Shares, limit: float, squared_weight: Callable[[int], Fraction] = by_norm) -> Any:
    factors, _ = row_weights(shares, limit, squared_weight)
    return factors, np.ceil(np.sqrt(limit) * factors) ** 2


def _one_sided(blocks: Iterable[Block], clean: Any, width: int, scale: float, **_: int) -> Ints:
    """Add up x̃ᵀ(x̃/k), the second factor rounded and clipped by itself."""
    total = np.zeros((width, width), dtype=np.int64)
    for features, labels, shares in blocks:
        rows = clean(features, labels)
        assert shares is not None
        weights = row_weights(shares, squared_limit(1.0, scale))
        total += encode_rows(rows, 1.0, scale, weights).T @ encode_rows(rows, 1.0, scale)
    return pack(total)


_BLOCKS = ArrayRows.blocks
WEIGHED = {
    "bin-counts": "evaluators",
    "laplace-bin-counts": "evaluators",
    "class-means": "trainers",
    "column-histograms": "evaluators",
    "confusion-matrix": "evaluators",
    "error-distribution": "evaluators",
    "pair-counts": "evaluators",
    "noisy-gd": "trainers",
    "output-perturbation": "trainers",
    "analyze-gauss": "projections",
    "ppca": "projections",
    "private-centring": "projections",
}


def _check_people(name: str) -> None:
    kind = WEIGHED.get(name, "trainers")
    testing._moves_by_people_as_by_records(testing._Case(kind, name, PARAMETERS[kind, name][0]))


@pytest.mark.parametrize(("name", "blocks"), spanning(list(WEIGHED), [_forgotten, _counted_by_block]))
@pytest.mark.usefixtures("fewer_rows_a_person")
def test_the_contract_catches_weights_that_are_forgotten_or_made_by_block(
    name: str, blocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ArrayRows, "blocks", blocks)
    with pytest.raises(AssertionError, match="statistic"):
        _check_people(name)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        pytest.param("noisy-gd", "integer_sums", marks=pytest.mark.nightly),
        ("analyze-gauss", "integer_sums"),
        ("private-centring", "projections.centring"),
    ],
)
@pytest.mark.usefixtures("fewer_rows_a_person")
def test_the_contract_catches_weights_that_are_rounded_up(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"dpalgos.{module}.row_weights", _too_much)
    with pytest.raises(AssertionError, match="statistic"):
        _check_people(name)


@pytest.mark.usefixtures("fewer_rows_a_person")
def test_the_contract_catches_squares_that_are_weighed_on_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpalgos.projections.covariance.packed_gram", _one_sided)
    with pytest.raises(AssertionError, match="statistic"):
        _check_people("analyze-gauss")


@pytest.mark.usefixtures("fewer_rows_a_person")
def test_the_contract_catches_counts_that_are_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def up(unit: int, shares: Shares | None, count: int) -> Ints:
        return np.full(count, unit) if shares is None else -(-unit // shares.astype(np.int64))

    monkeypatch.setattr("dpalgos.evaluators.noisy_sums.portions", up)
    monkeypatch.setattr("dpalgos.integer_sums.portions", up)
    monkeypatch.setattr(ClassSums, "_squared_weight", lambda sums, k: Fraction(-(-sums.unit // k), sums.unit) ** 2)
    for name in ("class-means", "confusion-matrix"):
        with pytest.raises(AssertionError, match="statistic"):
            _check_people(name)


def test_the_contract_catches_a_constant_beside_features_of_another_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features up to L/k beside a count of ⌊a/k⌋ leave the hull where the count is what is rounded most."""
    monkeypatch.setattr(ClassSums, "unit", property(lambda _: 1500))
    _check_people("class-means")
    monkeypatch.setattr(ClassSums, "_squared_weight", staticmethod(lambda rows: 4 * by_norm(rows)))
    with pytest.raises(AssertionError, match="statistic"):
        _check_people("class-means")


@pytest.mark.parametrize("name", ["gradient-perturbation", "output-perturbation", "consensus-admm"])
@pytest.mark.usefixtures("fewer_rows_a_person")
def test_the_contract_catches_rows_in_the_place_of_people(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose number is no fact that neighbours share: it would weigh everybody else's rows."""
    monkeypatch.setattr(ArrayRows, "count", property(lambda rows: len(rows.features)))
    with pytest.raises(AssertionError, match="statistic"):
        _check_people(name)


@pytest.mark.parametrize("name", WEIGHED)
def test_each_person_of_one_row_is_a_record(name: str) -> None:
    """With one row each, whole numbers are those of records, bit for bit, but for the unit of counts."""
    kind = WEIGHED[name]
    case = testing._Case(kind, name, PARAMETERS[kind, name][0])
    algorithm: Any = case.build()
    rows = testing.blobs(40, case.setting.dimension, testing.CLASSES, 5)
    people = dataclasses.replace(rows, shares=np.ones(40, dtype=np.int32), people=40)
    setting = dataclasses.replace(case.setting, rows_per_person=64)
    assert np.array_equal(algorithm.statistic(rows, case.setting), algorithm.statistic(people, setting))
    assert np.array_equal(algorithm.statistic(rows, case.setting), algorithm.statistic(people, case.setting))


@pytest.mark.parametrize("name", [name for name in WEIGHED if name not in {"ppca", "output-perturbation"}])
def test_a_persons_rows_move_no_one_elses_whole_numbers(name: str) -> None:
    """At the first place, the last, among others and alone in a block, each row adds the same."""
    kind = WEIGHED[name]
    case = testing._Case(kind, name, PARAMETERS[kind, name][0])
    algorithm: Any = case.build()
    setting = dataclasses.replace(case.setting, rows_per_person=64, sizes=(60,))
    random = np.random.default_rng(7)
    rows = testing.blobs(60, setting.dimension, testing.CLASSES, 5)
    shares = random.integers(1, 8, 60)

    def added(places: Ints, block: int) -> Ints:
        some = ArrayRows(rows.features[places], rows.labels[places], block, shares[places], 60)
        return np.asarray(algorithm.contribution(algorithm.initial(setting), some, setting))

    alone = [added(np.array([place]), 16) for place in range(60)]
    for block in (1, 7, 16, 60):
        order = random.permutation(60)
        assert np.array_equal(added(order, block), sum(alone))
        assert np.array_equal(added(order[:23], block), sum(alone[place] for place in order[:23]))


def test_what_takes_no_people_says_so_in_one_sentence() -> None:
    setting = Setting(sizes=(40,), dimension=6, classes=3, rows_per_person=2)
    with pytest.raises(ParameterError, match=r"Hessian.*Algorithms and guarantees"):
        AlgorithmSpec("trainers", "objective-perturbation", {"budget": PureEpsilon(1.0)}).build().guarantee(setting)
    with pytest.raises(ParameterError, match="rows_per_person is 0"):
        dataclasses.replace(setting, rows_per_person=0)

    class Changed(lookup("trainers", "class-means")):  # type: ignore[misc]  # a class that is looked up
        """An argument is not inherited: nobody has read what is changed here."""

    assert isinstance(admission(Changed), Refused)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e300, -(2.0**65)])
@pytest.mark.parametrize("type_", ["<f8", "<f4", "<f2", "<c16"])
def test_no_artefact_from_elsewhere_holds_what_is_no_bounded_number(number: float, type_: str) -> None:
    with np.errstate(all="ignore"):
        weights = np.array([[0.5, number]]).astype(type_)
    with pytest.raises(ParameterError, match=r"^weights.*1\.84e\+19"):
        opened("linear-model", {"weights": weights, "intercept": np.zeros(1)})


def test_what_is_nearly_zero_in_an_artefact_from_elsewhere_is_zero() -> None:
    """Products of subnormal numbers take a processor longer, for some rows and not for others."""
    weights = np.array([[5e-324, -1e-310, 1e-77, 0.5, -0.0]])
    model = opened("linear-model", {"weights": weights, "intercept": np.zeros(1)})
    assert model.weights.tolist() == [[0.0, 0.0, 1e-77, 0.5, 0.0]]


def test_every_trust_model_has_settings_to_test() -> None:
    assert set(TRUSTS) == set(names("trusts"))


@pytest.mark.parametrize("name", sorted(TRUSTS))
def test_contract_of_trust_models(name: str) -> None:
    check_trust_model(name, TRUSTS[name])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Lossy(Central):
    """Forgets a party."""

    def summation(self, *args: Any, **kwargs: Any) -> Any:
        whole = TrustedSummation(args[2][0])
        return SimpleNamespace(release=lambda step, parts, law: whole.release(step, parts[:-1], law))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Noiseless(Central):
    """Forgets the noise."""

    def summation(self, *args: Any, **kwargs: Any) -> Any:
        return SimpleNamespace(release=lambda step, parts, law: sum(parts))


@pytest.mark.parametrize("mutant", [_Lossy, _Noiseless])
def test_the_contract_of_trust_models_catches(mutant: type[Central], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._ENTRIES, ("trusts", "mutant"), mutant)
    with pytest.raises(AssertionError, match=r"not the sum|no noise"):
        check_trust_model("mutant")


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
    specs = [spec for arrangement in system.arrangements.values() for spec in _specs(arrangement)]
    proved = all(map(_proved, specs))
    classes = [lookup(spec.kind, spec.name) for spec in specs]
    noisy = all(cls.budgets for cls in classes if getattr(cls, "reads_rows", False))
    flawed = system.claim is not None and system.claim.flaw is not None
    assert proved == (noisy and not flawed)
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
    given = {"budget": BUDGETS[cls.budgets[0]]} if cls.budgets else {}
    algorithm = spec.with_parameters(**given).build()
    setting = Setting(sizes=(400,), dimension=64, classes=10)
    return bool(algorithm.guarantee(setting).proved)


def test_each_kind_of_release_is_of_one_class() -> None:
    """Of two classes of a kind, the last one imported would read what the other has stored."""
    named = re.findall(
        r'^@released_kind\("([^"]+)"\)',
        "\n".join(path.read_text("utf-8") for path in Path(models.__file__).parent.rglob("*.py")),
        flags=re.M,
    )
    assert len(named) > 10
    assert len(named) == len(set(named)), sorted(named)
