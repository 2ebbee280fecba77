"""Weights out of a checkpoint: whole, verified, under their names, without torch."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors

from tests.fakes.checkpoints import Files, readers, seal_over, shard, small_checkpoint, tensor_file
from trainmaster.checkpoint.export import divided, export
from trainmaster.checkpoint.manifest import MANIFEST_NAME, ShardEntry, encode
from trainmaster.checkpoint.weights import Source, Weights
from trainmaster.errors import IntegrityError, UserError

RANK_0, RANK_1 = "rank-00000.safetensors", "rank-00001.safetensors"


def opened(files: Files) -> Weights:
    found = readers(files)
    return Weights(Source(found["read"], found["size"], "g1-step20"))  # type: ignore[arg-type]


def cut_by_columns() -> Files:
    """A matrix of 3 x 4 whose columns lie with two ranks, a bias, and state of the optimizer."""
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    left, right = matrix[:, :1].tobytes(), matrix[:, 1:].tobytes()
    files = {
        RANK_0: tensor_file(
            {
                "model/layers.0.w": ("F32", (3, 1), left),
                "optimizer/layers.0.w/step": ("F32", (), struct.pack("<f", 20)),
                "model/layers.1.half": ("BF16", (2,), b"\x80\x3f\x00\x40"),
            }
        ),
        RANK_1: tensor_file({"model/layers.0.w": ("F32", (3, 3), right)}),
        "state.json": b'{"step": 20}',
    }

    def of(file: str, key: str, shape: list[int], dtype: str, at: list[int] | None) -> ShardEntry:
        return shard(file, key, shape, at=at).model_copy(update={"dtype": dtype})

    tensors = {
        "model/layers.0.w": [
            of(RANK_0, "model/layers.0.w", [3, 1], "F32", [0, 0]),
            of(RANK_1, "model/layers.0.w", [3, 3], "F32", [0, 1]),
        ],
        "optimizer/layers.0.w/step": [of(RANK_0, "optimizer/layers.0.w/step", [], "F32", None)],
        "model/layers.1.half": [of(RANK_0, "model/layers.1.half", [2], "BF16", None)],
    }
    return {**files, MANIFEST_NAME: encode(seal_over(files, tensors))}


def test_tensors_are_put_together_and_written_as_one_file(tmp_path: Path) -> None:
    done = export(opened(cut_by_columns()), tmp_path / "out")
    assert done.files == ("model.safetensors",)
    assert (done.tensors, done.bytes) == (2, 52)
    header = (tmp_path / "out/model.safetensors").read_bytes()
    assert b"optimizer" not in header
    with safetensors.safe_open(tmp_path / "out/model.safetensors", framework="numpy") as file:
        assert sorted(file.keys()) == ["layers.0.w", "layers.1.half"]
        assert np.array_equal(file.get_tensor("layers.0.w"), np.arange(12.0).reshape(3, 4))
    digest = hashlib.sha256(b"layers.0.w\0F32\x003,4\0" + np.arange(12, dtype="<f4").tobytes())
    digest.update(b"layers.1.half\0BF16\x002\0" + b"\x80\x3f\x00\x40")
    assert done.weights_sha256 == digest.hexdigest(), "as the contract defines weights_sha256"


def test_large_models_are_divided_and_have_an_index(tmp_path: Path) -> None:
    done = export(opened(cut_by_columns()), tmp_path, max_file_bytes=50, config={"model_type": "x"})
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert done.files == (first, second, "model.safetensors.index.json", "config.json")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {"layers.0.w": first, "layers.1.half": second}
    assert index["metadata"]["total_size"] == 52
    assert json.loads((tmp_path / "config.json").read_text()) == {"model_type": "x"}
    assert done.weights_sha256 == export(opened(cut_by_columns()), tmp_path / "b").weights_sha256


def test_names_of_another_program_are_written_and_the_digest_stays(tmp_path: Path) -> None:
    done = export(opened(cut_by_columns()), tmp_path / "a", names={"layers.0.w": "model.w"})
    plain = export(opened(cut_by_columns()), tmp_path / "b")
    with safetensors.safe_open(tmp_path / "a/model.safetensors", framework="numpy") as file:
        assert sorted(file.keys()) == ["layers.1.half", "model.w"]
    assert done.weights_sha256 == plain.weights_sha256
    with pytest.raises(UserError, match="one name"):
        export(opened(cut_by_columns()), tmp_path / "c", names={"layers.0.w": "layers.1.half"})


def test_tensors_larger_than_a_file_have_their_own() -> None:
    heads = {name: ("U8", (size,)) for name, size in {"a": 3, "b": 9, "c": 2, "d": 3}.items()}
    assert divided(heads, 5) == [["a"], ["b"], ["c", "d"]]


@pytest.mark.parametrize("name", [RANK_1, "state.json", MANIFEST_NAME])
def test_nothing_that_looks_whole_is_left_when_a_byte_is_wrong(tmp_path: Path, name: str) -> None:
    files = small_checkpoint()
    files[name] = files[name][:-3] + bytes([files[name][-3] ^ 1]) + files[name][-2:]
    with pytest.raises(IntegrityError) as caught:
        export(opened(files), tmp_path / "out")
    assert caught.value.file == name
    assert list((tmp_path / "out").glob("*")) == []


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UserError, match="holds something already"):
        export(opened(small_checkpoint()), tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]
