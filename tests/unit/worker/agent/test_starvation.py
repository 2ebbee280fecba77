"""Kills for lack of memory are told apart from any other kill."""

from __future__ import annotations

from pathlib import Path

from worker.agent.starvation import COUNTERS, Starvation


class Kernel:
    """Counters as the kernel shows them."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts

    def read(self, path: Path) -> str:
        if path.name not in self.counts:
            return ""
        return f"pgfault 7\noom 3\noom_kill {self.counts[path.name]}\noom_group_kill 9\n"


def test_a_kill_while_the_kernel_kills_for_memory_has_evidence() -> None:
    kernel = Kernel(**{"memory.events": 1, "vmstat": 5})
    starvation = Starvation(kernel.read)
    assert starvation.evidence() is None
    kernel.counts = {"memory.events": 1, "vmstat": 6}
    told = starvation.evidence()
    assert told is not None
    assert told.startswith("out of memory")
    assert f"oom_kill in {COUNTERS[1][0]} rose from 5 to 6" in told
    assert starvation.evidence() is None, "one kill is evidence once"
    kernel.counts = {"memory.events": 2, "vmstat": 7}
    told = starvation.evidence()
    assert told is not None
    assert str(COUNTERS[0][0]) in told, "the container's own counter says more"


def test_what_happened_before_a_rank_was_started_is_no_evidence() -> None:
    kernel = Kernel(vmstat=5)
    starvation = Starvation(kernel.read)
    kernel.counts = {"vmstat": 6}
    starvation.look()
    assert starvation.evidence() is None


def test_a_machine_without_counters_has_no_evidence() -> None:
    assert Starvation(Kernel().read).evidence() is None
