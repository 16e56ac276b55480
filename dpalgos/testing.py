"""The contract that every algorithm keeps, as checks: run by our own tests and by the authors of other distributions.

One call in a test of yours checks an algorithm that your distribution registers::

    from dpalgos.testing import check_algorithm

    def test_contract():
        check_algorithm("trainers", "my-trainer", {"budget": GaussianMu(0.8)})

and another audits it: runs it many times on its own worst neighbours and bounds its epsilon from below::

    from dpalgos.testing import audit

    def test_audit():
        audit(MyTrainer(budget=GaussianMu(0.8)))

Parameters are for rows of :data:`DIMENSION` features and :data:`CLASSES` classes (decision values, for an evaluator). A
broken contract raises AssertionError; :func:`check_trust_model` does the same for a trust model. What no general check
can prove is that the noise is enough: derive the sensitivity. The audit finds noise that is far too little, on the pair
of neighbours that the algorithm names and on some others, and nothing subtler.
"""

import dataclasses
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import cast
from unittest import TestCase

import numpy as np
from numpy.typing import NDArray

from dpalgos import guarantees
from dpalgos.accounting.composition import compose
from dpalgos.algorithms import (
    Algorithm,
    Calibrated,
    NeighbouringPair,
    ProjectionAlgorithm,
    Refused,
    SumAlgorithm,
    admission,
    attained,
    fit,
    is_sum_algorithm,
    planned_artefact,
    run_sums,
)
from dpalgos.audit.experiment import AuditOptions, AuditReport, Effort, Verdict
from dpalgos.audit.releases import audit_algorithm
from dpalgos.evaluators.confusion import ConfusionMatrix
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.models import Artefact, KernelModel, LinearModel, Projection, Statistic, decode
from dpalgos.parameters import ParameterError
from dpalgos.registry import construct, lookup
from dpalgos.rows import NULL_LABEL, ArrayRows, Floats, MappedRows, Rows, clip_to_unit_ball
from dpalgos.secure.summation import contribution_of, lengths_of, state_after
from dpalgos.systems.system import Scope
from dpalgos.trust.model import EVERYONE, TrustModel

DIMENSION, CLASSES = 6, 3
KINDS = ("projections", "trainers", "evaluators")
"""The kinds that hold algorithms."""
BUDGETS: Mapping[type[guarantees.Loss], guarantees.Loss] = MappingProxyType(
    {
        guarantees.PureEpsilon: guarantees.PureEpsilon(1.0),
        guarantees.GaussianMu: guarantees.GaussianMu(1.0),
        guarantees.ZeroConcentrated: guarantees.ZeroConcentrated(0.5),
        guarantees.ApproximateDP: guarantees.ApproximateDP(1.0, 1e-4),
    }
)
"""One budget of each type."""
_ROWS, _NULLS = 40, 7
# Rows of a person: where L/k is a whole number of grid units, and where it is none.
_PEOPLE = (1, 3, 1000, 1024)
_EFFORT = Effort(runs=1000, gaussian_runs=1000, numbers=1_000_000, most=100_000, pilot=40)


def blobs(count: int, dimension: int, classes: int, seed: int, spread: float = 0.3) -> ArrayRows:
    """Return rows of norm 1 around one centre a class, labels 0 … classes − 1."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    features = random.normal(size=(classes, dimension))[labels] + spread * random.normal(size=(count, dimension))
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return ArrayRows(clip_to_unit_ball(features / norms), labels, block=16)


def hostile_rows(dimension: int = DIMENSION) -> dict[str, ArrayRows]:
    """Return rows by what is wrong with them; behind the door every algorithm is total on all of them."""
    rows = blobs(_ROWS, dimension, CLASSES, 0)
    features, labels = rows.features, rows.labels
    bad, strange = features.copy(), labels.astype(np.float64)
    bad[0], bad[1], bad[2, 2], bad[3], bad[4] = np.nan, np.inf, -np.inf, 1e308, 1e-320
    strange[5:9] = np.nan, -7.0, 1e12, np.inf
    cases = {
        "plain": (features, labels),
        "equal": (np.tile(features[:1], (_ROWS, 1)), labels),
        "rank-one": (np.outer(np.linspace(-1, 1, _ROWS), features[0]), labels),
        "one-row": (features[:1], labels[:1]),
        "empty": (features[:0], labels[:0]),
        "one-class": (features, np.zeros_like(labels)),
        "zeros": (np.zeros_like(features), labels),
        "corrupt": (bad, strange),
        "long": (1e200 * features, labels),
        "as-many-rows-as-features": (features[:dimension], labels[:dimension]),
    }
    return {name: ArrayRows(*arrays, block=16) for name, arrays in cases.items()}


class _UnkeyedRows(ArrayRows):
    """Rows whose noise does not depend on what they hold, so that releases can be compared bit for bit."""

    def fingerprint(self) -> NDArray[np.uint8]:
        return np.zeros(4, dtype=np.uint8)


def with_null_records(rows: ArrayRows) -> dict[str, ArrayRows]:
    """Return the rows with as many null records among them, at the same places, by what makes these null."""
    random = np.random.default_rng(5)
    features = random.normal(size=(_NULLS, rows.dimension))
    known = random.integers(0, CLASSES, _NULLS).astype(np.float64)
    infinite = features.copy()
    infinite[:, -1] = [np.nan, np.inf, -np.inf, *[np.nan] * (_NULLS - 3)]
    null = np.full(_NULLS, float(NULL_LABEL))
    cases = {
        "stored": (np.zeros_like(features), null),
        "mapped": (features, null),
        "features": (infinite, known),
        "labels": (features, np.array([np.nan, -1.0, float(CLASSES), 0.5, np.inf, -np.inf, 1e300])),
    }
    places = random.permutation(rows.count + _NULLS)
    return {
        name: _UnkeyedRows(
            np.concatenate([rows.features, more])[places],
            np.concatenate([rows.labels.astype(np.float64), labels])[places],
            block=16,
        )
        for name, (more, labels) in cases.items()
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    """One registered name with parameters."""

    kind: str
    name: str
    parameters: Mapping[str, object]

    @property
    def cls(self) -> type[Algorithm]:
        algorithm: type[Algorithm] = lookup(self.kind, self.name)
        _require(issubclass(algorithm, Algorithm), f"{self.name} is no Algorithm")
        return algorithm

    @property
    def setting(self) -> guarantees.Setting:
        """One party, under the algorithm's first relation; an evaluator's features are decision values, one a class."""
        return guarantees.Setting(
            sizes=(_ROWS,),
            dimension=CLASSES if self.kind == "evaluators" else DIMENSION,
            classes=CLASSES,
            neighbours=self.cls.relations[0],
        )

    def build(self, **changed: object) -> Algorithm:
        return construct(self.cls, self.name, {**self.parameters, **changed})

    def run(self, rows: Rows, trust: str, *, seed: int = 0, classes: int = CLASSES) -> Artefact:
        parties = [rows]
        if trust != guarantees.Trust.LOCAL and isinstance(rows, ArrayRows):
            parties = [ArrayRows(rows.features[i::3], rows.labels[i::3], block=16) for i in range(3)]
        sizes = tuple(party.count for party in parties)
        setting = dataclasses.replace(self.setting, sizes=sizes, classes=classes, trust=guarantees.Trust(trust))
        return fit(self.build(), parties, setting, KeyedNoise(public_secret(seed), "contract"))


def _require(holds: object, broken: str) -> None:
    """Raise where a part of the contract is broken; not an assert statement, which -O would leave out."""
    if not holds:
        raise AssertionError(broken)


def _refused(what: str) -> AbstractContextManager[object]:
    return TestCase().assertRaises(ParameterError, msg=f"{what} raises no ParameterError")  # noqa: PT027 (pytest is not needed here)


def _same(first: Artefact, second: Artefact) -> bool:
    one, two = first.arrays(), second.arrays()
    return one.keys() == two.keys() and all(np.array_equal(one[key], two[key]) for key in one)


def _says_what_it_is(case: _Case) -> None:
    cls = case.cls
    _require("__dataclass_params__" in vars(cls), "no dataclass of its own")
    _require(vars(cls)["__dataclass_params__"].frozen, "the dataclass is not frozen")
    _require(all(field.kw_only for field in dataclasses.fields(cls)), "a field is not keyword-only")
    _require(isinstance(cls.source, str) and cls.source, "no source")
    _require(cls.claim is None or isinstance(cls.claim, guarantees.Claim), "the claim is no Claim")
    _require(cls.trusts and all(isinstance(trust, str) for trust in cls.trusts), "no trust models")
    _require(
        cls.relations and all(isinstance(each, guarantees.Neighbours) for each in cls.relations),
        "no neighbouring relation",
    )
    has_budget = "budget" in {field.name for field in dataclasses.fields(cls)}
    _require(has_budget == bool(cls.budgets), "a budget field and accepted budgets come together")
    _require("Guarantee\n---------" in (inspect.getdoc(cls) or ""), "the docstring does not state what is proved")
    if cls.sound_counterpart is not None:
        sound = lookup(case.kind, cls.sound_counterpart)
        _require(sound.sound_counterpart is None and sound.budgets, "the sound counterpart is not sound")
    _require((case.kind == "projections") == issubclass(cls, ProjectionAlgorithm), "no ProjectionAlgorithm")
    _require(is_sum_algorithm(cls) != hasattr(cls, "fit"), "either a sum algorithm or one with fit")


def _guarantees_what_it_claims(case: _Case) -> None:
    algorithm = case.build()
    guarantee = algorithm.guarantee(case.setting)
    _require(
        guarantees.Guarantee.from_json(guarantee.to_json()) == guarantee == algorithm.guarantee(case.setting),
        "not repeatable",
    )
    if algorithm.claim is not None and algorithm.claim.flaw is not None:
        _require(not guarantee.proved, "a flawed claim and a guarantee")
    if not algorithm.reads_rows:
        _require(guarantee.losses == (), "what looks at no rows costs nothing")
    elif not algorithm.budgets:
        _require(not guarantee.proved, "a guarantee without noise")
    if not guarantee.proved:
        _require(guarantee.reason, "nothing is proved, and no reason given")
        _require(all(isinstance(loss, guarantees.NoGuarantee) for loss in guarantee.losses), "a loss beside none")
        _require(algorithm.sound_counterpart is not None, "nothing is proved, and no sound counterpart is named")
    elif algorithm.budgets:
        _spends_its_budget(case.parameters["budget"], guarantee.losses)


def _spends_its_budget(budget: object, losses: tuple[guarantees.Loss, ...]) -> None:
    """Assert that the losses are the budget, or imply no more than it."""
    if isinstance(budget, guarantees.PureEpsilon):
        epsilons = [loss.epsilon for loss in losses if isinstance(loss, guarantees.PureEpsilon)]
        _require(len(epsilons) == len(losses), "a pure budget buys pure losses")
        _require(abs(sum(epsilons) - budget.epsilon) <= 1e-9 * budget.epsilon, "more or less than the budget")
    elif isinstance(budget, guarantees.ApproximateDP) and losses != (budget,):
        _require(compose(losses).delta(budget.epsilon) <= budget.delta * (1.0 + 1e-9), "more than the budget")
    else:
        _require(losses == (budget,), "more or less than the budget")


def _names_neighbours(case: _Case) -> None:
    setting = dataclasses.replace(case.setting, sizes=(9, 5, 0), trust=guarantees.Trust.CENTRAL)
    pair = case.build().neighbouring_pair(setting)
    _require(pair.left.count == pair.right.count == setting.sizes[pair.party], "not as many rows as the party has")
    _require(pair.left.dimension == pair.right.dimension == setting.dimension, "not as many features as stated")
    differ = (pair.left.features != pair.right.features).any(axis=1) | (pair.left.labels != pair.right.labels)
    _require(differ.sum() == 1, "neighbours differ in one row")


def _sums_nothing_of_null_records(case: _Case) -> None:
    algorithm = cast(SumAlgorithm, case.build())
    rows, null = blobs(_ROWS, case.setting.dimension, CLASSES, 3), np.full(_ROWS, NULL_LABEL)
    some = np.where(np.arange(_ROWS) < _ROWS // 2, rows.labels, null)
    bare = np.where((some == null)[:, None], 0.0, rows.features)
    empty = algorithm.initial(case.setting)
    every, first, second, nothing = (
        algorithm.contribution(empty, ArrayRows(features, labels), case.setting)
        for features, labels in ((rows.features, rows.labels), (rows.features, some), (bare, some), (bare, null))
    )
    _require(not np.array_equal(every, first), "rows contribute nothing")
    _require(np.array_equal(first, second), "the features of null records contribute")
    _require(not nothing.any(), "null records contribute")


def _keeps_its_relations(case: _Case) -> None:
    """Require guarantees under each relation that they are derived for, calibrated to the pair, and refusals else."""
    algorithm = case.build()
    for relation in guarantees.RELATIONS:
        setting = dataclasses.replace(case.setting, neighbours=relation)
        if relation not in case.cls.relations:
            with _refused(f"a setting under {relation}"):
                algorithm.guarantee(setting)
            continue
        guarantee = algorithm.guarantee(setting)
        _require(guarantee.neighbours is relation, "another neighbouring relation")
        if guarantee.proved and case.cls.budgets:
            _require(isinstance(algorithm, Calibrated), "what is proved has no sensitivity and no statistic")
            share = attained(cast(Calibrated, algorithm), setting)
            _require(share <= 1.0 + 1e-9, f"the pair of neighbours moves the statistic by {share} sensitivities")
            _require(share > 0.0, "the pair of neighbours moves nothing")


def hostile_people(pair: NeighbouringPair, dimension: int) -> Iterator[ArrayRows]:
    """Yield what one person may hold: many equal rows, opposite ones, of several classes, some null, and none."""
    random = np.random.default_rng(11)
    drawn = random.normal(size=(3, dimension))
    for count in _PEOPLE:
        for row, label in (
            (pair.left.features[0], pair.left.labels[0]),
            (pair.right.features[0], pair.right.labels[0]),
            *((row, pair.left.labels[0]) for row in drawn),
        ):
            yield ArrayRows(np.tile(row, (count, 1)), np.full(count, label))
        signs = np.where(np.arange(count) % 2, -1.0, 1.0)[:, None]
        yield ArrayRows(signs * drawn[0], np.arange(count) % CLASSES)
        yield ArrayRows(np.where(signs < 0, np.nan, pair.left.features[0]), np.full(count, pair.left.labels[0]))
    yield ArrayRows(np.zeros((0, dimension)), np.zeros(0))


def _moves_by_people_as_by_records(case: _Case) -> None:
    """Require that no person, beside others' rows, moves the statistic farther than is stated; or a refusal."""
    algorithm = case.build()
    if isinstance(admission(case.cls), Refused):
        with _refused("a setting of people"):
            algorithm.guarantee(dataclasses.replace(case.setting, rows_per_person=2))
        return
    others = blobs(_ROWS - 1, case.setting.dimension, CLASSES, 4)
    if not isinstance(algorithm, Calibrated):
        return
    for relation in case.cls.relations:
        setting = dataclasses.replace(case.setting, neighbours=relation, rows_per_person=max(_PEOPLE))
        values = []
        for person in hostile_people(algorithm.neighbouring_pair(setting), setting.dimension):
            # Some of the person's rows come first and some last, over many blocks.
            own, most = person.count, person.count + others.count
            order = np.concatenate([np.arange(own // 2), np.arange(own, most), np.arange(own // 2, own)])
            features, labels = np.vstack([person.features, others.features]), np.append(person.labels, others.labels)
            shares = np.append(np.full(own, own), np.ones(others.count, np.int64))
            places = np.append(np.zeros(own, np.int64), 1 + np.arange(others.count))
            rows = ArrayRows(features[order], labels[order], 16, shares[order], _ROWS, places[order])
            values.append(algorithm.statistic(rows, setting).ravel())
        pairs = itertools.combinations(values, 2) if relation.records == 2 else ((one, values[-1]) for one in values)
        moved = max(float(np.linalg.norm(one - other, ord=algorithm.norm)) for one, other in pairs)
        share = moved / algorithm.sensitivity(setting)
        _require(share <= 1.0 + 1e-9, f"a person's rows move the statistic by {share} sensitivities")


def _leaves_null_records_out(case: _Case) -> None:
    rows = with_null_records(blobs(_ROWS, case.setting.dimension, CLASSES, 3))
    runs = {name: case.run(each, guarantees.Trust.LOCAL) for name, each in rows.items()}
    for name, artefact in runs.items():
        _require(_same(artefact, runs["stored"]), f"a null record by its {name} shows in the release")


def _validates_its_budget(case: _Case) -> None:
    accepted = case.cls.budgets
    for loss_type, budget in BUDGETS.items():
        if loss_type in accepted:
            case.build(budget=budget)
            for field in dataclasses.fields(loss_type):
                with _refused(f"a budget with {field.name} = 0"):
                    case.build(budget=guarantees.loss_from_json({**guarantees.loss_to_json(budget), field.name: 0.0}))
        else:
            with _refused(f"a budget of type {loss_type.__name__}"):
                case.build(budget=budget)
    with _refused("a budget that guarantees nothing"):
        case.build(budget=guarantees.NoGuarantee("none"))


def _is_total_and_repeatable(case: _Case) -> None:
    """Require finite numbers, the same again under the same noise, and shapes that depend on public sizes alone."""
    algorithm, shapes = case.build(), set[tuple[object, ...]]()
    for name, rows in hostile_rows(case.setting.dimension).items():
        for trust in case.cls.trusts:
            first = case.run(rows, trust)
            for array in first.arrays().values():
                _require(np.isfinite(np.asarray(array, dtype=np.float64)).all(), f"not finite on {name} rows")
            _require(_same(first, case.run(rows, trust)), f"not the same again on {name} rows, under the same noise")
            _require(_same(first, decode(first.kind, first.arrays())), f"not decoded as stored, on {name} rows")
            if rows.count == _ROWS:
                shapes.add((trust, *sorted((key, array.shape) for key, array in first.arrays().items())))
            if name == "plain":
                differ = not _same(first, case.run(rows, trust, seed=1))
                _require(differ == bool(case.cls.budgets), "noise and a budget come together")
            if name == "plain" and isinstance(algorithm, ProjectionAlgorithm):
                columns = cast(Projection, first).transform(np.zeros((2, DIMENSION))).shape[1]
                _require(columns == algorithm.output_dimension(DIMENSION), "another dimension than declared")
    if algorithm.guarantee(case.setting).proved:
        _require(len(shapes) == len(case.cls.trusts), "the shapes depend on what rows contain")


@contextmanager
def _silent(what: str) -> Iterator[None]:
    """Count an exception, a warning and a log line as broken: behind the door each of them is a release."""
    try:
        with warnings.catch_warnings(), TestCase().assertNoLogs():
            warnings.simplefilter("error")
            yield
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} {what}: {error}") from error


def _wrong_models(columns: int) -> dict[str, LinearModel]:
    """Return models that somebody else might send in the place of one of ``columns`` scores, by what is wrong."""
    weights = np.random.default_rng(8).normal(size=(columns, DIMENSION))
    each = np.where(np.arange(columns * DIMENSION).reshape(columns, DIMENSION) % 2, -1.0, 1.0)
    wrong = {
        "an output too many": np.vstack([weights, 9.0 * weights[:1]]),
        "an output too few": weights[1:],
        "a feature too many": np.hstack([weights, weights[:, :1]]),
        "another number of axes": weights[:, :, None],
        "no number": np.where(each > 0, weights, np.nan),
        "infinite": np.where(each > 0, weights, np.inf),
        "beyond float64 in a sum": 1.7e308 * each,
        "nearly beyond it": 1e300 * weights,
        "subnormal": np.full_like(weights, 5e-324),
    }
    return {name: LinearModel(weights=one, intercept=np.zeros(len(one))) for name, one in wrong.items()}


def _is_total_in_what_rows_pass_through(case: _Case) -> None:
    setting, rows = case.setting, blobs(_ROWS, DIMENSION, CLASSES, 6)
    planned = planned_artefact(case.build(), setting).arrays()
    for wrong, model in _wrong_models(setting.dimension).items():
        with _silent(f"behind a model with {wrong}"):
            seen = MappedRows(rows, [model.apply], setting.dimension)
            arrays = case.run(seen, case.cls.trusts[0]).arrays()
        for name, array in arrays.items():
            _require(np.isfinite(np.asarray(array, dtype=np.float64)).all(), f"not finite behind a model with {wrong}")
            same = array.shape == planned[name].shape or not case.build().guarantee(setting).proved
            _require(same, f"{name} is not of the planned shape behind a model with {wrong}")


def _counts_in_the_planned_cells(case: _Case) -> None:
    """Require sums of the planned shape of scores that are one more than planned, the last one the largest."""
    rows = blobs(_ROWS, case.setting.dimension + 1, CLASSES, 6)
    rows.features[:, -1] = np.linspace(-1.0, 2.0, _ROWS)
    with _silent("of a score too many"):
        case.run(rows, guarantees.Trust.LOCAL)


def _is_total_in_sums(case: _Case) -> None:
    """Require vectors of the planned length whatever sums a coordinator says were formed before."""
    algorithm, rows = cast(SumAlgorithm, case.build()), blobs(_ROWS, case.setting.dimension, CLASSES, 7)
    setting, lengths = case.setting, lengths_of(algorithm, case.setting)
    for value in (0, 1, -1, 2**31, 2**52 + 1, 2**62, -(2**62), 2**63 - 1, -(2**63)):
        sums = [np.where(np.arange(length) % 3, value, value // 3).astype(np.int64) for length in lengths]
        with _silent(f"after sums of {value}"):
            for step, length in enumerate(lengths):
                state = state_after(algorithm, sums[:step], setting)
                size = contribution_of(algorithm, state, rows, setting).size
                _require(size == length, "another length than planned")


def _gives_binary_problems_one_row_of_weights(case: _Case) -> None:
    rows = blobs(_ROWS, DIMENSION, 2, 2)
    model = cast(LinearModel | KernelModel, case.run(rows, case.cls.trusts[0], classes=2))
    _require(isinstance(model, LinearModel | KernelModel), "a trainer's artefact is no model")
    _require(model.scores(rows.features).shape == (_ROWS, 1), "a binary problem has one row of weights")
    _require(set(np.unique(model.predict(rows.features))) <= {0, 1}, "classes other than 0 and 1")


_CHECKS: Mapping[Callable[[_Case], None], Callable[[_Case], bool]] = MappingProxyType(
    {
        _says_what_it_is: lambda _: True,
        _guarantees_what_it_claims: lambda _: True,
        _names_neighbours: lambda _: True,
        _sums_nothing_of_null_records: lambda case: is_sum_algorithm(case.cls),
        _keeps_its_relations: lambda _: True,
        _moves_by_people_as_by_records: lambda _: True,
        _leaves_null_records_out: lambda case: case.cls.reads_rows and case.build().guarantee(case.setting).proved,
        _validates_its_budget: lambda case: bool(case.cls.budgets),
        _is_total_and_repeatable: lambda _: True,
        _is_total_in_what_rows_pass_through: lambda _: True,
        _is_total_in_sums: lambda case: is_sum_algorithm(case.cls),
        _counts_in_the_planned_cells: lambda case: case.kind == "evaluators",
        _gives_binary_problems_one_row_of_weights: lambda case: case.kind == "trainers",
    }
)
"""The checks, and which algorithms each is for."""


def check_algorithm(kind: str, name: str, parameters: Mapping[str, object] | None = None) -> None:
    """Run every check on one registered algorithm.

    Parameters
    ----------
    kind : str
        One of :data:`KINDS`.
    name : str
        As registered.
    parameters : mapping, optional
        With a ``budget`` for an algorithm that takes one; everything small enough for 40 rows.

    Raises
    ------
    AssertionError
        Naming the broken part of the contract.
    """
    case = _Case(kind, name, parameters or {})
    for check, concerns in _CHECKS.items():
        if concerns(case):
            check(case)


def audit(
    algorithm: Algorithm,
    setting: guarantees.Setting | None = None,
    *,
    delta: float = 1e-5,
    trials: int | None = None,
    confidence: float = 1 - 1e-9,
    seed: int = 0,
) -> list[AuditReport]:
    """Run an algorithm many times on neighbours, and hold what that shows against what it says is proved.

    Parameters
    ----------
    algorithm : Algorithm
        Built, with its budget.
    setting : Setting, optional
        By default one party of 40 rows, :data:`DIMENSION` features and :data:`CLASSES` classes, as in
        :func:`check_algorithm`; for an evaluator features are decision values, one a class.
    delta : float
        At which epsilon is bounded.
    trials : int, optional
        Runs on each neighbour; by default what takes some seconds.
    confidence : float
        At which what is proved may be refuted; by default never by chance.
    seed : int
        Of the noise.

    Returns
    -------
    list of AuditReport
        One a relation that the guarantee is derived for.

    Raises
    ------
    AssertionError
        With the bound, the neighbours and the event, where what is proved is refuted.
    ParameterError
        If nothing is proved in this setting: there is nothing to hold the bound against.
    """
    audited_setting = setting or guarantees.Setting(
        sizes=(_ROWS,), dimension=DIMENSION, classes=CLASSES, trust=algorithm.trusts[0]
    )
    reports = []
    for relation in algorithm.relations:
        under = dataclasses.replace(audited_setting, neighbours=relation)
        guarantee = algorithm.guarantee(under)
        if not guarantee.proved:
            raise ParameterError(
                f"the guarantee is not proved ({guarantee.reason}), so an audit has no epsilon to compare with"
            )
        report = audit_algorithm(
            [(algorithm, under)],
            AuditOptions(delta=delta, trials=trials, confidence=confidence, seed=seed, effort=_EFFORT),
            name=type(algorithm).__name__,
            kind="plug-ins",
        )
        _require(
            report.verdict is not Verdict.VIOLATES,
            f"epsilon is at least {report.lower_bound:.4g} at delta {delta:g} under {relation}, and proved are "
            f"{report.proved_epsilon:.4g}: {report.pair}; {report.event}",
        )
        reports.append(report)
    return reports


def check_trust_model(name: str, settings: Mapping[str, object] | None = None) -> None:
    """Check that a registered trust model forms sums of all parties' integers with their noise, and says who makes it.

    Parameters
    ----------
    name : str
        As registered under ``trusts``.
    settings : mapping, optional
        Its own settings.

    Raises
    ------
    AssertionError
        Naming the broken part of the contract.
    """
    cls = lookup("trusts", name)
    _require(issubclass(cls, TrustModel), f"{name} is no TrustModel")
    _require(cls.summary.endswith("."), "no summary of one sentence")
    model = construct(cls, name, settings or {})
    parties = [blobs(1000, CLASSES, CLASSES, seed) for seed in range(1 if cls.scope is Scope.PARTY else 3)]
    setting = guarantees.Setting(sizes=(1000,) * len(parties), dimension=CLASSES, classes=CLASSES, trust=name)
    members = tuple(str(index) for index in range(len(parties)))
    contributors = model.noise_contributors(members)
    _require(contributors and set(contributors) <= {*members, EVERYONE}, "noise is made by nobody, or by a stranger")
    _require(model.owner(members) in {*members, EVERYONE}, "the release belongs to a stranger")
    _require(model.noise_factor(len(parties)) >= 1.0, "less noise than the distribution's")
    algorithm = ConfusionMatrix(budget=guarantees.GaussianMu(2.0))
    model.require(algorithm, setting)
    own, guarantee = algorithm.guarantee(setting), model.guarantee(algorithm, setting)
    _require(guarantee.losses[: len(own.losses)] == own.losses, "another loss than the algorithm's own")
    _require(set(own.assumptions) <= set(guarantee.assumptions), "an assumption of the algorithm is forgotten")

    def summed(seed: int) -> Floats:
        noises = [KeyedNoise(public_secret(seed), f"contract/{contributor}") for contributor in contributors]
        summation = model.summation(algorithm, setting, noises, "contract", None)
        counts: Statistic = run_sums(algorithm, parties, setting, summation)
        return counts.values

    empty = algorithm.initial(setting)
    exact = sum(algorithm.contribution(empty, rows, setting) for rows in parties)
    deviation = model.noise_factor(len(parties)) * algorithm.distribution(setting).sigma
    _require(np.abs(summed(0) - exact).max() <= 10.0 * deviation, "not the sum of all parties' integers")
    _require(np.array_equal(summed(0), summed(0)), "not the same again under the same noise")
    _require(not np.array_equal(summed(0), summed(1)), "no noise")
