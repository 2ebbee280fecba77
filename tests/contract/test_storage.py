"""The storage contract, kept by the folder backend and by the store in memory that tests use."""

import os
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.fakes.storage import MemoryStorage
from tests.services.s3 import Bucket
from trainmaster.checkpoint.stores import folder_below, open_location, open_storage
from trainmaster.errors import UserError
from trainmaster.storage import Storage
from trainmaster.testing.storage_contract import StorageContract


class TestFolder(StorageContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Callable[[], Storage]:
        return lambda: open_storage((tmp_path / "a store").as_uri())


class TestS3(StorageContract):
    @pytest.fixture
    def open_store(self, s3: Bucket) -> Callable[[], Storage]:
        return lambda: open_storage(s3.url)


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


def test_a_bucket_may_be_a_store_without_a_prefix(s3: Bucket) -> None:
    for url in (f"s3://{s3.name}", f"s3://{s3.name}/"):
        assert open_storage(url).url == f"s3://{s3.name}"
    open_storage(s3.url).put("folder/file", [b"x"])
    assert open_storage(f"s3://{s3.name}").list("") == ["checkpoints/folder/file"]
    storage, folder = open_location(f"s3://{s3.name}/checkpoints/run-1/g2-step30")
    assert (storage.url, folder) == (f"{s3.url}/run-1", "g2-step30")


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:secret@bucket/prefix",
        "s3://bucket/prefix?X-Amz-Signature=secret",
        "s3://bucket/prefix#secret",
        "s3:///prefix",
        "s3://B/prefix",
        "s3://bucket/../other",
        "s3://bucket//twice",
        "https://bucket.s3.amazonaws.com/prefix",
        "s3://bucket/a\nb",
        "s3://[half/prefix",
    ],
)
def test_a_url_that_could_hold_a_secret_or_no_bucket_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UserError) as refused:
        open_storage(url)
    assert "secret" not in refused.value.message
    assert refused.value.code == "bad_storage_url"


def test_a_backend_of_a_third_party_is_found_by_the_scheme_of_its_url() -> None:
    ours = EntryPoint("lake", "tests.fakes.storage:open_memory", "trainmaster.storage")
    assert open_storage("lake://store", [ours]).url == "memory://store"
    gone = EntryPoint("gone", "tests.fakes.storage:nothing", "trainmaster.storage")
    with pytest.raises(UserError, match="cannot be loaded") as refused:
        open_storage("gone://store", [gone])
    assert refused.value.code == "bad_plugin"
    with pytest.raises(UserError, match=r"file, lake, s3"):
        open_storage("other://store", [ours])
