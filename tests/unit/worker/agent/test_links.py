"""Links are measured by messages to a real sink, and fitted."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest

from trainmaster.emulation import Link
from trainmaster.errors import UnavailableError
from trainmaster.readers import MAY_SEND, Readers
from worker.agent.exporter import Exporter
from worker.agent.links import MAX_BYTES, PATH, SIZES, fitted, measured, with_links
from worker.agent.scrapes import serve
from worker.launch import Emulation


@pytest.fixture
def address() -> Iterator[str]:
    exporter = Exporter("n1", "cpu", link_bytes_per_s=None)
    take = Readers({"good": "link", "scrape": "viewer"}.get, may=MAY_SEND).admit
    server = serve(exporter, host="127.0.0.1", port=0, admit=None, take=take)
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("latency_s", "rate"), [(0.01, 1e8), (0.0, 1e9), (2e-5, 5e9), (0.3, 1e5)])
def test_a_link_that_is_as_assumed_is_found(latency_s: float, rate: float) -> None:
    found = fitted({size: latency_s + size / rate for size in SIZES})
    assert found.latency_s == pytest.approx(latency_s, abs=1e-9)
    assert found.bytes_per_s == pytest.approx(rate)
    assert found.residual < 1e-6


def test_a_fit_tells_by_how_much_it_is_off_and_is_never_negative() -> None:
    rough = fitted({4096: 0.010, 65_536: 0.020, 1 << 20: 0.011})
    assert rough.residual > 0.2
    faster_with_size = fitted({4096: 0.02, 65_536: 0.015, 1 << 20: 0.01})
    assert faster_with_size.latency_s == 0
    assert faster_with_size.bytes_per_s == pytest.approx((1 << 20) / 0.01)
    beyond = fitted({4096: 1e-6, 65_536: 0.01, 1 << 20: 0.2})
    assert beyond.latency_s == 0
    with pytest.raises(ValueError, match="two sizes"):
        fitted({4096: 0.1})


def test_an_emulated_link_takes_its_time(address: str) -> None:
    slow = Link(latency_ms=5, mbps=400)
    found = measured(address, slow, token="good")
    assert set(found.message_s) == set(SIZES)
    for size, seconds in found.message_s.items():
        assert seconds >= 0.005 + size * 8 / 400e6 - 0.005, "less than half a round trip off"
    assert found.bytes_per_s <= 400e6 / 8 * 1.2


def test_a_very_slow_link_is_measured_by_three_sizes(address: str) -> None:
    found = measured(address, Link(mbps=12), token="good")
    assert len(found.message_s) == 3


def test_each_neighbour_is_measured_or_told_why_not(address: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
        found = with_links(
            {"device": "cpu"},
            {"elm": address, "oak": nobody},
            Emulation(),
            token=lambda: "good",
        )
    assert found["device"] == "cpu"
    assert found["links"]["elm"]["bytes_per_s"] > 0
    assert "takes no messages" in found["unmeasured"]["oak"]


def test_the_sink_takes_no_more_than_a_measurement_needs(address: str) -> None:
    def status(path: str, length: str) -> int:
        link = http.client.HTTPConnection(address, timeout=10)
        headers = {"Content-Length": length, "Authorization": "Bearer good"}
        link.request("POST", path, headers=headers)
        answer = link.getresponse().status
        link.close()
        return answer

    assert status(PATH, "0") == 204
    assert status("/elsewhere", "0") == 404
    assert status(PATH, str(MAX_BYTES + 1)) == 413
    assert status(PATH, "many") == 413


def test_a_neighbour_of_another_release_is_told_by_what_it_answers(address: str) -> None:
    link = http.client.HTTPConnection(address, timeout=10)
    link.request("POST", "/metrics", body=b"x")
    assert link.getresponse().status == 404
    link.close()
    with pytest.raises(UnavailableError):
        measured("127.0.0.1:1", None, token="good")


@pytest.mark.parametrize(
    ("authorization", "status"),
    [(None, 401), ("Basic good", 401), ("Bearer unknown", 401), ("Bearer scrape", 403)],
)
def test_messages_without_a_good_token_are_refused_before_they_are_read(
    address: str, authorization: str | None, status: int
) -> None:
    link = http.client.HTTPConnection(address, timeout=10)
    link.putrequest("POST", PATH)
    link.putheader("Content-Length", str(MAX_BYTES))
    if authorization is not None:
        link.putheader("Authorization", authorization)
    link.endheaders()
    assert link.getresponse().status == status, "and nothing was sent"
    link.close()
    with pytest.raises(UnavailableError, match="answered 401"):
        measured(address, None, token="unknown")


def test_a_neighbour_without_a_token_is_told_as_not_measured(address: str) -> None:
    def away() -> str:
        raise UnavailableError("the control plane is out of reach")

    found = with_links({}, {"elm": address}, Emulation(), token=away)
    assert found["unmeasured"] == {"elm": "the control plane is out of reach"}
