"""`cordon` and `uncordon`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.read import AsJson
from trainmaster.cli.session import segment, session_of

Node = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")]


def cordon(context: typer.Context, node: Node, as_json: AsJson = False) -> None:
    """Give a node no new ranks."""
    _set(context, node, "cordon", as_json=as_json)


def uncordon(context: typer.Context, node: Node, as_json: AsJson = False) -> None:
    """Give a node ranks again."""
    _set(context, node, "uncordon", as_json=as_json)


def _set(context: typer.Context, node: str, verb: str, *, as_json: bool) -> None:
    session = session_of(context)
    found = session.api.post(f"/v1/nodes/{segment('node', node)}/{verb}")
    if as_json:
        session.output.json(found)
    else:
        session.output.line(f"{node} is {verb}ed.")
