"""The one flow that a party serves: it answers a coordinator's request and runs in the party's process."""

import os
from pathlib import Path

from prefect import flow
from prefect.artifacts import Artifact
from pydantic import ValidationError

from storage.documents import read_yaml
from storage.errors import InputError
from tasks.federation.messages import Request, Roster
from tasks.federation.party import Party
from tasks.runtime.settings import keep_private

ANSWER = "unitball-answer"
"""The type of the artifact that an answer travels in."""
DATASET_VARIABLE, ROSTER_VARIABLE = "UNITBALL_PARTY_DATASET", "UNITBALL_PARTY_ROSTER"


def read_roster(path: Path) -> Roster:
    """Return the roster in a YAML file: ``parties`` with a fingerprint for each name.

    Raises
    ------
    InputError
        If it is none.
    """
    try:
        return Roster.model_validate(read_yaml(path))
    except (InputError, ValidationError) as error:
        raise InputError(
            f"{path} is not a roster ({' '.join(str(error).split())[:200]}); write YAML: parties: {{NAME: FINGERPRINT}}"
        ) from None


@flow(name="party", flow_run_name="{request.ask}", persist_result=False)
def answer_request(request: Request) -> None:
    """Answer a coordinator's request with this party's own rows, secrets and account.

    Which rows and which roster, the party's own environment says, never a parameter.

    Parameters
    ----------
    request : Request
    """
    keep_private()
    party = Party(os.environ[DATASET_VARIABLE], read_roster(Path(os.environ[ROSTER_VARIABLE])))
    Artifact(type=ANSWER, data=party.answer(request).model_dump(mode="json")).create()
