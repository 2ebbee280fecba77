"""The dashboard's record among the processes of its state directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from streamlit import config

from dashboard.settings import Settings
from trainmaster.home import Home

NAME = "dashboard"


def listening_port() -> int:
    """The port that this server has bound."""
    return int(config.get_option("server.port"))


def address() -> str:
    """Where this server listens, as its record has it."""
    host = config.get_option("server.address") or "127.0.0.1"
    return f"http://{host}:{listening_port()}"


@contextmanager
def recorded(settings: Settings) -> Iterator[None]:
    """Keep this process written down under `dashboard` as long as the block runs.

    Where the state directory cannot be written to, the dashboard serves all the same.
    """
    home = Home(settings.home)
    try:
        home.record_process(NAME, os.getpid(), address())
    except OSError:
        yield
        return
    try:
        yield
    finally:
        home.forget_process(NAME, os.getpid())
