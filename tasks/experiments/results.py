"""SQL over what is public: runs, metrics, releases and charges."""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from storage.confined import kept_memory
from storage.results import query
from tasks.accounts.ledger import open_ledger
from tasks.runtime.settings import current_layout, query_seconds
from tasks.runtime.stores import open_releases

_STRING = pa.string()
_RELEASES = pa.schema(
    {
        "key": _STRING,
        "label": _STRING,
        "kind": _STRING,
        "algorithm": _STRING,
        "artefact": _STRING,
        "parties": _STRING,
        "reads_rows": pa.bool_(),
        "budget": _STRING,
        "losses": _STRING,
        "mu": pa.float64(),
        "numerics": _STRING,
    }
)
_CHARGES = pa.schema(
    {
        "account": _STRING,
        "party": _STRING,
        "key": _STRING,
        "label": _STRING,
        "run": _STRING,
        "partition": _STRING,
        "plan": pa.int64(),
        "recharge": pa.bool_(),
        "losses": _STRING,
        "recorded_at": _STRING,
    }
)


def query_results(sql: str) -> list[dict[str, Any]]:
    """Return the rows of :func:`query_table`."""
    return list(query_table(sql).to_pylist())


def query_table(sql: str) -> pa.Table:
    """Answer one SELECT over the views ``runs``, ``metrics``, ``releases`` and ``charges``.

    Every view holds what was released or charged, which is public already; the query can read no file, so that rows
    stay out of reach.

    Raises
    ------
    InputError
        If it is not one SELECT over these views.
    """
    store = open_releases()
    releases = [_release(key, store.manifest(key)) for key in store.keys()]
    views = {
        "releases": pa.Table.from_pylist(releases, schema=_RELEASES),
        "charges": pa.Table.from_pylist(_charges(), schema=_CHARGES),
    }
    return query(current_layout(), sql, views, memory=kept_memory(), seconds=query_seconds())


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _release(key: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    # What the server put together out of releases has no separate guarantee: it is free.
    algorithm = manifest.get("algorithm") or {"kind": "aggregators", **manifest.get("post_processing", {})}
    guarantee = manifest.get("guarantee")
    return {
        "key": key,
        "label": manifest.get("label"),
        "kind": algorithm.get("kind"),
        "algorithm": algorithm.get("name"),
        "artefact": manifest.get("artefact"),
        "parties": _text(manifest.get("parties")),
        "reads_rows": bool(manifest.get("reads_rows", False)),
        "budget": _text(manifest.get("budget")),
        "losses": _text(guarantee["losses"] if guarantee else None),
        "mu": manifest.get("mu"),
        "numerics": guarantee["numerics"] if guarantee else None,
    }


def _charges() -> list[dict[str, Any]]:
    ledger = open_ledger()
    return [
        {
            "account": account.name,
            "party": party,
            "key": charge.key,
            "label": charge.label,
            "run": charge.plan.run,
            "partition": charge.plan.partition,
            "plan": charge.plan.sequence,
            "recharge": charge.plan.recharge,
            "losses": _text(charge.guarantee["losses"]),
            "recorded_at": charge.recorded_at,
        }
        for account in ledger.accounts()
        for charge in ledger.charges(account.name)
        for party in charge.parties
    ]
