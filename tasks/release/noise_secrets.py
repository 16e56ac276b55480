"""The secrets that key the noise of releases: made where there are none, and held to those that were charged."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from dpalgos.keystream import KeyedNoise, key_identifier, public_secret
from dpalgos.trust.model import EVERYONE
from storage.errors import SecretError
from storage.layout import Layout
from storage.ledger.ledger import Ledger
from storage.secrets import environment_name, party_secret, require_secret
from tasks.planning.releases import PlannedRelease
from tasks.runtime.settings import current_layout

_SECRETS_AT_ONCE = 16


def key_identifiers(seed: int | None, contributors: Sequence[str]) -> dict[str, str]:
    """Return one-way identifiers of the secrets that key these makers' noise; secrets are made where there are none."""
    return dict(zip(contributors, map(key_identifier, _secrets_of(seed, contributors, party_secret)), strict=True))


def noises_of(release: PlannedRelease, key: str, contributors: Sequence[str], ledger: Ledger) -> list[KeyedNoise]:
    """Return the noise of some of a release's makers.

    Raises
    ------
    SecretError
        If one of their secrets is lost or another by now: noise is never redrawn for a charged release.
    """
    if not release.reads_rows:
        secrets = _secrets_of(release.seed, contributors, party_secret)
    else:
        charged_under = ledger.charge_of(key).plan.key_ids
        secrets = _secrets_of(
            release.seed,
            contributors,
            lambda layout, contributor: _charged_secret(layout, contributor, charged_under[contributor], release),
        )
    alone = len(release.noise_contributors) == 1
    # With a public seed all secrets are one, so the maker is part of what keys the noise.
    return [
        KeyedNoise(secret, key if alone else f"{key}/{contributor}")
        for contributor, secret in zip(contributors, secrets, strict=True)
    ]


def _charged_secret(layout: Layout, contributor: str, identifier: str, release: PlannedRelease) -> bytes:
    """Return the secret that a release was charged under, as long as it is there."""
    whose = "the curator's secret" if contributor == EVERYONE else f"the secret of party {contributor}"
    way_out = (
        f"Its noise is never drawn with another secret: restore {layout.party_secret(contributor)} "
        f"(or {environment_name(contributor)}), or request a new release, with a new charge, by another --replicate"
    )
    try:
        secret = require_secret(layout, contributor)
    except SecretError as error:
        raise SecretError(
            f"{release.label} was charged under {whose}, which cannot be read: {error}. {way_out}"
        ) from error
    if key_identifier(secret) != identifier:
        raise SecretError(f"{release.label} was charged under {whose}, which has been replaced since. {way_out}")
    return secret


def _secrets_of(seed: int | None, contributors: Sequence[str], find: Callable[[Layout, str], bytes]) -> list[bytes]:
    """Return the secrets that key these makers' noise: public where a public seed was asked for."""
    if seed is not None:
        # Public noise still differs from party to party.
        return [public_secret(seed)] * len(contributors)
    layout = current_layout()
    # A fresh secret waits for the disk; the waits of many parties overlap.
    with ThreadPoolExecutor(_SECRETS_AT_ONCE) as pool:
        return list(pool.map(lambda contributor: find(layout, contributor), contributors))
