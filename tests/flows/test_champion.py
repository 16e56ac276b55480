"""A new version against the champion: compared on held-out rows at a price, promoted if better, rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.evaluators.noisy_sums import accuracy_gain
from dpalgos.models import predicted_classes
from flows.comparison import champion_comparison
from flows.federated_training import chain_inline
from storage.errors import InputError, OverspendError, RefusedError
from storage.refs import ReleaseRef, Visibility
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.release.door import maps_of, rows_of
from tasks.tracking.models import (
    Comparison,
    ComparisonRequest,
    compare_models,
    find_model,
    note_audit,
    open_comparison,
    promote,
    roll_back,
)
from tasks.tracking.reporting import run_report
from tasks.tracking.runs import track_run
from tests.support.chains import charges, configured, ingest_private, prepare
from tests.support.engines import Engine
from tests.support.private_rows import CLASSES, DIMENSION, write_rows

MODEL = "clinic.noisy-gd"
SPLIT: dict[str, Any] = {"algorithm": "noisy-gd", "test_fraction": 0.25, "evaluation": True}


def trained(root: Path, dataset: str = "clinic", at_most: float = 1.0, **config: Any) -> None:
    """Train, and log the model as the step does that records runs; anew until it is right of so many rows at most.

    A model of next to no budget is good one time in ten, by chance.
    """
    for replicate in range(30):
        asked = configured(dataset, **{**SPLIT, **config, "replicate": replicate})
        chained = chain_inline(asked)
        if right_share(dataset, next(iter(chained.models.values()))) <= at_most:
            track_run(root, run_report(asked, chained))
            return
    raise AssertionError("no such model in thirty")


@pytest.fixture(scope="module")
def contested(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a root with a champion that was trained at next to no budget, and a version that is better."""
    folder = tmp_path_factory.mktemp("contested")
    root = folder / "root"
    engine.prepare(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(root))
        patch.setenv("UNITBALL_LEDGER_MARK", str(folder / "marks"))
        ingest_private(folder / "input", 1200, epsilon_cap=9.0)
        trained(root, epsilon=0.02, at_most=0.8)
        trained(root, epsilon=4.0)
        yield root


def test_who_may_become_champion(contested: Path) -> None:
    with pytest.raises(RefusedError, match="noisy-gd was not audited"):
        promote(contested, MODEL, "1")
    note_audit(contested, "noisy-gd", "consistent", "fine")
    promote(contested, MODEL, "1")
    assert find_model(contested, f"{MODEL}@champion").version == "1"
    with pytest.raises(RefusedError, match="not compared with the champion, version 1"):
        promote(contested, MODEL, "2")
    # Other aliases are not what models are used by.
    promote(contested, MODEL, "2", "challenger")
    with pytest.raises(InputError, match="was champion before the present one"):
        roll_back(contested, MODEL)
    with pytest.raises(InputError, match="is the champion itself"):
        open_comparison(contested, f"{MODEL}/1")


def test_measurements_that_were_paid_for_cost_nothing_more(contested: Path) -> None:
    """The champion's was so noisy that nothing is shown by it, and nobody is promoted for that."""
    paid = charges()
    model_comparison = open_comparison(contested, f"{MODEL}/2")
    compared = compare_models(contested, model_comparison, None, [], None)
    assert charges() == paid
    assert not compared.better
    assert compared.epsilon is None
    other = model_comparison.lineages[1].model_copy(update={"measured": None})
    with pytest.raises(InputError, match="not measured on the same held-out rows"):
        compare_models(
            contested,
            model_comparison.model_copy(update={"lineages": (model_comparison.lineages[0], other)}),
            None,
            [],
            None,
        )


def test_a_comparison_is_charged_once_and_decides(contested: Path) -> None:
    paid = len(charges())
    request = ComparisonRequest(model=f"{MODEL}/2", epsilon=2.0)
    compared = champion_comparison(request)
    assert len(charges()) == paid + 1
    assert champion_comparison(request) == compared, "equal words name the same release"
    assert len(charges()) == paid + 1
    assert compared.better
    assert exact_gain(contested) == pytest.approx(compared.gain, abs=compared.margin)
    with pytest.raises(OverspendError):
        champion_comparison(ComparisonRequest(model=f"{MODEL}/2", epsilon=50.0))
    assert len(charges()) == paid + 1
    assert find_model(contested, f"{MODEL}@champion").version == "1", "nobody asked for a promotion"
    champion_comparison(ComparisonRequest(model=f"{MODEL}/2", epsilon=2.0, promote=True))
    assert find_model(contested, f"{MODEL}@champion").version == "2"
    assert roll_back(contested, MODEL) == "1"
    assert find_model(contested, f"{MODEL}@champion").version == "1"


def exact_gain(root: Path) -> float:
    """Return by how many of the held-out rows the new version is right more often."""
    new, old = (right_share("clinic", list(one.path)) for one in open_comparison(root, f"{MODEL}/2").lineages)
    return new - old


def right_share(dataset: str, path: list[ReleaseRef]) -> float:
    """Return of how many of the held-out rows a model is right."""
    held_out = prepare(dataset, **{**SPLIT, "epsilon": 4.0}).shards.held_out
    assert held_out is not None
    found = 0
    for scores, labels, _ in rows_of(held_out, maps_of(path), 1).blocks():
        found += int(np.sum(predicted_classes(np.asarray(scores, dtype=np.float64)) == labels))
    return found / held_out.rows


def test_public_rows_decide_exactly(engine: Engine, tracked_root: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "open.txt", 1200)
    public = {"visibility": Visibility.PUBLIC, "dimension": DIMENSION, "classes": CLASSES}
    ingest(IngestRequest.model_validate({"name": "open", "format": "libsvm", "path": rows.path, **public}))
    trained(tracked_root, "open", epsilon=0.02, at_most=0.8)
    trained(tracked_root, "open", epsilon=4.0)
    note_audit(tracked_root, "noisy-gd", "consistent", "fine")
    promote(tracked_root, "open.noisy-gd", "1")
    compared = champion_comparison(ComparisonRequest(model="open.noisy-gd/2", promote=True))
    assert compared.better
    assert compared.epsilon is None
    assert "300 public rows" in compared.how
    assert find_model(tracked_root, "open.noisy-gd@champion").version == "2"


def test_the_margin_holds_as_often_as_it_says() -> None:
    """Of two models that are equally good, the second is called better in at most one of twenty comparisons."""
    generator = np.random.default_rng(5)
    rows, deviation, better = 400, 3.0, 0
    for _ in range(4000):
        drawn = generator.multinomial(rows, [0.1, 0.1, 0.8])[:2] + deviation * generator.standard_normal(2)
        gain, margin = accuracy_gain(drawn, rows, deviation)
        better += gain > margin
    # Three standard errors above 5 %.
    assert better / 4000 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4000)
    assert accuracy_gain(np.array([0.0, 0.0]), rows, 0.0) == (0.0, 0.0)


def test_an_outcome_in_a_line() -> None:
    given = {"model": "a.b", "version": "2", "champion": "1", "gain": 0.02, "margin": 0.03, "how": "300 public rows"}
    assert "not shown to be better than the champion, version 1: accuracy +0.0200" in Comparison(**given).statement
    assert Comparison(**{**given, "gain": 0.04}).better
