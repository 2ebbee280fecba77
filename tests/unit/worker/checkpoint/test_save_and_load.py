"""One rank: what is saved is restored, and what cannot be is refused."""

import errno
import json
import math
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.fakes.checkpoints import seal_over, shard
from tests.fakes.storage import HauntedStorage
from trainmaster.checkpoint.folder import verify_folder
from trainmaster.checkpoint.manifest import (
    BLOCK_BYTES,
    MANIFEST_NAME,
    Parent,
    decode,
    encode,
    sha256,
)
from trainmaster.checkpoint.stores import verify_location
from trainmaster.errors import ConflictError, IntegrityError, UnavailableError, UserError
from trainmaster.storage import Storage
from worker.checkpoint.peers import CheckpointWriteError, NonFiniteStateError
from worker.checkpoint.reader import (
    MAX_BUFFERED_BYTES,
    CheckpointMismatchError,
    open_checkpoint,
)
from worker.checkpoint.tensors import DTYPE_NAMES, Shard, is_finite
from worker.checkpoint.writer import Saved, save
from worker.storage import open_storage

STATE = {"step": 20, "lr": 3e-4, "skip": [[5, 7]], "name": "ü"}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage((tmp_path / "run").as_uri())


def save_alone(storage: Storage, tensors: Mapping[str, Any], **changes: Any) -> Saved:
    fields: dict[str, Any] = {
        "run": "r1",
        "generation": 1,
        "step": 20,
        "layout": {"replicas": 1},
        "parent": None,
        "state": STATE,
        "group": None,
        "rank": 0,
        "world_size": 1,
    }
    return save(storage, tensors=tensors, **{**fields, **changes})


def some_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "model/layers.0.weight": torch.randn(5, 3),
        "model/layers.0.bias": torch.randn(3, dtype=torch.bfloat16),
        "optimizer/layers.0.weight/step": torch.tensor(20.0),
        "optimizer/layers.0.weight/exp_avg": torch.randn(3, 5).t(),
        "model/empty": torch.empty(0, 4),
        "rng/0": torch.arange(9, dtype=torch.uint8),
    }


def blank(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def test_what_is_saved_is_restored(storage: Storage) -> None:
    tensors = some_tensors()
    parent = Parent(checkpoint="r1-g1-s10", manifest_sha256=sha256(b"x"))
    saved = save_alone(storage, tensors, parent=parent)
    opened = open_checkpoint(storage, saved.location, manifest_sha256=saved.manifest_sha256)
    assert opened.state == STATE
    assert opened.manifest == saved.manifest
    assert opened.manifest.parent == parent
    restored = blank(tensors)
    loaded = opened.load(restored)
    assert loaded.bytes == sum(t.numel() * t.element_size() for t in tensors.values())
    for name, tensor in tensors.items():
        assert torch.equal(restored[name], tensor), name


def test_what_is_said_about_a_save_is_so(storage: Storage, tmp_path: Path) -> None:
    saved = save_alone(storage, some_tensors())
    folder = tmp_path / "run" / "g1-step20"
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(files) == ["manifest.json", "rank-00000.safetensors", "state.json"]
    assert saved.location == folder.as_uri()
    assert saved.manifest_sha256 == sha256(files[MANIFEST_NAME])
    assert saved.manifest == decode(files[MANIFEST_NAME])
    assert saved.files == 2
    assert saved.bytes == len(files["rank-00000.safetensors"]) + len(files["state.json"])
    assert json.loads(files["state.json"]) == STATE
    assert verify_folder(folder, manifest_sha256=saved.manifest_sha256).ok
    assert verify_location(saved.location).ok


def test_the_safetensors_library_reads_the_file(storage: Storage, tmp_path: Path) -> None:
    tensors = some_tensors()
    save_alone(storage, tensors)
    file = tmp_path / "run" / "g1-step20" / "rank-00000.safetensors"
    read = safetensors.torch.load_file(file)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    with safetensors.safe_open(file, framework="pt") as opened:
        assert opened.metadata() == {
            "format": "pt",
            "run": "r1",
            "generation": "1",
            "step": "20",
            "rank": "0",
        }


@pytest.mark.parametrize("dtype", DTYPE_NAMES, ids=str)
def test_every_dtype_survives(storage: Storage, dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 2, 1]).to(dtype)
    saved = save_alone(storage, {"model/x": tensor})
    restored = torch.zeros(4).to(dtype)
    open_checkpoint(storage, saved.location, manifest_sha256=None).load({"model/x": restored})
    assert torch.equal(restored.view(torch.uint8), tensor.view(torch.uint8))


def test_parameters_that_need_gradients_are_filled_in_place(storage: Storage) -> None:
    module = torch.nn.Linear(3, 2)
    saved = save_alone(storage, {f"model/{n}": p for n, p in module.named_parameters()})
    other = torch.nn.Linear(3, 2)
    opened = open_checkpoint(storage, saved.location, manifest_sha256=None)
    opened.load({f"model/{name}": parameter for name, parameter in other.named_parameters()})
    assert torch.equal(other.weight, module.weight)
    assert other.weight.requires_grad


def test_a_part_is_read_from_the_blocks_that_hold_it_alone(storage: Storage) -> None:
    whole = torch.arange(5 * BLOCK_BYTES // 4, dtype=torch.int32)
    saved = save_alone(storage, {"model/x": whole})
    start = 3 * BLOCK_BYTES // 4
    part = Shard(torch.zeros(1000, dtype=torch.int32), (start,), tuple(whole.shape))
    opened = open_checkpoint(storage, saved.location, manifest_sha256=None)
    loaded = opened.load({"model/x": part})
    assert torch.equal(part.tensor, whole[start : start + 1000])
    assert loaded.read_bytes == 2 * BLOCK_BYTES  # the header's and the part's


def test_a_restore_holds_the_share_and_a_bounded_buffer_and_reads_no_more(storage: Storage) -> None:
    rows, width = 12, BLOCK_BYTES // 4
    whole = torch.arange(rows * width, dtype=torch.int32).reshape(rows, width)
    saved = save_alone(storage, {"model/x": whole})
    opened = open_checkpoint(storage, saved.location, manifest_sha256=None)
    columns = Shard(torch.zeros(rows, 16, dtype=torch.int32), (0, 100), (rows, width))
    quarter = Shard(torch.zeros(rows // 4, width, dtype=torch.int32), (3, 0), (rows, width))
    for share, blocks in ((columns, rows), (quarter, rows // 4 + 2)):
        tracemalloc.start()
        loaded = opened.load({"model/x": share})
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        index = tuple(map(slice, share.box.offset, share.box.end))
        assert torch.equal(share.tensor, whole[index])
        assert loaded.read_bytes <= blocks * BLOCK_BYTES
        assert peak_bytes < MAX_BUFFERED_BYTES + BLOCK_BYTES


def test_columns_of_a_matrix_that_is_longer_than_a_block(storage: Storage) -> None:
    whole = torch.arange(4200 * 1001, dtype=torch.float32).view(4200, 1001)
    assert whole.numel() * 4 > BLOCK_BYTES, "some row lies in two blocks"
    saved = save_alone(storage, {"model/w": whole})
    assert saved.location is not None
    columns = Shard(torch.zeros(4100, 7), (50, 990), (4200, 1001))
    open_checkpoint(storage, saved.location, manifest_sha256=None).load({"model/w": columns})
    assert torch.equal(columns.tensor, whole[50:4150, 990:997])


def test_a_damaged_block_is_not_noticed_by_one_who_does_not_read_it(
    storage: Storage, tmp_path: Path
) -> None:
    whole = torch.arange(3 * BLOCK_BYTES // 4, dtype=torch.int32)
    saved = save_alone(storage, {"model/x": whole})
    with (tmp_path / "run/g1-step20/rank-00000.safetensors").open("r+b") as file:
        file.seek(2 * BLOCK_BYTES + 5)
        file.write(b"\xaa")
    opened = open_checkpoint(storage, saved.location, manifest_sha256=saved.manifest_sha256)
    opened.load({"model/x": Shard(torch.zeros(9, dtype=torch.int32), (0,), tuple(whole.shape))})
    with pytest.raises(IntegrityError) as caught:
        opened.load({"model/x": torch.zeros_like(whole)})
    assert (caught.value.file, caught.value.block) == ("rank-00000.safetensors", 2)
    assert caught.value.expected == saved.manifest.files["rank-00000.safetensors"].blocks[2]
    assert caught.value.seen not in {None, caught.value.expected}
    assert "rank-00000.safetensors: block 2: expected sha256:" in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "what"),
    [
        ({"model/none": torch.zeros(3)}, "'model/none' is not in it"),
        ({"model/x": torch.zeros(3, 3)}, r"shape \[2, 3\] in it and \[3, 3\] here"),
        ({"model/x": torch.zeros(2, 3, dtype=torch.float16)}, "F32 in it and F16 here"),
        ({"model/x": Shard(torch.zeros(1, 3), (0, 0), (9, 3))}, r"and \[9, 3\] here"),
    ],
)
def test_another_model_is_refused_before_anything_is_changed(
    storage: Storage, wanted: dict[str, torch.Tensor], what: str
) -> None:
    saved = save_alone(storage, {"model/x": torch.ones(2, 3), "model/y": torch.ones(1)})
    opened = open_checkpoint(storage, saved.location, manifest_sha256=None)
    untouched = torch.zeros(1)
    with pytest.raises(CheckpointMismatchError, match=what):
        opened.load({"model/y": untouched, **wanted})
    assert untouched == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
def test_state_that_is_not_finite_is_never_committed(
    storage: Storage, tmp_path: Path, bad: float, dtype: torch.dtype
) -> None:
    tensor = torch.zeros(100, dtype=dtype)
    tensor[50] = bad
    with pytest.raises(NonFiniteStateError, match="'model/x' holds NaN or infinity"):
        save_alone(storage, {"model/x": tensor})
    assert not (tmp_path / "run").exists()


def test_a_sum_that_overflows_is_not_mistaken_for_infinity() -> None:
    assert is_finite(torch.full((10,), 60_000.0, dtype=torch.float16))
    assert is_finite(torch.full((4,), torch.finfo(torch.float32).max))
    assert not is_finite(torch.tensor([math.inf, -math.inf]))
    assert is_finite(torch.tensor([2, 3]))
    assert not is_finite(torch.tensor([math.nan]).to(torch.float8_e4m3fn))


def test_a_state_that_json_cannot_hold_is_refused(storage: Storage) -> None:
    with pytest.raises(NonFiniteStateError, match=r"state\.json"):
        save_alone(storage, {}, state={"best": math.inf})


def test_a_committed_checkpoint_is_never_written_over(storage: Storage, tmp_path: Path) -> None:
    saved = save_alone(storage, {"model/x": torch.ones(3)})
    with pytest.raises(ConflictError, match="committed already"):
        save_alone(storage, {"model/x": torch.zeros(3)})
    assert verify_folder(tmp_path / "run/g1-step20", manifest_sha256=saved.manifest_sha256).ok


def test_the_leavings_of_a_dead_writer_are_written_over(storage: Storage, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "g1-step20"
    folder.mkdir(parents=True)
    (folder / "rank-00000.safetensors").write_bytes(b"half a file")
    save_alone(storage, {"model/x": torch.ones(3)})
    assert verify_folder(folder).ok


def full_disk(operation: str, when: str) -> Callable[[str, str], None]:
    def before(asked: str, path: str) -> None:
        if asked == operation and when in path:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    return before


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("put", "rank-"),
        ("chunk", "rank-"),
        ("after put", "rank-"),
        ("put", "state.json"),
        ("create", "manifest"),
        ("after create", "manifest"),
    ],
)
def test_a_full_disk_leaves_nothing_behind(
    storage: Storage, tmp_path: Path, operation: str, path: str
) -> None:
    full = HauntedStorage(storage, full_disk(operation, path))
    with pytest.raises(
        CheckpointWriteError, match=r"g1-step20 was not written to file:/.*No space"
    ):
        save_alone(full, {"model/x": torch.ones(3)})
    assert list(tmp_path.glob("run/*")) == []
    save_alone(storage, {"model/x": torch.ones(3)})


def test_a_store_that_is_not_mounted_is_no_evidence_against_its_checkpoints(
    storage: Storage,
) -> None:
    with pytest.raises(UnavailableError, match="mounted"):
        open_checkpoint(storage, f"{storage.url}/g1-step20", manifest_sha256=None)
    with pytest.raises(UnavailableError, match="mounted"):
        verify_location(f"{storage.url}/g1-step20")


class DeathError(BaseException):
    """Stands for the end of the process: nothing that catches errors catches it."""


def test_a_death_ahead_of_any_operation_leaves_a_whole_checkpoint_or_none(tmp_path: Path) -> None:
    tensors = {"model/x": torch.ones(BLOCK_BYTES // 2), "model/y": torch.ones(3)}
    outcomes: list[bool] = []
    for fatal in range(1, 40):
        storage = open_storage((tmp_path / f"{fatal}").as_uri())
        left = iter(range(fatal - 1))

        def die(operation: str, path: str, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise DeathError

        folder = tmp_path / f"{fatal}" / "g1-step20"
        try:
            save_alone(HauntedStorage(storage, die), tensors)
        except DeathError:
            if (folder / MANIFEST_NAME).exists():
                assert verify_folder(folder).ok
            outcomes.append((folder / MANIFEST_NAME).exists())
        else:
            assert verify_folder(folder).ok
            break
    assert len(outcomes) > 8
    assert outcomes == sorted(outcomes)


def test_a_folder_that_cannot_be_made_is_an_error_of_writing(tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("a file where a folder should be")
    with pytest.raises(CheckpointWriteError, match="g1-step20 was not written"):
        save_alone(open_storage(f"file://{tmp_path}/occupied/run"), {"model/x": torch.ones(3)})


def test_parts_that_do_not_make_a_whole_are_our_own_fault(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="cover 3 of the 9 elements"):
        save_alone(storage, {"model/x": Shard(torch.ones(3), (6,), (9,))})
    assert not (tmp_path / "run/g1-step20" / MANIFEST_NAME).exists()


def test_a_checkpoint_of_another_store_is_opened_where_it_lies(
    storage: Storage, tmp_path: Path
) -> None:
    saved = save_alone(storage, {"model/x": torch.ones(3)})
    elsewhere = open_storage((tmp_path / "other").as_uri())
    opened = open_checkpoint(elsewhere, saved.location, manifest_sha256=saved.manifest_sha256)
    assert opened.state == STATE


@pytest.mark.parametrize("length", [2**63, 2**40, 99_000_000])
def test_a_hostile_header_under_right_digests_is_refused(tmp_path: Path, length: int) -> None:
    file = "rank-00000.safetensors"
    contents = {file: length.to_bytes(8, "little") + b"{}", "state.json": b'{"step": 20}'}
    sealed = seal_over(contents, {"model/x": [shard(file, "model/x", [2**40])]})
    folder = tmp_path / "g1-step20"
    folder.mkdir()
    for name, data in {**contents, MANIFEST_NAME: encode(sealed)}.items():
        (folder / name).write_bytes(data)
    opened = open_checkpoint(open_storage(tmp_path.as_uri()), folder.as_uri(), manifest_sha256=None)
    part = Shard(torch.zeros(4, dtype=torch.uint8), (0,), (2**40,))
    with pytest.raises(IntegrityError, match=f"claims a header of {length} bytes") as caught:
        opened.load({"model/x": part})
    assert caught.value.file == file


def test_what_is_not_there_is_told_with_the_file_that_is_missing(storage: Storage) -> None:
    save_alone(storage, {"model/x": torch.ones(3)}, step=10)
    with pytest.raises(IntegrityError, match=r"manifest\.json.*missing"):
        open_checkpoint(storage, f"{storage.url}/g1-step20", manifest_sha256=None)
    [finding] = verify_location(f"{storage.url}/g1-step20").findings
    assert (finding.kind, finding.file) == ("missing_file", MANIFEST_NAME)
    with pytest.raises(UserError):
        open_checkpoint(storage, "g1-step20", manifest_sha256=None)
