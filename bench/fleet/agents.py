"""Simulated agents: many in one process, each with a connection of its own, speaking the real
protocol. They train nothing; a node that is given ranks tells of steps as real ones would.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from trainmaster.ids import agent_stream, rank_stream
from trainmaster.metrics import STEP_METRIC_NAMES

AGENT = agent_stream("0001")
HEADER_END = b"\r\n\r\n"
QUIET = (b'"chores":[]', b'"assignments":[]')
FRAME_BYTES = 200
PEER_DIED = 75
"""With this exit code a rank tells that a collective broke: a peer is gone."""

INFO = {
    "num_layers": 4,
    "layers": [],
    "num_parameters": 100,
    "num_samples": 1 << 20,
    "code_sha256": "0" * 64,
    "data_sha256": "1" * 64,
}


@dataclass(slots=True)
class Tally:
    """What the fleet has seen since `reset`."""

    syncs: int = 0
    failures: int = 0
    latencies_s: list[float] = field(default_factory=list)

    def reset(self) -> None:
        """Begin anew."""
        self.syncs = self.failures = 0
        self.latencies_s = []


class Agent(asyncio.Protocol):
    """One node.

    Args:
        raw: it syncs each second, whatever the answers say.
    """

    def __init__(
        self, node: str, token: str, ports: Sequence[int], tally: Tally, *, raw: bool
    ) -> None:
        self.node = node
        self.dead = False
        self.assignments: list[dict[str, Any]] = []
        self._token = token
        self._ports = ports
        self._port = hash(node) % len(ports)
        self._tally = tally
        self._raw = raw
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._sent_at = 0.0
        self._flying = False
        self._cursors: dict[str, int] = {}
        self._events: list[dict[str, Any]] = []
        self._ready: set[tuple[str, int]] = set()
        self._gone: set[tuple[str, int]] = set()
        self._steps: dict[str, int] = {}
        self._sent: list[dict[str, Any]] = []
        self._sent_events = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, after_s: float) -> None:
        """Begin to sync after so long."""
        self._timer = asyncio.get_running_loop().call_later(after_s, self._due)

    def kill(self) -> None:
        """Lose power: nothing more is said."""
        self.dead = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def lose_peers(self, runs: set[tuple[str, int]]) -> None:
        """See the collectives of these attempts break: the ranks here end, which is told at
        once.
        """
        for each in self.assignments:
            key = (each["run"], each["generation"])
            if key in runs and key not in self._gone:
                self._gone.add(key)
                for rank in each["ranks"]:
                    told = {"run": key[0], "generation": key[1], "rank": rank["rank"]}
                    ended = {"exit_code": PEER_DIED, "signal": None, "stopped": False}
                    self._tell("rank_exited", {**told, **ended, "because": "a collective broke"})
        self._hurry()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its type

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._flying and not self.dead:
            self._failed()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head = self._data.find(HEADER_END)
        if head < 0:
            return
        at = self._data.lower().find(b"content-length:", 0, head)
        size = int(self._data[at + 15 : self._data.find(b"\r\n", at)])
        if len(self._data) < head + 4 + size:
            return
        status, body = int(self._data[9:12]), bytes(self._data[head + 4 : head + 4 + size])
        self._data.clear()
        self._flying = False
        now = time.monotonic()
        self._tally.syncs += 1
        self._tally.latencies_s.append(now - self._sent_at)
        if status == 200:
            self._heard(body)
        else:
            self._failed()

    def _failed(self) -> None:
        self._flying = False
        self._tally.failures += 1
        self._port += 1
        if self._transport is not None:
            self._transport.abort()
        self._again(0.5 + random.random())

    def _due(self) -> None:
        if self.dead or self._flying:
            return
        self._flying = True
        self._sent_at = time.monotonic()
        if self._transport is None:
            asyncio.get_running_loop().create_task(self._connect())
        else:
            self._transport.write(self._request())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            port = self._ports[self._port % len(self._ports)]
            await loop.create_connection(lambda: self, "127.0.0.1", port)
        except OSError:
            self._failed()
            return
        if self._transport is not None:
            self._sent_at = time.monotonic()
            self._transport.write(self._request())

    def _request(self) -> bytes:
        body = self._message()
        head = (
            f"POST /v1/nodes/{self.node}/sync HTTP/1.1\r\nHost: c\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _message(self) -> bytes:
        batches = self._batches()
        self._sent, self._sent_events = batches, len(self._events)
        message = {
            "protocol": 2,
            "boot": self.node,
            "version": "0",
            "sent_at": _now(),
            "address": "127.0.0.1",
            "metrics_port": 9100,
            "slots": 1,
            "devices": [{"kind": "cpu", "name": "simulated", "memory_bytes": 1 << 34}],
            "labels": {"rack": self.node.partition("-")[0]},
            "running": [self._running(each) for each in self._living()],
            "batches": batches,
        }
        return json.dumps(message).encode()

    def _living(self) -> list[dict[str, Any]]:
        return [
            each for each in self.assignments if (each["run"], each["generation"]) not in self._gone
        ]

    def _running(self, assignment: dict[str, Any]) -> dict[str, Any]:
        return {
            "run": assignment["run"],
            "generation": assignment["generation"],
            "store": "127.0.0.1:1" if assignment["hosts_store"] else None,
            "ranks": {str(rank["rank"]): 1000 for rank in assignment["ranks"]}
            if assignment["store"]
            else {},
        }

    def _batches(self) -> list[dict[str, Any]]:
        batches = []
        if self._events:
            batches.append(self._batch(AGENT, len(self._events), events=self._events))
        for each in self._living():
            if not each["store"]:
                continue
            for rank in each["ranks"]:
                stream = rank_stream(each["run"], each["generation"], rank["rank"])
                key = (stream, each["generation"])
                if key not in self._ready:
                    told = {"kind": "rank_ready", "at": _now(), "data": {}}
                    batches.append(self._batch(stream, 1, events=[told]))
                else:
                    step = self._steps.get(stream, 0) + 1
                    batches.append(self._batch(stream, 1, packed=_packed(step)))
        return batches

    def _batch(self, stream: str, frames: int, **what: Any) -> dict[str, Any]:
        start = self._cursors.get(stream, 0)
        end = start + FRAME_BYTES * frames
        return {"stream": stream, "from_offset": start, "to_offset": end, **what}

    def _heard(self, body: bytes) -> None:
        if not self._sent and all(mark in body for mark in QUIET):
            self.assignments = []
            at = body.find(b'"next_sync_s":') + 14
            self._again(float(body[at : body.find(b",", at)]))
            return
        reply = json.loads(body)
        for batch in self._sent:
            stream = batch["stream"]
            cursor = reply["cursors"].get(stream)
            moved = cursor == batch["to_offset"]
            if cursor is not None:
                self._cursors[stream] = cursor
            if moved and stream == AGENT:
                del self._events[: self._sent_events]
            elif moved and "packed" in batch:
                self._steps[stream] = self._steps.get(stream, 0) + 1
            elif moved:
                self._ready.add((stream, int(stream.split("/")[1])))
        self.assignments = reply["assignments"]
        for chore in reply["chores"]:
            told = {"id": chore["id"], "ok": True, "result": INFO, "problems": []}
            self._tell("chore_done", told)
        self._again(0.05 if self._events else reply["next_sync_s"])

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        self._events.append({"kind": kind, "at": _now(), "data": data})

    def _again(self, after_s: float) -> None:
        if self.dead:
            return
        if self._raw:
            after_s = min(after_s, 1.0)
        # From when it was sent: a fleet that is asked for 1 Hz sends at 1 Hz.
        delay_s = max(0.02, self._sent_at + after_s - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._due)

    def _hurry(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(0.02, self._due)


def _now() -> str:
    return datetime.now(UTC).isoformat()


_VALUES = struct.Struct("<d")


def _packed(step: int) -> dict[str, Any]:
    def coded(raw: bytes) -> str:
        return urlsafe_b64encode(raw).decode()

    draw: Callable[[], float] = random.random
    return {
        "steps": coded(struct.pack("<q", step)),
        "at": coded(_VALUES.pack(time.time())),
        "values": {
            name: coded(_VALUES.pack(1.0 if name == "applied" else 1.0 + draw()))
            for name in STEP_METRIC_NAMES
        },
    }
