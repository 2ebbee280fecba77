"""A private PostgreSQL cluster for the test session: in a temporary folder, gone afterwards.

`postgres_url` is what a test asks for: the SQLAlchemy URL of an empty database of its own. Tests
that want tables in it make a template once (`postgres_cluster.template("schema", create)`) and
copy it: a copy takes tens of milliseconds.
"""

import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tests.services.private_server import PrivateServer, absent, free_port

ROLE = "tm"


class PostgresCluster:
    """One running server; databases come and go in it."""

    def __init__(self, launch: Callable[[], PrivateServer], port: int, root: Path) -> None:
        self._launch = launch
        self._server = launch()
        self._templates: dict[str, str] = {}
        self.port = port
        self.root = root

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://{ROLE}@127.0.0.1:{self.port}/{database}"

    def create_database(self, *, template: str = "template1") -> str:
        """Create a database as a copy of `template` and return its name."""
        name = f"tm_{secrets.token_hex(6)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def drop_database(self, name: str) -> None:
        # FORCE: a test that failed may have left connections open.
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def template(self, name: str, fill: Callable[[str], None]) -> str:
        """Return the name of a template database, filled by `fill(url)` once a session."""
        if name not in self._templates:
            database = self.create_database()
            fill(self.url(database))
            # A copy is refused while anybody (the filler's pool) is connected to the original.
            self.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE datname = '{database}' AND pid <> pg_backend_pid()"
            )
            self._templates[name] = database
        return self._templates[name]

    def execute(self, statement: str) -> None:
        """Run one statement as the cluster's owner, outside any transaction."""
        with psycopg.connect(self._dsn(), autocommit=True) as connection:
            connection.execute(statement.encode())

    @property
    def pid(self) -> int:
        return self._server.pid

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        """Start again what was stopped: same port, same data."""
        self._server = self._launch()
        assert self.wait_until_ready(), self.tail()

    def wait_until_ready(self) -> bool:
        return self._server.wait_until(lambda: _answers(self))

    def tail(self) -> str:
        return self._server.tail()

    def _dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user={ROLE} dbname=postgres connect_timeout=5"


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PostgresCluster]:
    """The session's private cluster."""
    with private_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def own_postgres_cluster() -> Iterator[PostgresCluster]:
    """A cluster that tests of one module may stop, start and starve. What it has answered to have
    committed is on its way to the disk, as in real life.
    """
    with private_cluster(synchronous_commit="on") as cluster:
        yield cluster


@contextmanager
def private_cluster(**options: str) -> Iterator[PostgresCluster]:
    """A cluster of its own, with the server's options changed as given."""
    bin_dir = postgres_bin_dir()
    # Not under tmp_path: a Unix socket's path has room for 107 bytes, and pytest's folders are
    # closed to other users.
    root = Path(tempfile.mkdtemp(prefix="tm-postgres-", dir="/tmp"))
    user = _server_user(root)
    try:
        cluster = _start(bin_dir, root, user, options)
        try:
            yield cluster
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_cluster: PostgresCluster) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database that this test alone uses."""
    database = postgres_cluster.create_database()
    yield postgres_cluster.url(database)
    postgres_cluster.drop_database(database)


def postgres_bin_dir() -> Path:
    """Where PostgreSQL's programs are; the test is skipped if they are not."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"),
        key=lambda path: int(re.sub(r"\D", "", path.parts[-3]) or 0),
    )
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    if on_path:
        return Path(on_path).resolve().parent
    absent("PostgreSQL's server")


def _server_user(root: Path) -> str | None:
    """Return whom the server must run as: it refuses root."""
    if os.geteuid() != 0:
        return None
    owner = pwd.getpwnam("postgres")
    os.chown(root, owner.pw_uid, owner.pw_gid)
    return owner.pw_name


def _start(bin_dir: Path, root: Path, user: str | None, more: Mapping[str, str]) -> PostgresCluster:
    data = root / "data"
    initdb = [str(bin_dir / "initdb"), "-D", str(data), "-U", ROLE, "-A", "trust", "--no-sync"]
    as_user = ["runuser", "-u", user, "--"] if user else []
    done = subprocess.run(
        [*as_user, *initdb, "-E", "UTF8", "--locale=C.UTF-8"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"initdb failed: {done.stdout}{done.stderr}"
    for _ in range(5):
        port = free_port()
        options = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": root,
            "max_connections": 100,
            # The cluster does not outlive the session, so nothing in it has to survive a crash.
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            **more,
        }
        argv = [str(bin_dir / "postgres"), "-D", str(data)]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        launch = partial(
            PrivateServer, argv, log=root / "log", user=user, stop_signal=signal.SIGQUIT
        )
        cluster = PostgresCluster(launch, port, root)
        if cluster.wait_until_ready():
            return cluster
    raise RuntimeError(f"PostgreSQL did not start:\n{cluster.tail()}")


def _answers(cluster: PostgresCluster) -> bool:
    try:
        cluster.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True
