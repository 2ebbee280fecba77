"""Requests that have no end, or take for ever: refused soon, at no cost to the others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from control.arrivals import Arrivals

HOST = b"Host: x\r\n"


class Hasty(Arrivals):
    """The same with less patience, so that tests need not have it."""

    head_s = 0.3
    pause_s = 0.3


class Patient(Arrivals):
    """With times that a busy machine does not use up by itself, and a test can outlast."""

    head_s = 3.0
    pause_s = 3.0


async def length(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


@contextmanager
def serving(protocol: type[Arrivals]) -> Iterator[int]:
    app = Starlette(routes=[Route("/", length, methods=["POST"])])
    config = uvicorn.Config(app, http=protocol, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def port() -> Iterator[int]:
    with serving(Arrivals) as port:
        yield port


@pytest.fixture
def hasty() -> Iterator[int]:
    with serving(Hasty) as port:
        yield port


@pytest.fixture
def patient() -> Iterator[int]:
    with serving(Patient) as port:
        yield port


def heard(port: int, pieces: Iterable[bytes]) -> bytes:
    """Send until the peer hangs up or there is no more, and return its whole answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as peer:
        try:
            for piece in pieces:
                peer.sendall(piece)
        except ConnectionError:
            pass
        answer = b""
        try:
            while part := peer.recv(1 << 16):
                answer += part
        except ConnectionError:
            pass
        return answer


def endless(head: bytes, piece: bytes) -> Iterator[bytes]:
    yield head
    for _ in range(1000):
        yield piece


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"GET /", b"a" * 65536),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: ", b"a" * 65536),
        (b"GET / HTTP/1.1\r\n" + HOST, b"X: y\r\n" * 10_000),
        (
            b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n",
            b"X: y\r\n" * 99,
        ),
    ],
)
def test_a_head_or_trailer_without_end_is_cut_off(port: int, head: bytes, piece: bytes) -> None:
    began = time.monotonic()
    answer = heard(port, endless(head, piece))
    assert answer == b"" or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
    assert time.monotonic() - began < 10


def test_a_large_body_and_many_small_chunks_arrive_whole(port: int) -> None:
    url = f"http://127.0.0.1:{port}/"
    with httpx.Client() as client:
        for _ in range(2):  # on one connection
            assert client.post(url, content=b"a" * (8 << 20)).text == str(8 << 20)
            assert client.post(url, content=(b"a" for _ in range(50_000))).text == "50000"


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST / HTTP/1.1\r\nX: ",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n{",
    ],
)
def test_what_never_becomes_a_request_is_given_up(hasty: int, begun: bytes) -> None:
    began = time.monotonic()
    answer = heard(hasty, [begun])
    assert answer == b"" or answer.startswith(b"HTTP/1.1 408")
    assert time.monotonic() - began < 10


def test_a_body_may_come_slowly_as_long_as_it_comes(patient: int) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(8):  # together longer than one pause may be
            time.sleep(Patient.pause_s / 6)
            yield b"a" * 10

    assert httpx.post(f"http://127.0.0.1:{patient}/", content=pieces(), timeout=20).text == "80"


def test_an_idle_connection_serves_again(patient: int) -> None:
    with httpx.Client() as client:
        url = f"http://127.0.0.1:{patient}/"
        assert client.post(url, content=b"abc").text == "3"
        time.sleep(Patient.head_s * 1.2)
        assert client.post(url, content=b"abc").text == "3"
