"""`trainmaster plan`: the planner, for a scenario or a spec. Writes nothing."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from trainmaster.cli.beside import ask_beside, is_beside
from trainmaster.cli.documents import problems_in, read_document, read_text
from trainmaster.cli.gantt import chart
from trainmaster.cli.read import AsJson
from trainmaster.cli.session import Session, session_of
from trainmaster.errors import Problem, SpecError, UserError


def plan(
    context: typer.Context,
    scenario: Annotated[
        str | None,
        typer.Option("--scenario", metavar="FILE", help="Nodes, links and layers, as JSON."),
    ] = None,
    spec: Annotated[
        str | None, typer.Option("--spec", metavar="SPEC", help="A run spec in YAML.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="FILE", help="Its nodes instead of those that are connected."
        ),
    ] = None,
    gantt: Annotated[bool, typer.Option("--gantt", help="Draw the predicted step.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell the best plan, what it will take, and why."""
    session = session_of(context)
    if (scenario is None) == (spec is None):
        raise UserError("give either --scenario FILE or --spec SPEC")
    if cluster is not None and spec is None:
        raise UserError("--cluster goes with --spec")
    if scenario is not None:
        found = _for_scenario(session, scenario)
    else:
        assert spec is not None
        found = _for_spec(session, spec, cluster)
    if as_json:
        session.output.json(found)
    else:
        _tell(session, found)
        if gantt:
            session.output.line()
            for line in chart(found["gantt"], found["step_time_s"]):
                session.output.line(line)


def _for_scenario(session: Session, path: str) -> dict[str, Any]:
    """Ask the planner beside this command if it is there, and nobody named a control plane."""
    given = _scenario_in(path)
    with problems_in(path):
        if session.settings.url is None and is_beside("whatif"):
            return _here(given)
        asked: dict[str, Any] = session.api.post("/v1/plan", {"scenario": given})
        return asked


def _scenario_in(path: str) -> Any:
    text = read_text(path)
    try:
        return json.loads(text)
    except ValueError:
        return read_document(path).value


def _here(given: Any) -> dict[str, Any]:
    """Ask the planner beside this command.

    Raises:
        SpecError: what is wrong with the scenario.
    """
    told: dict[str, Any] = ask_beside("whatif", given, called="the planner")
    if "problems" in told:
        raise SpecError([Problem(each["path"], each["message"]) for each in told["problems"]])
    return told


def _for_spec(session: Session, spec: str, cluster: str | None) -> dict[str, Any]:
    from trainmaster.cli.cluster import read_cluster
    from trainmaster.cli.submit import checked_spec

    mapping, located = checked_spec(spec, [])
    body: dict[str, Any] = {"spec": mapping}
    if cluster is not None:
        body["cluster"] = read_cluster(cluster).model_dump(by_alias=True, exclude_defaults=True)
    with problems_in(spec, located):
        found: dict[str, Any] = session.api.post("/v1/plan", body)
        return found


def _tell(session: Session, found: dict[str, Any]) -> None:
    output, asked = session.output, found["plan"]
    output.fields(
        {
            "step": f"{found['step_time_s']:.6g} s",
            "at least": f"{found['lower_bound_s']:.6g} s",
            "micro-batch": asked["micro_batch"],
            "schedule": asked["schedule"],
            "ZeRO": asked["zero"],
        }
    )
    output.table(
        ["PIPELINE", "NODES", "LAYERS", "MICRO-BATCHES"],
        [
            [replica, each["nodes"], each["layers"], each["micro_batches"]]
            for replica, each in enumerate(asked["pipelines"])
        ],
        "There is no pipeline.",
    )
    for sentence in found["why"]:
        output.line(sentence)
    for warning in found["warnings"]:
        output.line(f"Warning: {warning}.")
