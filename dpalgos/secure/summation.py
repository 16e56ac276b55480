"""Secure summation in one process: N parties and a server, message by message, step by step."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from dpalgos.algorithms import IntegerNoise, SumAlgorithm, TrustedSummation
from dpalgos.guarantees import ApproximateDP, Guarantee, Setting
from dpalgos.parameters import ParameterError
from dpalgos.rows import ArrayRows, Ints, NoiseSource, Rows
from dpalgos.secure.messages import RoundParameters, SparseGraph, Tolerance, Wire
from dpalgos.secure.noise_shares import NoiseShare, share_distribution
from dpalgos.secure.protocol import PartyState
from dpalgos.secure.rounds import (
    AGREEMENT,
    SUM,
    Answer,
    Party,
    RecordedSum,
    Request,
    Server,
    Stage,
    SumRecord,
    run_rounds,
)
from dpalgos.sentences import coded


def step_name(step: int) -> str:
    """Return the name of a sum, as :func:`~dpalgos.algorithms.run_sums` calls it; it keys the noise."""
    return f"sum-{step}"


def state_after(algorithm: SumAlgorithm, sums: Sequence[Ints], setting: Setting) -> Any:
    """Return the server's state after some sums: post-processing, the same for every holder of the sums.

    Parameters
    ----------
    algorithm : SumAlgorithm
    sums : sequence of array of int64
        As :func:`sum_of` returns them, flat or in shape.
    setting : Setting

    Raises
    ------
    ParameterError
        If one has another length than its step's sums have.
    """
    state = algorithm.initial(setting)
    for step, one in enumerate(sums):
        shape = _empty(algorithm, state, setting).shape
        if one.size != int(np.prod(shape, dtype=np.int64)):
            raise ParameterError(f"sum {step} has {one.size} numbers; this algorithm's have the shape {shape}")
        state = algorithm.update(state, one.reshape(shape), setting)
    return state


def contribution_of(algorithm: SumAlgorithm, state: Any, rows: Rows, setting: Setting) -> Ints:
    """Return a party's contribution to a step, from rows that nothing was prepared of."""
    prepare = getattr(algorithm, "prepare", None)
    prepared = rows if prepare is None else prepare(rows, setting)
    return algorithm.contribution(state, prepared, setting)


def _next_contribution(algorithm: SumAlgorithm, rows: Rows, setting: Setting, sums: Sequence[Ints]) -> Ints:
    """Return a party's contribution to the step after some sums, if there is one: each sum more would be unpaid."""
    steps = algorithm.steps(setting)
    if len(sums) >= steps:
        raise ParameterError(
            f"{len(sums)} sums are computed; the algorithm has {steps}, and its guarantee covers only these"
        )
    return contribution_of(algorithm, state_after(algorithm, sums, setting), rows, setting)


def _empty(algorithm: SumAlgorithm, state: Any, setting: Setting) -> Ints:
    # Total in what rows contain, so also where there is none; the shape depends on public facts alone.
    none = ArrayRows(np.zeros((0, setting.dimension)), np.zeros(0, dtype=np.int64))
    return contribution_of(algorithm, state, none, setting)


def lengths_of(algorithm: SumAlgorithm, setting: Setting) -> tuple[int, ...]:
    """Return how many numbers every party sends in each step, from public facts."""
    state, lengths = algorithm.initial(setting), []
    for step in range(algorithm.steps(setting)):
        nothing = _empty(algorithm, state, setting)
        lengths.append(int(nothing.size))
        if step + 1 < algorithm.steps(setting):
            state = algorithm.update(state, nothing, setting)
    return tuple(lengths)


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Steps one after another whose sums have one length, so that one key agreement serves them.

    Parameters
    ----------
    first : int
        Number of the first step.
    steps : int
    length : int
    """

    first: int
    steps: int
    length: int


def step_blocks(algorithm: SumAlgorithm, setting: Setting) -> tuple[StepBlock, ...]:
    """Return an algorithm's steps in blocks of equal length, in order; from public facts."""
    blocks, first = [], 0
    for length, group in itertools.groupby(lengths_of(algorithm, setting)):
        steps = len(list(group))
        blocks.append(StepBlock(first, steps, length))
        first += steps
    return tuple(blocks)


def require_shareable(algorithm: SumAlgorithm, setting: Setting, tolerance: Tolerance) -> None:
    """Refuse, from public facts and before anything is charged, noise that the parties cannot share.

    Raises
    ------
    ParameterError
        If no sharing of the algorithm's distribution is proved for this tolerance, or it could overflow.
    """
    first = int(_empty(algorithm, algorithm.initial(setting), setting).size)
    share = share_distribution(algorithm.distribution(setting), tolerance.unknown_shares, first)
    allotments(setting.sizes, share)


def vector_of(
    algorithm: SumAlgorithm,
    rows: Rows,
    setting: Setting,
    tolerance: Tolerance,
    party: int,
    noise: NoiseSource,
    sums: Sequence[Ints] = (),
) -> Ints:
    """Return what a party masks: its contribution and its noise share, one flat vector.

    Parameters
    ----------
    algorithm : SumAlgorithm
    rows : Rows
        The party's own.
    setting : Setting
        Of all parties.
    tolerance : Tolerance
    party : int
        Its number.
    noise : NoiseSource
        Its own, of this release.
    sums : sequence of array of int64
        Of the steps before this one.

    Raises
    ------
    ParameterError
        If the algorithm has no step more: its guarantee pays for as many as it has.
    """
    contribution = _next_contribution(algorithm, rows, setting, sums)
    share = share_distribution(algorithm.distribution(setting), tolerance.unknown_shares, contribution.size)
    return noisy_contribution(contribution, allotments(setting.sizes, share)[party], share, noise, step_name(len(sums)))


def noisy_sum_of(
    algorithm: SumAlgorithm, rows: Rows, setting: Setting, noise: NoiseSource, sums: Sequence[Ints] = ()
) -> Ints:
    """Return a party's contribution to a step with all the noise of the distribution, flat: what it may show by itself.

    Parameters and errors are those of :func:`vector_of`.
    """
    contribution = _next_contribution(algorithm, rows, setting, sums)
    released = TrustedSummation(noise).release(step_name(len(sums)), [contribution], algorithm.distribution(setting))
    return np.asarray(released, dtype=np.int64).reshape(-1)


def sum_of(algorithm: SumAlgorithm, total: Ints, survivors: Sequence[int], setting: Setting) -> Ints:
    """Return an unmasked sum as the algorithm takes it, flat: means are the survivors'.

    Parameters
    ----------
    algorithm : SumAlgorithm
    total : array (length,) of int64
    survivors : sequence of int
        Whose vectors the sum holds.
    setting : Setting
    """
    return scaled_to_all(total, weights_of(algorithm, setting), survivors)


def result_of(algorithm: SumAlgorithm, sums: Sequence[Ints], setting: Setting) -> Any:
    """Return what the server makes of all sums; post-processing.

    Raises
    ------
    ParameterError
        If there are not as many as the algorithm has steps.
    """
    if len(sums) != algorithm.steps(setting):
        raise ParameterError(f"{len(sums)} sums of {algorithm.steps(setting)}")
    return algorithm.result(state_after(algorithm, sums, setting), setting)


# Up to this many parties the complete graph costs little, and has no failure probability.
_COMPLETE = 64
# Half of what signed 64-bit numbers hold for the contributions, half for the noise.
_ROOM = 2**62
# Parties whose entries wait for the disk side by side.
_AT_ONCE = 16
# Steps times pairs of parties that one agreement covers: some 300 bytes each.
_AGREED = 2**18

W = TypeVar("W", bound=Wire)


def graph_for(tolerance: Tolerance) -> SparseGraph | None:
    """Return who masks with whom: all parties up to 64, beyond that the sparsest graph that fails below 2^-40."""
    return None if tolerance.parties <= _COMPLETE else SparseGraph.smallest(tolerance)


def secagg_guarantee(guarantee: Guarantee, tolerance: Tolerance, sums: int) -> Guarantee:
    """Return the guarantee of an algorithm whose ``sums`` noisy sums are formed by secure summation.

    Guarantee
    ---------
    :func:`dpalgos.secure.noise_shares.share_distribution` makes every sum at least as private, towards the server with
    all colluders and towards every single party, as the distribution that the algorithm's own guarantee is stated for;
    so that guarantee carries over, and what is added is: the assumptions, and for a sparse graph the probability beta
    that it fails in a sum. The graph is drawn without looking at rows, so with probability 1 - beta the view is as
    private as stated and otherwise arbitrary: the composition of the stated losses with (0, beta)-DP.

    Parameters
    ----------
    guarantee : Guarantee
        Of the algorithm, with the noise distribution it hands to the summation.
    tolerance : Tolerance
    sums : int
        Number of sums (``algorithm.steps(setting)``).
    """
    graph = graph_for(tolerance)
    if not guarantee.proved:
        return guarantee
    assumptions = (*guarantee.assumptions, *tolerance.assumptions())
    if graph is None:
        return replace(guarantee, assumptions=assumptions)
    return replace(
        guarantee,
        losses=(*guarantee.losses, ApproximateDP(0.0, graph.failure(tolerance).privacy * sums)),
        assumptions=(*assumptions, coded("order-of-graph")),
    )


def allotments(sizes: Sequence[int], share: NoiseShare) -> tuple[int, ...]:
    """Return the bound on each party's numbers with which the sum of all, noise included, stays within 63 bits.

    Guarantee
    ---------
    The bounds add up to at most 2^62, and the noise of all parties to less than 2^62, so no sum over any set of parties
    leaves (-2^63, 2^63): reduction modulo 2^64 loses nothing. Party i gets the part sizes_i / sum(sizes) of 2^62.
    Sums to which every row adds at most r, with ``r * rows < 2^62``, never reach their bounds.

    Parameters
    ----------
    sizes : sequence of int
        Rows of every party; public.
    share : NoiseShare

    Raises
    ------
    ParameterError
        From public quantities only, if the noise could leave its half.
    """
    if share.largest * len(sizes) >= _ROOM:
        raise ParameterError(
            f"noise shares of up to {share.largest} grid units from {len(sizes)} parties could overflow a sum modulo "
            "2^64; their product must stay below 2^62: choose a coarser grid"
        )
    whole = max(sum(sizes), 1)
    return tuple(_ROOM * size // whole for size in sizes)


def noisy_contribution(contribution: Ints, bound: int, share: NoiseShare, noise: NoiseSource, step: str) -> Ints:
    """Return what a party masks: its contribution, cut to its bound, plus its noise share; one flat vector.

    Total: what exceeds the bound is cut coordinate by coordinate, which moves no two vectors apart, so the sensitivity
    does not grow, and nothing raises because of what rows contain.

    Parameters
    ----------
    contribution : array of int64
    bound : int
        The party's part of :func:`allotments`.
    share : NoiseShare
    noise : NoiseSource
        The party's own, of this release.
    step : str
        Names the sum within the release.
    """
    cut = np.clip(np.asarray(contribution, dtype=np.int64).reshape(-1), -bound, bound)
    return cut + share.sample(cut.size, noise.stream(f"{step}/share", cut))


def weights_of(algorithm: object, setting: Setting) -> tuple[int, ...]:
    """Return what each party counts for in the mean that an algorithm makes of a sum: its rows, or what it says.

    An algorithm whose sum weighs parties otherwise has a method ``party_weights(setting)``.
    """
    own = getattr(algorithm, "party_weights", None)
    return setting.sizes if own is None else tuple(own(setting))


def scaled_to_all(total: Ints, weights: Sequence[int], survivors: Sequence[int]) -> Ints:
    """Return the survivors' sum times all weights over theirs, rounded: a mean over all is then one over survivors.

    Guarantee
    ---------
    Post-processing of the released sum by public numbers.

    Parameters
    ----------
    total : array of int64
    weights : sequence of int
        Of every party, as :func:`weights_of` returns them.
    survivors : sequence of int
    """
    present = sum(weights[party] for party in survivors)
    if present in (0, sum(weights)):
        return total
    scaled = np.rint(total * (sum(weights) / present))
    return np.asarray(np.clip(scaled, -float(_ROOM), float(_ROOM)), dtype=np.int64)


Absences = Mapping[str, frozenset[int]]
"""Which parties stop answering at which stage, for simulation: they send no key or no shares, and are absent from the
whole session, or no masked vector or no unmasking shares, in every step."""


class Masking(NamedTuple):
    """Masking of the vectors that the parties of a sum send.

    Attributes
    ----------
    tolerance : Tolerance
    absences : Absences
        Simulated.
    consistent_survivors : bool
        Whether the server is assumed to show every party the same survivors.
    """

    tolerance: Tolerance
    absences: Absences
    consistent_survivors: bool


@dataclass(slots=True)
class _PartyMemory:
    """The latest state of a party that lives in this process."""

    state: PartyState | None = None

    def recall(self, stage: Stage) -> PartyState | None:
        return self.state

    def keep(self, stage: Stage, state: PartyState) -> PartyState:
        self.state = state
        return state


class _ServerMemory:
    """Decisions of a server that lives in this process."""

    def __init__(self, agreed: Mapping[str, Wire]) -> None:
        self.decided = dict(agreed)

    def get(self, kind: type[W], name: str) -> W | None:
        decision = self.decided.get(name)
        return decision if isinstance(decision, kind) else None

    def put(self, name: str, value: W) -> W:
        self.decided[name] = value
        return value


@dataclass(frozen=True, slots=True)
class _Calls:
    """Messages that go from call to call (a :class:`~dpalgos.secure.rounds.Transport`)."""

    server: Server
    parties: Sequence[Party]
    absences: Absences
    recorded: RecordedSum
    vector: Callable[[int], Ints]

    def ask(self, stage: Stage) -> Iterable[Answer]:
        """Let every party answer that has not dropped out by now."""
        gone = self.absences.get(stage, frozenset())
        requests = ((number, request) for number, request in self.server.requests(stage) if number not in gone)
        if stage is Stage.UNMASK and self.recorded.record is not None:
            # Each waits for the disk; the waits of many parties overlap.
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                return list(pool.map(self._answer, requests))
        return map(self._answer, requests)

    def decide(self, stage: Stage, answers: Iterable[Answer]) -> Ints | None:
        """Let the server decide."""
        return self.server.decide(stage, answers, self.recorded)

    def _answer(self, request_of: tuple[int, Request]) -> Answer:
        number, request = request_of
        return self.parties[number].answer(request, self.recorded, lambda: self.vector(number))


class _Session:
    """Parties and server of one key agreement; what the server decides of a step is forgotten with it."""

    def __init__(self, parameters: RoundParameters, absences: Absences) -> None:
        self.left, self._parameters, self._absences = parameters.steps, parameters, absences
        self._parties = [Party(number, _PartyMemory()) for number in range(parameters.tolerance.parties)]
        self._agreed: dict[str, Wire] = {"parameters": parameters}

    def sum(self, recorded: RecordedSum, vector: Callable[[int], Ints]) -> tuple[tuple[int, ...], Ints]:
        """Return the survivors of the session's next step, and the sum of their vectors; the first agrees on keys."""
        memory = _ServerMemory(self._agreed)
        server = Server(memory, self._parameters.steps - self.left)
        stages = SUM if "agreement" in self._agreed else (*AGREEMENT, *SUM)
        self.left -= 1
        total = run_rounds(_Calls(server, self._parties, self._absences, recorded, vector), stages)
        self._agreed["agreement"] = memory.decided["agreement"]
        return server.survivors, cast(Ints, total)


class SecureSummation:
    """Sums of which the server sees masked vectors and the result only (a :class:`dpalgos.algorithms.Summation`).

    Guarantee
    ---------
    The result is the exact sum, over the parties that survived, of contribution plus noise share. For any distribution
    an algorithm hands over (of the noise that its own guarantee needs), the shares of any N - dropouts - max(colluders,
    1) parties are at least as private together; :func:`secagg_guarantee` gives the guarantee to be declared.

    Parameters
    ----------
    identity : str
        The release's identity; a round that is repeated needs another.
    tolerance : Tolerance
    sizes : sequence of int
        Rows of every party; public.
    noises : sequence of NoiseSource
        Each party's own noise for this release.
    steps : int
        How many sums are coming (``algorithm.steps(setting)``). Few parties agree on keys once for all of them, many
        for a few at a time, so that what is in memory stays small; when the steps of an agreement are used up, the next
        sum starts another agreement.
    absences : Absences
        Which parties drop out, for simulation.
    scaled : bool
        True returns each sum as :func:`scaled_to_all` makes it, so that an algorithm that divides by all rows divides
        by the survivors'. Post-processing of the exact sum, which False returns.
    weights : sequence of int, optional
        What a party counts for then (:func:`weights_of`); its rows where nothing is given.
    record : SumRecord, optional
        What earlier runs of the same release have left (:class:`~dpalgos.secure.rounds.RecordedSum`): needed wherever
        a run may be killed and started again.

    Attributes
    ----------
    survivors : dict
        By step name, the parties whose contributions are in the sum; public. A mean divides by their rows.
    """

    def __init__(
        self,
        *,
        identity: str,
        tolerance: Tolerance,
        sizes: Sequence[int],
        noises: Sequence[NoiseSource],
        steps: int = 1,
        absences: Absences = MappingProxyType({}),
        scaled: bool = False,
        weights: Sequence[int] | None = None,
        record: SumRecord | None = None,
    ) -> None:
        if not len(sizes) == len(noises) == tolerance.parties:
            raise ParameterError(
                f"{len(sizes)} sizes and {len(noises)} noise sources for {tolerance.parties} parties; "
                "give one of each per party"
            )
        self._identity, self._tolerance = identity, tolerance
        self._sizes, self._noises = tuple(sizes), tuple(noises)
        self._scaled = scaled
        self._weights = self._sizes if weights is None else tuple(weights)
        self._record = record
        self._absences = absences
        self._graph = graph_for(tolerance)
        edges = tolerance.parties * (self._graph.degree if self._graph is not None else tolerance.parties)
        self._steps = max(1, min(steps, _AGREED // edges))
        self._sessions: dict[int, _Session] = {}
        self._agreements = 0
        self.survivors: dict[str, tuple[int, ...]] = {}

    def release(self, step: str, contributions: Sequence[Ints], distribution: IntegerNoise) -> Ints:
        """Return the sum of the survivors' contributions with noise that is at least as private as ``distribution``.

        Raises
        ------
        ParameterError
            If the step's name was used before, the noise cannot be shared, or could overflow.
        TooFewPartiesError
            If more parties drop out than tolerated.
        """
        if len(contributions) != self._tolerance.parties:
            raise ParameterError(f"{len(contributions)} contributions of {self._tolerance.parties} parties")
        first = contributions[0]
        shape, length = first.shape, first.size
        if step in self.survivors:
            raise ParameterError(
                f"the sum {step!r} of {self._identity!r} is already computed; a second sum needs another identity"
            )
        share = share_distribution(distribution, self._tolerance.unknown_shares, length)
        bounds = allotments(self._sizes, share)

        def noisy(party: int) -> Ints:
            contribution = contributions[party] if party else first
            if contribution.shape != shape:
                raise ParameterError(
                    "contributions have different shapes; all parties must send the same number of values"
                )
            return noisy_contribution(contribution, bounds[party], share, self._noises[party], step)

        recorded = RecordedSum(self._record, self._identity, step)
        survivors, total = self._session(length).sum(recorded, noisy)
        self.survivors[step] = survivors
        return (scaled_to_all(total, self._weights, survivors) if self._scaled else total).reshape(shape)

    def _session(self, length: int) -> _Session:
        session = self._sessions.get(length)
        if session is None or not session.left:
            parameters = RoundParameters(
                identity=f"{self._identity}/{self._agreements}",
                tolerance=self._tolerance,
                length=length,
                steps=self._steps,
                graph=self._graph,
            )
            self._agreements += 1
            session = self._sessions[length] = _Session(parameters, self._absences)
        return session
