"""Runs of which something is asked, and how the ranks answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from control.decision import Decision, RequestChange
from control.snapshot import RunSnapshot
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW, running


def answers(decision: Decision) -> dict[int, RequestChange]:
    """Return what a decision says of each request."""
    return {each.id: each for each in decision.requests}


def finished(ring: Ring, *, ordered: bool, step: int = 55) -> None:
    """Let all ranks end as they were told."""
    found = ring.snapshot.ranks
    told = {"step": step, "ordered": ordered}
    for number in range(4):
        found = at.with_rank(
            found, number, state="exited", exit_code=0, exited_at=NOW, finished=told
        )
    ring.tell(ranks=found)


def obey(ring: Ring, step: int = 55) -> None:
    """Let the ranks apply all orders."""
    ring.tell(
        orders=tuple(replace(each, state="applied", step=step) for each in ring.snapshot.orders)
    )


def resting(state: str, **changes: Any) -> RunSnapshot:
    """Return a run whose last attempt has ended."""
    newest = at.attempt(ended_at=NOW - timedelta(minutes=1), because="rank 3 killed by signal 9")
    return running(
        state=state, attempts=(newest,), nodes=(at.node(),), desired="stopped", **changes
    )
