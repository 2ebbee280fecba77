"""The HTTP client through which agent, command line and dashboard speak to the control plane.

Answers are JSON; refusals are RFC 9457 problem documents and come out as our errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from trainmaster.errors import (
    ConflictError,
    ForbiddenError,
    NotFoundError,
    Problem,
    SpecError,
    TrainmasterError,
    UnauthenticatedError,
    UnavailableError,
    UserError,
)
from trainmaster.wire import Sync, SyncReply

DEFAULT_URL = "http://127.0.0.1:8700"
DEFAULT_TIMEOUT_S = 10.0

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_ERRORS: dict[int, type[TrainmasterError]] = {
    401: UnauthenticatedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    429: UnavailableError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}
_Query = dict[str, str | int | float | bool | None]


class Client:
    """A connection to one control plane, for one token. May be shared by threads.

    Every method raises `UnavailableError` when the control plane is out of reach, and the error
    that its problem document names when it refuses.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str | None = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Speak to `url`; nothing is sent yet.

        Raises:
            UserError: `url` is not an http or https address, or the token cannot stand in a header.
        """
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, ValueError) as error:
            raise UserError(f"{url!r} is not an address: {error}", code="bad_url") from error
        if parsed.scheme not in {"http", "https"} or not parsed.host:
            raise UserError(f"{url!r} is not an address like {DEFAULT_URL}", code="bad_url")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise UserError("the token contains characters that no token has", code="bad_token")
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 5.0)),
            transport=transport,
            trust_env=parsed.host
            not in _LOOPBACK,  # a proxy set for the internet cannot reach this machine
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def get(self, path: str, **query: str | int | float | bool | None) -> Any:
        """Return the JSON at `path`. Query values that are None are left out."""
        return _json(self._send("GET", path, query=query))

    def post(self, path: str, body: Any = None, *, headers: dict[str, str] | None = None) -> Any:
        """Post a JSON body and return the JSON answer, or None when there is none."""
        return _json(self._send("POST", path, json=body, headers=headers))

    def put(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> Any:
        """Put a JSON body and return the JSON answer, or None when there is none."""
        return _json(self._send("PUT", path, json=body, headers=headers))

    def delete(self, path: str) -> Any:
        """Delete what is at `path` and return the JSON answer, or None when there is none."""
        return _json(self._send("DELETE", path))

    def sync(self, node: str, message: Sync) -> SyncReply:
        """Make one exchange in the name of `node`."""
        response = self._send(
            "POST",
            f"/v1/nodes/{quote(node, safe='')}/sync",
            content=message.model_dump_json().encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            return SyncReply.model_validate_json(response.content)
        except ValueError as error:
            raise UnavailableError(
                f"{self.url} gave an answer to sync that cannot be read: {error}"
            ) from error

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: _Query | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        wanted = {name: value for name, value in (query or {}).items() if value is not None}
        unsendable = list(_not_finite(json, ""))
        if unsendable:
            raise SpecError(unsendable)
        try:
            response = self._http.request(
                method, path, params=wanted or None, json=json, content=content, headers=headers
            )
        except httpx.TimeoutException as error:
            raise UnavailableError(
                f"the control plane at {self.url} did not answer in time"
            ) from error
        except httpx.TransportError as error:
            raise UnavailableError(
                f"the control plane at {self.url} is out of reach: {error}"
            ) from error
        if not response.is_success:
            raise problem_error(response.status_code, _document(response), self.url)
        return response


def problem_error(status: int, document: dict[str, Any], url: str) -> TrainmasterError:
    """Return the error that an RFC 9457 problem document tells of.

    `document` is empty when something that is not ours answered.
    """
    message = str(document.get("detail") or document.get("title") or f"{url} answered {status}")
    code = document.get("code")
    problems = [
        Problem(str(each.get("path", "")), str(each.get("message", "")), each.get("line"))
        for each in document.get("problems") or []
    ]
    if problems:
        return SpecError(problems)
    kind = _ERRORS.get(status, UserError if 400 <= status < 500 else TrainmasterError)
    return kind(message, code=code if isinstance(code, str) else None)


def _not_finite(value: Any, path: str) -> Iterator[Problem]:
    """Say of each number in a body that JSON cannot carry where it stands."""
    if isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, f"must be a finite number, not {value}")
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _not_finite(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _not_finite(each, f"{path}[{index}]")


def _document(response: httpx.Response) -> dict[str, Any]:
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _json(response: httpx.Response) -> Any:
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError as error:
        raise UnavailableError(
            f"{response.url} does not answer as a control plane would"
        ) from error
