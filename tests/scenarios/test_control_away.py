"""The control plane dies and comes back: training goes on, and every step is there once."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from tests.scenarios.ring import TRAINMASTER, running, tiny, until

AWAY_S = 8


def test_training_goes_on_while_control_is_away_and_nothing_is_ordered_afterwards(
    tmp_path: Path, corpus: Path
):
    with running(tmp_path / "home", TRAINMASTER_SUPERVISE="0") as ring:
        run = ring.submit(tiny("away", corpus, steps=300))
        ring.wait_for_step(run, 20)
        pids = [rank["pid"] for rank in ring.show(run)["ranks"]]
        ring.kill("control")
        ring.call("show", run, expect=3)
        time.sleep(AWAY_S)  # the story itself: nobody is there for a while
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        control = subprocess.Popen([TRAINMASTER, "control"], env=ring.environment)
        try:
            until(lambda: ring.call("runs", expect=None).returncode == 0, what="control to answer")
            done = ring.wait_for(run, "succeeded", within_s=180)
            assert done["generation"] == 1, done["attempts"]
            assert list(ring.losses(run)) == list(range(1, 301))
            for rank in range(4):
                points = ring.json(
                    "series", run, "step_time_s", "--rank", rank, "--points", 10_000
                )["points"]
                assert [step for _, step, _, _ in points] == list(range(1, 301))
            assert ring.process("control")["pid"] == control.pid
        finally:
            if control.poll() is None:
                os.kill(control.pid, 15)
            control.wait(20)
