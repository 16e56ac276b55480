"""An export checked where neither its rows nor its root are: digests, identities, guarantees, prices, and the chain."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpalgos.accounting.composition import compose
from dpalgos.errors import ParameterError
from dpalgos.guarantees import Guarantee, Loss
from storage.documents import parse_json
from storage.errors import InputError, StorageError
from storage.ledger.charges import AccountTerms, ReleaseCharge
from storage.ledger.entries import Kind
from storage.ledger.extracts import FIELDS, linked, unlike
from storage.releases import ReleaseStore
from tasks.accounts.budget import AccountingPolicy
from tasks.exports.archive import Archive, read
from tasks.exports.collecting import AUDIT, CHARGES, ENVIRONMENT, PROOF, RUN, installed, release_member
from tasks.planning.plans import PlannedCombination, PlannedRelease, combination_of
from tasks.runtime.stores import open_ledger_database

__all__ = ["Check", "Verified", "verify"]

_CLOSE = 1e-9
_FILES = ("manifest.json", "arrays.npz")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    what : str
    holds : bool or None
        None where it could not be looked at here.
    detail : str
    """

    what: str
    holds: bool | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verified:
    """What an archive says, and what of it was found to hold.

    Parameters
    ----------
    run, signer : str
        The run's key, and the fingerprint of the key that signed.
    algorithm, dataset : str
    epsilon, delta : float or None
        What is proved of the run, recomputed here; None where nothing is.
    checks : tuple of Check
    """

    run: str
    signer: str
    algorithm: str
    dataset: str
    epsilon: float | None
    delta: float | None
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing that was looked at fails."""
        return all(check.holds is not False for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the report in plain values."""
        return {**asdict(self), "holds": self.holds}


class _RefutedError(Exception):
    """A check fails."""


class _UncheckedError(Exception):
    """A check cannot be made on this machine."""


class _Contents:
    """The members of an archive, read: malformed ones are problems, never crashes."""

    def __init__(self, archive: Archive) -> None:
        self._members = archive.members
        self.run = self.json(RUN)
        self.keys = [*self.run["releases"], *self.run["evaluations"]]
        charges = self.json(CHARGES)
        self.ledger = str(charges["ledger"])
        self.stored: list[dict[str, Any]] = charges["entries"]
        if any(set(entry) != set(FIELDS) for entry in self.stored):
            raise ValueError("an entry of the ledger has other fields than entries have")
        self.entries = [{**entry, "content": parse_json(entry["content"], "an entry")} for entry in self.stored]

    def json(self, name: str) -> Any:
        return parse_json(self._members[name], name)

    def expected(self) -> set[str]:
        releases = {release_member(key, file) for key in self.keys for file in _FILES}
        return {RUN, CHARGES, AUDIT, PROOF, ENVIRONMENT} | releases

    def of(self, *kinds: Kind) -> list[dict[str, Any]]:
        return [entry for entry in self.entries if entry["kind"] in kinds]

    def charge(self, key: str) -> dict[str, Any]:
        found = [entry for entry in self.of(Kind.CHARGE) if entry["subject"] == key]
        if not found:
            raise _RefutedError(f"release {key[:12]} reads rows and was never charged")
        return found[0]

    def plan(self, number: int) -> dict[str, Any]:
        found = [entry for entry in self.of(Kind.PLAN) if entry["sequence"] == number]
        if not found:
            raise _RefutedError(f"the plan with number {number} is missing")
        return found[0]

    @cached_property
    def releases(self) -> dict[str, tuple[dict[str, Any], str]]:
        """Manifest and digest of each release, checked against the bytes of its arrays."""
        return {
            key: ReleaseStore.check({file: self._members[release_member(key, file)] for file in _FILES}, Path(key[:12]))
            for key in self.keys
        }

    def readers(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the releases that read rows, which are the ones that cost something."""
        for key, (manifest, _) in self.releases.items():
            if manifest.get("reads_rows"):
                yield key, manifest

    def planned(self, key: str, manifest: Mapping[str, Any]) -> PlannedRelease:
        plan = self.plan(self.charge(key)["content"]["plan"]) if manifest["reads_rows"] else None
        fields = {name: manifest[name] for name in PlannedRelease.model_fields if name in manifest}
        return PlannedRelease.model_validate(
            {
                **fields,
                "seed": manifest["public_seed"],
                "account": plan["account"] if plan else "",
                "delta": plan["content"]["delta"] if plan else 0.0,
            }
        )


def verify(path: Path, *, signer: str | None = None) -> Verified:
    """Check an archive that ``unitball export`` has written, on whatever machine.

    What follows where all holds: the releases are those the archive was made of, and their identities are digests of
    what the manifests say; the algorithms that these name guarantee what was charged, *as the code that is installed
    here derives it*; the plans cost what the ledger booked; the run's epsilon is the composition of its releases.
    What does not follow, and rests on the word of whoever holds the signing key: that the rows were those, that the
    noise was drawn and kept secret, that no other release was made, and what else the account has spent. Where the
    ledger itself is at hand, with its key, its entries are compared as well.

    Parameters
    ----------
    path : Path
    signer : str, optional
        The fingerprint that the archive must be signed with, as its owner gave it.

    Raises
    ------
    InputError, storage.errors.DamagedError, storage.errors.FormatVersionError
        If the archive itself cannot be relied on: see :func:`~tasks.exports.archive.read`.
    """
    archive = read(path)
    try:
        contents = _Contents(archive)
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{path} was signed by {archive.signer[:16]} but is no export of a run: {error!r}") from error
    checks = [_signer(archive.signer, signer)]
    checks += [_made(what, look, contents) for what, look in _LOOKS]
    proved = contents.run.get("proved") or {}
    return Verified(
        run=str(contents.run["run_key"]),
        signer=archive.signer,
        algorithm=str(contents.run["algorithm"]),
        dataset=str(contents.run["dataset"]),
        epsilon=proved.get("epsilon"),
        delta=proved.get("delta"),
        checks=tuple(checks),
    )


def _signer(found: str, wanted: str | None) -> Check:
    if wanted is None:
        return Check("signature", True, f"by the key {found}; whose it is, its owner has to say (--signer)")
    holds = found == wanted.strip().lower()
    return Check("signature", holds, "by the key that was named" if holds else f"by another key: {found}")


def _made(what: str, look: Callable[[_Contents], str], contents: _Contents) -> Check:
    try:
        return Check(what, True, look(contents))
    except _UncheckedError as reason:
        return Check(what, None, str(reason))
    except (_RefutedError, StorageError, ParameterError) as problem:
        return Check(what, False, str(problem))
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        return Check(what, False, f"it cannot be read: {' '.join(str(error).split()) or type(error).__name__}")


def _members(contents: _Contents) -> str:
    if strange := sorted(contents.expected() ^ set(contents._members)):
        raise _RefutedError(f"missing or not part of an export: {', '.join(strange[:5])}")
    return f"{len(contents.keys)} releases"


def _digests(contents: _Contents) -> str:
    outputs: dict[str, set[str]] = {}
    for entry in contents.of(Kind.OUTPUT):
        outputs.setdefault(entry["subject"], set()).add(entry["content"]["digest"])
    for key, (manifest, digest) in contents.releases.items():
        if manifest["key"] != key:
            raise _RefutedError(f"release {key[:12]} calls itself {manifest['key'][:12]}")
        if manifest.get("reads_rows") and digest not in outputs.get(key, set()):
            raise _RefutedError(f"release {key[:12]} is not the one whose bytes the ledger recorded")
    return "manifests, arrays and the ledger's record of them agree"


def _identities(contents: _Contents) -> str:
    for key, (manifest, _) in contents.releases.items():
        if "post_processing" in manifest:
            planned: PlannedRelease | PlannedCombination = combination_of(
                {**manifest["post_processing"], "label": manifest["label"], "code": manifest["code"]}
            )
        else:
            planned = contents.planned(key, manifest)
        if planned.key != key:
            raise _RefutedError(f"the manifest of release {key[:12]} describes another one, {planned.key[:12]}")
    return "each is the digest of what its manifest says"


def _guarantees(contents: _Contents) -> str:
    for key, manifest in contents.readers():
        try:
            found = contents.planned(key, manifest).guarantee()
        except ParameterError as error:
            raise _UncheckedError(f"{manifest['label']} cannot be built by what is installed here: {error}") from error
        for where, said in (
            ("manifest", manifest["guarantee"]),
            ("charge", contents.charge(key)["content"]["guarantee"]),
        ):
            if not _alike(found.losses, Guarantee.from_json(said)):
                raise _RefutedError(
                    f"release {key[:12]}: its {where} states {said['losses']}, derived here {found.losses}"
                )
    return "derived here from each algorithm, as charged"


def _alike(losses: Sequence[Loss], said: Guarantee) -> bool:
    """Compare losses up to the last bits, in which mathematical libraries differ."""
    return len(losses) == len(said.losses) and all(
        type(one) is type(other)
        and all(
            value == asdict(other)[name]
            or (isinstance(value, float) and math.isclose(value, asdict(other)[name], rel_tol=_CLOSE))
            for name, value in asdict(one).items()
        )
        for one, other in zip(losses, said.losses, strict=True)
    )


def _prices(contents: _Contents) -> str:
    opened = {entry["subject"]: entry["content"] for entry in contents.of(Kind.ACCOUNT)}
    for plan in contents.of(Kind.PLAN):
        number, content = plan["sequence"], plan["content"]
        charges = [one for one in contents.of(Kind.CHARGE, Kind.RECHARGE) if one["content"]["plan"] == number]
        if sorted(one["subject"] for one in charges) != sorted(content["releases"]):
            raise _RefutedError(f"plan {number} names other releases than were charged with it")
        account = opened[plan["account"]]
        decision = AccountingPolicy(int(account["group_size"])).decide(
            (),
            [
                ReleaseCharge(
                    key=one["subject"],
                    parties=tuple(one["content"]["parties"]),
                    guarantee=one["content"]["guarantee"],
                    stream=one["content"].get("stream", ""),
                )
                for one in charges
            ],
            partition=content["partition"],
            delta=content["delta"],
            cap=None,
            terms=AccountTerms(relation=account.get("relation", AccountTerms().relation)),
        )
        if not _equal(json.loads(json.dumps(decision.costs)), content["costs"]):
            raise _RefutedError(f"plan {number} was booked at another price than its releases have")
    return f"{len(contents.of(Kind.PLAN))} plan(s) cost what the ledger booked"


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, float) and isinstance(other, int | float):
        # Least mu is found by a search; libraries differ in its last digits.
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _epsilon(contents: _Contents) -> str:
    proved = contents.run.get("proved")
    bills: dict[str, list[Loss]] = {}
    streams: set[str] = set()
    for key, manifest in contents.readers():
        charged = contents.charge(key)["content"]
        if (stream := charged.get("stream")) in streams:
            # The guarantee of one night is that of all.
            continue
        streams |= {stream} if stream else set()
        losses = Guarantee.from_json(charged["guarantee"]).losses
        for party in manifest["parties"]:
            bills.setdefault(party, []).extend(losses)
    if proved is None:
        raise _UncheckedError("the run states no proof")
    found = max(compose(bill).epsilon(proved["delta"]) for bill in {tuple(bill) for bill in bills.values()})
    if not found <= proved["epsilon"] * (1 + 1e-6):
        raise _RefutedError(f"the run states epsilon {proved['epsilon']:.6g}; its releases compose to {found:.6g}")
    return f"epsilon {found:.6g} at delta {proved['delta']:g}, composed here from the releases"


def _cap(contents: _Contents) -> str:
    said = []
    for plan in contents.of(Kind.PLAN):
        cap, after = plan["content"]["details"].get("cap"), plan["content"]["details"].get("spent_after")
        if cap is None:
            raise _UncheckedError("the rows are public; no budget is kept of them")
        if after is None or after > cap["epsilon"]:
            raise _RefutedError(f"plan {plan['sequence']} left account {plan['account']} beyond its cap")
        said.append(f"{plan['account']}: {after:.4g} of {cap['epsilon']:g} at delta {cap['delta']:g} spent")
    return "; ".join(said) + ", as the ledger stated; what else was charged is not in the archive"


def _chain(contents: _Contents) -> str:
    if problem := next(linked(contents.stored), None):
        raise _RefutedError(problem)
    return "in order; their keyed digests can be checked with the ledger's key alone"


def _ledger(contents: _Contents) -> str:
    database = open_ledger_database()
    if database.ledger_id != contents.ledger:
        raise _UncheckedError("it is not the ledger of this root; verify under its root to compare the entries")
    if problem := next(unlike(database, contents.stored), None):
        raise _RefutedError(problem)
    return f"{len(contents.stored)} entries are those of this root's ledger"


def _audit(contents: _Contents) -> str:
    said = contents.json(AUDIT)
    outcomes = {str(one["outcome"]) for one in said["versions"] if one["outcome"]}
    if "violation" in outcomes or (said["newest"] or {}).get("outcome") == "violation":
        raise _RefutedError("an audit has refuted what is stated of the algorithm")
    if not outcomes and not said["newest"]:
        raise _UncheckedError("the algorithm was not audited in the root that this comes from")
    return ", ".join(sorted(outcomes or {str(said["newest"]["outcome"])}))


def _environment(contents: _Contents) -> str:
    there, here = contents.json(ENVIRONMENT), installed()
    other = sorted(name for name, version in there["packages"].items() if here.get(name) != version)
    lock = f"lock {there['lock'][:12]}" if there["lock"] else "installed without a lock"
    if other:
        raise _UncheckedError(f"{lock}; {len(other)} package(s) have other versions here: {', '.join(other[:8])}")
    return f"{lock}; the same packages are installed here"


_LOOKS: tuple[tuple[str, Callable[[_Contents], str]], ...] = (
    ("members", _members),
    ("digests", _digests),
    ("identities", _identities),
    ("guarantees", _guarantees),
    ("prices", _prices),
    ("epsilon", _epsilon),
    ("cap", _cap),
    ("chain of entries", _chain),
    ("ledger", _ledger),
    ("audit", _audit),
    ("packages", _environment),
)
