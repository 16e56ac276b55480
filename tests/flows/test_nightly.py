"""A horizon of nights: one charge, stable nights over versions, rows that come back, crashes, absences."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dpalgos.accounting.costs import PlanCost
from dpalgos.guarantees import Setting
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.mechanisms.factorisation import ToeplitzFactor, best_bands
from dpalgos.models import Statistic
from dpalgos.normalisation import UnitNorm
from dpalgos.parameters import ParameterError
from dpalgos.registry import names
from dpalgos.rows import Features, Floats, Ints, Rows
from dpalgos.trainers.continual import FollowTheRegularisedLeader, NightSum, state_after
from flows.federated_training import chain, chain_inline
from storage.errors import InputError, OverspendError, RefusedError, StorageError
from storage.ledger.ledger import OutputOutcome
from storage.refs import Visibility
from storage.releases import ReleaseStore
from storage.rounds import PrivateNotes
from tasks.accounts.ledger import check_releases, open_ledger
from tasks.accounts.reports import budget_report
from tasks.accounts.terms import gaussian_delta
from tasks.datasets import horizons
from tasks.datasets.registration import ingest
from tasks.datasets.request import IngestRequest
from tasks.planning import nights as planning
from tasks.planning.nights import PlannedNight
from tasks.preparation.prepare import PreparedNight, prepare, record_night
from tasks.preparation.streams import Arrived
from tasks.release import checkpoints
from tasks.release.preflight import require_feasible
from tasks.release.seen_rows import maps_of, rows_of
from tasks.runtime.settings import current_layout
from tasks.runtime.steps import inline
from tasks.runtime.stores import open_catalog
from tests.support.called import runs_called
from tests.support.chains import charges, configured, digests
from tests.support.command_line import CommandLine
from tests.support.encoders import BOTH, encoder_run
from tests.support.leaks import found_in, needles_of
from tests.support.ledgers import outputs
from tests.support.private_rows import CLASSES, DIMENSION, ingestion, write_rows

NIGHTS = 4
CLASSES_AND_COUNT = len(CLASSES) * (DIMENSION + 1)
GIVEN: dict[str, Any] = {"horizon": NIGHTS, "trainer": "class-means", "trust": "central", "parties": 2}


def lines(count: int, folder: Path) -> list[str]:
    """The first rows of one file: of two lengths, the longer begins with the shorter."""
    folder.mkdir(exist_ok=True)
    return write_rows(folder / "all.txt", count, seed=5).path.read_text().splitlines()


def arrive(rows: list[str], folder: Path, name: str = "clinic", **request: Any) -> None:
    """Register a version."""
    path = folder / f"{name}.txt"
    path.write_text("\n".join(rows) + "\n")
    given: dict[str, Any] = {"visibility": Visibility.PRIVATE, "epsilon_cap": 3.0, "delta_cap": 1e-4, **request}
    ingest(IngestRequest(name=name, format="libsvm", path=path, dimension=DIMENSION, classes=CLASSES, **given))


def tonight(**config: Any) -> tuple[PlannedNight, Any]:
    """Run a night and return its release and result."""
    chained = chain_inline(configured(**{**GIVEN, **config}))
    return cast(PlannedNight, chained.plan.models[0]), chained.result


def released(release: PlannedNight) -> list[Ints]:
    """What is stored of the nights so far."""
    store = ReleaseStore(current_layout())
    stream = release.stream
    assert stream is not None
    return [store.read(key)[1]["values"] for key in release.night_keys[: stream.night]]


def frozen(release: PlannedNight, party: str, night: int) -> Ints:
    """A party's own sum of a night."""
    path = current_layout().party_round(party, release.stream_key) / f"sum-{night}"
    # Behind the head of a note and the digest of the rows that it is a sum of.
    data = path.read_bytes().partition(b"\n")[2][32 + 64 :]
    return np.asarray(np.load(io.BytesIO(data)))


def spent(account: str = "clinic") -> float:
    found = budget_report(account)["epsilon_spent"]
    assert found is not None
    return found


def test_a_night_that_is_drawn_again_pays_for_one_night(root: Path, tmp_path: Path) -> None:
    arrive(lines(30, tmp_path / "rows"), tmp_path)
    release, _ = tonight()
    ledger = open_ledger()
    assert ledger.record_output(release.key, "0" * 64) is OutputOutcome.RECHARGED
    first, again = (PlanCost.from_json(dict(plan.costs["horizon 1"])) for plan in ledger.history("clinic").plans)
    factor = ToeplitzFactor(nights=NIGHTS)
    share = factor.coefficients[0] ** 2 / factor.norm_squared
    assert again.totals.mu_squared == pytest.approx(share * first.totals.mu_squared)
    assert again.totals.mu_squared >= share * first.totals.mu_squared * (1 - 1e-12)
    assert share < 0.7


def test_a_horizon_is_one_charge_and_a_night_is_one_release(root: Path, tmp_path: Path) -> None:
    rows = lines(120, tmp_path / "rows")
    first_price = None
    for night in range(1, NIGHTS + 1):
        arrive(rows[: 30 * night], tmp_path)
        release, result = tonight()
        first_price = first_price or spent()
        assert release.stream.night == night
        assert release.stream.arrived == (15, 15)
        before, kept = charges(), digests()
        # Again: the same release, nothing charged, nothing drawn.
        again, repeated = tonight()
        assert (again.key, repeated.run_key) == (release.key, result.run_key)
        assert (charges(), digests()) == (before, kept)
        assert spent() == first_price
        assert result.epsilon_spent == pytest.approx(1.0, abs=1e-9)
        assert result.epsilon_spent <= 1.0
    assert len(charges()) == NIGHTS
    assert len(open_ledger().history("clinic").plans) == 1
    assert check_releases() == []
    # Noise is fresh each night, of the stated size: 4 · 14 numbers miss it by half once in 10⁹.
    law = release.build().distribution(release.setting)  # type: ignore[attr-defined]  # a sum's
    factor = ToeplitzFactor(nights=NIGHTS)
    sums = [frozen(release, "0", night) + frozen(release, "1", night) for night in range(1, NIGHTS + 1)]
    noise: list[Floats] = []
    for night, values in enumerate(released(release), 1):
        exact = sum(factor.coefficients[night - s] * sums[s - 1] for s in range(1, night + 1))
        noise.append((values - exact) / law.sigma)
    assert len({part.tobytes() for part in noise}) == NIGHTS
    assert 0.5 < np.std(noise) < 1.6
    assert np.abs(np.corrcoef([part.ravel() for part in noise])[0, 1:]).max() < 0.99


def test_missed_nights_cost_nothing_and_are_made_up_for(root: Path, tmp_path: Path) -> None:
    rows = lines(90, tmp_path / "rows")
    arrive(rows[:30], tmp_path)
    tonight()
    price = spent()
    for count in (60, 90):
        arrive(rows[:count], tmp_path)
    release, _ = tonight()
    assert release.stream.night == 3
    assert len(released(release)) == 3
    assert spent() == price
    # A version without a new row is no night.
    arrive(rows[:90][::-1], tmp_path)
    assert tonight()[0].key == release.key


def test_rows_that_come_back_or_were_edited_are_refused_where_their_owner_looks(root: Path, tmp_path: Path) -> None:
    rows = lines(120, tmp_path / "rows")
    arrive(rows[:40], tmp_path)
    tonight()
    known = open_catalog().registrations("clinic")
    edited = [rows[0].replace(":0.", ":0.9"), *rows[1:60]]
    with pytest.raises(RefusedError, match=r"missing.*edited"):
        arrive(edited, tmp_path)
    assert open_catalog().registrations("clinic") == known
    # Rows alone may go; they are still in the frozen sums, and may not come back.
    arrive(rows[10:40], tmp_path)
    assert tonight()[0].stream.night == 1
    with pytest.raises(RefusedError, match="earlier night"):
        arrive(rows[:41], tmp_path)
    with pytest.raises(RefusedError, match="earlier night"):
        arrive(rows[10:40] + rows[10:40], tmp_path)
    arrive(rows[10:60], tmp_path)
    release, _ = tonight()
    assert (release.stream.night, release.stream.arrived) == (2, (10, 10))


def test_declared_participations_are_priced(root: Path, tmp_path: Path) -> None:
    rows = lines(60, tmp_path / "rows")
    arrive(rows[:40], tmp_path)
    release, result = tonight(participations=2, separation=2)
    assert result.epsilon_spent == pytest.approx(1.0, abs=1e-9)
    bands = release.stream.bands
    assert bands == best_bands(NIGHTS, 2, 2, NIGHTS) < NIGHTS
    once = ToeplitzFactor(nights=NIGHTS, bands=bands).norm
    twice = ToeplitzFactor(nights=NIGHTS, bands=bands, participations=2, separation=2).norm
    night = release.build()
    assert isinstance(night, NightSum)
    # The same price: more noise.
    sigma = _sigma_of(night.inner.distribution(release.setting))
    assert sigma / _sigma_of_one(release) == pytest.approx(twice / once, rel=1e-9)
    arrive([rows[0].replace(":0.", ":0.9"), *rows[1:60]], tmp_path)
    assert tonight(participations=2, separation=2)[0].stream.arrived == (11, 10)
    with pytest.raises(InputError, match="night"):
        tonight()


def test_bands_are_the_same_whatever_the_rows(root: Path, tmp_path: Path) -> None:
    """They are in the horizon's terms, and follow from the numbers of nights alone."""
    rows, found = lines(60, tmp_path / "rows"), []
    for name, some in (("few", rows[:9]), ("many", rows[9:])):
        arrive(some, tmp_path, name)
        for config in ({}, {"separation": 2}, {"separation": 2, "bands": 3}):
            given = {**GIVEN, "horizon": 5, "participations": 2, **config}
            prepared = prepare(configured(name, **given))
            assert isinstance(prepared, PreparedNight)
            found.append(cast(PlannedNight, prepared.plan.models[0]).stream.bands)
    assert found == [best_bands(5, 2, 1, 5), best_bands(5, 2, 2, 5), 3] * 2
    assert len(set(found)) == 3


def _sigma_of(law: object) -> float:
    assert isinstance(law, RoundedGaussian)
    return law.sigma


def _sigma_of_one(release: PlannedNight) -> float:
    stream = release.stream
    assert stream is not None
    alone = release.model_copy(update={"stream": stream.model_copy(update={"participations": 1, "separation": 1})})
    night = alone.build()
    assert isinstance(night, NightSum)
    return _sigma_of(night.inner.distribution(release.setting))


def test_a_horizon_is_the_same_whether_or_not_its_delta_is_named(root: Path, tmp_path: Path) -> None:
    rows = lines(90, tmp_path / "rows")
    arrive(rows[:30], tmp_path, delta_cap=1e-3)
    first, begun = tonight(delta=gaussian_delta(1e-3))
    price = spent()
    arrive(rows[:60], tmp_path, epsilon_cap=None, delta_cap=None)
    second, result = tonight(delta=None)
    assert second.night_keys == first.night_keys
    assert spent() == price
    assert result.delta_spent == begun.delta_spent == gaussian_delta(1e-3)
    other, _ = tonight(delta=1e-6)
    assert not set(other.night_keys) & set(first.night_keys)


def test_the_next_horizon_reads_new_rows_and_costs_a_maximum(root: Path, tmp_path: Path) -> None:
    rows = lines(150, tmp_path / "rows")
    for night in range(1, 3):
        arrive(rows[: 30 * night], tmp_path)
        tonight(horizon=2)
    price = spent()
    arrive(rows[:60][::-1], tmp_path)
    with pytest.raises(InputError, match=r"row.*since"):
        tonight(horizon=2)
    arrive(rows[:150], tmp_path)
    release, _ = tonight(horizon=2)
    assert (release.stream.horizon, release.stream.night, sum(release.stream.arrived)) == (2, 1, 90)
    assert [line["party"] for line in budget_report("clinic")["parties"]] == ["horizon 1", "horizon 2"]
    assert spent() == price
    # Of the frozen sums, each row's constant says how many rows there are: those of the new horizon are 90.
    unit = release.build().inner.class_sums(release.setting).unit  # type: ignore[attr-defined]  # of running sums
    assert sum(frozen(release, party, 1)[:, -1].sum() for party in ("0", "1")) == 90 * unit
    # Another stream over the same rows adds up.
    tonight(horizon=2, replicate=1)
    assert spent() > 1.3 * price


def test_rows_that_may_come_back_make_no_horizons_that_are_a_maximum(root: Path, tmp_path: Path) -> None:
    rows = lines(60, tmp_path / "rows")
    arrive(rows[:20], tmp_path)
    given = {"horizon": 2, "participations": 2, "epsilon": 0.5}
    tonight(**given)
    arrive(rows[:40], tmp_path)
    tonight(**given)
    price = spent()
    arrive(rows, tmp_path)
    tonight(**given)
    assert spent() > 1.3 * price


def test_a_horizon_that_does_not_fit_is_refused_before_anything(root: Path, tmp_path: Path) -> None:
    arrive(lines(40, tmp_path / "rows"), tmp_path)
    with pytest.raises(OverspendError):
        require_feasible(configured(**GIVEN, epsilon=4.0))
    with pytest.raises(OverspendError):
        tonight(epsilon=4.0)
    assert charges() == []
    tonight(epsilon=1.0)


def test_a_horizon_above_the_cap_opens_nothing(root: Path, tmp_path: Path) -> None:
    """Of so many nights every later run would have to be, whatever it costs."""
    arrive(lines(20, tmp_path / "rows"), tmp_path)
    with pytest.raises(OverspendError):
        chain_inline(configured(**{**GIVEN, "horizon": 365}, epsilon=50.0))
    assert open_catalog().horizons("clinic") == []
    assert chain_inline(configured(**GIVEN)).dataset.rows == 20


def test_nights_that_are_charged_go_on_at_the_soft_limit(root: Path, tmp_path: Path) -> None:
    rows = lines(40, tmp_path / "rows")
    arrive(rows[:20], tmp_path, soft_limit=1.0)
    with pytest.raises(OverspendError, check=lambda refusal: refusal.bound == 1.0):
        tonight(epsilon=2.0)
    tonight(epsilon=1.0)
    booked = spent()
    with pytest.raises(OverspendError, match="cap is epsilon 3"):
        chain_inline(configured(trainer="class-means", trust="central", parties=2, epsilon=0.5, evaluation=False))
    arrive(rows, tmp_path, soft_limit=1.0)
    release, _ = tonight(epsilon=1.0)
    assert release.stream.night == 2
    assert spent() == booked


def test_a_night_is_recorded_as_it_was_planned_or_planned_again(root: Path, tmp_path: Path) -> None:
    """Rows that come between the plan and the record are in no night that was planned without them."""
    rows = lines(40, tmp_path / "rows")
    arrive(rows[:20], tmp_path)
    planned = prepare(configured(**GIVEN))
    assert isinstance(planned, PreparedNight)
    arrive(rows, tmp_path)
    assert not record_night(planned)
    assert open_catalog().horizons("clinic") == []
    with inline():
        chained = chain(planned)
    assert chained.dataset.rows == 40
    (horizon,) = open_catalog().horizons("clinic")
    assert [arrival.rows for arrival in horizon.arrivals] == [40]
    # What is on record is what is planned, and recording it again changes nothing.
    again = prepare(configured(**GIVEN))
    assert isinstance(again, PreparedNight)
    assert record_night(again)
    assert open_catalog().horizons("clinic") == [horizon]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"trust": "local"}, "--trust"),
        ({"trainer": "noisy-gd"}, "class-means"),
        ({"trainer": "output-perturbation"}, "2.*160.*class-means"),
        ({"trainer": "output-perturbation", "expected_rows": 40}, "^OutputPerturbation.*2 rows.*40"),
        ({"trainer": None, "algorithm": "fed-dpdr-dpml"}, "class-means|--projection"),
        ({"projection": "analyze-gauss"}, "--projection"),
        ({"partition": "sized", "sizes": [10, 30]}, "--partition"),
        ({"horizon": 5000}, "3653"),
        ({"participations": 9}, "participations"),
        ({"bands": 9}, "bands"),
        ({"epsilon": None}, "--epsilon"),
        ({"deadline": 3.0}, "deadline"),
        ({"test_fraction": 0.2}, "test_rows|TrainingConfig|kept"),
        ({"expected_rows": 10**17}, "2\\^62"),
        ({"trainer": None, "class_weight": "balanced"}, "sufficient-statistics.*weights"),
        ({"trainer": None, "parameters": {"clip": 0.3}}, "'clip'"),
    ],
)
def test_what_cannot_be_released_night_after_night_opens_nothing(
    root: Path, tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    arrive(lines(40, tmp_path / "rows"), tmp_path)
    with pytest.raises((ParameterError, ValueError), match=reason):
        tonight(**config)
    assert charges() == []
    assert open_catalog().horizons("clinic") == []


def test_whatever_a_horizon_admits_releases_its_nights_and_whatever_it_refuses_charges_nothing(
    root: Path, tmp_path: Path
) -> None:
    rows = lines(180, tmp_path / "rows")
    admitted: list[str | None] = []
    arrive(rows[:20], tmp_path, "clinic-0")
    for trainer in [None, *names("trainers")]:
        name, first = f"clinic-{len(admitted)}", 40 * len(admitted)
        try:
            tonight(dataset=name, trainer=trainer)
        except ValueError:
            assert charges(name) == [], trainer
            assert open_catalog().horizons(name) == [], trainer
            continue
        arrive(rows[first : first + 40], tmp_path, name)
        release, _ = tonight(dataset=name, trainer=trainer)
        assert release.stream.night == 2, trainer
        assert [(key, False) in charges(name) for key in release.night_keys[:2]] == [True, True], trainer
        admitted.append(trainer)
        arrive(rows[first + 40 : first + 60], tmp_path, f"clinic-{len(admitted)}")
    assert admitted == [None, "class-means", "ftrl", "sufficient-statistics"]


@pytest.mark.parametrize("config", [{"participations": 2}, {"bands": 3}, {"expected_rows": 9}])
def test_what_belongs_to_a_horizon_needs_one(root: Path, config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="horizon"):
        configured("digits", **config)


def in_turn(count: int, parties: int, first: int = 0) -> list[str]:
    """Rows of as many directions as parties, in turn, all different."""
    places = [row % parties for row in range(count)]
    return [f"{1 if place else -1} {place + 1}:1 6:{(first + row) / 4000:g}" for row, place in enumerate(places)]


@pytest.mark.parametrize(
    ("newest_first", "config", "apart", "admitted"),
    [
        (True, {"trust": "secagg", "secure": {"dropouts": 1, "absent": ["1:mask"]}}, 1, False),
        (True, {"trust": "secagg", "parties": 4, "secure": {"colluders": 1}}, 0, False),
        (False, {"trust": "secagg", "secure": {"dropouts": 1, "absent": ["1:mask"]}}, 1, True),
        # What is released is the sum over all parties, whoever holds a row.
        (True, {"trust": "secagg"}, None, True),
        (True, {"trust": "central"}, None, True),
    ],
)
def test_a_row_equal_to_an_older_one_moves_no_other(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    newest_first: bool,
    config: dict[str, Any],
    apart: int | None,
    admitted: bool,
) -> None:
    """The attack: of two equal rows the later is the new one, so that new rows before it are one place further on.

    Neighbours differ in one row of night 2, which in one of them is equal to a row of night 1. Where parties are lost,
    a row that moved to another party is in the sum or not: the sum moved by 70 times what one row may move it.
    """
    given: dict[str, Any] = {"parties": 3, **config}
    told: list[Ints] = []
    for name in ("clinic", "ward"):
        old, new = in_turn(30, given["parties"]), in_turn(300, given["parties"], 30)
        if name == "ward":
            new[0] = old[-1]
        request = {"account": name, "disjoint_people": "" if name == "clinic" else "made up"}
        arrive(old, tmp_path, name, **request)
        tonight(dataset=name, **given)
        version = [*new, *old] if newest_first else [*old, *new]
        if not admitted:
            with pytest.raises(RefusedError, match="previous version"):
                arrive(version, tmp_path, name, **request)
            assert len(open_catalog().registrations(name)) == 1
            # The night itself is refused too, where nobody asked for it when its rows came.
            monkeypatch.setattr(horizons, "_needs_appended", lambda *_: False)
            arrive(version, tmp_path, name, **request)
            before = charges(name)
            with pytest.raises(RefusedError, match="previous version"):
                tonight(dataset=name, **given)
            assert charges(name) == before
            # The sum over all of them is another release, at a price of its own.
            assert sum(tonight(dataset=name, trust="central")[0].stream.arrived) == 300
            return
        arrive(version, tmp_path, name, **request)
        release, _ = tonight(dataset=name, **given)
        assert sum(release.stream.arrived) == 300
        # The lost party's sum is not in the release, the colluder knows its own.
        others = [party for party in release.parties if party != str(apart)]
        told.append(np.sum([frozen(release, party, 2) for party in others], axis=0))
    most = release.build().inner.class_sums(release.setting).sensitivity(release.setting.neighbours)  # type: ignore[attr-defined]  # of running sums
    moved = float(np.linalg.norm((told[0] - told[1]).astype(np.float64)))
    assert 0 < moved <= most, f"{moved / most:.1f} times what one row may move it"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("trust", ["central", "secagg"])
def test_a_killed_night_is_the_same_night(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trust: str
) -> None:
    rows = lines(60, tmp_path / "rows")
    arrive(rows[:30], tmp_path)
    tonight(trust=trust, parties=3)
    arrive(rows, tmp_path)
    price = spent()
    for step in ("charged", "drawn", "recorded"):

        def dies(reached: str, step: str = step) -> None:
            if reached == step:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "reached", dies)
            with pytest.raises(Killed):
                tonight(trust=trust, parties=3)
    release, _ = tonight(trust=trust, parties=3)
    assert len(outputs(open_ledger(), release.key)) == 1
    assert charges() == [(key, False) for key in release.night_keys]
    assert spent() == price
    # The rows of the night before are not read again: their sums are frozen.
    for shards in current_layout().parties.glob("*/shards"):
        shutil.rmtree(shards)
    arrive(lines(90, tmp_path / "rows"), tmp_path)
    assert tonight(trust=trust, parties=3)[0].stream.night == 3


def test_a_party_that_missed_a_night_brings_its_rows_the_next(root: Path, tmp_path: Path) -> None:
    rows = lines(90, tmp_path / "rows")
    given: dict[str, Any] = {"trust": "secagg", "parties": 3, "secure": {"dropouts": 1}}
    arrive(rows[:45], tmp_path)
    release, _ = tonight(**given)
    # Party 1 loses what it kept of the first night, as if it had never come to it.
    folder = current_layout().party_round("1", release.stream_key)
    kept = frozen(release, "1", 1)
    (folder / "sum-1").unlink()
    arrive(rows, tmp_path)
    release, _ = tonight(**given)
    np.testing.assert_array_equal(frozen(release, "1", 1), kept)
    # What the night says is what all three hold, both nights' rows.
    parts = [[frozen(release, party, night) for party in "012"] for night in (1, 2)]
    first, second = (sum(part) for part in parts)
    coefficients = ToeplitzFactor(nights=NIGHTS).coefficients
    error = released(release)[1] - (coefficients[1] * first + coefficients[0] * second)
    assert np.abs(error).max() < 10 * release.setting.noise_factor * release.build().distribution(release.setting).sigma  # type: ignore[attr-defined]  # a sum's


def test_where_sums_of_all_nights_have_no_room_the_factor_has_as_many_bands_as_fit(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = lines(120, tmp_path / "rows")
    one = 8 * CLASSES_AND_COUNT
    monkeypatch.setattr(planning, "_LARGEST_STATE", 2 * one + 1)
    arrive(rows[:30], tmp_path)
    with pytest.raises(ParameterError, match="--bands 2"):
        tonight(bands=3)
    for night in range(1, NIGHTS + 1):
        arrive(rows[: 30 * night], tmp_path)
        release, result = tonight()
        assert release.stream.bands == 2
        kept = sorted(path.name for path in current_layout().party_round("0", release.stream_key).glob("sum-*"))
        assert kept == [f"sum-{one}" for one in range(max(1, night - 1), night + 1)]
    # The same night again finds what it needs, and the releases are those of a factor of two bands.
    assert tonight()[1].run_key == result.run_key
    law = release.build().distribution(release.setting)  # type: ignore[attr-defined]  # a sum's
    factor = ToeplitzFactor(nights=NIGHTS, bands=2)
    assert law.sigma == pytest.approx(_sigma_of_one(release))
    exact = sum(
        factor.coefficients[NIGHTS - night] * (frozen(release, "0", night) + frozen(release, "1", night))
        for night in (NIGHTS - 1, NIGHTS)
    )
    assert 0.5 < np.std((released(release)[-1] - exact) / law.sigma) < 1.6
    monkeypatch.setattr(planning, "_LARGEST_STATE", one - 1)
    with pytest.raises(ParameterError, match="--bands"):
        tonight(replicate=1)


@pytest.mark.parametrize("trust", ["central", "secagg"])
def test_gradients_are_taken_at_the_model_of_the_nights_before_and_frozen(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trust: str
) -> None:
    rows = lines(90, tmp_path / "rows")
    given: dict[str, Any] = {"trainer": "ftrl", "trust": trust, "parties": 3}
    price = None
    for night in (1, 2, 3):
        arrive(rows[: 30 * night], tmp_path)
        if night == 3:
            with monkeypatch.context() as patch:
                patch.setattr(checkpoints, "reached", _dies_at("drawn"))
                with pytest.raises(Killed):
                    tonight(**given)
            # Its sums are frozen, and stay those of the model that it knew.
            monkeypatch.setattr(FollowTheRegularisedLeader, "contribution", _of_no_rows)
        release, result = tonight(**given)
        price = price or spent()
        assert spent() == price
        assert result.epsilon_spent == pytest.approx(1.0, abs=1e-9)
    assert len(open_ledger().history("clinic").plans) == 1
    monkeypatch.undo()
    monkeypatch.setenv("UNITBALL_ROOT", str(root))
    tonights = release.build()
    assert isinstance(tonights, NightSum)
    inner, shapes = tonights.inner, tonights.inner.sum_shape(release.setting)
    # Party 0 holds every third of a night's rows: its gradients at zero weights, and at what nights 1 and 2 make.
    zero = np.zeros(shapes, dtype=np.int64)
    for number, state in ((1, zero), (3, state_after(tonights.factor, released(release)[:2], inner, release.setting))):
        [own] = [one for one in shards_of(release, "0") if one[0] == number]
        formed = inner.contribution(state, own[1], release.setting)
        np.testing.assert_array_equal(frozen(release, "0", number), formed)
        assert number == 1 or np.abs(inner.contribution(zero, own[1], release.setting) - formed).any()


def _dies_at(step: str) -> Callable[[str], None]:
    def reached(now: str) -> None:
        if now == step:
            raise Killed

    return reached


def _of_no_rows(self: FollowTheRegularisedLeader, state: Ints, rows: Rows, setting: Setting) -> Ints:
    assert rows.count == 0, "a frozen night was formed again"
    return np.zeros(self.sum_shape(setting), dtype=np.int64)


def shards_of(release: PlannedNight, party: str) -> list[tuple[int, Rows]]:
    """A party's rows of each night, as it keeps them."""
    notes = PrivateNotes(current_layout().party_round(party, release.stream_key))
    nights = range(1, release.stream.night + 1)
    shards = [Arrived.model_validate_json(notes.require(f"arrived-{night}")).shard for night in nights]
    return [(night, rows_of(shard, (), DIMENSION)) for night, shard in zip(nights, shards, strict=True)]


def test_a_table_s_nights_need_no_trainer_by_name(root: Path, tmp_path: Path) -> None:
    """For its rows all at once the recommended system learns their mean first; over nights it does not."""
    schema, path = tmp_path / "clinic.yaml", tmp_path / "rows.csv"
    schema.write_text(
        "columns:\n  - {name: age, type: numeric, range: [0, 120]}\n"
        "  - {name: weight, type: numeric, range: [20, 300]}\n"
        '  - {name: ill, type: label, classes: {"no": healthy, "yes": ill}}\n'
    )
    numbers = np.random.default_rng(2)
    told = [f"{numbers.integers(20, 80)},{numbers.uniform(50, 120):.1f},{('no', 'yes')[row % 2]}" for row in range(600)]
    for count in (300, 600):
        path.write_text("age,weight,ill\n" + "\n".join(told[:count]) + "\n")
        ingest(
            IngestRequest(
                name="clinic",
                format="csv",
                path=path,
                schema_path=schema,
                visibility=Visibility.PRIVATE,
                epsilon_cap=1.0,
                delta_cap=1e-5,
            )
        )
        chained = chain_inline(configured(horizon=NIGHTS, trust="secagg", parties=3))
    release = chained.plan.models[0]
    assert release.algorithm.name == "sufficient-statistics"
    assert release.upstream == ()
    assert len(charges()) == NIGHTS


def test_sums_that_were_removed_for_good_end_the_horizon_and_the_next_one_begins(root: Path, tmp_path: Path) -> None:
    """As docs/nights.md says of a request to be deleted."""
    rows, given = lines(90, tmp_path / "rows"), {"horizon": 2, "parties": 1}
    arrive(rows[:30], tmp_path)
    release, _ = tonight(**given)
    arrive(rows[:60], tmp_path)
    shutil.rmtree(current_layout().party_round("0", release.stream_key))
    with pytest.raises(StorageError, match="horizon ends"):
        tonight(**given)
    price, known = spent(), charges()
    arrive(rows, tmp_path)
    release, _ = tonight(**given)
    assert (release.stream.horizon, release.stream.arrived) == (2, (30,))
    assert spent() == price
    assert charges()[: len(known)] == known


@pytest.mark.nightly
def test_secure_sums_of_a_night_are_those_of_a_curator(root: Path, tmp_path: Path) -> None:
    """At a budget at which noise is small beside the sums, both name the same running sums."""
    rows = lines(60, tmp_path / "rows")
    found = []
    for name, trust in (("clinic", "central"), ("ward", "secagg")):
        request = {"epsilon_cap": 900.0, "account": name, "disjoint_people": "" if name == "clinic" else "made up"}
        for count in (30, 60):
            arrive(rows[:count], tmp_path, name, **request)
            release, _ = tonight(dataset=name, trust=trust, parties=3, epsilon=800.0)
        weights = ToeplitzFactor(nights=NIGHTS).decoder(2)
        decoded = sum(weight * one for weight, one in zip(weights, released(release), strict=True))
        found.append(decoded / release.build().inner.class_sums(release.setting).scale)  # type: ignore[attr-defined]  # of running sums
    assert np.abs(found[0] - found[1]).max() < 2.0
    assert np.abs(found[0]).max() > 10.0


def test_nothing_of_a_row_or_a_sum_lies_outside_the_private_folder(root: Path, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.txt", 60, seed=5)
    rows = source.path.read_text().splitlines()
    for count in (30, 60):
        arrive(rows[:count], tmp_path)
        release, _ = tonight(trust="secagg", parties=3, trainer="sufficient-statistics")
    layout = current_layout()
    sums = [path for path in layout.parties.glob("*/rounds/*/*") if path.name.startswith(("sum-", "arrived-"))]
    assert len(sums) == 3 * 4
    for path in [*sums, *layout.arrivals.iterdir()]:
        assert path.stat().st_mode & 0o077 == 0
    needles = needles_of(source.features)
    needles += [frozen(release, party, 1)[:2].tobytes() for party in "012"]
    outside = [path for path in root.rglob("*") if path.is_file() and layout.private not in path.parents]
    assert found_in(outside, needles) == []
    assert found_in([path for path in layout.private.rglob("*") if path.is_file()], needles)


def test_parties_bring_files_of_their_own_and_one_may_bring_nothing(root: Path, tmp_path: Path) -> None:
    rows = lines(60, tmp_path / "rows")

    def bring(north: list[str], south: list[str]) -> None:
        paths = {}
        for party, given in (("north", north), ("south", south)):
            paths[party] = tmp_path / f"{party}.txt"
            paths[party].write_text("\n".join(given) + "\n")
        ingest(
            IngestRequest(
                name="clinic",
                format="libsvm",
                parties=paths,
                dimension=DIMENSION,
                classes=CLASSES,
                visibility=Visibility.PRIVATE,
                epsilon_cap=3.0,
                delta_cap=1e-4,
            )
        )

    bring(rows[:20], rows[40:50])
    with pytest.raises(InputError, match=r"2 parties.*3"):
        tonight(parties=3)
    assert tonight()[0].parties == ("north", "south")
    # A row that is equal to one of the other party's is its own party's all the same.
    bring([*rows[:34], rows[40]], rows[40:50])
    release, _ = tonight()
    assert release.stream.arrived == (15, 0)
    assert frozen(release, "south", 2).any() == np.False_


def test_the_night_of_a_killed_ingestion_is_not_lost(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = lines(60, tmp_path / "rows")
    arrive(rows[:30], tmp_path)
    tonight()

    def dies(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("storage.catalog.Catalog.record_arrival", dies)
        with pytest.raises(Killed):
            arrive(rows, tmp_path)
    release, _ = tonight()
    assert (release.stream.night, sum(release.stream.arrived)) == (2, 30)


def test_running_sums_decode_to_what_arrived(root: Path, tmp_path: Path) -> None:
    """The number of rows, of which nothing is secret: the mean decoded count misses it by no more than its noise."""
    rows = lines(90, tmp_path / "rows")
    for count in (30, 60, 90):
        arrive(rows[:count], tmp_path, epsilon_cap=300.0)
        release, _ = tonight(epsilon=200.0)
    decoded = ToeplitzFactor(nights=NIGHTS).decoder(3) @ np.stack([one[:, -1] for one in released(release)])
    inner = release.build().inner  # type: ignore[attr-defined]  # of running sums
    counts = decoded / inner.class_sums(release.setting).unit
    noise = inner.distribution(release.setting).sigma / inner.class_sums(release.setting).unit
    assert abs(counts.sum() - 90) < 7 * noise * math.sqrt(2) * ToeplitzFactor(nights=NIGHTS).amplification(3)
    assert isinstance(Statistic(values=counts).values, np.ndarray)


def test_a_night_is_a_flow_by_command(unitball: CommandLine, tmp_path: Path) -> None:
    """The rounds of a secure night as tasks; a schedule of nights; the same night again."""
    source = write_rows(tmp_path / "rows.txt", 40, seed=5)
    unitball.succeeds(*ingestion(source))
    asked = ("--horizon", 3, "--epsilon", 1, "--trust", "secagg", "--parties", 3, "--trainer", "class-means")
    said = unitball("schedule", "clinic", "--nightly", *asked)
    assert "one charge for 3 nights" in said.out
    first = unitball.succeeds("train", "--dataset", "clinic", *asked)
    assert first["proved"]["epsilon"] <= 1.0
    assert "record-in-one-night" in first["proved"]["assumptions"]
    with runs_called():
        again = unitball.succeeds("train", "--dataset", "clinic", *asked)
    assert again["releases"] == first["releases"]
    assert again["mlflow_run_id"] == first["mlflow_run_id"]
    unitball("train", "--dataset", "clinic", "--horizon", 9, "--epsilon", 1).refused(2, "night 1 of a horizon of 3")
    archive = tmp_path / "night.zip"
    unitball.succeeds("export", first["run_key"], "-o", archive)
    verified = unitball("verify", archive)
    assert verified.code == 0, verified


@pytest.mark.nightly
def test_a_year_of_digits(root: Path, tmp_path: Path) -> None:
    """365 nights of a few private rows each on epsilon 1: none is refused, one charge, and accuracy grows."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.data))
    train, test = order[:1460], order[1460:]
    told = [
        f"{digits.target[row]} " + " ".join(f"{place}:{value:g}" for place, value in enumerate(digits.data[row], 1))
        for row in train
    ]
    found, price = [], None
    for night in range(1, 366):
        path = tmp_path / "digits.txt"
        path.write_text("\n".join(told[: 4 * night]) + "\n")
        ingest(
            IngestRequest(
                name="digits-of-a-year",
                format="libsvm",
                path=path,
                dimension=64,
                classes=tuple("0123456789"),
                visibility=Visibility.PRIVATE,
                epsilon_cap=1.0,
                delta_cap=1e-5,
                image_shape=(8, 8),
            )
        )
        chained = chain_inline(configured("digits-of-a-year", horizon=365, trust="central", parties=2))
        price = price or spent("digits-of-a-year")
        rows: Features = UnitNorm()(digits.data[test].astype(np.float64))
        for apply in maps_of(chained.models["all"]):
            rows = apply(np.asarray(rows, dtype=np.float64))
        found.append(float((rows.argmax(axis=1) == digits.target[test]).mean()))
    assert spent("digits-of-a-year") == price
    assert len(open_ledger().history("digits-of-a-year").plans) == 1
    assert len(charges("digits-of-a-year")) == 365
    early, middle, late = (float(np.mean(found[start : start + 60])) for start in (0, 150, 305))
    assert early + 0.05 < middle < late - 0.02, (early, middle, late)


@pytest.mark.nightly
def test_each_night_is_seen_through_the_encoder_beside_another_map(root: Path, tmp_path: Path) -> None:
    """The map is made on the first night; rows of the first are not seen again on the second."""
    rows = lines(40, tmp_path / "rows")
    given = encoder_run((2, 3))
    arrive(rows[:25], tmp_path)
    first, result = tonight(**given)
    paid, stored = spent(), digests()
    assert released(first)[0].shape == (len(CLASSES), BOTH + 1)
    arrive(rows, tmp_path)
    second, again = tonight(**given)
    assert spent() == paid
    assert len(released(second)) == 2
    assert np.array_equal(released(second)[0], released(first)[0])
    assert {key: digest for key, digest in digests().items() if key in stored} == stored, "the map among them"
    assert result.measured_on == again.measured_on
