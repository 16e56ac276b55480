"""Planned releases, and what the server makes of them: identity, price, and whose rows they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Self, cast

import numpy as np
from pydantic import BaseModel, Field, model_validator

from dpalgos.accounting.costs import loss_of_deadline_misses
from dpalgos.aggregators import Aggregator
from dpalgos.algorithms import Algorithm
from dpalgos.guarantees import (
    Guarantee,
)
from dpalgos.models import Artefact
from dpalgos.parameters import ParameterError
from dpalgos.registry import lookup
from dpalgos.secure.summation import Masking
from dpalgos.sentences import coded
from dpalgos.trust.model import TrustModel
from tasks.planning.configuration import AlgorithmField, LossField, SettingField
from tasks.planning.identity import identity


def partition_key(version: str, partition: str) -> str:
    """Return the key of a partition of a data set's version."""
    return f"{version}/{partition}"


class Planned(BaseModel, frozen=True, extra="forbid"):
    """A part of a plan."""


class Deadline(Planned):
    """The time at which a release of private rows appears, for any rows, and the nodes made before it.

    Attributes
    ----------
    seconds : float
        From the moment at which rows may be read; public, as everything that it was chosen by must be.
    miss : float
        Declared bound on the probability of a deadline miss: that on any rows an
        attempt at the release takes longer, or that what is made of the rows before (normalised, seen through public
        maps, partitioned) does, above 0. Attempts that are cut short for reasons outside the rows are to be counted in.
    """

    seconds: float
    miss: float

    def misses(self, attempts: int) -> float:
        """Return a bound on the probability that a release, or what is made of its rows before, misses a deadline.

        Everything that is done with the rows has its own clock: the preparation, once for all releases of a run,
        and then each attempt. If the preparation is late, no release is attempted. On any rows each of these clocks is
        missed with probability ``miss`` at most, given that those before were kept; so the probability of observing
        anything except the release at its instant is at most the sum of these, and
        :func:`dpalgos.accounting.costs.loss_of_deadline_misses` holds with it. The first release of a run that reads a
        party's rows has to count the preparation. Each does: no release then rests on what others have paid.

        Parameters
        ----------
        attempts : int
            Tasks that each may miss the deadline: one, or one per party.
        """
        return (attempts + 1) * self.miss


class _Identified(Planned):
    """Object with an identity: a digest of everything that it says but its label.

    Attributes
    ----------
    label : str
        For people.
    code : str
        Version of the code and packages that compute it.
    dataset : str
        The version of the rows that everything is made of.
    partition : str
        How these rows are partitioned.
    replicate : int
        The run's: another number is another release, drawn and charged
        anew.
    seed : int or None
        Public noise seed.
    upstream : tuple of str
        Keys of the releases that it uses, in turn.
    """

    label: str
    code: str
    dataset: str
    partition: str
    replicate: int
    seed: int | None
    upstream: tuple[str, ...]

    @cached_property
    def key(self) -> str:
        """The identity; computed, so that nothing else can bear it."""
        return identity(**self.model_dump(mode="json", exclude={"label", *self._outside()}))

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields changed; the copy computes its own identity."""
        copied = super().model_copy(update=update, deep=deep)
        # Pydantic copies computed values together with the fields.
        copied.__dict__.pop("key", None)
        return copied

    def _outside(self) -> set[str]:
        return set()


class PlannedRelease(_Identified):
    """One release that will be made: what computes it, whose rows it reads, what it uses.

    Attributes
    ----------
    algorithm : AlgorithmSpec
        Without its budget.
    budget : Loss or None
        None where no noise is drawn.
    setting : Setting
    trust : AlgorithmSpec
        The trust model with its settings.
    parties : tuple of str
        Whose rows it reads.
    account : str
        The population that pays.
    delta : float
        At which its plan states its cost; must be below 1/n.
    deadline : Deadline or None
        When it appears. It changes no number but the charge, so it is part of the identity where there is one.
    outside : tuple of str
        Whose rows the guarantee leaves out, because maps that the rows went through were made of them.
    maps : tuple of str
        Keys of the public maps that the version's rows pass through before anything else, in turn.
    branches : tuple of int
        Where rows pass through several branches side by side: of how many of the upstream releases each is made, in
        order. None: through all in turn.
    drawn_from : tuple of str
        Keys of the syntheses whose drawn rows it uses: as its own rows, as those of a public map, or as those on which
        parameters were chosen. It rests on them.
    """

    algorithm: AlgorithmField
    budget: LossField | None
    setting: SettingField
    trust: AlgorithmField
    parties: tuple[str, ...]
    account: str
    delta: float
    deadline: Deadline | None = None
    outside: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    branches: tuple[int, ...] = ()
    # Left out where it is empty: what no drawn row has a part in is what it was.
    drawn_from: Annotated[tuple[str, ...], Field(exclude_if=lambda value: not value)] = ()

    @model_validator(mode="after")
    def _whole_branches(self) -> PlannedRelease:
        if self.branches and (min(self.branches) < 1 or sum(self.branches) != len(self.upstream)):
            raise ParameterError(f"branches {self.branches} are not made of the {len(self.upstream)} upstream releases")
        return self

    @property
    def seen_last(self) -> tuple[str, ...]:
        """The upstream releases that rows pass through in turn; of several branches, those of the last."""
        return self.upstream[len(self.upstream) - self.branches[-1] :] if self.branches else self.upstream

    def _outside(self) -> set[str]:
        # What follows from the rest, or changes no number that is released.
        return {"account", "delta", "outside"}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The nodes that it is made of: the partition of its rows, where it reads any, and what it uses, in turn."""
        return (partition_key(self.dataset, self.partition), *self.upstream) if self.reads_rows else self.upstream

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each party that are read."""
        return self.setting.sizes

    @property
    def charged_parties(self) -> tuple[str, ...]:
        """The parties that pay, in the ledger: those whose rows are read."""
        return self.parties

    @property
    def charged_partition(self) -> str:
        """Partition of which the charged parties are parts."""
        return self.partition

    @property
    def charged_keys(self) -> dict[str, str]:
        """The keys of what is charged together, at one price, under :attr:`charged_as`; each with its label."""
        return {self.key: self.label}

    @property
    def charged_as(self) -> str:
        """Key that all releases share which are charged at one price; empty where each has its own."""
        return ""

    @property
    def name(self) -> str:
        """The algorithm's name."""
        return self.algorithm.name

    def build(self) -> Algorithm:
        """Return the algorithm with its budget."""
        spec = self.algorithm if self.budget is None else self.algorithm.with_parameters(budget=self.budget)
        return cast(Algorithm, spec.build())

    def trust_model(self) -> TrustModel:
        """Return the trust model under which its sums are formed."""
        return cast(TrustModel, self.trust.build())

    @property
    def masking(self) -> Masking | None:
        """The masking of its parties' messages; None without masks."""
        return self.trust_model().masking(len(self.parties))

    @property
    def owner(self) -> str:
        """Owner of the release: one party, or all parties."""
        return self.trust_model().owner(self.parties)

    @property
    def noise_contributors(self) -> tuple[str, ...]:
        """Parties whose secrets key the noise."""
        return self.trust_model().noise_contributors(self.parties)

    @property
    def reads_rows(self) -> bool:
        """Whether it looks at rows at all; maps made from public parameters do not, and have no privacy cost."""
        return bool(lookup(self.algorithm.kind, self.algorithm.name).reads_rows)

    @property
    def in_rounds(self) -> bool:
        """Whether its parties' messages to the server may be separate tasks."""
        return self.reads_rows and self.trust_model().in_rounds(self.build(), self.setting)

    @property
    def travels(self) -> bool:
        """Whether it is sums over several parties, each of whom can send its part from elsewhere."""
        return self.reads_rows and self.trust_model().travels(self.build(), self.setting)

    def guarantee(self) -> Guarantee:
        """Return what is proved about the release, its time included where it has a deadline."""
        algorithm = self.build()
        proved = self._proved(algorithm)
        if self.outside and proved.proved:
            proved = replace(proved, assumptions=(*proved.assumptions, *self.outside))
        if self.deadline is None or not proved.proved:
            return proved
        # Each party's own task may miss it, and any of them is seen.
        attempts = len(self.parties) if self.in_rounds else 1
        return replace(
            proved,
            losses=(*proved.losses, loss_of_deadline_misses(proved.losses, self.deadline.misses(attempts))),
            assumptions=(
                *proved.assumptions,
                coded("deadline", seconds=f"{self.deadline.seconds:g}", miss=f"{self.deadline.miss:g}"),
                coded("after-deadline"),
            ),
        )

    def _proved(self, algorithm: Algorithm) -> Guarantee:
        return self.trust_model().guarantee(algorithm, self.setting)

    def drawn_again(self) -> Guarantee | None:
        """Return what is proved of this release where it is drawn once more, if that is less than at first."""
        return None


class PlannedCombination(_Identified):
    """Post-processing of releases by the server: has no privacy cost, but has an identity.

    Attributes
    ----------
    algorithm : AlgorithmSpec
        The aggregator.
    weights : tuple of float
        One for each upstream release; the parties' shares of all rows.
    """

    algorithm: AlgorithmField
    weights: tuple[float, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The releases that it is made of."""
        return self.upstream

    def build(self) -> Aggregator[Artefact, Artefact]:
        """Return what combines."""
        return cast(Aggregator[Artefact, Artefact], self.algorithm.build())

    def combine(self, artefacts: Sequence[Artefact]) -> Artefact:
        """Return what the server makes of the upstream artefacts, in order."""
        return self.build().combine(artefacts, np.array(self.weights))
