"""Whole checkpoints made by hand, as bytes by file name, without torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from trainmaster.checkpoint import manifest as manifests
from trainmaster.checkpoint.manifest import BLOCK_BYTES, FileEntry, Manifest, ShardEntry, sha256
from trainmaster.checkpoint.tensor_file import encode_header

Files = dict[str, bytes]


def entry_of(data: bytes) -> FileEntry:
    """The file's entry in a manifest, by the letter of the format."""
    starts = range(0, len(data), BLOCK_BYTES)
    return FileEntry(
        bytes=len(data),
        sha256=sha256(data),
        blocks=[sha256(data[start : start + BLOCK_BYTES]) for start in starts],
    )


def tensor_file(tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """A safetensors file of key -> (dtype, shape, bytes)."""
    header, spans = encode_header(
        [(key, dtype, shape) for key, (dtype, shape, _) in tensors.items()], {}
    )
    return header + b"".join(tensors[key][2] for key in spans)


def shard(file: str, key: str, shape: list[int], *, at: list[int] | None = None) -> ShardEntry:
    offset = [0] * len(shape) if at is None else at
    return ShardEntry(file=file, key=key, global_offset=offset, shape=shape, dtype="U8")


def seal_over(
    contents: Files, tensors: Mapping[str, list[ShardEntry]], **changes: object
) -> Manifest:
    """A manifest with right digests over files of these contents, whatever they hold."""
    fields: dict[str, object] = {
        "run": "r1",
        "generation": 1,
        "step": 20,
        "layout": {"replicas": 1},
        "parent": None,
        "files": {name: entry_of(data) for name, data in contents.items()},
        "tensors": dict(tensors),
    }
    return manifests.seal(**{**fields, **changes})


def small_checkpoint(*, fill: int = 1, step: int = 20, run: str = "r1") -> Files:
    """Two tensor files, the state and the manifest: a tensor cut in two, and a whole one."""
    files = {
        "rank-00000.safetensors": tensor_file(
            {
                "model/a": ("U8", (2, 3), bytes([fill]) * 6),
                "model/b": ("U8", (5,), bytes(range(5))),
            }
        ),
        "rank-00001.safetensors": tensor_file({"model/a": ("U8", (1, 3), bytes([fill + 1]) * 3)}),
        "state.json": json.dumps({"step": step}).encode(),
    }
    tensors = {
        "model/a": [
            shard("rank-00000.safetensors", "model/a", [2, 3]),
            shard("rank-00001.safetensors", "model/a", [1, 3], at=[2, 0]),
        ],
        "model/b": [shard("rank-00000.safetensors", "model/b", [5])],
    }
    manifest = seal_over(files, tensors, step=step, run=run)
    return {**files, manifests.MANIFEST_NAME: manifests.encode(manifest)}


def readers(files: Files) -> dict[str, Callable[..., object]]:
    """The callables that `verification.verify` reads through."""

    def get(name: str) -> bytes:
        try:
            return files[name]
        except KeyError as error:
            raise FileNotFoundError(name) from error

    return {
        "read": lambda name, offset, length: get(name)[offset : offset + length],
        "size": lambda name: len(get(name)),
        "names": lambda: list(files),
    }
