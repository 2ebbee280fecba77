"""PostgreSQL is stopped, slow, full, read-only or out of connections while eight nodes send: what
was accepted is kept, everybody is told in plain words, and all goes on by itself afterwards.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from control.db.sql import schema
from control.db.sql.engine import Database
from tests.integration.control.outside import Fleet, fleet, prepare, until
from tests.integration.control.test_serving import serving
from tests.services.postgres import PostgresCluster
from trainmaster.home import Home

DISK_MIB = 48


@pytest.fixture(scope="module")
def small_disk(own_postgres_cluster: PostgresCluster) -> Iterator[Path | None]:
    """A disk of its own for the database; None where nobody may mount one."""
    folder = own_postgres_cluster.root / "disk"
    folder.mkdir()
    mounted = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)],
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )
    if not mounted:
        yield None
        return
    try:
        owner = own_postgres_cluster.root.stat()
        os.chown(folder, owner.st_uid, owner.st_gid)
        yield folder
    finally:
        own_postgres_cluster.stop()
        subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.fixture(scope="module")
def ring(
    own_postgres_cluster: PostgresCluster,
    small_disk: Path | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fleet]:
    """A control plane in a process of its own, as a role that has no privileges."""
    cluster = own_postgres_cluster
    cluster.execute("CREATE ROLE app LOGIN")
    where = ""
    if small_disk is not None:
        cluster.execute(f"CREATE TABLESPACE small LOCATION '{small_disk}'")
        cluster.execute("GRANT CREATE ON TABLESPACE small TO app")
        where = " TABLESPACE small"
    cluster.execute(f"CREATE DATABASE ring OWNER app{where}")
    url = f"postgresql+psycopg://app@127.0.0.1:{cluster.port}/ring"
    db = Database(url)
    schema.upgrade(db)
    prepared = prepare(db)
    home = tmp_path_factory.mktemp("ring") / "home"
    try:
        with serving(home, TRAINMASTER_DATABASE_URL=url, TRAINMASTER_DATABASE_TIMEOUT_S="1") as (
            _,
            address,
        ):
            token = Home(home).token()
            assert token is not None
            yield fleet(db, address, token, prepared)
    finally:
        db.close()


def test_x_db01_postgresql_is_stopped_and_started_again_while_eight_nodes_send(
    ring: Fleet, own_postgres_cluster: PostgresCluster
) -> None:
    with ring.at_work():
        own_postgres_cluster.stop()
        ring.wait_for_refusal("PostgreSQL cannot be reached", "see that it runs")
        degraded = ring.get("/readyz")
        assert degraded.status_code == 503
        assert degraded.json()["code"] == "database"
        assert int(degraded.headers["Retry-After"]) >= 1
        assert ring.get("/healthz").status_code == 200, "the process lives"
        own_postgres_cluster.start()
        until(ring.ready, "the control plane to be ready by itself")
    ring.require_that_runs_go_on()
    told = ring.get("/metrics").text
    counts = {
        line.split()[0]: float(line.split()[1])
        for line in told.splitlines()
        if line.startswith("trainmaster_control_database_errors_total")
    }
    assert counts['trainmaster_control_database_errors_total{kind="unreachable"}'] > 0
    assert counts['trainmaster_control_database_errors_total{kind="damaged"}'] == 0


def test_x_db01_no_connection_is_left_for_the_control_plane(
    ring: Fleet, own_postgres_cluster: PostgresCluster
) -> None:
    with ring.at_work():
        own_postgres_cluster.execute("ALTER ROLE app CONNECTION LIMIT 1")
        end_sessions(own_postgres_cluster)
        ring.wait_for_refusal("takes no more connections", "max_connections")
        own_postgres_cluster.execute("ALTER ROLE app CONNECTION LIMIT -1")
        until(ring.ready, "the control plane to be ready by itself")
    ring.require_that_runs_go_on()


def test_a_database_that_takes_no_writes_for_a_while(
    ring: Fleet, own_postgres_cluster: PostgresCluster
) -> None:
    with ring.at_work():
        own_postgres_cluster.execute("ALTER DATABASE ring SET default_transaction_read_only = on")
        end_sessions(own_postgres_cluster)
        ring.wait_for_refusal("takes no writes", "primary")
        assert ring.get("/v1/runs").status_code == 200, "what is there can still be read"
        degraded = ring.get("/readyz")
        assert degraded.status_code == 503
        assert "takes no writes" in degraded.json()["detail"]
        own_postgres_cluster.execute("ALTER DATABASE ring RESET default_transaction_read_only")
        end_sessions(own_postgres_cluster)
        until(ring.ready, "the control plane to be ready by itself")
    ring.require_that_runs_go_on()


def test_a_lock_that_somebody_holds_shows_as_slow_and_piles_nothing_up(
    ring: Fleet, own_postgres_cluster: PostgresCluster
) -> None:
    dsn = f"host=127.0.0.1 port={own_postgres_cluster.port} user=tm dbname=ring"
    with ring.at_work(), psycopg.connect(dsn) as other:
        other.execute("LOCK TABLE nodes IN ACCESS EXCLUSIVE MODE")
        ring.wait_for_refusal("did not answer in time", "pg_stat_activity")
        assert ring.get("/healthz").status_code == 200
        other.rollback()
        until(ring.ready, "the control plane to be ready by itself")
    ring.require_that_runs_go_on()


def test_a_full_disk_under_postgresql(ring: Fleet, small_disk: Path | None) -> None:
    if small_disk is None:
        pytest.skip("needs root and mount(8) for a small disk of its own")
    ballast = small_disk / "ballast"
    with ring.at_work():
        with ballast.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * (64 << 10))
                file.flush()
        ring.wait_for_refusal("disk is full", "free some space")
        ballast.unlink()
        until(ring.ready, "the control plane to be ready by itself")
    ring.require_that_runs_go_on()


def test_a_postgresql_that_says_nothing_leaves_a_process_that_answers(
    ring: Fleet, own_postgres_cluster: PostgresCluster
) -> None:
    """Its machine hangs: nothing is refused and nothing comes. More ask than there are threads."""
    answers: list[int] = []

    def ask() -> None:
        answer = httpx.get(
            f"{ring.address}/v1/nodes",
            headers={"Authorization": f"Bearer {ring.admin}"},
            timeout=120,
            trust_env=False,
        )
        answers.append(answer.status_code)

    askers = [threading.Thread(target=ask) for _ in range(60)]
    with ring.at_work():
        with frozen(own_postgres_cluster):
            for asker in askers:
                asker.start()
            until(lambda: 503 in answers, "some to be told to come back")
            assert ring.get("/healthz").status_code == 200, "the process lives"
        for asker in askers:
            asker.join()
        until(ring.ready, "the control plane to be ready by itself")
    assert len(answers) == 60
    assert set(answers) <= {200, 503}
    ring.require_that_runs_go_on()


@contextlib.contextmanager
def frozen(cluster: PostgresCluster) -> Iterator[None]:
    """Stop all of a cluster's processes where they stand."""
    server = psutil.Process(cluster.pid)
    stopped = [server, *server.children(recursive=True)]
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def end_sessions(cluster: PostgresCluster) -> None:
    cluster.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
