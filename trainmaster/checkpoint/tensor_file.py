"""The header of a safetensors file: written and read here, byte by byte, without torch.

A file is `<u64 n><n bytes of JSON, padded with spaces><data>`, little-endian. The JSON maps each
key to {dtype, shape, data_offsets}; offsets count from the start of the data, whose bytes belong to
exactly one tensor each. A header is judged before anything is allocated on its word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit
MAX_AXES = 64
DATA_ALIGNMENT = 64  # bytes: a cache line, and a multiple of every element's size
METADATA_KEY = "__metadata__"
DTYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
    "C64": 8,
}
"""safetensors dtype name -> bytes per element."""


class HeaderError(ValueError):
    """The header of a tensor file is not one. The message is a predicate: "has ...", "is ..."."""


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """One tensor in a file: its bytes are the half-open range [start, end) of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def encode_header(
    tensors: Iterable[tuple[str, str, Sequence[int]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, TensorSpan]]:
    """Return the bytes before the data, and each tensor's place in the file in order of place.

    Args:
        tensors: (key, dtype, shape) of each. Larger elements come first, so that all are aligned.
        metadata: texts for a person; readers take nothing from them.
    """
    ordered = sorted(tensors, key=lambda tensor: (-DTYPE_BYTES[tensor[1]], tensor[0]))
    position = 0
    document: dict[str, Any] = {METADATA_KEY: dict(metadata)}
    for key, dtype, shape in ordered:
        assert key not in document, f"key {key!r} is taken"
        size = prod(shape) * DTYPE_BYTES[dtype]
        document[key] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-(PREFIX_BYTES + len(text)) % DATA_ALIGNMENT)
    assert len(text) <= MAX_HEADER_BYTES, f"a header of {len(text)} bytes cannot be read back"
    header = len(text).to_bytes(PREFIX_BYTES, "little") + text
    spans = {
        key: _span(document[key]["data_offsets"], dtype, shape, len(header))
        for key, dtype, shape in ordered
    }
    return header, spans


def header_length(prefix: bytes, file_bytes: int) -> int:
    """Return the bytes before the data, from the file's first eight.

    Raises:
        HeaderError: no header of a believable length fits into the file.
    """
    if len(prefix) < PREFIX_BYTES:
        raise HeaderError(f"has {len(prefix)} bytes; a tensor file has at least {PREFIX_BYTES}")
    length = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    if length > MAX_HEADER_BYTES or PREFIX_BYTES + length > file_bytes:
        raise HeaderError(f"claims a header of {length} bytes in a file of {file_bytes}")
    return PREFIX_BYTES + length


def decode_header(header: bytes, file_bytes: int) -> dict[str, TensorSpan]:
    """Return each tensor's place in the file.

    Args:
        header: all bytes before the data, `header_length` of them.
        file_bytes: size of the whole file.

    Raises:
        HeaderError: not a header, or its tensors do not tile the data exactly.
    """
    try:
        document = json.loads(header[PREFIX_BYTES:], object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"has a header that is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise HeaderError("has a header that is not a JSON object")
    document.pop(METADATA_KEY, None)
    spans = {key: _checked_span(key, entry, len(header)) for key, entry in document.items()}
    position = len(header)
    for key, span in sorted(spans.items(), key=lambda item: (item[1].start, item[1].end)):
        if span.start != position:
            raise HeaderError(
                f"has tensor {key!r} at byte {span.start} where byte {position} comes next:"
                " its tensors overlap or leave a gap"
            )
        position = span.end
    if position != file_bytes:
        raise HeaderError(f"has tensors up to byte {position} in a file of {file_bytes}")
    return spans


def _checked_span(key: str, entry: object, data_start: int) -> TensorSpan:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise HeaderError(f"has a malformed entry for tensor {key!r}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise HeaderError(f"has tensor {key!r} of the unknown dtype {str(dtype)[:40]!r}")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise HeaderError(f"has a malformed shape or place for tensor {key!r}")
    if prod(shape) * DTYPE_BYTES[dtype] != offsets[1] - offsets[0]:
        raise HeaderError(f"has tensor {key!r} whose bytes are not those of {dtype} {shape}")
    return _span(offsets, dtype, shape, data_start)


def _are_counts(values: object) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= MAX_AXES
        and all(type(value) is int and 0 <= value < 2**63 for value in values)
    )


def _span(offsets: Sequence[int], dtype: str, shape: Sequence[int], start: int) -> TensorSpan:
    return TensorSpan(dtype, tuple(shape), start + offsets[0], start + offsets[1])


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found
