"""Which texts a private column holds, as far as enough rows hold them: before its categories are declared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import ApproximateAlgorithm
from dpalgos.errors import ParameterError
from dpalgos.guarantees import RELATIONS, Guarantee, Neighbours, Numerics, Setting
from dpalgos.mechanisms.discrete_laplace import DiscreteLaplace
from dpalgos.models import Statistic
from dpalgos.neighbouring import NeighbouringPair, one_row_apart
from dpalgos.noise import NoiseSource
from dpalgos.registry import register
from dpalgos.rows import Floats, Rows, null_records

__all__ = ["KeySelection"]


@register("evaluators", "key-selection")
@dataclass(frozen=True, kw_only=True)
class KeySelection(ApproximateAlgorithm):
    """Release those keys of each column whose noisy count is above a threshold (partition selection).

    A row has one key a column: ``dimension / columns`` bytes, each a feature of that many 255ths, or none where all are
    zero. What cannot be guessed
    beforehand, a key, is released only where so many rows hold it that one row hardly decides.

    Guarantee
    ---------
    (epsilon, delta)-DP, exact. Let a row change at most m counts by one: m = 2 d in d columns under replace-one (one
    key loses a row, another gains one, in each), m = d under replace-special (a null record holds no key). Each key
    that occurs gets discrete Laplace noise of scale s = m / epsilon and is released above the integer threshold
    t >= s ln(m / delta), so that a key of one row is released with probability at most q = P(1 + k > t)
    = p^t / (1 + p) <= delta / m, with p = exp(-1 / s).

    *Proof.* Let D and D' be neighbours, l <= d keys occur in D alone (each in one row), g <= d in D' alone, and the
    others in both; c of these have different counts, l + g + c <= m. D releases one of its l keys with probability at
    most l q <= delta. What it releases otherwise, S, are keys that occur in both, with their noisy counts. These have
    the same law but for c counts that differ by one, a factor of at most exp(c / s); D releases none of its l keys
    besides, which has probability at most 1, and D' none of its g keys, which has probability at least (1 - q)^g. So
    P(D gives S) <= exp(c / s) (1 - q)^-g P(D' gives S) <= exp((c + g) / s) P(D' gives S) wherever 1 - q >= p, which
    is required, and (c + g) / s <= epsilon. The relation is symmetric. Only l <= d counts enter delta; the threshold
    is for m, one key lost and one gained.

    The number of keys is public (``most`` a column): of more, those of the largest noisy counts are kept.

    Parameters
    ----------
    budget : ApproximateDP
    columns : int
        A divisor of the dimension.
    most : int
        Keys of a column.

    References
    ----------
    Korolova, Kenthapadi, Mishra, Ntoulas, "Releasing search queries and clicks privately", WWW 2009; Desfontaines,
    Voss, Gipson, Mandayam, "Differentially private partition selection", PoPETs 2022, which has the optimal law for
    one key a person; the Laplace threshold needs a few rows more.
    """

    columns: int = 1
    most: int = 64
    source: ClassVar[str] = "Korolova et al. 2009; Desfontaines et al. 2022"
    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    measured: ClassVar[str] = "counts, l1"
    norm: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("columns", self.columns), ("most", self.most)):
            if value < 1:
                raise ParameterError(f"{name} is {value}; it must be at least 1")

    def check(self, setting: Setting) -> None:
        """Raise where the columns do not divide the dimension, or delta is too large for the proof."""
        super().check(setting)
        if setting.dimension % self.columns:
            raise ParameterError(f"{setting.dimension} features cannot be {self.columns} columns of equal width")
        if self.budget.delta / self.sensitivity(setting) > -math.expm1(-1.0 / self.law(setting).scale):
            raise ParameterError(
                f"delta is {self.budget.delta:g}, too large for the proof at this epsilon; choose less"
            )

    def sensitivity(self, setting: Setting) -> float:
        """Return m: how many counts one record changes by one."""
        return float(setting.neighbours.records * self.columns)

    def statistic(self, rows: Rows, setting: Setting) -> Floats:
        """Return the exact counts, keys of the same first byte together: of a size that no row decides."""
        counts = np.zeros((self.columns, 256))
        for column, counter in enumerate(self._counted([rows], setting)):
            for key, count in counter.items():
                counts[column, key[0]] += count
        return counts

    def law(self, setting: Setting) -> DiscreteLaplace:
        """Return the noise of each count."""
        return DiscreteLaplace.calibrated(self.budget.epsilon, self.sensitivity(setting))

    def threshold(self, setting: Setting) -> int:
        """Return the noisy count above which a key is released; one more than needed, for the logarithm's rounding."""
        return math.ceil(self.law(setting).scale * math.log(self.sensitivity(setting) / self.budget.delta)) + 1

    def guarantee(self, setting: Setting) -> Guarantee:
        """Return the budget, exact."""
        self.check(setting)
        return Guarantee(losses=(self.budget,), neighbours=setting.neighbours, numerics=Numerics.EXACT)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return a row with a key that nobody else has in every column against one with another such key."""
        return one_row_apart(setting, np.ones(setting.dimension), np.full(setting.dimension, 0.5))

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Statistic:
        """Return noisy counts and bytes of the released keys, (columns, most, 1 + width), sorted; -1 where none is."""
        self.check(setting)
        width = setting.dimension // self.columns
        released = np.full((self.columns, self.most, 1 + width), -1.0)
        for column, counter in enumerate(self._counted(parties, setting)):
            chosen = self._chosen(counter, setting, noise, f"keys-{column}")
            for place, (key, count) in enumerate(chosen):
                released[column, place] = [count, *key]
        return Statistic(values=released)

    def _counted(self, parties: Sequence[Rows], setting: Setting) -> list[Counter[bytes]]:
        width = setting.dimension // self.columns
        counts: list[Counter[bytes]] = [Counter() for _ in range(self.columns)]
        for rows in parties:
            for block, labels in rows.blocks():
                numbers = np.asarray(block, dtype=np.float64)
                kept = numbers[~null_records(numbers, labels, setting.classes)]
                keys = np.rint(255.0 * np.clip(kept, 0.0, 1.0)).astype(np.uint8).reshape(len(kept), self.columns, width)
                for column, counter in enumerate(counts):
                    counter.update(key.tobytes() for key in keys[:, column] if key.any())
        return counts

    def _chosen(
        self, counter: Counter[bytes], setting: Setting, noise: NoiseSource, step: str
    ) -> list[tuple[bytes, int]]:
        if not counter:
            return []
        keys = sorted(counter)
        exact = np.array([counter[key] for key in keys], dtype=np.int64)
        # What the noise hides is which keys there are as much as how often.
        hidden = np.concatenate([np.frombuffer(b"".join(keys), dtype=np.uint8).astype(np.int64), exact])
        noisy = exact + self.law(setting).sample(len(keys), noise.stream(step, hidden))
        passing = np.flatnonzero(noisy > self.threshold(setting))
        largest = passing[np.argsort(-noisy[passing], kind="stable")][: self.most]
        return [(keys[place], int(noisy[place])) for place in sorted(largest.tolist())]
