"""Login, logout and the scripts that pages need: plain HTTP beside Streamlit's pages.

The browser holds the person's session token in a cookie that no script can read. The dashboard has
no rights of its own: every read and every request goes out with that token.
"""

from __future__ import annotations

import gzip
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import plotly
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dashboard.i18n import LANGUAGES, Translator, best_language, translator
from dashboard.process import listening_port
from dashboard.settings import read_settings
from trainmaster.client import Client
from trainmaster.errors import TrainmasterError, UserError

PLOTLY_PATH = f"/assets/plotly-{plotly.__version__}.min.js"
_OPEN_PATHS = ("/auth/", "/assets/", "/metrics", "/_stcore/", "/static/", "/media/", "/component/")
_LONGEST_SECRET = 4096
_DAY_S = 86400


def cookie_name() -> str:
    """Return the cookie's name. Browsers share cookies among ports, so the port is part of it."""
    return f"trainmaster_{listening_port()}"


def routes() -> list[BaseRoute]:
    """Return the routes that stand beside Streamlit's own."""
    return [
        Route("/auth/login", _login_page, methods=["GET"]),
        Route("/auth/login", _login_form, methods=["POST"]),
        Route("/auth/logout", _logout, methods=["GET", "POST"]),
        Route(PLOTLY_PATH, _plotly, methods=["GET"]),
    ]


class RequireLogin:
    """Sends whoever opens a page without a session to the login, and back to that page after it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            request = Request(scope)
            path = request.url.path
            wants_page = "text/html" in request.headers.get("accept", "")
            if (
                wants_page
                and not path.startswith(_OPEN_PATHS)
                and cookie_name() not in request.cookies
            ):
                target = f"{path}?{request.url.query}" if request.url.query else path
                login = f"/auth/login?next={quote(target, safe='')}"
                await RedirectResponse(login, status_code=303)(scope, receive, send)
                return
        await self.app(scope, receive, send)


async def _login_page(request: Request) -> Response:
    code = request.query_params.get("code")
    target = local_path(request.query_params.get("next"))
    t = _translator(request)
    if not code:
        message = t("login.expired") if "expired" in request.query_params else ""
        return _page(t, target, message)
    return await _enter(request, t, code, target)


async def _login_form(request: Request) -> Response:
    fields = parse_qs((await request.body())[: 4 * _LONGEST_SECRET].decode(errors="replace"))
    target = local_path(fields.get("next", [None])[0])
    t = _translator(request)
    secret = fields.get("secret", [""])[0].strip()
    if not secret:
        return _page(t, target, t("login.empty"), status=400)
    return await _enter(request, t, secret, target)


async def _enter(request: Request, t: Translator, secret: str, target: str) -> Response:
    try:
        login = await run_in_threadpool(exchange, read_settings().url, secret)
    except UserError:
        return _page(t, target, t("login.refused"), status=401)
    except TrainmasterError as error:
        return _page(t, target, f"{t('login.unavailable')} {error.message}", status=503)
    response = RedirectResponse(target, status_code=303)
    response.set_cookie(
        cookie_name(),
        login["token"],
        max_age=lifetime_s(login.get("expires_at"), datetime.now(UTC)),
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    response.headers["Cache-Control"] = "no-store"
    return response


async def _logout(request: Request) -> Response:
    token = request.cookies.get(cookie_name())
    if token:
        await run_in_threadpool(_end_session, read_settings().url, token)
    response = RedirectResponse("/auth/login", status_code=303)
    response.delete_cookie(cookie_name(), httponly=True, samesite="lax")
    return response


def exchange(url: str, secret: str) -> dict[str, Any]:
    """Return {token, role, expires_at} for a one-time code, or for a token that may read.

    Raises:
        UserError: it is neither, or a token without the right to read runs.
        UnavailableError: the control plane is out of reach.
    """
    if len(secret) > _LONGEST_SECRET:
        raise UserError("longer than any code or token", code="bad_token")
    with Client(url) as client:
        try:
            login: dict[str, Any] = client.post("/v1/logins", {"code": secret})
            return login
        except UserError:
            pass  # not a code: perhaps a token
    with Client(url, secret) as client:
        client.get("/v1/runs", limit=1)
    return {"token": secret, "role": None, "expires_at": None}


def _end_session(url: str, token: str) -> None:
    """Have the control plane forget a session; whatever it says, the browser forgets it too."""
    with suppress(TrainmasterError), Client(url, token) as client:
        client.delete("/v1/logins/current")


def local_path(target: str | None) -> str:
    """Return `target` if it is a page of this dashboard, else the first page."""
    if not target or not target.startswith("/") or target.startswith(("//", "/auth/")):
        return "/"
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or "\\" in target or not target.isprintable():
        return "/"
    return target


def lifetime_s(expires_at: str | None, now: datetime) -> int:
    """Return for how many seconds the browser is to keep a session that ends at `expires_at`."""
    if expires_at is None:
        return 7 * _DAY_S
    return max(0, int((datetime.fromisoformat(expires_at) - now).total_seconds()))


def _translator(request: Request) -> Translator:
    asked = request.query_params.get("lang") or request.headers.get("accept-language", "")
    return translator(best_language(asked))


def _page(t: Translator, target: str, message: str, *, status: int = 200) -> HTMLResponse:
    words = {
        key: escape(t(f"login.{key}"))
        for key in ("title", "lead", "secret", "enter", "how", "command")
    }
    others = " · ".join(
        f'<a href="?lang={code}&amp;next={quote(target, safe="")}" lang="{code}">{escape(name)}</a>'
        for code, name in LANGUAGES.items()
        if code != t.language
    )
    body = _template().substitute(
        words,
        language=t.language,
        others=others,
        target=escape(target, quote=True),
        message=f'<p class="bad" role="alert">{escape(message)}</p>' if message else "",
    )
    headers = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(body, status_code=status, headers=headers)


@cache
def _template() -> Template:
    return Template((files("dashboard") / "login.html").read_text(encoding="utf-8"))


def _plotly(request: Request) -> Response:
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable",
        "Vary": "Accept-Encoding",
    }
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(_plotly_script(), media_type="text/javascript", headers=headers)
    headers["Content-Encoding"] = "gzip"
    return Response(_plotly_gzip(), media_type="text/javascript", headers=headers)


def _plotly_script() -> bytes:
    return (files("plotly") / "package_data" / "plotly.min.js").read_bytes()


@cache
def _plotly_gzip() -> bytes:
    return gzip.compress(_plotly_script(), compresslevel=6)
