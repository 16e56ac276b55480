"""Accounts of notebooks: kept by the root, charged once by whatever process asks, and refilled by nothing."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import unitball
from dpalgos.accounting.profiles import gaussian_epsilon
from storage.errors import InputError, RefusedError
from tasks.accounts.ledger import change_cap, open_ledger
from tasks.release import preflight
from tests.support.kernels import BOUNDS, CLASSES, OPENING, Kernel, drawn
from unitball import BudgetError, PrivateClassifier, fits


@pytest.fixture(autouse=True)
def _root_of_its_own(root: Path) -> None:
    pass


def private(account: str | None = "clinic", **given: Any) -> PrivateClassifier:
    return PrivateClassifier(**{"epsilon": 1.0, "account": account, "bounds": BOUNDS, "classes": CLASSES, **given})


def charges(**given: Any) -> list[Any]:
    return list(unitball.budget("clinic", **given).charges)


def test_a_restart_another_folder_and_a_copied_notebook_find_one_account(root: Path, tmp_path: Path) -> None:
    """Each begins by opening the account, as the first cell of a notebook does."""
    unitball.open_account("clinic", **OPENING)
    first = private().fit(*drawn())
    copied = tmp_path / "copied notebook"
    copied.mkdir()
    same, other = Kernel({}, {"given": {"repetition": 1}}, root=root, folder=copied).answers()
    assert np.array_equal(same["coef"], first.coef_)
    assert not np.array_equal(other["coef"], first.coef_)
    assert len(charges()) == 2
    # A copy of the whole folder of the root is no second budget.
    shutil.copytree(root, tmp_path / "copy")
    Kernel({"given": {"epsilon": 0.1}}, root=root).answers()
    refused = Kernel({"given": {"epsilon": 0.2}}, root=tmp_path / "copy")
    assert refused.answers() == []
    assert "high-water mark" in refused.err


def test_folds_subsets_and_reordered_rows_add_up() -> None:
    """Whether rows are in both is not looked at: two folds without a common row cost as much as one fold twice."""
    unitball.open_account("clinic", epsilon=9.0, delta=1e-6)
    everyone = np.arange(240)
    for rows in (everyone[::2], everyone[1::2], everyone[:200], everyone[::-1]):
        private(test_fraction=0.3).fit(*drawn(rows.tolist()))
    mus, spent = [one.mu for one in charges()], unitball.budget("clinic").epsilon_spent
    assert len(mus) == 4
    assert spent is not None
    assert spent >= gaussian_epsilon(float(np.linalg.norm(mus)), 1e-6)
    # What one fit holds out another may train on: their parts are parts of different partitions.
    assert len({plan.partition for plan in open_ledger().history("clinic").plans}) == 4
    # Columns of a frame in another order are the same rows under the same schema; rows in another order are not.
    columns = [{"name": name, "type": "numeric", "range": [*BOUNDS]} for name in "abc"]
    schema = {"columns": [*columns, {"name": "y", "type": "label", "classes": CLASSES}]}
    features, labels = drawn()
    frame = pd.DataFrame(np.clip(features, *BOUNDS), columns=list("abc"))
    model = PrivateClassifier(1.0, account="clinic", schema=schema)
    found = clone(model).fit(frame, labels).coef_
    assert np.array_equal(clone(model).fit(frame[list("cba")], labels).coef_, found)
    assert len(charges()) == 5
    clone(model).fit(frame[::-1], labels[::-1])
    assert len(charges()) == 6


def test_of_two_kernels_one_gets_the_last_of_a_budget_and_one_call_is_charged_once(root: Path) -> None:
    unitball.open_account("clinic", **OPENING)
    racing = [Kernel({"seed": seed, "given": {"epsilon": 1.2}}, root=root) for seed in (1, 2)]
    answers = [one.answers()[0] for one in racing]
    assert sorted("error" in one for one in answers) == [False, True]
    assert "above the cap" in next(one["error"] for one in answers if "error" in one)
    assert len(charges()) == 1
    seed = 1 if "coef" in answers[0] else 2
    again = [Kernel({"seed": seed, "given": {"epsilon": 1.2}}, root=root) for _ in range(2)]
    coefficients = [one.answers()[0]["coef"] for one in again]
    assert coefficients[0] == coefficients[1] == answers[seed - 1]["coef"]
    assert len(charges()) == 1


def test_a_plan_is_of_the_rows_that_were_given(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made of the newest version: no other kernel registers one between the rows and their plan."""
    unitball.open_account("clinic", **OPENING)
    held = []

    def feasible(config: Any) -> Any:
        descriptor = os.open(root / "private" / "frames" / config.dataset, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.append(config.dataset)
        finally:
            os.close(descriptor)
        return known(config)

    known = preflight.require_feasible
    monkeypatch.setattr(fits, "require_feasible", feasible)
    private().fit(*drawn())
    assert held == ["clinic.fits"]


@pytest.mark.parametrize("step", ["charged", "drawn"])
def test_a_kernel_that_is_killed_after_its_charge_is_not_charged_again(step: str, root: Path) -> None:
    unitball.open_account("clinic", **OPENING)
    killed = Kernel({"kill": step}, root=root)
    assert killed.answers() == []
    assert killed.code == -signal.SIGKILL
    assert len(charges()) == 1
    # It is stored now, and says no price.
    models = [private(epsilon=epsilon).fit(*drawn()) for epsilon in (1.0, None)]
    assert np.array_equal(models[0].coef_, models[1].coef_)
    assert len(charges()) == 1


def test_without_epsilon_what_is_stored_is_free_and_the_rest_has_a_price() -> None:
    unitball.open_account("clinic", **OPENING)
    with pytest.raises(BudgetError, match=r"price.*from epsilon 0 to 1 of 1.6.*epsilon=1"):
        private(epsilon=None).fit(*drawn())
    assert charges() == []
    private().fit(*drawn())
    private(epsilon=None).fit(*drawn())
    with pytest.raises(BudgetError, match=r"price.*from epsilon 1 to 1.4\d* of 1.6"):
        private(epsilon=None, repetition=1).fit(*drawn())
    assert len(charges()) == 1


def test_an_account_in_memory_is_refused_in_another_process(root: Path) -> None:
    (refused,) = Kernel({"given": {"root": ":memory:"}}, root=root).answers()
    assert refused["kind"] == "BudgetError"
    assert "n_jobs" in refused["error"]
    assert charges() == []


@pytest.mark.nightly
def test_a_search_over_processes_charges_each_fit() -> None:
    unitball.open_account("clinic", epsilon=9.0, delta=1e-6)
    search = GridSearchCV(private(), {"parameters": [{"iterations": 5}]}, cv=2, n_jobs=2)
    with pytest.warns(UserWarning, match=r"account 'clinic'.*epsilon 1 at delta 1e-06"):
        assert search.fit(*drawn()).best_score_ > 0.6
    assert len(charges()) == 3
    search.fit(*drawn())
    assert len(charges()) == 3
    unitball.open_account("clinic", root=":memory:", **OPENING)
    with pytest.raises(BudgetError, match=r"':memory:'.*n_jobs"):
        clone(search).set_params(estimator__root=":memory:").fit(*drawn())


def test_an_estimator_that_was_pickled_on_another_root_asks_which_one_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was started before ``UNITBALL_ROOT`` was set would charge an account of the same name there."""
    unitball.open_account("clinic", **OPENING)
    stored, fitted = pickle.dumps(private()), pickle.dumps(private().fit(*drawn()))
    assert str(tmp_path) not in f"{stored!r}{fitted!r}"
    assert np.array_equal(pickle.loads(stored).fit(*drawn()).coef_, pickle.loads(fitted).coef_)  # noqa: S301 - our own
    monkeypatch.setenv("UNITBALL_ROOT", str(tmp_path / "other"))
    unitball.open_account("clinic", **OPENING)
    for one in (stored, fitted):
        with pytest.raises(BudgetError, match="root=FOLDER"):
            clone(pickle.loads(one)).fit(*drawn())  # noqa: S301 - our own
    assert charges() == []


def test_an_account_has_to_exist(root: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'clinic'.*no root.*open_account\('clinic'"):
        private().fit(*drawn())
    assert not root.exists(), "a question makes no root"
    for name in ("clinic-2026", "ward"):
        unitball.open_account(name, **OPENING)
    with pytest.raises(InputError, match=r"'clinic'.*'clinic-2026', 'ward'.*nearest: 'clinic-2026'"):
        private().fit(*drawn())
    frame = pd.DataFrame({"x": [0.5] * 40, "y": ["ill", "well"] * 20})
    columns = [{"name": "x", "type": "numeric", "range": [0, 1]}, {"name": "y", "type": "label", "classes": CLASSES}]
    with pytest.raises(RefusedError, match="nearest: 'clinic-2026'"):
        unitball.train(frame, schema={"columns": columns}, name="visits", account="clinic", epsilon=0.5)
    # An account is of one root: another one has others.
    with pytest.raises(InputError, match=r"'ward'.*no root"):
        private("ward", root=tmp_path / "other").fit(*drawn())
    with pytest.raises(InputError, match="a/b"):
        unitball.open_account("a/b", **OPENING)


def test_opening_again_goes_by_the_terms_at_opening_and_those_in_force() -> None:
    unitball.open_account("clinic", **OPENING)
    change_cap("clinic", 3.0, "a second year")
    for epsilon in (1.6, 3.0):
        unitball.open_account("clinic", epsilon=epsilon, delta=1e-6)
    with pytest.raises(InputError, match=r"epsilon 1.6.*epsilon 3.*epsilon 2"):
        unitball.open_account("clinic", epsilon=2.0, delta=1e-6)
    assert unitball.budget("clinic").epsilon_cap == 3.0


def test_an_account_in_memory_says_so_and_is_nowhere_else(root: Path) -> None:
    unitball.open_account("clinic", root=":memory:", **OPENING)
    model = private(root=":memory:").fit(*drawn())
    assert "'clinic' exists only in the memory of this process, for tests" in str(model.guarantee_)
    assert len(charges(root=":memory:")) == 1
    assert 1.0 < (model.remaining_budget() or 0.0) < 1.6
    assert not root.exists()
    with pytest.raises(InputError, match="'clinic'"):
        unitball.budget("clinic")


def test_without_an_account_nothing_is_remembered_and_it_is_said(root: Path) -> None:
    first, second = (private(None).fit(*drawn()) for _ in range(2))
    said = "no account records this fit: another fit of the same rows is not counted"
    assert said in str(first.guarantee_)
    assert said not in str(private(None, public=True).fit(*drawn()).guarantee_)
    assert not np.array_equal(first.coef_, second.coef_), "each draws its own noise"
    assert set(first.charges_["account"]) == {"none"}
    assert first.remaining_budget() is None
    assert not root.exists()


def test_rows_that_an_account_knows_are_refused_without_it_and_under_another() -> None:
    unitball.open_account("clinic", **OPENING)
    unitball.open_account("ward", **OPENING)
    private().fit(*drawn())
    for account in (None, "ward"):
        for rows in (None, list(range(0, 240, 3))):
            with pytest.raises(BudgetError, match=r"rows of account 'clinic'.*account='clinic'"):
                private(account, epsilon=0.5).fit(*drawn(rows))
    assert unitball.budget("ward").charges == ()
    private(None).fit(*drawn(seed=6))
    private("ward", epsilon=0.5).fit(*drawn(seed=6))
