"""The audit of a whole synthesis: neighbouring private tables, all that each synthesis lets be seen, compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from dpalgos.audit.bounds import Value
from dpalgos.audit.experiment import USUAL, AuditOptions
from dpalgos.guarantees import Neighbours
from dpalgos.parameters import ParameterError
from storage.errors import RefusedError
from tasks.auditing.chain import ChainReport, Tables, compare_chains, fresh_folder, request_of
from tasks.auditing.traces import observe_synthesis
from tasks.datasets.registration import ingest
from tasks.planning.column_statistics import SYNTHESIS, SynthesisPlan, SynthesisRequest
from tasks.release.drawn_rows import SyntheticRows, cells_of, redrawn
from tasks.release.single import price_of_plan
from tasks.release.synthesis import plan_synthesis
from tasks.runtime.settings import current_layout, isolated_root
from tasks.tracking.results import Proved, proved_together
from tasks.tracking.synthesis_report import synthesis_report
from tasks.tracking.synthesis_tables import fidelity_of

Chain = Callable[[SynthesisPlan, SynthesisRequest], SyntheticRows]
"""Draws rows without an engine and MLflow: ``flows.column_statistics.DRAWING.chain_inline``."""
_DATASET = "synthetic"
# So many that pairs of columns are counted at epsilon 1.
_ROWS, _TEST_ROWS = 1200, 40
_TYPES: dict[object, str] = {
    "age": "numeric, range: [18, 98], whole: true",
    "weight": "numeric, range: [40, 140]",
    "ward": "category, values: [north, south, east]",
}
_HEAD = ('missing: {marker: "", rows: indicator}',)
_OPPOSITES = {
    "age": (18, 98),
    "weight": (40.0, 140.0),
    "ward": ("north", "east"),
    "y": ("no", "yes"),
}


def neighbouring_tables(neighbours: Neighbours, part: str) -> tuple[Tables, Tables]:
    """Return two private tables that differ in one record: opposite cells in each column, or one and a null record.

    Parameters
    ----------
    neighbours : Neighbours
    part : {"train", "test"}
        Whether the record is among the training rows, or held out and so counted by no release.
    """
    base = base_tables()
    left, right = base[part].copy(), base[part].copy()
    for column, (one, other) in _OPPOSITES.items():
        left.loc[0, column], right.loc[0, column] = one, other
    if neighbours is Neighbours.REPLACE_SPECIAL:
        # What the schema does not admit is a null record.
        right.loc[0, "age"] = 999
    return {**base, part: left}, {**base, part: right}


def base_tables() -> dict[str, pd.DataFrame]:
    """Return rows to train on and held-out ones: two numbers that go together, missing cells, a category, a label."""
    random = np.random.default_rng(11)

    def drawn(rows: int) -> pd.DataFrame:
        age = random.integers(18, 99, rows)
        weight = np.round(np.clip(50.0 + 0.6 * age + random.normal(0.0, 8.0, rows), 40.0, 140.0), 3).astype(object)
        weight[random.random(rows) < 0.1] = ""
        ward = np.where(age > 60, "north", random.choice(["south", "east"], rows))
        ill = age + random.normal(0.0, 20.0, rows) > 60
        return pd.DataFrame({"age": age, "weight": weight, "ward": ward, "y": np.where(ill, "yes", "no")})

    return {"train": drawn(_ROWS), "test": drawn(_TEST_ROWS)}


def audit_synthesis(options: AuditOptions = USUAL, *, chain: Chain) -> ChainReport:
    """Draw synthetic rows of neighbouring private tables and compare all public outputs.

    Each synthesis is a whole one in a fresh root with its own secrets; its rows are drawn again by ``verify``. What
    is compared: plan, price, releases, drawn rows, report and lineage. One pair differs in a training row, one in a
    held-out row.

    Guarantee
    ---------
    As :func:`~tasks.auditing.chain.audit_chain`.

    Parameters
    ----------
    options : AuditOptions
        48 trials. A text or a drawn cell has few values: with fewer than about 16 trials some differ by chance.
    chain : callable

    Raises
    ------
    ParameterError
        For numbers out of range.
    """
    neighbours, (epsilon, delta) = options.neighbours or Neighbours.REPLACE_ONE, options.budget()
    return compare_chains(
        SYNTHESIS,
        options,
        {part: neighbouring_tables(neighbours, part) for part in ("train", "test")},
        lambda tables: synthesise_once(tables, epsilon, delta, neighbours, chain),
    )


def synthesise_once(
    tables: Tables, epsilon: float, delta: float, neighbours: Neighbours, chain: Chain
) -> tuple[dict[str, Value], Proved]:
    """Ingest tables as private rows of a fresh root, draw rows, and return what is seen and proved.

    Raises
    ------
    RefusedError
        If what was drawn does not follow from what was released.
    """
    with fresh_folder() as folder, isolated_root(folder / "root"):
        dataset = ingest(request_of(tables, folder, neighbours, _TYPES, size=_ROWS, head=_HEAD))
        request = SynthesisRequest(dataset=_DATASET, epsilon=epsilon, delta=delta)
        plan = plan_synthesis(request)
        if plan.pairs is None:
            raise ParameterError(f"at epsilon {epsilon:g} no pairs are counted: {plan.reason}")
        told: Mapping[str, object] = {"--plan": [str(price_of_plan(plan)), plan.reason]}
        found = chain(plan, request)
        proved = proved_together(
            {tuple(loss for one in plan.rests_on for loss in one.guarantee().losses)},
            [one.guarantee() for one in plan.rests_on],
            delta=delta,
            trust=plan.tables.trust.name,
            person=dataset.person,
        )
        if proved is None:
            raise RefusedError(f"a synthesis has no proved guarantee at delta {delta:g}; choose a delta above 0")
        # Which also refuses what does not follow from the releases.
        told = {**told, "verify": redrawn(found.name), "rows": cells_of(found.name)}
        report = synthesis_report(plan, found, fidelity_of(plan, found))
        return observe_synthesis(current_layout(), plan, found, report, told), proved
