"""What is registered, said in plain values: names, trust, claims and what is proved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpalgos.algorithms import is_sum_algorithm
from dpalgos.guarantees import (
    ApproximateDP,
    Claim,
    GaussianMu,
    Guarantee,
    Loss,
    PrivateSelection,
    PureEpsilon,
    Setting,
    SlackGaussian,
    Trust,
    ZeroConcentrated,
)
from dpalgos.registry import AlgorithmSpec, lookup, names
from dpalgos.systems.system import Arrangement, System

PARTS = ("projections", "trainers", "evaluators")
_EXAMPLES: dict[type[Loss], Loss] = {
    PureEpsilon: PureEpsilon(1.0),
    GaussianMu: GaussianMu(0.25),
    ZeroConcentrated: ZeroConcentrated(0.03),
    ApproximateDP: ApproximateDP(1.0, 1e-5),
}
_WORDS: dict[type[Loss], str] = {
    PureEpsilon: "ε-DP",
    GaussianMu: "μ-GDP",
    ZeroConcentrated: "ρ-zCDP",
    ApproximateDP: "(ε, δ)-DP",
    PrivateSelection: "(ε, δ)-DP; all candidates μ-GDP",
    SlackGaussian: "(s, μ): μ-GDP but for s of δ",
}


def example_guarantee(kind: str, name: str, trust: str) -> Guarantee:
    """Return what a part guarantees in an example setting: which kind of loss, under which assumptions."""
    cls = lookup(kind, name)
    budget = {"budget": _EXAMPLES[cls.budgets[0]]} if cls.budgets else {}
    sizes = (1000,) if trust == Trust.LOCAL else (1000, 1000, 1000)
    setting = Setting(sizes=sizes, dimension=64, classes=10, neighbours=cls.relations[0], trust=trust)
    guarantee: Guarantee = AlgorithmSpec(kind, name, budget).build().guarantee(setting)
    return guarantee


def _statement(guarantee: Guarantee) -> str | None:
    if not guarantee.proved:
        return None
    kinds = dict.fromkeys(_WORDS[type(loss)] for loss in guarantee.losses)
    return " and ".join(kinds or ["costs nothing"]) + f", {guarantee.numerics}"


def _claimed(claim: Claim | None) -> dict[str, str | None]:
    if claim is None:
        return {"claim": None, "theorem": None, "flaw": None}
    return {"claim": claim.statement, "theorem": claim.theorem, "flaw": claim.flaw}


def describe_part(kind: str, name: str) -> dict[str, Any]:
    """Return what there is to say of a projection, trainer or evaluator."""
    cls = lookup(kind, name)
    guarantee = example_guarantee(kind, name, cls.trusts[0]) if cls.reads_rows else None
    return {
        "name": name,
        "kind": kind,
        "source": cls.source,
        **_claimed(cls.claim),
        "proved": _statement(guarantee) if guarantee else "free: does not look at rows",
        "reason": guarantee.reason if guarantee else None,
        "assumptions": list(guarantee.assumptions) if guarantee else [],
        "trust": [str(trust) for trust in cls.trusts],
        "sums_only": is_sum_algorithm(cls),
        "sound_counterpart": cls.sound_counterpart,
    }


def _parts_of(arrangement: Arrangement) -> Iterator[AlgorithmSpec]:
    if arrangement.projection is not None and lookup("projections", arrangement.projection.name).reads_rows:
        yield arrangement.projection
    yield arrangement.trainer


def describe_system(name: str) -> dict[str, Any]:
    """Return what there is to say of a system; it is proved if all its parts are, under its first trust model."""
    system: System = lookup("systems", name)
    trust, arrangement = next(iter(system.arrangements.items()))
    guarantees = [example_guarantee(spec.kind, spec.name, trust) for spec in _parts_of(arrangement)]
    proved = all(guarantee.proved for guarantee in guarantees)
    statements = dict.fromkeys(str(_statement(guarantee)) for guarantee in guarantees)
    return {
        "name": name,
        "kind": "systems",
        "source": system.source,
        "summary": system.summary,
        "paper": system.paper or None,
        **_claimed(system.claim),
        "proved": "; ".join(statements) if proved else None,
        "reason": next((guarantee.reason for guarantee in guarantees if not guarantee.proved), None),
        "assumptions": sorted({text for guarantee in guarantees for text in guarantee.assumptions}),
        "trust": [str(trust) for trust in system.supported()],
        "parts": {
            str(trust): [f"{spec.kind.removesuffix('s')} {spec.name}" for spec in _parts_of(arrangement)]
            for trust, arrangement in system.arrangements.items()
        },
        "sound_counterpart": system.sound_counterpart,
    }


def describe_all() -> list[dict[str, Any]]:
    """Return every system and part, systems first."""
    systems = [describe_system(name) for name in names("systems")]
    parts = [describe_part(kind, name) for kind in PARTS for name in names(kind)]
    combined: list[dict[str, Any]] = [
        {
            "name": name,
            "kind": "aggregators",
            "source": str(getattr(lookup("aggregators", name), "source", "") or ""),
            **_claimed(None),
            "proved": "free: post-processing of releases",
            "reason": None,
            "assumptions": [],
            "trust": [],
            "sound_counterpart": None,
        }
        for name in names("aggregators")
    ]
    return systems + parts + combined
