"""What the ends of ranks say about their attempt: it finished, or it failed, and what came first.
Pure.

A rank that lost a peer ends with exit 75. That is a consequence; the first failure is the earliest
one that is not, and it alone gives the attempt its cause; so is an exit with 0 that nobody told of,
where the others then failed. However many ranks fall, an attempt fails once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from control.liveness.leases import started_anew
from control.snapshot import Rank, RunSnapshot
from trainmaster.errors import ExitCode

SETTLE_S = 2.0
"""How long to wait for the real cause when so far only consequences, or an exit without a last
word, were reported.
"""

_MEANINGS = {
    ExitCode.NUMERIC_STOP: "numbers went bad",
    ExitCode.INTEGRITY: "bytes differ from their digest",
    ExitCode.OUR_BUG: "an error in the program",
    ExitCode.OUT_OF_MEMORY: "out of memory",
    ExitCode.IO: "reading or writing failed",
    ExitCode.TRY_AGAIN: "lost a peer or a store",
    ExitCode.BAD_SPEC: "the spec is wrong",
}


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The first failure of an attempt. `cause` names the rank and its signal or exit code."""

    rank: int
    cause: str
    exit_code: int | None = None
    signal: int | None = None
    told: str = ""
    is_out_of_memory: bool = False

    @property
    def sentence(self) -> str:
        """The cause, and what the rank itself said of it."""
        return f"{self.cause}: {self.told}" if self.told else self.cause


@dataclass(frozen=True, slots=True)
class Finish:
    """All ranks ended as they should. `ordered` tells that they were ordered to, before the last
    step.
    """

    step: int | None
    ordered: bool
    weights_sha256: str | None


def first_failure(snapshot: RunSnapshot, *, now: datetime) -> FirstFailure | None:
    """Return the first failure among the ranks, once it is known; None while there is none or the
    cause may still come.
    """
    failed = [rank for rank in snapshot.ranks if _has_failed(rank)]
    if failed:
        left = [rank for rank in snapshot.ranks if _has_left(rank)]
        failed += [rank for rank in left if not _is_fresh(rank, now)]
        failed.sort(key=lambda rank: (_is_consequence(rank), rank.exited_at or now, rank.rank))
        first = failed[0]
        others_may_tell = any(
            rank.state != "exited" or (rank in left and rank not in failed)
            for rank in snapshot.ranks
        )
        if _is_consequence(first) and others_may_tell and _is_fresh(first, now):
            return None
        return _failure_of(first)
    for rank in snapshot.ranks:
        if started_anew(rank, snapshot):
            return FirstFailure(
                rank.rank,
                f"rank {rank.rank} ended with its agent: the agent of node {rank.node} was started "
                "anew",
            )
    return _exit_without_word(snapshot, now)


def finish(snapshot: RunSnapshot, *, now: datetime) -> Finish | None:
    """Return how the attempt finished: all ranks exited with 0, and what they told of it has
    arrived.
    """
    ranks = snapshot.ranks
    if not ranks or any(rank.state != "exited" or _has_failed(rank) for rank in ranks):
        return None
    told = [rank.finished for rank in ranks if rank.finished is not None]
    more_may_come = len(told) < len(ranks) and any(_is_fresh(rank, now) for rank in ranks)
    if not told or more_may_come:
        return None
    return Finish(
        step=_first(told, "step"),
        ordered=any(bool(each.get("ordered")) for each in told),
        weights_sha256=_first(told, "weights_sha256"),
    )


def _has_failed(rank: Rank) -> bool:
    return rank.state == "exited" and (bool(rank.exit_code) or bool(rank.signal))


def _has_left(rank: Rank) -> bool:
    """Whether it exited with 0 and has not told that it had finished: its workload ended it."""
    return rank.state == "exited" and not _has_failed(rank) and rank.finished is None


def _is_consequence(rank: Rank) -> bool:
    return rank.stopped or (not rank.signal and rank.exit_code == ExitCode.TRY_AGAIN)


def _is_fresh(rank: Rank, now: datetime) -> bool:
    """Whether the rank ended just now. `exited_at` is its node's clock: one that runs ahead is not
    waited for.
    """
    if rank.exited_at is None:
        return False
    return 0 <= (now - rank.exited_at).total_seconds() < SETTLE_S


def _failure_of(rank: Rank) -> FirstFailure:
    told = _told(rank)
    starved = (rank.failure or {}).get("out_of_memory") is True
    if rank.signal:
        cause = f"rank {rank.rank} killed by signal {rank.signal}"
        return FirstFailure(
            rank.rank, cause, signal=rank.signal, told=told, is_out_of_memory=starved
        )
    assert rank.exit_code is not None
    if rank.exit_code == ExitCode.DONE:
        cause = f"rank {rank.rank} exited with 0 before its last step, as if it had finished"
        return FirstFailure(rank.rank, cause, exit_code=0)
    meaning = _MEANINGS.get(ExitCode(rank.exit_code)) if rank.exit_code in _MEANINGS else None
    cause = f"rank {rank.rank} exited with {rank.exit_code}" + (f" ({meaning})" if meaning else "")
    return FirstFailure(
        rank.rank,
        cause,
        exit_code=rank.exit_code,
        told=told,
        is_out_of_memory=starved or rank.exit_code == ExitCode.OUT_OF_MEMORY,
    )


def _told(rank: Rank) -> str:
    """What the rank said of its end: its own sentence, or the file and digests that its restore
    stumbled over.
    """
    said = rank.failure or {}
    sentence = str(said.get("because") or said.get("message") or said.get("error") or "")
    file = said.get("file")
    if file and str(file) not in sentence:
        digests = f"expected {said.get('expected')}, seen {said.get('seen')}"
        sentence = f"{file}: {digests}" + (f"; {sentence}" if sentence else "")
    return sentence


def _exit_without_word(snapshot: RunSnapshot, now: datetime) -> FirstFailure | None:
    """An exit 0 without the event that tells of it, after time enough for it to arrive: nobody
    trains on.
    """
    ranks = snapshot.ranks
    if not ranks or any(rank.state != "exited" for rank in ranks):
        return None
    if any(rank.finished is not None for rank in ranks) or any(
        _is_fresh(rank, now) for rank in ranks
    ):
        return None
    return FirstFailure(0, "all ranks exited with 0 without telling that they had finished")


def _first(told: list[Any], key: str) -> Any:
    return next((each[key] for each in told if each.get(key) is not None), None)
