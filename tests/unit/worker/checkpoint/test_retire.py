import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.checkpoints import small_checkpoint
from trainmaster.checkpoint.manifest import MANIFEST_NAME
from trainmaster.errors import UserError
from worker.checkpoint.retire import retire


def write(folder: Path) -> str:
    folder.mkdir(parents=True)
    for name, data in small_checkpoint().items():
        (folder / name).write_bytes(data)
    return folder.as_uri()


def test_a_retired_checkpoint_is_gone_and_its_neighbour_is_not(tmp_path: Path) -> None:
    location = write(tmp_path / "g1-step20")
    write(tmp_path / "g1-step40")
    retire(location)
    assert [folder.name for folder in tmp_path.iterdir()] == ["g1-step40"]


def test_retiring_may_be_repeated(tmp_path: Path) -> None:
    location = write(tmp_path / "g1-step20")
    for _ in range(3):
        retire(location)
    assert list(tmp_path.iterdir()) == []


def test_a_retirement_cut_short_is_finished_by_the_next(tmp_path: Path) -> None:
    location = write(tmp_path / "g1-step20")
    (tmp_path / "g1-step20" / MANIFEST_NAME).unlink()
    (tmp_path / "g1-step20" / ".state.json.00.unfinished").write_bytes(b"half")
    retire(location)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["precious", "g1", "step20", "g0-step1", "g1-step20.bak", "g1-step020"]
)
def test_a_folder_of_another_name_is_refused(tmp_path: Path, name: str) -> None:
    location = write(tmp_path / name)
    with pytest.raises(UserError, match="not a checkpoint's folder"):
        retire(location)
    assert (tmp_path / name / MANIFEST_NAME).exists()


@pytest.mark.parametrize("name", ["thesis.tex", "sub/file", "rank-1.safetensors"])
def test_a_folder_in_which_something_else_lies_is_refused_whole(tmp_path: Path, name: str) -> None:
    location = write(tmp_path / "g1-step20")
    (tmp_path / "g1-step20" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "g1-step20" / name).write_text("precious")
    with pytest.raises(UserError, match="move it away"):
        retire(location)
    assert (tmp_path / "g1-step20" / MANIFEST_NAME).exists()


@pytest.mark.parametrize(
    "location", ["", "file:///", "file:///g1-step20", "/x/g1-step20", "file:///x/.."]
)
def test_what_is_no_location_is_refused(location: str) -> None:
    with pytest.raises(UserError):
        retire(location)


def test_the_agents_part_of_checkpoints_does_not_import_torch() -> None:
    modules = (
        "worker.checkpoint.retire, worker.storage.local, "
        "trainmaster.checkpoint.stores, trainmaster.checkpoint.folder"
    )
    program = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[4])
