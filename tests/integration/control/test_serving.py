"""The process: one per state directory, ended by SIGTERM, refused in one sentence."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from control.serving import HeldError, sole_use
from control.settings import Settings
from trainmaster.errors import UserError
from trainmaster.home import Home

ROOT = Path(__file__).parents[3]


def environment(home: Path, **settings: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")
    }
    return {**kept, "TRAINMASTER_HOME": str(home), "TRAINMASTER_PORT": "0", **settings}


def command(home: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "control", *words],
        env=environment(home, **settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@contextmanager
def serving(home: Path, **settings: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "control", "serve"], env=environment(home, **settings), cwd=ROOT
    )
    try:
        deadline = time.monotonic() + 120
        while (record := Home(home).process("control")) is None or record.address is None:
            assert process.poll() is None, "the control plane ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process, record.address
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_it_serves_refuses_a_second_one_and_ends_on_sigterm(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as (process, address):
        with httpx.Client(base_url=address, trust_env=False) as http:
            assert http.get("/healthz").json() == {"status": "ok"}
            assert http.get("/readyz").status_code == 200
            token = Home(home).token()
            headers = {"Authorization": f"Bearer {token}"}
            assert http.get("/v1/runs", headers=headers).json() == []
            names = [rule["name"] for rule in http.get("/v1/rules", headers=headers).json()]
            assert names, "the default pack is there"
        assert (home / "tokens" / "admin").stat().st_mode & 0o777 == 0o600

        second = command(home, "serve")
        assert second.returncode == 2
        assert "another control plane" in second.stderr
        assert f"pid {process.pid}" in second.stderr
        assert "Traceback" not in second.stderr

        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert Home(home).process("control") is None

    with serving(home):
        assert Home(home).token() == token, "the token of the first start is kept"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"TRAINMASTER_PORT": "much"}, "TRAINMASTER_PORT"),
        ({"TRAINMASTER_ALLOW_DRILLS": "perhaps"}, "TRAINMASTER_ALLOW_DRILLS"),
        ({"TRAINMASTER_DATABASE_URL": "mysql://a/b"}, "postgresql+psycopg"),
        ({"TRAINMASTER_HOST": "192.0.2.1"}, "cannot listen"),
    ],
)
def test_bad_settings_end_in_one_sentence(
    tmp_path: Path, settings: dict[str, str], sentence: str
) -> None:
    done = command(tmp_path / "home", "serve", **settings)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_ends_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        done = command(tmp_path / "home", "serve", TRAINMASTER_PORT=port)
    assert done.returncode == 2
    assert port in done.stderr
    assert "Traceback" not in done.stderr


def test_a_state_directory_that_is_a_file_ends_in_one_sentence(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    done = command(home, "serve")
    assert done.returncode == 2
    assert "state directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_migrate_makes_the_schema_and_serve_on_postgresql_asks_for_it(
    tmp_path: Path, postgres_url: str
) -> None:
    home, database = tmp_path / "home", {"TRAINMASTER_DATABASE_URL": postgres_url}
    early = command(home, "serve", **database)
    assert early.returncode == 2
    assert "migrate" in early.stderr
    assert command(home, "migrate", **database).returncode == 0
    with serving(home, **database) as (_, address):
        assert httpx.get(f"{address}/readyz", trust_env=False).status_code == 200


def test_a_database_file_is_used_by_one_process_under_whatever_name(tmp_path: Path) -> None:
    first = Settings(Home(tmp_path / "home"))
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "home")
    others = [
        Settings(
            Home(tmp_path / "other"), database_url=f"sqlite:///{linked}/control/trainmaster.db"
        ),
        Settings(Home(tmp_path / "other"), database_url=f"sqlite:///{first.home.database}"),
        Settings(Home(linked)),
        first,
    ]
    with sole_use(first):
        for other in others:
            told = rf"pid {os.getpid()}.*already uses"
            with pytest.raises(HeldError, match=told), sole_use(other):
                pass
    for other in others:
        with sole_use(other):
            pass


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x.db?mode=ro&uri=true"]
)
def test_a_database_on_sqlite_must_be_a_file(tmp_path: Path, url: str) -> None:
    with (
        pytest.raises(UserError, match="by its path"),
        sole_use(Settings(Home(tmp_path), database_url=url)),
    ):
        pass


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/nowhere/x.db"
    with (
        pytest.raises(UserError, match="nowhere"),
        sole_use(Settings(Home(tmp_path), database_url=url)),
    ):
        pass
