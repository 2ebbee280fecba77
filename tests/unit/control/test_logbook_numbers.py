"""The numeric incidents of three public logbooks, replayed against the recovery policy: none ends
in a circle, none goes back to a checkpoint that is known to be bad. Skipped where they are not
there.
"""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from control import budgets
from tests import real_curves as real
from tests.fakes import snapshots as at
from tests.fakes.ring import Ring
from tests.fakes.snapshots import running

BOOK = real.DATA / "logbooks" / "incidents.csv"
HEALING = frozenset({"loss_spike_recovered", "grad_spike", "loss_spike"})
STUBBORN = frozenset({"nan", "divergence", "loss_explosion", "loss_scale_floor"})
STEPS = 120


def rows():
    if not BOOK.is_file():
        return []
    with BOOK.open(encoding="utf-8", newline="") as lines:
        return [row for row in csv.DictReader(lines) if row["kind"] in HEALING | STUBBORN]


def named(row):
    return f"{row['run']} {row['when']} {row['kind']}".replace(" ", "_")


@pytest.fixture
def ring():
    saved = tuple(at.checkpoint(step) for step in range(10, STEPS + 1, 10))
    made = Ring(running(rules=at.RULES, checkpoints=saved))
    made.train(STEPS)
    made.settle()
    return made


def told(ring, last_step, *, loss, norm, since):
    """Let the newest attempt train on with these values from step `since` on."""
    ring.train(last_step)
    found = dict(ring.snapshot.windows)
    for metric, value in (("loss", loss), ("grad_norm", norm)):
        found[metric] = tuple(
            replace(each, value=value) if since <= each.step <= last_step else each
            for each in found[metric]
        )
    ring.tell(windows=found)
    ring.settle()


@pytest.mark.skipif(not BOOK.is_file(), reason="the logbooks are not here")
@pytest.mark.parametrize("row", rows(), ids=named)
def test_a_logbook_entry_ends_well_or_with_a_person(ring, row):
    if row["kind"] in HEALING:
        loss, norm = (3.0, 40.0) if row["kind"] == "grad_spike" else (7.0, 20.0)
        told(ring, STEPS + 12, loss=loss, norm=norm, since=STEPS + 1)
        told(ring, STEPS + 80, loss=3.0, norm=1.0, since=STEPS + 13)
        assert ring.snapshot.run.generation == 1, "a spike that heals is left alone"
        assert ring.snapshot.run.state == "running"
        return
    sick = (float("nan"), float("nan")) if row["kind"] == "nan" else (9.0, 30.0)
    for _ in range(12):
        newest = ring.snapshot.attempt
        first = max(newest.resumed_from_step + 3, STEPS + 1)
        for last in range(first + 4, first + 60, 8):
            told(ring, last, loss=sick[0], norm=sick[1], since=first)
            if ring.snapshot.attempt.generation != newest.generation:
                break
            if ring.snapshot.run.state == "failed":
                break
        if ring.snapshot.run.state == "failed":
            break
        ring.ready()
        ring.settle()
    snapshot = ring.snapshot
    assert (snapshot.run.state, snapshot.run.code) == ("failed", "budget_exhausted")
    assert "person" in snapshot.run.because
    begun = snapshot.attempts[1:]
    assert 1 <= len(begun) <= snapshot.run.spec.recovery.max_rollbacks
    for attempt in begun:
        assert attempt.own_skip or attempt.lr_factor is not None, "something differs each time"
        tries = sum(
            each.resumed_from_checkpoint == attempt.resumed_from_checkpoint for each in begun
        )
        assert tries <= budgets.TRIES_PER_CHECKPOINT
    bad = {each.id for each in snapshot.checkpoints if each.state == "quarantined"}
    judged_at = {
        each.data["checkpoint"]: number
        for number, decision in enumerate(ring.decisions)
        for each in decision.events
        if each.kind == "checkpoint_quarantined"
    }
    for number, decision in enumerate(ring.decisions):
        new = decision.new_attempt
        if new is not None and new.resumed_from_checkpoint in bad:
            assert number < judged_at[new.resumed_from_checkpoint]
