"""What something charged is found again by stays what it is while the code around it is rewritten.

Identities of releases and horizons, versions of rows, partitions, held-out rows, fingerprints, noise, seeded releases.

The version of the code is pinned, so that a changed identity is a changed plan. Where one is meant to change, print the
new values with ``UNITBALL_WRITE_GOLDEN=1``, and name the change in the CHANGELOG.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpalgos.guarantees import Neighbours
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.registry import AlgorithmSpec, names
from flows.federated_training import chain_inline
from storage.catalog import Horizon
from storage.fingerprints import row_fingerprints, row_patterns
from storage.layout import Layout
from storage.people import identifiers, keyed_digests
from storage.source import ReadOptions, read_source
from tasks.experiments.specifications import Point
from tasks.federation.messages import Description, Signed
from tasks.federation.protocol import run_name
from tasks.planning import identity
from tasks.planning.configuration import TrainingConfig
from tasks.planning.nights import fix_terms
from tasks.planning.plans import draft_run
from tasks.preparation import nightly_rows, normalisation, partitions, public_maps
from tasks.release.storing import read_release
from tests.storage.reader_samples import SAMPLES
from tests.support.code_versions import pin
from tests.support.data import stored
from tests.support.plans import dataset_of, planned, shards_of

_KEPT = Path(__file__).with_name("golden.json")
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
    "other replicate": {"dataset": "synthetic", "algorithm": "noisy-gd", "replicate": 2, "seed": 7},
    "projection and trainer": {"dataset": "synthetic", "projection": "analyze-gauss", "trainer": "class-means"},
}
RUNS: dict[str, dict[str, Any]] = {
    "class means": {"trainer": "class-means"},
    "class means, secure sums": {"trainer": "class-means", "trust": "secagg"},
    "covariance and class means": {"projection": "analyze-gauss", "trainer": "class-means"},
}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    pin(monkeypatch, lambda *classes: "0" * 16, lambda *classes: "0" * 16)
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


PEOPLE = """
columns:
  - {name: who, type: person, rows_per_person: 2, namespace: mrn}
  - {name: age, type: numeric, range: [0, 100], missing: indicator}
  - {name: paid, type: numeric, range: [0, 5000], currency: "€", thousands: ",", scale: log}
  - {name: born, type: date, range: [2000-01-01, 2026-12-31], parts: [days, month, weekday]}
  - {name: colour, type: category, values: [red, green]}
  - {name: street, type: category, hash: 4}
  - {name: sick, type: label, classes: ["no", "yes"]}
missing: {marker: "", rows: drop}
"""


@pytest.mark.parametrize("reader", [*sorted({*SAMPLES} - {"sklearn", "table-draft"}), "people"])
def test_versions_of_rows(reader: str, kept: dict[str, Any], tmp_path: Path) -> None:
    """Rows that are brought in again are the version that was charged; a private one's name is keyed with the same."""
    if reader == "people":
        (tmp_path / "schema.yaml").write_text(PEOPLE)
        lines = [
            '7,50,"€ 1,200",2001-02-03,red,Main,no',
            "7.0,,3,2026-12-31,green,Side,yes",
            "a,1,2,2000-01-01,red,,no",
        ]
        (tmp_path / "rows.csv").write_text("\n".join(["who,age,paid,born,colour,street,sick", *lines]) + "\n")
        source = read_source("csv", tmp_path / "rows.csv", ReadOptions(schema=tmp_path / "schema.yaml"))
    else:
        sample = SAMPLES[reader](tmp_path)
        source = read_source(reader, sample.path, sample.options)
    _check(kept, "versions", reader, stored(Layout(tmp_path / "root").prepare(), source).version)


def test_what_tells_rows_and_people_again(kept: dict[str, Any]) -> None:
    rows = np.random.default_rng(1).normal(size=(3, 8)) * [[1], [0], [3]]
    names = identifiers(["17", 17.0, " ab\u0301c"])
    found = [row_fingerprints(rows, b"key"), row_patterns(rows, b"key"), keyed_digests(names, b"key")]
    _check(kept, "fingerprints", "rows, patterns, people", [[int(one) for one in kind] for kind in found])


@pytest.mark.usefixtures("root")
def test_mapped_versions(kept: dict[str, Any]) -> None:
    dataset = dataset_of(classes=3, dimension=12)
    for name in names("normalisations"):
        _check(kept, "mapped", name, normalisation.plan_normalisation(dataset, name).key)
    for name in ("random-fourier", "hog"):
        spec = AlgorithmSpec("projections", name, {})
        _check(kept, "mapped", name, public_maps.map_identity(spec, 784))


def test_a_comment_makes_no_other_version_of_mapped_rows(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a digest of the text, by which a docstring charged every release of the rows again."""
    dataset, source = dataset_of(classes=3, dimension=12, normalisation="none"), inspect.getsource
    before = normalisation.plan_normalisation(dataset, "unit-norm").key

    def edited(old: str, new: str) -> str:
        identity.source_digest.cache_clear()
        monkeypatch.setattr(inspect, "getsource", lambda cls: source(cls).replace(old, new, 1))
        return normalisation.plan_normalisation(dataset, "unit-norm").key

    assert edited("        # Dividing", "        # We divide") == before
    assert edited("Scale every row", "Every row is scaled") == before
    assert edited("> 0", ">= 0") != before
    identity.source_digest.cache_clear()


def test_federated_runs(kept: dict[str, Any]) -> None:
    """A party finds what it has charged, and what it has answered, under the run's name."""
    config = TrainingConfig.model_validate(
        {"dataset": "clinics", "epsilon": 1.0, "delta": 1e-6, "algorithm": "noisy-gd"}
    )
    about: dict[str, Any] = {
        "party": "north",
        "rows": 90,
        "dimension": 4,
        "classes": ("no", "yes"),
        "label_range": None,
        "normalisation": "unit-norm",
        "table": "",
        "relation": Neighbours.REPLACE_ONE,
        "version": "v" * 32,
    }
    for name, more in {"rows": {}, "people": {"person": "who", "rows_per_person": 3}}.items():
        body = Description(**about, **more).written()
        message = Signed(party="north", body=body, key="0" * 64, signature="")
        _check(kept, "federated", name, run_name(config, [message]))


def test_replicate_and_deadline_miss(kept: dict[str, Any]) -> None:
    """What is named by a configuration names these fields as releases do."""
    shards = shards_of(dataset_of(classes=3, dimension=12, visibility="private"))
    given: dict[str, Any] = {"dataset": "synthetic", "epsilon": 1.0, "delta": 1e-6, "replicate": 3}
    timed = TrainingConfig.model_validate({**given, "algorithm": "noisy-gd", "deadline": 30.0, "deadline_miss": 1e-8})
    plan = draft_run(timed, shards[:-1], shards[-1:]).fitted()
    nightly = TrainingConfig.model_validate({**given, "horizon": 2, "trust": "central", "trainer": "class-means"})
    horizon = Horizon(number=1, nights=2, participations=1, separation=1)
    terms = fix_terms(nightly, horizon, shards, relation=Neighbours.REPLACE_ONE).release
    found = {
        "releases": [plan.run_key, *(release.key for release in plan.releases)],
        "horizon": [nightly_rows._key(nightly, 1), terms.stream_key, *terms.night_keys],
        "federated": [run_name(timed, []), run_name(nightly, [])],
        "point": Point(label="a series", axes={}, config=timed).key,
    }
    _check(kept, "identities", "replicate and deadline miss", found)


FILES = (("a", 400), ("b", 600))


@pytest.mark.parametrize("files", [(), FILES])
@pytest.mark.parametrize("private", [True, False])
def test_partitions(
    private: bool, files: tuple[tuple[str, int], ...], kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose a row is, and whether it is held out, by its position and a public seed: the same in all versions."""
    monkeypatch.setattr(partitions, "origins", lambda *of: files)
    dataset = dataset_of(classes=3, dimension=12, visibility="private" if private else "public")
    for given in ({"parties": len(files) or 3}, {"partition": "sized", "sizes": [50, 300], "partition_seed": 4}):
        config = TrainingConfig.model_validate({"dataset": "synthetic", "epsilon": 1.0, "test_fraction": 0.25, **given})
        partition = partitions.plan_partition(dataset, config)
        assigned = partitions.positions_by_party(partition)
        digests = {party: hashlib.sha256(rows.tobytes()).hexdigest()[:16] for party, rows in assigned.items()}
        _check(kept, "partitions", f"{private=} {files=} {given}", [partition.name, digests])


@pytest.mark.parametrize("given", [{}, {"trainer": "class-means"}, {"class_weight": {"1": 0.5}, "trainer": "ftrl"}])
def test_horizons(given: dict[str, Any], kept: dict[str, Any]) -> None:
    fields = {"dataset": "synthetic", "epsilon": 1.0, "delta": 1e-6, "horizon": 3, "trust": "central", **given}
    config = TrainingConfig.model_validate(fields)
    horizon = Horizon(number=1, nights=3, participations=1, separation=1)
    shards = shards_of(dataset_of(classes=3, dimension=12, visibility="private"))
    terms = fix_terms(config, horizon, shards, relation=Neighbours.REPLACE_ONE)
    _check(
        kept,
        "horizons",
        str(given),
        [nightly_rows._key(config, 1), terms.release.stream_key, *terms.release.night_keys],
    )
