"""What is left of a node's memory."""

import subprocess
import sys
from pathlib import Path

from worker.host_memory import HostMemory, read

MEMINFO = "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    400 kB\nBuffers: 1 kB\n"


def laid_out(folder: Path, **files: str) -> tuple[Path, Path]:
    (folder / "meminfo").write_text(MEMINFO)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    return folder / "meminfo", folder


def test_a_node_without_a_limit_has_what_it_has(tmp_path: Path) -> None:
    unlimited = laid_out(tmp_path, memory_max="max\n")
    assert read(*unlimited) == HostMemory(1000 * 1024, 400 * 1024)


def test_the_limit_of_the_control_group_counts_where_it_is_nearer(tmp_path: Path) -> None:
    nearer = laid_out(
        tmp_path,
        memory_max="300000",
        memory_current="200000",
        memory_stat="anon 1\ninactive_file 50000\n",
    )
    assert read(*nearer) == HostMemory(300_000, 150_000)


def test_a_tenth_stays_free() -> None:
    memory = HostMemory(total=1000, available=400)
    assert memory.bears(300)
    assert not memory.bears(301)


def test_a_process_can_be_kept_from_the_last_of_it() -> None:
    wants_all = (
        "from worker import host_memory as m; m.leave_the_reserve(); bytearray(m.read().total)"
    )
    done = subprocess.run(
        [sys.executable, "-c", wants_all], capture_output=True, text=True, check=False
    )
    assert done.stderr.rstrip().endswith("MemoryError")
