"""Known answers for the field, the key schedule and the mask stream."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import random

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpalgos.secure import primitives as keys
from dpalgos.secure import primitives as masking
from dpalgos.secure.primitives import PRIME, ViolationError, lagrange_weights, reconstruct, split, to_bytes

SESSION = bytes(range(32))


def _is_probably_prime(number: int) -> bool:
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in random.Random(1).sample(range(2, 10**9), 40):
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def test_the_modulus_is_the_largest_prime_below_two_to_the_256() -> None:
    assert _is_probably_prime(PRIME)
    assert 2**256 % PRIME == 189
    assert not any(_is_probably_prime(number) for number in range(PRIME + 2, 2**256, 2))


def test_field_known_answers() -> None:
    assert lagrange_weights((1, 2, 3)) == (3, PRIME - 3, 1)
    # 5/3 and -2/3: three times the weights are 5 and -2.
    assert [3 * weight % PRIME for weight in lagrange_weights((2, 5))] == [5, PRIME - 2]
    # f(x) = 10 + 7 x + 5 x^2.
    assert split(10, [1, 2, 3, 7], to_bytes(5) + to_bytes(7)) == [22, 44, 76, 304]
    # f(x) = (p - 1) + (2^256 - 200) x, where 2^256 = 189 modulo p, so the slope is -11.
    assert split(PRIME - 1, [1, 2], (2**256 - 200).to_bytes(32, "big")) == [PRIME - 12, PRIME - 23]
    # Seventeen coefficients of one, so that intermediate reductions happen: (2^18 - 1) at 2.
    assert split(1, [2, *range(100, 117)], to_bytes(1) * 17)[0] == 2**18 - 1


@pytest.mark.parametrize(("threshold", "holders"), [(1, 1), (1, 3), (2, 3), (3, 3), (4, 6)])
def test_every_quorum_opens_the_same_secret(threshold: int, holders: int) -> None:
    generator = random.Random(2)
    secret = generator.randrange(PRIME)
    points = sorted(generator.sample(range(1, 60_000), holders))
    shares = dict(zip(points, split(secret, points, generator.randbytes(32 * (threshold - 1))), strict=True))
    for some in itertools.combinations(points, threshold):
        assert reconstruct(some, [shares[point] for point in some]) == secret


def test_fewer_shares_than_the_threshold_fit_every_secret() -> None:
    """Two shares of a three-share secret are consistent with any other secret, through exactly one polynomial."""
    generator = random.Random(3)
    randomness = generator.randbytes(64)
    shares = split(generator.randrange(PRIME), [1, 2, 3], randomness)
    for other in (0, 1, generator.randrange(PRIME)):
        # The third share that would make it so, from f(0) = 3 f(1) - 3 f(2) + f(3).
        third = (other - 3 * shares[0] + 3 * shares[1]) % PRIME
        assert reconstruct((1, 2, 3), [shares[0], shares[1], third]) == other


def _hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """One block of RFC 5869, written out."""
    return hmac.digest(hmac.digest(salt, secret, "sha256"), info + b"\x01", "sha256")


def test_hkdf_written_out_is_rfc_5869() -> None:
    found = _hkdf(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)))
    assert found.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_key_schedule_known_answers() -> None:
    """X25519 of RFC 7748 section 6.1, then HKDF written out over the documented byte strings."""
    alice = X25519PrivateKey.from_private_bytes(
        bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    )
    bob = X25519PrivateKey.from_private_bytes(
        bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    )
    alice_public, bob_public = alice.public_key().public_bytes_raw(), bob.public_key().public_bytes_raw()
    assert alice_public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob_public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    root = keys.pair_root(alice, SESSION, 3, 1, alice_public, bob_public)
    assert root == keys.pair_root(bob, SESSION, 1, 3, bob_public, alice_public)
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    info = b"unitball-secagg-1 pair\0" + (1).to_bytes(8, "big") + (3).to_bytes(8, "big") + bob_public + alice_public
    assert root == _hkdf(shared, SESSION, info)
    expanded = hmac.digest(root, b"unitball-secagg-1 mask\0" + (17).to_bytes(8, "big") + b"\x01", "sha256")
    assert keys.mask_key(root, 17) == expanded
    seed = bytes(range(100, 132))
    info = b"unitball-secagg-1 self-mask\0" + (4).to_bytes(8, "big") + (2).to_bytes(8, "big")
    assert (
        keys.step_secret(seed, SESSION, 4, "self-mask", 2) == int.from_bytes(_hkdf(seed, SESSION, info), "big") % PRIME
    )
    assert keys.party_key(seed, SESSION, 4, "x25519") != keys.party_key(seed, SESSION, 5, "x25519")
    assert (
        keys.commitment(SESSION, 1, 2, 0, 3, bytes(32))
        == hashlib.sha256(
            b"unitball-secagg-1 commitment\0"
            + SESSION
            + b"".join(n.to_bytes(8, "big") for n in (1, 2, 0, 3))
            + bytes(32)
        ).digest()
    )


def test_keys_are_bound_to_everything_that_names_them() -> None:
    """One key for each (session, pair, direction, step, purpose): none of them occurs twice."""
    seeds = {party: bytes([party]) * 32 for party in range(3)}
    found: list[bytes] = []
    for session in (SESSION, bytes(32)):
        publics = {party: keys.public_key(seed, session, party) for party, seed in seeds.items()}
        found += publics.values()
        for party, peer in itertools.combinations(seeds, 2):
            own = keys.private_key(seeds[party], session, party)
            root = keys.pair_root(own, session, party, peer, publics[party], publics[peer])
            found += [root, keys.channel_key(root, party, peer), keys.channel_key(root, peer, party)]
            found += [keys.mask_key(root, step) for step in range(5)]
        for party, label, step in itertools.product(seeds, ("self-mask", "escrow"), range(5)):
            secret = to_bytes(keys.step_secret(seeds[party], session, party, label, step))
            found += [secret, keys.escrow_key(secret, step)]
    assert len(set(found)) == len(found)


def test_a_degenerate_public_key_is_refused_and_named() -> None:
    own = keys.private_key(bytes(32), SESSION, 0)
    with pytest.raises(ViolationError, match="party 7") as caught:
        keys.pair_root(own, SESSION, 0, 7, keys.public_key(bytes(32), SESSION, 0), bytes(32))
    assert caught.value.party == 7


def test_mask_stream_is_chacha20() -> None:
    """RFC 8439, appendix A.1, test vector 1, read as little-endian words."""
    expected = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert masking.keystream(bytes(32), 64) == expected
    total = np.zeros(8, dtype="<u8")
    masking.add_stream(total, bytes(32))
    assert total.tobytes() == expected


@pytest.mark.parametrize("length", [1, 7, 16_384, 16_385, 40_000])
def test_streams_cancel_and_do_not_depend_on_pieces(length: int) -> None:
    generator = np.random.default_rng(4)
    integers = generator.integers(-(2**63), 2**63 - 1, length, dtype=np.int64)
    words = masking.to_words(integers)
    key = generator.bytes(32)
    masking.add_stream(words, key)
    whole = np.frombuffer(masking.keystream(key, 8 * length), dtype="<u8")
    assert np.array_equal(words, masking.to_words(integers) + whole)
    masking.subtract_stream(words, key)
    assert np.array_equal(masking.to_integers(words), integers)
