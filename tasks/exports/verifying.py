"""An export checked where neither its rows nor its root are, in a process with bounded memory and time.

What is checked, and what holds then:

- *signature, members*: nothing was changed, added or left out since the holder of the key signed.
- *digests*: each release's bytes are those that the ledger recorded before they were published.
- *identities*: each field of each manifest follows from what the release's key is the digest of; what is
  post-processing was computed again from the releases that it names.
- *run*: its key names these releases, all of them and no others, and these rows.
- *numbers*: those of a description follow from its releases under the schema in the archive (but Cramér's V, whose
  margin is drawn).
- *guarantees*: the algorithms, as they are installed *here*, guarantee what was charged, to the account and the parties
  whose rows are read.
- *prices, epsilon*: the plans cost what was recorded; ε, δ, μ and the trade-off curve of the run are those of its
  releases, all computed here.
- *unit*: what a record is declared to be, and by whom; the algorithms take people, up to how many rows of each, and the
  account has that unit. *Not* that a column names people, or how many rows a person has.
- *cap*: each plan left the account within its cap, as the ledger stated then, with no less spent than the plan costs.
- *parties*: each has signed the description of its rows, that it has charged these releases, and its messages; the
  whole plan follows from the descriptions.
- *chain of entries*: entries that follow each other are linked; their keyed digests are recomputed under the root that
  they come from alone (*ledger*).
- *audit, packages*: no audit has refuted the algorithm; which packages differ here.

The run's key, algorithm, data set, ε and δ are derived and never read: a field that is unknown, missing, named twice or
different from the derived one fails, and so does a number that is not finite. The *unit* of ε is not derived: a release
of rows has the same bytes and the same identity as one of people with one row each.

An archive cannot prove which rows these were, that noise was drawn as the code says and kept secret, that nothing else
was released, and what else the account has spent. The signer vouches for that. In a run over separate parties, each
party vouches for its own rows, and the coordinator for the parties' fingerprints.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, computed_field

from dpalgos.algorithms import require_people
from dpalgos.column_maps import ColumnMap
from dpalgos.evaluators.score_distribution import ScoreDistribution
from dpalgos.guarantees import Trust, rounded_up
from dpalgos.models import Artefact, Statistic, decode
from dpalgos.parameters import ParameterError
from storage.confined import admitted_memory, confined
from storage.documents import parse_json
from storage.errors import InputError, RefusedError, StorageError
from storage.ledger.charges import PERSON, ROW, AccountTerms, Cap, History, ReleaseCharge, of_cap
from storage.ledger.entries import Kind
from storage.ledger.moving import FIELDS, linked, unlike
from storage.refs import DatasetRef
from storage.releases import ReleaseStore
from tasks.accounts.pricing import AccountingPolicy
from tasks.exports.archive import (
    AUDIT,
    CHARGES,
    COUNTED,
    ENVIRONMENT,
    NUMBERS,
    PROOF,
    RUN,
    SIGNED,
    Archive,
    drawn_keys,
    installed,
    read,
    release_member,
    used_by,
)
from tasks.federation.protocol import Evidence, federated_manifest
from tasks.planning.nights import NightIdentity, NightPlan, PlannedNight, combination_of, release_of
from tasks.planning.plans import DESCRIBE, RunIdentity, RunPlan, counts_before
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.planning.resolution import covers
from tasks.release.pair_descriptions import numbers_of
from tasks.release.storing import manifest_of
from tasks.runtime.stores import open_ledger_database
from tasks.tracking.results import Proved, RunResult, charged_of, proved_of

_CLOSE, _CLOSE_TO_ZERO = 1e-5, 1e-12
_FILES = ("manifest.json", "arrays.npz")
_CHARGE = {"plan", "partition", "parties", "guarantee", "label", "stream", "again"}
_ACCOUNT = {"cap", "disjoint_people", "disjoint_from", "group_size", "idealised_allowed", "relation", "deltas", "unit"}
_STATED = {"epsilon_spent": "epsilon", "delta_spent": "delta", "mu_spent": "mu"}
_HERE, _SIGNER, _PARTIES = "derived here", "stated by the signer", "stated by the parties"
_PLAN = {"partition", "delta", "run", "releases", "costs", "details", "totals", "key_ids", "recharge"}

Planned = PlannedRelease | PlannedCombination


class Check(BaseModel, frozen=True):
    """One check of an archive.

    Attributes
    ----------
    what : str
    holds : bool or None
        None where it could not be checked here.
    detail : str
    basis : str
        The party that vouches for it.
    """

    what: str
    holds: bool | None
    detail: str = ""
    basis: str = _HERE


class Verified(BaseModel, frozen=True, ser_json_inf_nan="constants"):
    """The content of an archive, and the checks of it.

    Attributes
    ----------
    signer : str
        The fingerprint of the key that signed.
    run, algorithm, dataset : str or None
        The run's key, and its algorithm and data set as named by the key; None where that cannot be read.
    epsilon, delta : float or None
        The run's proved guarantee, derived here; None without a proof.
    unit : str or None
        The protected unit, a row or a person, as declared; the check of the same name states who vouches for it.
    checks : tuple of Check
    unverified : dict of str to str
        The statements without a proof, by the party that vouches for them.
    """

    signer: str
    run: str | None
    algorithm: str | None
    dataset: str | None
    epsilon: float | None
    delta: float | None
    unit: str | None
    checks: tuple[Check, ...]
    unverified: Mapping[str, str]

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def holds(self) -> bool:
        """Whether no check fails."""
        return all(check.holds is not False for check in self.checks)


class _RefutedError(Exception):
    """A check fails."""


def _refute_if(fails: object, problem: str) -> None:
    if fails:
        raise _RefutedError(problem)


class _UncheckedError(Exception):
    """A check cannot be made on this machine."""


class _Contents:
    """The members of an archive, read: malformed ones are problems, never crashes."""

    def __init__(self, archive: Archive) -> None:
        self._members = archive.members
        self.run = self.json(RUN)
        self.named = [str(key) for key in (*self.run["releases"], *self.run["evaluations"])]
        charges = self.json(CHARGES)
        self.ledger = str(charges["ledger"])
        self.stored: list[dict[str, Any]] = charges["entries"]
        if set(charges) != {"ledger", "entries"} or any(set(entry) != set(FIELDS) for entry in self.stored):
            raise ValueError("the ledger's entries do not have an entry's fields")
        if any(type(entry["sequence"]) is not int or entry["sequence"] < 1 for entry in self.stored):
            raise ValueError("the ledger's entries are not numbered")
        self.entries = [{**one, "content": parse_json(one["content"], "an entry of the ledger")} for one in self.stored]

    def json(self, name: str) -> Any:
        return parse_json(self._members[name], name)

    def of(self, *kinds: Kind) -> list[dict[str, Any]]:
        return [entry for entry in self.entries if entry["kind"] in kinds]

    def only(self, kind: Kind, subject: str) -> dict[str, Any]:
        entries = [entry for entry in self.of(kind) if entry["subject"] == subject]
        _refute_if(
            len(entries) != 1,
            f"{subject[:12]} has {len(entries)} entries of kind {kind} in the ledger, and must have one",
        )
        return entries[0]

    @cached_property
    def releases(self) -> dict[str, tuple[dict[str, Any], str]]:
        """Manifest and digest of each release, and of all that these are made of; checked against their bytes."""
        by_key: dict[str, tuple[dict[str, Any], str]] = {}
        waiting = list(self.named)
        while waiting:
            key = waiting.pop(0)
            if key not in by_key:
                by_key[key] = manifest, _ = ReleaseStore.check(self._files(key), Path(key[:12]))
                waiting += used_by(manifest)
        return by_key

    def _files(self, key: str) -> dict[str, bytes]:
        missing = [file for file in _FILES if release_member(key, file) not in self._members]
        _refute_if(missing, f"release {key[:12]} is part of the run, and its {' and '.join(missing)} is missing")
        return {file: self._members[release_member(key, file)] for file in _FILES}

    @cached_property
    def artefacts(self) -> dict[str, Artefact]:
        by_key = {}
        for key in self.releases:
            manifest, arrays = ReleaseStore.decode(self._files(key), Path(key[:12]))
            _refute_if(
                any(np.issubdtype(one.dtype, np.inexact) and not np.isfinite(one).all() for one in arrays.values()),
                f"release {key[:12]} has numbers that are not finite",
            )
            by_key[key] = decode(manifest["artefact"], arrays)
        return by_key

    @cached_property
    def evidence(self) -> dict[str, Evidence]:
        """Records that separate parties have signed, by release."""
        there = [key for key in self.releases if release_member(key, SIGNED) in self._members]
        return {key: Evidence.model_validate(self.json(release_member(key, SIGNED))) for key in there}

    @cached_property
    def planned(self) -> dict[str, Planned]:
        """Plan of each release; its identity is the digest of that."""
        return {key: _planned(key, manifest) for key, (manifest, _) in self.releases.items()}

    @cached_property
    def drawn(self) -> set[str]:
        """The keys of what the synthetic rows that the run uses rest on."""
        return drawn_keys({key: manifest for key, (manifest, _) in self.releases.items()})

    @cached_property
    def own(self) -> set[str]:
        """The keys of what the run makes, and of what it is made of, synthetic rows apart."""
        found, waiting = set[str](), list(self.named)
        while waiting:
            if (key := waiting.pop()) not in found:
                found.add(key)
                waiting += self.planned[key].upstream
        return found

    @cached_property
    def counted(self) -> dict[str, DatasetRef]:
        """The versions whose rows were counted for synthetic rows, by name: on the signer's word."""
        sources = [DatasetRef.model_validate(one) for one in self.json(COUNTED)] if self.drawn else []
        return {one.version: one for one in sources}

    def rows_of(self, planned: PlannedRelease) -> DatasetRef:
        """Return the rows that a release has read."""
        return self.plan.identity.dataset if planned.key in self.own else self.counted[planned.dataset]

    def charged(self) -> dict[str, PlannedRelease]:
        """Return the releases that read rows, which are the ones that cost something."""
        return {key: one for key, one in self.planned.items() if isinstance(one, PlannedRelease) and one.reads_rows}

    @cached_property
    def plan(self) -> RunPlan:
        """The run's plan, as its releases make it; its key is the digest of what it names."""
        identity = RunIdentity.model_validate(self.run["identity"])
        models = [one for one in (self.planned[key] for key in identity.models) if isinstance(one, PlannedRelease)]
        last = {*identity.models, identity.model, *identity.evaluation[1]}
        before = [one for key, one in self.planned.items() if key in self.own - last]
        drawn = [one for key, one in self.charged().items() if key in self.drawn]
        counts = [one for one in before if type(one) is PlannedRelease and one.algorithm.kind == "evaluators"]
        # What a run makes it names; a run that counts groups makes no matrix of all rows, and names an earlier one.
        reused = [one.key for one in counts if one.key not in self.named]
        measuring = [self.planned[key] for key in identity.evaluation[1]]
        reused += counts_before([one for one in measuring if isinstance(one, PlannedRelease)])
        _refute_if(
            not models and (identity.system != DESCRIBE or not measuring),
            f"the run's key names no model, but {identity.system} makes one",
        )
        if not models:
            # A description's own counts come first; those behind them were released before.
            reused += identity.evaluation[1][1:]
        streams = {one.charged_as for key, one in self.charged().items() if key in self.own.difference(reused)}
        nightly = streams != {""} and bool(streams)
        if nightly:
            identity = NightIdentity.model_validate(self.run["identity"])
        _refute_if(
            nightly and len(streams) > 1,
            "the run's releases belong to several streams, or only some belong to a stream",
        )
        made = [one for one in before if isinstance(one, PlannedCombination)]
        column_map = next((one for one in made if isinstance(one.build(), ColumnMap)), None)
        basis = next((one for one in made if one is not column_map), None)
        _refute_if(
            len(made) > (column_map is not None) + (basis is not None), "the run names more combinations than it uses"
        )
        return (NightPlan if nightly else RunPlan).model_validate(
            {
                "identity": identity,
                "system": identity.system,
                "paper": "",
                "trust": str((models or measuring)[0].setting.trust),  # type: ignore[union-attr]  # else it fails
                "normalisation": identity.dataset.normalisation,
                # Of a stream's nights each one's guarantee is that of all of them.
                "counts": counts,
                "before": reused,
                "column_map": column_map,
                "projections": [one for one in before if type(one) is PlannedRelease and one not in counts],
                "basis": basis,
                "models": models,
                "model": None if identity.model is None else self.planned[identity.model],
                "evaluations": measuring,
                "split": {},
                "claim": None,
                "sound_counterpart": None,
                "epsilon": identity.target[0],
                "delta": identity.target[1],
                "drawn": drawn,
                "synthetic": self.run["synthetic"],
                "drawn_person": next((one.person for one in self.counted.values() if one.person), ""),
            }
        )

    @cached_property
    def proved(self) -> Proved | None:
        """Guarantee that is proved of the run, derived from the releases that it was planned to make."""
        return proved_of(self.plan)


def _planned(key: str, manifest: Mapping[str, Any]) -> Planned:
    planned: Planned
    if "post_processing" in manifest:
        planned = combination_of({**manifest["post_processing"], "label": manifest["label"], "code": manifest["code"]})
    else:
        fields = {name: manifest[name] for name in PlannedNight.model_fields if name in manifest}
        # Who pays and at which delta is no part of what a release is.
        outside = {"seed": manifest["public_seed"], "account": "", "delta": 0.0}
        planned = release_of({**fields, **outside})
    _refute_if(planned.key != key, f"the manifest of release {key[:12]} describes another release, {planned.key[:12]}")
    return planned


def verify(path: Path, *, signer: str | None = None) -> Verified:
    """Check an archive that ``unitball export`` has written, on any machine.

    What follows where all holds: the releases are those the archive was made of, and their identities are digests of
    what the manifests say; the algorithms that these name guarantee what was charged, *as the code that is installed
    here derives it*; the plans cost what the ledger recorded; the run's epsilon is the composition of its releases.
    The following cannot be verified and rests on the word of the signing key's owner: that the rows were those, whether
    a record is a row or all of a person's, that the noise was drawn and kept secret, that no other release was made,
    and what else the account has spent. Where the ledger itself is at hand, with its key, its entries are compared as
    well.

    Parameters
    ----------
    path : Path
    signer : str, optional
        The expected fingerprint of the signing key, from its owner.

    Raises
    ------
    InputError, storage.errors.DamagedError, storage.errors.FormatVersionError
        If the archive itself cannot be relied on: see :func:`~tasks.exports.archive.read`.
    """
    return verify_archive(read(path), signer=signer)


def verify_archive(archive: Archive, *, signer: str | None = None) -> Verified:
    """Check an archive that was read; as :func:`verify` does."""
    try:
        contents = _Contents(archive)
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"the content signed by {archive.signer[:16]} is not an export of a run: {error!r}") from error
    signed = f"by the key {archive.signer}; compare it with the owner's fingerprint (--signer)"
    named = signer is None or archive.signer == signer.strip().lower()
    if signer is not None:
        signed = "by the key of --signer" if named else f"by another key: {archive.signer}"
    checks = [Check(what="signature", holds=named, detail=signed)]
    checks += [_made(what, rests_on, look, contents) for what, rests_on, look in _LOOKS]
    identity, proved = None, None
    if all(check.holds is not False for check in checks):
        identity, proved = contents.plan.identity, contents.proved
    return Verified(
        signer=archive.signer,
        run=None if identity is None else identity.key,
        algorithm=None if identity is None else identity.system,
        dataset=None if identity is None else identity.dataset.name,
        epsilon=None if proved is None else proved.epsilon,
        delta=None if proved is None else proved.delta,
        unit=None if identity is None else str(identity.dataset.unit),
        checks=tuple(checks),
        unverified=_unverified(contents, archive.signer) if identity else {},
    )


def _made(
    what: str, rests_on: str | Callable[[_Contents], str], look: Callable[[_Contents], str], contents: _Contents
) -> Check:
    basis = ""
    try:
        basis = rests_on if isinstance(rests_on, str) else rests_on(contents)
        return Check(what=what, holds=True, detail=look(contents), basis=basis)
    except _UncheckedError as reason:
        return Check(what=what, holds=None, detail=str(reason), basis=basis)
    except (_RefutedError, RefusedError, StorageError, ParameterError) as problem:
        return Check(what=what, holds=False, detail=str(problem), basis=basis)
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError) as error:
        why = " ".join(str(error).split())[:300] or type(error).__name__
        return Check(what=what, holds=False, detail=f"unreadable: {why}", basis=basis)


def _unverified(contents: _Contents, signer: str) -> dict[str, str]:
    """Return the statements without a proof, by the party that vouches for them."""
    if not contents.evidence:
        beyond = f"which rows were used and how many, {_of_unit(contents)}, "
        beyond += "that the noise was drawn by this code and kept secret, "
        beyond += "the ledger's entries, other releases and spending, audits, packages"
        return {f"the signer ({signer[:16]}…)": beyond}
    first = next(iter(contents.evidence.values()))
    secure = contents.plan.trust == Trust.SECAGG
    own = "its public keys of the secure sums" if secure else "its own release, or its noisy sums"
    own = f"its rows and their number, {_of_unit(contents)}, its noise, its charge of the run, {own}"
    words = {f"party {party} ({first.roster.parties[party][:16]}…)": own for party in first.roster.names}
    secure_part = "that the sums follow from the parties' messages, " if secure else ""
    words[f"the coordinator, who signed ({signer[:16]}…)"] = f"{secure_part}who the parties are, audits, packages"
    return words


def _of_unit(contents: _Contents) -> str:
    dataset = contents.plan.identity.dataset
    return (
        f"that one record is all of one person ({dataset.person})"
        if dataset.person
        else "how many rows each person has"
    )


def _members(contents: _Contents) -> str:
    _refute_if(len(set(contents.named)) != len(contents.named), "the run names a release twice")
    expected = {RUN, CHARGES, AUDIT, PROOF, ENVIRONMENT}
    expected |= {NUMBERS} if contents.plan.system == DESCRIBE else set()
    expected |= {release_member(key, file) for key in contents.releases for file in _FILES}
    expected |= {release_member(key, SIGNED) for key in contents.evidence}
    expected |= {COUNTED} if contents.drawn else set()
    _refute_if(
        strange := sorted(expected ^ set(contents._members)),
        f"missing or not part of an export: {', '.join(strange[:5])}",
    )
    return f"{len(contents.releases)} releases"


def _digests(contents: _Contents) -> str:
    outputs = {(entry["subject"], entry["content"]["digest"]) for entry in contents.of(Kind.OUTPUT)}
    for key in contents.charged().keys() - contents.evidence.keys():
        _refute_if(
            (key, contents.releases[key][1]) not in outputs,
            f"the bytes of release {key[:12]} differ from the ledger's record",
        )
    return "manifests and arrays match each other and the ledger's record"


def _identities(contents: _Contents) -> str:
    for key, planned in contents.planned.items():
        manifest, artefact = contents.releases[key][0], contents.artefacts[key]
        if key in contents.evidence:
            derived = federated_manifest(planned, artefact.kind, contents.evidence[key].took_part)  # type: ignore[arg-type]  # else it has none
        elif isinstance(planned, PlannedRelease):
            claimed = dict(manifest["diagnostics"])
            _refute_if(
                any(type(value) not in (int, float) for value in claimed.values()),
                "a solver's diagnostics must be numbers",
            )
            derived = manifest_of(planned, artefact.kind, claimed)
        else:
            derived = manifest_of(planned, artefact.kind)
            again = planned.combine([contents.artefacts[one] for one in planned.upstream])
            _refute_if(
                not _same_arrays(again.arrays(), artefact.arrays()),
                f"release {key[:12]} differs from what {planned.algorithm.name} makes of the named releases",
            )
        _refute_if(
            other := _differing(_plain(derived), manifest),
            f"release {key[:12]} states a {other} that does not follow from its identity",
        )
    return "each field of each manifest follows from the release's identity"


def _run(contents: _Contents) -> str:
    plan, run = contents.plan, contents.run
    identity = plan.identity
    unknown = [name for name in run if name not in RunResult.model_fields and not name.startswith("config_")]
    # Fields that are left out, or that only mean the same, are other fields.
    _refute_if(
        unknown or run["run_key"] != identity.key or _differing(identity.model_dump(mode="json"), run["identity"]),
        f"the run's key is not the digest of its inputs, or has unknown fields: {unknown}",
    )
    reached = [*identity.models, *([] if identity.model is None else [identity.model]), *identity.evaluation[1]]
    for key in reached:
        reached += [one for one in contents.planned[key].upstream if one not in reached]
    # A night's model is made of the nights before, which other runs made, or this one where they had been left out;
    # and a map of columns may be of histograms that were released before.
    earlier = {key for key, one in contents.charged().items() if one.charged_as and key not in identity.models}
    described = {one.key for one in plan.counts} & set(plan.before)
    earlier |= described
    _refute_if(
        set(reached) != contents.own or not set(reached) - earlier <= set(contents.named) <= set(reached),
        "the releases in the archive differ from those that the run's key names",
    )
    _refute_if(
        described and (plan.column_map is None or not described <= set(plan.column_map.upstream)),
        "the run rests on releases that its column map does not use",
    )
    used = (*plan.counts, *plan.earlier)
    more = {str(one.setting.trust) for one in used if not covers(plan.trust, one.setting.trust)}
    _refute_if(more, f"the run rests on counts under trust {', '.join(sorted(more))}, but states {plan.trust}")
    relations = {str(one.setting.neighbours) for key, one in contents.charged().items() if key in contents.own}
    _refute_if(
        len(relations) > 1,
        f"the releases are proved under several relations, so no epsilon covers all: {', '.join(sorted(relations))}",
    )
    own = {key: one for key, one in contents.planned.items() if key in contents.own - described}
    places = {(one.dataset, one.partition) for one in own.values()}
    _refute_if(
        len(places) > 1 and not isinstance(identity, NightIdentity),
        "the releases use several versions or partitions of rows",
    )
    _refute_if(
        not isinstance(identity, NightIdentity) and {version for version, _ in places} != {identity.dataset.version},
        "the releases use other rows than the run's key names",
    )
    named_syntheses = {key for one in own.values() if isinstance(one, PlannedRelease) for key in one.drawn_from}
    _refute_if(
        not set(identity.dataset.drawn_from) <= named_syntheses or bool(run["synthetic"]) != bool(named_syntheses),
        "the run rests on synthetic rows, but names other rows than its releases",
    )
    _refute_if(
        {one.dataset for one in plan.drawn} != contents.counted.keys(),
        f"the synthetic rows rest on counts of other versions than {COUNTED} names",
    )
    # Public maps that rows pass through are named behind the system.
    named = run["algorithm"] == identity.system or run["algorithm"].startswith(f"{identity.system}+")
    _refute_if(
        not named or (run["dataset"], run["trust"]) != (identity.dataset.name, plan.trust),
        "the run's algorithm, data set or trust differs from that of its key",
    )
    algorithms = dict.fromkeys(one.algorithm.name for one in own.values())
    versions = sorted({contents.planned[key].dataset for key in described})
    rests = f"; it rests on earlier releases, from version {' and '.join(versions)}"
    said = rests if described else ""
    if named_syntheses:
        said += (
            f"; it rests on the synthetic rows of {' and '.join(run['synthetic'])}, drawn by synthesis "
            f"{' and '.join(key[:12] for key in sorted(named_syntheses))} from {len(plan.drawn)} releases of account "
            f"{' and '.join(sorted({one.account for one in contents.counted.values()}))}"
        )
    if plan.earlier:
        _require_the_same_rows(plan)
        said += "; counts are combined with counts of all of the same rows that were charged before"
    return f"its key names these releases: {', '.join(algorithms)}{said}"


def _require_the_same_rows(plan: RunPlan) -> None:
    """Refuse counts of all rows that are not of the models and rows whose groups the run has counted."""
    groups = {
        (one.seen_last, _bins(one)): one for one in plan.evaluations if one.key not in plan.before and one.reads_rows
    }
    for matrix in plan.earlier:
        counted = groups.get((matrix.seen_last, _bins(matrix)))
        alike = counted is not None and all(
            getattr(matrix, name) == getattr(counted, name) for name in ("parties", "partition", "dataset", "maps")
        )
        _refute_if(
            counted is None
            or not alike
            or (matrix.setting.neighbours, matrix.setting.sizes, matrix.setting.rows_per_person)
            != (counted.setting.neighbours, counted.setting.sizes, counted.setting.rows_per_person),
            f"the run's counts are combined with release {matrix.key[:12]}, which uses other rows or another model",
        )


def _bins(counting: PlannedRelease) -> tuple[int, float] | None:
    """Return the bins of a release that counts scores; None for other releases."""
    algorithm = counting.build()
    return (algorithm.bins, algorithm.scale) if isinstance(algorithm, ScoreDistribution) else None


def _numbers(contents: _Contents) -> str:
    if contents.plan.system != DESCRIBE:
        raise _UncheckedError("the run is not a description")
    stated = contents.json(NUMBERS)
    _refute_if(stated.keys() != {"table", "numbers"}, f"{NUMBERS} has missing or unknown fields")
    derived = numbers_of(
        contents.plan, stated["table"], lambda one: cast(Statistic, contents.artefacts[one.key]).values
    )
    _refute_if(
        not _equal(_plain(derived), stated["numbers"]),
        f"{NUMBERS} holds numbers that do not follow from the releases and the schema",
    )
    return f"{len(derived)} numbers follow from the releases and the archive's schema; the signer vouches for its names"


def _guarantees(contents: _Contents) -> str:
    for key, planned in contents.charged().items():
        if key in contents.evidence:
            continue
        rows = contents.rows_of(planned)
        derived = _plain(planned.guarantee().to_json())
        charge = contents.only(Kind.CHARGE, key)
        content, stream = charge["content"], planned.charged_as
        _refute_if(
            content.keys() != _CHARGE,
            f"the charge of release {key[:12]} has missing or unknown fields",
        )
        # What a night drawn again costs.
        again = planned.drawn_again()
        priced = {} if again is None else _plain(again.to_json())
        _refute_if(
            _differing(priced, content["again"]),
            f"the price of drawing release {key[:12]} again differs from the price derived here",
        )
        _refute_if(
            other := _differing(derived, content["guarantee"]),
            f"the charge of release {key[:12]} has a {other} that differs from the one derived here",
        )
        where = (sorted(planned.charged_parties), planned.charged_partition, stream)
        _refute_if(
            (sorted(content["parties"]), content["partition"], content["stream"]) != where,
            f"release {key[:12]} was charged to other parties than those whose rows it reads",
        )
        if rows.person:
            require_people(*planned.algorithm.classes())
        _refute_if(
            planned.setting.rows_per_person != rows.rows_per_person,
            f"release {key[:12]} was priced for other people than those whose rows it reads",
        )
        _refute_if(
            rows.private and charge["account"] != rows.account,
            f"release {key[:12]} was charged to {charge['account']}, not to {rows.account}",
        )
    return "derived here from each algorithm, as charged"


def _charged_with(contents: _Contents, plan: Mapping[str, Any]) -> tuple[list[ReleaseCharge], AccountTerms]:
    """Return what was charged with a plan, and the account's terms."""
    content = plan["content"]
    account = contents.only(Kind.ACCOUNT, plan["account"])["content"]
    _refute_if(
        other := (account.keys() - {"soft_limit"} ^ _ACCOUNT) | (content.keys() ^ _PLAN),
        f"account or plan {plan['sequence']} has missing or unknown fields: {', '.join(sorted(other))}",
    )
    size = account["group_size"]
    _refute_if(type(size) is not int or size < 1, f"account {plan['account']} has {size!r} rows per person")
    read = [one for key, one in contents.charged().items() if key in content["releases"]]
    people = {bool(contents.rows_of(one).person) for one in read}
    unit = PERSON if people == {True} else ROW
    _refute_if(
        len(people) > 1 or account["unit"] != unit or (unit == PERSON and size > 1),
        f"the unit of account {plan['account']} differs from that of the rows, a {unit}",
    )
    charges = [one for one in contents.of(Kind.CHARGE, Kind.RECHARGE) if one["content"]["plan"] == plan["sequence"]]
    places = {one["content"]["partition"] for one in charges}
    _refute_if(
        sorted(one["subject"] for one in charges) != sorted(content["releases"]) or places != {content["partition"]},
        f"plan {plan['sequence']} names other releases than its charges",
    )
    releases = [
        ReleaseCharge(
            key=charge["subject"],
            parties=tuple(charge["content"]["parties"]),
            guarantee=charge["content"]["guarantee"],
            stream=charge["content"]["stream"],
        )
        for charge in charges
    ]
    return releases, AccountTerms(relation=account["relation"], deltas=account["deltas"], group_size=size)


def _prices(contents: _Contents) -> str:
    _require_own_ledger(contents)
    plans = {entry["sequence"] for entry in contents.of(Kind.PLAN)}
    _refute_if(
        strange := {one["content"]["plan"] for one in contents.of(Kind.CHARGE, Kind.RECHARGE)} ^ plans,
        f"the plan with number {strange} is missing, or has no charge",
    )
    for plan in contents.of(Kind.PLAN):
        releases, terms = _charged_with(contents, plan)
        proved = AccountingPolicy().prices(releases, plan["content"]["delta"], terms)
        prices = [_plain({party: cost.to_json() for party, cost in one.items()}) for one in proved]
        # Of two prices that are proved, the ledger recorded the one that left more of what the account had then.
        differing = [_differing(costs, plan["content"]["costs"]) for costs in prices]
        if all(differing):
            other = differing[0]
            raise _RefutedError(
                f"plan {plan['sequence']} was recorded at a price that differs from its releases': {other}"
            )
    return f"the prices of {len(plans)} plan(s) equal the ledger's record"


def _require_own_ledger(contents: _Contents) -> None:
    if not contents.evidence:
        return
    _refute_if(
        contents.entries or contents.evidence.keys() != contents.charged().keys(),
        "some releases were charged by separate parties, and others here",
    )
    raise _UncheckedError("each party charged it in its own account and signed the charge")


def _plain(value: Any) -> Any:
    """Return a value as it comes back from the ledger or a manifest."""
    return json.loads(json.dumps(value))


def _differing(one: Mapping[str, Any], other: Any) -> str:
    """Return the first name under which two mappings differ, numbers up to what libraries differ in."""
    if not isinstance(other, Mapping):
        return "value"
    names = {**one, **other}
    return next(
        (name for name in names if name not in one or name not in other or not _equal(one[name], other[name])), ""
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if type(one) is float and type(other) in (int, float):
        # Least mu is found by a search; libraries differ in its last digits.
        return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE_TO_ZERO)
    return type(one) is type(other) and bool(one == other)


def _same_arrays(again: Mapping[str, NDArray[Any]], stored: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether arrays are equal as :func:`_equal` has it, but compared as a whole: maps have many numbers."""
    if again.keys() != stored.keys():
        return False
    for name, one in again.items():
        other = stored[name]
        if one.shape != other.shape:
            return False
        if one.dtype.kind != "f" or other.dtype.kind not in "iuf":
            kinds = {"i" if array.dtype.kind == "u" else array.dtype.kind for array in (one, other)}
            if len(kinds) > 1 or not np.array_equal(one, other):
                return False
            continue
        size = np.maximum(np.abs(one), np.abs(other))
        with np.errstate(invalid="ignore"):
            close = np.abs(one - other) <= np.maximum(_CLOSE * size, _CLOSE_TO_ZERO)
        # Infinite numbers are equal to themselves alone.
        if not ((one == other) | (close & np.isfinite(size))).all():
            return False
    return True


def _epsilon(contents: _Contents) -> str:
    run, proved_epsilon = contents.run, contents.proved
    derived = None if proved_epsilon is None else proved_epsilon.model_dump(mode="json")
    stated = {name: None if derived is None else derived[of] for name, of in _STATED.items()} | {"proved": derived}
    stated["epsilon_charged"] = charged_of(contents.plan)
    if other := _differing(stated, {name: run[name] for name in stated}):
        proved = (
            f"epsilon {rounded_up(proved_epsilon.epsilon, 6):g} at delta {proved_epsilon.delta:g}"
            if proved_epsilon
            else "nothing"
        )
        raise _RefutedError(f"the run's {other} differs from the value derived here from its releases: {proved}")
    if proved_epsilon is None:
        return "this run has no proved guarantee"
    plans = {entry["sequence"]: entry["content"]["delta"] for entry in contents.of(Kind.PLAN)}
    _refute_if(
        isinstance(contents.plan.identity, NightIdentity) and proved_epsilon.delta not in plans.values(),
        f"the run states delta {proved_epsilon.delta:g}, but its horizon was charged at another delta",
    )
    price = f"epsilon {rounded_up(proved_epsilon.epsilon, 6):g} at delta {proved_epsilon.delta:g}"
    return f"{price} for one record, composed here from the releases; see unit for the declared record"


def _unit(contents: _Contents) -> str:
    """Return the declared record and the part of that that follows from the archive, which has no rows."""
    dataset = contents.plan.identity.dataset
    stated = contents.run["proved"]
    _refute_if(
        stated is not None and stated["person"] != dataset.person,
        "the run's unit differs from that of its key",
    )
    of_account = "" if contents.evidence else f", and the account's unit is {PERSON if dataset.person else ROW}"
    if dataset.person:
        return (
            f"one record is a {dataset.unit}, declared. Checked here: the releases' algorithms take people, with up to "
            f"{dataset.rows_per_person} row(s) of each{of_account}. Not in the archive: that the column names people, "
            "and that all rows of a person have one name"
        )
    sizes = {one["content"]["group_size"] for one in contents.of(Kind.ACCOUNT)}
    groups = "" if contents.evidence else f", priced for people of up to {max(sizes, default=1)} row(s)"
    return (
        f"one record is a row, declared. Checked here: the releases are made for single rows{of_account}{groups}. Not "
        "in the archive: how many rows a person has. For a person with several rows, epsilon is larger"
    )


def _declared_by(contents: _Contents) -> str:
    return _PARTIES if contents.evidence else _SIGNER


def _cap(contents: _Contents) -> str:
    _require_own_ledger(contents)
    lines = []
    for plan in contents.of(Kind.PLAN):
        number, account, content = plan["sequence"], plan["account"], plan["content"]
        details = content["details"]
        opened = contents.only(Kind.ACCOUNT, account)["content"]
        if opened["cap"] is None:
            read = [one for key, one in contents.charged().items() if key in content["releases"]]
            _refute_if(
                any(contents.rows_of(one).private for one in read) or details,
                f"account {account} has private rows but no cap",
            )
            continue
        changes = [one["content"]["cap"] for one in contents.of(Kind.CAP) if one["sequence"] < number]
        limit = opened.get("soft_limit", opened["cap"]["epsilon"])
        _refute_if(
            type(limit) not in (int, float) or not 0 < limit <= opened["cap"]["epsilon"],
            f"account {account} has a soft limit of {limit!r}, which is not below its cap",
        )
        cap = Cap(**[{**opened["cap"], "epsilon": limit}, *changes][-1])
        after = details["spent_after"]
        promised = max(one["epsilon"] for one in (opened["cap"], *changes))
        releases, terms = _charged_with(contents, plan)
        # With nothing charged before it.
        decided = AccountingPolicy().decide(
            History(), releases, partition=content["partition"], delta=content["delta"], terms=replace(terms, cap=cap)
        )
        alone = _plain(decided.details)
        _refute_if(
            unknown := details.keys() - alone.keys(),
            f"the decision on plan {number} has unknown numbers: {', '.join(unknown)}",
        )
        _refute_if(
            details["cap"]["epsilon"] != cap.epsilon or (not changes and _differing(alone["cap"], details["cap"])),
            f"the cap in the decision on plan {number} differs from that of account {account}",
        )
        _refute_if(
            type(after) not in (int, float) or not alone["spent_after"] * (1 - _CLOSE) <= after <= cap.epsilon,
            f"after plan {number}, the spending of account {account} exceeds its cap or is below the plan's cost",
        )
        lines.append(f"{account}: spent {after:.4g} of {of_cap(cap.epsilon, promised)} at delta {cap.delta:g}")
    if not lines:
        raise _UncheckedError("the rows are public and have no budget")
    return "; ".join(lines) + ", as the ledger stated. Other charges are not in the archive"


def _parties(contents: _Contents) -> str:
    if not contents.evidence:
        raise _UncheckedError("all rows belong to the signer, so no other party signs")
    first, plan = next(iter(contents.evidence.values())), contents.plan
    shared = {"config", "counted", "roster", "descriptions", "charges"}
    _refute_if(
        any(one.model_dump(include=shared) != first.model_dump(include=shared) for one in contents.evidence.values()),
        "the releases belong to several runs",
    )
    run, derived = first.run()
    keys: dict[str, str] = {}
    for mine, theirs in zip(_parts(derived), _parts(plan), strict=True):
        # Which code made it is part of what it is; here another version may be installed.
        changed = {"code": theirs.code, "upstream": tuple(keys[key] for key in mine.upstream)}
        keys[mine.key] = mine.model_copy(update=changed).key
        _refute_if(
            keys[mine.key] != theirs.key,
            f"{theirs.label} does not follow from the parties' signed descriptions of their rows",
        )
    named = derived.identity.model_dump() | {
        "models": tuple(keys[key] for key in derived.identity.models),
        "model": derived.identity.model and keys[derived.identity.model],
        "evaluation": (derived.identity.evaluation[0], tuple(keys[key] for key in derived.identity.evaluation[1])),
    }
    _refute_if(named != plan.identity.model_dump(), "the run differs from the one that the parties signed")
    for key, evidence in contents.evidence.items():
        one = contents.charged()[key]
        used = [contents.artefacts[other] for other in one.upstream]
        evidence.require(run, plan.releases, one, contents.artefacts[key], used)
    return f"{', '.join(first.roster.names)} signed the descriptions of their rows, their charges and their messages"


def _parts(plan: RunPlan) -> list[Planned]:
    """Return all that a plan makes, in the order in which it is made."""
    return list(plan.nodes.values())


def _chain(contents: _Contents) -> str:
    if problem := next(linked(contents.stored), None):
        raise _RefutedError(problem)
    return "in order; only the ledger's key can check the keyed digests"


def _ledger(contents: _Contents) -> str:
    database = open_ledger_database()
    if database.chain.ledger_id != contents.ledger:
        raise _UncheckedError("the ledger belongs to another root; verify with that root to compare entries")
    if problem := next(unlike(database, contents.stored), None):
        raise _RefutedError(problem)
    return f"{len(contents.stored)} entries equal those of this root's ledger"


def _audit(contents: _Contents) -> str:
    audit = contents.json(AUDIT)
    outcomes = {str(one["outcome"]) for one in audit["versions"] if one["outcome"]}
    _refute_if(
        "violation" in outcomes or (audit["newest"] or {}).get("outcome") == "violation",
        "an audit has refuted the algorithm's statement",
    )
    if not outcomes and not audit["newest"]:
        raise _UncheckedError("the algorithm was not audited in the exporting root")
    return ", ".join(sorted(outcomes or {str(audit["newest"]["outcome"])}))


def _environment(contents: _Contents) -> str:
    there, here = contents.json(ENVIRONMENT), installed()
    other = sorted(name for name, version in there["packages"].items() if here.get(name) != version)
    lock = f"lock {there['lock'][:12]}" if there["lock"] else "installed without a lock"
    if other:
        raise _UncheckedError(f"{lock}; {len(other)} package(s) have other versions here: {', '.join(other[:8])}")
    return f"{lock}; the same packages are installed here"


_LOOKS: tuple[tuple[str, str | Callable[[_Contents], str], Callable[[_Contents], str]], ...] = (
    ("members", _HERE, _members),
    ("digests", _SIGNER, _digests),
    ("identities", _HERE, _identities),
    ("run", _HERE, _run),
    ("numbers", _HERE, _numbers),
    ("guarantees", _HERE, _guarantees),
    ("prices", _HERE, _prices),
    ("epsilon", _HERE, _epsilon),
    ("unit", _declared_by, _unit),
    ("cap", _SIGNER, _cap),
    ("parties", _PARTIES, _parties),
    ("chain of entries", _SIGNER, _chain),
    ("ledger", _HERE, _ledger),
    ("audit", _SIGNER, _audit),
    ("packages", _SIGNER, _environment),
)


_SECONDS = 900


def verify_confined(path: Path, *, signer: str | None = None) -> Verified:
    """Check an archive as :func:`~tasks.exports.verifying.verify` does, and raise as it does.

    The process that does it takes at most what is admitted (``UNITBALL_MEMORY``) and a quarter of an hour of processor
    time.

    Raises
    ------
    InputError
        If it takes more.
    """
    (answer,) = confined(
        f"{__name__}:verified",
        str(path.absolute()),
        signer,
        place=str(path),
        memory=admitted_memory(),
        seconds=_SECONDS,
    )
    return Verified.model_validate_json(answer)


def verified(path: str, signer: str | None) -> Iterator[bytes]:
    """Yield the report as JSON: the other process's part."""
    yield verify(Path(path), signer=signer).model_dump_json().encode()
