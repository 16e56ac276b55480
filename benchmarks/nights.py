"""A year of nights on one budget: errors of running sums, and accuracy night by night on MNIST.

    python benchmarks/nights.py errors [--nights 365] [--output FILE.json] [--plot FILE.svg]
    UNITBALL_DATA=/path/to/data python benchmarks/nights.py mnist [--nights 100] [--epsilon 1] [--seeds 3]
        [--keep FOLDER] [--plot docs/images/nights-mnist.svg]

``errors`` draws the standard deviation of the running sum of each night, in units of that of one release of one sum at
the same cost, in closed form: (a) a new release of all rows every night, (b) fresh noise for each night's rows and sums
of those, (c) the binary tree, with Honaker's estimates too, (d) the square-root factor on integers, whole and cut to 64
bands; (d) is what ``--horizon`` does.

``mnist`` divides 50,000 of MNIST's training rows among the nights and releases class sums of the recommended features,
on one budget for all nights (delta 1e-5, replace-one, one curator), in these ways; one line has the whole budget each
night, which is not achievable. The last line releases gradients, one per row, in place of class sums.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from recommended import DELTA, ROWS, SIDE, Images
from shared import draw, head, keep_table, line

from dpalgos.accounting.costs import allocate
from dpalgos.guarantees import GaussianMu, Neighbours, Setting, Trust
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.mechanisms.factorisation import ToeplitzFactor
from dpalgos.models import LinearModel
from dpalgos.rows import ArrayRows, Floats, Ints
from dpalgos.systems.system import PublicFacts
from dpalgos.trainers.continual import FollowTheRegularisedLeader, decode_running_sum, nightly_budget, state_after
from dpalgos.trainers.discriminant import ClassMeansDiscriminant

SHOWN = (1, 10, 30, 100, 200, 365)


def main() -> None:
    """Measure what was asked for, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("errors", "mnist"))
    parser.add_argument("--nights", type=int)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--rows", type=int, default=ROWS, help="of MNIST's training part, and so many test rows at most"
    )
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--output", type=Path, help="keep the table as JSON")
    given = parser.parse_args()
    if given.what == "errors":
        found, label = errors(given.nights or 365), "standard deviation, one release of all rows = 1"
    else:
        found, label = accuracies(Images(given.keep, given.rows), given), "accuracy on MNIST's test rows"
    show(found, of_errors=given.what == "errors")
    if given.output is not None:
        keep_table(given.output, "none" if given.what == "errors" else f"mean of {given.seeds} seeds")
    if given.plot is not None:
        table = pd.DataFrame(found, index=range(1, 1 + len(next(iter(found.values())))))
        scale = "log" if given.what == "errors" else "linear"
        draw(table, given.plot, xlabel="night", ylabel=label, yscale=scale)


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def tree(nights: int, *, refined: bool) -> Floats:
    """Return the errors of sums over dyadic intervals, each row in one of every length.

    Each node costs 1/√L of the budget, L lengths up to the horizon; a running sum adds a node for each binary digit of
    the night. Honaker's estimate of a node from those below it has the variance 1/(2 − 2^(1 − levels)) of a node's own.
    """
    levels = nights.bit_length()
    variance = [1.0 / (2.0 - 2.0**-height) if refined else 1.0 for height in range(levels)]
    return np.array(
        [
            math.sqrt(levels * sum(variance[height] for height in range(levels) if night >> height & 1))
            for night in range(1, nights + 1)
        ]
    )


def errors(nights: int) -> dict[str, Floats]:
    """Return each way's error by night."""

    def of(factor: ToeplitzFactor) -> Floats:
        return np.array([factor.error_of(night) for night in range(1, nights + 1)])

    return {
        "(a) trained again each night": np.full(nights, math.sqrt(nights)),
        "(b) fresh noise for each night's rows": np.sqrt(np.arange(1.0, nights + 1)),
        "(c) binary tree": tree(nights, refined=False),
        "(c) binary tree, Honaker": tree(nights, refined=True),
        "(d) a horizon, 64 bands": of(ToeplitzFactor(nights=nights, bands=min(64, nights))),
        "(d) a horizon": of(ToeplitzFactor(nights=nights)),
    }


# ── accuracy ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def accuracies(images: Images, given: argparse.Namespace) -> dict[str, Floats]:
    """Return each way's mean accuracy by night."""
    nights = given.nights or 100
    factor, budget = ToeplitzFactor(nights=nights), allocate([GaussianMu], [1.0], given.epsilon, DELTA).losses[0]
    assert isinstance(budget, GaussianMu)
    facts = PublicFacts(
        # As a run chooses: as if so many fewer rows were released once.
        sizes=(math.ceil(given.rows / factor.error_of(nights)),),
        dimension=SIDE * SIDE,
        classes=10,
        epsilon=given.epsilon,
        delta=DELTA,
        neighbours=Neighbours.REPLACE_ONE,
        trust=Trust.CENTRAL,
        image_shape=(SIDE, SIDE),
    )
    train, test = images.through(facts)
    each = given.rows // nights
    print(f"{nights} nights of {each} rows, epsilon {given.epsilon:g} for all, {train.shape[1]} directions")
    shares = {
        "(a) trained again each night": GaussianMu(budget.mu / math.sqrt(nights)),
        "(b) fresh noise for each night's rows": budget,
        "(d) a horizon": nightly_budget(budget, factor),
        "upper bound: the whole budget in each night": budget,
    }
    made = {name: ClassMeansDiscriminant(budget=share) for name, share in shares.items()}
    setting = Setting(sizes=(given.rows,), dimension=train.shape[1], classes=10)
    parts = np.array_split(np.arange(given.rows), nights)
    # The grid is the same for all: it is as fine as it gets.
    once = made["(d) a horizon"]
    exact = [
        once.contribution(once.initial(setting), ArrayRows(train[rows], images.labels[rows]), setting) for rows in parts
    ]
    arrived = np.cumsum([len(rows) for rows in parts])
    found = {name: np.zeros(nights) for name in made}
    for seed in range(given.seeds):
        for name, sums in made.items():
            noisy = released(name, exact, sums, setting, factor, seed)
            for night, (running, times) in enumerate(noisy):
                now = Setting(sizes=(int(arrived[night]),), dimension=train.shape[1], classes=10, noise_factor=times)
                model = sums.result(running, now)
                found[name][night] += float(np.mean(model.predict(test) == images.test_labels)) / given.seeds
    leader = FollowTheRegularisedLeader(budget=nightly_budget(budget, factor))
    gradients = np.zeros(nights)
    for seed in range(given.seeds):
        nightly = [ArrayRows(train[rows], images.labels[rows]) for rows in parts]
        for night, model in enumerate(descended(leader, nightly, setting, factor, seed)):
            gradients[night] += float(np.mean(model.predict(test) == images.test_labels)) / given.seeds
    return {**found, "(d) a horizon of gradients (ftrl)": gradients}


def descended(
    leader: FollowTheRegularisedLeader, nightly: list[ArrayRows], setting: Setting, factor: ToeplitzFactor, seed: int
) -> Iterator[LinearModel]:
    """Yield each night's model of gradients that were taken at the model of the nights before."""
    noise, distribution = KeyedNoise(public_secret(seed), "nights/gradients"), leader.distribution(setting)
    exact: list[Ints] = []
    told: list[Ints] = []
    for night, rows in enumerate(nightly):
        exact.append(leader.contribution(state_after(factor, told, leader, setting), rows, setting))
        mixed = np.sum([factor.coefficients[night - s] * one for s, one in enumerate(exact)], axis=0)
        fresh = distribution.sample(mixed.size, noise.stream(f"night-{night}", mixed)).reshape(mixed.shape)
        told.append(mixed + fresh)
        yield leader.result(state_after(factor, told, leader, setting), setting)


def released(
    name: str, exact: list[Ints], sums: ClassMeansDiscriminant, setting: Setting, factor: ToeplitzFactor, seed: int
) -> list[tuple[Ints, float]]:
    """Return each night's running sum as it is known, and how many times one sum's noise it has."""
    noise, distribution = KeyedNoise(public_secret(seed), f"nights/{name}"), sums.distribution(setting)

    def fresh(night: int) -> Ints:
        return distribution.sample(exact[0].size, noise.stream(f"night-{night}", exact[night])).reshape(exact[0].shape)

    nights = range(len(exact))
    running = np.cumsum(exact, axis=0)
    if name.startswith("(b)"):
        return [(running[t] + sum(fresh(s) for s in range(t + 1)), math.sqrt(t + 1)) for t in nights]
    if name.startswith("(d)"):
        told = [sum(factor.coefficients[t - s] * exact[s] for s in range(t + 1)) + fresh(t) for t in nights]
        return [(decode_running_sum(factor, told[: t + 1]), factor.amplification(t + 1)) for t in nights]
    return [(running[t] + fresh(t), 1.0) for t in nights]


# ── what is shown ────────────────────────────────────────────────────────────────────────────────────────────────────


def show(found: Mapping[str, Floats], *, of_errors: bool) -> None:
    """Print a table of some nights, and of errors the root mean square over all."""
    nights = len(next(iter(found.values())))
    chosen = [night for night in SHOWN if night < nights] + [nights]
    head(f"{nights} nights", *(f"night {night}" for night in chosen), *(["root mean square"] if of_errors else []))
    for name, by_night in found.items():
        whole = [f"{np.sqrt(np.mean(by_night**2)):.3f}"] if of_errors else []
        line(name, *(f"{by_night[night - 1]:.3f}" for night in chosen), *whole)


if __name__ == "__main__":
    main()
