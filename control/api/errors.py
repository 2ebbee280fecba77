"""Refusals as RFC 9457 problem documents. The one place where any exception becomes an answer; none
shows a traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from control.api.answers import Answer
from trainmaster import document
from trainmaster.errors import Problem, SpecError, TrainmasterError, UnavailableError

log = logging.getLogger(__name__)

_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}


def problem(
    status: int,
    code: str,
    detail: str,
    problems: Sequence[Problem] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """Return a problem document."""
    body: dict[str, Any] = {
        "type": f"urn:trainmaster:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }
    if problems:
        body["problems"] = [
            {"path": each.path, "message": each.message, "line": each.line} for each in problems
        ]
    return Answer(body, status_code=status, headers=headers, media_type="application/problem+json")


def answer_error(error: TrainmasterError) -> Response:
    """Return what the caller is told of one of our errors."""
    if error.http_status >= 500 and not error.retryable:
        log.error("%s: %s", error.code, error.message)
    headers = {"WWW-Authenticate": "Bearer"} if error.http_status == 401 else None
    if isinstance(error, UnavailableError):
        headers = {"Retry-After": str(error.retry_after_s)}
    problems = error.problems if isinstance(error, SpecError) else ()
    return problem(error.http_status, error.code, error.message, problems, headers)


def install(app: FastAPI) -> None:
    """Have every error of `app` answered as a problem document."""

    async def ours(_request: Request, error: Exception) -> Response:
        assert isinstance(error, TrainmasterError)
        return answer_error(error)

    async def validation(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = _problems(error)
        detail = "\n".join(map(str, problems))
        return problem(422, "bad_request", detail, problems)

    async def http(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "bad_request")
        headers = dict(error.headers) if error.headers else None
        return problem(error.status_code, code, str(error.detail), headers=headers)

    async def unexpected(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(500, "internal", "the control plane has a bug here; its log says more")

    app.add_exception_handler(TrainmasterError, ours)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)


def _problems(error: RequestValidationError) -> list[Problem]:
    """Return what is wrong with a request, in the words in which a spec's problems are told."""
    problems: list[Problem] = []
    in_body = []
    for each in error.errors():
        where, *path = each["loc"]
        inner = {**each, "loc": path}
        if where == "body":
            in_body.append(inner)
        else:
            problems += document.body_problems([inner], dict.fromkeys(path[:1], each["input"]))
    return problems + document.body_problems(in_body, error.body)
