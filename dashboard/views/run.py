"""The page of one run: state and reasons, the buttons that steer it, live charts, and sections."""

from __future__ import annotations

from html import escape

import streamlit as st

from dashboard import states
from dashboard.coming import Coming, coming
from dashboard.data import Json
from dashboard.fleet import eta_s
from dashboard.formats import NOTHING, instant, number, ratio_of
from dashboard.session import Session
from dashboard.views import (
    run_charts,
    run_checkpoints,
    run_dialogs,
    run_sections,
    run_steering,
    run_stop,
)
from dashboard.views.fleet import newest_point
from dashboard.widgets.addressed import segments
from dashboard.widgets.text import banner, facts, title
from trainmaster.errors import TrainmasterError

STALE_AFTER_S = 30.0
RECOVERY_CHECK_S = 3.0
SETTLES_WITHIN_S = 15.0
BELOW = "below"
"""Names the place of the sections within the page."""
SECTIONS = ("checkpoints", "pipeline", "events", "alerts", "ranks", "logs", "spec")


def show(session: Session) -> None:
    """Show the run that the address names."""
    t = session.t
    run_id = st.query_params.get("run")
    if not run_id:
        banner("info", t("run.none"), link=(session.link(""), t("nav.fleet")))
        return
    try:
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
    every_s = session.refresh_s if moves(session, run) else None
    session.live(
        lambda: _head(session, run_id, moving=every_s is not None), key="head", every_s=every_s
    )
    session.live(lambda: run_charts.show(session, run_id), key="charts", every_s=every_s)
    run_charts.offer(session, run_id)
    st.html(f'<div id="{BELOW}"></div>')
    section = segments(
        t("run.sections"),
        SECTIONS,
        name="section",
        words=lambda name: t(f"run.section.{name}"),
        hidden_label=True,
    )
    session.live(lambda: run_sections.show(session, run_id, section), key="below", every_s=every_s)


def moves(session: Session, run: Json) -> bool:
    """Whether anything may still change: by itself, because of what was asked here, or because the
    last facts of a run that has just ended are still on their way.
    """
    asked = run_steering.desk(session, run["id"]).waits or run_checkpoints.waits(session)
    if run["state"] not in states.TERMINAL or asked:
        return True
    since = instant(run.get("state_since"))
    return since is not None and (session.now() - since).total_seconds() < SETTLES_WITHIN_S


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


def _head(session: Session, run_id: str, *, moving: bool) -> None:
    with session.guarded():
        run = session.reader.run(run_id)
        _summary(session, run)
        run_steering.others(session, run_id)
        run_steering.buttons(session, run)
        run_steering.asked(session, run)
        if moving != (session.refresh_s is not None and moves(session, run)):
            st.rerun()


def _summary(session: Session, run: Json) -> None:
    t, formats, now = session.t, session.formats, session.now()
    title(str(run.get("name") or run["id"]), small=str(run["id"]))
    because = str(run.get("because") or "")
    st.html(
        f'<div class="tm-head">{states.state_html(str(run["state"]), t)}'
        f"<span>{escape(because)}</span>"
        f'<a class="tm-jump" href="#{BELOW}">{escape(t("run.jump"))}</a></div>'
    )
    _next(session, run)
    firing = [
        alert for alert in session.reader.alerts(str(run["id"])) if alert.get("state") == "firing"
    ]
    if firing:
        names = sorted({str(alert.get("rule")) for alert in firing})
        banner("warn", t("fleet.firing", rules=", ".join(names)))
    step, target = run.get("step") or 0, run.get("target_steps")
    done = ratio_of(step, target)
    if done is not None:
        st.html(
            f'<progress class="tm-progress" max="1" value="{done:.4f}" '
            f'aria-label="{escape(t("column.progress"))}"></progress>'
        )
    facts(
        [
            (t("run.step"), f"{number(step)} / {number(target)}"),
            (t("column.loss"), number(run.get("loss"))),
            (t("column.grad_norm"), number(run.get("grad_norm"))),
            (t("column.tokens_per_s"), number(run.get("tokens_per_s"), 3)),
            (t("run.generation"), number(run.get("generation"))),
            (t("run.skipped_steps"), number(run.get("skipped_steps") or 0)),
            (t("run.eta"), _remaining(session, run)),
            (t("run.newest"), freshness(session, run)),
            (t("run.started"), formats.clock(instant(run.get("started_at")), now)),
        ]
    )


def _next(session: Session, run: Json) -> None:
    """Say what happens next without a person."""
    reader = session.reader
    nodes = reader.nodes() if run["state"] == "unreachable" else []
    told = coming(run, reader.incidents(str(run["id"])), nodes)
    if told:
        lines = " ".join(escape(_sentence(session, each)) for each in told)
        st.html(f'<p class="tm-next"><b>{escape(session.t("next.title"))}</b> {lines}</p>')


def _sentence(session: Session, each: Coming) -> str:
    t, formats = session.t, session.formats
    words = dict(each.words)
    if "then" in words:
        words["then"] = t.word("incident.then", words["then"])
    return t(
        f"next.{each.kind}",
        **words,
        step=number(each.step),
        at=formats.clock(instant(each.at), session.now()),
        time=formats.duration(each.seconds),
    )


def freshness(session: Session, run: Json) -> str:
    """Return how old the newest point is, and whether that is as it should be."""
    newest = newest_point(run)
    if newest is None:
        return NOTHING
    age_s = (session.now() - newest).total_seconds()
    told = session.formats.duration(age_s)
    if run["state"] in states.SILENT:
        return told
    return f"{told} · {session.t('run.stale' if age_s > STALE_AFTER_S else 'run.live')}"


def _remaining(session: Session, run: Json) -> str:
    left = eta_s(run, session.now())
    return NOTHING if left is None else session.formats.duration(left)
