"""Nights of a data set: which rows arrive in which, by comparing each version with the one before.

A version of a data set in a horizon holds all rows of the version before and those that are new: these are the night's.
Every row so belongs to one night of one horizon, whichever versions it stands in, and horizons are disjoint: what they
cost is a maximum, not a sum. Which rows are new is found at ingestion, where the owner alone looks. How many there are
is public.

Of equal rows the last is the new one, so one row's content decides which position of the version is new. Where each
party brings its own file, or all rows are in what is released, that matters to nothing: what is new of a file is
the same but for that row, in any order. Where new rows go to parties in turn and what is seen depends on who holds
which (dropouts, colluders), one row would send all new ones to other parties. There a version with new rows has to
hold the rows of the one before at the beginning of each file, in their order, so that a row's place alone says which
night and party are its own (:attr:`storage.arrivals.Difference.appended`).

*People.* Neighbours have one register, and differ in one entry's rows, in any of the versions. So the register alone
says what exists and who takes part, never a row: a version is a night if it has a new person, and a person who came in
night r takes part in the nights r, r + p, …, r + (k − 1)p, as often and as far apart as the horizon declares (k
participations, separation p), and in no other. What comes in between waits for the next of these nights, and what comes
after the last is null. In each of them the person's rows are those of that version that came after the version p nights
before, of which there is none before night r: a comparison within the person (:class:`storage.people.Seen`). A version
stores each person's latest ``rows_per_person`` rows, so that new rows count for any number of older ones, and no
night has more than this number. They are counted there, k of them, and weigh 1/k each, as one record: their part of a
sum is a mean of k vectors with at most a row's norm, and another mean, or none, in its place moves the sum by no more
than another row would (``row_weights`` in :mod:`dpalgos.integer_sums`). How a row came to be among the k (new, and
within the limit) depends on that person's rows alone, and moves no other person's. Both neighbours so have the record
in the same nights, with any rows, and each of its sums moves by no more than a row's: the bound is that of a row
that comes k times, p nights apart (:mod:`dpalgos.mechanisms.factorisation`), and of one that comes once where nothing
is declared. (Nights chosen by when rows come would differ between neighbours, by up to 2k of them, which no sensitivity
of one night bounds.)

A horizon of people begins with all people known so far: they take part in each horizon again, and the costs of horizons
add up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

import numpy as np
from numpy.typing import NDArray

from storage.arrivals import Arrival, Difference, difference
from storage.catalog import Catalog, Horizon
from storage.datasets import dataset_ref, open_people, origins, people_version
from storage.errors import InputError, RefusedError
from storage.fingerprints import ADMITTED_SHARE
from storage.layout import Layout
from storage.refs import DatasetRef
from tasks.planning.configuration import HorizonSettings
from tasks.planning.nights import StreamTerms, night_partition
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog


def arrival_of(layout: Layout, catalog: Catalog, name: str, version: DatasetRef) -> Arrival | None:
    """Return what a version brings to the data set's horizon; None where it is in none.

    Called with the root's private folder locked.

    Raises
    ------
    RefusedError
        If rows of the version before are missing and others are new, or new rows were there before, and the horizon is
        not declared for rows that come back; or if a run of the horizon needs new rows to stand after the old ones. For
        people: if the version belongs to another account than the horizon.
    """
    horizons = catalog.horizons(name)
    if not horizons or _is_known(horizons, version.version):
        return None
    last = horizons[-1]
    difference = _compared(layout, horizons, version)
    _require_arriving(name, difference, last.participations)
    if last.full:
        return None
    if any(_needs_appended(terms, version, last.number) for terms in catalog.streams(version.account)):
        _require_appended(name, difference)
    night = len(last.arrivals) + (1 if len(difference.positions) else 0)
    return _arrival(layout, version, last.number, night, difference)


def _arrival(layout: Layout, version: DatasetRef, horizon: int, night: int, difference: Difference) -> Arrival:
    files = origins(layout, version)
    ends = np.cumsum([0, *(rows for _, rows in files)])
    by_file = np.histogram(difference.positions, bins=ends)[0].tolist() if files else []
    # The last bin is closed on both sides, and no position stands at its end.
    return Arrival(
        horizon=horizon,
        night=night,
        version=version.version,
        rows=len(difference.positions),
        by_file=tuple(map(int, by_file)),
    )


def _needs_appended(terms: Mapping[str, object], version: DatasetRef, horizon: int) -> bool:
    """Whether a run, as it was fixed, divides the horizon's nights in turn and tells parties apart."""
    fixed = StreamTerms.model_validate(terms)
    dealt_in_turn = fixed.release.partition == night_partition(version, horizon, len(fixed.release.parties))
    return dealt_in_turn and fixed.tells_parties_apart


def require_appended(name: str, version: DatasetRef) -> None:
    """Refuse a version whose new rows do not all stand after those of the version before, which keep their order.

    Raises
    ------
    RefusedError
    """
    _require_appended(name, _compared(current_layout(), open_catalog().horizons(name), version))


def _require_appended(name: str, difference: Difference) -> None:
    if len(difference.positions) and not difference.appended:
        raise RefusedError(
            f"new rows of {name} must follow the rows of the previous version, whose order must not change. Nights "
            "are assigned to parties in turn, and parties may drop out or collude, so a row's position must determine "
            "its party. Ingest the earlier rows in unchanged order with the new rows after them, or train without "
            "dropouts and colluders, under --trust central, or on the parties' own files"
        )


def _is_known(horizons: list[Horizon], version: str) -> bool:
    return any(version in one.versions for one in horizons)


def _compared(layout: Layout, horizons: list[Horizon], version: DatasetRef) -> Difference:
    """Compare a version with the last one that was, and with those that were before rows went; of people, registers."""
    if version.person:
        return Difference(_newcomers(layout, horizons, version), 0, 0, appended=True)
    known = (one for horizon in horizons for one in horizon.versions)
    before = list(takewhile(lambda one: one != version.version, known))
    if not before:
        return difference(layout, version, None, ())
    grown = {arrival.version for horizon in horizons for arrival in horizon.arrivals}
    # Rows go in versions that bring none, and where rows may come back edited.
    gone = [earlier for earlier, later in pairwise(before) if later not in grown or horizons[-1].participations > 1]
    refs = {one: dataset_ref(layout, one) for one in {before[-1], *gone}}
    return difference(layout, version, refs[before[-1]], tuple(refs[one] for one in gone))


def _newcomers(layout: Layout, horizons: list[Horizon], version: DatasetRef) -> NDArray[np.int64]:
    """Return the records of a version's people who are not in the nights of the last horizon."""
    known = horizons[-1].arrivals if horizons else ()
    if known and (account := dataset_ref(layout, known[-1].version).account) != version.account:
        if not horizons[-1].full:
            raise RefusedError(
                f"{version.name} is a night of people of account {account}, and these people belong to account "
                f"{version.account}, which has another register of people; ingest them under another name"
            )
        known = ()
    return _records(layout, version, known)


def _records(
    layout: Layout, version: DatasetRef, known: Sequence[Arrival], latest: Sequence[Arrival] | None = None
) -> NDArray[np.int64]:
    """Return the records of a version that came after some nights, by the end of others where these are given.

    Of each file they follow one another, for a register only grows.
    """
    sizes = np.array([records for _, records in origins(layout, version)] or [version.rows])

    def came(nights: Sequence[Arrival]) -> NDArray[np.int64]:
        counts = np.zeros(len(sizes), dtype=np.int64)
        for by_file in (one.by_file or (one.rows,) for one in nights):
            # A file that came later is at the end.
            counts[: len(by_file)] += by_file
        return counts

    first = np.cumsum(sizes) - sizes
    starts, stops = first + came(known), first + (sizes if latest is None else came(latest))
    return np.concatenate([np.arange(start, stop) for start, stop in zip(starts, stops, strict=True)])


def _require_arriving(name: str, difference: Difference, participations: int) -> None:
    new = len(difference.positions)
    if participations > 1 or not new:
        return
    ways = (
        "or declare at the start of the horizon that a row may take part in several nights: --participations, "
        "--separation"
    )
    if difference.missing:
        raise RefusedError(
            f"rows of the last version of {name} are missing or edited, and others are new. An edited row would be "
            f"charged once and read twice: first ingest a version with the rows removed and none added, {ways}"
        )
    if difference.returning > ADMITTED_SHARE * new:
        raise RefusedError(
            f"new rows of {name} already took part in an earlier night. A returning row would be charged once and "
            f"read twice: omit these rows, {ways}"
        )


def record_horizon(config: HorizonSettings, version: DatasetRef) -> None:
    """Record that a version's rows arrived, and with a horizon's first night the horizon; what is on record stays.

    Called with the root's private folder locked, of the newest version.

    Raises
    ------
    InputError, RefusedError
        As :func:`drafted_horizon` does; nothing is recorded then.
    """
    layout, catalog, name = current_layout(), open_catalog(), version.name
    drafted = drafted_horizon(config, version)
    if drafted.number > len(catalog.horizons(name)):
        catalog.open_horizon(
            name, nights=drafted.nights, participations=drafted.participations, separation=drafted.separation
        )
        catalog.record_arrival(name, drafted.arrivals[0])
    elif (arrival := arrival_of(layout, catalog, name, version)) is not None:
        # Its ingestion was killed after the version was registered.
        catalog.record_arrival(name, arrival)


def drafted_horizon(config: HorizonSettings, version: DatasetRef) -> Horizon:
    """Return the horizon that a run is a night of, as it will stand when the version's arrival is on record.

    Nothing is recorded. Versions are compared by their fingerprints where that has not been done at ingestion: for a
    horizon that begins after another one, and where an ingestion was killed.

    Raises
    ------
    InputError
        If another one stands, or the last is full and no row has come since.
    RefusedError
        If rows came back that may not, or if the rows are people's and public: what is named by its content has no
        register of who came when.
    """
    assert config.horizon is not None
    if version.person and not version.private:
        raise RefusedError(
            f"the rows of {version.name} are public and belong to people ({version.person}); Unitball records nights "
            "of people only for private rows. Train on each whole version, without --horizon"
        )
    layout, catalog = current_layout(), open_catalog()
    horizons = catalog.horizons(version.name)
    if not horizons or (horizons[-1].full and not _is_known(horizons, version.version)):
        return _fresh(config, version, horizons)
    last = horizons[-1]
    declared = (config.horizon, config.participations, config.separation)
    if declared != (last.nights, last.participations, last.separation):
        raise InputError(
            f"{version.name} is night {len(last.arrivals)} of a horizon of {last.nights} with {last.participations} "
            f"participations at least {last.separation} nights apart; keep these values until it ends"
        )
    arrival = arrival_of(layout, catalog, version.name, version)
    came = () if arrival is None or not arrival.rows else (arrival,)
    return replace(last, arrivals=(*last.arrivals, *came))


def _fresh(config: HorizonSettings, version: DatasetRef, horizons: list[Horizon]) -> Horizon:
    """Return a horizon that begins with a version: with the rows that are new in it, or with all people."""
    assert config.horizon is not None
    everything = Difference(np.arange(version.rows, dtype=np.int64), 0, 0, appended=True)
    first = everything
    if horizons:
        found = _compared(current_layout(), horizons, version)
        _require_arriving(version.name, found, horizons[-1].participations)
        if not len(found.positions):
            came, ingest = ("no new person", "rows of new people") if version.person else ("no row", "new rows")
            raise InputError(
                f"the horizon of {version.name} is complete, and {came} has arrived since: ingest {ingest} first"
            )
        # Rows that are new, but everybody who has ever come.
        first = everything if version.person else found
    number = len(horizons) + 1
    return Horizon(
        number=number,
        nights=config.horizon,
        participations=config.participations,
        separation=config.separation,
        arrivals=(_arrival(current_layout(), version, number, 1, first),),
    )


def night_of_people(
    version: DatasetRef, horizon: Horizon, night: int
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64] | None]:
    """Return who takes part in a night, and with which rows of its version.

    Returns
    -------
    list of int64 array
        Records of those who are new, and of those whose turn it is again, night by night of their arrival.
    int64 array or None
        Positions of the rows that were absent at their person's earlier participations; None: all.
    """
    layout, arrivals = current_layout(), horizon.arrivals
    came = [one.night for one in horizon.taking_part(night, people=True)]
    before = dataset_ref(layout, arrivals[came[1] - 1].version) if len(came) > 1 else None
    records = [_records(layout, version, arrivals[: one - 1], arrivals[:one]) for one in came]
    return records, None if before is None else _since(layout, version, before)


def _since(layout: Layout, version: DatasetRef, before: DatasetRef) -> NDArray[np.int64]:
    """Return the positions of a version's rows that came after another version."""
    people = open_people(layout, version)
    assert people is not None, "a night of people has people's rows"
    return np.flatnonzero(people.since > people_version(layout, before)).astype(np.int64)


def rows_left_out(name: str, version: DatasetRef) -> tuple[int, int] | None:
    """Return a version's night (0 without a new person) and the number of its rows that are in no night yet.

    For the owner alone: the number of a person's rows is not public. None where rows do not belong to people, or are in
    no horizon.
    """
    layout = current_layout()
    horizon = next((one for one in open_catalog().horizons(name) if version.version in one.versions), None)
    people = open_people(layout, version)
    if horizon is None or people is None:
        return None
    night = next((one.night for one in horizon.arrivals if one.version == version.version), 0)
    taking_part = night_of_people(version, horizon, night)[0] if night else []
    place = horizon.versions.index(version.version)
    before = dataset_ref(layout, horizon.versions[place - 1]) if place else None
    whose = people.positions["train"]
    whose = whose if before is None else whose[_since(layout, version, before)]
    return night, int(np.count_nonzero(~np.isin(whose, np.concatenate([[], *taking_part]))))


def rows_there_before(name: str, version: DatasetRef) -> tuple[int, int, int] | None:
    """Return a version's night (0 where it is none), how many rows are new in it, and how many of these were before.

    For the owner alone: the last number is an exact statistic of the rows. None where rows are people's, which are
    compared within each person, where no horizon has begun, and of the first version of all.
    """
    layout, horizons = current_layout(), open_catalog().horizons(name)
    if version.person or not horizons or horizons[0].versions[:1] == (version.version,):
        return None
    found = _compared(layout, horizons, version)
    known = (one for horizon in horizons for one in horizon.arrivals)
    # Rows that came after a horizon's last night are in the first of the next one.
    night = next((one.night for one in known if one.version == version.version), 1 if len(found.positions) else 0)
    return night, len(found.positions), found.returning


def positions_of(version: DatasetRef, arrival: Arrival, name: str) -> NDArray[np.int64]:
    """Return the positions of a night's rows among the training rows of the version that they came with."""
    positions = _compared(current_layout(), open_catalog().horizons(name), version).positions
    if len(positions) != arrival.rows:
        raise InputError(
            f"night {arrival.night} of {name} is recorded with {arrival.rows} new rows, but {len(positions)} are "
            "found: the stored rows have changed; restore them from their back-up"
        )
    return positions
