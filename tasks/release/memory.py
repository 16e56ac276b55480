"""What a release must hold in memory, against the limit of the process: refused before anything is charged."""

from __future__ import annotations

from storage.confined import MEMORY_VARIABLE, kept_memory
from storage.errors import InputError
from tasks.planning.plans import PlannedRelease

_MIB = 2**20


def require_memory(release: PlannedRelease) -> None:
    """Refuse an algorithm that holds all its rows where they are more than this process may hold.

    Raises
    ------
    InputError
        Naming what is needed, the limit and the way out.
    """
    held, limit = release.build().work(release.setting).held, kept_memory()
    if held > limit:
        raise InputError(
            f"{release.label} ({release.name}) holds {release.setting.most_rows:,} × {release.setting.dimension} "
            f"rows in memory, about {held / _MIB:,.0f} MiB, and {MEMORY_VARIABLE} allows {limit / _MIB:,.0f}; nothing "
            f"was charged: allow it more ({MEMORY_VARIABLE}={-(-held // _MIB)}M), use more parties or give "
            "them fewer features, or train by sums of the rows, which are read in a stream, as noisy-gd does"
        )
