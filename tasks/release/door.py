"""The one door of releases: declare, charge, show rows, draw, store; exactly once, also after a crash."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import cast

from threadpoolctl import threadpool_limits

from dpalgos.algorithms import Algorithm, Diagnosing, SumAlgorithm, fit, is_sum_algorithm
from dpalgos.features.public_map import PublicMap
from dpalgos.keystream import KeyedNoise
from dpalgos.made_of import MadeOf
from dpalgos.models import Artefact
from dpalgos.parameters import ParameterError
from dpalgos.resources import claim, set_memory_limit
from dpalgos.rows import Rows
from storage.confined import kept_memory
from storage.errors import RefusedError
from storage.refs import ReleaseRef, ShardRef
from tasks.accounts.ledger import open_ledger
from tasks.planning.configuration import Json
from tasks.planning.nights import PlannedNight
from tasks.planning.releases import PlannedCombination, PlannedRelease
from tasks.preparation.public_maps import public_map
from tasks.preparation.streams import (
    require_current,
)
from tasks.release import checkpoints
from tasks.release.admission import ChargedPlan, admit, admit_plan, require_upstream
from tasks.release.deadlines import wait_for_deadline
from tasks.release.night_rows import NightRows
from tasks.release.noise_secrets import noises_of
from tasks.release.redaction import redacted
from tasks.release.seen_rows import RowMaps, algorithm_of, fitting_maps, rows_of
from tasks.release.storing import StoredRecord, read_release, store_combination, store_release, stored_release
from tasks.runtime.progress import report_progress

# One thread a matrix product: the parties' tasks run side by side already, and results do not depend on the machine's
# number of cores, so that a retry elsewhere meets the same bits and the same noise.
threadpool_limits(limits=1, user_api="blas")


def charge_plan(plan: ChargedPlan, shards: Sequence[ShardRef]) -> Json:
    """Charge all releases of a run together, before any of its rows is read and any noise exists.

    Raises
    ------
    RefusedError
        If something may not read these rows, or the cap would be exceeded; nothing is charged then.
    """
    return admit_plan(plan, shards)


class OpenRelease:
    """A release that was admitted and charged: hands out rows and noise, takes one artefact and stores it once.

    Made by :func:`open_release`.

    Attributes
    ----------
    planned : PlannedRelease
    key : str
    stored : ReleaseRef or None
        Where it is stored already, that is the release, and nothing is to be made.
    """

    def __init__(
        self,
        planned: PlannedRelease,
        key: str,
        shards: Sequence[ShardRef],
        maps: RowMaps,
        stored: ReleaseRef | None,
    ) -> None:
        self.planned, self.key, self.stored = planned, key, stored
        self._shards, self._maps = shards, maps
        self._diagnostics: dict[str, float] = {}
        self._made_of: MadeOf | None = None
        self._begun = time.monotonic() if shards and stored is None else None

    @cached_property
    def rows(self) -> list[Rows]:
        """The shards' rows, seen through the upstream artefacts."""
        self._require_unmade()
        if isinstance(self.planned, PlannedNight):
            return [NightRows(self.planned, shard, self._maps) for shard in self._shards]
        return [rows_of(shard, self._maps, self.planned.setting.dimension, self.planned) for shard in self._shards]

    @cached_property
    def noises(self) -> list[KeyedNoise]:
        """The noise, one source a maker; a part of the parties gets its own."""
        self._require_unmade()
        contributors = self.planned.noise_contributors
        own = contributors if self._whole else tuple(shard.party for shard in self._shards)
        if not set(own) <= set(contributors):
            raise RefusedError(
                f"{self.planned.label} draws the noise of {contributors[0]!r} for all parties, not for one of them"
            )
        return noises_of(self.planned, self.key, own, open_ledger())

    @property
    def _whole(self) -> bool:
        # What reads no rows is given none.
        return not self.planned.reads_rows or tuple(shard.party for shard in self._shards) == self.planned.parties

    def _require_unmade(self) -> None:
        # What is stored was not admitted again: there is nothing to make, so nothing is handed out.
        if self.stored is not None:
            raise RefusedError(f"{self.planned.label} is already stored; a release is stored only once")

    def _require_whole(self) -> None:
        if not self._whole:
            parties = ", ".join(shard.party for shard in self._shards) or "none"
            raise RefusedError(
                f"{self.planned.label} reads the rows of the parties {', '.join(self.planned.parties)}, in this order, "
                f"and is given those of {parties}"
            )

    def fit(self) -> Artefact:
        """Run the planned algorithm over the rows; numbers about its work are kept where the rows are public."""
        planned, setting = self.planned, self.planned.setting
        self._require_whole()
        algorithm = algorithm_of(planned)
        if isinstance(algorithm, PublicMap) and algorithm.kept:
            return public_map(planned.algorithm, setting)
        # Parties' releases are made side by side; those that hold their rows take turns where not all fit.
        with claim(algorithm.work(setting).held):
            return self._fitted(algorithm)

    def _fitted(self, algorithm: Algorithm) -> Artefact:
        planned, setting = self.planned, self.planned.setting
        if isinstance(algorithm, Diagnosing) and self._shards and not self._shards[0].dataset.private:
            diagnosed, self._diagnostics = algorithm.diagnostics(self.rows, setting, self.noises[0])
            return diagnosed
        summation = None
        if is_sum_algorithm(algorithm):
            self._made_of = MadeOf()
            sums, record = cast(SumAlgorithm, algorithm), StoredRecord(self.key, planned.parties)
            summation = planned.trust_model().summation(sums, setting, self.noises, self.key, record)
        noted = None if self._made_of is None else self._made_of.add
        return fit(algorithm, self.rows, setting, self.noises[0], summation, self._say_step, noted)

    def _say_step(self, done: int, steps: int) -> None:
        """Say which of the planned steps is done; not where nothing may show before a deadline."""
        if steps > 1 and self.planned.deadline is None:
            report_progress("steps", f"{self.planned.label}, {done} of {steps}", done / steps)

    def await_deadline(self) -> None:
        """Wait, once, until what was made of rows may show: in the store, in a message or as the end of a task.

        Raises
        ------
        DeadlineMissError
            If the planned deadline has passed.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            wait_for_deadline(self.planned, begun)

    def store(self, artefact: Artefact, made_of: MadeOf | None = None) -> ReleaseRef:
        """Store the artefact as the release.

        Parameters
        ----------
        artefact : Artefact
        made_of : MadeOf, optional
            What it was made of, where that did not happen in :meth:`fit`.

        Raises
        ------
        RefusedError
            If one was stored, only some of the parties' rows were handed out, or the deadline has passed.
        """
        self._require_unmade()
        if self._shards:
            self._require_whole()
        self.await_deadline()
        self.stored = store_release(self.planned, artefact, self._diagnostics, made_of or self._made_of)
        return self.stored


@contextmanager
def open_release(
    planned: PlannedRelease, shards: Sequence[ShardRef] = (), upstream: Sequence[ReleaseRef] = ()
) -> Iterator[OpenRelease]:
    """Declare and charge a release, and hand out what it is made of; exactly once, also after a crash.

    The first stored copy is the release. Where none is stored it is made; the charge is on disk before any row is read
    and any noise exists, and the noise is keyed by the party's secret, the identity and the value it hides, so that a
    retry repeats the bytes.

    Parameters
    ----------
    planned : PlannedRelease
    shards : sequence of ShardRef
        The shards it reads, in the order of its parties. Those of some of its parties only: these do their part, where
        the whole was charged before. None: the server, which stores what parties have sent.
    upstream : sequence of ReleaseRef
        The artefacts its rows are seen through, in turn: a projection, and for an evaluation the model.

    Raises
    ------
    RefusedError
        If it may not read these rows, or was not charged and the cap does not admit it.
    SecretError
        If it was charged under a secret that is lost: noise is never redrawn for a charged release.
    DeadlineMissError
        If it was not made within its deadline, now or before.
    RedactedError
        If something else goes wrong on private rows: the error may hold their values.
    """
    stored = stored_release(planned)
    set_memory_limit(kept_memory())
    maps: RowMaps = ()
    if stored is None:
        # Declare: from public facts alone.
        planned.guarantee()
        checkpoints.reached("declared")
        wait_for_deadline(planned)
        if shards:
            require_upstream(planned, upstream)
            maps = fitting_maps(planned, shards, upstream)
        if isinstance(planned, PlannedNight) and shards:
            require_current(planned, shards[0].dataset)
        admit([planned], shards, run=planned.name)
        checkpoints.reached("charged")
    with redacted(planned.key, planned.label, private=any(shard.dataset.private for shard in shards)):
        # The clock starts when rows can be read and not before: waiting for the ledger is no work on rows.
        release = OpenRelease(planned, planned.key, shards, maps, stored)
        yield release
        release.await_deadline()


def make_release(
    planned: PlannedRelease, shards: Sequence[ShardRef], upstream: Sequence[ReleaseRef] = ()
) -> ReleaseRef:
    """Make one release by running its algorithm; return it where it is stored already."""
    with open_release(planned, shards, upstream) as release:
        return release.stored or release.store(release.fit())


def combine(combination: PlannedCombination, releases: Sequence[ReleaseRef]) -> ReleaseRef:
    """Combine releases into one and store it.

    Raises
    ------
    RefusedError
        If the releases are not those that the combination was planned of.
    ParameterError
        If the aggregator does not combine releases of this kind.
    """
    require_upstream(combination, releases)
    combines, artefacts = combination.build().combines, [read_release(release) for release in releases]
    if other := {artefact.kind for artefact in artefacts} - {combines}:
        raise ParameterError(
            f"{combination.algorithm.name} combines releases of kind {combines}, and the parties' releases have the "
            f"kind {', '.join(sorted(other))}; train a linear kernel (--param kernel=linear), or all rows together "
            "(--trust central)"
        )
    return store_combination(combination, combination.combine(artefacts))
