"""A control plane of values over HTTP, on a free port of this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.fakes.control_api import TOKEN, FakeControl
from tests.fakes.control_content import at


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
        parts = [unquote(part) for part in urlsplit(self.path).path.split("/")]
        name = parts[-1]
        if name == "tags":
            run = self.control.run(parts[-2])
            assert run is not None
            run.tags = tuple(body["tags"])
            self._answer(200, run.document())
            return
        with self.control.lock:
            rule = next(each for each in self.control.rules if each["name"] == name)
            rule.update(body)
        self._answer(200, rule)

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        name = unquote(urlsplit(self.path).path.rpartition("/")[2])
        with self.control.lock:
            rule = next(each for each in self.control.rules if each["name"] == name)
            rule.update(body["set"])
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
def serving(control: FakeControl) -> Iterator[str]:
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
