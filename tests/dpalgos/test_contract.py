"""Every registered projection, trainer, evaluator and system keeps the contract of ``dpalgos.testing``."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from dpalgos import registry
from dpalgos.algorithms import OneSum, PrivateAlgorithm, is_sum_algorithm
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Claim, GaussianMu, Guarantee, Loss, Numerics, Setting, Trust, nothing_proved
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.models import Statistic, opened
from dpalgos.neighbouring import NeighbouringPair, one_row_apart
from dpalgos.registry import AlgorithmSpec, lookup, names
from dpalgos.rows import Floats, Ints, Rows, gather
from dpalgos.summation import TrustedSummation
from dpalgos.systems.system import Arrangement, Scope, System
from dpalgos.testing import BUDGETS, KINDS, check_algorithm, check_trust_model
from dpalgos.trust.central import Central
from tests.dpalgos.parameters import PARAMETERS, TRUSTS

REGISTERED = [(kind, name) for kind in KINDS for name in names(kind)]
CASES = [
    pytest.param(kind, name, given, id=f"{name}-{index}")
    for (kind, name) in REGISTERED
    for index, given in enumerate(PARAMETERS.get((kind, name), []))
]


def test_every_name_has_test_parameters() -> None:
    """The contract reaches every registered name, so a new one without a row in the table fails here."""
    assert set(PARAMETERS) == set(REGISTERED)
    assert all(PARAMETERS.values())


@pytest.mark.parametrize(("kind", "name", "given"), CASES)
def test_contract(kind: str, name: str, given: Mapping[str, object]) -> None:
    check_algorithm(kind, name, given)


def test_unknown_parameters_are_named() -> None:
    with pytest.raises(ParameterError, match=r"noisy-gd has no parameter 'iteration'; it has: iterations"):
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

    def law(self, setting: Setting) -> RoundedGaussian:
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
    "log": "behind a model with .*: Unexpected logs found",
    "warning": "RuntimeWarning behind a model",
    "sums": "AssertionError after sums of",
    "cells": "IndexError of a score too many",
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


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e300, -(2.0**65)])
@pytest.mark.parametrize("type_", ["<f8", "<f4", "<f2", "<c16"])
def test_no_artefact_from_elsewhere_holds_what_is_no_bounded_number(number: float, type_: str) -> None:
    with np.errstate(all="ignore"):
        weights = np.array([[0.5, number]]).astype(type_)
    with pytest.raises(ParameterError, match="weights has numbers"):
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
