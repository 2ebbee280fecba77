"""Commands about checkpoints: verify, pin, unpin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster.cli.asking import answered
from trainmaster.cli.read import AsJson
from trainmaster.cli.session import Session, segment, session_of
from trainmaster.errors import UserError
from trainmaster.ids import parse_checkpoint_id

Checkpoint = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The checkpoint's id.")]

VERIFY_TIMEOUT_S = 3600.0


def verify(
    context: typer.Context,
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT_OR_PATH")],
    as_json: AsJson = False,
) -> None:
    """Read a checkpoint's bytes and compare their digests. A path needs no control plane.

    Exit status 1 tells that something is wrong: the file, what was expected, and what was seen.
    """
    session = session_of(context)
    if parse_checkpoint_id(checkpoint) is not None and not Path(checkpoint).exists():
        result = _verified_by_a_node(session, checkpoint)
    else:
        result = _verified_here(checkpoint)
    if as_json:
        session.output.json(result)
    for finding in result["findings"]:
        session.output.say(finding["message"])
    if not result["ok"]:
        raise typer.Exit(1)
    if not as_json:
        session.output.line(f"{checkpoint}: every digest is as its manifest says.")


def _verified_here(path: str) -> dict[str, Any]:
    from trainmaster.checkpoint.folder import local_path, verify_folder
    from trainmaster.checkpoint.stores import verify_location

    if "://" in path and not path.startswith("file:"):
        report = verify_location(path)
        return {"location": path, **report.model_dump(mode="json")}
    folder = local_path(path)
    if "\0" in path or not folder.is_dir():
        raise UserError(f"{path!r} is neither a checkpoint's id nor a folder")
    report = verify_folder(folder)
    return {"location": folder.absolute().as_uri(), **report.model_dump(mode="json")}


def _verified_by_a_node(session: Session, checkpoint: str) -> dict[str, Any]:
    path = f"/v1/checkpoints/{segment('checkpoint', checkpoint)}"
    return answered(session, session.api.post(f"{path}/verify"), VERIFY_TIMEOUT_S)


def pin(context: typer.Context, checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """Keep a checkpoint from retirement."""
    _mark(context, checkpoint, "pin", as_json=as_json)


def unpin(context: typer.Context, checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """Let retention decide about a checkpoint again."""
    _mark(context, checkpoint, "unpin", as_json=as_json)


def _mark(context: typer.Context, checkpoint: str, verb: str, *, as_json: bool) -> None:
    session = session_of(context)
    path = f"/v1/checkpoints/{segment('checkpoint', checkpoint)}/{verb}"
    found = session.api.post(path)
    if as_json:
        session.output.json(found)
    else:
        session.output.line(f"{checkpoint} is {verb}ned.")
