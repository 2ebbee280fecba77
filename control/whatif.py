"""`python -m control.whatif`: the planner for a scenario on stdin, without a control plane.

Writes one JSON document: the plan, or `{"code", "problems": [{"path", "message"}]}` with exit
status 2.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, TextIO

from control.planner.answer import answer
from trainmaster.errors import Problem, SpecError


def main(source: TextIO, target: TextIO) -> int:
    """Answer one scenario; return the exit status."""
    try:
        told: dict[str, Any] = answer(json.load(source), clock=time.perf_counter)
        status = 0
    except ValueError as error:
        problems = [Problem("", f"is not JSON: {error}")]
        told, status = refusal(SpecError(problems)), 2
    except SpecError as error:
        told, status = refusal(error), 2
    json.dump(told, target, allow_nan=False)
    target.write("\n")
    return status


def refusal(error: SpecError) -> dict[str, Any]:
    """Return a refusal as plain values."""
    return {
        "code": error.code,
        "problems": [{"path": each.path, "message": each.message} for each in error.problems],
    }


if __name__ == "__main__":
    sys.exit(main(sys.stdin, sys.stdout))
