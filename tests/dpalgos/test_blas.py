"""Sums of squares through SciPy's BLAS: the same numbers by either way, in place, and with the lock released."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from dpalgos import _blas
from dpalgos._blas import add_gram


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("shape", [(50, 7), (1, 1), (3, 40), (0, 5)])
def test_adds_to_the_lower_triangle(direct: bool, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    if not direct:
        monkeypatch.setattr(_blas, "_routine", lambda: None)
    random = np.random.default_rng(1)
    rows = random.integers(-50, 50, shape).astype(np.float64)
    before = random.integers(-9, 9, (shape[1], shape[1])).astype(np.float64)
    total = np.asfortranarray(before.copy())
    # Every second row: what is not contiguous is copied first.
    for given in (rows, np.repeat(rows, 2, axis=0)[::2]):
        total[:] = before
        add_gram(total, given)
        assert np.array_equal(np.tril(total), np.tril(before + rows.T @ rows))
        assert np.array_equal(np.triu(total, 1), np.triu(before, 1))


def test_scipy_exports_the_routine_as_it_is_called() -> None:
    """Without it sums of squares would go to one core."""
    routine = _blas._routine()
    assert routine is not None
    # A function of this type is called without the interpreter's lock.
    assert not type(routine)._flags_ & ctypes._FUNCFLAG_PYTHONAPI  # type: ignore[attr-defined]  # of ctypes' own
