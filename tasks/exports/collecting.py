"""What of a run is taken elsewhere: its public numbers, releases, charges, proofs, audit, and the packages in use."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from string import hexdigits
from typing import cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dpalgos.registry import lookup
from storage.confined import kept_memory
from storage.errors import InputError
from storage.ledger.moving import extract
from storage.manifests import canonical
from storage.results import query
from storage.secrets import root_secret
from tasks.exports.archive import fingerprint, pack, signing_key
from tasks.federation.evidence import Evidence
from tasks.planning.fields import Json
from tasks.runtime.settings import current_layout, current_root
from tasks.runtime.stores import open_ledger_database, open_releases
from tasks.tracking.models import find_model
from tasks.tracking.promotion import audit_of
from tasks.tracking.results import RunResult

SIGNED = "signed.json"
RUN, CHARGES, AUDIT, PROOF, ENVIRONMENT = "run.json", "charges.json", "audit.json", "proof.md", "environment.json"
_JSON = ("proved", "claim", "split", "identity", "releases", "evaluations", "classes", "confusion", "roc")
_NAMES = ("run_key", "mlflow_run_id")
_LOCK = Path(__file__).resolve().parents[2] / "requirements.lock"


def release_member(key: str, file: str) -> str:
    """Return the member that holds a release's file, or what parties have signed of it."""
    return f"releases/{key}/{file}"


def export_run(run: str) -> tuple[bytes, str, str]:
    """Return a run's archive, the run's key, and the fingerprint of the key that signs the archive.

    The archive holds what everybody may see already: no row, no exact statistic of one, no secret.

    Parameters
    ----------
    run : str
        The run's key or MLflow's id of it, or the first six characters or more of either; or a registered model that
        it made: ``NAME``, ``NAME@ALIAS`` or ``NAME/VERSION``.

    Raises
    ------
    InputError
        If no run is meant, or several are.
    storage.errors.DamagedError
        If one of its releases does not match its digests.
    """
    layout, found = current_layout(), _find(run)
    keys = [*found["releases"], *found["evaluations"]]  # type: ignore[misc]  # both are lists
    store, members = open_releases(), {RUN: canonical(found)}
    manifests: dict[str, Json] = {}
    for key in keys:
        files = store.files(key)
        manifests[key] = store.manifest(key)
        # Whatever a release is made of is part of its proof: of a night's model, the nights before.
        used = cast(Mapping[str, list[str]], manifests[key].get("post_processing", manifests[key]))["upstream"]
        keys += [one for one in used if one not in keys]
        if "charged_by" in manifests[key]:
            evidence = Evidence.stored(layout, key)
            if evidence is None:
                raise InputError(
                    f"release {key[:12]} was made of parties' messages by an earlier version, which kept none of what "
                    "they had signed; ask for the run once more with another --repetition"
                )
            files[SIGNED] = evidence
        members |= {release_member(key, name): data for name, data in files.items()}
    database = open_ledger_database()
    members[CHARGES] = canonical({"ledger": database.ledger_id, "entries": extract(database, keys)})
    members[PROOF] = _proof(manifests).encode()
    members[AUDIT] = canonical(audit_of(current_root(), str(found["mlflow_run_id"] or ""), str(found["algorithm"])))
    members[ENVIRONMENT] = canonical(
        {"packages": installed(), "lock": hashlib.sha256(_LOCK.read_bytes()).hexdigest() if _LOCK.is_file() else None}
    )
    key = signing_key(root_secret(layout))
    return pack(members, key), str(found["run_key"]), fingerprint(key.public_key())


def _find(run: str) -> Json:
    if len(run) < 6:
        raise InputError(f"run {run!r} is too short; give six characters or more of its key, or of MLflow's id of it")
    records = query(current_layout(), "SELECT * FROM runs", memory=kept_memory()).to_pylist()
    means = [record for record in records if any(str(record.get(name) or "").startswith(run) for name in _NAMES)]
    if not means and not set(run) <= set(hexdigits):
        logged = find_model(current_root(), run).run_id
        means = [record for record in records if record.get("mlflow_run_id") == logged]
    if len(means) != 1:
        known = ", ".join(str(record.get("run_key"))[:12] for record in records[-5:]) or "none yet"
        how = f"{len(means)} runs" if means else "no run"
        raise InputError(f"{how} of this root: {run!r} (the last ones are {known}, or name a model)")
    if means[0].get("identity") is None:
        raise InputError(
            f"run {run} was recorded before results said what their key is the digest of; run it again, which charges "
            "nothing, and export it then"
        )
    return {
        name: json.loads(value) if name in _JSON and isinstance(value, str) else value
        for name, value in means[0].items()
        # The records of other versions have other columns, which are empty here.
        if name in RunResult.model_fields or (name.startswith("config_") and value is not None)
    }


def _proof(manifests: Mapping[str, Mapping[str, object]]) -> str:
    """Return what is proved of each release, and the argument as its algorithm states it."""
    lines, said = ["# What is proved, and how", ""], set()
    for key, manifest in manifests.items():
        algorithm = manifest.get("algorithm")
        lines += [f"## {manifest['label']} ({key[:12]})", ""]
        if not isinstance(algorithm, Mapping):
            lines += ["Made of the releases it names: post-processing, which costs nothing.", ""]
            continue
        lines += [f"`{algorithm['kind']}/{algorithm['name']}`: {json.dumps(manifest['guarantee'], sort_keys=True)}", ""]
        trust = manifest["trust"]
        assert isinstance(trust, Mapping)
        for spec in (algorithm, trust):
            cls = lookup(str(spec["kind"]), str(spec["name"]))
            if cls not in said:
                said.add(cls)
                lines += [f"### {spec['kind']}/{spec['name']}", "", inspect.getdoc(cls) or "", ""]
    return "\n".join(lines)


def installed() -> dict[str, str]:
    """Return the versions installed here of Unitball and of all that it needs, extras apart."""
    found: dict[str, str] = {}
    waiting = ["unitball"]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = distribution.version
        needed = map(Requirement, distribution.requires or [])
        waiting += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return dict(sorted(found.items()))
