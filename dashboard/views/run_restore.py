"""Restoring a checkpoint: what is lost, what differs, on which layout, and what the budgets say."""

from __future__ import annotations

from urllib.parse import quote

import streamlit as st

from dashboard import states
from dashboard.data import Json
from dashboard.formats import number
from dashboard.forms import as_text
from dashboard.plans import fewer_replicas, layout_of, layout_read
from dashboard.session import Session
from dashboard.steering import verb
from dashboard.views import plan_answer, run_steering
from dashboard.views.written import Sheet, write
from dashboard.widgets.text import banner
from trainmaster.errors import TrainmasterError

LAYOUTS = ("now", "fewer", "own")
BUDGETS = ("restarts", "rollbacks")


def ask(session: Session, run: Json, checkpoint: str) -> None:
    """Ask once, in a dialog, with what would be lost and what would differ."""
    t, run_id = session.t, str(run["id"])
    run_steering.others(session, run_id)
    st.text(t("restore.what", name=run.get("name") or run_id, checkpoint=checkpoint))
    left, right = st.columns(2)
    skip = left.number_input(
        t("restore.skip_steps"),
        min_value=0,
        max_value=1_000_000,
        value=0,
        step=1,
        key="restore-skip",
        help=t("restore.skip_steps.help"),
    )
    factor = right.number_input(
        t("restore.lr_factor"),
        min_value=0.01,
        max_value=10.0,
        value=1.0,
        step=0.1,
        key="restore-factor",
        help=t("restore.lr_factor.help"),
    )
    args: Json = {"checkpoint": checkpoint}
    if skip:
        args["skip_steps"] = int(skip)
    if factor != 1.0:
        args["lr_factor"] = float(factor)
    layout, is_whole = _layout(session, run)
    if layout is not None:
        args["plan"] = layout
    possible = is_whole and _preview(session, run, args)
    why = st.text_input(t("dialog.why"), key="restore-why")
    told = verb("restore", str(run["state"]), session.role)
    if told.reason:
        banner("warn", t(told.reason, state=t.word("run.state", str(run["state"]))))
    if st.button(
        t("restore.do"), type="primary", key="restore-do", disabled=not (possible and told.enabled)
    ):
        run_steering.send(session, run, "restore", args, why or "")
        st.rerun()


def _preview(session: Session, run: Json, args: Json) -> bool:
    """Tell what would be lost and what would differ; return whether it can be done."""
    t = session.t
    path = f"/v1/runs/{quote(str(run['id']), safe='')}/restore-preview"
    try:
        preview: Json = session.api.post(path, args)
    except TrainmasterError as error:
        session.refusal(error)
        return False
    state = str(preview.get("checkpoint_state"))
    shown = states.look(states.CHECKPOINT, state)
    st.text(f"{t('restore.state')}: {shown.icon} {t.word('checkpoint.state', state)}")
    st.text(lost_steps(session, preview))
    st.text(t("restore.differs"))
    st.text("\n".join(f"• {line}" for line in preview.get("differs") or [t("restore.same")]))
    _budgets(session, preview.get("budgets") or {})
    for warning in preview.get("warnings") or []:
        banner("warn", str(warning))
    if preview.get("refused"):
        banner("bad", str(preview["refused"]))
    return not preview.get("refused")


def _budgets(session: Session, budgets: Json) -> None:
    told = [
        session.t(f"restore.budget.{name}", **budgets[name]) for name in BUDGETS if name in budgets
    ]
    if told:
        st.text(f"{' '.join(told)} {session.t('restore.budget.anew')}")


def _layout(session: Session, run: Json) -> tuple[Json | None, bool]:
    """Let a layout be chosen; return it, None for the present one, and whether it can be read."""
    t, plan = session.t, run.get("plan")
    if not plan or not plan.get("pipelines"):
        return None, True
    most = len(plan["pipelines"])
    way = st.segmented_control(
        t("restore.layout"),
        LAYOUTS if most > 1 else (LAYOUTS[0], LAYOUTS[-1]),
        default=LAYOUTS[0],
        required=True,
        format_func=lambda name: t(f"restore.layout.{name}"),
        key="restore-layout",
    )
    layout: Json | None = None
    if way == "fewer":
        replicas = st.number_input(
            t("restore.replicas"), 1, most - 1, most - 1, key="restore-replicas"
        )
        layout = fewer_replicas(plan, int(replicas))
    elif way == "own":
        key, begins = f"restore-layout:{run['id']}", as_text(layout_of(plan))
        sheet = Sheet(key, t("restore.layout.own"), begins, layout_read, "rules.problems", rows=8)
        layout = write(session, sheet).meaning
        if layout is None:
            return None, False
    if layout is not None:
        _prediction(session, run, layout)
    return layout, True


def _prediction(session: Session, run: Json, layout: Json) -> None:
    """Show what the planner expects of a layout on the connected nodes, once it is asked."""
    t, place = session.t, f"restore:{run['id']}"
    body = {"spec": {**run["spec"], "parallel": layout}}
    if st.button(t("restore.predict"), key="restore-predict", help=t("restore.predict.help")):
        plan_answer.ask(session, place, body)
    found = plan_answer.answered(session, place, body)
    if found is None:
        return
    plan_answer.prediction(session, found)
    now_s = (run["plan"].get("predicted") or {}).get("step_time_s")
    if now_s is not None:
        st.text(t("restore.predicted_now", seconds=f"{now_s:.4g}"))
    for warning in found.get("warnings") or []:
        banner("warn", str(warning))


def lost_steps(session: Session, preview: Json) -> str:
    """Say which steps the preview says are lost."""
    count = int(preview.get("steps_lost") or 0)
    if not count:
        return session.t("restore.nothing_lost")
    last = int(preview["current_step"])
    return session.t(
        "restore.lost",
        first=number(last - count + 1),
        last=number(last),
        count=number(count),
        time=session.formats.duration(preview.get("seconds_lost")),
    )
