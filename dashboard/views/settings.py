"""What may be set here: who may enter, and through which channels people are told."""

from __future__ import annotations

from urllib.parse import quote

import streamlit as st

from dashboard.data import Json
from dashboard.formats import NOTHING, instant
from dashboard.session import Session
from dashboard.widgets.table import Column, Row, action, actions, cell, table
from dashboard.widgets.text import banner, section, title
from trainmaster.errors import TrainmasterError

ROLES = ("viewer", "operator", "admin", "agent")
KEPT = ("samples_exact_days", "samples_days", "scrub_days")
LIVES_S = {"1d": 86_400.0, "30d": 30 * 86_400.0, "1y": 365 * 86_400.0, "never": None}


def show(session: Session) -> None:
    """Show channels, and to an admin the tokens."""
    t = session.t
    title(t("settings.title"), small=t("settings.lead"))
    section(t("settings.channels"))
    with session.guarded():
        _channels(session)
    section(t("settings.retention"))
    with session.guarded(quiet=True):
        _retention(session)
    section(t("settings.roles"))
    st.text("\n".join(f"{t(f'role.{name}')}: {t(f'settings.roles.{name}')}" for name in ROLES))
    st.caption(t("settings.language"))
    section(t("settings.tokens"))
    if session.role != "admin":
        st.text(t("settings.tokens.admin"))
        return
    with session.guarded(quiet=True):
        _tokens(session)
    _new_token(session)


def _channels(session: Session) -> None:
    t = session.t
    session.tell_refused("channels")
    sent = session.memory.pop("channel-sent", None)
    if sent is not None:
        banner("good", t("settings.sent", name=sent))
    pressed = table(
        [
            Column("name", t("column.channel")),
            Column("kind", t("column.kind")),
            Column("severity", t("column.least_severity")),
            Column("do", t("column.do")),
        ],
        [
            Row(
                str(each["name"]),
                {
                    "name": cell(
                        str(each["name"]), sub=t("settings.default") if each.get("default") else ""
                    ),
                    "kind": str(each.get("kind")),
                    "severity": t.word("severity", str(each.get("least_severity"))),
                    "do": actions(
                        action("test", t("settings.test"), disabled=session.role == "viewer")
                    ),
                },
            )
            for each in session.reader.channels()
        ],
        key="channels-table",
        caption=t("settings.channels"),
        empty=t("settings.channels.none"),
    )
    if pressed is not None:
        path = f"/v1/channels/{quote(pressed.id, safe='')}/test"
        if session.act("channels", lambda: session.patient_api.post(path, {})):
            session.memory["channel-sent"] = pressed.id
        st.rerun()


def _retention(session: Session) -> None:
    """Show what the control plane keeps for how long, and where that is set."""
    t = session.t
    kept: Json = session.reader.get("/v1/about").get("retention") or {}
    rows = []
    for name in KEPT:
        days = kept.get(name)
        without_end = t(f"settings.zero.{name}") if days == 0 else NOTHING
        rows.append(
            Row(
                name,
                {
                    "what": t(f"settings.kept.{name}"),
                    "days": t("settings.days", days=days) if days else without_end,
                    "set": cell(f"TRAINMASTER_{name.upper()}", code=True),
                },
            )
        )
    table(
        [
            Column("what", t("column.kept")),
            Column("days", t("column.for_long"), "right"),
            Column("set", t("column.set_by")),
        ],
        rows,
        key="retention-table",
        caption=t("settings.retention"),
        empty="",
    )
    st.caption(t("settings.retention.checkpoints"))


def _tokens(session: Session) -> None:
    t, now = session.t, session.now()
    session.tell_refused("tokens")
    pressed = table(
        [
            Column("id", t("column.token")),
            Column("role", t("column.role")),
            Column("node", t("column.node")),
            Column("ends", t("column.until"), "right"),
            Column("do", t("column.do")),
        ],
        [
            Row(
                str(each["id"]),
                {
                    "id": cell(str(each.get("name") or each["id"]), sub=str(each["id"])),
                    "role": t.word("role", str(each.get("role"))),
                    "node": str(each.get("node") or NOTHING),
                    "ends": session.formats.clock(instant(each.get("expires_at")), now),
                    "do": actions(action("revoke", t("settings.revoke"))),
                },
                faded=bool(each.get("revoked_at")),
            )
            for each in reversed(session.reader.tokens())
            if not each.get("revoked_at")
        ],
        key="tokens-table",
        caption=t("settings.tokens"),
        empty="",
    )
    if pressed is not None:
        path = f"/v1/tokens/{quote(pressed.id, safe='')}"
        session.act("tokens", lambda: session.api.delete(path))
        st.rerun()


def _new_token(session: Session) -> None:
    """Make a token; it is shown once, and kept nowhere."""
    t = session.t
    with st.form("new-token"):
        role = st.selectbox(
            t("column.role"), ROLES, format_func=lambda name: t.word("role", name), key="token-role"
        )
        name = st.text_input(t("settings.token.name"), key="token-name") or ""
        life = st.selectbox(
            t("settings.token.life"),
            list(LIVES_S),
            index=1,
            format_func=lambda each: t(f"settings.life.{each}"),
            key="token-life",
        )
        pressed = st.form_submit_button(t("settings.token.do"))
    if not pressed:
        return
    body: Json = {"role": role, "expires_in_s": LIVES_S[str(life)]}
    if name.strip():
        body["node" if role == "agent" else "name"] = name.strip()
    try:
        made: Json = session.api.post("/v1/tokens", body)
    except TrainmasterError as error:
        session.refusal(error)
        return
    session.forget_reads()
    banner("good", t("settings.token.once"))
    st.code(str(made["token"]), language=None)
