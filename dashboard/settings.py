"""Settings of the dashboard, and the only place that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainmaster import logs
from trainmaster.client import DEFAULT_URL
from trainmaster.errors import UserError
from trainmaster.home import DEFAULT_HOME

DEFAULT_PORT = 8501


@dataclass(frozen=True, slots=True)
class Settings:
    """What the dashboard is told from outside.

    Attributes:
        url: address of the control plane (`TRAINMASTER_URL`).
        port: where to listen (`TRAINMASTER_DASHBOARD_PORT`); 0 takes any free one.
        home: the state directory (`TRAINMASTER_HOME`); only this process's record is kept there.
        log_format: one of `logs.FORMATS` (`TRAINMASTER_LOG_FORMAT`).
    """

    url: str = DEFAULT_URL
    port: int = DEFAULT_PORT
    home: Path = DEFAULT_HOME
    log_format: str = logs.FORMATS[0]


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings that the environment asks for.

    Raises:
        UserError: the port is not one, or the form of the log is none.
    """
    port = environment.get("TRAINMASTER_DASHBOARD_PORT") or str(DEFAULT_PORT)
    if not port.isdecimal() or int(port) > 65535:
        raise UserError(
            f"TRAINMASTER_DASHBOARD_PORT is {port!r}, which is no port: use a number up to 65535",
            code="bad_port",
        )
    return Settings(
        url=environment.get("TRAINMASTER_URL") or DEFAULT_URL,
        port=int(port),
        home=Path(environment.get("TRAINMASTER_HOME") or DEFAULT_HOME),
        log_format=logs.asked_format(environment.get("TRAINMASTER_LOG_FORMAT", "")),
    )
