"""Whitening by public rows: what it does to their covariances, and that it is principal components at power 0."""

from __future__ import annotations

import numpy as np
import pytest

from dpalgos.features.whitening import CentredDirections, PublicRowsWhitening
from dpalgos.models import decode
from dpalgos.parameters import ParameterError
from dpalgos.rows import NULL_LABEL, Floats


def rows(random: np.random.Generator, count: int = 3000) -> tuple[Floats, Floats]:
    labels = random.integers(0, 3, count)
    scales = np.array([1.0, 0.5, 0.1, 0.05])
    return 0.1 * (random.normal(size=(3, 4))[labels] + scales * random.normal(size=(count, 4))), labels.astype(float)


def turned(made: CentredDirections, features: Floats) -> Floats:
    return np.asarray((features - made.mean) @ made.basis)


def within(features: Floats, labels: Floats) -> Floats:
    centred = features - np.stack([features[labels == each].mean(axis=0) for each in range(3)])[labels.astype(int)]
    return np.asarray(centred.T @ centred / len(features))


def test_classes_become_round(random: np.random.Generator) -> None:
    features, labels = rows(random)
    blocks = [(features[start::7], labels[start::7]) for start in range(7)]
    made = PublicRowsWhitening(floor=1e-9).learn(blocks, 4, len(features), 3)
    found = within(turned(made, features), labels)
    np.testing.assert_allclose(found / found[0, 0], np.eye(4), atol=1e-4)
    total = np.cov(turned(made, features).T, bias=True)
    assert (np.diff(np.diag(total)) < 0).all(), "the directions that tell classes apart come first"
    np.testing.assert_allclose(np.linalg.norm(made.transform(features), axis=1), 1.0)


def test_without_classes_the_whole_covariance_is_whitened(random: np.random.Generator) -> None:
    features, labels = rows(random)
    made = PublicRowsWhitening(floor=1e-9, within=False).learn([(features, labels)], 4, len(features), 3)
    found = np.cov(turned(made, features).T, bias=True)
    np.testing.assert_allclose(found / found[0, 0], np.eye(4), atol=1e-4)


def test_power_zero_is_principal_components(random: np.random.Generator) -> None:
    features, labels = rows(random)
    made = PublicRowsWhitening(power=0.0, components=2).learn([(features, labels)], 4, len(features), 3)
    _, vectors = np.linalg.eigh(np.cov(features.T))
    np.testing.assert_allclose(np.abs(made.basis), np.abs(vectors[:, ::-1][:, :2]), atol=1e-6)
    np.testing.assert_allclose(made.mean, features.mean(axis=0))


def test_null_records_have_no_part(random: np.random.Generator) -> None:
    features, labels = rows(random, 300)
    more = np.concatenate([features, 5.0 + np.zeros((9, 4)), np.full((1, 4), np.nan)])
    known = np.concatenate([labels, np.full(9, float(NULL_LABEL)), [0.0]])
    learner = PublicRowsWhitening()
    one, other = (learner.learn([part], 4, 300, 3) for part in ((features, labels), (more, known)))
    assert np.array_equal(one.basis, other.basis)
    assert np.array_equal(one.mean, other.mean)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_hardly_any_rows(count: int) -> None:
    features = np.eye(4)[:count]
    made = PublicRowsWhitening().learn([(features, np.zeros(count))], 4, count, 3)
    assert np.isfinite(made.transform(np.eye(4))).all()


def test_more_directions_than_there_are() -> None:
    with pytest.raises(ParameterError, match=r"12.*40.*11"):
        PublicRowsWhitening(components=12).output_dimension(40, 12, 3)
    assert PublicRowsWhitening().output_dimension(400, 10_000, 3) == 200


def test_a_public_head_stands_beside_the_features(random: np.random.Generator) -> None:
    features, labels = rows(random)
    blocks = [(features[start::5], labels[start::5]) for start in range(5)]
    bare, made = (PublicRowsWhitening(head=head).learn(blocks, 4, len(features), 3) for head in (0.0, 0.6))
    assert made.dimension == 7 == PublicRowsWhitening(head=0.6).output_dimension(4, len(features), 3)
    found, plain = made.transform(features), bare.transform(features)
    np.testing.assert_allclose(found[:, :4], 0.8 * plain)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0)
    means = np.stack([plain[labels == each].mean(axis=0) for each in range(3)])
    nearest = ((plain[:, None, :] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (found[:, 4:].argmax(axis=1) == nearest).all()
    again = decode(made.kind, made.arrays())
    assert np.array_equal(again.transform(features), found)
    with pytest.raises(ParameterError, match=r"^head.*classes"):
        PublicRowsWhitening(head=0.5).output_dimension(4, 10, 1)
