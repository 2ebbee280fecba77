"""The supervisor in the background: `up --detach` waits for its word and returns."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

from trainmaster.cli.bringup import Installation, Interrupted
from trainmaster.cli.keeping import INTERRUPTED, SUPERVISOR, keeping
from trainmaster.cli.output import Output
from trainmaster.errors import TrainmasterError, UnavailableError


def detach(wanted: Installation, *, restart: bool, output: Output) -> None:
    """Bring an installation up under a supervisor in the background; return when it is healthy.

    Raises:
        UnavailableError: it did not come up; nothing is left running.
        KeyboardInterrupt: a person did not want to wait; nothing is left running either.
    """
    reader, writer = os.pipe()
    output.stdout.flush()
    output.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            with os.fdopen(writer, "w", encoding="utf-8") as report:
                status = _supervise(wanted, report, restart=restart, output=output)
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    os.close(writer)
    try:
        last = _last_word(reader, output.say)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        raise
    if "ready" not in last:
        error = UnavailableError(
            last.get("failed")
            or f"the supervisor ended before all was up; its log: {wanted.home.log(SUPERVISOR)}"
        )
        error.exit_status = last.get("exit_status", 1)
        raise error


def _last_word(reader: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Pass on what the supervisor says while it brings things up; return its last word."""
    with os.fdopen(reader, encoding="utf-8") as pipe:
        for line in pipe:
            told: dict[str, Any] = json.loads(line)
            if "say" not in told:
                return told
            say(told["say"])
    return {}


def _supervise(wanted: Installation, report: TextIO, *, restart: bool, output: Output) -> int:
    """Be the supervisor, in a session of its own, with a log in place of the terminal."""
    os.setsid()
    log = wanted.home.log(SUPERVISOR)
    log.parent.mkdir(parents=True, exist_ok=True)
    nothing = os.open(os.devnull, os.O_RDONLY)
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (lines, 1), (lines, 2)):
        os.dup2(source, target)

    def note(sentence: str) -> None:
        output.say(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z {sentence}")

    def tell(**word: object) -> None:
        with suppress(BrokenPipeError):  # the command that waited is gone
            report.write(json.dumps(word) + "\n")
            report.flush()

    with keeping(wanted, restart=restart, say=note) as keeper:
        try:
            keeper.bring_up(lambda sentence: tell(say=sentence))
        except Interrupted:
            return INTERRUPTED
        except (TrainmasterError, OSError) as error:
            note(str(error))
            keeper.end()
            status = error.exit_status if isinstance(error, TrainmasterError) else 1
            tell(failed=str(error), exit_status=status)
            return status
        tell(ready=True)
        report.close()
        keeper.keep()
    return 0
