import os
from pathlib import Path

from worker.agent.leftovers import LOG_RETENTION_S, remove_all_but_logs, remove_old_logs

NOW = 1e9


def made(path: Path, at: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    os.utime(path, (at, at))
    return path


def test_of_an_attempt_that_is_over_the_logs_stay(tmp_path: Path):
    log = made(tmp_path / "rank-0.log", NOW)
    made(tmp_path / "rank-0.spool", NOW)
    remove_all_but_logs(tmp_path)
    assert list(tmp_path.iterdir()) == [log]


def test_old_logs_go_with_their_attempt_and_its_run(tmp_path: Path):
    old = NOW - LOG_RETENTION_S - 1
    made(tmp_path / "gone" / "g1" / "rank-0.log", old)
    young = made(tmp_path / "stays" / "g1" / "rank-0.log", NOW)
    made(tmp_path / "stays" / "g1" / "rank-1.log", old)
    needed = made(tmp_path / "needed" / "g1" / "rank-0.spool", old)
    made(tmp_path / "stays" / "g2" / "rank-0.log", old)
    remove_old_logs(tmp_path, NOW)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["needed", "stays"]
    assert [path.name for path in (tmp_path / "stays").iterdir()] == ["g1"]
    assert young.exists()
    assert needed.exists()
