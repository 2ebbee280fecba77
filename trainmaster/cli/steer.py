"""Commands that steer a run: requests that the control plane answers and ranks acknowledge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from trainmaster.cli.asking import TIMEOUT_S, acknowledged, ask, conclude, settled, tell
from trainmaster.cli.documents import problems_in, read_mapping
from trainmaster.cli.read import AsJson, Run
from trainmaster.cli.session import Session, segment, session_of
from trainmaster.errors import Problem, SpecError

Why = Annotated[str, typer.Option(help="The reason, for the audit log.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the acknowledgement.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for it.")]


def pause(
    context: typer.Context,
    run: Run,
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep the ranks waiting at a step boundary.")
    ] = False,
    why: Why = "",
    no_wait: NoWait = False,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Checkpoint and free the devices; with `--hold` keep them."""
    session = session_of(context)
    args = {"hold": True} if hold else {}
    request = ask(session, run, "pause", args, why)
    if not no_wait:
        request = acknowledged(session, request, timeout)
        settled(session, run, "held" if hold else "paused")
    tell(session, run, request, as_json=as_json)


def resume(
    context: typer.Context,
    run: Run,
    why: Why = "",
    no_wait: NoWait = False,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Go on: from paused, held, stopped or failed."""
    _simple(context, run, "resume", {}, why, no_wait, timeout, as_json=as_json)


def stop(
    context: typer.Context,
    run: Run,
    no_checkpoint: Annotated[
        bool, typer.Option("--no-checkpoint", help="Lose the steps since the last one.")
    ] = False,
    why: Why = "",
    no_wait: NoWait = False,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Checkpoint and end the run; `resume` may take it up again."""
    args = {"checkpoint": not no_checkpoint}
    _simple(context, run, "stop", args, why, no_wait, timeout, as_json=as_json)


def checkpoint(
    context: typer.Context,
    run: Run,
    why: Why = "",
    no_wait: NoWait = False,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Take a checkpoint now."""
    _simple(context, run, "checkpoint", {}, why, no_wait, timeout, as_json=as_json)


def restore(
    context: typer.Context,
    run: Run,
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT")],
    skip_steps: Annotated[
        int | None, typer.Option(min=0, help="Skip so many batches after the checkpoint's.")
    ] = None,
    lr_factor: Annotated[
        float | None, typer.Option(help="Multiply the learning rate by this.")
    ] = None,
    plan: Annotated[
        str | None, typer.Option(metavar="FILE", help="A YAML `parallel` section to go on with.")
    ] = None,
    forget_skips: Annotated[
        bool, typer.Option("--forget-skips", help="Consume again what was skipped so far.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be lost and would differ.")
    ] = False,
    why: Why = "",
    no_wait: NoWait = False,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Go back to a checkpoint, and change nothing unless asked to. Starts the run."""
    session = session_of(context)
    args: dict[str, Any] = {"checkpoint": checkpoint}
    if skip_steps is not None:
        args["skip_steps"] = skip_steps
    if lr_factor is not None:
        args["lr_factor"] = lr_factor
    if forget_skips:
        args["forget_skips"] = True
    with _plan_of(plan, args):
        if dry_run:
            preview = session.api.post(f"/v1/runs/{segment('run', run)}/restore-preview", args)
            _show_preview(session, preview, as_json=as_json)
            return
        request = ask(session, run, "restore", args, why)
    conclude(session, run, request, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


@contextmanager
def _plan_of(file: str | None, args: dict[str, Any]) -> Iterator[None]:
    """Put the plan in `file` among the arguments; problems with it get their lines there."""
    if file is None:
        yield
        return
    mapping, document = read_mapping(file)
    keyed = "parallel" in mapping
    args["plan"] = mapping["parallel"] if keyed else mapping
    with problems_in(file, document):
        try:
            yield
        except SpecError as error:
            raise SpecError(
                [
                    Problem(_path_in_plan(each.path, keyed=keyed), each.message)
                    for each in error.problems
                ]
            ) from error


def _path_in_plan(path: str, *, keyed: bool) -> str:
    """Return where in the file something is that the control plane knows as `plan.X`."""
    for prefix in ("plan.", "parallel."):
        if path.startswith(prefix):
            inner = path.removeprefix(prefix)
            return f"parallel.{inner}" if keyed else inner
    return path


def amend(
    context: typer.Context,
    run: Run,
    spec: Annotated[str, typer.Argument(metavar="SPEC")],
    why: Why = "",
    no_wait: NoWait = False,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Go on with a changed spec, as a new attempt."""
    session = session_of(context)
    mapping, document = read_mapping(spec)
    with problems_in(spec, document):
        request = ask(session, run, "amend", {"spec": mapping}, why)
    conclude(session, run, request, no_wait=no_wait, timeout_s=timeout, as_json=as_json)


def _simple(
    context: typer.Context,
    run: str,
    kind: str,
    args: dict[str, Any],
    why: str,
    no_wait: bool,
    timeout_s: float,
    *,
    as_json: bool,
) -> None:
    session = session_of(context)
    request = ask(session, run, kind, args, why)
    conclude(session, run, request, no_wait=no_wait, timeout_s=timeout_s, as_json=as_json)


def _show_preview(session: Session, preview: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        session.output.json(preview)
        return
    for sentence in preview.get("sentences") or []:
        session.output.line(sentence)
    if not preview.get("sentences"):
        session.output.fields(preview)
