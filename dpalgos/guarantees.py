"""Guarantees of releases: the closed set of loss types, the settings that they hold in, their rounding."""

import math
from dataclasses import asdict, dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, Self

from dpalgos.parameters import COUNT, NON_NEGATIVE, Bounded, ParameterError, between
from dpalgos.sentences import sentence


class Neighbours(StrEnum):
    """The neighbouring relation a sensitivity is derived for: two data sets of n records that differ in one of them.

    ``replace-one``: the one is any record, null records (:mod:`dpalgos.rows`) included, and so is the other.
    ``replace-special``: one of the two is a null record, which contributes nothing.

    ``add-remove-one``, where n itself differs, is named so that it is refused with its reason. It cannot hold here with
    any noise: n is public in manifests, sizes of shards, grids, the spectrum of a mean and the calibration.
    """

    REPLACE_ONE = "replace-one"
    REPLACE_SPECIAL = "replace-special"
    ADD_REMOVE_ONE = "add-remove-one"

    @property
    def records(self) -> int:
        """Number of real records among the two in which neighbours differ: 2, or 1 where the other is null.

        A sum of vectors of norm at most R moves by at most ``records`` R.

        Raises
        ------
        ParameterError
            For add-remove-one.
        """
        return _RECORDS[self.in_force()]

    def in_force(self) -> Self:
        """Return the relation itself.

        Raises
        ------
        ParameterError
            For add-remove-one.
        """
        if self is Neighbours.ADD_REMOVE_ONE:
            raise ParameterError(
                "add-remove-one cannot be guaranteed: the number of rows is public (manifests, sizes of shards, "
                "grids, calibration), so an observer can distinguish two data sets of different size (40 of 40 in an "
                "audit). Choose replace-special (one row against a null record), which needs as little noise, or "
                "replace-one"
            )
        return self


_RECORDS = {Neighbours.REPLACE_ONE: 2, Neighbours.REPLACE_SPECIAL: 1}

RELATIONS: tuple[Neighbours, ...] = (Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL)
"""The relations that can be in force, the default first."""


class Trust(StrEnum):
    """Trust model: the server sees each party's noisy release, only a masked sum, or one curator is trusted."""

    LOCAL = "local"
    SECAGG = "secagg"
    CENTRAL = "central"


class Numerics(StrEnum):
    """Whether the guarantee holds for the bits that are released, or in real arithmetic only."""

    EXACT = "exact"
    IDEALISED = "idealised"


_BELOW_ONE = between(0.0, 1.0, open_high=True)


@dataclass(frozen=True, slots=True)
class PureEpsilon(Bounded):
    """Pure differential privacy: every event's probability changes by at most a factor ``exp(epsilon)``."""

    epsilon: float = field(metadata=NON_NEGATIVE)
    kind: ClassVar[str] = "pure-epsilon"


@dataclass(frozen=True, slots=True)
class GaussianMu(Bounded):
    """Gaussian differential privacy (Dong, Roth, Su 2022): no easier to tell apart than N(0,1) from N(mu,1)."""

    mu: float = field(metadata=NON_NEGATIVE)
    kind: ClassVar[str] = "gaussian-mu"


@dataclass(frozen=True, slots=True)
class ZeroConcentrated(Bounded):
    """Zero-concentrated differential privacy (Bun, Steinke 2016): Rényi divergence at most ``rho * alpha``."""

    rho: float = field(metadata=NON_NEGATIVE)
    kind: ClassVar[str] = "zero-concentrated"


@dataclass(frozen=True, slots=True)
class ApproximateDP(Bounded):
    """Approximate differential privacy at one point: ``(epsilon, delta)``."""

    epsilon: float = field(metadata=NON_NEGATIVE)
    delta: float = field(metadata=_BELOW_ONE)
    kind: ClassVar[str] = "approximate"


@dataclass(frozen=True, slots=True)
class SlackGaussian(Bounded):
    """Gaussian differential privacy except with probability ``slack``, in which the output may reveal everything.

    The output distinguishes neighbours no better than a pair that reveals which one it is with probability
    ``slack``, and is ``mu``-Gaussian-DP otherwise (:mod:`dpalgos.accounting.composition`). It composes like a
    (0, slack)-DP and a mu-Gaussian-DP release, but one release is not two: nothing is said of groups.
    """

    mu: float = field(metadata=NON_NEGATIVE)
    slack: float = field(metadata=_BELOW_ONE)
    kind: ClassVar[str] = "slack-gaussian"


@dataclass(frozen=True, slots=True)
class PrivateSelection(Bounded):
    """The best of several candidates, of which secret coins say which compete (:mod:`dpalgos.accounting.selection`).

    Guarantees of the same release, and all hold: ``(epsilon, delta)`` as a selection, and the curve of which that is
    one point (:class:`~dpalgos.accounting.selection.SelectionProfile`); and, since the release is a post-processing of
    all candidates and of coins that look at no row, the Gaussian-DP of their composition (:attr:`all_candidates`). One
    plan by itself is told by the curve, read at whichever delta; what filters add up by the point or by the
    composition.

    Parameters
    ----------
    epsilon, delta : float
    mu : float
        Gaussian-DP of each candidate, its score included.
    candidates : int
    chance : float
        Probability with which a candidate competes.
    """

    epsilon: float = field(metadata=NON_NEGATIVE)
    delta: float = field(metadata=_BELOW_ONE)
    mu: float = field(metadata=NON_NEGATIVE)
    candidates: int = field(metadata=COUNT)
    chance: float
    kind: ClassVar[str] = "private-selection"

    @property
    def selected(self) -> ApproximateDP:
        """Guarantee of the selection."""
        return ApproximateDP(self.epsilon, self.delta)

    @property
    def all_candidates(self) -> GaussianMu:
        """Joint guarantee of all candidates, rounded up (Dong, Roth, Su 2022, Corollary 2)."""
        return GaussianMu(self.mu * math.sqrt(self.candidates) * (1 + 1e-15))


@dataclass(frozen=True, slots=True)
class NoGuarantee:
    """Nothing is proved: the release may reveal any row.

    Parameters
    ----------
    reason : str
        Why, as a code (:mod:`dpalgos.sentences`).
    """

    reason: str
    kind: ClassVar[str] = "none"


Loss = PureEpsilon | GaussianMu | ZeroConcentrated | ApproximateDP | SlackGaussian | PrivateSelection | NoGuarantee

_LOSSES: dict[str, type[Loss]] = {
    cls.kind: cls
    for cls in (
        PureEpsilon,
        GaussianMu,
        ZeroConcentrated,
        ApproximateDP,
        SlackGaussian,
        PrivateSelection,
        NoGuarantee,
    )
}


def loss_to_json(loss: Loss) -> dict[str, Any]:
    """Return ``{"kind": …, field: value, …}``; the inverse of :func:`loss_from_json`."""
    return {"kind": loss.kind, **asdict(loss)}


def loss_from_json(data: dict[str, Any]) -> Loss:
    """Read a loss back.

    Raises
    ------
    ParameterError
        If the kind is unknown: an unknown loss never counts as zero.
    """
    fields = dict(data)
    kind = fields.pop("kind", None)
    if kind not in _LOSSES:
        raise ParameterError(f"unknown loss type {kind!r}; known: {', '.join(sorted(_LOSSES))}")
    return _LOSSES[kind](**fields)


@dataclass(frozen=True, slots=True)
class Claim:
    """A paper's claim about its algorithm, and the flaw of its proof.

    Parameters
    ----------
    statement : str
        The claimed guarantee in the paper's terms, for example ``"(epsilon_1 + epsilon_2, delta)-DP"``.
    theorem : str
        Where the paper states it.
    flaw : str or None
        Why it does not hold for what the paper computes, as a code (:mod:`dpalgos.sentences`); None where nothing is
        known against it.
    """

    statement: str
    theorem: str
    flaw: str | None = None


@dataclass(frozen=True)
class Setting(Bounded):
    """The public facts a guarantee may depend on.

    Parameters
    ----------
    sizes : tuple of int
        Records of each party that takes part in the release, null ones included: one number under ``local``, all
        parties' otherwise. Public. Rows, or people where the unit is a person, those without a row included.
    dimension : int
        Features a row has where the algorithm meets it (after projection, for a trainer).
    classes : int
        Number of classes, 2 for a binary problem.
    neighbours : Neighbours
        Not add-remove-one.
    trust : str
        Name of the registered trust model.
    noise_factor : float
        How many times its distribution's standard deviation the noise of a sum has, at least 1: what a step size or a
        shrinkage that weighs signal against noise goes by. Guarantees do not depend on it.
    rows_per_person : int
        m: rows of one record at most, public. 1 where each row is a separate record. No sensitivity depends on it
        (:func:`dpalgos.integer_sums.row_weights`); memory, work and rounding errors are bounded by it.

    Raises
    ------
    ParameterError
        For add-remove-one, which the public sizes refute, and for a number of rows that is none.
    """

    sizes: tuple[int, ...]
    dimension: int
    classes: int
    neighbours: Neighbours = Neighbours.REPLACE_ONE
    trust: str = Trust.LOCAL
    noise_factor: float = 1.0
    rows_per_person: int = field(default=1, metadata=COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.neighbours.in_force()

    @cached_property
    def rows(self) -> int:
        """Records of all parties together; added up once, for each of many parties asks."""
        return sum(self.sizes)

    @property
    def most_rows(self) -> int:
        """Rows that all parties may hold together: public, where their number is not."""
        return self.rows * self.rows_per_person

    @cached_property
    def smallest(self) -> int:
        """Rows of the smallest party, at least 1."""
        return max(1, min(self.sizes, default=1))


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The proved guarantee of one release.

    Parameters
    ----------
    losses : tuple of Loss
        The components of the release, to be composed; a :class:`NoGuarantee` among them makes the whole none.
    neighbours : Neighbours
        The relation the sensitivities were derived for.
    numerics : Numerics
    assumptions : tuple of str
        What the proof needs beyond the relation, as codes (:mod:`dpalgos.sentences`).

    Raises
    ------
    ParameterError
        For add-remove-one, which the public sizes refute.
    """

    losses: tuple[Loss, ...]
    neighbours: Neighbours = Neighbours.REPLACE_ONE
    numerics: Numerics = Numerics.IDEALISED
    assumptions: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        self.neighbours.in_force()

    @property
    def proved(self) -> bool:
        """Whether anything is proved at all."""
        return not any(isinstance(loss, NoGuarantee) for loss in self.losses)

    @property
    def reason(self) -> str | None:
        """The sentence that says why nothing is proved; None where something is."""
        return next((sentence(loss.reason) for loss in self.losses if isinstance(loss, NoGuarantee)), None)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; the inverse of :meth:`from_json`."""
        return {
            "losses": [loss_to_json(loss) for loss in self.losses],
            "neighbours": str(self.neighbours),
            "numerics": str(self.numerics),
            "assumptions": list(self.assumptions),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read a guarantee back; raises ParameterError for an unknown loss type, and for add-remove-one."""
        return cls(
            losses=tuple(loss_from_json(loss) for loss in data["losses"]),
            neighbours=Neighbours(data["neighbours"]),
            numerics=Numerics(data["numerics"]),
            assumptions=tuple(data["assumptions"]),
        )


def nothing_proved(reason: str, neighbours: Neighbours = Neighbours.REPLACE_ONE) -> Guarantee:
    """Return the guarantee of a release about which nothing is proved, for a reason that is given by its code."""
    return Guarantee(losses=(NoGuarantee(reason),), neighbours=neighbours)


def _rounded(value: float, digits: int, direction: str) -> float:
    # Of the shortest decimal that stands for the number: 1e-5 is a little more than that in binary.
    rounded = Context(prec=digits, rounding=direction).create_decimal(repr(float(value)))
    return float(rounded) if math.isfinite(value) else value


def rounded_up(value: float, digits: int) -> float:
    """Return the least number of so many significant digits that is not below the value: for a cost."""
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int) -> float:
    """Return the largest number of so many significant digits that is not above the value: for a protection."""
    return _rounded(value, digits, ROUND_FLOOR)
