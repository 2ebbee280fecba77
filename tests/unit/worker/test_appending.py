import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from worker.storage.appending import (
    ALIGNMENT_BYTES,
    BUFFER_BYTES,
    LEAST_DIRECT_BYTES,
    Appender,
)

LONG = BUFFER_BYTES + LEAST_DIRECT_BYTES


@contextmanager
def new_file(path: Path) -> Iterator[Appender]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        yield Appender(descriptor)
    finally:
        os.close(descriptor)


def test_what_is_long_goes_past_the_cache_and_the_odd_end_through_it(tmp_path: Path) -> None:
    try:
        os.close(os.open(tmp_path / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError:
        pytest.skip("this file system writes through the cache alone")
    data = random.Random(1).randbytes(LONG + 77)
    with new_file(tmp_path / "file") as file:
        file.append(data)
        assert (file.num_bytes, file.direct_bytes) == (LONG + 77, LONG)
        file.append(data)  # its place in the file is not aligned any more
        assert file.direct_bytes == LONG
    assert (tmp_path / "file").read_bytes() == data + data


def test_the_bytes_are_the_same_however_the_chunks_lie(tmp_path: Path) -> None:
    chance = random.Random(2)
    sizes = (0, 1, ALIGNMENT_BYTES, LEAST_DIRECT_BYTES, LEAST_DIRECT_BYTES + 5, LONG + 5)
    for number in range(12):
        wanted = b""
        with new_file(tmp_path / f"file-{number}") as file:
            for _ in range(5):
                data = chance.randbytes(chance.choice(sizes))
                file.append(data)
                wanted += data
            assert file.num_bytes == len(wanted)
        assert (tmp_path / f"file-{number}").read_bytes() == wanted


def test_a_file_that_is_no_place_for_direct_writes_is_written_through_the_cache() -> None:
    reading, writing = os.pipe()
    try:
        os.set_blocking(reading, False)
        file = Appender(writing)
        file.append(b"short")
        assert os.read(reading, 99) == b"short"
        assert file.direct_bytes == 0
    finally:
        os.close(reading)
        os.close(writing)


def test_a_disk_that_is_full_is_told() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left"):
            Appender(descriptor).append(bytes(LONG))
    finally:
        os.close(descriptor)
