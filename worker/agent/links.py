"""The links from this node to its neighbours, measured by messages to their agents.

Each agent takes messages at `PATH` of the address at which it is scraped, from agents whose token
is good for that, and throws them away. An emulated link takes its time here as it does between
ranks.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from trainmaster.calibration import LinkFigure
from trainmaster.emulation import Link
from trainmaster.errors import TrainmasterError, UnavailableError
from worker.emulation import message_s, wake_on_time
from worker.launch import Emulation

PATH: Final = "/link"
SIZES: Final = (4 << 10, 64 << 10, 1 << 20, 4 << 20)
MAX_BYTES: Final = SIZES[-1]
REPEATS: Final = 7
"""Of each size; the fastest counts: what a message takes longer is the machines' doing."""
LONG_S: Final = 0.5
"""Messages that take longer are sent once, and no larger ones after three sizes."""
TIMEOUT_S: Final = 30.0


def measured(address: str, emulated: Link | None, *, token: str) -> LinkFigure:
    """Measure the way to the agent at host:port, which takes messages with `token`.

    Half of an empty message's round trip is taken for the way back, which one end cannot tell.

    Raises:
        UnavailableError: the agent does not take messages.
    """
    wake_on_time()
    host, _, port = address.rpartition(":")
    link = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
    try:
        headers = {"Authorization": f"Bearer {token}"}
        _round_trip_s(link, headers, 0, None)  # the other agent asks what the token is good for
        back_s = min(_round_trip_s(link, headers, 0, None) for _ in range(REPEATS)) / 2
        found: dict[int, float] = {}
        for size in SIZES:
            first = _round_trip_s(link, headers, size, emulated)
            more = 0 if first > LONG_S else REPEATS - 1
            taken = [first, *(_round_trip_s(link, headers, size, emulated) for _ in range(more))]
            found[size] = max(back_s, min(taken) - back_s)
            if first > LONG_S and len(found) >= 3:
                break
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"{address} takes no messages: {error}") from error
    finally:
        link.close()
    return fitted(found)


def with_links(
    found: Mapping[str, Any],
    peers: Mapping[str, str],
    emulation: Emulation,
    *,
    token: Callable[[], str],
) -> dict[str, Any]:
    """Return what was found of a device with the links to `peers` (node -> host:port), each
    measured for itself; and why, of those that could not be.

    Args:
        token: asks the control plane for a token with which neighbours take messages.
    """
    links: dict[str, Any] = {}
    unmeasured: dict[str, str] = {}
    for peer, address in sorted(peers.items()):
        try:
            link = measured(address, emulation.links.get(peer), token=token())
            links[peer] = link.model_dump(mode="json")
        except TrainmasterError as error:
            unmeasured[peer] = error.message
    return {**found, "links": links, "unmeasured": unmeasured}


def _round_trip_s(
    link: http.client.HTTPConnection, headers: dict[str, str], size: int, emulated: Link | None
) -> float:
    body = bytes(size)
    started = time.perf_counter()
    if emulated is not None:
        time.sleep(message_s(emulated, size))
    link.request("POST", PATH, body=body, headers=headers)
    answer = link.getresponse()
    answer.read()
    if answer.status != 204:
        raise UnavailableError(f"its agent answered {answer.status} {answer.reason}")
    return time.perf_counter() - started


def fitted(message_s: Mapping[int, float]) -> LinkFigure:
    """Return the link that fits best to seconds by bytes: the squares of relative errors are least.

    Raises:
        ValueError: there are fewer than two sizes.
    """
    if len(message_s) < 2:
        raise ValueError("a link is fitted to messages of at least two sizes")
    sizes, seconds = list(message_s), list(message_s.values())
    weights = [1 / each**2 for each in seconds]
    latency_s, per_byte = _line(sizes, seconds, weights)
    if per_byte <= 0:  # larger messages are no slower: as fast as the largest at the least
        latency_s, per_byte = 0.0, seconds[-1] / sizes[-1]
    elif latency_s < 0:
        latency_s, per_byte = 0.0, _slope(sizes, seconds, weights)
    residual = max(
        abs(latency_s + per_byte * size - each) / each
        for size, each in zip(sizes, seconds, strict=True)
    )
    return LinkFigure(
        latency_s=latency_s,
        bytes_per_s=1 / per_byte,
        residual=residual,
        message_s=dict(message_s),
    )


def _line(
    sizes: Sequence[int], seconds: Sequence[float], weights: Sequence[float]
) -> tuple[float, float]:
    rows, total = list(zip(sizes, seconds, weights, strict=True)), sum(weights)
    mean_size = sum(w * s for s, _, w in rows) / total
    mean_s = sum(w * t for _, t, w in rows) / total
    per_byte = sum(w * (s - mean_size) * (t - mean_s) for s, t, w in rows) / sum(
        w * (s - mean_size) ** 2 for s, _, w in rows
    )
    return mean_s - per_byte * mean_size, per_byte


def _slope(sizes: Sequence[int], seconds: Sequence[float], weights: Sequence[float]) -> float:
    rows = list(zip(sizes, seconds, weights, strict=True))
    return sum(w * s * t for s, t, w in rows) / sum(w * s * s for s, _, w in rows)
