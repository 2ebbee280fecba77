"""A rule as a form: what it looks at, when it is bad, and its ladder of actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import streamlit as st
from pydantic import BaseModel

from dashboard.forms import Field, at, changed, fields_of
from dashboard.session import Session
from dashboard.views.fields import ask, choose, grid, put
from dashboard.widgets.text import banner
from trainmaster import actions, conditions
from trainmaster.metrics import BY_NAME, DERIVED
from trainmaster.rule import For, Rule

Document = dict[str, Any]


def _by_name(models: Any, key: str) -> Mapping[str, type[BaseModel]]:
    return {get_args(each.model_fields[key].annotation)[0]: each for each in get_args(models)}


CONDITIONS = {
    name: model
    for name, model in _by_name(conditions.Leaf, "condition").items()
    if name != "custom"
}
"""Those that a form can show: what a third party's takes is known to it alone."""

ACTIONS = _by_name(actions.PlainAction, "action")
NEEDED: Mapping[str, Document] = {
    "above": {"value": 1.0},
    "below": {"value": 1.0},
    "ratio_to_median": {"above": 3.0},
    "robust_z": {"above": 6.0},
    "level_change": {"rise": 0.2},
    "spread_over_replicas": {"above": 0.1},
    "age": {"above_s": 60.0},
}
"""What a condition is begun with where it cannot go without."""

MOST_RUNGS = 6
HEAD = ("name", "scope", "severity", "mode", "max_actions", "cooldown_s")
REST = ("warmup_steps", "settle_steps", "patience_steps", "widens")


def form(session: Session, document: Document, *, key: str) -> Document:
    """Show a rule as fields, and return it as they have it."""
    t = session.t
    described = next(iter(fields_of(Rule, "description")))
    head = fields_of(Rule, *HEAD)
    document = grid(session, document, [(each.name, each) for each in head], key=key)
    document = _condition(session, document, key)
    length = fields_of(For)
    document = grid(session, document, [(f"for.{each.name}", each) for each in length], key=key)
    rest = fields_of(Rule, *REST)
    document = grid(session, document, [(each.name, each) for each in rest], key=key)
    document = _ladder(session, document, key)
    told = ask(session, described, document.get("description"), key, "description")
    if document.get("unless") is not None:
        st.caption(t("rules.form.unless"))
    return put(document, "description", described, told)


def _condition(session: Session, document: Document, key: str) -> Document:
    t = session.t
    left, right = st.columns(2)
    with left:
        metrics = sorted({*BY_NAME, *DERIVED})
        metric = choose(
            session, t("field.metric"), metrics, document.get("metric"), f"{key}:metric"
        )
    document = put(document, "metric", Field("metric", "text"), metric)
    stands = at(document, "when.condition")
    with right:
        name = choose(session, t("field.condition"), [*CONDITIONS], stands, f"{key}:when.condition")
    if name != stands:
        document = changed(document, "when", {"condition": name, **NEEDED.get(str(name), {})})
    model = CONDITIONS.get(str(name))
    if model is None:
        banner("info", t("rules.form.nested"))
        return document
    own = [each for each in fields_of(model) if each.name not in {"condition", "metric"}]
    return grid(
        session, document, [(f"when.{each.name}", each) for each in own], key=f"{key}:{name}"
    )


def _ladder(session: Session, document: Document, key: str) -> Document:
    t = session.t
    rungs = document.get("actions")
    rungs = [each for each in rungs if isinstance(each, dict)] if isinstance(rungs, list) else []
    st.caption(t("rules.form.ladder"))
    kept: list[Document] = []
    for place in range(min(len(rungs) + 1, MOST_RUNGS)):
        rung = rungs[place] if place < len(rungs) else {}
        stands = rung.get("action")
        choices = [None, *ACTIONS]
        name = choose(
            session,
            t("rules.form.rung", place=place + 1),
            choices,
            stands,
            f"{key}:actions.{place}",
        )
        if name is None:
            continue
        rung = rung if name == stands else {"action": name}
        model = ACTIONS.get(str(name))
        if model is not None:
            own = [(each.name, each) for each in fields_of(model) if each.name != "action"]
            rung = grid(session, rung, own, key=f"{key}:actions.{place}.{name}")
        kept.append(rung)
    return document if kept == rungs else changed(document, "actions", kept)
