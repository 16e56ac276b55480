"""The model card says what the run was, and its command names the same run again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deployments.cli.entry_point import app
from dpalgos.accounting.profiles import gaussian_epsilon, mu_from_epsilon_delta
from flows.federated_training import chain_inline
from tasks.accounts.terms import gaussian_delta
from tasks.planning.configuration import TrainingConfig
from tasks.tracking import artifacts
from tasks.tracking.reporting import command_of, model_card
from tests.support.chains import configured, ingest_private


def card_of(config: TrainingConfig) -> str:
    dataset, plan, result, _ = chain_inline(config)
    return model_card(config, dataset, plan, result)


def test_the_card_of_a_private_model(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", count=400)
    card = card_of(configured(algorithm="noisy-gd", evaluation=True))
    for words in (
        "rows of 2 simulated parties of the private data set clinic (account clinic)",
        "if any one row were different, plus 8.3e-05",
        "at most 2.72 times as probable",
        "Precisely: (1, 8.3e-05)-DP for a row, replace-one, exact numerics",
        "At the cap's δ = 0.0001",
        "of 3 (composition: ",
        "95 % margins",
        "Guessing the most frequent class gives an accuracy of 0.",
        "Recall by class",
        "The unit of protection is a row: a person with 5 rows is a group of 5, for whom it is ε = ",
        "people with several rows",
        "the curator, who sees all rows",
        "unitball train --dataset clinic --algorithm noisy-gd --epsilon 1 --parties 2",
    ):
        assert words in card, words
    assert len(card) < 5000, "MLflow's limit"


def test_the_card_says_what_a_person_of_several_rows_loses(root: Path, tmp_path: Path) -> None:
    ingest_private(tmp_path / "input", epsilon_cap=40.0, group_size=13)
    card = card_of(configured(algorithm="noisy-gd", epsilon=0.1))
    # 13 mu at the run's own delta, by composition.
    delta = gaussian_delta(1e-4)
    mu = 13 * mu_from_epsilon_delta(0.1, delta)
    said = float(card.split("is a group of 13, for whom it is ε = ")[1].split(" ")[0])
    assert gaussian_epsilon(mu, delta) * 0.999 < said < gaussian_epsilon(mu, delta) * 1.01
    assert "people with more than 13 rows" in card
    # The only run of its account: what it costs and what is spent are one number, of the same person.
    found = re.search(r"costs a person of up to 13 rows ε = (\S+)\. .* has spent ε = (\S+) of 40", card)
    assert found is not None
    assert found[1] == found[2]


def test_what_prefect_shows_of_a_result_is_in_the_cards_words(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(artifacts, "create_markdown_artifact", lambda text, **_: shown.append(text))
    for algorithm in ("noisy-gd", "dpml-published"):
        artifacts.show_result(chain_inline(configured("iris", algorithm=algorithm, epsilon=1.0)).result)
    sound, published = shown
    assert "if any one row were different" in sound
    assert "has a true-positive rate of at most" in sound
    assert "| accuracy |" in sound
    assert "None is proved" in published
    assert "It does not hold" in published


def test_the_card_of_a_published_method_says_its_flaw(root: Path) -> None:
    card = card_of(configured("iris", algorithm="dpml-published", epsilon=1.0))
    assert "None is proved" in card
    assert "It does not hold" in card
    assert "Sound counterpart" in card
    assert "### Budget" not in card
    unmeasured = card_of(configured("iris", algorithm="noisy-gd", evaluation=False))
    assert "Not measured" in unmeasured
    assert "have no budget" in unmeasured


@pytest.mark.parametrize(
    "config",
    [
        {"epsilon": 0.5, "delta": 1e-7},
        {"epsilon": 1.0, "sizes": (50, 100), "seed": 4, "evaluation": False, "mirror": False},
        {"epsilon": 1.0, "trust": "secagg", "secure": {"dropouts": 1}, "roc": True, "mirror": True},
        {"epsilon": 2.0, "algorithm": None, "trainer": "noisy-gd", "parameters": {"iterations": 5, "loss": "huber"}},
        {"algorithm": "non-private", "test_fraction": 0.25, "neighbours": "replace-special"},
        {"epsilon": 1.0, "horizon": 30, "participations": 2, "separation": 7, "bands": 9, "expected_rows": 900},
    ],
)
def test_the_command_asks_for_the_same_run(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import deployments.cli.training as command

    asked = TrainingConfig(**{"dataset": "clinic", **config})
    seen: list[TrainingConfig] = []

    def ran(configs: list[TrainingConfig], title: str, *_: object, **__: object) -> list[TrainingConfig]:
        seen.extend(configs)
        return configs

    monkeypatch.setattr(command, "_run", ran)
    monkeypatch.setattr(command, "shown_results", lambda results: [])
    monkeypatch.setattr("deployments.cli.common.use_root", lambda root: None)
    outcome = CliRunner().invoke(app, shlex.split(command_of(asked))[1:])
    assert outcome.exit_code == 0, outcome.output
    assert seen == [asked]
