"""The rounds of secure aggregation over stored messages: what a party does with its own rows, what the server does.

Everything that is decided is stored before anything made from it leaves, write-once, under the release's key. So what
is run again after a crash, on another worker or by a second run sends the very same message, and a sum is unmasked for
the one survivor set that was stored first. A party's seed is fresh randomness of the operating system, stored once; it
is never derived, so that who loses it can not use its masks twice.

:class:`PartyRounds` and :class:`ServerRounds` turn bytes into bytes, wherever they run; :class:`Rounds` lets the
messages of all of them travel through one root.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, cast

import numpy as np

from dpalgos.algorithms import SumAlgorithm
from dpalgos.made_of import MadeOf
from dpalgos.models import Artefact
from dpalgos.rows import Ints
from dpalgos.secure import summation as stepwise
from dpalgos.secure.messages import MaskRequest, RoundParameters, Tolerance, UnmaskRequest, Wire
from dpalgos.secure.primitives import ViolationError
from dpalgos.secure.protocol import Agreement, PartyState
from dpalgos.secure.rounds import AGREEMENT, ANSWERS, REQUESTS, SUM, Party, RecordedSum, Server, Stage
from storage.errors import RefusedError
from storage.refs import ReleaseRef, ShardRef
from storage.rounds import PrivateNotes, RoundStore
from tasks.planning.releases import PlannedRelease
from tasks.release import checkpoints, door
from tasks.release.admission import admit
from tasks.release.seen_rows import algorithm_of
from tasks.release.storing import StoredRecord
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_releases

_W = TypeVar("_W", bound=Wire)


class _StoredState:
    """State of a party, in its private store (a :class:`dpalgos.secure.rounds.PartyMemory`).

    A note for each stage of each step, in order, each written once. A party that has left a step out masks no later
    one: a state is never continued in two ways.
    """

    def __init__(self, notes: PrivateNotes, block: int, step: int) -> None:
        self._notes, self._block, self._step = notes, block, step

    def recall(self, stage: Stage) -> PartyState | None:
        """Return the latest state up to a stage of this step."""
        if stage is Stage.MASK and self._step and self._notes.get(_noted(stage, self._block, self._step - 1)) is None:
            raise ViolationError(None, f"asked a party for step {self._step} although it missed the step before")
        agreed = [_noted(one, self._block, 0) for one in AGREEMENT]
        names = agreed + [_noted(one, self._block, step) for step in range(self._step + 1) for one in SUM]
        until = reversed(names[: names.index(_noted(stage, self._block, self._step)) + 1])
        latest = next((note for name in until if (note := self._notes.get(name)) is not None), None)
        return None if latest is None else PartyState.decode(latest)

    def keep(self, stage: Stage, state: PartyState) -> PartyState:
        """Store the state of a stage, once."""
        kept = PartyState.decode(self._notes.put(_noted(stage, self._block, self._step), state.encode()))
        checkpoints.reached(f"kept {stage}")
        return kept


def _noted(name: str, block: int, step: int) -> str:
    return str(name) if block == step == 0 else f"{name}-{block}-{step}"


class _StoredDecisions:
    """State of the server for a block's step (a :class:`dpalgos.secure.rounds.ServerMemory`)."""

    def __init__(self, store: RoundStore, block: int, step: int) -> None:
        self._store, self._block, self._step = store, block, step

    def get(self, kind: type[_W], name: str) -> _W | None:
        """Return what is stored under a name."""
        content = self._store.get(self._named(name))
        return None if content is None else kind.decode(content)

    def put(self, name: str, value: _W) -> _W:
        """Store something under a name, once."""
        kept = type(value).decode(self._store.put(self._named(name), value.encode()))
        checkpoints.reached(f"kept {name}")
        return kept

    def _named(self, name: str) -> str:
        return _noted(name, self._block, self._step if name in _OF_A_STEP else 0)


# What a server decides anew in each step; the rest is agreed on once a block.
_OF_A_STEP = ("block", "survivors")


class PartyRounds:
    """One party's side of a release of secure sums: a request in, an answer out, any number of times.

    Needs the party's own secret, notes and charge alone, and no other party's. Of the sums before the one it is asked
    for it takes what it is told first (:meth:`learn`): the guarantee holds for every sequence of sums, since each step
    is a Gaussian mechanism in any state, but a step that is answered twice must be given the same.

    Parameters
    ----------
    planned : PlannedRelease
        Of which :attr:`~tasks.planning.plans.PlannedRelease.travels` holds.
    number : int
        The party's place among :attr:`PlannedRelease.parties`.
    block : int
        Which of its blocks of steps (:func:`dpalgos.secure.summation.step_blocks`).
    """

    def __init__(self, planned: PlannedRelease, number: int, block: int = 0) -> None:
        self._planned, self._number, self._block = planned, number, block
        self._notes = PrivateNotes(current_layout().party_round(planned.parties[number], planned.key))

    def step_of(self, request: bytes) -> int:
        """Return which of the release's steps a request to mask is about."""
        return self._first + MaskRequest.decode(request).step

    @property
    def _first(self) -> int:
        return release_blocks(self._planned)[self._block].first

    def learn(self, step: int, sent: bytes) -> None:
        """Take the sum of a step, once.

        Raises
        ------
        RefusedError
            If it was told another, or has not been told the one before.
        """
        if step and self._notes.get(stepwise.step_name(step - 1)) is None:
            raise RefusedError(
                f"it did not receive the sum of step {step - 1}: the party dropped out then, and remains out of this "
                "run"
            )
        lengths = step_lengths(self._planned)
        if not step < len(lengths) or len(sent) != 8 * lengths[step]:
            raise RefusedError(
                f"a sum of {len(sent) / 8:g} numbers was sent as that of step {step}; the steps' sums have "
                f"{', '.join(map(str, dict.fromkeys(lengths)))} whole numbers of 64 bits"
            )
        if self._notes.put(stepwise.step_name(step), sent) != sent:
            raise RefusedError(f"it received another sum of step {step} before; a step has one sum")

    def sums(self, steps: int) -> list[Ints]:
        """Return the sums of the first steps, as it was told them."""
        return [numbers_of(self._notes.require(stepwise.step_name(step))) for step in range(steps)]

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
            If the bytes are not a request of this stage.
        RepeatedUseError, ViolationError, TooFewPartiesError
            As :meth:`dpalgos.secure.rounds.Party.answer` does.
        """
        planned, message = self._planned, REQUESTS[stage].decode(request)
        local = message.step if isinstance(message, (MaskRequest, UnmaskRequest)) else 0
        step = self._first + local

        def vector() -> Ints:
            with door.open_release(planned, shards, upstream) as release:
                tolerance = _tolerance(planned)
                algorithm, (rows,), (noise,) = _algorithm(planned), release.rows, release.noises
                sums = self.sums(step)
                return stepwise.vector_of(algorithm, rows, planned.setting, tolerance, self._number, noise, sums)

        party = Party(self._number, _StoredState(self._notes, self._block, local))
        return party.answer(message, _recorded(planned, step), vector).encode()

    def noisy_sum(self, step: int, shards: Sequence[ShardRef], upstream: Sequence[ReleaseRef] = ()) -> bytes:
        """Return its own noisy sum of a step, where each party's noise hides its own: the same, whenever asked.

        Raises
        ------
        RefusedError
            If the release is not charged, was not planned for this shard, or has no such step: what is charged pays
            for as many as its algorithm has.
        """
        planned, name = self._planned, f"own-{stepwise.step_name(step)}"
        steps = _algorithm(planned).steps(planned.setting)
        if step >= steps:
            raise RefusedError(
                f"{planned.label} has {steps} {'sum' if steps == 1 else 'sums'}; step {step} does not exist"
            )
        sent = self._notes.get(name)
        if sent is None:
            with door.open_release(planned, shards, upstream) as release:
                (rows,), (noise,), sums = release.rows, release.noises, self.sums(step)
                noisy = stepwise.noisy_sum_of(_algorithm(planned), rows, planned.setting, noise, sums)
            sent = self._notes.put(name, bytes_of(noisy))
        return sent


class ServerRounds:
    """The server's side of a release of secure sums: answers in, requests out, and the sums at the end.

    Parameters
    ----------
    planned : PlannedRelease
        Of which :attr:`~tasks.planning.plans.PlannedRelease.travels` holds.
    block, step : int
        Which of its blocks of steps (:func:`dpalgos.secure.summation.step_blocks`), and which step of that.
    """

    def __init__(self, planned: PlannedRelease, block: int = 0, step: int = 0) -> None:
        self._planned, self._block = planned, block
        self._store = RoundStore(current_layout().round(planned.key))
        self._server = Server(_StoredDecisions(self._store, block, step), step)
        # Most releases have one block; to know where a later one begins, every step's length is worked out.
        self._step = step if block == 0 else release_blocks(planned)[block].first + step

    def open(self) -> None:
        """Fix the session's public parameters; the release must already be charged."""
        self._server.open(session_of(self._planned, self._block))

    @property
    def agreed(self) -> bool:
        """Whether the block's keys are agreed on."""
        return _StoredDecisions(self._store, self._block, 0).get(Agreement, "agreement") is not None

    @property
    def survivors(self) -> tuple[str, ...]:
        """Parties whose vectors the sum holds, once that is decided."""
        return tuple(self._planned.parties[number] for number in self._server.survivors)

    def requests(self, stage: Stage) -> Iterator[tuple[int, bytes]]:
        """Return what each party is asked, with its number."""
        return ((party, request.encode()) for party, request in self._server.requests(stage))

    def decide(self, stage: Stage, answers: Iterable[bytes]) -> Ints | None:
        """Decide on the answers that came in time, once; after the last stage, return the sum.

        The sum is stored as the algorithm takes it: what was stored first is the sum.

        Raises
        ------
        MessageError, ViolationError, TooFewPartiesError, RepeatedUseError
            As :meth:`dpalgos.secure.rounds.Server.decide` does.
        """
        total = self._server.decide(stage, map(ANSWERS[stage].decode, answers), _recorded(self._planned, self._step))
        if total is None:
            return None
        algorithm, setting = _algorithm(self._planned), self._planned.setting
        return keep_sum(self._planned, self._step, stepwise.sum_of(algorithm, total, self._server.survivors, setting))


def bytes_of(numbers: Ints) -> bytes:
    """Return a sum as it is stored and sent."""
    return np.asarray(numbers, dtype="<i8").tobytes()


def numbers_of(data: bytes) -> Ints:
    """Return the sum that was stored or sent."""
    return np.frombuffer(data, dtype="<i8").astype(np.int64)


def kept_sums(planned: PlannedRelease) -> list[Ints]:
    """Return the sums of a release's first steps that the server has opened, in order."""
    store = RoundStore(current_layout().round(planned.key))
    sums: list[Ints] = []
    while (one := store.get(stepwise.step_name(len(sums)))) is not None:
        sums.append(numbers_of(one))
    return sums


def keep_sum(planned: PlannedRelease, step: int, numbers: Ints) -> Ints:
    """Store the sum of a step with the server, once, and return what is stored."""
    return numbers_of(RoundStore(current_layout().round(planned.key)).put(stepwise.step_name(step), bytes_of(numbers)))


def release_blocks(planned: PlannedRelease) -> tuple[stepwise.StepBlock, ...]:
    """Return the release's steps in blocks, each of a key agreement, from public facts."""
    return stepwise.step_blocks(_uninformed(planned), planned.setting)


def step_lengths(planned: PlannedRelease) -> tuple[int, ...]:
    """Return how many numbers the sum of each step has, from public facts."""
    return stepwise.lengths_of(_uninformed(planned), planned.setting)


def result_of(planned: PlannedRelease, sums: Sequence[Ints], used: Sequence[Artefact] | None = None) -> Artefact:
    """Return what the server makes of all sums of a release: post-processing.

    Parameters
    ----------
    planned : PlannedRelease
    sums : sequence of array
    used : sequence of Artefact, optional
        What it is planned to use, in order; as this root has it where None.
    """
    return cast(Artefact, stepwise.result_of(_algorithm(planned, used), sums, planned.setting))


class Rounds:
    """All sides of a release of one sum over one root; each method may be run again at any time.

    Parameters
    ----------
    planned : PlannedRelease
    """

    def __init__(self, planned: PlannedRelease) -> None:
        self._planned = planned
        self._server = ServerRounds(planned)
        self._store = RoundStore(current_layout().round(planned.key))

    def open(self, shards: Sequence[ShardRef]) -> str:
        """Declare and charge, and ask the first stage."""
        planned = self._planned
        if tuple(shard.party for shard in shards) != planned.parties:
            raise RefusedError(f"{planned.label} needs the shards of all its parties, in their order")
        if not open_releases().exists(planned.key):
            admit([planned], shards, run=planned.name)
            self._server.open()
            self._ask(Stage.ADVERTISE)
        return "opened"

    def answer(
        self, stage: Stage, block: Sequence[int], shards: Sequence[ShardRef], upstream: Sequence[ReleaseRef]
    ) -> list[str]:
        """Let each party of a block answer, unless it has, or its answer is no longer needed.

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
            if not open_releases().exists(self._planned.key) and self._store.get(_answer(stage, party)) is None:
                request = self._store.require(_request(stage, party))
                shard = [own[party]] if party in own else []
                sent = PartyRounds(self._planned, party).answer(stage, request, shard, upstream)
                self._send(_answer(stage, party), sent)
        return [_answer(stage, party) for party in block]

    def decide(self, stage: Stage, sent: Sequence[Sequence[str]]) -> str:
        """Decide on what was sent in a stage, and ask the next."""
        if not open_releases().exists(self._planned.key):
            self._server.decide(stage, self._sent(sent))
            stages = list(Stage)
            self._ask(stages[stages.index(stage) + 1])
        return f"{stage}-decided"

    def release(self, sent: Sequence[Sequence[str]]) -> ReleaseRef:
        """Open the sum, make the artefact of it and store that as the release; return it where it is stored."""
        with door.open_release(self._planned) as release:
            if release.stored is not None:
                return release.stored
            total = cast(Ints, self._server.decide(Stage.UNMASK, self._sent(sent)))
            made_of = MadeOf()
            made_of.add(stepwise.step_name(0), total)
            return release.store(result_of(self._planned, [total]), made_of)

    def _ask(self, stage: Stage) -> None:
        for party, request in self._server.requests(stage):
            self._send(_request(stage, party), request)

    def _send(self, name: str, message: bytes) -> None:
        self._store.put(name, message)
        checkpoints.reached(f"sent {name}")

    def _sent(self, blocks: Sequence[Sequence[str]]) -> Iterator[bytes]:
        return (self._store.require(name) for block in blocks for name in block)


def session_of(planned: PlannedRelease, block: int = 0) -> RoundParameters:
    """Return the public parameters of the session of a block of a release's steps."""
    steps = release_blocks(planned)[block]
    return RoundParameters(
        identity=f"{planned.key}/{block}", tolerance=_tolerance(planned), length=steps.length, steps=steps.steps
    )


def _request(stage: Stage, party: int) -> str:
    return f"{stage}-request-{party}"


def _answer(stage: Stage, party: int) -> str:
    return f"{stage}-answer-{party}"


def _tolerance(planned: PlannedRelease) -> Tolerance:
    return cast(stepwise.Masking, planned.masking).tolerance


def _algorithm(planned: PlannedRelease, used: Sequence[Artefact] | None = None) -> SumAlgorithm:
    return cast(SumAlgorithm, algorithm_of(planned, used))


def _uninformed(planned: PlannedRelease) -> SumAlgorithm:
    """Return the algorithm as it is planned: how many sums there are, and how long, is known before what it uses."""
    return cast(SumAlgorithm, planned.build())


def _recorded(planned: PlannedRelease, step: int) -> RecordedSum:
    return RecordedSum(StoredRecord(planned.key, planned.parties), planned.key, stepwise.step_name(step))
