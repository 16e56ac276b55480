"""Releases on disk: their manifests, the first stored copy, and how an artefact is read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dpalgos.accounting.trade_off import whole_promise
from dpalgos.models import Artefact, decode
from storage.refs import ReleaseRef
from tasks.accounts.budget import open_ledger
from tasks.planning.fields import Json
from tasks.planning.plans import PlannedCombination, PlannedRelease
from tasks.release import checkpoints
from tasks.runtime.stores import open_releases

__all__ = [
    "diagnostics_of",
    "is_stored",
    "manifest_of",
    "read_release",
    "read_releases",
    "store_combination",
    "store_release",
    "stored_release",
]

_NOTHING_SAID: Mapping[str, float] = MappingProxyType({})


def is_stored(key: str) -> bool:
    """Whether a release is there."""
    return open_releases().exists(key)


def stored_release(release: PlannedRelease) -> ReleaseRef | None:
    """Return the reference of a release that is stored: the first stored copy is the release."""
    store, key = open_releases(), release.key
    if not store.exists(key):
        return None
    manifest, _ = store.read(key)
    return ReleaseRef(key=key, kind=manifest["artefact"], party=release.owner)


def read_release(reference: ReleaseRef) -> Any:
    """Return the artefact behind a reference, its digest verified."""
    return read_releases([reference])[0]


def read_releases(references: Sequence[ReleaseRef]) -> list[Any]:
    """Return the artefacts behind references, their digests verified."""
    store = open_releases()
    found = (store.read(reference.key) for reference in references)
    return [decode(manifest["artefact"], arrays) for manifest, arrays in found]


def diagnostics_of(reference: ReleaseRef) -> dict[str, float]:
    """Return what a solver said of its own work; empty for private data and for algorithms that say nothing."""
    manifest, _ = open_releases().read(reference.key)
    return dict(manifest.get("diagnostics", {}))


def store_release(release: PlannedRelease, artefact: Artefact, diagnostics: Mapping[str, float]) -> ReleaseRef:
    """Record a drawn release in the ledger and store it: the door's last step."""
    checkpoints.reached("drawn")
    store, key = open_releases(), release.key
    manifest = manifest_of(release, artefact.kind, diagnostics)
    arrays = artefact.arrays()
    if release.reads_rows:
        open_ledger().record_output(key, store.digest_of(manifest, arrays))
        checkpoints.reached("recorded")
    store.write(key, manifest, arrays)
    checkpoints.reached("stored")
    return ReleaseRef(key=key, kind=artefact.kind, party=release.owner)


def store_combination(combination: PlannedCombination, artefact: Artefact) -> ReleaseRef:
    """Store what the server made out of releases: post-processing, free."""
    store, key = open_releases(), combination.key
    if not store.exists(key):
        store.write(key, manifest_of(combination, artefact.kind), artefact.arrays())
    return ReleaseRef(key=key, kind=artefact.kind, party="server")


def manifest_of(
    planned: PlannedRelease | PlannedCombination, kind: str, diagnostics: Mapping[str, float] = _NOTHING_SAID
) -> Json:
    """Return what a release says of itself: all of it follows from what was planned, but what a solver said.

    It holds all that the identity is made of, so that whoever reads the manifest can derive it once more and compare.

    Parameters
    ----------
    planned : PlannedRelease or PlannedCombination
    kind : str
        Of the artefact.
    diagnostics : mapping
        What a solver said of its own work.
    """
    made: Json = {"format_version": 1, "key": planned.key, "artefact": kind}
    if isinstance(planned, PlannedCombination):
        parts = planned.model_dump(mode="json", exclude={"label", "code"})
        return {**made, "label": planned.label, "post_processing": parts, "code": planned.code}
    algorithm, guarantee = planned.build(), planned.guarantee()
    claim = algorithm.claim
    return {
        **made,
        "reads_rows": planned.reads_rows,
        **planned.model_dump(mode="json", exclude={"account", "delta", "seed", *planned.fields_without_value}),
        "guarantee": guarantee.to_json(),
        **whole_promise(guarantee.losses),
        "claim": None
        if claim is None
        else {"statement": claim.statement, "theorem": claim.theorem, "flaw": claim.flaw},
        "source": algorithm.source,
        "public_seed": planned.seed,
        "diagnostics": dict(diagnostics),
    }
