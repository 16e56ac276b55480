"""An audit as MLflow shows it: bounds, curves, verdict, and what it takes to repeat it."""

from __future__ import annotations

import json
import uuid

from tasks.auditing.drawing import draw_trade_offs
from tasks.auditing.examination import Examined
from tasks.tracking.promotion import AUDIT_TAG, AUDITS
from tasks.tracking.runs import RunReport


def audit_report(examined: Examined) -> RunReport:
    """Return an audit as MLflow shows it."""
    one = examined.mechanism
    numbers = {
        "epsilon_lower_bound": one.lower_bound,
        "epsilon_ceiling": one.ceiling,
        "epsilon_proved": one.proved_epsilon,
        "epsilon_claimed": one.claimed_epsilon,
        "epsilon_lower_bound_if_gaussian": one.gaussian_bound,
        "mu_lower_bound": one.lower_mu,
        "mu_proved": one.proved_mu,
        "seconds": examined.seconds,
    }
    if examined.one_run is not None:
        numbers |= {
            "one_run_epsilon_lower_bound": examined.one_run.lower_bound,
            "one_run_mu_lower_bound": examined.one_run.lower_mu,
            "one_run_p_value": examined.one_run.p_value,
        }
    if examined.chain is not None:
        numbers |= {
            "chain_epsilon_lower_bound": examined.chain.lower_bound,
            "chain_epsilon_ceiling": examined.chain.ceiling,
            "chain_fields_differing": float(len(examined.chain.differing)),
        }
    reports = (("mechanism", one), ("one_run", examined.one_run), ("chain", examined.chain))
    found = {name: report.to_json() for name, report in reports if report is not None}
    return RunReport(
        experiment=AUDITS,
        run_key=f"audit-{uuid.uuid4().hex}",
        name=f"{examined.algorithm}: {examined.outcome}",
        facts={
            "algorithm": examined.algorithm,
            "dataset": "synthetic rows",
            "proved": None if one.proved_epsilon is None else f"({one.proved_epsilon:.6g}, {one.delta:g})-DP",
            "claim": None if one.claimed_epsilon is None else f"({one.claimed_epsilon:.6g}, {one.delta:g})-DP",
            "neighbours": one.neighbours,
        },
        params={"confidence": one.confidence, "trials": one.trials, "seed": one.seed, "pair": one.pair},
        metrics={name: float(value) for name, value in numbers.items() if value is not None},
        # The step is the type I error in thousandths.
        curves={
            "trade_off": {round(1000 * alpha): beta for alpha, beta in one.stated_curve},
            "trade_off_measured": {round(1000 * alpha): beta for alpha, beta in one.curve},
        },
        tags={AUDIT_TAG: examined.outcome},
        files={"audit.json": json.dumps(found, indent=2, default=str), "trade-off.png": draw_trade_offs([one])},
        note=_note(examined),
    )


def _note(examined: Examined) -> str:
    one = examined.mechanism
    stated = one.proved_epsilon if one.proved_epsilon is not None else one.claimed_epsilon
    status = "proved" if one.proved_epsilon is not None else "claimed"
    lines = [
        f"**{examined.algorithm}**: {examined.outcome}.",
        f"ε ≥ {one.lower_bound:.4g} at δ = {one.delta:g}, confidence {one.confidence:.12g}; "
        + (f"{status} ε = {stated:.4g}" if stated is not None else "nothing is stated")
        + (f", μ = {one.proved_mu:.4g}." if one.proved_mu is not None else "."),
        *examined.reasons,
    ]
    return "\n\n".join(lines)
