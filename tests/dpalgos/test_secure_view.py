"""The server's view: uniform words that say nothing of an input, under masks that are used once.

Every check is a function that a test runs on the protocol and on mutants of it; on the protocol its false-alarm rate is
10^-9 (chi-square at that level), and each mutant must be caught. Keys come from fixed seeds, so the outcome is the same
in every run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpalgos.rows import Ints
from dpalgos.secure import primitives as keys
from dpalgos.secure import primitives as masking
from dpalgos.secure import protocol as at_party
from dpalgos.secure.primitives import to_bytes
from tests.support.secagg import Session, agree, masked, parameters

FALSE_ALARM = 1e-9
LENGTH = 20_000
LARGEST = 2**61

Words = NDArray[np.uint64]
Stream = Callable[[Words, bytes], None]


def chi_square_passes(counts: NDArray[np.int64]) -> bool:
    """Whether rows of counts fit uniform cells, all rows together."""
    expected = counts.sum(axis=1, keepdims=True) / counts.shape[1]
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return bool(statistic < stats.chi2.isf(FALSE_ALARM, counts.shape[0] * (counts.shape[1] - 1)))


def bytes_are_uniform(words: Words) -> bool:
    """Every byte of the words, high and low; sees a mask of 63 bits in 20,000 words (a byte of 128 values)."""
    split = words.astype("<u8").view(np.uint8).reshape(-1, 8)
    return chi_square_passes(np.stack([np.bincount(split[:, place], minlength=256) for place in range(8)]))


def neighbours_are_independent(first: Words, second: Words) -> bool:
    """The joint law of four low bits each of two words is uniform; sees words that share a mask."""
    pairs = ((first & np.uint64(15)) << np.uint64(4)) | (second & np.uint64(15))
    return chi_square_passes(np.bincount(pairs.astype(np.int64), minlength=256)[None, :])


def same_law(first: Words, second: Words) -> bool:
    """Two samples have the same law in every byte (two-sample chi-square)."""
    statistic, freedom = 0.0, 0
    for place in range(8):
        counts = np.stack(
            [
                np.bincount(words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, place], minlength=256)
                for words in (first, second)
            ]
        ).astype(float)
        counts = counts[:, counts.sum(axis=0) > 0]
        expected = counts.sum(axis=0) * counts.sum(axis=1, keepdims=True) / counts.sum()
        statistic += float(((counts - expected) ** 2 / expected).sum())
        freedom += counts.shape[1] - 1
    return freedom == 0 or bool(statistic < stats.chi2.isf(FALSE_ALARM, freedom))


def seen(session: Session, vectors: dict[int, Ints], step: int = 0) -> dict[int, Words]:
    """Return the masked words the server receives."""
    return {m.sender: np.frombuffer(m.words, "<u8") for m in masked(session, step, vectors)}


def without_own_mask(session: Session, party: int, words: Words, step: int = 0) -> Words:
    """Return what the server has of a survivor once its own mask is open."""
    state = session.states[party]
    secret = keys.step_secret(state.seed, state.parameters.session, party, "self-mask", step)
    opened = words.copy()
    masking.subtract_stream(opened, to_bytes(secret))
    return opened


def without_pair_masks(session: Session, party: int, words: Words, step: int = 0) -> Words:
    """Return what the server has of a late vector of a lost party, whose pair masks are open."""
    opened = words.copy()
    for peer, root in session.states[party].roots.items():
        key = keys.mask_key(root, step)
        (masking.subtract_stream if peer > party else masking.add_stream)(opened, key)
    return opened


def inputs(session: Session, special: int = 0) -> dict[int, Ints]:
    """Vectors that would show: zeros and one large constant."""
    return {party: np.full(LENGTH, special if party == 1 else 0, dtype=np.int64) for party in session.states}


def view_is_uniform(seed: int) -> bool:
    """All that the server has of single parties: raw, with own masks open, and late vectors with pair masks open."""
    session = agree(parameters(3, 1, length=LENGTH), random.Random(seed))
    view = seen(session, inputs(session, LARGEST))
    opened = {party: without_own_mask(session, party, words) for party, words in view.items()}
    late = without_pair_masks(session, 1, view[1])
    everything = [*view.values(), *opened.values(), late]
    return (
        all(bytes_are_uniform(words) for words in everything)
        and all(neighbours_are_independent(words[:-1], words[1:]) for words in everything)
        and all(neighbours_are_independent(view[i], view[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
        # With own masks open the three vectors have one relation, their sum; any two are still independent.
        and all(neighbours_are_independent(opened[i], opened[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    )


def view_is_independent_of_an_input(seed: int) -> bool:
    """What the server has of party 1 has one law for two inputs (keys drawn independently)."""
    views = []
    for special, fresh in ((0, 0), (LARGEST, 1)):
        session = agree(parameters(3, 1, length=LENGTH), random.Random(2 * seed + fresh))
        view = seen(session, inputs(session, special))
        views.append((view[1], without_own_mask(session, 1, view[1]), without_pair_masks(session, 1, view[1])))
    return all(same_law(first, second) for first, second in zip(*views, strict=True))


def _shortened(operation: np.ufunc) -> Stream:
    def stream(total: Words, key: bytes) -> None:
        words = np.frombuffer(masking.keystream(key, 8 * len(total)), dtype="<u8")
        operation(total, words >> np.uint64(1), out=total)

    return stream


def _repeated(operation: np.ufunc) -> Stream:
    def stream(total: Words, key: bytes) -> None:
        words = np.frombuffer(masking.keystream(key, 8 * len(total)), dtype="<u8")
        operation(total, np.repeat(words, 2)[: len(total)], out=total)

    return stream


def _nothing(total: Words, key: bytes) -> None:
    """Mask with nothing."""


def _unless_zero(original: Stream) -> Stream:
    def stream(total: Words, key: bytes) -> None:
        if any(key):
            original(total, key)

    return stream


def _no_own_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "step_secret", lambda seed, session, party, label, step: 0)
    for module in (masking, at_party):
        monkeypatch.setattr(module, "add_stream", _unless_zero(masking.add_stream))
        monkeypatch.setattr(module, "subtract_stream", _unless_zero(masking.subtract_stream))


def _no_pair_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "mask_key", lambda root, step: bytes(32))
    for module in (masking, at_party):
        monkeypatch.setattr(module, "add_stream", _unless_zero(masking.add_stream))
        monkeypatch.setattr(module, "subtract_stream", _unless_zero(masking.subtract_stream))


def _one_pair_mask_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "mask_key", lambda root, step: b"\x01" * 32)


def _short_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_party, "add_stream", _shortened(np.add))
    monkeypatch.setattr(at_party, "subtract_stream", _shortened(np.subtract))


def _repeating_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_party, "add_stream", _repeated(np.add))
    monkeypatch.setattr(at_party, "subtract_stream", _repeated(np.subtract))


def _no_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_party, "add_stream", _nothing)
    monkeypatch.setattr(at_party, "subtract_stream", _nothing)


MUTANTS = [_no_masks, _no_own_masks, _no_pair_masks, _one_pair_mask_for_all, _short_masks, _repeating_masks]


def test_what_the_server_sees_is_uniform() -> None:
    assert view_is_uniform(1)


@pytest.mark.parametrize("mutate", MUTANTS)
def test_a_view_that_is_not_uniform_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    assert not view_is_uniform(1)


def test_what_the_server_sees_is_independent_of_an_input() -> None:
    assert view_is_independent_of_an_input(2)


@pytest.mark.parametrize("mutate", [_no_masks, _no_own_masks, _no_pair_masks])
def test_a_view_that_shows_an_input_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    assert not view_is_independent_of_an_input(2)


def test_two_inputs_differ_in_the_view_by_a_translation() -> None:
    """With the same keys the view of x is the view of 0 plus x, so uniform masks make both equally uniform."""
    views = []
    for special in (0, LARGEST):
        session = agree(parameters(3, 1, length=LENGTH), random.Random(3))
        views.append(seen(session, inputs(session, special))[1])
    assert np.array_equal(views[1] - views[0], np.full(LENGTH, LARGEST, dtype=np.uint64))


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Record the key of every stream that a party adds or subtracts."""
    found: list[bytes] = []
    for name in ("add_stream", "subtract_stream"):
        original = getattr(at_party, name)

        def recorded(total: Words, key: bytes, original: Stream = original) -> None:
            found.append(key)
            original(total, key)

        monkeypatch.setattr(at_party, name, recorded)
    return iter([found])


def masks_are_used_once(used: list[bytes]) -> bool:
    """Three releases of two sessions, five parties, same seeds: own keys occur once, pair keys on both sides once."""
    parties, steps = 5, 3
    for identity in ("one", "two"):
        session = agree(parameters(parties, 1, length=8, steps=steps, identity=identity), random.Random(4))
        vectors = {party: np.zeros(8, dtype=np.int64) for party in session.states}
        for step in range(steps):
            masked(session, step, vectors)
    occurrences = Counter(Counter(used).values())
    return occurrences == {1: 2 * steps * parties, 2: 2 * steps * parties * (parties - 1) // 2}


def test_no_two_releases_or_steps_share_a_mask(used: Iterator[list[bytes]]) -> None:
    assert masks_are_used_once(next(used))


@pytest.mark.parametrize("name", ["mask_key", "step_secret", "root"])
def test_a_shared_mask_is_caught(name: str, used: Iterator[list[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: pair keys or own keys that ignore the step, pair keys that ignore the session."""
    mask_key, step_secret, party_key = keys.mask_key, keys.step_secret, keys.party_key
    mutants: dict[str, tuple[str, Callable[..., object]]] = {
        "mask_key": ("mask_key", lambda root, step: mask_key(root, 0)),
        "step_secret": (
            "step_secret",
            lambda seed, session, party, label, step: step_secret(seed, session, party, label, 0),
        ),
        "root": ("party_key", lambda seed, session, *rest: party_key(seed, bytes(32), *rest)),
    }
    monkeypatch.setattr(keys, *mutants[name])
    assert not masks_are_used_once(next(used))
