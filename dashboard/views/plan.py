"""What if: the planner asked about a spec or a scenario, with its prediction and its reasons."""

from __future__ import annotations

from typing import Any

import streamlit as st

from dashboard.plans import cluster_of
from dashboard.session import Session
from dashboard.views import plan_answer, submit
from dashboard.views.written import Sheet, write
from dashboard.widgets.text import title
from trainmaster.document import read
from trainmaster.errors import Problem, SpecError, TrainmasterError

SOURCES = ("connected", "cluster", "scenario")
CLUSTER = """nodes:
  - {name: fast, slots: 2}
  - {name: slow, slots: 2, emulate: {speed: 0.5}}
links:
  - {from: fast, to: slow, latency_ms: 2, mbps: 1000}
  - {from: slow, to: fast, latency_ms: 2, mbps: 1000}
"""


def show(session: Session) -> None:
    """Show the question, and below it the newest answer."""
    t = session.t
    title(t("plan.title"), small=t("plan.lead"))
    source = str(
        st.segmented_control(
            t("plan.source"),
            SOURCES,
            default="cluster",
            required=True,
            format_func=lambda name: t(f"plan.source.{name}"),
            key="plan-source",
        )
    )
    body = _question(session, source)
    if st.button(t("plan.do"), type="primary", key="plan-do", disabled=body is None):
        assert body is not None, "the button is enabled only with a question"
        plan_answer.ask(session, "plan", body)
    spec = str((body or {}).get("spec") or "")
    taken = plan_answer.show(session, "plan", spec=spec, may_take=source != "scenario")
    if taken is not None:
        submit.bring(session, taken)


def _question(session: Session, source: str) -> dict[str, Any] | None:
    """Return what the planner is to be asked; None while something is wrong with it."""
    t = session.t
    if source == "scenario":
        scenario = write(
            session,
            Sheet("plan-scenario", t("plan.scenario"), "", _mapping, "rules.problems", rows=16),
        )
        return None if scenario.meaning is None else {"scenario": scenario.meaning}
    spec = write(session, submit.sheet(session, "plan-spec", submit.planned()))
    if source == "connected":
        return None if spec.meaning is None else {"spec": spec.text}
    begins = session.memory.get("plan-cluster", CLUSTER)
    if st.button(t("plan.fetch"), key="plan-fetch", help=t("plan.fetch.help")):
        try:
            begins = session.memory["plan-cluster"] = cluster_of(session.reader.nodes())
        except TrainmasterError as error:
            session.refusal(error)
    cluster = write(
        session,
        Sheet("plan-cluster", t("plan.cluster"), begins, _mapping, "rules.problems", rows=8),
    )
    if spec.meaning is None or cluster.meaning is None:
        return None
    return {"spec": spec.text, "cluster": cluster.meaning}


def _mapping(text: str) -> dict[str, Any]:
    found = read(text)
    if not isinstance(found.value, dict):
        raise SpecError([Problem("", "must be a mapping of keys to values", found.line(()))])
    return found.value
