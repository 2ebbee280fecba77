"""A spec as a form: the values that most runs set. What a form does not show stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st
from pydantic import BaseModel

from dashboard.forms import Field, at, changed, fields_of
from dashboard.session import Session
from dashboard.views.fields import choose, grid
from trainmaster.plan import ParallelAsk
from trainmaster.schedules import KNOWN
from trainmaster.spec import (
    CheckpointSpec,
    DataSpec,
    OptimizerSpec,
    PlacementSpec,
    RunSpec,
    TrainSpec,
)

Document = dict[str, Any]
WAYS = ("auto", "even")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GROUPS: tuple[tuple[str, type[BaseModel], tuple[str, ...]], ...] = (
    ("", RunSpec, ("name", "workload", "priority")),
    ("data", DataSpec, ("source",)),
    ("train", TrainSpec, ("steps", "global_batch", "precision", "seed")),
    ("train.optimizer", OptimizerSpec, ("name", "lr", "warmup_steps", "decay", "grad_clip")),
)
PARALLEL = ("replicas", "stages", "micro_batch", "zero", "tensor", "recompute")
_KIND_OF: Mapping[type, Any] = {bool: "flag", int: "integer", float: "number", str: "text"}


def form(session: Session, document: Document, *, key: str) -> Document:
    """Show a spec as fields, and return it as they have it."""
    t = session.t
    for prefix, model, names in GROUPS:
        st.caption(t.word("spec.group", prefix or "run"))
        found = fields_of(model, *names)
        paths = [f"{prefix}.{each.name}" if prefix else each.name for each in found]
        document = grid(session, document, [*zip(paths, found, strict=True)], key=key)
        if prefix == "data":
            document = _params(session, document, key)
    document = _parallel(session, document, key)
    st.caption(t.word("spec.group", "keeping"))
    rest = [
        *(("checkpoint", each) for each in fields_of(CheckpointSpec, "every_steps", "keep_last")),
        *(("placement", each) for each in fields_of(PlacementSpec, "nodes")),
    ]
    return grid(
        session, document, [(f"{where}.{each.name}", each) for where, each in rest], key=key
    )


def _params(session: Session, document: Document, key: str) -> Document:
    """Show the workload's own params, as far as they are plain values."""
    params = document.get("params")
    if not isinstance(params, dict):
        return document
    plain = [
        (f"params.{name}", Field(name, _KIND_OF[type(value)]))
        for name, value in params.items()
        if type(value) in _KIND_OF and "." not in name
    ]
    return grid(session, document, plain, key=key)


def _parallel(session: Session, document: Document, key: str) -> Document:
    t = session.t
    st.caption(t.word("spec.group", "parallel"))
    stands = document.get("parallel", "auto")
    own = isinstance(stands, dict)
    if own and any(stands.get(name) for name in ("pipelines", "layers", "shares")):
        st.text(t("spec.form.ragged"))
        return document
    way = choose(
        session, t("spec.form.parallel"), WAYS, "even" if own else "auto", f"{key}:parallel"
    )
    if way == "auto":
        return document if not own else changed(document, "parallel", "auto")
    if not own:
        document = changed(document, "parallel", {"replicas": 1, "stages": 1})
    fields = [(f"parallel.{each.name}", each) for each in fields_of(ParallelAsk, *PARALLEL)]
    schedule = Field("schedule", "choice", tuple(KNOWN), optional=True, default="1f1b")
    document = grid(session, document, [*fields, ("parallel.schedule", schedule)], key=key)
    return document if at(document, "parallel") is not None else changed(document, "parallel", {})
