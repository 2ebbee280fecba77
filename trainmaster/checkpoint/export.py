"""Weights written out: one safetensors file, or several of bounded size with an index, under names
that another program knows them by.

A file is written under a hidden name, synced, and renamed; the index comes last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from trainmaster.checkpoint.tensor_file import DTYPE_BYTES, TensorSpan, encode_header
from trainmaster.checkpoint.weights import Head, Weights, digest_of
from trainmaster.errors import IntegrityError, UserError

MAX_FILE_BYTES = 5_000_000_000
"""Of tensors in one file, as Hugging Face's libraries divide them; a larger one has its own."""
_INDEX = "model.safetensors.index.json"
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        files: names within the folder, the index among them.
        bytes: of tensors.
        weights_sha256: read back from the files, under the names that the checkpoint uses.
    """

    files: tuple[str, ...]
    bytes: int
    tensors: int
    weights_sha256: str


def export(
    weights: Weights,
    folder: Path,
    *,
    names: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Exported:
    """Write all weights into `folder`, which is made where it is not there.

    Args:
        names: the name to write each tensor under; its own where not given.
        config: becomes `config.json` beside the weights.

    Raises:
        IntegrityError: bytes of the checkpoint are not what its manifest says; nothing that looks
            whole is left.
        UserError: the folder holds something, or two tensors would have one name.
        OSError: it cannot be written.
    """
    renamed = {name: (names or {}).get(name, name) for name in weights.heads}
    if len(set(renamed.values())) < len(renamed):
        raise UserError("two tensors would be written under one name", code="bad_names")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UserError(f"{folder} holds something already: name an empty folder, or a new one")
    parts = divided(weights.heads, max_file_bytes)
    placed: dict[str, tuple[str, TensorSpan]] = {}
    index: dict[str, str] = {}
    files: list[str] = []
    for number, part in enumerate(parts, start=1):
        file = (
            f"model-{number:05d}-of-{len(parts):05d}.safetensors"
            if len(parts) > 1
            else "model.safetensors"
        )
        spans = _write_tensors(weights, part, renamed, folder / file)
        placed |= {name: (file, spans[renamed[name]]) for name in part}
        index |= {renamed[name]: file for name in part}
        files.append(file)
    total = sum(_num_bytes(head) for head in weights.heads.values())
    if len(parts) > 1:
        _write_json(folder / _INDEX, {"metadata": {"total_size": total}, "weight_map": index})
        files.append(_INDEX)
    if config is not None:
        _write_json(folder / "config.json", config)
        files.append("config.json")
    digest = digest_of(weights.heads, lambda name: _read_back(folder, *placed[name]))
    return Exported(tuple(files), total, len(weights.heads), digest)


def divided(heads: Mapping[str, Head], max_file_bytes: int) -> list[list[str]]:
    """Return the names of the tensors of each file, in order, none of more bytes than allowed
    unless it holds one tensor.
    """
    parts: list[list[str]] = []
    room = 0
    for name, head in heads.items():
        size = _num_bytes(head)
        if not parts or size > room:
            parts.append([])
            room = max_file_bytes
        parts[-1].append(name)
        room -= size
    return parts


def _num_bytes(head: Head) -> int:
    return prod(head[1]) * DTYPE_BYTES[head[0]]


def _write_tensors(
    weights: Weights, part: Sequence[str], renamed: Mapping[str, str], file: Path
) -> dict[str, TensorSpan]:
    own_name = {renamed[name]: name for name in part}
    header, spans = encode_header(
        [(renamed[name], *weights.heads[name]) for name in part], {"format": "pt"}
    )

    def chunks() -> Iterator[bytes | bytearray]:
        yield header
        for key in spans:
            yield weights.bytes_of(own_name[key])

    _write(file, chunks)
    return spans


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(dict(content), indent=2, sort_keys=True) + "\n"
    _write(file, lambda: iter([text.encode()]))


def _write(file: Path, chunks: Callable[[], Iterator[bytes | bytearray]]) -> None:
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        with unfinished.open("xb") as target:
            for chunk in chunks():
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _read_back(folder: Path, file: str, span: TensorSpan) -> Iterator[memoryview]:
    with (folder / file).open("rb") as source:
        source.seek(span.start)
        left = span.end - span.start
        while left:
            piece = source.read(min(left, _PIECE_BYTES))
            if not piece:
                raise IntegrityError(f"{file}: ended while it was read back", file=file)
            left -= len(piece)
            yield memoryview(piece)
