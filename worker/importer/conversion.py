"""The tensors of a torch checkpoint as a checkpoint of ours, after step 0."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from trainmaster.checkpoint.stores import open_storage
from trainmaster.checkpoint.weights import PREFIX
from trainmaster.errors import UserError
from worker.checkpoint.tensors import DTYPE_NAMES
from worker.checkpoint.writer import save
from worker.importer.archive import load_tensors
from worker.importer.distcp import read_directory

MAX_NESTING: Final = 8
_CONTAINERS: Final = ("model", "state_dict", "module", "model_state_dict")
"""Under these names programs keep the weights beside other things."""


def convert(source: Path, folder: Path, run: str, rename: Sequence[str]) -> dict[str, Any]:
    """Write the tensors of `source` as the checkpoint `g1-step0` of `run` in `folder`.

    Raises:
        UserError: it is no torch checkpoint of tensors, or a hostile one; what is wrong with it.
    """
    found = read_directory(source) if source.is_dir() else read_file(source)
    tensors = _renamed(_checked(found), rename)
    saved = save(
        open_storage(folder.absolute().as_uri()),
        run=run,
        generation=1,
        step=0,
        layout={},
        parent=None,
        tensors={PREFIX + name: tensor for name, tensor in tensors.items()},
        state={"step": 0, "applied_updates": 0, "imported_from": source.name},
        group=None,
        rank=0,
        world_size=1,
    )
    return {
        "location": saved.location,
        "manifest_sha256": saved.manifest_sha256,
        "tensors": len(tensors),
        "bytes": saved.bytes,
    }


def read_file(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a `.pt` by name.

    Raises:
        UserError: it holds more than tensors, or claims more bytes than it has.
    """
    with file.open("rb") as source:
        loaded = load_tensors(source, file.stat().st_size)
    return dict(_flattened(loaded))


def _flattened(loaded: object, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if not isinstance(loaded, Mapping):
        raise UserError(f"it holds a {type(loaded).__name__}, not tensors by name")
    inner = [loaded[name] for name in _CONTAINERS if depth == 0 and name in loaded]
    weights: Mapping[Any, Any] = next((each for each in inner if isinstance(each, Mapping)), loaded)
    for key, value in weights.items():
        if not isinstance(key, str):
            raise UserError(f"it has the name {key!r}, which is no text")
        if isinstance(value, torch.Tensor):
            yield prefix + key, value
        elif isinstance(value, Mapping) and depth < MAX_NESTING:
            yield from _flattened(value, f"{prefix}{key}.", depth + 1)


def _checked(found: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if not found:
        raise UserError("there is no tensor in it")
    for name, tensor in found.items():
        if tensor.layout is not torch.strided or tensor.dtype not in DTYPE_NAMES:
            raise UserError(f"{name!r} is {tensor.dtype}, {tensor.layout}: it cannot be kept")
        storage_bytes = tensor.untyped_storage().nbytes()
        if tensor.numel() * tensor.element_size() > max(storage_bytes, 1):
            raise UserError(f"{name!r} claims {tensor.numel()} elements in {storage_bytes} bytes")
    return {name: tensor.detach().contiguous() for name, tensor in found.items()}


def _renamed(tensors: Mapping[str, torch.Tensor], rename: Sequence[str]) -> dict[str, torch.Tensor]:
    renamed = dict(tensors)
    for rule in rename:
        pattern, sign, replacement = rule.partition("=")
        try:
            matches = re.compile(pattern)
            renamed = {matches.sub(replacement, name): tensor for name, tensor in renamed.items()}
        except re.error as error:
            raise UserError(f"--rename {rule!r}: {error}") from error
        if not sign:
            raise UserError(f"--rename {rule!r} is not of the form PATTERN=NAME")
    if len(renamed) < len(tensors):
        raise UserError("--rename gives two tensors one name")
    return renamed
