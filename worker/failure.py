"""Why a rank ends before its time, as an exit code and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch.distributed as dist

from trainmaster.errors import ExitCode, IntegrityError, UnavailableError, UserError

_LOST_PEER_SIGNS: Final = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "connectfullmesh",
    "broken pipe",
    "socket closed",
    "gloo",
)


@dataclass(frozen=True, slots=True)
class Failure:
    """An exit code and what a person should read."""

    exit_code: ExitCode
    because: str


def failure_of(error: BaseException) -> Failure:
    """Classify what ended a rank. A peer's death is not this rank's failure: it may try again."""
    said = f"{type(error).__name__}: {error}"
    match error:
        case UserError():
            return Failure(ExitCode.BAD_SPEC, error.message)
        case IntegrityError():
            return Failure(ExitCode.INTEGRITY, error.message)
        case UnavailableError():
            return Failure(ExitCode.TRY_AGAIN, error.message)
        case dist.DistError():
            return Failure(
                ExitCode.TRY_AGAIN, f"lost contact with another rank ({_first_line(said)})"
            )
        case OSError():
            return Failure(ExitCode.IO, said)
        case RuntimeError() if any(sign in str(error).lower() for sign in _LOST_PEER_SIGNS):
            return Failure(
                ExitCode.TRY_AGAIN, f"lost contact with another rank ({_first_line(said)})"
            )
        case _:
            return Failure(ExitCode.OUR_BUG, said)


def _first_line(text: str) -> str:
    return text.splitlines()[0][:300]
