"""One viewer's session: who asks, in which language and zone, how often, through which reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from dashboard.data import Query, Reader
from dashboard.formats import Formats
from dashboard.i18n import LANGUAGES, Translator, best_language, translator
from dashboard.login import cookie_name
from dashboard.settings import read_settings
from dashboard.vitals import VITALS
from dashboard.widgets.text import banner
from trainmaster.client import Client
from trainmaster.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    TrainmasterError,
    UnauthenticatedError,
    UnavailableError,
)

TIMEOUT_S = 4.0
PATIENCE_S = 90.0
REFRESH_S = {"off": None, "2": 2.0, "5": 5.0}


@dataclass(frozen=True)
class Session:
    """Everything a view needs that is not in the API's answers.

    Attributes:
        patient_api: for what the control plane answers only after it has asked a node.
        refresh_s: how often live parts look again; None for never.
        role: of the token; None if the control plane does not tell.
        memory: outlives page views.
    """

    api: Client
    patient_api: Client
    reader: Reader
    t: Translator
    formats: Formats
    refresh_s: float | None = 2.0
    role: str | None = None
    memory: dict[str, Any] = field(default_factory=dict)

    def now(self) -> datetime:
        """Return the present instant."""
        return datetime.now(UTC)

    def link(self, page: str, **query: str) -> str:
        """Return the address of a page of the dashboard, in the reader's language."""
        told = {**query, "lang": self.t.language}
        return f"/{page}?{urlencode(told)}"

    def forget_reads(self) -> None:
        """Read anew what was read a moment ago: something has just been changed from here."""
        _shared.clear()

    def act(self, where: str, call: Callable[[], Any]) -> bool:
        """Do what a person asked for; return whether it was done.

        A refusal is told at `where` (see `tell_refused`) until something else is done there.
        """
        self.memory.pop(f"refused:{where}", None)
        try:
            call()
        except TrainmasterError as error:
            self.memory[f"refused:{where}"] = error
            return False
        self.forget_reads()
        return True

    def tell_refused(self, where: str) -> None:
        """Say why the last thing that was asked for at `where` was refused, if it was."""
        error = self.memory.get(f"refused:{where}")
        if error is not None:
            self.refusal(error)

    def live(self, body: Callable[[], None], *, key: str, every_s: float | None = None) -> None:
        """Show `body`, again and again every `every_s` seconds (None: once)."""
        st.fragment(body, run_every=every_s, key=key)()

    @contextmanager
    def guarded(self, *, quiet: bool = False) -> Iterator[None]:
        """Turn refusals and outages into sentences on top of what the block shows.

        A `quiet` block leaves it to another one to tell of an outage.
        """
        slot = st.container()
        told: TrainmasterError | None = None
        self.reader.outage = None
        try:
            yield
        except TrainmasterError as error:
            told = error
        with slot:
            if told is not None and not isinstance(told, UnavailableError):
                self.refusal(told)
            elif not quiet and (told is not None or self.reader.outage is not None):
                banner("bad", self.t("api.down", url=self.api.url))

    def refusal(self, error: TrainmasterError) -> None:
        """Say why something was refused, and what can be done."""
        if isinstance(error, UnauthenticatedError):
            banner("warn", self.t("session.ended"), link=(login_link(), self.t("session.login")))
        elif isinstance(error, UnavailableError):
            banner("bad", self.t("api.down", url=self.api.url))
        elif isinstance(error, ForbiddenError):
            banner("bad", f"{self.t('refused.forbidden')} {error.message}")
        elif isinstance(error, ConflictError):
            banner("warn", f"{self.t('refused.conflict')} {error.message}")
        elif isinstance(error, NotFoundError):
            banner("bad", f"{self.t('refused.not_found')} {error.message}")
        else:
            banner("bad", error.message)


def open_session() -> Session | None:
    """Return the viewer's session, or None after having asked them to log in."""
    t = translator(_language())
    token = st.context.cookies.get(cookie_name())
    if not token:
        banner("warn", t("session.none"), link=(login_link(), t("session.login")))
        return None
    url = read_settings().url
    client = _client(url, token, TIMEOUT_S)
    who = sha256(token.encode()).hexdigest()

    def fetch(path: str, query: Query, body: str) -> Any:
        return _shared(who, path, query, body, client)

    return Session(
        api=client,
        patient_api=_client(url, token, PATIENCE_S),
        reader=Reader(fetch, st.session_state.setdefault("remembered", {})),
        t=t,
        formats=Formats(t, _zone()),
        refresh_s=REFRESH_S[st.session_state.get("refresh") or "2"],
        role=_role(who, client),
        memory=st.session_state.setdefault("memory", {}),
    )


def login_link() -> str:
    """Return where to log in, coming back to this page."""
    page = st.context.url or "/"
    path = "/" + page.split("://", 1)[-1].partition("/")[2]
    query = urlencode(dict(st.query_params))
    target = f"{path}?{query}" if query and "?" not in path else path
    return f"/auth/login?expired=1&next={quote(target, safe='')}"


def _language() -> str:
    asked = st.query_params.get("lang") or st.session_state.get("language")
    if asked in LANGUAGES:
        language = str(asked)
    else:
        language = best_language(st.context.locale or "")
    st.session_state["language"] = language
    return language


def _zone() -> tzinfo:
    try:
        return ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        return UTC


@st.cache_resource(max_entries=64, ttl=3600, show_spinner=False)
def _client(url: str, token: str, timeout_s: float) -> Client:
    return Client(url, token, timeout_s=timeout_s)


@st.cache_data(ttl=1.0, max_entries=2000, show_spinner=False)
def _shared(who: str, path: str, query: Query, body: str, _client: Client) -> Any:
    """Read once a second for all pages of one person."""
    with VITALS.read():
        if body:
            return _client.post(path, json.loads(body))
        return _client.get(path, **dict(query))


@st.cache_data(ttl=60.0, max_entries=64, show_spinner=False)
def _role_of(who: str, _client: Client) -> str | None:
    answer = _client.get("/v1/logins/current")
    return None if answer is None else answer.get("role")


def _role(who: str, client: Client) -> str | None:
    try:
        return _role_of(who, client)
    except TrainmasterError:
        return None
