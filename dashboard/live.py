"""What the browser asks for by itself while a run's page is open: its numbers, its charts, and the
marks of the parts that Streamlit draws. A look costs a fraction of a script run, and one that finds
nothing new sends nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from dashboard.charts.axis import KINDS, read_window
from dashboard.login import cookie_name
from dashboard.places import Drawn, Place
from dashboard.session import Session, looking_session
from dashboard.views import run_drawn, run_head, run_marks
from dashboard.views.run_charts import LOOK_PATH
from dashboard.views.run_drawn import SMOOTHING, Asked
from trainmaster.errors import TrainmasterError

HOLDS_S = 1.0
"""For how long an answer is given to all who ask the same."""

_MOST_ANSWERS = 32


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer without its charts, these by their version, and what they draw."""

    at: float
    parts: Mapping[str, Any]
    charts: str
    version: str
    series: Drawn


def routes() -> list[BaseRoute]:
    """Return the route at which the browser looks at a run."""
    return [Route(LOOK_PATH, _look, methods=["GET"])]


async def _look(request: Request) -> Response:
    query = request.query_params
    token = request.cookies.get(cookie_name())
    if not token or not query.get("run"):
        return Response("{}", status_code=401 if not token else 400, media_type="application/json")
    text = await run_in_threadpool(_answered, token, dict(query))
    # To pack numbers costs more than all else of a look, and saves little: that is for a proxy.
    headers = {"Cache-Control": "no-store, private", "Content-Encoding": "identity"}
    return Response(text, media_type="application/json", headers=headers)


def _answered(token: str, query: Mapping[str, str]) -> str:
    run_id = query["run"]
    session, place = looking_session(token, query.get("lang", ""), query.get("zone", ""), run_id)
    asked = read_asked(query)
    with place.lock:
        try:
            answer = _found(session, place, run_id, asked)
        except TrainmasterError as error:
            return _written({"marks": run_marks.refused(error), "moves": True})
        if not asked.first:
            place.draws(query.get("page", ""), answer.series)
    if query.get("version") == answer.version:
        return _written(answer.parts)
    # The charts are written once for all who look at the same.
    return f'{_written(answer.parts)[:-1]},"charts":{answer.charts}}}'


def read_asked(query: Mapping[str, str]) -> Asked:
    """Return how the charts are to be drawn; what cannot be read is as if it were not there."""
    kind = query.get("axis")
    return Asked(
        kind=next((each for each in KINDS if each == kind), KINDS[0]),
        keep=SMOOTHING.get(query.get("smoothing", ""), 0.0),
        log=query.get("log") == "1",
        steps=read_window(query.get("steps")),
        reach=_reach(query.get("reach")),
        first=query.get("first") == "1",
    )


def _reach(text: str | None) -> tuple[Any, Any] | None:
    try:
        low, high = json.loads(text or "")
    except (TypeError, ValueError):
        return None
    return low, high


def _found(session: Session, place: Place, run_id: str, asked: Asked) -> _Answer:
    now = time.monotonic()
    key = (asked, session.t.language, str(session.formats.zone))
    kept: _Answer | None = place.answers.get(key)
    if kept is not None and now - kept.at < HOLDS_S:
        return kept
    reader = session.reader
    reader.look(run_id, run_drawn.coming(session, run_id, asked))
    run = reader.run(run_id)
    drawn = run_drawn.draw(session, run, asked)
    charts = _written(
        {
            "panels": drawn.panels,
            "window": None if drawn.window is None else list(drawn.window),
            "reach": drawn.reach,
            "notes": drawn.notes,
        }
    )
    version = sha256(charts.encode()).hexdigest()[:16]
    parts = {
        "html": {
            "head": run_head.summary_html(session, run),
            "asks": run_head.asks_html(session, run),
        },
        "marks": run_marks.marks(session, run),
        "moves": run_marks.moves(run, reader.requests(run_id), session.now()),
        "version": version,
    }
    answer = _Answer(now, parts, charts, version, drawn.series)
    place.answers[key] = answer
    while len(place.answers) > _MOST_ANSWERS:
        del place.answers[next(iter(place.answers))]
    return answer


def _written(told: Any) -> str:
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))
