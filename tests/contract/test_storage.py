"""The storage contract, kept by the folder backend and by the store in memory that tests use."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.storage import MemoryStorage
from trainmaster.errors import UserError
from trainmaster.storage import Storage
from trainmaster.testing.storage_contract import StorageContract
from worker.storage import folder_below, open_location, open_storage


class TestFolder(StorageContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Callable[[], Storage]:
        return lambda: open_storage((tmp_path / "a store").as_uri())


class TestMemory(StorageContract):
    @pytest.fixture
    def open_store(self) -> Callable[[], Storage]:
        objects: dict[str, bytes] = {}
        return lambda: MemoryStorage(objects)


@pytest.mark.parametrize(
    "url",
    [
        "file:///",
        "file://",
        "file://otherhost/folder",
        "file:///a/../b",
        "file:relative",
        "/a/path",
        "relative",
        "",
        "s4://bucket/run",
        "file:///a?b=c",
        "file:///a%00b",
    ],
)
def test_a_url_that_no_backend_serves_is_refused_with_the_form_to_use(url: str) -> None:
    with pytest.raises(UserError, match=r"file:///|absolute"):
        open_storage(url)


def test_opening_a_folder_creates_nothing(tmp_path: Path) -> None:
    open_storage((tmp_path / "new").as_uri())
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_leads_out_of_the_store_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    root = tmp_path / "store"
    root.mkdir()
    (root / "file").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path / "outside")
    storage = open_storage(root.as_uri())
    for attempt in (
        lambda: storage.read("file", 0, 10),
        lambda: storage.put("folder/x", [b"x"]),
        lambda: storage.delete("folder/x"),
    ):
        with pytest.raises(UserError, match="leads out"):
            attempt()
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_leftover_of_a_dead_writer_is_not_listed_and_goes_with_its_folder(tmp_path: Path) -> None:
    storage = open_storage(tmp_path.as_uri())
    storage.put("folder/file", [b"x"])
    (tmp_path / "folder" / ".file.0123456789abcdef.unfinished").write_bytes(b"half")
    assert storage.list("") == ["folder/file"]
    storage.delete_folder("folder")
    assert list(tmp_path.iterdir()) == []


def test_a_fifo_in_the_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file")
    with pytest.raises(OSError):
        open_storage(tmp_path.as_uri()).read("file", 0, 10)


def test_deleting_a_folder_deletes_a_link_in_it_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept")
    (tmp_path / "store" / "folder").mkdir(parents=True)
    (tmp_path / "store" / "folder" / "link").symlink_to(tmp_path / "kept")
    open_storage((tmp_path / "store").as_uri()).delete_folder("folder")
    assert (tmp_path / "kept" / "file").read_text() == "kept"
    assert not (tmp_path / "store" / "folder").exists()


def test_a_location_is_split_into_its_store_and_its_folder(tmp_path: Path) -> None:
    storage, folder = open_location(f"{tmp_path.as_uri()}/run-1/g2-step30/")
    assert (storage.url, folder) == (f"{tmp_path.as_uri()}/run-1", "g2-step30")
    assert folder_below(storage, f"{storage.url}/g2-step30") == "g2-step30"
    assert folder_below(storage, f"{tmp_path.as_uri()}/run-11/g2-step30") is None
