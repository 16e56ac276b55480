"""Secure aggregation: the server sees only noisy sums.

A *session* is one key agreement (:class:`~dpalgos.secure.messages.RoundParameters`) and a fixed number of *steps*, one
sum each. All functions (:mod:`dpalgos.secure.protocol`) are pure: messages in, messages out. In the order of a session,
with what must be stored:

=========================  ==========================================  =============================================
round                      a party                                     the server
=========================  ==========================================  =============================================
1 advertise (a session)    ``join``, ``advertise``                     ``collect_advertisements`` → *AdvertisedKeys*;
                                                                       ``introduce``
2 share (a session)        ``share`` → *PartyState*; ``receive``       ``collect_shares`` → *Agreement*; ``deliver``
                           → *PartyState*
3 mask (a step)            ``noisy_contribution``, ``mask``            ``add_masked`` → *MaskedBlock*;
                           → *PartyState*                              ``fix_survivors`` → *SurvivorSet*
4 unmask (a step)          ``unmask`` → *PartyState*                   ``request_unmasking``, ``unmask_sum``
=========================  ==========================================  =============================================

A *PartyState* is stored by its party before the message made with it leaves; the *SurvivorSet* is stored by the server,
once a session and step, before any ``request_unmasking``. Everything has one byte form (``encode``, ``decode``).

What a party and the server do with them, in which order, is :mod:`dpalgos.secure.rounds`, whichever way messages
travel. :class:`~dpalgos.secure.summation.SecureSummation` lets them go from call to call in one process, as the
summation of any algorithm that sees rows through sums; :func:`~dpalgos.secure.summation.secagg_guarantee` says what is
then proved, and :mod:`dpalgos.secure.noise_shares` proves it.

Threat model: honest-but-curious parties and server, up to C of the parties pooling what they know with the server. The
checks beyond that (who sent a wrong share, a replayed message, a share of the wrong kind) name faults; they do not make
the sum correct against a party that contributes false numbers.
"""
