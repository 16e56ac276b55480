"""The federated protocol: the run, its plan and its evidence, derived alike by all from signed messages."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from dpalgos.algorithms import require_people
from dpalgos.guarantees import Neighbours, Trust
from dpalgos.models import Artefact
from dpalgos.registry import AlgorithmSpec, names
from dpalgos.rows import Ints
from storage.documents import parse_json
from storage.errors import RefusedError
from storage.layout import Layout
from storage.refs import DatasetRef, Labels, ShardRef, Visibility
from storage.releases import ReleaseStore
from storage.rounds import RoundStore
from tasks.datasets.scales import declared_schema
from tasks.federation.messages import Counted, Description, Purpose, Roster, Signed, WireModel, unpacked
from tasks.planning.configuration import DataSettings, Json, TrainingConfig, split_features
from tasks.planning.identity import identity
from tasks.planning.plans import RunPlan, description_run
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.planning.resolution import resolve_trust
from tasks.planning.rows import FeatureStep, Shards
from tasks.preparation.partitions import HELD_OUT, held_out_rows, private_fraction
from tasks.preparation.planned_maps import plan_features
from tasks.preparation.prepare import AllRows, prepare_over
from tasks.release import column_counts, column_pairs
from tasks.release.column_counts import counting_columns
from tasks.release.column_pairs import Pair, counting_pairs, named_pairs, require_readable
from tasks.release.rounds import numbers_of, release_blocks, result_of, step_lengths
from tasks.release.single import counting_release
from tasks.release.storing import manifest_of

_SHARED = (
    "unit",
    "rows_per_person",
    "dimension",
    "classes",
    "label_range",
    "image_shape",
    "columns",
    "normalisation",
    "table",
    "relation",
)
REFUSED_FIELDS = (
    "seed", "public_dataset", "partition", "partition_seed", "sizes", "rows_per_party", "horizon", "deadline", "tune",
    "counts_of", "basis", "tuned_on",
    "by",
)  # fmt: skip
"""Fields of a configuration that runs over separate parties refuse; ``unitball federate`` has no option for them."""


def described(roster: Roster, messages: Sequence[Signed]) -> tuple[Description, ...]:
    """Return what the parties have said of their rows, each signed by the roster's key, in the roster's order.

    Raises
    ------
    RefusedError
        If one is missing, is signed by another key, or their rows do not fit together, naming what differs.
    """
    descriptions = tuple(
        Description.model_validate_json(roster.check(one, Purpose.DESCRIPTION, "")) for one in messages
    )
    if tuple(one.party for one in descriptions) != roster.names or any(
        one.party != by.party for one, by in zip(descriptions, messages, strict=True)
    ):
        raise RefusedError(
            f"rows were described by {[one.party for one in descriptions]}, the roster names {roster.names}"
        )
    for name in _SHARED:
        values = {str(getattr(one, name)): one.party for one in descriptions}
        if len(values) > 1:
            differing = "; ".join(f"{party}: {value[:60]}" for value, party in values.items())
            raise RefusedError(f"the parties' rows differ in {name} ({differing}); ingest them under one schema")
    return descriptions


def run_name(config: TrainingConfig, messages: Sequence[Signed], counted: Counted | None = None) -> str:
    """Return the identity of a run: of its configuration, of what it counts, and of who brings which rows."""
    return identity(
        federated=config.model_dump(mode="json"),
        descriptions=[[one.party, one.body, one.key] for one in messages],
        **({} if counted is None else {"counted": counted.model_dump(mode="json")}),
    )


def test_fraction(config: TrainingConfig, descriptions: Sequence[Description]) -> float:
    """Return the share of its rows that each party holds out, by the rule of one root over all rows; public.

    Nothing of a party that has its own test part, which is held out instead.
    """
    rows = sum(one.rows for one in descriptions if not one.test_rows)
    if config.test_fraction is not None:
        return config.test_fraction
    return private_fraction(config, config.epsilon, config.stated_delta, rows, len(descriptions[0].classes))


def _partitioned(config: TrainingConfig, descriptions: Sequence[Description]) -> Iterator[tuple[str, int, int]]:
    """Yield each party, how many of its rows train and how many are held out."""
    fraction = test_fraction(config, descriptions)
    for party in descriptions:
        held = 0 if party.test_rows else held_out_rows(party.party, party.rows, fraction, config.partition_seed)
        if fraction and not party.test_rows and not 0 < held < party.rows:
            raise RefusedError(
                f"party {party.party} would hold out {held} of its {party.rows} {party.unit.several}; change "
                "--test-fraction, or give --no-evaluation"
            )
        yield party.party, party.rows - held, party.test_rows or held


def shared_rows(
    config: DataSettings, descriptions: Sequence[Description], run: str, features: Sequence[FeatureStep] = ()
) -> DatasetRef:
    """Return a reference that stands for all parties' rows together, as public maps show them."""
    first = descriptions[0]
    return DatasetRef(
        name=config.dataset,
        version=run[:32],
        account=config.dataset,
        visibility=Visibility.PRIVATE,
        rows=sum(one.rows for one in descriptions),
        test_rows=0,
        dimension=features[-1].dimension if features else first.dimension,
        labels=Labels.CLASSES if first.classes else Labels.REAL,
        classes=first.classes,
        label_range=first.label_range,
        image_shape=None if features else first.image_shape,
        normalisation=first.normalisation,
        person=first.person,
        rows_per_person=first.rows_per_person,
        maps=tuple(one.key for one in features),
        columns=() if features else first.columns,
    )


def federated_plan(
    config: TrainingConfig,
    descriptions: Sequence[Description],
    run: str,
    own: tuple[int, Shards] | None = None,
    counted: Counted | None = None,
) -> RunPlan:
    """Return the plan of a run over the parties' rows.

    Parameters
    ----------
    config : TrainingConfig
    descriptions : sequence of Description
    run : str
        Its identity, see :func:`run_name`.
    own : (int, Shards), optional
        A party's number and its own shards, which its part of the releases is bound to. Without them the plan is the
        one that all parties share: its keys name the session. Both have the same releases in the same order.
    counted : Counted, optional
        What is counted instead of training a model.

    Raises
    ------
    RefusedError
        For what is not supported for separate parties, naming it.
    ParameterError, UnknownNameError
        For names and parameters that do not fit.
    """
    require_carried(config)
    features = () if counted else plan_features(shared_rows(config, descriptions, run), config)
    rows = shared_rows(config, descriptions, run, features)
    number, partition = -1, run[:32]
    if own is not None:
        number, shards = own
        (shard,) = shards.training
        rows, partition = shard.dataset.model_copy(update={"rows": rows.rows}), shard.partition
    training, held_out = [], []
    for index, (party, trained, held) in enumerate(_partitioned(config, descriptions)):
        # A party's held-out rows are rows of nobody else's, in its own partition and in the shared one.
        apart = HELD_OUT if index == number else f"{party}.{HELD_OUT}"
        training.append(ShardRef(dataset=rows, partition=partition, party=party, rows=trained))
        if held:
            held_out.append(ShardRef(dataset=rows, partition=partition, party=apart, rows=held))
    if len({shard.party for shard in (*training, *held_out)}) < len(training) + len(held_out):
        raise RefusedError(
            f"a party's name equals that of held-out rows ({HELD_OUT!r} or 'NAME.{HELD_OUT}'); rename the party"
        )
    if counted is not None:
        plan = _counting_plan(config, descriptions, counted, training)
    elif 0 < len(held_out) < len(training):
        raise RefusedError("some parties have their own test rows and others hold out none; give --no-evaluation")
    else:
        relation = Neighbours(descriptions[0].relation)
        references = AllRows(training=training, held_out=held_out, relation=relation, features=features)
        plan = prepare_over(config, references).plan
    for release in plan.releases:
        if rows.person and release.reads_rows:
            require_people(*release.algorithm.classes())
        if len(release.parties) > 1 and release.reads_rows and not release.travels:
            raise RefusedError(
                f"separate parties cannot run {plan.system} under trust {plan.trust} with {len(release.parties)} "
                "parties. Supported are sums (under secagg, up to 64 parties) and models that each party trains alone "
                "(--trainer output-perturbation --trust local)"
            )
    return plan


def schema_of(counted: Counted) -> Json:
    """Return how raw rows become features, as a request has it; none where the parties declare no columns."""
    return dict(parse_json(counted.table, "a schema")) if counted.table else {}


def asked_pairs(counted: Counted, rows: DatasetRef) -> tuple[Pair, ...]:
    """Return the pairs of columns that are counted; none where single columns are.

    Raises
    ------
    InputError
        For a name that no column has.
    """
    several = counted.pairs or counted.by is not None
    return named_pairs(rows, counted.pairs, counted.by, schema_of(counted)) if several else ()


def _counting_plan(
    config: TrainingConfig, descriptions: Sequence[Description], counted: Counted, training: Sequence[ShardRef]
) -> RunPlan:
    """Return the plan of one release of counts over all parties' rows: single columns', or those of pairs.

    The cells are equal parts of the declared ranges, so that everybody derives them of what all have signed.
    """
    table, rows, relation = schema_of(counted), training[0].dataset, Neighbours(descriptions[0].relation)
    if table and identity(table=table) != descriptions[0].table:
        raise RefusedError("the request has another schema than the parties have signed")
    declared_schema(rows, table)
    pairs = asked_pairs(counted, rows)

    def spec_of(mu: float) -> AlgorithmSpec:
        return counting_pairs(rows, pairs, relation, mu, table=table) if pairs else counting_columns(rows, mu)

    trust = resolve_trust(config, str(config.trust))
    label = column_pairs.LABEL if pairs else column_counts.LABEL
    planned = counting_release(config, training, spec_of, label, trust, relation)
    if pairs:
        require_readable(rows, planned, table)
    assert config.epsilon is not None, "it is stated"
    return description_run(rows, planned, (), config.epsilon)


def require_carried(config: TrainingConfig) -> None:
    """Refuse what is not supported for separate parties.

    Raises
    ------
    RefusedError
        Naming it.
    """
    defaults = TrainingConfig.model_fields
    given = [name for name in REFUSED_FIELDS if getattr(config, name) != defaults[name].default]
    if config.trust in (None, Trust.CENTRAL):
        given.append(f"trust {config.trust or 'that is not named'}")
    if config.secure.absent:
        given.append("absent")
    if config.features is not None and split_features(config.features)[0] in names("encoders"):
        given.append("an encoder's file")
    if given:
        raise RefusedError(f"{', '.join(given)}: not supported for separate parties (page Train over separate parties)")


def own_releases(plan: RunPlan, shards: Shards) -> tuple[PlannedRelease, ...]:
    """Return the releases of a party's own plan that read its rows."""
    own = {shard.party for shard in shards.all}
    return tuple(release for release in plan.releases if release.reads_rows and own & set(release.parties))


def is_known_to_all(node: PlannedRelease | PlannedCombination) -> bool:
    """Whether every party comes to a node by itself: a map of public parameters, or a separate release."""
    return isinstance(node, PlannedRelease) and (not node.reads_rows or len(node.parties) == 1)


def made_of_sums(
    node: PlannedCombination, nodes: Mapping[str, PlannedRelease | PlannedCombination]
) -> list[PlannedRelease] | None:
    """Return the sums over all parties that a combination is made of; None where it takes anything else.

    Of such sums, or of none at all, every party makes it by itself, so that no other is put in its place. What is made
    of each party's own releases, which the others do not see, is sent.
    """
    parts = [nodes[key] for key in node.upstream]
    sums = [one for one in parts if isinstance(one, PlannedRelease) and len(one.parties) > 1]
    return sums if len(sums) == len(parts) else None


def sent_along(plan: RunPlan, release: PlannedRelease) -> list[PlannedRelease | PlannedCombination]:
    """Return what a party is sent so that it sees its rows through what a release of a plan uses, in order."""
    nodes = plan.training
    sent: list[PlannedRelease | PlannedCombination] = []
    for key in release.upstream:
        node = nodes[key]
        sums = made_of_sums(node, nodes) if isinstance(node, PlannedCombination) else None
        sent += [node] if sums is None else sums
    return [node for node in sent if not is_known_to_all(node)]


_NAME = "evidence"


def keys_of(releases: Iterable[PlannedRelease]) -> str:
    """Return what a party signs where it has charged releases."""
    return ",".join(release.key for release in releases)


def release_body(key: str, artefact: Artefact) -> str:
    """Return what a party signs of its own release."""
    return f"{key} {ReleaseStore.digest_of({}, artefact.arrays())}"


def federated_manifest(release: PlannedRelease, kind: str, took_part: Sequence[str]) -> Json:
    """Return what a release says of itself that separate parties have made, charged and signed."""
    own = {"charged_by": "each party, in its own account", "took_part": list(took_part)}
    return {**manifest_of(release, kind), **own}


def session_name(run: str, key: str, number: int) -> str:
    """Return what messages about a step, or a block of steps, of a release are signed for."""
    return f"{run}/{key}/{number}"


def sent_numbers(body: str, length: int, party: str) -> Ints:
    """Return the numbers of a party's noisy sum.

    Raises
    ------
    RefusedError
        If there are others than so many.
    """
    sent = unpacked(body)
    if len(sent) != 8 * length:
        raise RefusedError(f"party {party} has sent {len(sent) / 8:g} numbers in a sum of {length}")
    return numbers_of(sent)


class Evidence(WireModel):
    """The signatures for one release.

    Guarantee
    ---------
    Where :meth:`Evidence.run` and :meth:`Evidence.require` return, each party of the roster has signed what is public
    of its rows and that the run's releases are charged to its account. A party's own release is the one that it has
    signed; a sum under trust ``local`` is that of the signed noisy sums, added up once more. Of a secure sum each party
    that took part has signed its public key; that its numbers are those that the messages open is the coordinator's
    word.

    Attributes
    ----------
    config : TrainingConfig
    counted : Counted or None
    roster : Roster
    descriptions, charges : tuple of Signed
        One of each party, in the roster's order.
    messages : tuple of tuple of Signed
        A party's own release; or the noisy sums, step by step; or the public keys, block by block.
    took_part : tuple of str
    """

    config: TrainingConfig
    counted: Counted | None = None
    roster: Roster
    descriptions: tuple[Signed, ...]
    charges: tuple[Signed, ...]
    messages: tuple[tuple[Signed, ...], ...]
    took_part: tuple[str, ...]

    @classmethod
    def stored(cls, layout: Layout, key: str) -> bytes | None:
        """Return what is kept of a release, as JSON; None where nothing is."""
        return RoundStore(layout.round(key)).get(_NAME)

    def store(self, layout: Layout, key: str) -> None:
        """Keep it with the coordinator; what was stored first stays."""
        # An export holds it, which is verified by other versions, too.
        RoundStore(layout.round(key)).put(_NAME, self.model_dump_json().encode())

    def run(self) -> tuple[str, RunPlan]:
        """Return the run's name and its plan, derived from what the parties say of their rows.

        Raises
        ------
        RefusedError
            If a description does not bear its party's signature, or nothing is planned of them.
        """
        described_parties = described(self.roster, self.descriptions)
        name = run_name(self.config, self.descriptions, self.counted)
        return name, federated_plan(self.config, described_parties, name, counted=self.counted)

    def require(
        self,
        run: str,
        releases: Sequence[PlannedRelease],
        one: PlannedRelease,
        artefact: Artefact,
        used: Sequence[Artefact],
    ) -> None:
        """Check what the parties have signed of one of the run's releases.

        Parameters
        ----------
        run : str
        releases : sequence of PlannedRelease
            All of them, as they were charged.
        one : PlannedRelease
        artefact : Artefact
            What was made of the parties' messages.
        used : sequence of Artefact
            What it is planned to use, in order.

        Raises
        ------
        RefusedError
            Naming the party whose word is missing or says something else.
        """
        for party, body in self._said(self.charges, Purpose.CHARGE, run, self.roster.names).items():
            if body != keys_of(releases):
                raise RefusedError(f"party {party} charged different releases")
        if len(one.parties) == 1:
            (message,) = self.messages
            body = self._said(message, Purpose.RELEASE, run, one.parties)[one.parties[0]]
            if body != release_body(one.key, artefact) or self.took_part != one.parties:
                raise RefusedError(f"party {one.parties[0]} signed a different release than this {one.label}")
        elif one.masking is not None:
            for number, (message, _) in enumerate(zip(self.messages, release_blocks(one), strict=True)):
                self._said(message, Purpose.ADVERTISEMENT, session_name(run, one.key, number), self.took_part)
        else:
            self._require_sums(run, one, artefact, used)

    def _require_sums(self, run: str, one: PlannedRelease, artefact: Artefact, used: Sequence[Artefact]) -> None:
        sums = []
        for step, (message, length) in enumerate(zip(self.messages, step_lengths(one), strict=True)):
            parts = self._said(message, Purpose.SUM, session_name(run, one.key, step), self.roster.names)
            numbers = [sent_numbers(body, length, party) for party, body in parts.items()]
            sums.append(np.asarray(np.sum(numbers, axis=0, dtype=np.int64)))
        again = result_of(one, sums, used).arrays()
        same = {name: np.allclose(array, again[name], rtol=1e-6) for name, array in artefact.arrays().items()}
        if not all(same.values()) or self.took_part != self.roster.names:
            raise RefusedError(f"{one.label} does not follow from the sums that the parties signed")

    def _said(self, signed: Sequence[Signed], purpose: Purpose, run: str, parties: Sequence[str]) -> Mapping[str, str]:
        """Return what some parties have signed, by party; others may have, too."""
        descriptions = {one.party: self.roster.check(one, purpose, run) for one in signed}
        missing = [party for party in parties if party not in descriptions]
        if missing or len(descriptions) != len(signed):
            raise RefusedError(f"a {purpose} is signed twice or not at all by {', '.join(missing or descriptions)}")
        return descriptions
