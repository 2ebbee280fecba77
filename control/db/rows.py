"""Rows as values: how what is stored becomes what the deciders and the API read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from sqlalchemy import RowMapping

from control.db.sql.values import number_of
from control.snapshot import (
    Alert,
    Attempt,
    Checkpoint,
    Copy,
    Incident,
    LrWindow,
    Pulse,
    Range,
    Rank,
    Reach,
    Stacks,
)
from trainmaster import wire
from trainmaster.plan import Plan

Row = RowMapping | Mapping[str, Any]


def ranges(stored: Iterable[Iterable[int]]) -> tuple[Range, ...]:
    """Return batch ranges as they were before JSON made lists of them."""
    return tuple((first, last) for first, last in stored)


def lr_windows(stored: Iterable[Iterable[float]]) -> tuple[LrWindow, ...]:
    """Return learning-rate windows as they were before JSON made lists of them."""
    return tuple((int(first), int(last), float(factor)) for first, last, factor in stored)


def stacks(
    stored: Iterable[Mapping[str, Any]] | None, told: Mapping[int, frozenset[int]]
) -> tuple[Stacks, ...]:
    """Return the calls for stacks of an attempt.

    Args:
        told: the ranks that have answered, by call.
    """
    return tuple(
        Stacks(
            id=call["id"],
            asked_at=datetime.fromisoformat(call["asked_at"]),
            ranks=None if call["ranks"] is None else tuple(call["ranks"]),
            incident=call["incident"],
            told=told.get(call["id"], frozenset()),
        )
        for call in stored or ()
    )


def reach(row: Row) -> Reach:
    """Return what a node saw of a neighbour."""
    told = wire.Reach.model_validate(row["told"])
    return Reach(row["witness"], row["node"], row["at"], **told.model_dump())


def attempt(
    row: Row,
    *,
    last_committed_step: int | None = None,
    told: Mapping[int, frozenset[int]] = MappingProxyType({}),
) -> Attempt:
    """Return an attempt; `told` as `stacks` takes it."""
    return Attempt(
        generation=row["generation"],
        parent_generation=row["parent_generation"],
        state=row["state"],
        cause=row["cause"],
        cause_kind=row["cause_kind"],
        plan=Plan.model_validate(row["plan"]),
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        resumed_from_step=row["resumed_from_step"],
        resumed_from_checkpoint=row["resumed_from_checkpoint"],
        skip=ranges(row["skip"]),
        own_skip=ranges(row["own_skip"]),
        lr_windows=lr_windows(row["lr_windows"]),
        lr_factor=row["lr_factor"],
        store=row["store"],
        ready_at=row["ready_at"],
        first_step=row["first_step"],
        last_step=row["last_step"],
        incident=row["incident"],
        last_committed_step=last_committed_step,
        because=row["ended_because"],
        stacks=stacks(row["stacks"], told),
        ended_by=row["ended_by"],
        checkpoint_every=row["checkpoint_every"],
    )


def rank(row: Row) -> Rank:
    """Return a rank as facts tell it."""
    return Rank(
        rank=row["rank"],
        node=row["node"],
        slot=row["slot"],
        state=row["state"],
        pid=row["pid"],
        last_step=row["last_step"],
        last_seen_at=row["last_seen_at"],
        exit_code=row["exit_code"],
        signal=row["signal"],
        exited_at=row["exited_at"],
        stopped=row["stopped"],
        failure=row["failure"],
        finished=row["finished"],
        boot=row["boot"],
        pulse=None if row["pulse"] is None else Pulse(**row["pulse"]),
    )


def checkpoint(
    row: Row, *, verifying: bool = False, scrubbing: bool = False, copies: tuple[Copy, ...] = ()
) -> Checkpoint:
    """Return a checkpoint as SQL judges it."""
    return Checkpoint(
        id=row["id"],
        generation=row["generation"],
        step=row["step"],
        state=row["state"],
        location=row["location"],
        manifest_sha256=row["manifest_sha256"],
        created_at=row["created_at"],
        abandoned=row["abandoned"],
        pinned=row["pinned"],
        verified_at=row["verified_at"],
        trusted_at=row["trusted_at"],
        loss=number_of(row["loss"]),
        verifying=verifying,
        scrubbing=scrubbing,
        problem=row["problem"],
        copies=copies,
    )


def alert(row: Row) -> Alert:
    """Return an alert."""
    return Alert(
        id=row["id"],
        rule=row["rule"],
        scope=row["scope"],
        state=row["state"],
        since=row["since"],
        first_bad_step=row["first_bad_step"],
        value=number_of(row["value"]),
        threshold=number_of(row["threshold"]),
        severity=row["severity"],
        incident=row["incident"],
        generation=row["generation"],
        flapping=row["flapping"],
    )


def incident(row: Row) -> Incident:
    """Return an incident."""
    return Incident(
        id=row["id"],
        opened_at=row["opened_at"],
        state=row["state"],
        rule=row["rule"],
        rung=row["rung"],
        first_bad_step=row["first_bad_step"],
        last_bad_step=row["last_bad_step"],
        actions=tuple(row["actions"]),
        verification=row["verification"],
        proposed=row["proposed"],
    )
