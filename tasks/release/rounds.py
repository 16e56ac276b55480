"""The rounds of secure aggregation over stored messages: what a party does with its own rows, what the server does.

Everything that is decided is stored before anything made from it leaves, write-once, under the release's key. So what
is run again after a crash, on another worker or by a second run sends the very same message, and a sum is unmasked for
the one survivor set that was stored first. A party's seed is fresh randomness of the operating system, stored once; it
is never derived, so that who loses it can not use its masks twice.

:class:`PartyRounds` and :class:`ServerRounds` turn bytes into bytes, wherever they run; :class:`Rounds` lets the
messages of all of them travel through one root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, cast

from dpalgos.models import Artefact
from dpalgos.rows import Ints
from dpalgos.secure import one_sum
from dpalgos.secure.messages import RoundParameters
from dpalgos.secure.party import PartyState
from dpalgos.secure.record import RecordedSum
from dpalgos.secure.rounds import ANSWERS, REQUESTS, Party, Server, Stage
from dpalgos.secure.wire import Wire
from dpalgos.summation import SumAlgorithm
from dpalgos.trust.secagg import SecureAggregation
from storage.errors import RefusedError
from storage.refs import ReleaseRef, ShardRef
from storage.rounds import MessageRef, PrivateNotes, RoundStore
from tasks.planning.plans import PlannedRelease
from tasks.release import checkpoints
from tasks.release.admission import admit
from tasks.release.door import open_release
from tasks.release.records import StoredRecord
from tasks.release.storing import is_stored
from tasks.runtime.settings import current_layout

__all__ = ["PartyRounds", "Rounds", "ServerRounds", "session_of"]

_W = TypeVar("_W", bound=Wire)


class _StoredState:
    """What a party remembers, in its private store (a :class:`dpalgos.secure.rounds.PartyMemory`)."""

    def __init__(self, notes: PrivateNotes) -> None:
        self._notes = notes

    def recall(self, stage: Stage) -> PartyState | None:
        """Return the latest state up to a stage."""
        stages = list(Stage)
        kept = map(self._notes.get, reversed(stages[: stages.index(stage) + 1]))
        return next((PartyState.decode(note) for note in kept if note is not None), None)

    def keep(self, stage: Stage, state: PartyState) -> PartyState:
        """Store the state of a stage, once."""
        standing = PartyState.decode(self._notes.put(stage, state.encode()))
        checkpoints.reached(f"kept {stage}")
        return standing


class _StoredDecisions:
    """What the server remembers (a :class:`dpalgos.secure.rounds.ServerMemory`)."""

    def __init__(self, store: RoundStore) -> None:
        self._store = store

    def get(self, kind: type[_W], name: str) -> _W | None:
        """Return what is stored under a name."""
        found = self._store.get(name)
        return None if found is None else kind.decode(found)

    def put(self, name: str, value: _W) -> _W:
        """Store something under a name, once."""
        standing = type(value).decode(self._store.put(name, value.encode()))
        checkpoints.reached(f"kept {name}")
        return standing


class PartyRounds:
    """One party's side of a release of one sum: a request in, an answer out, any number of times.

    Needs the party's own secret, notes and charge alone, and no other party's.

    Parameters
    ----------
    planned : PlannedRelease
        Of which :attr:`~tasks.planning.plans.PlannedRelease.in_rounds` holds.
    number : int
        The party's place among :attr:`PlannedRelease.parties`.
    """

    def __init__(self, planned: PlannedRelease, number: int) -> None:
        self._planned, self._number = planned, number
        notes = PrivateNotes(current_layout(), planned.parties[number], planned.key)
        self._party = Party(number, _StoredState(notes))

    def answer(
        self, stage: Stage, request: bytes, shards: Sequence[ShardRef] = (), upstream: Sequence[ReleaseRef] = ()
    ) -> bytes:
        """Return the answer to a request of the server.

        Parameters
        ----------
        stage : Stage
        request : bytes
            Of the stage's kind (:data:`dpalgos.secure.rounds.REQUESTS`).
        shards : sequence of ShardRef
            The party's own, for :attr:`Stage.MASK`: its rows are read there alone, through the door.
        upstream : sequence of ReleaseRef
            The artefacts that its rows are seen through.

        Raises
        ------
        RefusedError
            If the release is not charged, or was not planned for this shard.
        MessageError
            If the bytes are no request of this stage.
        RepeatedUseError, ViolationError, TooFewPartiesError
            As :meth:`dpalgos.secure.rounds.Party.answer` does.
        """

        def vector() -> Ints:
            with open_release(self._planned, shards, upstream) as release:
                planned, tolerance = self._planned, _trust(self._planned).tolerance(len(self._planned.parties))
                algorithm, (rows,), (noise,) = _algorithm(planned), release.rows, release.noises
                return one_sum.vector_of(algorithm, rows, planned.setting, tolerance, self._number, noise)

        return self._party.answer(REQUESTS[stage].decode(request), _recorded(self._planned), vector).encode()


class ServerRounds:
    """The server's side of a release of one sum: answers in, requests out, and the release at the end.

    Parameters
    ----------
    planned : PlannedRelease
        Of which :attr:`~tasks.planning.plans.PlannedRelease.in_rounds` holds.
    """

    def __init__(self, planned: PlannedRelease) -> None:
        self._planned = planned
        self._server = Server(_StoredDecisions(RoundStore(current_layout(), planned.key)))

    def open(self) -> None:
        """Fix what everybody knows before the session: from public facts, so the release must be charged by now."""
        self._server.open(session_of(self._planned))

    @property
    def survivors(self) -> tuple[str, ...]:
        """Whose vectors the sum holds, once that is decided."""
        return tuple(self._planned.parties[number] for number in self._server.survivors)

    def requests(self, stage: Stage) -> Iterator[tuple[int, bytes]]:
        """Return what each party is asked, with its number."""
        return ((party, request.encode()) for party, request in self._server.requests(stage))

    def decide(self, stage: Stage, answers: Iterable[bytes]) -> Ints | None:
        """Decide on the answers that came in time, once; return the sum after the last stage.

        Raises
        ------
        MessageError, ViolationError, TooFewPartiesError, RepeatedUseError
            As :meth:`dpalgos.secure.rounds.Server.decide` does.
        """
        return self._server.decide(stage, map(ANSWERS[stage].decode, answers), _recorded(self._planned))

    def release(self, answers: Iterable[bytes]) -> ReleaseRef:
        """Open the sum, make the artefact of it and store that as the release; return it where it is stored."""
        planned = self._planned
        with open_release(planned) as release:
            if release.stored is not None:
                return release.stored
            return release.store(self.artefact(answers))

    def artefact(self, answers: Iterable[bytes]) -> Artefact:
        """Open the sum and return what is made of it: post-processing of what the parties sent."""
        planned, total = self._planned, cast(Ints, self.decide(Stage.UNMASK, answers))
        made = one_sum.artefact_of(_algorithm(planned), total, self._server.survivors, planned.setting)
        return cast(Artefact, made)


class Rounds:
    """All sides of a release of one sum over one root; each method may be run again at any time.

    Parameters
    ----------
    planned : PlannedRelease
    """

    def __init__(self, planned: PlannedRelease) -> None:
        self._planned = planned
        self._server = ServerRounds(planned)
        self._store = RoundStore(current_layout(), planned.key)

    def open(self, shards: Sequence[ShardRef]) -> MessageRef:
        """Declare and charge, and ask the first stage."""
        planned = self._planned
        if tuple(shard.party for shard in shards) != planned.parties:
            raise RefusedError(f"{planned.label} is opened with the shards of all its parties, in their order")
        if not is_stored(planned.key):
            admit([planned], shards, run=planned.name)
            self._server.open()
            self._ask(Stage.ADVERTISE)
        return self._message("opened")

    def answer(
        self, stage: Stage, block: Sequence[int], shards: Sequence[ShardRef], upstream: Sequence[ReleaseRef]
    ) -> list[MessageRef]:
        """Let each party of a block answer, unless it has or nobody needs it any more.

        Parameters
        ----------
        stage : Stage
        block : sequence of int
        shards : sequence of ShardRef
            One for each of them, for :attr:`Stage.MASK`; else none.
        upstream : sequence of ReleaseRef
        """
        own = dict(zip(block, shards, strict=bool(shards)))
        for party in block:
            if not is_stored(self._planned.key) and self._store.get(_answer(stage, party)) is None:
                request = self._store.require(_request(stage, party))
                shard = [own[party]] if party in own else []
                sent = PartyRounds(self._planned, party).answer(stage, request, shard, upstream)
                self._send(_answer(stage, party), sent)
        return [self._message(_answer(stage, party)) for party in block]

    def decide(self, stage: Stage, sent: Sequence[Sequence[MessageRef]]) -> MessageRef:
        """Decide on what was sent in a stage, and ask the next."""
        if not is_stored(self._planned.key):
            self._server.decide(stage, self._sent(sent))
            stages = list(Stage)
            self._ask(stages[stages.index(stage) + 1])
        return self._message(f"{stage}-decided")

    def release(self, sent: Sequence[Sequence[MessageRef]]) -> ReleaseRef:
        """Make the release of what was sent in the last stage."""
        return self._server.release(self._sent(sent))

    def _ask(self, stage: Stage) -> None:
        for party, request in self._server.requests(stage):
            self._send(_request(stage, party), request)

    def _send(self, name: str, message: bytes) -> None:
        self._store.put(name, message)
        checkpoints.reached(f"sent {name}")

    def _sent(self, blocks: Sequence[Sequence[MessageRef]]) -> Iterator[bytes]:
        return (self._store.require(message.name) for block in blocks for message in block)

    def _message(self, name: str) -> MessageRef:
        return MessageRef(key=self._planned.key, name=name)


def session_of(planned: PlannedRelease) -> RoundParameters:
    """Return what everybody knows of a release's session, from public facts."""
    tolerance = _trust(planned).tolerance(len(planned.parties))
    length = one_sum.length_of(_algorithm(planned), planned.setting)
    return RoundParameters(identity=f"{planned.key}/0", tolerance=tolerance, length=length)


def _request(stage: Stage, party: int) -> str:
    return f"{stage}-request-{party}"


def _answer(stage: Stage, party: int) -> str:
    return f"{stage}-answer-{party}"


def _trust(planned: PlannedRelease) -> SecureAggregation:
    return cast(SecureAggregation, planned.trust_model())


def _algorithm(planned: PlannedRelease) -> SumAlgorithm:
    return cast(SumAlgorithm, planned.build())


def _recorded(planned: PlannedRelease) -> RecordedSum:
    return RecordedSum(StoredRecord(planned.key, planned.parties), planned.key, one_sum.STEP)
