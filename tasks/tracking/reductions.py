"""Principal components of a version: the release, what it says of variances and columns, and its record in MLflow."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from sklearn.pipeline import Pipeline

from dpalgos.accounting.profiles import gaussian_epsilon
from dpalgos.column_maps import components_map
from dpalgos.components import Components
from dpalgos.evaluators.pair_counts import PairCounts
from dpalgos.evaluators.second_moments import SecondMoments
from dpalgos.features.centred_components import CentredComponents
from dpalgos.guarantees import GaussianMu, rounded_up
from dpalgos.models import Statistic
from storage.datasets import declared_table
from storage.encoder import TableEncoder, encoder_of
from storage.layout import Layout
from storage.refs import DatasetRef
from tasks.planning.column_statistics import ReductionPlan
from tasks.planning.configuration import Json
from tasks.planning.releases import PlannedRelease
from tasks.preparation.drawn import drawn_behind
from tasks.release.moments import components_in, moments_in
from tasks.release.storing import read_release, stored_release
from tasks.runtime.plots import BLUE, png_of, styled_figure
from tasks.runtime.settings import current_layout, current_root
from tasks.tracking.results import stated
from tasks.tracking.runs import RUN_KEY, Entries, experiment_of, log_files, log_run, requirements, runs_with
from tasks.tracking.runs import tracking_client as client_of
from tasks.tracking.sklearn_export import row_map_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure
    from mlflow import MlflowClient

KEY_DIGITS = 12
"""So many name a release for `unitball train --basis`."""
SCREE, LOADINGS, SCORES = "components.png", "loadings.csv", "scores.csv"
_MOST_BARS, _MOST_COLUMNS, _MOST_PICTURES = 20, 24, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component.

    Parameters
    ----------
    variance, low, high : float
        Estimate of the variance along the direction, of scaled columns, and the ends of its 95 % margin; all margins
        hold together.
    noisy : float
        The noisy eigenvalue, around which the margin is.
    share : float
        Of the total variance.
    loadings : tuple of (str, float)
        Scaled columns with the largest entries, largest first.
    """

    variance: float
    low: float
    high: float
    noisy: float
    share: float
    loadings: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCounts:
    """Noisy two-way counts of rows by their scores along components 1 and 2.

    Parameters
    ----------
    edges : two tuples of float
        Ends of the T cells of each component, (T + 1,) each, in units of the scaled columns. What lies beyond is
        counted in the outermost cell.
    counts : tuple of tuple of float
        (T, T): cells of component 1, and within each those of component 2. Noise makes some negative.
    deviation : float
        Standard deviation of the noise of each count.
    key : str
        The release's.
    """

    edges: tuple[tuple[float, ...], tuple[float, ...]]
    counts: tuple[tuple[float, ...], ...]
    deviation: float
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """The result of a release of second moments.

    Parameters
    ----------
    dataset, version, account : str
    epsilon, delta, mu : float
        Of the release, for one row or person; of derived rows, of what these are drawn from, too.
    unit : str
        What the release protects: ``row``, or ``person`` with its column.
    rows : int
        Rows, or people where these are protected.
    columns : int
        Scaled columns that vary.
    centred : bool
        Whether moments are about a released mean; about the declared middle otherwise.
    key : str
        The release's; its beginning names the basis.
    components : tuple of Component
    floor : float
        What rows without variance stay below with probability 0.95.
    above : int
        Noisy eigenvalues above the floor.
    total : float
        The released total variance.
    paid : bool
        Whether all was charged before.
    run : str
        MLflow's run.
    scores : ScoreCounts or None
    synthesis : str
        Key of what the rows are drawn by; empty of rows that are not drawn.
    """

    dataset: str
    version: str
    account: str
    epsilon: float
    delta: float
    mu: float
    unit: str
    rows: int
    columns: int
    centred: bool
    key: str
    components: tuple[Component, ...]
    floor: float
    above: int
    total: float
    paid: bool
    run: str
    scores: ScoreCounts | None = None
    synthesis: str = ""

    @property
    def basis(self) -> str:
        """The argument of `unitball train --basis`."""
        return self.key[:KEY_DIGITS]

    def to_json(self) -> Json:
        """Return a JSON object."""
        return {**asdict(self), "basis": self.basis}


@dataclass(frozen=True, slots=True)
class _Read:
    """A stored reduction, decoded."""

    plan: ReductionPlan
    found: Components
    made: CentredComponents
    names: tuple[str, ...]
    scores: ScoreCounts | None


def recorded(plan: ReductionPlan, components: int | None, *, paid: bool) -> Reduction:
    """Find the components of a stored reduction, and log these to MLflow.

    Parameters
    ----------
    plan : ReductionPlan
        Its releases are stored.
    components : int, optional
        Those above the noise where None.
    paid : bool
        Whether all was charged before.

    Raises
    ------
    InputError
        If no component is above the noise and no number is given.
    """
    read, planned = _read(plan, components), plan.moments
    found = read.found
    drawn = [loss for one in drawn_behind([plan.dataset]).releases for loss in one.guarantee().losses]
    mu = math.hypot(*(cast(GaussianMu, one).mu for one in (*(one.budget for one in plan.releases), *drawn)))
    return Reduction(
        dataset=plan.dataset.name,
        version=plan.dataset.version,
        account=plan.dataset.account,
        epsilon=rounded_up(gaussian_epsilon(mu, plan.delta), 6) if drawn else plan.epsilon,
        delta=plan.delta,
        mu=mu,
        unit=str(plan.dataset.unit),
        rows=plan.dataset.rows,
        columns=len(found.noisy),
        centred=cast(SecondMoments, planned.build()).center,
        key=planned.key,
        components=tuple(_component(found, read.made, read.names, place) for place in range(len(found.variances))),
        floor=found.floor,
        above=found.above,
        total=found.total,
        paid=paid,
        run=_logged(read),
        scores=read.scores,
        synthesis=plan.dataset.synthesis,
    )


def figure_of(plan: ReductionPlan, components: int) -> bytes:
    """Return the figure of a stored reduction, as PNG (:func:`draw_components`)."""
    return draw_components(_read(plan, components))


def _read(plan: ReductionPlan, components: int | None) -> _Read:
    planned = plan.moments
    statistic = _released(planned)
    found, algorithm = components_in(planned, statistic, components), cast(SecondMoments, planned.build())
    made = components_map(algorithm, planned.setting, moments_in(planned, statistic), found)
    return _Read(plan, found, made, scaled_names(plan.dataset), _scores_of(plan, statistic))


def _released(planned: PlannedRelease) -> Statistic:
    reference = stored_release(planned)
    assert reference is not None, "it was made"
    return cast(Statistic, read_release(reference))


def _scores_of(plan: ReductionPlan, moments: Statistic) -> ScoreCounts | None:
    """Return the counts of scores, with the ends of their cells in units of the scaled columns."""
    if plan.scores is None or plan.plane is None:
        return None
    counting, setting = cast(PairCounts, plan.scores.build()), plan.scores.setting
    lengths = cast(CentredComponents, plan.plane.combine([moments])).radius
    (counts,) = counting.tables_of(_released(plan.scores).values, setting).values()
    shares = np.concatenate([[0.0], np.asarray(counting.edges)[0], [1.0]])
    ends = lengths[:, None] * (2.0 * shares - 1.0)
    return ScoreCounts(
        edges=(tuple(ends[0].tolist()), tuple(ends[1].tolist())),
        counts=tuple(map(tuple, counts.tolist())),
        deviation=counting.deviation(setting) * setting.noise_factor,
        key=plan.scores.key,
    )


def scaled_names(dataset: DatasetRef) -> tuple[str, ...]:
    """Return the names of a version's features: a schema's, or a pixel's row and column, or their places."""
    encoder = encoder_of(declared_table(current_layout(), dataset))
    if isinstance(encoder, TableEncoder):
        return tuple(map(str, encoder.declared.feature_names))
    if dataset.image_shape is None:
        return tuple(f"x{at}" for at in range(dataset.dimension))
    return tuple("pixel " + ",".join(map(str, place)) for place in np.ndindex(*dataset.image_shape))


def _component(found: Components, made: CentredComponents, names: Sequence[str], place: int) -> Component:
    direction = made.basis[:, place]
    largest = np.argsort(-np.abs(direction), kind="stable")[:5].tolist()
    return Component(
        variance=float(found.variances[place]),
        low=float(found.low[place]),
        high=float(found.high[place]),
        noisy=float(found.noisy[place]),
        share=float(found.shares[place]),
        loadings=tuple((names[at], float(direction[at])) for at in largest if direction[at] != 0.0),
    )


def _logged(read: _Read) -> str:
    """Log a basis of so many components once; return the id of its run in MLflow."""
    plan, found, made = read.plan, read.found, read.made
    planned, count = plan.moments, len(found.variances)
    key = "/".join([*(one.key for one in plan.releases), str(count)])
    entries = Entries(
        name=f"{count} components of {plan.dataset.name}",
        facts={
            "algorithm": planned.name,
            "dataset": plan.dataset.name,
            "trust": planned.trust.name,
            "proved": stated(plan.epsilon, plan.delta),
            "neighbours": str(planned.setting.neighbours),
            "numerics": str(planned.guarantee().numerics),
        },
        params={
            "components": count,
            "basis": planned.key[:KEY_DIGITS],
            "epsilon": plan.epsilon,
            "unit": str(plan.dataset.unit),
        },
        metrics={
            "epsilon_spent": rounded_up(plan.epsilon, 6),
            "delta_spent": plan.delta,
            "explained_variance_ratio": float(found.shares.sum()),
            "total_variance": found.total,
            "noise_floor": found.floor,
            "components_above_noise": float(found.above),
        },
        tags={"mlflow.note.content": _page(read)},
    )
    root = current_root()
    with client_of(root) as client:
        experiment = experiment_of(client, root, plan.dataset.name)
        for run in runs_with(client, experiment, RUN_KEY, key):
            if run.info.status == "FINISHED":
                return str(run.info.run_id)
        run_id = log_run(client, experiment, entries, keys={RUN_KEY: key})
        _log_transformer(client, experiment, run_id, plan.dataset, made)
        files: dict[str, str | bytes] = {
            SCREE: draw_components(read),
            LOADINGS: _loadings(made, read.names),
        }
        if read.scores is not None:
            files[SCORES] = _counts(read.scores)
        log_files(client, run_id, files)
        client.set_terminated(run_id, "FINISHED")
    return run_id


def _page(read: _Read) -> str:
    plan, count = read.plan, len(read.found.variances)
    account = plan.dataset.account
    charged = f"charged to account {account}" if plan.dataset.private else "of public rows, which are not charged"
    return (
        f"### {count} components of {plan.dataset.name}\n\n"
        f"Released mean and second moments of all rows of version {plan.dataset.version}, "
        f"{stated(plan.epsilon, plan.delta)} for a {plan.dataset.unit}, {charged}. Everything follows from this "
        "release.\n\n"
        f"`{SCREE}` shows the variances with 95 % margins, `{LOADINGS}` has all loadings. `noise_floor` is the "
        "variance that noise alone reaches in one of twenty releases.\n\n"
        f"    unitball train --dataset {plan.dataset.name} --basis {plan.moments.key[:KEY_DIGITS]} --dimension {count} "
        "--epsilon 1"
    )


def transformer_of(dataset: DatasetRef, made: CentredComponents) -> Pipeline:
    """Return the fitted pipeline from raw rows to scores: the table's encoder where there is one, and the map."""
    encoder = encoder_of(declared_table(Layout(current_root()), dataset))
    steps = [] if encoder is None else [("encode", encoder)]
    step = row_map_step(made, dataset.dimension)
    assert step is not None, "a map is a step"
    return Pipeline([*steps, step])


def _log_transformer(
    client: MlflowClient, experiment: str, run_id: str, dataset: DatasetRef, made: CentredComponents
) -> None:
    """Log the map as MLflow's scikit-learn flavor: ``mlflow.sklearn.load_model(…).transform(rows)``."""
    import mlflow.sklearn
    from mlflow.models import Model

    from tasks.tracking.flavor import TRUSTED, inputs_of, taken_as_installed

    pipeline = transformer_of(dataset, made)
    model_id = client.create_logged_model(
        experiment, name="transformer", source_run_id=run_id, model_type="transformer"
    ).model_id
    with taken_as_installed(), _without_a_word():
        Model.log(
            artifact_path=None,
            flavor=mlflow.sklearn,
            name="transformer",
            model_id=model_id,
            run_id=run_id,
            sk_model=pipeline,
            serialization_format="skops",
            skops_trusted_types=list(TRUSTED),
            pip_requirements=requirements(),
            signature=inputs_of(pipeline, dataset.dimension, made.dimension),
        )


@contextmanager
def _without_a_word() -> Iterator[None]:
    """Keep MLflow from printing that a transformer does not predict."""
    from mlflow.utils import logging_utils

    logging_utils.disable_logging()
    try:
        yield
    finally:
        logging_utils.enable_logging()


def _loadings(made: CentredComponents, names: Sequence[str]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["scaled column", "mean", *(f"component {place + 1}" for place in range(made.dimension))])
    for name, mean, entries in zip(names, made.mean.tolist(), made.basis.tolist(), strict=True):
        table.writerow([name, mean, *entries])
    return text.getvalue()


def _counts(scores: ScoreCounts) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["component 1 from", "to", "component 2 from", "to", "count", "deviation"])
    first, second = (list(itertools.pairwise(edges)) for edges in scores.edges)
    for row, line in zip(first, scores.counts, strict=True):
        table.writerows([*row, *cell, count, scores.deviation] for cell, count in zip(second, line, strict=True))
    return text.getvalue()


def draw_components(read: _Read) -> bytes:
    """Return the figure as PNG: variances above the noise's floor, and loadings by column, or components as images.

    And, where they are released, the counts of scores along the first two components.
    """
    plan, found, made, names, scores = read.plan, read.found, read.made, read.names, read.scores
    shape = plan.dataset.image_shape
    pictures = shape is not None and len(shape) == 2
    kept = min(made.dimension, _MOST_PICTURES)
    widths = [1.0, 1.2] if scores is None else [1.0, 1.2, 1.1]
    with styled_figure(4.6 * sum(widths), 4.4) as figure:
        panes = cast("Iterable[SubFigure]", figure.subfigures(1, len(widths), width_ratios=widths))
        left, right, *others = panes
        _draw_scree(left.subplots(), found)
        if scores is not None:
            _draw_scores(others[0].subplots(), scores, plan.dataset.unit.several)
        if pictures:
            across = min(4, kept)
            panels = right.subplots(-(-kept // across), across, squeeze=False).ravel()
            for place, axes in enumerate(panels):
                axes.set_axis_off()
                if place < kept:
                    picture = made.basis[:, place].reshape(cast("tuple[int, int]", shape))
                    reach = float(np.abs(picture).max()) or 1.0
                    axes.imshow(picture, cmap="RdBu_r", vmin=-reach, vmax=reach)
                    axes.set_title(f"component {place + 1}", fontsize=8)
        else:
            _draw_loadings(right.subplots(), made, names, kept)
        figure.suptitle(
            f"{plan.dataset.name}: principal components of scaled columns, epsilon {plan.epsilon:g} at delta "
            f"{plan.delta:g}",
            fontsize="medium",
        )
        return png_of(figure, 110)


def _draw_scree(axes: Axes, found: Components) -> None:
    shown = min(len(found.noisy), _MOST_BARS)
    places, noisy = np.arange(1, shown + 1), found.noisy[:shown]
    count = min(shown, len(found.variances))
    axes.bar(places[:count], found.variances[:count], color=BLUE, alpha=0.75, label="estimated variance")
    low = np.maximum(noisy - found.quantile, 0.0)
    known = slice(0, count)
    spread = [np.maximum(noisy - low, 0.0)[known], np.full(count, found.quantile)]
    axes.errorbar(
        places[known], noisy[known], yerr=spread, fmt="none", ecolor="#333333", elinewidth=0.8, label="95 % margin"
    )
    axes.plot(places, noisy, ".", color="#999999", markersize=4, label="noisy eigenvalue")
    axes.axhline(found.floor, color="#B33", linestyle="--", linewidth=0.9, label="noise floor")
    axes.set_xlabel("component")
    axes.set_ylabel("variance of scaled columns")
    axes.set_ylim(bottom=0.0)
    axes.locator_params(axis="x", integer=True)
    axes.legend(fontsize="x-small")


def _draw_scores(axes: Axes, scores: ScoreCounts, counted: str) -> None:
    """Draw the counts as a heat map; colours begin at 0, below which is noise alone."""
    counts = np.array(scores.counts)
    drawn = axes.pcolormesh(*map(np.asarray, scores.edges), counts.T, cmap="Blues", vmin=0.0)
    axes.set_xlabel("score along component 1")
    axes.set_ylabel("score along component 2")
    axes.locator_params(nbins=6)
    axes.grid(visible=False)
    bar = axes.figure.colorbar(drawn, ax=axes, fraction=0.05)
    bar.set_label(f"{counted} (noise {scores.deviation:.2g})", fontsize=8)
    bar.ax.tick_params(labelsize=7)


def _draw_loadings(axes: Axes, made: CentredComponents, names: Sequence[str], kept: int) -> None:
    weights = np.abs(made.basis[:, :kept]).max(axis=1)
    # Constants have none.
    varying = np.flatnonzero(weights > 0.0)
    chosen = np.sort(varying[np.argsort(-weights[varying], kind="stable")[:_MOST_COLUMNS]])
    entries = made.basis[chosen][:, :kept]
    reach = float(np.abs(entries).max()) or 1.0
    drawn = axes.imshow(entries, cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto")
    axes.set_yticks(range(len(chosen)), [names[at][:28] for at in chosen], fontsize=7)
    axes.set_xticks(range(kept), [str(place + 1) for place in range(kept)])
    axes.grid(visible=False)
    left = len(varying) - len(chosen)
    axes.set_xlabel("component" + (f" (the {len(chosen)} columns with the largest loadings)" if left > 0 else ""))
    bar = axes.figure.colorbar(drawn, ax=axes, fraction=0.05)
    bar.ax.tick_params(labelsize=7)
