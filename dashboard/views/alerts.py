"""Alerts and incidents: what fires now, and what was done about what fired before."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard import states
from dashboard.data import Json
from dashboard.formats import NOTHING, instant, number
from dashboard.session import Session
from dashboard.views import go
from dashboard.widgets.table import Cell, Column, Row, cell, table
from dashboard.widgets.text import section, title


def show(session: Session) -> None:
    """Show the alerts and incidents of all runs."""
    title(session.t("alerts.title"), small=session.t("alerts.lead"))
    session.live(lambda: _all(session), key="alerts", every_s=session.refresh_s)


def _all(session: Session) -> None:
    with session.guarded():
        lists(session, session.reader.alerts(), session.reader.incidents())


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
    ]
    pressed = table(
        [column for column in columns if not (of_run and column.key == "run")],
        [_alert_row(session, alert) for alert in alerts],
        key=f"alerts-table-{of_run}",
        caption=t("alerts.now"),
        empty=t("alerts.empty"),
    )
    if pressed is not None:
        runs = {_alert_id(alert): str(alert["run"]) for alert in alerts}
        go.to_run(session, runs[pressed.id])


def _alert_row(session: Session, alert: Json) -> Row:
    t = session.t
    shown = states.look(states.ALERT, str(alert.get("state")))
    severity = states.look(states.SEVERITY, str(alert.get("severity")))
    threshold = alert.get("threshold")
    return Row(
        _alert_id(alert),
        {
            "state": cell(
                t.word("alert.state", str(alert.get("state"))), icon=shown.icon, tone=shown.tone
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
        },
        faded=alert.get("state") == "resolved",
    )


def _incidents(session: Session, incidents: Sequence[Json], *, of_run: bool) -> None:
    t = session.t
    columns = [
        Column("state", t("column.state")),
        Column("because", t("column.because")),
        Column("run", t("column.run")),
        Column("actions", t("column.actions")),
        Column("opened", t("column.opened"), "right"),
        Column("mttr", t("column.mttr"), "right"),
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
            "actions": "\n".join(_taken(t_action) for t_action in incident.get("actions") or [])
            or NOTHING,
            "opened": session.formats.ago(instant(incident.get("opened_at")), session.now()),
            "mttr": session.formats.duration(incident.get("mttr_s")),
        },
        faded=state == "closed",
    )


def _taken(action: Json) -> str:
    rest = ", ".join(
        f"{key} {value}" for key, value in action.items() if key not in {"action", "at"} and value
    )
    return f"{action.get('action')}: {rest}" if rest else str(action.get("action"))


def _run_cell(session: Session, item: Json) -> Cell:
    run = str(item.get("run"))
    return cell(run, href=session.link("run", run=run))


def _alert_id(alert: Json) -> str:
    told = alert.get("id") or f"{alert.get('run')}/{alert.get('rule')}/{alert.get('scope')}"
    return f"{told}/{alert.get('since')}"
