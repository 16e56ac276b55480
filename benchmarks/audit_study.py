"""A study of audits: broken systems caught, seed by seed, and false alarms on correct mechanisms.

    python benchmarks/audit_study.py caught [--seeds 40] >> caught.jsonl
    python benchmarks/audit_study.py alarms [--seeds 1000] >> alarms.jsonl

One JSON object a line. Everything is made up: no data set is read. ``caught`` takes some quarters of an hour of one
core, ``alarms`` some minutes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from functools import partial

from threadpoolctl import threadpool_limits

from dpalgos.algorithms import Algorithm
from dpalgos.audit.experiment import AuditOptions, Effort, Verdict
from dpalgos.audit.releases import audit_algorithm, audit_release
from dpalgos.guarantees import GaussianMu, PureEpsilon, Setting
from dpalgos.projections.covariance import LaplaceCovariance
from dpalgos.trainers.discriminant import ClassMeansDiscriminant
from dpalgos.trainers.hinge_perturbation import SmoOutputPerturbation
from dpalgos.trainers.output_perturbation import RadialOutputPerturbation
from tasks.auditing.subjects import find_subject
from tasks.auditing.systems import audit_system

# Runs on each neighbour: few where outputs lack noise, many where noise is a little too small.
CAUGHT: dict[str, int] = {
    "dppca-svm": 60,
    "pca-dpsvm": 60,
    "ag-svm": 60,
    "mod-sulq-svm": 60,
    "dpsvd-svm": 60,
    "wishart-svm": 60,
    "dpwss": 60,
    "dual-perturbation": 60,
    "mpc-op": 20_000,
    "pathak": 20_000,
    "analyze-gauss-published": 3_000_000,
}
FEW = Effort(pilot=16)
# Distributions that are attained: each event far enough in their tails has exactly the ratio that is proved.
PURE, MU = PureEpsilon(1.0), GaussianMu(1.0)
CORRECT: dict[str, Algorithm] = {
    "Laplace covariance": LaplaceCovariance(budget=PURE, components=2),
    "radial output perturbation": RadialOutputPerturbation(budget=PURE, regularisation=1.0),
    "class means": ClassMeansDiscriminant(budget=MU),
    "SMO with output perturbation": SmoOutputPerturbation(budget=MU),
}
SETTING = Setting(sizes=(16,), dimension=2, classes=2)
SMALL = Effort(numbers=200_000, most=2_000, pilot=8)


def caught(seeds: int) -> Iterator[dict[str, object]]:
    """Yield one audit at 99 % a seed and broken system."""
    for seed in range(seeds):
        for name, trials in CAUGHT.items():
            started = time.process_time()
            subject = find_subject(name)
            audit = audit_system if subject.kind == "systems" else partial(audit_release, subject.kind)
            report = audit(name, AuditOptions(trials=trials, seed=seed, effort=FEW))
            yield {
                "name": name,
                "seed": seed,
                "caught": report.verdict is Verdict.VIOLATES,
                "lower_bound": report.lower_bound,
                "claimed": report.claimed_epsilon,
                "seconds": time.process_time() - started,
            }


def alarms(seeds: int) -> Iterator[dict[str, object]]:
    """Yield one audit at 99 % a seed, of correct mechanisms by turns, at delta = 0.01."""
    for seed in range(seeds):
        name = list(CORRECT)[seed % len(CORRECT)]
        report = audit_algorithm(
            [(CORRECT[name], SETTING)], AuditOptions(seed=seed, effort=SMALL, delta=0.01), name=name, kind="trainers"
        )
        yield {
            "name": name,
            "seed": seed,
            "alarm": report.verdict is Verdict.VIOLATES,
            "gaussian_alarm": (report.gaussian_bound or 0.0) > (report.proved_epsilon or 0.0),
            "lower_bound": report.lower_bound,
            "trials": report.trials,
        }


def main() -> None:
    """Run one of the two studies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("caught", "alarms"))
    parser.add_argument("--seeds", type=int, default=None)
    given = parser.parse_args()
    threadpool_limits(1)
    study, usual = {"caught": (caught, 40), "alarms": (alarms, 1000)}[given.study]
    for line in study(usual if given.seeds is None else given.seeds):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
