"""Computations in addition to an experiment's runs: the risk of their models, constants and decision boundaries."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from pydantic import BaseModel
from sklearn.datasets import dump_svmlight_file

from dpalgos.curvature import mean_and_least_curvature
from dpalgos.guarantees import ApproximateDP, PureEpsilon, Setting, Trust
from dpalgos.losses import Problem
from dpalgos.parameters import ParameterError, UnknownNameError
from dpalgos.registry import AlgorithmSpec, lookup
from dpalgos.rows import Floats, Ints
from dpalgos.sentences import sentence
from storage.datasets import open_dataset
from storage.errors import InputError, RefusedError
from storage.refs import DatasetRef, ReleaseRef, Visibility
from storage.shards import open_shard
from tasks.datasets.registration import find_dataset, ingest
from tasks.datasets.request import IngestRequest
from tasks.experiments.figures import draw_boundaries
from tasks.experiments.point_results import PointResult
from tasks.experiments.records import Drawing, Table
from tasks.experiments.registered import describe_system
from tasks.experiments.specifications import Point
from tasks.planning.configuration import TrainingConfig
from tasks.planning.resolution import resolve
from tasks.preparation.normalisation import make_normalised, plan_normalisation
from tasks.preparation.partitions import make_partition, plan_partition
from tasks.release.storing import read_release
from tasks.runtime.settings import current_layout

_POINTS = 25


class Risk:
    """The risk J(θ) of one loss over a run's training rows, all parties together; public rows only.

    Parameters
    ----------
    config : TrainingConfig
        Whose data set, normalisation and partition decide the rows.
    loss : str
    regularisation : float

    Raises
    ------
    RefusedError
        If the rows are private: the exact risk is not a release.
    """

    def __init__(self, config: TrainingConfig, *, loss: str, regularisation: float) -> None:
        dataset = find_dataset(config.dataset)
        if dataset.private:
            raise RefusedError(
                f"the exact risk on {dataset.name} would read private rows without a release; choose a public set"
            )
        mapped = make_normalised(plan_normalisation(dataset, config.normalisation or "unit-norm"))
        shards = make_partition(plan_partition(mapped, config)).training
        setting = Setting(
            sizes=tuple(shard.rows for shard in shards),
            dimension=mapped.dimension,
            classes=max(len(mapped.classes), 1),
            trust=Trust.CENTRAL,
        )
        trainer = AlgorithmSpec("trainers", "erm", {"loss": loss, "regularisation": regularisation}).build()
        self.problem: Problem = trainer.problem([open_shard(current_layout(), shard) for shard in shards], setting)

    def of(self, release: str) -> float:
        """Return J of a released model without intercept."""
        model = read_release(ReleaseRef(key=release, kind="model", party="all"))
        return self.problem.value(np.asarray(model.weights, dtype=np.float64))


def curvature_along_descent(problem: Problem, step_size: float, iterations: int) -> list[tuple[int, float, float]]:
    """Return average and minimum curvature along gradient descent from zero, at geometrically spaced steps.

    Each is a triple: after how many steps, tr H/p, and the smallest eigenvalue of H.
    """
    wanted = {0, *np.unique(np.geomspace(1, iterations, _POINTS).round().astype(int)).tolist()}
    weights: Floats = np.zeros(problem.shape)
    path = []
    for step in range(iterations + 1):
        if step in wanted:
            path.append((step, *mean_and_least_curvature(problem, weights)))
        weights = weights - step_size * problem.gradient(weights)
    return path


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
                sentence(claim.flaw) if claim and claim.flaw else "–",
            ]
        )
    return [], [Table(title="Mechanisms of the registry", head=head, body=body)]


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
                body.append(
                    [reference.name, point.label, *sizes, f"{config.epsilon:g}", f"{delta:.3g}", f"{deviation:.4g}"]
                )
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


_GRID, _MARGIN = 120, 0.1


def ingest_features(source: str, features: Sequence[int], name: str) -> None:
    """Register some features of a public set as a separate set.

    Raises
    ------
    RefusedError
        If the set is private: the copy would be a second one outside its account.
    InputError
        If it has no such feature.
    """
    dataset = find_dataset(source)
    if dataset.private:
        raise RefusedError(
            f"{source} is private, and a copy of its features would be outside its account; choose a public set"
        )
    if not features or max(features) >= dataset.dimension:
        raise InputError(f"{source} has features 0 to {dataset.dimension - 1}; correct {list(features)}")
    rows, labels = _rows(dataset)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.libsvm")
        dump_svmlight_file(rows[:, list(features)], labels, str(path), zero_based=False)
        ingest(
            IngestRequest(name=name, format="libsvm", path=path, visibility=Visibility.PUBLIC, dimension=len(features))
        )


def _rows(dataset: DatasetRef) -> tuple[Floats, Ints]:
    features, labels, _ = zip(*open_dataset(current_layout(), dataset).blocks(), strict=True)
    return np.concatenate(features), np.concatenate(labels)


def decision_boundaries(results: Sequence[PointResult], title: str) -> Drawing:
    """Draw the rows of a public set of two features as the models saw them, and where each series' first model divides.

    Raises
    ------
    InputError
        If the set is private or has other than two features.
    """
    dataset = find_dataset(results[0].dataset)
    if dataset.private or dataset.dimension != 2:
        raise InputError(f"{dataset.name} has {dataset.dimension} features; the figure needs public rows with two")
    name = str(results[0].axes.get("normalisation", "unit-norm"))
    dataset = make_normalised(plan_normalisation(dataset, name))
    rows, labels = _rows(dataset)
    x, y = np.linspace(rows.min(axis=0) - _MARGIN, rows.max(axis=0) + _MARGIN, _GRID).T
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    first = {result.label: result for result in reversed(results)}
    scores = [(one.label, one.status, _scores(one, grid).reshape(_GRID, _GRID)) for one in first.values()]
    return draw_boundaries(rows, labels, (x, y), scores[::-1], title)


def _scores(result: PointResult, grid: Floats) -> Floats:
    """Return a run's scores: through its maps, then its model, which is the last of its releases."""
    *maps, model = (read_release(ReleaseRef(key=key, kind="", party="")) for key in result.releases)
    for one in maps:
        grid = one.transform(grid)
    return np.asarray(model.scores(grid)[:, 0])
