"""What cannot be measured: decided once, by the margin alone."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest

from dpalgos.measured import (
    HOLDS_ALL,
    HOLDS_BOTH,
    NO_VALUE,
    SHARE,
    Metrics,
    Scale,
    in_digits,
    mean,
    why_unknown,
    with_margin,
    written,
)

ERROR = Scale(guess=10.0, perfect=0.0, most=40.0, whole=10.0)
R2 = Scale(least=-math.inf)


@pytest.mark.parametrize(
    ("value", "low", "high", "scale", "why"),
    [
        (0.8, 0.7, 0.9, Scale(guess=0.6), ""),
        (0.8, 0.6, 0.99, Scale(guess=0.6), HOLDS_BOTH),
        (0.8, 0.6, 0.98, Scale(guess=0.6), ""),
        # Guessing is nearly perfect, and the margin is narrow.
        (0.97, 0.94, 1.0, Scale(guess=0.95), ""),
        (0.97, 0.75, 1.0, Scale(guess=0.95), HOLDS_BOTH),
        (0.5, 0.0, 1.0, SHARE, HOLDS_ALL),
        (0.5, 0.0, 0.98, SHARE, ""),
        (0.0, -1.0, 1.0, Scale(least=-1.0), HOLDS_BOTH),
        # Less is better.
        (5.0, 0.05, 12.0, ERROR, HOLDS_BOTH),
        (5.0, 1.0, 12.0, ERROR, ""),
        (5.0, 0.0, 9.0, ERROR, ""),
        (0.2, -3.0, 1.0, R2, HOLDS_BOTH),
        (-0.2, -3.0, 0.5, R2, ""),
        (math.nan, 0.2, 0.3, SHARE, NO_VALUE),
        (0.2, math.nan, 0.3, SHARE, NO_VALUE),
    ],
)
def test_a_margin_that_holds_guessing_and_a_perfect_model_says_nothing(
    value: float, low: float, high: float, scale: Scale, why: str
) -> None:
    assert why_unknown(value, low, high, scale) == why


def some() -> Metrics:
    found = Metrics({"held_out_rows": 50.0})
    found.measure("accuracy", 0.95, (0.7, 0.9), Scale(guess=0.6))
    found.measure("mcc", 0.1, (-0.9, 1.0), Scale(least=-1.0))
    found["mcc_noise"] = 3.0
    found.refuse("r2", "no counts of the label", (-math.inf, 1.0))
    return found


def test_what_cannot_be_measured_is_nan_with_its_margin_and_a_reason() -> None:
    found = some()
    assert found["accuracy"] == 0.9, "moved into its margin"
    assert math.isnan(found["mcc"])
    assert found.limits("mcc") == (-1.0, 1.0), "all that is possible"
    assert found.reasons == {"mcc": HOLDS_BOTH, "r2": "no counts of the label"}
    assert found.known() == {"held_out_rows": 50.0, "accuracy": 0.9, "accuracy_low": 0.7, "accuracy_high": 0.9}
    assert [name for name in found.names() if found.is_known(name)] == ["held_out_rows", "accuracy"]


@pytest.mark.parametrize("travel", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])  # noqa: S301
def test_reasons_travel_with_the_numbers(travel: object) -> None:
    assert callable(travel)
    there = travel(some())
    assert there == some()
    assert there.reasons == some().reasons
    back = Metrics.from_json(some().to_json())
    assert back == some()
    assert back.limits("r2") == (-math.inf, 1.0)
    assert some() != Metrics({**some(), "accuracy": 0.8}, some().reasons)


def test_json_has_null_and_a_reason() -> None:
    written = some().to_json()
    assert written["mcc"] is None
    assert written["mcc_reason"] == HOLDS_BOTH
    assert written["r2_low"] is None, "JSON has no infinity"
    assert "accuracy_reason" not in written


def test_a_mean_over_models_is_unknown_where_one_of_them_is() -> None:
    known = Metrics({"accuracy": 0.5, "accuracy_low": 0.4, "accuracy_high": 0.6, "accuracy_noise": 0.3})
    other = Metrics({**known, "accuracy": 0.7, "accuracy_noise": 0.4})
    assert mean([known, other]) == {
        "accuracy": 0.6, "accuracy_low": 0.4, "accuracy_high": 0.6, "accuracy_noise": 0.25
    }  # fmt: skip
    other.refuse("accuracy", "why", (0.0, 1.0))
    assert mean([known, other]).reasons == {"accuracy": "why"}
    assert mean([known, other])["accuracy_high"] == 0.8


def test_merged_numbers_take_the_reasons_of_the_later() -> None:
    later = Metrics({"mcc": 0.5})
    assert some().merged(later).reasons == {"r2": "no counts of the label"}
    assert later.merged(some()).reasons == some().reasons


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [
        (57490.0, 4, "57,490"),
        (57493.0, 4, "57,490"),
        (1234567.0, 6, "1,234,570"),
        (0.5, 4, "0.5"),
        (0.012345, 3, "0.0123"),
        (-676051.4, 4, "-676,100"),
        (0.0, 4, "0"),
        (100.0, 2, "100"),
        (9999.6, 4, "10,000"),
        (1e-7, 4, "1e-07"),
        (math.inf, 4, "inf"),
    ],
)
def test_numbers_are_written_without_an_exponent(number: float, digits: int, text: str) -> None:
    """5.749e+04 stood where a salary of 57,490 was meant."""
    assert in_digits(number, digits) == text


@pytest.mark.parametrize(
    ("number", "form", "down", "nearest", "up"),
    [
        (0.29, ".2f", "0.29", "0.29", "0.29"),
        (0.8414, ".3f", "0.841", "0.841", "0.842"),
        (0.0004, ".3f", "0.0004", "0.0004", "0.001"),
        (0.00004, ".3f", "0.00004", "0.00004", "0.001"),
        (3e-9, ".3f", "> 0", "> 0", "0.001"),
        (0.9996, ".3f", "0.999", "0.9996", "0.9996"),
        (1.0 - 1e-9, ".3f", "0.999", "< 1", "< 1"),
        (0.0, ".3f", "0.000", "0.000", "0.000"),
        (1.0, ".3f", "1.000", "1.000", "1.000"),
        (-0.0004, "+.3f", "-0.001", "-0.0004", "-0.0004"),
        (-1e-9, "+.3f", "-0.001", "< 0", "< 0"),
        (0.0123, "+.3f", "+0.012", "+0.012", "+0.013"),
        (0.4, ",.0f", "0", "0", "1"),
        (12345.6, ",.0f", "12,345", "12,346", "12,346"),
        (57493.0, ".4g", "57,490", "57,490", "57,500"),
        (-0.123456, ".4g", "-0.1235", "-0.1235", "-0.1234"),
        (2.0, "g", "2", "2", "2"),
        (-math.inf, ".3f", "-inf", "-inf", "-inf"),
    ],
)
def test_ends_of_margins_are_rounded_outward_and_never_to_0_or_1(
    number: float, form: str, down: str, nearest: str, up: str
) -> None:
    """A lower end of 0.0004 was "0.000", and an upper end of 0.8414 was "0.841"."""
    assert [written(number, form, toward) for toward in (-1, 0, 1)] == [down, nearest, up]
    assert with_margin(number, (number, number), form) == f"{nearest} ({down} to {up})"


def test_all_numbers_lie_in_their_written_margins(random: np.random.Generator) -> None:
    for number in np.concatenate(
        [random.uniform(0, 1, 300), 10.0 ** random.uniform(-5, 6, 300), -random.uniform(0, 1, 99)]
    ).tolist():
        for form in (".3f", ".4g", ",.0f"):
            low, high = (float(written(number, form, toward).replace(",", "")) for toward in (-1, 1))
            assert low <= number <= high
            assert form == ",.0f" or {low, high}.isdisjoint({0.0, 1.0}) or form == ".4g"
