"""Test parameters of every registered algorithm; a name without a row here fails the contract test."""

from __future__ import annotations

from typing import Any

from dpalgos.guarantees import ApproximateDP, GaussianMu, PureEpsilon

MU, EPSILON, APPROXIMATE = GaussianMu(0.8), PureEpsilon(1.5), ApproximateDP(0.9, 1e-4)

_IMAGE = {"shape": [2, 3]}

# Rows have six features (dpalgos.testing), so six directions are k = d.
PARAMETERS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("evaluators", "bin-counts"): [{"budget": MU, "bins": 3}, {"budget": MU, "bins": 3, "columns": 1}],
    ("evaluators", "laplace-bin-counts"): [
        {"budget": EPSILON, "bins": 3},
        {"budget": EPSILON, "bins": 3, "columns": 1},
    ],
    ("evaluators", "column-histograms"): [
        {"budget": MU, "bins": 4},
        {"budget": MU, "bins": 8, "running": False, "mean_weight": 0.5, "label_range": (0.0, 1.0)},
        {"budget": MU, "columns": [{"at": 0, "values": 1}]},
    ],
    ("evaluators", "confusion-by-group"): [
        {"budget": MU},
        {"budget": MU, "groups": 5},
        {"budget": MU, "groups": 3, "alone": True},
    ],
    ("evaluators", "confusion-matrix"): [{"budget": MU}],
    ("evaluators", "discordance"): [{"budget": MU}],
    ("evaluators", "error-distribution"): [{"budget": MU}, {"budget": MU, "bound": 0.6, "centre": 0.0}],
    ("evaluators", "key-selection"): [{"budget": ApproximateDP(2.0, 0.5)}],
    ("evaluators", "laplace-confusion-by-group"): [{"budget": EPSILON, "groups": 3}],
    ("evaluators", "laplace-confusion-matrix"): [{"budget": EPSILON}],
    ("evaluators", "laplace-error-sums"): [{"budget": EPSILON}],
    ("evaluators", "pair-counts"): [
        {"budget": MU},
        {
            "budget": MU,
            "columns": [{"at": 0, "missing": 2}, {"at": 0}, {"at": 0, "values": 3}, {"at": 1}],
            "edges": [[0.5], [0.25, 0.3], [], [0.1, 0.2, 0.9]],
            "groups": [[], [], [0, 1, 0], []],
            "tables": [[0, 1], [1, 2, 4], [3, 4], [2]],
        },
    ],
    ("evaluators", "second-moments"): [
        {"budget": MU},
        {"budget": MU, "center": False, "origin": 0.1, "radius": 0.5},
    ],
    ("evaluators", "score-distribution"): [{"budget": MU, "bins": 4}, {"budget": MU, "bins": 4, "scale": 2.0}],
    ("evaluators", "scores-by-group"): [
        {"budget": MU, "bins": 4},
        {"budget": MU, "bins": 4, "groups": 3, "alone": True},
    ],
    ("projections", "analyze-gauss"): [
        {"budget": MU, "components": 3},
        {"budget": MU, "components": 6, "variance_share": 0.85},
    ],
    ("projections", "analyze-gauss-published"): [{"budget": APPROXIMATE, "components": 3}],
    ("projections", "column-groups"): [
        {"names": ["no", "yes", "missing"], "at": 1, "values": 2},
        {"names": ["low", "high", "missing"], "at": 0, "edges": [0.25], "missing": 4, "scale": 5, "unit": 0.1},
    ],
    ("projections", "dictionary"): [
        {"filters": 3, "side": 2, "cells": 1, "images": 20, "processes": ["strokes"], **_IMAGE}
    ],
    ("projections", "side-by-side"): [
        {"maps": {"scattering": {"scales": 1, "angles": 2, "places": 1}, "hog": {"cell": 1, "block": 1}}, **_IMAGE},
        {
            "maps": {"scattering": {"scales": 1, "angles": 2, "places": 1}, "hog": {"cell": 1, "block": 1}},
            "weights": {"scattering": 1.0, "hog": 0.7},
            **_IMAGE,
        },
    ],
    ("projections", "dct"): [{"components": 3, **_IMAGE}, {"components": 6, **_IMAGE}],
    ("projections", "dppca"): [{"budget": EPSILON, "components": 3, "variance_share": 0.85}],
    ("projections", "dpsvd"): [{"budget": APPROXIMATE, "components": 3}],
    ("projections", "encoder"): [{"net": "small", "components": 2, "images": 6, **_IMAGE}],
    ("projections", "hog"): [{"cell": 1, "block": 1, **_IMAGE}],
    ("projections", "identity"): [{}],
    ("projections", "laplace-pca"): [{"budget": EPSILON, "components": 3}],
    ("projections", "mod-sulq"): [{"budget": APPROXIMATE, "components": 3}],
    ("projections", "patches"): [{"filters": 3, "side": 2, "cells": 1, **_IMAGE}],
    ("projections", "pca"): [{"components": 3}, {"components": 6, "variance_share": 0.85}],
    ("projections", "pooling"): [_IMAGE, {"size": 3, **_IMAGE}],
    ("projections", "radial-pca"): [{"budget": EPSILON, "components": 3}],
    ("projections", "private-centring"): [{"budget": MU}],
    ("projections", "ppca"): [{"budget": EPSILON, "components": 3}, {"budget": EPSILON, "components": 6}],
    ("projections", "ppca-published"): [{"budget": EPSILON, "components": 3, "sweeps": 3}],
    ("projections", "public-whitening"): [
        {
            "feature_parameters": {"scales": 1, "angles": 2, "places": 1},
            "components": 2,
            "images": 20,
            **_IMAGE,
        }
    ],
    ("projections", "scattering"): [{"scales": 1, "angles": 2, "places": 1, **_IMAGE}],
    ("projections", "random-fourier"): [{"frequencies": 8, "gamma": 0.5}],
    ("projections", "random-projection"): [{"components": 3}],
    ("projections", "signed-log"): [{"scale": 10.0}],
    ("projections", "signed-root"): [{"power": 0.5}],
    ("projections", "wishart-pca"): [{"budget": EPSILON, "components": 3}],
    ("trainers", "approximate-minima-perturbation"): [{"budget": APPROXIMATE}],
    ("trainers", "consensus-admm"): [
        {"budget": MU, "iterations": 3},
        {"budget": MU, "iterations": 2, "loss": "softmax", "intercept_scaling": 1.0},
    ],
    ("trainers", "consensus-admm-published"): [{"budget": EPSILON, "iterations": 3}],
    ("trainers", "dual-perturbation-published"): [{"budget": EPSILON}],
    ("trainers", "dp-sgd"): [
        {"budget": APPROXIMATE, "iterations": 2, "sampling_rate": 0.5},
        {"budget": APPROXIMATE, "iterations": 3, "sampling_rate": 1.0, "loss": "squared", "intercept_scaling": 1.0},
    ],
    ("trainers", "dpwss"): [{"budget": EPSILON}],
    ("trainers", "erm"): [
        {},
        {"loss": "softmax", "regularisation": 1e-4},
        {"loss": "squared", "intercept_scaling": 1.0},
    ],
    ("trainers", "gradient-perturbation"): [{"budget": MU, "iterations": 5}],
    ("trainers", "local-gradient"): [{"budget": MU, "iterations": 5}],
    ("trainers", "mpc-gp"): [{"budget": APPROXIMATE, "iterations": 5}],
    ("trainers", "mpc-op"): [{"budget": EPSILON}],
    ("trainers", "class-means"): [{"budget": MU}, {"budget": MU, "count_weight": 0.5}],
    ("trainers", "continual-class-means"): [{"budget": MU, "nights": 3}, {"budget": MU, "nights": 4, "bands": 2}],
    ("trainers", "continual-ftrl"): [{"budget": MU, "nights": 3}, {"budget": MU, "nights": 4, "bands": 2}],
    ("trainers", "ftrl"): [{"budget": MU}, {"budget": MU, "mean_weight": 1.0, "clip": 0.3}],
    ("trainers", "discriminant-gd"): [
        {"budget": MU, "iterations": 0},
        # Sums of equal sensitivity, as test_sensitivities supposes.
        {"budget": MU, "iterations": 4, "first_share": 0.2},
    ],
    ("trainers", "noisy-gd"): [
        {"budget": MU, "iterations": 5},
        {"budget": MU, "iterations": 4, "loss": "squared", "intercept_scaling": 1.0},
    ],
    ("trainers", "objective-perturbation"): [
        {"budget": EPSILON},
        {"budget": EPSILON, "loss": "logistic", "regularisation": 1e-6, "intercept_scaling": 1.0},
    ],
    ("trainers", "objective-perturbation-gaussian"): [{"budget": APPROXIMATE}],
    ("trainers", "objective-perturbation-published"): [{"budget": EPSILON}],
    ("trainers", "output-perturbation"): [
        {"budget": MU},
        {"budget": MU, "loss": "softmax", "intercept_scaling": 1.0},
        {"budget": MU, "loss": "squared"},
    ],
    ("trainers", "output-perturbation-radial"): [{"budget": EPSILON}],
    ("trainers", "pathak"): [{"budget": EPSILON}],
    ("trainers", "smo"): [{}],
    ("trainers", "smo-output-perturbation"): [{"budget": MU}],
    ("trainers", "smo-output-perturbation-laplace"): [{"budget": EPSILON}],
    ("trainers", "sufficient-statistics"): [{"budget": MU}, {"budget": MU, "intercept_scaling": 1.0}],
    ("trainers", "svm-laplace-published"): [{"budget": EPSILON}],
    ("trainers", "tuned"): [
        {"budget": APPROXIMATE},
        {"budget": APPROXIMATE, "trainer": "noisy-gd", "parameters": {"iterations": 2}, "grid": {"clip": [0.5, 0.25]}},
    ],
    ("trainers", "truex"): [{"budget": MU, "iterations": 5}, {"budget": MU, "iterations": 4, "honest": 2}],
}

# Settings of every registered trust model, for three parties.
TRUSTS: dict[str, dict[str, Any]] = {
    "central": {},
    "local": {},
    "secagg": {"dropouts": 0, "colluders": 1},
}
