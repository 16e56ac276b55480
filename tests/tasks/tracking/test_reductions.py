"""`unitball reduce`: one release, its record in MLflow, and runs that rest on it at no charge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow.sklearn
import numpy as np
import pandas as pd
import pytest

import unitball
from dpalgos.accounting.composition import compose
from dpalgos.components import principal_components
from dpalgos.guarantees import GaussianMu
from storage.datasets import declared_table
from storage.encoder import TableEncoder, encoder_of
from storage.errors import InputError, PriceError, RefusedError
from tasks.datasets.registration import find_dataset
from tasks.planning.column_statistics import ReductionRequest
from tasks.release.moments import geometry_of, moments_in, plan_reduction
from tasks.release.single import price_of_plan
from tasks.release.storing import read_release, stored_release
from tasks.runtime.settings import current_layout, current_root
from tasks.tracking import reductions
from tasks.tracking.runs import tracking_client
from tests.support.command_line import CommandLine

ROWS = 1200
SCHEMA = {
    "columns": [
        {"name": "age", "type": "numeric", "range": [0, 100]},
        {"name": "height", "type": "numeric", "range": [100, 220]},
        {"name": "ward", "type": "category", "values": ["north", "south", "east"]},
        {"name": "ill", "type": "label", "classes": ["no", "yes"]},
    ]
}


@pytest.fixture
def clinic(root: Path) -> pd.DataFrame:
    random = np.random.default_rng(4)
    ill = random.random(ROWS) < 0.5
    frame = pd.DataFrame(
        {
            "age": np.clip(40 + 30 * ill + 8 * random.normal(size=ROWS), 0, 100),
            "height": np.clip(165 + 8 * random.normal(size=ROWS), 100, 220),
            "ward": random.choice(["north", "south", "east"], ROWS),
            "ill": np.where(ill, "yes", "no"),
        }
    )
    unitball.describe(frame, schema=SCHEMA, name="clinic", epsilon_cap=20.0, delta_cap=1e-5, plan=True)
    return frame


def test_rows_lie_within_the_declared_radius_about_the_declared_middle(clinic: pd.DataFrame) -> None:
    found = geometry_of(find_dataset("clinic"))
    encoder = encoder_of(declared_table(current_layout(), find_dataset("clinic")))
    assert isinstance(encoder, TableEncoder)
    extremes = pd.DataFrame({"age": [0, 100, 50], "height": [220, 100, 160], "ward": ["north", "east", "south"]})
    rows = encoder.transform(extremes)[:, found["varies"]] - np.array(found["origin"])[found["varies"]]
    norms = np.linalg.norm(rows, axis=1)
    assert norms[:2] == pytest.approx(found["mean_radius"], rel=1e-5)
    assert norms[2] < norms[0]
    assert len(found["varies"]) == 5


def test_a_reduction_is_charged_once_logged_and_reused(clinic: pd.DataFrame) -> None:
    with pytest.raises(PriceError, match=r"epsilon=0\.5"):
        unitball.reduce("clinic")
    two = unitball.reduce("clinic", epsilon=6.0, components=2)
    assert two["variance"][0] > two["variance"][1] > 0.0
    assert (two["low"] <= two["noisy"]).all()
    charges = unitball.budget("clinic").charges
    assert [charge.name for charge in charges] == ["second moments of the columns"]
    three = unitball.reduce("clinic", epsilon=6.0, components=3)
    assert three.attrs["paid"]
    assert three["variance"][:2].tolist() == two["variance"].tolist()
    assert len(unitball.budget("clinic").charges) == 1
    # In MLflow a transformer from raw columns to scores, and what is drawn and listed.
    with tracking_client(current_root()) as client:
        files = {one.path for one in client.list_artifacts(two.attrs["run"])}
        assert {reductions.SCREE, reductions.LOADINGS} <= files
        shown = client.get_run(two.attrs["run"]).data
        assert shown.metrics["epsilon_spent"] == 6.0
        assert shown.tags["proved"].startswith("(6, ")
        assert two.attrs["basis"] in shown.tags["mlflow.note.content"]
        (logged,) = client.search_logged_models(
            [client.get_experiment_by_name("clinic").experiment_id], f"source_run_id = '{two.attrs['run']}'"
        )
        scores = mlflow.sklearn.load_model(logged.model_uri).transform(clinic.drop(columns="ill").head(4))
    assert np.shape(scores) == (4, 2)

    trained = unitball.train("clinic", basis=two.attrs["basis"], dimension=2, epsilon=1.0, parties=1)
    result = trained.result
    assert len(unitball.budget("clinic").charges) == 2
    assert result.epsilon_charged == pytest.approx(1.0, abs=0.02)
    assert result.epsilon_spent is not None
    assert result.mu_spent is not None
    assert result.delta_spent is not None
    assert result.epsilon_spent > 6.0
    mus = GaussianMu(two.attrs["mu"]), GaussianMu(float(np.sqrt(result.mu_spent**2 - two.attrs["mu"] ** 2)))
    assert compose((mus[1],)).epsilon(result.delta_spent) == pytest.approx(1.0, abs=0.02)
    assert trained.predict(clinic.drop(columns="ill").head(4)).shape[0] == 4


def test_scores_of_two_components_are_counted_in_the_same_plan(
    clinic: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"epsilon": 6.0, "components": 2, "score_counts": True}
    counted: list[str] = []
    monkeypatch.setattr(reductions, "_draw_scores", lambda axes, scores, unit: counted.append(unit))
    found = unitball.reduce("clinic", **asked)
    assert unitball.reduce("clinic", **asked).attrs["paid"]
    charge: Any = unitball.budget("clinic").charges[0]
    assert len(unitball.budget("clinic").charges) == 1
    plan: Any = plan_reduction(ReductionRequest(dataset="clinic", **asked))
    reductions.figure_of(plan, 2)
    assert set(counted) == {"rows"}, "the figure names what is counted"
    attrs = found.attrs
    moments, scores = (stored_release(one) for one in plan.releases)
    assert moments is not None
    assert scores is not None
    # Two mechanisms in turn, of which the second reads rows through what the first has released.
    assert charge.mu == pytest.approx(np.hypot(*(one.budget.mu for one in plan.releases)), rel=1e-9)
    # A mutant that does not take the counts' share from the moments spends more than was asked for.
    assert compose((GaussianMu(charge.mu),)).epsilon(attrs["delta"]) == pytest.approx(6.0, rel=1e-6)
    assert plan.scores.build().sensitivity(plan.scores.setting) == pytest.approx(np.sqrt(2.0), rel=1e-12)
    released: Any = read_release(moments)
    decoded = moments_in(plan.moments, released)
    encoder: Any = encoder_of(declared_table(current_layout(), plan.dataset))
    geometry = geometry_of(plan.dataset)
    rows = encoder.transform(clinic.drop(columns="ill"))[:, geometry["varies"]]
    about = rows - np.array(geometry["origin"])[geometry["varies"]] - decoded.mean
    along = about @ principal_components(decoded, 2).directions
    counts, edges = np.array(attrs["scores"]["counts"]), attrs["scores"]["edges"]
    inside = [np.clip(one, ends[0], ends[-1]) for one, ends in zip(along.T, edges, strict=True)]
    exact = np.histogram2d(inside[0], inside[1], bins=list(map(np.asarray, edges)))[0]
    noise, deviation = counts - exact, attrs["scores"]["deviation"]
    assert deviation == pytest.approx(np.sqrt(2.0) / plan.scores.budget.mu, rel=0.01)
    # Six deviations, and a row whose float32 is at an edge.
    assert np.abs(noise).max() < 6.0 * deviation + 1.0
    assert noise.std() > 0.5 * deviation
    # The outermost cells hold few: lengths are those of the scores and not of the rows.
    assert exact[1:-1, 1:-1].sum() / ROWS > 0.5
    with tracking_client(current_root()) as client:
        files = {one.path for one in client.list_artifacts(attrs["run"])}
    assert files >= {reductions.SCREE, reductions.LOADINGS, reductions.SCORES}
    trained: Any = unitball.train("clinic", basis=attrs["basis"], dimension=2, epsilon=1.0, parties=1).result
    # What a model rests on is the moments, and no count of scores.
    own = trained.mu_spent**2 - plan.moments.budget.mu**2
    assert compose((GaussianMu(float(np.sqrt(own))),)).epsilon(trained.delta_spent) == pytest.approx(1.0, abs=0.02)


def test_people_are_counted_and_named_as_the_unit(clinic: pd.DataFrame, called: CommandLine) -> None:
    person = {"name": "who", "type": "person", "namespace": "clinic-patient"}
    unitball.describe(
        clinic.assign(who=[str(row // 2) for row in range(ROWS)]),
        schema={"columns": [person, *SCHEMA["columns"]]},
        name="people",
        account="people",
        epsilon_cap=20.0,
        delta_cap=1e-5,
        disjoint_people="other people",
        plan=True,
    )
    out = " ".join(called("reduce", "people", "--epsilon", 6).out.split())
    assert f"{ROWS // 2} people, 5 scaled columns, epsilon 6 at delta" in out
    assert "for a person (column who), account people" in out
    assert "noise alone reaches a variance of" in out


def test_what_does_not_serve_is_refused(clinic: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="none"):
        unitball.train("clinic", basis="0123456789ab", dimension=2, epsilon=1.0)
    with pytest.raises(InputError, match="epsilon"):
        unitball.reduce("clinic", epsilon=0.02)
    with pytest.raises(RefusedError, match="cap"):
        unitball.reduce("clinic", epsilon=25.0, components=1)
    assert price_of_plan(plan_reduction(ReductionRequest(dataset="clinic", epsilon=25.0))) is not None


def test_a_basis_of_an_earlier_version_says_so(clinic: pd.DataFrame) -> None:
    basis = unitball.reduce("clinic", epsilon=6.0, components=2).attrs["basis"]
    earlier = find_dataset("clinic").version
    more = pd.concat([clinic, clinic.iloc[:40]], ignore_index=True)
    unitball.describe(more, schema=SCHEMA, name="clinic", epsilon_cap=20.0, delta_cap=1e-5, plan=True)
    assert find_dataset("clinic").version != earlier
    with pytest.raises(InputError, match=f"version {earlier}.*{find_dataset('clinic').version}.*unitball reduce"):
        unitball.train("clinic", basis=basis, dimension=2, epsilon=1.0)
