"""Functions that round alike everywhere: near the true values, to the bits of compiled loops, and of sums in order."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpalgos.elementary import LEAST, exponentials, l2_norm, sigmoid
from dpalgos.losses import make_loss
from dpalgos.made_of import MadeOf
from dpalgos.mechanisms.factorisation import ToeplitzFactor
from dpalgos.mechanisms.running_sums import RunningSums


def test_exponentials_are_within_two_units_in_the_last_place() -> None:
    numbers = -np.random.default_rng(1).exponential(60.0, 2000)
    numbers[:3] = 0.0, -1e-300, -699.9
    powers = exponentials(numbers)
    with mpmath.workprec(200):
        errors = [
            float(abs(mpmath.mpf(power) - mpmath.exp(mpmath.mpf(number))) / mpmath.mpf(np.spacing(power)))
            for number, power in zip(numbers[numbers > LEAST].tolist(), powers[numbers > LEAST].tolist(), strict=True)
        ]
    assert max(errors) < 2.0
    assert exponentials(np.array([-np.inf, -1e9, LEAST])).tolist() == [exponentials(np.array([LEAST]))[0]] * 3
    assert exponentials(np.zeros((0, 3))).shape == (0, 3)


def test_a_number_has_the_same_power_beside_any_others() -> None:
    numbers = -np.random.default_rng(2).exponential(3.0, (3, 9001))
    whole = exponentials(numbers)
    assert np.array_equal(whole.ravel()[::997], [exponentials(one[None])[0] for one in numbers.ravel()[::997]])
    assert np.array_equal(exponentials(np.asfortranarray(numbers)), whole)


def test_a_sigmoid_keeps_both_tails() -> None:
    scores = np.array([-800.0, -40.0, -1.0, 0.0, 1.0, 40.0, 800.0])
    known = [0.0, 4.248354255291589e-18, 0.2689414213699951, 0.5, 0.7310585786300049, 1.0, 1.0]
    np.testing.assert_allclose(sigmoid(scores), known, rtol=4e-16, atol=1e-300)


@pytest.mark.parametrize("name", ["logistic", "softmax"])
@pytest.mark.parametrize("classes", [1, 3])
def test_compiled_slopes_have_the_same_bits(name: str, classes: int) -> None:
    random, loss = np.random.default_rng(3), make_loss(name)
    scores = 20.0 * random.normal(size=(classes, 1003))
    targets = random.choice([1.0, -1.0 if name == "logistic" else 0.0], (classes, 1100)).astype(np.float32)
    own = targets[:, 5 : 5 + 1003].astype(np.float64)
    written = scores.copy()
    loss.write_slopes(written, targets, 5)
    assert np.array_equal(written, loss.slope_in_order(scores.T, own.T).T)
    np.testing.assert_allclose(written, loss.slope(scores.T, own.T).T, atol=1e-15)


def test_running_sums_are_decoded_in_one_order() -> None:
    """Entry after entry, as written here in exact steps of float64; a product of BLAS has other last bits."""
    sums = RunningSums(bins=64)
    lines = np.random.default_rng(4).integers(-(2**20), 2**20, (7, 64)).astype(np.float64)
    weights = ToeplitzFactor(nights=64).decoder(64)[::-1].tolist()
    for line, decoded in zip(lines.tolist(), sums.decode(lines).tolist(), strict=True):
        for until in range(64):
            total = 0.0
            for entry in range(until + 1):
                total += weights[until - entry] * line[entry]
            assert decoded[until] == total


def test_the_decoder_inverts_the_factor_to_the_last_bits() -> None:
    factor = ToeplitzFactor(nights=200)
    decoder = [Fraction(entry) for entry in factor.decoder(200)[::-1].tolist()]
    for night in (0, 1, 57, 199):
        kept = factor.coefficients[: night + 1]
        product = sum((c * b for c, b in zip(kept, reversed(decoder[: night + 1]), strict=True)), Fraction(0))
        assert abs(float(product) - 1.0) < 1e-13


def test_a_norm_is_that_of_all_entries() -> None:
    assert l2_norm(np.array([[3.0, 0.0], [0.0, 4.0]])) == 5.0
    assert l2_norm(np.zeros(0)) == 0.0


def test_what_a_release_is_made_of_is_told_apart() -> None:
    def made_of(*sums: tuple[str, list[int]]) -> str:
        one = MadeOf()
        for step, numbers in sums:
            one.add(step, np.array(numbers, dtype=np.int64))
        return one.digest()

    known = made_of(("sum-0", [1, 2]), ("sum-1", [3]))
    others = [
        made_of(("sum-0", [1, 2]), ("sum-1", [4])),
        made_of(("sum-0", [1]), ("sum-1", [2, 3])),
        made_of(("sum-1", [1, 2]), ("sum-0", [3])),
        made_of(("sum-0", [1, 2])),
        made_of(),
    ]
    assert known == made_of(("sum-0", [1, 2]), ("sum-1", [3]))
    assert len({known, *others}) == 6
    # Where one part ends and the next begins is told apart, too.
    one, other = MadeOf(), MadeOf()
    one.add("sum-", np.array([7]))
    other.add("sum-1", np.array(7))
    assert one.digest() != other.digest()
