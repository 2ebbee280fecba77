"""What every storage backend must do. Subclass `StorageContract` in your own tests:

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda: open_my_storage(f"mine://{tmp_path}")

`open_store()` opens the same store each time; it is empty when a test begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainmaster.errors import ConflictError, UserError
from trainmaster.storage import Buffer, Storage

OpenStore = Callable[[], Storage]

ESCAPING_PATHS = (
    "",
    "/",
    "/etc/passwd",
    "..",
    "../outside",
    "a/../../outside",
    "a//b",
    "a/",
    "./a",
    "a\\b",
    "a\0b",
    "a\nb",
    "x" * 300,
)


LARGE_CHUNK_BYTES = (8 << 20) + 1
LARGE_CHUNKS = 5
"""40 MiB: more than stores take in one request, or than a backend sends in one."""


class InterruptedSourceError(Exception):
    """Raised by a source of chunks in the middle of its work."""


class StorageContract:
    """The tests. A backend that passes all of them may hold checkpoints."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Return a function that opens the store under test; to be overridden."""
        pytest.fail("override the fixture `open_store`")

    @pytest.fixture
    def storage(self, open_store: OpenStore) -> Storage:
        """Return the store under test."""
        return open_store()

    def test_its_url_has_a_scheme_and_no_slash_at_its_end(self, storage: Storage) -> None:
        assert "://" in storage.url
        assert not storage.url.endswith("/")

    def test_what_was_put_is_read_back_by_another_opening(self, open_store: OpenStore) -> None:
        chunks: list[Buffer] = [b"one", bytearray(b"two"), memoryview(b"three"), b""]
        assert open_store().put("run/g1-step2/file", chunks) == 11
        assert open_store().read("run/g1-step2/file", 0, 100) == b"onetwothree"
        assert open_store().size("run/g1-step2/file") == 11

    def test_a_range_is_read_and_is_shorter_only_at_the_end(self, storage: Storage) -> None:
        storage.put("file", [bytes(range(100))])
        assert storage.read("file", 10, 5) == bytes(range(10, 15))
        assert storage.read("file", 98, 5) == bytes([98, 99])
        assert storage.read("file", 100, 5) == b""
        assert storage.read("file", 0, 0) == b""

    def test_an_object_without_bytes_is_an_object(self, storage: Storage) -> None:
        assert storage.put("empty", []) == 0
        assert storage.size("empty") == 0
        assert storage.list("") == ["empty"]

    def test_a_chunk_may_be_reused_after_the_next_is_asked_for(self, storage: Storage) -> None:
        def chunks() -> Iterator[memoryview]:
            buffer = bytearray(1 << 16)
            for value in range(64):
                buffer[:] = bytes([value]) * len(buffer)
                yield memoryview(buffer)

        storage.put("file", chunks())
        assert storage.read("file", 0, 64 << 16) == b"".join(
            bytes([v]) * (1 << 16) for v in range(64)
        )

    def test_a_large_object_is_whole_and_any_part_of_it_is_read(self, storage: Storage) -> None:
        def chunks() -> Iterator[memoryview]:
            buffer = bytearray(LARGE_CHUNK_BYTES)
            for value in range(LARGE_CHUNKS):
                buffer[:] = bytes([value]) * len(buffer)
                yield memoryview(buffer)

        size = LARGE_CHUNKS * LARGE_CHUNK_BYTES
        assert storage.put("folder/large", chunks()) == size
        assert storage.size("folder/large") == size
        for value in range(1, LARGE_CHUNKS):
            edge = storage.read("folder/large", value * LARGE_CHUNK_BYTES - 3, 6)
            assert edge == bytes([value - 1] * 3 + [value] * 3)
        assert storage.read("folder/large", size - 2, 100) == bytes([LARGE_CHUNKS - 1] * 2)

    def test_a_large_put_that_is_interrupted_leaves_what_was_there(self, storage: Storage) -> None:
        def chunks() -> Iterator[bytes]:
            for _ in range(LARGE_CHUNKS - 1):
                yield bytes(LARGE_CHUNK_BYTES)
            raise InterruptedSourceError

        storage.put("folder/large", [b"whole"])
        with pytest.raises(InterruptedSourceError):
            storage.put("folder/large", chunks())
        with pytest.raises(InterruptedSourceError):
            storage.put("folder/other", chunks())
        assert storage.list("") == ["folder/large"]
        assert storage.read("folder/large", 0, 100) == b"whole"

    def test_putting_again_replaces_the_whole_object(self, storage: Storage) -> None:
        storage.put("file", [b"a long first version"])
        storage.put("file", [b"second"])
        assert storage.read("file", 0, 100) == b"second"

    def test_a_put_that_is_interrupted_leaves_what_was_there(self, storage: Storage) -> None:
        def chunks() -> Iterator[bytes]:
            yield b"half"
            raise InterruptedSourceError

        with pytest.raises(InterruptedSourceError):
            storage.put("folder/new", chunks())
        assert storage.list("") == []
        storage.put("folder/old", [b"whole"])
        with pytest.raises(InterruptedSourceError):
            storage.put("folder/old", chunks())
        assert storage.read("folder/old", 0, 100) == b"whole"
        assert storage.list("") == ["folder/old"]

    def test_an_object_being_written_cannot_be_seen(self, open_store: OpenStore) -> None:
        other = open_store()

        def chunks() -> Iterator[bytes]:
            yield b"x" * (1 << 20)
            assert other.list("") == []
            with pytest.raises(FileNotFoundError):
                other.size("folder/file")
            yield b"y"

        open_store().put("folder/file", chunks())
        assert other.list("") == ["folder/file"]

    def test_create_stores_what_was_not_there(self, storage: Storage) -> None:
        storage.create("folder/manifest.json", b"{}")
        assert storage.read("folder/manifest.json", 0, 10) == b"{}"
        assert storage.list("folder") == ["folder/manifest.json"]

    def test_create_refuses_what_is_there_and_leaves_it(self, storage: Storage) -> None:
        storage.create("file", b"first")
        with pytest.raises(ConflictError):
            storage.create("file", b"second")
        storage.put("put", [b"first"])
        with pytest.raises(ConflictError):
            storage.create("put", b"second")
        assert storage.read("file", 0, 10) == storage.read("put", 0, 10) == b"first"
        assert storage.list("") == ["file", "put"]

    def test_of_many_creators_at_once_one_succeeds(self, open_store: OpenStore) -> None:
        def create(number: int) -> int | None:
            try:
                open_store().create("race", f"{number}".encode())
            except ConflictError:
                return None
            return number

        with ThreadPoolExecutor(8) as threads:
            winners = [won for won in threads.map(create, range(24)) if won is not None]
        assert len(winners) == 1
        assert open_store().read("race", 0, 10) == f"{winners[0]}".encode()

    def test_reading_what_is_not_there_says_so(self, storage: Storage) -> None:
        with pytest.raises(FileNotFoundError):
            storage.read("missing", 0, 1)
        with pytest.raises(FileNotFoundError):
            storage.size("folder/missing")

    def test_a_listing_is_sorted_deep_and_confined_to_its_folder(self, storage: Storage) -> None:
        for path in ("b/2", "b/1", "b/c/3", "bb/4", "a"):
            storage.put(path, [b"x"])
        assert list(storage.list("b")) == ["b/1", "b/2", "b/c/3"]
        assert list(storage.list("")) == ["a", "b/1", "b/2", "b/c/3", "bb/4"]
        assert list(storage.list("none")) == []
        assert list(storage.folders()) == ["b", "bb"]

    def test_an_empty_store_has_no_folders(self, storage: Storage) -> None:
        assert list(storage.folders()) == []
        storage.put("file", [b"x"])
        assert list(storage.folders()) == []

    def test_deleting_may_be_repeated(self, storage: Storage) -> None:
        storage.put("folder/file", [b"x"])
        for _ in range(2):
            storage.delete("folder/file")
        storage.delete("never/there")
        assert storage.list("") == []

    def test_deleting_a_folder_deletes_it_alone_and_may_be_repeated(self, storage: Storage) -> None:
        for path in ("run/a/1", "run/a/b/2", "run/ab/3"):
            storage.put(path, [b"x"])
        for _ in range(2):
            storage.delete_folder("run/a")
        assert storage.list("") == ["run/ab/3"]

    def test_a_deleted_object_can_be_created_again(self, storage: Storage) -> None:
        storage.create("file", b"first")
        storage.delete("file")
        storage.create("file", b"second")
        assert storage.read("file", 0, 10) == b"second"

    @pytest.mark.parametrize("path", ESCAPING_PATHS)
    def test_a_path_that_could_leave_the_root_is_refused(self, storage: Storage, path: str) -> None:
        attempts: list[Callable[[], object]] = [
            lambda: storage.put(path, [b"x"]),
            lambda: storage.create(path, b"x"),
            lambda: storage.read(path, 0, 1),
            lambda: storage.size(path),
            lambda: storage.delete(path),
            lambda: storage.delete_folder(path),
        ]
        if path:
            attempts.append(lambda: storage.list(path))
        for attempt in attempts:
            with pytest.raises(UserError):
                attempt()
