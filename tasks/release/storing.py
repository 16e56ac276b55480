"""Releases on disk: manifests, the record of their sums, and the first stored copy, which is the release."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from dpalgos.accounting.composition import whole_promise
from dpalgos.algorithms import planned_artefact
from dpalgos.made_of import MadeOf
from dpalgos.models import Artefact, opened, require_planned
from dpalgos.parameters import ParameterError
from dpalgos.rows import Array
from storage.errors import RefusedError
from storage.refs import ReleaseRef
from storage.rounds import Journal
from tasks.accounts.ledger import open_ledger
from tasks.planning.configuration import Json
from tasks.planning.nights import PlannedNight, release_of
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.release import checkpoints
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_releases

_NAME = "sums"


class StoredRecord:
    """The record of one release (a :class:`dpalgos.secure.rounds.SumRecord`).

    Parameters
    ----------
    key : str
        The release's identity.
    parties : sequence of str
        All its parties, in order; each keeps its own file in its private store.
    """

    def __init__(self, key: str, parties: Sequence[str]) -> None:
        layout = current_layout()
        self._server = Journal(layout.round(key) / _NAME)
        self._parties = [Journal(layout.party_round(party, key) / _NAME) for party in parties]

    def fix(self, step: str, survivors: tuple[int, ...]) -> tuple[int, ...]:
        """Store whose vectors a sum holds, and return whose were stored first, by whichever run."""
        return tuple(json.loads(self._server.add(step, json.dumps(survivors).encode())))

    def opened(self, party: int, step: str) -> bytes | None:
        """Return what a party has stored of a sum."""
        return self._parties[party].get(step)

    def open(self, party: int, step: str, entry: bytes) -> bytes:
        """Store what a party lets be unmasked, and return what it stored first."""
        return self._parties[party].add(step, entry)


def stored_release(planned: PlannedRelease | PlannedCombination) -> ReleaseRef | None:
    """Return the reference of a release that is stored: the first stored copy is the release."""
    store, key = open_releases(), planned.key
    if not store.exists(key):
        return None
    manifest, _ = store.read(key)
    owner = planned.owner if isinstance(planned, PlannedRelease) else "server"
    return ReleaseRef(key=key, kind=manifest["artefact"], party=owner)


def require_sent(
    planned: PlannedRelease | PlannedCombination,
    parts: Sequence[PlannedRelease],
    key: str,
    sent: tuple[Json, Mapping[str, Array]],
) -> Any:
    """Return the artefact of a release that another party sent, if it is as planned.

    The kind, the names, shapes and types of its arrays are those that the plan makes of no rows; its numbers are finite
    and bounded; and its manifest says that it is the one of this key. No row is read.

    Parameters
    ----------
    planned : PlannedRelease or PlannedCombination
        As the checking process derived it.
    parts : sequence of PlannedRelease
        What a combination is made of; of a release, itself.
    key : str
        The sender's key of it.
    sent : (dict, dict)
        Its manifest and its arrays.

    Raises
    ------
    RefusedError
        Naming what differs.
    """
    manifest, arrays = sent
    try:
        if manifest.get("key") != key:
            raise ParameterError(f"its manifest is that of release {manifest.get('key')}, not of {key}")
        made = [planned_artefact(one.build(), one.setting) for one in parts]
        wanted = planned.combine(made) if isinstance(planned, PlannedCombination) else made[0]
        return require_planned(str(manifest.get("artefact")), arrays, wanted)
    except ParameterError as error:
        raise RefusedError(f"the message for {planned.label} differs from the plan: {error}") from None


def recorded_key(manifest: Json) -> str:
    """Return the key of the release that a manifest describes, derived from what it says.

    Raises
    ------
    ParameterError
        If it describes none.
    """
    fields = {name: manifest[name] for name in PlannedNight.model_fields if name in manifest}
    try:
        return release_of({**fields, "seed": manifest.get("public_seed"), "account": "", "delta": 0.0}).key
    except ValidationError as error:
        raise ParameterError(f"it is not a manifest of a release ({' '.join(str(error).split())[:200]})") from None


def read_release(reference: ReleaseRef) -> Any:
    """Return the artefact behind a reference, its digest verified."""
    manifest, arrays = open_releases().read(reference.key)
    return opened(manifest["artefact"], arrays)


def diagnostics_of(reference: ReleaseRef) -> dict[str, float]:
    """Return what a solver said of its own work; empty for private data and for algorithms that say nothing."""
    manifest, _ = open_releases().read(reference.key)
    return dict(manifest.get("diagnostics", {}))


def store_release(
    release: PlannedRelease, artefact: Artefact, diagnostics: Mapping[str, float], made_of: MadeOf | None = None
) -> ReleaseRef:
    """Record a drawn release in the ledger and store it: the door's last step.

    Parameters
    ----------
    release : PlannedRelease
    artefact : Artefact
    diagnostics : mapping
        What a solver said of its own work.
    made_of : MadeOf, optional
        The noisy sums that it was made of, which the ledger compares; of what is made of no sums it compares the bytes.
    """
    checkpoints.reached("drawn")
    store, key = open_releases(), release.key
    manifest = manifest_of(release, artefact.kind, diagnostics)
    arrays = artefact.arrays()
    if release.reads_rows:
        compared = None if made_of is None else made_of.digest()
        open_ledger().record_output(key, store.digest_of(manifest, arrays), compared)
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
    planned: PlannedRelease | PlannedCombination, kind: str, diagnostics: Mapping[str, float] | None = None
) -> Json:
    """Return what a release says of itself: all of it follows from what was planned, but what a solver said.

    It holds all that the identity is made of, so that a reader of the manifest can derive it again and compare.

    Parameters
    ----------
    planned : PlannedRelease or PlannedCombination
    kind : str
        Of the artefact.
    diagnostics : mapping, optional
        What a solver said of its own work.
    """
    manifest: Json = {"format_version": 1, "key": planned.key, "artefact": kind}
    if isinstance(planned, PlannedCombination):
        parts = planned.model_dump(mode="json", exclude={"label", "code"})
        return {**manifest, "label": planned.label, "post_processing": parts, "code": planned.code}
    algorithm, guarantee = planned.build(), planned.guarantee()
    claim = algorithm.claim
    return {
        **manifest,
        "reads_rows": planned.reads_rows,
        **planned.model_dump(mode="json", exclude={"account", "delta", "seed"}),
        "guarantee": guarantee.to_json(),
        **whole_promise(guarantee.losses),
        "claim": None
        if claim is None
        else {"statement": claim.statement, "theorem": claim.theorem, "flaw": claim.flaw},
        "source": algorithm.source,
        "public_seed": planned.seed,
        "diagnostics": dict(diagnostics or {}),
    }
