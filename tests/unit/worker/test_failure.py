"""What ended a rank becomes an exit code and a sentence."""

from __future__ import annotations

import errno

import pytest
import torch.distributed as dist

from trainmaster.errors import (
    ExitCode,
    IntegrityError,
    Problem,
    SpecError,
    UnavailableError,
    UserError,
)
from worker.failure import failure_of

CLOSED = (
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecError([Problem("params", "is wrong")]), ExitCode.BAD_SPEC),
        (UserError("another model"), ExitCode.BAD_SPEC),
        (IntegrityError("a block differs"), ExitCode.INTEGRITY),
        (UnavailableError("the store is away"), ExitCode.TRY_AGAIN),
        (OSError(errno.ENOSPC, "No space left on device"), ExitCode.IO),
        (RuntimeError(CLOSED), ExitCode.TRY_AGAIN),
        (dist.DistNetworkError("the store is gone"), ExitCode.TRY_AGAIN),
        (dist.DistBackendError("the backend is gone"), ExitCode.TRY_AGAIN),
        (RuntimeError("shapes do not match"), ExitCode.OUR_BUG),
        (AssertionError(), ExitCode.OUR_BUG),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_exit_code_says_who_can_mend_it(error: Exception, code: ExitCode) -> None:
    assert failure_of(error).exit_code is code


def test_a_lost_peer_is_told_in_one_line() -> None:
    because = failure_of(RuntimeError(CLOSED + "\nException raised from ...\n#1 ...")).because
    assert because.startswith("lost contact with another rank (RuntimeError: [../third_party")
    assert "\n" not in because


class UntoldError(RuntimeError):
    """Of a workload: it cannot even say what it is."""

    def __str__(self) -> str:
        raise ValueError("nor why")


def test_an_error_that_cannot_be_told_is_named_by_its_type() -> None:
    failure = failure_of(UntoldError())
    assert failure.exit_code is ExitCode.OUR_BUG
    assert failure.because == "UntoldError: <exception str() failed>"


def test_what_is_no_exception_is_named_by_its_type_too() -> None:
    assert failure_of(KeyboardInterrupt()).because.startswith("KeyboardInterrupt")


def test_of_a_long_text_the_beginning_is_told_with_the_type() -> None:
    because = failure_of(ValueError("x" * 10**6)).because
    assert because.startswith("ValueError: xxx")
    assert len(because) == 2000
