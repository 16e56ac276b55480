"""State that earlier versions of a data set leave for the next: the register of people, rows seen, places of images."""

from collections.abc import Sequence

from storage import documents
from storage.datasets import load_manifest
from storage.errors import DamagedError, FormatVersionError, StorageError
from storage.layout import PEOPLE, PLACES, SEEN, Layout
from storage.people import PersonRegister, Seen, load_people, load_seen
from storage.pictures.places import Known, load_known
from storage.refs import DatasetRef


def people_before(layout: Layout, versions: Sequence[DatasetRef], account: str) -> tuple[PersonRegister, Seen]:
    """Return the register that all other versions' are the beginning of, and which rows came with the last of them."""
    known = [(load_manifest(layout, each.version).get("people"), each) for each in versions if each.account == account]
    people, newest = max(
        ((said, each) for said, each in known if said is not None),
        key=lambda found: int(found[0]["version"]),
        default=(None, None),
    )
    if people is None or newest is None:
        return PersonRegister(), Seen()
    folder = layout.dataset(newest.version)
    return load_people(folder / PEOPLE, people["digest"]).register, load_seen(folder / SEEN, people["seen"])


def places_before(layout: Layout, versions: Sequence[DatasetRef]) -> Known:
    """Return the paths that versions of private folders of images have held, in the order of their places.

    Raises
    ------
    StorageError
        If what the last of them holds of it is lost: places once given could not be kept.
    """
    known = [(each.version, load_manifest(layout, each.version).get("places")) for each in versions]
    folders = [(version, said) for version, said in known if said is not None]
    if not folders:
        return {}
    # Each knows all that the version before it knew.
    version, newest = max(folders, key=lambda each: int(each[1]["known"]))
    return load_known(layout.dataset(version) / PLACES, newest["digest"])


def lost_history(layout: Layout, version: str) -> list[str]:
    """Return which files are lost that say who is behind a version's rows, which rows came with it, in which places.

    They are what one ingestion after another made of it, so that no file that is ingested again makes them again.
    """
    try:
        body = load_manifest(layout, version)
    except FormatVersionError:
        raise
    except StorageError:
        return []
    people, places, folder, lost = body.get("people", {}), body.get("places", {}), layout.dataset(version), []
    if "parent" in body:
        return []
    files = ((PEOPLE, people.get("digest")), (SEEN, people.get("seen")), (PLACES, places.get("digest")))
    for name, digest in files:
        try:
            if digest is not None:
                documents.verify_file(folder / name, digest)
        except DamagedError:
            lost.append(name)
    return lost
