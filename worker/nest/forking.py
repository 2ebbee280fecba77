"""How the nest's children come to be: forked, bound to their parent's life, each in a session."""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.errors import ExitCode

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class LossyFile(io.FileIO):
    """A file whose writes never fail: what a full disk or a vanished reader does not take is lost.

    What is printed is for people; no rank ends because a line of its log cannot be kept.
    """

    def write(self, data: Buffer, /) -> int:
        """Write what can be written, and say that all was."""
        size = memoryview(data).nbytes
        try:
            written = super().write(data)
        except OSError:
            return size
        return size if written is None else written


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies; end at once if it already has."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(ExitCode.TRY_AGAIN)


def fork(body: Callable[[], int], *, log: Path, close: Iterable[int]) -> int:
    """Fork a child that runs `body` and exits with what it returns; return the child's pid.

    The child leads a session of its own, is killed when this process dies, reads nothing from
    stdin, appends what it prints to `log`, and holds none of the descriptors in `close`.
    """
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code: int = ExitCode.OUR_BUG
    try:
        die_with_parent(parent)
        os.setsid()
        _forget_signals()
        for descriptor in close:
            os.close(descriptor)
        _redirect(log)
        code = body()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    finally:
        # Nothing of the nest's own may run in the child, whatever was raised.
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _forget_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _redirect(log: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)
    os.close(output)
    print_what_fits()


def print_what_fits() -> None:
    """Let nothing that is printed from here on raise."""
    sys.stdout, sys.stderr = _lines(1), _lines(2)


def _lines(descriptor: int) -> io.TextIOWrapper:
    file = io.BufferedWriter(LossyFile(descriptor, "wb", closefd=False))
    return io.TextIOWrapper(file, "utf-8", "backslashreplace", line_buffering=True)
