"""The dashboard's server: `streamlit run dashboard/app.py`, or `python -m dashboard`.

Beside Streamlit's own pages it serves login and logout, and Plotly's script from the installed
package, so that nothing is fetched from elsewhere.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

# Streamlit puts this file's folder first on the path, where `settings` or `session` would stand in
# the way of other people's modules. What is meant is always the package `dashboard`.
_HERE = Path(__file__).resolve().parent
sys.path[:] = [
    str(_HERE.parent),
    *(entry for entry in sys.path if entry and Path(entry).resolve() != _HERE),
]

from starlette.middleware import Middleware  # noqa: E402
from streamlit.starlette import App  # noqa: E402

from dashboard import live, login, logs, scrapes  # noqa: E402
from dashboard.process import address, recorded  # noqa: E402
from dashboard.settings import read_settings  # noqa: E402

log = logging.getLogger("dashboard")


@asynccontextmanager
async def _lifespan(_: App) -> AsyncIterator[dict[str, Any]]:
    settings = read_settings()
    logs.begin(settings.log_format)
    with recorded(settings):
        log.info("listening at %s, reads %s", address(), settings.url)
        yield {}


app = App(
    _HERE / "page.py",
    routes=[*login.routes(), *live.routes(), *scrapes.routes()],
    middleware=[Middleware(login.RequireLogin)],
    lifespan=_lifespan,
)
