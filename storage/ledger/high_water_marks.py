"""High-water marks: files outside the database that name the last entry seen, and what every account had spent by then.

One lies beside the ledger, so that a ledger restored alone is noticed; one outside the root, so that a whole root put
back is. They are written after the commit: a mark may lag behind its ledger (a kill in between), and is ahead of
it only where an older state was put in place. A mark carries a keyed digest of its own.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.atomic import locked_directory, write_bytes
from storage.errors import StorageError
from storage.ledger.chain import Chain, Link, canonical

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HighWaterMark:
    """What a high-water mark says.

    Parameters
    ----------
    link : Link
        The last entry seen.
    spent : mapping of account to JSON
        The account's properties and the policy's running totals, as of that entry.
    """

    link: Link
    spent: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read(path: Path, chain: Chain) -> HighWaterMark | None:
    """Return the mark in a file, None where there is none.

    Raises
    ------
    StorageError
        If it cannot be read, is damaged or was edited.
    """
    try:
        data = json.loads(path.read_bytes())
        link = Link(str(data["ledger"]), int(data["sequence"]), str(data["digest"]))
        spent, mac = dict(data.get("spent", {})), str(data.get("mac", ""))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"high-water mark {path} cannot be read ({error.strerror}); make it readable") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"high-water mark {path} is damaged; put it back from the newest back-up") from error
    # Marks had no digest of their own before entries had keys.
    keyed = link.ledger_id == chain.ledger_id and link.sequence >= chain.keyed_from
    if keyed and not hmac.compare_digest(mac, _mac(chain, HighWaterMark(link, spent))):
        raise StorageError(f"high-water mark {path} was changed; put it back from the newest back-up")
    return HighWaterMark(link, spent)


def behind(last: Link, digest_at: Callable[[int], str | None], mark: HighWaterMark | None) -> str | None:
    """Say in what way a ledger lacks what its mark has seen; None where it does not.

    Parameters
    ----------
    last : Link
        The end of the ledger's chain.
    digest_at : callable
        Returns the digest of the entry of a number.
    mark : Mark or None
    """
    if mark is None:
        return None
    seen = mark.link
    if seen.ledger_id != last.ledger_id:
        return "its high-water mark belongs to another ledger, so the ledger was replaced"
    if seen.sequence > last.sequence:
        return (
            f"it ends at entry {last.sequence} but its high-water mark has seen entry {seen.sequence}, "
            "so an older back-up was restored or its end was cut off"
        )
    if digest_at(seen.sequence) != seen.digest:
        return f"entry {seen.sequence} is not the one its high-water mark has seen, so the ledger was rewritten"
    return None


def advance(path: Path, mark: HighWaterMark, chain: Chain, *, restored: bool = False) -> None:
    """Write the mark unless a newer one is there; a failure is logged only, because the entries are committed.

    Parameters
    ----------
    restored : bool
        Whether what an older ledger lacked has been recorded, so that the mark may go back.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked_directory(path.parent):
            present = None if restored else read(path, chain)
            if present is not None and present.link.sequence >= mark.link.sequence:
                return
            mark = HighWaterMark(mark.link, {**(present.spent if present else {}), **mark.spent})
            write_bytes(path, _dump(chain, mark), mode=0o600)
    except (OSError, StorageError) as error:
        _log.warning("high-water mark %s could not be written (%s); the ledger itself is whole", path, error)


def _body(mark: HighWaterMark) -> dict[str, Any]:
    link = mark.link
    return {"ledger": link.ledger_id, "sequence": link.sequence, "digest": link.digest, "spent": dict(mark.spent)}


def _mac(chain: Chain, mark: HighWaterMark) -> str:
    return chain.mac("mark", _body(mark))


def _dump(chain: Chain, mark: HighWaterMark) -> bytes:
    return canonical({**_body(mark), "mac": _mac(chain, mark)}).encode()
