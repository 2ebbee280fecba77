"""A control plane of values, over HTTP: what a test puts into it is what the dashboard is told."""

from __future__ import annotations

import json
import math
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.fakes import control_content as content
from tests.fakes.control_content import at

TOKEN = "tm-operator-token"
VIEWER_TOKEN = "tm-viewer-token"
CODE = "one-time-code"
RANK_METRICS = {
    "utilization_ratio": 0.8,
    "memory_used_ratio": 0.42,
    "bubble_ratio": 0.2,
    "latency_ms": 12.0,
    "bandwidth_bytes_per_s": 3.0e8,
}


@dataclass
class FakeRun:
    """A run whose samples are computed from its attempts: [(generation, first step, last step)]."""

    id: str
    name: str
    state: str = "running"
    version: int = 7
    target_steps: int = 400
    branches: list[tuple[int, int, int]] = field(default_factory=lambda: [(1, 1, 120)])
    non_finite_steps: frozenset[int] = frozenset()
    because: str = ""
    num_ranks: int = 4

    @property
    def step(self) -> int:
        return self.branches[-1][2] if self.branches else 0

    def advance(self, steps: int = 1) -> None:
        generation, first, last = self.branches[-1]
        self.branches[-1] = (generation, first, min(self.target_steps, last + steps))

    def roll_back(self, step: int) -> None:
        self.branches.append((len(self.branches) + 1, step + 1, step + 1))

    def attempts(self) -> list[dict[str, Any]]:
        return [
            {
                "generation": generation,
                "parent_generation": generation - 1 if generation > 1 else None,
                "state": "running",
                "cause": "submitted" if generation == 1 else f"rollback to step {first - 1}",
                "first_step": first,
                "last_step": last,
                "started_at": at(300),
                "ended_at": None,
                "resumed_from_step": first - 1,
                "resumed_from_checkpoint": None,
                "skip": [],
                "lr_factor": None,
            }
            for generation, first, last in self.branches
        ]

    def document(self) -> dict[str, Any]:
        last = self.value("loss", self.step, 0) if self.step else None
        return {
            "id": self.id,
            "name": self.name,
            "version": self.version,
            "state": self.state,
            "desired": "running",
            "because": self.because,
            "step": self.step,
            "target_steps": self.target_steps,
            "generation": len(self.branches),
            "loss": last,
            "grad_norm": 0.81 if self.step else None,
            "tokens_per_s": 10432.7 if self.step else None,
            "skipped_steps": len(self.non_finite_steps),
            "created_at": at(400),
            "started_at": at(300),
            "ended_at": None,
            "attempts": self.attempts(),
            "ranks": [
                {
                    "rank": rank,
                    "node": "node-a",
                    "pid": 1000 + rank,
                    "stage": rank % 2,
                    "replica": rank // 2,
                    "tensor": 0,
                    "state": "ready",
                    "last_step": self.step,
                    "last_seen_at": at(0.5),
                    "exit_code": None,
                }
                for rank in range(self.num_ranks if self.step else 0)
            ],
            "spec": {"name": self.name, "workload": "worker.workloads.byte_gpt:workload"},
            "plan": {"micro_batch": 4, "schedule": "1f1b"},
            "goodput": {},
        }

    def value(self, metric: str, step: int, rank: int, generation: int = 1) -> Any:
        bad = step in self.non_finite_steps and generation == 1
        if metric in ("loss", "grad_norm") and bad:
            return "NaN"
        if metric == "loss":
            swing = 0.05 * math.sin(step * generation)
            return 2.2 + 3.3 * math.exp(-step / 60) + swing + (generation == 1) * step / 1000
        if metric == "grad_norm":
            return 0.5 + 0.2 * abs(math.sin(step / 3))
        if metric == "tokens_per_s":
            return 10000 + 500 * math.sin(step / 7)
        if metric == "non_finite":
            return 12 if bad else 0
        base = RANK_METRICS[metric]
        return base * (1 + 0.03 * rank + 0.05 * math.sin(step / 5 + rank))

    def points(self, metric: str, rank: int, *, everything: bool) -> list[list[Any]]:
        points = []
        for index, (generation, first, last) in enumerate(self.branches):
            later = [branch[1] - 1 for branch in self.branches[index + 1 :]]
            end = last if everything else min([last, *later])
            points += [
                [generation, step, self.value(metric, step, rank, generation)]
                for step in range(first, end + 1)
            ]
        return points


@dataclass
class FakeControl:
    """All that the API tells, and all that was asked of it."""

    runs: list[FakeRun] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    rules: list[dict[str, Any]] = field(default_factory=list)
    silences: list[dict[str, Any]] = field(default_factory=list)
    audit: list[dict[str, Any]] = field(default_factory=list)
    channels: list[dict[str, Any]] = field(default_factory=list)
    timelines: list[dict[str, Any]] = field(default_factory=list)
    backtests: list[dict[str, Any]] = field(default_factory=list)
    answers: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    codes: set[str] = field(default_factory=lambda: {CODE})
    tokens: dict[str, str] = field(
        default_factory=lambda: {TOKEN: "operator", VIEWER_TOKEN: "viewer"}
    )
    submitted: list[str] = field(default_factory=list)
    refuse_requests: str = ""
    ended: list[str] = field(default_factory=list)
    num_asked: int = 0
    down: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, run_id: str) -> FakeRun | None:
        return next((run for run in self.runs if run.id == run_id), None)

    def of_run(self, items: list[dict[str, Any]], run_id: str) -> list[dict[str, Any]]:
        return [item for item in items if item.get("run") == run_id]

    def get(self, path: str, query: dict[str, str]) -> Any:
        parts = [unquote(part) for part in path.strip("/").split("/")][1:]
        match parts:
            case ["runs"]:
                return [run.document() for run in self.runs]
            case ["runs", run_id, *rest]:
                run = self.run(run_id)
                return None if run is None else self._of_run(run, rest, query)
            case ["rules", name]:
                return next((rule for rule in self.rules if rule["name"] == name), None)
            case ["rules", name, "history"]:
                return [
                    {"version": 1, "change": "added", "at": at(900), "actor": "token:admin"},
                    {"version": 2, "change": "edited", "at": at(60), "actor": "token:operator"},
                ]
            case ["incidents", name]:
                return next((each for each in self.incidents if each["id"] == name), None)
            case ["requests", name]:
                return {"id": name, "kind": "verify", "state": "applied", "ok": True}
            case [
                (
                    "alerts" | "incidents" | "nodes" | "rules" | "silences" | "audit" | "channels"
                ) as name
            ]:
                return getattr(self, name)
        return None

    def _of_run(self, run: FakeRun, rest: list[str], query: dict[str, str]) -> Any:
        match rest:
            case []:
                return run.document()
            case ["requests"]:
                return [each for each in self.requests.values() if each["run"] == run.id]
            case ["retention"]:
                return [
                    {
                        "checkpoint": each["id"],
                        "goes": each["step"] == 100,
                        "because": "3 newer ones",
                    }
                    for each in self.of_run(self.checkpoints, run.id)
                ]
            case ["logs"]:
                rank = query["rank"]
                return {"lines": [f"step {step} of rank {rank}" for step in range(100)]}
            case ["timelines"]:
                return [{**each, "ranks": len(each["ranks"])} for each in self.timelines]
            case ["timelines", step]:
                return next((each for each in self.timelines if str(each["step"]) == step), None)
            case [("events" | "checkpoints" | "alerts" | "incidents") as name]:
                return self.of_run(getattr(self, name), run.id)
        return None

    def post(self, path: str, body: dict[str, Any]) -> Any:
        parts = [unquote(part) for part in path.strip("/").split("/")][1:]
        match parts:
            case ["runs"]:
                self.submitted.append(body["spec"])
                self.runs.append(FakeRun("new-run", "new-run", state="queued", branches=[]))
                return self.runs[-1].document()
            case ["runs", run_id, "series"]:
                return self._series(run_id, body)
            case ["runs", run_id, "requests"]:
                return self._request(run_id, body)
            case ["runs", run_id, "restore-preview"]:
                return self._preview(run_id, body)
            case ["checkpoints", checkpoint_id, ("pin" | "unpin") as verb]:
                found = next(each for each in self.checkpoints if each["id"] == checkpoint_id)
                found["pinned"] = verb == "pin"
                return found
            case ["checkpoints", checkpoint_id, "verify"]:
                return {"id": "c1", "kind": "verify", "state": "pending"}
            case ["incidents", name, ("approve" | "dismiss") as verb]:
                self.answers.append((name, verb, body))
                found = next(each for each in self.incidents if each["id"] == name)
                found["proposed"] = None
                return {"id": "9", "state": "accepted"}
            case ["silences"]:
                silence = {"id": len(self.silences) + 1, "created_by": "token:operator"}
                self.silences.append({**silence, **body, "begins_at": at(), "ends_at": at(-7200)})
                return self.silences[-1]
            case ["rules", name, ("enable" | "disable") as verb]:
                rule = next(each for each in self.rules if each["name"] == name)
                rule["enabled"] = verb == "enable"
                return rule
        return self._tried(parts, body)

    def _tried(self, parts: list[str], body: dict[str, Any]) -> Any:
        match parts:
            case ["channels", _, "test"]:
                return {"state": "sent"}
            case ["plan"]:
                return content.plan()
            case ["backtest"]:
                self.backtests.append(body)
                return [content.backtest(source) for source in body["runs"]]
        return None

    def _series(self, run_id: str, body: dict[str, Any]) -> Any:
        run = self.run(run_id)
        assert run is not None
        told = []
        for each in body["series"]:
            points = [
                point
                for point in run.points(
                    each["metric"], each.get("rank", 0), everything=body["all_generations"]
                )
                if point[1] > body["after_step"] and body["generation"] in {None, point[0]}
            ]
            columns = {
                name: [point[place] for point in points]
                for place, name in enumerate(("generation", "step", "value"))
            }
            told.append({**each, "unit": "1", "columns": columns, "downsampled": False})
        return {"series": told}

    def _request(self, run_id: str, body: dict[str, Any]) -> Any:
        if self.refuse_requests:
            return (409, {"title": "Conflict", "detail": self.refuse_requests, "code": "conflict"})
        known = self.keys.get(body["idempotency_key"])
        if known is not None:
            return self.requests[known]
        request_id = str(len(self.requests) + 1)
        self.keys[body["idempotency_key"]] = request_id
        self.requests[request_id] = {
            "id": request_id,
            "run": run_id,
            "kind": body["kind"],
            "args": body["args"],
            "why": body["why"],
            "actor": "token:operator",
            "created_at": at(),
            "expected_version": body["expected_version"],
            "state": "accepted",
            "because": "",
            "step": None,
            "order": {"state": "sent", "step": None, "because": ""},
        }
        return self.requests[request_id]

    def _preview(self, run_id: str, body: dict[str, Any]) -> Any:
        run = self.run(run_id)
        checkpoint = next(each for each in self.checkpoints if each["id"] == body["checkpoint"])
        assert run is not None
        differs = []
        if body.get("skip_steps"):
            first = checkpoint["step"] + 1
            differs.append(f"batches {first} to {first + body['skip_steps'] - 1} are skipped")
        if body.get("lr_factor"):
            differs.append(f"the learning rate is multiplied by {body['lr_factor']}")
        return {
            "checkpoint": checkpoint,
            "checkpoint_state": checkpoint["state"],
            "step": checkpoint["step"],
            "current_step": run.step,
            "steps_lost": run.step - checkpoint["step"],
            "seconds_lost": 31.0,
            "differs": differs or ["Nothing: the same steps come again bit for bit."],
            "warnings": [] if checkpoint["state"] == "trusted" else ["It is not trusted."],
            "refused": None,
        }


class _Handler(BaseHTTPRequestHandler):
    control: FakeControl
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one segment, or each answer waits for an acknowledgement

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        role = self._role()
        self.control.num_asked += 1
        if self.control.down:
            self._answer(503, {"title": "Unavailable", "detail": "down for the test"})
        elif role is None:
            self._answer(401, {"title": "Unauthenticated", "detail": "no such token"})
        elif parts.path == "/v1/logins/current":
            self._answer(200, {"role": role})
        else:
            with self.control.lock:
                found = self.control.get(parts.path, query)
            if found is None:
                self._answer(404, {"title": "Not found", "detail": f"{parts.path} is not there"})
            else:
                self._answer(200, found)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        path = urlsplit(self.path).path
        if self.control.down:
            self._answer(503, {"title": "Unavailable", "detail": "down for the test"})
        elif path == "/v1/logins":
            if body.get("code") in self.control.codes:
                self.control.codes.discard(body["code"])
                answer = {"token": TOKEN, "role": "operator", "expires_at": at(-3600)}
                self._answer(200, answer)
            else:
                self._answer(401, {"title": "Unauthenticated", "detail": "no such code"})
        elif self._role() is None:
            self._answer(401, {"title": "Unauthenticated", "detail": "no such token"})
        else:
            with self.control.lock:
                answer = self.control.post(path, body)
            self._answer(*answer) if isinstance(answer, tuple) else self._answer(200, answer)

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        name = unquote(urlsplit(self.path).path.rpartition("/")[2])
        with self.control.lock:
            rule = next(each for each in self.control.rules if each["name"] == name)
            rule.update(body)
        self._answer(200, rule)

    def do_DELETE(self) -> None:
        path = urlsplit(self.path).path
        if path.startswith("/v1/silences/"):
            with self.control.lock:
                self.control.silences.clear()
            self._answer(200, {})
            return
        self.control.ended.append(self.headers.get("Authorization", "").partition(" ")[2])
        self._answer(200, {})

    def _role(self) -> str | None:
        return self.control.tokens.get(self.headers.get("Authorization", "").partition(" ")[2])

    def _answer(self, status: int, document: Any) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving(control: FakeControl):
    """Serve `control` on a free port of this machine; the block gets its address."""
    handler = type("Handler", (_Handler,), {"control": control})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def full_control() -> FakeControl:
    """A fleet with a bit of everything."""
    main = FakeRun(
        "r1",
        "stdlib-gpt",
        branches=[(1, 1, 160), (2, 101, 190)],
        non_finite_steps=frozenset({150, 151, 152}),
        because="rolled back to step 100: three non-finite updates within 20 steps; "
        "batches 150 to 152 are skipped",
    )
    return FakeControl(
        runs=[
            FakeRun("r0", "first try", state="failed", because="rank 3 killed by signal 9"),
            FakeRun("r2", "waiting one", state="queued", branches=[], because="waits for 4 slots"),
            FakeRun("r3", "done one", state="succeeded", branches=[(1, 1, 400)]),
            main,
        ],
        events=content.events(),
        checkpoints=content.checkpoints(),
        alerts=content.alerts(),
        incidents=content.incidents(),
        nodes=content.nodes(),
        rules=content.rules(),
        timelines=[content.timeline()],
        audit=content.audit(),
        channels=content.channels(),
    )
