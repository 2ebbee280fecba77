"""A control plane of values: what a test puts into it is what the dashboard is told.

`tests.fakes.control_http` serves it.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

from tests.fakes import control_content as content
from tests.fakes.control_content import at
from tests.fakes.control_run import FakeRun

TOKEN = "tm-operator-token"
VIEWER_TOKEN = "tm-viewer-token"
CODE = "one-time-code"


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
    drills_allowed: bool = True
    calibrated: list[str] = field(default_factory=list)
    comparisons: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    down: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, run_id: str) -> FakeRun | None:
        return next((run for run in self.runs if run.id == run_id), None)

    def advance(self, run_id: str, steps: int = 10) -> None:
        """Let a run train on, also while the dashboard reads."""
        with self.lock:
            run = self.run(run_id)
            assert run is not None
            run.advance(steps)

    def of_run(self, items: list[dict[str, Any]], run_id: str) -> list[dict[str, Any]]:
        return [item for item in items if item.get("run") == run_id]

    def get(self, path: str, query: dict[str, str]) -> Any:
        parts = [unquote(part) for part in path.strip("/").split("/")][1:]
        match parts:
            case ["runs"]:
                wanted = query.get("archived")
                return [
                    run.document()
                    for run in self.runs
                    if wanted is None or run.archived == (wanted.lower() == "true")
                ]
            case ["runs", run_id, *rest]:
                run = self.run(run_id)
                return None if run is None else self._of_run(run, rest, query)
            case ["rules", name]:
                return next((rule for rule in self.rules if rule["name"] == name), None)
            case ["rules", name, "history"]:
                return content.rule_history(self.rules, name)
            case ["about"]:
                return {
                    "version": "test",
                    "drills_allowed": self.drills_allowed,
                    "retention": {"samples_exact_days": 30, "samples_days": 365, "scrub_days": 0},
                }
            case ["incidents", name]:
                return next((each for each in self.incidents if each["id"] == name), None)
            case ["checkpoints", name, "compare", other]:
                return self.comparisons.get((name, other))
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
            case ["events"] if "limit" in query:
                before = int(query.get("before", 1 << 62))
                told = [e for e in self.of_run(self.events, run.id) if e["id"] < before]
                return told[-int(query["limit"]) :]
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
            case ["runs", run_id, "look"]:
                return self._look(run_id, body)
            case ["runs", run_id, "requests"]:
                return self._request(run_id, body)
            case ["checkpoints", checkpoint_id, ("pin" | "unpin") as verb]:
                found = next(each for each in self.checkpoints if each["id"] == checkpoint_id)
                found["pinned"] = verb == "pin"
                return found
            case ["checkpoints", name, "compare", other]:
                self.comparisons[name, other] = content.comparison(name, other)
                return {"id": "chore-3", "state": "pending"}
            case ["checkpoints", checkpoint_id, "verify"]:
                return {"id": "c1", "kind": "verify", "state": "pending"}
            case ["runs", run_id, ("archive" | "unarchive") as verb]:
                run = self.run(run_id)
                assert run is not None
                run.archived = verb == "archive"
                return run.document()
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
            case ["runs", run_id, "restore-preview"]:
                return self._preview(run_id, body)
            case ["nodes", name, "calibrate"]:
                self.calibrated.append(name)
                return {"id": "c2", "kind": "calibrate", "state": "pending"}
            case ["channels", _, "test"]:
                return {"state": "sent"}
            case ["plan"]:
                return content.plan()
            case ["backtest"]:
                self.backtests.append(body)
                sources = [*body.get("runs", ()), *(each["name"] for each in body.get("csv", ()))]
                return [content.backtest(source) for source in sources]
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
                if body["after_step"] < point[1] <= body.get("until_step", point[1])
                and body["generation"] in {None, point[0]}
            ]
            columns = {
                name: [point[place] for point in points]
                for place, name in enumerate(("generation", "step", "value"))
            }
            columns["at"] = [content.BEGAN + point[1] + 50 * point[0] for point in points]
            if body.get("tokens"):
                columns["tokens"] = [4096.0 * point[1] for point in points]
            answer = {**each, "unit": "1", "columns": columns, "downsampled": False}
            if body.get("statistics"):
                answer["statistics"] = content.statistics(points)
            told.append(answer)
        return {"series": told}

    def _look(self, run_id: str, body: dict[str, Any]) -> Any:
        run = self.run(run_id)
        if run is None:
            return (404, {"title": "Not found", "detail": f"no run {run_id}", "code": "not_found"})
        events = self.of_run(self.events, run_id)
        found = {
            "run": run.document(),
            "requests": self._of_run(run, ["requests"], {}),
            "nodes": self.nodes,
            "newest_event": events[-1]["id"] if events else None,
            **{
                name: self.of_run(getattr(self, name), run_id)
                for name in ("alerts", "incidents", "checkpoints")
            },
        }
        parts = {}
        for name, answer in found.items():
            version = sha256(json.dumps(answer).encode()).hexdigest()[:16]
            known = body.get("known", {}).get(name) == version
            parts[name] = {"version": version} | ({} if known else {"answer": answer})
        return {
            "parts": parts,
            "series": [self._series(run_id, each) for each in body.get("series", ())],
        }

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
            "order": {
                "generation": len(self.run(run_id).branches),  # type: ignore[union-attr]
                "state": "sent",
                "step": None,
                "because": "",
            },
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
        if body.get("plan"):
            differs.append(f"another plan: {len(body['plan']['pipelines'])} replicas")
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
            "budgets": {
                "restarts": {"spent": 2, "allowed": 5},
                "rollbacks": {"spent": 1, "allowed": 3},
            },
        }


def full_control() -> FakeControl:
    """A fleet with a bit of everything."""
    main = FakeRun(
        "r1",
        "stdlib-gpt",
        branches=[(1, 1, 160), (2, 101, 190)],
        non_finite_steps=frozenset({150, 151, 152}),
        because="rolled back to step 100: three non-finite updates within 20 steps; "
        "batches 150 to 152 are skipped",
        tags=("baseline", "nightly"),
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
