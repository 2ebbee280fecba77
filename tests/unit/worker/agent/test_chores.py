"""Children of the nest that look at workloads and devices, and end before they say anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster.wire import Chore
from worker.agent.chores import ended_early
from worker.nest.messages import Exited

LOG = Path("/state/looks.log")


def ended(exit_code: int | None = None, signal: int | None = None) -> Exited:
    return Exited(name="chore:3", exit_code=exit_code, signal=signal)


@pytest.mark.parametrize(
    ("kind", "args", "end", "told"),
    [
        (
            "describe",
            {"workload": "mine:hangs"},
            {"signal": 14},
            "describing the workload mine:hangs took longer than 120 s and was ended",
        ),
        (
            "calibrate",
            {"workload": "mine:hangs"},
            {"signal": 14},
            "measuring the device and the layers of mine:hangs took longer than 120 s",
        ),
        ("calibrate", {}, {"exit_code": 70}, "measuring the device ended with exit code 70"),
        ("describe", {"workload": "a:b"}, {"signal": 9}, "the workload a:b ended by signal 9"),
    ],
)
def test_it_is_told_what_ended_how_and_where_to_look(
    kind: Any, args: dict[str, Any], end: dict[str, Any], told: str
) -> None:
    because = ended_early(Chore(id=3, kind=kind, args=args), ended(**end), LOG)
    assert told in because
    assert "is in /state/looks.log on the node" in because
    assert ("calibrate without a spec" in because) == (kind == "calibrate" and bool(args))
