"""Algorithms of other distributions: found by their entry point, and held to the same contract as ours."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpalgos import registry
from dpalgos.guarantees import GaussianMu, PureEpsilon
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.parameters import ParameterError, UnknownNameError
from dpalgos.registry import construct, lookup, names
from dpalgos.testing import audit, check_algorithm
from storage.releases import ReleaseStore
from tasks.accounts.ledger import open_ledger
from tasks.planning import identity as code
from tasks.planning.identity import code_version
from tasks.runtime.settings import current_layout
from tests.support.chains import followed

TOY = Path(__file__).parent.parent / "support" / "toy-plugin"
NAME = "toy-nearest-mean"
_PAGE = Path("docs/own-algorithm.md")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed distributions, empty; what is registered from it is forgotten afterwards."""
    entries, broken = dict(registry._ENTRIES), list(registry._BROKEN)
    names("trainers")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for module in [name for name in sys.modules if name.startswith("unitball_toy")]:
        del sys.modules[module]
    registry._ENTRIES.clear()
    registry._ENTRIES.update(entries)
    registry._BROKEN[:] = broken
    registry._discover.cache_clear()


def install(site: Path) -> None:
    shutil.copytree(TOY, site, dirs_exist_ok=True)
    importlib.invalidate_caches()
    registry._discover.cache_clear()


def test_the_page_shows_the_package_that_is_tested() -> None:
    page = _PAGE.read_text("utf-8").replace("\n    ", "\n")
    *shown, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert shown == [(TOY / "unitball_toy" / name).read_text("utf-8") for name in ("grid.py", "nearest_mean.py")]
    # `pip install --no-build-isolation` finds only the backend that the lock file installs.
    (backend,) = re.findall(r"requires = (\[.*\])", page)
    assert set(json.loads(backend)) <= set(re.findall(r"(?m)^([a-z0-9-]+)==", Path("requirements.lock").read_text()))
    entry = 'nearest-mean = "unitball_toy.nearest_mean"'
    assert entry in page
    assert entry.replace('"', "") in next(TOY.glob("*/entry_points.txt")).read_text("utf-8")


def test_the_system_that_the_page_adds_trains_the_packages_algorithm(site: Path, root: Path) -> None:
    *_, added = re.findall(r"^```python\n(.*?)```", _PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    install(site)
    with (site / "unitball_toy" / "nearest_mean.py").open("a") as file:
        file.write(added)
    assert "toy-system" in names("systems")
    (release,) = followed("iris", algorithm="toy-system").releases
    assert ReleaseStore(current_layout()).manifest(release)["algorithm"]["name"] == NAME


def test_an_installed_package_brings_its_algorithm(site: Path) -> None:
    assert NAME not in names("trainers")
    install(site)
    assert NAME in names("trainers")
    assert lookup("trainers", NAME).__module__ == "unitball_toy.nearest_mean"


def test_it_keeps_the_contract_and_a_broken_one_does_not(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site)
    check_algorithm("trainers", NAME, {"budget": GaussianMu(0.8)})
    monkeypatch.setattr(lookup("trainers", NAME), "distribution", lambda self, setting: None)
    with pytest.raises(AttributeError):
        check_algorithm("trainers", NAME, {"budget": GaussianMu(0.8)})


def test_one_call_audits_it_and_catches_half_its_noise(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site)
    trainer: Any = lookup("trainers", NAME)
    reports = audit(trainer(budget=GaussianMu(1.0)), delta=0.01)
    assert [report.neighbours for report in reports] == ["replace-one", "replace-special"]
    assert all(report.gaussian_mu is not None and 0.9 < report.gaussian_mu <= 1.0 for report in reports)
    law = trainer.distribution
    half = lambda self, setting: RoundedGaussian(0.5 * law(self, setting).sigma)  # noqa: E731 - as a plug-in might
    monkeypatch.setattr(trainer, "distribution", half)
    with pytest.raises(AssertionError, match="epsilon"):
        audit(trainer(budget=GaussianMu(1.0)), delta=0.01)


def test_what_claims_nothing_has_no_audit() -> None:
    with pytest.raises(ParameterError, match="Wishart"):
        audit(
            construct(
                lookup("projections", "wishart-pca"), "wishart-pca", {"budget": PureEpsilon(1.0), "components": 3}
            )
        )


def test_a_broken_package_keeps_nobody_else_away(site: Path) -> None:
    install(site)
    with (site / "unitball_toy" / "grid.py").open("a") as file:
        file.write("\nimport unitball_toy_is_not_there\n")
    with pytest.warns(UserWarning, match=r"unitball-toy 1.0 offers unitball_toy.nearest_mean.*repair or uninstall"):
        assert "noisy-gd" in names("trainers")
    with pytest.raises(UnknownNameError, match=r"unitball-toy 1.0"):
        lookup("trainers", NAME)


def test_no_package_takes_a_name_of_ours(site: Path) -> None:
    install(site)
    source = site / "unitball_toy" / "nearest_mean.py"
    source.write_text(source.read_text().replace(f'"{NAME}"', '"noisy-gd"'))
    with pytest.warns(UserWarning, match="registered twice"):
        assert lookup("trainers", "noisy-gd").__module__ == "dpalgos.trainers.gradient_descent"


def test_it_is_behind_the_same_door(site: Path, root: Path) -> None:
    """Charged, stored, and under a code version that its own sources change."""
    install(site)
    of_ours = code_version(lookup("trainers", "noisy-gd"))
    results = {
        trust: followed("iris", algorithm=None, trainer=NAME, trust=trust, parties=3) for trust in ("central", "secagg")
    }
    for result in results.values():
        manifest = ReleaseStore(current_layout()).manifest(result.releases[-1])
        assert manifest["algorithm"]["name"] == NAME
        assert manifest["guarantee"]["numerics"] == "exact"
        assert result.epsilon_spent == pytest.approx(1.0, rel=1e-6)
    assert len(open_ledger().charges("iris")) == 2
    before = code_version(lookup("trainers", NAME))
    (site / "unitball_toy" / "grid.py").write_text("SCALE = 2.0**11\n")
    forget()
    assert code_version(lookup("trainers", NAME)) != before
    assert code_version(lookup("trainers", "noisy-gd")) == of_ours


def forget() -> None:
    """Read sources anew, as another process does."""
    for value in vars(code).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
