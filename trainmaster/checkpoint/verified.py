"""Reading a checkpoint so that no byte is used before its digest has been seen.

Pure: the I/O is passed in. The rank that restores and the person who asks `verify` both read
through here. Everything raises `IntegrityError` at the first thing wrong, with the file, the block,
what was expected and what was seen.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from trainmaster.checkpoint import manifest as manifests
from trainmaster.checkpoint.consistency import contradiction
from trainmaster.checkpoint.manifest import (
    BLOCK_BYTES,
    MANIFEST_NAME,
    MAX_STATE_BYTES,
    STATE_NAME,
    FileEntry,
    Manifest,
)
from trainmaster.checkpoint.tensor_file import (
    PREFIX_BYTES,
    HeaderError,
    TensorSpan,
    decode_header,
    header_length,
)
from trainmaster.errors import IntegrityError, UnavailableError

Read = Callable[[str, int, int], bytes]
"""(name, offset, length) -> bytes, fewer only at the file's end.

FileNotFoundError if it is not there; an OSError if it cannot be read.
"""
ReadInto = Callable[[str, int, Sequence[memoryview], Callable[[memoryview], object]], int]
"""(name, offset, buffers, seen) -> bytes read, fewer than fit only at the file's end; `seen` is
called with each piece in order. Raises as `Read` does.
"""
NOTHING = "nothing"
"""What `IntegrityError.seen` says of a file that is not there."""
_DAMAGE = {errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ESPIPE}
"""Errors that say that the bytes are gone: a bad sector, or something else in the file's place."""
Size = Callable[[str], int]
"""name -> bytes. FileNotFoundError if it is not there."""


def open_manifest(
    read: Read, size: Size, *, folder: str | None = None, manifest_sha256: str | None = None
) -> tuple[Manifest, str]:
    """Return the manifest and the digest of its bytes, once it has proved consistent.

    Args:
        folder: the name of the checkpoint's folder; one of the form gG-stepS must agree with it.
        manifest_sha256: the digest it must have, where one is known.

    Raises:
        IntegrityError: it is missing, damaged, another one than expected, or contradicts itself.
        UnavailableError: it cannot be read now.
    """
    data = _read_whole(MANIFEST_NAME, manifests.MAX_MANIFEST_BYTES, read, size)
    seen = manifests.sha256(data)
    if manifest_sha256 is not None and seen != manifest_sha256:
        raise IntegrityError(
            f"{MANIFEST_NAME}: expected {manifest_sha256}, seen {seen}: it is not the manifest that"
            " was committed here",
            file=MANIFEST_NAME,
            expected=manifest_sha256,
            seen=seen,
        )
    manifest = manifests.decode(data)
    problem = contradiction(manifest, folder)
    if problem is not None:
        raise IntegrityError(f"{MANIFEST_NAME}: {problem}", file=MANIFEST_NAME)
    return manifest, seen


def read_state(manifest: Manifest, read: Read, size: Size) -> dict[str, Any]:
    """Return the content of `state.json`, verified.

    Raises:
        IntegrityError: it is missing or damaged, is not a JSON object, or is that of another step.
        UnavailableError: it cannot be read now.
    """
    file = VerifiedFile(STATE_NAME, manifest.files[STATE_NAME], read)
    if file.entry.bytes > MAX_STATE_BYTES:
        raise _wrong_size(STATE_NAME, f"at most {MAX_STATE_BYTES} bytes", file.entry.bytes)
    file.check_size(size)
    try:
        state = json.loads(
            b"".join(file.pieces(0, file.entry.bytes)),
            parse_constant=manifests.no_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{STATE_NAME}: is not JSON: {error}", file=STATE_NAME) from error
    if not isinstance(state, dict):
        raise IntegrityError(f"{STATE_NAME}: is not a JSON object", file=STATE_NAME)
    problem = state_problem(state, step=manifest.step)
    if problem is not None:
        raise IntegrityError(f"{STATE_NAME}: {problem}", file=STATE_NAME)
    return state


def state_problem(state: Mapping[str, Any], *, step: int) -> str | None:
    """Return why `state` cannot be what was saved after `step`, or None.

    Weights of one step beside the counters of another are a checkpoint of neither.
    """
    if type(state.get("step")) is not int or state["step"] != step:
        return f"holds step {state.get('step')!r} in the checkpoint of step {step}"
    applied = state.get("applied_updates", 0)
    if type(applied) is not int or not 0 <= applied <= step:
        return f"counts {applied!r} applied updates in {step} steps"
    return None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it holds {text[:40]}, which no number is kept for")
    return number


class VerifiedFile:
    """A file of which no byte is given out before the block around it has shown its digest.

    Keeps the last block, so that reading in order reads each block once. Not for several threads,
    but it may use some (`expect`).

    Attributes:
        read_bytes: given out and found right so far.
    """

    def __init__(self, name: str, entry: FileEntry, read: Read) -> None:
        self.name = name
        self.entry = entry
        self.read_bytes = 0
        self._read = read
        self._kept: tuple[int, bytes] | None = None
        self._expected: Iterator[int] = iter(())
        self._coming: deque[tuple[int, Future[bytes]]] = deque()
        self._begin: Callable[[int], Future[bytes]] | None = None

    def kept(self, index: int) -> bytes | None:
        """Return a block without reading it, if it is the one that is kept."""
        return self._kept[1] if self._kept is not None and self._kept[0] == index else None

    def release(self) -> None:
        """Forget the block that is kept."""
        self._kept = None

    def expect(self, indexes: Iterable[int], executor: Executor, *, ahead: int) -> None:
        """Have blocks read and hashed by `executor` before they are asked for, `ahead` at a time.

        Args:
            indexes: those that will be asked for, in that order. Another one may be, at the cost of
                waiting for it.
        """
        self._begin = lambda index: executor.submit(self._fetch, index)
        at_hand = self._kept[0] if self._kept is not None else None
        self._expected = (index for index in indexes if index != at_hand)
        for _ in range(ahead):
            self._begin_next()

    def _begin_next(self) -> None:
        index = next(self._expected, None)
        if index is not None and self._begin is not None:
            self._coming.append((index, self._begin(index)))

    def check_size(self, size: Size) -> None:
        """Let a file of the right size pass.

        Raises:
            IntegrityError: the file is missing, or longer or shorter than it was.
            UnavailableError: it cannot be looked at now.
        """
        seen = file_size(self.name, size)
        if seen != self.entry.bytes:
            raise _wrong_size(self.name, f"{self.entry.bytes} bytes", seen)

    def block(self, index: int) -> bytes:
        """Return one block.

        Raises:
            IntegrityError: the file is missing or too short, or the block's digest differs.
            UnavailableError: it cannot be read now.
        """
        if self._kept is not None and self._kept[0] == index:
            return self._kept[1]
        if any(coming == index for coming, _ in self._coming):
            while self._coming[0][0] != index:  # was expected, and is not wanted after all
                self._coming.popleft()
                self._begin_next()
            _, coming = self._coming.popleft()
            self._begin_next()
            data = coming.result()
        else:
            data = self._fetch(index)
        self._kept = index, data
        self.read_bytes += len(data)
        return data

    def length_of(self, index: int) -> int:
        """Return the number of bytes of a block."""
        return min(BLOCK_BYTES, self.entry.bytes - index * BLOCK_BYTES)

    def read_into(self, index: int, buffers: Sequence[memoryview], read_into: ReadInto) -> None:
        """Read one block into buffers that together are as long as it is; their content is good
        only when this returns. May be called by several threads at once.

        Raises:
            IntegrityError, UnavailableError: as `block`.
        """
        start = index * BLOCK_BYTES
        digest = hashlib.sha256()
        try:
            num_bytes = read_into(self.name, start, buffers, digest.update)
        except OSError as error:
            raise _read_error(self.name, error) from error
        if num_bytes != self.length_of(index):
            raise _wrong_size(self.name, f"{self.entry.bytes} bytes", start + num_bytes)
        self._check(index, f"sha256:{digest.hexdigest()}")

    def _fetch(self, index: int) -> bytes:
        start, length = index * BLOCK_BYTES, self.length_of(index)
        data = _read(self.name, start, length, self._read)
        if len(data) != length:
            raise _wrong_size(self.name, f"{self.entry.bytes} bytes", start + len(data))
        self._check(index, manifests.sha256(data))
        return data

    def _check(self, index: int, seen: str) -> None:
        expected = self.entry.blocks[index]
        if seen != expected:
            raise IntegrityError(
                f"{self.name}: block {index}: expected {expected}, seen {seen}",
                file=self.name,
                block=index,
                expected=expected,
                seen=seen,
            )

    def pieces(self, start: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes of the half-open range [start, end), block by block."""
        while start < end:
            index, within = divmod(start, BLOCK_BYTES)
            piece = memoryview(self.block(index))[within : within + end - start]
            yield piece
            start += len(piece)

    def spans(self) -> dict[str, TensorSpan]:
        """Return where each tensor of this safetensors file lies.

        Raises:
            IntegrityError: also when the header is not one.
        """
        try:
            prefix = b"".join(self.pieces(0, min(PREFIX_BYTES, self.entry.bytes)))
            end = header_length(prefix, self.entry.bytes)
            return decode_header(b"".join(self.pieces(0, end)), self.entry.bytes)
        except HeaderError as error:
            raise IntegrityError(f"{self.name}: {error}", file=self.name) from error


Shards = Mapping[str, tuple[str, tuple[int, ...]]]
"""key -> (dtype, shape) of the tensors that one file holds, as the manifest says."""


def shards_by_file(manifest: Manifest) -> dict[str, dict[str, tuple[str, tuple[int, ...]]]]:
    """Return for each file what the manifest says is in it."""
    found: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
    for shards in manifest.tensors.values():
        for shard in shards:
            found.setdefault(shard.file, {})[shard.key] = (shard.dtype, tuple(shard.shape))
    return found


def checked_spans(file: VerifiedFile, shards: Shards) -> dict[str, TensorSpan]:
    """Return the header's entries once they agree with the manifest's.

    Raises:
        IntegrityError: they do not, or the header is damaged.
    """
    spans = file.spans()
    for key in sorted(spans.keys() | shards.keys()):
        seen = f"{spans[key].dtype} {list(spans[key].shape)}" if key in spans else "nothing"
        wanted = f"{shards[key][0]} {list(shards[key][1])}" if key in shards else "nothing"
        if seen != wanted:
            raise IntegrityError(
                f"{file.name}: tensor {key!r}: expected {wanted}, seen {seen} in the file's header",
                file=file.name,
                expected=wanted,
                seen=seen,
            )
    return spans


def _wrong_size(name: str, expected: str, seen_bytes: int) -> IntegrityError:
    seen = f"{seen_bytes} bytes"
    return IntegrityError(
        f"{name}: expected {expected}, seen {seen}", file=name, expected=expected, seen=seen
    )


def _read_whole(name: str, limit: int, read: Read, size: Size) -> bytes:
    length = file_size(name, size)
    if length > limit:
        raise _wrong_size(name, f"at most {limit} bytes", length)
    return _read(name, 0, length, read)


def _read(name: str, offset: int, length: int, read: Read) -> bytes:
    try:
        return read(name, offset, length)
    except OSError as error:
        raise _read_error(name, error) from error


def file_size(name: str, size: Size) -> int:
    """Return the bytes in the file.

    Raises:
        IntegrityError: there is no such file.
        UnavailableError: it cannot be looked at now.
    """
    try:
        return size(name)
    except OSError as error:
        raise _read_error(name, error) from error


def _read_error(name: str, error: OSError) -> IntegrityError | UnavailableError:
    """Tell bytes that are gone from a store that is merely out of reach."""
    if isinstance(error, FileNotFoundError):
        return IntegrityError(
            f"{name}: expected a file, seen {NOTHING}: it is missing",
            file=name,
            expected="a file",
            seen=NOTHING,
        )
    if error.errno in _DAMAGE:
        return IntegrityError(
            f"{name}: cannot be read: {error}", file=name, expected="a file", seen=str(error)
        )
    return UnavailableError(f"{name}: cannot be read now: {error}", code="storage_unavailable")
