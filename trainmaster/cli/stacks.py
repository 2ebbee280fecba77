"""`trainmaster stacks`: where the threads of a run's ranks stand."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainmaster.cli.asking import acknowledged, ask
from trainmaster.cli.read import AsJson, Run
from trainmaster.cli.session import segment, session_of
from trainmaster.cli.steer import Why

ANSWER_S = 20.0
"""How long ranks are waited for: an agent gives up on one after seven seconds."""
_LOOK_S = 0.2


def stacks(
    context: typer.Context,
    run: Run,
    rank: Annotated[int | None, typer.Option(min=0, help="Which rank; without it: all.")] = None,
    why: Why = "",
    as_json: AsJson = False,
) -> None:
    """Show the stacks of ranks, as their agents see them now; the ranks go on."""
    session = session_of(context)
    args = {} if rank is None else {"rank": rank}
    request = acknowledged(session, ask(session, run, "stacks", args, why), ANSWER_S)
    deadline = session.monotonic() + ANSWER_S
    path = f"/v1/runs/{segment('run', run)}/stacks"
    while True:
        call = _call(session.api.get(path), int(request["id"]))
        done = call is not None and not call["missing"]
        if done or session.monotonic() > deadline:
            break
        session.sleep(_LOOK_S)
    found = call["stacks"] if call is not None else []
    if as_json:
        session.output.json(found)
        return
    for each in found:
        how = f"by {each['how']}" if each["how"] else each["because"]
        session.output.line(f"rank {each['rank']} on {each['node']}, {how}")
        session.output.line(each["text"].rstrip())
        session.output.line("")
    missing = call["missing"] if call is not None else []
    if missing:
        session.output.say(f"no answer of rank {', '.join(map(str, missing))}")


def _call(calls: list[dict[str, Any]], request: int) -> dict[str, Any] | None:
    return next((each for each in calls if each.get("request") == request), None)
