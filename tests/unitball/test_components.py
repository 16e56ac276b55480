"""PrivatePCA: scikit-learn's checks, one release on an account, and what is fitted on its scores."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

import unitball
from dpalgos.parameters import ParameterError
from storage.errors import InputError
from unitball import BudgetError, PrivateClassifier, PrivatePCA
from unitball.lineage import basis_of

BOUNDS = (-4.0, 4.0)
# No check is expected to fail; these skip themselves, since noise is not deterministic, or without SCIPY_ARRAY_API.
SKIPPED = {
    "check_array_api_input",
    "check_pipeline_consistency",
    "check_transformer_data_not_an_array",
    "check_transformer_general",
}


@pytest.fixture(scope="module")
def rows() -> tuple[Any, Any]:
    random = np.random.default_rng(5)
    labels = np.arange(2000) % 2
    scores = random.normal(size=(2000, 2)) * [0.6, 0.4] + np.outer(2 * labels - 1, [1.2, 0.0])
    turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))
    return scores @ turn[:2] + 0.1 * random.normal(size=(2000, 5)) + 0.5, labels


@pytest.fixture(autouse=True)
def fresh(root: Path) -> None:
    """Every test has its own root."""


def private(**given: Any) -> PrivatePCA:
    return PrivatePCA(**{"epsilon": 2.0, "bounds": BOUNDS, "account": "clinic", "n_components": 2, **given})


def classifier(**given: Any) -> PrivateClassifier:
    declared = {"epsilon": 1.0, "bounds": (-2.0, 2.0), "classes": [0, 1], "account": "clinic"}
    return PrivateClassifier(**{**declared, **given})


def test_scikit_learns_checks() -> None:
    passed, skipped = set(), set()
    for checked, check in estimator_checks_generator(PrivatePCA(public=True, n_components=1)):
        try:
            check(checked)
            passed.add(check.func.__name__)
        except SkipTest:
            skipped.add(check.func.__name__)
    assert skipped == SKIPPED
    assert len(passed) > 35


def test_scores_names_and_rows_again(rows: tuple[Any, Any]) -> None:
    pca = PrivatePCA(epsilon=8.0, n_components=2, bounds=BOUNDS, public=True, random_state=0).fit(rows[0])
    scores = pca.transform(rows[0])
    exact = scores - scores.mean(axis=0)
    # Nearly all rows are shorter than the radius about the mean, so that variances are those of the scores.
    assert pca.explained_variance_ == pytest.approx(exact.var(axis=0), rel=0.1)
    assert (pca.explained_variance_margin_[:, 0] <= exact.var(axis=0)).all()
    assert (exact.var(axis=0) <= pca.explained_variance_margin_[:, 1]).all()
    assert 0.9 < pca.explained_variance_ratio_.sum() <= 1.0
    assert np.abs(pca.inverse_transform(scores) - rows[0]).max() < 0.6
    np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.eye(2), atol=1e-12)
    assert list(pca.get_feature_names_out()) == ["privatepca0", "privatepca1"]
    assert pca.loadings().shape == (5, 2)
    framed = clone(pca).set_output(transform="pandas").fit(pd.DataFrame(rows[0], columns=list("abcde")))
    assert list(framed.transform(pd.DataFrame(rows[0], columns=list("abcde")))) == ["privatepca0", "privatepca1"]
    assert framed.scaled_names_ == tuple("abcde")
    about_the_middle = clone(pca).set_params(center=False).fit(rows[0])
    assert not about_the_middle.mean_.any()
    assert about_the_middle.explained_variance_[0] > pca.explained_variance_[0]


def test_without_a_number_those_above_the_noise_are_taken_and_none_names_an_epsilon(rows: tuple[Any, Any]) -> None:
    assert PrivatePCA(epsilon=8.0, bounds=BOUNDS, public=True, random_state=0).fit(rows[0]).n_components_ == 2
    with pytest.raises(InputError, match=r"epsilon \d.*n_components"):
        PrivatePCA(epsilon=0.01, bounds=BOUNDS, public=True, random_state=0).fit(rows[0])


def test_another_number_of_components_is_the_same_release(rows: tuple[Any, Any]) -> None:
    unitball.open_account("clinic", epsilon=2.05, delta=1e-6)
    pca = private().fit(rows[0])
    one = private(n_components=1, epsilon=None).set_params(epsilon=2.0).fit(rows[0])
    np.testing.assert_array_equal(one.components_[0], pca.components_[0])
    assert pca.guarantee_.proved is not None
    assert 1.98 < pca.guarantee_.proved.epsilon <= 2.0
    assert list(pca.charges_["account"]) == ["clinic"]
    with pytest.raises(BudgetError):
        private(repetition=1).fit(rows[0])
    with pytest.raises(BudgetError, match="epsilon"):
        private(epsilon=None, repetition=1).fit(rows[0])
    with pytest.raises(ParameterError, match="bounds"):
        private(bounds=None).fit(rows[0])


def test_a_model_of_scores_composes_the_basis(rows: tuple[Any, Any]) -> None:
    unitball.open_account("clinic", epsilon=6.0, delta=1e-6)
    chain = make_pipeline(private(), FunctionTransformer(), classifier(test_fraction=0.3)).fit(*rows)
    assert chain.score(*rows) > 0.8
    pca, model = chain[0], chain[-1]
    scores = pca.transform(rows[0])
    unmarked = classifier(test_fraction=0.3, repetition=1).fit(np.array(scores), rows[1])
    alone, composed = unmarked.guarantee_.proved, model.guarantee_.proved
    assert alone is not None
    assert composed is not None
    assert alone.mu is not None
    # A mutant that forgets the basis says what the classifier costs alone.
    assert composed.mu == pytest.approx(np.hypot(alone.mu, pca.basis_.losses[0].mu), rel=1e-9)
    assert composed.epsilon > alone.epsilon + 0.5
    assert pca.basis_.key[:12] in str(model.guarantee_)
    assert "held-out" in str(model.guarantee_)
    # Without a pipeline the mark on the scores says it, on selections and pickled copies as well.
    scores = pickle.loads(pickle.dumps(scores[:1500]))  # noqa: S301 - our own
    assert basis_of(scores) == pca.basis_
    again = classifier().fit(scores, rows[1][:1500])
    assert again.guarantee_.proved is not None
    assert again.guarantee_.proved.epsilon > alone.epsilon + 0.5
    assert pca.basis_.key[:12] in str(again.guarantee_)
    framed = clone(pca).set_output(transform="pandas").fit(rows[0])
    assert basis_of(framed.transform(rows[0])) == pca.basis_


def test_scores_have_their_bounds_by_what_is_released(rows: tuple[Any, Any], recwarn: pytest.WarningsRecorder) -> None:
    unitball.open_account("clinic", epsilon=9.0, delta=1e-6)
    chain = make_pipeline(private(), classifier(bounds=None)).fit(*rows)
    assert np.mean(chain.predict(rows[0]) == rows[1]) > 0.8
    pca, model = chain[0], chain[-1]
    high = pca.explained_variance_margin_[:, 1]
    np.testing.assert_allclose(model._encoding.high, 3.0 * np.sqrt(high))
    assert not [one for one in recwarn if "clipped" in str(one.message)]
    # Scores that were changed are no longer where the release says; columns that were left out have no bounds.
    scores = pca.transform(rows[0])
    with pytest.warns(UserWarning, match="column x0"):
        classifier(bounds=None, repetition=1).fit(9.0 * scores, rows[1])
    with pytest.raises(ParameterError, match="bounds"):
        classifier(bounds=None).fit(scores[:, :1], rows[1])


@pytest.mark.parametrize(
    ("transformer", "estimator"),
    [
        ({}, {"account": "ward"}),
        ({}, {"account": None}),
        ({"account": None}, {}),
        ({}, {"public": True, "account": None}),
    ],
    ids=["other", "none-of-classifier", "none-of-transformer", "public"],
)
def test_steps_of_different_accounts_are_refused_before_anything_is_charged(
    rows: tuple[Any, Any], transformer: dict[str, Any], estimator: dict[str, Any]
) -> None:
    for name in ("clinic", "ward"):
        unitball.open_account(name, epsilon=6.0, delta=1e-6)
    with pytest.raises(ParameterError, match="account"):
        make_pipeline(private(**transformer), classifier(**estimator)).fit(*rows)
    assert not unitball.budget("clinic").charges
    if transformer:
        return
    scores = private().fit(rows[0]).transform(rows[0])
    with pytest.raises(ParameterError, match="account"):
        classifier(**estimator).fit(scores, rows[1])
