"""People through the chain: each in one shard with all rows, counted there, weighed in sums and in what is measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

from dpalgos.guarantees import Setting
from dpalgos.parameters import ParameterError
from flows import reproduction
from flows.federated_training import chain_inline
from flows.sweep import Outcome, SweepResult
from storage import arriving_people
from storage import shards as partitioned
from storage.datasets import open_people
from storage.errors import RefusedError, StorageError
from storage.people import Positions, StoredPeople
from storage.refs import DatasetRef, ShardRef, Visibility
from storage.rowfiles import RowFormat, StoredRows
from storage.shards import open_shard
from tasks.auditing.public_rows import public_sample
from tasks.datasets.registration import ingest, report_of
from tasks.datasets.request import IngestRequest
from tasks.experiments.records import WEIGHED
from tasks.experiments.results import query_results
from tasks.experiments.specifications import SweepSpec
from tasks.exports.archive import export_run
from tasks.exports.verifying import verify
from tasks.planning.configuration import TrainingConfig
from tasks.preparation.prepare import whole
from tasks.records import record
from tasks.release import metrics
from tasks.release.admission import admit
from tasks.release.expectation import expect_run
from tasks.release.preflight import require_feasible
from tasks.release.seen_rows import rows_of
from tasks.release.storing import read_release
from tasks.runtime.settings import current_layout, isolated_root
from tasks.tracking.lineage import trained_on_people
from tasks.tracking.model_versions import find_model
from tasks.tracking.reporting import run_report
from tasks.tracking.results import append_result
from tests.support.chains import configured, followed, prepare
from tests.support.command_line import CommandLine
from tests.support.rows import divided
from tests.support.stating import stating
from unitball.accounts import read_budget
from unitball.training import TrainedModel

MOST = 8
# Of the intercept, in parts of that of one of two numbers.
WEIGHT = 0.1 / np.sqrt(1.5)
SCHEMA = """
columns:
  - {{name: Patient, type: {kind}}}
  - {{name: number, type: numeric, range: [-1000, 1000]}}
  - {{name: other, type: numeric, range: [-1, 1]}}
  - {{name: sick, type: label, {label}}}
"""


def visits(counts: Sequence[int], seed: int = 0, first: int = 0) -> list[str]:
    """Return lines of so many rows a person: ``number`` says whose row it is, ``other`` which class, nearly."""
    random = np.random.default_rng(seed)
    lines = []
    for person, rows in enumerate(counts, first):
        sick = person % 2
        for other in np.clip((0.5 if sick else -0.5) + 0.4 * random.standard_normal(rows), -1, 1):
            lines.append(f"p{person},{person},{other:.4f},{'yes' if sick else 'no'}")
    return lines


def bring_in(
    folder: Path,
    lines: Sequence[str],
    *,
    name: str = "visits",
    most: int = MOST,
    label: str = 'classes: ["no", "yes"]',
    visibility: Visibility = Visibility.PRIVATE,
    test: Sequence[str] | None = None,
    party: str = "",
    kind: str = "",
    **request: Any,
) -> DatasetRef:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.yaml").write_text(SCHEMA.format(kind=kind or f"person, rows_per_person: {most}", label=label))
    paths = {}
    for part, rows in (("train", lines), ("test", test)):
        if rows is not None:
            paths[part] = folder / f"{part}.csv"
            paths[part].write_text("\n".join(["Patient,number,other,sick", *rows]) + "\n")
    private = {"epsilon_cap": 100.0, "delta_cap": 1e-4} if visibility is Visibility.PRIVATE else {}
    return ingest(
        IngestRequest(
            name=name,
            format="csv",
            path=None if party else paths["train"],
            parties={party: paths["train"]} if party else {},
            test_path=paths.get("test"),
            schema_path=folder / "schema.yaml",
            visibility=visibility,
            **{**private, **request},
        )
    )


COUNTS = [MOST + 5, 1, 3, 2, 5, *([1, 2, 4] * 65)]


def dealt_people(ref: DatasetRef, **config: Any) -> dict[str, ShardRef]:
    given = {"dataset": ref.name, "epsilon": 1.0, "parties": 3, "test_fraction": 0.25, **config}
    return {shard.party: shard for shard in divided(ref, TrainingConfig.model_validate(given)).all}


def people_of(shard: ShardRef) -> tuple[np.ndarray, np.ndarray]:
    """Return whose each stored row of a shard is, and its share."""
    blocks = [(features, shares) for features, _, shares in open_shard(current_layout(), shard).blocks()]
    features, shares = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    numbers = features[:, 0].astype(np.float64) / features[:, 2] * 1000 * WEIGHT
    return np.round(numbers).astype(np.int64), np.asarray(shares)


def require_whole_people(ref: DatasetRef) -> None:
    """Assert that each person has all rows in one shard, with their number beside each."""
    found = [people_of(shard) for shard in dealt_people(ref).values()]
    everybody = np.concatenate([np.unique(whose) for whose, _ in found])
    assert len(everybody) == len(np.unique(everybody)), "somebody is in two shards"
    assert len(everybody) == len(COUNTS)
    for whose, shares in found:
        _, places, counts = np.unique(whose, return_inverse=True, return_counts=True)
        assert np.array_equal(shares, counts[places]), "a share is another number than the person's rows"


# ── dealing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_people_are_dealt_whole_and_counted_over_all_their_rows(root: Path, tmp_path: Path) -> None:
    ref = bring_in(tmp_path / "input", visits(COUNTS))
    require_whole_people(ref)
    found = dealt_people(ref)
    assert sum(shard.rows for shard in found.values()) == len(COUNTS) == ref.rows
    assert max(people_of(shard)[1].max() for shard in found.values()) == MOST, "rows beyond the cap are left out"
    for shard in found.values():
        assert open_shard(current_layout(), shard).count == shard.rows
    # A second dealing finds what is there.
    assert dealt_people(ref) == found


def by_chunks(positions: Positions, records: int) -> Positions:
    return np.concatenate([_counted(part, records) for part in np.array_split(positions, 3)])


def _counted(positions: Positions, records: int) -> Positions:
    return np.bincount(positions[positions >= 0], minlength=records)[positions].astype(np.int32)


def test_shares_counted_by_chunks_are_caught(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random: np.random.Generator
) -> None:
    """The mutant: k of a part of the rows. Sorted by person it would hardly show, so rows come in any order."""
    ref = bring_in(tmp_path / "input", random.permutation(visits(COUNTS)).tolist())
    with monkeypatch.context() as patch:
        patch.setattr(partitioned, "record_sizes", by_chunks)
        with pytest.raises(AssertionError, match="number"):
            require_whole_people(ref)


def test_a_split_of_rows_is_caught(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: rows in the place of records, as many as there are of these."""
    ref = bring_in(tmp_path / "input", visits(COUNTS))

    honest = open_people(current_layout(), ref)
    assert honest is not None

    def every_row_its_own(*_: object) -> StoredPeople:
        places = np.arange(len(honest.since), dtype=np.int32) % ref.rows
        return honest._replace(positions={"train": places})

    monkeypatch.setattr(partitioned, "open_people", every_row_its_own)
    with pytest.raises(AssertionError, match="two shards"):
        require_whole_people(ref)


def test_sizes_and_places_follow_from_who_is_there_alone(root: Path, tmp_path: Path) -> None:
    """One person with 1 row or with many, another without any that is in order: nobody moves, no size changes."""
    few = bring_in(tmp_path / "few", visits([1, *COUNTS[1:]]))
    many = bring_in(tmp_path / "many", [*visits(COUNTS), "p3,2000,0,no"], on_violation="drop")
    others = [line for line in visits(COUNTS) if not line.startswith("p7,")]
    none = bring_in(tmp_path / "none", [*others, "p7,5000,0,no"], on_violation="drop")
    assert few.rows == many.rows == none.rows == len(COUNTS)
    found = [dealt_people(ref) for ref in (few, many, none)]
    assert len({tuple((party, shard.rows) for party, shard in each.items()) for each in found}) == 1
    held = [set(people_of(each["test"])[0].tolist()) for each in found]
    assert held[0] == held[1] == held[2] | (held[0] & {7})
    assert 10 < len(held[0]) < len(COUNTS) / 2


def test_who_is_held_out_stays_held_out_when_others_come(root: Path, tmp_path: Path) -> None:
    first = bring_in(tmp_path / "first", visits(COUNTS))
    later = bring_in(tmp_path / "later", [*visits(COUNTS[:9]), *visits([3] * 50, first=len(COUNTS))])
    assert later.rows == len(COUNTS) + 50, "who is not in the new version is counted"
    before, after = (set(people_of(dealt_people(ref)["test"])[0].tolist()) for ref in (first, later))
    assert {person for person in after if person < len(COUNTS)} == {person for person in before if person < 9}
    assert any(person >= len(COUNTS) for person in after)


def test_a_part_without_rows_is_a_shard_of_people(root: Path, tmp_path: Path) -> None:
    """Whether the only person of a part has a row that is in order is not seen in whether there is such a part."""
    tested = {"one": "p900,900,0,no", "none": "p900,5000,0,no"}
    found = [
        bring_in(tmp_path / name, visits(COUNTS), test=[row], on_violation="drop", name=name, account="clinic")
        for name, row in tested.items()
    ]
    assert [ref.test_rows for ref in found] == [1, 1]
    shards = [open_shard(current_layout(), dealt_people(ref)["test"]) for ref in found]
    assert [(rows.count, rows.stored) for rows in shards] == [(1, 1), (1, 0)]
    assert list(shards[1].blocks()) == []
    without = bring_in(tmp_path / "without", visits(COUNTS), name="one", account="clinic")
    assert without.test_rows == 0
    assert dealt_people(without)["test"].rows > 1


def test_the_number_of_files_says_nothing_of_the_number_of_rows(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.rowfiles._PART_BYTES", 1)
    monkeypatch.setattr(RowFormat, "block_rows", property(lambda _format: 16))
    ref = bring_in(tmp_path / "input", visits(COUNTS))
    assert {len(open_shard(current_layout(), shard).files) for shard in dealt_people(ref).values()} == {1}
    require_whole_people(ref)


def work_of(folder: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> tuple[int, int, int]:
    """Return how many rows are stored of a table in which one person has so many, and how many a run reads."""
    read, honest = 0, StoredRows.batches

    def counted(self: StoredRows, most: int) -> Any:
        nonlocal read
        for batch in honest(self, most):
            read += len(batch)
            yield batch

    with isolated_root(folder / "root"), monkeypatch.context() as patch:
        lines = [*[f"p0,{number % 1000},0.1,no" for number in range(rows)], *visits([1] * 299, first=1)]
        bring_in(folder, lines)
        patch.setattr(StoredRows, "batches", counted)
        followed("visits", algorithm="noisy-gd", evaluation=True)
        private = current_layout().private
        versions, shards = (
            [json.loads(path.read_bytes()) for path in private.rglob(name)] for name in ("dataset.json", "shard.json")
        )
        kept = sum(part["rows"] for body in versions for part in body["parts"].values())
        return kept, sum(body["rows"]["rows"] for body in shards), read


def test_nothing_after_ingestion_depends_on_how_far_beyond_the_limit_somebody_is(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: 300 people, at most 8 rows each, one with 8 rows against one with 3,000; and the mutant, no cut."""
    at, beyond = (work_of(tmp_path / str(rows), monkeypatch, rows) for rows in (MOST, 3000))
    assert at == beyond == (2 * 307, 307, 3 * 307)
    monkeypatch.setattr(arriving_people, "at_most", lambda positions, *_: positions)
    assert work_of(tmp_path / "mutant", monkeypatch, 3000)[2] > beyond[2] + 5000


def test_the_owner_is_told_how_many_of_the_kept_rows_can_train(commands: CommandLine, tmp_path: Path) -> None:
    """500 rows of five people, of which 40 train; and people of two parties' files, who count in the first."""
    schema = tmp_path / "schema.yaml"
    schema.write_text(SCHEMA.format(kind=f"person, rows_per_person: {MOST}", label='classes: ["no", "yes"]'))

    def written(name: str, counts: Sequence[int], first: int = 0) -> Path:
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["Patient,number,other,sick", *visits(counts, first=first)]) + "\n")
        return path

    rows = written("rows", [100] * 5)
    out = " ".join(commands("schema", "check", schema, "--path", rows).out.split())
    assert "500 rows - all rows fit the schema - 40 of the 500 rows that fit the schema can train" in out
    assert "(A null row is a private row whose person counts, and which itself does not." in out
    terms = ("--schema", schema, "--epsilon-cap", 3, "--delta-cap", 1e-4)
    answer = commands.succeeds("ingest", "visits", "--format", "csv", "--path", rows, *terms)
    assert answer["counts"]["train"]["kept"] == 500
    assert answer["taken"] == {"": {"kept": 500, "elsewhere": 0, "beyond": 460, "taken": 40}}
    parties = [f"--party={name}={written(name, *given)}" for name, given in PARTIES.items()]
    outcome = commands("ingest", "both", "--format", "csv", *parties, *terms)
    out = " ".join(outcome.out.split())
    told = "8 of the 12 kept rows of south can train: 1 exceed the 8 rows per person, 3 belong to people who count"
    assert "9 of the 9 kept rows of north can train" in out
    assert told in out
    assert "another file (private to you)" in out
    other = visits([50, 9, 8], first=600)
    rows.write_text("\n".join(["Patient,number,other,sick", *other]) + "\n")
    shown = commands("ingest", "shown", "--public", "--format", "csv", "--path", rows, "--schema", schema)
    said = " ".join(shown.out.split())
    assert "people who count in another file" in said
    assert "private to you" not in said
    ref = bring_in(tmp_path / "tested", visits([3, 9], first=80), test=visits([10, 2], first=82), name="tested")
    assert report_of(ref).taken == {
        "": {"kept": 12, "elsewhere": 0, "beyond": 1, "taken": 11},
        "test": {"kept": 12, "elsewhere": 0, "beyond": 2, "taken": 10},
    }


PARTIES: dict[str, tuple[list[int], int]] = {"north": ([3, 3, 3], 50), "south": ([3, 9], 52)}


# ── training ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "config",
    [
        {"algorithm": "unitball", "roc": True},
        {"algorithm": "noisy-gd", "trust": "secagg"},
        {"trainer": "output-perturbation", "trust": "local"},
        {"trainer": "class-means", "projection": "analyze-gauss", "dimension": 2},
        {"trainer": "sufficient-statistics", "features": "random-fourier", "parameters": {"features.frequencies": 4}},
    ],
)
def test_a_table_of_people_is_trained_on_and_measured(config: dict[str, Any], root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path / "input", visits(COUNTS * 3))
    result = followed("visits", evaluation=True, epsilon=8.0, **config)
    assert result.accuracy is not None
    assert result.accuracy > 0.6
    assert result.metrics["held_out_rows"] < len(COUNTS) * 3 / 2
    assert result.epsilon_spent == pytest.approx(8.0, rel=1e-3)


def test_every_number_of_people_says_what_it_weighs(tracked_root: Path, tmp_path: Path) -> None:
    """Guessing was right for 0.923 of the patients and 0.886 of their encounters, and the number said neither."""
    bring_in(tmp_path / "input", visits(COUNTS * 3), epsilon_cap=20.0)
    config = TrainingConfig(dataset="visits", algorithm="noisy-gd", epsilon=4.0, parties=2, roc=True)
    run = chain_inline(config)
    result = record.fn(config, *run)
    report = run_report(config, run)
    assert "each person counts as one" in str(report.tags["unitball.metrics"])
    assert "A probability is a share of people" in str(report.tags["unitball.metrics"])
    assert "Accuracy by person" in report.note
    (line,) = TrainedModel(result=result, pipeline=None, budget=read_budget("visits")).to_frame().to_dict("records")
    assert line["metrics_weigh"] == "people"
    assert query_results("SELECT DISTINCT metrics_weigh FROM runs") == [{"metrics_weigh": "people"}]
    assert query_results("SELECT DISTINCT weighs FROM metrics") == [{"weighs": "people"}]
    assert trained_on_people(tracked_root, find_model(tracked_root, "visits.noisy-gd"))
    spec = SweepSpec(name="of-people", set={"dataset": "visits"}, grid={"epsilon": [4.0]})
    outcome = Outcome(point=spec.points()[0], result=result)
    swept = SweepResult(name="of-people", outcomes=(outcome,), mlflow_run_id="", reused=0, seconds=None)
    assert "by person" in reproduction._setting(spec, swept)[WEIGHED]


@pytest.mark.parametrize("most", [1, MOST])
def test_plans_are_made_of_people(most: int, root: Path, tmp_path: Path) -> None:
    ref = bring_in(tmp_path / "input", visits(COUNTS), most=most)
    plan = whole(require_feasible(TrainingConfig(dataset="visits", algorithm="noisy-gd", epsilon=1.0, parties=2))).plan
    settings = [release.setting for release in (*plan.models, *plan.evaluations)]
    assert sum(sum(setting.sizes) for setting in settings) == ref.rows
    assert {setting.rows_per_person for setting in settings} == {most}
    expected = expect_run(TrainingConfig(dataset="visits", algorithm="noisy-gd", epsilon=1.0, parties=2))
    assert (expected.rows, expected.rows_per_person) == (ref.rows, most)
    assert expected.read_bytes == 4 * 3 * most * sum(settings[0].sizes)


@pytest.mark.parametrize("most", [1, MOST])
@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"trainer": "objective-perturbation"}, "Hessian"),
        ({"trainer": "dp-sgd", "neighbours": "replace-special"}, "SampledDescent"),
        ({"trainer": "smo-output-perturbation"}, "SmoOutputPerturbation"),
        (
            {"trainer": "smo-output-perturbation", "tune": {"C": [0.1, 0.2]}},
            "SmoOutputPerturbation",
        ),
        ({"trainer": "continual-class-means", "trust": "central"}, "by position"),
        ({"algorithm": "noisy-gd", "partition": "by-label"}, "'by-label'.*private"),
    ],
)
def test_what_is_not_derived_for_people_is_refused_before_anything_is_charged(
    most: int, config: dict[str, Any], told: str, root: Path, tmp_path: Path
) -> None:
    """By the column, whatever the cap: one row a person is a person all the same."""
    bring_in(tmp_path / "input", visits(COUNTS), most=most, allow_idealised=True)
    asked = TrainingConfig.model_validate({"dataset": "visits", "epsilon": 1.0, "parties": 2, **config})
    with pytest.raises((ParameterError, RefusedError), match=told) as caught:
        require_feasible(asked)
    assert "\n" not in str(caught.value)


def test_a_release_of_rows_reads_no_people(root: Path, tmp_path: Path) -> None:
    """A plan for another number of rows a person, and a reference that says nothing of people."""
    bring_in(tmp_path / "input", visits(COUNTS))
    prepared = prepare("visits", algorithm="noisy-gd")
    (release,) = prepared.plan.models
    forged = release.model_copy(update={"setting": Setting(**{**vars_of(release.setting), "rows_per_person": 1})})
    shards = prepared.shards.of(release.parties)
    with pytest.raises(RefusedError, match=r"person 1.*person 8", check=stating(value=8, bound=1)):
        admit([forged], shards, run="forged")
    said = shards[0].dataset.model_copy(update={"person": "", "rows_per_person": 1})
    rows = [shard.model_copy(update={"dataset": said}) for shard in shards]
    with pytest.raises(RefusedError, match=r"8.*Patient", check=stating(bound="registered")):
        admit([forged], rows, run="forged")


def vars_of(setting: Setting) -> dict[str, Any]:
    return {name: getattr(setting, name) for name in Setting.__dataclass_fields__}


def test_rows_in_the_place_of_people_in_a_plan_are_caught(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: n rows for N people in the setting, of which step sizes and noise are made."""
    bring_in(tmp_path / "input", visits(COUNTS))
    honest = Setting
    monkeypatch.setattr(
        "tasks.planning.plans.Setting",
        lambda **given: honest(**{**given, "sizes": tuple(2 * size for size in given["sizes"])}),
    )
    with pytest.raises(RefusedError, match="number of rows", check=stating(value=100, bound=200)):
        followed("visits", algorithm="noisy-gd")


def test_people_are_neither_sampled_nor_dealt_by_label(root: Path, tmp_path: Path) -> None:
    bring_in(tmp_path / "open", visits(COUNTS, seed=3, first=300), name="open", visibility=Visibility.PUBLIC)
    with pytest.raises(RefusedError, match=r"ALGORITHM|records"):
        public_sample("open", 20, 0)
    with pytest.raises(RefusedError, match=r"'by-label'.*label"):
        divided(find("open"), TrainingConfig(dataset="open", partition="by-label", parties=2))


def find(name: str) -> DatasetRef:
    from tasks.datasets.registration import find_dataset

    return find_dataset(name)


# ── evaluation ───────────────────────────────────────────────────────────────────────────────────────────────────────


def measured_exactly(root: Path, tmp_path: Path, label: str, lines: Sequence[str]) -> tuple[dict[str, float], Any]:
    bring_in(tmp_path / "open", lines, name="open", label=label, visibility=Visibility.PUBLIC)
    prepared = prepare("open", algorithm="noisy-gd", parameters={} if "classes" in label else {"loss": "squared"})
    made = prepared.make()
    (path,) = prepared.plan.paths().values()
    measured = metrics.measure_exactly({"all": [made[key] for key in path]}, prepared.shards)
    assert prepared.shards.held_out is not None
    blocks = list(rows_of(prepared.shards.held_out, (), 3).blocks())
    features, labels, shares = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    for key in path[:-1]:
        features = read_release(made[key]).apply(features)
    return measured.metrics, (labels, read_release(made[path[-1]]).apply(features), 1.0 / shares)


def test_public_rows_are_measured_over_people(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, (labels, scores, weights) = measured_exactly(root, tmp_path, 'classes: ["no", "yes"]', visits(COUNTS * 2))
    expected = accuracy_score(labels, scores[:, 0] > 0, sample_weight=weights)
    assert found["accuracy"] == pytest.approx(expected)
    assert found["auc"] == pytest.approx(roc_auc_score(labels, scores[:, 0], sample_weight=weights))
    # The mutant: each row alike.
    assert accuracy_score(labels, scores[:, 0] > 0) != pytest.approx(expected, abs=1e-6)


def test_private_rows_are_measured_over_people(root: Path, tmp_path: Path) -> None:
    """At a budget that leaves no noise: the counts are those of people, to the thousandth that shares are cut to."""
    bring_in(tmp_path / "input", visits(COUNTS * 2), epsilon_cap=1e6)
    config = {"algorithm": "noisy-gd", "epsilon": 1000.0, "evaluation": True}
    prepared = prepare("visits", **config)
    made = prepared.make()
    (path,), (evaluation,) = prepared.plan.paths().values(), prepared.plan.evaluations
    assert prepared.shards.held_out is not None
    blocks = list(rows_of(prepared.shards.held_out, (), 3).blocks())
    features, labels, shares = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    for key in path[:-1]:
        features = read_release(made[key]).apply(features)
    right = (read_release(made[path[-1]]).apply(features)[:, 0] > 0) == labels
    counts = read_release(made[evaluation.key]).values
    assert np.trace(counts) == pytest.approx((right / shares).sum(), rel=5e-3)
    assert counts.sum() == pytest.approx(prepared.shards.held_out.rows, rel=5e-3)
    # The mutant: a count of rows.
    assert abs(np.trace(counts) - right.sum()) > 10


def test_numbers_of_people_are_predicted_and_measured(root: Path, tmp_path: Path) -> None:
    lines = [line.rpartition(",")[0] + f",{float(line.split(',')[2]):.3f}" for line in visits(COUNTS * 2)]
    found, (labels, scores, weights) = measured_exactly(root, tmp_path, "range: [-2, 2]", lines)
    # A prediction counts as the nearest number of the declared range.
    predicted = np.clip(scores[:, 0], -2.0, 2.0)
    assert found["r2"] == pytest.approx(r2_score(labels, predicted, sample_weight=weights))
    assert found["r2"] != pytest.approx(r2_score(labels, predicted), abs=1e-9)


# ── tuning ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_row_says_at_which_place_of_its_shards_roster_its_person_is(root: Path, tmp_path: Path) -> None:
    """In order of the roster, so that no number of rows moves anybody; those without a row have their place, too."""
    ref = bring_in(tmp_path / "input", visits(COUNTS))
    people = open_people(current_layout(), ref)
    assert people is not None
    for shard in dealt_people(ref).values():
        rows = open_shard(current_layout(), shard)
        places, whose = rows.whose(), people_of(shard)[0]
        assert places is not None
        assert len(places) == rows.stored
        assert 0 <= places.min() <= places.max() < rows.count == shard.rows
        assert len({*zip(places.tolist(), whose.tolist(), strict=True)}) == len(np.unique(places)) == len(set(whose))
    before = {party: open_shard(current_layout(), shard) for party, shard in dealt_people(ref).items()}
    # One person has more rows, and another none: everybody else's place is as it was.
    changed = bring_in(tmp_path / "other", visits([2, 1, 0, 2, 5, *([1, 2, 4] * 65)]))
    for party, shard in dealt_people(changed).items():
        now = open_shard(current_layout(), shard)
        assert now.count == before[party].count
        known, found = before[party].whose(), now.whose()
        assert known is not None
        assert found is not None
        assert len({*known.tolist()} ^ {*found.tolist()}) <= 1


@pytest.mark.parametrize("features", [None, "random-fourier"])
def test_people_are_tuned_under_one_charge(features: str | None, root: Path, tmp_path: Path) -> None:
    """Whatever the rows are seen through: kept rows say whose they are, too."""
    bring_in(tmp_path / "input", visits(COUNTS))
    given: dict[str, Any] = {"algorithm": "noisy-gd", "epsilon": 20.0, "parties": 1, "evaluation": True}
    result = followed("visits", **given, features=features, tune={"iterations": (1, 20)})
    assert result.proved is not None
    assert result.proved.person == "Patient"
    assert result.proved.epsilon <= 20.0
    assert len(result.releases) == 1
    # About 0.9, by fifty people; guessing is 0.5.
    assert result.metrics["accuracy"] > 0.6


# ── bad input ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_roster_that_is_lost_is_named(root: Path, tmp_path: Path) -> None:
    ref = bring_in(tmp_path / "input", visits(COUNTS))
    (current_layout().dataset(ref.version) / "people.npz").unlink()
    with pytest.raises(StorageError, match=r"people\.npz.*read", check=stating(value="people.npz", bound="present")):
        dealt_people(ref)
    # Before anything is charged; bringing the file in again does not make it again.
    with pytest.raises(StorageError, match=r"people\.npz is missing; restore"):
        require_feasible(configured("visits", algorithm="noisy-gd"))
    # Who was there keeps the place: a version without the register would be of other people.
    with pytest.raises(StorageError, match=r"people\.npz|read", check=stating(value="people.npz", bound="present")):
        bring_in(tmp_path / "input", visits([*COUNTS, 2]))


# ── elsewhere ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("config", [{"algorithm": "noisy-gd"}, {"trainer": "objective-perturbation"}])
def test_an_archive_of_what_takes_no_people_is_refuted(
    config: dict[str, Any], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever signs it has a door that lets everything in; with one row a person no price tells."""
    bring_in(tmp_path / "input", visits(COUNTS), most=1, allow_idealised=True)
    monkeypatch.setattr("tasks.release.admission.require_people", lambda *_: None)
    result = followed("visits", **config)
    append_result(configured("visits", **config), result)
    data, _, _ = export_run(result.run_key[:10])
    (tmp_path / "run.zip").write_bytes(data)
    checks = {check.what: (check.holds, check.detail) for check in verify(tmp_path / "run.zip").checks}
    if "algorithm" in config:
        assert checks["guarantees"][0]
    else:
        assert checks["guarantees"][0] is False
        assert "cannot protect people" in checks["guarantees"][1]
