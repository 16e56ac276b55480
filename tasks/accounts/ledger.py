"""The ledger with the accountant behind it, and its owner's commands: change a cap, verify, restore."""

import getpass

from storage.errors import InputError, RefusedError
from storage.layout import Layout
from storage.ledger.charges import Account, Cap, require_cap
from storage.ledger.ledger import Ledger
from storage.ledger.restoring import restore
from tasks.accounts.pricing import AccountingPolicy
from tasks.datasets.registration import find_dataset
from tasks.runtime.settings import current_root, ledger_url
from tasks.runtime.standing import note_elsewhere
from tasks.runtime.stores import open_catalog, open_ledger_database, open_releases


def open_ledger() -> Ledger:
    """Open the ledger with the accountant behind it."""
    return Ledger(open_ledger_database(), AccountingPolicy())


def account_named(name: str) -> Account:
    """Return the account that a data set pays from; where there is no such data set, the account of that name.

    Raises
    ------
    InputError
        If there is neither.
    """
    catalog = open_catalog()
    account = None if any(one.name == name for one in catalog.datasets()) else catalog.account(name)
    return catalog.account_of(find_dataset(name).name) if account is None else account


def require_account(name: str) -> Account:
    """Return a private account of the current root.

    Raises
    ------
    InputError
        If no account has this name; the message lists the accounts and the nearest name.
    """
    root, way_out = current_root(), f"open it: unitball.open_account({name!r}, epsilon=…, delta=…)"
    # A root that is not there is not made by a question.
    if not Layout(root).marker.exists() and ledger_url() is None:
        raise InputError(f"account {name!r} does not exist, and {root} holds no root; {way_out}", value=name)
    catalog = open_catalog()
    if (found := catalog.account(name)) is None or not found.private:
        raise InputError(f"{catalog.no_account(name)} in {root}; name one of these, or {way_out}", value=name)
    return found


def change_cap(name: str, epsilon: float, reason: str) -> None:
    """Raise or lower the epsilon of the cap of an account, or of the one that a data set pays from, on record.

    Raising a cap keeps the old filter and opens a new one (:mod:`dpalgos.accounting.spending`); delta is fixed when
    the account is opened, because the filters of all raises share it.

    Raises
    ------
    InputError
        Without a reason.
    RefusedError
        For public sets.
    OverspendError
        If more than a lower cap is spent, or the filters before a higher one did not keep to their deltas.
    """
    account = account_named(name)
    if account.cap is None:
        raise RefusedError(f"{name} is public and has no cap")
    if not reason.strip():
        raise InputError("a change of the cap is permanent and recorded: give --reason")
    cap = Cap(epsilon=epsilon, delta=account.cap.delta)
    open_ledger().raise_cap(account.name, cap, by=getpass.getuser(), why=reason)


def verify_ledger() -> list[str]:
    """Check the ledger's chain and every stored release against it; one sentence a problem."""
    return [*open_ledger().verify(), *check_releases()]


def check_releases() -> list[str]:
    """Check every stored release against its digests and the ledger's; one sentence a problem."""
    store = open_releases()
    problems = []
    stored = {}
    for key in store.keys():
        try:
            manifest, arrays = store.read(key)
        except Exception as error:
            problems.append(str(error))
            continue
        # Post-processing and maps made from public parameters were never charged, and need not be; what separate
        # parties have made they have charged.
        if not {"post_processing", "charged_by"} & manifest.keys() and manifest.get("reads_rows", True):
            stored[key] = store.digest_of(manifest, arrays)
    return problems + open_ledger().verify_releases(stored)


def restore_ledger(reason: str, epsilon: float | None, delta: float | None) -> tuple[str, ...]:
    """Accept a ledger older than its high-water marks, by recording what it lacks as spent; return the accounts.

    *What is booked, and why it is enough.* A row is in one part (party, horizon) of each partition, and an account has
    spent the sum over partitions of the largest part. Let the lost ledger's parts have come to b_p by the mark, these
    to a_p; of the b_p only the largest sum is known, M. What is booked for every row is M less the largest sum of the
    a_p. A row of part p has lost b_p, up to M, and from now on loses what part p is charged, c_p. So plans after a
    restoration are in separate partitions: the account has then spent max_p a_p + (M − max_p a_p) + max_p c_p,
    which is no less than b_p + c_p, whichever part the row is in. (In the same partitions it would be max_p (a_p + c_p)
    + M − max_p a_p: where the lost ledger had charged one horizon and the older one another, of the same μ, nothing
    would be missing, and rows of the first could be used again without a charge.) For a horizon that begins again:
    :mod:`tasks.preparation.streams`.

    Parameters
    ----------
    reason : str
        Recorded.
    epsilon, delta : float, optional
        What the owner says was spent beyond this ledger, where no mark says it.

    Raises
    ------
    InputError
        Without a reason, with half of a statement, or where there is nothing to restore.
    """
    if (epsilon is None) != (delta is None):
        raise InputError("the spending is stated by two numbers: give both --epsilon and --delta")
    stated = None if epsilon is None or delta is None else Cap(epsilon, delta)
    if stated is not None:
        require_cap(stated)
    note_elsewhere("restoration", "the gap is recorded as spent completely or not at all: unitball budget shows which")
    accounts = restore(open_ledger_database(), AccountingPolicy(), by=getpass.getuser(), why=reason, stated=stated)
    note_elsewhere("restoration", "the ledger is accepted, and the gap is recorded as spent")
    return accounts
