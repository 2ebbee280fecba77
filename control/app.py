"""The application: routes, the door, refusals as problem documents, and the clockwork beside
them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI

from control.api import (
    access,
    alertmanager,
    alerts,
    backtest,
    channels,
    checkpoints,
    errors,
    imports,
    looks,
    nodes,
    plan,
    requests,
    rules,
    runs,
    silences,
    sync,
    system,
    timelines,
)
from control.api.context import Shell
from control.api.ending import Ending
from control.clock import Clock
from control.db.samples.ageing import Ages
from control.db.sql.engine import Database
from control.grafana.errands import GrafanaErrands
from control.grafana.server import connect
from control.group_commit import GroupCommit
from control.lead import Lead
from control.notify.sender import Sender
from control.settings import Settings
from control.upkeep import Upkeep
from control.vitals import Vitals
from trainmaster import __version__


def create_app(
    settings: Settings,
    db: Database,
    clock: Clock,
    *,
    leads: bool = True,
    on_start: Callable[[], None] = lambda: None,
) -> FastAPI:
    """Return the application over a database whose schema is current.

    `state.drain()` has it prepare for its end: it is not ready any more, another control plane
    leads, nothing is waited for, and all else is still answered.

    Args:
        leads: whether this process may do the periodic work; the API works either way.
        on_start: called once the application takes requests.
    """
    ages = Ages.of_days(settings.samples_exact_days, settings.samples_days)
    vitals = Vitals()
    lead = Lead(db, clock, ages=ages, errands=_errands(settings, db, clock), vitals=vitals)
    syncs = GroupCommit(db, clock, lead.wake)
    shell = Shell(
        settings,
        db,
        clock,
        lead.wake,
        lambda: lead.up_since,
        syncs,
        lambda: lead.skipped,
        lambda: lead.leads,
        vitals=vitals,
    )

    def drain() -> None:
        shell.draining.set()
        lead.hand_over()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if leads:
            lead.start()
        on_start()
        try:
            yield
        finally:
            syncs.close()
            if leads:
                lead.stop()

    # The OpenAPI document is served behind the door (control.api.system); the interactive pages
    # load scripts from elsewhere.
    app = FastAPI(
        title="Trainmaster",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.shell = shell
    app.state.drain = drain
    app.add_middleware(sync.SyncDoor, shell=shell)
    app.add_middleware(Ending, draining=shell.draining)
    errors.install(app)
    for module in (
        *(system, access, nodes, runs, looks, timelines, imports, requests, checkpoints, backtest),
        *(rules, alerts, silences, alertmanager, channels, plan),
    ):
        app.include_router(module.router)
    return app


def _errands(
    settings: Settings, db: Database, clock: Clock
) -> Sequence[tuple[Callable[[], None], float]]:
    """Return the leader's periodic work beyond the usual."""
    upkeep = Upkeep(
        db,
        clock,
        scrub_days=settings.scrub_days,
        scrub_bytes_per_s=settings.scrub_bytes_per_s,
    )
    errands = [*upkeep.all(), *Sender(db, clock, settings.channels).all()]
    if settings.grafana is not None:
        server = connect(settings.grafana.url, settings.grafana.token)
        errands += GrafanaErrands(db, clock, server, settings.grafana.prometheus_url).all()
    return errands
