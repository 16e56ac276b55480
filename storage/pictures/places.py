"""Places of a private folder's images: what says which party, night and held-out part each is in.

Where an image is a separate record, its place must follow from what is public. In a table that is its line. In a
folder it is its path below the class folder, by bytes: with the class folder in the path, an image of another class
would move every file between the two, and neighbours would differ in all of these. Paths that an earlier version held
come first, in the order that they have there, and new ones after them, so that no version moves the others' places. Of
a version with images taken out those behind move up, as the lines of a table do.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.atomic import write_bytes
from storage.documents import pack_arrays, unpack_arrays, verify_file

Known = Mapping[str, Mapping[str, Sequence[bytes]]]
"""By party (empty for one owner) and part: the paths that versions have held, in the order of their places."""


@dataclass(frozen=True, slots=True)
class Places:
    """The paths of one part's images.

    Attributes
    ----------
    present : tuple of bytes
        Of this version, in the order of their places.
    known : tuple of bytes
        Of this version and all before it, in the order of their places.
    """

    present: tuple[bytes, ...]
    known: tuple[bytes, ...]

    @classmethod
    def after(cls, earlier: Sequence[bytes], present: Sequence[bytes]) -> "Places":
        """Return the places of a version after others whose paths are known."""
        held = set(earlier)
        return cls(tuple(present), (*earlier, *(path for path in present if path not in held)))


PlacesByParty = Mapping[str, Mapping[str, Places]]


def content_of(places: PlacesByParty) -> str:
    """Return the digest of which images a version has, in which order."""
    whole = hashlib.sha256()
    for party, parts in places.items():
        for part, paths in parts.items():
            whole.update(json.dumps([party, part, len(paths.present)]).encode() + b"\0".join(paths.present))
    return whole.hexdigest()


def known_after(earlier: Known, places: PlacesByParty) -> dict[str, dict[str, Sequence[bytes]]]:
    """Return all paths that are known with a version: of parties and parts that it has not, those of before."""
    known = {party: dict(parts) for party, parts in earlier.items()}
    for party, parts in places.items():
        for part, paths in parts.items():
            known.setdefault(party, {})[part] = paths.known
    return known


def save_known(path: Path, known: Known) -> str:
    """Write paths; return the digest of what was written."""
    groups = [(party, part, list(paths)) for party, parts in known.items() for part, paths in parts.items() if paths]
    # No path holds a zero byte.
    joined = b"\0".join(name for *_, paths in groups for name in paths)
    index = json.dumps([[party, part, len(paths)] for party, part, paths in groups]).encode()
    data = pack_arrays({"paths": np.frombuffer(joined, dtype=np.uint8), "groups": np.frombuffer(index, dtype=np.uint8)})
    write_bytes(path, data, mode=0o600)
    return hashlib.sha256(data).hexdigest()


def load_known(path: Path, digest: str) -> dict[str, dict[str, tuple[bytes, ...]]]:
    """Return what :func:`save_known` wrote.

    Raises
    ------
    DamagedError
        If it is missing or differs, naming it.
    """
    verify_file(path, digest, "restore it from a back-up")
    arrays = unpack_arrays(path.read_bytes(), path)
    paths, known = arrays["paths"].tobytes().split(b"\0"), dict[str, dict[str, tuple[bytes, ...]]]()
    for party, part, count in json.loads(arrays["groups"].tobytes()):
        known.setdefault(party, {})[part], paths = tuple(paths[:count]), paths[count:]
    return known
