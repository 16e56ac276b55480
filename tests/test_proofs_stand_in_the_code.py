"""Proofs that pages and other docstrings point to are in the docstrings of the code that they prove.

Several were lost when files were put together: of filters and raised caps, of composed and sampled plans, of noise in
shares, of null records, of audits from one run. What is looked for is the statement, and that it is argued.
"""

from __future__ import annotations

import importlib
import inspect

import pytest

PROOFS = {
    "dpalgos.accounting.composition": ("``H_t <= s + (1 - s) G_t`` for all t > 0", "dominates in both orders"),
    "dpalgos.accounting.profiles": ("dominating pair",),
    "dpalgos.accounting.selection": ("(ε + c, W δ(ε))-DP",),
    "dpalgos.accounting.spending": (
        "``sum mu_k^2 <= B^2`` implies B-Gaussian-DP",
        "``sum rho_k <= B`` implies B-zCDP",
        "``sum epsilon_k <= E`` and ``sum delta_k <= D`` implies (E, D)-DP",
        "``∫ max(0, dP - e^E dQ) <= delta``",
        "sum over partitions pi of max over its parties",
    ),
    "dpalgos.audit.bounds": ("R_0 + H_0 = r / m", "advantage = max (TPR − FPR) ≤ max_α (1 − f(α) − α)"),
    "dpalgos.margins": ("Fieller's", "Clopper and Pearson"),
    "dpalgos.mechanisms.factorisation": ("μ² = Σ_t μ_t²",),
    "dpalgos.mechanisms.running_sums": ("√(e ‖ĉ_1‖² + m D)",),
    "dpalgos.rows": ("sup ‖g − g′‖ over G ∪ {0} under ``replace-one``",),
    "dpalgos.score_curves": ("V - V H' (H V H' + tau^2)^-1 H V",),
    "dpalgos.secure.noise_shares": ("**Theorem.** Let m parties add independent discrete Gaussians", "*Proof.*"),
    "dpalgos.secure.protocol": ("each step is as secure as a separate session",),
    "storage.ledger.database": ("what a power cut would do without it",),
    "tasks.datasets.horizons": ("its sums moves by no more than a row's",),
    "tasks.federation.messages": ("Why the signatures.",),
    "tasks.preparation.streams": ("What a restored horizon loses",),
}


@pytest.mark.parametrize("module", PROOFS)
def test_a_proof_stands_in_its_module(module: str) -> None:
    text = " ".join((inspect.getdoc(importlib.import_module(module)) or "").split())
    assert [one for one in PROOFS[module] if " ".join(one.split()) not in text] == []
