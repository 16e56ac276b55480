"""The share of private rows to hold out for measuring a model by a noisy confusion matrix."""

from __future__ import annotations

import math

from dpalgos.accounting.profiles import mu_from_epsilon_delta

# Halving in two steps, so that a fraction holds for a wide range of sizes: f goes as n^(-1/3), so n may triple.
_LADDER: tuple[float, ...] = tuple(1.0 / denominator for power in range(8) for denominator in (3 << power, 4 << power))
_EXCESS = 0.1


def held_out_fraction(rows: int, classes: int, epsilon: float, delta: float) -> float:
    """Return the share of private rows to hold out for a noisy confusion matrix that costs (epsilon, delta).

    Holding out m = f n of n rows has two prices, both in units of accuracy:

    - the training loses rows. To first order in f, a model whose error exceeds the best one's by E loses at most E f
      (excess errors fall at most as fast as 1/n; under noise of a fixed privacy they fall like that). E is set to
      0.1, which is an assumption and no bound: what is too small a value for costs precision, not privacy;
    - the measured accuracy, the trace of K^2 noisy counts over m, has the standard deviation
      sqrt(a (1 - a) / m + K sigma^2 / m^2), with a (1 - a) at most 1/4 and sigma = sqrt(2) / mu, the noise of a count
      under replace-one at (epsilon, delta).

    The result is the fraction of 1/3, 1/4, 1/6, 1/8, … at which their sum is least. It falls as n, epsilon grow (the
    derivative of the second price in f shrinks with n and mu), and held-out rows are chosen so that those of a smaller
    fraction are among those of a larger one: a row that trained a model is not held out when rows are added later.

    Parameters
    ----------
    rows : int
        n, all rows of the data set.
    classes : int
        K; 0 where numbers are predicted, for which the rule of two classes is taken: the sums of errors are as many
        noisy numbers, of a sensitivity of the same order.
    epsilon : float
        What a run spends in all.
    delta : float
        At which epsilon is turned into noise. A constant of the account, a tenth of its cap's, and not the run's own:
        the result is public and has no privacy cost, so it need not be the delta that is spent; and runs of one epsilon
        hold out the same rows at any delta, so that their partitions are one and do not add up.

    Raises
    ------
    ParameterError
        If epsilon or delta is out of range.
    """
    noise = 2.0 * max(classes, 2) / mu_from_epsilon_delta(epsilon, delta) ** 2

    def price(fraction: float) -> float:
        held_out = max(fraction * rows, 1.0)
        return _EXCESS * fraction + math.sqrt(0.25 / held_out + noise / (held_out * held_out))

    return min(_LADDER, key=price)
