"""The agent's folders in memory."""

from pathlib import Path

import pytest

from trainmaster.home import Home
from worker.agent.memory import KEEP_S, Memory, root_below
from worker.host_memory import HostMemory

PLENTY = HostMemory(1000, 900)


class Told(list[tuple[str, dict[str, object]]]):
    def __call__(self, kind: str, data: dict[str, object]) -> None:
        self.append((kind, data))


@pytest.fixture
def told() -> Told:
    return Told()


def keep(folder: Path, step: int) -> Path:
    kept = folder / f"g1-step{step}"
    kept.mkdir()
    (kept / "rank-00000.safetensors").write_bytes(b"x")
    (kept / "manifest.json").write_bytes(b"{}")
    return kept


def test_a_run_that_is_no_longer_assigned_is_forgotten_after_a_while(
    tmp_path: Path, told: Told
) -> None:
    memory = Memory(tmp_path / "root", tell=told, read=lambda: PLENTY)
    folder = memory.folder("r1")
    assert folder is not None
    keep(folder, 20)
    memory.sweep({"r1"}, 0.0)
    memory.sweep(set(), 10.0)
    memory.sweep({"r1"}, 500.0)
    memory.sweep(set(), 600.0)
    memory.sweep(set(), 600.0 + KEEP_S - 1)
    assert folder.exists()
    assert told == []
    memory.sweep(set(), 600.0 + KEEP_S)
    assert not folder.exists()
    [(kind, data)] = told
    assert kind == "state_dropped"
    assert (data["run"], data["generation"], data["step"]) == ("r1", 1, 20)


def test_a_node_that_runs_out_of_memory_keeps_what_its_ranks_use(
    tmp_path: Path, told: Told
) -> None:
    memory = Memory(tmp_path / "root", tell=told, read=lambda: HostMemory(1000, 99))
    used, idle = memory.folder("r1"), memory.folder("r2")
    assert used is not None
    assert idle is not None
    keep(used, 10)
    keep(idle, 30)
    memory.sweep({"r1"}, 0.0)
    assert used.exists()
    assert not idle.exists()
    assert [data["run"] for _, data in told] == ["r2"]
    assert "99" not in str(told[0][1]["because"])
    assert "runs out of memory" in str(told[0][1]["because"])


def test_what_an_earlier_life_left_is_removed(tmp_path: Path, told: Told) -> None:
    keep_there = Memory(tmp_path / "root", tell=told).folder("r1")
    assert keep_there is not None
    keep(keep_there, 5)
    later = Memory(tmp_path / "root", tell=told)
    later.clear()
    assert not (tmp_path / "root").exists()
    assert later.folder("r1") == keep_there, "it is made anew"


def test_without_such_a_file_system_nothing_is_kept(tmp_path: Path, told: Told) -> None:
    assert root_below(None, Home(tmp_path), "n") is None
    assert root_below(tmp_path / "absent", Home(tmp_path), "n") is None
    nowhere = Memory(None, tell=told)
    assert nowhere.folder("r1") is None
    nowhere.sweep(set(), 0.0)
    nowhere.clear()


def test_agents_of_one_machine_have_folders_of_their_own(tmp_path: Path) -> None:
    homes = (Home(tmp_path / "a"), Home(tmp_path / "b"))
    roots = {root_below(tmp_path, home, node) for home in homes for node in ("n1", "n2")}
    assert len(roots) == 4
    assert all(root is not None and root.parent == tmp_path for root in roots)
