"""What the browser asks for by itself while a run's page is open: its numbers, its charts, and the
marks of the parts that Streamlit draws. A look costs a fraction of a script run, and one that finds
nothing new sends nothing. Of charts that have grown it sends what has been added.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from dashboard.changes import Told, written
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

_MOST_ANSWERS = 12


@dataclass(slots=True)
class _Answer:
    """What is answered to all who ask the same: `parts` are what is not its charts."""

    at: float = -HOLDS_S
    parts: Mapping[str, Any] = field(default_factory=dict)
    charts: Told = field(default_factory=Told)
    series: Drawn = field(default_factory=dict)


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
            return written({"marks": run_marks.refused(error), "moves": True})
        if not asked.first:
            place.draws(query.get("page", ""), answer.series)
        parts, charts = written(answer.parts), answer.charts
        changed = charts.since(query.get("version", ""))
        if changed is None:
            return f'{parts[:-1]},"charts":{charts.whole()}}}'
        return f'{parts[:-1]},"changes":{changed}}}'


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
    answer: _Answer = place.answers.pop(key, None) or _Answer()
    place.answers[key] = answer
    while len(place.answers) > _MOST_ANSWERS:
        del place.answers[next(iter(place.answers))]
    if now - answer.at < HOLDS_S:
        return answer
    reader = session.reader
    reader.look(run_id, run_drawn.coming(session, run_id, asked))
    run = reader.run(run_id)
    drawn = run_drawn.draw(session, run, asked)
    answer.charts.tell(
        {
            "panels": drawn.panels,
            "window": None if drawn.window is None else list(drawn.window),
            "reach": drawn.reach,
            "notes": drawn.notes,
        }
    )
    answer.parts = {
        "html": {
            "head": run_head.summary_html(session, run),
            "asks": run_head.asks_html(session, run),
        },
        "marks": run_marks.marks(session, run),
        "moves": run_marks.moves(run, reader.requests(run_id), session.now()),
        "version": answer.charts.version,
    }
    answer.at, answer.series = now, drawn.series
    return answer
