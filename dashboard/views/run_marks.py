"""When a part of a run's page has to be drawn anew: each has a mark, which the browser compares
with that of the newest look. What changes with every step is not in it (`run_head`, `run_drawn`).
"""

from __future__ import annotations

import json
from datetime import datetime
from hashlib import sha256
from typing import Any

from dashboard import states
from dashboard.data import Json
from dashboard.formats import instant
from dashboard.session import Session
from dashboard.steering import is_final
from trainmaster.errors import TrainmasterError

HEAD = "head"
TIMED = frozenset({"pipeline", "ranks", "logs"})
"""Sections that look by themselves: what they show is in no look."""
MARKED = frozenset({"checkpoints", "events", "alerts", "spec"})
_SETTLES_WITHIN_S = 15.0
_AGES_S = 30
"""After so long, ages that are told in words are told anew."""


def mark(session: Session, run_id: str, part: str) -> str:
    """Return the mark of a part as it would be drawn now; what is refused or away has one, too."""
    try:
        return marks(session, session.reader.run(run_id)).get(part, "")
    except TrainmasterError as error:
        return _refused(error)


def refused(error: TrainmasterError) -> dict[str, str]:
    """Return the marks of all parts of a run that cannot be read."""
    return dict.fromkeys((HEAD, *MARKED), _refused(error))


def _refused(error: TrainmasterError) -> str:
    return f"{error.code}!"


def marks(session: Session, run: Json) -> dict[str, str]:
    """Return the mark of each part of the page of a run that has been looked at.

    Raises:
        TrainmasterError: something of it cannot be read.
    """
    run_id, reader = str(run["id"]), session.reader
    versions = reader.versions(run_id)
    ages = int(session.now().timestamp()) // _AGES_S
    asked = reader.requests(run_id)
    pending = any(not is_final(each) for each in asked)

    def version(part: str, answer: Any) -> str:
        return versions.get(part) or _digest(answer)

    requests = version("requests", asked)
    made = [run.get(name) for name in ("spec", "plan", "workload", "generation", "weights_sha256")]
    found = {
        HEAD: [run["state"], moves(run, asked, session.now()), requests, ages if pending else 0],
        "checkpoints": [version("checkpoints", reader.checkpoints(run_id)), run["state"], ages],
        "events": [reader.newest_event(run_id)],
        "alerts": [
            version("alerts", reader.alerts(run_id)),
            version("incidents", reader.incidents(run_id)),
            ages,
        ],
        "spec": [_digest(made)],
    }
    away = "" if reader.outage is None else "!"
    return {name: _digest(told) + away for name, told in found.items()}


def moves(run: Json, requests: list[Json], now: datetime) -> bool:
    """Whether anything may still change: by itself, because of what was asked, or because the last
    facts of a run that has just ended are still on their way.
    """
    if run["state"] not in states.TERMINAL or any(not is_final(each) for each in requests):
        return True
    since = instant(run.get("state_since"))
    return since is not None and (now - since).total_seconds() < _SETTLES_WITHIN_S


def _digest(told: Any) -> str:
    return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]
