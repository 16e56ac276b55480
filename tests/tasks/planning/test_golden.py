"""Identities, noise and releases of seeded runs stay what they are while the code around them is rewritten.

The version of the code is pinned, so that a changed identity is a changed plan. Where one is meant to change, print the
new values with ``UNITBALL_WRITE_GOLDEN=1``, and name the change in the CHANGELOG.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.keystream import KeyedNoise, public_secret
from flows.federated_training import chain_inline
from tasks.planning.configuration import TrainingConfig
from tasks.release.storing import read_release
from tests.support.plans import dataset_of, planned, shards_of

_KEPT = Path(__file__).with_name("golden.json")
_PINNED = (
    "tasks.planning.planner",
    "tasks.planning.nights",
    "tasks.preparation.mapping",
    "tasks.preparation.mapping",
    "tasks.release.ranges",
)
PLANS: dict[str, dict[str, Any]] = {
    "recommended": {"dataset": "synthetic"},
    "descent": {"dataset": "synthetic", "algorithm": "noisy-gd"},
    "descent, three parties' secure sums": {
        "dataset": "synthetic",
        "algorithm": "noisy-gd",
        "trust": "secagg",
        "secure": {"dropouts": 1},
    },
    "fed-dpdr-dpml, local": {"dataset": "synthetic", "algorithm": "fed-dpdr-dpml"},
    "fed-dpdr-dpml, secagg": {"dataset": "synthetic", "algorithm": "fed-dpdr-dpml", "trust": "secagg"},
    "published": {"dataset": "synthetic", "algorithm": "fed-dpdr-dpml-published"},
    "pure": {"dataset": "synthetic", "algorithm": "dpml", "delta": 0.0},
    "replace-special": {"dataset": "synthetic", "algorithm": "noisy-gd", "neighbours": "replace-special"},
    "other repetition": {"dataset": "synthetic", "algorithm": "noisy-gd", "repetition": 2, "seed": 7},
    "projection and trainer": {"dataset": "synthetic", "projection": "analyze-gauss", "trainer": "class-means"},
}
RUNS: dict[str, dict[str, Any]] = {
    "class means": {"trainer": "class-means"},
    "class means, secure sums": {"trainer": "class-means", "trust": "secagg"},
    "covariance and class means": {"projection": "analyze-gauss", "trainer": "class-means"},
}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for module in _PINNED:
        monkeypatch.setattr(f"{module}.code_version", lambda *classes: "0" * 16)
    found: dict[str, Any] = json.loads(_KEPT.read_text())
    return found


def _check(kept: dict[str, Any], group: str, name: str, value: object) -> None:
    if os.environ.get("UNITBALL_WRITE_GOLDEN"):
        kept.setdefault(group, {})[name] = value
        _KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    assert kept[group][name] == value


@pytest.mark.parametrize("name", PLANS)
def test_identities(name: str, kept: dict[str, Any]) -> None:
    dataset = dataset_of(classes=3, dimension=12)
    plan = planned(shards_of(dataset), **PLANS[name])
    _check(kept, "identities", name, [plan.run_key, *(release.key for release in plan.releases)])


def test_identities_of_private_evaluations(kept: dict[str, Any]) -> None:
    dataset = dataset_of(classes=3, dimension=12, visibility="private")
    *training, held_out = shards_of(dataset)
    plan = planned(training, held_out, dataset="synthetic", algorithm="noisy-gd", roc=True)
    _check(kept, "identities", "private evaluation", [release.key for release in plan.evaluations])


def test_keys_of_noise(kept: dict[str, Any]) -> None:
    noise = KeyedNoise(public_secret(3), "an identity")
    for name, value in {
        "integers": np.arange(6),
        "floats": np.linspace(0, 1, 5),
        "bits": np.eye(2, dtype=bool),
    }.items():
        words = noise.stream("a step", value).words(4)
        _check(kept, "noise", name, [int(word) for word in words])


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("name", RUNS)
def test_releases(name: str, kept: dict[str, Any]) -> None:
    """Sums of integers alone, so that bytes do not hang on a processor's kernels."""
    config = {"dataset": "iris", "epsilon": 1.0, "parties": 3, "seed": 5, "evaluation": False, **RUNS[name]}
    chained = chain_inline(TrainingConfig.model_validate(config))
    found = {}
    for path in chained.models.values():
        for reference in path:
            arrays = read_release(reference).arrays()
            found[reference.key] = hashlib.sha256(
                b"".join(np.round(np.asarray(arrays[key], dtype=np.float64), 9).tobytes() for key in sorted(arrays))
            ).hexdigest()
    _check(kept, "releases", name, found)
