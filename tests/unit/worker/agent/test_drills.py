"""The agent's part in drills."""

from __future__ import annotations

from tests.fakes.control_plane import assignment
from trainmaster.orders import Drill
from trainmaster.wire import Assignment
from worker.agent.drills import DrillWatch


def wanted(*drills: Drill) -> list[Assignment]:
    return [assignment(ranks=2).model_copy(update={"drills": list(drills)})]


def test_a_link_is_cut_once_when_its_step_has_come():
    watch = DrillWatch("n1")
    drills = wanted(Drill(id=1, fault="disconnect", at_step=5))
    assert watch.cuts(drills) == []
    watch.hear("r1/1/0", step=5, events=[], assignments=drills, now=0.0)
    [cut] = watch.cuts(drills)
    assert (cut.run, cut.generation, cut.step, cut.drill.id) == ("r1", 1, 5, 1)
    assert watch.cuts(drills) == []


def test_only_the_node_that_is_meant_is_cut_off():
    watch = DrillWatch("n1")
    assert watch.cuts(wanted(Drill(id=1, fault="disconnect", node="n2"))) == []
    assert watch.cuts(wanted(Drill(id=2, fault="disconnect", rank=7))) == []
    assert watch.cuts(wanted(Drill(id=3, fault="kill", node="n1"))) == []
    assert len(watch.cuts(wanted(Drill(id=4, fault="disconnect", node="n1")))) == 1
    assert len(watch.cuts(wanted(Drill(id=5, fault="disconnect", rank=1)))) == 1


def test_a_rank_that_hangs_is_woken_when_its_time_is_over():
    watch = DrillWatch("n1")
    drills = wanted(Drill(id=1, fault="hang", duration_s=3.0), Drill(id=2, fault="slow"))
    fired = [{"kind": "drill_fired", "data": {"id": number}} for number in (1, 2, 9)]
    watch.hear("r1/1/1", step=None, events=fired[:1], assignments=drills, now=10.0)
    watch.hear("r1/1/0", step=None, events=fired[1:], assignments=drills, now=10.0)
    assert watch.to_wake(12.9) == []
    assert watch.to_wake(13.0) == [("r1", 1, 1)]
    assert watch.to_wake(13.0) == []
