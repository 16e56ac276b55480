"""The rounds of a secure sum: what each party answers, what the server decides, and what a repeated run must find."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar, cast

from dpalgos.rows import Ints
from dpalgos.secure import protocol
from dpalgos.secure.messages import (
    Advertisement,
    Introduction,
    MaskedVector,
    MaskRequest,
    RoundParameters,
    ShareBundle,
    UnmaskRequest,
    UnmaskResponse,
    Wire,
)
from dpalgos.secure.primitives import KEY, RepeatedUseError, ViolationError
from dpalgos.secure.protocol import AdvertisedKeys, Agreement, MaskedBlock, PartyState, SurvivorSet


class SumRecord(Protocol):
    """Entries that outlive a crash of a release's sums, the server's own and every party's own.

    Of two entries under one name the first counts, whichever run made it; it is on disk before a method returns.
    """

    def fix(self, step: str, survivors: tuple[int, ...]) -> tuple[int, ...]:
        """Server: enter whose vectors a sum holds, before anything of it is unmasked, and return what stands."""

    def opened(self, party: int, step: str) -> bytes | None:
        """Party: return what it entered when it let this sum be unmasked, None where it has not."""

    def open(self, party: int, step: str, entry: bytes) -> bytes:
        """Party: enter, in its own record, what it is about to let be unmasked, and return what stands."""


class RecordedSum:
    """One sum of a release under its record: opened once, or again with the same survivors and the same vectors.

    Guarantee
    ---------
    Noise shares are functions of the party's secret, the release, the step and the exact contribution. So a run that
    is repeated after a crash and finds the contributions unchanged repeats the bytes of every sum and reveals nothing
    new. Where a contribution has changed, be it in a last bit, its noise is independent of the first draw: a second
    sum with it would be a second release of the step, at the full price, which was not charged. And two sums over
    different survivors differ by single parties' vectors, noise and all. Both are refused here, on the word of every
    single party: before its vector leaves (:meth:`require_unchanged`), since the other parties could open the sum
    without it, and before its answer leaves (:meth:`open`).

    A step that was fixed and never unmasked is fixed for its survivors. Its vectors may change: those of the earlier
    run stay under masks that are never opened, because a party without an entry has not answered.

    Parameters
    ----------
    record : SumRecord or None
        None keeps nothing: for simulations that release nothing.
    identity, step : str
        The release's, and the sum's name within it.
    """

    def __init__(self, record: SumRecord | None, identity: str, step: str) -> None:
        self.record, self._identity, self._step = record, identity, step

    def require_unchanged(self, party: int, digest: bytes) -> None:
        """Refuse to mask another vector than the one that a party let be unmasked before.

        Parameters
        ----------
        party : int
        digest : bytes
            Of the vector (:func:`dpalgos.secure.protocol.digest_of`).

        Raises
        ------
        RepeatedUseError
            If it is another one's.
        """
        before = self.record.opened(party, self._step) if self.record is not None else None
        if before is not None and not before.startswith(digest):
            raise RepeatedUseError(
                f"party {party} already unmasked the sum {self._step!r} of {self._identity!r}, and its contribution "
                "has changed since. A second sum would be a second release: request one, with a new charge, by "
                "another --replicate"
            )

    def fix(self, survivors: tuple[int, ...]) -> None:
        """Enter the survivors with the server.

        Raises
        ------
        RepeatedUseError
            If the sum was fixed before for others.
        """
        if self.record is not None and self.record.fix(self._step, survivors) != survivors:
            raise RepeatedUseError(
                f"the survivors of {self._step!r} of {self._identity!r} were already fixed and differ; a second sum "
                "would reveal single inputs. Repeat the run under a new identity (--replicate)"
            )

    def open(self, party: int, vector: bytes, survivors: bytes) -> None:
        """Enter with a party what it is about to let be unmasked.

        Parameters
        ----------
        party : int
        vector : bytes
            Digest of what it masked.
        survivors : bytes
            Digest of whose vectors the sum holds (:func:`dpalgos.secure.messages.numbers_digest`).

        Raises
        ------
        RepeatedUseError
            If it let another sum of this step be unmasked before.
        """
        entry = vector + survivors
        if self.record is not None and self.record.open(party, self._step, entry) != entry:
            raise RepeatedUseError(
                f"party {party} refuses: it already unmasked {self._step!r} of {self._identity!r} for other survivors "
                "or another vector, and a second sum would reveal single inputs. Repeat the run under a new identity "
                "(--replicate)"
            )


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
    """Transport of requests and answers between a server and its parties."""

    def ask(self, stage: Stage) -> A:
        """Bring the server's requests to the parties, and return the answers of those that gave one in time."""

    def decide(self, stage: Stage, answers: A) -> R:
        """Let the server decide on the answers; what it decided is what it asks in the next stage."""


def run_rounds(transport: Transport[A, R], stages: Sequence[Stage] = (*AGREEMENT, *SUM)) -> R:
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
    """The memory of one party of a session: secret and separate, and needed after a crash to continue the session."""

    def recall(self, stage: Stage) -> PartyState | None:
        """Return the state kept at this stage, else the latest of those before it; None where there is none."""

    def keep(self, stage: Stage, state: PartyState) -> PartyState:
        """Keep the state of a stage, unless one of it is kept that is not to be replaced, and return what stands."""


class Party:
    """One party of a session: a request in, an answer out.

    Guarantee
    ---------
    For any requests, in any order and number, a party masks one vector a step, and opens masks of a step
    for one survivor set; what contradicts its memory or its record is refused before an answer leaves
    (:mod:`dpalgos.secure.protocol`, :class:`~dpalgos.secure.rounds.RecordedSum`).

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
                shared, bundle = protocol.share(self._recall(Stage.SHARE), request)
                self._keep(Stage.SHARE, shared)
                return bundle
            case MaskRequest():
                return self._mask(request, recorded, vector)
            case UnmaskRequest():
                unmasked, response = protocol.unmask(self._recall(Stage.UNMASK), request)
                recorded.open(self._number, unmasked.masked[request.step][1], request.numbers)
                self._keep(Stage.UNMASK, unmasked)
                return response

    def _advertise(self, parameters: RoundParameters) -> Advertisement:
        state = self._memory.recall(Stage.ADVERTISE)
        if state is None:
            # Random bytes of the operating system: a seed never comes back after a crash.
            fresh = protocol.join(parameters, self._number, secrets.token_bytes(KEY))
            # The seed that was kept first is the party's seed.
            state = self._memory.keep(Stage.ADVERTISE, fresh)
        if state.parameters != parameters:
            raise RepeatedUseError(
                f"party {self._number} joined this session under different parameters; repeat the run under a new "
                "identity (--replicate)"
            )
        return protocol.advertise(state)

    def _mask(self, request: MaskRequest, recorded: RecordedSum, vector: Callable[[], Ints]) -> MaskedVector:
        state = self._recall(Stage.MASK)
        protocol.require_for(state, request)
        if request.step >= state.parameters.steps:
            raise ViolationError(None, f"asked party {self._number} for a step that this session does not have")
        if request.delivery is not None:
            state = protocol.receive(state, request.delivery)
        formed = vector()
        recorded.require_unchanged(self._number, protocol.digest_of(formed))
        masked, message = protocol.mask(state, request.step, formed)
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
                f"party {self._number} already answered this round with another value, and a second value could "
                "reveal its input. Repeat the round under a new identity (--replicate)"
            )


class ServerMemory(Protocol):
    """The server's memory of a session and of one sum in it."""

    def get(self, kind: type[W], name: str) -> W | None:
        """Return what is kept under a name, None where nothing is."""

    def put(self, name: str, value: W) -> W:
        """Keep something under a name unless something is, and return what is: the server goes on with that."""


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
        """Fix the public parameters before the session."""
        self._memory.put("parameters", parameters)

    def requests(self, stage: Stage) -> Iterator[tuple[int, Request]]:
        """Return what each party is asked, with its number; the stage before must have been decided."""
        if stage is Stage.ADVERTISE:
            parameters = self._decided(RoundParameters, "parameters")
            return ((party, parameters) for party in range(parameters.tolerance.parties))
        if stage is Stage.SHARE:
            advertised_keys = self._decided(AdvertisedKeys, "advertised_keys")
            return ((party, protocol.introduce(advertised_keys, party)) for party in advertised_keys.public_keys)
        agreement = self._decided(Agreement, "agreement")
        if stage is Stage.MASK:
            return ((party, protocol.request_masking(agreement, self._step, party)) for party in agreement.by_sender)
        fixed = self._decided(SurvivorSet, "survivors")
        return ((party, protocol.request_unmasking(agreement, fixed, party)) for party in fixed.survivors)

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
                self._memory.put("advertised_keys", protocol.collect_advertisements(parameters, advertised))
            case Stage.SHARE:
                advertised_keys = self._decided(AdvertisedKeys, "advertised_keys")
                self._memory.put(
                    "agreement", protocol.collect_shares(advertised_keys, cast(Iterable[ShareBundle], answers))
                )
            case Stage.MASK:
                self._fix_survivors(cast(Iterable[MaskedVector], answers), recorded)
            case Stage.UNMASK:
                return protocol.unmask_sum(
                    self._decided(Agreement, "agreement"),
                    self._decided(SurvivorSet, "survivors"),
                    self._decided(MaskedBlock, "block"),
                    cast(Iterable[UnmaskResponse], answers),
                )
        return None

    @property
    def survivors(self) -> tuple[int, ...]:
        """Parties whose vectors the sum holds, once that is decided."""
        return self._decided(SurvivorSet, "survivors").survivors

    def _fix_survivors(self, answers: Iterable[MaskedVector], recorded: RecordedSum) -> None:
        agreement = self._decided(Agreement, "agreement")
        block = self._memory.get(MaskedBlock, "block")
        if block is None:
            survivors = protocol.add_masked(agreement, self._step, answers)
            # Too few vectors are not a block: nothing of them is ever opened.
            protocol.fix_survivors(agreement, survivors)
            block = self._memory.put("block", survivors)
        fixed = protocol.fix_survivors(agreement, block, self._memory.get(SurvivorSet, "survivors"))
        recorded.fix(fixed.survivors)
        self._memory.put("survivors", fixed)

    def _decided(self, kind: type[W], name: str) -> W:
        decision = self._memory.get(kind, name)
        if decision is None:
            raise ViolationError(None, f"has not fixed the {name} yet: run the earlier round first")
        return decision
