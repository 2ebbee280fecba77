"""What stands around each page: its title, the navigation, and the reader's own settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files

import streamlit as st

from dashboard.i18n import LANGUAGES
from dashboard.session import REFRESH_S, Session, open_session
from dashboard.views import (
    alerts,
    audit,
    compare,
    fleet,
    nodes,
    plan,
    rules,
    run,
    settings,
    submit,
    tour,
)
from dashboard.widgets.charts import load_ahead
from trainmaster.errors import UserError

_VIEWS: tuple[tuple[str, str, str, Callable[[Session], None]], ...] = (
    ("", "nav.fleet", ":material/list:", fleet.show),
    ("submit", "nav.submit", ":material/add_circle:", submit.show),
    ("alerts", "nav.alerts", ":material/notifications:", alerts.show),
    ("nodes", "nav.nodes", ":material/dns:", nodes.show),
    ("rules", "nav.rules", ":material/rule:", rules.show),
    ("compare", "nav.compare", ":material/compare_arrows:", compare.show),
    ("plan", "nav.plan", ":material/schema:", plan.show),
    ("audit", "nav.audit", ":material/history:", audit.show),
    ("settings", "nav.settings", ":material/settings:", settings.show),
    ("run", "nav.run", ":material/monitoring:", run.show),
)


def show() -> None:
    """Show the page that the address names."""
    st.set_page_config(page_title="Trainmaster", page_icon=_icon(), layout="wide")
    st.html(f"<style>{_style()}</style>")
    try:
        session = open_session()
    except UserError as error:
        st.text(error.message)
        return
    if session is None:
        return
    pages = _pages(session)
    page = st.navigation(list(pages.values()), position="sidebar")
    wanted = st.session_state.pop("go", None)
    if wanted is not None:
        st.switch_page(pages[wanted[0]], query_params=wanted[1])
    _sidebar(session)
    page.run()


def _pages(session: Session) -> dict[str, st.Page]:
    return {
        path: st.Page(
            _bound(view, session),
            title=session.t(title),
            icon=icon,
            url_path=path or None,
            default=not path,
            visibility="hidden" if path == "run" else "visible",
        )
        for path, title, icon, view in _VIEWS
    }


def _bound(view: Callable[[Session], None], session: Session) -> Callable[[], None]:
    def page() -> None:
        view(session)

    return page


def _sidebar(session: Session) -> None:
    t = session.t
    with st.sidebar:
        st.selectbox(
            t("sidebar.language"),
            list(LANGUAGES),
            index=list(LANGUAGES).index(t.language),
            format_func=LANGUAGES.__getitem__,
            key="language-choice",
            on_change=_change_language,
        )
        st.segmented_control(
            t("sidebar.refresh"),
            list(REFRESH_S),
            default="2",
            required=True,
            format_func=lambda choice: t(f"sidebar.refresh.{choice}"),
            key="refresh",
        )
        tour.button(session)
        role = t("sidebar.role", role=t(f"role.{session.role}")) if session.role else ""
        st.caption(role)
        load_ahead(key="ahead")
        st.html(f'<a href="/auth/logout" target="_self">{t("sidebar.logout")}</a>')


def _change_language() -> None:
    language = st.session_state["language-choice"]
    st.session_state["language"] = language
    st.query_params["lang"] = language


@cache
def _style() -> str:
    return (files("dashboard.widgets") / "page.css").read_text(encoding="utf-8")


@cache
def _icon() -> str:
    return (files("dashboard.widgets") / "icon.svg").read_text(encoding="utf-8")
