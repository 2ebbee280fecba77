"""Why a rank ends before its time, as an exit code and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch.distributed as dist

from trainmaster.errors import ExitCode, IntegrityError, UnavailableError, UserError
from worker.model.user_code import is_out_of_memory, said_of

_LOST_PEER_SIGNS: Final = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "connectfullmesh",
    "broken pipe",
    "socket closed",
    "gloo",
)
_WRAPPERS: Final = ("failed to run forward", "Failed to run stage backward")
"""How torch's pipeline begins what it says of an error that it met."""
_TOLD_CHARS: Final = 2000
"""Of what an error says. The traceback beside it has the whole."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exit code and what a person should read."""

    exit_code: ExitCode
    because: str


def failure_of(error: BaseException) -> Failure:
    """Classify what ended a rank. A peer's death is not this rank's failure: it may try again."""
    error = origin(error)
    text = said_of(error)
    said = f"{type(error).__name__}: {text}"[:_TOLD_CHARS]
    match error:
        case UserError():
            return Failure(ExitCode.BAD_SPEC, error.message)
        case IntegrityError():
            return Failure(ExitCode.INTEGRITY, error.message)
        case UnavailableError():
            return Failure(ExitCode.TRY_AGAIN, error.message)
        case SystemExit():
            return Failure(
                ExitCode.OUR_BUG,
                f"the workload ended the process: it called exit({error.code!r}) while training",
            )
        case _ if is_out_of_memory(error):
            return Failure(ExitCode.OUT_OF_MEMORY, f"out of memory ({_first_line(said)})")
        case dist.DistError():
            return Failure(
                ExitCode.TRY_AGAIN, f"lost contact with another rank ({_first_line(said)})"
            )
        case OSError():
            return Failure(ExitCode.IO, said)
        case RuntimeError() if any(sign in text.lower() for sign in _LOST_PEER_SIGNS):
            return Failure(
                ExitCode.TRY_AGAIN, f"lost contact with another rank ({_first_line(said)})"
            )
        case _:
            return Failure(ExitCode.OUR_BUG, said)


def origin(error: BaseException) -> BaseException:
    """Return the error that torch's pipeline met, where `error` is what it made of it."""
    while error.__cause__ is not None and any(sign in said_of(error) for sign in _WRAPPERS):
        error = error.__cause__
    return error


def _first_line(text: str) -> str:
    return text.splitlines()[0][:300]
