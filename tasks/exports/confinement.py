"""Archives of strangers, verified in a process of its own whose memory and time are bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from storage.confined import confined
from storage.memory import admitted_memory
from tasks.exports.verifying import Check, Verified, verify

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
    asked = (str(path.absolute()), signer)
    (found,) = confined(f"{__name__}:verified", *asked, place=str(path), memory=admitted_memory(), seconds=_SECONDS)
    said = json.loads(found)
    del said["holds"]
    return Verified(**{**said, "checks": tuple(Check(**check) for check in said["checks"])})


def verified(path: str, signer: str | None) -> Iterator[bytes]:
    """Yield the report as JSON: the other process's part."""
    yield json.dumps(verify(Path(path), signer=signer).to_json()).encode()
