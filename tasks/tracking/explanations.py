"""Shapley values of a row's score: what is divided among which columns, and which releases the answer rests on.

One way behind ``unitball predict --why``, :func:`unitball.explain`, trained models and estimators; the mathematics is
in :mod:`dpalgos.shapley`. Reference rows come from released one-way counts and from nothing else: of those that the
model's map of columns is made of, or of histograms that ``unitball describe`` has released of the rows it was trained
on. No private row is read, nothing is charged and nothing is stored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dpalgos.accounting.composition import TYPE_I_ERRORS, compose, gaussian_mu, trade_off
from dpalgos.columns import Column
from dpalgos.guarantees import ApproximateDP, GaussianMu, Guarantee, Loss, Neighbours, PureEpsilon
from dpalgos.histograms import ColumnCounts
from dpalgos.parameters import ParameterError
from dpalgos.rows import Floats
from dpalgos.shapley import PERMUTATIONS, Explainer, Player, Score, explainer_of
from storage.encoder import PictureEncoder, TableEncoder
from storage.errors import InputError
from storage.refs import DatasetRef, OnViolation
from storage.results import read_record
from storage.schema import Schema
from tasks.accounts.terms import relation_of
from tasks.datasets.scales import Scale, scales_under
from tasks.planning.releases import PlannedRelease
from tasks.preparation.normalisation import plan_normalisation
from tasks.preparation.paid_counts import described_columns
from tasks.release.column_counts import counts_of
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog
from tasks.tracking.effects import PREDICTION, counts_behind
from tasks.tracking.lineage import Lineage, read_lineage
from tasks.tracking.model_versions import RegisteredModel, record_of
from tasks.tracking.results import Proved

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

# Rows that are explained at a time: each is scored some thousand times.
_ROWS = 128


@dataclass(frozen=True, kw_only=True)
class Basis:
    """The basis of a model's explanations.

    Attributes
    ----------
    counts : ColumnCounts
    proved : Proved or None
        Of the model and the counts together; None where nothing is proved of the model.
    with_counts : bool
        Whether the model rests on these counts anyway, so that they are composed once.
    """

    counts: ColumnCounts
    proved: Proved | None
    with_counts: bool

    @property
    def statement(self) -> str:
        """The guarantee of the explanations, in a sentence."""
        of = (
            "the model, which rests on the counts of its columns"
            if self.with_counts
            else "the model composed with the counts of the columns, which were charged before"
        )
        return f"It rests on {of}: {'nothing is proved' if self.proved is None else self.proved}"


@dataclass(frozen=True, kw_only=True)
class Explaining:
    """The explainer of rows of one model.

    Attributes
    ----------
    explainer : Explainer
    scores : tuple of str
        What its scores are: ``log-odds of CLASS``, ``score CLASS``, or ``prediction``.
    basis : Basis
    """

    explainer: Explainer
    scores: tuple[str, ...]
    basis: Basis

    rows_at_once = _ROWS

    @property
    def players(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(player.name for player in self.explainer.players)

    @property
    def note(self) -> str:
        """Note for readers: the divided score, its reference, and its basis."""
        pairs = len(self.explainer.reference)
        people = self.basis.proved is not None and self.basis.proved.person
        counted = " of people (each counts as one)" if people else ""
        divided = "the score of the predicted class" if len(self.scores) > 1 else self.scores[0]
        return (
            f"Values are Shapley values of columns for {divided}, means over {2 * pairs} orders of the columns; ± is "
            "the standard error of this mean. All columns' values add up to the score minus the mean score of "
            f"{pairs} reference rows. These are drawn by the public seed {self.explainer.seed} from released one-way "
            f"counts{counted}, each column independently of the others. No private row is read, and nothing is charged "
            f"or stored. {self.basis.statement}"
        )

    @property
    def facts(self) -> dict[str, object]:
        """Facts about all rows: a note for readers, and the epsilon and delta of their basis."""
        proved = self.basis.proved
        return {
            "note": self.note,
            "permutations": 2 * len(self.explainer.reference),
            "seed": self.explainer.seed,
            "epsilon": None if proved is None else proved.epsilon,
            "delta": None if proved is None else proved.delta,
        }

    def frame(self, features: Floats, index: Sequence[object] | pd.Index | None = None) -> pd.DataFrame:
        """Return a line per row and column, the largest absolute values of a row first.

        Parameters
        ----------
        features : array (m, dimension)
            Encoded.
        index : sequence, optional
            What rows are called; from 0 by default.

        Returns
        -------
        data frame
            ``row``, ``of`` (which score), ``score``, ``mean`` (of the reference rows), ``column``, ``value``,
            ``share`` (of the sum of all absolute values) and ``error``. Its ``attrs`` hold ``note``, ``permutations``,
            ``seed``, and ``epsilon`` and ``delta`` of what it rests on.
        """
        found, names = self.explainer.values(features), np.array(self.players, dtype=object)
        order = np.argsort(-np.abs(found.values), axis=1, kind="stable")
        rows, players = order.shape
        called = list(range(rows)) if index is None else list(index)
        frame = pd.DataFrame(
            {
                "row": [one for one in called for _ in range(players)],
                "of": np.repeat(np.array(self.scores, dtype=object)[found.chosen], players),
                "score": np.repeat(found.scores, players),
                "mean": np.repeat(found.means, players),
                "column": names[order].ravel(),
                **{
                    name: np.take_along_axis(numbers, order, axis=1).ravel()
                    for name, numbers in (("value", found.values), ("share", found.shares), ("error", found.errors))
                },
            }
        )
        frame.attrs |= self.facts
        return frame


@dataclass(frozen=True)
class LargestColumns:
    """The columns of largest absolute value of each row, as columns of a file of predictions.

    Attributes
    ----------
    explaining : Explaining
    most : int
        How many; all where there are fewer.
    """

    explaining: Explaining
    most: int

    @property
    def rows_at_once(self) -> int:
        """Rows that are explained at a time."""
        return self.explaining.rows_at_once

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of the file."""
        shown = range(1, min(self.most, len(self.explaining.players)) + 1)
        each = (f"why_{place}{part}" for place in shown for part in ("", "_value", "_share", "_error"))
        return ("why_of", "why_score", "why_mean", *each)

    def columns(self, features: Floats) -> dict[str, pa.Array]:
        """Return the columns of some encoded rows."""
        whole, players = self.explaining.frame(features), len(self.explaining.players)
        kept = {name: whole[name].to_numpy().reshape(-1, players) for name in whole.columns}
        found = [pa.array(kept["of"][:, 0], pa.string())]
        found += [pa.array(kept[name][:, 0], pa.float64()) for name in ("score", "mean")]
        for place in range(min(self.most, players)):
            found.append(pa.array(kept["column"][:, place], pa.string()))
            found += [pa.array(kept[name][:, place], pa.float64()) for name in ("value", "share", "error")]
        return dict(zip(self.names, found, strict=True))


def players_of(schema: Schema, scales: Sequence[Scale]) -> list[Player]:
    """Return the columns of a schema with all that they become; a date is one column, with any parts.

    Parameters
    ----------
    schema : Schema
    scales : sequence of Scale
        Of its places, in their order.
    """
    places = iter(zip(schema.places, scales, strict=True))
    found = []
    for column in schema.inputs:
        own = [next(places) for _ in range(column.numbers + len(column.groups))]
        found.append(
            Player(
                name=column.name,
                features=schema.own_features[column.name],
                columns=tuple(Column(**place.model_dump()) for place, _ in own),
                steps=tuple(len(scale.values) if scale.discrete else 0 for _, scale in own),
                can_lack=any(scale.can_lack for _, scale in own),
            )
        )
    return found


def explaining(
    score: Score,
    scores: tuple[str, ...],
    players: Sequence[Player],
    missing: Floats,
    basis: Basis,
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Explaining:
    """Return what explains rows of a model.

    Parameters
    ----------
    score : callable
        Of rows as they are encoded, (m, K).
    scores : tuple of str
        What they are.
    players : sequence of Player
    missing : array (dimension,)
        Features of a row whose cells are all missing.
    basis : Basis
    permutations, seed
        As of :func:`dpalgos.shapley.explainer_of`.
    """
    explainer = explainer_of(score, players, missing, basis.counts, permutations=permutations, seed=seed)
    return Explaining(explainer=explainer, scores=scores, basis=basis)


def explaining_pipeline(
    pipeline: Pipeline, basis: Basis, *, permutations: int = PERMUTATIONS, seed: int = 0
) -> Explaining:
    """Return what explains rows of a logged model.

    Of two classes the log-odds of the second one where they are calibrated, its score otherwise; of more the score of
    the predicted class; of a number the prediction, in the label's unit and within its declared range.

    Raises
    ------
    InputError
        As :func:`require_explainable` does.
    """
    require_explainable(pipeline)
    rest, last, declared = pipeline[1:], pipeline[-1], pipeline[0].declared
    classes = [str(name) for name in getattr(pipeline, "classes_", ())]
    calibrated = len(classes) == 2 and hasattr(pipeline, "predict_proba")

    def score(rows: Floats) -> Floats:
        found = np.asarray(rest.decision_function(rows) if classes else rest.predict(rows), dtype=np.float64)
        return (last.slope_ * found + last.offset_ if calibrated else found).reshape(len(rows), -1)

    scales = scales_under(declared, clips=OnViolation(pipeline[0].on_violation).clips)
    return explaining(
        score,
        score_names(classes, calibrated=calibrated),
        players_of(declared, scales),
        declared.missing_row(),
        basis,
        permutations=permutations,
        seed=seed,
    )


def score_names(classes: Sequence[str], *, calibrated: bool) -> tuple[str, ...]:
    """Return what is divided among columns, of each class whose score there is; of no classes the predicted number."""
    if not classes:
        return (PREDICTION,)
    if len(classes) == 2:
        return (f"log-odds of {classes[1]}" if calibrated else f"score {classes[1]}",)
    return tuple(f"score {name}" for name in classes)


def require_explainable(pipeline: Pipeline) -> None:
    """Refuse a model whose columns have no released counts, also if others were released.

    Raises
    ------
    InputError
        With the reason.
    """
    encoder = pipeline[0]
    if isinstance(encoder, PictureEncoder):
        raise InputError(
            "only models of tables can be explained: explanations compare a row with reference rows drawn per column, "
            "which has no meaning for pixels"
        )
    if not isinstance(encoder, TableEncoder) or not encoder.declared.places:
        raise InputError(
            "explanations need declared columns, each with a range or its values, and this model has none: ingest a "
            "table under a schema (`unitball schema draft`) and train on it"
        )


def basis_of(lineage: Lineage, proved: Proved | None) -> Basis:
    """Return what explanations of a model rest on: its own counts, or histograms that were described.

    Where its map of columns is made of counts, these are taken: the model's epsilon composes them already. Otherwise it
    is the histograms of least noise of the version that it was trained on: on its account, under its neighbouring
    relation, of its unit, and of no more trust than it states. The epsilon is then that of the model and these counts.

    Parameters
    ----------
    lineage : Lineage
        Of the model.
    proved : Proved or None
        Of its run.

    Raises
    ------
    InputError
        If there are no such counts, with the way to get them.
    """
    own = counts_behind(lineage.path)
    if own is not None:
        return Basis(counts=own, proved=proved, with_counts=True)
    planned = _described(lineage, proved)
    return Basis(
        counts=counts_of(planned),
        proved=None if proved is None else composed(proved, planned.guarantee(), planned.delta),
        with_counts=False,
    )


def basis_of_model(root: Path, model: RegisteredModel) -> Basis:
    """Return what explanations of a registered model rest on.

    Raises
    ------
    InputError
        As :func:`basis_of` does, or if it is not on record what the model is made of.
    """
    lineage, record = read_lineage(root, model), record_of(root, model)
    found = read_record(current_layout(), str(record.facts["run_key"]))
    if found is None:
        raise InputError(
            f"the results of the run that made version {model.version} of {model.name} are missing, and with them the "
            "releases that its explanations need; train with the same configuration again, at no further charge"
        )
    said = json.loads(found["proved"]) if found["proved"] else None
    return basis_of(lineage, None if said is None else Proved.model_validate(said))


def _described(lineage: Lineage, proved: Proved | None) -> PlannedRelease:
    """Return the described histograms of least noise that explanations of a model may rest on."""
    dataset = lineage.dataset
    registered = _registered(dataset)
    if registered is None:
        raise InputError(
            f"this root has no released counts of the columns of {dataset.name}: its rows are registered elsewhere, "
            "and the model's map uses none. Train with --algorithm unitball and a larger --epsilon, where columns are "
            "counted with the model"
        )
    relation = Neighbours(relation_of(dataset.name) if proved is None else proved.neighbours)
    trust = str(lineage.config.trust if proved is None else proved.trust)
    described = described_columns(registered, relation, trust)
    if not described:
        raise InputError(
            f"no counts of the columns of {dataset.name}, version {registered.version}, are released that this model's "
            f"explanations may use (account {registered.account}, {relation}, trust {trust}); release them: "
            f"unitball describe {dataset.name} --version {registered.version} --epsilon …"
        )
    return min(described, key=lambda one: counts_of(one).deviation)


def _registered(dataset: DatasetRef) -> DatasetRef | None:
    """Return the registered version that a model's rows were made of; None where it is not registered here."""
    for one in reversed(open_catalog().registrations(dataset.name)):
        reference = DatasetRef.model_validate(one.manifest["reference"])
        if dataset.version in (reference.version, plan_normalisation(reference, dataset.normalisation).rows.version):
            return reference
    return None


def composed(proved: Proved, counts: Guarantee, delta: float) -> Proved:
    """Return what is proved of a model and of counts that it does not rest on, together.

    Parameters
    ----------
    proved : Proved
        Of the model.
    counts : Guarantee
    delta : float
        At which the counts were charged: the one of both where the model has none.

    Raises
    ------
    ParameterError
        If they are proved under different neighbouring relations.
    """
    if str(counts.neighbours) != proved.neighbours:
        raise ParameterError(f"the model is proved under {proved.neighbours} and the counts under {counts.neighbours}")
    run: Loss = PureEpsilon(proved.epsilon) if proved.delta == 0 else ApproximateDP(proved.epsilon, proved.delta)
    stated = proved.delta or delta
    if proved.mu is not None:
        run = GaussianMu(proved.mu)
    elif proved.delta > 0:
        # One point of the model's curve is all that is known of it: its delta is spent, and the counts add theirs.
        stated += delta
    losses = (run, *counts.losses)
    return proved.model_copy(
        update={
            "epsilon": compose(losses).epsilon(stated),
            "delta": stated,
            "mu": gaussian_mu(losses),
            "trade_off": tuple(zip(TYPE_I_ERRORS, trade_off([losses]).tolist(), strict=True)),
            "numerics": "exact" if (proved.numerics, str(counts.numerics)) == ("exact", "exact") else "idealised",
            "assumptions": tuple(sorted({*proved.assumptions, *counts.assumptions})),
        }
    )


def first_explained(predictions: Path, id_column: str | None, most: int = 3) -> list[tuple[str, dict[str, object]]]:
    """Return the first rows of a file of predictions that were not refused, each with what it is called.

    Parameters
    ----------
    predictions : Path
        Written with :class:`LargestColumns`.
    id_column : str, optional
        By which rows are called; by their line otherwise.
    most : int
    """
    found: list[tuple[str, dict[str, object]]] = []
    with pq.ParquetFile(predictions) as file:
        for batch in file.iter_batches(_ROWS):
            for row in batch.to_pylist():
                if row["refusal"] is None:
                    found.append((f"row {row['row']}" if id_column is None else str(row[id_column]), row))
                if len(found) == most:
                    return found
    return found


def lines_of(row: Mapping[str, object], called: str) -> list[str]:
    """Return one row's explanation for people, from the columns of a file of predictions.

    Parameters
    ----------
    row : mapping
        A line of the file.
    called : str
        What the row is called.
    """

    def number(name: str) -> float:
        found = row[name]
        return float(found) if isinstance(found, int | float) else math.nan

    score, mean = number("why_score"), number("why_mean")
    side = "above" if score >= mean else "below"
    lines = [
        f"{called}: {row['why_of']} {score:.4g}, {abs(score - mean):.4g} {side} the mean of reference rows ({mean:.4g})"
    ]
    places = [place for place in range(1, len(row)) if f"why_{place}" in row]
    width = max((len(str(row[f"why_{place}"])) for place in places), default=0)
    shown = share = 0.0
    for place in places:
        value = number(f"why_{place}_value")
        shown, share = shown + value, share + number(f"why_{place}_share")
        lines.append(
            f"  {row[f'why_{place}']!s:<{width}}  {value:+9.4g} ± {number(f'why_{place}_error'):<6.2g} "
            f"{number(f'why_{place}_share'):4.0%}"
        )
    if share < 1.0 - 1e-9:
        lines.append(f"  {'others':<{width}}  {score - mean - shown:+9.4g}          {1.0 - share:4.0%}")
    return lines
