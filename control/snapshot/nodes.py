"""Nodes, and what they see of each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Reach:
    """What a node saw of a neighbour on its own (`trainmaster.wire.Reach`), and when it said so."""

    witness: str
    node: str
    at: datetime
    answers: bool
    refused: bool = False
    failures: int = 0
    ever: bool = False
    stored: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `taken` are the slots held by any run, this one included; `held_here` those held by
    this run; `sync_interval_s` is how often it is asked to be heard; `profile` what it says of its
    devices and links; `device` their kind.
    """

    id: str
    slots: int
    last_seen_at: datetime
    boot: str
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    cordoned: bool = False
    taken: frozenset[int] = frozenset()
    held_here: frozenset[int] = frozenset()
    sync_interval_s: float = 1.0
    profile: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
