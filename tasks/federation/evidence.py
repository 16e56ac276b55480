"""What the parties of a run have signed, kept beside what was made of it, so that their word can be checked elsewhere.

Guarantee. Where :meth:`Evidence.run` and :meth:`Evidence.require` return, each party of the roster has signed what is
public of its rows and that the run's releases are charged to its account. A party's own release is the one that it has
signed; a sum under trust ``local`` is that of the signed noisy sums, added up once more. Of a secure sum each party
that took part has signed its public key; that its numbers are those that the messages open is the coordinator's word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
from pydantic import BaseModel, ConfigDict

from dpalgos.models import Artefact
from dpalgos.rows import Ints
from dpalgos.secure import summation as stepwise
from dpalgos.summation import SumAlgorithm
from dpalgos.trust.secagg import SecureAggregation
from storage.errors import RefusedError
from storage.layout import Layout
from storage.releases import ReleaseStore
from storage.rounds import RoundStore
from tasks.federation.messages import Purpose, Roster, Signed, unpacked
from tasks.federation.planning import described, federated_plan, run_name
from tasks.planning.configuration import TrainingConfig
from tasks.planning.fields import Json
from tasks.planning.plans import PlannedRelease, RunPlan
from tasks.release.rounds import result_of, step_lengths
from tasks.release.storing import manifest_of

_NAME = "evidence"


def keys_of(releases: Iterable[PlannedRelease]) -> str:
    """Return what a party signs where it has charged releases."""
    return ",".join(release.key for release in releases)


def release_body(key: str, made: Artefact) -> str:
    """Return what a party signs of its own release."""
    return f"{key} {ReleaseStore.digest_of({}, made.arrays())}"


def federated_manifest(release: PlannedRelease, kind: str, took_part: Sequence[str]) -> Json:
    """Return what a release says of itself that parties of their own have made, charged and signed."""
    own = {"charged_by": "each party, in its own account", "took_part": list(took_part)}
    return {**manifest_of(release, kind), **own}


def session_name(run: str, key: str, number: int) -> str:
    """Return what messages about a step, or a block of steps, of a release are signed for."""
    return f"{run}/{key}/{number}"


def numbers_of(body: str, length: int, party: str) -> Ints:
    """Return the numbers of a party's noisy sum.

    Raises
    ------
    RefusedError
        If there are others than so many.
    """
    sent = unpacked(body)
    if len(sent) != 8 * length:
        raise RefusedError(f"party {party} has sent {len(sent) / 8:g} numbers in a sum of {length}")
    return np.frombuffer(sent, dtype="<i8").astype(np.int64)


class Evidence(BaseModel):
    """What was signed for one release.

    Attributes
    ----------
    config : TrainingConfig
    roster : Roster
    descriptions, charges : tuple of Signed
        One of each party, in the roster's order.
    messages : tuple of tuple of Signed
        A party's own release; or the noisy sums, step by step; or the public keys, block by block.
    took_part : tuple of str
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: TrainingConfig
    roster: Roster
    descriptions: tuple[Signed, ...]
    charges: tuple[Signed, ...]
    messages: tuple[tuple[Signed, ...], ...]
    took_part: tuple[str, ...]

    @classmethod
    def stored(cls, layout: Layout, key: str) -> bytes | None:
        """Return what is kept of a release, as JSON; None where nothing is."""
        return RoundStore(layout, key).get(_NAME)

    def store(self, layout: Layout, key: str) -> None:
        """Keep it with the coordinator; what was stored first stays."""
        RoundStore(layout, key).put(_NAME, self.model_dump_json().encode())

    def run(self) -> tuple[str, RunPlan]:
        """Return the run's name and its plan, derived from what the parties say of their rows.

        Raises
        ------
        RefusedError
            If a description does not bear its party's signature, or nothing is planned of them.
        """
        found = described(self.roster, self.descriptions)
        name = run_name(self.config, self.descriptions)
        return name, federated_plan(self.config, found, name)

    def require(self, run: str, releases: Sequence[PlannedRelease], one: PlannedRelease, made: Artefact) -> None:
        """Check what the parties have signed of one of the run's releases.

        Parameters
        ----------
        run : str
        releases : sequence of PlannedRelease
            All of them, as they were charged.
        one : PlannedRelease
        made : Artefact
            What was made of the parties' messages.

        Raises
        ------
        RefusedError
            Naming the party whose word is missing or says something else.
        """
        for party, body in self._said(self.charges, Purpose.CHARGE, run, self.roster.names).items():
            if body != keys_of(releases):
                raise RefusedError(f"party {party} has charged other releases than these")
        if len(one.parties) == 1:
            (said,) = self.messages
            body = self._said(said, Purpose.RELEASE, run, one.parties)[one.parties[0]]
            if body != release_body(one.key, made) or self.took_part != one.parties:
                raise RefusedError(f"party {one.parties[0]} has signed another release than this {one.label}")
        elif isinstance(one.trust_model(), SecureAggregation):
            blocks = stepwise.blocks_of(cast(SumAlgorithm, one.build()), one.setting)
            for number, (said, _) in enumerate(zip(self.messages, blocks, strict=True)):
                self._said(said, Purpose.ADVERTISEMENT, session_name(run, one.key, number), self.took_part)
        else:
            self._require_sums(run, one, made)

    def _require_sums(self, run: str, one: PlannedRelease, made: Artefact) -> None:
        sums = []
        for step, (said, length) in enumerate(zip(self.messages, step_lengths(one), strict=True)):
            parts = self._said(said, Purpose.SUM, session_name(run, one.key, step), self.roster.names)
            numbers = [numbers_of(body, length, party) for party, body in parts.items()]
            sums.append(np.asarray(np.sum(numbers, axis=0, dtype=np.int64)))
        again = result_of(one, sums).arrays()
        same = {name: np.allclose(array, again[name], rtol=1e-6) for name, array in made.arrays().items()}
        if not all(same.values()) or self.took_part != self.roster.names:
            raise RefusedError(f"{one.label} is not made of the sums that the parties have signed")

    def _said(self, signed: Sequence[Signed], purpose: Purpose, run: str, parties: Sequence[str]) -> Mapping[str, str]:
        """Return what some parties have signed, by party; others may have, too."""
        found = {one.party: self.roster.check(one, purpose, run) for one in signed}
        missing = [party for party in parties if party not in found]
        if missing or len(found) != len(signed):
            raise RefusedError(f"a {purpose} is signed twice, or not at all: by {', '.join(missing or found)}")
        return found
