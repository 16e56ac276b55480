"""The encoder with the recommended map of images, alone, small, and without mirror images: accuracy and cost.

Run as ``python benchmarks/encoder.py --format cifar10 --path FOLDER --held-out 4000``; formats are those of ``unitball
ingest``. One curator, replace-one, delta 1e-5, the recommended system's head; rows to learn from and rows held out are
both of the training part. ``--test`` learns from all of the first and says the accuracy on the test part. ``--rows``
takes so many rows alone, ``--pairs`` draws fewer synthetic images, ``--keep`` keeps mapped rows in a folder for
another run, ``--speed`` only measures the time per image relative to that of its matrix products.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.algorithms import fit
from dpalgos.features.encoder.network import EncoderFeatures, load, one_thread
from dpalgos.guarantees import GaussianMu, Neighbours, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.normalisation import UnitNorm
from dpalgos.registry import AlgorithmSpec
from dpalgos.rows import ArrayRows, unit_rows
from dpalgos.systems.recommended import recommend, signal
from dpalgos.systems.system import Arrangement, PublicFacts
from storage.source import ReadOptions, read_source

NETS = ("big, mirror", "big", "small, mirror", "small")


def speed(net: str, mirror: bool, pictures: int = 16, turns: int = 9) -> tuple[float, float]:
    """Return the processor's milliseconds per image, and of the products of the same shapes alone, one thread each."""
    network = EncoderFeatures.of(load(net), (3, 32, 32), mirror=mirror)
    random = np.random.default_rng(0)
    rows = random.random((pictures, 3072))
    pairs = [
        (random.random(((1 + mirror) * layer.size**2, 9 * layer.channels), dtype=np.float32),
         random.random((9 * layer.channels, layer.out), dtype=np.float32))
        for layer in network.layers
    ]  # fmt: skip
    least = [np.inf, np.inf]
    with one_thread():
        for _ in range(turns):
            started = time.process_time()
            # One piece of work, so that no other core helps.
            network.transform(rows)
            least[0] = min(least[0], time.process_time() - started)
            started = time.process_time()
            for _ in range(pictures):
                for columns, kernel in pairs:
                    columns @ kernel
            least[1] = min(least[1], time.process_time() - started)
    return 1e3 * least[0] / pictures, 1e3 * least[1] / pictures


def _read(source: Any, part: str) -> tuple[Any, Any]:
    blocks = list(source.parts[part])
    names = {name: number for number, name in enumerate(source.classes or ())}
    dense = [one.features.toarray() if sparse.issparse(one.features) else one.features for one in blocks]
    labels = np.array([names[str(name)] for one in blocks for name in one.labels])
    return UnitNorm()(np.concatenate([np.asarray(one, dtype=np.float64) for one in dense])), labels


def _without_encoder(arrangement: Arrangement) -> Arrangement:
    """Return what is recommended with the encoder's part of the map left out."""
    maps = arrangement.projection.parameters.get("maps")
    if maps is None:
        return arrangement
    return replace(arrangement, projection=AlgorithmSpec("projections", "public-whitening", maps["public-whitening"]))


def _mapped(spec: AlgorithmSpec, rows: Any, keep: Path | None) -> tuple[Any, float]:
    """Return the rows seen through a map, and the processor's seconds that mapping them took."""
    name = hashlib.sha256(json.dumps([spec.name, dict(spec.parameters), rows.shape, float(rows[:64].sum())],
                                     sort_keys=True).encode()).hexdigest()[:16]  # fmt: skip
    kept = None if keep is None else keep / f"{name}.npz"
    if kept is not None and kept.exists():
        with np.load(kept) as arrays:
            return arrays["seen"], float(arrays["seconds"])
    made = spec.build().map_for(rows.shape[1])
    # Processor time: what else runs on the machine does not count.
    started = time.process_time()
    seen = np.concatenate([made.transform(part) for part in np.array_split(rows, max(1, len(rows) // 1024))])
    seconds = time.process_time() - started
    if kept is not None:
        np.savez(kept, seen=seen.astype(np.float32), seconds=seconds)
    return seen, seconds


def main() -> None:
    """Print a line a map."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--format", default="cifar10")
    parser.add_argument("--path")
    parser.add_argument("--image-shape", type=int, nargs="+", help="of formats that do not say it")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--held-out", type=int, default=4000)
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.3, 1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mirror", choices=("yes", "no"), help="whether mirror images are the same thing")
    parser.add_argument("--nets", nargs="+", default=NETS)
    parser.add_argument("--pairs", type=int, help="of synthetic images, for every map")
    parser.add_argument("--weights", type=float, nargs="+", default=[0.7])
    parser.add_argument(
        "--shares",
        type=float,
        nargs="+",
        help="the encoder's directions for each of today's, 400 at most; 0.5 in colour",
    )
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    # As the door has it.
    threadpool_limits(limits=1, user_api="blas")
    if given.speed:
        for net in given.nets:
            ours, bare = speed(net.split(",")[0], "mirror" in net)
            print(f"{net}: {ours:.2f} ms a picture, products alone {bare:.2f} ms, ratio {ours / bare:.2f}", flush=True)
        return
    shape = None if given.image_shape is None else tuple(given.image_shape)
    source = read_source(given.format, given.path, ReadOptions(discover=True, image_shape=shape))
    shape = shape or source.image_shape
    rows, labels = _read(source, "train")
    order = np.random.default_rng(0).permutation(len(rows))[: given.rows]
    rows, labels = rows[order], labels[order]
    train, held_out = np.arange(given.held_out, len(rows)), np.arange(given.held_out)
    if given.test:
        more, of_more = _read(source, "test")
        train, held_out = np.arange(len(rows)), len(rows) + np.arange(len(more))
        rows, labels = np.concatenate([rows, more]), np.concatenate([labels, of_more])
    classes = int(labels.max()) + 1
    choices = []
    for epsilon in given.epsilons:
        facts = PublicFacts(
            sizes=(len(train),), dimension=rows.shape[1], classes=classes, epsilon=epsilon, delta=1e-5,
            neighbours=Neighbours.REPLACE_ONE, trust="central", image_shape=shape, noise_factor=1.0,
            mirror=None if given.mirror is None else given.mirror == "yes",
        )  # fmt: skip
        choices.append((facts, _without_encoder(recommend(facts).arrangement)))
    shares = given.shares or [0.5 if shape is not None and len(shape) == 3 and shape[0] == 3 else 1.0]
    widest = max((one.projection for _, one in choices), key=lambda spec: spec.parameters["components"])
    fewer = {} if given.pairs is None else {"images": given.pairs}
    today, seconds = _mapped(widest.with_parameters(**fewer), rows, given.keep)
    processes = list(widest.parameters["processes"])

    def say(name: str, seen_of: Any, taken: float) -> None:
        cells = []
        for facts, arrangement in choices:
            seen = seen_of(int(arrangement.projection.parameters["components"]))
            trainer = arrangement.trainer.with_parameters(
                budget=GaussianMu(mu_from_epsilon_delta(facts.epsilon, 1e-5))
            ).build()
            setting = Setting(sizes=(len(train),), dimension=seen.shape[1], classes=classes, trust=Trust.CENTRAL)
            fitted = [
                fit(trainer, [ArrayRows(seen[train], labels[train])], setting,
                    KeyedNoise(public_secret(seed), "encoder"))
                for seed in range(given.seeds)
            ]  # fmt: skip
            right = [float(np.mean(one.predict(seen[held_out]) == labels[held_out])) for one in fitted]
            cells.append(f"eps {facts.epsilon:g} (s {signal(facts):.0f}): {np.mean(right):.4f} +- {np.std(right):.4f}")
        print(f"{name}: {'; '.join(cells)} ({1e3 * taken / len(rows):.1f} processor ms a picture)", flush=True)

    say("today's", lambda k: unit_rows(today[:, :k].astype(np.float64)), seconds)
    for net in given.nets:
        parameters = {"net": net.split(",")[0], "mirror": "mirror" in net, "processes": processes, **fewer}
        if shape is not None:
            parameters["shape"] = list(shape)
        alone, taken = _mapped(AlgorithmSpec("projections", "encoder", parameters), rows, given.keep)
        alone = alone.astype(np.float64)
        say(f"encoder ({net}) alone", lambda k, alone=alone: alone, taken)
        for weight, share in product(given.weights, shares):

            def both(k: int, weight: float = weight, share: float = share, alone: Any = alone) -> Any:
                own = unit_rows(alone[:, : min(alone.shape[1], max(1, int(share * k)))])
                return unit_rows(np.hstack([unit_rows(today[:, :k].astype(np.float64)), weight * own]))

            say(f"today's beside {weight:g} x {share:g} k of the encoder's ({net})", both, seconds + taken)


if __name__ == "__main__":
    main()
