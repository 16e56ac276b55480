"""Test parameters of every registered projection and trainer; a name without a row here fails the contract tests."""

from __future__ import annotations

from typing import Any

from dpalgos.guarantees import ApproximateDP, GaussianMu, PureEpsilon

__all__ = ["PARAMETERS"]

MU, EPSILON, APPROXIMATE = GaussianMu(0.8), PureEpsilon(1.5), ApproximateDP(0.9, 1e-4)

# Rows have six features (see test_contract), so six directions are k = d.
PARAMETERS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("projections", "analyze-gauss"): [
        {"budget": MU, "components": 3},
        {"budget": MU, "components": 6, "variance_share": 0.85},
    ],
    ("projections", "analyze-gauss-published"): [{"budget": APPROXIMATE, "components": 3}],
    ("projections", "identity"): [{}],
    ("projections", "pca"): [{"components": 3}, {"components": 6, "variance_share": 0.85}],
    ("trainers", "dpwss"): [{"budget": EPSILON}],
    ("trainers", "erm"): [{}, {"loss": "softmax", "regularisation": 1e-4}, {"loss": "squared"}],
    ("trainers", "noisy-gd"): [{"budget": MU, "iterations": 5}],
    ("trainers", "objective-perturbation"): [
        {"budget": EPSILON},
        {"budget": EPSILON, "loss": "logistic", "regularisation": 1e-6},
    ],
    ("trainers", "objective-perturbation-published"): [{"budget": EPSILON}],
    ("trainers", "output-perturbation"): [{"budget": MU}, {"budget": MU, "loss": "softmax"}],
    ("trainers", "smo"): [{}],
    ("trainers", "smo-output-perturbation"): [{"budget": MU}],
}
