"""What secure aggregation costs, side by side: masking beside the covariance, many steps, many parties.

    python benchmarks/secure_aggregation.py [--plot cost.png] [--largest 50000]

Times against a target are wall-clock seconds of all parties and the server together, run one after the other in one
process. The table and the plot give processor time a party (the mean over parties) from 1,000 parties up to the number
given, so that other work on the machine does not show in them; every party is simulated with all its messages.
"""

from __future__ import annotations

import argparse
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from shared import draw, head, line

from dpalgos.keystream import KeyedNoise, public_secret
from dpalgos.mechanisms.fixed_point import encode_rows, exact_outer_sum
from dpalgos.mechanisms.rounded_gaussian import RoundedGaussian
from dpalgos.rows import Ints
from dpalgos.secure import party as at_party
from dpalgos.secure import server as at_server
from dpalgos.secure.messages import RoundParameters
from dpalgos.secure.noise_shares import share_law
from dpalgos.secure.summation import graph_for
from dpalgos.secure.tolerance import Tolerance

ROUNDS = ("advertise", "share", "mask", "unmask", "server")
_BLOCK = 256


@dataclass
class Clock:
    """Seconds by round."""

    now: Callable[[], float] = time.perf_counter
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROUNDS, 0.0))
    sent: int = 0

    @contextmanager
    def round(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a round."""
        start = self.now()
        yield
        self.seconds[name] += self.now() - start

    @property
    def total(self) -> float:
        """All rounds together."""
        return sum(self.seconds.values())


def run_protocol(
    tolerance: Tolerance,
    length: int,
    steps: int,
    vector: Callable[[int, int], Ints],
    *,
    mask: Collection[int] = (),
    unmask: Collection[int] = (),
    now: Callable[[], float] = time.perf_counter,
) -> Clock:
    """Run a session over all its steps, check every sum, and return what each round took."""
    clock = Clock(now=now)
    parameters = RoundParameters(
        identity=secrets.token_hex(8), tolerance=tolerance, length=length, steps=steps, graph=graph_for(tolerance)
    )
    parties = range(tolerance.parties)
    with clock.round("advertise"):
        joined = [at_party.join(parameters, party, secrets.token_bytes(32)) for party in parties]
        advertised = [at_party.advertise(state) for state in joined]
    with clock.round("server"):
        roster = at_server.collect_advertisements(parameters, advertised)
        introductions = [at_server.introduce(roster, party) for party in parties]
    with clock.round("share"):
        shared = [at_party.share(state, message) for state, message in zip(joined, introductions, strict=True)]
    states = [state for state, _ in shared]
    with clock.round("server"):
        agreement = at_server.collect_shares(roster, [bundle for _, bundle in shared])
    del shared, introductions, advertised
    for party in parties:
        with clock.round("server"):
            delivery = at_server.deliver(agreement, party)
        with clock.round("share"):
            states[party] = at_party.receive(states[party], delivery)
    clock.sent = len(agreement.bundles[0].encode()) + 8 * length * steps
    for step in range(steps):
        expected = np.zeros(length, dtype=np.int64)
        blocks = []
        alive = [party for party in parties if party not in mask]
        for start in range(0, len(alive), _BLOCK):
            messages = []
            for party in alive[start : start + _BLOCK]:
                contribution = vector(party, step)
                expected += contribution
                with clock.round("mask"):
                    states[party], message = at_party.mask(states[party], step, contribution)
                messages.append(message)
            with clock.round("server"):
                blocks.append(at_server.add_masked(agreement, step, messages))
        with clock.round("server"):
            block = at_server.merge_masked(blocks)
            survivors = at_server.fix_survivors(agreement, block)
        responses = []
        for party in survivors.survivors:
            if party in unmask:
                continue
            with clock.round("server"):
                request = at_server.request_unmasking(agreement, survivors, party)
            with clock.round("unmask"):
                states[party], response = at_party.unmask(states[party], request)
            responses.append(response)
        with clock.round("server"):
            found = at_server.unmask_sum(agreement, survivors, block, responses)
        if not np.array_equal(found, expected):
            raise AssertionError("the unmasked sum is not the plain sum")
    return clock


def noise_seconds(parties: int, length: int, steps: int, tolerance: Tolerance, sigma: float) -> float:
    """Return what drawing all noise shares takes."""
    share = share_law(RoundedGaussian(sigma), tolerance.unknown_shares, length)
    sources = [KeyedNoise(public_secret(party), "benchmark") for party in range(parties)]
    value = np.zeros(1, dtype=np.int64)
    start = time.perf_counter()
    for step in range(steps):
        for source in sources:
            share.sample(length, source.stream(f"sum-{step}/share", value))
    return time.perf_counter() - start


def report(title: str, target: str, seconds: float, bound: float) -> None:
    verdict = "met" if seconds < bound else "MISSED"
    print(f"{title:<62} {seconds:9.3f} s   {target} {bound:.3f} s: {verdict}")


def covariance() -> None:
    """Print a 784 x 784 covariance's own time beside its masking, for 5 parties."""
    generator = np.random.default_rng(0)
    parties, rows, dimension = 5, 10_000, 784
    tolerance = Tolerance(parties=parties, dropouts=1, colluders=1)
    upper = np.triu_indices(dimension)
    own, sums = 0.0, []
    for _ in range(parties):
        features = generator.standard_normal((rows, dimension))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        start = time.perf_counter()
        encoded = encode_rows(features, 1.0, 2.0**16)
        sums.append(np.ascontiguousarray(exact_outer_sum(encoded, encoded)[upper]))
        own += time.perf_counter() - start
    clock = run_protocol(tolerance, len(upper[0]), 1, lambda party, step: sums[party])
    noise = noise_seconds(parties, len(upper[0]), 1, tolerance, 1e10)
    print(f"covariance 784 x 784, 5 x 10,000 rows: {own:.3f} s; noise shares {noise:.3f} s")
    report("  masking, sharing and unmasking it (307,720 numbers)", "below the covariance's", clock.total, own)


def gradients() -> None:
    """Print the time of 100 gradient sums of 1,296 x 10 numbers over 5 parties, under one key agreement."""
    parties, length, steps = 5, 1_296 * 10, 100
    tolerance = Tolerance(parties=parties, dropouts=1, colluders=1)
    fixed = np.random.default_rng(1).integers(-(2**40), 2**40, (parties, length))
    clock = run_protocol(tolerance, length, steps, lambda party, step: fixed[party] + step)
    report("100 steps of a 1,296 x 10 gradient, 5 parties: protocol", "target", clock.total, 5.0)
    print(f"  noise shares: {noise_seconds(parties, length, steps, tolerance, 1e10):.3f} s")
    lost = run_protocol(tolerance, length, steps, lambda party, step: fixed[party] + step, mask={2})
    print(f"  the same with one party lost in every step: {lost.total:.3f} s")


def thousand() -> None:
    """Print the time of one sum over 1,000 parties with 10 per cent dropouts."""
    parties, length = 1_000, 1_000
    tolerance = Tolerance(parties=parties, dropouts=100, colluders=50)
    graph = graph_for(tolerance)
    assert graph is not None
    fixed = np.random.default_rng(2).integers(-(2**40), 2**40, (parties, length))
    clock = run_protocol(
        tolerance,
        length,
        1,
        lambda party, step: fixed[party],
        mask=range(0, parties, 20),
        unmask=range(1, parties, 20),
    )
    report("1,000 parties x 1,000 numbers, 10 % dropouts: protocol", "target", clock.total, 60.0)
    print(
        f"  noise shares: {noise_seconds(parties, length, 1, tolerance, 1e10):.3f} s; "
        f"{graph.degree} neighbours each, failure below {graph.failure(tolerance).privacy:.1e}"
    )


def many(largest: int, plot: Path | None) -> None:
    """Print the cost per party as their number grows: 10 per cent dropouts, 5 per cent colluders, 100 numbers."""
    length, fixed = 100, np.arange(100)
    print(f"\nprocessor milliseconds a party ({length} numbers, 10 % dropouts, 5 % colluders), kilobytes it sends")
    head("parties", "neighbours", *ROUNDS, "together", "kilobytes")
    found = pd.DataFrame(columns=[*ROUNDS, "together"], dtype=float)
    for size in (1_000, 2_000, 5_000, 10_000, 20_000, 50_000):
        if size > largest:
            break
        tolerance = Tolerance(parties=size, dropouts=size // 10, colluders=size // 20)
        graph = graph_for(tolerance)
        lost = {"mask": range(0, size, 20), "unmask": range(1, size, 20)}
        clock = run_protocol(tolerance, length, 1, lambda party, step: fixed + party, **lost, now=time.process_time)
        found.loc[size] = [1000 * seconds / size for seconds in (*clock.seconds.values(), clock.total)]
        line(size, graph.degree, *(f"{each:.3f}" for each in found.loc[size]), f"{clock.sent / 1000:.1f}")
    if plot is not None:
        shown = found.rename(columns={name: f"party: {name}" for name in ROUNDS if name != "server"})
        labels = {"xlabel": "parties", "ylabel": "processor time a party (ms)", "xscale": "log"}
        draw(shown, plot, style=["o-", "s-", "v-", "^-", "D-", "kx-"], **labels)


def main() -> None:
    parser = argparse.ArgumentParser(description="What secure aggregation costs.")
    parser.add_argument("--plot", type=Path, help="file for the plot of the cost per party (png or svg)")
    parser.add_argument("--largest", type=int, default=50_000, help="largest number of parties in the table")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores; everything below runs on one of them, matrix products apart\n")
    covariance()
    gradients()
    thousand()
    many(arguments.largest, arguments.plot)


if __name__ == "__main__":
    main()
