"""Comparison of random processes and maps of images: the recommended system's choice with one part exchanged.

Run as ``python benchmarks/pictures.py --format cifar10 --path FOLDER --held-out 4000 [--as-if 50000]``; formats are
those of ``unitball ingest``, with ``--image-shape`` where they do not say that rows are images. Noise is that of five
parties' secure sums (1.118 times a curator's), replace-one, delta 1e-5. ``--as-if`` gives the noise, and the rules, of
so many rows: an estimate, since the rows that are learnt from are no more. ``--only`` picks variants by a word of their
names. ``--pairs`` draws so many synthetic pairs instead of as many as the system does: a tenth of them takes a few
minutes for all variants.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.algorithms import fit
from dpalgos.features.whitening import moved_to_zero
from dpalgos.guarantees import GaussianMu, Neighbours, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.normalisation import UnitNorm
from dpalgos.registry import lookup
from dpalgos.rows import ArrayRows
from dpalgos.systems.recommended import recommend
from dpalgos.systems.system import PublicFacts
from storage.source import ReadOptions, read_source

_SCATTERING: dict[str, Any] = {"features": "scattering", "feature_parameters": {"scales": 2}}
_BEFORE = {**_SCATTERING, "processes": ["strokes"], "images": 6000, "floor": 2e-4, "mirror": False}
VARIANTS: dict[str, dict[str, Any]] = {
    "as chosen": {},
    "strokes": {"processes": ["strokes"]},
    "objects": {"processes": ["objects"]},
    "dead leaves": {"processes": ["dead-leaves"]},
    "before: strokes, scattering": _BEFORE,
    "scattering alone": _SCATTERING,
    "dictionary alone": {"features": "dictionary", "feature_parameters": {"filters": 200}},
    "not mirrored": {"mirror": False},
    "mirror images": {"mirror": True},
}


def _dense(features: Any) -> Any:
    return features.toarray() if sparse.issparse(features) else features


def main() -> None:
    """Print a line a variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", default="cifar10")
    parser.add_argument("--path", required=True)
    parser.add_argument("--image-shape", type=int, nargs="+", help="of formats that do not say it")
    parser.add_argument("--rows", type=int, help="of all rows, drawn once")
    parser.add_argument("--held-out", type=int, default=4000)
    parser.add_argument("--as-if", type=int)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.3, 1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--pairs", type=int)
    given = parser.parse_args()
    fewer = {} if given.pairs is None else {"images": given.pairs}
    shape = None if given.image_shape is None else tuple(given.image_shape)
    source = read_source(given.format, given.path, ReadOptions(discover=True, image_shape=shape))
    blocks = list(source.parts["train"])
    names = {name: number for number, name in enumerate(source.classes or ())}
    labels = np.array([names[str(name)] for block in blocks for name in block.labels])
    rows = UnitNorm()(np.concatenate([np.asarray(_dense(block.features), dtype=np.float64) for block in blocks]))
    order = np.random.default_rng(0).permutation(len(rows))[: given.rows]
    rows, labels, order = rows[order], labels[order], np.arange(len(order))
    held_out, train = order[: given.held_out], order[given.held_out :]
    told = given.as_if or len(train)
    setting = Setting(sizes=(len(train),), dimension=rows.shape[1], classes=len(names), trust=Trust.CENTRAL)
    known: dict[str, str] = {}
    mapped_by, inner = "", np.zeros((0, 0), dtype=np.float32)
    for variant, changes in VARIANTS.items():
        if given.only not in variant:
            continue
        kept, cells, same = None, [], None
        for epsilon in sorted(given.epsilons, reverse=True):
            facts = PublicFacts(
                sizes=(told // 5,) * 5, dimension=rows.shape[1], classes=len(names), epsilon=epsilon, delta=1e-5,
                neighbours=Neighbours.REPLACE_ONE, trust="secagg", image_shape=shape or source.image_shape,
                noise_factor=lookup("trusts", "secagg")().noise_factor(5),
            )  # fmt: skip
            choice = recommend(facts).arrangement
            assert choice.projection is not None
            spec = choice.projection.with_parameters(**{**changes, **fewer})
            if kept is None:
                # What has been measured under another name is not measured again.
                asked = spec.with_parameters(components=0)
                same = known.setdefault(json.dumps(dict(asked.parameters), sort_keys=True), variant)
                if same != variant:
                    break
                started, made = time.monotonic(), spec.build().fit((), setting, KeyedNoise(public_secret(0), "map"))
                making, started = time.monotonic() - started, time.monotonic()
                by = json.dumps([spec.parameters[name] for name in ("features", "feature_parameters", "mirror")])
                if by != mapped_by:
                    parts = [rows[start : start + 512] for start in range(0, len(rows), 512)]
                    mapped = [made.map.transform(moved_to_zero(part)).astype(np.float32) for part in parts]
                    mapped_by, inner = by, np.concatenate(mapped)
                basis = made.basis
                kept, mapping = inner - made.mean.astype(np.float32), time.monotonic() - started
            turned = kept @ basis[:, : spec.parameters["components"]].astype(np.float32)
            seen = UnitNorm()(turned.astype(np.float64))
            mu = mu_from_epsilon_delta(epsilon, 1e-5) * told / len(train) / facts.noise_factor
            trainer = choice.trainer.with_parameters(budget=GaussianMu(mu)).build()
            of_seen = replace(setting, dimension=turned.shape[1])
            found: list[Any] = [
                fit(trainer, [ArrayRows(seen[train], labels[train])], of_seen, KeyedNoise(public_secret(seed), variant))
                for seed in range(given.seeds)
            ]
            right = [float(np.mean(one.predict(seen[held_out]) == labels[held_out])) for one in found]
            cells.append(f"eps {epsilon:g}, k {turned.shape[1]}: {np.mean(right):.4f} +- {np.std(right):.4f}")
        if same != variant:
            print(f"{variant}: is {same!r}", flush=True)
            continue
        print(f"{variant}: {'; '.join(cells)} (map made in {making:.0f} s, rows mapped in {mapping:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
