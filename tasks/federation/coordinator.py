"""The coordinator's side: asks all parties, in order, and makes a model of what they send. It never sees a row.

Order and money. First all parties describe their rows, then all reserve in their own accounts, then all commit, then
messages leave. If a party refuses to reserve or does not answer, all others release their reservations and the run ends
without a charge. Once committed, a charge stands: what a party has drawn cannot be proved to be unseen.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NoReturn, cast

import numpy as np
from pydantic import BaseModel

from dpalgos.algorithms import fit
from dpalgos.guarantees import Trust
from dpalgos.models import Artefact
from dpalgos.parameters import ParameterError
from dpalgos.rows import Ints
from dpalgos.secure.primitives import TooFewPartiesError
from dpalgos.secure.rounds import AGREEMENT, SUM, Stage, run_rounds
from storage.documents import parse_json
from storage.encoder import encoder_of
from storage.errors import InputError, RefusedError, StorageError
from storage.refs import DatasetRef, ReleaseRef
from storage.rounds import RoundStore
from tasks.datasets.registration import find_dataset
from tasks.federation import protocol
from tasks.federation.messages import (
    CHARGED_BEFORE,
    Answer,
    Ask,
    Counted,
    Purpose,
    Request,
    Roster,
    Sent,
    Signed,
    Status,
    packed,
    unpacked,
)
from tasks.planning.configuration import TrainingConfig
from tasks.planning.graph import materialise
from tasks.planning.identity import identity
from tasks.planning.plans import RunPlan
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.planning.rows import Shards
from tasks.preparation.normalisation import make_normalised, plan_normalisation
from tasks.preparation.partitions import make_partition, plan_partition
from tasks.preparation.planned_maps import plan_mapping
from tasks.preparation.public_maps import make_map, make_mapped
from tasks.release.column_pairs import PairsPlan
from tasks.release.descriptions import Description, description_of
from tasks.release.door import combine
from tasks.release.metrics import measure_by_releases, measure_exactly
from tasks.release.pair_descriptions import PairsDescription, pairs_description_of
from tasks.release.readiness import Afterwards, require_ready
from tasks.release.rounds import ServerRounds, bytes_of, keep_sum, kept_sums, release_blocks, result_of, step_lengths
from tasks.release.single import SinglePlan
from tasks.release.storing import read_release, recorded_key, require_sent, store_release, stored_release
from tasks.runtime.settings import current_layout
from tasks.runtime.standing import AGAIN, note_elsewhere
from tasks.runtime.stores import open_releases
from tasks.tracking.reporting import Columns, keep_run
from tasks.tracking.results import Chained, RunResult, summarise
from tasks.tracking.runs import logging_afterwards

Transport = Callable[[str, Request], Answer | None]
"""Brings a request to a party, by name, and its answer back; None where none came in time."""


class Federated(BaseModel, frozen=True):
    """The result of a run over separate parties at the coordinator.

    Attributes
    ----------
    run : str
        Its identity.
    model : ReleaseRef
        What was made of the parties' releases or of their sums.
    algorithm, trust : str
    took_part : tuple of str
        Whose rows the model is of.
    epsilon, delta : float or None
        What the run was planned to cost each party.
    result : RunResult
        As logged to MLflow, like that of a run in one root.
    """

    run: str
    model: ReleaseRef
    algorithm: str
    trust: str
    took_part: tuple[str, ...]
    epsilon: float | None
    delta: float
    result: RunResult


def federate(
    config: TrainingConfig,
    roster: Roster,
    transport: Transport,
    *,
    measured_on: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Federated:
    """Train one model over the rows of separate parties and log it; asked again, it goes on where it stopped.

    Parameters
    ----------
    config : TrainingConfig
        ``secagg``, where no trust is named: secure sums, a projection's and a trainer's, as many as it has steps.
        ``local``: each party releases its own models, or its own noisy sums. Where no colluders are named, as many are
        tolerated as the roster's floors ask for.
    roster : Roster
    transport : callable
    measured_on : str, optional
        A public data set of the coordinator's root on whose rows the model is measured exactly; no party holds out
        rows then. Without it the parties' held-out rows are counted with noise, as in one root.
    progress : callable
        Called with a line about what is being done.

    Raises
    ------
    RefusedError
        If a party refuses, naming it and why. What others had reserved is returned.
    StorageError
        If too few parties answer; a run that was committed goes on when it is asked again.
    dpalgos.secure.primitives.SecureAggregationError
        If a message breaks the protocol, or fewer parties are left than are tolerated.
    """
    config = _settled(config, roster, evaluation=config.evaluation and measured_on is None)
    asking = _Asking(config, roster, transport, progress)
    rows = asking.featured()
    public = None if measured_on is None else _public_rows(measured_on, rows, asking.plan)
    plan, releases = asking.plan, asking.carry_out(rows)
    models = {name: [releases[key] for key in path] for name, path in plan.paths().items()}
    evaluation = (
        measure_by_releases(plan, models, releases) if public is None else measure_exactly(models, public, plan)
    )
    summary = summarise(plan, rows, evaluation, [releases[key] for key in plan.training])
    result = keep_run(config, Chained(rows, plan, summary, models), asking.columns)
    return Federated(
        run=asking.run,
        model=next(iter(models.values()))[-1],
        algorithm=plan.system,
        trust=plan.trust,
        took_part=asking.took_part(plan.models),
        epsilon=plan.epsilon,
        delta=plan.delta,
        result=result,
    )


def federate_counts(
    config: TrainingConfig,
    counted: Counted,
    roster: Roster,
    transport: Transport,
    *,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[SinglePlan | PairsPlan, Description | PairsDescription]:
    """Describe the rows of separate parties: one release of counts of all columns, or of pairs of columns.

    Each party charges it to its own account. Asked again, it goes on where it stopped. All rows are counted that are in
    no party's test file.

    Parameters
    ----------
    config : TrainingConfig
        Of which dataset, epsilon, delta, trust, the fault model and the replicate are read.
    counted : Counted
    roster, transport, progress
        As for :func:`federate`.

    Returns
    -------
    plan, description

    Raises
    ------
    RefusedError, StorageError, dpalgos.secure.primitives.SecureAggregationError
        As :func:`federate` does.
    InputError
        If no columns are declared, or a name is unknown.
    """
    config = _settled(config, roster, evaluation=False).model_copy(update={"test_fraction": 0.0})
    asking = _Asking(config, roster, transport, progress, counted)
    rows = asking.featured()
    asking.carry_out(rows)
    assert asking.counted is not None, "it is asked for"
    assert config.epsilon is not None, "it is stated"
    single = SinglePlan(
        dataset=rows,
        partition=None,
        planned=asking.plan.evaluations[0],
        epsilon=config.epsilon,
        at=lambda epsilon: single,
        table=protocol.schema_of(asking.counted),
    )
    pairs = protocol.asked_pairs(asking.counted, rows)
    if not pairs:
        return single, description_of(single, paid=False)
    plan = PairsPlan(counts=single, pairs=pairs, one_way=())
    return plan, pairs_description_of(plan, paid=False)


def _settled(config: TrainingConfig, roster: Roster, *, evaluation: bool) -> TrainingConfig:
    """Return a configuration with its trust model, and with as many colluders as the roster's floors ask for."""
    config = config.model_copy(update={"trust": config.trust or str(Trust.SECAGG), "evaluation": evaluation})
    if config.trust == Trust.SECAGG and "colluders" not in config.secure.model_fields_set:
        least = roster.floors.colluders_of(len(roster.parties))
        config = config.model_copy(update={"secure": config.secure.model_copy(update={"colluders": least})})
    return config


def _public_rows(name: str, rows: DatasetRef, plan: RunPlan) -> Shards:
    """Return a public set's test rows, or all of it where it has none, as the model takes them.

    Raises
    ------
    RefusedError
        If it is private.
    InputError
        If its rows are of another kind than the parties'.
    """
    registered = find_dataset(name)
    if registered.private:
        raise RefusedError(f"{name} is private, and private rows need a charged release; give a public set")
    mapped = make_normalised(plan_normalisation(registered, plan.normalisation))
    if plan.features:
        mapped = make_mapped(plan_mapping(mapped, plan.features))
    if (mapped.dimension, mapped.classes, mapped.labels) != (rows.dimension, rows.classes, rows.labels):
        raise InputError(
            f"{name} has {mapped.dimension} features and classes {', '.join(mapped.classes)}, but the parties' rows "
            f"have {rows.dimension} and {', '.join(rows.classes)}; choose a set of the same kind"
        )
    if plan.column_map is not None and mapped.columns != rows.columns:
        raise InputError(
            f"the columns of {name} differ from those of the parties' rows, and the model uses columns; ingest the "
            "set under the parties' schema"
        )
    partitioned = make_partition(plan_partition(mapped, TrainingConfig(dataset=name, parties=1, test_fraction=0.0)))
    return Shards(training=partitioned.training, held_out=partitioned.held_out or partitioned.training[0])


_PARTIES = "parties"


class _Asking:
    """One run, planned from what the parties say is public of their rows, with what is known of it so far.

    Raises
    ------
    RefusedError
        If the rows do not fit together, or what is asked for is not carried out over them.
    """

    def __init__(
        self,
        config: TrainingConfig,
        roster: Roster,
        transport: Transport,
        progress: Callable[[str], None],
        counted: Counted | None = None,
    ) -> None:
        self._config, self._roster, self._transport, self._progress = config, roster, transport, progress
        self.counted = counted
        self.said: tuple[Signed, ...] = ()
        answers = self.ask_all(Ask.DESCRIBE)
        self.said = tuple(answer.signed for answer in answers.values() if answer.signed is not None)
        self._found = protocol.described(self._roster, self.said)
        table = unpacked(next(iter(answers.values())).message)
        schema = parse_json(table, "a schema") if table else None
        if (identity(table=schema) if table else "") != self._found[0].table:
            raise RefusedError(f"party {self._roster.names[0]} sent a schema that differs from the one it signed")
        if counted is not None:
            self.counted = counted.model_copy(update={"table": table.decode()})
        self.run = protocol.run_name(self._config, self.said, self.counted)
        self.plan = protocol.federated_plan(self._config, self._found, self.run, counted=self.counted)
        self.columns = Columns(self._found[0].dimension, encoder_of(schema))

    # ── before anything is charged ───────────────────────────────────────────────────────────────────────────────────

    def featured(self) -> DatasetRef:
        """Make the public maps that rows pass through here too, and return what stands for all of these rows."""
        for feature in self.plan.features:
            make_map(feature)
        return protocol.shared_rows(self._config, self._found, self.run, self.plan.features)

    def reserve(self) -> None:
        """Let all parties reserve, or none."""
        note_elsewhere(
            _PARTIES,
            f"no party was charged; their reservations for run {self.run} remain: run the command again, or let each "
            f"party release its own (unitball party return DATASET {self.run})",
        )
        for release in self.plan.projections:
            if not release.reads_rows:
                _store_public_map(release)
        try:
            answers = self.ask_all(Ask.RESERVE)
            for party, answer in answers.items():
                if unpacked(answer.message).decode() != protocol.keys_of(self.plan.releases):
                    raise RefusedError(
                        f"party {party} derives a different plan, because it runs another version of Unitball; "
                        "install the same version"
                    )
            before = [party for party, answer in answers.items() if answer.reason == CHARGED_BEFORE]
            if before:
                self._progress(f"already charged for this run, at no further cost: {', '.join(before)}")
        except (RefusedError, StorageError):
            self._ask(dict.fromkeys(self._roster.names, self.request(Ask.RETURN)))
            raise

    def commit(self) -> None:
        """Let all parties charge the run, and keep their signatures."""
        note_elsewhere(_PARTIES, f"the charges to the parties' accounts for run {self.run} remain: {AGAIN}")
        answers = self.ask_all(Ask.COMMIT)
        self._charges = tuple(self.require(answer, Purpose.CHARGE, self.run) for answer in answers.values())

    def require(self, answer: Answer, purpose: Purpose, run: str) -> Signed:
        """Return what a party has signed.

        Raises
        ------
        RefusedError
            If it has signed nothing, or not for this.
        """
        if answer.signed is None or answer.signed.party != answer.party:
            raise RefusedError(f"party {answer.party} has not signed its {purpose}")
        self._roster.check(answer.signed, purpose, run)
        return answer.signed

    def carry_out(self, rows: DatasetRef) -> dict[str, ReleaseRef]:
        """Let all parties reserve and commit, and make all of the plan; return the releases by key.

        Raises
        ------
        RefusedError, StorageError, dpalgos.secure.primitives.SecureAggregationError
            As :func:`federate` does.
        """
        # What the coordinator does once the parties have paid, tried before they do.
        with logging_afterwards(rows):
            require_ready(Afterwards(current_layout()))
        self.reserve()
        self.commit()
        # The rows are with their owners.
        try:
            return materialise(self.plan.nodes, self.make, at_hand=self.plan.partitions)
        except TooFewPartiesError as error:
            # Of a committed run the sum is still to be opened: no other identity is needed, nor another charge.
            error.args = (
                f"{error.remaining} parties have answered, {error.needed} are needed; the charges remain. Start "
                "the missing parties again (unitball party serve), and run the same command: it resumes",
            )
            raise

    # ── releases ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def make(self, node: PlannedRelease | PlannedCombination, inputs: list[ReleaseRef]) -> ReleaseRef:
        """Let the parties make a release of the plan, unless it is here, or put releases together."""
        if isinstance(node, PlannedCombination):
            return combine(node, inputs)
        if not open_releases().exists(node.key):
            if len(node.parties) == 1:
                self._make_alone(
                    next(one for one in (self.plan.projections, self.plan.models, self.plan.evaluations) if node in one)
                )
            else:
                sums, took_part = self._sums(node)
                steps = len(release_blocks(node) if node.masking is not None else sums)
                messages = [self.signed(node, number) for number in range(steps)]
                self._store(node, result_of(node, sums), took_part, messages)
        return cast(ReleaseRef, stored_release(node))

    def _make_alone(self, releases: Sequence[PlannedRelease]) -> None:
        """Let the parties make their own of some releases, all at once."""
        alone = [release for release in releases if release.reads_rows and len(release.parties) == 1]
        missing = {release.parties[0]: release for release in alone if not open_releases().exists(release.key)}
        answers = self._all({party: self.request(Ask.RELEASE, release) for party, release in missing.items()})
        for party, release in missing.items():
            said = self.require(answers[party], Purpose.RELEASE, self.run)
            self._store(release, _checked(release, answers[party]), (party,), [(said,)])

    def took_part(self, releases: Sequence[PlannedRelease]) -> tuple[str, ...]:
        """Return whose rows some releases are of, in the roster's order."""
        store = open_releases()
        present = {party for one in releases for party in store.manifest(one.key)["took_part"]}
        return tuple(name for name in self._roster.names if name in present)

    def _store(
        self,
        release: PlannedRelease,
        artefact: Artefact,
        took_part: Sequence[str],
        messages: Sequence[tuple[Signed, ...]],
    ) -> None:
        """Store what parties have released: they have charged it, each in its own account, and have signed so."""
        evidence = protocol.Evidence(
            config=self._config,
            counted=self.counted,
            roster=self._roster,
            descriptions=self.said,
            charges=self._charges,
            messages=tuple(messages),
            took_part=tuple(took_part),
        )
        used = [read_release(ReleaseRef(key=key, kind="", party="")) for key in release.upstream]
        evidence.require(self.run, self.plan.releases, release, artefact, used)
        evidence.store(current_layout(), release.key)
        open_releases().write(
            release.key, protocol.federated_manifest(release, artefact.kind, took_part), artefact.arrays()
        )

    def kept(self, release: PlannedRelease, number: int, messages: Sequence[Signed]) -> tuple[Signed, ...]:
        """Keep what parties have signed of a step, or of a block of steps, and return what was kept first."""
        written = json.dumps([one.model_dump() for one in messages]).encode()
        RoundStore(current_layout().round(release.key)).put(f"signed-{number}", written)
        return self.signed(release, number)

    def signed(self, release: PlannedRelease, number: int) -> tuple[Signed, ...]:
        """Return what was kept of what parties have signed of a step, or of a block of steps.

        Raises
        ------
        StorageError
            If nothing was kept.
        """
        kept = RoundStore(current_layout().round(release.key)).require(f"signed-{number}")
        return tuple(Signed.model_validate(one) for one in json.loads(kept))

    def _sums(self, release: PlannedRelease) -> tuple[list[Ints], Sequence[str]]:
        """Return the sums of a release, and whose numbers the last one holds."""
        if release.masking is not None:
            return self._secure_sums(release)
        sums = kept_sums(release)
        for step, length in list(enumerate(step_lengths(release)))[len(sums) :]:
            answers = self.ask_all(Ask.SUM, release, step=step, sum_before=_last(sums))
            session = protocol.session_name(self.run, release.key, step)
            messages = [self.require(answer, Purpose.SUM, session) for answer in answers.values()]
            parts = [protocol.sent_numbers(one.body, length, one.party) for one in self.kept(release, step, messages)]
            self._progress(f"sum {step + 1} of {len(step_lengths(release))}")
            sums.append(keep_sum(release, step, np.sum(parts, axis=0, dtype=np.int64)))
        return sums, self._roster.names

    def _secure_sums(self, release: PlannedRelease) -> tuple[list[Ints], Sequence[str]]:
        """Carry out the rounds of secure sums; parties that are lost are done without, as far as is tolerated."""
        sums, there = kept_sums(release), self._roster.names
        blocks, total = release_blocks(release), len(step_lengths(release))
        for number, block in enumerate(blocks):
            server = ServerRounds(release, number)
            server.open()
            if not server.agreed and len(sums) < block.first + block.steps:
                run_rounds(_Posted(self, release, number, server, there), AGREEMENT)
            for step in range(block.steps):
                rounds = ServerRounds(release, number, step)
                if block.first + step == len(sums):
                    opened = run_rounds(_Posted(self, release, number, rounds, there, _last(sums)), SUM)
                    assert opened is not None
                    sums.append(opened)
                    self._progress(f"sum {len(sums)} of {total}")
                # Who was lost once is lost for the release: it was not told the sums that follow.
                there = self.named(release, rounds.survivors)
        return sums, there

    def named(self, release: PlannedRelease, parties: Sequence[str]) -> tuple[str, ...]:
        """Return the roster's names of some of a release's parties."""
        return tuple(self._roster.names[release.parties.index(party)] for party in parties)

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def ask_all(
        self, ask: Ask, release: PlannedRelease | None = None, *, step: int = 0, sum_before: str = ""
    ) -> dict[str, Answer]:
        """Ask every party the same, and return what they answer.

        Raises
        ------
        RefusedError
            If one refuses.
        StorageError
            If one does not answer, or cannot.
        """
        request = self.request(ask, release, step=step, sum_before=sum_before)
        return self._all(dict.fromkeys(self._roster.names, request))

    def _all(self, requests: Mapping[str, Request]) -> dict[str, Answer]:
        answers = self._unrefused(requests)
        missing = [party for party in requests if party not in answers or answers[party].status is not Status.DONE]
        if missing:
            reasons = "; ".join(answers[party].reason for party in missing if party in answers)
            (ask,) = {request.ask for request in requests.values()}
            raise StorageError(
                f"{', '.join(missing)} did not {ask}{f' ({reasons})' if reasons else ''}; start it (unitball party "
                "serve) and repeat the command: the run continues where it stopped"
            )
        return answers

    def some(self, stage: Stage, requests: Mapping[str, Request]) -> list[Answer]:
        """Ask parties and return the answers of those that gave one.

        Raises
        ------
        RefusedError
            If one refuses.
        """
        came = [answer for answer in self._unrefused(requests).values() if answer.status is Status.DONE]
        if lost := set(requests) - {answer.party for answer in came}:
            self._progress(f"{stage}: {', '.join(sorted(lost))} did not answer")
        return came

    def _ask(self, requests: Mapping[str, Request]) -> dict[str, Answer | None]:
        asks = {str(request.ask) for request in requests.values()}
        self._progress(f"{', '.join(sorted(asks))}: {', '.join(requests)}")
        with ThreadPoolExecutor(max(len(requests), 1)) as pool:
            return dict(zip(requests, pool.map(self._transport, requests, requests.values()), strict=True))

    def _unrefused(self, requests: Mapping[str, Request]) -> dict[str, Answer]:
        answers = {party: answer for party, answer in self._ask(requests).items() if answer is not None}
        for answer in answers.values():
            if answer.status is Status.REFUSED:
                raise RefusedError(answer.reason)
        return answers

    def request(
        self,
        ask: Ask,
        release: PlannedRelease | None = None,
        *,
        step: int = 0,
        sum_before: str = "",
        block: int = 0,
        message: str = "",
        advertisements: tuple[Signed, ...] = (),
    ) -> Request:
        """Return a request: with the first look at its rows, a party is sent what they are seen through."""
        looks = ask in (Ask.RELEASE, Ask.SUM, Ask.MASK) and not sum_before
        return Request(
            ask=ask,
            config=self._config,
            counted=self.counted,
            descriptions=self.said,
            release=0 if release is None else self.plan.releases.index(release),
            block=block,
            step=step,
            sum_before=sum_before,
            upstream=self._upstream(release) if release is not None and looks else (),
            message=message,
            advertisements=advertisements,
        )

    def _upstream(self, release: PlannedRelease) -> tuple[Sent, ...]:
        return tuple(Sent.stored(node.key) for node in protocol.sent_along(self.plan, release))


def _last(sums: Sequence[Ints]) -> str:
    """Return the last sum as it travels."""
    return packed(bytes_of(sums[-1])) if sums else ""


@dataclass
class _Posted:
    """Messages of a secure sum that travel over the transport (a :class:`dpalgos.secure.rounds.Transport`)."""

    asking: _Asking
    release: PlannedRelease
    block: int
    server: ServerRounds
    there: Sequence[str]
    sum_before: str = ""
    advertisements: tuple[Signed, ...] = ()

    def ask(self, stage: Stage) -> list[bytes]:
        """Bring the server's requests to those parties that are still there."""
        names = self.asking.named(self.release, self.release.parties)
        before = self.sum_before if stage is Stage.MASK else ""
        requests = {
            names[number]: self.asking.request(
                Ask(stage.value),
                self.release,
                sum_before=before,
                block=self.block,
                message=message.decode(),
                advertisements=self.advertisements,
            )
            for number, message in self.server.requests(stage)
            if names[number] in self.there
        }
        came = self.asking.some(stage, requests)
        if stage is Stage.ADVERTISE:
            session = protocol.session_name(self.asking.run, self.release.key, self.block)
            self.advertisements = tuple(self.asking.require(one, Purpose.ADVERTISEMENT, session) for one in came)
        if stage is Stage.SHARE:
            # Whose keys these are was decided before they were shown.
            self.asking.kept(self.release, self.block, self.advertisements)
        return [answer.message.encode() for answer in came]

    def decide(self, stage: Stage, answers: list[bytes]) -> Ints | None:
        """Let the server decide; after the last stage, return the sum as the algorithm takes it."""
        return self.server.decide(stage, answers)


class _NoNoise:
    """The noise of a map that everybody has to make alike: none."""

    def stream(self, step: str, value: object) -> NoReturn:
        """Refuse."""
        del step, value
        raise ParameterError("it is random, and each party would draw a different map")


def _store_public_map(release: PlannedRelease) -> None:
    """Make a map from public parameters, as each party does by itself.

    Raises
    ------
    RefusedError
        If it is drawn: the parties would not make the same one.
    """
    try:
        made = fit(release.build(), (), release.setting, _NoNoise())
    except ParameterError as error:
        raise RefusedError(f"{release.name} cannot be used by separate parties: {error}; try --features") from None
    store_release(release, made, {})


def _checked(planned: PlannedRelease, answer: Answer) -> Artefact:
    """Return the artefact of a party's release, if it is of the algorithm and at the budget that were planned.

    Raises
    ------
    RefusedError
        If it is another release.
    storage.errors.DamagedError
        If its digests do not match.
    """
    if answer.sent is None:
        raise RefusedError(f"party {answer.party} has sent no release")
    sent = manifest, _ = answer.sent.opened(answer.party)
    wanted = planned.model_dump(mode="json", include={"algorithm", "budget", "setting", "trust", "parties"})
    if any(manifest.get(name) != value for name, value in wanted.items()):
        raise RefusedError(f"party {answer.party} sent a release that differs from the planned one")
    try:
        artefact: Artefact = require_sent(planned, [planned], recorded_key(manifest), sent)
    except (ParameterError, RefusedError) as error:
        raise RefusedError(f"party {answer.party}: {error}") from None
    return artefact
