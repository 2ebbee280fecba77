"""The example run: submitted once, and followed on every later start until it is over."""

from __future__ import annotations

from typing import Any

from trainmaster.cli.documents import problems_in, read_mapping
from trainmaster.cli.pace import TERMINAL
from trainmaster.cli.parts import CHECKOUT
from trainmaster.cli.session import Api

EXAMPLE = CHECKOUT / "examples" / "stdlib_gpt.yaml"


def ensure_demo(api: Api) -> tuple[dict[str, Any], bool]:
    """Return the example run, and whether it was submitted just now.

    One that is not over goes on by itself, or waits for the person who paused it.

    Raises:
        UserError: the example cannot be read, or the control plane refuses it.
    """
    spec, document = read_mapping(str(EXAMPLE))
    for run in reversed(api.get("/v1/runs")):
        if run["name"] == spec["name"] and run["state"] not in TERMINAL:
            return run, False
    with problems_in(str(EXAMPLE), document):
        created: dict[str, Any] = api.post("/v1/runs", {"spec": spec})
    return created, True
