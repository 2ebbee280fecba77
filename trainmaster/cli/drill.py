"""`trainmaster drill`: a fault injected on purpose."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

import typer

from trainmaster.cli.asking import TIMEOUT_S, ask, conclude
from trainmaster.cli.read import AsJson, Run
from trainmaster.cli.session import session_of
from trainmaster.cli.steer import NoWait, Timeout, Why
from trainmaster.errors import UserError


class FaultName(StrEnum):
    """`trainmaster.orders.Fault` as choices of an argument."""

    KILL = "kill"
    HANG = "hang"
    SLOW = "slow"
    NAN = "nan"
    SPIKE = "spike"
    CORRUPT = "corrupt"
    DISCONNECT = "disconnect"


_SPAN = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>s|min|m|h|steps?)")
_UNIT_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def drill(
    context: typer.Context,
    run: Run,
    fault: Annotated[FaultName, typer.Argument(metavar="FAULT")],
    rank: Annotated[int | None, typer.Option(min=0, help="Which rank; default 0.")] = None,
    node: Annotated[str | None, typer.Option(help="Which node.")] = None,
    at_step: Annotated[int | None, typer.Option(min=1, help="From this step; default now.")] = None,
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="10s|5steps", help="For how long.")
    ] = None,
    sticky: Annotated[
        bool, typer.Option("--sticky", help="Fire again for the same batches later.")
    ] = False,
    why: Why = "",
    no_wait: NoWait = False,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Inject kill, hang, slow, nan, spike, corrupt or disconnect; allowed only where configured.

    The control plane must run with TRAINMASTER_ALLOW_DRILLS=1. Always audited.
    """
    session = session_of(context)
    chosen = {"rank": rank, "node": node, "at_step": at_step, "sticky": sticky or None}
    args: dict[str, Any] = {"fault": fault.value}
    args |= {name: value for name, value in chosen.items() if value is not None}
    if lasting is not None:
        args |= span_of(lasting, fault.value)
    request = ask(session, run, "drill", args, why)
    conclude(session, run, request, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


def span_of(text: str, fault: str) -> dict[str, Any]:
    """Return `{"steps": 5}` or `{"duration_s": 10.0}` for `5steps` or `10s`.

    Raises:
        UserError: not a span, or of the kind that this fault does not take.
    """
    from trainmaster.orders import NUMERIC_FAULTS  # pydantic costs a twentieth of a second

    match = _SPAN.fullmatch(text.strip())
    if match is None or float(match["number"]) <= 0:
        raise UserError(f"--for {text!r}: write 10s, 2min or 5steps")
    if match["unit"].startswith("step"):
        if fault not in NUMERIC_FAULTS:
            raise UserError(f"--for {text}: {fault} lasts for a time, such as 10s")
        if "." in match["number"]:
            raise UserError(f"--for {text}: steps are whole")
        return {"steps": int(match["number"])}
    if fault in NUMERIC_FAULTS:
        raise UserError(f"--for {text}: {fault} lasts for a number of steps, such as 5steps")
    return {"duration_s": float(match["number"]) * _UNIT_S[match["unit"]]}
