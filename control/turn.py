"""One turn in the making: the snapshot, the instant, and what has been decided so far.

The deciders write here and nowhere else. A `Turn` lives inside one call of `decide`, so that call
stays pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from control.decision import (
    AlertChange,
    AttemptEnd,
    CheckpointChange,
    Cordon,
    Decision,
    IncidentChange,
    NewAttempt,
    NewChore,
    NewDrill,
    NewEvent,
    NewOrder,
    NewStacks,
    RequestChange,
)
from control.lifecycle import Desired, Happening, State, transition
from control.snapshot import Attempt, Request, RunSnapshot
from trainmaster.spec import RunSpec

_ENDS_WITH_ATTEMPT = frozenset({"pause", "stop", "checkpoint", "timeline"})


@dataclass
class Turn:
    """What one turn has seen and decided. `state` and `desired` are as they will be after it."""

    snapshot: RunSnapshot
    now: datetime
    state: State = field(init=False)
    desired: Desired = field(init=False)
    because: str = ""
    code: str | None = None
    weights_sha256: str | None = None
    spec: RunSpec | None = None
    attempt_end: AttemptEnd | None = None
    new_attempt: NewAttempt | None = None
    orders: list[NewOrder] = field(default_factory=list)
    requests: dict[int, RequestChange] = field(default_factory=dict)
    checkpoints: dict[str, CheckpointChange] = field(default_factory=dict)
    alerts: list[AlertChange] = field(default_factory=list)
    incidents: dict[str, IncidentChange] = field(default_factory=dict)
    drills: list[NewDrill] = field(default_factory=list)
    stacks: list[NewStacks] = field(default_factory=list)
    cordons: list[Cordon] = field(default_factory=list)
    chores: list[NewChore] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = State(self.snapshot.run.state)
        self.desired = Desired(self.snapshot.run.desired)

    @property
    def attempt(self) -> Attempt | None:
        """The newest attempt while it lives: not ended in the snapshot, nor by this turn."""
        newest = self.snapshot.attempt
        if newest is None or newest.ended_at is not None or self.attempt_end is not None:
            return None
        return newest

    def happen(self, happening: Happening, because: str, **data: Any) -> None:
        """Move the run along the table, and say so in its history."""
        self.state = transition(self.state, happening)
        self.because = because
        self.tell(f"run_{self.state}", because, happening=str(happening), **data)

    def tell(self, kind: str, because: str, **data: Any) -> None:
        """Add to the run's history."""
        self.events.append(NewEvent(kind, because, data=data))

    def give_up(
        self,
        code: str,
        because: str,
        *,
        attempt_state: str = "failed",
        ended_by: Mapping[str, Any] | None = None,
    ) -> None:
        """End the attempt, if one lives, and the run as failed; open requests end with it."""
        self.end_attempt(attempt_state, because, ended_by=ended_by)
        self.code = code
        self.refuse_open(because)
        self.happen(Happening.GAVE_UP, because, code=code)

    def end_attempt(
        self, state: str, because: str, *, ended_by: Mapping[str, Any] | None = None
    ) -> None:
        """End the living attempt, if any; what it was still to do for a person is refused.

        Args:
            ended_by: what ended it before its time (`AttemptEnd.ended_by`).
        """
        attempt = self.attempt
        if attempt is None:
            return
        self.attempt_end = AttemptEnd(attempt.generation, state, because, ended_by)
        for request in self.open_requests():
            if request.kind in _ENDS_WITH_ATTEMPT:
                self.refuse(request, f"superseded: {because}")

    def open_requests(self, *kinds: str) -> list[Request]:
        """Return the requests under way, of these kinds or of any, not finished by this turn."""
        return [
            request
            for request in self.snapshot.requests
            if (not kinds or request.kind in kinds) and self.request_state(request) == "accepted"
        ]

    def request_state(self, request: Request) -> str:
        """Return how far `request` has come, this turn included."""
        change = self.requests.get(request.id)
        return change.state if change else request.state

    def accept(self, request: Request, because: str = "", *, generation: int | None = None) -> None:
        """Note that `request` is under way, carried out by `generation`."""
        self.requests[request.id] = RequestChange(
            request.id, "accepted", because, generation=generation
        )
        self._answered(request, "request_accepted", because)

    def fulfil(self, request: Request, because: str, *, step: int | None = None) -> None:
        """Note that `request` is done."""
        self.requests[request.id] = RequestChange(
            request.id, "applied", because, generation=request.generation, step=step
        )
        self._answered(request, "request_applied", because, step=step)

    def refuse(self, request: Request, because: str) -> None:
        """Note that `request` will not be done, and why."""
        self.requests[request.id] = RequestChange(
            request.id, "refused", because, generation=request.generation
        )
        self._answered(request, "request_refused", because)

    def refuse_open(self, because: str, *kinds: str) -> None:
        """Refuse what is under way, of these kinds or of any."""
        for request in self.open_requests(*kinds):
            self.refuse(request, because)

    def order(self, kind: str, request: int | None = None, **args: Any) -> None:
        """Order the ranks of the living attempt."""
        self.orders.append(NewOrder(kind, args, request))

    def _answered(self, request: Request, kind: str, because: str, **data: Any) -> None:
        told = because or f"{request.kind} is under way."
        self.events.append(
            NewEvent(kind, told, data={"request": request.id, "kind": request.kind, **data})
        )

    def decision(self, look_again_after: timedelta) -> Decision:
        """Return everything that was decided; what is as it was before is left out."""
        run = self.snapshot.run
        return Decision(
            run=run.id,
            expected_version=run.version,
            next_look_at=self.now + look_again_after,
            state=str(self.state) if self.state != run.state else None,
            desired=str(self.desired) if self.desired != run.desired else None,
            because=self.because if self.because != run.because else "",
            code=self.code,
            weights_sha256=self.weights_sha256,
            spec=self.spec,
            attempt_end=self.attempt_end,
            new_attempt=self.new_attempt,
            orders=tuple(self.orders),
            requests=tuple(self.requests.values()),
            checkpoints=tuple(self.checkpoints.values()),
            alerts=tuple(self.alerts),
            incidents=tuple(self.incidents.values()),
            drills=tuple(self.drills),
            stacks=tuple(self.stacks),
            cordons=tuple(self.cordons),
            chores=tuple(self.chores),
            events=tuple(self.events),
        )
