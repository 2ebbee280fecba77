"""What goes out: JSON without bare NaN, instants in RFC 3339."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from starlette.responses import JSONResponse

from control.db.sql.values import instant_text


class Answer(JSONResponse):
    """A JSON document. A NaN in it is our bug: non-finite numbers are words by then
    (`control.db.sql.values`).
    """

    def render(self, content: Any) -> bytes:
        return as_json(content)


def as_json(content: Any) -> bytes:
    """Return what an answer says as the bytes of its body."""
    return json.dumps(
        content, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_other
    ).encode("utf-8", "replace")


def _other(value: object) -> str:
    if isinstance(value, datetime):
        return instant_text(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
