"""The one door through which a release can be made: declare, charge, draw, store."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dpalgos.algorithms import Diagnosing, fit
from dpalgos.guarantees import Guarantee, Numerics
from dpalgos.keystream import KeyedNoise, key_identifier, public_secret
from dpalgos.models import Artefact, decode
from dpalgos.rows import Floats, Rows
from dpalgos.secure.errors import SecureAggregationError
from dpalgos.secure.one_sum import require_shareable
from dpalgos.secure.summation import SecureSummation, weights_of
from dpalgos.summation import Summation
from storage.atomic import write_bytes
from storage.charges import PlanRequest, ReleaseCharge
from storage.datasets import dataset_ref
from storage.errors import RefusedError, SecretError, StorageError
from storage.layout import Layout
from storage.ledger import Ledger
from storage.refs import ReleaseRef, ShardRef
from storage.releases import ReleaseStore
from storage.rounds import RoundStore
from storage.secrets import party_secret, require_secret
from storage.shards import open_shard
from tasks.accounts.budget import open_ledger
from tasks.planning.identity import code_version
from tasks.planning.plans import PlannedRelease, RunPlan, build
from tasks.runtime.settings import current_layout, current_root

__all__ = [
    "RowMaps",
    "UntoldError",
    "admit",
    "charge_plan",
    "diagnostics_of",
    "fixed_survivors",
    "is_stored",
    "make_release",
    "maps_of",
    "own_part",
    "read_release",
    "refuse_unproved",
    "rows_of",
    "secrets_of",
    "store_combination",
    "store_release",
    "stored_release",
    "untold",
]


# One thread a matrix product: the parties' tasks run side by side already, and results do not depend on the machine's
# number of cores, so that a retry elsewhere meets the same bits and the same noise.
threadpool_limits(limits=1, user_api="blas")


_SECRETS_AT_ONCE = 16


class UntoldError(Exception):
    """An algorithm failed on private rows; what it said is kept beside them and told to nobody else."""


def _nothing(step: str) -> None:
    del step


reached: Callable[[str], None] = _nothing
"""Called at each step of the door; replaced by the crash tests, which kill the process there."""


RowMaps = Sequence[Callable[[Floats], Floats]]


class _MappedRows:
    """A party's rows seen through released artefacts (post-processing: the maps cost nothing more)."""

    def __init__(self, rows: Rows, maps: RowMaps, dimension: int) -> None:
        self._rows = rows
        self._maps = maps
        self._dimension = dimension

    @property
    def count(self) -> int:
        return self._rows.count

    @property
    def dimension(self) -> int:
        return self._dimension

    def blocks(self) -> Iterator[tuple[Floats, NDArray[np.generic]]]:
        for features, labels in self._rows.blocks():
            for mapped in self._maps:
                features = mapped(features)
            yield features, labels

    def fingerprint(self) -> NDArray[np.uint8]:
        # The maps are part of the release's identity, which keys the noise already.
        return self._rows.fingerprint()


def maps_of(upstream: Sequence[ReleaseRef]) -> RowMaps:
    """Open the released artefacts that rows pass through, in turn."""
    return [read_release(reference).apply for reference in upstream]


def rows_of(shard: ShardRef, maps: RowMaps, dimension: int) -> Rows:
    """Open a shard, seen through released artefacts in turn; ``dimension`` features come out."""
    # Nothing is to be made for reading, and this is asked for each of many thousand parties.
    rows: Rows = open_shard(Layout(current_root()), shard)
    return _MappedRows(rows, maps, dimension) if maps else rows


def is_stored(key: str) -> bool:
    """Whether a release is there."""
    return ReleaseStore(current_layout()).exists(key)


def read_release(reference: ReleaseRef) -> Any:
    """Return the artefact behind a reference, its digest verified."""
    manifest, arrays = ReleaseStore(current_layout()).read(reference.key)
    return decode(manifest["artefact"], arrays)


def diagnostics_of(reference: ReleaseRef) -> dict[str, float]:
    """Return what a solver said of its own work; empty for private data and for algorithms that say nothing."""
    manifest, _ = ReleaseStore(current_layout()).read(reference.key)
    return dict(manifest.get("diagnostics", {}))


def _charges(releases: Sequence[PlannedRelease]) -> tuple[ReleaseCharge, ...]:
    return tuple(
        ReleaseCharge(
            key=release.key, parties=release.parties, guarantee=release.guarantee().to_json(), label=release.label
        )
        for release in releases
        if release.reads_rows
    )


def secrets_of(seed: int | None, makers: Sequence[str], *, create: bool = True) -> list[bytes]:
    """Return the secrets that key these makers' noise: public where a public seed was asked for."""
    if seed is not None:
        # Public noise still differs from party to party.
        return [public_secret(seed)] * len(makers)
    layout = current_layout()
    find = party_secret if create else require_secret
    # A fresh secret waits for the disk; the waits of many parties overlap.
    with ThreadPoolExecutor(_SECRETS_AT_ONCE) as pool:
        return list(pool.map(lambda maker: find(layout, maker), makers))


def refuse_unproved(plan: RunPlan, shards: Sequence[ShardRef], ledger: Ledger) -> None:
    """Refuse, before anything is charged, whatever may not touch private rows.

    Raises
    ------
    RefusedError
        If the rows are private and a release is unproved, holds in real arithmetic only without the owner's word,
        is seeded publicly, or has a delta of 1/n or more.
    """
    _require_genuine(shards)
    for release in plan.releases:
        if release.sums_securely:
            require_shareable(build(release), release.public_facts(), release.fault_model())
    dataset = shards[0].dataset
    if not dataset.private:
        return
    if any(release.seed is not None for release in plan.releases):
        raise RefusedError(
            f"{dataset.name} is private: a public noise seed would let anybody subtract the noise; leave --seed out"
        )
    # Publishing one of n rows at random is (0, 1/n)-private, so the release that reads the most rows sets the bound.
    most = max(release.public_facts().rows for release in plan.releases if release.reads_rows)
    if plan.delta >= 1 / most:
        raise RefusedError(
            f"delta {plan.delta:g} is 1/n or more for a release of n = {most} rows: that protects nobody; "
            f"choose --delta well below {1 / most:.2g}"
        )
    for release in plan.releases:
        if not release.reads_rows:
            continue
        guarantee = release.guarantee()
        if not guarantee.proved:
            way_out = (
                f"its sound counterpart is {plan.sound_counterpart}"
                if plan.sound_counterpart
                else ("only proved algorithms run on private rows: unitball algorithms --proved")
            )
            raise RefusedError(
                f"{dataset.name} is private and {plan.system} is not proved ({guarantee.reason}); {way_out}"
            )
        if guarantee.numerics is Numerics.IDEALISED and not ledger.account(dataset.account).idealised_allowed:
            raise RefusedError(
                f"{release.name} is proved in real arithmetic only (idealised) and the account {dataset.account} does "
                f"not admit that; ingest with --allow-idealised, or choose an exact algorithm such as noisy-gd"
            )


def charge_plan(plan: RunPlan, shards: Sequence[ShardRef]) -> dict[str, Any]:
    """Charge all releases of a run together, before any noise exists.

    Returns
    -------
    dict
        Public numbers for reports: what was newly charged, spent, left, the filter in force.

    Raises
    ------
    RefusedError
        If something unproved would read private rows, or the cap would be exceeded; nothing is charged then.
    """
    ledger = open_ledger()
    refuse_unproved(plan, shards, ledger)
    return _charge(ledger, plan.releases, shards, plan.delta, plan.system)


def _charge(
    ledger: Ledger, releases: Sequence[PlannedRelease], shards: Sequence[ShardRef], delta: float, run: str
) -> dict[str, Any]:
    charged = _charges(releases)
    request = PlanRequest(
        account=shards[0].dataset.account, partition=shards[0].partition, releases=charged, delta=delta, run=run
    )
    # Only what is still to be paid names secrets: a lost one must not be made anew for a release already charged.
    unpaid = [release for release in releases if release.reads_rows and not ledger.is_charged(release.key)]
    makers = list(dict.fromkeys(maker for release in unpaid for maker in release.noise_makers))
    secrets = secrets_of(unpaid[0].seed, makers) if unpaid else []
    identifiers = dict(zip(makers, map(key_identifier, secrets), strict=True))
    outcome = ledger.charge(request, identifiers)
    return {"charged": len(outcome.charged), "already_charged": len(outcome.already_charged), **outcome.details}


def make_release(
    release: PlannedRelease, shards: Sequence[ShardRef], upstream: Sequence[ReleaseRef] = ()
) -> ReleaseRef:
    """Make one release, exactly once, whatever crashed before.

    The first stored copy is the release. Where none is stored it is computed; the charge is on disk before any
    noise exists, and the noise is keyed by the party's secret, the identity and the value it hides, so that a retry
    repeats the bytes.

    Parameters
    ----------
    release : PlannedRelease
    shards : sequence of ShardRef
        The shards it reads, in the order of ``release.parties``.
    upstream : sequence of ReleaseRef
        The artefacts its rows are seen through, in turn: a projection, and for an evaluation the model.

    Raises
    ------
    RefusedError
        If it was not charged and the cap does not admit it.
    SecretError
        If it was charged under a secret that is gone: noise is never drawn anew for a charged release.
    """
    algorithm = build(release)
    setting = release.public_facts()
    stored = stored_release(release)
    if stored is not None:
        return stored
    admit(release, shards)
    ledger = open_ledger()
    noises = _noises(release, release.noise_makers, ledger)
    maps = maps_of(upstream)
    parties = [rows_of(shard, maps, setting.dimension) for shard in shards]
    summation: Summation | None = None
    if release.sums_securely:
        summation = SecureSummation(
            identity=release.key,
            tolerance=release.fault_model(),
            sizes=setting.sizes,
            noises=noises,
            steps=algorithm.steps(setting),
            absences=release.absences(),
            scaled=True,
            weights=weights_of(algorithm, setting),
            remember=lambda step, survivors: fixed_survivors(release.key, step, survivors),
        )
    noise = noises[0]
    diagnostics: dict[str, float] = {}
    with untold(release, shards[0]):
        if isinstance(algorithm, Diagnosing) and not shards[0].dataset.private:
            artefact, diagnostics = algorithm.diagnostics(parties, setting, noise)
        else:
            artefact = fit(algorithm, parties, setting, noise, summation)
    return store_release(release, artefact, diagnostics)


@contextmanager
def untold(release: PlannedRelease, shard: ShardRef) -> Iterator[None]:
    """Keep what goes wrong on private rows behind the door: an exception's words and traceback may hold their values.

    Algorithms are total, so this is for their faults. The owner finds the words beside the rows.

    Raises
    ------
    UntoldError
        In place of whatever was raised, except errors of storage, of secrets and of secure sums, which name no row.
    """
    try:
        yield
    except (StorageError, RefusedError, SecureAggregationError):
        raise
    except Exception:
        if not shard.dataset.private:
            raise
        place = current_layout().private / "errors" / f"{release.key}.txt"
        write_bytes(place, traceback.format_exc().encode(), mode=0o600)
        raise UntoldError(
            f"{release.label} by {release.name} failed on private rows; what went wrong may hold their values and is "
            f"kept for their owner in {place}"
        ) from None


def stored_release(release: PlannedRelease) -> ReleaseRef | None:
    """Return the reference of a release that is stored: the first stored copy is the release."""
    store = ReleaseStore(current_layout())
    if not store.exists(release.key):
        return None
    manifest, _ = store.read(release.key)
    return ReleaseRef(key=release.key, kind=manifest["artefact"], party=release.owner)


def admit(release: PlannedRelease, shards: Sequence[ShardRef]) -> None:
    """Declare and charge a release that is about to be made: the door's first half.

    Raises
    ------
    RefusedError
        If it may not read these rows, or was not charged and the cap does not admit it.
    """
    # Declare: from public facts alone.
    guarantee = release.guarantee()
    reached("declared")
    if release.reads_rows:
        ledger = open_ledger()
        if tuple(shard.rows for shard in shards) != release.public_facts().sizes:
            raise RefusedError(f"{release.label} is planned for parties of other sizes than the shards it is given")
        _require_admissible(guarantee, release, shards, ledger)
        # Costs nothing where the plan was charged, and is refused where the key stands for something else on record.
        _charge(ledger, [release], shards, _own_delta(release), release.name)
        reached("charged")


def own_part(release: PlannedRelease, shard: ShardRef, upstream: Sequence[ReleaseRef]) -> tuple[Rows, KeyedNoise]:
    """Return what one party brings to a joint release that was admitted: its own rows and its own noise.

    Raises
    ------
    RefusedError
        If the release was never charged, or may not read these rows.
    SecretError
        If it was charged under another secret of this party.
    """
    ledger = open_ledger()
    facts = release.public_facts()
    if shard.party not in release.parties or facts.sizes[release.parties.index(shard.party)] != shard.rows:
        raise RefusedError(f"{release.label} is planned for a party of another size than the shard it is given")
    _require_admissible(release.guarantee(), release, [shard], ledger)
    if not ledger.is_charged(release.key):
        raise RefusedError(f"{release.label} was not charged, so no noise is drawn for it")
    (noise,) = _noises(release, [shard.party], ledger)
    return rows_of(shard, maps_of(upstream), facts.dimension), noise


def fixed_survivors(key: str, step: str, survivors: tuple[int, ...]) -> tuple[int, ...]:
    """Store whose vectors a sum holds, before it is unmasked, and return whose were stored first, by whichever run."""
    stored = RoundStore(current_layout(), key).put(f"survivors-{step}", json.dumps(list(survivors)).encode())
    return tuple(json.loads(stored))


def store_release(
    release: PlannedRelease, artefact: Artefact, diagnostics: Mapping[str, float] | None = None
) -> ReleaseRef:
    """Record a drawn release in the ledger and store it: the door's last step."""
    reached("drawn")
    store = ReleaseStore(current_layout())
    manifest = _manifest(release, release.guarantee(), artefact.kind, dict(diagnostics or {}))
    arrays = artefact.arrays()
    digest = store.digest_of(manifest, arrays)
    if release.reads_rows:
        open_ledger().record_output(release.key, digest)
        reached("recorded")
    store.write(release.key, manifest, arrays)
    reached("stored")
    return ReleaseRef(key=release.key, kind=artefact.kind, party=release.owner)


def _noises(release: PlannedRelease, makers: Sequence[str], ledger: Ledger) -> list[KeyedNoise]:
    """Return the noise of some makers, from the secrets that were in force when the release was charged.

    Raises
    ------
    SecretError
        If one of these is another by now: noise is never drawn anew for a charged release.
    """
    charged_under = ledger.charge_of(release.key).key_ids if release.reads_rows else None
    secrets = secrets_of(release.seed, makers, create=charged_under is None)
    for maker, secret in zip(makers, secrets, strict=True):
        if charged_under is not None and key_identifier(secret) != charged_under[maker]:
            raise SecretError(
                f"the release {release.key[:12]} ({release.label}) was charged under another secret of {maker}; "
                f"its noise cannot be drawn again. Restore the secret, or ask for a fresh release and a fresh charge "
                f"with another --repetition"
            )
    alone = len(release.noise_makers) == 1
    # With a public seed all secrets are one, so the maker is part of what keys the noise.
    return [
        KeyedNoise(secret, release.key if alone else f"{release.key}/{maker}")
        for maker, secret in zip(makers, secrets, strict=True)
    ]


def _own_delta(release: PlannedRelease) -> float:
    budget = release.budget or {}
    return float(budget.get("delta", 1e-5))


def _require_genuine(shards: Sequence[ShardRef]) -> None:
    """Compare references, which anybody can write down, with what is stored under them.

    Raises
    ------
    RefusedError
        If one says of private rows that they are public, or names another account.
    """
    layout = current_layout()
    for dataset in {shard.dataset for shard in shards}:
        stored = dataset_ref(layout, dataset.version)
        if (stored.visibility, stored.private and stored.account) != (
            dataset.visibility,
            dataset.private and dataset.account,
        ):
            raise RefusedError(
                f"the reference to {dataset.name} does not say what is stored: version {dataset.version} holds "
                f"{stored.visibility} rows of account {stored.account}"
            )


def _require_admissible(
    guarantee: Guarantee, release: PlannedRelease, shards: Sequence[ShardRef], ledger: Ledger
) -> None:
    # The plan was checked as a whole; the door checks again, since nothing else stands between it and the rows.
    _require_genuine(shards)
    dataset = shards[0].dataset
    layout = current_layout()
    for shard in shards:
        if open_shard(layout, shard).count != shard.rows:
            raise RefusedError(f"the reference to the rows of party {shard.party} gives another number than is stored")
    if not dataset.private:
        return
    if not guarantee.proved or release.seed is not None:
        raise RefusedError(f"{dataset.name} is private and {release.name} is not proved ({guarantee.reason})")
    if guarantee.numerics is Numerics.IDEALISED and not ledger.account(dataset.account).idealised_allowed:
        raise RefusedError(f"{release.name} is idealised and the account {dataset.account} does not admit that")


def _manifest(
    release: PlannedRelease, guarantee: Guarantee, kind: str, diagnostics: dict[str, float]
) -> dict[str, Any]:
    cls = type(build(release))
    claim = cls.claim
    return {
        "format_version": 1,
        "key": release.key,
        "artefact": kind,
        "label": release.label,
        "reads_rows": release.reads_rows,
        "algorithm": {"kind": release.kind, "name": release.name, "parameters": release.parameters},
        "budget": release.budget,
        "setting": release.setting,
        "parties": list(release.parties),
        "upstream": list(release.upstream),
        "guarantee": guarantee.to_json(),
        "claim": None
        if claim is None
        else {"statement": claim.statement, "theorem": claim.theorem, "flaw": claim.flaw},
        "source": cls.source,
        "code": code_version(),
        "public_seed": release.seed,
        "tolerance": release.tolerance,
        "absent": {name: list(parties) for name, parties in release.absent.items()},
        "diagnostics": diagnostics,
    }


def store_combination(key: str, label: str, description: dict[str, Any], artefact: Artefact) -> ReleaseRef:
    """Store what the server made out of releases: post-processing, free."""
    store = ReleaseStore(current_layout())
    if not store.exists(key):
        manifest = {
            "format_version": 1,
            "key": key,
            "artefact": artefact.kind,
            "label": label,
            "post_processing": description,
            "code": code_version(),
        }
        store.write(key, manifest, artefact.arrays())
    return ReleaseRef(key=key, kind=artefact.kind, party="server")
