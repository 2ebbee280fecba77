"""A reader of checkpoints as an outsider would write it from docs/checkpoint-format.md alone: JSON,
SHA-256 and the safetensors library, nothing of this program.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

BLOCK = 16 * 1024 * 1024


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def read_checkpoint(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """All tensors whole, by name, and the state; every digest is checked before."""
    raw = (folder / "manifest.json").read_bytes()
    manifest = json.loads(raw)
    assert manifest["format"] == 1
    assert raw == (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    body = {key: value for key, value in manifest.items() if key != "digest"}
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    assert manifest["digest"] == digest(canonical)
    assert folder.name == f"g{manifest['generation']}-step{manifest['step']}"

    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert names == {*manifest["files"], "manifest.json"}
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert len(data) == entry["bytes"]
        assert digest(data) == entry["sha256"]
        blocks = [digest(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
        assert blocks == entry["blocks"]

    tensors: dict[str, np.ndarray] = {}
    for name, shards in manifest["tensors"].items():
        ends = [
            [low + size for low, size in zip(each["global_offset"], each["shape"], strict=True)]
            for each in shards
        ]
        shape = [max(axis) for axis in zip(*ends, strict=True)]
        whole = np.full(shape, np.nan, dtype=np.float32)
        covered = 0
        for each, end in zip(shards, ends, strict=True):
            with safetensors.safe_open(folder / each["file"], framework="numpy") as file:
                part = file.get_tensor(each["key"])
            assert (each["dtype"], list(part.shape)) == ("F32", each["shape"])
            whole[tuple(map(slice, each["global_offset"], end))] = part
            covered += part.size
        assert covered == whole.size, f"the shards of {name} tile it"
        tensors[name] = whole
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    assert state["step"] == manifest["step"]
    return tensors, state


def weights_digest(tensors: dict[str, np.ndarray]) -> str:
    """What a run tells as `weights_sha256`, for a model in float32."""
    whole = hashlib.sha256()
    for name in sorted((n for n in tensors if n.startswith("model/")), key=str.encode):
        array = np.ascontiguousarray(tensors[name], dtype="<f4")
        shape = ",".join(map(str, array.shape))
        whole.update(f"{name.removeprefix('model/')}\0F32\0{shape}\0".encode())
        whole.update(array.tobytes())
    return whole.hexdigest()
