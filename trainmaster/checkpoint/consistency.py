"""Whether a manifest agrees with itself.

Its digests prove that it is as it was written, not that what was written makes sense.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmaster.checkpoint.manifest import (
    BLOCK_BYTES,
    MANIFEST_NAME,
    STATE_NAME,
    Manifest,
    ShardEntry,
)
from trainmaster.checkpoint.tensor_file import DTYPE_BYTES, MAX_AXES
from trainmaster.checkpoint.tiling import Box, tiling_problem
from trainmaster.ids import parse_checkpoint_folder


def contradiction(manifest: Manifest, folder: str | None = None) -> str | None:
    """Return what in the manifest cannot be, or None.

    Args:
        folder: the name of the checkpoint's folder; one of the form gG-stepS must agree with it.
    """
    named = parse_checkpoint_folder(folder) if folder is not None else None
    if named is not None and named != (manifest.generation, manifest.step):
        return (
            f"is that of generation {manifest.generation}, step {manifest.step}, but lies in the"
            f" folder {folder}"
        )
    if STATE_NAME not in manifest.files:
        return f"names no {STATE_NAME}"
    if MANIFEST_NAME in manifest.files:
        return "names itself as one of its files"
    for name, entry in manifest.files.items():
        if len(entry.blocks) != -(-entry.bytes // BLOCK_BYTES):
            return f"gives {name} {entry.bytes} bytes in {len(entry.blocks)} blocks"
    places: set[tuple[str, str]] = set()
    for tensor, shards in manifest.tensors.items():
        problem = _shards_problem(manifest, shards)
        if problem is not None:
            return f"tensor {tensor!r} {problem}"
        here = {(shard.file, shard.key) for shard in shards}
        if len(here) < len(shards) or here & places:
            return f"tensor {tensor!r} shares its bytes in a file with another shard"
        places |= here
    return None


def _shards_problem(manifest: Manifest, shards: Sequence[ShardEntry]) -> str | None:
    for shard in shards:
        if shard.file not in manifest.files or shard.file == STATE_NAME:
            return f"has a shard in {shard.file}, which is not one of its tensor files"
        if shard.dtype not in DTYPE_BYTES:
            return f"has the unknown dtype {shard.dtype[:40]!r}"
        if len(shard.shape) > MAX_AXES or len(shard.shape) != len(shard.global_offset):
            return "has a shard whose shape and offset do not fit each other"
    if len({shard.dtype for shard in shards}) > 1:
        return "has shards of different dtypes"
    return tiling_problem([Box(tuple(shard.global_offset), tuple(shard.shape)) for shard in shards])
