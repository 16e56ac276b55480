"""The rounds: exact sums under every dropout pattern, one unmasking a round key, and who broke the protocol."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from dpalgos.parameters import ParameterError
from dpalgos.rows import Ints
from dpalgos.secure import protocol as at_party
from dpalgos.secure import protocol as at_server
from dpalgos.secure.messages import (
    ESCROW,
    SELF,
    MaskedVector,
    RoundParameters,
    ShareBundle,
    SparseGraph,
    Tolerance,
    UnmaskResponse,
)
from dpalgos.secure.primitives import RepeatedUseError, TooFewPartiesError, ViolationError
from dpalgos.secure.protocol import Agreement, MaskedBlock, PartyState, SurvivorSet, neighbourhoods
from tests.support.secagg import Session, agree, draw, masked, parameters, plain_sum, responses, run_step


def gone(pattern: tuple[str, ...], stage: str) -> frozenset[int]:
    return frozenset(party for party, when in enumerate(pattern) if when == stage)


def check_pattern(public: RoundParameters, pattern: tuple[str, ...], generator: random.Random) -> None:
    """Run a whole session in which party i drops out at round ``pattern[i]``; check sum or failure."""
    vectors = draw(generator, public)
    remaining = pattern.count("never")
    survivors = [party for party, when in enumerate(pattern) if when in ("never", "unmask")]

    def whole() -> Ints:
        session = agree(public, generator, advertise=gone(pattern, "advertise"), share=gone(pattern, "share"))
        return run_step(session, 0, vectors, mask=gone(pattern, "mask"), unmask=gone(pattern, "unmask"))

    if remaining >= public.tolerance.quorum:
        assert np.array_equal(whole(), plain_sum(vectors, survivors)), pattern
    else:
        with pytest.raises(TooFewPartiesError) as caught:
            whole()
        assert caught.value.needed == public.tolerance.quorum
        # It fails as a whole and speaks of no party by itself.
        assert "party" not in str(caught.value).replace("parties", "")


ROUNDS = ("advertise", "share", "mask", "unmask", "never")


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_every_dropout_pattern(parties: int) -> None:
    generator = random.Random(10 + parties)
    for dropouts in {0, parties - 2} if parties < 4 else {parties - 2}:
        for pattern in itertools.product(ROUNDS, repeat=parties):
            check_pattern(parameters(parties, dropouts), pattern, generator)


@pytest.mark.nightly
@pytest.mark.parametrize("parties", [5, 6])
def test_every_dropout_pattern_of_more_parties(parties: int) -> None:
    generator = random.Random(20 + parties)
    for pattern in itertools.product(ROUNDS, repeat=parties):
        check_pattern(parameters(parties, parties - 2, length=1), pattern, generator)


@pytest.mark.parametrize(
    ("rounds", "dropouts"),
    [(("mask", "unmask", "never"), 3), (("advertise", "share", "never"), 1), (("advertise", "share", "never"), 3)],
)
def test_every_dropout_pattern_of_six_parties_in_one_half_of_the_rounds(rounds: tuple[str, ...], dropouts: int) -> None:
    """All 729 patterns of the last two rounds as steps under one key agreement; of the first two, those that differ
    by more than who is who.
    """
    generator = random.Random(30 + dropouts)
    parties = 6
    patterns = list(itertools.product(rounds, repeat=parties))
    if "advertise" in rounds:
        for pattern in itertools.combinations_with_replacement(rounds, parties):
            order = generator.sample(pattern, parties)
            check_pattern(parameters(parties, dropouts, length=2), tuple(order), generator)
        return
    public = parameters(parties, dropouts, steps=len(patterns), length=2)
    session = agree(public, generator)
    for step, pattern in enumerate(patterns):
        vectors = draw(generator, public)
        survivors = [party for party, when in enumerate(pattern) if when != "mask"]
        if pattern.count("never") >= public.tolerance.quorum:
            found = run_step(session, step, vectors, mask=gone(pattern, "mask"), unmask=gone(pattern, "unmask"))
            assert np.array_equal(found, plain_sum(vectors, survivors)), pattern
        else:
            with pytest.raises(TooFewPartiesError):
                run_step(session, step, vectors, mask=gone(pattern, "mask"), unmask=gone(pattern, "unmask"))


@pytest.mark.parametrize("trial", range(6))
def test_random_dropout_patterns_of_more_parties(trial: int) -> None:
    generator = random.Random(40 + trial)
    parties = generator.randrange(7, 25)
    dropouts = generator.randrange(parties // 2)
    pattern = [generator.choice(ROUNDS) if party < dropouts else "never" for party in range(parties)]
    generator.shuffle(pattern)
    check_pattern(parameters(parties, dropouts, length=3), tuple(pattern), generator)
    pattern[pattern.index("never")] = "unmask"
    check_pattern(parameters(parties, dropouts, length=3), tuple(pattern), generator)


def test_a_party_lost_in_one_step_takes_part_in_the_next() -> None:
    generator = random.Random(50)
    public = parameters(5, 2, steps=4)
    session = agree(public, generator)
    for step, lost in enumerate([{0, 1}, {1, 4}, set(), {2}]):
        vectors = draw(generator, public)
        expected = plain_sum(vectors, set(range(5)) - lost)
        assert np.array_equal(run_step(session, step, vectors, mask=lost), expected)


def test_extreme_numbers_and_wrapping_sums_are_exact_modulo_2_to_the_64() -> None:
    generator = random.Random(51)
    public = parameters(3, 1, length=3)
    values = np.array([-(2**63), 2**63 - 1, -1], dtype=np.int64)
    session = agree(public, generator)
    found = run_step(session, 0, dict.fromkeys(range(3), values))
    assert np.array_equal(found, values * 3)


# --- sparse graphs ----------------------------------------------------------------------------------------------------

SPARSE = SparseGraph(degree=8, threshold=4)


@pytest.mark.parametrize("trial", range(4))
def test_sparse_graph_sums_exactly_under_dropouts(trial: int) -> None:
    generator = random.Random(60 + trial)
    public = parameters(40, 6, 2, length=5, steps=2, graph=SPARSE)
    lost = generator.sample(range(40), 6)
    session = agree(public, generator, advertise=lost[:1], share=lost[1:2])
    alive = set(range(40)) - set(lost[:2])
    vectors = draw(generator, public)
    found = run_step(session, 0, vectors, mask=lost[2:4], unmask=lost[4:])
    assert np.array_equal(found, plain_sum(vectors, alive - set(lost[2:4])))
    vectors = draw(generator, public)
    assert np.array_equal(run_step(session, 1, vectors), plain_sum(vectors, alive))


def test_sparse_graph_fails_where_a_neighbourhood_is_lost() -> None:
    generator = random.Random(65)
    public = parameters(40, 12, 2, graph=SPARSE)
    session = agree(public, generator)
    lost = session.agreement.neighbours(0)[:6]
    with pytest.raises(TooFewPartiesError, match="neighbourhood"):
        run_step(session, 0, draw(generator, public), mask=lost)


def test_sparse_graph_is_symmetric_regular_random_and_fixed_by_the_roster() -> None:
    members = tuple(range(0, 60, 2))
    graph = SparseGraph(degree=6, threshold=3)
    first, again, other = (neighbourhoods(members, graph, bytes([seed]) * 32) for seed in (1, 1, 2))
    for member in members:
        near = first[member]
        assert len(near) == 6
        assert member not in near
        assert set(near) <= set(members)
        assert all(member in first[peer] for peer in near)
        assert near == again[member]
    assert first != other
    # Two rosters that differ in one key give two graphs.
    generator = random.Random(66)
    public = parameters(40, 4, graph=SPARSE)
    rosters = [agree(public, generator).agreement.advertised_keys for _ in range(2)]
    assert rosters[0].neighbours != rosters[1].neighbours


def test_sparse_failure_bounds_cover_simulation_and_small_cases() -> None:
    """The bounds are at least the observed frequencies (a bound too small by half would be caught), and grow sparse."""
    tolerance = Tolerance(parties=30, dropouts=4, colluders=5)
    graph = SparseGraph(degree=6, threshold=4)
    bounds = graph.failure(tolerance)
    generator = random.Random(67)
    colluding, disconnected, incomplete, trials = 0, 0, 0, 1000
    colluders, dropouts = set(range(5)), set(range(5, 9))
    for _ in range(trials):
        near = neighbourhoods(tuple(range(30)), graph, generator.randbytes(32))
        honest = [party for party in range(30) if party not in colluders]
        colluding += any(len(colluders & set(near[party])) >= 4 for party in honest)
        incomplete += any(len(set(near[party]) - dropouts) < 4 for party in range(30))
        alive = set(honest) - dropouts
        seen, edge = {min(alive)}, [min(alive)]
        while edge:
            fresh = (set(near[edge.pop()]) & alive) - seen
            seen |= fresh
            edge += fresh
        disconnected += seen != alive
    # Five standard errors: below 1e-6 that a true frequency under the bound shows above it.
    slack = 5 * np.sqrt(0.25 / trials)
    assert colluding / trials <= bounds.privacy + slack
    assert disconnected / trials <= bounds.privacy + slack
    assert incomplete / trials <= bounds.completion + slack
    assert colluding > 0
    assert incomplete / trials > 0.05


@pytest.mark.parametrize("parties", [200, 1_000, 10_000, 50_000])
def test_sparsest_graph_meets_its_bounds_and_grows_like_the_logarithm(parties: int) -> None:
    tolerance = Tolerance(parties=parties, dropouts=parties // 10, colluders=parties // 20)
    graph = SparseGraph.smallest(tolerance)
    assert graph is not None
    bounds = graph.failure(tolerance)
    assert max(bounds.privacy, bounds.completion) <= 2.0**-40
    assert graph.degree <= 6 * np.log2(parties)
    if graph.degree > 4:
        sparser = [SparseGraph(degree=graph.degree - 2, threshold=t) for t in range(1, graph.degree - 1)]
        failures = [candidate.failure(tolerance) for candidate in sparser]
        assert all(max(found.privacy, found.completion) > 2.0**-40 for found in failures)


# --- one unmasking a round key ----------------------------------------------------------------------------------------


def ready(steps: int = 2, *, dropouts: int = 2, seed: int = 70) -> tuple[Session, dict[int, Ints], MaskedBlock]:
    generator = random.Random(seed)
    public = parameters(5, dropouts, steps=steps)
    session = agree(public, generator)
    vectors = draw(generator, public)
    block = at_server.add_masked(session.agreement, 0, masked(session, 0, vectors))
    return session, vectors, block


def smaller(session: Session, vectors: Mapping[int, Ints], missing: int) -> MaskedBlock:
    """Return the block of the same vectors without one party's (resent by the others)."""
    again = [message for message in masked(session, 0, vectors) if message.sender != missing]
    return at_server.add_masked(session.agreement, 0, again)


def test_a_party_refuses_a_second_survivor_set_also_after_a_restart() -> None:
    session, vectors, block = ready()
    first = at_server.fix_survivors(session.agreement, block)
    answers = responses(session, first)
    second = at_server.fix_survivors(session.agreement, smaller(session, vectors, 4))
    for party in second.survivors:
        stored = PartyState.decode(session.states[party].encode())
        request = at_server.request_unmasking(session.agreement, second, party)
        with pytest.raises(RepeatedUseError, match=rf"party {party}.*unmasked step 0"):
            at_party.unmask(stored, request)
        # The first question may be asked again: same answer, same state.
        repeated = at_party.unmask(stored, at_server.request_unmasking(session.agreement, first, party))
        assert repeated == (stored, answers[party])


def test_the_server_refuses_to_fix_a_second_survivor_set() -> None:
    session, vectors, block = ready()
    fixed = at_server.fix_survivors(session.agreement, block)
    assert at_server.fix_survivors(session.agreement, block, stored=fixed) == fixed
    with pytest.raises(RepeatedUseError, match=r"survivors.*step 0.*'test'"):
        at_server.fix_survivors(session.agreement, smaller(session, vectors, 4), stored=fixed)


def test_a_survivor_set_binds_the_very_vectors() -> None:
    session, _, block = ready()
    fixed = at_server.fix_survivors(session.agreement, block)
    answers = responses(session, fixed)
    others = (dict.fromkeys(block.digests, bytes(32)), dict(list(block.digests.items())[:-1]))
    for wrong in (*(replace(block, digests=other) for other in others), replace(block, step=1)):
        with pytest.raises(RepeatedUseError, match="masked vectors"):
            at_server.unmask_sum(session.agreement, fixed, wrong, answers.values())


def test_a_server_without_honest_majority_of_answers_cannot_unmask_twice() -> None:
    """With 2 (N - D) > N + C even a cheating server gets the answers for one set only: all splits of honest parties."""
    tolerance = Tolerance(parties=5, dropouts=1, colluders=1)
    assert tolerance.forces_one_survivor_set
    honest = tolerance.parties - tolerance.colluders
    assert not any(
        first + tolerance.colluders >= tolerance.quorum and honest - first + tolerance.colluders >= tolerance.quorum
        for first in range(honest + 1)
    )
    assert not Tolerance(parties=5, dropouts=2, colluders=1).forces_one_survivor_set


def test_a_party_refuses_to_mask_two_vectors_in_one_step() -> None:
    session, vectors, _ = ready()
    state = PartyState.decode(session.states[0].encode())
    same, message = at_party.mask(state, 0, vectors[0])
    assert same == state
    assert message == at_party.mask(session.states[0], 0, vectors[0])[1]
    with pytest.raises(RepeatedUseError, match=r"party 0.*masks.*step 0"):
        at_party.mask(state, 0, vectors[0] + 1)
    at_party.mask(state, 1, vectors[0] + 1)


def test_a_repeated_round_has_new_masks_and_refuses_the_old_rounds_messages() -> None:
    """The same seeds under a new identity (which nobody should do) still share no key with the old round."""
    vectors = {party: np.zeros(4, dtype=np.int64) for party in range(5)}
    old = agree(parameters(5, 1, identity="first"), random.Random(71))
    new = agree(parameters(5, 1, identity="second"), random.Random(71))
    first, second = masked(old, 0, vectors), masked(new, 0, vectors)
    for mine, theirs in zip(first, second, strict=True):
        assert not np.any(np.frombuffer(mine.words, "<u8") == np.frombuffer(theirs.words, "<u8"))
    with pytest.raises(ViolationError, match=r"^party 0:.*session"):
        at_server.add_masked(new.agreement, 0, first)


def test_states_and_results_survive_storage_between_any_two_steps() -> None:
    generator = random.Random(72)
    public = RoundParameters.decode(parameters(4, 1, steps=2).encode())
    session = agree(public, generator)
    vectors = draw(generator, public)
    agreement = Agreement.decode(session.agreement.encode())
    assert agreement == session.agreement
    session = Session(agreement, {k: PartyState.decode(v.encode()) for k, v in session.states.items()})
    messages = [MaskedVector.decode(message.encode()) for message in masked(session, 1, vectors, {2})]
    block = MaskedBlock.decode(at_server.add_masked(agreement, 1, messages).encode())
    survivors = SurvivorSet.decode(at_server.fix_survivors(agreement, block).encode())
    session.states = {k: PartyState.decode(v.encode()) for k, v in session.states.items()}
    answers = [UnmaskResponse.decode(answer.encode()) for answer in responses(session, survivors).values()]
    found = at_server.unmask_sum(agreement, survivors, block, answers)
    assert np.array_equal(found, plain_sum(vectors, [0, 1, 3]))


# --- who broke the protocol -------------------------------------------------------------------------------------------


def unmasking() -> tuple[Session, SurvivorSet, MaskedBlock, dict[int, UnmaskResponse]]:
    """Return everything before the last act of a step in which party 4 is lost."""
    generator = random.Random(80)
    public = parameters(5, 1, steps=2)
    session = agree(public, generator)
    block = at_server.add_masked(session.agreement, 0, masked(session, 0, draw(generator, public), {4}))
    survivors = at_server.fix_survivors(session.agreement, block)
    return session, survivors, block, responses(session, survivors)


def expect_named(party: int, words: str, change: Mapping[str, object]) -> None:
    """Check that the party's changed response is refused, that it is named and that nobody else is."""
    session, survivors, block, answers = unmasking()
    answers[party] = replace(answers[party], **change)  # type: ignore[arg-type]  # fields by name
    with pytest.raises(ViolationError, match=words) as caught:
        at_server.unmask_sum(session.agreement, survivors, block, answers.values())
    assert caught.value.party == party
    assert str(caught.value).startswith(f"party {party}: ")


def held_share(session: Session, holder: int, owner: int, kind: int) -> bytes:
    """Return a share out of a party's state, as a cheating party would take it."""
    return session.states[holder].held[owner][32 * kind : 32 * (kind + 1)]


def changed(owner: int, share: bytes) -> dict[str, object]:
    """Return party 2's shares with another one of this owner."""
    return {"shares": dict(sorted({**unmasking()[3][2].shares, owner: share}.items()))}


@pytest.mark.parametrize(("owner", "other"), [(1, ESCROW), (4, SELF)])
def test_the_other_kind_of_share_is_detected_and_named(owner: int, other: int) -> None:
    """An answer has one share an owner: that of both kinds, which would show an input, nobody can send."""
    share = held_share(unmasking()[0], 2, owner, other)
    expect_named(2, f"{'escrow' if other == SELF else 'self-mask'} share.*party {owner}", changed(owner, share))


@pytest.mark.parametrize("owner", [0, 2, 4])
def test_a_wrong_share_is_detected_and_named(owner: int) -> None:
    share = unmasking()[3][2].shares[owner]
    expect_named(2, f"share of party {owner}", changed(owner, share[:-1] + bytes([share[-1] ^ 1])))


def test_a_share_outside_the_field_is_detected_and_named() -> None:
    expect_named(2, "field element", changed(1, b"\xff" * 32))


def test_a_share_it_cannot_hold_is_detected_and_named() -> None:
    expect_named(2, "share.*party 9", changed(9, bytes(32)))


def test_answers_for_another_step_set_or_session_are_detected_and_named() -> None:
    expect_named(2, "reordered", {"step": 1})
    expect_named(2, "reordered", {"survivor_set": bytes(32)})
    expect_named(2, "session", {"session": bytes(32)})


def test_two_answers_or_an_answer_of_a_lost_party_are_detected_and_named() -> None:
    session, survivors, block, answers = unmasking()
    with pytest.raises(ViolationError, match=r"party 3:.*messages"):
        at_server.unmask_sum(session.agreement, survivors, block, [*answers.values(), answers[3]])
    with pytest.raises(ViolationError, match=r"party 4:.*UnmaskResponse"):
        at_server.unmask_sum(session.agreement, survivors, block, [replace(answers[3], sender=4)])


def test_the_named_party_can_be_left_out_like_a_lost_one() -> None:
    generator = random.Random(81)
    public = parameters(5, 2)
    session = agree(public, generator)
    vectors = draw(generator, public)
    messages = masked(session, 0, vectors)
    messages[3] = replace(messages[3], words=b"short")
    with pytest.raises(ViolationError) as caught:
        at_server.add_masked(session.agreement, 0, messages)
    good = [message for message in messages if message.sender != caught.value.party]
    block = at_server.add_masked(session.agreement, 0, good)
    survivors = at_server.fix_survivors(session.agreement, block)
    found = at_server.unmask_sum(session.agreement, survivors, block, responses(session, survivors).values())
    assert np.array_equal(found, plain_sum(vectors, [0, 1, 2, 4]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"words": bytes(8 * 3)}, "24.*4.*32"),
        ({"words": bytes(8 * 5)}, "40.*4.*32"),
        ({"words": bytes(4 * 4)}, "16"),
        ({"step": 1}, "step 1.*step 0"),
        ({"session": bytes(32)}, "session"),
    ],
)
def test_a_wrong_masked_vector_is_detected_and_named(change: dict[str, object], words: str) -> None:
    session, vectors, _ = ready()
    messages = masked(session, 0, vectors)
    messages[1] = replace(messages[1], **change)  # type: ignore[arg-type]  # fields by name
    with pytest.raises(ViolationError, match=f"party 1: .*{words}"):
        at_server.add_masked(session.agreement, 0, messages)


def test_a_vector_sent_twice_is_detected() -> None:
    session, vectors, _ = ready()
    messages = masked(session, 0, vectors)
    with pytest.raises(ViolationError, match=r"party 2:.*messages"):
        at_server.add_masked(session.agreement, 0, [*messages, messages[2]])


def test_vectors_add_up_in_any_order() -> None:
    session, vectors, block = ready()
    messages = masked(session, 0, vectors)
    again = at_server.add_masked(session.agreement, 0, iter([*messages[3:], *messages[:3]]))
    assert again.encode() == block.encode()


def test_parties_that_advertise_anothers_key_or_twice_are_named() -> None:
    public = parameters(3, 0)
    sent = [at_party.advertise(at_party.join(public, party, bytes([party]) * 32)) for party in range(3)]
    with pytest.raises(ViolationError, match=r"party 2: advertised.*party 1"):
        at_server.collect_advertisements(public, [*sent[:2], replace(sent[1], sender=2)])
    with pytest.raises(ViolationError, match=r"party 1.*messages"):
        at_server.collect_advertisements(public, [*sent, sent[1]])
    with pytest.raises(ViolationError, match=r"^party 3:.*round"):
        at_server.collect_advertisements(public, [*sent, replace(sent[1], sender=3)])


def sharing() -> tuple[RoundParameters, dict[int, PartyState], at_server.AdvertisedKeys, dict[int, ShareBundle]]:
    generator = random.Random(82)
    public = parameters(4, 1)
    joined = [at_party.join(public, party, generator.randbytes(32)) for party in range(4)]
    advertised_keys = at_server.collect_advertisements(public, [at_party.advertise(state) for state in joined])
    states, bundles = {}, {}
    for party, state in enumerate(joined):
        states[party], bundles[party] = at_party.share(state, at_server.introduce(advertised_keys, party))
    return public, states, advertised_keys, bundles


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ciphertexts": {0: b"", 1: b""}}, "parties"),
        ({"commitments": dict.fromkeys(range(3), b"")}, "parties"),
        ({"escrow": {}}, "parties"),
        ({"escrow": dict.fromkeys((0, 1, 3), b"")}, "length"),
        ({"ciphertexts": dict.fromkeys((0, 1, 3), b"x")}, "length"),
        ({"commitments": dict.fromkeys(range(4), b"x")}, "length"),
        ({"secrets": b"x"}, "length"),
        ({"session": bytes(32)}, "session"),
    ],
)
def test_a_bundle_of_the_wrong_form_is_named(change: dict[str, object], words: str) -> None:
    _, _, advertised_keys, bundles = sharing()
    bundles[2] = replace(bundles[2], **change)  # type: ignore[arg-type]  # fields by name
    with pytest.raises(ViolationError, match=f"party 2: .*{words}"):
        at_server.collect_shares(advertised_keys, bundles.values())


def test_altered_swapped_or_replayed_shares_are_noticed_by_their_recipient() -> None:
    _, states, advertised_keys, bundles = sharing()
    delivery = at_server.deliver(at_server.collect_shares(advertised_keys, bundles.values()), 0)
    sent = delivery.ciphertexts
    flipped = {**sent, 2: bytes([sent[2][0] ^ 1]) + sent[2][1:]}
    swapped = {**sent, 1: sent[2], 2: sent[1]}
    for ciphertexts, owner in ((flipped, 2), (swapped, 1)):
        with pytest.raises(ViolationError, match=f"party {owner}: .*decrypt"):
            at_party.receive(states[0], replace(delivery, ciphertexts=ciphertexts))
    false = {owner: bytes(len(digests)) for owner, digests in delivery.commitments.items()}
    with pytest.raises(ViolationError, match=r"party 1:.*commitments"):
        at_party.receive(states[0], replace(delivery, commitments=false))
    with pytest.raises(ViolationError, match=r"server:.*shares.*introduced"):
        at_party.receive(states[0], replace(delivery, ciphertexts={1: sent[1], 2: sent[2], 7: sent[3]}))
    for wrong in ({1: sent[1], 2: sent[2]}, {**sent, 3: sent[3][:-1]}):
        with pytest.raises(ViolationError, match=r"server:.*length"):
            at_party.receive(states[0], replace(delivery, ciphertexts=wrong))
    with pytest.raises(TooFewPartiesError):
        at_party.receive(states[0], replace(delivery, ciphertexts={1: sent[1]}))
    whole = at_party.receive(states[0], delivery)
    assert at_party.receive(whole, delivery) == whole
    fewer = at_server.deliver(at_server.collect_shares(advertised_keys, [bundles[party] for party in range(3)]), 0)
    with pytest.raises(RepeatedUseError, match=r"party 0.*received"):
        at_party.receive(whole, fewer)


def test_a_dealer_whose_commitments_do_not_fit_its_secret_is_named_when_it_is_opened() -> None:
    """The commitment to the secret itself is false, so all shares match and what they give does not."""
    generator = random.Random(83)
    public = parameters(4, 1)
    joined = [at_party.join(public, party, generator.randbytes(32)) for party in range(4)]
    advertised_keys = at_server.collect_advertisements(public, [at_party.advertise(state) for state in joined])
    for kind, lost, words in ((SELF, set(), "self-mask"), (ESCROW, {1}, "escrow")):
        states, bundles = {}, []
        for party, state in enumerate(joined):
            states[party], bundle = at_party.share(state, at_server.introduce(advertised_keys, party))
            if party == 1:
                head, tail = bundle.secrets[: 32 * kind], bundle.secrets[32 * (kind + 1) :]
                bundle = replace(bundle, secrets=head + bytes(32) + tail)
            bundles.append(bundle)
        agreement = at_server.collect_shares(advertised_keys, bundles)
        session = Session(
            agreement, {p: at_party.receive(state, at_server.deliver(agreement, p)) for p, state in states.items()}
        )
        with pytest.raises(ViolationError, match=f"party 1: sent {words}"):
            run_step(session, 0, draw(generator, public), mask=lost)


def test_a_damaged_escrow_is_named_when_it_is_needed() -> None:
    generator = random.Random(84)
    public = parameters(4, 1, steps=2)
    session = agree(public, generator)
    bundles = list(session.agreement.bundles)
    bundles[1] = replace(bundles[1], escrow={peer: bytes(len(one)) for peer, one in bundles[1].escrow.items()})
    session.agreement = Agreement(advertised_keys=session.agreement.advertised_keys, bundles=tuple(bundles))
    vectors = draw(generator, public)
    assert np.array_equal(run_step(session, 0, vectors), plain_sum(vectors, range(4)))
    with pytest.raises(ViolationError, match=r"party 1:.*mask.*party 0"):
        run_step(session, 1, vectors, mask={1})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"survivors": (0, 1, 2, 3), "dropped": ()}, "divide"),
        ({"survivors": (0, 1, 2, 3, 4), "dropped": (4,)}, "divide"),
        ({"survivors": (1, 2, 3, 4), "dropped": (0,)}, "divide"),
        ({"recipient": 3}, "message.*party 3"),
        ({"session": bytes(32)}, "session"),
        ({"step": 1}, "unmask.*masked"),
        ({"step": 9}, "unmask.*masked"),
        ({"count": 4}, "announced"),
        ({"numbers": bytes(32)}, "digest"),
    ],
)
def test_a_party_refuses_requests_that_do_not_fit(change: dict[str, object], words: str) -> None:
    session, _, block = ready(dropouts=1)
    survivors = at_server.fix_survivors(session.agreement, block)
    request = at_server.request_unmasking(session.agreement, survivors, 0)
    with pytest.raises(ViolationError, match=f"server: .*{words}"):
        at_party.unmask(session.states[0], replace(request, **change))  # type: ignore[arg-type]  # fields by name


def test_a_party_refuses_survivor_sets_below_the_quorum() -> None:
    session, _, block = ready(dropouts=1)
    survivors = at_server.fix_survivors(session.agreement, block)
    request = at_server.request_unmasking(session.agreement, survivors, 0)
    for change in ({"count": 3}, {"survivors": (0, 1, 2), "dropped": (3, 4)}):
        with pytest.raises(TooFewPartiesError):
            at_party.unmask(session.states[0], replace(request, **change))


def test_a_party_refuses_introductions_that_do_not_fit() -> None:
    public = parameters(4, 1)
    states = [at_party.join(public, party, bytes([party]) * 32) for party in range(4)]
    advertised_keys = at_server.collect_advertisements(public, [at_party.advertise(state) for state in states])
    good = at_server.introduce(advertised_keys, 0)
    publics = good.public_keys
    for change, words in (
        ({"public_keys": {0: publics[1], 2: publics[2], 3: publics[3]}}, "itself"),
        ({"public_keys": {1: publics[1], 2: publics[2], 4: publics[3]}}, "exist"),
        ({"public_keys": dict.fromkeys(publics, publics[1])}, "public key"),
        ({"recipient": 1}, "message.*party 1"),
        ({"session": bytes(32)}, "session"),
    ):
        with pytest.raises(ViolationError, match=f"server: .*{words}"):
            at_party.share(states[0], replace(good, **change))
    with pytest.raises(TooFewPartiesError):
        at_party.share(states[0], replace(good, public_keys={1: publics[1]}))
    introduced, bundle = at_party.share(states[0], good)
    assert at_party.share(introduced, good) == (introduced, bundle)
    fewer = replace(good, public_keys={1: publics[1], 2: publics[2]})
    with pytest.raises(RepeatedUseError, match=r"party 0.*introduced"):
        at_party.share(introduced, fewer)


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parties", "dropouts", "colluders"),
    [(1, 0, 0), (2, 1, 0), (2, 0, 2), (5, 2, 3), (3, 2, 0), (3, -1, 0), (3, 0, -1)],
)
def test_impossible_tolerances_are_refused(parties: int, dropouts: int, colluders: int) -> None:
    with pytest.raises(ParameterError, match=r"parties|dropouts|colluders"):
        Tolerance(parties=parties, dropouts=dropouts, colluders=colluders)


@pytest.mark.parametrize(
    ("parties", "dropouts", "colluders", "quorum", "unknown"),
    [(2, 0, 0, 2, 1), (5, 0, 0, 5, 4), (5, 1, 1, 4, 3), (5, 2, 2, 3, 1), (1000, 100, 50, 900, 850)],
)
def test_what_follows_from_a_tolerance(parties: int, dropouts: int, colluders: int, quorum: int, unknown: int) -> None:
    tolerance = Tolerance(parties=parties, dropouts=dropouts, colluders=colluders)
    assert (tolerance.quorum, tolerance.unknown_shares) == (quorum, unknown)
    assert tolerance.quorum > tolerance.colluders
    assert any(code.endswith(f"unknown_shares={unknown}") for code in tolerance.assumptions())


def test_masking_validates_step_length_and_type() -> None:
    session, vectors, _ = ready()
    state = session.states[0]
    for step, vector, named in (
        (2, vectors[0], "step.*2"),
        (-1, vectors[0], "step.*-1"),
        (0, vectors[0][:3], "3 numbers"),
        (0, vectors[0].astype(np.float64), "float64"),
    ):
        with pytest.raises(ParameterError, match=named):
            at_party.mask(state, step, vector)  # type: ignore[arg-type]  # fields by name


def test_joining_validates_number_and_seed() -> None:
    public = parameters(3, 0)
    with pytest.raises(ParameterError, match=r"^party.*3"):
        at_party.join(public, 3, bytes(32))
    with pytest.raises(ParameterError, match=r"32.*seed"):
        at_party.join(public, 0, bytes(16))
