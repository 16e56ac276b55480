"""Whose a data set is, and that nothing private becomes public or gets a second budget."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from storage.catalog import Catalog, Registration
from storage.errors import InputError, OverspendError, RefusedError
from storage.ledger.charges import Cap
from storage.ledger.entries import Kind, reading
from storage.ledger.ledger import Ledger
from storage.ledger.restoring import restore
from storage.people import People
from storage.refs import Visibility
from tests.support.forks import race
from tests.support.ledgers import SumOfEpsilons, opened, release, request, spent
from tests.support.stating import stating

CAP = Cap(3, 1e-6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def catalog(path: Path) -> Catalog:
    return Catalog(opened(path))


@pytest.fixture
def ledger(path: Path) -> Ledger:
    return Ledger(opened(path), SumOfEpsilons())


def _private(catalog: Catalog, name: str, version: str, **options: Any) -> Registration:
    return catalog.register(name, version, visibility=Visibility.PRIVATE, manifest={"rows": 100}, **options)


def _public(catalog: Catalog, name: str, version: str, **options: Any) -> Registration:
    return catalog.register(name, version, visibility=Visibility.PUBLIC, manifest={"rows": 100}, **options)


class TestRegistering:
    def test_a_public_set_takes_its_name_as_account(self, catalog: Catalog) -> None:
        found = _public(catalog, "digits", "v1")
        assert (found.name, found.version, found.account) == ("digits", "v1", "digits")
        assert (found.visibility, found.manifest) == (Visibility.PUBLIC, {"rows": 100})
        assert catalog.get("digits") == found
        assert catalog.account_of("digits").cap is None

    def test_a_private_set_needs_a_cap_once(self, catalog: Catalog) -> None:
        with pytest.raises(RefusedError, match=r"'clinic'.*cap.*epsilon.*delta"):
            _private(catalog, "clinic", "v1")
        assert not catalog.registrations("clinic")
        _private(catalog, "clinic", "v1", cap=CAP, account="clinic-2026")
        _private(catalog, "clinic", "v2")
        _private(catalog, "clinic", "v3", cap=CAP, account="clinic-2026")
        assert [found.account for found in catalog.registrations("clinic")] == ["clinic-2026"] * 3
        assert catalog.account_of("clinic").cap == CAP

    def test_the_same_words_again_change_nothing(self, catalog: Catalog) -> None:
        first = _private(catalog, "clinic", "v1", cap=CAP)
        assert _private(catalog, "clinic", "v1", cap=CAP) == first
        assert catalog.registrations("clinic") == [first]

    def test_an_older_version_may_become_the_newest_again(self, catalog: Catalog) -> None:
        for version in ("v1", "v2", "v1"):
            _public(catalog, "digits", version)
        assert catalog.get("digits").version == "v1"
        assert [found.version for found in catalog.registrations("digits")] == ["v1", "v2", "v1"]

    def test_another_cap_is_not_taken_silently(self, catalog: Catalog) -> None:
        _private(catalog, "clinic", "v1", cap=CAP)
        with pytest.raises(InputError, match=r"cap is epsilon 3.*delta 1e-06"):
            _private(catalog, "clinic", "v2", cap=Cap(9, 1e-6))
        assert catalog.get("clinic").version == "v1"
        assert catalog.account_of("clinic").cap == CAP

    def test_a_public_set_takes_no_cap(self, catalog: Catalog) -> None:
        with pytest.raises(InputError, match=r"'digits'.*public.*cap"):
            _public(catalog, "digits", "v1", cap=CAP)
        _public(catalog, "digits", "v1")
        with pytest.raises(InputError, match=r"'digits'.*cap.*none"):
            _public(catalog, "digits", "v2", cap=CAP)

    def test_group_size_is_fixed_and_consent_is_not(self, catalog: Catalog, ledger: Ledger) -> None:
        _private(catalog, "clinic", "v1", cap=CAP, group_size=3)
        with pytest.raises(InputError, match="3 rows per person"):
            _private(catalog, "clinic", "v2", group_size=1)
        account = ledger.account("clinic")
        assert (account.group_size, account.idealised_allowed) == (3, False)
        for word in (True, True, None, False):
            _private(catalog, "clinic", "v1", idealised_allowed=word)
            assert ledger.account("clinic").idealised_allowed is (word is not False)

    def test_unknown_names_are_answered_with_the_known(self, catalog: Catalog) -> None:
        _public(catalog, "digits", "v1")
        with pytest.raises(InputError, match="'digit'", check=stating(value="digit", way_out="ingest")):
            catalog.get("digit")
        assert catalog.registrations("digit") == []

    @pytest.mark.parametrize("name", ["", "two\nlines", " space"])
    def test_a_name_that_breaks_a_line_is_refused(self, catalog: Catalog, name: str) -> None:
        with pytest.raises(InputError, match="data set's name"):
            _public(catalog, name, "v1")
        with pytest.raises(InputError, match="data set's version"):
            _public(catalog, "digits", name)

    def test_lists(self, catalog: Catalog) -> None:
        _public(catalog, "iris", "i1")
        _private(catalog, "clinic", "c1", cap=CAP)
        _public(catalog, "digits", "d1")
        _public(catalog, "iris", "i2")
        assert [(found.name, found.version) for found in catalog.datasets()] == [
            ("clinic", "c1"),
            ("digits", "d1"),
            ("iris", "i2"),
        ]
        assert [found.version for found in catalog.registrations()] == ["i1", "c1", "d1", "i2"]

    def test_registrations_are_part_of_the_chain(self, catalog: Catalog, ledger: Ledger) -> None:
        _private(catalog, "clinic", "c1", cap=CAP)
        _public(catalog, "digits", "d1")
        assert ledger.verify() == []


class TestVisibility:
    def test_what_was_private_is_never_public(self, catalog: Catalog) -> None:
        _private(catalog, "clinic", "v1", cap=CAP, account="patients")
        with pytest.raises(RefusedError, check=stating(value="public", bound="private")):
            _public(catalog, "clinic", "v2")
        with pytest.raises(RefusedError, check=stating(value="public", bound="private")):
            _public(catalog, "clinic", "v2", account="fresh", disjoint_people="another clinic")
        with pytest.raises(RefusedError, match="account 'patients'"):
            _public(catalog, "another name", "v2", account="patients")
        with pytest.raises(RefusedError, check=stating(value="public", bound="private")):
            _public(catalog, "another name", "v1", account="fresh")
        assert [found.visibility for found in catalog.registrations()] == [Visibility.PRIVATE]

    def test_what_was_public_is_not_made_private(self, catalog: Catalog) -> None:
        _public(catalog, "digits", "v1")
        with pytest.raises(RefusedError, check=stating(value="private", bound="public")):
            _private(catalog, "digits", "v2", cap=CAP)
        with pytest.raises(RefusedError, match="account 'digits'"):
            _private(catalog, "clinic", "v2", cap=CAP, account="digits")

    def test_a_race_of_private_and_public_has_one_winner(self, path: Path) -> None:
        opened(path)

        def body(number: int) -> str:
            catalog = Catalog(opened(path))
            if number % 2:
                return str(_public(catalog, "clinic", f"v{number}").visibility)
            return str(_private(catalog, "clinic", f"v{number}", cap=CAP).visibility)

        answers = race(8, body)
        assert answers.count("RefusedError") == 4
        assert len({found.visibility for found in Catalog(opened(path)).registrations("clinic")}) == 1


class TestAccounts:
    def test_a_name_does_not_move_to_another_account(self, catalog: Catalog) -> None:
        _private(catalog, "clinic", "v1", cap=CAP)
        with pytest.raises(RefusedError, match=r"'clinic'.*'fresh'"):
            _private(catalog, "clinic", "v2", cap=CAP, account="fresh")
        with pytest.raises(RefusedError, match=r"'clinic'.*'fresh'"):
            _private(catalog, "clinic", "v1", cap=CAP, account="fresh")
        assert catalog.get("clinic").account == "clinic"

    def test_disjoint_people_open_another_and_it_is_on_record(self, catalog: Catalog, ledger: Ledger) -> None:
        _private(catalog, "clinic", "v1", cap=CAP, account="2025")
        declared = _private(catalog, "clinic", "v2", cap=CAP, account="2026", disjoint_people="another clinic")
        assert declared.account == "2026"
        account = ledger.account("2026")
        assert account.disjoint_people
        assert account.disjoint_from == ("2025",)
        assert _private(catalog, "clinic", "v2", cap=CAP, account="2026", disjoint_people="another clinic") == declared
        assert _private(catalog, "clinic", "v3").account == "2026"

    def test_disjoint_people_need_an_account_of_their_own(self, catalog: Catalog) -> None:
        _private(catalog, "clinic", "v1", cap=CAP)
        _private(catalog, "hospital", "h1", cap=CAP)
        with pytest.raises(InputError, match="disjoint people"):
            _private(catalog, "clinic", "v2", cap=CAP, disjoint_people="another clinic")
        for taken in ("clinic", "hospital"):
            with pytest.raises(InputError, match="disjoint people"):
                _private(catalog, "clinic", "v2", account=taken, disjoint_people="another clinic")
        with pytest.raises(RefusedError, match=r"'fresh'.*cap"):
            _private(catalog, "clinic", "v2", account="fresh", disjoint_people="another clinic")
        assert [found.version for found in catalog.registrations("clinic")] == ["v1"]
        with pytest.raises(InputError, match="--disjoint-people"):
            _private(catalog, "elsewhere", "e1", cap=CAP, account="new", disjoint_people="another clinic")

    def test_nothing_refills_an_account(self, catalog: Catalog, ledger: Ledger) -> None:
        """One changed row, an appended row, a re-ordered file, another name, a rotated key: the same people."""
        _private(catalog, "clinic", "v1", cap=CAP)
        ledger.charge(request(release("v1 model", 1), partition="v1"), {"0": "first key"})
        for number, change in enumerate(["changed row", "appended row", "re-ordered file"]):
            _private(catalog, "clinic", change)
            ledger.charge(request(release(f"{change} model", 0.5), partition=change), {"0": "first key"})
            assert spent(ledger) == 1.5 + 0.5 * number
        _private(catalog, "clinic under another name", "v5", account="clinic")
        ledger.charge(request(release("v5 model", 0.25), partition="v5"), {"0": "first key"})
        ledger.charge(request(release("v6 model", 0.25), partition="v5"), {"0": "rotated key"})
        assert spent(ledger) == CAP.epsilon
        with pytest.raises(OverspendError):
            ledger.charge(request(release("one more", 0.01), partition="v5"), {"0": "rotated key"})


PATIENTS = People("Patient", 8, "hospital-mrn")


class TestPeople:
    def test_an_account_has_one_unit_for_life(self, catalog: Catalog, ledger: Ledger) -> None:
        _private(catalog, "visits", "v1", cap=CAP, people=PATIENTS)
        assert catalog.account_of("visits").unit == "person"
        assert catalog.get("visits").people == PATIENTS
        with pytest.raises(RefusedError, match=r"account 'visits'.*--person"):
            _private(catalog, "visits", "v2")
        with pytest.raises(RefusedError, match=r"claims.*--person"):
            _private(catalog, "claims", "c1", account="visits")
        with pytest.raises(InputError, match=r"people.*group size 3"):
            _private(catalog, "visits", "v2", people=PATIENTS, group_size=3)
        with pytest.raises(InputError, match=r"'person'.*3"):
            _private(catalog, "claims", "c1", cap=CAP, people=People("Member"), group_size=3)
        with pytest.raises(InputError, match=r"'visits'.*unit person"):
            ledger.open_account("visits", CAP)
        assert [one.version for one in catalog.registrations()] == ["v1"]
        assert [one.name for one in ledger.accounts()] == ["visits"]

    def test_rows_do_not_become_people(self, catalog: Catalog, ledger: Ledger) -> None:
        """With a recorded group size neither: the number of a person's rows is known there, and here it is not."""
        _private(catalog, "visits", "v1", cap=CAP, group_size=5)
        ledger.charge(request(release("model", 0.1), account="visits"), {"0": "key"})
        for name in ("visits", "claims"):
            with pytest.raises(RefusedError, match=r"account 'visits'.*type ignore"):
                _private(catalog, name, "v2", account="visits", people=PATIENTS)
        assert spent(ledger, "visits") == 0.5
        assert [one.version for one in catalog.registrations()] == ["v1"]

    @pytest.mark.parametrize(
        "now", [People("Case", 8, "hospital-mrn"), People("Patient", 9, "hospital-mrn"), People("Patient", 8)]
    )
    def test_people_are_declared_once(self, catalog: Catalog, now: People) -> None:
        _private(catalog, "visits", "v1", cap=CAP, people=PATIENTS)
        with pytest.raises(RefusedError, match=r"column Patient.*8.*account 'visits'"):
            _private(catalog, "visits", "v2", people=now)
        assert _private(catalog, "visits", "v2", people=PATIENTS).account == "visits"
        # Another table of the account may name them by another column.
        assert _private(catalog, "claims", "c1", account="visits", people=now).people == now

    def test_people_of_a_namespace_have_one_account(self, catalog: Catalog, ledger: Ledger) -> None:
        _private(catalog, "visits", "v1", cap=CAP, people=PATIENTS)
        for options in ({}, {"disjoint_people": "others", "overlapping": ["visits"]}):
            with pytest.raises(RefusedError, match=r"namespace 'hospital-mrn'.*account 'visits'.*--account vis"):
                _private(catalog, "claims", "c1", cap=CAP, people=People("Member", 64, "hospital-mrn"), **options)
        with pytest.raises(RefusedError, match=r"'hospital-mrn'.*account 'visits'"):
            _private(catalog, "visits", "v2", cap=CAP, account="new", disjoint_people="others", people=PATIENTS)
        assert [one.name for one in ledger.accounts()] == ["visits"]
        # Public rows are in no account that is kept.
        _public(catalog, "open", "o1", people=People("Patient", 64, "hospital-mrn"))
        _public(catalog, "census", "s1", people=People("Citizen", 64, "citizen"))
        _private(catalog, "taxes", "t1", cap=CAP, people=People("Citizen", 64, "citizen"))
        # Of no namespace nothing is known.
        _private(catalog, "claims", "c1", cap=CAP, people=People("Member"))
        _private(catalog, "letters", "l1", cap=CAP, people=People("Member"))
        assert [one.account for one in catalog.datasets()] == ["census", "claims", "letters", "open", "taxes", "visits"]

    def test_accounts_of_rows_are_written_as_ever(self, catalog: Catalog, path: Path) -> None:
        _private(catalog, "visits", "v1", cap=CAP, people=PATIENTS)
        _private(catalog, "clinic", "v1x", cap=CAP)
        with reading(opened(path)) as entries:
            person, row = entries.find(Kind.ACCOUNT)
            assert person.content == {**row.content, "unit": "person"}
            assert "people" not in entries.find(Kind.DATASET)[1].content

    def test_a_restored_ledger_knows_the_unit(
        self, catalog: Catalog, ledger: Ledger, path: Path, tmp_path: Path
    ) -> None:
        _public(catalog, "digits", "d1")
        shutil.copy(path, tmp_path / "back-up")
        _private(catalog, "visits", "v1", cap=CAP, people=PATIENTS)
        ledger.charge(request(release("model", 0.5), account="visits"), {"0": "key"})
        shutil.copy(tmp_path / "back-up", path)
        restored = restore(opened(path), SumOfEpsilons(), by="owner", why="an older back-up")
        assert restored == ("visits",)
        again = Ledger(opened(path), SumOfEpsilons())
        assert again.account("visits").unit == "person"
        assert spent(again, "visits") == 0.5
        assert again.verify() == []
        with pytest.raises(RefusedError, match=r"visits.*--person"):
            _private(Catalog(opened(path)), "visits", "v2")
