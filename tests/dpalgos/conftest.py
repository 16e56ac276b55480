"""Fixtures of tests of algorithms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dpalgos.accounting import composition


@pytest.fixture
def coarse_accounting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let curves of sampled steps, of which the test asserts no number, have a tenth of the cells: they are higher."""
    monkeypatch.setattr(composition, "_SAMPLED_CELLS", 1000)
    composition.noise_multiplier.cache_clear()
    yield
    composition.noise_multiplier.cache_clear()
