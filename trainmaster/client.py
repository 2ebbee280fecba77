"""The HTTP client through which agent, command line and dashboard speak to the control plane.

Answers are JSON; refusals are RFC 9457 problem documents and come out as our errors.

Several control planes may stand on one database; then the client is given the addresses of all, and
turns to the next when one is out of reach. What it asked may have been done already when no answer
came, so it asks again only what may be asked twice: reads, syncs, and posts with an idempotency
key. Anything else goes elsewhere only when it cannot have been looked at: no connection was made,
or the answer says that the control plane is about to stop.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from trainmaster.addresses import Rota, split
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
CONNECT_S = 5.0
TURN_AFTER_S = 2.0
"""Where there are others, a connection that takes longer is looked for there."""
SYNC_ANSWER_S = 4.0
"""Where there are others, a sync that is not answered by then is sent to another: well before the
node's lease ends.
"""
DRAINING = "draining"
"""The code of a refusal by a control plane that is about to stop: nothing was done."""

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
    """A connection to the control plane, for one token. May be shared by threads.

    Every method raises `UnavailableError` when no control plane can be reached, and the error
    that the problem document names when one refuses.

    Attributes:
        url: the address, or all addresses, as a person may be told.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str | None = None,
        *,
        name: str = "",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Speak to `url`; nothing is sent yet.

        Args:
            url: one address, or several with commas between them.
            name: of who asks: with several addresses, where it begins depends on it.

        Raises:
            UserError: an address is not an http or https one, or the token cannot stand in a
                header.
        """
        addresses = _checked(url)
        if token is not None and not (token.isascii() and token.isprintable()):
            raise UserError("the token contains characters that no token has", code="bad_token")
        self.url = ", ".join(addresses)
        self._rota = Rota(addresses, name=name)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s
        self._transport = transport
        self._opened: dict[str, httpx.Client] = {}
        self._opening = threading.Lock()

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
        for http in self._opened.values():
            http.close()

    def get(self, path: str, **query: str | int | float | bool | None) -> Any:
        """Return the JSON at `path`. Query values that are None are left out."""
        return _json(self._send("GET", path, query=query, repeatable=True))

    def post(self, path: str, body: Any = None, *, headers: dict[str, str] | None = None) -> Any:
        """Post a JSON body and return the JSON answer, or None when there is none."""
        repeatable = _has_key(body, headers)
        return _json(self._send("POST", path, json=body, headers=headers, repeatable=repeatable))

    def put(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> Any:
        """Put a JSON body and return the JSON answer, or None when there is none."""
        return _json(self._send("PUT", path, json=body, headers=headers))

    def patch(self, path: str, body: Any) -> Any:
        """Patch with a JSON body and return the JSON answer, or None when there is none."""
        return _json(self._send("PATCH", path, json=body))

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
            repeatable=True,
            answer_s=min(self._timeout_s, SYNC_ANSWER_S) if self._rota.several else None,
        )
        try:
            return SyncReply.model_validate_json(response.content)
        except ValueError as error:
            raise UnavailableError(
                f"{response.url} gave an answer to sync that cannot be read: {error}"
            ) from error

    def link_token(self, node: str) -> str:
        """Return a token with which the neighbours of `node` take messages from it for a while."""
        return str(self.post(f"/v1/nodes/{quote(node, safe='')}/link-token")["token"])

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: _Query | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        repeatable: bool = False,
        answer_s: float | None = None,
    ) -> httpx.Response:
        """Send to one control plane after the other until one answers.

        Args:
            repeatable: whether asking twice is the same as asking once.
            answer_s: how long to wait for an answer, if not as long as for others.
        """
        wanted = {name: value for name, value in (query or {}).items() if value is not None}
        unsendable = list(_not_finite(json, ""))
        if unsendable:
            raise SpecError(unsendable)
        troubles: list[UnavailableError] = []
        slow = 0
        for address in self._rota.order():
            http = self._http(address)
            try:
                request = http.build_request(
                    method, path, params=wanted or None, json=json, content=content, headers=headers
                )
            except UnicodeEncodeError as error:
                told = str(error.object)[:100]
                raise UserError(f"{told!r} holds bytes that are no UTF-8 text") from error
            if answer_s is not None:
                request.extensions["timeout"] |= {"read": answer_s}
            try:
                response = http.send(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                troubles.append(_away(address, error))
                continue
            except httpx.TransportError as error:
                troubles.append(_away(address, error))
                slow += isinstance(error, httpx.TimeoutException)
                # All are slow when the database is: asking each of them would make it slower.
                if repeatable and slow < 2:
                    continue
                break
            if response.is_success:
                self._rota.answered(address)
                return response
            refusal = problem_error(response.status_code, _document(response), address)
            if not isinstance(refusal, UnavailableError) or response.status_code == 429:
                self._rota.answered(address)
                raise refusal
            troubles.append(refusal)
            if not (repeatable or refusal.code == DRAINING):
                break
        raise _none_answers(troubles)

    def _http(self, address: str) -> httpx.Client:
        with self._opening:
            if address not in self._opened:
                connect_s = TURN_AFTER_S if self._rota.several else CONNECT_S
                self._opened[address] = httpx.Client(
                    base_url=address,
                    headers=self._headers,
                    timeout=httpx.Timeout(self._timeout_s, connect=min(self._timeout_s, connect_s)),
                    transport=self._transport,
                    # A proxy set for the internet cannot reach this machine.
                    trust_env=httpx.URL(address).host not in _LOOPBACK,
                )
            return self._opened[address]


def _checked(text: str) -> list[str]:
    """Return the addresses in `text`.

    Raises:
        UserError: one of them is none, and which.
    """
    found = split(text)
    for address in found:
        among = f" (one of {len(found)}, separated by commas)" if len(found) > 1 else ""
        try:
            parsed = httpx.URL(address)
        except (httpx.InvalidURL, ValueError) as error:
            raise UserError(
                f"{address!r}{among} is not an address: {error}", code="bad_url"
            ) from error
        port, labels = parsed.port or 1, parsed.host.split(".")
        possible = 0 < port < 1 << 16 and all(len(label) < 64 for label in labels)
        if parsed.scheme not in {"http", "https"} or not parsed.host or not possible:
            raise UserError(
                f"{address!r}{among} is not an address like {DEFAULT_URL}", code="bad_url"
            )
    return list(dict.fromkeys(address.rstrip("/") for address in found))


def _has_key(body: Any, headers: dict[str, str] | None) -> bool:
    names = {name.lower() for name, value in (headers or {}).items() if value}
    return "idempotency-key" in names or (
        isinstance(body, dict) and bool(body.get("idempotency_key"))
    )


def _away(address: str, error: httpx.TransportError) -> UnavailableError:
    # One that takes no connection is away; one that takes it and is silent may be working on it.
    if isinstance(error, httpx.TimeoutException):
        return UnavailableError(f"the control plane at {address} did not answer in time")
    return UnavailableError(f"the control plane at {address} is out of reach: {error}")


def _none_answers(troubles: list[UnavailableError]) -> UnavailableError:
    """Return what is told of those that were asked, with the code of the last."""
    if len(troubles) == 1:
        return troubles[0]
    message = "; ".join(dict.fromkeys(each.message for each in troubles))
    return UnavailableError(message, code=troubles[-1].code)


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
