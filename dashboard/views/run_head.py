"""The head of a run's page as HTML: what it is, how far, what comes next, and what became of what
was asked. It is looked at again and again, so it is text that the browser exchanges.
"""

from __future__ import annotations

from html import escape

from dashboard import states
from dashboard.coming import Coming, coming
from dashboard.data import Json
from dashboard.fleet import eta_s, newest_point
from dashboard.formats import NOTHING, instant, number, ratio_of
from dashboard.session import Session
from dashboard.steering import (
    applied_step,
    attempt_of_restore,
    first_new_step,
    is_final,
    progress,
    ranks_past,
    ranks_told,
    shown_as,
)
from dashboard.widgets.text import banner_html, facts_html, title_html

STALE_AFTER_S = 30.0
BELOW = "below"
"""Names the place of the sections within the page."""
_MOST_ASKS = 4


def summary_html(session: Session, run: Json) -> str:
    """Return what the run is, its state and reason, what comes next, and its newest numbers."""
    t, formats, now = session.t, session.formats, session.now()
    parts = [
        title_html(str(run.get("name") or run["id"]), small=str(run["id"])),
        (
            f'<div class="tm-head">{states.state_html(str(run["state"]), t)}'
            f"<span>{escape(str(run.get('because') or ''))}</span>"
            f'<a class="tm-jump" href="#{BELOW}">{escape(t("run.jump"))}</a></div>'
        ),
        _next_html(session, run),
    ]
    firing = [
        alert for alert in session.reader.alerts(str(run["id"])) if alert.get("state") == "firing"
    ]
    if firing:
        names = sorted({str(alert.get("rule")) for alert in firing})
        parts.append(banner_html("warn", t("fleet.firing", rules=", ".join(names))))
    step, target = run.get("step") or 0, run.get("target_steps")
    done = ratio_of(step, target)
    if done is not None:
        parts.append(
            f'<progress class="tm-progress" max="1" value="{done:.4f}" '
            f'aria-label="{escape(t("column.progress"))}"></progress>'
        )
    parts.append(
        facts_html(
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
    )
    return "".join(parts)


def _next_html(session: Session, run: Json) -> str:
    """Say what happens next without a person."""
    reader = session.reader
    nodes = reader.nodes() if run["state"] == "unreachable" else []
    told = coming(run, reader.incidents(str(run["id"])), nodes)
    if not told:
        return ""
    lines = " ".join(escape(_sentence(session, each)) for each in told)
    return f'<p class="tm-next"><b>{escape(session.t("next.title"))}</b> {lines}</p>'


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


def asks_html(session: Session, run: Json) -> str:
    """Return the newest requests of anyone: sent, received, applied at a step, or refused and
    why.
    """
    requests = session.reader.requests(str(run["id"]))[:_MOST_ASKS]
    lines = "".join(f"<li>{_line(session, request, run)}</li>" for request in requests)
    return f'<ul class="tm-asks" aria-live="polite">{lines}</ul>' if lines else ""


def _line(session: Session, request: Json, run: Json) -> str:
    t = session.t
    reached = progress(request)
    last = "refused" if "refused" in reached else "applied"
    stations = []
    for station in ("sent", "received", last):
        if station == "received" and last == "refused":
            continue
        css = "todo" if station not in reached else "refused" if station == "refused" else "done"
        mark = {"todo": "○", "done": "✔", "refused": "✖"}[css]
        stations.append(
            f'<li class="{css}">{mark} {escape(_station(session, station, request, run))}</li>'
        )
    if request.get("kind") == "restore" and last != "refused":
        stations.append(_first_step(session, request, run))
    arrow = '<li aria-hidden="true">→</li>'
    state = escape(str(request.get("state")))
    name = escape(t.word("steer", shown_as(request)))
    by = escape(
        t(
            "steer.by",
            actor=request.get("actor") or "?",
            ago=session.formats.ago(instant(request.get("created_at")), session.now()),
        )
    )
    return (
        f'<span data-request-state="{state}"><b>{name}</b> {by}</span>'
        f"<ol>{arrow.join(stations)}</ol>"
    )


def _first_step(session: Session, request: Json, run: Json) -> str:
    """Return the last station of a restore: that training goes on."""
    t, attempt = session.t, attempt_of_restore(request, run)
    step = None if attempt is None else first_new_step(attempt)
    if step is None:
        return f'<li class="todo">○ {escape(t("steer.first_step"))}</li>'
    return f'<li class="done">✔ {escape(t("steer.first_step_at", step=step))}</li>'


def _station(session: Session, station: str, request: Json, run: Json) -> str:
    t = session.t
    count = ranks_told(request, run)
    if station == "refused":
        order = request.get("order") or {}
        return t("steer.refused", because=request.get("because") or order.get("because") or "")
    step = applied_step(request)
    if station == "applied" and step is not None and is_final(request):
        told = t("steer.applied_at", step=step)
        if count is None:
            return told
        return f"{told} {t('steer.applied_by', ranks=ranks_past(request, run), count=count)}"
    if station == "received" and station in progress(request) and count is not None:
        return t("steer.received_by", count=count)
    return t(f"steer.{station}")
