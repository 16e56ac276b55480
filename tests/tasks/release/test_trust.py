"""Trust models are a seam: one registered class, and a run trains under it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from dpalgos import registry
from dpalgos.accounting.costs import allocate
from dpalgos.accounting.profiles import gaussian_epsilon
from dpalgos.algorithms import Algorithm, IntegerNoise, Summation
from dpalgos.guarantees import GaussianMu, Setting
from dpalgos.keystream import KeyedNoise
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup, names, register
from dpalgos.rows import ArrayRows, Ints, NoiseSource
from dpalgos.systems.system import Arrangement
from dpalgos.trust.model import SecureAggregation, TrustModel
from storage.releases import ReleaseStore
from tasks.accounts.ledger import open_ledger
from tasks.planning.configuration import SecureSettings, TrainingConfig
from tasks.release.storing import StoredRecord
from tasks.runtime.settings import current_layout
from tests.support.chains import followed, prepare
from tests.support.plans import dataset_of, planned, shards_of

drawn: list[int] = []


@dataclass(frozen=True)
class EachAddsAll:
    """Every party adds the whole noise of the sum before a curator adds up."""

    noises: Sequence[NoiseSource]

    def release(self, step: str, contributions: Sequence[Ints], law: IntegerNoise) -> Ints:
        """Return the sum with as many draws of the law as there are parties."""
        drawn.append(len(self.noises))
        noisy = [
            one + law.sample(one.size, noise.stream(step, one)).reshape(one.shape)
            for one, noise in zip(contributions, self.noises, strict=True)
        ]
        return np.asarray(sum(noisy[1:], start=noisy[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Distributed(TrustModel):
    """A toy: no curator is trusted with a sum that lacks noise, and at most so many parties take part."""

    summary: ClassVar[str] = "Each party adds the noise of the whole sum."

    most: int = 10

    @classmethod
    def derived(cls, arrangements: Mapping[str, Arrangement]) -> Arrangement | None:
        return arrangements.get("central")

    def noise_contributors(self, parties: Sequence[str]) -> tuple[str, ...]:
        return tuple(parties)

    def noise_factor(self, parties: int) -> float:
        return float(np.sqrt(parties))

    def require(self, algorithm: Algorithm, setting: Setting) -> None:
        if len(setting.sizes) > self.most:
            raise ParameterError(f"{len(setting.sizes)} parties; at most {self.most} take part")

    def summation(self, *args: Any, **kwargs: Any) -> Summation:
        _, _, noises, *_ = args
        return EachAddsAll(noises)


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the toy while a test runs."""
    names("trusts")
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    register("trusts", "distributed")(Distributed)
    drawn.clear()


def test_a_toy_trust_model_trains(distributed: None, root: Path) -> None:
    """No other file knows of it: configuration, plan, charge, noise and manifest take it by its name."""
    result = followed("iris", algorithm="noisy-gd", trust="distributed", parties=3, parameters={"iterations": 4})
    assert result.trust == "distributed"
    assert result.accuracy is not None
    assert drawn == [3] * 4
    manifest = ReleaseStore(current_layout()).manifest(result.releases[-1])
    assert manifest["trust"] == {"kind": "trusts", "name": "distributed", "parameters": {}}
    assert manifest["setting"]["noise_factor"] == pytest.approx(np.sqrt(3))
    (charge,) = open_ledger().charges("iris")
    assert set(charge.plan.key_ids) == {"0", "1", "2"}
    given: dict[str, Any] = {"algorithm": "noisy-gd", "parties": 3, "parameters": {"iterations": 4}}
    both = {trust: followed("iris", trust=trust, **given) for trust in ("central", "secagg")}
    assert both["central"].epsilon_spent == pytest.approx(result.epsilon_spent)


def test_it_has_settings_of_its_own_and_refuses_by_them(distributed: None, root: Path) -> None:
    given = {"algorithm": "noisy-gd", "trust": "distributed", "parties": 3, "parameters": {"trust.most": 2}}
    prepared = prepare("iris", **given)
    assert prepared.plan.releases[0].trust_model() == Distributed(most=2)
    with pytest.raises(ParameterError, match=r"^3 parties.*2"):
        prepared.charge()
    assert open_ledger().charges("iris") == []
    with pytest.raises(ParameterError, match="--trust secagg"):
        prepare("iris", algorithm="noisy-gd", trust="distributed", dropouts=1)


def test_it_composes_with_parts(distributed: None, root: Path) -> None:
    result = followed(
        "iris",
        algorithm=None,
        trainer="sufficient-statistics",
        trust="distributed",
        parties=3,
    )
    assert result.trust == "distributed"
    assert drawn == [3]


@pytest.mark.parametrize("trust", names("trusts"))
def test_every_trust_model_says_who_makes_the_noise(trust: str) -> None:
    made: Any = lookup("trusts", trust)()
    assert made.summary
    for parties in (("0",), ("0", "1", "2")):
        contributors = made.noise_contributors(parties)
        assert len(set(contributors)) == len(contributors) > 0
        assert made.owner(parties) in {*parties, "all"}


# ── secure aggregation ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("parties", "dropouts", "colluders"), [(4, 2, 0), (4, 1, 2), (10, 5, 1), (6, 2, 2)])
def test_settings_in_which_a_lying_server_could_open_two_sums_are_refused(
    parties: int, dropouts: int, colluders: int
) -> None:
    """2 (N - D) <= N + C: two sets of N - D parties may have C colluders and no honest party in common."""
    fails = 2 * (parties - dropouts) <= parties + colluders
    trust = SecureAggregation(dropouts=dropouts, colluders=colluders)
    if not fails:
        trust.tolerance(parties)
        return
    with pytest.raises(ParameterError, match="--consistent-survivors"):
        trust.tolerance(parties)
    assumed = SecureAggregation(dropouts=dropouts, colluders=colluders, consistent_survivors=True)
    assert "same-survivor-set" in assumed.tolerance(parties).assumptions()
    with pytest.raises(ParameterError, match="--consistent-survivors"):
        planned(algorithm="noisy-gd", trust="secagg", dropouts=1, colluders=1)


def test_settings_of_secure_sums_may_stand_beside_the_others() -> None:
    flat = TrainingConfig.model_validate({"dropouts": 1, "absent": ["2:mask"], "trust": "secagg"})
    assert flat == TrainingConfig(trust="secagg", secure=SecureSettings(dropouts=1, absent=("2:mask",)))
    with pytest.raises(ValueError, match=r"secure\.dropouts"):
        TrainingConfig.model_validate({"dropouts": -1})


def test_the_noise_of_a_secure_sum_is_known_to_the_algorithm() -> None:
    """Each of five parties adds a quarter of the variance, so that four of them carry the whole guarantee."""
    secure = planned(algorithm="noisy-gd", trust="secagg").releases[0]
    assert secure.setting.noise_factor == pytest.approx(np.sqrt(3 / 2))
    assert planned(algorithm="noisy-gd", trust="central").releases[0].setting.noise_factor == 1.0


def test_the_noise_factor_is_that_of_the_noise(root: Path) -> None:
    """The sum of five parties' shares has 1.118 times the law's deviation; taking it for 1 is caught by ten sigmas."""
    setting = (
        planned(shards_of(dataset_of(), sizes=(200,) * 5), algorithm="noisy-gd", trust="secagg").releases[0].setting
    )
    assert setting.noise_factor == pytest.approx(np.sqrt(5 / 4))
    count, law = 4000, RoundedGaussian(1000.0)
    noises = [KeyedNoise(bytes([party]) * 32, "factor") for party in range(5)]
    algorithm: Any = cast(Any, lookup("trainers", "noisy-gd"))(budget=GaussianMu(1.0), iterations=1)
    sums = SecureAggregation().summation(algorithm, setting, noises, "factor", StoredRecord("factor", "01234"))
    noise = sums.release("sum-0", [np.zeros(count, dtype=np.int64)] * 5, law)
    # The standard deviation of an estimated deviation is 1/sqrt(2 n) of it: 6 of them make a false alarm in 10^9.
    assert np.std(noise) / law.sigma == pytest.approx(setting.noise_factor, rel=6 / np.sqrt(2 * count))


@pytest.mark.parametrize("name", ["noisy-gd", "output-perturbation", "sufficient-statistics"])
def test_what_weighs_signal_against_noise_goes_by_the_noise_there_is(name: str) -> None:
    """The same noisy sums under more noise: a shorter step, more shrinkage."""
    setting = Setting(sizes=(300,) * 3, dimension=6, classes=5)
    algorithm: Any = cast(Any, lookup("trainers", name))(budget=GaussianMu(0.05))
    state = algorithm.initial(setting)
    shape = algorithm.contribution(state, ArrayRows(np.zeros((0, 6)), np.zeros(0, dtype=np.int64)), setting).shape
    noisy = np.random.default_rng(0).normal(scale=1e9, size=shape).astype(np.int64)
    weights = [
        algorithm.result(algorithm.update(state, noisy, changed), changed).weights
        if name != "noisy-gd"
        else algorithm.update(state, noisy, changed).weights
        for changed in (setting, replace(setting, noise_factor=1.5))
    ]
    spread = [float(np.linalg.norm(one - one.mean(axis=0))) for one in weights]
    assert 0 < spread[1] < spread[0]


def test_the_table_of_what_colluders_beyond_the_plan_see_is_true() -> None:
    """Against k who pool what they know, N - k shares of variance sigma^2 / u are left: docs/parties-reference.md."""
    page = Path(__file__).parents[3] / "docs" / "parties-reference.md"
    mu = cast(GaussianMu, allocate([GaussianMu], [1.0], 1.0, 1e-5).losses[0]).mu
    rows = [line.strip("| \n").split(" | ") for line in page.read_text("utf-8").splitlines()]
    found = 0
    for parties, colluders, noise, *stated in (row for row in rows if len(row) == 6 and row[0].isdigit()):
        n, c = int(parties), int(colluders.split()[-1])
        model = SecureAggregation(colluders=c)
        shares = model.tolerance(n).unknown_shares
        assert float(noise) == pytest.approx(model.noise_factor(n), abs=0.006)
        for k, said in zip((1, math.ceil(n / 3), n - 1), stated, strict=True):
            assert float(said) == pytest.approx(gaussian_epsilon(mu * math.sqrt(shares / (n - k)), 1e-5), abs=0.006)
        found += 1
    assert found == 11
