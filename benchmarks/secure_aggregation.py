"""The cost of secure aggregation: masking compared with the covariance, many steps, many parties.

    python benchmarks/secure_aggregation.py [--plot cost.png] [--largest 50000]

Times against a target are wall-clock seconds of all parties and the server together, run one after the other in one
process. The table and the plot give processor time per party (the mean over parties) from 1,000 parties up to the
number given, so that other work on the machine does not show in them; every party is simulated with all its messages.
"""

from __future__ import annotations

import argparse
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from shared import Stage, draw, head, keep_table, line

from dpalgos.integer_sums import encode_rows
from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.mechanisms.distributions import RoundedGaussian
from dpalgos.rows import Ints
from dpalgos.secure import protocol as at_party
from dpalgos.secure import summation
from dpalgos.secure.messages import Delivery, RoundParameters, ShareBundle, Tolerance
from dpalgos.secure.noise_shares import share_distribution
from dpalgos.secure.protocol import PartyState
from dpalgos.secure.rounds import REQUESTS, Answer, Party, RecordedSum, Request
from dpalgos.secure.summation import Absences, graph_for

ROUNDS = ("advertise", "share", "mask", "unmask", "server")
STAGES = {kind: str(stage) for stage, kind in REQUESTS.items()}


@dataclass
class Clock:
    """Seconds by round, and the bytes that a party sends."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROUNDS, 0.0))
    sent: int = 0

    @property
    def total(self) -> float:
        """All rounds together."""
        return sum(self.seconds.values())


def run_protocol(
    tolerance: Tolerance,
    length: int,
    steps: int,
    vector: Callable[[int, int], Ints],
    lost: Absences | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> Clock:
    """Run a session over all its steps as a release does, check every sum, and return what each round took."""
    clock = Clock()
    parameters = RoundParameters(
        identity=secrets.token_hex(8), tolerance=tolerance, length=length, steps=steps, graph=graph_for(tolerance)
    )

    def spent(start: float, stage: str, instead: str = "server") -> None:
        """Count what has passed as a round's instead of what it is part of."""
        clock.seconds[stage] += now() - start
        clock.seconds[instead] -= now() - start

    class Timed(Party):
        def answer(self, request: Request, recorded: RecordedSum, vector: Callable[[], Ints]) -> Answer:
            start = now()
            found = super().answer(request, recorded, vector)
            spent(start, STAGES[type(request)])
            if isinstance(found, ShareBundle) and not clock.sent:
                clock.sent = len(found.encode()) + 8 * length * steps
            return found

    def receive(state: PartyState, delivery: Delivery, original: Any = at_party.receive) -> PartyState:
        # The others' shares come with the request for a mask.
        start = now()
        found = original(state, delivery)
        spent(start, "share", "mask")
        return found

    with mock.patch.object(at_party, "receive", receive), mock.patch.object(summation, "Party", Timed):
        start = now()
        session = summation._Session(parameters, lost or {})
        clock.seconds["server"] += now() - start
        for step in range(steps):
            vectors = {party: vector(party, step) for party in range(tolerance.parties)}
            start = now()
            survivors, found = session.sum(RecordedSum(None, parameters.identity, str(step)), vectors.__getitem__)
            clock.seconds["server"] += now() - start
            if not np.array_equal(found, sum(vectors[party] for party in survivors)):
                raise AssertionError("the unmasked sum is not the plain sum")
    return clock


def noise_seconds(parties: int, length: int, steps: int, tolerance: Tolerance) -> float:
    """Return what drawing all noise shares takes."""
    share = share_distribution(RoundedGaussian(1e10), tolerance.unknown_shares, length)
    sources = [KeyedNoise(public_secret(party), "benchmark") for party in range(parties)]
    with Stage() as stage:
        for step in range(steps):
            for source in sources:
                share.sample(length, source.stream(f"sum-{step}/share", np.zeros(1, dtype=np.int64)))
    return stage.wall


def report(title: str, target: str, seconds: float, bound: float) -> None:
    verdict = "met" if seconds < bound else "MISSED"
    print(f"{title:<62} {seconds:9.3f} s   {target} {bound:.3f} s: {verdict}")


def covariance() -> None:
    """Print a 784 x 784 covariance's own time next to its masking, for 5 parties."""
    generator = np.random.default_rng(0)
    parties, rows, dimension = 5, 10_000, 784
    tolerance = Tolerance(parties=parties, dropouts=1, colluders=1)
    upper = np.triu_indices(dimension)
    own, sums = 0.0, []
    for _ in range(parties):
        features = generator.standard_normal((rows, dimension))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        with Stage() as stage:
            encoded = encode_rows(features, 1.0, 2.0**16).astype(np.float64)
            sums.append((encoded.T @ encoded)[upper].astype(np.int64))
        own += stage.wall
    clock = run_protocol(tolerance, len(upper[0]), 1, lambda party, step: sums[party])
    noise = noise_seconds(parties, len(upper[0]), 1, tolerance)
    print(f"covariance 784 x 784, 5 x 10,000 rows: {own:.3f} s; noise shares {noise:.3f} s")
    report("  masking, sharing and unmasking it (307,720 numbers)", "below the covariance's", clock.total, own)


def gradients() -> None:
    """Print the time of 100 gradient sums of 1,296 x 10 numbers over 5 parties, under one key agreement."""
    parties, length, steps = 5, 1_296 * 10, 100
    tolerance = Tolerance(parties=parties, dropouts=1, colluders=1)
    fixed = np.random.default_rng(1).integers(-(2**40), 2**40, (parties, length))
    clock = run_protocol(tolerance, length, steps, lambda party, step: fixed[party] + step)
    report("100 steps of a 1,296 x 10 gradient, 5 parties: protocol", "target", clock.total, 5.0)
    print(f"  noise shares: {noise_seconds(parties, length, steps, tolerance):.3f} s")
    lost = run_protocol(tolerance, length, steps, lambda party, step: fixed[party] + step, {"mask": frozenset({2})})
    print(f"  the same with one party lost in every step: {lost.total:.3f} s")


def tenth(parties: int) -> Absences:
    """Return who is lost where every tenth party is, half of them before they mask."""
    return {"mask": frozenset(range(0, parties, 20)), "unmask": frozenset(range(1, parties, 20))}


def thousand() -> None:
    """Print the time of one sum over 1,000 parties with 10 per cent dropouts."""
    parties, length = 1_000, 1_000
    tolerance = Tolerance(parties=parties, dropouts=100, colluders=50)
    graph = graph_for(tolerance)
    assert graph is not None
    fixed = np.random.default_rng(2).integers(-(2**40), 2**40, (parties, length))
    clock = run_protocol(tolerance, length, 1, lambda party, step: fixed[party], tenth(parties))
    report("1,000 parties x 1,000 numbers, 10 % dropouts: protocol", "target", clock.total, 60.0)
    print(
        f"  noise shares: {noise_seconds(parties, length, 1, tolerance):.3f} s; "
        f"{graph.degree} neighbours each, failure below {graph.failure(tolerance).privacy:.1e}"
    )


def many(largest: int, plot: Path | None) -> None:
    """Print the cost per party as their number grows: 10 per cent dropouts, 5 per cent colluders, 100 numbers."""
    length, fixed = 100, np.arange(100)
    print(f"\nprocessor milliseconds per party ({length} numbers, 10 % dropouts, 5 % colluders), kilobytes it sends")
    head("parties", "neighbours", *ROUNDS, "total", "kilobytes")
    found = pd.DataFrame(columns=[*ROUNDS, "total"], dtype=float)
    for size in (1_000, 2_000, 5_000, 10_000, 20_000, 50_000):
        if size > largest:
            break
        tolerance = Tolerance(parties=size, dropouts=size // 10, colluders=size // 20)
        graph = graph_for(tolerance)
        clock = run_protocol(tolerance, length, 1, lambda party, step: fixed + party, tenth(size), time.process_time)
        found.loc[size] = [1000 * seconds / size for seconds in (*clock.seconds.values(), clock.total)]
        line(size, graph.degree, *(f"{each:.3f}" for each in found.loc[size]), f"{clock.sent / 1000:.1f}")
    if plot is not None:
        shown = found.rename(columns={name: f"party: {name}" for name in ROUNDS if name != "server"})
        labels = {"xlabel": "parties", "ylabel": "processor time per party (ms)", "xscale": "log"}
        draw(shown, plot, style=["o-", "s-", "v-", "^-", "D-", "kx-"], **labels)


def main() -> None:
    parser = argparse.ArgumentParser(description="What secure aggregation costs.")
    parser.add_argument("--plot", type=Path, help="file for the plot of the cost per party (png or svg)")
    parser.add_argument("--largest", type=int, default=50_000, help="largest number of parties in the table")
    parser.add_argument("--output", type=Path, help="keep the table of many parties as JSON")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores; everything below runs on one of them, matrix products apart\n")
    covariance()
    gradients()
    thousand()
    many(arguments.largest, arguments.plot)
    if arguments.output is not None:
        keep_table(arguments.output, "none")


if __name__ == "__main__":
    main()
