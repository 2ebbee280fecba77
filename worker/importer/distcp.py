"""Reads a torch.distributed.checkpoint directory that somebody else has written.

torch unpickles its index without limits; here it may name only the classes that describe tensors.
Each tensor is read from its place in a file by torch's loader for tensors alone.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, Final

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from trainmaster.checkpoint.tiling import Box, tiling_problem
from trainmaster.errors import UserError
from worker.importer.archive import load_tensors

INDEX: Final = ".metadata"
MAX_INDEX_BYTES: Final = 256 << 20
_NAMES: Final = {
    "Metadata",
    "MetadataIndex",
    "TensorProperties",
    "TensorStorageMetadata",
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "StorageMeta",
    "_MEM_FORMAT_ENCODING",
}


class IndexUnpickler(pickle.Unpickler):
    """Finds the classes of an index and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch.distributed.checkpoint.metadata" and name in _NAMES:
            return getattr(dcp, name)
        if module == "torch.distributed.checkpoint.filesystem" and name == "_StorageInfo":
            return _StorageInfo
        if module == "torch" and name == "Size":
            return torch.Size
        if module == "torch.serialization" and name == "_get_layout":
            return torch.serialization._get_layout
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module == "pathlib" and name in {"PosixPath", "PurePosixPath", "WindowsPath"}:
            return PurePosixPath  # where it was written; nobody opens it
        if module == "collections" and name == "OrderedDict":
            return dict
        raise pickle.UnpicklingError(f"its index names {module}.{name}, which no tensor needs")


def read_directory(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a directory by name, whole; what is no tensor is passed over.

    Raises:
        UserError: it is not such a directory, a damaged or a hostile one.
    """
    index = _index(folder / INDEX)
    places: dict[tuple[str, tuple[int, ...]], _StorageInfo] = {}
    for key, place in index.storage_data.items():
        if isinstance(key, dcp.MetadataIndex) and isinstance(place, _StorageInfo):
            places[key.fqn, tuple(key.offset or ())] = place
    found: dict[str, torch.Tensor] = {}
    for name, about in index.state_dict_metadata.items():
        if isinstance(name, str) and isinstance(about, dcp.TensorStorageMetadata):
            found[name] = _tensor(folder, name, about, places)
    return found


def _index(file: Path) -> dcp.Metadata:
    if not file.is_file() or file.stat().st_size > MAX_INDEX_BYTES:
        raise UserError(f"{INDEX}: is not there, or has more than {MAX_INDEX_BYTES} bytes")
    try:
        index = IndexUnpickler(io.BytesIO(file.read_bytes())).load()
    except Exception as error:
        raise UserError(f"{INDEX}: cannot be read: {error}") from error
    if not isinstance(index, dcp.Metadata) or not isinstance(index.storage_data, Mapping):
        raise UserError(f"{INDEX}: is not the index of a torch.distributed.checkpoint directory")
    return index


def _tensor(
    folder: Path,
    name: str,
    about: dcp.TensorStorageMetadata,
    places: Mapping[tuple[str, tuple[int, ...]], _StorageInfo],
) -> torch.Tensor:
    dtype, shape = about.properties.dtype, tuple(about.size)
    boxes = [Box(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in about.chunks]
    if not isinstance(dtype, torch.dtype) or tiling_problem(boxes) is not None:
        raise UserError(f"{name!r} {tiling_problem(boxes) or 'is of no dtype'}")
    available = sum(place.length for (key, _), place in places.items() if key == name)
    if prod(shape) * dtype.itemsize > available:
        raise UserError(f"{name!r} claims {prod(shape)} elements in {available} bytes")
    whole = torch.empty(shape, dtype=dtype)
    for box in boxes:
        place = places.get((name, box.offset))
        if place is None:
            raise UserError(f"{name!r} has no bytes for its part at {list(box.offset)}")
        part = _part(folder, name, place)
        if tuple(part.shape) != box.shape or part.dtype != dtype:
            raise UserError(f"{name!r} has a part of {list(part.shape)}, not {list(box.shape)}")
        whole[tuple(map(slice, box.offset, box.end))] = part
    return whole


def _part(folder: Path, name: str, place: _StorageInfo) -> torch.Tensor:
    file = folder / place.relative_path
    inside = "/" not in place.relative_path and not file.is_symlink() and file.is_file()
    if not inside or not 0 <= place.offset <= place.offset + place.length <= file.stat().st_size:
        raise UserError(f"{name!r} lies at a place in {place.relative_path!r} that is not there")
    with file.open("rb") as source:
        source.seek(place.offset)
        data = source.read(place.length)
    try:
        part = load_tensors(io.BytesIO(data), len(data))
    except UserError as error:
        raise UserError(f"{name!r}: {error.message}") from error
    if not isinstance(part, torch.Tensor):
        raise UserError(f"{name!r} is a {type(part).__name__}, not a tensor")
    return part
