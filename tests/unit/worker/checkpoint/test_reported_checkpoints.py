"""Failures that others met with checkpoints, and bad inputs, by their number in docs/cases.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.checkpoints import seal_over, shard, small_checkpoint, tensor_file
from trainmaster.checkpoint.folder import verify_folder
from trainmaster.checkpoint.manifest import MANIFEST_NAME, decode, encode
from trainmaster.checkpoint.stores import open_storage
from trainmaster.errors import IntegrityError
from worker.checkpoint.reader import open_checkpoint
from worker.checkpoint.writer import save
from worker.training_state import refuse_counters_ahead

RANK_0 = "rank-00000.safetensors"
STEP = "layers.0.w/step"


def saved(root: Path, **tensors: torch.Tensor) -> str:
    done = save(
        open_storage(root.as_uri()),
        run="r1",
        generation=1,
        step=50,
        layout={},
        parent=None,
        tensors={f"model/{name}": tensor for name, tensor in tensors.items()},
        state={"step": 50, "applied_updates": 50},
        group=None,
        rank=0,
        world_size=1,
    )
    return done.manifest_sha256


def reopen(root: Path, sha: str | None = None) -> Any:
    storage = open_storage(root.as_uri())
    return open_checkpoint(storage, f"{storage.url}/g1-step50", manifest_sha256=sha)


def reseal_state(folder: Path, **changes: Any) -> None:
    """Put another state there, with digests that are right."""
    manifest = decode((folder / MANIFEST_NAME).read_bytes())
    state = {**json.loads((folder / "state.json").read_text()), **changes}
    files = {each.name: each.read_bytes() for each in folder.glob("rank-*")}
    files["state.json"] = json.dumps(state).encode()
    (folder / "state.json").write_bytes(files["state.json"])
    sealed = seal_over(files, manifest.tensors, step=manifest.step)
    (folder / MANIFEST_NAME).write_bytes(encode(sealed))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"step": 51}, "holds step 51 in the checkpoint of step 50"),
        ({"step": 50.0}, "holds step 50.0"),
        ({"step": None}, "holds step None"),
        ({"applied_updates": 51}, "counts 51 applied updates in 50 steps"),
        ({"applied_updates": -1}, "counts -1"),
    ],
)
def test_a_k21_the_state_of_another_step_is_refused_under_right_digests(
    tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    saved(tmp_path / "r1", w=torch.ones(3))
    folder = tmp_path / "r1/g1-step50"
    reseal_state(folder, **changes)
    with pytest.raises(IntegrityError, match=what):
        reopen(tmp_path / "r1")
    [finding] = verify_folder(folder).findings
    assert (finding.kind, finding.file) == ("content", "state.json")


def test_a_k05_an_optimizer_ahead_of_the_weights_is_refused() -> None:
    refuse_counters_ahead({STEP: torch.tensor(50.0)}, applied_updates=50)
    with pytest.raises(IntegrityError, match="counts 51 updates where 50 were applied"):
        refuse_counters_ahead({STEP: torch.tensor(51.0)}, applied_updates=50)


def test_a_k19_a_denormal_written_over_a_tensor_is_refused(tmp_path: Path) -> None:
    sha = saved(tmp_path / "r1", w=torch.ones(1000))
    file = tmp_path / "r1/g1-step50" / RANK_0
    with file.open("r+b") as opened:
        opened.seek(-400, 2)
        opened.write(torch.tensor([1e-42]).numpy().tobytes())
    with pytest.raises(IntegrityError, match=f"{RANK_0}: block 0: expected sha256:") as caught:
        reopen(tmp_path / "r1", sha).load({"model/w": torch.zeros(1000)})
    assert caught.value.block == 0


def test_a_k01_a_restore_by_another_number_of_ranks_takes_each_element_once(
    tmp_path: Path,
) -> None:
    from worker.checkpoint.tensors import Shard

    whole = torch.arange(40.0).reshape(10, 4)
    sha = saved(tmp_path / "r1", w=whole)
    parts = [Shard(torch.zeros(n, 4), (at, 0), (10, 4)) for at, n in ((0, 4), (4, 3), (7, 3))]
    for part in parts:
        reopen(tmp_path / "r1", sha).load({"model/w": part})
    assert torch.equal(torch.cat([part.tensor for part in parts]), whole)


def overlapping() -> bytes:
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    text = json.dumps({"model/a": entry, "model/b": {**entry, "data_offsets": [2, 6]}}).encode()
    return len(text).to_bytes(8, "little") + text + b"123456"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda good: (2**63).to_bytes(8, "little") + good[8:], "claims a header of 92233720368"),
        (lambda good: overlapping(), "overlap or leave a gap"),
        (lambda good: good[:-1], "has tensors up to byte"),
        (lambda good: good[:5], "has 5 bytes; a tensor file has at least 8"),
    ],
    ids=["2^63", "overlapping", "truncated", "no header"],
)
def test_x_chec05_hostile_headers_are_refused_under_right_digests(
    tmp_path: Path, make: Callable[[bytes], bytes], what: str
) -> None:
    good = tensor_file({"model/a": ("U8", (4,), b"1234")})
    files = {RANK_0: make(good), "state.json": b'{"step": 50}'}
    manifest = seal_over(files, {"model/a": [shard(RANK_0, "model/a", [4])]}, step=50)
    folder = tmp_path / "r1/g1-step50"
    folder.mkdir(parents=True)
    for name, data in {**files, MANIFEST_NAME: encode(manifest)}.items():
        (folder / name).write_bytes(data)
    with pytest.raises(IntegrityError, match=what) as caught:
        reopen(tmp_path / "r1").load({"model/a": torch.zeros(4, dtype=torch.uint8)})
    assert caught.value.file == RANK_0
    assert [each.file for each in verify_folder(folder).findings] == [RANK_0]


@pytest.mark.parametrize(("data", "seen"), [(None, "nothing"), (b"", "0 bytes")])
def test_x_chec09_a_shard_that_is_missing_or_empty_is_named(
    tmp_path: Path, data: bytes | None, seen: str
) -> None:
    folder = tmp_path / "r1/g1-step20"
    folder.mkdir(parents=True)
    for name, content in small_checkpoint().items():
        (folder / name).write_bytes(content)
    shard_file = folder / "rank-00001.safetensors"
    shard_file.unlink() if data is None else shard_file.write_bytes(data)
    [finding] = verify_folder(folder).findings
    assert (finding.file, finding.seen) == (shard_file.name, seen)
    storage = open_storage((tmp_path / "r1").as_uri())
    opened = open_checkpoint(storage, f"{storage.url}/g1-step20", manifest_sha256=None)
    with pytest.raises(IntegrityError) as caught:
        opened.load({"model/a": torch.zeros(3, 3, dtype=torch.uint8)})
    assert (caught.value.file, caught.value.seen) == (shard_file.name, seen)


@pytest.mark.parametrize("step", ['"60"', "60.0", "-1", "9007199254740993", "6e1", "null", None])
def test_x_chec11_a_step_that_is_none_is_refused_with_its_field(
    tmp_path: Path, step: str | None
) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for name, content in small_checkpoint(step=60).items():
        (folder / name).write_bytes(content)
    text = (folder / MANIFEST_NAME).read_text()
    line = ' "step": 60,\n'
    assert line in text
    (folder / MANIFEST_NAME).write_text(
        text.replace(line, "" if step is None else f' "step": {step},\n')
    )
    [finding] = verify_folder(folder).findings
    assert (finding.kind, finding.file) == ("manifest", MANIFEST_NAME)
    assert "step: " in finding.message
