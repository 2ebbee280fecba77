"""The first page: all runs, and what is wrong now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import streamlit as st

from dashboard import states
from dashboard.data import Json
from dashboard.fleet import (
    GROUPS,
    MOST_SHOWN,
    ORDERS,
    Group,
    Order,
    chosen,
    count_told,
    eta_s,
    newest_point,
    ordered,
    tags_of,
    wrong_since,
)
from dashboard.formats import NOTHING, instant, number, ratio_of
from dashboard.session import Session
from dashboard.views import fleet_dialogs, go, nothing_yet, run_charts
from dashboard.widgets.addressed import segments, selection
from dashboard.widgets.table import Column, Row, action, actions, cell, pressed, table
from dashboard.widgets.text import title

TABLE = "runs"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What of the fleet is to be shown, and how."""

    sought: str
    group: Group | None
    tags: tuple[str, ...]
    order: Order
    archived: bool


def show(session: Session) -> None:
    """Show the runs; a fresh installation shows what to do next."""
    title(session.t("fleet.title"), small=session.t("fleet.lead"))
    fleet_dialogs.open_asked(session)
    asked = _asked(session)
    session.live(lambda: _runs(session, asked), key="fleet", every_s=session.refresh_s)


def _asked(session: Session) -> _Asked:
    t = session.t
    with st.container(horizontal=True, vertical_alignment="bottom", key="fleet-filters"):
        sought = st.text_input(
            t("fleet.sought"), key="q", bind="query-params", live="300ms", width=280
        )
        group = segments(
            t("fleet.group"),
            ["all", *GROUPS],
            name="group",
            words=lambda name: t(f"fleet.group.{name}"),
        )
        order = selection(
            t("fleet.order"), ORDERS, name="order", words=lambda name: t(f"fleet.order.{name}")
        )
        archived = st.toggle(t("fleet.archived"), key="archived", bind="query-params")
    known = session.memory.get("tags") or []
    tags: list[str] = []
    if known:
        tags = st.pills(t("fleet.tags"), known, selection_mode="multi", key="fleet-tags") or []
    return _Asked(
        sought=sought or "",
        group=None if group == "all" else group,  # type: ignore[arg-type]
        tags=tuple(tags),
        order=order,  # type: ignore[arg-type]
        archived=archived,
    )


def _runs(session: Session, asked: _Asked) -> None:
    t, now = session.t, session.now()
    click = pressed(TABLE)
    if click is not None and click.verb == "open":
        go.to_run(session, click.id)
    if click is not None:
        go.to_dialog("shelf", "fleet", click.id)
    with session.guarded():
        runs = session.reader.fleet(archived=asked.archived)
        firing = _firing(session)
        if not runs and not asked.archived:
            nothing_yet.show(session)
            return
        _learn_tags(session, runs)
        some = chosen(
            runs,
            firing,
            group=asked.group,
            tags=asked.tags,
            sought=asked.sought,
            text=lambda run: _text(session, run),
        )
        columns = [
            Column("run", t("column.run")),
            Column("state", t("column.state")),
            Column("progress", t("column.progress")),
            Column("loss", t("column.loss"), "right"),
            Column("speed", t("column.tokens_per_s"), "right"),
            Column("goodput", t("compare.goodput"), "right"),
            Column("wrong", t("column.wrong")),
            Column("newest", t("column.newest"), "right"),
            Column("do", ""),
        ]
        shown = ordered(some, firing, asked.order, now)[:MOST_SHOWN]
        rows = [_row(session, run, firing.get(str(run["id"]), ()), now) for run in shown]
        st.caption(
            t(
                f"fleet.count.{count_told(len(shown), len(some), len(runs))}",
                shown=len(shown),
                found=len(some),
                all=len(runs),
            )
        )
        table(
            columns,
            rows,
            key=TABLE,
            caption=t("fleet.title"),
            empty=t("fleet.none_found"),
            ahead=run_charts.address(session, ""),
        )


def _firing(session: Session) -> Mapping[str, Sequence[Json]]:
    found: defaultdict[str, list[Json]] = defaultdict(list)
    for alert in session.reader.alerts():
        if alert.get("state") == "firing":
            found[str(alert.get("run"))].append(alert)
    return found


def _learn_tags(session: Session, runs: Sequence[Json]) -> None:
    """Offer the tags that there are; the page is drawn anew where there are others than before."""
    tags = tags_of(runs)
    if tags != (session.memory.get("tags") or []):
        session.memory["tags"] = tags
        st.rerun()


def _text(session: Session, run: Json) -> str:
    """Return that by which a run is found: id, name, tags, state in either language, and reason."""
    state = str(run["state"])
    told = [run["id"], run.get("name"), state, session.t.word("run.state", state)]
    return " ".join(str(each) for each in (*told, *(run.get("tags") or ()), run.get("because")))


def _row(session: Session, run: Json, firing: Sequence[Json], now: datetime) -> Row:
    t, formats = session.t, session.formats
    state = str(run["state"])
    shown = states.look(states.RUN, state)
    since = instant(run.get("state_since") or run.get("ended_at"))
    newest = newest_point(run)
    step, target = run.get("step"), run.get("target_steps")
    left = eta_s(run, now)
    ratio = run.get("productive_ratio")
    named = " ".join(f"#{tag}" for tag in run.get("tags") or ())
    may = session.role != "viewer"
    return Row(
        str(run["id"]),
        {
            "run": cell(
                str(run.get("name") or run["id"]),
                sub=f"{run['id']}\n{named}" if named else str(run["id"]),
                href=session.link("run", run=str(run["id"])),
            ),
            "state": cell(
                t.word("run.state", state),
                icon=shown.icon,
                tone=shown.tone,
                sub="" if since is None else formats.ago(since, now),
            ),
            "progress": cell(
                f"{number(step or 0)} / {number(target)}",
                ratio=ratio_of(step, target),
                sub="" if left is None else t("fleet.eta", left=formats.duration(left)),
            ),
            "loss": cell(number(run.get("loss")), curve=_curve(run)),
            "speed": number(run.get("tokens_per_s"), 3),
            "goodput": NOTHING if ratio is None else f"{float(ratio):.0%}",
            "wrong": wrong(session, run, firing, now),
            "newest": cell(formats.ago(newest, now)),
            "do": actions(action("shelf", t("fleet.shelf"), disabled=not may, icon="⋯")),
        },
        faded=run.get("archived_at") is not None,
    )


def _curve(run: Json) -> list[float]:
    return [float(value) for _, value in run.get("loss_curve") or []]


def wrong(session: Session, run: Json, firing: Sequence[Json], now: datetime) -> Json | str:
    """Return what is wrong with a run now, and since when: firing alerts first, then why it is
    where it is.
    """
    because = str(run.get("because") or "")
    since = wrong_since(run, firing)
    told = "" if since is None else session.t("fleet.since", duration=_age(session, since, now))
    if run.get("unreadable"):
        return cell(str(run["unreadable"]), icon="▲", tone="bad", sub=because)
    if firing:
        rules = ", ".join(sorted({str(alert.get("rule")) for alert in firing}))
        named = session.t("fleet.firing", rules=rules)
        return cell(named, icon="▲", tone="bad", sub="\n".join(filter(None, (told, because))))
    if run["state"] in {"running", "succeeded"}:
        return cell(session.t("fleet.nothing_wrong"), tone="quiet")
    return cell(because or NOTHING, sub=told)


def _age(session: Session, since: datetime, now: datetime) -> str:
    return session.formats.duration((now - since).total_seconds())
