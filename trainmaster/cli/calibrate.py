"""`trainmaster calibrate`: have nodes measure what they and their links can do."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainmaster.cli.asking import answered
from trainmaster.cli.quantities import bytes_text
from trainmaster.cli.read import AsJson
from trainmaster.cli.session import Session, segment, session_of
from trainmaster.cli.submit import checked_text
from trainmaster.errors import ConflictError, TrainmasterError, UserError

TIMEOUT_S = 900.0


def calibrate(
    context: typer.Context,
    node: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="All that are present unless named.")
    ] = None,
    spec: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Measure the layers of its workload, too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure nodes one after the other, and wait for it; the planner goes by what was found.

    Exit status 1 tells that a node could not be measured.
    """
    session = session_of(context)
    text = None if spec is None else checked_text(spec)[0]
    names = [node] if node is not None else _present(session)
    found, failed = [], []
    for name in names:
        try:
            found.append(_calibrated(session, name, text))
        except TrainmasterError as error:
            if node is not None:
                raise
            failed.append(name)
            session.output.say(f"{name} was not measured: {error.message}")
    if as_json:
        session.output.json(found)
    elif found:
        _tell(session, found)
    if failed:
        raise typer.Exit(1)


def _present(session: Session) -> list[str]:
    names = [each["name"] for each in session.api.get("/v1/nodes") if each["state"] != "lost"]
    if not names:
        raise UserError("there is no node to calibrate: `trainmaster agent` makes a machine one")
    return names


def _calibrated(session: Session, name: str, spec: str | None) -> dict[str, Any]:
    path = f"/v1/nodes/{segment('node', name)}"
    request = session.api.post(f"{path}/calibrate", {"spec": spec} if spec else None)
    done = answered(session, request, TIMEOUT_S)
    if done["state"] == "refused" or not done["ok"]:
        because = "; ".join(each["message"] for each in done.get("findings") or [])
        raise TrainmasterError(f"{name} could not be measured: {because or 'no reason was given'}")
    profile = session.api.get(path).get("profile") or {}
    if "calibration" not in profile:
        raise ConflictError(f"what {name} found could not be read: upgrade its agent")
    return {"node": name, "calibration": profile["calibration"]}


def _tell(session: Session, found: list[dict[str, Any]]) -> None:
    session.output.table(
        ["NODE", "DEVICE", "FLOP/S", "LAYER", "MEMORY", "TO DEVICE"],
        [
            [
                each["node"],
                figures["device"],
                ", ".join(f"{dtype} {_figure(of)}" for dtype, of in figures["flops"].items())
                or "-",
                "-"
                if figures["layer_time_s"] is None
                else f"{figures['layer_time_s']['value'] * 1e3:.3g} ms",
                _rate(figures["memory_bytes_per_s"]),
                _rate(figures["to_device_bytes_per_s"]),
            ]
            for each in found
            for figures in [each["calibration"]]
        ],
        "",
    )
    links = [
        [
            each["node"],
            peer,
            f"{link['latency_s'] * 1e3:.3g} ms",
            f"{bytes_text(link['bytes_per_s'])}/s",
            f"{link['residual']:.0%}",
        ]
        for each in found
        for peer, link in each["calibration"]["links"].items()
    ]
    if links:
        session.output.line()
        session.output.table(["FROM", "TO", "LATENCY", "CARRIES", "FIT OFF BY"], links, "")
    for each in found:
        for peer, because in each["calibration"]["unmeasured"].items():
            session.output.say(f"from {each['node']} to {peer}: not measured: {because}")


def _figure(figure: dict[str, float]) -> str:
    return f"{figure['value']:.3g} (spread {figure['spread']:.0%})"


def _rate(figure: dict[str, float] | None) -> str:
    return "-" if figure is None else f"{bytes_text(figure['value'])}/s"
