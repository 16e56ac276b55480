"""Parameters chosen on synthetic or public rows before a run is planned: candidates, their configurations, the best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dpalgos.parameters import ParameterError
from storage.errors import InputError
from tasks.accounts.terms import relation_of
from tasks.datasets.registration import find_dataset
from tasks.planning.configuration import TrainingConfig
from tasks.preparation.drawn import tuned_on
from tasks.preparation.prepare import PreparedRun, prepare

MOST_CANDIDATES = 64
"""Of one tuning, as of one on private rows."""
DRAWS = 3
"""Trainings per candidate, each with noise of its own public seed."""

Score = Callable[[TrainingConfig], Mapping[str, float]]
"""Trains on public rows and returns what was measured of the model."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen candidate, and the score that chose it.

    Attributes
    ----------
    config : TrainingConfig
        With the chosen values among its parameters, and nothing to tune.
    metric : str
        accuracy, or r2 of a numeric label; empty where nothing was to be chosen.
    scores : tuple of (mapping, float)
        Of each candidate its values, and its mean over the draws on rows that did not train; the best first.
    synthetic : bool
        Whether the rows are drawn from releases, so that the run rests on these.
    """

    config: TrainingConfig
    metric: str = ""
    scores: tuple[tuple[Mapping[str, object], float], ...] = ()
    synthetic: bool = False

    def __str__(self) -> str:
        """Say what was compared, on which rows, and what this costs."""
        kind = "synthetic rows" if self.synthetic else "public rows"
        said = "; ".join(f"{_said(values)}: {score:.4f}" for values, score in self.scores)
        rests = "; the run rests on the releases that they are drawn from" if self.synthetic else ""
        return (
            f"tuned on the {kind} of {self.config.tuned_on}, at no charge{rests}. {self.metric} on rows held out "
            f"there, mean of {DRAWS} draws: {said}"
        )


def _said(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def choose_on(config: TrainingConfig, score: Score) -> Choice:
    """Return a configuration with the candidate that is best on the rows that it names; as it is without such rows.

    Each candidate is trained as the run would be: its ε, δ, relation, trust model and number of parties, with noise of
    a public seed. Candidates are compared on rows of the same set that did not train. Equal scores go to the earlier
    candidate. No private row is read and nothing is charged: what an analyst may do with rows that are at hand.

    Parameters
    ----------
    config : TrainingConfig
    score : callable
        Of the configuration of a candidate.

    Raises
    ------
    ParameterError, InputError, RefusedError
        As planning the run with the first candidate does, before anything is trained; or if there are too many
        candidates, one parameter is both given and tuned, or no model of the rows can be scored.
    """
    if not config.tune or config.tuned_on is None:
        return Choice(config)
    candidates = list(_candidates(config))
    first = prepare(_settled(config, candidates[0]))
    rows = tuned_on(config, find_dataset(config.dataset))
    assert rows is not None, "the set is named"
    metric = "accuracy" if rows.classes else "r2"
    alike = {
        "dataset": rows.name,
        "delta": first.config.stated_delta,
        "neighbours": config.neighbours or relation_of(config.dataset),
        "parties": len(first.shards.training) if isinstance(first, PreparedRun) else config.parties,
    }
    means = []
    for values in candidates:
        tried = _settled(config, values).model_copy(update={**_ON_PUBLIC_ROWS, **alike})
        found = [score(tried.model_copy(update={"seed": seed})).get(metric) for seed in range(DRAWS)]
        known = [one for one in found if one is not None]
        if len(known) < DRAWS:
            raise InputError(
                f"{metric} of a model of {rows.name} with {_said(values)} cannot be measured; choose a set with more "
                "rows"
            )
        means.append(math.fsum(known) / DRAWS)
    best = max(range(len(means)), key=lambda at: (means[at], -at))
    order = sorted(range(len(means)), key=lambda at: (-means[at], at))
    return Choice(
        _settled(config, candidates[best]),
        metric,
        tuple((candidates[at], means[at]) for at in order),
        bool(rows.synthesis),
    )


# What a run on private rows asks for that its candidates, on others, do without.
_ON_PUBLIC_ROWS: dict[str, object] = {
    "tuned_on": None,
    "evaluation": True,
    "roc": False,
    "aim": None,
    "by": None,
    "positive": None,
    "counts_of": None,
    "partition": "even",
    "sizes": None,
    "rows_per_party": None,
    "test_fraction": None,
    "deadline": None,
    "replicate": 0,
}


def _candidates(config: TrainingConfig) -> Iterator[dict[str, object]]:
    """Yield all combinations of values, the first values first."""
    given = {name.rpartition(".")[2] for name in config.parameters}
    if twice := sorted(given & {name.rpartition(".")[2] for name in config.tune}):
        raise ParameterError(f"{twice[0]} is both fixed and tuned; omit one of the two")
    count = math.prod(map(len, config.tune.values()))
    if not 1 <= count <= MOST_CANDIDATES:
        raise ParameterError(f"--tune has {count} candidates; give 1 to {MOST_CANDIDATES} combinations of values")
    for values in itertools.product(*config.tune.values()):
        yield dict(zip(config.tune, values, strict=True))


def _settled(config: TrainingConfig, values: Mapping[str, object]) -> TrainingConfig:
    return config.model_copy(update={"tune": {}, "parameters": {**config.parameters, **values}})
