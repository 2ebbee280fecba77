"""The first page: all runs, and what is wrong now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import streamlit as st

from dashboard import states
from dashboard.data import Json
from dashboard.formats import NOTHING, instant, number, ratio_of
from dashboard.session import Session
from dashboard.sought import holds
from dashboard.views import go
from dashboard.widgets.table import Column, Row, cell, table
from dashboard.widgets.text import section, title

COMMANDS = "trainmaster submit examples/stdlib_gpt.yaml\ntrainmaster runs"


def show(session: Session) -> None:
    """Show the runs; a fresh installation shows what to do next."""
    title(session.t("fleet.title"), small=session.t("fleet.lead"))
    sought = st.text_input(session.t("fleet.sought"), key="fleet-sought") or ""
    session.live(lambda: _runs(session, sought), key="fleet", every_s=session.refresh_s)


def _runs(session: Session, sought: str) -> None:
    t = session.t
    with session.guarded():
        runs = session.reader.runs()
        firing = [alert for alert in session.reader.alerts() if alert.get("state") == "firing"]
        if not runs:
            _nothing_yet(session)
            return
        columns = [
            Column("run", t("column.run")),
            Column("state", t("column.state")),
            Column("progress", t("column.progress")),
            Column("loss", t("column.loss"), "right"),
            Column("speed", t("column.tokens_per_s"), "right"),
            Column("wrong", t("column.wrong")),
            Column("newest", t("column.newest"), "right"),
        ]
        now = session.now()
        rows = [
            _row(session, run, firing, now) for run in runs if holds(_text(session, run), sought)
        ]
        pressed = table(
            columns, rows, key="runs", caption=t("fleet.title"), empty=t("fleet.none_found")
        )
        if pressed is not None:
            go.to_run(session, pressed.id)


def _text(session: Session, run: Json) -> str:
    """Return that by which a run is found: its id, name, state in either language, and reason."""
    state = str(run["state"])
    told = [run["id"], run.get("name"), state, session.t.word("run.state", state)]
    return " ".join(str(each) for each in (*told, run.get("because")))


def _row(session: Session, run: Json, firing: Sequence[Json], now: datetime) -> Row:
    t, formats = session.t, session.formats
    state = str(run["state"])
    shown = states.look(states.RUN, state)
    since = instant(run.get("state_since") or run.get("ended_at"))
    newest = newest_point(run)
    step, target = run.get("step"), run.get("target_steps")
    mine = [alert for alert in firing if alert.get("run") == run["id"]]
    return Row(
        str(run["id"]),
        {
            "run": cell(
                str(run.get("name") or run["id"]),
                sub=str(run["id"]),
                href=session.link("run", run=str(run["id"])),
            ),
            "state": cell(
                t.word("run.state", state),
                icon=shown.icon,
                tone=shown.tone,
                sub="" if since is None else formats.ago(since, now),
            ),
            "progress": cell(
                f"{number(step or 0)} / {number(target)}", ratio=ratio_of(step, target)
            ),
            "loss": number(run.get("loss")),
            "speed": number(run.get("tokens_per_s"), 3),
            "wrong": wrong(session, run, mine),
            "newest": cell(formats.ago(newest, now)),
        },
    )


def wrong(session: Session, run: Json, firing: Sequence[Json]) -> Json | str:
    """Return what is wrong with a run now: firing alerts first, then why it is where it is."""
    because = str(run.get("because") or "")
    if run.get("unreadable"):
        return cell(str(run["unreadable"]), icon="▲", tone="bad", sub=because)
    if firing:
        rules = ", ".join(sorted({str(alert.get("rule")) for alert in firing}))
        return cell(session.t("fleet.firing", rules=rules), icon="▲", tone="bad", sub=because)
    if run["state"] in {"running", "succeeded"}:
        return cell(session.t("fleet.nothing_wrong"), tone="quiet")
    return because or NOTHING


def newest_point(run: Json) -> datetime | None:
    """Return when the newest step of a run was seen, as far as its ranks tell."""
    seen = [rank.get("last_seen_at") for rank in run.get("ranks") or []]
    told = [run.get("last_point_at"), *seen]
    return max((at for at in map(instant, told) if at is not None), default=None)


def _nothing_yet(session: Session) -> None:
    t = session.t
    section(t("fleet.empty"))
    st.text(t("fleet.empty.how"))
    st.code(COMMANDS, language="bash")
    if st.button(t("fleet.empty.submit"), type="primary"):
        go.to(session, "submit")
