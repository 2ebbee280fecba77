"""The page of one run: state and reasons, the buttons that steer it, live charts, and sections."""

from __future__ import annotations

from html import escape

import streamlit as st

from dashboard.data import Json
from dashboard.session import Session
from dashboard.views import (
    run_charts,
    run_checkpoints,
    run_dialogs,
    run_head,
    run_marks,
    run_sections,
    run_steering,
    run_stop,
)
from dashboard.widgets.addressed import segments
from dashboard.widgets.live import drawn_anew, live_html
from dashboard.widgets.text import banner
from trainmaster.errors import TrainmasterError

RECOVERY_CHECK_S = 3.0
SECTIONS = ("checkpoints", "pipeline", "events", "alerts", "ranks", "logs", "spec")


def show(session: Session) -> None:
    """Show the run that the address names."""
    t = session.t
    run_id = st.query_params.get("run")
    if not run_id:
        banner("info", t("run.none"), link=(session.link(""), t("nav.fleet")))
        return
    try:
        session.reader.look(run_id)
        run = session.reader.run(run_id)
    except TrainmasterError as error:
        _unreadable(session, run_id, error)
        return
    run_dialogs.open_asked(session, run_id)
    session.live(
        lambda: run_stop.waiting(session, run_id),
        key="stop-waiting",
        every_s=run_stop.every_s(session, run_id),
    )
    moving = _moves(session, run)
    live_html(run_head.summary_html(session, run), part="head", key=f"summary-{run_id}")
    session.live(lambda: _steering(session, run_id, moving=moving), key="head")
    live_html(run_head.asks_html(session, run), part="asks", key=f"asks-{run_id}")
    session.live(lambda: run_charts.show(session, run_id), key="charts")
    run_charts.offer(session, run_id)
    st.html(f'<div id="{run_head.BELOW}"></div>')
    section = segments(
        t("run.sections"),
        SECTIONS,
        name="section",
        words=lambda name: t(f"run.section.{name}"),
        hidden_label=True,
    )
    looks = moving and (section in run_marks.TIMED or run_checkpoints.waits(session))
    session.live(
        lambda: _below(session, run_id, section),
        key="below",
        every_s=session.refresh_s if looks else None,
    )


def _moves(session: Session, run: Json) -> bool:
    """Whether anything may still change, here or on the way from the run."""
    requests = session.reader.requests(str(run["id"]))
    return run_marks.moves(run, requests, session.now()) or run_checkpoints.waits(session)


def _steering(session: Session, run_id: str, *, moving: bool) -> None:
    with session.guarded():
        session.reader.look(run_id)
        run = session.reader.run(run_id)
        run_steering.others(session, run_id)
        run_steering.buttons(session, run)
        run_steering.asked(session, run)
        if moving != _moves(session, run):
            st.rerun()
    _watched(session, run_id, run_marks.HEAD)


def _below(session: Session, run_id: str, section: str) -> None:
    with session.guarded(quiet=True):
        session.reader.look(run_id)
        run_sections.show(session, run_id, section)
    if section in run_marks.MARKED:
        _watched(session, run_id, section)


def _watched(session: Session, run_id: str, part: str) -> None:
    mark = run_marks.mark(session, run_id, part)
    drawn_anew(mark, part=part, key=f"watch-{part}-{run_id}")


def _unreadable(session: Session, run_id: str, error: TrainmasterError) -> None:
    """Say why the run cannot be shown, and look again by itself where that can help."""
    session.refusal(error)
    if not error.retryable:
        st.html(
            f'<a href="{escape(session.link(""), quote=True)}" target="_self">'
            f"{escape(session.t('run.unknown'))}</a>"
        )
        return

    def look_again() -> None:
        try:
            session.reader.run(run_id)
        except TrainmasterError:
            return
        st.rerun()

    session.live(look_again, key="look-again", every_s=RECOVERY_CHECK_S)
