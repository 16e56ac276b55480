"""Recoding: which value a code of a file means; several codes of one value, prefixes of codes, first characters."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from storage.cells import canonical_text
from storage.errors import InputError

PREFIX = "*"
"""What a code of a mapping ends in where it stands for all codes that begin with the rest."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The meaning of one code, or of all codes that begin with it.

    Parameters
    ----------
    code, value : str
        In their one spelling.
    prefix : bool
    """

    code: str
    value: str
    prefix: bool = False

    def __str__(self) -> str:
        return self.code + PREFIX if self.prefix else self.code


@dataclass(frozen=True)
class Recoding:
    """Codes in their one spelling, and the value that each means; what no rule takes means nothing.

    Parameters
    ----------
    declared : tuple of Rule
        No code begins with a prefix, and no prefix with another one; the empty prefix takes what no other rule does.
    first : int or None
        How many of a cell's characters count; all where None.
    """

    declared: tuple[Rule, ...]
    first: int | None = None

    @classmethod
    def of(cls, place: str, written: Sequence[str], values: Sequence[str], first: int | None, *, named: bool) -> Self:
        """Return the recoding that a schema declares.

        Parameters
        ----------
        place : str
            The schema, the column and the key, for messages.
        written, values : sequence of str
            Codes in their one spelling, each once, and what each means.
        first : int or None
        named : bool
            Whether the codes are those of a mapping, where one that ends in ``*`` is a prefix.

        Raises
        ------
        InputError
            If rules overlap, or one could take no cell, naming them.
        """
        declared = tuple(
            Rule(code[: -len(PREFIX)].rstrip(), value, prefix=True)
            if named and code.endswith(PREFIX)
            else Rule(code, value)
            for code, value in zip(written, values, strict=True)
        )
        for rule in declared:
            if rule.prefix and (spelling := canonical_text(rule.code)) != rule.code:
                raise InputError(
                    f"{place}: no code can begin with {rule.code!r}, because numbers are stored without a plus sign "
                    f"and trailing zeros (250.00 is 250); write '{spelling}{PREFIX}', or list the codes"
                )
            if first is not None and len(rule.code) > first:
                raise InputError(
                    f"{place}: {rule.code!r} has {len(rule.code)} characters, and 'first: {first}' keeps {first} of a "
                    "cell, so no cell can match; shorten the code, or keep more characters"
                )
        in_order = sorted(declared, key=lambda rule: rule.code)
        for rule in declared:
            # What takes all that is left takes nothing from another.
            if not rule.prefix or not rule.code:
                continue
            # Those that begin with it stand together, it among them.
            first_one = bisect_left(in_order, rule.code, key=lambda one: one.code)
            begun = (one for one in in_order[first_one : first_one + 2] if one.code.startswith(rule.code))
            if (other := next((one for one in begun if one is not rule), None)) is not None:
                raise InputError(
                    f"{place}: {str(rule)!r} and {str(other)!r} overlap; omit one of them, or give longer prefixes"
                )
        return cls(declared, first)

    @cached_property
    def rules(self) -> Mapping[str, str]:
        """Codes and prefixes as they are declared, and the value of each."""
        return {str(rule): rule.value for rule in self.declared}

    @cached_property
    def _begun(self) -> Mapping[int, frozenset[str]]:
        """The prefixes by their length, the longest first: the empty one takes what no other does."""
        prefixes = [rule.code for rule in self.declared if rule.prefix]
        return {
            size: frozenset(one for one in prefixes if len(one) == size)
            for size in sorted(set(map(len, prefixes)), reverse=True)
        }

    @cached_property
    def written(self) -> frozenset[str]:
        """The codes; texts that begin with a prefix are not among them."""
        return frozenset(rule.code for rule in self.declared if not rule.prefix)

    @property
    def values(self) -> tuple[str, ...]:
        """The meanings of codes, each once, in the order of the declaration."""
        return tuple(dict.fromkeys(rule.value for rule in self.declared))

    @property
    def open_ended(self) -> bool:
        """Whether it takes codes that are not declared in full."""
        return self.first is not None or bool(self._begun)

    @property
    def renames(self) -> bool:
        """Whether it does more than admit values as they are written."""
        return self.open_ended or any(code != value for code, value in self.rules.items())

    @property
    def ending(self) -> str:
        """The end of a message, after the rules."""
        return "" if self.first is None else f", by the first {self.first} characters"

    def cut(self, text: str) -> str:
        """Return what counts of a text, in its one spelling."""
        if self.first is None:
            return text
        begun = text[: self.first].rstrip()
        return canonical_text(begun) or begun

    def rule(self, text: str) -> str | None:
        """Return the code or the prefix that takes a text in its one spelling; None where none does."""
        text = self.cut(text)
        if text in self.written:
            return text
        return next((text[:size] + PREFIX for size, begun in self._begun.items() if text[:size] in begun), None)

    def taken(self, texts: Mapping[str, int]) -> dict[str, int]:
        """Return how many of some cells each rule takes, and how many are cut; texts in their one spelling, counted."""
        told = {rule: f"{rule} → {value}" if rule != value else rule for rule, value in self.rules.items()}
        counts = dict.fromkeys(told.values(), 0)
        if self.first is not None:
            counts[cut := f"cut to {self.first} characters"] = 0
        for text, cells in texts.items():
            if (rule := self.rule(text)) is not None:
                counts[told[rule]] += cells
            if self.first is not None and len(text) > self.first:
                counts[cut] += cells
        return counts

    def places(self, values: Sequence[str]) -> "Places":
        """Return the place of the value that each text means."""
        return Places(self, {value: place for place, value in enumerate(values)})


@dataclass(frozen=True, slots=True)
class Places(Mapping[str, int]):
    """The place of the value that a text in its one spelling means; texts without one are not keys."""

    recoding: Recoding
    of_values: Mapping[str, int]

    def __getitem__(self, text: str) -> int:
        rule = self.recoding.rule(text)
        if rule is None:
            raise KeyError(text)
        return self.of_values[self.recoding.rules[rule]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.recoding.rules)

    def __len__(self) -> int:
        return len(self.recoding.rules)


def items_of(declared: Any) -> list[tuple[Any, Any]] | None:
    """Return codes and what they mean, of a mapping or of pairs as :func:`in_order` has them; None of anything else."""
    if isinstance(declared, dict):
        return list(declared.items())
    pairs = isinstance(declared, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in declared)
    return [(code, value) for code, value in declared] if pairs and declared else None


def in_order(entry: Any) -> Any:
    """Return a column's declaration with pairs in place of mappings of codes.

    Features and classes lie in the order of a mapping, and programs that store JSON may sort its keys.
    """
    if not isinstance(entry, dict):
        return entry
    return {
        key: [list(pair) for pair in value.items()] if isinstance(value, dict) else value
        for key, value in entry.items()
    }


def first_characters(place: str, first: Any) -> int | None:
    """Return how many characters of a cell a schema says to count; None where it does not say.

    Raises
    ------
    InputError
        If it is not a whole number from 1.
    """
    if first is not None and (type(first) is not int or first < 1):
        raise InputError(
            f"{place}: first is {first!r}; it must be a whole number of characters from 1, such as 3 for an ICD code, "
            "or be omitted"
        )
    return first
