"""Ranges drawn privately before a table has a schema: public bins, one charged release, exactly once."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from deployments.cli.entry_point import app, import_all
from dpalgos.accounting.profiles import gaussian_epsilon, mu_from_epsilon_delta, mu_of_pure
from dpalgos.evaluators.bin_counts import BinCounts, LaplaceBinCounts, occupied
from dpalgos.guarantees import ApproximateDP, GaussianMu, Guarantee, Neighbours, PureEpsilon, Setting, Trust
from dpalgos.mechanisms.distributions import DiscreteLaplace
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup
from dpalgos.rows import ArrayRows
from storage.errors import InputError, RefusedError
from storage.readers.drafts import BINS, bins_of, encode_keys, range_of_bins, text_of
from storage.schema import Schema, parse_schema
from storage.source import ReadOptions, read_source
from tasks.accounts.ledger import open_ledger
from tasks.accounts.terms import gaussian_delta
from tasks.datasets.drafts import draft_schema, fill_draft
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.release.ranges import _of_ranges, private_contents
from tasks.runtime.settings import current_layout


def test_bins_are_powers_of_two_of_either_sign() -> None:
    numbers = np.array([-np.inf, -1e30, -3.0, -2.0, -1e-9, 0.0, 1e-9, 2.0**-10, 1.0, 1.999, 2.0, 1e30, np.inf, np.nan])
    bins = bins_of(numbers)
    assert (np.diff(bins[:-1]) >= 0).all()
    assert bins[-1] == -1
    assert (bins[0], bins[-2]) == (0, BINS - 1)
    assert bins[4] == bins[5] == bins[6] == BINS // 2
    for number, place in zip(numbers[2:12], bins[2:12].astype(int), strict=True):
        low, high = range_of_bins(place, place)
        assert low < high
        assert abs(number) < 2.0**-10 or low <= number <= high or abs(number) > 2.0**41
    assert range_of_bins(int(bins[8]), int(bins[10])) == (1.0, 4.0)
    assert range_of_bins(BINS // 2, int(bins[8])) == (0.0, 2.0)
    assert range_of_bins(int(bins[2]), BINS // 2) == (-4.0, 0.0)
    assert range_of_bins(int(bins[2]), int(bins[8])) == (-4.0, 2.0)


@pytest.mark.parametrize("relation", [Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL])
def test_counts_and_what_one_row_moves(relation: Neighbours) -> None:
    setting = Setting(sizes=(6,), dimension=2, classes=1, neighbours=relation, trust=Trust.CENTRAL)
    algorithm = LaplaceBinCounts(budget=PureEpsilon(0.5), bins=3)
    gaussian = BinCounts(budget=GaussianMu(0.5), bins=3)
    rows = np.array([[0, 2], [0, 3], [-1, 2], [1, 1], [2, 2], [np.nan, 0]])
    counts = algorithm.statistic(ArrayRows(rows, np.zeros(6)), setting)
    assert counts.tolist() == [[2, 1, 1], [0, 1, 3]]
    pair = algorithm.neighbouring_pair(setting)
    moved = np.abs(algorithm.statistic(pair.left, setting) - algorithm.statistic(pair.right, setting)).sum()
    # By hand: a column loses one count and gains another, or only loses one against a null record.
    assert moved == algorithm.sensitivity(setting) == (4 if relation is Neighbours.REPLACE_ONE else 2)
    assert algorithm.distribution(setting).scale == pytest.approx(moved / 0.5)
    assert gaussian.statistic(ArrayRows(rows, np.zeros(6)), setting).tolist() == counts.tolist()
    sides = [gaussian.statistic(side, setting) for side in (pair.left, pair.right)]
    assert np.linalg.norm(sides[0] - sides[1]) == gaussian.sensitivity(setting) == math.sqrt(moved)
    assert gaussian.distribution(setting).sigma == pytest.approx(math.sqrt(moved) / 0.5)


@pytest.mark.parametrize("relation", [Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL])
@pytest.mark.parametrize("columns", [10, 20, 400])
def test_gaussian_ranges_have_the_error_of_laplace_noise_at_a_lower_price(relation: Neighbours, columns: int) -> None:
    """At epsilon = 0.5: 0.25/sqrt(d), where the pure loss enters a filter at 0.62."""
    setting = Setting(sizes=(1000,), dimension=columns, classes=1, neighbours=relation, trust=Trust.CENTRAL)
    name, loss = _of_ranges(0.5, gaussian_delta(1e-6), columns, relation, gaussian=True)
    assert isinstance(loss, GaussianMu)
    drawn = lookup("evaluators", name)(budget=loss, bins=BINS)
    pure = LaplaceBinCounts(budget=PureEpsilon(0.5), bins=BINS)
    # Continuous Laplace noise has the deviation sqrt(2) times its scale; rounded noise of either kind a little another.
    assert drawn.distribution(setting).sigma == pytest.approx(
        math.sqrt(2) * pure.distribution(setting).scale, rel=1e-12
    )
    assert drawn.deviation(setting) == pytest.approx(pure.deviation(setting), rel=1e-3)
    assert loss.mu == pytest.approx(
        (0.25 if relation is Neighbours.REPLACE_ONE else 0.5 / math.sqrt(2)) / math.sqrt(columns)
    )
    assert mu_of_pure(0.5) == pytest.approx(0.6239, abs=1e-4)
    assert drawn.threshold(setting) < pure.threshold(setting)


@pytest.mark.parametrize(("epsilon", "columns"), [(0.5, 1), (2.0, 3), (0.5, 100), (8.0, 2)])
def test_ranges_never_cost_more_than_was_asked_for(epsilon: float, columns: int) -> None:
    delta = gaussian_delta(1e-6)
    _, loss = _of_ranges(epsilon, delta, columns, Neighbours.REPLACE_ONE, gaussian=True)
    assert isinstance(loss, GaussianMu)
    assert gaussian_epsilon(loss.mu, delta) <= epsilon * (1 + 1e-9)
    assert _of_ranges(epsilon, delta, columns, Neighbours.REPLACE_ONE, gaussian=False)[1] == PureEpsilon(epsilon)


def test_gaussian_noise_alone_rarely_passes_its_threshold(random: np.random.Generator) -> None:
    """At most 1 % of columns by the union bound; P(X >= 57 of 2,000) at 1 % is below 1e-9. Twice the noise passes."""
    setting = Setting(sizes=(1000,), dimension=3, classes=1, trust=Trust.CENTRAL)
    algorithm = BinCounts(budget=GaussianMu(0.3), bins=BINS)
    sigma, threshold = algorithm.distribution(setting).sigma, algorithm.threshold(setting)
    noise = np.rint(sigma * random.standard_normal((2000, BINS)))
    assert sum(occupied(column, threshold) is not None for column in noise) < 57
    assert sum(occupied(2 * column, threshold) is not None for column in noise) > 57
    noise[:, 50] += 200
    assert sum(occupied(column, threshold) == (50, 50) for column in noise) > 1900


def test_an_empty_bin_rarely_counts_as_occupied(random: np.random.Generator) -> None:
    """A column of noise alone passes in at most 1 % of cases; the exact chance follows from the law.

    P(X >= 57 of 2,000) at 1 % is below 1e-9; a threshold without the bins' number would pass in most of them.
    """
    scale, bins = 4.0, 103
    p = math.exp(-1 / scale)
    setting = Setting(sizes=(1000,), dimension=1, classes=1, trust=Trust.CENTRAL)
    threshold = LaplaceBinCounts(budget=PureEpsilon(0.5), bins=bins).threshold(setting)
    assert threshold == pytest.approx(scale * math.log(bins / 0.01), rel=1e-12)
    chance = 1 - (1 - p ** (math.floor(threshold) + 1) / (1 + p)) ** bins
    assert chance < 0.01
    law = DiscreteLaplace(scale)
    magnitudes = random.geometric(1 - p, size=(2, 2000, bins)) - 1
    noise = magnitudes[0] - magnitudes[1]
    assert abs(noise.var() - 2 * p / (1 - p) ** 2) < 1.0
    assert law.scale == scale
    passed = sum(occupied(column.astype(float), threshold) is not None for column in noise)
    assert passed < 57
    noise[:, 50] += 200
    assert sum(occupied(column.astype(float), threshold) == (50, 50) for column in noise) > 1900


def _rows(folder: Path, count: int = 2000) -> Path:
    path = folder / "rows.csv"
    lines = [
        f"p{row},{20 + row % 60},{(-1) ** row * (row % 7)},{'' if row % 5 else 'x'},{row % 2}" for row in range(count)
    ]
    path.write_text("\n".join(["id,age,shift,odd,y", *lines, "1,2"]) + "\n")
    return path


@pytest.fixture(autouse=True)
def strict_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask three times the threshold of a bin: by design one column in a hundred shows a bin that is noise alone.

    Noise is drawn anew in every run, as it is for private rows. At three times t, 11 deviations and more of Gaussian
    noise, the chance of a bin beyond it is below 1e-20 a column, and every bin that holds rows here has more than that
    by seven deviations and more.
    """
    monkeypatch.setattr("tasks.release.ranges.occupied", lambda counts, threshold: occupied(counts, 3 * threshold))


def _request(draft: Path, path: Path, cap: float = 3.0) -> IngestRequest:
    return IngestRequest(
        name="draft-columns",
        format="table-draft",
        path=path,
        schema_path=draft,
        account="people",
        epsilon_cap=cap,
        delta_cap=1e-6,
    )


def test_ranges_are_charged_once_and_written_into_the_draft(root: Path, tmp_path: Path) -> None:
    path, draft = _rows(tmp_path), tmp_path / "draft.yaml"
    draft_schema(path, draft, numeric=["age", "shift", "odd"])
    found = private_contents(_request(draft, path), 2.0, 1e-9).ranges
    assert found == {"age": (16.0, 128.0), "shift": (-8.0, 8.0), "odd": None}
    assert private_contents(_request(draft, path), 2.0, 1e-9).ranges == found
    charges = open_ledger().charges("people")
    assert len(charges) == 1
    (loss,) = Guarantee.from_json(dict(charges[0].guarantee)).losses
    # Three columns at two counts each: less than 2 / (2 sqrt(3)), for that would be more than epsilon 2.
    assert loss == GaussianMu(mu_from_epsilon_delta(2.0, 1e-9))
    fill_draft(draft, found, (-1.0, 1.0))
    lines = draft.read_text().splitlines()
    assert '  - {name: "age", type: numeric, range: [16, 128]}' in lines
    assert (
        '  - {name: "odd", type: numeric, range: [-1, 1]}  # no bin exceeded the noise: the declared fallback' in lines
    )
    with pytest.raises(RefusedError, match=r"cap|left"):
        private_contents(_request(draft, path), 3.0, None)
    assert len(open_ledger().charges("people")) == 1


def test_a_marker_of_missing_cells_is_in_no_range(root: Path, tmp_path: Path) -> None:
    """From CSV, where a gap has made floats of whole numbers, and from Parquet."""
    path, draft = tmp_path / "rows.csv", tmp_path / "draft.yaml"
    marked = [-999.0 if row % 2 else 20.0 + row % 60 for row in range(2000)]
    path.write_text("age,ward,y\n" + "".join(f"{age},{age},{row % 2}\n" for row, age in enumerate(marked)))
    draft_schema(path, draft, missing=["", "-999"], numeric=["age"])
    assert private_contents(_request(draft, path), 2.0, 1e-9).ranges == {"age": (16.0, 128.0)}
    table = pa.table({"age": marked, "y": [0] * 2000})
    options = ReadOptions(schema=draft)
    pq.write_table(table.append_column("ward", table["age"]), tmp_path / "rows.parquet")
    by_csv, by_parquet = (
        np.concatenate(
            [np.asarray(block.features) for block in read_source("table-draft", file, options).parts["train"]]
        )
        for file in (path, tmp_path / "rows.parquet")
    )
    assert by_csv.tobytes() == by_parquet.tobytes()
    assert (by_csv == -1).sum() == 1000
    layout = load_schema_layout()
    keys = [text_of(key * 255) for key in encode_keys(["-999.0", "S\u00fcd", "Su\u0308d", -999, 7.0, None], layout)]
    assert keys == ["", "S\u00fcd", "S\u00fcd", "", "7", ""]


def load_schema_layout() -> Schema:
    document = {
        "missing": {"marker": ["", "-999"], "rows": "drop"},
        "columns": [{"name": "x", "type": "boolean"}, {"name": "y", "type": "label", "range": [0, 1]}],
    }
    return parse_schema(document, "layout")


def test_what_cannot_be_drawn_is_said_before_anything_is_charged(root: Path, tmp_path: Path) -> None:
    path, draft = _rows(tmp_path), tmp_path / "draft.yaml"
    with pytest.raises(InputError, match="column 'weight'"):
        draft_schema(path, draft, numeric=["weight"])
    draft_schema(path, draft)
    with pytest.raises(InputError, match="numeric or category"):
        private_contents(_request(draft, path), 1.0, 1e-9)
    draft.write_text("columns: [age]")
    with pytest.raises(InputError, match="schema"):
        private_contents(_request(draft, path), 1.0, 1e-9)


def test_ranges_are_of_people_from_the_start(root: Path, tmp_path: Path) -> None:
    """One person's many rows stand out of no noise; the account is of people, and the rows may follow."""
    path, draft = tmp_path / "rows.csv", tmp_path / "draft.yaml"
    lines = [f"{row % 600},{20 + row % 60},{row % 2}" for row in range(1200)]
    path.write_text("\n".join(["id,age,y", *lines, *["7,30000,1"] * 500, ",-30000,1", "1,2"]) + "\n")
    draft_schema(path, draft, numeric=["age"], person="id")
    request = _request(draft, path)
    assert private_contents(request, 2.0, None).ranges == {"age": (16.0, 128.0)}
    dataset = find_dataset("draft-columns")
    assert (dataset.rows, dataset.person, dataset.rows_per_person) == (600, "id", 64)
    assert open_ledger().account("people").unit == "person"
    fill_draft(draft, {"age": (16.0, 128.0)}, (-1.0, 1.0))
    text = draft.read_text().replace('"y", type: todo', '"y", type: label, classes: ["0", "1"]')
    draft.write_text(text.replace("type: person", "type: person, missing: drop"))
    rows = {"name": "rows", "format": "csv", "on_violation": "clip-or-drop"}
    assert ingest(IngestRequest(**{**request.model_dump(), **rows})).rows == 600


def test_values_of_people_are_refused_before_anything_is_stored(root: Path, tmp_path: Path) -> None:
    path, draft = _rows(tmp_path), tmp_path / "draft.yaml"
    with pytest.raises(InputError, match="'age'"):
        draft_schema(path, draft, categories=["age"], person="age")
    draft_schema(path, draft, categories=["odd"], person="id")
    with pytest.raises(ParameterError, match="KeySelection"):
        private_contents(_request(draft, path), 1.0, 1e-9)
    assert open_ledger().accounts() == []


def test_values_and_ranges_are_one_charge_and_written_into_the_draft(root: Path, tmp_path: Path) -> None:
    path, draft = tmp_path / "rows.csv", tmp_path / "draft.yaml"
    wards = ["Süd"] * 400 + ["nord"] * 400 + ["geheim"] + [""] * 39
    rows = [f"{ward},r{row},{20 + row % 60},0" for row, ward in enumerate(wards)]
    path.write_text("\n".join(["ward,rare,age,y", *rows, "x"]) + "\n")
    draft_schema(path, draft, numeric=["age"], categories=["ward", "rare"])
    found = private_contents(_request(draft, path, cap=5.0), 4.0, 1e-7)
    assert found.values == {"ward": ["Süd", "nord"], "rare": []}
    assert found.ranges == {"age": (16.0, 128.0)}
    assert found.full == ()
    assert private_contents(_request(draft, path, cap=5.0), 4.0, 1e-7) == found
    charges = open_ledger().charges("people")
    assert len({charge.plan.sequence for charge in charges}) == 1
    losses = [Guarantee.from_json(dict(charge.guarantee)).losses for charge in charges]
    assert losses == [(GaussianMu(mu_from_epsilon_delta(2.0, 1e-7)),), (ApproximateDP(2.0, 1e-7),)]
    fill_draft(draft, found.ranges, (-1.0, 1.0), found.values)
    lines = draft.read_text("utf-8").splitlines()
    assert '  - {name: "ward", type: category, values: ["Süd", "nord"]}' in lines
    assert '  - {name: "rare", type: category}' in lines
    assert '  - {name: "age", type: numeric, range: [16, 128]}' in lines


def test_a_draft_reads_numbers_as_its_file_writes_them(root: Path, tmp_path: Path) -> None:
    """Charged for nothing otherwise: no cell of a file with decimal commas is a number with points."""
    path, draft = tmp_path / "rows.csv", tmp_path / "draft.yaml"
    path.write_text("bmi;ward;y\n" + "".join(f"{20 + row % 9},5;{('a', 'NA')[row % 2]};0\n" for row in range(400)))
    draft_schema(path, draft, decimal=",", missing=["", "NA"], numeric=["bmi"], categories=["ward"])
    found = private_contents(_request(draft, path, cap=5.0), 4.0, 1e-7)
    assert found.ranges == {"bmi": (16.0, 32.0)}
    assert found.values == {"ward": ["a"]}
    with pytest.raises(InputError, match="';'"):
        draft_schema(path, tmp_path / "other.yaml", decimal=";")


def test_a_plan_that_exceeds_the_cap_draws_neither(root: Path, tmp_path: Path) -> None:
    path, draft = tmp_path / "rows.csv", tmp_path / "draft.yaml"
    path.write_text("ward,age,y\n" + "".join(f"a,{row},0\n" for row in range(300)))
    draft_schema(path, draft, numeric=["age"], categories=["ward"])
    with pytest.raises(RefusedError, match=r"cap|left"):
        private_contents(_request(draft, path, cap=1.9), 4.0, 1e-7)
    assert open_ledger().charges("people") == []


def test_the_account_that_a_draft_opens_protects_people_from_the_first_charge_on(root: Path, tmp_path: Path) -> None:
    """It is the account of the rows, which could never protect them later; a selection leaves its delta to others."""
    import_all()
    path, draft = tmp_path / "rows.csv", tmp_path / "draft.yaml"
    path.write_text("ward,age,y\n" + "".join(f"a,{20 + row % 60},{row % 2}\n" for row in range(400)))
    words = ["schema", "draft", path, "-o", draft, "--numeric", "age", "--categories", "ward", "--range-epsilon", 1]
    words += ["--account", "people", "--epsilon-cap", 9, "--delta-cap", "1e-6", "--group-size", 2]
    outcome = CliRunner().invoke(app, [str(word) for word in [*words, "--root", current_layout().root]])
    assert outcome.exit_code == 0, outcome.output
    assert "spend 1e-08 of the account's delta of 1e-06" in outcome.output
    heading = draft.read_text().splitlines()[0]
    assert "no value was read" not in heading
    assert heading.endswith("with noise, of the columns of --numeric and --categories.")
    assert open_ledger().account("people").group_size == 2
    losses = [loss for charge in open_ledger().charges("people") for loss in charge.guarantee["losses"]]
    assert [loss.get("delta") for loss in losses] == [None, 1e-8]
    draft.unlink()
    draft_schema(path, draft, numeric=["age"])
    fill_draft(draft, {"age": (0.0, 128.0)}, (-1.0, 1.0))
    text = draft.read_text().replace('"ward", type: todo', '"ward", type: ignore')
    draft.write_text(text.replace('"y", type: todo', '"y", type: label, classes: ["0", "1"]'))
    words = ["ingest", "rows", "--format", "csv", "--path", path, "--schema", draft, "--account", "people"]
    outcome = CliRunner().invoke(app, [str(word) for word in [*words, "--root", current_layout().root]])
    assert outcome.exit_code == 0, outcome.output
    assert "ingest into a new root with --group-size" in outcome.output, "seven alike, and two are protected"
