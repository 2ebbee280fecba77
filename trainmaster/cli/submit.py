"""`submit`: a spec becomes a run."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.documents import problems_in, read_mapping, read_text
from trainmaster.cli.read import AsJson
from trainmaster.cli.session import Session, session_of

if TYPE_CHECKING:
    from trainmaster.document import Document

Spec = Annotated[str, typer.Argument(metavar="SPEC", help="A run spec in YAML.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=YAMLVALUE", help="Change one value of the spec."),
]


def submit(
    context: typer.Context,
    spec: Spec,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the run to its end.")] = False,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Submit a run. With `--wait` the exit status is 0 only if it succeeded."""
    session = session_of(context)
    mapping, document = checked_spec(spec, sets or [])
    with problems_in(spec, document):
        run: dict[str, Any] = session.api.post(
            "/v1/runs", {"spec": mapping, "idempotency_key": uuid.uuid4().hex}
        )
    if not wait:
        if as_json:
            session.output.json(run)
        else:
            session.output.line(f"Run {run['id']} ({run['name']}) is {run['state']}.")
        return
    session.output.say(f"run {run['id']} ({run['name']})")
    last = _followed(session, run["id"])
    if as_json:
        session.output.json(last)
    else:
        because = f": {last['because']}" if last.get("because") else ""
        session.output.line(f"Run {last['id']} {last['state']} at step {last['step']}{because}")
    if last["state"] != "succeeded":
        raise typer.Exit(1)


def checked_spec(path: str, settings: list[str]) -> tuple[dict[str, Any], Document]:
    """Return the spec in a file with `settings` applied, once all that can be judged here is.

    Raises:
        UserError: the file cannot be read, or a setting cannot be applied.
        DocumentError: all problems, each with its line.
    """
    from trainmaster import document
    from trainmaster.spec import RunSpec

    mapping, located = read_mapping(path, settings)
    with problems_in(path, located):
        document.validate(RunSpec, located)
    return mapping, located


def checked_text(path: str) -> tuple[str, Document]:
    """Return the text of a spec that `checked_spec` takes, and where its values stand.

    Raises:
        UserError, DocumentError: as `checked_spec`.
    """
    _, located = checked_spec(path, [])
    return read_text(path), located


def _followed(session: Session, run: str) -> dict[str, Any]:
    from trainmaster.cli.follow import follow
    from trainmaster.cli.progress import display_on

    display = display_on(session.output.stderr)
    try:
        last = follow(session.api, run, display, sleep=session.sleep, monotonic=session.monotonic)
    except KeyboardInterrupt:
        display.close()
        session.output.say(f"The run goes on; `trainmaster show {run}` tells how it stands.")
        raise
    finally:
        display.close()
    assert last is not None
    return last
