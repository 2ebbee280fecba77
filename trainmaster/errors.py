"""Errors by who can mend them, and exit codes as facts.

A failure of training is a fact that a rank leaves behind as its exit code, not an exception that
travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class TrainmasterError(Exception):
    """Root of all errors raised on purpose.

    Attributes:
        code: stable, snake_case; outsiders may branch on it.
        http_status: what the API answers.
        exit_status: what the command line returns.
        retryable: whether the same call may succeed later without a change.
    """

    code = "error"
    http_status = 500
    exit_status = 1
    retryable = False

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class UserError(TrainmasterError):
    """The caller must change something; trying again as it is cannot help."""

    code = "bad_request"
    http_status = 400
    exit_status = 2


class NotFoundError(UserError):
    """No such run, checkpoint, rule, node."""

    code = "not_found"
    http_status = 404


class UnauthenticatedError(UserError):
    """No token, or one that is unknown or revoked."""

    code = "unauthenticated"
    http_status = 401
    exit_status = 4


class ForbiddenError(UserError):
    """The token's role does not allow this."""

    code = "forbidden"
    http_status = 403
    exit_status = 4


class ConflictError(TrainmasterError):
    """The state has moved, or does not allow this now: look again, then decide."""

    code = "conflict"
    http_status = 409
    exit_status = 4


class UnavailableError(TrainmasterError):
    """A database, a store or a control plane is out of reach: back off and try again.

    Attributes:
        retry_after_s: when trying again may make sense.
    """

    retry_after_s = 1
    code = "unavailable"
    http_status = 503
    exit_status = 3
    retryable = True


class IntegrityError(TrainmasterError):
    """Bytes are not what their digest says. Never ignored, never retried.

    Attributes:
        file: the file that is wrong, as the manifest names it, where one is.
        block: index of the wrong block in it, from 0; None when the file as a whole is meant.
        expected: what should have been there.
        seen: what was there.
    """

    code = "integrity"
    http_status = 500
    exit_status = 1

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        block: int | None = None,
        expected: str | None = None,
        seen: str | None = None,
    ) -> None:
        super().__init__(message)
        self.file = file
        self.block = block
        self.expected = expected
        self.seen = seen


MAX_PATH_CHARS = 300
MAX_MESSAGE_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input: where, and what to do about it. An input may be long, so the
    middle of what is told of it may be left out.
    """

    path: str
    message: str
    line: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", _shortened(self.path, MAX_PATH_CHARS))
        object.__setattr__(self, "message", _shortened(self.message, MAX_MESSAGE_CHARS))

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}...{text[-half:]}"


class SpecError(UserError):
    """An input document with all its problems at once."""

    code = "bad_spec"
    http_status = 422

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "a SpecError names at least one problem"
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class ExitCode(IntEnum):
    """What a rank's exit status says (sysexits numbers where one fits)."""

    DONE = 0
    NUMERIC_STOP = 65
    INTEGRITY = 66
    OUR_BUG = 70
    OUT_OF_MEMORY = 71
    IO = 74
    TRY_AGAIN = 75
    BAD_SPEC = 78
