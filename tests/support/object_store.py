"""An object store of the tests' own: moto's server in a process of its own, on loopback.

It speaks S3's protocol; of the atomicity of a real store it proves nothing.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import clean_environment
from tests.support.serving import free_port

BUCKET = "unitball-tests"


@contextlib.contextmanager
def running_object_store(log: Path) -> Iterator[str]:
    """Start a store with an empty bucket; yield its endpoint."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=output,
            stderr=output,
            env=clean_environment(),
        )
    try:
        deadline = time.monotonic() + 600
        while True:
            try:
                request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
                with urllib.request.urlopen(request, timeout=300):
                    break
            except OSError:
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < deadline, "moto's server does not answer"
                time.sleep(0.1)
        yield endpoint
    finally:
        server.kill()
        server.wait()


def use_object_store(patch: pytest.MonkeyPatch, endpoint: str, prefix: str) -> str:
    """Point this process to a prefix of a store; return its URL."""
    url = f"s3://{BUCKET}/{prefix}"
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "a-key-of-tests",
        "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests",
        "AWS_REGION": "us-east-1",
        "UNITBALL_OBJECTS": url,
    }.items():
        patch.setenv(name, value)
    return url
