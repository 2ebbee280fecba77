"""A Grafana that knows only operations of the published HTTP API that boards and annotations need,
and answers 404 to anything else.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "glsa_of-a-test"
NOTHING = (404, {"message": "Not found"})


class FakeGrafana:
    """What such a server holds.

    Attributes:
        writes: (verb, path) of all that changed something, in order.
        failing: a status that everything is answered with, while it is set.
    """

    def __init__(self) -> None:
        self.folders: dict[str, dict[str, Any]] = {}
        self.datasources: dict[str, dict[str, Any]] = {}
        self.boards: dict[str, dict[str, Any]] = {}
        self.annotations: list[dict[str, Any]] = []
        self.writes: list[tuple[str, str]] = []
        self.failing: int | None = None
        self.url = ""

    def answer(self, verb: str, target: str, body: Any) -> tuple[int, Any]:
        parts = urlsplit(target)
        if verb != "GET":
            self.writes.append((verb, parts.path))
        for operation, pattern, do in (
            ("GET", r"/api/folders/([^/]+)", self._folder),
            ("POST", r"/api/folders", self._make_folder),
            ("GET", r"/api/datasources/uid/([^/]+)", self._datasource),
            ("POST", r"/api/datasources", self._put_datasource),
            ("PUT", r"/api/datasources/uid/([^/]+)", self._put_datasource),
            ("GET", r"/api/dashboards/uid/([^/]+)", self._board),
            ("POST", r"/api/dashboards/db", self._put_board),
            ("POST", r"/api/annotations", self._annotate),
            ("GET", r"/api/annotations", self._annotations),
        ):
            match = re.fullmatch(pattern, parts.path)
            if operation == verb and match:
                asked = body if verb != "GET" else parse_qs(parts.query)
                found: tuple[int, Any] = do(asked, *match.groups())
                return found
        return NOTHING

    def _folder(self, _: Any, uid: str) -> tuple[int, Any]:
        return (200, self.folders[uid]) if uid in self.folders else NOTHING

    def _make_folder(self, body: dict[str, Any]) -> tuple[int, Any]:
        if not body.get("title"):
            return 400, {"message": "Folder title cannot be empty"}
        self.folders[body["uid"]] = body
        return 200, body

    def _datasource(self, _: Any, uid: str) -> tuple[int, Any]:
        found = self.datasources.get(uid)
        return (200, {**found, "id": 1, "readOnly": False}) if found else NOTHING

    def _put_datasource(self, body: dict[str, Any], uid: str | None = None) -> tuple[int, Any]:
        if uid is not None and uid not in self.datasources:
            return NOTHING
        self.datasources[body["uid"]] = body
        return 200, {"datasource": body, "id": 1, "message": "Datasource written"}

    def _board(self, _: Any, uid: str) -> tuple[int, Any]:
        found = self.boards.get(uid)
        return (
            (200, {"dashboard": found, "meta": {"folderUid": "trainmaster"}}) if found else NOTHING
        )

    def _put_board(self, body: dict[str, Any]) -> tuple[int, Any]:
        board = body["dashboard"]
        if body.get("folderUid") not in self.folders:
            return 400, {"message": "folder not found"}
        before = self.boards.get(board["uid"], {"version": 0})
        if before["version"] and not body.get("overwrite"):
            return 412, {"message": "a dashboard with that uid already exists"}
        version = before["version"] + 1
        self.boards[board["uid"]] = {**board, "id": 7, "version": version}
        return 200, {"uid": board["uid"], "status": "success", "version": version}

    def _annotate(self, body: dict[str, Any]) -> tuple[int, Any]:
        if not body.get("text"):
            return 400, {"message": "text field should not be empty"}
        self.annotations.append({**body, "id": len(self.annotations) + 1})
        return 200, {"id": len(self.annotations), "message": "Annotation added"}

    def _annotations(self, asked: dict[str, list[str]]) -> tuple[int, Any]:
        tags = set(asked.get("tags", []))
        found = [each for each in self.annotations if tags <= {*each["tags"]}]
        return 200, found[::-1][: int(asked.get("limit", ["100"])[0])]


@contextmanager
def serving(grafana: FakeGrafana) -> Iterator[FakeGrafana]:
    """Answer on a port of this machine while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(length)
            body = json.loads(text) if re.search(rb"\S", text) else None
            if grafana.failing is not None:
                status, told = grafana.failing, {"message": "on purpose"}
            elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, told = 401, {"message": "Unauthorized"}
            else:
                status, told = grafana.answer(self.command, self.path, body)
            data = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    grafana.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield grafana
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
