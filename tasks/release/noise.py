"""The noise of a release, from the secrets that were in force when it was charged."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from dpalgos.keystream import KeyedNoise, key_identifier, public_secret
from storage.errors import SecretError
from storage.ledger import Ledger
from storage.secrets import party_secret, require_secret
from tasks.planning.plans import EVERYONE, PlannedRelease
from tasks.runtime.settings import current_layout

__all__ = ["key_identifiers", "noises_of"]

_SECRETS_AT_ONCE = 16


def key_identifiers(seed: int | None, makers: Sequence[str]) -> dict[str, str]:
    """Return one-way identifiers of the secrets that key these makers' noise; secrets are made where there are none."""
    return dict(zip(makers, map(key_identifier, _secrets_of(seed, makers, create=True)), strict=True))


def noises_of(release: PlannedRelease, key: str, makers: Sequence[str], ledger: Ledger) -> list[KeyedNoise]:
    """Return the noise of some of a release's makers.

    Raises
    ------
    SecretError
        If one of their secrets is lost or another by now: noise is never drawn anew for a charged release.
    """
    charged_under = ledger.charge_of(key).key_ids if release.reads_rows else None
    try:
        secrets = _secrets_of(release.seed, makers, create=charged_under is None)
    except SecretError as error:
        raise SecretError(f"{release.label} ({key[:12]}) was charged and cannot be drawn again: {error}") from error
    for maker, secret in zip(makers, secrets, strict=True):
        if charged_under is not None and key_identifier(secret) != charged_under[maker]:
            whose = "the curator" if maker == EVERYONE else f"party {maker}"
            raise SecretError(
                f"{release.label} ({key[:12]}) was charged and cannot be drawn again: {whose} has another secret now "
                f"than the one that it was charged under. Restore that secret ({current_layout().party_secret(maker)}),"
                " or ask for a fresh release and a fresh charge with another --repetition"
            )
    alone = len(release.noise_makers) == 1
    # With a public seed all secrets are one, so the maker is part of what keys the noise.
    return [
        KeyedNoise(secret, key if alone else f"{key}/{maker}") for maker, secret in zip(makers, secrets, strict=True)
    ]


def _secrets_of(seed: int | None, makers: Sequence[str], *, create: bool) -> list[bytes]:
    """Return the secrets that key these makers' noise: public where a public seed was asked for."""
    if seed is not None:
        # Public noise still differs from party to party.
        return [public_secret(seed)] * len(makers)
    layout = current_layout()
    find = party_secret if create else require_secret
    # A fresh secret waits for the disk; the waits of many parties overlap.
    with ThreadPoolExecutor(_SECRETS_AT_ONCE) as pool:
        return list(pool.map(lambda maker: find(layout, maker), makers))
