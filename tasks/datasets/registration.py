"""Data sets of a root: ingestion of rows under an account, with their public texts and numbers."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from dpalgos.accounting.spending import RESERVED
from storage.atomic import discard, locked_directory
from storage.catalog import Catalog, overlap_refusal
from storage.confined import kept_memory
from storage.datasets import IngestionReport, dataset_ref, ingestion_report
from storage.errors import InputError, RefusedError
from storage.history import places_before
from storage.layout import Layout, path_component
from storage.ledger.charges import Cap, require_cap, require_small_delta
from storage.names import few
from storage.pictures.places import Known
from storage.publishing import StagedDataset, confirm_registered, unregistered_versions
from storage.readers.by_name import BUNDLED
from storage.readers.in_memory import FORMAT as FRAME
from storage.readers.in_memory import DeclaredFrame, frame_source
from storage.readers.raw_tables import expected_rows
from storage.recognition import fingerprints_digest, lineage_of_file
from storage.refs import DatasetRef, Visibility
from storage.results import query_dataset
from storage.source import ReadOptions, Source, concatenate, limited, read_source, reader_names
from storage.staging import staged_dataset
from tasks.datasets.horizons import arrival_of
from tasks.datasets.request import IngestRequest
from tasks.planning.resolution import admitted_normalisation
from tasks.runtime.events import Event, announce, dataset_resource
from tasks.runtime.progress import Counted
from tasks.runtime.settings import current_layout, query_seconds
from tasks.runtime.stores import open_catalog, open_releases

BUNDLED_FORMAT = "sklearn"
"""The format of sets that scikit-learn brings along."""
_ONE_ROW_A_LINE = ("csv", "libsvm", "parquet")


def _require_own_name(request: IngestRequest, *, own: bool) -> None:
    """Refuse rows of one's own under the name of a set that comes along, which nobody could ask for any more."""
    if request.name in BUNDLED and (own or request.path is not None or request.parties):
        raise InputError(
            f"{request.name} is the name of a bundled data set; choose another name, such as my_{request.name}"
        )


def require_derivable(name: str) -> None:
    """Refuse a name under which no derived rows can be registered; nothing is stored or recorded.

    Raises
    ------
    InputError
        If it cannot be used as a name, or is that of a bundled set.
    RefusedError
        If a data set or an account of that name is registered, and cannot hold derived rows.
    """
    _require_own_name(IngestRequest(name=name, visibility=Visibility.DERIVED), own=True)
    path_component(name, "data set name")
    open_catalog().require_registrable(name, Visibility.DERIVED)


def _source(
    request: IngestRequest,
    earlier: Known,
    told: Callable[[str], object],
    noted: Callable[[str], object],
    rows: DeclaredFrame | None,
) -> Source:
    if request.path is not None and request.parties:
        raise InputError(f"--path {request.path} and --party are both given; omit one of them")
    format_name = _format(request, rows)
    if format_name is None:
        raise InputError(f"give the format of the file: --format {', '.join(reader_names())}")
    options = ReadOptions(
        dimension=request.dimension,
        classes=request.classes,
        label_range=request.label_range,
        discover=request.visibility is Visibility.PUBLIC,
        schema=request.schema_path,
        on_violation=request.on_violation,
        scaling=request.scaling,
        test=request.test_path,
        image_shape=request.image_shape,
        people=request.declared_people(),
        pictures=request.declared_pictures(),
        person_from=request.person_from,
        earlier=earlier.get("", {}),
        told=told,
        noted=noted,
    )
    if rows is not None:
        source = frame_source(rows, options)
    elif request.parties:
        each = {name: replace(options, earlier=earlier.get(name, {})) for name in request.parties}
        source = concatenate(
            {name: read_source(format_name, path, each[name]) for name, path in request.parties.items()}
        )
    else:
        source = read_source(format_name, request.path or request.name, options)
    files = [*request.parties.values()] if request.parties else [request.path] if request.path else []
    expected = [expected_rows(file) for file in files] if format_name in _ONE_ROW_A_LINE else []
    expected = [rows.frame.rows] if rows is not None else expected
    known = {"train": sum(filter(None, expected))} if expected and None not in expected else source.expected
    parts = {
        part: Counted(blocks, lambda block: len(block.labels), f"reading {part}", known.get(part))
        for part, blocks in source.parts.items()
    }
    return replace(source, parts=parts, columns=request.columns or source.columns)


def _format(request: IngestRequest, rows: DeclaredFrame | None) -> str | None:
    """Return what the rows are kept in; None where nothing says it of files."""
    if rows is not None:
        return FRAME
    bundled = request.path is None and not request.parties
    return request.format or (BUNDLED_FORMAT if bundled else None)


def ingest(
    request: IngestRequest,
    told: Callable[[str], object] = lambda line: None,
    noted: Callable[[str], object] = lambda line: None,
    *,
    rows: DeclaredFrame | None = None,
    drawn: Mapping[str, object] | None = None,
) -> DatasetRef:
    """Read rows, check them, store them as a version and register it; nothing half-made is left behind.

    Parameters
    ----------
    request : IngestRequest
    told : callable
        Is told of each image that is left out, and why, and of cells of a frame that were clipped: for the owner's
        screen alone.
    noted : callable
        Is told, before rows are read and an account is opened, what may be wrong with whose images they are: for the
        owner's screen alone.
    rows : DeclaredFrame, optional
        Rows in memory, in place of files.
    drawn : mapping, optional
        Of derived rows what they are drawn by: ``synthesis``, its key, and all that drawing them again takes.

    Raises
    ------
    InputError
        For bad data or arguments, naming the place; for derived rows without a synthesis.
    RefusedError
        If private rows come without a cap or with a delta of 1/n or more, if public rows are private rows of this
        root, or if private rows are stored under another account and the people were not declared disjoint.
    """
    _require_own_name(request, own=rows is not None)
    if (request.visibility is Visibility.DERIVED) != (drawn is not None):
        raise InputError(
            f"{request.name} is {request.visibility}; only `unitball synthesise` makes derived rows: ingest your rows "
            "as private or public"
        )
    if request.not_derived.strip() and request.visibility is not Visibility.PUBLIC:
        raise InputError(f"--not-derived applies to public rows, and {request.name} is {request.visibility}; omit it")
    layout = current_layout()
    catalog = open_catalog()
    sweep_unregistered(layout, catalog)
    cap = request.cap()
    known = catalog.registrations(request.name)
    opened = catalog.account(request.account) if request.account else None
    if request.visibility is Visibility.PRIVATE and cap is None and not known and opened is None:
        absent = f"; {catalog.no_account(request.account)}" if request.account else ""
        raise RefusedError(
            f"{request.name} is private, so its account needs a cap: give --epsilon-cap and --delta-cap "
            f"(or give --public if the rows are public){absent}"
        )
    if request.visibility is Visibility.PUBLIC and cap is not None:
        raise InputError("a cap is for private rows; omit --epsilon-cap and --delta-cap, or omit --public")
    if cap is not None:
        require_cap(cap)
    if request.normalisation is not None:
        admitted_normalisation(request.normalisation, request.name, private=request.visibility is Visibility.PRIVATE)
    account = request.account or (known[-1].account if known else request.name)
    previous = [dataset_ref(layout, version.version) for version in known]
    earlier = places_before(layout, previous)
    with (
        limited(rows=request.max_rows, size=request.max_bytes),
        staged_dataset(
            layout,
            source := _source(request, earlier, told, noted, rows),
            name=request.name,
            account=account,
            visibility=request.visibility,
            synthesis=str(drawn["synthesis"]) if drawn is not None else "",
        ) as staged,
        # Compared, published and registered under one lock: of two that bring in the same rows, one finds the other's.
        locked_directory(layout.private),
    ):
        overlapping = _overlapping(catalog, request, account, staged) if staged.private else ()
        if staged.placed and len(catalog.registrations(request.name)) != len(known):
            # New pictures have their places after those of all versions that there are.
            raise InputError(f"another version of {request.name} was registered in the meantime; ingest this one again")
        recognised = _recognised(catalog, request, staged, rows, told)
        try:
            stored = staged.publish(previous)
        except RefusedError:
            if not staged.private:
                catalog.record_refusal(request.name, account, request.visibility)
            raise
        try:
            arrival = arrival_of(layout, catalog, request.name, stored)
            lineage: dict[str, object] = {} if drawn is None else {"drawn": dict(drawn)}
            _register(catalog, request, stored, cap, overlapping, staged, rows, lineage | recognised)
        except Exception:
            # Rows that were not taken on are not kept, and do not stand in the way of another registration.
            if all(stored.version != one.version for one in catalog.registrations()):
                discard(layout.dataset(stored.version))
            raise
        if arrival is not None:
            catalog.record_arrival(request.name, arrival)
        confirm_registered(layout, stored.version)
    if rows is not None and (clipped := source.tallies["train"].cells):
        told(
            "cells outside the schema were clipped. "
            + few([f"column {name}: {count} {'cell' if count == 1 else 'cells'}" for name, count in clipped.items()])
        )
    if known and all(stored.version != one.version for one in known):
        # A first registration starts nothing: no budget is spent before somebody asked for a run on these rows.
        announce(Event.REGISTERED, dataset_resource(request.name), {"dataset": request.name})
    return stored


def accounts_of(request: IngestRequest) -> tuple[str, ...]:
    """Return the accounts under which more than 1 % of rows are stored as private rows; nothing is stored.

    Parameters
    ----------
    request : IngestRequest
        As for :func:`ingest`; rows under its own account are not compared.
    """
    layout = current_layout()
    with staged_dataset(
        layout,
        _source(request, {}, lambda _: None, lambda _: None, None),
        name=request.name,
        account=request.account or request.name,
        visibility=request.visibility,
    ) as staged:
        return staged.overlapping_accounts()


def sweep_unregistered(layout: Layout, catalog: Catalog) -> int:
    """Remove versions whose registration never came about, because their ingestion was killed; return how many.

    Versions carry a note from their publication to their registration, both under one lock, so that a version that is
    just being registered is kept, and so is a version that an older, restored ledger does not know.
    """
    if not unregistered_versions(layout):
        return 0
    removed = 0
    with locked_directory(layout.private):
        known = {one.version for one in catalog.registrations()}
        for version in unregistered_versions(layout):
            if version in known:
                confirm_registered(layout, version)
            else:
                discard(layout.dataset(version))
                removed += 1
    return removed


def _overlapping(catalog: Catalog, request: IngestRequest, account: str, staged: StagedDataset) -> tuple[str, ...]:
    """Return the other accounts under which private rows are stored; refuse, on record, where nothing admits it."""
    others = tuple(other for other in staged.overlapping_accounts() if other != account)
    undeclared = catalog.undeclared(account, others)
    if not undeclared or request.disjoint_people:
        return others
    catalog.record_refusal(request.name, account, request.visibility)
    raise RefusedError(
        overlap_refusal(request.name, undeclared), value=account, bound=tuple(undeclared), way_out="--account"
    )


RECOGNISED = 0.1
"""The share of public rows found among those of a derived set from which on they have its lineage."""


def _recognised(
    catalog: Catalog,
    request: IngestRequest,
    staged: StagedDataset,
    rows: DeclaredFrame | None,
    told: Callable[[str], object],
) -> dict[str, object]:
    """Give public rows that carry a lineage, or are found among drawn ones, that lineage; return what is registered.

    Recognition only adds lineage: private rows are not compared, and keep their account and charges.

    Raises
    ------
    InputError
        If they are drawn by several syntheses, or a lineage cannot be read.
    """
    if request.visibility is not Visibility.PUBLIC:
        return {}
    reason, carried = request.not_derived.strip(), _carried(request, rows)
    shares = staged.drawn_shares()
    if reason:
        named = {} if carried is None else {"lineage": carried["synthesis"]}
        return {"not_derived": {"reason": reason, "shares": shares, **named}}
    references = [DatasetRef.model_validate(one.manifest["reference"]) for one in catalog.registrations()]
    known = {one.version: one for one in references if one.synthesis}
    alike = {known[version]: share for version, share in shares.items() if version in known}
    enough = {one: share for one, share in alike.items() if share >= RECOGNISED}
    few = [f"{share:.1%} of the rows are among those of {one.name}" for one, share in alike.items()]
    if carried is not None:
        few.insert(0, f"the rows carry the lineage of {carried.get('dataset', 'other')} rows")
    elif not enough:
        if few:
            told(
                f"{few[0]}, which are drawn from releases of private rows. This is below {RECOGNISED:.0%}, so "
                f"{request.name} has no lineage. If they come from there, results computed from them still rest on "
                "these releases"
            )
        return {}
    syntheses = sorted({one.synthesis for one in enough} | ({carried["synthesis"]} if carried is not None else set()))
    if len(syntheses) > 1:
        raise InputError(
            f"rows of {request.name} occur in derived sets of {len(syntheses)} syntheses "
            f"({', '.join(key[:12] for key in syntheses)}; {'; '.join(few)}); ingest them separately, or declare "
            "--not-derived REASON"
        )
    staged.rest_on(syntheses[0])
    told(
        f"{few[0]}, so {request.name} is registered as a derived set. Results computed from it rest on synthesis "
        f"{syntheses[0][:12]} and its releases. If the rows were not drawn there, give --not-derived REASON, which is "
        "recorded. Rows without a lineage are recognised only by their values"
    )
    if not open_releases().exists(syntheses[0]):
        told(
            f"synthesis {syntheses[0][:12]} is not stored in this root, so that runs on {request.name} are refused: no "
            "epsilon could be stated. Use the rows in the root where they were drawn"
        )
    return {"recognised": {one.version: share for one, share in enough.items()}}


def _carried(request: IngestRequest, rows: DeclaredFrame | None) -> Mapping[str, str] | None:
    """Return the lineage of rows: in a file's metadata, in a lineage file, or in a frame's attributes."""
    files = [request.path, request.test_path, *request.parties.values()]
    found = [lineage_of_file(file) for file in files if file is not None]
    found += [] if rows is None else [rows.lineage]
    carried = {str(one["synthesis"]): one for one in found if one}
    if len(carried) > 1:
        raise InputError(
            f"the files of {request.name} carry the lineage of {len(carried)} syntheses "
            f"({', '.join(key[:12] for key in carried)}); ingest them separately"
        )
    return next(iter(carried.values()), None)


def _register(
    catalog: Catalog,
    request: IngestRequest,
    stored: DatasetRef,
    cap: Cap | None,
    overlapping: tuple[str, ...],
    staged: StagedDataset,
    rows: DeclaredFrame | None,
    lineage: Mapping[str, object],
) -> None:
    # A new version may have more rows than the account's cap was declared for.
    opened = catalog.account(request.account or stored.account)
    in_force = cap or (opened.cap if opened else None)
    if in_force is not None:
        require_small_delta(in_force.delta, stored.rows)
    catalog.register(
        request.name,
        stored.version,
        visibility=request.visibility,
        manifest={
            "format": _format(request, rows),
            "reference": stored.model_dump(mode="json"),
            "default_normalisation": request.normalisation,
            "parties": list(request.parties),
            **lineage,
        },
        account=request.account,
        cap=cap,
        soft_limit=request.soft_limit,
        disjoint_people=request.disjoint_people.strip(),
        overlapping=overlapping,
        relation=str(request.relation) if request.relation is not None else None,
        group_size=request.group_size if request.group_size != 1 else None,
        idealised_allowed=request.allow_idealised or None,
        fingerprints=fingerprints_digest(current_layout(), stored),
        deltas={"reserved": RESERVED},
        people=staged.people,
        # Of those that are stored: an older ledger that was put back does not know them all.
        sharing=staged.sharing_accounts(),
    )


def ensure_registered(*names: str | None) -> None:
    """Ingest the named data sets that come with scikit-learn and are not registered yet.

    Only commands, calls from Python and the first step of a flow call this. Every lookup only reads.

    Parameters
    ----------
    *names : str or None
        Names that are registered, or that do not come with scikit-learn, are left to the lookup. None stands for an
        option that names no data set.
    """
    catalog = open_catalog()
    for name in names:
        if name in BUNDLED and not catalog.registrations(name):
            ingest(IngestRequest(name=name, visibility=Visibility.PUBLIC))


def find_dataset(name: str) -> DatasetRef:
    """Return the newest registered version of a data set. Nothing is ingested or recorded.

    Raises
    ------
    InputError
        If there is no such set.
    """
    return DatasetRef.model_validate(open_catalog().get(name).manifest["reference"])


def default_normalisation(name: str) -> str | None:
    """Return the map that the owner declared for runs on a set, if any."""
    declared: str | None = open_catalog().get(name).manifest["default_normalisation"]
    return declared


def describe_datasets(name: str | None = None) -> list[dict[str, object]]:
    """Return what there is to say of each data set, or of one; public text and public numbers only."""
    catalog = open_catalog()
    known = {entry.name: entry for entry in catalog.datasets()}
    names = [name] if name is not None else sorted({*known, *BUNDLED})
    described = []
    for dataset_name in names:
        if dataset_name not in known and dataset_name in BUNDLED:
            described.append(_not_yet(dataset_name))
            continue
        entry = catalog.get(dataset_name)
        reference = DatasetRef.model_validate(entry.manifest["reference"])
        described.append(
            {
                "name": dataset_name,
                "format": entry.manifest["format"],
                "rows": reference.rows,
                "unit": str(reference.unit),
                "test_rows": reference.test_rows,
                "dimension": reference.dimension,
                "classes": len(reference.classes) or "real",
                "visibility": str(reference.visibility),
                "account": entry.account,
                "versions": len(catalog.registrations(dataset_name)),
                "version": reference.version,
                "class_names": list(reference.classes),
            }
        )
    return described


def _not_yet(name: str) -> dict[str, object]:
    blank: dict[str, object] = dict.fromkeys(("rows", "unit", "test_rows", "dimension", "classes", "version"), "–")
    known = {"name": name, "format": BUNDLED_FORMAT, "visibility": "public", "account": name}
    return {**blank, **known, "versions": 0, "class_names": []}


def report_of(reference: DatasetRef) -> IngestionReport:
    """Return what became of every row that ingestion read: for the owner's eyes."""
    return ingestion_report(current_layout(), reference)


def query(name: str, sql: str) -> list[dict[str, object]]:
    """Run DuckDB SQL over a public set's views ``train`` and ``test``.

    Raises
    ------
    RefusedError
        If the set is private.
    """
    table = query_dataset(current_layout(), find_dataset(name), sql, memory=kept_memory(), seconds=query_seconds())
    return list(table.to_pylist())
