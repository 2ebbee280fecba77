"""deploy/image/follow-rules: a rule file that follows the control plane's, whichever answers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.services.private_server import free_port

SCRIPT = Path(__file__).parents[2] / "deploy/image/follow-rules"


class Plane:
    """Answers with a rule file to whoever carries the token."""

    def __init__(self) -> None:
        plane = self
        self.rules = b"groups: []\n"

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.headers.get("Authorization") == "Bearer viewers"
                self.send_response(200 if known and self.path == "/v1/prometheus/rules" else 401)
                self.end_headers()
                self.wfile.write(plane.rules if known else b"no")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def answering() -> Iterator[Plane]:
    plane = Plane()
    yield plane
    plane.server.shutdown()
    plane.server.server_close()


def follow(path: Path, urls: str, token: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, path, "--once"],
        env={"TRAINMASTER_URL": urls, "TRAINMASTER_TOKEN_FILE": str(token)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_file_is_as_the_rules_are_and_stays_while_nobody_answers(
    answering: Plane, tmp_path: Path
):
    path, token = tmp_path / "rules" / "exported.yml", tmp_path / "token"
    path.parent.mkdir()
    token.write_text("viewers\n")
    away = f"http://127.0.0.1:{free_port()}"
    urls = f"{away},{answering.url}"
    first = follow(path, urls, token)
    assert (first.returncode, first.stdout) == (0, f"wrote {path}\n")
    assert path.read_bytes() == answering.rules
    assert follow(path, urls, token).stdout == "", "what has not changed is not written again"
    answering.rules = b"groups: [{name: g, rules: []}]\n"
    assert follow(path, urls, token).returncode == 0
    assert path.read_bytes() == answering.rules
    token.write_text("revoked")
    refused = follow(path, urls, token)
    assert refused.returncode == 1
    assert "401" in refused.stderr
    assert path.read_bytes() == answering.rules
    assert [each.name for each in path.parent.iterdir()] == ["exported.yml"]
