"""Sessions of secure aggregation driven by hand, for the tests that look at every message."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from dpalgos.rows import Ints
from dpalgos.secure import protocol as at_party
from dpalgos.secure import protocol as at_server
from dpalgos.secure.messages import MaskedVector, RoundParameters, SparseGraph, Tolerance, UnmaskResponse
from dpalgos.secure.protocol import Agreement, PartyState, SurvivorSet

NOBODY: frozenset[int] = frozenset()


@dataclass
class Session:
    """The parties' states and the server's agreement after the two rounds of a session."""

    agreement: Agreement
    states: dict[int, PartyState]


def parameters(
    parties: int,
    dropouts: int,
    colluders: int = 0,
    *,
    steps: int = 1,
    length: int = 4,
    identity: str = "test",
    graph: SparseGraph | None = None,
) -> RoundParameters:
    tolerance = Tolerance(parties=parties, dropouts=dropouts, colluders=colluders)
    return RoundParameters(identity=identity, tolerance=tolerance, length=length, steps=steps, graph=graph)


def agree(
    public: RoundParameters,
    generator: random.Random,
    *,
    advertise: Collection[int] = NOBODY,
    share: Collection[int] = NOBODY,
) -> Session:
    """Run rounds 1 and 2; the collections hold who is missing."""
    present = [party for party in range(public.tolerance.parties) if party not in advertise]
    joined = {party: at_party.join(public, party, generator.randbytes(32)) for party in present}
    advertised_keys = at_server.collect_advertisements(public, [at_party.advertise(state) for state in joined.values()])
    states, bundles = {}, []
    for party in present:
        if party not in share:
            states[party], bundle = at_party.share(joined[party], at_server.introduce(advertised_keys, party))
            bundles.append(bundle)
    agreement = at_server.collect_shares(advertised_keys, bundles)
    for party, state in states.items():
        states[party] = at_party.receive(state, at_server.deliver(agreement, party))
    return Session(agreement, states)


def masked(
    session: Session, step: int, vectors: Mapping[int, Ints], missing: Collection[int] = NOBODY
) -> list[MaskedVector]:
    messages = []
    for party in session.states:
        if party not in missing:
            session.states[party], message = at_party.mask(session.states[party], step, vectors[party])
            messages.append(message)
    return messages


def responses(session: Session, survivors: SurvivorSet, missing: Collection[int] = NOBODY) -> dict[int, UnmaskResponse]:
    found = {}
    for party in survivors.survivors:
        if party not in missing:
            request = at_server.request_unmasking(session.agreement, survivors, party)
            session.states[party], found[party] = at_party.unmask(session.states[party], request)
    return found


def run_step(
    session: Session,
    step: int,
    vectors: Mapping[int, Ints],
    *,
    mask: Collection[int] = NOBODY,
    unmask: Collection[int] = NOBODY,
) -> Ints:
    """Run rounds 3 and 4 of a step and return the sum."""
    block = at_server.add_masked(session.agreement, step, masked(session, step, vectors, mask))
    survivors = at_server.fix_survivors(session.agreement, block)
    answers = responses(session, survivors, unmask)
    return at_server.unmask_sum(session.agreement, survivors, block, answers.values())


def draw(generator: random.Random, public: RoundParameters) -> dict[int, Ints]:
    return {
        party: np.array([generator.randrange(-(2**40), 2**40) for _ in range(public.length)], dtype=np.int64)
        for party in range(public.tolerance.parties)
    }


def plain_sum(vectors: Mapping[int, Ints], parties: Collection[int]) -> Ints:
    return np.asarray(np.sum([vectors[party] for party in parties], axis=0), dtype=np.int64)
