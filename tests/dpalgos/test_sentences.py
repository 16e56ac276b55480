"""Sentences of guarantees: stored and compared by their codes, looked up where they are shown."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import dpalgos
from dpalgos import sentences
from dpalgos.guarantees import Guarantee, NoGuarantee, PureEpsilon, nothing_proved
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup, names
from dpalgos.sentences import SENTENCES, coded, define, sentence
from dpalgos.trainers.output_perturbation import SOLVER_ASSUMPTION


def test_values_come_back_whatever_they_hold() -> None:
    for name in ("others", "a&b=c?d", "größe {x}", "", "100%", "a b"):
        assert repr(sentence(coded("public-rows", name=name))) == repr(SENTENCES["public-rows"].format(name=name))


def test_equal_values_have_one_code() -> None:
    given = {"parties": 5, "colluders": 1, "quorum": 4, "unknown_shares": 3}
    assert coded("colluders", **given) == coded("colluders", **dict(reversed(given.items())))
    assert coded("colluders", **given) != coded("colluders", **{**given, "quorum": 3})


@pytest.mark.parametrize(
    "code",
    ["of-another-version", "of-another-version?x=1", "honest-parties", "honest-parties?other=3", "a sentence?", ""],
)
def test_what_is_unknown_is_shown_as_it_is(code: str) -> None:
    assert sentence(code) == code


@pytest.mark.parametrize(
    ("code", "values", "named"),
    [
        ("of-another-version", {}, "'of-another-version'"),
        ("honest-parties", {}, "'honest'"),
        ("honest-parties", {"honest": 3, "dropouts": 1}, "'dropouts'"),
        ("no-noise", {"x": 1}, "'no-noise'"),
    ],
)
def test_a_code_without_its_sentence_is_refused(code: str, values: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        coded(code, **values)


def test_a_package_of_its_own_defines_its_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "_SENTENCES", dict(SENTENCES))
    define("toy-coins", "at most {coins} coins are bent")
    define("toy-coins", "at most {coins} coins are bent")
    assert sentence(coded("toy-coins", coins=2)) == "at most 2 coins are bent"
    with pytest.raises(ParameterError, match="'toy-coins'"):
        define("toy-coins", "no coin is bent")
    with pytest.raises(ParameterError, match="'two words'"):
        define("two words", "no coin is bent")


def test_a_guarantee_is_compared_by_codes_and_shown_in_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = Guarantee((PureEpsilon(1.0),), assumptions=(SOLVER_ASSUMPTION,))
    unproved = nothing_proved(coded("delta-of-groups", delta="0.1", rows=3))
    stored = json.dumps([stated.to_json(), unproved.to_json()])
    assert unproved.reason == SENTENCES["delta-of-groups"].format(delta="0.1", rows=3)
    monkeypatch.setattr(sentences, "_SENTENCES", dict.fromkeys(SENTENCES, "reworded for {rows} rows"))
    monkeypatch.setitem(sentences._SENTENCES, SOLVER_ASSUMPTION, "reworded")
    assert json.dumps([stated.to_json(), unproved.to_json()]) == stored
    assert Guarantee.from_json(json.loads(stored)[0]) == stated
    assert unproved.reason == "reworded for 3 rows"
    assert sentence(stated.assumptions[0]) == "reworded"


def test_no_claim_and_no_guarantee_holds_a_sentence() -> None:
    parts = [lookup(kind, name) for kind in ("projections", "trainers", "evaluators") for name in names(kind)]
    flaws = [cls.claim.flaw for cls in parts if cls.claim and cls.claim.flaw]
    flaws += [claim.flaw for name in names("systems") if (claim := lookup("systems", name).claim) and claim.flaw]
    assert len(flaws) > 10
    for code in flaws:
        assert " " not in code
        assert sentence(code) != code, code


def test_every_code_is_used_and_every_literal_code_exists() -> None:
    """Of the calls that name their code as a literal; those of nights are put together (record, person)."""
    here = Path(dpalgos.__file__).parents[1]
    used = set()
    for package in ("dpalgos", "tasks", "unitball"):
        for path in (here / package).rglob("*.py"):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if "coded(" in text else ():
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "coded":
                    used |= {one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)}
    together = {f"{who}{when}" for who in ("record", "person") for when in ("-in-one-night", "-in-nights")}
    assert {code for code in used if isinstance(code, str) and not code.startswith("-")} | together == SENTENCES.keys()


def test_an_unknown_loss_type_still_raises() -> None:
    with pytest.raises(ParameterError, match="'made-up'"):
        Guarantee.from_json({**nothing_proved("x").to_json(), "losses": [{"kind": "made-up"}]})
    assert NoGuarantee("x").reason == "x"
