"""Real logbooks replayed against the recovery policy: whatever happened to others, the run ends up
training, or with a person asked; never in a circle, and never on a checkpoint known to be bad.

Read where the data lies beside the project; skipped elsewhere.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from control.budgets import TRIES_PER_CHECKPOINT
from control.snapshot import Attempt, Pulse, Stacks
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import ranks, running, with_rank

LOGBOOK = Path(__file__).parents[4] / "shared" / "data" / "logbooks" / "incidents.csv"
MOST_ATTEMPTS = 12
"""That one failure may lead to before a person is asked."""

BY_PEOPLE = {"start", "planned_change", "maintenance", "reshape", "uptime", "not_running_alert"}
NUMERIC = {
    "divergence",
    "grad_spike",
    "loss_explosion",
    "loss_scale_floor",
    "loss_spike",
    "loss_spike_recovered",
    "nan",
    "silent_desync",
}


def logged() -> list[dict[str, str]]:
    if not LOGBOOK.exists():
        return []
    with LOGBOOK.open(newline="") as file:
        return list(csv.DictReader(file))


def runs() -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for row in logged():
        found.setdefault(row["run"], []).append(row)
    return found


def killed(ring: Ring) -> None:
    ring.kill(3)


def hangs(ring: Ring) -> None:
    newest = ring.snapshot.attempts[-1]
    last = newest.last_step or newest.resumed_from_step
    waits = Pulse("step", "wait", last + 1, 60.0, 60.0)
    taken = at.samples({last - n: 0.1 for n in range(9, -1, -1)}, generation=newest.generation)
    ring.tell(
        ranks=with_rank(ranks(pulse=waits), 2, pulse=replace(waits, activity="compute")),
        windows={**ring.snapshot.windows, "step_time_s": taken},
    )
    ring.turn()
    calls = (Stacks(1, ring.now, None, ring.snapshot.incidents[-1].id, frozenset(range(4))),)
    ring.tell(attempts=(*ring.snapshot.attempts[:-1], replace(newest, stacks=calls)))


def exits(code: int) -> Callable[[Ring], None]:
    def happen(ring: Ring) -> None:
        ring.kill(3)
        ring.tell(ranks=with_rank(ring.snapshot.ranks, 3, signal=None, exit_code=code))

    return happen


def goes_bad(ring: Ring) -> None:
    newest = ring.snapshot.attempts[-1]
    last = newest.last_step or newest.resumed_from_step
    ring.train(last + 4, bad=range(last + 1, last + 5))


PASSING = {"filesystem", "zombie_job"}
"""They say nothing against the checkpoint."""

HAPPENS: dict[str, Callable[[Ring], None]] = {
    "node_failure": killed,
    "gpu_crash": killed,
    "gpu_corrupt": exits(70),
    "unexpected_exit": exits(70),
    "zombie_job": exits(75),
    "filesystem": exits(74),
    "partial_checkpoint": exits(66),
    "hang": hangs,
    **dict.fromkeys(NUMERIC, goes_bad),
}


def goes_on(ring: Ring, trouble: Callable[[Ring], None], times: int) -> Iterator[Attempt]:
    """Let the same trouble come `times` times, and yield each attempt that follows."""
    for _ in range(times):
        before = ring.snapshot.attempts[-1].generation
        trouble(ring)
        for _ in range(200):
            ring.settle()
            if ring.snapshot.run.state not in {"recovering", "running"}:
                break
            if ring.snapshot.attempts[-1].generation > before:
                break
            ring.advance(1)
        if ring.snapshot.run.state == "failed":
            return
        newest = ring.snapshot.attempts[-1]
        if newest.generation == before:
            return  # it was left alone
        yield newest
        ring.ready()
        ring.settle()
        ring.train(newest.resumed_from_step + 6)
        ring.settle()


def begun() -> Ring:
    ring = Ring(running(spec=at.spec(recovery={"max_restarts": 5, "max_rollbacks": 3})))
    ring.settle()
    return ring


@pytest.mark.skipif(not LOGBOOK.exists(), reason="the logbooks are not on this machine")
@pytest.mark.parametrize("name", sorted(runs()))
def test_no_logbook_leads_into_a_circle_or_onto_a_bad_checkpoint(name: str) -> None:
    told = 0
    for row in runs()[name]:
        if row["kind"] not in HAPPENS:
            assert row["kind"] in BY_PEOPLE | {"kind", "slow_node"}, row["kind"]
            continue
        told += 1
        ring = begun()
        begun_from: list[str | None] = []
        for attempt in goes_on(ring, HAPPENS[row["kind"]], times=MOST_ATTEMPTS):
            checkpoint = next(
                (
                    each
                    for each in ring.snapshot.checkpoints
                    if each.id == attempt.resumed_from_checkpoint
                ),
                None,
            )
            assert checkpoint is None or checkpoint.state in {"committed", "trusted"}, row
            assert checkpoint is None or not checkpoint.abandoned, row
            if row["kind"] not in PASSING:
                begun_from.append(attempt.resumed_from_checkpoint)
        assert len(begun_from) <= MOST_ATTEMPTS, row
        for one in set(begun_from) - {None}:
            assert begun_from.count(one) <= TRIES_PER_CHECKPOINT, (row, begun_from)
        state = ring.snapshot.run.state
        assert state in {"running", "failed", "starting", "held", "recovering"}, row
        if state == "failed":
            assert ring.snapshot.run.because, row
    assert told or all(row["kind"] in BY_PEOPLE | {"slow_node"} for row in runs()[name])


@pytest.mark.parametrize("kind", ["node_failure", "hang", "filesystem", "nan", "unexpected_exit"])
def test_trouble_that_comes_again_at_once_ends_with_a_person_asked(kind: str) -> None:
    ring = begun()
    attempts = sum(1 for _ in goes_on(ring, HAPPENS[kind], times=60))
    run = ring.snapshot.run
    assert (run.state, run.code) == ("failed", "budget_exhausted"), (attempts, run)
    assert "A person must look" in run.because
