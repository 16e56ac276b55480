"""A staged source: compared with the stored versions, and published as one of them."""

import hashlib
import hmac
import secrets as randomness
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage import documents
from storage.arriving_people import ArrivingPeople
from storage.atomic import Staging, private_folder, write_bytes, writing
from storage.datasets import is_complete, load_manifest, publish_version
from storage.errors import DamagedError, FormatVersionError, InputError, RefusedError, StorageError
from storage.fingerprints import Fingerprints, drawn_versions, overlapping_versions, private_versions
from storage.history import people_before, places_before
from storage.layout import COLUMNS, DRAWN, PATTERNS, PEOPLE, PLACES, SEEN, Layout
from storage.objects import objects_of, row_objects
from storage.people import TEST, People, PersonRegister, Seen, StoredPeople, save_people, save_seen
from storage.pictures.places import PlacesByParty, known_after, save_known
from storage.recognition import remake_fingerprints
from storage.refs import DatasetRef, Visibility
from storage.rowfiles import RowFormat, RowWriter, StoredRows, WrittenRows, ahead
from storage.secrets import root_secret

CAME = "came"
"""Folder of a staged source where people's rows lie until the last of them is known."""
_UNREGISTERED = "unregistered"


@dataclass(slots=True)
class StagedDataset:
    """A source that has been read and checked and lies next to the stored versions, to be published or dropped.

    A process compares, publishes and registers under one lock of the root's private folder, so that of two processes
    that ingest the same rows the second finds those of the first.
    """

    layout: Layout
    visibility: Visibility
    place: str
    _stage: Staging
    _body: dict[str, Any]
    _prints: Fingerprints | None
    _arriving: ArrivingPeople | None = None
    _places: PlacesByParty = field(default_factory=dict)

    @property
    def people(self) -> People | None:
        """The declaration of the people behind the rows."""
        return None if self._arriving is None else self._arriving.people

    @property
    def private(self) -> bool:
        """Whether the rows are private."""
        return self.visibility is Visibility.PRIVATE

    @property
    def placed(self) -> bool:
        """Whether the places of the rows follow from those of earlier versions."""
        return bool(self._places)

    @property
    def version(self) -> str:
        """Name of public or derived rows without declared people: a digest of their contents."""
        return _content(self._body)[:32]

    def overlapping_accounts(self) -> tuple[str, ...]:
        """Return the accounts with private rows equal to more than 1 % of these rows, or of the account's rows.

        Private rows are not compared with those of their own account.
        """
        if self._prints is None:
            return ()
        accounts = dict[str, str]()
        for version in private_versions(self.layout):
            body = load_manifest(self.layout, version)
            # Sketches and patterns that are not there, lost or never made, are made of the stored rows.
            kept = (PATTERNS,) if "parent" in body else (PATTERNS, COLUMNS)
            if not all((self.layout.dataset(version) / name).exists() for name in kept):
                remake_fingerprints(self.layout, version, exact=False)
            if not self.private or body["account"] != self._body["account"]:
                accounts[version] = str(body["account"])
        versions = overlapping_versions(self.layout, self._prints, [*accounts])
        return tuple(dict.fromkeys(accounts[version] for version in versions))

    def drawn_shares(self) -> dict[str, float]:
        """Return of each derived version of which rows are among these the share of these rows, the largest first."""
        if self._prints is None:
            return {}
        shares = {
            version: self._prints.share_drawn(self.layout.dataset(version) / DRAWN)
            for version in drawn_versions(self.layout)
        }
        return dict(sorted(((one, share) for one, share in shares.items() if share > 0), key=lambda item: -item[1]))

    def rest_on(self, synthesis: str) -> None:
        """Record that these public rows are drawn from a synthesis: they become a derived version with its key.

        They are a separate version, also where they are the derived one's to the byte, and are compared with
        private rows as public ones are.
        """
        self._body |= {"synthesis": synthesis, "recognised": True, "visibility": str(Visibility.DERIVED)}

    def sharing_accounts(self) -> set[str]:
        """Return the accounts under which people of the same namespace are stored as private rows."""
        named = self.people.namespace if self.private and self.people is not None else ""
        bodies = [load_manifest(self.layout, version) for version in private_versions(self.layout)] if named else []
        return {str(body["account"]) for body in bodies if body.get("people", {}).get("namespace") == named}

    def publish(self, previous: Sequence[DatasetRef] = ()) -> DatasetRef:
        """Store the rows as a version.

        Parameters
        ----------
        previous : sequence of DatasetRef
            Versions of the same name. If one of them holds the same rows in the same order, that version is returned:
            ingesting a private file twice makes one version. (A public version is named by its content anyway.)

        Raises
        ------
        RefusedError
            If public rows are private rows of this root.
        """
        # Rows that are drawn of releases may be equal to private ones, and are lineage's to tell apart.
        if self.visibility is Visibility.PUBLIC and self.overlapping_accounts():
            # Yes or no, never how much nor whose: the share of a set of one row is whether that row is there.
            raise RefusedError(
                f"rows of {self._body['name']} are private rows of this root and cannot be registered as public; use "
                "the private set",
                value=self.visibility,
                bound=Visibility.PRIVATE,
            )
        content = _content(self._body)
        (self._stage.path / _UNREGISTERED).touch(mode=0o600)
        if not self.private:
            if self.visibility is Visibility.DERIVED and self._prints is not None:
                self._prints.save_drawn(self._stage.path / DRAWN)
            people = {} if self._arriving is None else self._with_people(self._arriving, None, PersonRegister())
            return publish_version(self.layout, self._stage, content[:32], {**self._body, **people}, None)
        mac = hmac.new(root_secret(self.layout), content.encode(), hashlib.sha256).hexdigest()
        for older in previous:
            if older.private and self._is_stored_as(older.version, mac):
                return older
        body = {**self._body, "content_mac": mac}
        if self._arriving is not None:
            register, seen = people_before(self.layout, previous, str(body["account"]))
            body |= self._with_people(self._arriving, seen, register)
        if self._places:
            known = known_after(places_before(self.layout, previous), self._places)
            body["places"] = {
                **body["places"],
                "known": sum(len(paths) for parts in known.values() for paths in parts.values()),
                "digest": save_known(self._stage.path / PLACES, known),
            }
        return publish_version(self.layout, self._stage, randomness.token_hex(16), body, self._prints)

    def _is_stored_as(self, version: str, mac: str) -> bool:
        """Whether a private version holds these rows whole; files of its rows that are lost are put back first.

        Only those that are the same to the byte. Which of people's rows are stored follows from what came before, so
        that their lost files come from a back-up alone.
        """
        try:
            known = load_manifest(self.layout, version)
        except FormatVersionError:
            raise
        except StorageError:
            return False
        if not hmac.compare_digest(known["content_mac"], mac):
            return False
        if objects_of(self.layout) is None and "people" not in known:
            for part, written in known["parts"].items():
                self._put_back(version, part, written["files"])
        return is_complete(self.layout, version)

    def _put_back(self, version: str, part: str, files: Sequence[tuple[str, str]]) -> None:
        for name, digest in files:
            path, staged = self.layout.dataset(version) / part / name, self._stage.path / part / name
            try:
                documents.verify_file(path, digest)
            except DamagedError:
                if staged.is_file() and documents.file_digest(staged) == digest:
                    with writing(path):
                        private_folder(path.parent, self.layout.datasets)
                        write_bytes(path, staged.read_bytes(), mode=0o600)

    def _with_people(self, arriving: ArrivingPeople, seen: Seen | None, register: PersonRegister) -> dict[str, Any]:
        """Write a register with whoever is new, and those rows that count; return what the manifest says of them.

        ``seen``: what came with the version before; None of public rows, whose versions know none before them.
        """
        joined = arriving.joined(register, seen or Seen())
        trained_on = joined.register.trained_on()
        if ("" in joined.register.files) and len(trained_on) > 1:
            raise InputError(
                f"{self.place}: this version and earlier ones differ: one file, or one file per party; ingest it as "
                "before, or under another name"
            )
        counts, parts = {"train": sum(count for _, count in trained_on)}, {}
        if TEST in joined.register.files and TEST in self._body["parts"]:
            counts[TEST] = joined.register.records(TEST)
        none = np.zeros(0, dtype=np.int32)
        kept = {part: joined.positions.get(part, none) >= 0 for part in self._body["parts"]}
        row_format = RowFormat.from_json(self._body["format"])
        for part, rows in self._body["parts"].items():
            folders = self._stage.path / CAME / part, self._stage.path / part
            parts[part] = asdict(_cut(*folders, row_format, rows, kept[part], row_objects(self.layout)))
        shutil.rmtree(self._stage.path / CAME)
        if self._prints is not None:
            # What is lost can be made again of what is stored.
            self._prints.keep(np.concatenate([joined.positions.get(part, none) >= 0 for part in joined.positions]))
        stored = {part: positions[positions >= 0] for part, positions in joined.positions.items()}
        since = joined.since[joined.positions.get("train", none) >= 0]
        people = {
            **self._body["people"],
            "entries": len(joined.register.file),
            "records": counts,
            "taken": joined.taken,
            "version": joined.seen.version,
            "digest": save_people(self._stage.path / PEOPLE, StoredPeople(joined.register, stored, since)),
        }
        if seen is not None:
            people["seen"] = save_seen(self._stage.path / SEEN, joined.seen)
        return {"people": people, "origins": [list(file) for file in trained_on], "parts": parts}


def _cut(
    source: Path, target: Path, row_format: RowFormat, rows: Mapping[str, Any], kept: NDArray[np.bool_], put: Any
) -> WrittenRows:
    """Write those of some written rows that are kept, in their order."""
    stored, writer = StoredRows.open(source, row_format, WrittenRows(**rows)), RowWriter(target, row_format, put)
    before = 0
    for batch in ahead(stored.batches(row_format.block_rows)):
        here = kept[before : before + len(batch)]
        writer.write(batch.take(np.flatnonzero(here)))
        before += len(batch)
    return writer.close()


def _content(body: Mapping[str, Any]) -> str:
    """Return the digest of a version's content, which does not depend on its name."""
    public = (
        "format",
        "classes",
        "label_range",
        "normalisation",
        "origins",
        "image_shape",
        "people",
        "columns",
        "places",
        "synthesis",
        "recognised",
    )
    rows = {part: written["content"] for part, written in body["parts"].items()}
    return documents.digest({"rows": rows, **{what: body[what] for what in (*public, "table") if what in body}})


def unregistered_versions(layout: Layout) -> list[str]:
    """Return the versions that were published and whose registration has not been confirmed."""
    return sorted(path.parent.name for path in layout.datasets.glob(f"[!.]*/{_UNREGISTERED}"))


def confirm_registered(layout: Layout, version: str) -> None:
    """Take away the note that a version is still to be registered."""
    (layout.dataset(version) / _UNREGISTERED).unlink(missing_ok=True)
