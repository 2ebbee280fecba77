"""A control plane that only stores what agents send and tells them what a test wants to run."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trainmaster.facts import Batch, Event
from trainmaster.orders import Order
from trainmaster.plan import Pipeline, Plan
from trainmaster.spec import RunSpec
from trainmaster.spool import missing_in, numbers
from trainmaster.wire import PROTOCOL_VERSION, Assignment, Chore, RankAssignment, Sync, SyncReply

TOKEN = "agent-token"
LINK_TOKEN = "link-token"


@dataclass
class StoredStream:
    cursor: int = 0
    events: list[Event] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    values: dict[str, list[float | None]] = field(default_factory=dict)

    def store(self, batch: Batch) -> None:
        if batch.from_offset != self.cursor:
            return
        self.cursor = batch.to_offset
        self.events += batch.events
        if batch.samples:
            self.steps += batch.samples.steps
            for metric, column in batch.samples.values.items():
                self.values.setdefault(metric, []).extend(column)
        if batch.packed:
            self.steps += numbers("q", batch.packed.steps)
            for metric, raw in batch.packed.values.items():
                told = zip(numbers("d", raw), missing_in(raw), strict=True)
                self.values.setdefault(metric, []).extend(None if m else v for v, m in told)


class FakeControlPlane:
    """What tests read and write is guarded by nothing: they wait for conditions.

    With `protocol` 1 it behaves as the release before packed samples: it names no protocol in its
    answers, knows no packed samples, and refuses a message in a later protocol.
    """

    def __init__(self, protocol: int = PROTOCOL_VERSION) -> None:
        self.protocol = protocol
        self.assignments: list[Assignment] = []
        self.chores: list[Chore] = []
        self.streams: dict[str, StoredStream] = {}
        self.syncs: list[Sync] = []
        self.refused = 0
        self.next_sync_s = 0.2
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def last(self) -> Sync:
        return self.syncs[-1]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Data of the agent's events of one kind, over all its lives."""
        streams = [stream for name, stream in self.streams.items() if name.startswith("agent")]
        return [event.data for each in streams for event in each.events if event.kind == kind]

    def steps(self, stream: str) -> list[int]:
        """Steps stored of a rank's stream, none if it is not known."""
        return self.streams[stream].steps if stream in self.streams else []

    def refusal(self, sync: Sync) -> dict[str, str] | None:
        """What the control plane says to a message that it cannot read, or None."""
        if sync.protocol <= self.protocol:
            return None
        self.refused += 1
        return {
            "code": "protocol",
            "detail": f"the agent speaks protocol {sync.protocol}, this control plane "
            f"{self.protocol}: upgrade it first",
        }

    def answer(self, sync: Sync) -> SyncReply:
        self.syncs.append(sync)
        for batch in sync.batches:
            self.streams.setdefault(batch.stream, StoredStream()).store(batch)
        return SyncReply(
            protocol=self.protocol,
            cursors={batch.stream: self.streams[batch.stream].cursor for batch in sync.batches},
            assignments=self.assignments,
            chores=self.chores,
            next_sync_s=self.next_sync_s,
        )

    def respond(self, authorization: str | None, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the answer to one sync."""
        if authorization != f"Bearer {TOKEN}":
            return 401, b'{"code": "unauthenticated", "detail": "unknown token"}'
        said = json.loads(body)
        if self.protocol < 2:
            for batch in said["batches"]:
                batch.pop("packed", None)
        sync = Sync.model_validate(said)
        refusal = self.refusal(sync)
        if refusal is not None:
            return 400, json.dumps(refusal).encode()
        unknown = {"protocol"} if self.protocol < 2 else None
        return 200, self.answer(sync).model_dump_json(exclude=unknown).encode()

    def up(self) -> None:
        plane = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                if self.server is not plane._server:  # a connection from before `down`
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                if self.path.endswith("/link-token"):
                    self._answer(201, json.dumps({"token": LINK_TOKEN}).encode())
                else:
                    self._answer(*plane.respond(self.headers["Authorization"], body))

            def do_GET(self) -> None:
                is_link = self.headers["Authorization"] == f"Bearer {LINK_TOKEN}"
                self._answer(200, json.dumps({"role": "link" if is_link else "agent"}).encode())

            def _answer(self, status: int, data: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self._server = None


def assignment(
    *,
    run: str = "r1",
    generation: int = 1,
    ranks: int = 1,
    store: str | None = "127.0.0.1:1",
    hosts_store: bool = False,
    orders: list[Order] | None = None,
    **params: Any,
) -> Assignment:
    """`ranks` replicas in slots 0, 1, ...; `params` are for `tests.fakes.ranks`."""
    spec = RunSpec.model_validate(
        {
            "name": "fake",
            "workload": "tests.fakes.ranks:workload",
            "params": params,
            "train": {"steps": 10, "global_batch": ranks},
        }
    )
    pipelines = tuple(Pipeline(layers=(8,), micro_batches=1) for _ in range(ranks))
    return Assignment(
        run=run,
        generation=generation,
        world_size=ranks,
        hosts_store=hosts_store,
        store=store,
        ranks=[RankAssignment(rank=rank, slot=rank) for rank in range(ranks)],
        spec=spec,
        plan=Plan(micro_batch=1, schedule="gpipe", pipelines=pipelines),
        resume=None,
        checkpoint_every=5,
        checkpoint_root="file:///nowhere",
        orders=orders or [],
    )
