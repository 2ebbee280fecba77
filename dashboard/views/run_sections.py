"""What lies below the charts of a run: one section at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import streamlit as st
import yaml

from dashboard.data import MOST_EVENTS, Json
from dashboard.digests import digests, environment_told
from dashboard.formats import NOTHING, instant, number
from dashboard.session import Session
from dashboard.views import alerts, run_checkpoints, run_logs, run_pipeline
from dashboard.widgets.table import Column, Row, cell, table
from dashboard.widgets.text import section

_MOST_DETAILS = 6
_LONGEST_DETAIL = 60
_TOLD_BY_EACH = frozenset(
    {"rank_started", "rank_ready", "rank_finished", "rank_exited", "order_received", "chore_done"}
)
"""Events that come once for each rank, or of which another event says what came of them."""


def show(session: Session, run_id: str, name: str) -> None:
    """Show the section `name` of a run."""
    _SECTIONS[name](session, session.reader.run(run_id))


def _events(session: Session, run: Json) -> None:
    t, now = session.t, session.now()
    with st.container(horizontal=True, vertical_alignment="center"):
        everything = st.toggle(t("events.all"), key="events-all")
        most = MOST_EVENTS * 5 if st.toggle(t("events.more"), key="events-more") else MOST_EVENTS
    columns = [
        Column("at", t("column.time"), "right"),
        Column("kind", t("column.what")),
        Column("because", t("column.because")),
        Column("generation", t("column.generation"), "right"),
        Column("actor", t("column.actor")),
    ]
    rows = [
        Row(
            str(event["id"]),
            {
                "at": session.formats.clock(instant(event.get("at")), now),
                "kind": t.word("event", str(event.get("kind"))),
                "because": str(event.get("because") or "") or details(event.get("data") or {}),
                "generation": number(event.get("generation")),
                "actor": str(event.get("actor") or ""),
            },
        )
        for event in session.reader.events(str(run["id"]), most=most)
        if everything or event.get("kind") not in _TOLD_BY_EACH
    ]
    table(
        columns,
        rows,
        key=f"events-{run['id']}",
        caption=t("run.section.events"),
        empty=t("events.empty"),
    )


def details(data: Json) -> str:
    """Return the short values of an event that gives no reason as `key value · ...`."""
    short = {
        key: number(value) if isinstance(value, float) else str(value)
        for key, value in data.items()
        if isinstance(value, (str, int, float)) and "/" not in str(value)
    }
    told = [f"{key} {value}" for key, value in short.items() if len(value) <= _LONGEST_DETAIL]
    return " · ".join(told[:_MOST_DETAILS])


def _alerts(session: Session, run: Json) -> None:
    run_id = str(run["id"])
    alerts.lists(
        session, session.reader.alerts(run_id), session.reader.incidents(run_id), of_run=True
    )


def _ranks(session: Session, run: Json) -> None:
    t = session.t
    columns = [
        Column("rank", t("column.rank"), "right"),
        Column("node", t("column.node")),
        Column("place", t("column.place")),
        Column("state", t("column.state")),
        Column("step", t("column.step"), "right"),
        Column("seen", t("column.seen"), "right"),
        Column("pid", t("column.pid"), "right"),
        Column("exit", t("column.exit_code"), "right"),
    ]
    rows = [
        Row(
            str(rank["rank"]),
            {
                "rank": str(rank["rank"]),
                "node": str(rank.get("node") or NOTHING),
                "place": t("ranks.place", replica=rank.get("replica"), stage=rank.get("stage")),
                "state": t.word("rank.state", str(rank.get("state"))),
                "step": number(rank.get("last_step")),
                "seen": session.formats.ago(instant(rank.get("last_seen_at")), session.now()),
                "pid": str(rank.get("pid") or NOTHING),
                "exit": NOTHING if rank.get("exit_code") is None else str(rank["exit_code"]),
            },
        )
        for rank in run.get("ranks") or []
    ]
    table(
        columns,
        rows,
        key=f"ranks-{run['id']}",
        caption=t("run.section.ranks"),
        empty=t("ranks.empty"),
    )


def _spec(session: Session, run: Json) -> None:
    t = session.t
    section(t("made.title"))
    table(
        [Column("part", t("made.part")), Column("digest", "SHA-256")],
        [
            Row(
                part,
                {
                    "part": cell(
                        t(f"made.{part}"),
                        sub=environment_told(run) if part == "environment" else "",
                    ),
                    "digest": cell(digest, code=True),
                },
            )
            for part, digest in digests(run).items()
        ],
        key=f"made-{run['id']}",
        caption=t("made.title"),
        empty=t("made.empty"),
    )
    for name in ("spec", "plan"):
        if run.get(name):
            st.text(t(f"run.{name}"))
            st.code(yaml.safe_dump(run[name], sort_keys=False, allow_unicode=True), "yaml")


_SECTIONS: Mapping[str, Callable[[Session, Json], None]] = {
    "checkpoints": run_checkpoints.show,
    "events": _events,
    "alerts": _alerts,
    "pipeline": run_pipeline.show,
    "ranks": _ranks,
    "logs": run_logs.show,
    "spec": _spec,
}
