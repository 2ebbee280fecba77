"""A Grafana server, spoken to through `grafana-api`, or through its successor `grafana-client`
where that is installed.

Only operations of Grafana's published API are used, each by uid. `grafana-api` has not been
released since 2020 and lacks several of them, so requests go through its plain `.api`, which both
libraries have under one name or the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, urlsplit

from trainmaster.errors import (
    ForbiddenError,
    NotFoundError,
    TrainmasterError,
    UnavailableError,
    UserError,
)

TIMEOUT_S: Final = 10.0


class Grafana(Protocol):
    """What publishing needs. Paths begin after `/api`.

    Each method raises `UnavailableError` when the server cannot be reached or fails, `UserError`
    when it refuses.
    """

    def get(self, path: str) -> Any | None:
        """Return what is there; None if there is nothing."""
        ...

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Make something."""
        ...

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        """Replace something."""
        ...


def connect(url: str, token: str) -> Grafana:
    """Return the server at `url`; nothing is sent yet.

    Raises:
        UserError: `url` is no address.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.username:
        raise UserError(
            f"{url!r} is not the address of a Grafana: write http(s)://HOST[:PORT][/PATH]"
        )
    try:
        from grafana_client import GrafanaApi, TokenAuth
        from grafana_client.client import GrafanaException
    except ImportError:
        return _through_grafana_api(parts, token)
    server = GrafanaApi.from_url(url, credential=TokenAuth(token=token), timeout=TIMEOUT_S)
    return _Server(server.client, GrafanaException)


def _through_grafana_api(parts: SplitResult, token: str) -> Grafana:
    from grafana_api.grafana_api import GrafanaException
    from grafana_api.grafana_face import GrafanaFace

    prefix = parts.path.strip("/")
    face = GrafanaFace(
        auth=token,
        host=parts.hostname,
        port=parts.port,
        protocol=parts.scheme,
        url_path_prefix=f"{prefix}/" if prefix else "",
        timeout=TIMEOUT_S,
    )
    return _Server(face.api, GrafanaException)


class _Server:
    """One of the two libraries.

    Args:
        requests: has a method for each verb.
        refusal: what it raises for an answer of 400 and above; has the `status_code`.
    """

    def __init__(self, requests: Any, refusal: type[Exception]) -> None:
        self._requests = requests
        self._refusal = refusal

    def get(self, path: str) -> Any | None:
        try:
            return self._ask("GET", path)
        except NotFoundError:
            return None

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._ask("POST", path, json=dict(body))

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._ask("PUT", path, json=dict(body))

    def _ask(self, verb: str, path: str, **body: Any) -> Any:
        try:
            return getattr(self._requests, verb)(path, **body)
        except self._refusal as error:
            raise _refused(error, f"Grafana refused {verb} {path}: {error}") from error
        except (OSError, ValueError) as error:  # no connection, or an answer that is no JSON
            raise UnavailableError(f"Grafana did not answer {verb} {path}: {error}") from error


def _refused(error: Exception, told: str) -> TrainmasterError:
    status = getattr(error, "status_code", None) or 500
    if status == 404:
        return NotFoundError(told)
    if status in {401, 403}:
        return ForbiddenError(
            f"{told}; the service account of TRAINMASTER_GRAFANA_TOKEN_FILE must be an Admin, or "
            "an Editor who may write data sources"
        )
    if status >= 500 or status == 429:
        return UnavailableError(told)
    return UserError(told)
