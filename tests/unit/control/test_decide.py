"""What holds of every decision: it never raises, is the same for the same snapshot, moves along the
table, and comes to rest.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.decide import decide
from control.lifecycle import ENDED, TRANSITIONS, WITH_RANKS, Desired, State
from control.snapshot import DrillStatus, Incident, OrderStatus
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import NOW, change, running
from trainmaster.orders import Drill

REACHED = {
    before: {after for (state, _), after in TRANSITIONS.items() if state == before}
    for before in State
}

SPECS = [
    at.spec(parallel=parallel, recovery={"unreachable_after_s": after_s})
    for parallel in ("auto", {"replicas": 2, "stages": 2})
    for after_s in (None, 5.0)
]

rank_ends = st.sampled_from(
    [
        {"state": "assigned"},
        {"state": "started"},
        {"state": "ready"},
        {"state": "ready", "boot": "boot-0"},
        *(
            {"state": "exited", "exited_at": NOW, "exit_code": code}
            for code in (0, 65, 66, 70, 75, 78, 137)
        ),
        {"state": "exited", "exited_at": NOW, "signal": 9},
        {"state": "exited", "exited_at": None, "signal": 15},
        {
            "state": "exited",
            "exited_at": NOW,
            "exit_code": 0,
            "finished": {"step": 50, "ordered": True},
        },
    ]
)
requests = st.sampled_from(
    [
        ("pause", {}),
        ("pause", {"hold": True}),
        ("resume", {}),
        ("stop", {}),
        ("stop", {"checkpoint": False}),
        ("checkpoint", {}),
        ("restore", {"checkpoint": "alpha-g1-s30", "skip_steps": 2}),
        ("restore", {"checkpoint": "nothing"}),
        ("amend", {"spec": at.spec(recovery={"max_restarts": 1}).model_dump(mode="json")}),
        ("amend", {}),
        ("drill", {"fault": "nan", "sticky": True}),
        ("drill", {"fault": "flood"}),
    ]
)
checkpoint_states = st.sampled_from(["writing", "committed", "trusted", "quarantined"])


@st.composite
def attempts(draw, live: bool):
    found = []
    for generation in range(1, draw(st.integers(1, 4)) + 1):
        resumed = generation > 1 and draw(st.booleans())
        kinds = (
            ["restart", "rollback", "restore", "resume", "fallback"]
            if generation > 1
            else ["start"]
        )
        met = draw(st.booleans())
        found.append(
            at.attempt(
                generation,
                parent_generation=1 if resumed else None,
                cause_kind=draw(st.sampled_from(kinds)),
                resumed_from_step=30 if resumed else 0,
                resumed_from_checkpoint="alpha-g1-s30" if resumed else None,
                ready_at=NOW if met else None,
                first_step=1 if met else None,
                last_step=50 if met else None,
                last_committed_step=draw(st.sampled_from([None, 30, 50])),
                ended_at=NOW - timedelta(seconds=1),
                because="rank 3 killed by signal 9",
                skip=draw(st.sampled_from([(), ((41, 45),)])),
            )
        )
    if live:
        found[-1] = replace(found[-1], ended_at=None, because="")
    return tuple(found)


@st.composite
def snapshots(draw):
    state = draw(st.sampled_from(State))
    live = state in WITH_RANKS
    made = draw(attempts(live)) if live or draw(st.booleans()) else ()
    generation = made[-1].generation if made else 0
    asked = tuple(
        replace(
            at.request(kind, number, draw(st.sampled_from(["pending", "accepted"])), **args),
            generation=draw(st.sampled_from([None, generation, generation + 1])),
        )
        for number, (kind, args) in enumerate(draw(st.lists(requests, max_size=3)), 1)
    )
    orders = tuple(
        OrderStatus(
            seq,
            draw(st.sampled_from(["stop", "hold", "release", "checkpoint"])),
            {},
            draw(st.sampled_from(["sent", "received", "applied", "refused"])),
            step=50,
            request=draw(st.sampled_from([None, 1, 2])),
            sent_at=draw(st.sampled_from([None, NOW - timedelta(minutes=2)])),
        )
        for seq in range(1, draw(st.integers(0, 3)) + 1)
    )
    bad = draw(st.sets(st.integers(1, 50), max_size=6))
    found = at.windows(50, bad=bad)
    if draw(st.booleans()):
        found["loss"] = tuple(
            replace(each, value=None if each.step in bad else each.value) for each in found["loss"]
        )
    action = {
        "action": "rollback",
        "generation": generation,
        "first_bad_step": 41,
        "own_skip": [[41, 43]],
    }
    incidents = (
        Incident("alpha-i1", NOW, "verifying", "gradient not finite", 0, 41, 43, (action,)),
    )
    checkpoints = tuple(
        replace(
            at.checkpoint(step, draw(checkpoint_states)),
            abandoned=draw(st.booleans()),
            problem=draw(st.sampled_from([None, None, "x"])),
            loss=draw(st.sampled_from([None, 1.0, math.nan])),
        )
        for step in (10, 20, 30, 40, 50)
    )
    return running(
        state=state,
        desired=draw(st.sampled_from(Desired)),
        generation=generation,
        workload=draw(st.sampled_from([at.WORKLOAD, at.WORKLOAD, None])),
        spec=draw(st.sampled_from(SPECS)),
        attempts=made,
        ranks=tuple(replace(each, **draw(rank_ends)) for each in at.ranks()) if made else (),
        nodes=(at.node(silent_s=draw(st.sampled_from([0, 5, 30])), cordoned=draw(st.booleans())),),
        requests=asked,
        orders=orders,
        checkpoints=checkpoints if made else (),
        windows=found if made else {},
        incidents=incidents if made and draw(st.booleans()) else (),
        drills=(DrillStatus(Drill(id=1, fault="nan", sticky=True), 1, ((1, 41, 41),)),),
        control_up_since=draw(st.sampled_from([None, NOW, NOW - timedelta(hours=1)])),
    )


@settings(max_examples=150, deadline=None)
@given(snapshots())
def test_a_decision_never_raises_and_is_the_same_for_the_same_snapshot(snapshot):
    decision = decide(snapshot, now=NOW)
    assert repr(decide(snapshot, now=NOW)) == repr(decision)
    assert decision.expected_version == snapshot.run.version
    assert decision.next_look_at >= NOW


@settings(max_examples=80, deadline=None)
@given(snapshots())
def test_a_decision_is_sound(snapshot):
    decision = decide(snapshot, now=NOW)
    newest = snapshot.attempt
    if decision.attempt_end is not None:
        assert newest is not None
        assert newest.ended_at is None
        assert decision.attempt_end.because
    if decision.new_attempt is not None:
        assert decision.attempt_end is None
        assert newest is None or newest.ended_at is not None
        new = decision.new_attempt
        assert new.generation > snapshot.run.generation
        assert len({(each.node, each.slot) for each in new.placements}) == new.plan.world_size
        chosen = {each.id: each for each in snapshot.checkpoints}.get(new.resumed_from_checkpoint)
        assert (chosen is None) == (new.resumed_from_checkpoint is None)
        if chosen is not None:
            assert chosen.state in {"committed", "trusted"}
            assert new.parent_generation == chosen.generation
        if new.cause_kind == "rollback":
            assert new.own_skip or new.lr_factor
    if decision.state in ENDED:
        assert newest is None or newest.ended_at is not None or decision.attempt_end is not None
    if decision.new_attempt is not None:
        assert {order.kind for order in decision.orders} <= {"hold"}
    elif decision.orders:
        assert newest is not None
        assert newest.ended_at is None
        assert decision.attempt_end is None
    for each in decision.requests:
        assert each.state in {"accepted", "applied", "refused"}
        assert each.because
    for event in decision.events:
        assert event.because
        assert event.because[0] != " "


@settings(max_examples=80, deadline=None)
@given(snapshots())
def test_turns_without_news_come_to_rest(snapshot):
    Ring(snapshot).settle(limit=20)


@pytest.mark.parametrize("state", State)
def test_a_quiet_run_stays_as_it_is(state):
    if state not in {State.PAUSED, State.HELD, State.STOPPED, State.SUCCEEDED, State.FAILED}:
        return
    ended = None if state == State.HELD else NOW
    quiet = running(
        state=state,
        attempts=(at.attempt(ended_at=ended),),
        checkpoints=(at.checkpoint(50),),
        desired="held" if state == State.HELD else "running",
    )
    assert not decide(change(quiet), now=NOW).changes_anything


def test_an_active_run_is_looked_at_often_and_one_at_rest_seldom():
    assert decide(running(), now=NOW).next_look_at - NOW <= timedelta(seconds=1)
    rest = running(
        state="succeeded", attempts=(at.attempt(ended_at=NOW),), checkpoints=(), windows={}
    )
    assert decide(rest, now=NOW).next_look_at - NOW >= timedelta(seconds=30)
