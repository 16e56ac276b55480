"""Steps that measure: models on held-out rows, a version against the champion, a file's rows, an audited system."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from dpalgos.guarantees import Neighbours
from storage.atomic import writing
from storage.errors import InputError
from storage.layout import Layout
from storage.refs import ReleaseRef
from tasks.auditing.chain import Chain
from tasks.auditing.examination import AuditRequest, Examined, examine_system
from tasks.planning.plans import FeatureStep, RunPlan, Shards
from tasks.release.metrics import Evaluation, measure
from tasks.runtime.progress import say
from tasks.runtime.settings import current_root
from tasks.runtime.steps import step
from tasks.tracking.artifacts import show_scoring
from tasks.tracking.comparison import Comparison, Contest, compare_models, record_comparison
from tasks.tracking.models import find_model, load_model
from tasks.tracking.prediction import ScoringRequest, chosen_model, predict_file


@step(task_run_name="evaluate {plan.system}")
def evaluate(plan: RunPlan, models: dict[str, list[ReleaseRef]], shards: Shards) -> Evaluation:
    """Measure the released models, each given by name with the releases that its rows pass through."""
    measured = measure(plan, models, shards)
    say("evaluation", plan.system)
    return measured


@step(task_run_name="compare {contest.challenger.name} with its champion", cached=False)
def compare_with_champion(
    contest: Contest, shards: Shards, features: list[FeatureStep], epsilon: float | None
) -> Comparison:
    """Compare on the held-out rows and note the outcome on the version. Asked again, it charges nothing."""
    compared = compare_models(current_root(), contest, shards.held_out, features, epsilon)
    record_comparison(current_root(), compared)
    say("comparison", compared.statement)
    return compared


@step(task_run_name="score with {request.model}", cached=False)
def score(request: ScoringRequest) -> str:
    """Predict a file's rows and return the name of the file that was written; of the rows it says nothing, not a count.

    Raises
    ------
    InputError
        If there is no such model, or the rows cannot be read: the reason may quote them, and is for their owner at
        ``unitball predict`` alone.
    """
    root = current_root()
    model = find_model(root, chosen_model(root, request))
    folder = Layout(root).private / "predictions"
    with writing(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    output = folder / f"{model.name}-v{model.version}-{stamp}.parquet"
    pipeline = load_model(root, model)
    try:
        predict_file(pipeline, Path(request.input), output, id_column=request.id_column)
    except Exception as error:
        raise InputError(
            f"the rows could not be predicted ({type(error).__name__}); what is wrong with them is for their owner: "
            f"unitball predict --model {model.name}/{model.version} --input … --output …"
        ) from None
    say("scoring", f"{model.name} version {model.version}")
    show_scoring(f"{model.name} version {model.version}", output.name)
    return output.name


@step(task_run_name="audit {name}", cached=False)
def audit(
    name: str, request: AuditRequest, epsilon: float, delta: float, neighbours: Neighbours, chain: Chain
) -> Examined:
    """Examine a system by all audits; nothing private is read and nothing is charged."""
    return examine_system(name, request, epsilon=epsilon, delta=delta, neighbours=neighbours, chain=chain)
