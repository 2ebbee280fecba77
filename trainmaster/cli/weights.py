"""`trainmaster export-weights`: the weights of a checkpoint for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trainmaster.cli.read import AsJson
from trainmaster.cli.session import Session, segment, session_of
from trainmaster.errors import ConflictError, NotFoundError, UserError
from trainmaster.ids import parse_checkpoint_id

if TYPE_CHECKING:
    from trainmaster.checkpoint.weights import Weights
    from trainmaster.plugins import HuggingFaceForm

Format = Literal["safetensors", "hf"]


def export_weights(
    context: typer.Context,
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT_OR_PATH", help="An id, a folder, or a URL.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new or empty folder.")],
    form: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="safetensors, or hf.")
    ] = "safetensors",
    as_json: AsJson = False,
) -> None:
    """Write the weights as safetensors, or as a folder for Hugging Face; each byte is verified.

    A path or URL needs no control plane; by its id a checkpoint is found where it lies.
    """
    from trainmaster.checkpoint.export import export

    if form not in {"safetensors", "hf"}:
        raise UserError(f"--format: {form!r} is none; it is safetensors or hf")
    session = session_of(context)
    weights = opened(session, checkpoint)
    hugging_face = _hugging_face(weights) if form == "hf" else None
    done = export(
        weights,
        out,
        names=hugging_face.names if hugging_face else None,
        config=hugging_face.config if hugging_face else None,
    )
    told = {
        "run": weights.manifest.run,
        "generation": weights.manifest.generation,
        "step": weights.manifest.step,
        "out": str(out.absolute()),
        "format": form,
        "files": list(done.files),
        "tensors": done.tensors,
        "bytes": done.bytes,
        "weights_sha256": done.weights_sha256,
    }
    if as_json:
        session.output.json(told)
    else:
        session.output.line(
            f"{done.tensors} tensors of {checkpoint} ({done.bytes} bytes) are in {out}: "
            f"{', '.join(done.files)}; weights_sha256 {done.weights_sha256}."
        )


def opened(session: Session, checkpoint: str) -> Weights:
    """Return the weights of a checkpoint by its id, folder or URL.

    Raises:
        UserError: it is none of these, or not a checkpoint of this program.
        IntegrityError: its manifest or state is damaged.
        ConflictError: it is quarantined or retired.
    """
    from trainmaster.checkpoint.stores import open_location, weights_at

    location, manifest_sha256 = _located(session, checkpoint)
    storage, folder = open_location(location)
    _refuse_foreign(checkpoint, [path.partition("/")[2] for path in storage.list(folder)])
    return weights_at(location, manifest_sha256=manifest_sha256)


def _located(session: Session, checkpoint: str) -> tuple[str, str | None]:
    if parse_checkpoint_id(checkpoint) is None or Path(checkpoint).exists():
        return folder_url(checkpoint), None
    found = session.api.get(f"/v1/checkpoints/{segment('checkpoint', checkpoint)}")
    if found["state"] in {"quarantined", "retired", "writing"}:
        raise ConflictError(
            f"{checkpoint} is {found['state']}: {found['because'] or 'it cannot be used'}"
        )
    return str(found["location"]), str(found["manifest_sha256"])


def folder_url(path: str) -> str:
    """Return the URL of a folder given as a path or as a URL.

    Raises:
        UserError: it cannot be a path.
        NotFoundError: there is no such folder on this machine.
    """
    if "://" in path and not path.startswith("file:"):
        return path
    from trainmaster.checkpoint.folder import local_path

    if "\0" in path:
        raise UserError(f"{path!r} cannot be a path")
    folder = local_path(path)
    if not folder.is_dir():
        raise NotFoundError(f"{path!r} is neither a checkpoint's id nor a folder")
    return folder.resolve().as_uri()


def _refuse_foreign(checkpoint: str, names: list[str]) -> None:
    from trainmaster.checkpoint import foreign
    from trainmaster.checkpoint.manifest import MANIFEST_NAME
    from trainmaster.checkpoint.verification import checkpoints_below

    if MANIFEST_NAME in names:
        return
    if not names:
        raise UserError(f"nothing is stored at {checkpoint}")
    if ours := checkpoints_below(names):
        raise UserError(f"{checkpoint} holds checkpoints and is none: name one, such as {ours[-1]}")
    whose = foreign.recognise(names)
    if whose is not None:
        raise UserError(f"{checkpoint} is {whose}, not a checkpoint of this program")


def _hugging_face(weights: Weights) -> HuggingFaceForm:
    from trainmaster.plugins import WithHuggingFace, load_workload

    path, params, data = workload_of(weights.state.get("spec"))
    workload = load_workload(path, params=params, data=data)
    if not isinstance(workload, WithHuggingFace):
        raise UserError(
            f"the workload {path} has no form that Hugging Face's libraries know: export it as "
            "safetensors, or train worker.workloads.hf_causal_lm:workload"
        )
    return workload.hugging_face()


def workload_of(spec: object) -> tuple[str, dict[str, Any], str]:
    """Return a workload's import path, parameters and data source, as a stored spec tells them.

    Raises:
        UserError: it tells none.
    """
    match spec:
        case {"workload": str(path), **others} if path:
            params, data = others.get("params"), others.get("data")
            source = data.get("source") if isinstance(data, Mapping) else None
            return (
                path,
                dict(params) if isinstance(params, Mapping) else {},
                source if isinstance(source, str) else "workload",
            )
        case _:
            raise UserError(
                "the checkpoint does not tell which workload it is of: export it as safetensors"
            )
