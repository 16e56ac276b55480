"""Rows as they are: neither scaled nor clipped, sparse where most entries are zero. For public data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpalgos.rows import Features, Floats, Ints, Rows, null_records

# Kernel values of longer rows would leave float64's range.
_LONGEST = 1e50
# Below this share of entries that are not zero, products with a sparse matrix are faster, and it is smaller.
_SPARSE_BELOW = 0.1


def _readable(given: Features) -> Floats:
    """Return the block with rows of astronomical entries set to zero."""
    features = np.asarray(given, dtype=np.float64)
    bad = np.asarray(~(np.abs(features) < _LONGEST).all(axis=1))
    return np.where(bad[:, None], 0.0, features) if bad.any() else features


def gather_raw(parties: Sequence[Rows], classes: int, dimension: int) -> tuple[Any, Ints]:
    """Return all parties' rows: features (n, dimension), dense or scipy's CSR, and labels (n,) in 0 … classes − 1.

    Total: null records are left out, and rows that no kernel can be computed of become zero.
    """
    blocks: list[Any] = []
    labels: list[Ints] = []
    sparse: bool | None = None
    for rows in parties:
        for block, block_labels in rows.blocks():
            kept = ~null_records(block, block_labels, classes)
            readable = _readable(block[kept])
            if sparse is None:
                # The first block decides, so that the dense form of a large sparse set is never held.
                sparse = bool(np.count_nonzero(readable) < _SPARSE_BELOW * readable.size)
            blocks.append(_compressed(readable) if sparse else readable)
            labels.append(np.asarray(block_labels[kept], dtype=np.int64))
    if not blocks:
        return np.zeros((0, dimension)), np.zeros(0, dtype=np.int64)
    return _stack(blocks), np.concatenate(labels)


def _compressed(features: Floats) -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix(features)


def _stack(blocks: list[Any]) -> Any:
    if isinstance(blocks[0], np.ndarray):
        return np.concatenate(blocks)
    from scipy.sparse import vstack

    return vstack(blocks, format="csr")
