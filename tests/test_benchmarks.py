"""Every benchmark runs: by night the smallest case of each, as its command, in a copy of its folder."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.data import REPOSITORY, real_data

SMALLEST = {
    "ablation": ["--rows 300 --seeds 1 --epsilons 1"],
    "accounting": ["--output results --only delta-of-runs"],
    "audit_figure": ["curves.png"],
    "audit_study": ["caught --seeds 1", "alarms --seeds 1"],
    "audits": ["--only class-means"],
    "captured_energy": ["--seeds 1 --figure energy.svg --output energy.json"],
    "components": ["rows rows", "ours rows ours.json", "table ours.json ours.json --output table.json"],
    "contact_sheets": ["."],
    "diffprivlib_adult": ["encode $DATA/adult adult.npz", "ours adult.npz ours.json", "table ours.json ours.json"],
    "disk_growth": ["--nights 2"],
    "encoder": [
        "--speed --nets small",
        "--path $DATA/cifar-10-part --rows 200 --held-out 100 --pairs 50 --nets small --epsilons 1 --seeds 1",
    ],
    "errors": ["--sets wind --epsilons 1 --widths 1 --output errors.json"],
    "growth": [
        "rows --most 10000 --output growth.json",
        "features --most 50 --output growth.json",
        "parties --most 50 --output growth.json",
    ],
    "growth_of_files": ["--most 5000 --output growth.json"],
    "intervals": ["simulated --runs 3 --output simulated.json", "tables --sets wind --releases 1 --output tables.json"],
    "margins_held": ["--kinds errors --runs 3 --output margins.json"],
    "mutants": ["--table after.json --before none.json --after none.json"],
    "networks": [""],
    "nightly_tables": ["--sets wind --epsilons 1 --seeds 1 --nights 3 --output nights.json"],
    "nights": ["errors --nights 8 --output errors.json", "mnist --nights 2 --seeds 1 --rows 2000 --output mnist.json"],
    "out_of_core": ["--rows 20000 --parties 2 --folder . --output out.json"],
    "people": ["--seeds 1 --epsilons 1 --exponents 2"],
    "people_times": ["--repeats 1 --output times.json"],
    "performance": [
        "csv libsvm gradient-long covariance dp-pca hog png predict charge charge-growth gaussian smo help algorithms "
        "describe train flow --repeat 1 --json performance.json"
    ],
    "pictures": ["--path $DATA/cifar-10-part --rows 300 --held-out 100 --epsilons 1 --seeds 1 --pairs 20 --only alone"],
    "rare_classes": ["--seeds 1 --sets musk --output rare.json"],
    "recommended": ["--seeds 1 --epsilons 1 --rows 2000 --relations replace-one --plot plot.png"],
    "render": ["--check"],
    "secure_aggregation": ["--largest 1000 --output secure.json"],
    "shrinkage": ["--sets digits --epsilons 1 --seeds 1 --output shrinkage.json"],
    "small_sets": ["--seeds 1 --epsilons 1 --sets heart_scale"],
    "synthesis": ["--sets banana --rows 300 --epsilons 1 --seeds 1 --output synthesis.json"],
    "synthesis_tuning": ["--sets banana --rows 300 --seeds 1 --output tuning.json"],
    "synthetic_cifar10": ["images"],
    "table_sets": [""],
    "tables": ["--sets banana --rows 300 --epsilons 1 --seeds 1 --output tables.json"],
    "unequal_classes": ["--sets letter --epsilons 1 --seeds 1 --output unequal.json"],
}  # fmt: skip
"""By benchmark, its arguments, one command after the other; ``$DATA`` is the folder of the real data sets."""

OTHER_ENVIRONMENTS = {"peers", "random_scenes", "synthesis_peers", "table_peers"}
"""What runs in environments of other libraries, which this one does not have."""


def test_every_benchmark_is_run_by_night() -> None:
    scripts = {path.stem for path in REPOSITORY.glob("benchmarks/*.py") if "__main__" in path.read_text("utf-8")}
    assert scripts == {*SMALLEST, *OTHER_ENVIRONMENTS}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_case_of_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    # Results are written into the copy.
    for place in REPOSITORY.iterdir():
        if place.name == "benchmarks":
            shutil.copytree(place, checkout / place.name)
        elif not place.name.startswith("."):
            (checkout / place.name).symlink_to(place)
    (checkout / "benchmarks" / "none.json").write_text("{}")
    environment = {**os.environ, "UNITBALL_DATA": str(real_data()), "UNITBALL_ROOT": str(tmp_path / "root")}
    for arguments in SMALLEST[name]:
        words = shlex.split(arguments.replace("$DATA", environment["UNITBALL_DATA"]))
        done = subprocess.run(
            [sys.executable, f"{name}.py", *words],
            cwd=checkout / "benchmarks",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr[-2000:]}"
