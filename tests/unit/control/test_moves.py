"""Other plans for a run that has one: fewer replicas, a single node, other shares, and back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from control.decide import decide
from control.incidents import interventions
from control.incidents.record import open_incident
from control.incidents.rung import Evidence
from control.recovery import moves, replanning
from control.snapshot import Incident
from control.turn import Turn
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring, applied
from tests.fakes.snapshots import NOW, ranks, running, with_rank
from trainmaster.actions import Cordon, Degrade, DumpStacks, Rebalance

EVIDENCE = Evidence("many failed steps", "run", "The rule fires", 40, 44)
TWO_NODES = {"nodes": 2, "min_nodes": 1}


def apart(**changes: object):
    """Alpha with its first replica on elm and its second on oak."""
    bare = at.plan()
    homes = [("elm", "elm"), ("oak", "oak")]
    pipelines = tuple(
        each.model_copy(update={"nodes": home})
        for each, home in zip(bare.pipelines, homes, strict=True)
    )
    found = with_rank(with_rank(ranks(), 0, node="elm"), 1, node="elm")
    return running(
        ranks=found,
        nodes=(at.node("elm", 2), at.node("oak", 2)),
        attempts=(
            at.attempt(
                last_committed_step=50, plan=bare.model_copy(update={"pipelines": pipelines})
            ),
        ),
        spec=at.spec(placement=TWO_NODES),
        **changes,
    )


def acted(snapshot, action, evidence: Evidence = EVIDENCE):
    """One turn in which a rule takes an action."""
    turn = Turn(snapshot, NOW)
    carrier = getattr(interventions, action.action)
    incident = open_incident(turn, evidence)
    rung = carrier(turn, snapshot.attempts[-1], evidence, action, incident)
    return turn, rung


def obey(ring: Ring, step: int) -> None:
    """Let the ranks checkpoint and end as they were ordered to."""
    [order] = [each for each in ring.snapshot.orders if each.kind == "stop"]
    ring.train(step)
    ring.commit(step)
    told = {"step": step, "ordered": True}
    ring.tell(
        orders=(replace(order, state="applied", step=step),),
        ranks=tuple(
            replace(each, state="exited", exit_code=0, exited_at=ring.now, finished=told)
            for each in ring.snapshot.ranks
        ),
    )


def degraded() -> Ring:
    ring = Ring(apart())
    turn, rung = acted(ring.snapshot, Degrade(action="degrade"))
    assert "1 of 2 replicas on a single node" in rung.because
    decision = turn.decision(timedelta(0))
    ring.snapshot = applied(ring.snapshot, decision, NOW)
    obey(ring, 52)
    ring.settle()
    return ring


def test_a_degraded_run_goes_on_with_one_node_and_loses_no_step():
    ring = degraded()
    newest = ring.snapshot.attempt
    assert newest.cause_kind == "degrade"
    assert len({each.node for each in ring.snapshot.ranks}) == 1
    assert (newest.plan.replicas, newest.plan.shares, newest.plan.stages) == (1, [8], 2)
    assert newest.resumed_from_step == 52
    [ended] = ring.snapshot.attempts[:-1]
    assert ended.state == "superseded"


def test_a_degraded_run_that_dies_stays_on_one_node():
    ring = degraded()
    ring.ready()
    ring.settle()
    ring.kill(1)
    ring.settle()
    newest = ring.snapshot.attempt
    assert (newest.cause_kind, newest.plan.replicas) == ("restart", 1)
    assert len({each.node for each in ring.snapshot.ranks}) == 1


def test_two_hundred_clean_steps_bring_it_back():
    ring = degraded()
    ring.ready()
    ring.settle()
    ring.train(251)
    ring.settle()
    assert not moves.is_under_way(ring.snapshot), "one step too few"
    ring.train(252)
    taken = ring.settle()
    assert any("200 clean steps" in each.because for one in taken for each in one.events)
    assert moves.is_under_way(ring.snapshot)
    obey(ring, 253)
    ring.settle()
    newest = ring.snapshot.attempt
    assert (newest.cause_kind, newest.plan.replicas) == ("return", 2)
    assert {each.node for each in ring.snapshot.ranks} == {"elm", "oak"}
    assert not replanning.is_reduced(ring.snapshot)


def test_a_failed_step_begins_the_clean_stretch_anew_and_no_room_puts_it_off():
    ring = degraded()
    ring.ready()
    ring.settle()
    ring.train(200, bad=[100])
    ring.train(252)
    ring.settle()
    assert not moves.is_under_way(ring.snapshot)
    ring.train(300)
    ring.tell(nodes=(ring.snapshot.nodes[1],))
    ring.settle()
    assert not moves.is_under_way(ring.snapshot), "elm is gone"
    ring.tell(nodes=(at.node("elm", 2, silent_s=0), *ring.snapshot.nodes))
    ring.settle()
    assert moves.is_under_way(ring.snapshot)


MIB = 2**20
HEAVY = at.WORKLOAD.model_copy(
    update={
        "layers": [{"forward_flops": 1e6, "parameters": MIB, "output_bytes": 4096}] * 8,
        "num_parameters": 8 * MIB,
    }
)
"""Four layers of it take 16 bytes for each of 4 Mi parameters: 64 MiB for a rank of two stages."""


def with_memory(elm_mib: int, oak_mib: int):
    """Heavy alpha, on nodes whose devices have so much memory."""
    sizes = {"elm": elm_mib, "oak": oak_mib}
    nodes = [at.node(name, 2, profile={"memory_bytes": sizes[name] * MIB}) for name in sizes]
    return at.change(apart(), workload=HEAVY, nodes=tuple(nodes))


def test_a_run_is_degraded_onto_a_node_whose_memory_holds_it():
    turn, rung = acted(with_memory(100, 50), Degrade(action="degrade"))
    assert "single node" in rung.because
    assert moves.Move.of(turn.orders[0].args["then"]).plan.replicas == 1


@pytest.mark.parametrize(
    ("snapshot", "because"),
    [
        (
            with_memory(50, 50),
            "the model does not fit into the memory of the roomiest node oak: its place 0 needs ",
        ),
        (running(), "the run is on a single node already (oak)"),
        (
            at.change(apart(), nodes=(at.node("elm", 1), at.node("oak", 1))),
            "one copy of the model takes 2 ranks, and the roomiest node oak has 1 slots",
        ),
        (
            at.change(apart(), spec=at.spec(placement={"nodes": 2, "min_nodes": 2})),
            "placement.min_nodes is 2",
        ),
    ],
    ids=["no memory", "one node", "no fit", "too few nodes"],
)
def test_what_cannot_be_degraded_says_why_and_is_left_as_it_is(snapshot, because):
    turn, rung = acted(snapshot, Degrade(action="degrade"))
    assert turn.orders == []
    assert because in rung.because
    assert [each.kind for each in turn.events][-1] == "rule_could_not_act"


def test_shares_follow_the_measured_speed():
    slow = {rank: at.samples(dict.fromkeys(range(1, 51), 2.0)) for rank in (0, 1)}
    quick = {rank: at.samples(dict.fromkeys(range(1, 51), 1.0)) for rank in (2, 3)}
    snapshot = at.change(apart(), rank_windows={"compute_s": {**slow, **quick}})
    turn, rung = acted(snapshot, Rebalance(action="rebalance"))
    [order] = turn.orders
    assert order.args["then"]["plan"]["shares"] == [3, 5]
    assert "[3, 5] instead of [4, 4]" in rung.because


def test_shares_stay_where_nothing_is_known_or_all_are_alike():
    assert "is not known" in acted(apart(), Rebalance(action="rebalance"))[1].because
    alike = {rank: at.samples(dict.fromkeys(range(1, 51), 1.0)) for rank in range(4)}
    snapshot = at.change(apart(), rank_windows={"compute_s": alike})
    assert (
        "fit the measured speeds already"
        in acted(snapshot, Rebalance(action="rebalance"))[1].because
    )


def test_a_node_is_cordoned_by_its_name_or_by_its_rank():
    for scope in ("node elm", "rank 1"):
        turn, rung = acted(apart(), Cordon(action="cordon"), replace(EVIDENCE, scope=scope))
        [cordon] = turn.cordons
        assert cordon.node == "elm"
        assert "could not take this run as it is" in rung.because
    turn, rung = acted(apart(), Cordon(action="cordon"))
    assert turn.cordons == []
    assert "run names no node" in rung.because


def test_stacks_are_asked_for_the_incident():
    turn, _ = acted(apart(), DumpStacks(action="dump_stacks"))
    assert [each.incident for each in turn.stacks] == ["alpha-i1"]


def lost_elm() -> Ring:
    ring = Ring(apart())
    ring.kill(0)
    ring.turn()
    ring.tell(nodes=(at.node("oak", 2),))
    return ring


def test_nodes_that_stay_away_leave_fewer_replicas_and_come_back_after_a_clean_stretch():
    ring = lost_elm()
    ring.advance(9)
    ring.settle()
    assert ring.snapshot.run.state == "recovering", "they may come back"
    ring.advance(1)
    ring.settle()
    newest = ring.snapshot.attempt
    assert (newest.cause_kind, newest.plan.replicas, newest.plan.shares) == ("replan", 1, [8])
    assert "hold 1 of 2 replicas" in newest.cause
    ring.ready()
    ring.settle()
    ring.tell(nodes=(at.node("elm", 2), *ring.snapshot.nodes))
    ring.advance(0)
    ring.train(newest.resumed_from_step + 200)
    ring.settle()
    obey(ring, newest.resumed_from_step + 201)
    ring.settle()
    assert ring.snapshot.attempt.plan.replicas == 2


def test_min_nodes_is_waited_for():
    ring = lost_elm()
    ring.tell(spec=at.spec(placement={"nodes": 2, "min_nodes": 2}))
    ring.advance(600)
    ring.settle()
    assert ring.snapshot.run.state == "recovering"
    assert "only 1 node can take ranks now" in ring.snapshot.run.because


def test_a_restore_onto_fewer_replicas_is_what_a_person_wants_and_stays():
    ring = Ring(apart())
    plan = {"replicas": 1, "stages": 2, "micro_batch": 8}
    ring.tell(requests=(at.request("restore", checkpoint="alpha-g1-s50", plan=plan),))
    ring.settle()
    ring.ready()
    ring.settle()
    ring.train(400)
    ring.settle()
    assert ring.snapshot.attempt.plan.replicas == 1
    assert not moves.is_under_way(ring.snapshot)


SCATTERED = (8, 18, 28)
"""Failed steps that are more than a tenth, and too far apart for the ladder of numeric trouble."""


def judged(snapshot, now=NOW):
    """What the default rules and the brain make of failed steps that lie apart."""
    failed = at.windows(28, bad=SCATTERED)
    return decide(at.change(snapshot, windows=failed, checkpoints=()), now=now)


def firing(decision):
    return [each.rule for each in decision.alerts if each.state == "firing"]


def test_more_than_a_tenth_of_failed_steps_degrades_to_a_single_node():
    decision = judged(apart())
    assert "many failed steps" in firing(decision)
    [incident] = decision.incidents
    assert [each["action"] for each in incident.actions] == ["degrade"]
    assert "single node" in incident.because


def test_on_one_node_failed_steps_are_told_and_nothing_is_done():
    decision = judged(running())
    assert "many failed steps" in firing(decision)
    assert not decision.incidents
    assert not decision.orders


def test_failed_steps_that_another_incident_deals_with_do_not_count():
    other = Incident("alpha-i1", NOW, "verifying", "loss spike", 1, 8, 28)
    decision = judged(apart(incidents=(other,)))
    assert not any("degrade" in str(each.actions) for each in decision.incidents)
    assert not decision.orders


def test_a_run_that_could_not_be_degraded_goes_on():
    """Its one action is spent: that is an incident for a person, and no reason to fail the run."""
    tried = {"action": "degrade", "at": NOW.isoformat(), "generation": 1, "first_bad_step": 3}
    mine = Incident("alpha-i1", NOW, "verifying", "many failed steps", 1, 3, 28, actions=(tried,))
    decision = judged(apart(incidents=(mine,)))
    [incident] = decision.incidents
    assert (incident.state, incident.closed_as) == ("closed", "failed")
    assert decision.state is None


def test_a_plan_that_a_spec_gives_is_left_alone_where_only_the_planners_is_to_change():
    turn = Turn(apart(), NOW)
    given = turn.snapshot.attempts[-1]
    for_all, for_planned = (
        Rebalance(action="rebalance"),
        Rebalance(action="rebalance", planned_only=True),
    )
    assert interventions.has_object(turn, given, for_all)
    assert not interventions.has_object(turn, given, for_planned)
