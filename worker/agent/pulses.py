"""How long a rank has been where it is, as its pulse and the kernel say."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from trainmaster.pulse import decode
from trainmaster.wire import Pulse
from worker.reporting.pulsefile import SUFFIX

TOLD_AFTER_S: Final = 5.0
"""A rank that has come on since is not worth a word."""


def look(spool: Path, pid: int, *, now: float | None = None) -> Pulse | None:
    """Return where the rank that writes `spool` has stood for `TOLD_AFTER_S` or longer; None when
    it came on since, or nothing is known.
    """
    with contextlib.suppress(OSError):
        beat = decode(spool.with_suffix(SUFFIX).read_bytes())
        now = time.monotonic() if now is None else now
        if beat is not None and now - beat.progress_at >= TOLD_AFTER_S:
            return Pulse(
                section=beat.section.name.lower(),
                activity=beat.activity.name.lower(),
                step=max(0, beat.step),
                still_s=round(now - beat.progress_at, 3),
                idle_s=round(max(0.0, now - beat.active_at), 3),
                frozen=is_frozen(pid),
            )
    return None


def is_frozen(pid: int) -> bool:
    """Return whether the kernel has stopped a process, by a signal or for a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] in {b"T", b"t"}
