"""The checkpoints of a run: how far each can be trusted, where its bytes lie, what can be done."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import streamlit as st

from dashboard import states
from dashboard.data import Json
from dashboard.formats import NOTHING, instant, number, size
from dashboard.session import Session
from dashboard.steering import verb
from dashboard.views import checkpoint_comparison, go
from dashboard.widgets.table import Cell, Column, Row, action, actions, cell, table
from dashboard.widgets.text import banner
from trainmaster.errors import TrainmasterError

_RESTORABLE = frozenset({"committed", "trusted"})
_GONE = checkpoint_comparison.GONE
_MOST_PROBLEMS = 5


def show(session: Session, run: Json) -> None:
    """Show the checkpoints of a run, newest first."""
    t = session.t
    run_id = str(run["id"])
    columns = [
        Column("state", t("column.trust")),
        Column("step", t("column.step"), "right"),
        Column("generation", t("column.generation"), "right"),
        Column("size", t("column.size"), "right"),
        Column("age", t("column.age"), "right"),
        Column("read", t("column.read_back"), "right"),
        Column("where", t("column.location")),
        Column("do", t("column.do")),
    ]
    session.tell_refused("checkpoints")
    _readings(session)
    goes = _verdicts(session, run_id)
    checkpoints = session.reader.checkpoints(run_id)
    pressed = table(
        columns,
        [_row(session, run, each, goes) for each in checkpoints],
        key=f"checkpoints-{run_id}",
        caption=t("run.section.checkpoints"),
        empty=t("checkpoints.empty"),
    )
    if pressed is None:
        checkpoint_comparison.show(session, checkpoints)
        return
    if pressed.verb in {"restore", "export"}:
        go.to_dialog(pressed.verb, run_id, pressed.id)
    if pressed.verb == "compare":
        checkpoint_comparison.begin(pressed.id)
        st.rerun(scope="fragment")
    path = f"/v1/checkpoints/{quote(pressed.id, safe='')}/{pressed.verb}"
    if pressed.verb == "verify":
        session.act("checkpoints", lambda: _have_read(session, pressed.id, path))
    else:
        session.act("checkpoints", lambda: session.api.post(path, {}))
    st.rerun(scope="fragment")


def _verdicts(session: Session, run_id: str) -> Mapping[str, str]:
    """Return why each checkpoint that retention would take now would go, where that is wanted."""
    if not st.toggle(session.t("checkpoints.retention"), key="checkpoints-retention"):
        return {}
    return {
        str(each["checkpoint"]): session.t("checkpoints.goes", because=each.get("because") or "")
        for each in session.reader.retention(run_id)
        if each.get("goes")
    }


def _have_read(session: Session, checkpoint: str, path: str) -> None:
    session.memory.setdefault("readings", {})[checkpoint] = session.api.post(path, {})


def waits(session: Session) -> bool:
    """Whether a node is still to tell what was asked here about checkpoints."""
    readings: dict[str, Json] = session.memory.get("readings", {})
    due = any(chore.get("state") != "applied" for chore in readings.values())
    return due or checkpoint_comparison.waits(session)


def _readings(session: Session) -> None:
    """Tell how far the checkpoints that were to be read here have come, and what was found."""
    t = session.t
    readings: dict[str, Json] = session.memory.get("readings", {})
    for checkpoint in list(readings):
        try:
            chore = _newest(session, readings[checkpoint])
        except TrainmasterError:
            del readings[checkpoint]
            continue
        readings[checkpoint] = chore
        if chore.get("state") != "applied":
            banner("info", t("checkpoints.reading", checkpoint=checkpoint))
        elif chore.get("ok"):
            banner("good", t("checkpoints.read_well", checkpoint=checkpoint))
        else:
            found = "; ".join(map(_problem, (chore.get("findings") or [])[:_MOST_PROBLEMS]))
            banner("bad", t("checkpoints.read_badly", checkpoint=checkpoint, found=found))


def _newest(session: Session, chore: Json) -> Json:
    """Return a chore as far as it has come."""
    if chore.get("state") == "applied":
        return chore
    found: Json = session.reader.get(f"/v1/requests/{quote(str(chore['id']), safe='')}")
    return found


def _problem(finding: Json | str) -> str:
    if isinstance(finding, str):
        return finding
    return ", ".join(f"{key} {value}" for key, value in finding.items() if value is not None)


def _row(session: Session, run: Json, checkpoint: Json, goes: Mapping[str, str]) -> Row:
    t, formats, now = session.t, session.formats, session.now()
    state = str(checkpoint["state"])
    shown = states.look(states.CHECKPOINT, state)
    marks = [
        t("checkpoints.pinned") if checkpoint.get("pinned") else "",
        t("checkpoints.abandoned") if checkpoint.get("abandoned") else "",
        str(checkpoint.get("because") or ""),
        goes.get(str(checkpoint["id"]), ""),
    ]
    read = instant(checkpoint.get("verified_at"))
    return Row(
        str(checkpoint["id"]),
        {
            "state": cell(
                t.word("checkpoint.state", state),
                icon=shown.icon,
                tone=shown.tone,
                sub=" · ".join(mark for mark in marks if mark),
            ),
            "step": number(checkpoint.get("step")),
            "generation": number(checkpoint.get("generation")),
            "size": size(checkpoint.get("bytes")),
            "age": formats.ago(instant(checkpoint.get("created_at")), now),
            "read": t("checkpoints.not_read") if read is None else formats.ago(read, now),
            "where": cell(
                str(checkpoint.get("location") or NOTHING),
                code=True,
                sub=_copies(session, checkpoint),
            ),
            "do": _buttons(session, run, checkpoint),
        },
        faded=bool(checkpoint.get("abandoned")) or state == "retired",
    )


def _copies(session: Session, checkpoint: Json) -> str:
    """Return one line for each copy that is not simply in the store."""
    t = session.t
    lines = []
    for copy in checkpoint.get("copies") or []:
        if (
            copy.get("tier") == "store"
            and copy.get("state") == "stored"
            and not copy.get("problem")
        ):
            continue
        told = f"{t.word('copy.tier', str(copy.get('tier')))}: "
        told += t.word("copy.state", str(copy.get("state")))
        told += f" · {copy['node']}" if copy.get("node") else ""
        lines.append(told + (f" · {copy['problem']}" if copy.get("problem") else ""))
    return "\n".join(lines)


def _buttons(session: Session, run: Json, checkpoint: Json) -> Cell:
    t = session.t
    state = str(checkpoint["state"])
    told = verb("restore", str(run["state"]), session.role)
    why = t(told.reason, state=t.word("run.state", str(run["state"]))) if told.reason else ""
    if state not in _RESTORABLE:
        why = t("checkpoints.not_restorable", state=t.word("checkpoint.state", state))
    looks_only = session.role == "viewer"
    pinned = bool(checkpoint.get("pinned"))
    return actions(
        action("restore", t("steer.restore"), disabled=bool(why), title=why),
        action(
            "verify",
            t("checkpoints.verify"),
            disabled=looks_only or state in _GONE,
            title=t("checkpoints.verify.help"),
        ),
        action("export", t("checkpoints.export"), disabled=state in _GONE),
        action("compare", t("checkpoints.compare"), disabled=state in _GONE),
        action(
            "unpin" if pinned else "pin",
            t("checkpoints.unpin" if pinned else "checkpoints.pin"),
            disabled=looks_only or state == "retired",
        ),
    )
