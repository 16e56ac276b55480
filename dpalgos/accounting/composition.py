"""Composition within a plan: releases that are all known before the first is made, charged together.

What a release promises at every level at once: its Gaussian-DP parameter, and the trade-off curve of any test.
An (epsilon, delta) pair is one point of what is proved. The trade-off function f of a release gives, for every test of
"this row was in" against "another row was" with type I error alpha, a bound f(alpha) below which its type II error
cannot fall (Dong, Roth, Su 2022, Definition 1): f(alpha) = 1 - alpha says that nothing can be learnt.

A release that is (epsilon, delta)-DP in both orders of every neighbouring pair has, for a test with rejection
probability alpha under one and 1 - beta under the other,

    1 - beta <= e^epsilon alpha + delta    and    1 - alpha <= e^epsilon beta + delta,

so beta >= max(1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha)) (Wasserman, Zhou 2010, Theorem 2.4). Every
point of a proved privacy profile gives such a bound, and so does the largest of finitely many: the curve below is
never above the true one. For Gaussian components it is exact, G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu).

How a composed plan enters a filter
-----------------------------------
Write ``H_t`` for the hockey-stick divergence of a plan's dominating pair (P, Q) and ``G_t`` for that of N(mu, 1)
against N(0, 1). If

    ``H_t <= s + (1 - s) G_t`` for all t > 0, in both orders of the pair,

then the plan's outputs distinguish neighbours no better than the pair that reveals everything with
probability s and is mu-Gaussian-DP otherwise. Proof: let that pair be ``P* = s [a] + (1 - s) N(mu, 1)`` and
``Q* = s [b] + (1 - s) N(0, 1)`` with points a, b that tell P* and Q* apart for certain. Its divergence is the
right-hand side for each t > 0 (a contributes s, b nothing), so (P, Q) is a post-processing of (P*, Q*) (Blackwell's
theorem: Dong, Roth, Su 2022, Theorem 2; the divergences at all t > 0 determine the trade-off function, Proposition 2).
A single (epsilon, delta) point is one t of this condition and proves nothing about the others.

The second order needs no extra work. ``H_t(Q || P) = 1 - t + t H_{1/t}(P || Q)`` holds for every pair, and
inserted on both sides it turns the condition for (Q, P) at t into the condition for (P, Q) at 1/t. The pairs composed
here (pure epsilon, Gaussian) are symmetric, ``H_t(P || Q) = H_t(Q || P)``, and so are their products; for them the same
identity says that the condition at t < 1 is the one at 1/t. It is therefore checked for t >= 1, which covers all t > 0
and both orders.

For zCDP nothing is to be gained from the joint curve: of pure epsilons and Gaussians the Rényi divergences add, each
``D_alpha / alpha`` is largest as alpha falls to 1, where it is the Kullback-Leibler divergence
(:func:`~dpalgos.accounting.profiles.rho_of_pure`, :func:`~dpalgos.accounting.profiles.rho_of_mu`), and so is
their sum's: the sum of the rhos is the least rho with ``D_alpha <= alpha rho`` for all alpha > 1.

What Poisson sampling of rows saves, under replace-special
----------------------------------------------------------
At each step every record takes part with probability q, independently, and the selection stays secret. The sum of the
selected records gets Gaussian noise of z times the largest norm of a record's part. A record that is null adds nothing
whether it takes part or not. So, given what was released before and who else takes part, two data sets that differ in
one record, null on one side, give N(0, z²I) on that side, and on the other (1 − q) N(0, z²I) + q N(v, z²I), ‖v‖ ≤ 1. Of
these pairs the one with ‖v‖ = 1, in one dimension,

    ``P = (1 - q) N(0, z^2) + q N(1, z^2)  against  Q = N(0, z^2)``,

dominates in both orders (Zhu, Dong, Wang 2022, Theorem 11; averaging over the others' draws is post-processing of a
pair that names them), and T steps, each chosen in view of those before, are dominated by T independent copies
(Theorem 10).

Under *replace-one* nothing of this holds at twice the sensitivity: a replaced record takes part on both sides, with
other values, and no single pair of this kind dominates; what is proved there needs another analysis, and is no longer
what peers print (Lebeda, Regehr, Kamath, Steinke, "Avoiding pitfalls for privacy accounting of subsampled mechanisms
under composition", 2024).

A sum of μ² or ρ sees nothing of the sampling: far out in its tail P is as far from Q as without it (at large orders the
Rényi divergences are those of N(1, z²), a constant apart), so the least μ with H ≤ G everywhere is 1/z a step, as if q
were 1. With s > 0 the far tail is paid for apart (above), and the rest is close to a Gaussian of far smaller μ.

References
----------
Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84 (2022).
Gomez et al., "(epsilon, delta) considered harmful: best practices for reporting differential privacy guarantees",
2025.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypedDict

import numpy as np
import scipy

from dpalgos.accounting.profiles import (
    AtomsProfile,
    GaussianProfile,
    LeastProfile,
    PrivacyProfile,
    ZeroConcentratedProfile,
    atom_count,
    bisected,
    gaussian_curve,
    mu_from_epsilon_delta,
    mu_of_pure,
    product,
    pure_atoms,
    require_delta,
    require_epsilon,
    rho_of_mu,
    rho_of_pure,
    smallest_epsilon,
    zcdp_atoms,
    zcdp_grid,
)
from dpalgos.accounting.selection import SelectionProfile
from dpalgos.guarantees import (
    ApproximateDP,
    GaussianMu,
    Loss,
    NoGuarantee,
    PrivateSelection,
    PureEpsilon,
    SlackGaussian,
    ZeroConcentrated,
    rounded_down,
)
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats
from dpalgos.sentences import sentence

_CELLS = 40_000
_UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class LibraryProfile:
    """A composed distribution of the library, plus what its arithmetic may have lost.

    Parameters
    ----------
    distribution
        A ``dp_accounting`` privacy-loss distribution, pessimistic.
    lost : float
        Charged to delta in addition to the distribution's own.
    reach : float
        An epsilon beyond which no finite loss lies, a Gaussian's farthest tail apart.
    """

    distribution: Any
    lost: float
    reach: float

    def delta(self, epsilon: float) -> float:
        """Return the distribution's delta plus what its arithmetic may have lost."""
        require_epsilon(epsilon)
        return min(1.0, float(self.distribution.get_delta_for_epsilon(epsilon)) + self.lost)

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon at which :meth:`delta` is at most delta; infinite where there is none."""
        require_delta(delta)
        return smallest_epsilon(self.delta, delta, self.reach) if self.delta(self.reach) <= delta else math.inf


def library_profile(pure: Mapping[float, int], mu: float, rho: float, infinity: float) -> LibraryProfile:
    """Compose by dp-accounting, distribution by distribution.

    The library's events are not used: its event accountant ignores how often a randomised response is repeated, and the
    multiplier of its Gaussian event counts in norm bounds, so that under replace-one it stands for twice the noise.

    Guarantee
    ---------
    Never low. Every loss is put on the grid pessimistically (pure epsilons rounded up; Gaussian and zCDP by "connect
    the dots"), the tails that the library cuts off it moves to infinity. It convolves by fast Fourier transforms, whose
    error is charged here: with N points and unit round-off u, the computed transform is off by at most ``7 u log2 N``
    of its l2 norm (Higham, "Accuracy and stability of numerical algorithms", 2002, Theorem 24.2). Two forward
    transforms, a product and one backward transform of vectors whose l1 norms (and so l2 norms) are at most 1 leave an
    l2 error of at most ``21 u log2 N``, hence an l1 error of at most that times sqrt N, and delta is a sum over the
    result with weights from 0 to 1.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    total = math.fsum(epsilon * count for epsilon, count in pure.items())
    gaussian_reach = mu * (mu / 2 + 9) if mu > 0 else 0.0
    zcdp_reach = rho + 2 * math.sqrt(40 * rho)
    reach = total + gaussian_reach + zcdp_reach
    interval = max(reach, 1e-9) / _CELLS
    parts = []
    for epsilon, count in pure.items():
        rounded: dict[int, float] = defaultdict(float)
        atoms = pure_atoms(epsilon, count)
        for loss, probability in zip(atoms.losses.tolist(), atoms.probabilities.tolist(), strict=True):
            rounded[math.ceil(loss / interval)] += probability
        parts.append(
            privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability(
                dict(rounded), 0.0, interval
            )
        )
    if mu > 0:
        parts.append(privacy_loss_distribution.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval))
    if rho > 0:
        cells = math.ceil(zcdp_reach / interval)
        grid = np.arange(-cells, cells + 1)
        parts.append(
            privacy_loss_distribution.PrivacyLossDistribution(
                pld_pmf.create_pmf_pessimistic_connect_dots(
                    interval, grid, zcdp_grid(rho, np.asarray(grid * interval, dtype=np.float64))
                )
            )
        )
    composed = privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability(
        {0: 1.0 - infinity}, infinity, interval
    )
    for part in parts:
        composed = composed.compose(part)
    points = 2.0 ** math.ceil(math.log2(4 * _CELLS * (len(parts) + 1)))
    lost = len(parts) * 21 * _UNIT * math.log2(points) * math.sqrt(points)
    # Rounding up moves each part's largest loss by less than a cell.
    return LibraryProfile(composed, lost + 1e-12, reach + (len(parts) + sum(pure.values()) + 1) * interval)


# Above this many values of the summed loss (16 distinct pure epsilons, say) it is put on a grid.
_MOST_ATOMS = 2**17


@dataclass(slots=True)
class Components:
    """The losses of a composition, like with like; a private selection is what all its candidates cost together.

    Attributes
    ----------
    gaussians, rhos : list of float
        Each mu; each rho.
    pure : Counter
        How often each epsilon occurs, those of (epsilon, delta) releases included.
    slacks : list of float
        Each delta of an (epsilon, delta) release.
    unproved : str or None
        Why nothing is proved of one of them.
    """

    gaussians: list[float] = field(default_factory=list)
    pure: Counter[float] = field(default_factory=Counter)
    rhos: list[float] = field(default_factory=list)
    slacks: list[float] = field(default_factory=list)
    unproved: str | None = None

    def add(self, loss: Loss) -> None:
        """Add one loss to those of its type."""
        match loss:
            case PureEpsilon() | ApproximateDP():
                if loss.epsilon > 0:
                    self.pure[loss.epsilon] += 1
                if isinstance(loss, ApproximateDP) and loss.delta > 0:
                    self.slacks.append(loss.delta)
            case GaussianMu():
                self.gaussians += [loss.mu] if loss.mu > 0 else []
            case ZeroConcentrated():
                self.rhos += [loss.rho] if loss.rho > 0 else []
            case SlackGaussian():
                self.add(GaussianMu(loss.mu))
                self.add(ApproximateDP(0.0, loss.slack))
            case PrivateSelection():
                self.add(loss.all_candidates)
            case NoGuarantee():
                self.unproved = sentence(loss.reason)
            case _:
                raise ParameterError(f"{loss!r} is an unknown loss type; an unknown loss never counts as zero")

    @property
    def mu(self) -> float:
        """Mu of all Gaussian components together: the root of the sum of squares (Dong, Roth, Su 2022, Cor. 2)."""
        if len(self.gaussians) == 1:
            return self.gaussians[0]
        # Squares, sum and root are each rounded once.
        return math.sqrt(math.fsum(mu * mu for mu in self.gaussians)) * (1 + 1e-15)

    @property
    def rho(self) -> float:
        """Rho of all zCDP components together."""
        return math.fsum(self.rhos)

    @property
    def epsilon(self) -> float:
        """Sum of the pure epsilons."""
        return math.fsum(self.pure.elements())

    @property
    def slack(self) -> float:
        """Sum of the deltas."""
        return math.fsum(self.slacks)

    @property
    def infinity(self) -> float:
        """Probability that at least one of the deltas' events happens."""
        either = -math.expm1(math.fsum(math.log1p(-slack) for slack in self.slacks)) * (1 + 1e-14)
        return min(self.slack, either) if self.slacks else 0.0

    @property
    def total_rho(self) -> float:
        """Rho of everything outside the deltas' events."""
        pure = (count * rho_of_pure(epsilon) for epsilon, count in self.pure.items())
        return math.fsum([*self.rhos, *(rho_of_mu(mu) for mu in self.gaussians), *pure])


def components(losses: Sequence[Loss]) -> Components:
    """Sort losses by type.

    Raises
    ------
    ParameterError
        For anything that is not one of the loss types.
    """
    found = Components()
    for loss in losses:
        found.add(loss)
    return found


@dataclass(frozen=True, slots=True)
class _BasicProfile:
    """Epsilons and deltas add (Dwork, Roth 2014, Theorem 3.16); the delta that is left is split evenly."""

    epsilons: float
    slack: float
    curves: tuple[PrivacyProfile, ...]

    def epsilon(self, delta: float) -> float:
        """Return the sum of the epsilons, each curve's at its equal part of delta."""
        require_delta(delta)
        if delta < self.slack:
            return math.inf
        if not self.curves:
            return self.epsilons
        each = max(math.nextafter((delta - self.slack) / len(self.curves), 0.0), 0.0)
        return math.fsum([self.epsilons, *(curve.epsilon(each) for curve in self.curves)])

    def delta(self, epsilon: float) -> float:
        """Return a delta at which :meth:`epsilon` is no more than the one given; 1 where there is none."""
        require_epsilon(epsilon)
        if not self.curves:
            return self.slack if epsilon >= self.epsilons else 1.0
        low, high = -700.0, 0.0
        for _ in range(80):
            middle = (low + high) / 2
            delta = self.slack + math.exp(middle)
            low, high = (middle, high) if delta < 1 and self.epsilon(delta) > epsilon else (low, middle)
        bound = self.slack + math.exp(high)
        return bound if bound < 1 and self.epsilon(bound) <= epsilon else 1.0


def _tight(parts: Components) -> PrivacyProfile:
    """Exact for Gaussian, pure and (epsilon, delta) components and their mixtures; the best proved for zCDP."""
    zcdp = ZeroConcentratedProfile(parts.total_rho, parts.infinity)
    if parts.rhos and not parts.pure and not parts.gaussians:
        return zcdp
    if not parts.rhos and not parts.pure and not parts.slacks:
        return GaussianProfile(parts.mu)
    if atom_count(parts.pure, parts.rho) > _MOST_ATOMS:
        return LeastProfile((library_profile(parts.pure, parts.mu, parts.rho, parts.infinity), zcdp, basic(parts)))
    atoms = [pure_atoms(epsilon, count) for epsilon, count in parts.pure.items()]
    if not parts.rhos:
        return AtomsProfile(product(atoms), parts.infinity, parts.mu)
    mixed = AtomsProfile(product([*atoms, zcdp_atoms(parts.rho)]), parts.infinity, parts.mu)
    return LeastProfile((mixed, zcdp))


def basic(parts: Components) -> PrivacyProfile:
    """Epsilons and deltas added, release by release."""
    curves: list[PrivacyProfile] = [GaussianProfile(mu) for mu in parts.gaussians]
    curves += [ZeroConcentratedProfile(rho) for rho in parts.rhos]
    return _BasicProfile(parts.epsilon, parts.slack, tuple(curves))


# Few, since a profile may hold a few megabytes; a decision asks for the same costs again and again.
@lru_cache(maxsize=64)
def _composed(losses: tuple[Loss, ...]) -> PrivacyProfile:
    if selected := as_selected(losses):
        # Guarantees of the same releases: the lowest delta at each epsilon is one too.
        together = tuple(loss.all_candidates if isinstance(loss, PrivateSelection) else loss for loss in losses)
        return LeastProfile((_composed(selected), _composed(together), *_selection_curve(losses)))
    parts = components(losses)
    return _tight(parts) if parts.unproved is None else _BasicProfile(math.inf, 1.0, ())


def _selection_curve(losses: tuple[Loss, ...]) -> tuple[PrivacyProfile, ...]:
    """Return the whole curve of a private selection that is alone; beside other losses one point of it is composed."""
    if len(losses) == 1 and isinstance(loss := losses[0], PrivateSelection):
        return (SelectionProfile(loss.mu, loss.candidates, loss.chance),)
    return ()


def as_selected(losses: Sequence[Loss]) -> tuple[Loss, ...]:
    """Return the losses with each private selection's (epsilon, delta) alone; nothing where there is none."""
    if not any(isinstance(loss, PrivateSelection) for loss in losses):
        return ()
    return tuple(loss.selected if isinstance(loss, PrivateSelection) else loss for loss in losses)


def compose(losses: Sequence[Loss]) -> PrivacyProfile:
    """Return the proved cost of all these releases together.

    For one plan: the losses are fixed before anything is released (what each release computes may still depend on
    earlier ones). Losses chosen in view of outputs need a filter: :mod:`dpalgos.accounting.spending`.

    Parameters
    ----------
    losses : sequence of Loss
        An empty sequence has epsilon 0. A :class:`~dpalgos.guarantees.NoGuarantee` among them makes epsilon infinite.

    Raises
    ------
    ParameterError
        For something that is not a loss type.

    Notes
    -----
    Never optimistic: Gaussian curves come from high-precision arithmetic rounded up; sums of atoms carry their
    rounding error; where a grid is needed the discretisation is rounded up and truncated mass is charged to delta.
    """
    components(losses)  # Raises for what is no loss, also where it could not be hashed.
    return _composed(tuple(losses))


_SAMPLED_CELLS = 10_000
_SAMPLED_RESOLUTION = 3e-3


def gaussian_part(epsilon: float, delta: float, slack: float) -> float:
    """Return the largest μ for which revealing everything with probability s, in addition to μ-GDP, is (ε, δ)-DP.

    ``s + (1 − s) δ_μ(ε) ≤ δ``; rounded down.

    Raises
    ------
    ParameterError
        If s is not between 0 and δ.
    """
    if not 0.0 < slack < delta:
        raise ParameterError(f"the slack is {slack!r}; it must lie between 0 and delta, which is {delta!r}")
    return mu_from_epsilon_delta(epsilon, math.nextafter((delta - slack) / (1.0 - slack) * (1.0 - 1e-14), 0.0))


def sampled_curve(rate: float, multiplier: float, steps: int, reach: float) -> tuple[Floats, Floats]:
    """Return epsilons from 0 to ``reach`` and upper bounds on δ there, of both orders of the pair.

    Parameters
    ----------
    rate : float
        q, in (0, 1].
    multiplier : float
        z: the noise's standard deviation over the largest norm of a record's part.
    steps : int
        T.
    reach : float

    Notes
    -----
    Guarantee. Never low: dp-accounting puts each step's loss on a grid by "connect the dots", which dominates, and
    moves the tails that it cuts off to infinity. Its T-fold convolution is one fast Fourier transform of length N, a
    power and an inverse transform. With unit round-off u, transforms err by at most ``7 u log2 N`` of their l2 norm
    (Higham 2002, Theorem 24.2); entries are at most 1 in absolute value, so the T-th power multiplies the error by T at
    most, and its own rounding adds less than ``8 T u``. In l1 that is at most ``16 (T + 4) u log2 N sqrt N``, charged.
    """
    from dp_accounting.pld import privacy_loss_distribution

    interval = reach / _SAMPLED_CELLS
    one = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, value_discretization_interval=interval, sampling_prob=rate
    )
    composed = one.self_compose(steps, 1e-15)
    epsilons = np.linspace(0.0, reach, 257)
    points = 2.0 ** math.ceil(math.log2(4 * _SAMPLED_CELLS + 2 * steps))
    lost = 16 * (steps + 4) * _UNIT * math.log2(points) * math.sqrt(points) + 1e-15
    return epsilons, np.minimum(np.asarray(composed.get_delta_for_epsilon(epsilons)) * (1 + 1e-9) + lost, 1.0)


@lru_cache(maxsize=64)
def noise_multiplier(rate: float, steps: int, slack: float, mu: float) -> float:
    """Return a noise multiplier z for which T sampled steps are (s, μ) in the sense of this module, nearly the least.

    Parameters
    ----------
    rate : float
        q, in (0, 1].
    steps : int
        T.
    slack : float
        s, in (0, 1).
    mu : float

    Returns
    -------
    float
        At most √T/μ, which is enough without sampling, and is what remains where float64 proves no less (a huge ε, or
        a tiny s); below it proved by :func:`lies_above`, within about 0.3 % of the least.
    """
    if rate == 1.0:
        return math.sqrt(steps) / mu * (1.0 + 1e-15)
    # Beyond, a Gaussian of this mu has less than s left; the curve must have come down to s as well.
    reach = 1.3 * mu * (mu / 2.0 + math.sqrt(-2.0 * math.log(slack)))

    def holds(multiplier: float) -> bool:
        return lies_above(mu, *sampled_curve(rate, multiplier, steps, reach), slack)

    # Without sampling it is √T/μ, which holds with it too: hockey-stick divergences are jointly convex.
    high = math.sqrt(steps) / mu * (1.0 + 1e-15)
    low = high * max(rate, 1e-3) / 2.0
    while high > low * (1.0 + _SAMPLED_RESOLUTION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


_DOMINATION_CELLS = 256
# Beyond this many products of atoms and nodes the closed form is taken.
_MOST_TERMS = 2**22
_RESOLUTION = 1e-4


def least_mu(pure: Mapping[float, int], mu: float, slack: float) -> float:
    """Return a mu for which pure epsilons and a Gaussian together are ``(slack, mu)`` in the sense of this module.

    Parameters
    ----------
    pure : mapping of float to int
        How often each epsilon occurs.
    mu : float
        Of the Gaussian that is added to them; 0 for none.
    slack : float
        s, in [0, 1). It is needed where a Gaussian is present (its tail shifted by the pure losses is above every
        Gaussian's with nearly the same mu far out) and may be tiny: the least mu is decided where H is large.

    Returns
    -------
    float
        At most the root of ``mu^2 + sum of mu_of_pure(epsilon)^2``; never below the least, and relatively within about
        1e-4 of it.

    Notes
    -----
    Guarantee. The condition is proved for all t >= 1, not at the nodes alone. H and G are convex in t. On a cell from
    ``t`` to ``t e^h`` H lies below its chord, and G above its chord less ``(t (e^h - 1))^2 / 8`` times the largest G''
    on the cell; ``G'' = phi(mu/2 + ln(t)/mu) / (mu t)`` falls for t >= 1, so it is largest at the left end. Hence the
    condition with that gap taken off G, at both ends of each cell, implies it on the cell. To the right of the last
    node H is at most its value there, which is at most s. H is rounded up and G down.
    """
    return _least_mu(tuple(sorted(pure.items())), mu, slack)


@lru_cache(maxsize=4096)
def _least_mu(pure: tuple[tuple[float, int], ...], mu: float, slack: float) -> float:
    counts = dict(pure)
    # Squares, sum and root are each rounded once.
    alone = math.sqrt(math.fsum([mu * mu, *(n * mu_of_pure(epsilon) ** 2 for epsilon, n in pure)])) * (1 + 1e-15)
    several = sum(counts.values()) + (mu > 0) > 1
    if not (
        several and (mu == 0 or slack > 0) and counts and atom_count(counts, 0.0) * _DOMINATION_CELLS <= _MOST_TERMS
    ):
        return alone
    atoms = product(pure_atoms(epsilon, count) for epsilon, count in pure)
    # Phi(mu/2 - x/mu) <= exp(-(x/mu - mu/2)^2 / 2) / 2 bounds a Gaussian's H at e^x.
    tail = mu * (mu / 2 + math.sqrt(-2 * math.log(slack))) if mu > 0 else 0.0
    reach = (float(atoms.losses.max()) + tail) * (1 + 1e-9)
    nodes: Floats = np.linspace(0.0, reach, _DOMINATION_CELLS + 1)
    values = AtomsProfile(atoms, mu=mu).deltas(nodes)
    # The Kullback-Leibler divergence of a dominated pair is no larger, slack apart.
    divergence = math.fsum([rho_of_mu(mu), *(n * rho_of_pure(epsilon) for epsilon, n in pure)])
    return bisected(
        lambda tried: not lies_above(tried, nodes, values, slack),
        math.sqrt(2 * divergence),
        alone,
        lambda low, high: high - low <= _RESOLUTION * high,
    )[1]


def lies_above(mu: float, nodes: Floats, values: Floats, slack: float) -> bool:
    """Return whether ``s + (1 - s) G_t`` is proved to be no lower than H for all t >= 1.

    Parameters
    ----------
    mu : float
        Of G.
    nodes : array
        Values of ln t, evenly spaced, the first 0.
    values : array
        The larger of both orders' H at the nodes, rounded up.
    slack : float
        s.
    """
    if values[-1] > slack:
        return False
    # The curve's error is relative in its tail and absolute where two terms of like size are subtracted.
    cancelled = np.where(nodes <= mu * mu / 2, 1e-13, 0.0)
    lower = np.maximum(gaussian_curve(mu, nodes) * (1 - 1e-9) - cancelled, 0.0)
    left = nodes[:-1]
    with np.errstate(over="ignore", under="ignore"):
        # t^2 G'' in one exponent, so that neither factor overflows.
        bend = np.exp(left - (mu / 2 + left / mu) ** 2 / 2) / (math.sqrt(2 * math.pi) * mu)
    gap = math.expm1(nodes[1] - nodes[0]) ** 2 / 8 * bend * (1 + 1e-9)
    ends = np.stack([lower[:-1], lower[1:]]) - gap
    chords = np.stack([values[:-1], values[1:]])
    return bool((chords - slack - (1 - slack) * np.maximum(ends, 0.0) <= 0).all())


TYPE_I_ERRORS = (0.001, 0.01, 0.05, *(round(0.1 * tenth, 1) for tenth in range(1, 10)))
"""Where curves are stated: what a careful test allows itself, and tenths."""

# How many points of a profile the curve of other than Gaussian releases is made of; each is proved by itself.
_POINTS = 48
_DELTAS = (1e-12, 1e-9, 1e-6, 1e-3, 0.1)
_DIGITS = 6


def gaussian_mu(losses: Sequence[Loss]) -> float | None:
    """Return mu of releases that together are mu-Gaussian-DP; None where one of them has another type.

    Raises
    ------
    ParameterError
        For something that is not a loss type.
    """
    parts = components(losses)
    return None if parts.pure or parts.rhos or parts.slacks or parts.unproved is not None else parts.mu


# Parties of one plan mostly make releases that cost the same.
@lru_cache(maxsize=256)
def lines(losses: tuple[Loss, ...]) -> Floats:
    """Return points of the composed privacy profile: delta, e^epsilon and e^−epsilon of each, (3, points).

    A test of type I error α has a type II error of at least 1 − delta − e^epsilon α, and of at least
    e^−epsilon (1 − delta − α).
    """
    profile, corner = compose(losses), components(losses).epsilon
    finite = (epsilon for delta in _DELTAS if math.isfinite(epsilon := profile.epsilon(delta)))
    # The sum of pure epsilons is a corner of the curve; other points lie evenly up to the widest epsilon.
    epsilons = [corner, *np.linspace(0.0, next(finite, corner), _POINTS).tolist()]
    points = [(profile.delta(epsilon), math.exp(min(epsilon, 700.0)), math.exp(-epsilon)) for epsilon in epsilons]
    return np.array(points).T


def trade_off(losses_by_party: Iterable[Sequence[Loss]], alphas: Sequence[float] = TYPE_I_ERRORS) -> Floats:
    """Return a lower bound on the type II error of every test at each type I error.

    Parameters
    ----------
    losses_by_party : iterable of sequences of Loss
        What each party pays. A row belongs to one party, so the least of the parties' curves holds for every row.
    alphas : sequence of float
        Type I errors, between 0 and 1.

    Returns
    -------
    array (len(alphas),)
        Rounded down to six significant digits; zero where nothing is proved.

    Raises
    ------
    ParameterError
        If an alpha is outside [0, 1], or a loss has an unknown type.
    """
    levels = np.asarray(alphas, dtype=np.float64)
    if not ((levels >= 0) & (levels <= 1)).all():
        raise ParameterError(f"type I errors are {list(alphas)}; each must lie between 0 and 1")
    curve = 1.0 - levels
    distinct = {tuple(losses) for losses in losses_by_party}
    gaussian = {losses: mu for losses in distinct if (mu := gaussian_mu(losses)) is not None}
    if gaussian:
        # Curves of larger mu lie below; both functions err by a few units in the last place.
        shifted = -scipy.special.ndtri(levels) - max(gaussian.values())
        curve = np.minimum(curve, scipy.special.ndtr(shifted) * (1 - 1e-12))
    for losses in distinct - gaussian.keys():
        deltas, rises, falls = lines(losses)
        bounds = np.maximum(1.0 - deltas - rises * levels[:, None], falls * (1.0 - deltas - levels[:, None]))
        curve = np.minimum(curve, bounds.max(axis=1, initial=0.0) - 1e-15)
    return np.array([max(rounded_down(value, _DIGITS), 0.0) for value in curve.tolist()])


class Promise(TypedDict):
    """Guarantee of a release beyond any one (epsilon, delta), for its manifest."""

    mu: float | None
    trade_off: list[tuple[float, float]] | None


def whole_promise(losses: Sequence[Loss]) -> Promise:
    """Return mu, where all is Gaussian, and the curve as pairs of errors; None where nothing is proved."""
    proved = components(losses).unproved is None
    curve = list(zip(TYPE_I_ERRORS, trade_off([losses]).tolist(), strict=True)) if proved else None
    return Promise(mu=gaussian_mu(losses), trade_off=curve)
