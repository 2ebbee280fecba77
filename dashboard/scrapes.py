"""`/metrics` of the dashboard: for whom the control plane lets read, as an agent's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from dashboard.settings import read_settings
from dashboard.vitals import VITALS, Vitals
from trainmaster.errors import TrainmasterError, UnauthenticatedError
from trainmaster.readers import Readers, role_at


@cache
def readers_at_the_control_plane() -> Readers:
    """Return who may read, by the control plane that the settings name."""
    return Readers(role_at(read_settings().url), own=None)


def routes(
    readers: Callable[[], Readers] = readers_at_the_control_plane, vitals: Vitals = VITALS
) -> list[BaseRoute]:
    """Return the route of the metrics.

    Args:
        readers: who may read; asked for at the first scrape.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(vitals)

    async def metrics(request: Request) -> Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        try:
            if scheme.lower() != "bearer" or not token.strip():
                raise UnauthenticatedError("a token that may read is needed, as bearer token")
            await run_in_threadpool(readers().admit, token.strip())
        except TrainmasterError as error:
            headers = {"WWW-Authenticate": "Bearer"} if error.http_status == 401 else None
            return PlainTextResponse(f"{error.message}\n", error.http_status, headers)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": content_type})

    return [Route("/metrics", metrics, methods=["GET"])]
