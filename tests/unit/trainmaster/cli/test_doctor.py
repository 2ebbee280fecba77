"""`doctor` looks at each of several control planes: a caller who finds one does not see that
another is away.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from trainmaster.cli.doctor import there
from trainmaster.cli.output import Output
from trainmaster.cli.session import Session
from trainmaster.cli.settings import Settings
from trainmaster.errors import UnavailableError
from trainmaster.home import Home


class Plane:
    """What is asked of the control planes at some addresses, of which one may be away."""

    def __init__(self, settings: Settings) -> None:
        self.url = settings.url

    def get(self, path: str, **query: Any) -> Any:
        if path == "/readyz" and self.url == "http://b:2":
            raise UnavailableError("the control plane at http://b:2 is out of reach: refused")
        return {"/v1/nodes": [], "/v1/unreadable": []}.get(path, {})

    def post(self, path: str, body: Any = None, *, headers: dict[str, str] | None = None) -> Any:
        raise NotImplementedError

    def put(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> Any:
        raise NotImplementedError

    def delete(self, path: str) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


def checks(url: str) -> dict[str, tuple[str, str]]:
    settings = Settings(Home(Path("/nowhere")), url=url)
    session = Session(settings, Output(io.StringIO(), io.StringIO()), connect=Plane)
    return {check.name: (check.state, check.message) for check in there(session)}


def test_each_of_several_is_looked_at():
    found = checks("http://a:1,http://b:2")
    assert found["control"][0] == "ok"
    assert found["control http://a:1"] == ("ok", "ready")
    state, message = found["control http://b:2"]
    assert state == "warning"
    assert "http://b:2 is out of reach" in message


def test_one_is_looked_at_once():
    assert [name for name in checks("http://a:1") if name.startswith("control http")] == []
