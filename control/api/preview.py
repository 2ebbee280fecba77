"""What a restore would lose and what would differ: `control.checkpoints.restoring` decides, this
puts it into words and numbers for a dialog.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from control import budgets
from control.checkpoints import restoring
from control.db import listings
from control.snapshot import RunSnapshot


def restore(
    connection: Connection, snapshot: RunSnapshot, args: Mapping[str, Any], *, now: datetime
) -> dict[str, Any]:
    """Return the preview of a restore.

    Raises:
        UserError: the arguments ask for nothing that can be done.
    """
    told = restoring.restore_preview(snapshot, args, now=now)
    lost = [told.current_step - told.steps_lost + 1, told.current_step] if told.steps_lost else []
    sentences = [told.refused] if told.refused else []
    if lost:
        sentences.append(
            f"Steps {lost[0]} to {lost[1]} ({told.steps_lost}) are lost: their work is left on "
            "another branch."
        )
    else:
        sentences.append("No step is lost.")
    sentences += [*told.differs, *told.warnings]
    return {
        **told.to_json(),
        "checkpoint": listings.checkpoint(connection, told.checkpoint),
        "lost_steps": lost,
        "allowed": told.refused is None,
        "sentences": sentences,
        "budgets": _budgets(snapshot, now),
    }


def _budgets(snapshot: RunSnapshot, now: datetime) -> dict[str, Any]:
    """Return what was spent without a person of each budget that a restore begins anew."""
    recovery = snapshot.run.spec.recovery
    return {
        "restarts": {
            "spent": budgets.restarts_spent(snapshot, now=now),
            "allowed": recovery.max_restarts,
        },
        "rollbacks": {
            "spent": budgets.rollbacks_spent(snapshot, now=now),
            "allowed": recovery.max_rollbacks,
        },
    }
