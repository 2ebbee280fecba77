"""What others know of a node that the control plane does not hear. Pure.

Lost contact is no evidence of death, so others are asked: the neighbours' agents, which connect to
the agent of the silent node past the control plane, and the checkpoint store, in which a node that
is cut off says that it lives. A third witness needs no asking: ranks that lose a peer end by
themselves, and that ends the attempt (`control.liveness.exits`).

| a neighbour reaches it | it beats in the store | neighbours that lost it | verdict |
|---|---|---|---|
| yes | - | - | alive |
| no | yes | - | alive |
| no | no | none | unknown |
| no | no | one or more | gone |

A neighbour has lost a node that answered it before, and now `FAILURES` times in a row has not, or
whose machine says that no agent listens there any more.

Who cannot be heard himself cannot testify, and what was said more than `FRESH_S` ago does not
count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from control.snapshot import Reach

FAILURES = 3
"""Attempts in a row, about two seconds apart."""

FRESH_S = 10.0

Fate = Literal["alive", "gone", "unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a silent node, and who says so, as a sentence."""

    fate: Fate
    because: str


def verdict(node: str, reaches: Iterable[Reach], heard: Sequence[str], *, now: datetime) -> Verdict:
    """Return what witnesses say of `node`; the table is in the module's docstring.

    Args:
        heard: the nodes that are in contact.
    """
    fresh = [
        each
        for each in reaches
        if each.node == node
        and each.witness in heard
        and now - each.at <= timedelta(seconds=FRESH_S)
    ]
    answered = sorted(each.witness for each in fresh if each.answers)
    if answered:
        return Verdict("alive", f"node {', '.join(answered)} still reaches its agent")
    if any(each.stored for each in fresh):
        return Verdict("alive", "it still writes its heartbeat into the checkpoint store")
    missed = [each for each in fresh if each.ever and (each.refused or each.failures >= FAILURES)]
    if missed:
        names = ", ".join(sorted(each.witness for each in missed))
        how = "no agent listens there" if any(each.refused for each in missed) else "it is silent"
        return Verdict("gone", f"node {names} reached it before and does not now: {how}")
    return Verdict("unknown", "there is no witness")
