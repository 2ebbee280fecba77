"""What is told of a run that is to be adopted: its checkpoints, as their manifests and states tell
of themselves. The wire format of `POST /v1/imports`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from trainmaster.checkpoint.manifest import Count, Digest, Manifest
from trainmaster.errors import UserError
from trainmaster.ids import parse_checkpoint_id

MAX_CHECKPOINTS = 10_000
RUN_ID = r"^[a-z0-9][a-z0-9_]{0,62}$"
Range = Annotated[list[Annotated[int, Field(ge=1, lt=2**53)]], Field(min_length=2, max_length=2)]


class Fact(BaseModel):
    """Frozen and without coercion; what it does not know it refuses."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FoundCheckpoint(Fact):
    """A checkpoint whose bytes were found right.

    Attributes:
        location: URL of its folder, as nodes are to read it.
        parent: id of the checkpoint at which its generation began.
        layout: the plan of its generation; {} where it was made by another program.
        skip: inclusive ranges of batches that its generation skipped.
        lr_windows: [first step, last step, factor] of its generation.
    """

    generation: Annotated[int, Field(ge=1, lt=2**31)]
    step: Count
    location: Annotated[str, Field(max_length=4000)]
    manifest_sha256: Digest
    bytes: Count
    files: Count
    parent: Annotated[str, Field(max_length=200)] | None = None
    layout: dict[str, Any] = {}
    skip: list[Range] = []
    lr_windows: list[Annotated[list[float], Field(min_length=3, max_length=3)]] = []


class Adoption(Fact):
    """A run, and the spec with which it goes on.

    Attributes:
        spec: as in `POST /v1/runs`: a mapping, or YAML.
        root: URL of the run's folder.
    """

    run: Annotated[str, Field(pattern=RUN_ID)]
    root: Annotated[str, Field(max_length=4000)]
    spec: dict[str, Any] | str
    checkpoints: Annotated[list[FoundCheckpoint], Field(min_length=1, max_length=MAX_CHECKPOINTS)]


def found(
    manifest: Manifest, manifest_sha256: str, state: dict[str, Any], location: str
) -> FoundCheckpoint:
    """Return what a checkpoint tells of itself.

    Raises:
        UserError: its state holds skip ranges or windows that are none.
    """
    parent = manifest.parent.checkpoint if manifest.parent else None
    try:
        return FoundCheckpoint(
            generation=manifest.generation,
            step=manifest.step,
            location=location,
            manifest_sha256=manifest_sha256,
            bytes=manifest.total_bytes,
            files=len(manifest.files),
            parent=parent,
            layout=manifest.layout,
            skip=state.get("skip", []),
            lr_windows=[list(map(float, each)) for each in state.get("lr_windows", [])],
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"{location} cannot be adopted: state.json: {error}") from error


def one_run(manifests: Iterable[Manifest]) -> str:
    """Return the run that all manifests are of.

    Raises:
        UserError: they are of several.
    """
    runs = sorted({manifest.run for manifest in manifests})
    if len(runs) != 1:
        raise UserError(
            f"the folder holds checkpoints of {len(runs)} runs ({', '.join(runs[:5])}): name the "
            "folder of one"
        )
    return runs[0]


def lineage_parent(parent: str | None, run: str) -> tuple[int, int] | None:
    """Return (generation, step) of the checkpoint at which a generation began, None at nothing.

    Raises:
        UserError: it is of another run.
    """
    if parent is None:
        return None
    parsed = parse_checkpoint_id(parent)
    if parsed is None or parsed[0] != run:
        raise UserError(f"{parent!r} is named as a parent, and is no checkpoint of {run}")
    return parsed[1], parsed[2]
