"""Runs: submit, list, show, and what belongs to one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from pydantic_core import to_json
from sqlalchemy import Connection
from starlette.responses import Response

from control.api.answers import Answer
from control.api.bodies import BEYOND_COUNTING, Key, SeveralBody, SubmitBody, TagsBody
from control.api.context import ByCaller, Shell, WithShell
from control.api.door import DoorRoute
from control.api.submission import checked
from control.db import asking, external, history, listings, queries, shelf
from control.db.fleet import kinds, stacks
from control.db.overviews import placed
from control.db.series import single
from control.db.series.several import several
from control.rights import Caller
from trainmaster.errors import NotFoundError
from trainmaster.metrics import Reduce
from trainmaster.spec import RunSpec

router = APIRouter(prefix="/v1/runs", route_class=DoorRoute, tags=["runs"])

MAX_POINTS = 10_000_000
MAX_TAIL_BYTES = 4 << 20


@router.post("")
def submit(
    body: SubmitBody,
    shell: WithShell,
    caller: ByCaller,
    idempotency_key: Annotated[Key | None, Header()] = None,
) -> Response:
    """Submit a run: 201 when it is new, 200 when the same key has submitted it before."""
    given = body.spec if body.spec is not None else body.text
    assert given is not None, "the body has one of them"
    key = body.idempotency_key or idempotency_key
    found = checked(shell, given)
    with shell.db.write() as connection:
        run, is_new = asking.submit(
            connection,
            found.spec,
            store=_store(shell, found.spec),
            bands_left=found.bands_left,
            actor=caller.actor,
            key=key,
            now=shell.clock.now(),
        )
    shell.wake()
    return Answer(shown(shell, run), status_code=201 if is_new else 200)


def _store(shell: Shell, spec: RunSpec) -> str:
    if spec.checkpoint.store == "default":
        return shell.settings.home.checkpoints.absolute().as_uri()
    return spec.checkpoint.store


@router.get("")
def list_runs(
    shell: WithShell,
    state: str | None = None,
    limit: Annotated[int | None, Query(ge=1, le=100_000)] = None,
    archived: bool | None = None,
    more: bool = False,
) -> Response:
    """List the newest runs, oldest first; with `more` also the loss as a few points, and the share
    of productive time.
    """
    with shell.db.read() as connection:
        found = shell.overviews.listed(connection, state=state, limit=limit, archived=archived)
        if more:
            now = shell.clock.now()
            found = shell.overviews.with_more(connection, found, shell.accounts, now=now)
        return Answer(found)


@router.put("/{run}/tags")
def tag_run(run: str, body: TagsBody, shell: WithShell, caller: ByCaller) -> Response:
    """Give a run these tags and no others."""
    with shell.db.write() as connection:
        shelf.tag(connection, run, body.tags, actor=caller.actor, now=shell.clock.now())
    return Answer(shown(shell, run))


@router.post("/{run}/archive")
def archive_run(run: str, shell: WithShell, caller: ByCaller) -> Response:
    """Put a run that has ended into the archive: lists can leave it out, nothing is deleted."""
    return _archived(run, shell, caller, archived=True)


@router.post("/{run}/unarchive")
def unarchive_run(run: str, shell: WithShell, caller: ByCaller) -> Response:
    """Take a run out of the archive."""
    return _archived(run, shell, caller, archived=False)


def _archived(run: str, shell: Shell, caller: Caller, *, archived: bool) -> Response:
    now = shell.clock.now()
    with shell.db.write() as connection:
        shelf.archive(connection, run, archived=archived, actor=caller.actor, now=now)
    return Answer(shown(shell, run))


@router.get("/{run}")
def get_run(run: str, shell: WithShell) -> Response:
    """Show one run with attempts, ranks, plan and goodput."""
    return Answer(shown(shell, run))


def shown(shell: Shell, run: str) -> dict[str, Any]:
    """Return a run as `show --json` prints it.

    Raises:
        NotFoundError: there is no such run.
    """
    with shell.db.read() as connection:
        place = shelf.places(connection, run).get(run, shelf.Place())
        found = {**queries.show(connection, run), **placed(place)}
        if found["unreadable"] is not None:
            return {**found, "goodput": None}
        return {
            **found,
            "goodput": shell.accounts.of(connection, run, now=shell.clock.now()).goodput,
        }


@router.get("/{run}/goodput")
def get_goodput(run: str, shell: WithShell) -> Response:
    """Show where the wall time of a run went."""
    with shell.db.read() as connection:
        return Answer(shell.accounts.of(connection, run, now=shell.clock.now()).goodput)


@router.get("/{run}/ranks")
def get_ranks(
    run: str,
    shell: WithShell,
    generation: Annotated[int | None, Query(ge=1, lt=BEYOND_COUNTING)] = None,
) -> Response:
    """List the ranks of the newest generation, or of the one that is asked for."""
    with shell.db.read() as connection:
        row = queries.run_row(connection, run)
        return Answer(queries.ranks_of(connection, run, generation or row["generation"]))


@router.get("/{run}/kinds")
def get_kinds(run: str, shell: WithShell) -> Response:
    """Tell how fast the run's ranks are and whether they are heard of, by kind of device."""
    with shell.db.read() as connection:
        row = queries.run_row(connection, run)
        now = shell.clock.now()
        return Answer(kinds.kinds_of(connection, run, row["generation"], now=now))


@router.get("/{run}/recoveries")
def get_recoveries(run: str, shell: WithShell) -> Response:
    """Show what failures cost a run: restarts by cause, lost steps, times to recovery."""
    with shell.db.read() as connection:
        found = shell.accounts.of(connection, run, now=shell.clock.now())
        return Answer(found.recoveries.to_json())


@router.get("/{run}/stacks")
def get_stacks(
    run: str,
    shell: WithShell,
    generation: Annotated[int | None, Query(ge=1, lt=BEYOND_COUNTING)] = None,
) -> Response:
    """List the calls for stacks of a run's ranks with what was answered, oldest first."""
    with shell.db.read() as connection:
        queries.run_row(connection, run)
        return Answer(stacks.calls_of(connection, run, generation))


@router.get("/{run}/events")
def get_events(
    run: str,
    shell: WithShell,
    after: Annotated[int, Query(ge=0, lt=BEYOND_COUNTING)] = 0,
    before: Annotated[int | None, Query(ge=1, lt=BEYOND_COUNTING)] = None,
    limit: Annotated[int, Query(ge=1, le=history.MAX_EVENTS)] = history.MAX_EVENTS,
    newest: bool = False,
    kind: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """List what has happened, oldest first; with `newest` the last ones rather than the first ones
    between `after` and `before`.
    """
    with shell.db.read() as connection:
        queries.run_row(connection, run)
        return Answer(
            history.events_of(
                connection,
                run,
                after=after,
                before=before,
                kinds=kind or (),
                limit=limit,
                newest=newest,
            )
        )


@router.get("/{run}/series")
def get_series(
    run: str,
    metric: str,
    shell: WithShell,
    rank: Annotated[int | None, Query(ge=0, lt=BEYOND_COUNTING)] = None,
    generation: Annotated[int | None, Query(ge=1, lt=BEYOND_COUNTING)] = None,
    all_generations: bool = False,
    after_step: Annotated[int, Query(ge=0, lt=BEYOND_COUNTING)] = 0,
    until_step: Annotated[int | None, Query(ge=1, lt=BEYOND_COUNTING)] = None,
    after: Annotated[str | None, Query(max_length=200)] = None,
    reduce: Reduce | None = None,
    points: Annotated[int, Query(ge=2, le=MAX_POINTS)] = 1000,
    columns: bool = False,
) -> Response:
    """Show one series: by default the surviving lineage, one point a step, at most `points` of
    them.
    """
    with shell.db.read() as connection:
        found = single.series(
            connection,
            run,
            metric,
            rank=rank,
            generation=generation,
            all_generations=all_generations,
            after_step=after_step,
            until_step=until_step,
            after=after,
            reduce=reduce,
            points=points,
            as_columns=columns,
        )
    # A hundred thousand points take json.dumps a tenth of a second.
    return Response(to_json(found), media_type="application/json")


@router.post("/{run}/series")
def get_several(run: str, body: SeveralBody, shell: WithShell) -> Response:
    """Show several series in one answer, in the order in which they are wanted. Stores nothing."""
    return Response(to_json(several_of(shell, run, body)), media_type="application/json")


def several_of(shell: Shell, run: str, body: SeveralBody) -> dict[str, Any]:
    """Return several series as `body` asks for them.

    Raises:
        NotFoundError: there is no such run or generation.
        UserError: there is no such metric.
    """
    with shell.db.read() as connection:
        return several(
            connection,
            run,
            [(each.metric, each.rank) for each in body.series],
            generation=body.generation,
            all_generations=body.all_generations,
            after_step=body.after_step,
            until_step=body.until_step,
            num_points=body.points,
            with_statistics=body.statistics,
            with_tokens=body.tokens,
            charts=shell.charts,
        )


@router.get("/{run}/checkpoints")
def get_checkpoints(run: str, shell: WithShell) -> Response:
    """List the checkpoints of a run, oldest first."""
    with shell.db.read() as connection:
        queries.run_row(connection, run)
        return Answer(listings.checkpoints_of(connection, run))


@router.get("/{run}/alerts")
def get_alerts(run: str, shell: WithShell, state: str | None = None) -> Response:
    """List the alerts of a run, oldest first."""
    with shell.db.read() as connection:
        queries.run_row(connection, run)
        return Answer(alerts_of(shell, connection, run, state))


def alerts_of(
    shell: Shell, connection: Connection, run: str, state: str | None = None
) -> list[dict[str, Any]]:
    """Return the alerts of a run: those of rules, then those from outside."""
    ours = listings.alerts(connection, run=run, state=state, now=shell.clock.now())
    return [*ours, *external.listed(connection, run=run, state=state)]


@router.get("/{run}/incidents")
def get_incidents(run: str, shell: WithShell, state: str | None = None) -> Response:
    """List the incidents of a run, oldest first."""
    with shell.db.read() as connection:
        queries.run_row(connection, run)
        return Answer(listings.incidents(connection, run=run, state=state))


@router.get("/{run}/logs")
def get_logs(
    run: str,
    rank: Annotated[int, Query(ge=0, lt=BEYOND_COUNTING)],
    shell: WithShell,
    generation: Annotated[int | None, Query(ge=1, lt=BEYOND_COUNTING)] = None,
    tail: Annotated[int, Query(ge=1, le=100_000)] = 100,
) -> Response:
    """Show the last lines that a rank printed, if its node keeps its logs where this process can
    read them.
    """
    with shell.db.read() as connection:
        row = queries.run_row(connection, run)
        which = generation or row["generation"]
        ranks = {each["rank"]: each for each in queries.ranks_of(connection, run, which)}
    if rank not in ranks:
        raise NotFoundError(f"generation {which} of run {run!r} has no rank {rank}")
    node = ranks[rank]["node"]
    path = shell.settings.home.rank_log(node, run, which, rank)
    lines = _last_lines(path, tail)
    if lines is None:
        raise NotFoundError(
            f"the log of rank {rank} is not on this machine: look at {path.name} below the state "
            f"directory of node {node}"
        )
    return Answer({"run": run, "generation": which, "rank": rank, "node": node, "lines": lines})


def _last_lines(path: Path, count: int) -> list[str] | None:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    return text.splitlines()[-count:]
