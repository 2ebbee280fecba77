"""What a person asks is acknowledged by the workers, and two people do not undo each other."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.scenarios.ring import Ring, tiny, until


def test_hold_keeps_the_ranks_and_resume_lets_them_go_on(ring: Ring, corpus: Path):
    run = ring.submit(tiny("hold", corpus))
    ring.wait_for_step(run, 15)
    ring.json("pause", run, "--hold", "--why", "lunch")
    held = ring.show(run)
    assert held["state"] == "held"
    ring.json("resume", run)
    done = ring.wait_for(run, "succeeded")
    assert done["generation"] == 1
    assert [rank["pid"] for rank in done["ranks"]] == [rank["pid"] for rank in held["ranks"]]


def test_stop_takes_a_checkpoint_and_a_stopped_run_resumes_from_it(ring: Ring, corpus: Path):
    run = ring.submit(tiny("stopped", corpus))
    ring.wait_for_step(run, 15)
    ring.json("stop", run)
    stopped = ring.show(run)
    assert stopped["state"] == "stopped"
    assert ring.json("checkpoints", run)[-1]["step"] == stopped["step"]
    ring.json("resume", run)
    assert ring.wait_for(run, "succeeded")["attempts"][-1]["resumed_from_step"] == stopped["step"]


def test_a_checkpoint_or_a_timeline_on_request_is_there_when_the_command_returns(
    ring: Ring, corpus: Path, tmp_path: Path
):
    run = ring.submit(tiny("asked", corpus, steps=600))
    ring.wait_for_step(run, 12)
    before = {each["id"] for each in ring.json("checkpoints", run)}
    ring.json("checkpoint", run)
    after = until(lambda: {each["id"] for each in ring.json("checkpoints", run)} - before)
    assert after
    trace = tmp_path / "step.json"
    told = ring.json("timeline", run, "--record", "--chrome", trace)
    ranks = ring.show(run)["ranks"]
    assert [each["rank"] for each in told["ranks"]] == [each["rank"] for each in ranks]
    assert told["planned"][0]["because"] is None
    assert json.loads(trace.read_text())["otherData"]["step"] == told["step"]
    ring.json("stop", run, "--no-checkpoint")


def test_of_two_who_press_restore_at_once_one_wins_and_the_other_is_told(ring: Ring, corpus: Path):
    run = ring.submit(tiny("two", corpus, steps=400))
    ring.wait_for_step(run, 45)
    ring.json("pause", run, "--hold")  # what they choose from must not be retired meanwhile
    alive = [each for each in ring.json("checkpoints", run) if each["state"] != "retired"]
    first, second = [each["id"] for each in alive][-2:]
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(ring.call, "restore", run, each, expect=None) for each in (first, second)
        ]
        done = [call.result() for call in calls]
    assert sorted(each.returncode for each in done) == [0, 4], [each.stderr for each in done]
    loser = next(each for each in done if each.returncode == 4)
    assert "restore" in loser.stderr
    shown = ring.show(run)
    assert shown["generation"] == 2
    assert (
        len(
            [
                each
                for each in ring.json("audit")
                if each["target"] == run and "restore" in each["action"]
            ]
        )
        >= 1
    )
    ring.json("stop", run, "--no-checkpoint")


def test_a_dry_run_of_a_restore_tells_what_would_be_lost_and_changes_nothing(
    ring: Ring, twin: dict[str, str]
):
    run = twin["id"]
    before = ring.show(run)
    target = ring.json("checkpoints", run)[-2]
    told = ring.json("restore", run, target["id"], "--skip-steps", 2, "--dry-run")
    assert told
    assert ring.show(run)["version"] == before["version"]


def test_what_the_state_does_not_allow_is_refused_with_exit_4(ring: Ring, twin: dict[str, str]):
    run = twin["id"]
    for words in (("pause", run), ("resume", run), ("stop", run)):
        refused = ring.call(*words, expect=4)
        assert "succeeded" in refused.stderr
    assert ring.call("show", "rnothere", expect=2).stderr
