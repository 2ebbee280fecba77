"""Logs of processes: lines for people, or JSON in which each line says what it is about."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, TextIO

from trainmaster.errors import UserError

FORMATS: Final = ("text", "json")
FIELDS: Final = ("run", "generation", "rank", "node")
"""What a line may be about, beside its words."""

_ABOUT: ContextVar[Mapping[str, str | int] | None] = ContextVar("about", default=None)


@contextmanager
def about(**fields: str | int) -> Iterator[None]:
    """Have every line that this thread logs within the block say what it is about.

    Args:
        fields: some of `FIELDS`.
    """
    token = _ABOUT.set({**(_ABOUT.get() or {}), **fields})
    try:
        yield
    finally:
        _ABOUT.reset(token)


def asked_format(text: str) -> str:
    """Return the format that TRAINMASTER_LOG_FORMAT asks for; lines for people unless it says.

    Raises:
        UserError: it is none.
    """
    chosen = text.strip().lower() or FORMATS[0]
    if chosen not in FORMATS:
        raise UserError(f"TRAINMASTER_LOG_FORMAT is {text!r}; write {' or '.join(FORMATS)}")
    return chosen


def begin(
    log_format: str, *, level: str = "INFO", node: str | None = None, stream: TextIO | None = None
) -> None:
    """Have this process log to stderr.

    Args:
        node: which node all lines are about, where they all are about one.
        stream: where to instead of stderr.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    if log_format == "json":
        handler.setFormatter(JsonLines(node))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)


class JsonLines(logging.Formatter):
    """One JSON object a line: `at`, `level`, `logger`, `message`, those of `FIELDS` that are
    known, and `exception` where there was one.

    A field comes from `about`, or from the call itself (`log.info(..., extra={"rank": 3})`).
    """

    def __init__(self, node: str | None = None) -> None:
        super().__init__()
        self._process: dict[str, str | int] = {} if node is None else {"node": node}

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        told = {name: value for name, value in vars(record).items() if name in FIELDS}
        line: dict[str, str | int] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._process,
            **(_ABOUT.get() or {}),
            **told,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
