"""A private S3 API on loopback for tests: `s3()` gives a bucket of its own.

The server is moto's, as a process. It lives for the whole test session; each bucket is new.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.services.private_server import PrivateServer, free_port

KEYS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_REGION": "us-east-1",
}


@dataclass(frozen=True)
class Bucket:
    """A bucket, and what a process needs in its environment to use it."""

    endpoint: str
    name: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}/checkpoints"

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ENDPOINT_URL": self.endpoint, **KEYS}

    def uploads(self) -> str:
        """What the server says of uploads that were begun and not ended."""
        return httpx.get(f"{self.endpoint}/{self.name}?uploads").text


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the session's S3 API."""
    folder = tmp_path_factory.mktemp("s3")
    for _ in range(5):
        port = free_port()
        argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = PrivateServer(argv, log=folder / "log")
        if server.wait_until(lambda port=port: _answers(port)):
            yield f"http://127.0.0.1:{port}"
            server.stop()
            return
        server.stop()
    raise RuntimeError(f"the S3 API did not start:\n{server.tail()}")


@pytest.fixture
def bucket(s3_endpoint: str) -> Bucket:
    """A new, empty bucket."""
    found = Bucket(s3_endpoint, f"bucket-{uuid4().hex[:12]}")
    httpx.put(f"{s3_endpoint}/{found.name}").raise_for_status()
    return found


@pytest.fixture
def s3(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket that this process may use: its environment names the server and the keys."""
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    return bucket


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/moto-api/", timeout=2).status_code < 500
    except httpx.TransportError:
        return False


def log_of(folder: Path) -> str:
    """What the server has written."""
    return (folder / "log").read_text(errors="replace")
