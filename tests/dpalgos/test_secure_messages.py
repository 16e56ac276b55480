"""Parsers: what is not a message is a MessageError, what is one has exactly one byte form."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import PydanticSerializationError

from dpalgos.parameters import ParameterError
from dpalgos.secure import messages
from dpalgos.secure import protocol as at_server
from dpalgos.secure.messages import RoundParameters, SparseGraph, Tolerance, Wire
from dpalgos.secure.primitives import MessageError, SecureAggregationError
from dpalgos.secure.protocol import (
    AdvertisedKeys,
    Agreement,
    MaskedBlock,
    PartyState,
    SurvivorSet,
    advertise,
    collect_advertisements,
    join,
    mask,
    receive,
    share,
    unmask,
)
from dpalgos.secure.rounds import Party, RecordedSum, Stage

PARAMETERS = RoundParameters(identity="fuzz", tolerance=Tolerance(parties=4, dropouts=1), length=3, steps=2)
SPARSE = RoundParameters(
    identity="dünn",
    tolerance=Tolerance(parties=40, dropouts=4, colluders=2),
    length=3,
    graph=SparseGraph(degree=6, threshold=3),
)

digests = st.binary(min_size=32, max_size=32)
small = st.integers(0, 5)
parties = st.lists(small, unique=True, max_size=5).map(lambda some: tuple(sorted(some)))
blobs = st.binary(max_size=200)


def by_party(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[dict[int, bytes]]:
    return st.dictionaries(small, values, max_size=5).map(lambda some: dict(sorted(some.items())))


# What stands in a field of a message, by its name.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("session", "public_key", "survivor_set", "numbers"), digests),
    **dict.fromkeys(("sender", "recipient", "step", "count"), small),
    **dict.fromkeys(("survivors", "dropped"), parties),
    **dict.fromkeys(("words", "secrets"), blobs),
    **dict.fromkeys(("ciphertexts", "commitments", "escrow"), by_party(blobs)),
    **dict.fromkeys(("public_keys", "digests", "shares"), by_party(digests)),
}


def _messages() -> st.SearchStrategy[Wire]:
    def build(cls: type[Any], **special: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        """Build a message whose fields are what their names say, but for some."""
        names = [field.name for field in dataclasses.fields(cls) if field.name not in special]
        return st.builds(cls, **{name: FIELDS[name] for name in names}, **special)

    delivery = build(messages.Delivery)
    return st.one_of(
        st.sampled_from([PARAMETERS, SPARSE]),
        build(messages.Advertisement),
        build(messages.Introduction),
        build(messages.ShareBundle),
        delivery,
        build(messages.MaskRequest, delivery=st.none() | delivery),
        build(messages.MaskedVector),
        build(messages.UnmaskRequest),
        build(messages.UnmaskResponse),
        build(MaskedBlock),
        build(SurvivorSet, vectors=digests),
        st.builds(
            PartyState,
            parameters=st.just(PARAMETERS),
            party=st.integers(0, 3),
            seed=digests,
            roots=by_party(digests),
            held=by_party(blobs),
            masked=st.dictionaries(small, st.tuples(digests, digests), max_size=3),
            unmasked=st.dictionaries(small, digests, max_size=3),
        ),
    )


KINDS = (
    RoundParameters,
    messages.Advertisement,
    messages.Introduction,
    messages.ShareBundle,
    messages.Delivery,
    messages.MaskRequest,
    messages.MaskedVector,
    messages.UnmaskRequest,
    messages.UnmaskResponse,
    PartyState,
    AdvertisedKeys,
    Agreement,
    MaskedBlock,
    SurvivorSet,
)
quick = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@settings(quick, max_examples=100)
@given(_messages())
def test_round_trip(message: Wire) -> None:
    assert type(message).decode(message.encode()) == message


@quick
@given(_messages(), st.data())
def test_altered_bytes_are_refused_or_are_another_message(message: Wire, data: st.DataObject) -> None:
    """One byte changed, removed or put in: an error, or a different message whose only form these bytes are."""
    encoded = message.encode()
    place = data.draw(st.integers(0, len(encoded) - 1))
    change = data.draw(st.sampled_from(["flip", "drop", "insert", "cut", "append"]))
    altered = {
        "flip": encoded[:place] + bytes([encoded[place] ^ data.draw(st.integers(1, 255))]) + encoded[place + 1 :],
        "drop": encoded[:place] + encoded[place + 1 :],
        "insert": encoded[:place] + data.draw(st.binary(min_size=1, max_size=9)) + encoded[place:],
        "cut": encoded[:place],
        "append": encoded + b"\0",
    }[change]
    try:
        parsed = type(message).decode(altered)
    except MessageError:
        return
    assert parsed.encode() == altered
    assert (parsed == message) == (altered == encoded)


@quick
@given(st.binary(max_size=400), st.sampled_from(KINDS))
def test_noise_is_no_message(data: bytes, kind: type[Wire]) -> None:
    for candidate in (data, f"unitball-secagg-2 {kind.__name__} ".encode() + data):
        try:
            parsed = kind.decode(candidate)
        except MessageError:
            continue
        assert parsed.encode() == candidate


@quick
@given(_messages(), st.sampled_from(KINDS))
def test_one_kind_is_not_taken_for_another(message: Wire, kind: type[Wire]) -> None:
    if kind is not type(message):
        with pytest.raises(MessageError, match=r"version.*--replicate"):
            kind.decode(message.encode())


def test_a_message_of_another_version_is_refused() -> None:
    with pytest.raises(MessageError, match="SurvivorSet"):
        SurvivorSet.decode(b"usa1" + (11).to_bytes(8, "big") + b"SurvivorSet" + (32).to_bytes(8, "big") + bytes(32))


def test_a_refusal_does_not_repeat_what_was_read() -> None:
    encoded = STATES[0].encode()
    for wrong in (encoded.replace(b'"seed":"', b'"seed":"AAAA'), encoded.replace(b'"party":0', b'"party":77')):
        with pytest.raises(MessageError) as refused:
            PartyState.decode(wrong)
        assert "AAAA" not in str(refused.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"sender": -1},
        {"sender": 2**63},
        {"sender": 1.0},
        {"session": "text"},
        {"session": bytes(31)},
        {"public_key": bytearray(32)},
        {"public_key": bytes(33)},
    ],
)
def test_fields_of_the_wrong_type_make_no_message(fields: dict[str, Any]) -> None:
    whole = {"session": bytes(32), "sender": 0, "public_key": bytes(32), **fields}
    with pytest.raises((MessageError, PydanticSerializationError)):
        messages.Advertisement.decode(messages.Advertisement(**whole).encode())


def test_parties_come_in_order_and_once() -> None:
    for wrong in ({1: bytes(32), 0: bytes(32)}, {-1: bytes(32)}):
        introduction = messages.Introduction(session=bytes(32), recipient=3, public_keys=wrong)
        with pytest.raises(MessageError, match="public_keys"):
            messages.Introduction.decode(introduction.encode())
    request = dataclasses.replace(at_server.request_unmasking(AGREEMENT, SURVIVORS, 0), survivors=(1, 1))
    with pytest.raises(MessageError, match=r"UnmaskRequest.*survivors"):
        messages.UnmaskRequest.decode(request.encode())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"identity": ""}, "identity"),
        ({"length": 0}, "length"),
        ({"steps": 0}, "steps"),
        ({"graph": SparseGraph(degree=4, threshold=2)}, "degree"),
    ],
)
def test_parameters_are_validated_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        dataclasses.replace(PARAMETERS, **fields)


@quick
@given(_messages())
def test_a_party_meets_any_message_with_an_error_of_the_protocol(message: Wire) -> None:
    """Whatever well-formed message arrives, from a fresh party nothing but a protocol error comes back."""
    state = join(PARAMETERS, 0, bytes(32))
    handlers: dict[type[Wire], Any] = {
        messages.Introduction: share,
        messages.Delivery: receive,
        messages.UnmaskRequest: unmask,
    }
    for session in {bytes(32), PARAMETERS.session}:
        if type(message) in handlers:
            sent = dataclasses.replace(message, session=session, recipient=0)  # type: ignore[type-var]  # a dataclass
            try:
                handlers[type(message)](state, sent)
            except SecureAggregationError:
                continue
            # Peers of this session are introduced by any keys: a message that names enough of them is a good one.
            assert isinstance(message, messages.Introduction), "a fresh party has been introduced to nobody"
            assert session == PARAMETERS.session
            assert 0 not in message.public_keys
        if isinstance(message, messages.Advertisement):
            with pytest.raises(SecureAggregationError):
                collect_advertisements(PARAMETERS, [dataclasses.replace(message, session=session)])


def test_a_party_masks_nothing_before_shares_were_delivered() -> None:
    with pytest.raises(SecureAggregationError, match=r"server.*vector.*shares"):
        mask(join(PARAMETERS, 0, bytes(32)), 0, np.zeros(3, dtype=np.int64))


def test_secrets_are_not_shown() -> None:
    state = join(PARAMETERS, 1, b"\xaa" * 32)
    assert "aa" not in repr(state).lower()
    assert "\\x" not in repr(state)


def _session() -> tuple[at_server.AdvertisedKeys, Agreement, SurvivorSet, MaskedBlock, dict[int, PartyState]]:
    joined = [join(PARAMETERS, party, bytes([party]) * 32) for party in range(4)]
    advertised_keys = collect_advertisements(PARAMETERS, [advertise(state) for state in joined])
    shared = [share(state, at_server.introduce(advertised_keys, party)) for party, state in enumerate(joined)]
    agreement = at_server.collect_shares(advertised_keys, [bundle for _, bundle in shared])
    states = {party: receive(state, at_server.deliver(agreement, party)) for party, (state, _) in enumerate(shared)}
    vectors = []
    for party in range(3):
        states[party], vector = mask(states[party], 0, np.zeros(3, dtype=np.int64))
        vectors.append(vector)
    block = at_server.add_masked(agreement, 0, vectors)
    return advertised_keys, agreement, at_server.fix_survivors(agreement, block), block, states


ROSTER, AGREEMENT, SURVIVORS, BLOCK, STATES = _session()
UNRECORDED = RecordedSum(None, "release", "sum-0")
ANOTHER = np.full(PARAMETERS.length, 7, dtype=np.int64)


class InMemory:
    """A party's memory that is never asked to keep anything: everything is refused before."""

    def __init__(self, state: PartyState) -> None:
        self.state = state

    def recall(self, stage: Stage) -> PartyState:
        return self.state

    def keep(self, stage: Stage, state: PartyState) -> PartyState:
        raise AssertionError(f"kept {state} at {stage}")


@quick
@given(_messages(), st.booleans())
def test_in_the_middle_of_a_session_any_message_meets_an_error_of_the_protocol(message: Wire, fitting: bool) -> None:
    """Server and party, in mid-session, with messages that name the right session, step and survivor set or do not."""
    if fitting:
        known = {"session": PARAMETERS.session, "step": 0, "survivor_set": SURVIVORS.digest, "recipient": 0}
        known["numbers"] = SURVIVORS.numbers
        names = {field.name for field in dataclasses.fields(message)}  # type: ignore[arg-type]  # a dataclass
        message = dataclasses.replace(message, **{k: v for k, v in known.items() if k in names})  # type: ignore[type-var]  # a dataclass
    if isinstance(message, RoundParameters | PartyState | MaskedBlock | SurvivorSet):
        return
    sent: Any = message
    handlers: dict[type[Wire], Callable[[], object]] = {
        messages.Advertisement: lambda: collect_advertisements(PARAMETERS, [sent]),
        messages.Introduction: lambda: share(STATES[0], sent),
        messages.ShareBundle: lambda: at_server.collect_shares(ROSTER, [sent]),
        messages.Delivery: lambda: receive(STATES[0], sent),
        messages.MaskRequest: lambda: Party(0, InMemory(STATES[0])).answer(sent, UNRECORDED, lambda: ANOTHER),
        messages.MaskedVector: lambda: at_server.add_masked(AGREEMENT, 0, [sent]),
        messages.UnmaskRequest: lambda: unmask(STATES[0], sent),
        messages.UnmaskResponse: lambda: at_server.unmask_sum(AGREEMENT, SURVIVORS, BLOCK, [sent]),
    }
    # A vector of the right length is as good as any other; everything else is refused.
    with contextlib.suppress(SecureAggregationError):
        handlers[type(message)]()
        assert isinstance(message, messages.MaskedVector)
        assert len(message.words) == 8 * PARAMETERS.length
