"""The control plane's pure programs, run in a process of their own: no side imports another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from trainmaster.cli.parts import CHECKOUT, require_application
from trainmaster.errors import UnavailableError, UserError

LIMIT_S = 600.0


def is_beside(program: str) -> bool:
    """Whether the code of `control.PROGRAM` lies beside this command."""
    try:
        require_application("control", f"{program}.py")
    except UserError:
        return False
    return True


def ask_beside(program: str, asked: Any, *, called: str) -> Any:
    """Return what `control.PROGRAM` prints for what it is asked, both JSON.

    Args:
        called: the program in a person's words.

    Raises:
        UnavailableError: it printed no JSON within LIMIT_S seconds; the message ends with its last
            words.
    """
    kept = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([str(CHECKOUT), *([kept] if kept else [])])
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"control.{program}"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": paths},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{called} did not answer within {LIMIT_S:g} s") from error
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        lines = done.stderr.strip().splitlines()
        why = lines[-1] if lines else f"it ended with status {done.returncode}"
        raise UnavailableError(f"{called} did not answer: {why}") from error
