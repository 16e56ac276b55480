"""Mistakes that proofs and code make, each put into a sound algorithm: the audit catches them, and not the sound ones.

Mistakes are caught at 99 %, by one fixed seed, so always or never; the sound ones are held against 1 − 10⁻⁹.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from dpalgos.algorithms import Algorithm, PrivateAlgorithm
from dpalgos.audit.experiment import AuditOptions, AuditReport, Effort, Verdict
from dpalgos.audit.releases import audit_algorithm, audited_columns
from dpalgos.evaluators.column_histograms import ColumnHistograms
from dpalgos.guarantees import GaussianMu, Loss, Neighbours, Setting, Trust
from dpalgos.keystream import KeyedNoise, KeyStream
from dpalgos.mechanisms.distributions import RoundedGaussian, SymmetricRoundedGaussian
from dpalgos.models import LinearModel
from dpalgos.projections.covariance import AnalyzeGauss
from dpalgos.projections.principal import gram_matrix, leading_basis
from dpalgos.rows import ArrayRows, Floats, Ints, NoiseSource, Rows, normals
from dpalgos.trainers.discriminant import ClassMeansDiscriminant
from dpalgos.trainers.gradient_descent import DescentState, NoisyGradientDescent
from tests.support.nights import by_night

MU, DELTA = GaussianMu(1.0), 0.05
SETTING = Setting(sizes=(16,), dimension=2, classes=2, trust=Trust.CENTRAL)
EFFORT = Effort(runs=800, gaussian_runs=800, numbers=400_000, most=100_000, pilot=24)


class _Noisier(ClassMeansDiscriminant):
    """The sound law times a factor."""

    def scaled(self, setting: Setting, factor: float) -> RoundedGaussian:
        return RoundedGaussian(factor * super().distribution(setting).sigma)


class HalfTheNoise(_Noisier):
    def distribution(self, setting: Setting) -> RoundedGaussian:
        return self.scaled(setting, 0.5)


class RootTwoForTwo(_Noisier):
    """Two rows of one class may be antipodal: the sum of a class moves by 2, not by √2."""

    def distribution(self, setting: Setting) -> RoundedGaussian:
        return self.scaled(setting, 0.5**0.5)


class ClippedAfterNoise(ClassMeansDiscriminant):
    """Rows enter as long as they are, and what comes out is clipped."""

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        total = np.zeros(self.sum_shape(setting), dtype=np.int64)
        sums = self.class_sums(setting)
        for features, labels, _ in rows.blocks():
            for row, label in zip(features, labels, strict=True):
                if label >= 0:
                    total[label] += np.rint(np.append(row, 0.0) * sums.scale).astype(np.int64)
        return total

    def result(self, state: Ints, setting: Setting) -> LinearModel:
        most = int(self.class_sums(setting).scale * setting.rows)
        return super().result(np.clip(state, -most, most), setting)


class EachRowWhole(ClassMeansDiscriminant):
    """A person's rows count each as a record."""

    people: ClassVar[str] = "as for class-means, were it not for the weights"

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        assert isinstance(rows, ArrayRows)
        return super().contribution(state, replace(rows, shares=None), setting)


class MissingRootTwo(AnalyzeGauss):
    """1 for the √2 by which XᵀX moves in the Frobenius norm where a row is replaced."""

    def distribution(self, setting: Setting) -> SymmetricRoundedGaussian:
        return SymmetricRoundedGaussian.calibrated(
            self.budget, super().distribution(setting).sigma * MU.mu / 2**0.5, setting.dimension
        )


class ZeroOutUnderReplaceOne(NoisyGradientDescent):
    """Noise for one gradient where neighbours differ in two."""

    def distribution(self, setting: Setting) -> RoundedGaussian:
        sensitivity = self.sums(setting).sensitivity(Neighbours.REPLACE_SPECIAL)
        return RoundedGaussian.calibrated(self.mu(), sensitivity, self.iterations)


class GradientsClippedAfterNoise(NoisyGradientDescent):
    """Gradients enter as long as they are, and the noisy sum is clipped."""

    def contribution(self, state: DescentState, rows: Rows, setting: Setting) -> Ints:  # type: ignore[override]  # a mutant
        sums = self.sums(setting)
        unclipped = replace(sums, clip=8.0 * self.clip)
        return unclipped.total(state.weights, unclipped.prepare(rows, setting), setting) * 8

    def prepare(self, rows: Rows, setting: Setting) -> Rows:
        return rows


@dataclass(frozen=True, kw_only=True)
class LearntProjection(PrivateAlgorithm):
    """Class means with noise enough, seen through the first principal direction of the rows themselves."""

    budgets = (GaussianMu,)
    budget: Loss

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> LinearModel:
        basis = leading_basis(gram_matrix(parties, setting), 1).basis
        sums: Floats = np.zeros((2, 1))
        for rows in parties:
            for features, labels, _ in rows.blocks():
                for label in (0, 1):
                    sums[label] += (features[labels == label] @ basis).sum(axis=0)
        draws = normals(noise.stream("sums", sums), sums.size).reshape(sums.shape)
        return LinearModel(weights=np.diff((sums + 2.0 / MU.mu * draws) @ basis.T, axis=0))


class EachCellWhole(ColumnHistograms):
    """A person's rows are counted each as a record."""

    people: ClassVar[str] = "as for column-histograms, were it not for the units"

    def contribution(self, state: Ints, rows: Rows, setting: Setting) -> Ints:
        assert isinstance(rows, ArrayRows)
        return super().contribution(state, replace(rows, shares=None), setting)


class ReusedStream:
    """Gives every step of a run the same stream."""

    def __init__(self, secret: bytes, identity: str) -> None:
        self._inner = KeyedNoise(secret, identity)

    def stream(self, step: str, value: object) -> KeyStream:
        return self._inner.stream("noise", np.zeros(1))


COLUMNS: dict[str, Any] = {"columns": audited_columns(10), "bins": 16}
MUTANTS: dict[str, Algorithm] = {
    "half the noise": HalfTheNoise(budget=MU),
    "a person's cells that count as records": EachCellWhole(budget=MU, **COLUMNS),
    "a person's rows that weigh as records": EachRowWhole(budget=MU),
    "a missing root of two": MissingRootTwo(budget=MU, components=2),
    "zero-out sensitivity under replace-one": ZeroOutUnderReplaceOne(budget=MU, iterations=2),
    "clipping after noise": ClippedAfterNoise(budget=MU),
    "clipping gradients after noise": GradientsClippedAfterNoise(budget=MU, iterations=2, clip=0.25),
    "a projection learnt on the rows": LearntProjection(budget=MU),
    "root of two for two in a sum of signed rows": RootTwoForTwo(budget=MU),
}
SOUND: dict[str, Algorithm] = {
    "class means": ClassMeansDiscriminant(budget=MU),
    "counts of columns": ColumnHistograms(budget=MU, **COLUMNS),
    "covariance": AnalyzeGauss(budget=MU, components=2),
    "descent": NoisyGradientDescent(budget=MU, iterations=2),
}


def audited(algorithm: Algorithm, confidence: float, noise: type = KeyedNoise) -> AuditReport:
    return audit_algorithm(
        [(algorithm, replace(SETTING, dimension=10) if isinstance(algorithm, ColumnHistograms) else SETTING)],
        AuditOptions(
            delta=DELTA,
            confidence=confidence,
            trials=8_000 if isinstance(algorithm, AnalyzeGauss) else None,
            effort=EFFORT,
        ),
        name=type(algorithm).__name__,
        kind="evaluators" if isinstance(algorithm, ColumnHistograms) else "trainers",
        noise=noise,
    )


SLOW = {
    "a missing root of two",
    "clipping gradients after noise",
    "covariance",
    "descent",
    "zero-out sensitivity under replace-one",
}


@pytest.mark.parametrize("name", by_night(MUTANTS, SLOW))
def test_a_mistake_is_caught(name: str) -> None:
    report = audited(MUTANTS[name], 0.99)
    assert report.verdict is Verdict.VIOLATES, report


@pytest.mark.nightly
def test_noise_that_is_used_twice_is_caught() -> None:
    report = audited(SOUND["descent"], 0.99, ReusedStream)
    assert report.verdict is Verdict.VIOLATES, report
    assert "noise of sum" in report.event


@pytest.mark.parametrize("name", by_night(SOUND, SLOW))
def test_what_is_sound_is_not(name: str) -> None:
    report = audited(SOUND[name], 1 - 1e-9)
    assert report.verdict is not Verdict.VIOLATES, report
    assert report.proved_mu == MU.mu
    assert report.gaussian_mu is not None
    assert 0.5 * MU.mu < report.gaussian_mu <= MU.mu
