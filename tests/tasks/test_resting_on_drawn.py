"""What is made with drawn rows rests on what they are drawn from: its epsilon composes it, or the run is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import unitball
from dpalgos.accounting.composition import compose
from dpalgos.guarantees import GaussianMu
from dpalgos.parameters import ParameterError
from flows.federated_training import chain_inline, choose
from flows.sweep import finish_point
from storage.documents import canonical_json
from storage.errors import InputError, RefusedError
from storage.frames import frame_of
from storage.readers.in_memory import DeclaredFrame
from storage.refs import Visibility
from tasks.accounts.ledger import open_ledger
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.exports.archive import COUNTED, RUN, export_run, pack, read
from tasks.exports.verifying import verify
from tasks.planning.configuration import TrainingConfig
from tasks.preparation.drawn import drawn_behind
from tasks.preparation.prepare import prepare, whole
from tasks.preparation.tuning import choose_on
from tasks.release.column_counts import plan_counts
from tasks.release.moments import plan_moments
from tasks.runtime.settings import current_root
from tasks.runtime.steps import inline
from tasks.tracking.reporting import keep_run, run_report
from tasks.tracking.results import Chained, rests_on, synthetic_of
from tests.support.tables import columns_of, table_of, train_on_table
from unitball import PrivateClassifier, PrivatePCA


@pytest.fixture(scope="module")
def drawn_from(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GaussianMu]:
    """Private visits, counts of them, and a set derived from what a server made of these: the loss of the counts."""
    folder = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(folder / "root"))
        patch.setenv("UNITBALL_LEDGER_MARK", str(folder / "marks"))
        _, run = train_on_table(folder, "two", epsilon=2.0)
        (path,) = run.models.values()
        (counts,) = run.plan.counts
        derive("visits-synthetic", path[0].key)
        # Visits of others, on an account of their own.
        derive_private(folder, "stays")
        (loss,) = counts.guarantee().losses
        assert isinstance(loss, GaussianMu)
        yield loss


def schema_of() -> dict[str, Any]:
    return {"format_version": 1, "columns": columns_of("two")}


def derive(name: str, synthesis: str, seed: int = 1) -> None:
    rows = DeclaredFrame(frame=frame_of(table_of("two", 400, seed=seed)), schema=schema_of())
    ingest(IngestRequest(name=name, visibility=Visibility.DERIVED), rows=rows, drawn={"synthesis": synthesis})


def derive_private(folder: Path, name: str) -> None:
    rows = DeclaredFrame(frame=frame_of(table_of("two", 500, seed=7)), schema=schema_of())
    ingest(IngestRequest(name=name, epsilon_cap=9.0, delta_cap=1e-6), rows=rows)


def asked(dataset: str, **given: Any) -> TrainingConfig:
    fields = {"algorithm": "noisy-gd", "epsilon": 1.0, "parties": 1, "evaluation": False, **given}
    return TrainingConfig.model_validate({"dataset": dataset, "parameters": {"trainer.iterations": 5}, **fields})


def together(config: TrainingConfig, counts: GaussianMu) -> tuple[float, float]:
    """What the run's own releases cost by themselves, and with the counts."""
    plan = whole(prepare(config)).plan
    (own,) = set(plan.losses_by_party().values())
    mu = math.sqrt(sum(loss.mu**2 for loss in own if isinstance(loss, GaussianMu)))
    both = compose((GaussianMu(mu), counts)).epsilon(config.stated_delta)
    return compose(own).epsilon(config.stated_delta), both


def test_a_model_of_drawn_rows_rests_on_their_synthesis(
    drawn_from: GaussianMu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = asked("visits-synthetic")
    run = chain_inline(config)
    own, both = together(config, drawn_from)
    assert run.result.proved is not None
    assert run.result.proved.epsilon == pytest.approx(both)
    assert run.result.epsilon_charged == pytest.approx(own)
    assert both > 1.1 * own
    assert run.result.synthetic == ("visits-synthetic",)
    assert "synthetic rows of visits-synthetic" in rests_on(run.result)
    # What is drawn is nobody's charge.
    assert whole(prepare(config)).plan.releases == run.plan.releases
    assert_carried(config, run, tmp_path, monkeypatch)


def assert_carried(config: TrainingConfig, run: Chained, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export of a run holds what its drawn rows rest on, in another root too; without it, the archive is refused."""
    with inline():
        keep_run(config, run)
    report = run_report(config, run)
    lineage = json.loads(str(report.files["lineage.json"]))
    assert lineage["synthetic"] == ["visits-synthetic"]
    assert lineage["drawn_from"] == list(run.plan.models[0].drawn_from)
    assert lineage["rests_on"] == [one.key for one in run.plan.drawn]
    assert "synthetic rows of visits-synthetic" in report.note
    assert report.tags["unitball.synthetic"] == "visits-synthetic"
    data = export_run(run.result.run_key)[0]
    (folder / "run.zip").write_bytes(data)
    members = dict(read(folder / "run.zip").members)
    (synthesis,) = run.plan.models[0].drawn_from

    def outcome(changed: Mapping[str, bytes]) -> set[str]:
        (folder / "run.zip").write_bytes(pack(changed, Ed25519PrivateKey.generate()))
        found = verify(folder / "run.zip")
        assert found.epsilon in (None, pytest.approx(run.result.epsilon_spent))
        return {check.what for check in found.checks if check.holds is False}

    with monkeypatch.context() as patch:
        patch.setenv("UNITBALL_ROOT", str(folder / "elsewhere"))
        patch.setenv("UNITBALL_LEDGER_MARK", str(folder / "marks"))
        assert not outcome(members)
        (said,) = (check.detail for check in verify(folder / "run.zip").checks if check.what == "run")
        assert synthesis[:12] in said
        assert "account visits" in said
        # What is left out, and a run that does not say what it rests on.
        run_file, counted = json.loads(members[RUN]), json.loads(members[COUNTED])
        for changed, failing in (
            ({name: one for name, one in members.items() if synthesis not in name}, "members"),
            ({name: one for name, one in members.items() if name != COUNTED}, "members"),
            ({**members, RUN: canonical_json({**run_file, "synthetic": []})}, "run"),
            ({**members, COUNTED: canonical_json([{**counted[0], "account": "others"}])}, "guarantees"),
            ({**members, COUNTED: canonical_json([{**counted[0], "person": "who"}])}, "prices"),
            ({**members, RUN: canonical_json({**run_file, **lower(run_file)})}, "epsilon"),
        ):
            assert failing in outcome(changed), failing


def lower(run: dict[str, Any]) -> dict[str, Any]:
    """What a run would state that does not compose what its drawn rows rest on."""
    own = run["epsilon_charged"]
    return {"epsilon_spent": own, "proved": {**run["proved"], "epsilon": own}}


def test_a_private_run_takes_drawn_rows_of_its_own_account_alone(drawn_from: GaussianMu) -> None:
    given: dict[str, Any] = {"public_dataset": "visits-synthetic"}
    given["parameters"] = {"trainer.iterations": 5, "public.components": 3}
    config = asked("visits", **given)
    plan = whole(prepare(config)).plan
    assert plan.synthetic == ("visits-synthetic",)
    own, both = together(config, drawn_from)
    (composed,) = set(plan.composed_by_party().values())
    assert compose(composed).epsilon(config.stated_delta) == pytest.approx(both)
    assert both > own
    with pytest.raises(RefusedError, match=r"visits.*stays"):
        prepare(asked("stays", **given))
    with pytest.raises(ParameterError, match="replace-special"):
        prepare(asked("visits", neighbours="replace-special", **given))


def test_nights_do_not_rest_on_drawn_rows(drawn_from: GaussianMu) -> None:
    with pytest.raises(InputError, match="visits-synthetic"):
        prepare(asked("visits", horizon=10, public_dataset="visits-synthetic"))


def test_a_chain_without_its_releases_is_refused(drawn_from: GaussianMu) -> None:
    derive("orphans", "0" * 64, seed=5)
    with pytest.raises(RefusedError, match="000000000000"):
        prepare(asked("orphans"))
    assert drawn_behind([find_dataset("visits")]).releases == ()
    (counts,) = drawn_behind([find_dataset("visits-synthetic")]).releases
    assert counts.guarantee().losses == (drawn_from,)
    assert drawn_behind([find_dataset("visits-synthetic")] * 2).names == ("visits-synthetic",)


def test_what_a_run_rests_on_anyway_is_composed_once(drawn_from: GaussianMu) -> None:
    plan = whole(prepare(asked("visits", algorithm="unitball", epsilon=2.0, parameters={}))).plan
    assert plan.counts
    assert plan.model_copy(update={"drawn": plan.counts}).composed_by_party() == plan.composed_by_party()


def test_an_estimator_of_public_rows_recognises_drawn_ones(drawn_from: GaussianMu) -> None:
    """A data frame that was drawn, fitted with public=True: the guarantee composes the counts, and says so."""
    rows, others = table_of("two", 400, seed=1), table_of("two", 400, seed=77)
    found = {}
    for name, table in (("drawn", pd.concat([rows.head(60), others.head(300)])), ("others", others)):
        model = PrivateClassifier(epsilon=1.0, algorithm="noisy-gd", schema=schema_of(), public=True, random_state=0)
        found[name] = model.fit(table.drop(columns="outcome"), table["outcome"]).guarantee_
    assert found["others"].proved is not None
    assert found["drawn"].proved is not None
    own = found["others"].proved
    assert own.mu is not None
    assert found["drawn"].proved.epsilon > 1.1 * own.epsilon
    assert found["drawn"].proved.mu is not None
    assert found["drawn"].proved.mu > drawn_from.mu
    assert "visits-synthetic" in str(found["drawn"])
    assert "synthetic" not in str(found["others"])
    with pytest.raises(RefusedError, match="visits-synthetic"):
        PrivatePCA(epsilon=1.0, delta=1e-6, n_components=2, schema=schema_of(), public=True).fit(rows)
    # By the lineage that a frame carries, whatever its cells are; one of another root is refused.
    others.attrs |= {"synthesis": find_dataset("visits-synthetic").synthesis}
    carried = model.fit(others.drop(columns="outcome"), others["outcome"]).guarantee_
    assert carried.proved is not None
    assert carried.proved.mu == pytest.approx(found["drawn"].proved.mu)
    others.attrs |= {"synthesis": "1" * 64}
    with pytest.raises(RefusedError, match="1" * 12):
        model.fit(others.drop(columns="outcome"), others["outcome"])


def test_a_basis_and_rows_drawn_from_drawn_rows_keep_the_lineage(drawn_from: GaussianMu) -> None:
    moments = plan_moments(find_dataset("visits-synthetic"), 0.5)
    moments.make()
    plan = whole(prepare(asked("visits-synthetic", basis=moments.planned.key[:12], dimension=2))).plan
    assert plan.synthetic == ("visits-synthetic",)
    assert drawn_from in next(iter(plan.composed_by_party().values()))
    reduced = unitball.reduce("visits-synthetic", epsilon=0.5, components=1, root=current_root()).attrs
    assert reduced["epsilon"] > 1.02 * 0.5
    assert reduced["synthesis"] == find_dataset("visits-synthetic").synthesis
    again = plan_counts(find_dataset("visits-synthetic"), 1.0)
    again.make()
    derive("twice", again.planned.key, seed=9)
    behind = drawn_behind([find_dataset("twice")])
    assert {one.name for one in behind.sources} == {"visits", "visits-synthetic"}
    assert len(behind.releases) == 2


def tuned(**given: Any) -> TrainingConfig:
    """A run whose clipping norm is chosen on drawn rows."""
    fields: dict[str, Any] = {"tune": {"clip": [1e-4, 0.5]}, "tuned_on": "visits-synthetic", "delta": 1e-6, **given}
    return asked(fields.pop("dataset", "visits"), **fields)


def test_what_is_chosen_on_drawn_rows_rests_on_their_synthesis(
    drawn_from: GaussianMu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tuned(trust="central")
    spent = {charge.key for charge in open_ledger().charges("visits")}
    choice = choose(config)
    best, _ = choice.scores[0]
    assert choice.config.parameters["clip"] == best["clip"]
    assert {charge.key for charge in open_ledger().charges("visits")} == spent
    assert choice.metric == "accuracy"
    assert "synthetic rows of visits-synthetic" in str(choice)
    run = chain_inline(config)
    own, both = together(choice.config, drawn_from)
    assert run.result.proved is not None
    assert run.result.proved.epsilon == pytest.approx(both)
    assert run.result.epsilon_charged == pytest.approx(own)
    assert both > 1.05 * own
    assert "synthetic rows of visits-synthetic" in rests_on(run.result)
    assert any("visits-synthetic" in reason for reason in run.plan.reasons)
    # The same values, chosen by nothing, are another release: the identity names the synthesis.
    untuned = whole(prepare(choice.config.model_copy(update={"tuned_on": None}))).plan
    assert untuned.models[0].key != run.plan.models[0].key
    assert run.plan.models[0].drawn_from == (find_dataset("visits-synthetic").synthesis,)
    assert_carried(config, run, tmp_path, monkeypatch)


def test_the_best_mean_over_the_draws_is_chosen_and_the_earlier_of_equal_ones(drawn_from: GaussianMu) -> None:
    """Candidates are trained at the run's epsilon, delta, relation and trust, with public seeds."""
    tried: list[TrainingConfig] = []

    def score(candidate: TrainingConfig) -> dict[str, float]:
        tried.append(candidate)
        return {
            "accuracy": {"0.1": 0.5, "0.2": 0.9, "0.3": 0.9}[str(candidate.parameters["clip"])]
            + 0.01 * (candidate.seed or 0)
        }

    config = tuned(tune={"clip": [0.1, 0.2, 0.3]}, epsilon=2.0, roc=True, evaluation=True, trust="secagg", parties=3)
    choice = choose_on(config, score)
    assert choice.config.parameters["clip"] == 0.2
    assert choice.config == config.model_copy(update={"tune": {}, "parameters": choice.config.parameters})
    assert [found for _, found in choice.scores] == pytest.approx([0.91, 0.91, 0.51])
    assert {(one.dataset, one.epsilon, one.delta, one.trust, one.parties, one.roc) for one in tried} == {
        ("visits-synthetic", 2.0, 1e-6, "secagg", 3, False)
    }
    assert [one.seed for one in tried] == [0, 1, 2] * 3
    assert choose_on(asked("visits"), score).config == asked("visits")


def test_python_and_sweeps_choose_on_drawn_rows_too(drawn_from: GaussianMu) -> None:
    given: dict[str, Any] = {"tune": {"clip": [1e-4, 0.5]}, "tuned_on": "visits-synthetic"}
    small: dict[str, Any] = {"algorithm": "noisy-gd", "trust": "central", "parties": 1, "evaluation": False}
    small["parameters"] = {"trainer.iterations": 5}
    model = unitball.train("visits", epsilon=0.5, delta=1e-6, **small, **given)
    assert model.result.synthetic == ("visits-synthetic",)
    assert "synthetic rows of visits-synthetic" in repr(model)
    assert model.result.epsilon_spent is not None
    assert model.result.epsilon_spent > 1.05 * 0.5
    result, shown = finish_point.fn(tuned(trust="central", epsilon=0.75), "a point", str(current_root()))
    assert result.synthetic == ("visits-synthetic",)
    assert shown.tags["unitball.synthetic"] == "visits-synthetic"
    assert "visits-synthetic" in synthetic_of([result])
    frame = unitball.frontier(dataset="visits-synthetic", algorithms=["noisy-gd"], epsilons=[1.0], seeds=1, parties=1)
    assert "visits-synthetic" in frame.attrs["rests_on"]


def test_what_values_are_not_chosen_on(drawn_from: GaussianMu) -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"dataset": "stays"}, RefusedError, r"account.*stays"),
        ({"tuned_on": "stays"}, RefusedError, "stays.*--tune"),
        ({"neighbours": "replace-special"}, ParameterError, "replace-special"),
        ({"parameters": {"clip": 0.2}}, ParameterError, "clip"),
        ({"tune": {"step_size": [float(step + 1) for step in range(65)]}}, ParameterError, "65"),
    ]
    for given, error, match in cases:
        with pytest.raises(error, match=match):
            choose(tuned(**given))
    with pytest.raises(ParameterError, match="visits-synthetic"):
        prepare(tuned())
    # Values that a person chose by hand rest on the rows as well.
    assert whole(prepare(tuned(tune={}))).plan.synthetic == ("visits-synthetic",)
