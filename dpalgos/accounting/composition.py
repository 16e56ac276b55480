"""Composition within a plan: releases that are all known before the first is made, charged together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, singledispatch

from dpalgos.accounting.conversions import (
    require_delta,
    require_epsilon,
    rho_of_mu,
    rho_of_pure,
)
from dpalgos.accounting.library import library_profile
from dpalgos.accounting.profiles import (
    AtomsProfile,
    ClassicalZeroConcentratedProfile,
    GaussianProfile,
    LeastProfile,
    PrivacyProfile,
    UnboundedProfile,
    ZeroConcentratedProfile,
    atom_count,
    product,
    pure_atoms,
    zcdp_atoms,
)
from dpalgos.errors import ParameterError, UnknownNameError
from dpalgos.guarantees import (
    ApproximateDP,
    GaussianMu,
    Loss,
    NoGuarantee,
    PrivateSelection,
    PureEpsilon,
    SlackGaussian,
    ZeroConcentrated,
)

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


@singledispatch
def _enter(loss: object, into: Components) -> None:
    raise ParameterError(f"{loss!r} is no known loss type; an unknown loss never counts as zero")


@_enter.register
def _(loss: PureEpsilon, into: Components) -> None:
    if loss.epsilon > 0:
        into.pure[loss.epsilon] += 1


@_enter.register
def _(loss: GaussianMu, into: Components) -> None:
    if loss.mu > 0:
        into.gaussians.append(loss.mu)


@_enter.register
def _(loss: ZeroConcentrated, into: Components) -> None:
    if loss.rho > 0:
        into.rhos.append(loss.rho)


@_enter.register
def _(loss: ApproximateDP, into: Components) -> None:
    if loss.epsilon > 0:
        into.pure[loss.epsilon] += 1
    if loss.delta > 0:
        into.slacks.append(loss.delta)


@_enter.register
def _(loss: SlackGaussian, into: Components) -> None:
    _enter(GaussianMu(loss.mu), into)
    _enter(ApproximateDP(0.0, loss.slack), into)


@_enter.register
def _(loss: PrivateSelection, into: Components) -> None:
    _enter(loss.all_candidates, into)


@_enter.register
def _(loss: NoGuarantee, into: Components) -> None:
    into.unproved = loss.reason


def components(losses: Sequence[Loss]) -> Components:
    """Sort losses by type.

    Raises
    ------
    ParameterError
        For anything that is not one of the loss types.
    """
    sorted_losses = Components()
    for loss in losses:
        _enter(loss, sorted_losses)
    return sorted_losses


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
            if delta < 1 and self.epsilon(delta) > epsilon:
                low = middle
            else:
                high = middle
        found = self.slack + math.exp(high)
        return found if found < 1 and self.epsilon(found) <= epsilon else 1.0


_Method = Callable[[Components], PrivacyProfile]
_METHODS: dict[str, _Method] = {}


def _method(name: str) -> Callable[[_Method], _Method]:
    def enter(method: _Method) -> _Method:
        _METHODS[name] = method
        return method

    return enter


@_method("tight")
def _tight(parts: Components) -> PrivacyProfile:
    """Exact for Gaussian, pure and (epsilon, delta) components and their mixtures; the best proved for zCDP."""
    zcdp = ZeroConcentratedProfile(parts.total_rho, parts.infinity)
    if parts.rhos and not parts.pure and not parts.gaussians:
        return zcdp
    if not parts.rhos and not parts.pure and not parts.slacks:
        return GaussianProfile(parts.mu)
    if atom_count(parts.pure, parts.rho) > _MOST_ATOMS:
        return LeastProfile((library_profile(parts.pure, parts.mu, parts.rho, parts.infinity), zcdp, _basic(parts)))
    atoms = [pure_atoms(epsilon, count) for epsilon, count in parts.pure.items()]
    if not parts.rhos:
        return AtomsProfile(product(atoms), parts.infinity, parts.mu)
    mixed = AtomsProfile(product([*atoms, zcdp_atoms(parts.rho)]), parts.infinity, parts.mu)
    return LeastProfile((mixed, zcdp))


@_method("pld")
def _pld(parts: Components) -> PrivacyProfile:
    """Privacy-loss distributions of dp-accounting on a grid, rounded up: the peer's answer, a little above ours."""
    return library_profile(parts.pure, parts.mu, parts.rho, parts.infinity)


@_method("zcdp")
def _zcdp(parts: Components) -> PrivacyProfile:
    """Everything as zCDP, rhos added, converted by Canonne, Kamath, Steinke 2020."""
    return ZeroConcentratedProfile(parts.total_rho, parts.slack)


@_method("zcdp-classical")
def _zcdp_classical(parts: Components) -> PrivacyProfile:
    """Everything as zCDP, rhos added, converted by ``rho + 2 sqrt(rho log(1/delta))``, as most papers do."""
    return ClassicalZeroConcentratedProfile(parts.total_rho, parts.slack)


@_method("basic")
def _basic(parts: Components) -> PrivacyProfile:
    """Epsilons and deltas added, release by release."""
    curves: list[PrivacyProfile] = [GaussianProfile(mu) for mu in parts.gaussians]
    curves += [ZeroConcentratedProfile(rho) for rho in parts.rhos]
    return _BasicProfile(parts.epsilon, parts.slack, tuple(curves))


# Few, since a profile may hold a few megabytes; a decision asks for the same bills again and again.
@lru_cache(maxsize=64)
def _composed(losses: tuple[Loss, ...], method: str) -> PrivacyProfile:
    if selected := as_selected(losses):
        # Two guarantees of the same releases: the lower delta at each epsilon is one too.
        together = tuple(loss.all_candidates if isinstance(loss, PrivateSelection) else loss for loss in losses)
        return LeastProfile((_composed(selected, method), _composed(together, method)))
    parts = components(losses)
    return UnboundedProfile(parts.unproved) if parts.unproved is not None else _METHODS[method](parts)


def as_selected(losses: Sequence[Loss]) -> tuple[Loss, ...]:
    """Return the losses with each private selection's (epsilon, delta) alone; nothing where there is none."""
    if not any(isinstance(loss, PrivateSelection) for loss in losses):
        return ()
    return tuple(loss.selected if isinstance(loss, PrivateSelection) else loss for loss in losses)


def compose(losses: Sequence[Loss], method: str = "tight") -> PrivacyProfile:
    """Return what all these releases together are proved to cost.

    For one plan: the losses are fixed before anything is released (what each release computes may still depend on
    earlier ones). Losses chosen in view of outputs need a filter: :mod:`dpalgos.accounting.filters`.

    Parameters
    ----------
    losses : sequence of Loss
        None at all cost nothing; a :class:`~dpalgos.guarantees.NoGuarantee` among them makes epsilon infinite.
    method : str
        ``"tight"``; or, to put a paper's own accounting beside it, ``"basic"``, ``"zcdp"``, ``"zcdp-classical"``, or
        ``"pld"`` for dp-accounting's numbers.

    Raises
    ------
    UnknownNameError
        For an unknown method.
    ParameterError
        For something that is not a loss type.

    Notes
    -----
    Never optimistic: Gaussian curves come from high-precision arithmetic rounded up; sums of atoms carry their
    rounding error; where a grid is needed the discretisation is rounded up and truncated mass is charged to delta.
    """
    if method not in _METHODS:
        raise UnknownNameError(f"no composition is called {method!r}; known: {', '.join(_METHODS)}")
    components(losses)  # Raises for what is no loss, also where it could not be hashed.
    return _composed(tuple(losses), method)
