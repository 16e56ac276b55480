"""The rounds of a secure sum: what each party answers, what the server decides, in which order; no way of travelling.

A session agrees on keys (:data:`AGREEMENT`) and then forms sums, a step each (:data:`SUM`)::

    stage      the server asks (a message a party)   a party answers     the server decides
    advertise  RoundParameters                       Advertisement       who takes part
    share      Introduction                          ShareBundle         who has shared its masks' secrets
    mask       MaskRequest                           MaskedVector        whose vectors the sum holds
    unmask     UnmaskRequest                         UnmaskResponse      the sum

:func:`carry_out` is the one text of that order. How messages travel is a :class:`Transport`: from call to call in one
process (:mod:`dpalgos.secure.summation`), or through stored messages and tasks. Another needs no more than to bring
each of :meth:`Server.requests` to its party, let :meth:`Party.answer` answer, and hand what came in time to
:meth:`Server.decide`. All messages are :class:`~dpalgos.secure.wire.Wire`, so they have one byte form.

What a party or the server must remember is kept in its memory before the message that it allows is returned, and what
was kept first stands. So a request may be brought again at any time, after a crash too: the answer is the same message,
or a refusal.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar, cast

from dpalgos.rows import Ints
from dpalgos.secure import party as at_party
from dpalgos.secure import server as at_server
from dpalgos.secure.errors import RepeatedUseError, ViolationError
from dpalgos.secure.keys import KEY
from dpalgos.secure.messages import (
    Advertisement,
    Introduction,
    MaskedVector,
    MaskRequest,
    RoundParameters,
    ShareBundle,
    UnmaskRequest,
    UnmaskResponse,
)
from dpalgos.secure.party import PartyState
from dpalgos.secure.record import RecordedSum
from dpalgos.secure.server import Agreement, MaskedBlock, Roster, SurvivorSet
from dpalgos.secure.wire import Wire

# Masked vectors are added up after this many parties, so that memory does not grow with their number.
_BLOCK = 256

A = TypeVar("A")
R = TypeVar("R", covariant=True)
W = TypeVar("W", bound=Wire)

Request = RoundParameters | Introduction | MaskRequest | UnmaskRequest
Answer = Advertisement | ShareBundle | MaskedVector | UnmaskResponse


class Stage(StrEnum):
    """One exchange: a request to each party, an answer of each that is still there."""

    ADVERTISE = "advertise"
    SHARE = "share"
    MASK = "mask"
    UNMASK = "unmask"


AGREEMENT = (Stage.ADVERTISE, Stage.SHARE)
"""The stages of a key agreement."""
SUM = (Stage.MASK, Stage.UNMASK)
"""The stages of each sum under it."""

REQUESTS: dict[Stage, type[Request]] = dict(
    zip(Stage, (RoundParameters, Introduction, MaskRequest, UnmaskRequest), strict=True)
)
ANSWERS: dict[Stage, type[Answer]] = dict(
    zip(Stage, (Advertisement, ShareBundle, MaskedVector, UnmaskResponse), strict=True)
)


class Transport(Protocol[A, R]):
    """How requests and answers travel between a server and its parties."""

    def ask(self, stage: Stage) -> A:
        """Bring the server's requests to the parties, and return the answers of those that gave one in time."""
        ...

    def decide(self, stage: Stage, answers: A) -> R:
        """Let the server decide on the answers; what it decided is what it asks in the next stage."""
        ...


def carry_out(transport: Transport[A, R], stages: Sequence[Stage] = (*AGREEMENT, *SUM)) -> R:
    """Carry out stages one after another, and return what was decided in the last: after :data:`SUM`, the sum.

    Parameters
    ----------
    transport : Transport
    stages : sequence of Stage
        At least one.
    """
    *before, last = stages
    for stage in before:
        transport.decide(stage, transport.ask(stage))
    return transport.decide(last, transport.ask(last))


class PartyMemory(Protocol):
    """What one party remembers of a session; secret, its own, and there after a crash if the session is to go on."""

    def recall(self, stage: Stage) -> PartyState | None:
        """Return the state kept at this stage, else the latest of those before it; None where there is none."""
        ...

    def keep(self, stage: Stage, state: PartyState) -> PartyState:
        """Keep the state of a stage, unless one of it is kept that is not to be replaced, and return what stands."""
        ...


class Party:
    """One party of a session: a request in, an answer out.

    Guarantee
    ---------
    Whatever is asked, in whatever order and however often, a party masks one vector a step, and opens masks of a step
    for one survivor set; what contradicts its memory or its record is refused before an answer leaves
    (:mod:`dpalgos.secure.party`, :class:`~dpalgos.secure.record.RecordedSum`).

    Parameters
    ----------
    number : int
        From 0 to N - 1.
    memory : PartyMemory
    """

    def __init__(self, number: int, memory: PartyMemory) -> None:
        self._number, self._memory = number, memory

    def answer(self, request: Request, recorded: RecordedSum, vector: Callable[[], Ints]) -> Answer:
        """Return the answer to a request, after everything it depends on was kept.

        Parameters
        ----------
        request : RoundParameters, Introduction, MaskRequest or UnmaskRequest
        recorded : RecordedSum
            The sum that a request of :data:`SUM` is about.
        vector : callable
            Called for a MaskRequest alone: forms the contribution with the party's noise share, one flat vector.

        Raises
        ------
        RepeatedUseError
            If another answer was given before.
        ViolationError
            If the request does not fit the session, or comes before the one it follows.
        TooFewPartiesError
            If fewer parties take part than the session tolerates.
        """
        match request:
            case RoundParameters():
                return self._advertise(request)
            case Introduction():
                shared, bundle = at_party.share(self._recall(Stage.SHARE), request)
                self._keep(Stage.SHARE, shared)
                return bundle
            case MaskRequest():
                return self._mask(request, recorded, vector)
            case UnmaskRequest():
                unmasked, response = at_party.unmask(self._recall(Stage.UNMASK), request)
                recorded.open(self._number, at_party.vector_digest(unmasked, request.step), request.numbers)
                self._keep(Stage.UNMASK, unmasked)
                return response

    def _advertise(self, parameters: RoundParameters) -> Advertisement:
        state = self._memory.recall(Stage.ADVERTISE)
        if state is None:
            # Random bytes of the operating system: a seed never comes back after a crash.
            fresh = at_party.join(parameters, self._number, secrets.token_bytes(KEY))
            # Whatever seed was kept first is the party's seed.
            state = self._memory.keep(Stage.ADVERTISE, fresh)
        if state.parameters != parameters:
            raise RepeatedUseError(
                f"party {self._number} has joined this session under other parameters; repeat it under a new identity "
                "(--repetition)"
            )
        return at_party.advertise(state)

    def _mask(self, request: MaskRequest, recorded: RecordedSum, vector: Callable[[], Ints]) -> MaskedVector:
        state = self._recall(Stage.MASK)
        at_party.require_for(state, request.session, request.recipient)
        if request.step >= state.parameters.steps:
            raise ViolationError(None, f"asked party {self._number} for a step that this session does not have")
        if request.delivery is not None:
            state = at_party.receive(state, request.delivery)
        formed = vector()
        recorded.require_unchanged(self._number, at_party.digest_of(formed))
        masked, message = at_party.mask(state, request.step, formed)
        self._keep(Stage.MASK, masked)
        return message

    def _recall(self, stage: Stage) -> PartyState:
        state = self._memory.recall(stage)
        if state is None:
            raise ViolationError(None, f"asked party {self._number} to {stage}, which it has not been asked to join")
        return state

    def _keep(self, stage: Stage, state: PartyState) -> None:
        if self._memory.keep(stage, state) != state:
            raise RepeatedUseError(
                f"party {self._number} has already answered in this round with another value; a second one could "
                "reveal its input. Repeat the round under a new identity (--repetition)"
            )


class ServerMemory(Protocol):
    """What the server remembers of a session and of one sum under it."""

    def get(self, kind: type[W], name: str) -> W | None:
        """Return what is kept under a name, None where nothing is."""
        ...

    def put(self, name: str, value: W) -> W:
        """Keep something under a name unless something is, and return what is: the server goes on with that."""
        ...


class Server:
    """The server of a session: sees messages, asks, and decides each thing once.

    Parameters
    ----------
    memory : ServerMemory
    step : int
        Which sum of the session :data:`SUM` is about.
    """

    def __init__(self, memory: ServerMemory, step: int = 0) -> None:
        self._memory, self._step = memory, step

    def open(self, parameters: RoundParameters) -> None:
        """Fix what everybody knows before the session."""
        self._memory.put("parameters", parameters)

    def requests(self, stage: Stage) -> Iterator[tuple[int, Request]]:
        """Return what each party is asked, with its number; the stage before must have been decided."""
        if stage is Stage.ADVERTISE:
            parameters = self._decided(RoundParameters, "parameters")
            return ((party, parameters) for party in range(parameters.tolerance.parties))
        if stage is Stage.SHARE:
            roster = self._decided(Roster, "roster")
            return ((party, at_server.introduce(roster, party)) for party in roster.members)
        agreement = self._decided(Agreement, "agreement")
        if stage is Stage.MASK:
            return ((party, at_server.request_masking(agreement, self._step, party)) for party in agreement.by_sender)
        fixed = self._decided(SurvivorSet, "survivors")
        return ((party, at_server.request_unmasking(agreement, fixed, party)) for party in fixed.survivors)

    def decide(self, stage: Stage, answers: Iterable[Answer], recorded: RecordedSum) -> Ints | None:
        """Decide on the answers of a stage, once and for all; return the sum after the last stage, before that None.

        Parameters
        ----------
        stage : Stage
        answers : iterable of Advertisement, ShareBundle, MaskedVector or UnmaskResponse
            Those of the stage that came in time; taken one by one.
        recorded : RecordedSum
            The sum that the stages of :data:`SUM` are about.

        Raises
        ------
        ViolationError
            Naming the sender of an answer that breaks the protocol.
        TooFewPartiesError
            If fewer answered than the session tolerates; nothing is decided then.
        RepeatedUseError
            If other survivors were fixed before.
        """
        match stage:
            case Stage.ADVERTISE:
                parameters = self._decided(RoundParameters, "parameters")
                advertised = cast(Iterable[Advertisement], answers)
                self._memory.put("roster", at_server.collect_advertisements(parameters, advertised))
            case Stage.SHARE:
                roster = self._decided(Roster, "roster")
                self._memory.put("agreement", at_server.collect_shares(roster, cast(Iterable[ShareBundle], answers)))
            case Stage.MASK:
                self._fix_survivors(cast(Iterable[MaskedVector], answers), recorded)
            case Stage.UNMASK:
                return at_server.unmask_sum(
                    self._decided(Agreement, "agreement"),
                    self._decided(SurvivorSet, "survivors"),
                    self._decided(MaskedBlock, "block"),
                    cast(Iterable[UnmaskResponse], answers),
                )
        return None

    @property
    def survivors(self) -> tuple[int, ...]:
        """Whose vectors the sum holds, once that is decided."""
        return self._decided(SurvivorSet, "survivors").survivors

    def _fix_survivors(self, answers: Iterable[MaskedVector], recorded: RecordedSum) -> None:
        agreement = self._decided(Agreement, "agreement")
        block = self._memory.get(MaskedBlock, "block")
        if block is None:
            found = self._added(agreement, answers)
            # Too few vectors are not a block: nothing of them is ever opened.
            at_server.fix_survivors(agreement, found)
            block = self._memory.put("block", found)
        fixed = at_server.fix_survivors(agreement, block, self._memory.get(SurvivorSet, "survivors"))
        recorded.fix(fixed.survivors)
        self._memory.put("survivors", fixed)

    def _added(self, agreement: Agreement, answers: Iterable[MaskedVector]) -> MaskedBlock:
        blocks, left = [at_server.add_masked(agreement, self._step, [])], iter(answers)
        while some := list(itertools.islice(left, _BLOCK)):
            blocks.append(at_server.add_masked(agreement, self._step, some))
        return at_server.merge_masked(blocks)

    def _decided(self, kind: type[W], name: str) -> W:
        found = self._memory.get(kind, name)
        if found is None:
            raise ViolationError(None, f"has not fixed the {name} yet: an earlier round has to run first")
        return found
