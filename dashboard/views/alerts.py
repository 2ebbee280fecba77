"""Alerts and incidents: what fires now, and what was done about what fired before."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from dashboard import states
from dashboard.data import Json
from dashboard.formats import NOTHING, instant, number
from dashboard.session import Session
from dashboard.stories import details
from dashboard.views import go, incident_dialogs
from dashboard.widgets.table import Cell, Column, Row, action, actions, cell, table
from dashboard.widgets.text import section, title

LEVELS = ("firing", "pending", "resolved")


def show(session: Session) -> None:
    """Show the alerts and incidents of all runs."""
    title(session.t("alerts.title"), small=session.t("alerts.lead"))
    wanted = go.dialog_asked() or _linked()
    if wanted is not None:
        incident_dialogs.open_asked(session, wanted)
    session.live(lambda: _all(session), key="alerts", every_s=session.refresh_s)


def _all(session: Session) -> None:
    t = session.t
    with session.guarded():
        alerts = session.reader.alerts()
        counts = {state: sum(each.get("state") == state for each in alerts) for state in LEVELS}
        shown = st.segmented_control(
            t("alerts.level"),
            ["all", *LEVELS],
            default="all",
            required=True,
            format_func=lambda name: (
                t("alerts.all", count=len(alerts))
                if name == "all"
                else f"{t.word('alert.state', name)} ({counts[name]})"
            ),
            key="alerts-level",
            label_visibility="collapsed",
        )
        wanted = [each for each in alerts if shown in {"all", each.get("state")}]
        lists(session, wanted, session.reader.incidents())
        _silences(session, session.reader.silences())


def _linked() -> dict[str, str] | None:
    """Return the incident that the address names, once."""
    incident = st.query_params.pop("incident", None)
    return None if incident is None else {"kind": "incident", "about": "", "detail": str(incident)}


def lists(
    session: Session, alerts: Sequence[Json], incidents: Sequence[Json], *, of_run: bool = False
) -> None:
    """Show alerts and then incidents; within the page of a run their run is not named again."""
    section(session.t("alerts.now"))
    _alerts(session, alerts, of_run=of_run)
    section(session.t("incidents.title"))
    _incidents(session, incidents, of_run=of_run)


def _alerts(session: Session, alerts: Sequence[Json], *, of_run: bool) -> None:
    t = session.t
    columns = [
        Column("state", t("column.state")),
        Column("rule", t("column.rule")),
        Column("run", t("column.run")),
        Column("value", t("column.value"), "right"),
        Column("step", t("column.first_bad_step"), "right"),
        Column("since", t("column.since"), "right"),
        Column("do", t("column.do")),
    ]
    pressed = table(
        [column for column in columns if not (of_run and column.key == "run")],
        [_alert_row(session, alert) for alert in alerts],
        key=f"alerts-table-{of_run}",
        caption=t("alerts.now"),
        empty=t("alerts.empty"),
    )
    if pressed is not None:
        found = {_alert_id(alert): alert for alert in alerts}[pressed.id]
        if pressed.verb == "silence":
            go.to_dialog("silence", str(found["run"]), str(found["rule"]))
        if found.get("run"):
            go.to_run(session, str(found["run"]))


def _alert_row(session: Session, alert: Json) -> Row:
    t = session.t
    shown = states.look(states.ALERT, str(alert.get("state")))
    severity = states.look(states.SEVERITY, str(alert.get("severity")))
    marks = {"flapping": t("alerts.flapping"), "silenced": t("alerts.silenced")}
    threshold = alert.get("threshold")
    return Row(
        _alert_id(alert),
        {
            "state": cell(
                t.word("alert.state", str(alert.get("state"))),
                icon=shown.icon,
                tone=shown.tone,
                sub=" · ".join(text for mark, text in marks.items() if alert.get(mark)),
            ),
            "rule": cell(
                str(alert.get("rule")),
                sub=f"{severity.icon} {t.word('severity', str(alert.get('severity')))} · "
                f"{alert.get('scope')}",
            ),
            "run": _run_cell(session, alert),
            "value": cell(
                number(alert.get("value")),
                sub="" if threshold is None else t("alerts.threshold", value=number(threshold)),
            ),
            "step": number(alert.get("first_bad_step")),
            "since": session.formats.ago(instant(alert.get("since")), session.now()),
            "do": _alert_actions(session, alert),
        },
        faded=alert.get("state") == "resolved",
    )


def _alert_actions(session: Session, alert: Json) -> Cell:
    if alert.get("state") not in {"pending", "firing"} or alert.get("source") == "external":
        return None
    viewer = session.role == "viewer"
    why = session.t("steer.why.viewer") if viewer else ""
    return actions(action("silence", session.t("alerts.silence"), disabled=viewer, title=why))


def _incidents(session: Session, incidents: Sequence[Json], *, of_run: bool) -> None:
    t = session.t
    columns = [
        Column("state", t("column.state")),
        Column("because", t("column.because")),
        Column("run", t("column.run")),
        Column("actions", t("column.actions")),
        Column("opened", t("column.opened"), "right"),
        Column("mttr", t("column.mttr"), "right"),
        Column("do", t("column.do")),
    ]
    pressed = table(
        [column for column in columns if not (of_run and column.key == "run")],
        [_incident_row(session, incident) for incident in incidents],
        key=f"incidents-table-{of_run}",
        caption=t("incidents.title"),
        empty=t("incidents.empty"),
    )
    if pressed is not None:
        runs = {str(incident["id"]): str(incident["run"]) for incident in incidents}
        if pressed.verb == "story":
            go.to_dialog("incident", runs[pressed.id], pressed.id)
        go.to_run(session, runs[pressed.id])


def _incident_row(session: Session, incident: Json) -> Row:
    t = session.t
    state = str(incident.get("state"))
    shown = states.look(states.INCIDENT, state)
    closed_as = incident.get("closed_as")
    return Row(
        str(incident["id"]),
        {
            "state": cell(
                t.word("incident.state", state),
                icon=shown.icon,
                tone=shown.tone,
                sub="" if closed_as is None else t.word("incident.closed_as", str(closed_as)),
            ),
            "because": cell(str(incident.get("because") or NOTHING), sub=str(incident["id"])),
            "run": _run_cell(session, incident),
            "actions": "\n".join(_taken(each) for each in incident.get("actions") or []) or NOTHING,
            "opened": session.formats.ago(instant(incident.get("opened_at")), session.now()),
            "mttr": session.formats.duration(incident.get("mttr_s")),
            "do": actions(
                action(
                    "story", t("incident.answer" if incident.get("proposed") else "incident.open")
                )
            ),
        },
        faded=state == "closed",
    )


def _taken(taken: Json) -> str:
    rest = details(taken)
    return f"{taken.get('action')}: {rest}" if rest else str(taken.get("action"))


def _silences(session: Session, silences: Sequence[Json]) -> None:
    t = session.t
    section(t("silences.title"))
    session.tell_refused("silences")
    pressed = table(
        [
            Column("rule", t("column.rule")),
            Column("run", t("column.run")),
            Column("until", t("column.until"), "right"),
            Column("because", t("column.because")),
            Column("actor", t("column.actor")),
            Column("do", t("column.do")),
        ],
        [_silence_row(session, each) for each in silences],
        key="silences-table",
        caption=t("silences.title"),
        empty=t("silences.empty"),
    )
    if pressed is not None:
        session.act("silences", lambda: session.api.delete(f"/v1/silences/{pressed.id}"))
        st.rerun(scope="fragment")


def _silence_row(session: Session, silence: Json) -> Row:
    t, formats, now = session.t, session.formats, session.now()
    begins = instant(silence.get("begins_at"))
    later = begins is not None and begins > now
    where = [str(silence[name]) for name in ("run", "node") if silence.get(name)]
    return Row(
        str(silence["id"]),
        {
            "rule": str(silence.get("rule") or t("silences.all_rules")),
            "run": ", ".join(where) or t("silences.everywhere"),
            "until": cell(
                formats.clock(instant(silence.get("ends_at")), now),
                sub=t("silences.from", at=formats.clock(begins, now)) if later else "",
            ),
            "because": str(silence.get("why") or ""),
            "actor": str(silence.get("created_by") or ""),
            "do": actions(
                action("end", t("silences.end"), disabled=session.role == "viewer"),
            ),
        },
    )


def _run_cell(session: Session, item: Json) -> Cell:
    run = str(item.get("run") or "")
    if not run:
        return NOTHING
    return cell(run, href=session.link("run", run=run))


def _alert_id(alert: Json) -> str:
    told = alert.get("id") or f"{alert.get('run')}/{alert.get('rule')}/{alert.get('scope')}"
    return f"{told}/{alert.get('since')}"
