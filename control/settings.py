"""The control plane's settings: the only reader of the environment here. docs/settings.md lists
them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from control.channel_file import ChannelSpec, read_file
from trainmaster import logs
from trainmaster.errors import UserError
from trainmaster.home import DEFAULT_HOME, Home

DRAIN_S = 3.0
"""Long enough for a load balancer that looks each second."""

EXTERNAL_ACTIONS = frozenset({"cordon", "checkpoint", "hold", "stop"})
"""What an alert from outside can ask for at all."""

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}


@dataclass(frozen=True, slots=True)
class GrafanaSettings:
    """Where boards and annotations go.

    Attributes:
        token: of a service account; not shown.
        prometheus_url: where Grafana itself reaches Prometheus.
    """

    url: str
    token: str = field(repr=False)
    prometheus_url: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Where things are, and what is allowed.

    Attributes:
        database_url: None for the embedded SQLite database below `home`.
        allow_drills: whether faults may be injected on purpose.
        database_timeout_s: for how long one statement may take on PostgreSQL.
        describe_limit_s: for how long a submission waits for a node to describe its workload.
        samples_exact_days: for how long after its end all samples of a run stay; 0 for ever.
        samples_days: for how long after its end the series of its ranks stay; 0 for ever.
        external_actions: what alerts from outside may do here.
        scrub_days: after so long without a reading a checkpoint is read again; 0: never.
        scrub_bytes_per_s: how fast at most; 0: as fast as it goes.
        asked_drain_s: for how long everything is still answered after SIGTERM; None leaves it to
            the database.
    """

    home: Home
    host: str = "127.0.0.1"
    port: int = 8700
    database_url: str | None = None
    database_timeout_s: float = 30.0
    allow_drills: bool = False
    log_level: str = "INFO"
    log_format: str = "text"
    describe_limit_s: float = 60.0
    asked_drain_s: float | None = None
    samples_exact_days: int = 30
    samples_days: int = 365
    external_actions: frozenset[str] = frozenset({"cordon", "checkpoint"})
    scrub_days: int = 30
    scrub_bytes_per_s: int = 50_000_000
    grafana: GrafanaSettings | None = None
    channels: tuple[ChannelSpec, ...] = ()

    @property
    def drain_s(self) -> float:
        """For how long everything is still answered after SIGTERM, so that load balancers notice.
        Nobody could take over from the one process on SQLite, so it does not linger.
        """
        if self.asked_drain_s is not None:
            return self.asked_drain_s
        return DRAIN_S if self.database.startswith("postgresql") else 0.0

    @property
    def database(self) -> str:
        """The address of the database."""
        return self.database_url or f"sqlite:///{self.home.database}"

    @property
    def lock(self) -> Path:
        """The file that is held by the one process that may use the embedded database."""
        return self.home.root / "control.lock"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read the settings.

        Raises:
            UserError: one of them cannot be understood.
        """

        def text(name: str, default: str) -> str:
            return environ.get(f"TRAINMASTER_{name}", "").strip() or default

        exact = _days("SAMPLES_EXACT_DAYS", text("SAMPLES_EXACT_DAYS", "30"))
        kept = _days("SAMPLES_DAYS", text("SAMPLES_DAYS", "365"))
        if 0 < kept < exact:
            raise UserError(
                f"TRAINMASTER_SAMPLES_DAYS is {kept}, and TRAINMASTER_SAMPLES_EXACT_DAYS ({exact}) "
                "keeps all for longer: raise the one or lower the other"
            )
        return cls(
            home=Home(Path(text("HOME", str(DEFAULT_HOME))).absolute()),
            host=text("HOST", "127.0.0.1"),
            port=_port(text("PORT", "8700")),
            database_url=text("DATABASE_URL", "") or None,
            database_timeout_s=_seconds("DATABASE_TIMEOUT_S", text("DATABASE_TIMEOUT_S", "30"), 1),
            asked_drain_s=_seconds("DRAIN_S", drain, 0) if (drain := text("DRAIN_S", "")) else None,
            allow_drills=_flag("ALLOW_DRILLS", text("ALLOW_DRILLS", "")),
            log_level=_level(text("LOG_LEVEL", "INFO").upper()),
            log_format=logs.asked_format(text("LOG_FORMAT", "")),
            samples_exact_days=exact,
            samples_days=kept,
            channels=_channels(text("CHANNELS_FILE", "")),
            external_actions=_actions(text("EXTERNAL_ACTIONS", "cordon,checkpoint")),
            scrub_days=_days("SCRUB_DAYS", text("SCRUB_DAYS", "30")),
            scrub_bytes_per_s=_bytes("SCRUB_BYTES_PER_S", text("SCRUB_BYTES_PER_S", "50000000")),
            grafana=_grafana(
                text("GRAFANA_URL", ""),
                text("GRAFANA_TOKEN_FILE", ""),
                text("PROMETHEUS_URL", "http://127.0.0.1:9090"),
            ),
        )


def _grafana(url: str, token_file: str, prometheus_url: str) -> GrafanaSettings | None:
    if not url:
        return None
    if not token_file:
        raise UserError(
            "TRAINMASTER_GRAFANA_URL is given: name the file with a service account's token in "
            "TRAINMASTER_GRAFANA_TOKEN_FILE too"
        )
    try:
        token = Path(token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"TRAINMASTER_GRAFANA_TOKEN_FILE: {token_file} cannot be read: {error}"
        ) from error
    if not token:
        raise UserError(f"TRAINMASTER_GRAFANA_TOKEN_FILE: {token_file} is empty")
    return GrafanaSettings(url, token, prometheus_url)


def _port(text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text) <= 65535:
        return int(text)
    raise UserError(
        f"TRAINMASTER_PORT is {text!r}; it must be a number from 0 (any free port) to 65535"
    )


def _seconds(name: str, text: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if least <= value <= 3600:
        return value
    raise UserError(f"TRAINMASTER_{name} is {text!r}; write seconds, from {least:g} to 3600")


def _channels(path: str) -> tuple[ChannelSpec, ...]:
    return read_file(Path(path)) if path else ()


def _actions(text: str) -> frozenset[str]:
    named = frozenset(word.strip() for word in text.split(",") if word.strip())
    if named == {"none"}:
        return frozenset()
    unknown = sorted(named - EXTERNAL_ACTIONS)
    if unknown:
        known = ", ".join(sorted(EXTERNAL_ACTIONS))
        raise UserError(
            f"TRAINMASTER_EXTERNAL_ACTIONS names {', '.join(unknown)}; write some of {known}, with "
            "commas between them, or none"
        )
    return named


def _days(name: str, text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text) <= 36_500:
        return int(text)
    raise UserError(f"TRAINMASTER_{name} is {text!r}; write whole days, 0 for ever, at most 36500")


def _bytes(name: str, text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text) <= 1 << 50:
        return int(text)
    raise UserError(f"TRAINMASTER_{name} is {text!r}; write bytes, 0 for no limit")


def _flag(name: str, text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise UserError(f"TRAINMASTER_{name} is {text!r}; write 1 or 0")


def _level(text: str) -> str:
    if text in {"DEBUG", "INFO", "WARNING", "ERROR"}:
        return text
    raise UserError(f"TRAINMASTER_LOG_LEVEL is {text!r}; write DEBUG, INFO, WARNING or ERROR")
