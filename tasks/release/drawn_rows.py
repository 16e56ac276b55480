"""Rows drawn from a stored synthesis: as a table, as a derived data set, as a file; and drawn again to compare."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from dpalgos.accounting.profiles import gaussian_epsilon
from dpalgos.guarantees import GaussianMu, rounded_up
from dpalgos.synthesis.drawing import Drawing
from dpalgos.synthesis.model import Synthesis
from storage.atomic import write_bytes
from storage.errors import InputError, RefusedError
from storage.frames import frame_of
from storage.readers.in_memory import DeclaredFrame, frame_source
from storage.recognition import BESIDE, LINEAGE
from storage.refs import DatasetRef, ReleaseRef, Visibility
from storage.schema import Schema
from storage.source import ReadOptions
from storage.staging import staged_dataset
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.datasets.scales import declared_schema, scales_of
from tasks.datasets.synthetic_cells import raw_cells
from tasks.planning.column_statistics import SynthesisPlan, SynthesisRequest
from tasks.planning.nights import PlannedNight, combination_of, release_of
from tasks.planning.releases import PlannedRelease
from tasks.preparation.drawn import drawn_behind
from tasks.release.column_counts import version_of
from tasks.release.storing import read_release
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog, open_releases

if TYPE_CHECKING:
    import pandas as pd


class SyntheticRows(BaseModel, frozen=True):
    """Drawn rows, and what they rest on.

    Attributes
    ----------
    dataset, version, account : str
        Whose columns were counted.
    name, derived : str
        The derived data set, and its version.
    synthesis : str
        Key of what rows are drawn by.
    rests_on : tuple of str
        Keys of the releases of rows that it is made of.
    epsilon, delta : float
        What these releases cost together, for one row or person.
    rows, counted, seed : int
        Rows drawn, records counted, and the public seed.
    tree : dict
        Of each column its parent; None of a root.
    reason : str
        Why there is a tree, or none.
    held_out_counted : bool
        Whether counts that were released before include the held-out rows.
    output : str or None
        The file, where one was written.
    """

    dataset: str
    version: str
    account: str
    unit: str
    name: str
    derived: str
    synthesis: str
    rests_on: tuple[str, ...]
    epsilon: float
    delta: float
    rows: int
    counted: int
    seed: int
    tree: dict[str, str | None]
    reason: str
    held_out_counted: bool
    output: str | None = None

    @property
    def lineage(self) -> dict[str, object]:
        """The lineage that goes with the rows everywhere."""
        said = self.model_dump(mode="json", include={"dataset", "version", "account", "unit", "synthesis", "rests_on"})
        return {
            "synthetic": True,
            **said,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "seed": self.seed,
            "rows": self.rows,
        }


def draw(plan: SynthesisPlan, request: SynthesisRequest) -> SyntheticRows:
    """Draw rows of a stored synthesis, register them as a derived data set, and write a file where one is named.

    Raises
    ------
    InputError
        If the output exists, or is neither .csv nor .parquet.
    """
    counted = plan.tables.setting.rows
    rows = request.rows or counted
    require_output(request.output)
    key = plan.synthesis.key
    cells = _cells(plan.dataset, synthesis := _synthesis(key), request.seed, rows)
    schema = declared_schema(plan.dataset)
    # Of rows drawn from counts of drawn rows, what the latter rest on, too.
    behind = drawn_behind([plan.dataset])
    releases = (*plan.rests_on, *behind.releases)
    rests_on = tuple(one.key for one in releases)
    whose = next((one for one in behind.sources if one.private), plan.dataset)
    drawn = {
        "synthesis": key,
        "rests_on": list(rests_on),
        "seed": request.seed,
        "rows": rows,
        "dataset": plan.dataset.name,
        "version": plan.dataset.version,
    }
    stored = ingest(
        IngestRequest(name=request.called, visibility=Visibility.DERIVED),
        rows=_declared(plan.dataset, cells),
        drawn=drawn,
    )
    names = [scale.name for scale in scales_of(plan.dataset)]
    parents = [None if parent < 0 else names[parent] for parent in synthesis.parents]
    mu = float(np.sqrt(sum(loss.mu**2 for loss in _losses(releases))))
    found = SyntheticRows(
        dataset=plan.dataset.name,
        version=plan.dataset.version,
        account=whose.account,
        unit=str(whose.unit),
        name=request.called,
        derived=stored.version,
        synthesis=key,
        rests_on=rests_on,
        epsilon=rounded_up(gaussian_epsilon(mu, plan.delta), 6),
        delta=plan.delta,
        rows=rows,
        counted=counted,
        seed=request.seed,
        tree=dict(zip(names, parents, strict=True)),
        reason=plan.reason,
        held_out_counted=bool(plan.before) and plan.partition.fraction > 0,
        output=None if request.output is None else str(request.output),
    )
    if request.output is not None:
        write_rows(request.output, cells, found.lineage, schema)
    return found


def _losses(releases: Sequence[PlannedRelease]) -> list[GaussianMu]:
    losses = [loss for one in releases for loss in one.guarantee().losses]
    if strange := [loss for loss in losses if not isinstance(loss, GaussianMu)]:
        raise RefusedError(f"a stage's loss is {strange[0]}; stages of a synthesis are Gaussian")
    return [loss for loss in losses if isinstance(loss, GaussianMu)]


def _synthesis(key: str) -> Synthesis:
    found = read_release(ReleaseRef(key=key, kind=Synthesis.kind, party="server"))
    assert isinstance(found, Synthesis)
    return found


def _cells(dataset: DatasetRef, synthesis: Synthesis, seed: int, rows: int) -> dict[str, list[object]]:
    drawing = Drawing(seed, rows)
    return raw_cells(dataset, drawing, synthesis.draw(drawing), int(synthesis.bins[0]))


def cells_of(name: str) -> dict[str, list[object]]:
    """Return the rows of a derived data set as a table, drawn again from its synthesis.

    Raises
    ------
    InputError
        If the data set is not derived.
    """
    drawn = drawn_by(name)
    source = version_of(str(drawn["dataset"]), str(drawn["version"]))
    return _cells(source, _synthesis(drawn["synthesis"]), int(drawn["seed"]), int(drawn["rows"]))


class DrawnBy(TypedDict):
    """The origin of a derived data set's rows: the counted version, the synthesis, a public seed."""

    dataset: str
    version: str
    synthesis: str
    seed: int
    rows: int
    rests_on: list[str]


def is_derived(name: str) -> bool:
    """Whether a data set of this name is registered, and its rows are drawn."""
    found = open_catalog().registrations(name)
    return bool(found) and "drawn" in found[-1].manifest


def drawn_by(name: str) -> DrawnBy:
    """Return what the rows of a derived data set are drawn by: synthesis, seed, rows, data set and version.

    Raises
    ------
    InputError
        If the data set is not derived.
    """
    manifest = open_catalog().get(name).manifest
    if "drawn" not in manifest:
        raise InputError(f"{name} is not a derived data set; make one with `unitball synthesise`")
    return cast(DrawnBy, dict(manifest["drawn"]))


def frame_of_rows(rows: SyntheticRows) -> pd.DataFrame:
    """Return drawn rows as a data frame with their lineage in ``attrs``."""
    import pandas as pd

    frame = pd.DataFrame(cells_of(rows.name))
    frame.attrs |= rows.lineage | {"name": rows.name, "tree": rows.tree, "reason": rows.reason}
    return frame


def redrawn(name: str) -> list[str]:
    """Check a derived data set: each release of its chain, the synthesis that follows from them, and its rows.

    Returns
    -------
    list of str
        What was compared, in sentences.

    Raises
    ------
    RefusedError
        Naming what does not follow.
    """
    drawn, store = drawn_by(name), open_releases()
    waiting, combinations, releases = [str(drawn["synthesis"])], 0, 0
    seen: set[str] = set()
    while waiting:
        key = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        manifest, arrays = store.read(key)
        if "post_processing" in manifest:
            body = {**manifest["post_processing"], "label": manifest["label"], "code": manifest["code"]}
            planned = combination_of(body)
            upstream = [read_release(ReleaseRef(key=one, kind="", party="")) for one in planned.upstream]
            made = planned.combine(upstream).arrays()
            if made.keys() != arrays.keys() or any(not np.array_equal(made[one], arrays[one]) for one in made):
                raise RefusedError(f"{planned.label} ({key[:12]}) does not follow from its named releases")
            waiting += planned.upstream
            combinations += 1
            found = planned.key
        else:
            known = {one: manifest[one] for one in PlannedNight.model_fields if one in manifest}
            release = release_of({**known, "seed": manifest["public_seed"], "account": "", "delta": 0.0})
            found = release.key
            waiting += [*release.upstream, *release.drawn_from]
            releases += 1
        if found != key:
            raise RefusedError(f"the manifest of release {key[:12]} describes another one, {found[:12]}")
    missing = set(map(str, drawn["rests_on"])) - seen
    if missing:
        raise RefusedError(f"{name} names release {min(missing)[:12]}, on which its synthesis does not rest")
    reference = find_dataset(name)
    source = version_of(str(drawn["dataset"]), str(drawn["version"]))
    again = frame_source(_declared(source, cells_of(name)), ReadOptions(discover=False))
    with staged_dataset(
        current_layout(),
        again,
        name=name,
        account=reference.account,
        visibility=Visibility.DERIVED,
        synthesis=str(drawn["synthesis"]),
    ) as staged:
        if staged.version != reference.version:
            raise RefusedError(f"the rows of {name} differ from those drawn by its synthesis and seed {drawn['seed']}")
    return [
        f"{releases} releases and {combinations} combinations: all identities hold, and the combinations follow from "
        "the releases",
        f"{reference.rows} rows, drawn again with seed {drawn['seed']}: equal",
    ]


def _declared(source: DatasetRef, cells: Mapping[str, Sequence[object]]) -> DeclaredFrame:
    """Return drawn rows under the schema of the rows that were counted; each is one record and belongs to no person."""
    document = dict(declared_schema(source).document)
    document["columns"] = [
        {"name": column["name"], "type": "ignore"} if column["type"] == "person" else column
        for column in document["columns"]
    ]
    return DeclaredFrame(frame=frame_of(cells), schema=document)


def require_output(output: Path | None) -> None:
    """Refuse an output file that exists, or has an unknown suffix.

    Raises
    ------
    InputError
    """
    if output is None:
        return
    if output.suffix not in (".csv", ".parquet"):
        raise InputError(f"--output {output} ends in {output.suffix!r}; name a .csv or a .parquet file")
    if output.exists():
        raise InputError(f"{output} exists; name another file, or remove it first")


def _marker(missing: frozenset[str]) -> str:
    return "" if "" in missing or not missing else min(missing)


def write_rows(
    output: Path, cells: Mapping[str, Sequence[object]], lineage: Mapping[str, object], schema: Schema
) -> None:
    """Write drawn rows: Parquet with its lineage in the metadata; CSV as the schema declares, its lineage in a file."""
    said = json.dumps(lineage, indent=1)
    if output.suffix == ".parquet":
        table, sink = pa.table({name: pa.array(column) for name, column in cells.items()}), pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata({LINEAGE: said}), sink)
        write_bytes(output, sink.getvalue().to_pybytes(), mode=0o644)
        return
    missing = _marker(schema.missing)
    text = io.StringIO()
    writer = csv.writer(text, delimiter=schema.delimiter, lineterminator="\n")
    if schema.header:
        writer.writerow(cells)
    for row in zip(*cells.values(), strict=True):
        writer.writerow(
            missing if cell is None else str(cell).replace(".", schema.decimal) if isinstance(cell, float) else cell
            for cell in row
        )
    write_bytes(output, text.getvalue().encode(schema.encoding), mode=0o644)
    write_bytes(output.with_name(output.name + BESIDE), said.encode() + b"\n", mode=0o644)
