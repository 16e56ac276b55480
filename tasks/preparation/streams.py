"""The rows of a horizon's nights: notes, frozen sums and releases of other rows than a plan's are not used.

A night's key names its horizon and number, not the rows (:attr:`tasks.planning.nights.PlannedNight.key`), because all
nights are charged before any has come. The catalogue states that a key stands for one set of rows, and the catalogue
lies in the ledger, which may be restored to an earlier day. So the use of a key is recorded outside the ledger:

- each party notes for good with which version, at which positions and under which code each of its nights came
  (:func:`note_arrival`), and a frozen sum begins with the digest of the note that it was formed by;
- each release names the versions of all nights that it is a sum of (:attr:`tasks.planning.nights.Stream.versions`);
- a stream names the code that its noise, unit and integers are made by, and the ledger's epoch, which is another after
  each ``unitball ledger restore`` (:meth:`storage.catalog.Catalog.epoch`). Both are part of its keys.

What is there and is not of the rows, the code and the epoch that a plan names is refused. What is there and in no
ledger is refused. Nothing goes on under a key of another epoch.

*Without that* (as it was): a horizon begins again under the keys of the lost one, its stored nights are taken for those
that come now, and rows that came in night 2 of the lost one and come in night 3 now stand in the sums of both, which
moves the releases by ‖Ĉ(e₂ + e₃)‖ Δ: 1.69 times the horizon's μ at 5 nights, 1.89 times at 365, where √2 was booked.

*What a restored horizon loses.* Let the lost ledger's books say at their end (by the high-water mark) that no row has
spent more than M, and call *life 1* all that was released until then, *life 2* what follows. In life 1 each row takes
part in nights as often and as far apart as is declared: that is what its catalogue and the notes have seen to. Its loss
is at most M, since each charge is in the books before the noise exists. In life 2 no release is drawn under a key of a
stream of life 1: a stream that goes on has the epoch of its beginning and is refused, and one that begins has the new
epoch in its keys. So no noise is met twice, and no sum of life 1 enters a release of life 2, for notes and sums lie
under the stream's terms with the epoch in each of them, and are refused there. Given all of life 1, life 2 is therefore
what its own ledger says: each row takes part in each stream as declared, at the stream's price, and streams and
horizons are composed as ever. By the adaptive composition of Gaussian differential privacy (add μ²; so for ρ, and for
(ε, δ)) a row's whole loss is at most M and what the parts of life 2 cost that it is in. Booked is M for every row, plus
the largest sum of what life 2 costs any part (:func:`tasks.accounts.ledger.restore_ledger`): no less, whichever parts
the row was in. One horizon of μ, begun again under new keys: 2μ² at most, 2μ² booked; a row of its first night attains
it where the lost horizon had come to its end.

(Under a key of life 1 there would be worse than a sum: the noise is keyed by key and value, so that an equal sum meets
equal noise, and whether an edited row is the same in both lives would show exactly.)

Where the marks were restored together with the ledger, this goes unnoticed, and the ledger has no new epoch. What then
still tells are the notes and the releases, if they were not restored as well.
"""

from pydantic import BaseModel

from storage.errors import RefusedError
from storage.refs import DatasetRef, ShardRef
from storage.rounds import PrivateNotes
from storage.shards import digest_of_positions
from tasks.accounts.ledger import open_ledger
from tasks.planning.identity import identity
from tasks.planning.nights import PlannedNight, Stream, require_code, restarting
from tasks.runtime.settings import current_layout
from tasks.runtime.stores import open_catalog, open_releases

_ARRIVED, _SUM = "arrived-", "sum-"


class Arrived(BaseModel, frozen=True, extra="forbid"):
    """One party's rows of one night.

    Attributes
    ----------
    shard : ShardRef
        Where they are.
    version : str
        The registered version that they came with.
    positions : str
        Digest of their positions in it.
    made_of, epoch : str
        See :class:`~tasks.planning.nights.Stream`.
    """

    shard: ShardRef
    version: str
    positions: str
    made_of: str
    epoch: str

    @property
    def digest(self) -> str:
        """Digest with which a sum of these rows begins, 64 hex digits."""
        return identity(**self.model_dump(mode="json"))

    def __str__(self) -> str:
        # Without the digest of positions: which rows are new depends on what rows hold.
        rows = f"{self.shard.rows} {self.shard.dataset.unit.several}"
        return (
            f"{rows} of version {self.version[:12]}, made of {self.shard.dataset.version[:12]}, code {self.made_of}, "
            f"epoch {self.epoch[:12] or 'none'}"
        )


def notes_of(release: PlannedNight, party: str) -> PrivateNotes:
    """Return a party's notes of a stream; it is one folder for all epochs of the same terms."""
    return PrivateNotes(current_layout().party_round(party, release.stream_key))


def note_arrival(release: PlannedNight, shard: ShardRef) -> None:
    """Let a party remember, for good, which rows are those of a night, and where.

    Raises
    ------
    RefusedError
        If it remembers others.
    """
    stream = release.stream
    now = Arrived(
        shard=shard,
        version=stream.versions[-1],
        positions=digest_of_positions(current_layout(), shard),
        made_of=stream.made_of,
        epoch=stream.epoch,
    )
    data = notes_of(release, shard.party).put(f"{_ARRIVED}{stream.night}", now.model_dump_json().encode())
    _require_same(release, stream.night, Arrived.model_validate_json(data), now)


def arrival_noted(notes: PrivateNotes, release: PlannedNight, shard: ShardRef, night: int) -> Arrived | None:
    """Return what a party has noted of a night up to a release's own; None where nothing.

    Parameters
    ----------
    notes : PrivateNotes
        The party's, of this stream.
    release : PlannedNight
    shard : ShardRef
        The party's rows of the release's own night.
    night : int

    Raises
    ------
    RefusedError
        If it is not of the version, the code and the epoch that the release names, or of its own night not this shard.
    """
    data, stream = notes.get(f"{_ARRIVED}{night}"), release.stream
    if data is None:
        return None
    noted = Arrived.model_validate_json(data)
    named: dict[str, object] = {
        "version": stream.versions[night - 1],
        "made_of": stream.made_of,
        "epoch": stream.epoch,
        **({"shard": shard} if night == stream.night else {}),
    }
    _require_same(release, night, noted, noted.model_copy(update=named))
    return noted


def _require_same(release: PlannedNight, night: int, noted: Arrived, named: Arrived) -> None:
    if noted != named:
        asked = str(named) if str(named) != str(noted) else f"{named} at other positions"
        raise RefusedError(
            f"party {noted.shard.party} holds different rows for night {night} of this horizon than the plan: stored "
            f"{noted}, planned {asked}. The ledger or the party's folder was restored from a back-up. "
            f"{restarting(release)}"
        )


def require_positions(release: PlannedNight, noted: Arrived, night: int) -> None:
    """Refuse to form a night's sum of a shard that holds other positions than were noted.

    Raises
    ------
    RefusedError
    """
    there = digest_of_positions(current_layout(), noted.shard)
    _require_same(release, night, noted, noted.model_copy(update={"positions": there}))


def pack_sum(noted: Arrived, data: bytes) -> bytes:
    """Return what is kept of a night's sum: the digest of what it was formed by, and the sum."""
    return noted.digest.encode() + data


def unpack_sum(release: PlannedNight, night: int, noted: Arrived, kept: bytes) -> bytes:
    """Return a night's sum.

    Raises
    ------
    RefusedError
        If it was formed of other rows than the note names.
    """
    digest = noted.digest.encode()
    if kept[: len(digest)] != digest:
        raise RefusedError(
            f"party {noted.shard.party} holds a sum of night {night} whose rows differ from its record ({noted}): its "
            f"private folder mixes several back-ups. Restore it from one of them. Or: {restarting(release)}"
        )
    return kept[len(digest) :]


def require_current(release: PlannedNight, dataset: DatasetRef) -> None:
    """Refuse to make one more night of a stream that the code, or a restored ledger, has gone away from.

    Parameters
    ----------
    release : PlannedNight
        A night that is not stored.
    dataset : DatasetRef
        Of its rows.

    Raises
    ------
    RefusedError
    """
    require_code(release, dataset.normalisation)
    stream = release.stream
    if dataset.private and stream.epoch != open_catalog().epoch():
        raise RefusedError(
            "an older ledger was restored after this horizon began, and the releases in between are not recorded: the "
            f"horizon cannot continue. {restarting(release)}"
        )


def require_on_record(release: PlannedNight, dataset: DatasetRef, *, fixed: bool) -> None:
    """Refuse a stream that parties have notes of, or that has releases, and that the ledger has no charge of.

    Parameters
    ----------
    release : PlannedNight
        Any of its nights.
    dataset : DatasetRef
        Of its rows; of public ones nothing is charged that could be missing.
    fixed : bool
        Whether the ledger has its terms. Then a run may have been killed between the first note of where rows are and
        the charge, before which no sum is formed.

    Raises
    ------
    RefusedError
        Naming what is there, the price and the way out.
    """
    keys = release.night_keys
    if not dataset.private or open_ledger().is_charged(keys[0]):
        return
    found, kinds = [], (_SUM,) if fixed else (_SUM, _ARRIVED)
    for party in release.parties:
        names = [one for one in notes_of(release, party).names() if one.startswith(kinds)]
        if there := sorted({int(one.partition("-")[2]) for one in names}):
            found.append(f"party {party} has notes of {_nights(there)}")
    store = open_releases()
    if there := [night for night, key in enumerate(keys, 1) if store.exists(key)]:
        found.append(f"{_nights(there)} {'is' if len(there) == 1 else 'are'} stored")
    # Again, for somebody else may just have charged, and whoever forms a sum has charged before.
    if found and not open_ledger().is_charged(keys[0]):
        raise RefusedError(
            f"the ledger has no charge for this horizon, but nights were released: {'; '.join(found[:3])}. The ledger "
            f"was restored from a back-up, and the rows of these nights are unknown. {restarting(release)}"
        )


def _nights(numbers: list[int]) -> str:
    return f"night {numbers[0]}" if len(numbers) == 1 else f"nights {', '.join(map(str, numbers))}"


def require_same_versions(release: PlannedNight) -> None:
    """Refuse a stored night that is a sum of other versions than a release of that night, or a later one, names.

    Parameters
    ----------
    release : PlannedNight
        The last night that is stored.

    Raises
    ------
    RefusedError
    """
    held = Stream.model_validate(open_releases().read(release.key)[0]["stream"])
    named = release.stream
    if held.versions == named.versions:
        return
    night = next(one for one, pair in enumerate(zip(held.versions, named.versions, strict=True), 1) if len({*pair}) > 1)
    raise RefusedError(
        f"night {night} is stored as a sum of rows of version {held.versions[night - 1][:12]}, and the rows of that "
        f"night are now those of version {named.versions[night - 1][:12]}: they arrived in another order, or again, "
        f"after an older ledger was restored. {restarting(release)}"
    )
