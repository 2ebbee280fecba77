"""Checkpoints in a bucket of an S3 API, through obstore.

What the store needs beside its URL comes from the environment of the process: `AWS_ACCESS_KEY_ID`
and its kin, or the machine's own role; `AWS_REGION`; `AWS_ENDPOINT_URL` for an S3 API that is not
Amazon's. Nothing of that is ever in a URL, a spec, a table or a message.

A large object goes up in parts and is there when the last request says so; a small one in a single
request. Each request carries the SHA-256 of its bytes, which the store compares. An object that is
created is created by the condition `If-None-Match: *`, which the store decides.

Crash: a reader sees the object whole or not at all; parts that were sent stay out of sight until
the bucket's lifecycle rule for incomplete uploads removes them.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from trainmaster.errors import ConflictError, UserError
from trainmaster.storage import Buffer, check_path, url_problem
from worker.storage.refusals import bucket_is_missing, is_beyond_the_end, refusal

PART_BYTES: Final = 32 << 20
"""Of one part of an upload. S3 takes 10,000 of them, so an object ends at 312 GiB."""
PARTS_AT_ONCE: Final = 3
_CREATOR: Final = "trainmaster-creator"

T = TypeVar("T")


def open_s3(url: str) -> S3Storage:
    """Return the storage at a URL of the form s3://bucket/prefix; the prefix may be missing.

    A request is given up after 60 s, tried again up to 6 times within 3 minutes, with pauses from
    0.2 s to 15 s.

    Raises:
        UserError: it is not of that form, or the environment holds what cannot be.
    """
    problem = url_problem(url)
    parts = urlsplit(url)
    if problem is not None or parts.scheme != "s3":
        raise UserError(
            f"{url!r} {problem or 'is not of the form s3://bucket/prefix'}", code="bad_storage_url"
        )
    return S3Storage(parts.netloc, parts.path.removeprefix("/").rstrip("/"))


class S3Storage:
    """`trainmaster.storage.Storage` in a bucket, below a prefix.

    Args:
        limits: replaces the times and counts of `open_s3`, by the names of obstore's `RetryConfig`
            and `timeout` and `connect_timeout`.
    """

    def __init__(self, bucket: str, prefix: str, *, limits: dict[str, Any] | None = None) -> None:
        self._bucket = bucket
        self._prefix = prefix
        retries: dict[str, Any] = {
            "max_retries": 6,
            "retry_timeout": timedelta(minutes=3),
            "backoff": {
                "init_backoff": timedelta(seconds=0.2),
                "max_backoff": timedelta(seconds=15),
                "base": 2,
            },
            "timeout": timedelta(seconds=60),
            "connect_timeout": timedelta(seconds=5),
            **(limits or {}),
        }
        # Plain HTTP only where the endpoint says http://.
        client: Any = {"allow_http": True}
        client |= {name: retries.pop(name) for name in ("timeout", "connect_timeout")}
        try:
            self._store = S3Store(
                bucket,
                prefix=prefix or None,
                config={"checksum_algorithm": "SHA256"},
                client_options=client,
                retry_config=retries,  # type: ignore[arg-type]
            )
        except (BaseError, ValueError) as error:
            raise UserError(
                f"{self.url} cannot be opened with this environment (AWS_*): "
                f"{str(error).splitlines()[0]}",
                code="bad_storage_url",
            ) from error

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def put(self, path: str, chunks: Iterable[Buffer]) -> int:
        check_path(path)
        sent = _Counted(chunks)
        first = next(sent, b"")
        second = next(sent, None)
        if second is None:
            self._ask(path, lambda: obstore.put(self._store, path, first, use_multipart=False))
        else:
            parts = chain((first, second), sent)
            self._ask(
                path,
                lambda: obstore.put(
                    self._store,
                    path,
                    parts,
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_AT_ONCE,
                ),
            )
        return sent.num_bytes

    def create(self, path: str, data: Buffer) -> None:
        check_path(path)
        creator = secrets.token_hex(16)
        try:
            self._ask(
                path,
                lambda: obstore.put(
                    self._store,
                    path,
                    bytes(data),
                    mode="create",
                    attributes={_CREATOR: creator},
                    use_multipart=False,
                ),
            )
        except AlreadyExistsError as error:
            # A request whose answer was lost is sent again, and then finds its own object.
            if self._creator_of(path) != creator:
                raise ConflictError(
                    f"{self.url}/{path} is there already", code="already_exists"
                ) from error

    def read(self, path: str, offset: int, length: int) -> bytes:
        check_path(path)
        if length == 0:
            self.size(path)
            return b""
        try:
            return bytes(
                self._ask(
                    path,
                    lambda: obstore.get_range(self._store, path, start=offset, length=length),
                    passing=is_beyond_the_end,
                )
            )
        except BaseError:
            return b""

    def size(self, path: str) -> int:
        check_path(path)
        return int(self._ask(path, lambda: obstore.head(self._store, path))["size"])

    def list(self, prefix: str) -> list[str]:
        if prefix:
            check_path(prefix)
        return sorted(
            self._ask(
                prefix,
                lambda: [
                    entry["path"]
                    for page in obstore.list(self._store, prefix=prefix or None)
                    for entry in page
                ],
            )
        )

    def folders(self) -> Sequence[str]:
        found = self._ask("", lambda: obstore.list_with_delimiter(self._store))
        return sorted(name.rstrip("/") for name in found["common_prefixes"])

    def delete(self, path: str) -> None:
        check_path(path)
        self._delete(path, [path])

    def delete_folder(self, path: str) -> None:
        check_path(path)
        self._delete(path, self.list(path))

    def _delete(self, path: str, paths: Sequence[str]) -> None:
        if not paths:
            return
        try:
            self._ask(path, lambda: obstore.delete(self._store, list(paths)))
        except FileNotFoundError:
            return  # some stores say so of what is not there

    def _creator_of(self, path: str) -> str | None:
        try:
            found = self._ask(path, lambda: obstore.get(self._store, path).attributes)
        except FileNotFoundError:  # deleted since
            return None
        return found.get(_CREATOR)

    def _ask(
        self, path: str, call: Callable[[], T], passing: Callable[[str], bool] | None = None
    ) -> T:
        """Return what `call` returns.

        Args:
            passing: which of the store's refusals, by their text, go on as they are.

        Raises:
            FileNotFoundError: the object is not there, in a bucket that is.
            AlreadyExistsError: the object is there.
            UnavailableError: the store refused or did not answer.
        """
        try:
            return call()
        except AlreadyExistsError:
            raise
        except FileNotFoundError as error:
            if bucket_is_missing(str(error)):
                raise refusal(str(error), self.url) from error
            self._refuse_if_missing()
            raise FileNotFoundError(errno.ENOENT, "no such object", f"{self.url}/{path}") from error
        except BaseError as error:
            if passing is not None and passing(str(error)):
                raise
            raise refusal(str(error), self.url) from error

    def _refuse_if_missing(self) -> None:
        """Let a bucket that is there pass: a HEAD says of a missing bucket what it says of a
        missing object, and lost checkpoints are given up.
        """
        try:
            next(iter(obstore.list(self._store, chunk_size=1)), None)
        except (BaseError, FileNotFoundError) as error:
            raise refusal(str(error), self.url) from error


class _Counted:
    """The bytes of chunks in pieces of their own, counted, and joined up to one part.

    A chunk may be used again after the next one is asked for, while its piece is still on its way.
    """

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self._pieces = self._joined(chunks)
        self.num_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        piece = next(self._pieces)
        self.num_bytes += len(piece)
        return piece

    @staticmethod
    def _joined(chunks: Iterable[Buffer]) -> Iterator[bytes]:
        part = bytearray()
        for chunk in chunks:
            rest = memoryview(chunk).cast("B")
            while rest:
                taken = rest[: PART_BYTES - len(part)]
                part += taken
                rest = rest[len(taken) :]
                if len(part) == PART_BYTES:
                    yield bytes(part)
                    part = bytearray()
        if part:
            yield bytes(part)
