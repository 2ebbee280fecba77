"""The checkpoint manifest: what a checkpoint holds, and the digests that prove it.

`manifest.json` is created last and is the only commit point. Its own digest covers the canonical
JSON of everything else in it, so an edited manifest is told from a whole one. Digests are written
`sha256:hex`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainmaster.errors import IntegrityError

FORMAT_VERSION = 1
BLOCK_BYTES = 16 << 20
MANIFEST_NAME = "manifest.json"
STATE_NAME = "state.json"
MAX_MANIFEST_BYTES = 256 << 20
MAX_STATE_BYTES = 256 << 20

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=2**53)]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,120}$")]


class Sealed(BaseModel):
    """Frozen, closed, without coercion: a step of "60" or 60.0 is not a step."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileEntry(Sealed):
    """One file: its size, its digest, and those of its `BLOCK_BYTES` blocks in order."""

    bytes: Count
    sha256: Digest
    blocks: list[Digest]


class ShardEntry(Sealed):
    """One piece of a tensor: where it lies in a file, and where in the whole tensor."""

    file: FileName
    key: str
    global_offset: list[Count]
    shape: list[Count]
    dtype: str


class Parent(Sealed):
    """The checkpoint from which this generation resumed."""

    checkpoint: str
    manifest_sha256: Digest


class Manifest(Sealed):
    """A whole checkpoint.

    Attributes:
        tensors: fully qualified name -> its shards. Names begin with `model/` or `optimizer/` and
            carry the global layer index.
        digest: SHA-256 of the canonical JSON of all other fields.
    """

    format: Annotated[int, Field(ge=1)]
    run: str
    generation: Annotated[int, Field(ge=1, lt=2**53)]
    step: Count
    layout: dict[str, Any]
    parent: Parent | None
    files: dict[FileName, FileEntry]
    tensors: dict[str, list[ShardEntry]]
    digest: Digest

    @property
    def total_bytes(self) -> int:
        """Bytes of all files beside the manifest."""
        return sum(entry.bytes for entry in self.files.values())


def sha256(data: bytes | memoryview) -> str:
    """Return the digest of `data` as manifests write it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def seal(**fields: Any) -> Manifest:
    """Return a manifest of the current format version with its digest."""
    body = {"format": FORMAT_VERSION, **fields}
    draft = Manifest.model_construct(**body, digest="")
    return Manifest.model_validate({**draft.model_dump(mode="json"), "digest": _body_digest(draft)})


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of `manifest.json`."""
    return (json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True) + "\n").encode()


def decode(data: bytes) -> Manifest:
    """Read `manifest.json`.

    Raises:
        IntegrityError: not a manifest, of a newer format, not what its own digest says, or not byte
            for byte what `encode` makes of it.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise _broken(f"has {len(data)} bytes; at most {MAX_MANIFEST_BYTES} are read")
    try:
        raw = json.loads(data, parse_constant=no_constant)
        newer = raw.get("format") if isinstance(raw, dict) else None
        if isinstance(newer, int) and newer > FORMAT_VERSION:
            raise _broken(f"format {newer} is newer than this version reads ({FORMAT_VERSION})")
        manifest = Manifest.model_validate(raw)
        canonical = encode(manifest)
    except (ValueError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error)
        raise _broken(f"cannot be read as a manifest: {what}") from error
    expected, seen = manifest.digest, _body_digest(manifest)
    if expected != seen:
        raise _broken("was changed after it was written", expected=expected, seen=seen)
    if canonical != data:
        raise _broken(
            "is not in the canonical form: it was changed after it was written",
            expected=sha256(canonical),
            seen=sha256(data),
        )
    return manifest


def no_constant(word: str) -> None:
    """Refuse NaN and infinities, which are no JSON, where `json.loads` would read them.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"it holds {word}")


def _broken(what: str, *, expected: str | None = None, seen: str | None = None) -> IntegrityError:
    values = f" (expected {expected}, seen {seen})" if expected else ""
    return IntegrityError(
        f"{MANIFEST_NAME}: {what}{values}", file=MANIFEST_NAME, expected=expected, seen=seen
    )


def _body_digest(manifest: Manifest) -> str:
    body = manifest.model_dump(mode="json", exclude={"digest"})
    return sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
