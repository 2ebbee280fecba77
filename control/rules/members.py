"""What a rule of some scope is about: the run, its ranks, or groups of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from control.rules.judgement import RUN
from trainmaster.conditions import RelativeToBestPeer, SpreadOverReplicas
from trainmaster.rule import Rule


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a rank stands: its replica, its stage, its node if that is known."""

    rank: int
    replica: int = 0
    stage: int = 0
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One of the things a rule watches.

    Attributes:
        name: its scope, as alerts show it.
        ranks: whose values make up its own.
        stage: members of one stage are peers.
    """

    name: str
    ranks: tuple[int, ...] = ()
    stage: int = 0


def needs_ranks(rule: Rule) -> bool:
    """Return whether run-level values are not enough for `rule`."""
    return rule.scope != RUN or any(
        isinstance(part, SpreadOverReplicas | RelativeToBestPeer) for part in rule.parts
    )


def members_of(rule: Rule, seats: Iterable[Seat]) -> tuple[Member, ...]:
    """Return what `rule` watches under a plan, in order."""
    seats = list(seats)
    if rule.scope == RUN:
        return (Member(RUN),)
    if rule.scope == "rank":
        return tuple(Member(f"rank {seat.rank}", (seat.rank,), seat.stage) for seat in seats)
    groups: dict[str, tuple[list[int], int]] = {}
    for seat in seats:
        for name, stage in _groups(rule, seat, seats):
            groups.setdefault(name, ([], stage))[0].append(seat.rank)
    return tuple(
        Member(name, tuple(ranks), stage) for name, (ranks, stage) in sorted(groups.items())
    )


def _groups(rule: Rule, seat: Seat, seats: list[Seat]) -> list[tuple[str, int]]:
    """Return the groups that a rank belongs to, and the stage by which groups are peers."""
    if rule.scope == "replica":
        return [(f"replica {seat.replica}", 0)]
    if rule.scope == "stage":
        return [(f"stage {seat.stage}", seat.stage)]
    if rule.scope == "node":
        return [(f"node {seat.node}", 0)] if seat.node else []
    # A link joins the nodes on which the copies of one stage live: their gradients cross it.
    nodes = sorted({each.node or "" for each in seats if each.stage == seat.stage})
    return [(f"link {' - '.join(nodes)}", 0)] if len(nodes) > 1 else []
