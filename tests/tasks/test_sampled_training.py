"""DP-SGD through the door: an account under replace-special is charged slack and μ; one under replace-one refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpalgos.guarantees import Neighbours, SlackGaussian, loss_from_json
from dpalgos.parameters import ParameterError
from storage.errors import RefusedError
from tasks.accounts.ledger import open_ledger
from tests.support.chains import charges, followed, ingest_private

QUICK: dict[str, Any] = {"trainer": "dp-sgd", "parameters": {"iterations": 4, "sampling_rate": 0.5}}


@pytest.mark.parametrize("trust", ["central", "local"])
def test_an_account_under_replace_special_is_charged(trust: str, root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", relation=Neighbours.REPLACE_SPECIAL)
    result = followed(**QUICK, trust=trust)
    assert result.proved is not None
    assert result.proved.epsilon == pytest.approx(1.0, rel=1e-3)
    assert result.proved.epsilon <= 1.0 + 1e-9
    assert result.proved.mu is None, "a Gaussian part and slack are no mu"
    assert result.proved.neighbours == Neighbours.REPLACE_SPECIAL
    assert "secret-participation" in result.proved.assumptions
    charged = open_ledger().charges("clinic")
    assert len(charged) == (1 if trust == "central" else 2)
    (loss,) = [loss_from_json(loss) for loss in charged[0].guarantee["losses"]]
    assert isinstance(loss, SlackGaussian)
    assert loss.slack == pytest.approx(1e-6)
    again = followed(**QUICK, trust=trust)
    assert again.releases == result.releases
    assert len(charges()) == len(charged)


def test_an_account_under_replace_one_admits_none(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input")
    with pytest.raises(ParameterError, match="Lebeda"):
        followed(**QUICK)
    with pytest.raises(RefusedError, match="2 rows"):
        followed(**QUICK, neighbours="replace-special")
    assert charges() == []
