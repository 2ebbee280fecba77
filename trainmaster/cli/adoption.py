"""`trainmaster import`: a directory of checkpoints becomes a run of this control plane."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.documents import problems_in
from trainmaster.cli.read import AsJson
from trainmaster.cli.session import Session, session_of
from trainmaster.cli.submit import checked_text
from trainmaster.cli.weights import folder_url
from trainmaster.errors import IntegrityError, TrainmasterError, UserError
from trainmaster.ids import parse_checkpoint_folder

if TYPE_CHECKING:
    from trainmaster.checkpoint.adoption import FoundCheckpoint
    from trainmaster.checkpoint.manifest import Manifest
    from trainmaster.storage import Storage

IMPORTED_FOLDER = "g1-step0"


def adopt(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A run's folder or URL, a checkpoint's, or a .pt."),
    ],
    spec: Annotated[
        Path | None,
        typer.Option("--spec", metavar="FILE", help="Go on with this spec, not the stored one."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Where a torch checkpoint is written as ours."),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="PATTERN=NAME", help="Of a torch checkpoint's tensors."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Adopt a run's checkpoints: every byte is read, what is damaged is left out, and the run is
    there, stopped, to be resumed. A torch checkpoint becomes the step 0 of a new run.
    """
    session = session_of(context)
    text, located = (None, None) if spec is None else checked_text(str(spec))
    url = _converted(session, path, text, to, rename or []) if _is_torch(path) else folder_url(path)
    storage, root, folders = _folders(url, path)
    good: list[tuple[Manifest, FoundCheckpoint, dict[str, Any]]] = []
    damaged: list[dict[str, str]] = []
    for folder in folders:
        try:
            good.append(_read(storage, folder))
        except IntegrityError as error:
            damaged.append({"checkpoint": folder, "because": error.message})
            session.output.say(f"{folder} is left out: {error.message}")
    if not good:
        raise IntegrityError(f"{path}: none of its {len(folders)} checkpoints is whole")
    asked = _adoption(path, root, good, text)
    with nullcontext() if spec is None else problems_in(str(spec), located):
        told = session.api.post("/v1/imports", asked)
    if as_json:
        session.output.json({**told, "left_out": damaged})
        return
    steps = ", ".join(str(each.step) for _, each, _ in good[-5:])
    session.output.line(
        f"{told['id']} ({told['name']}) is adopted, {told['state']}, with {len(good)} checkpoints "
        f"(the newest after steps {steps}); `trainmaster resume {told['id']}` goes on."
    )


def _folders(url: str, path: str) -> tuple[Storage, str, list[str]]:
    """Return the run's store, its URL, and the names of the checkpoints' folders, oldest first."""
    from trainmaster.checkpoint import foreign
    from trainmaster.checkpoint.manifest import MANIFEST_NAME
    from trainmaster.checkpoint.stores import open_location, open_storage

    around, folder = open_location(url)
    try:
        names = [each.removeprefix(f"{folder}/") for each in around.list(folder)]
    except OSError as error:
        raise UserError(f"{path} cannot be listed: {error}") from error
    if MANIFEST_NAME in names:
        return around, around.url, [folder]
    committed = [
        name.partition("/")[0] for name in names if name.partition("/")[2] == MANIFEST_NAME
    ]
    ours = {name: at for name in committed if (at := parse_checkpoint_folder(name)) is not None}
    if ours:
        return open_storage(url), url.rstrip("/"), sorted(ours, key=ours.__getitem__)
    is_url = "://" in path
    whose = foreign.recognise(names or [folder])
    if whose is not None:
        where = ", from a path of this machine: copy it here first" if is_url else ""
        raise UserError(
            f"{path} is {whose}: it cannot be adopted. A torch.distributed.checkpoint directory or "
            f"a .pt file of tensors can be a starting point{where}"
        )
    if is_url and not names:
        raise UserError(f"nothing is stored at {path}")
    raise UserError(f"{path} holds no checkpoint: no folder in it has a {MANIFEST_NAME}")


def _read(storage: Storage, folder: str) -> tuple[Manifest, FoundCheckpoint, dict[str, Any]]:
    """Read a whole checkpoint, every byte.

    Raises:
        IntegrityError: the first thing wrong with it.
    """
    from trainmaster.checkpoint.adoption import found
    from trainmaster.checkpoint.stores import readers, verify_stored
    from trainmaster.checkpoint.verified import open_manifest, read_state

    report = verify_stored(storage, folder)
    if not report.sound:
        raise IntegrityError(report.findings[0].message, file=report.findings[0].file)
    read, size = readers(storage, folder)
    manifest, seen = open_manifest(
        read, size, folder=folder, manifest_sha256=report.manifest_sha256
    )
    state = read_state(manifest, read, size)
    return manifest, found(manifest, seen, state, f"{storage.url}/{folder}"), state


def _adoption(
    path: str,
    root: str,
    good: Sequence[tuple[Manifest, FoundCheckpoint, dict[str, Any]]],
    text: str | None,
) -> dict[str, Any]:
    from trainmaster.checkpoint.adoption import one_run

    newest = max(good, key=lambda each: (each[1].generation, each[1].step))
    spec = text if text is not None else newest[2].get("spec")
    if spec is None:
        raise UserError(
            f"{path} does not tell the run's spec: name it with --spec FILE, as it was submitted"
        )
    return {
        "run": one_run(manifest for manifest, _, _ in good),
        "root": root,
        "spec": spec,
        "checkpoints": [each.model_dump(mode="json") for _, each, _ in good],
    }


def _is_torch(path: str) -> bool:
    from trainmaster.checkpoint import foreign

    if "://" in path or "\0" in path:
        return False
    here = Path(path)
    if here.is_dir():
        return (here / ".metadata").is_file()
    return here.is_file() and foreign.recognise([here.name]) == "a pickled torch file"


def _converted(
    session: Session, path: str, text: str | None, to: Path | None, rename: Sequence[str]
) -> str:
    """Have another process write a torch checkpoint as ours; return the URL of the run's folder.

    Raises:
        UserError: it refused the file; or nothing tells what to do with it.
    """
    if text is None or to is None:
        raise UserError(
            f"{path} is a torch checkpoint: name the spec of the run that is to begin with it "
            "(--spec FILE), and where its checkpoints are to be (--to DIR, which nodes can reach)"
        )
    if to.exists() and any(to.iterdir()):
        raise UserError(f"--to: {to} holds something already: name a new folder")
    run = "r" + secrets.token_hex(5)
    words = [sys.executable, "-m", "worker.importer", path, str(to.absolute()), "--run", run]
    for each in rename:
        words += ["--rename", each]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        told = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise TrainmasterError(
            f"reading {path} ended with exit code {done.returncode}: {last}"
        ) from None
    if "error" in told:
        raise UserError(f"{path} cannot be imported: {told['error']}")
    session.output.say(f"{told['tensors']} tensors of {path} are in {told['location']}.")
    return to.absolute().as_uri()
