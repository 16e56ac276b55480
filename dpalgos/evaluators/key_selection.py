"""Keys that enough rows of a column hold, released by optimal partition selection."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpalgos.algorithms import ApproximateAlgorithm, NeighbouringPair, Refused, Work, one_row_apart
from dpalgos.guarantees import RELATIONS, Neighbours, Numerics, Setting
from dpalgos.mechanisms.distributions import PartitionSelection
from dpalgos.models import Statistic
from dpalgos.parameters import COUNT, NATURAL, ParameterError
from dpalgos.registry import register
from dpalgos.rows import ArrayRows, Floats, NoiseSource, Rows, null_records


@register("evaluators", "key-selection")
@dataclass(frozen=True, kw_only=True)
class KeySelection(ApproximateAlgorithm):
    """Release the keys of each column that occur in enough rows: optimal partition selection.

    A row has one key per column: ``width`` bytes, each a feature of that many 255ths, or none where all are zero. What
    cannot be guessed beforehand, a key, is released only where so many rows hold it that one row hardly decides.

    Guarantee
    ---------
    (epsilon, delta)-DP, exact. A record holds one key per column, so neighbours differ in the counts of m keys by one
    at most: m = 2 d in d columns under replace-one (in each, one key loses a row and another gains one), m = d under
    replace-special (a null record holds none). Whether a key is released is an independent draw, whose probability
    depends on that key's count alone and which is (epsilon / m, delta / m)-DP for a count that changes by one
    (:class:`dpalgos.mechanisms.distributions.PartitionSelection`); a key that occurs in one of the neighbours only is
    one of the m, its count being 0 in the other, where it is never released. All other coins have the same
    distribution. The m coins are independent, so together they are (epsilon, delta)-DP by basic composition.

    The number of keys is public (``most`` a column): of more, the first in order of their bytes are kept.

    Parameters
    ----------
    budget : ApproximateDP
    columns : int
        How many columns; together ``columns * width`` features.
    width : int or None
        Bytes of a key; all features from ``first`` on, shared equally, where None.
    first : int
        The feature at which they begin.
    most : int
        Keys of a column.

    References
    ----------
    Desfontaines, Voss, Gipson, Mandayam, "Differentially private partition selection", PoPETs 2022(1), Theorem 2.
    """

    columns: int = field(default=1, metadata=COUNT)
    width: int | None = None
    first: int = field(default=0, metadata=NATURAL)
    most: int = field(default=256, metadata=COUNT)
    source: ClassVar[str] = "Desfontaines et al. 2022, Theorem 2"
    people: ClassVar[str] = Refused("a person's rows may hold several keys of one column")
    relations: ClassVar[tuple[Neighbours, ...]] = RELATIONS
    numerics: ClassVar[Numerics] = Numerics.EXACT
    audited_rows: ClassVar[int] = 64
    measured: ClassVar[str] = "counts, l1"
    norm: ClassVar[int] = 1

    def check(self, setting: Setting) -> None:
        """Raise where the columns do not fit the features, or the budget is beyond what can be drawn."""
        super().check(setting)
        width = self._width(setting)
        if width < 1 or self.first + self.columns * width > setting.dimension:
            raise ParameterError(
                f"{setting.dimension} features cannot be divided into {self.columns} columns of equal width from "
                f"feature {self.first} on"
            )
        self.distribution(setting)

    def _width(self, setting: Setting) -> int:
        if self.width is not None:
            return self.width
        whole = (setting.dimension - self.first) % self.columns == 0
        return (setting.dimension - self.first) // self.columns if whole else 0

    def work(self, setting: Setting) -> Work:
        """Return that of one pass."""
        return Work(small_operations=float(setting.rows) * self.columns)

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

    def distribution(self, setting: Setting) -> PartitionSelection:
        """Return by which probabilities keys are released."""
        changes = self.sensitivity(setting)
        # Both are rounded down by a unit, so that m of them are within the budget.
        epsilon, delta = (math.nextafter(part / changes, 0.0) for part in (self.budget.epsilon, self.budget.delta))
        return PartitionSelection(epsilon, delta)

    def neighbouring_pair(self, setting: Setting) -> NeighbouringPair:
        """Return rows of two keys per column, about half of the time released, one row changing from one to the other.

        Fewer where there are not so many rows.
        """
        one, other = np.zeros((2, setting.dimension))
        one[self.first :], other[self.first :] = 1.0, 0.5
        pair = one_row_apart(setting, one, other)
        crowd = min(self.distribution(setting).likely(), (setting.sizes[pair.party] + 1) // 2)

        def side(rows: ArrayRows) -> ArrayRows:
            features, labels = rows.features.copy(), rows.labels.copy()
            features[1:crowd], features[crowd : 2 * crowd - 1] = one, other
            labels[1 : 2 * crowd - 1] = 0
            return ArrayRows(features, labels)

        return NeighbouringPair(side(pair.left), side(pair.right), pair.party)

    def fit(self, parties: Sequence[Rows], setting: Setting, noise: NoiseSource) -> Statistic:
        """Return the bytes of the released keys, (columns, most, width), in order; -1 where there is none."""
        self.check(setting)
        released = np.full((self.columns, self.most, self._width(setting)), -1.0)
        for column, counter in enumerate(self._counted(parties, setting)):
            for place, key in enumerate(self._chosen(counter, setting, noise, f"keys-{column}")):
                released[column, place] = list(key)
        return Statistic(values=released)

    def _counted(self, parties: Sequence[Rows], setting: Setting) -> list[Counter[bytes]]:
        width = self._width(setting)
        held = slice(self.first, self.first + self.columns * width)
        counts: list[Counter[bytes]] = [Counter() for _ in range(self.columns)]
        for rows in parties:
            for block, labels, _ in rows.blocks():
                numbers = np.asarray(block, dtype=np.float64)
                kept = numbers[~null_records(numbers, labels, setting.classes)][:, held]
                keys = np.rint(255.0 * np.clip(kept, 0.0, 1.0)).astype(np.uint8).reshape(len(kept), self.columns, width)
                for column, counter in enumerate(counts):
                    counter.update(key.tobytes() for key in keys[:, column] if key.any())
        return counts

    def _chosen(self, counter: Counter[bytes], setting: Setting, noise: NoiseSource, step: str) -> list[bytes]:
        if not counter:
            return []
        keys = sorted(counter)
        exact = np.array([counter[key] for key in keys], dtype=np.int64)
        # What the noise hides is which keys there are as much as how often.
        hidden = np.concatenate([np.frombuffer(b"".join(keys), dtype=np.uint8).astype(np.int64), exact])
        selected = self.distribution(setting).select(exact, noise.stream(step, hidden))
        return [keys[place] for place in np.flatnonzero(selected)[: self.most]]
