"""What the command line takes from its environment, and nothing else reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainmaster.errors import UserError
from trainmaster.home import DEFAULT_HOME, Home

DEFAULT_PORT = 8700
DEFAULT_DASHBOARD_PORT = 8501
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Settings:
    """The environment of one invocation.

    Attributes:
        home: the state directory, absolute.
        url: the control plane that was asked for; None means the one of `home`.
        token: the token that was given; None means the one that `up` stored in `home`.
        port: where `up` was told to put the control plane.
        dashboard_port: where `up` was told to put the dashboard.
        supervise: whether `up` restarts a part that dies.
    """

    home: Home
    url: str | None = None
    token: str | None = None
    port: int | None = None
    dashboard_port: int | None = None
    supervise: bool = True

    @property
    def control_url(self) -> str:
        """Where the control plane is: asked for, else written down in `home`, else the default."""
        if self.url is not None:
            return self.url
        record = self.home.process("control")
        if record is not None and record.address is not None:
            return record.address
        return address(self.port or DEFAULT_PORT)

    @property
    def control_token(self) -> str | None:
        """The token to speak with, if there is one.

        Raises:
            UserError: the stored token cannot be read.
        """
        if self.token is not None:
            return self.token
        try:
            return self.home.token()
        except (OSError, ValueError) as error:
            raise UserError(
                f"the token stored in {self.home.root} cannot be read ({error}): "
                f"set TRAINMASTER_TOKEN, or run as the user who started `trainmaster up`"
            ) from error


def address(port: int) -> str:
    """Return the address of `port` on this machine."""
    return f"http://{LOOPBACK}:{port}"


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings that `environment` holds. An empty variable counts as not set.

    Raises:
        UserError: a variable holds something that cannot be used; the message names it.
    """
    return Settings(
        home=home_at(environment.get("TRAINMASTER_HOME") or str(DEFAULT_HOME)),
        url=environment.get("TRAINMASTER_URL") or None,
        token=_token(environment),
        port=_port(environment, "TRAINMASTER_PORT"),
        dashboard_port=_port(environment, "TRAINMASTER_DASHBOARD_PORT"),
        supervise=_flag(environment, "TRAINMASTER_SUPERVISE", default=True),
    )


def home_at(path: str) -> Home:
    """Return the state directory at `path`, made absolute so that children may change folders.

    Raises:
        UserError: no path can look like this.
    """
    if not path:
        raise UserError("the path of the state directory is empty: name a folder, or leave it out")
    if "\0" in path:
        raise UserError("the path of the state directory contains a NUL character")
    return Home(Path(path).expanduser().absolute())


def _token(environment: Mapping[str, str]) -> str | None:
    token = environment.get("TRAINMASTER_TOKEN", "").strip()
    if token:
        return token
    path = environment.get("TRAINMASTER_TOKEN_FILE")
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError) as error:
        raise UserError(
            f"TRAINMASTER_TOKEN_FILE: {path} cannot be read as a token: {error}"
        ) from error


def _port(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) < 1 << 16):
        raise UserError(f"{name} must be a port from 0 to 65535 (0 takes a free one), not {text!r}")
    return int(text)


def _flag(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environment.get(name)
    if not text:
        return default
    if text not in {"0", "1"}:
        raise UserError(f"{name} must be 0 or 1, not {text!r}")
    return text == "1"
