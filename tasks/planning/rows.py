"""Rows of a plan, before its releases: normalised versions, public maps, partitions; known by references alone."""

from collections.abc import Sequence

from storage.refs import DatasetRef, ShardRef
from tasks.planning.configuration import AlgorithmField
from tasks.planning.releases import Planned, partition_key


class Shards(Planned):
    """The parties' training shards in order, and the rows held out.

    Attributes
    ----------
    training : tuple of ShardRef
    held_out : ShardRef or None
        Test rows: the data set's own, or a share of its training rows; None where all rows train.
    """

    training: tuple[ShardRef, ...]
    held_out: ShardRef | None = None

    @property
    def all(self) -> tuple[ShardRef, ...]:
        """The training shards and the held-out rows."""
        return self.training if self.held_out is None else (*self.training, self.held_out)

    def of(self, parties: Sequence[str]) -> list[ShardRef]:
        """Return the shards of some parties, in that order; ``"test"`` is the held-out rows."""
        known = {shard.party: shard for shard in self.all}
        return [known[party] for party in parties]


class NormalisedRows(Planned):
    """A version of a data set whose rows are mapped as a run wants them.

    Attributes
    ----------
    source : DatasetRef
        As registered.
    rows : DatasetRef
        The version that is made of it; it says by which map.
    """

    source: DatasetRef
    rows: DatasetRef

    @property
    def key(self) -> str:
        """The version."""
        return self.rows.version

    @property
    def inputs(self) -> tuple[str, ...]:
        """Nothing: what is registered is there."""
        return ()


class FeatureStep(Planned):
    """One public map that all rows of a run pass through before its releases read them.

    Attributes
    ----------
    key : str
        Identity of the map: what it is made of, its code, the maps before it.
    label : str
        For people.
    dimension : int
        Features that come out.
    takes, classes : int
        Features of the normalised rows that it is for, and their classes, at least 1.
    before : tuple of str
        Keys of the maps that rows pass before it.
    algorithm : AlgorithmSpec
        What makes it: from public parameters, from an encoder's file, or from public rows.
    file : str or None
        The encoder's file, an absolute path.
    public : NormalisedRows or None
        The public rows that it is learnt from.
    outside : str or None
        Whose rows the guarantee leaves out because of it, in one sentence.
    """

    key: str
    label: str
    dimension: int
    takes: int
    classes: int
    before: tuple[str, ...] = ()
    algorithm: AlgorithmField
    file: str | None = None
    public: NormalisedRows | None = None
    outside: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The maps before it, and the public rows that it is learnt from."""
        return self.before if self.public is None else (*self.before, self.public.key)


class MappedRows(Planned):
    """The rows of a version as public maps show them, which are kept where there is room.

    Attributes
    ----------
    source : DatasetRef
        Normalised.
    maps : tuple of FeatureStep
        In turn.
    """

    source: DatasetRef
    maps: tuple[FeatureStep, ...]

    @property
    def rows(self) -> DatasetRef:
        """The same version, seen through the maps."""
        return self.source.seen_through([one.key for one in self.maps], self.maps[-1].dimension)

    @property
    def key(self) -> str:
        """Of this version and these maps."""
        return "/".join([self.source.version, *(one.key for one in self.maps)])

    @property
    def inputs(self) -> tuple[str, ...]:
        """The normalised version and the maps."""
        return (self.source.version, *(one.key for one in self.maps))


class Partition(Planned):
    """The rows of each party, and the held-out ones.

    Attributes
    ----------
    name : str
        Identity of the partition.
    rows : DatasetRef
        The version that is divided.
    rule : AlgorithmSpec or None
        What divides the rows that train; None where the parties' own files do.
    files : tuple of (str, int)
        The parties' own files and how many rows each has, in order; empty where there is one owner.
    fraction : float
        Of the rows, held out.
    seed : int
        Public; decides which are.
    """

    name: str
    rows: DatasetRef
    rule: AlgorithmField | None
    files: tuple[tuple[str, int], ...]
    fraction: float
    seed: int

    @property
    def key(self) -> str:
        """Of this partition of this version."""
        return partition_key(self.rows.version, self.name)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The version that is divided."""
        return (self.rows.version,)

    @property
    def reads_rows(self) -> bool:
        """Whether only what rows contain decides whose they are: of public rows alone."""
        return self.rule is not None and bool(self.rule.build().content_dependent)


RowNode = NormalisedRows | FeatureStep | MappedRows | Partition
"""What is made of rows before a run's releases."""
