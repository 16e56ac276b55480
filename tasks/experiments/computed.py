"""Tables and curves that are computed from the registry and from public rows, without training private models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pydantic import BaseModel

from dpalgos.errors import ParameterError, UnknownNameError
from dpalgos.guarantees import ApproximateDP, PureEpsilon, Setting, Trust
from dpalgos.registry import AlgorithmSpec, lookup
from tasks.datasets.description import find_dataset
from tasks.experiments.points import PointResult
from tasks.experiments.risk import Risk, curvature_along_descent
from tasks.experiments.specification import Point
from tasks.experiments.tables import Table
from tasks.planning.algorithms import describe_system
from tasks.planning.resolution import resolve

_MODELS: Mapping[str, str] = MappingProxyType(
    {Trust.LOCAL: "distributed", Trust.SECAGG: "distributed, secure sums", Trust.CENTRAL: "centralized"}
)
_PHASES = MappingProxyType({"projection": "reduction", "trainer": "training"})

Computed = tuple[list[PointResult], list[Table]]


def noise_phases(points: list[Point]) -> Computed:
    """Return, for each system, where it adds noise and what is proved of it, read off the registry."""
    head = ["mechanism", "system model", "noise in", "noise mechanism", "proved", "claimed", "flaw"]
    body = []
    for point in points:
        name = str(point.config.algorithm)
        try:
            resolved = resolve(point.config, find_dataset(point.config.dataset))
        except (UnknownNameError, ParameterError) as error:
            body.append([name, "–", "–", "–", f"not registered: {error}", "–", "–"])
            continue
        noisy = {
            _PHASES[part]: lookup(spec.kind, spec.name)
            for part, spec in resolved.parts.items()
            if part in _PHASES and lookup(spec.kind, spec.name).budgets
        }
        entry = describe_system(name)
        claim = lookup("systems", name).claim
        body.append(
            [
                name,
                ", ".join(_MODELS[trust] for trust in lookup("systems", name).arrangements),
                " + ".join(noisy) or "none",
                "; ".join(dict.fromkeys(part.source for part in noisy.values())) or "–",
                entry["proved"] or "none",
                claim.statement if claim else "–",
                claim.flaw if claim and claim.flaw else "–",
            ]
        )
    return [], [Table(title="Mechanisms, read off the registry", head=head, body=body)]


def noise_scales(points: list[Point]) -> Computed:
    """Return the scale of the noise each mechanism adds at public n, d, ε and δ, as its paper has it."""
    body = []
    for point in points:
        reference, config = find_dataset(point.config.dataset), point.config
        setting = Setting(sizes=(reference.rows,), dimension=reference.dimension, classes=2, trust=Trust.CENTRAL)
        epsilon, delta = float(config.epsilon or 1.0), config.stated_delta
        budgets = (PureEpsilon(epsilon), ApproximateDP(epsilon, delta))
        for kind, name in (("projections", config.projection), ("trainers", config.trainer)):
            cls = lookup(kind, name) if name is not None else None
            budget = next((one for one in budgets if cls is not None and type(one) in cls.budgets[:1]), None)
            scale = getattr(cls, "noise_scale", getattr(cls, "deviation", None))
            if name is not None and budget is not None and scale is not None:
                deviation = scale(AlgorithmSpec(kind, name, {"budget": budget}).build(), setting)
                sizes = [str(reference.rows), str(reference.dimension)]
                numbers = [f"{config.epsilon:g}", f"{delta:.3g}", f"{deviation:.4g}"]
                body.append([reference.name, point.label, *sizes, *numbers])
    head = ["data set", "mechanism", "n", "d", "epsilon", "delta", "noise scale"]
    return [], [Table(title="Noise scales at public sizes", head=head, body=body)]


class _Descent(BaseModel):
    regularisation: float = 1e-3
    step_size: float = 1.0
    iterations: int = 1000


def curvature(points: list[Point]) -> Computed:
    """Return average and minimum curvature of the regularised logistic risk along gradient descent without noise."""
    results = []
    for point in points:
        descent = _Descent.model_validate(point.config.parameters)
        problem = Risk(point.config, loss="logistic", regularisation=descent.regularisation).problem
        results += [
            PointResult(
                label=point.label,
                dataset=point.config.dataset,
                algorithm="gradient descent",
                trust="central",
                status="non-private",
                axes={"iterations": iterations, "regularisation": descent.regularisation},
                metrics={"average_curvature": average, "minimum_curvature": minimum},
            )
            for iterations, average, minimum in curvature_along_descent(problem, descent.step_size, descent.iterations)
        ]
    return results, []


COMPUTED: Mapping[str, Callable[[list[Point]], Computed]] = MappingProxyType(
    {"curvature": curvature, "noise-phases": noise_phases, "noise-scales": noise_scales}
)
