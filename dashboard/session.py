"""One viewer's session: who asks, in which language and zone, how often, through which reader."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from dashboard.data import Fetch, Query, Reader
from dashboard.formats import Formats
from dashboard.i18n import LANGUAGES, Translator, best_language, translator
from dashboard.login import cookie_name
from dashboard.places import PLACES, Place
from dashboard.settings import read_settings
from dashboard.shared import Shared
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
_READS: Final = Shared[Any](holds_s=1.0, most=2000)
"""What all pages of one person have read within a second."""
_ROLES: Final = Shared[str | None](holds_s=60.0, most=64)
REFRESH_S = {"off": None, "2": 2.0, "5": 5.0}


@dataclass(frozen=True)
class Session:
    """Everything a view needs that is not in the API's answers.

    Attributes:
        patient_api: for what the control plane answers only after it has asked a node.
        refresh_s: how often live parts look again; None for never.
        role: of the token; None if the control plane does not tell.
        memory: outlives page views.
        who: whose session it is, as what is kept for them is named.
    """

    api: Client
    patient_api: Client
    reader: Reader
    t: Translator
    formats: Formats
    refresh_s: float | None = 2.0
    role: str | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    who: str = ""

    def now(self) -> datetime:
        """Return the present instant."""
        return datetime.now(UTC)

    def link(self, page: str, **query: str) -> str:
        """Return the address of a page of the dashboard, in the reader's language."""
        told = {**query, "lang": self.t.language}
        return f"/{page}?{urlencode(told)}"

    def forget_reads(self) -> None:
        """Read anew what was read a moment ago: something has just been changed from here."""
        _READS.clear()
        self.reader.forget()
        PLACES.forget(self.who)

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
    who = _who(token)
    client = _client(read_settings().url, token, TIMEOUT_S)

    fetch = _fetching(who, client)
    return _session(
        token,
        t,
        _zone(st.context.timezone),
        reader=Reader(fetch, st.session_state.setdefault("remembered", {})),
        refresh_s=REFRESH_S[st.session_state.get("refresh") or "2"],
        role=_role(who, client),
        memory=st.session_state.setdefault("memory", {}),
    )


def looking_session(token: str, language: str, zone: str, run: str) -> tuple[Session, Place]:
    """Return the session in which a browser looks at a run by itself, and the place that keeps
    what is known of the run; the session remembers nothing else.
    """
    who = _who(token)
    place = PLACES.of(who, run)
    fetch = _fetching(who, _client(read_settings().url, token, TIMEOUT_S))
    reader = Reader(fetch, place.memory.setdefault("remembered", {}), look_holds_s=math.inf)
    t = translator(best_language(language))
    return _session(token, t, _zone(zone), reader=reader, memory=place.memory), place


def _fetching(who: str, client: Client) -> Fetch:
    def fetch(path: str, query: Query, body: str) -> Any:
        return _READS.get((who, path, query, body), lambda: _read(path, query, body, client))

    return fetch


def _session(
    token: str,
    t: Translator,
    zone: tzinfo,
    *,
    reader: Reader,
    memory: dict[str, Any],
    refresh_s: float | None = None,
    role: str | None = None,
) -> Session:
    url = read_settings().url
    return Session(
        api=_client(url, token, TIMEOUT_S),
        patient_api=_client(url, token, PATIENCE_S),
        reader=reader,
        t=t,
        formats=Formats(t, zone),
        refresh_s=refresh_s,
        role=role,
        memory=memory,
        who=_who(token),
    )


def _who(token: str) -> str:
    return sha256(token.encode()).hexdigest()


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


def _zone(name: str | None) -> tzinfo:
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        return UTC


@lru_cache(maxsize=64)
def _client(url: str, token: str, timeout_s: float) -> Client:
    return Client(url, token, timeout_s=timeout_s)


def _read(path: str, query: Query, body: str, client: Client) -> Any:
    with VITALS.read():
        if body:
            return client.post(path, json.loads(body))
        return client.get(path, **dict(query))


def _role(who: str, client: Client) -> str | None:
    def ask() -> str | None:
        answer = client.get("/v1/logins/current")
        return None if answer is None else answer.get("role")

    try:
        return _ROLES.get(who, ask)
    except TrainmasterError:
        return None
