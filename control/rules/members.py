"""What a rule of some scope is about: the run, its ranks, or groups of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        parts: places of the members for which it stands where they are bad together.
    """

    name: str
    ranks: tuple[int, ...] = ()
    stage: int = 0
    parts: tuple[int, ...] = ()


NO_STAGE = -1
"""Of members that stand for others: nobody's peers."""

OF_MESSAGES = frozenset({"p2p_wait_s"})
"""Metrics of what stages send each other; others of links are of sums of gradients."""


def needs_ranks(rule: Rule) -> bool:
    """Return whether run-level values are not enough for `rule`."""
    return rule.scope != RUN or any(
        isinstance(part, SpreadOverReplicas | RelativeToBestPeer) for part in rule.parts
    )


def members_of(rule: Rule, seats: Iterable[Seat]) -> tuple[Member, ...]:
    """Return what `rule` watches under a plan, in order; what stands for others comes after
    them.
    """
    seats = list(seats)
    if rule.scope == RUN:
        return (Member(RUN),)
    if rule.scope == "rank":
        found = [Member(f"rank {seat.rank}", (seat.rank,), seat.stage) for seat in seats]
    else:
        groups: dict[str, tuple[list[int], int]] = {}
        for seat in seats:
            for name, stage in _groups(rule, seat, seats):
                groups.setdefault(name, ([], stage))[0].append(seat.rank)
        found = [
            Member(name, tuple(ranks), stage) for name, (ranks, stage) in sorted(groups.items())
        ]
    return tuple(found + _wider(rule, found, seats) if rule.widens else found)


def _wider(rule: Rule, members: Sequence[Member], seats: Sequence[Seat]) -> list[Member]:
    """Return the nodes with several of the ranks, and the run where there is more than one node."""
    alone = dict.fromkeys(range(len(members)))
    found: list[Member] = []
    if rule.scope == "rank":
        homes: dict[str, list[int]] = {}
        for place, seat in enumerate(seats):
            if seat.node:
                homes.setdefault(seat.node, []).append(place)
        for node, places in sorted(homes.items()):
            if len(places) > 1:
                ranks = tuple(seats[place].rank for place in places)
                found.append(Member(f"node {node}", ranks, NO_STAGE, tuple(places)))
                for place in places:
                    del alone[place]
    parts = (*alone, *range(len(members), len(members) + len(found)))
    if len(parts) > 1:
        found.append(Member(RUN, tuple(seat.rank for seat in seats), NO_STAGE, parts))
    return found


def _groups(rule: Rule, seat: Seat, seats: Sequence[Seat]) -> list[tuple[str, int]]:
    """Return the groups that a rank belongs to, and the stage by which groups are peers."""
    if rule.scope == "replica":
        return [(f"replica {seat.replica}", 0)]
    if rule.scope == "stage":
        return [(f"stage {seat.stage}", seat.stage)]
    if rule.scope == "node":
        return [(f"node {seat.node}", 0)] if seat.node else []
    if rule.metric in OF_MESSAGES:
        return _message_links(seat, seats)
    # The nodes on which the copies of one stage live: their gradients cross what joins them.
    nodes = sorted({each.node or "" for each in seats if each.stage == seat.stage})
    return [(f"link {' - '.join(nodes)}", 0)] if len(nodes) > 1 else []


def _message_links(seat: Seat, seats: Sequence[Seat]) -> list[tuple[str, int]]:
    """Return the links over which a rank speaks to the stages before and after its own."""
    found = dict.fromkeys(
        f"link {' - '.join(sorted((seat.node, each.node)))}"
        for each in seats
        if each.replica == seat.replica
        and abs(each.stage - seat.stage) == 1
        and each.node
        and seat.node
        and each.node != seat.node
    )
    return [(name, 0) for name in found]
