import os
import shutil
from pathlib import Path

import pytest

from tests.fakes.checkpoints import small_checkpoint
from trainmaster.checkpoint.folder import local_path, verify_folder
from trainmaster.checkpoint.manifest import MANIFEST_NAME
from trainmaster.checkpoint.stores import verify_location
from trainmaster.errors import NotFoundError, UserError


def write(folder: Path) -> Path:
    folder.mkdir()
    for name, data in small_checkpoint().items():
        (folder / name).write_bytes(data)
    return folder


def test_a_whole_checkpoint_in_a_folder_is_ok(tmp_path: Path) -> None:
    assert verify_folder(write(tmp_path / "g1-step20")).ok


def test_a_copy_under_any_other_name_is_ok_but_not_under_that_of_another_step(
    tmp_path: Path,
) -> None:
    assert verify_folder(write(tmp_path / "backup of friday")).ok
    assert not verify_folder(write(tmp_path / "g1-step40")).sound


def test_a_folder_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not a folder"):
        verify_folder(tmp_path / "none")


def test_a_pipe_and_a_folder_in_the_place_of_files_are_damage(tmp_path: Path) -> None:
    folder = write(tmp_path / "g1-step20")
    (folder / "state.json").unlink()
    os.mkfifo(folder / "state.json")
    (folder / "rank-00001.safetensors").unlink()
    (folder / "rank-00001.safetensors").mkdir()
    report = verify_folder(folder)
    assert {finding.file for finding in report.findings} == {
        "state.json",
        "rank-00001.safetensors",
    }
    (folder / MANIFEST_NAME).unlink()
    os.mkfifo(folder / MANIFEST_NAME)
    [finding] = verify_folder(folder).findings
    assert (finding.kind, finding.file) == ("manifest", MANIFEST_NAME)


def test_files_in_folders_below_are_seen_as_extra(tmp_path: Path) -> None:
    folder = write(tmp_path / "g1-step20")
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("x")
    assert [finding.file for finding in verify_folder(folder).findings] == ["sub/file"]


def test_a_location_is_a_path_or_a_file_url(tmp_path: Path) -> None:
    assert local_path("some/path") == Path("some/path")
    assert local_path((tmp_path / "ü b").as_uri()) == tmp_path / "ü b"
    for foreign in ("s3://bucket/x", "file://host/x", "http://x/y"):
        with pytest.raises(UserError, match="not a folder of this machine"):
            local_path(foreign)


def test_folders_deeper_than_a_path_can_tell_do_not_end_a_verification(tmp_path: Path) -> None:
    folder = write(tmp_path / "g1-step20")
    deep = os.open(folder, os.O_RDONLY)
    name = "d" * 200
    for _ in range(25):
        os.mkdir(name, dir_fd=deep)
        below = os.open(name, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    (folder / name / "extra").touch()
    report = verify_folder(folder)
    assert [each.file for each in report.findings] == [f"{name}/extra"]
    assert report.sound
    assert verify_location(folder.as_uri()).findings == report.findings
    shutil.rmtree(folder)
