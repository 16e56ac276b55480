"""Measuring by group, from a declared column to what a run says of each of its values."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dpalgos.evaluators.by_group import ConfusionByGroup
from dpalgos.group_margins import GroupEstimates
from dpalgos.parameters import ParameterError
from flows.federated_training import chain_inline
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef, Visibility
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.exports.archive import export_run
from tasks.exports.verifying import _RefutedError, _require_the_same_rows, verify
from tasks.federation.protocol import require_carried
from tasks.planning.configuration import TrainingConfig
from tasks.planning.graph import materialise
from tasks.planning.plans import noise_of
from tasks.planning.rows import Shards
from tasks.preparation.making import make_rows
from tasks.preparation.prepare import AllRows, is_current, prepare_over, whole
from tasks.preparation.prepare import prepare as planned
from tasks.records import record
from tasks.release.expectation import expect_run
from tasks.release.metrics import measure_by_releases
from tasks.release.seen_rows import maps_of, rows_of
from tasks.release.storing import read_release
from tasks.tracking.reporting import figure_files
from tasks.tracking.results import (
    NOT_MEASURED,
    RunResult,
    append_result,
    difference_lines,
    group_lines,
    rests_on,
)
from tests.support.called import runs_called
from tests.support.chains import Prepared, charges, configured, followed, prepare
from tests.support.command_line import CommandLine
from tests.support.nights import spanning
from unitball.accounts import read_budget
from unitball.training import TrainedModel

COLUMNS = """
columns:
  - {{name: sex, type: category, values: [female, male, other]}}
  - {{name: age, type: numeric, range: [10, 90]}}
  - {{name: income, type: numeric, range: [0, 100000], scale: log}}
  - {{name: smoker, type: boolean}}
  - {{name: stage, type: numeric, ordered: [I, II, III, IV]}}
  - {{name: seen, type: date, range: [2020-01-01, 2024-12-31], parts: [days, month]}}
  - {{name: note, type: ignore}}
  - {{name: town, type: category, hash: 4}}
  - {{name: ill, type: label, {label}}}
missing: {{marker: "", rows: {missing}}}
scaling: {scaling}
"""
HEADINGS = ("sex", "age", "income", "smoker", "stage", "seen", "note", "town", "ill")
SEXES, SEX_SHARES = ["female", "male", "other", ""], [0.5, 0.44, 0.02, 0.04]
STAGES = ("I", "II", "III", "IV")

Line = tuple[str, ...]


@cache
def table(count: int, seed: int = 0, *, real: bool = False, missing: bool = True) -> list[Line]:
    """Return lines of cells in which the model is right about most, and one sex is rare."""
    random = np.random.default_rng(seed)
    sexes = random.choice(SEXES if missing else SEXES[:3], count, p=SEX_SHARES if missing else [0.5, 0.48, 0.02])
    lines: list[Line] = []
    for sex in sexes.tolist():
        age, blank = int(random.integers(10, 91)), missing and random.random() < 0.05
        ill = age + 15.0 * (sex == "male") + random.normal(0, 8) > 55
        lines.append(
            (
                sex,
                "" if blank else str(age),
                f"{math.exp(random.uniform(0, 11)):.2f}",
                str(random.choice(["yes", "no"])),
                str(random.choice(STAGES)),
                str(np.datetime64("2020-01-01") + int(random.integers(0, 1827))),
                "n",
                "t",
                f"{age / 10:.1f}" if real else "yes" if ill else "no",
            )
        )
    return lines


def bring_in(folder: Path, count: int = 600, *, name: str = "clinic", held_out: int = 0, **given: Any) -> DatasetRef:
    real, missing = given.pop("real", False), given.pop("missing", "indicator")
    scaling = given.pop("scaling", "centred")
    label = "range: [0, 10]" if real else f'classes: ["no", "yes"{given.pop("more", "")}]'
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.yaml").write_text(COLUMNS.format(label=label, missing=missing, scaling=scaling))
    paths = {}
    for part, lines in (("train", count), ("test", held_out)):
        rows = table(lines, seed=len(part), real=real, missing=missing != "refuse")
        paths[part] = folder / f"{part}.csv"
        paths[part].write_text("\n".join([",".join(HEADINGS), *map(",".join, rows)]) + "\n")
    private = given.get("visibility", Visibility.PRIVATE) is Visibility.PRIVATE
    return ingest(
        IngestRequest(
            name=name,
            format="csv",
            path=paths["train"],
            test_path=paths["test"] if held_out else None,
            schema_path=folder / "schema.yaml",
            **({"epsilon_cap": 1e6, "delta_cap": 1e-4} if private else {}),
            **given,
        )
    )


def expected(by: str, lines: list[Line]) -> Counter[str]:
    """Return how many lines are of each group, told from their cells."""
    found: Counter[str] = Counter()
    for line in lines:
        cell = line[HEADINGS.index(by)]
        if not cell:
            found["missing"] += 1
        elif by == "smoker":
            found[{"yes": "true", "no": "false"}[cell]] += 1
        elif by == "age":
            low = min(10 + 10 * ((int(cell) - 10) // 10), 80)
            found[f"{low} to {low + 10}" if low == 80 else f"{low} to below {low + 10}"] += 1
        elif by == "income":
            found[str(min(int(8 * math.log1p(float(cell)) / math.log1p(1e5)), 7))] += 1
        elif by == "seen":
            days = int((np.datetime64(cell) - np.datetime64("2020-01-01")).astype(int))
            found[str(min(int(8 * days / 1826), 7))] += 1
        else:
            found[cell] += 1
    return found


def numbered(by: str, rows: dict[str, float]) -> dict[str, float]:
    """Return numbers by group, under the place of a bracket where that is what is expected."""
    if by not in ("income", "seen"):
        return {name: of for name, of in rows.items() if of}
    return {str(place) if name != "missing" else name: of for place, (name, of) in enumerate(rows.items()) if of}


# ── which group a row belongs to ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("by", "normalisation"),
    spanning(["sex", "age", "income", "smoker", "stage", "seen"], ["none", "unit-norm", "clip"], every=3),
)
def test_rows_belong_to_the_group_that_their_cell_says(by: str, normalisation: str, root: Path, tmp_path: Path) -> None:
    """Public rows are measured exactly, so that every count is checked; edges and scaled rows among them."""
    bring_in(tmp_path / "input", 60, held_out=300, visibility=Visibility.PUBLIC)
    result = followed(algorithm="non-private", by=by, normalisation=normalisation)
    assert result.by_group is not None
    rows = {name: np.sum(counts) for name, counts in result.by_group.confusion.items()}
    assert numbered(by, rows) == dict(expected(by, table(300, seed=4)))
    assert np.array_equal(np.sum(list(result.by_group.confusion.values()), axis=0), result.confusion)
    # The run with groups is another one, of the same model.
    plain = followed(algorithm="non-private", normalisation=normalisation)
    assert plain.run_key != result.run_key
    assert plain.releases == result.releases
    assert plain.metrics == result.metrics


def test_numbers_of_public_groups_are_those_of_their_own_rows(root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path / "input", 300, visibility=Visibility.PUBLIC, missing="refuse")
    result = followed(algorithm="non-private", by="sex", test_fraction=0.0)
    assert result.by_group is not None
    assert result.measured_on == "training rows"
    assert list(result.by_group.metrics) == ["female", "male", "other"], "nothing can be missing"
    for group, metrics in result.by_group.metrics.items():
        counts = np.array(result.by_group.confusion[group])
        assert metrics["accuracy"] == pytest.approx(np.trace(counts) / counts.sum())
        assert metrics["predicted_yes"] == pytest.approx(counts[:, 1].sum() / counts.sum())
    assert all(NOT_MEASURED not in cell for line in group_lines(result) for cell in line)
    (first, *_) = result.by_group.differences
    female, male = (result.by_group.metrics[name]["accuracy"] for name in ("female", "male"))
    assert (first.group, first.less) == ("female", "male")
    assert first.metrics == {**first.metrics, "accuracy": female - male}


# ── the charged release ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "evaluator"),
    [
        ({"algorithm": "unitball"}, "confusion-by-group"),
        ({"algorithm": "noisy-gd", "trust": "secagg", "parameters": {"iterations": 5}}, "confusion-by-group"),
        ({"algorithm": "dpml"}, "laplace-confusion-by-group"),
    ],
)
def test_a_private_table_with_a_tiny_group_is_measured_at_the_price_of_one_matrix(
    config: dict[str, Any], evaluator: str, root: Path, tmp_path: Path
) -> None:
    """At epsilon 1000 there is next to no noise, and counts of groups are the rows'; at 1 margins say what is."""
    bring_in(tmp_path / "input", 800, held_out=400, allow_idealised=True)
    asked: dict[str, Any] = {"evaluation": True, **config}
    exact = followed(epsilon=1000.0, by="sex", **asked)
    assert exact.by_group is not None
    rows = {name: round(float(np.sum(counts))) for name, counts in exact.by_group.confusion.items()}
    assert rows == dict(expected("sex", table(400, seed=4)))
    assert exact.measured_on == "held-out rows, noisy"

    plain, before = followed(epsilon=1.0, **asked), len(charges())
    result = followed(epsilon=1.0, by="sex", **asked)
    # Measured once more, by group: one charge a model, of the evaluation alone.
    assert len(charges()) - before == max(len(result.by_party), 1)
    assert plain.releases == result.releases
    plan = prepare(epsilon=1.0, by="sex", **asked).plan
    *_, counting = plan.evaluations
    assert counting.name == evaluator
    assert len(counting.guarantee().losses) == 1
    assert counting.guarantee().losses == prepare(epsilon=1.0, **asked).plan.evaluations[-1].guarantee().losses
    assert result.by_group is not None
    algorithm = counting.build()
    assert isinstance(algorithm, ConfusionByGroup)
    # The matrix of the run before is taken, and no row is counted among all rows again.
    (earlier, *_) = plan.earlier
    assert (algorithm.whole, result.by_group.combined) == (0, True)
    estimates = GroupEstimates.of_release(algorithm, noise_of(counting), noise_of(earlier))
    noise, of_all = estimates.deviations
    assert of_all == pytest.approx(math.sqrt(4.0 / 5.0) * noise_of(earlier), rel=0.02)
    whole = expected("sex", table(400, seed=4))
    for group, counts in result.by_group.confusion.items():
        metrics, found = result.by_group.metrics[group], float(np.sum(counts))
        # Of four counts. A Laplace sum is beyond eleven deviations with less than 1e-9, a Gaussian beyond 6.2.
        assert abs(found - whole[group]) < 11.0 * 2.0 * noise
        # The mean over models of margins, each of which begins at 0 or above, is no narrower.
        above, margin = metrics["rows_high"] - max(found, 0.0), 1.96 * 2.0 * noise
        assert above > margin - 0.01 if result.by_party else above == pytest.approx(margin, abs=0.01)
        line = next(line for line in group_lines(result) if line[0] == group)
        assert (line[2] == NOT_MEASURED) is not metrics.is_known("accuracy")
    # The matrix of all rows is the groups' sum, and its accuracy is said to have the noise of the estimate.
    together = np.sum(list(result.by_group.confusion.values()), axis=0)
    assert np.allclose(result.confusion, together, atol=0.01)
    total = together.sum()
    share = min(max(np.trace(together) / total, 0.0), 1.0)
    spread = math.sqrt(2.0 * (1.0 - share) ** 2 + 2.0 * share**2)
    if not result.by_party:
        assert result.metrics["accuracy_noise"] == pytest.approx(spread * of_all / total, rel=1e-3)


@pytest.mark.parametrize("trust", ["secagg", "local"])
def test_parties_own_held_out_rows_are_counted_by_group_as_the_trust_model_has_it(
    trust: str, root: Path, tmp_path: Path
) -> None:
    """Two parties train, two others hold out: one sum over both, masked under secagg, noisy at each under local."""
    bring_in(tmp_path / "input", 800)
    config = configured(algorithm="noisy-gd", trust=trust, epsilon=1000.0, evaluation=True, by="sex", parties=4)
    prepared = whole(planned(config))
    materialise(prepared.rows, lambda node, _: make_rows(node))
    parties, (grouping, _) = prepared.shards.training, prepared.plan.evaluations
    references = AllRows(training=parties[:2], held_out=parties[2:], groups=grouping.algorithm)
    plan = prepare_over(prepared.config, references).plan
    counting = plan.evaluations[-1]
    assert str(counting.setting.trust) == trust
    assert counting.parties == ("2", "3")
    assert counting.guarantee().losses
    shards = Shards(training=parties)
    run = Prepared(parties[0].dataset, shards, plan)
    run.charge()
    made = run.make()
    found = read_release(made[counting.key]).values
    cells = np.zeros(4)
    for shard in parties[2:]:
        for features, *_ in rows_of(shard, maps_of([made[plan.evaluations[0].key]]), 1).blocks():
            cells += np.bincount(features[:, 0].astype(int), minlength=4)
    algorithm = counting.build()
    assert isinstance(algorithm, ConfusionByGroup)
    # Of four counts each, with a false alarm of 1e-9.
    beyond = 6.2 * 2.0 * algorithm.deviation(counting.setting) * counting.setting.noise_factor
    assert np.allclose(found.sum(axis=(1, 2)), [*2 * cells, cells.sum()], atol=beyond)
    assert beyond < 15.0
    (path,) = plan.paths().values()
    said = measure_by_releases(plan, {"all": [made[key] for key in path]}, made)
    assert said.by_group is not None
    assert list(said.by_group.metrics) == ["female", "male", "other", "missing"]


def test_an_earlier_matrix_of_the_same_rows_is_used_once_charged_and_composed(root: Path, tmp_path: Path) -> None:
    """The result rests on both releases: key, epsilon, sentence. A run that was there before stays as it is."""
    bring_in(tmp_path / "input", 800, held_out=400)
    asked: dict[str, Any] = {"algorithm": "noisy-gd", "evaluation": True}
    first = followed(by="sex", **asked)
    assert first.by_group is not None
    assert not first.by_group.combined
    early = planned(configured(by="smoker", **asked))
    assert is_current(early)
    plain, before = followed(**asked), charges()
    assert not is_current(early)
    assert followed(by="sex", **asked) == first.model_copy(update={"cached": True})
    assert charges() == before
    # Of another column's groups nothing was counted yet.
    waiting = planned(configured(by="smoker", **asked))
    result = followed(by="smoker", **asked)
    assert result.by_group is not None
    assert result.by_group.combined
    assert len(charges()) == len(before) + 1
    assert is_current(waiting)
    assert set(plain.evaluations) < set(result.evaluations)
    assert set(plain.evaluations) <= set(result.identity.evaluation[1])
    # Two releases of the held-out rows at one μ: √2 of it in all.
    assert result.mu_spent == pytest.approx(math.sqrt(2.0) * float(plain.mu_spent or 0.0), rel=1e-6)
    assert result.epsilon_charged == pytest.approx(plain.epsilon_spent, rel=1e-6)
    assert float(result.epsilon_spent or 0.0) > 1.3 * float(plain.epsilon_spent or 0.0)
    assert "confusion matrix of its held-out rows (" in rests_on(result)
    again = planned(configured(by="smoker", **asked))
    assert whole(again).plan.run_key == result.run_key


def test_a_run_on_an_earlier_matrix_is_verified_and_no_other_matrix_passes(root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path / "input", 800, held_out=400)
    for by in (None, "sex"):
        config = configured(algorithm="noisy-gd", evaluation=True, by=by)
        chained = chain_inline(config)
        append_result(whole(planned(config)).config, chained.result)
    data, _, _ = export_run(chained.result.run_key[:10])
    (tmp_path / "run.zip").write_bytes(data)
    found = verify(tmp_path / "run.zip")
    assert all(check.holds is not False for check in found.checks), found.checks
    assert found.epsilon == chained.result.epsilon_spent
    assert any("combined with counts of all" in check.detail for check in found.checks)
    matrix = chained.plan.earlier[0]
    for changed in ({"partition": "another"}, {"parties": ("9",)}, {"upstream": ()}):
        other = matrix.model_copy(update=changed)
        plan = chained.plan.model_copy(
            update={"evaluations": (other, *chained.plan.evaluations[1:]), "before": (other.key,)}
        )
        with pytest.raises(_RefutedError, match=other.key[:12]):
            _require_the_same_rows(plan)


def test_a_repeated_run_charges_nothing_and_says_the_same(root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path / "input", 500)
    first = followed(algorithm="noisy-gd", evaluation=True, by="age")
    spent = charges()
    assert followed(algorithm="noisy-gd", evaluation=True, by="age") == first.model_copy(update={"cached": True})
    assert charges() == spent


def test_people_are_counted_by_their_rows_groups_and_weigh_one(root: Path, tmp_path: Path) -> None:
    """Next to no noise: a person's rows of both sexes are half a person in either group."""
    folder = tmp_path / "input"
    folder.mkdir()
    random, lines = np.random.default_rng(1), []
    for person in range(400):
        rows = int(random.integers(1, 5))
        for _ in range(rows):
            sex = str(random.choice(["female", "male"]))
            lines.append(f"p{person},{sex},{random.uniform(-1, 1) + person % 2:.3f},{'yes' if person % 2 else 'no'}")
    (folder / "schema.yaml").write_text(
        "columns:\n"
        "  - {name: who, type: person, rows_per_person: 4}\n"
        "  - {name: sex, type: category, values: [female, male]}\n"
        "  - {name: x, type: numeric, range: [-1, 2]}\n"
        '  - {name: ill, type: label, classes: ["no", "yes"]}\n'
    )
    (folder / "rows.csv").write_text("\n".join(["who,sex,x,ill", *lines]) + "\n")
    ingest(
        IngestRequest(
            name="visits",
            format="csv",
            path=folder / "rows.csv",
            schema_path=folder / "schema.yaml",
            epsilon_cap=1e6,
            delta_cap=1e-4,
        )
    )
    result = followed("visits", algorithm="noisy-gd", epsilon=1000.0, evaluation=True, by="sex", test_fraction=0.5)
    assert result.by_group is not None
    assert list(result.by_group.metrics) == ["female", "male"]
    people = {name: float(np.sum(counts)) for name, counts in result.by_group.confusion.items()}
    # 200 people, each a person in all, to the part of a thousandth that shares are cut to.
    assert sum(people.values()) == pytest.approx(200, abs=0.5)
    assert min(people.values()) > 60
    assert not all(of == pytest.approx(round(of), abs=0.01) for of in people.values())
    lines_shown = group_lines(result)
    assert lines_shown[0][1] == "people"


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"by": "ill"}, "^by is ill"),
        ({"by": "agee"}, "^by is agee.*age"),
        ({"by": "note"}, "^by is note"),
        ({"by": "town"}, "values"),
        ({"by": "sex", "features": "random-fourier"}, "features or a public set"),
        ({"by": "sex", "test_fraction": 0.0}, "--test-fraction"),
    ],
)
def test_what_has_no_groups_is_refused_before_anything_is_charged(
    config: dict[str, Any], told: str, root: Path, tmp_path: Path
) -> None:
    bring_in(tmp_path / "input", 200)
    with pytest.raises((ParameterError, InputError, RefusedError), match=told):
        followed(evaluation=True, **config)
    assert charges() == []


@pytest.mark.parametrize(
    ("given", "config", "told"),
    [
        ({"real": True}, {"by": "sex"}, "by is sex.*numeric"),
        ({"missing": "constant"}, {"by": "age"}, "missing"),
        (
            {"scaling": "unit-interval"},
            {"by": "age", "algorithm": "noisy-gd", "normalisation": "unit-norm"},
            "--normalisation",
        ),
    ],
)
def test_what_rows_do_not_say_is_refused_with_the_way_out(
    given: dict[str, Any], config: dict[str, Any], told: str, root: Path, tmp_path: Path
) -> None:
    bring_in(tmp_path / "input", 200, **given)
    with pytest.raises((ParameterError, InputError), match=told):
        followed(evaluation=True, **config)
    assert charges() == []


def test_categories_and_unscaled_numbers_are_told_without_a_constant_feature(root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path / "input", 60, held_out=200, visibility=Visibility.PUBLIC, scaling="unit-interval")
    for by, normalisation in (("sex", "unit-norm"), ("age", "none"), ("smoker", "none")):
        result = followed(algorithm="non-private", by=by, normalisation=normalisation)
        assert result.by_group is not None
        rows = {name: np.sum(counts) for name, counts in result.by_group.confusion.items()}
        assert numbered(by, rows) == dict(expected(by, table(200, seed=4)))


@pytest.mark.parametrize(
    "config",
    [{"evaluation": False}, {"horizon": 3}],
)
def test_what_does_not_go_together_is_refused_by_its_names(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="`by`"):
        TrainingConfig(dataset="clinic", epsilon=1.0, by="sex", **config)


def test_rows_without_a_schema_have_no_groups(root: Path) -> None:
    with pytest.raises(ParameterError, match="--by"):
        planned(configured("digits", by="sex"))


# ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def logged(tracked_root: Path, tmp_path: Path) -> RunResult:
    """Return the recorded result of a run by sex on a private table."""
    bring_in(tmp_path / "input", 900)
    config = configured(algorithm="noisy-gd", evaluation=True, by="sex")
    prepared = whole(planned(config))
    return record.fn(prepared.config, *chain_inline(prepared.config))


def test_a_run_shows_its_groups_wherever_people_look(logged: RunResult, tracked_root: Path, tmp_path: Path) -> None:
    """The card, MLflow's numbers and figure, JSON, results in SQL, and an archive that verifies."""
    from deployments.cli.results_table import _groups
    from tasks.experiments.results import query_results
    from tasks.tracking.runs import tracking_client

    assert logged.by_group is not None
    with tracking_client(tracked_root) as client:
        run = client.get_run(str(logged.mlflow_run_id))
        files = {one.path for one in client.list_artifacts(str(logged.mlflow_run_id))}
    names = [name for name in run.data.metrics if name.startswith("by_sex/")]
    assert {"by_sex/female/accuracy", "by_sex/female/accuracy_low", "by_sex/female/rows"} <= set(names)
    card = run.data.tags["mlflow.note.content"]
    assert "### By sex" in card
    assert "| other |" in card
    assert "1.58 times the noise" in card
    assert "| female − male |" in card
    pairs = [line[0] for line in difference_lines(logged)[1:]]
    assert pairs[:3] == ["female − male", "female − other", "female − missing"]
    assert len(pairs) == 6
    assert "by_group.png" in files
    assert figure_files(logged)["by_group.png"].startswith(b"\x89PNG")
    document = json.loads(logged.model_dump_json())
    assert set(document["by_group"]["metrics"]) == {"female", "male", "other", "missing"}
    renamed = dict(zip(("[/x]", "[unknown]", "[red]a[/]", "b"), logged.by_group.metrics.values(), strict=True))
    as_markup = logged.model_copy(update={"by_group": logged.by_group.model_copy(update={"metrics": renamed})})
    screen = io.StringIO()
    for shown in _groups([as_markup]):
        Console(file=screen, width=200).print(shown)
    assert all(text in screen.getvalue() for text in renamed), "a category is text, whatever Rich would make of it"
    rows = query_results("""SELECT DISTINCT "by", "group" FROM metrics WHERE metric = 'accuracy'""")
    assert {"by": "sex", "group": "other"} in rows
    assert {"by": "", "group": ""} in rows
    data, _, _ = export_run(logged.run_key[:10])
    (tmp_path / "run.zip").write_bytes(data)
    assert all(check.holds is not False for check in verify(tmp_path / "run.zip").checks)


def test_a_plan_says_what_measuring_by_group_costs(root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path / "input", 500)
    config = configured(algorithm="noisy-gd", evaluation=True, by="sex")
    said = expect_run(config).measured_by
    assert said.startswith("4 groups by sex (female, male, other, missing)")
    assert "at the price of one matrix" in said
    assert "1.58 times that of a run that is not evaluated by group" in said
    assert expect_run(configured(algorithm="noisy-gd", evaluation=True)).measured_by == ""


def test_the_command_prints_a_table_of_groups_and_the_flow_shows_it(
    unitball: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the terminal, as JSON, in Prefect's result, and refused where rows are those of parties of their own."""
    shown: dict[str, str] = {}
    monkeypatch.setattr(
        "tasks.tracking.artifacts.create_markdown_artifact", lambda text, *, key, **_: shown.__setitem__(key, text)
    )
    bring_in(tmp_path / "input", 900)
    arguments = ["train", "--dataset", "clinic", "--algorithm", "noisy-gd", "--epsilon", "1", "--by", "sex"]
    printed = unitball(*arguments)
    assert printed.code == 0, printed
    assert "By sex" in printed.out
    assert [line.split()[0] for line in printed.out.splitlines() if " to " in line or NOT_MEASURED in line][-4:]
    assert "1.58 times the noise of a run that is not evaluated by group" in " ".join(printed.out.split())
    assert "| female |" in shown["result"]
    with runs_called():
        document = unitball(*arguments, "--json").json
    assert document["by_group"]["column"] == "sex"
    assert set(document["by_group"]["confusion"]) == {"female", "male", "other", "missing"}
    explained = unitball(*arguments, "--explain")
    assert "measured by 4 groups by sex" in explained.out
    assert "measured by 4 groups by sex" in " ".join(unitball(*arguments, "--plan").out.split())
    with pytest.raises(RefusedError, match=r"^by:"):
        require_carried(configured(by="sex", trust="secagg", evaluation=True))


def test_a_notebook_gets_a_line_a_group(root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path / "input", 900)
    config = configured(algorithm="noisy-gd", evaluation=True, by="sex")
    result = chain_inline(planned(config).config).result
    model = TrainedModel(result=result, pipeline=None, budget=read_budget(config.dataset))
    table_of_groups = model.by_group()
    assert table_of_groups.index.name == "sex"
    assert list(table_of_groups.index) == ["female", "male", "other", "missing"]
    assert {"rows", "rows_low", "accuracy", "accuracy_low", "recall_yes", "predicted_yes"} <= set(table_of_groups)
    differences = model.group_differences()
    assert ("female", "male") in differences.index
    of_two = differences.loc[("female", "male")]
    assert of_two["accuracy"] == table_of_groups["accuracy"]["female"] - table_of_groups["accuracy"]["male"]
    assert of_two["accuracy_low"] < of_two["accuracy"] < of_two["accuracy_high"]
    assert result.by_group is not None
    alone = result.by_group.model_copy(
        update={"metrics": {"female": result.by_group.metrics["female"]}, "differences": ()}
    )
    none = dataclasses.replace(model, result=result.model_copy(update={"by_group": alone})).group_differences()
    assert (len(none), none.index.names) == (0, ["group", "less"])
    assert list(none) == [name for name in differences if not name.endswith("_reason")]
    with pytest.raises(InputError, match="not evaluated"):
        dataclasses.replace(model, result=followed(algorithm="noisy-gd")).by_group()
