"""The secret of a root's services: made once, its owner's alone, never shown, replaced whole."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import SecretError, StorageError
from storage.layout import SERVED_VARIABLE, Layout
from tasks.host.engine import being_served, on_running_server
from tasks.runtime.services import (
    USER,
    credentials,
    credentials_file,
    rotate_credentials,
    running_servers,
    use_own_server,
)
from tasks.runtime.settings import flow_run_page, mlflow_page, record_servers, recorded_servers
from tests.support.command_line import CommandLine


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "root").prepare()


def test_one_secret_a_root_for_its_owner_alone(layout: Layout, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        secret = credentials(layout.root)
    finally:
        os.umask(before)
    path = credentials_file(layout.root)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert credentials(layout.root) == secret
    assert secret.basic == f"{USER}:{secret.password}" == path.read_text().strip()
    assert len(secret.password) >= 43, "256 bits"
    assert credentials(Layout(tmp_path / "other").prepare().root) != secret


def test_the_password_does_not_show_itself(layout: Layout) -> None:
    secret = credentials(layout.root)
    for text in (repr(secret), str(secret), f"{secret}"):
        assert secret.password not in text
    assert secret.password not in secret.derived("a purpose")
    assert secret.derived("a purpose") != secret.derived("another")


def test_rotating_replaces_it(layout: Layout) -> None:
    before = credentials(layout.root)
    path = rotate_credentials(layout.root)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert credentials(layout.root).password != before.password


def test_a_secret_that_others_can_read_is_refused_with_the_command_that_mends_it(layout: Layout) -> None:
    credentials(layout.root)
    path = credentials_file(layout.root)
    path.chmod(0o640)
    with pytest.raises(SecretError, match=f"mode 0640.*chmod 600 {path} && unitball secret rotate"):
        credentials(layout.root)


@pytest.mark.parametrize("content", [b"", b"short", b"unitball:short", b"somebody:" + b"x" * 43, b"\xff" * 60])
def test_a_damaged_secret_is_refused_and_not_shown(layout: Layout, content: bytes) -> None:
    path = credentials_file(layout.root)
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SecretError, match="secret") as caught:
        credentials(layout.root)
    assert "x" * 20 not in str(caught.value)
    rotate_credentials(layout.root)
    assert credentials(layout.root).password


def test_the_secret_is_shown_to_the_roots_own_server_only(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = "http://127.0.0.1:4210/api", "http://127.0.0.1:4200/api"
    for address in (None, own, other):
        monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)
        monkeypatch.delenv("PREFECT_API_URL", raising=False)
        if address:
            monkeypatch.setenv("PREFECT_API_URL", address)
        use_own_server(layout.root)
        assert "PREFECT_API_AUTH_STRING" not in os.environ
    record_servers(layout.root, {"prefect": own})
    use_own_server(layout.root)
    assert "PREFECT_API_AUTH_STRING" not in os.environ
    monkeypatch.setenv("PREFECT_API_URL", own)
    use_own_server(layout.root)
    assert os.environ["PREFECT_API_AUTH_STRING"] == credentials(layout.root).basic
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "the user's own")
    use_own_server(layout.root)
    assert os.environ["PREFECT_API_AUTH_STRING"] == "the user's own"
    record_servers(layout.root, {})
    assert recorded_servers(layout.root) == {}


def test_pages_are_linked_to_where_the_root_is_served(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "UNITBALL_PREFECT_PORT", "UNITBALL_MLFLOW_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UNITBALL_ROOT", str(layout.root))
    assert flow_run_page("a") == "http://127.0.0.1:4210/v2/runs/flow-run/a"
    monkeypatch.setenv("UNITBALL_PREFECT_PORT", "4300")
    assert flow_run_page("a") == "http://127.0.0.1:4300/v2/runs/flow-run/a"
    record_servers(layout.root, {"prefect": "http://127.0.0.1:4400/api", "mlflow": "http://127.0.0.1:5400"})
    assert flow_run_page("a") == "http://127.0.0.1:4400/v2/runs/flow-run/a"
    assert mlflow_page("b").startswith("http://127.0.0.1:5400/")


def test_only_a_server_that_runs_is_found(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process has noted down may be anybody's port by now."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    addresses = {"prefect": "http://127.0.0.1:4210/api", "mlflow": "http://127.0.0.1:5000"}
    record_servers(layout.root, addresses)
    assert running_servers(layout.root) == {}
    with on_running_server(layout.root) as found:
        assert not found
    serving = (
        "import sys, time, pathlib; from tasks.host.engine import being_served\n"
        "with being_served(pathlib.Path(sys.argv[1])): print('serving', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", serving, str(layout.root)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"serving\n"
        assert running_servers(layout.root) == addresses
        with on_running_server(layout.root) as found:
            from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

            assert found
            assert PREFECT_API_URL.value() == addresses["prefect"]
            assert str(PREFECT_API_AUTH_STRING.value()) == credentials(layout.root).basic
        with (
            pytest.raises(StorageError, match=r"already being served.*4210"),
            being_served(layout.root),
        ):
            pass
        process.kill()
    assert running_servers(layout.root) == {}
    with being_served(layout.root):
        pass
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    with on_running_server(layout.root) as found:
        assert not found


def test_the_command_rotates_and_says_what_to_start_again(commands: CommandLine) -> None:
    before = credentials(Layout(commands.root).prepare().root)
    record_servers(commands.root, {"prefect": "http://127.0.0.1:4210/api"})
    outcome = commands("secret", "rotate")
    assert outcome.code == 0
    after = credentials(commands.root)
    assert after != before
    assert str(credentials_file(commands.root)) in outcome.out
    assert "restart the server at http://127.0.0.1:4210/api" in outcome.out
    assert after.password not in outcome.out


def test_who_serves_a_root_sees_that_it_has_gone(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another one was made at its path meanwhile, which would have other keys and another ledger.

    By somebody else: what serves, and what it starts, makes none there.
    """
    elsewhere = layout.root.with_name("elsewhere")
    (layout.prefect / "file").touch()
    with being_served(layout.root) as there:
        assert there()
        layout.root.rename(elsewhere)
        assert not there()
        making = [sys.executable, "-c", "from storage.layout import *; import sys; Layout(Path(sys.argv[1])).prepare()"]
        refused = subprocess.run([*making, str(layout.root)], capture_output=True, text=True)
        assert "was moved, replaced or removed while being served" in refused.stderr
        with pytest.raises(StorageError, match="root was moved"):
            layout.prepare()
        assert not layout.root.exists()
        monkeypatch.delenv(SERVED_VARIABLE)
        layout.prepare()
        with being_served(layout.root):
            assert not there()
            shutil.rmtree(layout.root)
        elsewhere.rename(layout.root)
        assert there()
