"""Every charge is shown before it is made: prices, who is asked, and that what is charged is no more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from deployments.cli.entry_point import UNAGREED
from flows.federated_training import chain_inline
from flows.sweep import finish_point
from storage.errors import PriceError
from tasks.accounts.reports import budget_report
from tasks.planning.configuration import TrainingConfig
from tasks.preparation.prepare import prepare
from tasks.release.admission import charging_only
from tasks.release.prices import RUN_EPSILON, keys_of, measures_later, price_of, with_epsilon
from tests.support.chains import charges, configured, ingest_private
from tests.support.command_line import CommandLine
from tests.tasks.test_by_group import bring_in
from unitball import BudgetError, PrivateClassifier, PrivateRegressor, open_account
from unitball import describe as described
from unitball import train as trained

TRAIN = ("train", "--dataset", "clinic", "--algorithm", "noisy-gd")


def spent() -> float:
    found = budget_report("clinic")["epsilon_spent"]
    assert found is not None
    return found


def priced(line: str) -> float:
    """Return the account's epsilon after the charge, as a price says it."""
    (found,) = re.findall(r"from epsilon \S+ to (\S+) of", line)
    return float(found)


def test_a_price_is_what_the_plan_charges(root: Path, tmp_path: Path) -> None:
    """For one plan, and for two in a row: the account ends where the price said, to the last bit."""
    ingest_private(tmp_path / "input", 600)
    configs = [
        configured(algorithm=name, epsilon=epsilon, evaluation=True)
        for name, epsilon in (("noisy-gd", 0.7), ("sufficient-statistics", 0.4))
    ]
    both = price_of([prepare(config) for config in configs])
    assert both is not None
    assert [one.run for one in both.items] == ["noisy-gd", "sufficient-statistics"]
    for config in configs:
        price = price_of([prepare(config)])
        assert price is not None
        assert (price.before, price.cap) == (spent(), 3.0)
        assert config.epsilon is not None
        assert price.items[0].epsilon == pytest.approx(config.epsilon, rel=0.01)
        chain_inline(config)
        assert spent() == price.after
        assert price_of([prepare(config)]) is None, "what is charged costs nothing more"
    assert both.after == pytest.approx(spent(), rel=1e-12)


def test_an_epsilon_is_proposed_only_where_there_is_noise(root: Path, tmp_path: Path) -> None:
    from tasks.datasets.registration import ensure_registered, find_dataset

    ensure_registered("iris")
    iris = find_dataset("iris")
    for name, epsilon in (("noisy-gd", RUN_EPSILON), ("non-private", None), ("no-such-algorithm", RUN_EPSILON)):
        config = TrainingConfig(dataset="iris", epsilon=None)
        assert with_epsilon(config.model_copy(update={"algorithm": name}), iris).epsilon == epsilon
    assert with_epsilon(TrainingConfig(dataset="iris", epsilon=0.3), iris).epsilon == 0.3


def test_commands_without_epsilon_stop_at_the_price(commands: CommandLine, tmp_path: Path) -> None:
    """Nothing is charged, the exit code is their own, and plans say the same price."""
    bring_in(tmp_path / "input", 300)
    stopped = commands(*TRAIN)
    stopped.refused(UNAGREED, "clinic", "--epsilon", "--yes", "epsilon 0 to")
    assert charges() == []
    assert str(commands.succeeds(*TRAIN, "--explain")["price"]["after"])[:5] in stopped.err
    commands("compare", "--dataset", "clinic", "--algorithms", "noisy-gd,sufficient-statistics").refused(
        UNAGREED, "noisy-gd", "sufficient-statistics"
    )
    commands("describe", "clinic").refused(UNAGREED, "epsilon 0.2")
    agreed = commands("describe", "clinic", "--yes")
    assert agreed.code == 0, agreed
    assert spent() <= priced(agreed.err)
    again = commands("describe", "clinic")
    assert again.code == 0, "a release that is stored costs nothing and asks nothing"
    assert commands("budget", "clinic", "--raise-epsilon-cap", 0.25, "--reason", "less").code == 0
    commands(*TRAIN).refused(3, "epsilon up to 0.", "epsilon 1 does not fit", "account from epsilon")


def test_measuring_a_finished_model_is_a_charge_of_its_own(called: CommandLine, tmp_path: Path) -> None:
    """The attack of a user: `--by` after the model charged 1.008 → 1.46 in one step, though epsilon was stated."""
    bring_in(tmp_path / "input", 600)
    agreed = called(*TRAIN, "--yes")
    assert agreed.code == 0, agreed
    before = spent()
    assert before <= priced(agreed.err)
    assert called(*TRAIN).code == 0, "it is stored"
    called(*TRAIN, "--epsilon", 1, "--by", "sex").refused(UNAGREED, "confusion-by-group", "--yes")
    assert spent() == before
    measured = called(*TRAIN, "--epsilon", 1, "--by", "sex", "--yes")
    assert measured.code == 0, measured
    assert before < spent() <= priced(measured.err)


def test_public_rows_are_asked_nothing(called: CommandLine) -> None:
    outcome = called("train", "--dataset", "iris", "--algorithm", "noisy-gd", "--json")
    assert outcome.code == 0, outcome
    assert outcome.json["epsilon_spent"] <= RUN_EPSILON
    assert "price" not in outcome.err


def test_python_functions_state_the_price_and_charge_nothing(root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path / "input", 300)
    for call in (lambda: trained("clinic", algorithm="noisy-gd"), lambda: described("clinic")):
        with pytest.raises(PriceError, match="clinic") as refused:
            call()
        assert "epsilon=" in str(refused.value)
        assert refused.value.price is not None
    assert charges() == []


@pytest.mark.parametrize(
    "model",
    [
        PrivateClassifier(bounds=(0, 1), classes=[0, 1]),
        PrivateRegressor(bounds=(0, 1), label_range=(0, 1)),
    ],
)
def test_an_estimator_without_epsilon_fits_public_rows_only(model: Any, root: Path) -> None:
    features = np.random.default_rng(3).random((200, 2))
    labels = (features[:, 0] > 0.5).astype(int)
    with pytest.raises(BudgetError, match="epsilon=1"):
        model.fit(features, labels)
    assert model.get_params()["epsilon"] is None
    # A release that is stored costs nothing and asks nothing; other rows are another release.
    open_account("clinic", epsilon=3.0, delta=1e-5, root=root)
    stored = clone(model).set_params(epsilon=1.0, account="clinic", root=root).fit(features, labels)
    paid = stored.remaining_budget()
    again = clone(stored).set_params(epsilon=None).fit(features, labels)
    np.testing.assert_array_equal(again.predict(features), stored.predict(features))
    assert again.remaining_budget() == paid
    for others in ({"repetition": 1}, {"delta": 1e-7}):
        with pytest.raises(BudgetError, match="epsilon=1"):
            clone(again).set_params(**others).fit(features, labels)
    assert stored.remaining_budget() == paid
    model.set_params(public=True, random_state=0).fit(features, labels)


def test_what_was_not_agreed_to_is_not_charged(root: Path, tmp_path: Path) -> None:
    """A command that plans again after its price was shown charges the releases of that price and no others."""
    ingest_private(tmp_path / "input", 300)
    config, dearer = (configured(algorithm="noisy-gd", epsilon=epsilon) for epsilon in (0.7, 0.8))
    agreed = keys_of([prepare(config)])
    with charging_only(agreed), pytest.raises(PriceError, match="model"):
        chain_inline(dearer)
    with pytest.raises(PriceError, match="model"):
        finish_point.fn(dearer, "a point", str(root), sorted(agreed))
    assert charges() == []
    finish_point.fn(config, "a point", str(root), sorted(agreed))
    paid = spent()
    with charging_only(set()):
        chain_inline(config)
    assert spent() == paid > 0.0


def test_a_model_that_was_never_measured_is_measured_later(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", 600)
    assert not measures_later(prepare(configured(algorithm="noisy-gd", evaluation=True)))
    chain_inline(configured(algorithm="noisy-gd"))
    assert not measures_later(prepare(configured(algorithm="noisy-gd")))
