"""What an S3 store does when the store does not do its part, against real servers on loopback."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.services.s3 import KEYS, Bucket
from trainmaster.errors import UnavailableError, UserError
from trainmaster.storage import Storage
from worker.storage.s3 import PART_BYTES, S3Storage

HASTY = {
    "max_retries": 2,
    "backoff": {
        "init_backoff": timedelta(milliseconds=1),
        "max_backoff": timedelta(milliseconds=5),
        "base": 2,
    },
    "timeout": timedelta(milliseconds=500),
}
"""Limits under which a test need not wait."""


class Refusing(ThreadingHTTPServer):
    """Answers each request with the next of `answers` (status, S3 code), the last one for ever."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Refuses)
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, str]]] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Refuses(BaseHTTPRequestHandler):
    server: Refusing

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.command, {k.lower(): v for k, v in self.headers.items()}))
        answers = self.server.answers
        status, code = answers.pop(0) if len(answers) > 1 else answers[0]
        told = f"<Error><Code>{code}</Code><AWSAccessKeyId>secret-key</AWSAccessKeyId></Error>"
        body = told.encode() if code and self.command != "HEAD" else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Storage, Refusing]]]:
    started: list[Refusing] = []

    def start(*answers: tuple[int, str]) -> tuple[Storage, Refusing]:
        started.append(Refusing(*answers))
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": started[-1].url}.items():
            monkeypatch.setenv(name, value)
        return S3Storage("bucket", "prefix", limits=HASTY), started[-1]

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "kind", "mend"),
    [
        (404, "NoSuchBucket", "store_bucket_missing", "create it"),
        (403, "InvalidAccessKeyId", "store_credentials", "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "store_credentials", "AWS_SECRET_ACCESS_KEY"),
        (400, "ExpiredToken", "store_credentials", "AWS_SESSION_TOKEN"),
        (403, "AccessDenied", "store_denied", "allow reading"),
        (403, "RequestTimeTooSkewed", "store_clock", "clock"),
        (301, "PermanentRedirect", "store_region", "AWS_REGION"),
        (400, "AuthorizationHeaderMalformed", "store_region", "AWS_REGION"),
        (503, "SlowDown", "store_refused", "SlowDown"),
        (500, "", "store_refused", "HTTP 500"),
        (507, "XMinioStorageFull", "store_refused", "XMinioStorageFull"),
    ],
)
def test_a_refusal_says_what_to_mend_and_no_secret(
    refusing: Callable[..., tuple[Storage, Refusing]], status: int, code: str, kind: str, mend: str
) -> None:
    storage, _ = refusing((status, code))
    for attempt in (
        lambda: storage.put("a", [b"x"]),
        lambda: storage.create("a", b"x"),
        lambda: storage.read("a", 0, 1),
        lambda: storage.list("a"),
    ):
        with pytest.raises(UnavailableError, match=mend) as refused:
            attempt()
        assert refused.value.code == kind
        assert "s3://bucket/prefix" in refused.value.message
        assert not any(
            secret in refused.value.message for secret in ("secret-key", "Key>", *KEYS.values())
        )


def test_a_head_on_a_bucket_that_is_gone_is_no_lost_object(
    refusing: Callable[..., tuple[Storage, Refusing]],
) -> None:
    storage, _ = refusing((404, "NoSuchBucket"))
    with pytest.raises(UnavailableError) as refused:
        storage.size("a")
    assert refused.value.code == "store_bucket_missing"


def test_a_passing_refusal_is_tried_again_and_each_request_proves_its_bytes(
    refusing: Callable[..., tuple[Storage, Refusing]],
) -> None:
    storage, server = refusing((503, "SlowDown"), (500, "InternalError"), (200, ""))
    assert storage.put("a", [b"x"]) == 1
    assert [method for method, _ in server.requests] == ["PUT"] * 3
    assert all(headers["x-amz-checksum-sha256"] for _, headers in server.requests)


def test_a_manifest_is_created_on_a_condition(
    refusing: Callable[..., tuple[Storage, Refusing]],
) -> None:
    storage, server = refusing((200, ""))
    storage.create("a", b"x")
    assert server.requests[0][1]["if-none-match"] == "*"


def test_a_store_that_is_down_is_told_after_some_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnavailableError, match="does not answer") as refused:
        S3Storage("bucket", "", limits=HASTY).put("a", [b"x"])
    assert refused.value.code == "store_unreachable"


def test_an_environment_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "perhaps")
    with pytest.raises(UserError, match="AWS_"):
        S3Storage("bucket", "").put("a", [b"x"])


def test_an_object_that_was_replaced_by_a_creation_sent_twice_is_its_own(s3: Bucket) -> None:
    """The answer to a creation is lost, and what is sent again finds the object there."""
    first = S3Storage(s3.name, "checkpoints")
    first.create("a", b"x")
    assert first._creator_of("a") is not None
    assert first._creator_of("b") is None


def test_parts_of_an_interrupted_upload_are_taken_back(s3: Bucket) -> None:
    def chunks() -> Iterator[bytes]:
        yield bytes(PART_BYTES)
        yield bytes(PART_BYTES)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        S3Storage(s3.name, "checkpoints").put("a", chunks())
    assert "<Upload>" not in s3.uploads()
