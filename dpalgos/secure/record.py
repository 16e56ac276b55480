"""What a repeated run must find: whose vectors a sum held, and what each party let be opened."""

from __future__ import annotations

from typing import Protocol

from dpalgos.secure.errors import RepeatedUseError


class SumRecord(Protocol):
    """Entries that outlive a crash of a release's sums, the server's own and every party's own.

    Of two entries under one name the first counts, whichever run made it; it is on disk before a method returns.
    """

    def fix(self, step: str, survivors: tuple[int, ...]) -> tuple[int, ...]:
        """Server: enter whose vectors a sum holds, before anything of it is unmasked, and return what stands."""
        ...

    def opened(self, party: int, step: str) -> bytes | None:
        """Party: return what it entered when it let this sum be unmasked, None where it has not."""
        ...

    def open(self, party: int, step: str, entry: bytes) -> bytes:
        """Party: enter, in its own record, what it is about to let be unmasked, and return what stands."""
        ...


class RecordedSum:
    """One sum of a release under its record: opened once, or again with the same survivors and the same vectors.

    Guarantee
    ---------
    Noise shares are functions of the party's secret, the release, the step and the exact contribution. So a run that
    is repeated after a crash and finds the contributions unchanged repeats the bytes of every sum and reveals nothing
    new. Where a contribution has changed, be it in a last bit, its noise is independent of the first draw: a second
    sum with it would be a second release of the step, at the full price, which nobody has charged. And two sums over
    different survivors differ by single parties' vectors, noise and all. Both are refused here, on the word of every
    single party: before its vector leaves (:meth:`require_unchanged`), since the other parties could open the sum
    without it, and before its answer leaves (:meth:`open`).

    A step that was fixed and never unmasked is fixed for its survivors. Its vectors may change: those of the earlier
    run stay under masks that nobody opens, as a party that has entered nothing has answered nothing.

    Parameters
    ----------
    record : SumRecord or None
        None keeps nothing: for simulations that release nothing.
    identity, step : str
        The release's, and the sum's name within it.
    """

    def __init__(self, record: SumRecord | None, identity: str, step: str) -> None:
        self._record, self._identity, self._step = record, identity, step

    @property
    def is_kept(self) -> bool:
        """Whether there is a record."""
        return self._record is not None

    def require_unchanged(self, party: int, digest: bytes) -> None:
        """Refuse to mask another vector than the one that a party let be unmasked before.

        Parameters
        ----------
        party : int
        digest : bytes
            Of the vector (:func:`dpalgos.secure.party.digest_of`).

        Raises
        ------
        RepeatedUseError
            If it is another one's.
        """
        before = self._record.opened(party, self._step) if self._record is not None else None
        if before is not None and not before.startswith(digest):
            raise RepeatedUseError(
                f"party {party} has let the sum {self._step!r} of {self._identity!r} be unmasked before, and what it "
                "contributes has changed since; a second sum would be a second release. Ask for one, with a fresh "
                "charge, by another --repetition"
            )

    def fix(self, survivors: tuple[int, ...]) -> None:
        """Enter the survivors with the server.

        Raises
        ------
        RepeatedUseError
            If the sum was fixed before for others.
        """
        if self._record is not None and self._record.fix(self._step, survivors) != survivors:
            raise RepeatedUseError(
                f"the survivors of {self._step!r} of {self._identity!r} were fixed before and were others; a second "
                "sum would reveal single inputs. Repeat it under a new identity (--repetition)"
            )

    def open(self, party: int, vector: bytes, survivors: bytes) -> None:
        """Enter with a party what it is about to let be unmasked.

        Parameters
        ----------
        party : int
        vector : bytes
            Digest of what it masked.
        survivors : bytes
            Digest of whose vectors the sum holds (:func:`dpalgos.secure.messages.numbers_digest`).

        Raises
        ------
        RepeatedUseError
            If it let another sum of this step be unmasked before.
        """
        entry = vector + survivors
        if self._record is not None and self._record.open(party, self._step, entry) != entry:
            raise RepeatedUseError(
                f"party {party} refuses: it has let {self._step!r} of {self._identity!r} be unmasked before, for "
                "other survivors or another vector; a second sum would reveal single inputs. Repeat it under a new "
                "identity (--repetition)"
            )
