"""Make the golden root of this version, once, before it is released: ``python -m tests.golden_roots.making``.

A private table that one owner describes, trains on and measures; one of three parties, described and trained on by
secure sums; and two nights of a horizon of three. All by the product's own functions, without a server. What is stored
of a version is never made again once the version is released: a version that cannot open it breaks what was promised.
"""

from __future__ import annotations

import io
import json
import lzma
import shutil
import sys
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import unitball
from tasks.accounts.ledger import open_ledger
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.planning import identity
from tasks.runtime.stores import open_releases
from tests.golden_roots.kept import FOLDER, PLACE, Json, archive_of, ask, named, predicted, read
from tests.support.code_versions import pin
from tests.support.data import REPOSITORY
from tests.support.private_rows import CLASSES, DIMENSION, write_rows
from tests.support.tables import columns_of, table_of

_PARTIES = ("east", "north", "south")
# Rows of a night, and rows to predict.
_NIGHT, _PREDICTED = 100, 20
_SECURE = {"trust": "secagg", "epsilon": 0.5}
ASKED: list[Json] = [
    {"function": "describe", "dataset": "visits", "settings": {"epsilon": 0.5}},
    {
        "function": "train",
        "dataset": "visits",
        "settings": {"epsilon": 2.0, "parties": 1, "parameters": {"trainer.iterations": 5}},
    },
    {
        "function": "train",
        "dataset": "visits",
        "settings": {"epsilon": 1.0, "projection": "analyze-gauss", "trainer": "class-means", "parties": 2},
    },
    {"function": "describe", "dataset": "clinics", "settings": _SECURE},
    {"function": "train", "dataset": "clinics", "settings": {**_SECURE, "trainer": "class-means", "parties": 3}},
    {
        "function": "train",
        "dataset": "nightly",
        "settings": {"epsilon": 1.0, "horizon": 3, "trainer": "class-means", "trust": "central", "parties": 2},
    },
]
DATASETS = ("clinics", "nightly", "visits")
"""Each has an account of its own."""


def version_of_checkout() -> str:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])


def make(place: Path) -> Json:
    """Make a root below a folder, with some rows to predict beside it, and return what is to be known of it."""
    place.mkdir()
    rows = place / "rows"
    rows.mkdir()
    known: Json = {"code": {}, "mathematics": {}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(place / "root"))
        patch.setenv("UNITBALL_LEDGER_MARK", str(place / "marks"))
        pin(
            patch,
            _noting(known["code"], identity.code_version),
            _noting(known["mathematics"], identity.mathematics_version),
        )
        answers = _asked(place)
        known["asked"] = ASKED
        known["versions"] = {dataset: find_dataset(dataset).version for dataset in DATASETS}
        known["runs"] = {str(number): _run(answer) for number, answer in answers.items()}
        known["releases"] = {key: read(key) for key in open_releases().keys()}
        known["accounts"] = {account: account_now(account) for account in DATASETS}
        known["again"] = {key: number for number, key in _integers(answers).items()}
        _rows_to_predict(place, rows)
        models = {f"{one.result.identity.dataset.name}.{one.result.algorithm}" for one in answers.values() if _ran(one)}
        known["predicted"] = {model: predicted(model, rows / f"{model.split('.')[0]}.csv") for model in sorted(models)}
    return known


def account_now(account: str) -> Json:
    """Return what an account has been charged: each release and what is proved of it, and what it has spent by that."""
    charged = [[one.key, [*one.parties], dict(one.guarantee)] for one in open_ledger().charges(account)]
    budget = unitball.budget(account)
    return {"charges": charged, "epsilon_spent": budget.epsilon_spent, "delta_spent": budget.delta_spent}


def _asked(place: Path) -> dict[int, Any]:
    """Bring rows in and ask; return the answers by the number of what was asked."""
    visits, clinics, nightly = (
        [number for number, asked in enumerate(ASKED) if asked["dataset"] == dataset]
        for dataset in ("visits", "clinics", "nightly")
    )
    caps: Json = {"epsilon_cap": 8.0, "delta_cap": 1e-4}
    schema = place / "rows" / "schema.yaml"
    schema.write_text(yaml.safe_dump({"format_version": 1, "columns": columns_of("two")}, sort_keys=False))
    table = {"format": "csv", "schema_path": schema, **caps}
    table_of("two", 300).to_csv(place / "rows" / "all.csv", index=False)
    ingest(IngestRequest(name="visits", path=place / "rows" / "all.csv", **table))
    for seed, party in enumerate(_PARTIES, 1):
        table_of("two", 100, seed).to_csv(place / f"{party}.csv", index=False)
    ingest(IngestRequest(name="clinics", parties={party: place / f"{party}.csv" for party in _PARTIES}, **table))
    answers = {number: ask(ASKED[number]) for number in (*visits, *clinics)}
    write_rows(place / "all.txt", 2 * _NIGHT, seed=3)
    lines = (place / "all.txt").read_text().splitlines(keepends=True)
    for night in (1, 2):
        (place / "nightly.txt").write_text("".join(lines[: night * _NIGHT]))
        ingest(
            IngestRequest(
                name="nightly",
                format="libsvm",
                path=place / "nightly.txt",
                dimension=DIMENSION,
                classes=CLASSES,
                **caps,
            )
        )
        # The second night answers for both: of the first the rows have gone on.
        answers |= {number: ask(ASKED[number]) for number in nightly}
    return answers


def _ran(answer: Any) -> bool:
    return isinstance(answer, unitball.TrainedModel)


def _run(answer: Any) -> Json:
    if not _ran(answer):
        return {"key": answer.attrs["key"]}
    result = answer.result
    return {"run_key": result.run_key, "mlflow_run_id": result.mlflow_run_id, "epsilon_spent": result.epsilon_spent}


def _integers(answers: dict[int, Any]) -> dict[int, str]:
    """Return the releases that are integers, by what they are made again by: counts of columns, and a night's sum.

    Of others the last bits hang on a processor's kernels.
    """
    found = {number: str(answer.attrs["key"]) for number, answer in answers.items() if not _ran(answer)}
    for number, answer in answers.items():
        if _ran(answer) and ASKED[number]["settings"].get("horizon"):
            (found[number],) = (key for key in answer.result.releases if _is_sum(key))
    return found


def _is_sum(key: str) -> bool:
    _, arrays = open_releases().read(key)
    return all(array.dtype.kind == "i" for array in arrays.values())


def _rows_to_predict(place: Path, rows: Path) -> None:
    for dataset, source in {"visits": rows / "all.csv", "clinics": place / f"{_PARTIES[0]}.csv"}.items():
        frame = pd.read_csv(source, keep_default_na=False).head(_PREDICTED)
        frame.drop(columns="outcome").to_csv(rows / f"{dataset}.csv", index=False)
    features = write_rows(place / "asked.txt", _PREDICTED, seed=4).features
    pd.DataFrame(features).to_csv(rows / "nightly.csv", index=False)


def _noting(found: dict[str, str], honest: Callable[..., str]) -> Callable[..., str]:
    def version(*classes: type) -> str:
        answer = honest(*classes)
        assert found.setdefault(named(classes), answer) == answer, f"two versions of {named(classes)}"
        return answer

    return version


def pack(place: Path) -> bytes:
    """Return root and rows as one archive without dates and owners, with the rights of each file."""

    def stripped(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
        return member

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted([*place.glob("root"), *place.glob("root/**/*"), *place.glob("rows"), *place.glob("rows/*")]):
            archive.add(path, str(path.relative_to(place)), recursive=False, filter=stripped)
    return lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    """Store a root of the checkout's version; refused where there is one."""
    version = version_of_checkout()
    if archive_of(version).exists():
        sys.exit(f"{archive_of(version)} exists: what a released version has made is never made again")
    if PLACE.exists():
        sys.exit(f"{PLACE} exists; remove it first")
    try:
        known = make(PLACE)
        archive_of(version).write_bytes(pack(PLACE))
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)
    (FOLDER / f"{version}.json").write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    print(f"{archive_of(version)}: {archive_of(version).stat().st_size} bytes, {len(known['releases'])} releases")


if __name__ == "__main__":
    main()
