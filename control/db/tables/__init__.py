"""The tables. Words and units as in docs/glossary.md; the schema itself is created by
`migrations/`.

Who writes what: `facts` nodes, reaches, cursors, samples, events, ranks, stacks, checkpoints and
answers to chores;
`apply` runs, attempts, slots, orders, alerts and incidents; the API requests, rules, tokens, the
shelf and the audit log. Ids that people see are text; row numbers are never reused.
"""

from __future__ import annotations

from control.db.tables.access import audit, login_codes, tokens
from control.db.tables.checkpoints import checkpoint_copies, checkpoints
from control.db.tables.fleet import chores, cursors, leadership, nodes, reaches, workloads
from control.db.tables.judgement import (
    alerts,
    external_alerts,
    incidents,
    notifications,
    rule_versions,
    rules,
    silences,
)
from control.db.tables.runs import (
    attempts,
    drills,
    events,
    orders,
    ranks,
    requests,
    runs,
    shelf,
    slots,
    stacks,
)
from control.db.tables.samples import sample_ageing, sample_blocks, sample_chunks, sample_sealing
from control.db.tables.schema import metadata
from control.db.tables.timelines import timelines

__all__ = [
    "alerts",
    "attempts",
    "audit",
    "checkpoint_copies",
    "checkpoints",
    "chores",
    "cursors",
    "drills",
    "events",
    "external_alerts",
    "incidents",
    "leadership",
    "login_codes",
    "metadata",
    "nodes",
    "notifications",
    "orders",
    "ranks",
    "reaches",
    "requests",
    "rule_versions",
    "rules",
    "runs",
    "sample_ageing",
    "sample_blocks",
    "sample_chunks",
    "sample_sealing",
    "shelf",
    "silences",
    "slots",
    "stacks",
    "timelines",
    "tokens",
    "workloads",
]
