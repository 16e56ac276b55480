"""The step that predicts the rows of a file with a registered model, for their owner alone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from storage.atomic import writing
from storage.errors import InputError
from storage.layout import Layout
from tasks.runtime.progress import say
from tasks.runtime.settings import current_root
from tasks.runtime.steps import step
from tasks.tracking.artifacts import show_scoring
from tasks.tracking.models import find_model, load_model
from tasks.tracking.prediction import predict_file
from tasks.tracking.scoring import ScoringRequest, chosen_model


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
