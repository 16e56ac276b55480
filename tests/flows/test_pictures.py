"""Pictures of one's own from files to predictions: by command, in a notebook, and from the logged model."""

from __future__ import annotations

import base64
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest

import unitball
from storage.errors import InputError
from tasks.datasets.schedules import Schedule, require_scorable
from tasks.planning.configuration import TrainingConfig
from tasks.tracking.runs import tracking_client
from tests.support.command_line import CommandLine

SIGNS = tuple(f"sign-{number:02d}" for number in range(43))


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """Return the example that writes folders of signs."""
    path = Path(__file__).parents[2] / "docs" / "examples" / "make_pictures.py"
    spec = importlib.util.spec_from_file_location("make_pictures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_forty_three_classes_from_a_folder_to_predictions(
    tracked_root: Path, commands: CommandLine, generator: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "signs"
    generator.write(folder, classes=43, each=20, side=6, depth=8)
    pictures = ["--format", "images", "--pixels", "colour", "--side", 4, "--classes", ",".join(SIGNS)]
    cap = ["--epsilon-cap", 300, "--delta-cap", 1e-4]
    (folder / "train" / SIGNS[3] / "99999_0.png").write_bytes(b"no picture")
    commands("ingest", "signs", *pictures, *cap, "--path", folder).refused(2, "sign-03/99999_0.png is not a PNG")
    outcome = commands("ingest", "signs", *pictures, *cap, "--path", folder, "--on-violation", "drop")
    assert outcome.code == 0, outcome
    assert "sign-03/99999_0.png is not a PNG, JPEG, BMP, TIFF, PPM or PGM; it counts as a null record" in outcome.out
    described = commands.succeeds("datasets", "signs")["datasets"][0]
    assert (described["class_names"], described["dimension"]) == (list(SIGNS), 48)
    trained = unitball.train("signs", algorithm="noisy-gd", epsilon=200.0, parties=1, trust="central", evaluation=False)
    # In a notebook: a folder, files, the bytes of files.
    tests = sorted((folder / "test").rglob("*.png"))
    true = np.array([path.parent.name for path in tests])
    found = unitball.predict("signs.noisy-gd", folder / "test")
    assert list(found.index) == [str(path.relative_to(folder / "test")) for path in tests]
    accuracy = float(np.mean(found.to_numpy() == true))
    # Guessing gives 1/43; five draws of noise gave 0.41 to 0.47, of a standard deviation of 0.026: 0.2 is nine away.
    assert accuracy > 0.2, accuracy
    contents = pd.DataFrame({"picture": [path.read_bytes() for path in tests]})
    for given in (tests, contents, contents["picture"].tolist()):
        assert unitball.predict("signs.noisy-gd", given).tolist() == found.tolist()
    assert trained.predict(contents).tolist() == found.tolist()
    with pytest.raises(InputError, match=r"99999_0\.png:.*PNG"):
        unitball.predict("signs.noisy-gd", [folder / "train" / SIGNS[3] / "99999_0.png"])
    # By command: a folder of any folders, with one that is no picture.
    (folder / "test" / "bad.png").write_bytes(b"no picture")
    output = tmp_path / "out.parquet"
    done = commands.succeeds("predict", "--model", "signs.noisy-gd", "--input", folder / "test", "--output", output)
    assert (done["rows"], done["refused"]) == (len(tests) + 1, 1)
    frame = pd.read_parquet(output).set_index("path")
    assert frame.loc["bad.png", "refusal"].startswith("the image is not a PNG")
    kept = frame.drop(index="bad.png")
    assert kept["prediction"].tolist() == found.tolist()
    assert {f"score {name}" for name in SIGNS} < set(frame.columns)
    commands("predict", "--model", "signs.noisy-gd", "--input", folder / "table.csv", "--output", output).refused(
        2, "out.parquet exists"
    )
    # A link is one refused row, and a system's files are none.
    (folder / "test" / "link.png").symlink_to(tests[0])
    (folder / "test" / "@eaDir").mkdir()
    (folder / "test" / "@eaDir" / "thumb.png").write_bytes(tests[0].read_bytes())
    output = tmp_path / "x.parquet"
    outcome = commands("predict", "--model", "signs.noisy-gd", "--input", folder / "test", "--output", output)
    assert outcome.code == 0, outcome
    assert "1 file is passed over (1 hidden" in outcome.out
    linked = pd.read_parquet(output).set_index("path")
    assert "is a link" in linked.loc["link.png", "refusal"]
    assert linked.drop(index=["bad.png", "link.png"])["prediction"].tolist() == found.tolist()
    # From the logged model: the bytes of files, in JSON as base64.
    with tracking_client(tracked_root):
        model = mlflow.pyfunc.load_model("models:/signs.noisy-gd/1")
    assert model.predict(contents)["prediction"].tolist() == found.tolist()
    from mlflow.pyfunc.scoring_server import infer_and_parse_data

    rows = [[base64.b64encode(content).decode()] for content in contents["picture"][:3]]
    asked = {"dataframe_split": {"columns": ["picture"], "data": rows}}
    parsed = infer_and_parse_data(asked, model.metadata.get_input_schema())
    assert model.predict(parsed)["prediction"].tolist() == found.tolist()[:3]
    with pytest.raises(Exception, match=r"str|incompatible"):
        model.predict(pd.DataFrame({"picture": [str(tests[0])]}))


def test_people_in_a_table_and_16_bits(
    tracked_root: Path, commands: CommandLine, generator: ModuleType, tmp_path: Path
) -> None:
    folder = tmp_path / "scans"
    generator.write(folder, classes=3, each=60, side=12, depth=16)
    given: list[Any] = ["--format", "images", "--pixels", "grey-16", "--side", 4, "--classes", ",".join(SIGNS[:3])]
    cap = ["--epsilon-cap", 300, "--delta-cap", 1e-4]
    made = commands.succeeds(
        "ingest", "scans", *given, *cap, "--path", folder / "table.csv", "--person", "person", "--rows-per-person", 4
    )
    table = pd.read_csv(folder / "table.csv")
    train = table[table["path"].str.startswith("train/")]
    assert (made["rows"], made["person"]) == (train["person"].nunique(), "person")
    assert made["taken"]["train" if "train" in made["taken"] else ""]["kept"] == len(train)
    shown = commands("train", "--dataset", "scans", "--algorithm", "noisy-gd", "--epsilon", 50, "--plan")
    assert "people of at most 4 rows each × 16" in shown.out
    assert "3: sign-00, sign-01, sign-02" in shown.out
    assert "classes: sign-00, sign-01, sign-02" in commands("datasets", "scans").out
    unitball.train("scans", algorithm="noisy-gd", epsilon=100.0, parties=1, trust="central", evaluation=False)
    output = tmp_path / "out.parquet"
    done = commands.succeeds(
        "predict", "--model", "scans.noisy-gd", "--input", folder / "table.csv", "--id", "person", "--output", output
    )
    assert (done["rows"], done["refused"]) == (180, 0)
    frame = pd.read_parquet(output)
    assert frame["path"].tolist() == table["path"].tolist()
    assert frame["person"].astype(int).tolist() == table["person"].tolist()
    files = [folder / path for path in table["path"]]
    assert frame["prediction"].tolist() == unitball.predict("scans.noisy-gd", files).tolist()


def test_a_schedule_scores_pictures(
    tracked_root: Path, commands: CommandLine, generator: ModuleType, tmp_path: Path
) -> None:
    generator.write(tmp_path / "signs", classes=2, each=10, side=4, depth=8)
    commands.succeeds("ingest", "signs", "--format", "images", "--path", tmp_path / "signs", "--side", 2, "--public")
    config = TrainingConfig(dataset="signs", epsilon=1.0)
    require_scorable(Schedule(config=config, cron="0 3 * * *", scoring_input=str(tmp_path / "signs" / "train")))
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="column 'path'"):
        require_scorable(Schedule(config=config, cron="0 3 * * *", scoring_input=str(tmp_path / "rows.csv")))
