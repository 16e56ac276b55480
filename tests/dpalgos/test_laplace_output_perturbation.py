"""mpc-op and pathak as sums of integers: published scales, charged sensitivities, and runs by secure aggregation.

Statistical checks raise a false alarm with probability 10^-9 (Dvoretzky-Kiefer-Wolfowitz) and are run on wrong laws.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_digits

from dpalgos.guarantees import Neighbours, NoGuarantee, Numerics, PureEpsilon, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.mechanisms.distributions import DiscreteLaplace
from dpalgos.parameters import ParameterError
from dpalgos.published.minimisers import PublishedMultiPartyOutputPerturbation
from dpalgos.rows import ArrayRows, Ints
from dpalgos.secure.messages import Tolerance
from dpalgos.secure.noise_shares import share_distribution
from dpalgos.secure.summation import SecureSummation, require_shareable, secagg_guarantee, weights_of
from dpalgos.sentences import coded
from dpalgos.trainers.output_perturbation import Pathak
from tests.support.nights import spanning
from tests.support.statistics import rejects_law
from tests.support.training import blobs, fit, noise, parties_of

Array = NDArray[np.float64]
KINDS: list[Any] = [PublishedMultiPartyOutputPerturbation, Pathak]


def setting(sizes: tuple[int, ...], dimension: int, classes: int = 2, trust: Trust = Trust.CENTRAL) -> Setting:
    return Setting(sizes=sizes, dimension=dimension, classes=classes, trust=trust)


# --- scale and sensitivity --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 1e6])
@pytest.mark.parametrize(
    ("sizes", "dimension", "classes"), [((2, 7, 4), 9, 2), ((500,) * 100, 104, 2), ((300,) * 5, 784, 10), ((1,), 1, 2)]
)
def test_the_noise_of_the_mean_is_the_published_one(
    kind: Any, epsilon: float, sizes: tuple[int, ...], dimension: int, classes: int
) -> None:
    """Up by at most 1e-3 where there are thousands of weights and a tiny epsilon, never down."""
    algorithm = kind(budget=PureEpsilon(epsilon))
    known = setting(sizes, dimension, classes)
    released = algorithm.distribution(known).scale * algorithm._unit(known) / len(sizes)
    published = 2 / (min(sizes) * 1e-3 * epsilon) / (len(sizes) if kind is not Pathak else 1)
    assert algorithm.noise_scale(known) == pytest.approx(published, rel=1e-12)
    assert 1.0 <= released / published <= 1.0 + 2e-3
    if dimension <= 104:
        assert released / published <= 1.0 + 1e-5


def moved(algorithm: Any, party: int, sizes: tuple[int, ...], dimension: int, classes: int = 2) -> float:
    """Return the largest l1 change of the integer sum when a row of one party is replaced, over random and bad rows."""
    random = np.random.default_rng(party)
    known = setting(sizes, dimension, classes)
    even = np.full(dimension, 1 / math.sqrt(dimension))
    largest = 0.0
    for trial in range(12):
        rows = random.normal(size=(sizes[party], dimension))
        labels = random.integers(0, classes, sizes[party])
        if trial % 3 == 0:
            rows[0] = even
        elif trial % 3 == 1:
            rows[:], labels[:] = even * 1e-9, 1
            rows[0] = even
        other = rows.copy()
        other[0] = -rows[0]
        ends = [
            algorithm.contribution(algorithm.initial(known), ArrayRows(x, labels), known).astype(object)
            for x in (rows, other)
        ]
        largest = max(largest, float(np.abs(ends[0] - ends[1]).sum()))
    return largest


@pytest.mark.parametrize("loss", ["logistic", "huber-hinge", "squared"])
@pytest.mark.parametrize(
    ("sizes", "dimension", "classes"), [((2, 7, 4), 9, 2), ((1, 1, 3), 9, 2), ((1,) * 9, 9, 3), ((4, 0, 9), 8, 2)]
)
def test_pathak_charges_for_what_a_row_moves(loss: str, sizes: tuple[int, ...], dimension: int, classes: int) -> None:
    """At N = m√p, the fewest parties: the l1 change of the integer sum over the noise's scale is at most epsilon."""
    algorithm = Pathak(budget=PureEpsilon(0.7), regularisation=10.0, loss=loss)
    known = setting(sizes, dimension, classes)
    assert algorithm.guarantee(known).losses == (PureEpsilon(0.7),)
    spent = [
        moved(algorithm, party, sizes, dimension, classes) / algorithm.distribution(known).scale
        for party in (0, len(sizes) - 1)
    ]
    assert max(spent) <= 0.7
    if loss == "huber-hinge" and min(sizes) > 0:
        assert spent[0] >= 0.9999 * 0.7, "the bound is reached"


def test_the_check_sees_noise_that_is_too_small() -> None:
    """A hundredth less than what is charged, and the noise of mpc-op (nine weights, three parties), are caught."""
    hinge: dict[str, Any] = {"budget": PureEpsilon(0.7), "regularisation": 100.0, "loss": "huber-hinge"}

    class Less(Pathak):
        def distribution(self, setting: Setting) -> DiscreteLaplace:
            return DiscreteLaplace(Pathak.distribution(self, setting).scale / 1.01)

    for algorithm in (Less(**hinge), PublishedMultiPartyOutputPerturbation(**hinge)):
        known = setting((1, 1, 1), 9)
        assert moved(algorithm, 0, (1, 1, 1), 9) > 0.7 * algorithm.distribution(known).scale


def test_the_grid_is_charged() -> None:
    """Weights just above half a step: turning a row moves each by two steps, twice as far as in real numbers."""

    class Coarse(Pathak):
        def _unit(self, setting: Setting) -> float:
            return 1.0 / (3 * self.regularisation * 0.51)

    algorithm = Coarse(budget=PureEpsilon(1.0), regularisation=100.0, loss="huber-hinge")
    known = setting((1, 1, 1), 9)
    found = moved(algorithm, 0, (1, 1, 1), 9)
    assert found == 18.0
    assert found <= algorithm.distribution(known).scale <= 18.2
    assert found > algorithm.distribution(known).scale - 9, "without the term m p"


@pytest.mark.parametrize("loss", ["logistic", "huber-hinge", "smoothed-hinge", "softmax", "squared"])
@pytest.mark.parametrize("regularisation", [1e-6, 1e-3, 10.0])
def test_no_minimiser_is_cut(loss: str, regularisation: float) -> None:
    """G/λ bounds every weight, so the cut changes nothing; also with one class, where weights grow longest."""
    rows = blobs(30, 4, 3, 1)
    for labels in (rows.labels, np.zeros_like(rows.labels)):
        algorithm = Pathak(budget=PureEpsilon(1.0), regularisation=regularisation, loss=loss)
        known = setting((30,), 4, 3)
        found = algorithm.contribution(algorithm.initial(known), ArrayRows(rows.features, labels), known)
        assert np.abs(found).max() * algorithm._unit(known) < algorithm._largest() * (1 - 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_fit_into_what_secure_summation_allots(kind: Any) -> None:
    """Also for a party of one row among millions and for an epsilon at which nothing is hidden."""
    for sizes, epsilon in (((1, 10_000_000), 1.0), ((1, 10_000_000), 1e9), ((600,) * 50, 1e9), ((0, 0), 1.0)):
        algorithm = kind(budget=PureEpsilon(epsilon), loss="squared")
        known = setting(sizes, 5)
        largest = algorithm._largest() / algorithm._unit(known)
        assert largest <= 2**61 * max(1, min(sizes)) / max(sum(sizes), 1)
        require_shareable(algorithm, known, Tolerance(parties=len(sizes)))


def test_what_cannot_be_is_refused_from_public_facts() -> None:
    for kind in KINDS:
        with pytest.raises(ParameterError, match="scale"):
            kind(budget=PureEpsilon(1e-8)).guarantee(setting((10,) * 90, 784, 10))
    with pytest.raises(ParameterError, match="replace-one"):
        Pathak(budget=PureEpsilon(1.0)).guarantee(
            dataclasses.replace(setting((10,), 4), neighbours=Neighbours.ADD_REMOVE_ONE)
        )


def test_pathak_needs_m_times_root_p_parties_exactly() -> None:
    algorithm = Pathak(budget=PureEpsilon(1.0))
    for parties, dimension, classes, proved in (
        (28, 784, 2, True),
        (27, 784, 2, False),
        (280, 784, 10, True),
        (279, 784, 10, False),
        (29, 785, 2, True),
        (28, 785, 2, False),
    ):
        guarantee = algorithm.guarantee(setting((5,) * parties, dimension, classes))
        assert guarantee.proved is proved
        if proved:
            assert guarantee.numerics is Numerics.EXACT
        else:
            needed = math.ceil(round(max(1, classes if classes > 2 else 1) * math.sqrt(dimension), 9))
            assert guarantee.losses == (NoGuarantee(coded("few-parties-for-laplace", needed=needed, parties=parties)),)
    assert algorithm.claim is not None
    assert algorithm.claim.flaw is not None


# --- secure aggregation -----------------------------------------------------------------------------------------------


@cache
def data(name: str) -> tuple[ArrayRows, int]:
    """Return scikit-learn's rows, of unit norm, and the number of classes."""
    given = load_digits() if name == "digits" else load_breast_cancer()
    rows = given.data / np.linalg.norm(given.data, axis=1, keepdims=True)
    return ArrayRows(rows, given.target.astype(np.int64)), len(given.target_names)


PARTIES = 6
TOLERANCE = Tolerance(parties=PARTIES, dropouts=1, colluders=1)


def secure(algorithm: Any, known: Setting, seed: int, *, lost: int | None = 2, scaled: bool = True) -> SecureSummation:
    absences = {} if lost is None else {"mask": frozenset({lost})}
    return SecureSummation(
        identity=f"test-{seed}",
        tolerance=TOLERANCE,
        sizes=known.sizes,
        noises=noises(seed),
        absences=absences,
        scaled=scaled,
        weights=weights_of(algorithm, known),
    )


def noises(seed: int) -> list[KeyedNoise]:
    return [KeyedNoise(public_secret(1000 * seed + party), f"test-{seed}") for party in range(PARTIES)]


@pytest.mark.parametrize(("kind", "name"), spanning(KINDS, ["digits", "breast_cancer"]))
def test_the_mean_is_over_the_parties_that_took_part(kind: Any, name: str) -> None:
    """Without noise to speak of: the survivors' minimisers, each counted once whatever its rows."""
    rows, classes = data(name)
    parties = parties_of(rows, PARTIES)
    parties[0] = ArrayRows(parties[0].features[:20], parties[0].labels[:20])
    known = setting(tuple(p.count for p in parties), rows.dimension, classes, Trust.SECAGG)
    algorithm = kind(budget=PureEpsilon(1e9))
    single = [fit(algorithm, [party], dataclasses.replace(known, sizes=(party.count,)), noise()) for party in parties]
    for lost in (None, 2):
        model = fit(algorithm, parties, known, noise(), secure(algorithm, known, 1, lost=lost))
        mean = np.mean([one.weights for index, one in enumerate(single) if index != lost], axis=0)
        np.testing.assert_allclose(model.weights, mean, atol=1e-4)
    central = fit(algorithm, parties, known, noise())
    np.testing.assert_allclose(central.weights, np.mean([one.weights for one in single], axis=0), atol=1e-4)


@cache
def noise_in_the_view(kind: Any, known_shares: int) -> tuple[Array, float]:
    """Return, over 12 releases of digits with a party lost, the noise the adversary does not know, and its scale.

    The released sum less the survivors' contributions, less the shares of so many of the survivors.
    """
    rows, classes = data("digits")
    parties = parties_of(rows, PARTIES)
    known = setting(tuple(p.count for p in parties), rows.dimension, classes, Trust.SECAGG)
    algorithm = kind(budget=PureEpsilon(1.0), regularisation=0.1)
    law = algorithm.distribution(known)
    contributions: list[Ints] = [algorithm.contribution(algorithm.initial(known), party, known) for party in parties]
    share = share_distribution(law, TOLERANCE.unknown_shares, contributions[0].size)
    found = []
    for seed in range(12):
        summation = secure(algorithm, known, seed, scaled=False)
        released = summation.release("sum-0", contributions, law).reshape(-1)
        survivors = summation.survivors["sum-0"]
        assert survivors == (0, 1, 3, 4, 5)
        for party in survivors:
            released = released - contributions[party].reshape(-1)
        for party in survivors[:known_shares]:
            vector = contributions[party].reshape(-1)
            released = released - share.sample(vector.size, noises(seed)[party].stream("sum-0/share", vector))
        found.append(released)
    return np.concatenate(found).astype(np.float64), law.scale


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_adversary_does_not_know_is_the_curators_noise(kind: Any) -> None:
    """7,680 draws tell laws apart by 3.7 per cent: with two shares more known, or none of six missing, they do."""
    hidden, scale = noise_in_the_view(kind, 1)
    assert not rejects_law(hidden, stats.laplace(scale=scale).cdf)
    central = DiscreteLaplace(scale).sample(len(hidden), noise(3).stream("central", np.zeros(1)))
    assert not rejects_law(central.astype(np.float64), stats.laplace(scale=scale).cdf)
    assert rejects_law(noise_in_the_view(kind, 3)[0], stats.laplace(scale=scale).cdf)
    assert rejects_law(hidden, stats.laplace(scale=scale / PARTIES).cdf)


def test_the_guarantee_under_secagg_is_the_central_one_and_who_it_is_against() -> None:
    known = setting((50,) * PARTIES, 30, 2, Trust.SECAGG)
    pathak = Pathak(budget=PureEpsilon(1.0))
    stated = secagg_guarantee(pathak.guarantee(known), TOLERANCE, pathak.steps(known))
    assert stated.losses == (PureEpsilon(1.0),)
    assert stated.numerics is Numerics.EXACT
    assert len(stated.assumptions) == 4
    published = PublishedMultiPartyOutputPerturbation(budget=PureEpsilon(1.0))
    assert not secagg_guarantee(published.guarantee(known), TOLERANCE, 1).proved
