"""Secure summation as algorithms meet it: exact sums, the law of their noise, no overflow, the guarantee declared."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpalgos.algorithms import TrustedSummation, run_sums
from dpalgos.guarantees import ApproximateDP, GaussianMu, Guarantee, Setting, Trust, nothing_proved
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.mechanisms.distributions import DiscreteGaussian, DiscreteLaplace, RoundedGaussian
from dpalgos.parameters import ParameterError
from dpalgos.rows import ArrayRows, Floats, Ints
from dpalgos.secure import summation as summation_module
from dpalgos.secure.messages import Tolerance
from dpalgos.secure.noise_shares import RadialShare, RoundedRadial, TruexGaussian, share_distribution, share_sigma
from dpalgos.secure.primitives import TooFewPartiesError
from dpalgos.secure.rounds import Party
from dpalgos.secure.summation import SecureSummation, allotments, graph_for, noisy_contribution, secagg_guarantee
from dpalgos.trainers.gradient_descent import NoisyGradientDescent
from dpalgos.trainers.output_perturbation import OutputPerturbation
from tests.support.statistics import fits
from tests.support.training import fit

LAW = RoundedGaussian(5.0)


def noises(parties: int, seed: int = 0) -> list[KeyedNoise]:
    return [KeyedNoise(public_secret(1000 * seed + party), "release") for party in range(parties)]


def make(parties: int, dropouts: int = 0, colluders: int = 0, **changes: Any) -> SecureSummation:
    fields: dict[str, Any] = {
        "identity": "release",
        "tolerance": Tolerance(parties=parties, dropouts=dropouts, colluders=colluders),
        "sizes": (10,) * parties,
        "noises": noises(parties),
    }
    return SecureSummation(**{**fields, **changes})


def vectors(parties: int, shape: tuple[int, ...] = (6,), seed: int = 0) -> list[Ints]:
    generator = np.random.default_rng(seed)
    return [generator.integers(-(2**30), 2**30, shape) for _ in range(parties)]


def expected_shares(
    summation_noises: Sequence[KeyedNoise], contributions: Sequence[Ints], share: Any, step: str
) -> list[Ints]:
    """Recompute every party's noise share, as only it can."""
    return [
        share.sample(c.size, noise.stream(f"{step}/share", c.reshape(-1))).reshape(c.shape)
        for noise, c in zip(summation_noises, contributions, strict=True)
    ]


@pytest.mark.parametrize(
    "law",
    [LAW, DiscreteGaussian(5.0), DiscreteLaplace(1e6), RoundedRadial(1e7), TruexGaussian(sigma=5.0, honest=3)],
)
def test_the_result_is_the_exact_sum_of_contributions_and_shares(law: Any) -> None:
    parties = 5
    tolerance = Tolerance(parties=parties, dropouts=2, colluders=1)
    contributions = vectors(parties, (2, 3))
    absences = {"mask": frozenset({1}), "unmask": frozenset({4})}
    secure = make(parties, 2, 1, absences=absences)
    found = secure.release("sum-0", contributions, law)
    share = share_distribution(law, tolerance.unknown_shares, 6)
    shares = expected_shares(noises(parties), contributions, share, "sum-0")
    survivors = (0, 2, 3, 4)
    assert secure.survivors == {"sum-0": survivors}
    assert found.shape == (2, 3)
    assert np.array_equal(found, sum(contributions[i] + shares[i] for i in survivors))


@pytest.mark.parametrize("parties", [2, 5, 40])
@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "unmask"])
def test_the_masks_cancel_to_the_last_bit(parties: int, stage: str) -> None:
    dropouts = 0 if parties == 2 else parties // 10 + 1
    lost = frozenset(range(1, 2 * dropouts, 2)) if parties > 2 else frozenset()
    contributions = vectors(parties)
    secure = make(parties, dropouts, absences={stage: lost})
    found = secure.release("a", contributions, LAW)
    survivors = [party for party in range(parties) if stage == "unmask" or party not in lost]
    unknown = Tolerance(parties=parties, dropouts=dropouts).unknown_shares
    shares = expected_shares(noises(parties), contributions, share_distribution(LAW, unknown, 6), "a")
    assert np.array_equal(found, sum(contributions[party] + shares[party] for party in survivors))
    assert secure.survivors == {"a": tuple(survivors)}


@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "unmask"])
def test_more_dropouts_than_tolerated_fail_clearly(stage: str) -> None:
    secure = make(5, 1, absences={stage: frozenset({0, 3})})
    with pytest.raises(TooFewPartiesError, match=r"^3 parties.*4"):
        secure.release("a", vectors(5), LAW)


def test_many_sums_use_one_key_agreement_and_then_another(monkeypatch: pytest.MonkeyPatch) -> None:
    agreed: list[int] = []

    def party(number: int, *arguments: Any) -> Party:
        agreed.append(number)
        return Party(number, *arguments)

    monkeypatch.setattr(summation_module, "Party", party)
    secure = make(3, steps=3)
    agreements = []
    for step in range(7):
        contributions = vectors(3, seed=step)
        shares = expected_shares(noises(3), contributions, share_distribution(LAW, 2, 6), f"sum-{step}")
        found = secure.release(f"sum-{step}", contributions, LAW)
        assert np.array_equal(found, sum(contributions) + sum(shares))
        agreements.append(len(agreed) // 3)
    assert agreements == [1, 1, 1, 2, 2, 2, 3]
    # Vectors of another length have an agreement of their own, and the first goes on.
    secure.release("counts", vectors(3, (2,)), LAW)
    secure.release("sum-7", vectors(3), LAW)
    assert len(agreed) == 3 * 4


def test_a_sum_has_one_name() -> None:
    secure = make(3)
    secure.release("a", vectors(3), LAW)
    with pytest.raises(ParameterError, match="sum 'a' of 'release'"):
        secure.release("a", vectors(3), LAW)


@pytest.mark.parametrize(
    ("contributions", "named"),
    [(vectors(2), "2 contributions.*3"), ([*vectors(2), np.zeros(5, dtype=np.int64)], "shapes")],
)
def test_contributions_are_validated(contributions: list[Ints], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        make(3).release("a", contributions, LAW)


@pytest.mark.parametrize("trust", [Trust.CENTRAL, Trust.SECAGG])
def test_each_vector_is_formed_once_and_gone_when_it_is_added(trust: Trust) -> None:
    """Of 50,000 parties' vectors few are in memory at a time; only the first stays, which says how long all are."""
    parties, asked = 70, []
    living: list[weakref.ref[Ints]] = []

    class OneSum:
        def guarantee(self, setting: Setting) -> Guarantee:
            return nothing_proved("a test")

        def steps(self, setting: Setting) -> int:
            return 1

        def distribution(self, setting: Setting) -> RoundedGaussian:
            return LAW

        def initial(self, setting: Setting) -> Ints:
            return np.zeros(4, dtype=np.int64)

        def update(self, state: Ints, noisy_sum: Ints, setting: Setting) -> Ints:
            return noisy_sum

        def result(self, state: Ints, setting: Setting) -> Ints:
            return state

        def contribution(self, state: Ints, rows: Any, setting: Setting) -> Ints:
            assert sum(vector() is not None for vector in living) <= 2
            asked.append(int(rows.labels[0]))
            vector = np.full(4, rows.labels[0], dtype=np.int64)
            living.append(weakref.ref(vector))
            return vector

    given = [ArrayRows(np.zeros((1, 2)), np.array([party])) for party in range(parties)]
    setting = Setting(sizes=(1,) * parties, dimension=2, classes=2, trust=trust)
    summation = TrustedSummation(KeyedNoise(public_secret(0), "sum")) if trust is Trust.CENTRAL else make(parties)
    total = run_sums(OneSum(), given, setting, summation)
    assert asked == list(range(parties))
    assert np.abs(total - sum(range(parties))).max() < 40 * LAW.sigma


def test_sizes_and_noises_are_one_a_party() -> None:
    for changes in ({"sizes": (1, 2)}, {"noises": noises(4)}):
        with pytest.raises(ParameterError, match=r"sizes.*noise sources"):
            make(3, **changes)


def test_scaled_sums_stand_for_all_rows() -> None:
    sizes, parties = (10, 30, 60), 3
    contributions = [size * np.array([1000, -7], dtype=np.int64) for size in sizes]
    tiny = RoundedGaussian(2.0)
    absences = {"mask": frozenset({0})}
    plain = make(parties, 1, sizes=sizes, absences=absences).release("a", contributions, tiny)
    scaled = make(parties, 1, sizes=sizes, absences=absences, scaled=True).release("a", contributions, tiny)
    assert np.array_equal(scaled, np.rint(plain * (100 / 90)))
    assert abs(scaled[0] - 100_000) < 200
    whole = make(parties, 1, sizes=sizes, scaled=True).release("a", contributions, tiny)
    assert np.array_equal(whole, make(parties, 1, sizes=sizes).release("a", contributions, tiny))


# --- overflow ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1,), (5, 5), (0, 0, 0), (1, 10**6, 3), (7,) * 1000])
def test_allotments_leave_no_overflow(sizes: tuple[int, ...]) -> None:
    share = DiscreteGaussian(2.0**44)
    bounds = allotments(sizes, share)
    assert sum(bounds) + len(sizes) * share.largest < 2**63
    # What an algorithm may send: any r per row with r * rows < 2^62.
    largest_row = (2**62 - 1) // max(sum(sizes), 1)
    assert all(bound >= size * largest_row for bound, size in zip(bounds, sizes, strict=True))


def test_noise_that_could_overflow_is_refused_from_public_quantities() -> None:
    with pytest.raises(ParameterError, match=r"2\^64"):
        allotments((1,) * 20_000, DiscreteGaussian(2.0**44))


def test_the_largest_numbers_add_up_exactly_and_beyond_them_they_are_cut() -> None:
    """Contributions at and beyond the bound: totals without wrap-around, no error because of what rows contain."""
    parties = 4
    secure = make(parties)
    bound = 2**62 // parties
    shares = expected_shares(
        noises(parties), [np.array([s * bound]) for s in (1, 1, 1, 1)], share_distribution(LAW, 3, 1), "top"
    )
    found = secure.release(
        "top",
        [
            np.array(
                [
                    2**63 - 1,
                ]
            )
            for _ in range(parties)
        ],
        LAW,
    )
    assert found[0] == 2**62 + int(sum(int(share[0]) for share in shares))
    low = make(parties).release("low", [np.array([-(2**63)]) for _ in range(parties)], LAW)
    assert -(2**62) - 10**4 < low[0] < -(2**62) + 10**4


def test_cutting_moves_no_two_vectors_apart() -> None:
    class Silent:
        largest = 0

        def sample(self, count: int, stream: Any) -> Ints:
            return np.zeros(count, dtype=np.int64)

    generator = np.random.default_rng(3)
    for _ in range(50):
        first, second = generator.integers(-1000, 1000, (2, 20))
        cut = [noisy_contribution(c, 300, Silent(), noises(1)[0], "s") for c in (first, second)]
        assert np.linalg.norm(cut[0] - cut[1]) <= np.linalg.norm(first - second)


# --- the noise --------------------------------------------------------------------------------------------------------

COUNT = 30_000


def convolution(sigma: float, shares: int) -> Floats:
    one = np.exp(-(np.arange(-60, 61) ** 2) / (2 * sigma**2))
    total = one = one / one.sum()
    for _ in range(shares - 1):
        total = np.convolve(total, one)
    return np.asarray(total)


def unknown_noise(
    lost: frozenset[int], known: tuple[int, ...], law: Any, share_noises: Sequence[KeyedNoise], step: str
) -> Ints:
    """Return the noise in a real sum of zeros, minus what the colluders (or the curious party) know of it."""
    parties = len(share_noises)
    zeros = [np.zeros(COUNT, dtype=np.int64)] * parties
    secure = make(parties, 1, 1, noises=share_noises, absences={"mask": lost})
    total = secure.release(step, zeros, law)
    share = vars(summation_module)["share_distribution"](
        law, Tolerance(parties=parties, dropouts=1, colluders=1).unknown_shares, COUNT
    )
    shares = expected_shares(share_noises, zeros, share, step)
    return np.asarray(total - sum(shares[party] for party in known if party not in lost), dtype=np.int64)


def carries_the_law(seed: int, share_noises: Callable[[int], list[KeyedNoise]] = lambda seed: noises(4, seed)) -> bool:
    """With any allowed set missing and any one share known, what is left is the law that was asked for, or more."""
    tolerance = Tolerance(parties=4, dropouts=1, colluders=1)
    sigma = share_sigma(LAW.sigma, shares=tolerance.unknown_shares, dimension=COUNT)
    for lost, known in itertools.product([frozenset(), *(frozenset({i}) for i in range(4))], range(4)):
        left = 4 - len(lost | {known})
        draws = unknown_noise(lost, (known,), LAW, share_noises(seed), f"sum-{known}-{sorted(lost)}")
        if not fits(draws, convolution(sigma, left)):
            return False
        if left * sigma**2 < LAW.sigma**2:
            return False
    return True


def test_the_noise_of_a_sum_follows_its_law_with_any_allowed_set_missing() -> None:
    assert carries_the_law(5)


def test_noise_from_one_key_is_caught() -> None:
    assert not carries_the_law(5, lambda seed: [noises(1, seed)[0]] * 4)


@pytest.mark.parametrize("wrong", [4, 3], ids=["split over all parties", "dropouts forgotten"])
def test_noise_split_over_too_many_is_caught(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        summation_module, "share_distribution", lambda law, shares, dimension: share_distribution(law, wrong, dimension)
    )
    assert not carries_the_law(5)


def test_shares_are_keyed_by_party_step_and_value() -> None:
    contribution, share = np.arange(200), DiscreteGaussian(1e6)
    mine, yours = noises(2)
    drawn = [
        noisy_contribution(value, 2**40, share, noise, step) - value
        for value, noise, step in (
            (contribution, mine, "a"),
            (contribution, yours, "a"),
            (contribution, mine, "b"),
            (contribution + np.eye(1, 200, dtype=np.int64)[0], mine, "a"),
        )
    ]
    assert np.array_equal(drawn[0], noisy_contribution(contribution, 2**40, share, mine, "a") - contribution)
    for first, second in itertools.combinations(drawn, 2):
        # Equal by chance with probability below 200 * 10^-6 for draws of 10^6 grid units; one equal pair is allowed.
        assert np.count_nonzero(first == second) <= 1


# --- the guarantee ----------------------------------------------------------------------------------------------------

STATED = Guarantee(losses=(GaussianMu(0.5),), assumptions=("rows are people",))


def test_the_guarantee_of_few_parties_is_the_central_one_with_its_assumptions() -> None:
    tolerance = Tolerance(parties=5, dropouts=1, colluders=1)
    found = secagg_guarantee(STATED, tolerance, sums=80)
    assert graph_for(tolerance) is None
    assert found.losses == STATED.losses
    assert found.assumptions == (*STATED.assumptions, *tolerance.assumptions())
    assert any(code.endswith("unknown_shares=3") for code in found.assumptions)


def test_the_guarantee_of_many_parties_charges_the_graph() -> None:
    tolerance = Tolerance(parties=1000, dropouts=100, colluders=50)
    graph = graph_for(tolerance)
    assert graph is not None
    found = secagg_guarantee(STATED, tolerance, sums=80)
    assert found.losses == (GaussianMu(0.5), ApproximateDP(0.0, 80 * graph.failure(tolerance).privacy))
    assert 0 < found.losses[1].delta < 1e-10


def test_what_is_not_proved_stays_so() -> None:
    nothing = nothing_proved("published noise is too small")
    assert secagg_guarantee(nothing, Tolerance(parties=1000, dropouts=10), 5) == nothing


# --- algorithms -------------------------------------------------------------------------------------------------------


def blobs(parties: int, rows: int, seed: int) -> tuple[list[ArrayRows], ArrayRows]:
    """Three Gaussian blobs in the unit ball, partitioned, and a test set."""
    generator = np.random.default_rng(seed)
    centres = 0.6 * np.eye(8)[:3]

    def draw(count: int) -> ArrayRows:
        labels = generator.integers(0, 3, count)
        features = centres[labels] + 0.12 * generator.standard_normal((count, 8))
        return ArrayRows(features / np.maximum(1.0, np.linalg.norm(features, axis=1, keepdims=True)), labels)

    return [draw(rows) for _ in range(parties)], draw(600)


@pytest.mark.parametrize("kind", [NoisyGradientDescent, OutputPerturbation])
@pytest.mark.parametrize("dropped", [frozenset(), frozenset({2})])
def test_algorithms_run_under_secure_summation_and_stay_near_central(
    kind: type[NoisyGradientDescent] | type[OutputPerturbation], dropped: frozenset[int]
) -> None:
    parties, test = blobs(5, 400, seed=7)
    algorithm = kind(budget=GaussianMu(1.0))
    setting = Setting(sizes=(400,) * 5, dimension=8, classes=3, trust=Trust.CENTRAL)
    central = fit(algorithm, parties, setting, noises(1)[0])
    secure = make(
        5,
        1,
        1,
        sizes=setting.sizes,
        steps=algorithm.steps(setting),
        absences={"mask": dropped},
        scaled=True,
    )
    model = fit(algorithm, parties, replace(setting, trust=Trust.SECAGG), noises(1)[0], secure)
    accuracies = [float((found.predict(test.features) == test.labels).mean()) for found in (central, model)]
    assert min(accuracies) > 0.9
    assert abs(accuracies[0] - accuracies[1]) < 0.05
    assert len(secure.survivors) == algorithm.steps(setting)


def test_radial_noise_runs_under_secure_summation() -> None:
    law = RoundedRadial(1e5)
    found = make(4).release("a", [np.full((2, 3), 10**9, dtype=np.int64)] * 4, law)
    share = RadialShare(1e5, 3, 6)
    assert share_distribution(law, 3, 6) == share
    # 3 shares carry the law, a fourth adds to it; lengths beyond 60 times the scale have probability below 10^-15.
    assert np.linalg.norm(found - 4 * 10**9) < 60 * 1e5 * math.sqrt(2)


def assert_random(values: NDArray[np.int64]) -> None:
    assert len(np.unique(values)) > len(values) // 2


def test_a_sparse_graph_serves_many_parties() -> None:
    parties = 100
    secure = make(
        parties, 10, 3, absences={"share": frozenset({4}), "mask": frozenset({9, 50}), "unmask": frozenset({99})}
    )
    contributions = vectors(parties, (50,))
    found = secure.release("a", contributions, RoundedGaussian(3.0))
    survivors = sorted(set(range(parties)) - {4, 9, 50})
    assert list(secure.survivors["a"]) == survivors
    noise = found - sum(contributions[party] for party in survivors)
    assert np.abs(noise).max() < 14 * 3 * 10
    assert_random(noise)
