"""The agent's part in drills: cutting its own link, and waking ranks that hang. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainmaster.ids import parse_rank_stream
from trainmaster.orders import Drill
from trainmaster.wire import Assignment
from worker.agent.reconcile import RankKey


@dataclass(frozen=True, slots=True)
class Cut:
    """The drill `disconnect`, due now, after `step` of the run."""

    run: str
    generation: int
    step: int
    drill: Drill


class DrillWatch:
    """Remembers which drills of this node are over, and which ranks are to be woken when."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._steps: dict[tuple[str, int], int] = {}
        self._cut: set[tuple[str, int, int]] = set()
        self._wake_at: dict[RankKey, float] = {}

    def hear(
        self,
        stream: str,
        *,
        step: int | None,
        events: Iterable[Mapping[str, object]],
        assignments: Iterable[Assignment],
        now: float,
    ) -> None:
        """Take in the last step and the events that a rank has just written."""
        rank = parse_rank_stream(stream)
        if rank is None:
            return
        if step is not None:
            self._steps[rank[:2]] = max(step, self._steps.get(rank[:2], 0))
        for event in events:
            data = event.get("data")
            if event.get("kind") != "drill_fired" or not isinstance(data, Mapping):
                continue
            drill = _drill(data.get("id"), rank, assignments)
            if drill is not None and drill.fault == "hang":
                self._wake_at[rank] = now + drill.duration_s

    def to_wake(self, now: float) -> list[RankKey]:
        """Return the ranks whose hang is over, each once."""
        due = [rank for rank, at in self._wake_at.items() if now >= at]
        for rank in due:
            del self._wake_at[rank]
        return due

    def cuts(self, assignments: Iterable[Assignment]) -> list[Cut]:
        """Return the cuts of this node's link that are due, each once."""
        found = []
        for each in assignments:
            step = self._steps.get((each.run, each.generation), 0)
            for drill in each.drills:
                name = (each.run, each.generation, drill.id)
                if name in self._cut or not self._concerns(drill, each):
                    continue
                if step >= (drill.at_step or 0):
                    self._cut.add(name)
                    found.append(Cut(each.run, each.generation, step, drill))
        return found

    def _concerns(self, drill: Drill, assignment: Assignment) -> bool:
        """Return whether a drill cuts this link: the node is named, or has the rank (0 if none)."""
        if drill.fault != "disconnect":
            return False
        if drill.node is not None:
            return drill.node == self._node
        return any(each.rank == (drill.rank or 0) for each in assignment.ranks)


def _drill(number: object, rank: RankKey, assignments: Iterable[Assignment]) -> Drill | None:
    return next(
        (
            drill
            for each in assignments
            if (each.run, each.generation) == rank[:2]
            for drill in each.drills
            if drill.id == number
        ),
        None,
    )
