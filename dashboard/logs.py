"""Logs of the dashboard: its own lines, Streamlit's and those of the server, in the form that the
settings ask for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from urllib.parse import parse_qs

from streamlit.runtime.scriptrunner import get_script_run_ctx

from trainmaster import logs

Address = Callable[[], str | None]


def begin(log_format: str) -> None:
    """Have this process log to stderr.

    Streamlit and its server bring handlers of their own, some of them with modules that are
    imported only when they are needed; in JSON those write as all others do.
    """
    logs.begin(log_format)
    # It would tell of every question to the control plane.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if log_format != "json":
        return
    logging.setLoggerClass(_Adopted)
    for name in ("root", *logging.root.manager.loggerDict):
        logger = logging.root if name == "root" else logging.getLogger(name)
        for handler in logger.handlers:
            adopt(handler)


def adopt(handler: logging.Handler) -> None:
    """Have `handler` write JSON lines that say of which run the page is."""
    handler.setFormatter(logs.JsonLines())
    handler.addFilter(OfPage())


class OfPage(logging.Filter):
    """Lets every line pass, and where it came about while the page of a run was drawn, says of
    which.

    Args:
        address: the query of the page that this thread draws; None in other threads.
    """

    def __init__(self, address: Address | None = None) -> None:
        super().__init__()
        self._address = address or _drawn_here

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the run to `record`."""
        asked = parse_qs(self._address() or "").get("run")
        if asked and not hasattr(record, "run"):
            record.run = asked[0]
        return True


def _drawn_here() -> str | None:
    context = get_script_run_ctx(suppress_warning=True)
    return None if context is None else context.query_string


class _Adopted(logging.Logger):
    def addHandler(self, hdlr: logging.Handler) -> None:  # noqa: N802 - the name is logging's
        adopt(hdlr)
        super().addHandler(hdlr)
