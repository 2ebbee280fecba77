"""Runs a command that ends with its parent: `python -m trainmaster.cli.tether PARENT COMMAND...`

A separate program rather than a hook between fork and exec, because the process that starts parts
also runs threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def tethered(command: tuple[str, ...]) -> list[str]:
    """Return the command line that runs `command` as a child that ends with this process."""
    return [sys.executable, "-m", "trainmaster.cli.tether", str(os.getpid()), *command]


def main() -> None:
    """Ask the kernel for SIGTERM at the parent's death, and become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before it could be watched
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
