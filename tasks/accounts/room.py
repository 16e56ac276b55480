"""The remaining budget of an account, stated as the largest epsilon of one more run that would still fit.

The cap minus the spending is not such a number. Losses of Gaussian runs add up in squares of mu, so that under a cap of
3 of which 1.6 is spent a run of 2.6 may fit; and a run states its epsilon at a smaller delta than the cap's.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpalgos.accounting.costs import allocate
from dpalgos.guarantees import GaussianMu, Guarantee, Neighbours, Numerics, PureEpsilon, rounded_down, rounded_up
from storage.ledger.charges import ReleaseCharge
from tasks.accounts.ledger import open_ledger
from tasks.accounts.pricing import AccountingPolicy
from tasks.accounts.terms import gaussian_delta

_DIGITS = 4
# Where a search begins, in caps, for at a run's smaller delta its epsilon is larger than at the cap's; and below what
# nothing is looked for.
_MOST, _LARGEST, _LEAST = 4.0, 1000.0, 1e-4
# Of a partition that there is not: its rows are added to those of all others, as if each had paid most in every one.
_ANOTHER = "one more run"


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMore:
    """The remaining budget of an account.

    Attributes
    ----------
    epsilon : float
        The largest of one more run that would be admitted now, four digits, rounded down; 0 where none is. It is the
        run's own, stated at ``delta``: in the unit of its option.
    delta : float
    run : str
        What kind of run, in words.
    """

    epsilon: float
    delta: float
    run: str

    @property
    def said(self) -> str:
        """The remaining budget, in words."""
        if self.epsilon <= 0:
            return f"remaining: nothing; no epsilon allows {self.run} at delta {self.delta:g}"
        return f"remaining: {self.run} of {self.amount}"

    @property
    def amount(self) -> str:
        """The amount without the kind of run, for tables whose heading names the kind."""
        return f"epsilon up to {self.epsilon:.4g} at delta {self.delta:g}" if self.epsilon > 0 else "nothing"


def one_more_run(account: str, delta: float | None = None) -> OneMore | None:
    """Return the remaining budget for one more run with Gaussian noise; None for public rows, which have no cap.

    Told from charges alone, for any data set that pays from the account: such a run enters by its mu. Under a cap
    without delta it is one of a pure epsilon. At most as much as a planned run may have
    (:func:`tasks.release.preflight.largest_epsilon`): that one may read rows that have paid less than others, which
    here are taken to have paid most in every partition.

    Parameters
    ----------
    account : str
    delta : float, optional
        At which the run states its epsilon: the default of the account's runs where None; of 0 the run is one of a pure
        epsilon. Of two deltas the larger admits the smaller epsilon.
    """
    ledger = open_ledger()
    terms, history = ledger.account(account), ledger.history(account)
    if terms.cap is None:
        return None
    delta = gaussian_delta((terms.opening_cap or terms.cap).delta) if delta is None else delta
    kind, policy = (GaussianMu if delta else PureEpsilon), AccountingPolicy()

    def fits(epsilon: float) -> bool:
        losses = allocate([kind], [1.0], epsilon, delta).losses
        proved = Guarantee(losses, neighbours=Neighbours(terms.relation), numerics=Numerics.EXACT)
        charge = ReleaseCharge(_ANOTHER, ("everybody",), proved.to_json(), _ANOTHER)
        return policy.decide(history, [charge], partition=_ANOTHER, delta=delta, terms=terms).admitted

    found = largest_that_fits(fits, most_that_fits(terms.cap.epsilon))
    noise = "Gaussian noise" if delta else "pure epsilon"
    return OneMore(epsilon=found, delta=delta, run=f"one more run with {noise}")


def most_that_fits(cap: float) -> float:
    """Return an epsilon below which to look, under a cap."""
    return min(_MOST * cap, _LARGEST)


def largest_that_fits(fits: Callable[[float], bool], most: float, near: float | None = None) -> float:
    """Return the largest epsilon of four digits, up to ``most``, that fits; 0 where none above 0.0001 does.

    What is returned was tried. Where all smaller ones than one that fits do as well, a thousandth more does not.

    Parameters
    ----------
    fits : callable
        Whether a run of this epsilon would be admitted.
    most : float
    near : float, optional
        Where to look first: close to the answer, few are tried.
    """
    high = rounded_down(most, _DIGITS)
    if fits(high):
        return high
    if near is not None and _LEAST <= near < high and fits(low := rounded_down(near, _DIGITS)):
        gap = 0.0
        while (above := rounded_up(math.nextafter(low * (1 + gap), math.inf), _DIGITS)) < high:
            if not fits(above):
                high = above
                break
            low, gap = above, 8 * gap + 0.001
    else:
        while not fits(low := rounded_down(high / 2, _DIGITS)):
            high = low
            if low < _LEAST:
                return 0.0
    while (middle := rounded_down(math.sqrt(low * high), _DIGITS)) > low:
        low, high = (middle, high) if fits(middle) else (low, middle)
    # The root of two neighbours' product is rounded to the lower, and so is that of what has one number in between.
    above = rounded_up(math.nextafter(low, math.inf), _DIGITS)
    return above if above < high and fits(above) else low
