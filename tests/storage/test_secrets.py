"""Secrets: made once, read by their owner only, shown to nobody."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

from storage.errors import InputError, SecretError
from storage.layout import Layout
from storage.secrets import Secret, environment_name, party_secret, require_secret, root_secret
from tests.support.data import temporaries
from tests.support.forks import die, killed, race


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path).prepare()


def test_a_secret_is_made_once_and_kept(layout: Layout) -> None:
    first = party_secret(layout, "0")
    assert len(first) == 32
    assert party_secret(layout, "0") == first
    assert require_secret(layout, "0") == first
    path = layout.party_secret("0")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0
    assert not temporaries(layout.root)


def test_parties_and_roots_have_secrets_of_their_own(layout: Layout, tmp_path: Path) -> None:
    other = Layout(tmp_path / "other").prepare()
    secrets = [party_secret(layout, "0"), party_secret(layout, "1"), party_secret(other, "0"), root_secret(layout)]
    assert len(set(secrets)) == 4
    assert root_secret(layout) == secrets[3]


def test_the_environment_goes_before_the_file(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment_name("clinic-a.2") == "UNITBALL_SECRET_CLINIC_A_2"
    monkeypatch.setenv("UNITBALL_SECRET_CLINIC_A", "0f" * 32)
    assert party_secret(layout, "clinic-a") == b"\x0f" * 32
    assert require_secret(layout, "clinic-a") == b"\x0f" * 32
    assert not layout.party("clinic-a").exists()


@pytest.mark.parametrize("value", ["", "0f" * 31, "0f" * 33, "zz" * 32])
def test_a_bad_environment_is_refused_without_showing_it(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("UNITBALL_SECRET_0", value)
    with pytest.raises(SecretError, match=r"UNITBALL_SECRET_0.*64") as caught:
        party_secret(layout, "0")
    assert not value or value not in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601])
def test_a_secret_that_others_reach_is_refused_with_its_mode(layout: Layout, mode: int) -> None:
    party_secret(layout, "0")
    path = layout.party_secret("0")
    path.chmod(mode)
    for ask in (party_secret, require_secret):
        with pytest.raises(SecretError, match=f"mode {mode:04o}: .*chmod 600 {path}"):
            ask(layout, "0")
    path.chmod(0o600)
    party_secret(layout, "0")


def test_a_missing_secret_is_not_made_where_one_is_required(layout: Layout) -> None:
    with pytest.raises(SecretError, match=r"secret\.key.*UNITBALL_SECRET_0"):
        require_secret(layout, "0")
    assert not layout.party_secret("0").exists()


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_cut_secret_is_refused_and_not_replaced(layout: Layout, size: int) -> None:
    party_secret(layout, "0")
    path = layout.party_secret("0")
    path.write_bytes(b"x" * size)
    with pytest.raises(SecretError, match=r"secret\.key.*32 bytes"):
        party_secret(layout, "0")
    assert path.read_bytes() == b"x" * size


def test_a_secret_does_not_show_itself(layout: Layout, caplog: pytest.LogCaptureFixture) -> None:
    secret = party_secret(layout, "0")
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("the secret %s %r", secret, secret)
    shown = [str(secret), repr(secret), f"{secret}", f"{secret!r}", f"{secret:>40}", repr({"key": secret}), caplog.text]
    for text in shown:
        assert "secret of 32 bytes" in text
        assert repr(bytes(secret))[2:-1] not in text
        assert secret.hex() not in text
    with pytest.raises(TypeError, match="secret"):
        pickle.dumps(secret)
    assert isinstance(secret, Secret)


def test_two_processes_make_one_secret(layout: Layout) -> None:
    answers = race(4, lambda _number: bytes(party_secret(layout, "0")))
    assert len(set(answers)) == 1
    assert len(answers[0]) == 32


def test_a_kill_while_a_secret_is_made_leaves_no_part_of_it(layout: Layout) -> None:
    def body() -> None:
        import os

        os.link = die
        party_secret(layout, "0")

    killed(body)
    assert not layout.party_secret("0").exists()
    assert len(party_secret(layout, "0")) == 32


def test_a_party_cannot_name_another_folder(layout: Layout) -> None:
    with pytest.raises(InputError):
        party_secret(layout, "../root")
