"""The tables of docs/accounting.md: what runs cost, what accounts hold of them, and the noise that a charge buys.

    python benchmarks/accounting.py [--output benchmarks/results] [--only delta-of-runs]
    python benchmarks/render.py

Arithmetic of the product's own functions over public facts: runs are planned over imaginary rows, priced as the ledger
prices them, and added up as an account adds them up. No row is read and nothing is drawn, so the same version of the
code gives the same numbers on every machine. Half a minute on one core.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from shared import keep

from dpalgos.accounting.composition import gaussian_part, noise_multiplier, sampled_curve
from dpalgos.accounting.costs import PlanCost, price
from dpalgos.accounting.profiles import mu_from_epsilon_delta
from dpalgos.accounting.spending import RESERVED, FilterCap, SummedHistory, apply_filter
from dpalgos.evaluators.confusion import ConfusionMatrix
from dpalgos.evaluators.score_distribution import ScoreDistribution
from dpalgos.guarantees import GaussianMu, PrivateSelection, Setting, rounded_down, rounded_up
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup, names
from dpalgos.score_curves import ScoreSums
from storage.ledger.charges import AccountTerms, ReleaseCharge
from storage.refs import DatasetRef, Labels, ShardRef, Visibility
from tasks.accounts.pricing import AccountingPolicy
from tasks.accounts.room import largest_that_fits, most_that_fits
from tasks.accounts.terms import gaussian_delta, tenth
from tasks.planning.configuration import TrainingConfig
from tasks.planning.plans import RunPlan
from tasks.preparation.prepare import AllRows, prepare_over

Table = dict[str, Any]
PARTITION = "even"


def facts(classes: int, parties: int = 5, rows: int = 1000) -> list[ShardRef]:
    """Return references to private rows that there are not: planning looks at none."""
    dataset = DatasetRef(
        name="nobody", version="0123456789abcdef", account="nobody", visibility=Visibility.PRIVATE, rows=parties * rows,
        test_rows=0, dimension=64, labels=Labels.CLASSES, classes=tuple(map(str, range(classes))), label_range=None,
        normalisation="unit-norm",
    )  # fmt: skip
    return [ShardRef(dataset=dataset, partition=PARTITION, party=str(party), rows=rows) for party in range(parties)]


def planned(shards: Sequence[ShardRef], held_out: Sequence[ShardRef] = (), **asked: Any) -> RunPlan:
    """Return a run's plan."""
    return prepare_over(TrainingConfig(**asked), AllRows(training=shards, held_out=held_out)).plan


def prices(plan: RunPlan, rows_per_person: int = 1) -> list[dict[str, PlanCost]]:
    """Return what each party may be charged for a run, as the ledger prices it: of a tuned one there are two prices."""
    charges = [
        ReleaseCharge(
            release.key, release.charged_parties, release.guarantee().to_json(), release.label, release.charged_as
        )
        for release in plan.releases
        if release.reads_rows
    ]
    return AccountingPolicy().prices(charges, plan.delta, AccountTerms(group_size=rows_per_person))


def held(costs: Mapping[str, PlanCost], runs: Sequence[int], delta: float, *, groups: bool = False) -> list[float]:
    """Return the epsilon at the cap's delta that an account holds after so many runs of this price."""
    summed, found = SummedHistory(groups=groups), []
    for run in range(1, max(runs) + 1):
        summed = summed.with_plan(PARTITION, costs)
        if run in runs:
            found.append(summed.epsilon(delta, RESERVED)[0])
    return found


def slashes(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.2f}" for value in values)


def right(*titles: str) -> list[Any]:
    return [{"title": title, "align": "right"} for title in titles]


def power(delta: float) -> str:
    return f"10{str(round(math.log10(delta))).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


# ── runs of every system ─────────────────────────────────────────────────────────────────────────────────────────────


def account_recorded() -> Table:
    """Return what is recorded of every proved system at its defaults, under each trust model that it runs under."""
    systems: dict[tuple[str, tuple[float, ...], tuple[float, ...]], dict[str, list[str]]] = {}
    for name in names("systems"):
        for trust in ("central", "local", "secagg"):
            try:
                plans = [
                    planned(facts(classes), algorithm=name, trust=trust, epsilon=1.0, delta=1e-5) for classes in (10, 2)
                ]
            except ParameterError:
                # Not one of its trust models.
                continue
            if all(plan.proved for plan in plans):
                ten, two = (
                    tuple(round(one, 2) for one in held(prices(plan)[0], (1, 3, 10, 30), 1e-5)) for plan in plans
                )
                systems.setdefault((losses(plans[0]), ten, two), {}).setdefault(name, []).append(trust)
    most = max(systems, key=lambda key: len(systems[key]))
    assert "unitball" in systems[most]
    rows = [
        [key[0], "all others, `unitball` among them" if key == most else listed(systems[key]), *map(slashes, key[1:])]
        for key in sorted(systems, key=lambda key: (key != most, key[1][::-1]))
    ]
    columns = right("recorded, ten classes", "two classes")
    return {"columns": ["losses of a party in a run of ten classes", "systems (trust)", *columns], "rows": rows}


def losses(plan: RunPlan) -> str:
    """Return how many losses of each kind a party's rows have in a run."""
    kinds = {"gaussian-mu": "Gaussian", "pure-epsilon": "pure", "approximate-dp": "(ε, δ)", "zero-concentrated": "zCDP"}
    party = plan.releases[0].parties[0]
    own = [one for one in plan.releases if one.reads_rows and party in one.parties]
    every = [loss for one in own for loss in one.guarantee().losses]
    counted = Counter(kinds.get(loss.kind, loss.kind) for loss in every)
    return ", ".join(kind if kind == "Gaussian" else f"{count} {kind}" for kind, count in sorted(counted.items()))


def listed(systems: Mapping[str, Sequence[str]]) -> str:
    """Return systems with their trust models, those of the same ones together."""
    together: dict[str, list[str]] = {}
    for name, trusts in systems.items():
        together.setdefault(", ".join(trusts), []).append(f"`{name}`")
    return "; ".join(f"{', '.join(each)} ({trusts})" for trusts, each in together.items())


# ── the delta of a run ───────────────────────────────────────────────────────────────────────────────────────────────


def delta_of_runs() -> Table:
    """Return the noise of a Gaussian run stated at a tenth of the cap's delta, or at its default, and what is held."""
    cap, rows = 1e-5, []
    for epsilon in (0.1, 0.3, 1.0, 3.0):
        deltas = tenth(cap), gaussian_delta(cap)
        sigmas = [1.0 / mu_from_epsilon_delta(epsilon, delta) for delta in deltas]
        plans = [planned(facts(2), algorithm="noisy-gd", epsilon=epsilon, delta=delta) for delta in deltas]
        rows.append([
            f"{epsilon:g}",
            *(f"{sigma:#.3g}" for sigma in sigmas),
            f"{1.0 - sigmas[1] / sigmas[0]:.0%}".replace("%", " %"),
            *(slashes(held(prices(plan)[0], (1, 3, 10), cap)) for plan in plans),
        ])  # fmt: skip
    titles = ("noise: at a tenth", "at 105/128", "less", "recorded: at a tenth", "at 105/128")
    return {"columns": right("ε of a run", *titles), "rows": rows}


# ── several rows a person ────────────────────────────────────────────────────────────────────────────────────────────


def group_charges() -> Table:
    """Return what is held of runs that train on some rows and measure on others, where a person may have k rows."""
    cap, shards = 1e-6, facts(2)
    apart = ShardRef(dataset=shards[0].dataset, partition=PARTITION, party="held out", rows=1000)
    plan = planned(shards, [apart], algorithm="noisy-gd", epsilon=0.5, delta=1e-7)
    everybody = [*(shard.party for shard in shards), apart.party]
    every = [(everybody, one.guarantee().losses) for one in plan.releases if one.reads_rows]
    rows = [
        [
            f"{most}",
            slashes(held(price(every, plan.delta, rows_per_person=most), (1, 3, 10), cap, groups=True)),
            slashes(held(prices(plan, most)[0], (1, 3, 10), cap, groups=True)),
        ]
        for most in (2, 5)
    ]
    return {"columns": right("k", "charged to all", "charged"), "rows": rows}


# ── tuning ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def tuned(candidates: int, delta: float) -> tuple[PrivateSelection, list[dict[str, PlanCost]]]:
    """Return what a tuning at epsilon 1 is proved to cost, and both its prices: all candidates, and the selection."""
    values = tuple(2.0**-step for step in range(candidates))
    plan = planned(facts(2), algorithm="noisy-gd", trust="central", tune={"clip": values}, epsilon=1.0, delta=delta)
    (loss,) = (loss for one in plan.releases if one.reads_rows for loss in one.guarantee().losses)
    assert isinstance(loss, PrivateSelection)
    return loss, prices(plan)


def tuning_left() -> Table:
    """Return the remaining budget of an account after a tuning, by either guarantee of it."""
    cap, rows = FilterCap(3.0, 1e-5, reserved=RESERVED), []

    def after(before: Mapping[str, PlanCost], epsilon: float, delta: float) -> float | None:
        """Return what one more Gaussian run would bring the account to; None where it is refused."""
        more = prices(planned(facts(2), algorithm="noisy-gd", trust="central", epsilon=epsilon, delta=delta))[0]
        found = apply_filter([(PARTITION, before)], (PARTITION, more), cap)
        return found.after.epsilon if found.admitted else None

    for delta in (1e-5, 1e-6):
        for candidates in (2, 4, 8):
            loss, (all_candidates, selection) = tuned(candidates, delta)
            bringing, largest = [], []
            for before in (selection, all_candidates):
                to = after(before, 1.0, delta)
                bringing.append("refused" if to is None else f"{rounded_up(to, 3):.2f}")
                most = largest_that_fits(
                    lambda epsilon, before=before: after(before, epsilon, 1e-6) is not None, most_that_fits(cap.epsilon)
                )
                largest.append(f"{rounded_down(most, 3):.2f}" if most else "none, ever")
            rows.append(
                [f"{candidates}, {power(delta)}", f"{math.sqrt(candidates) * loss.mu:.3f}", *bringing, *largest]
            )
    more = "one more run at ε = 1 and this δ brings it to: by the first"
    further = "largest further run at δ = 10⁻⁶: by the first"
    columns = right("√N μ", more, "by the second", further, "by the second")
    return {"columns": ["candidates, δ of the tuning", *columns], "rows": rows}


def tuning_curve() -> Table:
    """Return what is held of a tuning that is the only run of its rows, and the point that the tuning states."""
    rows = []
    for candidates in (2, 8):
        loss, both = tuned(candidates, 1e-6)
        rows.append([f"{candidates}", f"{loss.epsilon:.2f}", slashes(held(both[0], (1,), 1e-5))])
    return {"columns": right("candidates", "by one point", "by the curve"), "rows": rows}


# ── what --roc buys ──────────────────────────────────────────────────────────────────────────────────────────────────


def roc_noise() -> Table:
    """Return deviations of counts below and above thresholds, of the worse label, in units of 1/mu of all measured."""
    # So small that rounding noise to integers adds nothing that is seen.
    mu = 0.01
    half, setting = GaussianMu(mu / math.sqrt(2.0)), Setting(sizes=(400,), dimension=1, classes=2)
    algorithm, matrix = ScoreDistribution(budget=half), ConfusionMatrix(budget=half)
    bins, tau = algorithm.bins, matrix.deviation(setting)
    middle = bins // 2 - 1
    # A row is in one bin of one label as it is in one cell of the matrix, so a plain bin has a cell's noise.
    counts = tau * mu * np.sqrt(np.arange(1, bins))
    plain = counts, counts[::-1]
    (sums,) = ScoreSums.of_release(np.zeros((1, 2, bins)), algorithm, setting)

    def deviations(scores: ScoreSums) -> tuple[np.ndarray, np.ndarray]:
        looks = np.eye(bins)
        above = looks[-1] - looks[:-1]
        return tuple(
            mu * np.sqrt(np.einsum("ti,lij,tj->lt", look, scores.covariance, look)).max(axis=0)
            for look in (looks[:-1], above)
        )  # type: ignore[return-value]

    kinds = [plain, deviations(sums), deviations(sums.combined(np.zeros((2, 2)), tau))]
    rows = [
        ["below the middle threshold", *(f"{below[middle]:.1f}" for below, _ in kinds)],
        ["above the middle threshold", *(f"{above[middle]:.1f}" for _, above in kinds)],
        ["below any threshold, at most", *(f"{below.max():.1f}" for below, _ in kinds)],
        ["above any threshold, at most", *(f"{above.max():.1f}" for _, above in kinds)],
    ]
    return {"columns": ["", *right("plain bins", "running sums", "combined with the matrix")], "rows": rows}


# ── random batches ───────────────────────────────────────────────────────────────────────────────────────────────────


SAMPLED = ((0.01, 1000, 1.0), (0.05, 200, 1.0), (0.05, 200, 0.1), (0.2, 100, 1.0), (0.01, 1000, 3.0))
"""Rate, steps and epsilon."""


def random_batches() -> Table:
    """Return noise multipliers of sampled steps: of a plan by itself, as an account adds it up, without sampling."""
    delta, rows = 1e-5, []
    slack = lookup("trainers", "dp-sgd").__dataclass_fields__["slack_share"].default * delta
    for rate, steps, epsilon in SAMPLED:
        added = noise_multiplier(rate, steps, slack, gaussian_part(epsilon, delta, slack))
        alone = least_multiplier(rate, steps, epsilon, delta, added)
        whole = math.sqrt(steps) / mu_from_epsilon_delta(epsilon, delta)
        rows.append([
            f"{rate:g}, {steps:,}, {epsilon:g}",
            f"{alone:#.4g}",
            f"{added / alone - 1.0:+.1%}".replace("+", "+ ").replace("%", " %"),
            f"{whole:.0f}",
        ])  # fmt: skip
    columns = right("noise multiplier, one plan by itself", "as (s, μ)", "without sampling")
    return {"columns": ["q, steps, ε at δ = 10⁻⁵", *columns], "rows": rows}


def least_multiplier(rate: float, steps: int, epsilon: float, delta: float, about: float) -> float:
    """Return nearly the least noise multiplier of sampled steps that are (epsilon, delta)-DP, from above, to 0.02 %."""

    def holds(multiplier: float) -> bool:
        epsilons, deltas = sampled_curve(rate, multiplier, steps, 2.0 * epsilon)
        (at,) = np.flatnonzero(epsilons == epsilon)
        return bool(deltas[at] <= delta)

    low, high = about / 1.02, about * 1.02
    while holds(low):
        low, high = low / 1.02, low
    while not holds(high):
        low, high = high, high * 1.02
    while high > 1.0002 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


TABLES: Mapping[str, Callable[[], Table]] = {
    made.__name__.replace("_", "-"): made
    for made in (account_recorded, delta_of_runs, group_charges, tuning_left, tuning_curve, roc_noise, random_batches)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results"), help="folder of the files")
    parser.add_argument("--only", choices=TABLES, help="one table")
    given = parser.parse_args()
    for name in TABLES if given.only is None else [given.only]:
        keep(given.output / f"{name}.json", TABLES[name](), "none")
        print(given.output / f"{name}.json", flush=True)


if __name__ == "__main__":
    main()
