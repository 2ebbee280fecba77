"""Commands about channels of notifications."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.read import AsJson
from trainmaster.cli.session import segment, session_of

app = typer.Typer(no_args_is_help=True, help="Where notifications go.")


@app.command("list")
def list_channels(context: typer.Context, as_json: AsJson = False) -> None:
    """List the channels; their addresses are not shown."""
    session = session_of(context)
    found = session.api.get("/v1/channels")
    if as_json:
        session.output.json(found)
        return
    session.output.table(
        ["CHANNEL", "KIND", "FROM", "BY DEFAULT"],
        [[each["name"], each["kind"], each["least_severity"], each["default"]] for each in found],
        "There are no channels: name a file in TRAINMASTER_CHANNELS_FILE at the control plane.",
    )


@app.command("test")
def send_test(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    as_json: AsJson = False,
) -> None:
    """Send a test to one channel now."""
    session = session_of(context)
    sent = session.api.post(f"/v1/channels/{segment('channel', name)}/test")
    if as_json:
        session.output.json(sent)
        return
    session.output.line(f"The test was sent to {name}.")
