"""Torch checkpoints that others wrote: tensors are taken, everything else is refused by name."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from trainmaster.checkpoint.folder import verify_folder
from trainmaster.checkpoint.stores import open_storage
from trainmaster.errors import UserError
from worker.checkpoint.reader import open_checkpoint
from worker.importer.conversion import convert

WEIGHTS = {
    "layers.0.weight": torch.arange(12.0).reshape(3, 4),
    "layers.1.half": torch.ones(2, dtype=torch.bfloat16),
}


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def restored(folder: Path, *names: str) -> dict[str, torch.Tensor]:
    opened = open_checkpoint(
        open_storage(folder.as_uri()), f"{folder.as_uri()}/g1-step0", manifest_sha256=None
    )
    found = {name: torch.zeros_like(WEIGHTS[name]) for name in names or WEIGHTS}
    opened.load({f"model/{name}": tensor for name, tensor in found.items()})
    return found


@pytest.mark.parametrize(
    "content",
    [
        WEIGHTS,
        OrderedDict(WEIGHTS),
        {"model": WEIGHTS, "step": 7, "optimizer": {"lr": 0.1}},
        {"state_dict": WEIGHTS, "epoch": 3},
        {
            "layers": {
                "0": {"weight": WEIGHTS["layers.0.weight"]},
                "1": {"half": torch.ones(2).bfloat16()},
            }
        },
    ],
    ids=["plain", "ordered", "beside others", "state_dict", "nested"],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pt_becomes_a_checkpoint_after_step_0(tmp_path: Path, content: Any, zipped: bool) -> None:
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    told = convert(tmp_path / "a.pt", tmp_path / "run", "r1", [])
    assert told["tensors"] == 2
    assert verify_folder(tmp_path / "run/g1-step0", manifest_sha256=told["manifest_sha256"]).ok
    assert all(
        torch.equal(each, WEIGHTS[name]) for name, each in restored(tmp_path / "run").items()
    )


def test_tensors_are_renamed_and_never_two_into_one(tmp_path: Path) -> None:
    torch.save({"net.0.weight": WEIGHTS["layers.0.weight"]}, tmp_path / "a.pt")
    convert(tmp_path / "a.pt", tmp_path / "run", "r1", [r"^net\.(\d+)=layers.\1"])
    assert "layers.0.weight" in restored(tmp_path / "run", "layers.0.weight")
    torch.save(WEIGHTS, tmp_path / "b.pt")
    for rule, what in {".*=x": "one name", "(=x": "--rename", "plain": "PATTERN=NAME"}.items():
        with pytest.raises(UserError, match=what):
            convert(tmp_path / "b.pt", tmp_path / "none", "r1", [rule])
    assert not (tmp_path / "none").exists()


def pickled(tmp_path: Path) -> bytes:
    return pickle.dumps({"model": Evil(tmp_path / "owned")})


def zipped_evil(tmp_path: Path) -> bytes:
    made = io.BytesIO()
    torch.save({"w": torch.ones(1), "evil": Evil(tmp_path / "owned")}, made)
    return made.getvalue()


def bomb(tmp_path: Path) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
        archive.writestr("archive/data/0", bytes(50 << 20))
    return made.getvalue()


def truncated(tmp_path: Path) -> bytes:
    made = io.BytesIO()
    torch.save(WEIGHTS, made)
    return made.getvalue()[:-200]


def a_list(tmp_path: Path) -> bytes:
    made = io.BytesIO()
    torch.save([torch.ones(2)], made)
    return made.getvalue()


def without_tensors(tmp_path: Path) -> bytes:
    made = io.BytesIO()
    torch.save({"lr": 0.1}, made)
    return made.getvalue()


def sparse(tmp_path: Path) -> bytes:
    made = io.BytesIO()
    torch.save({"w": torch.ones(2, 2).to_sparse()}, made)
    return made.getvalue()


def expanded(tmp_path: Path) -> bytes:
    made = io.BytesIO()
    torch.save({"w": torch.ones(1).expand(1 << 40)}, made)
    return made.getvalue()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (pickled, "not a file of tensors alone"),
        (zipped_evil, "not a file of tensors alone"),
        (bomb, "claims 5242.* compressed: torch writes none such"),
        (truncated, "not a file of tensors alone|damaged"),
        (a_list, "a list, not tensors by name"),
        (without_tensors, "no tensor in it"),
        (sparse, "cannot be kept"),
        (expanded, "claims 1099511627776 elements in 4 bytes"),
        (lambda _: b"", "not a file of tensors alone"),
        (lambda _: b"hello world", "not a file of tensors alone"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_x_chec07_a_hostile_pt_is_refused_before_it_costs_anything(
    tmp_path: Path, make: Callable[[Path], bytes], what: str
) -> None:
    (tmp_path / "a.pt").write_bytes(make(tmp_path))
    with pytest.raises(UserError, match=what):
        convert(tmp_path / "a.pt", tmp_path / "run", "r1", [])
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "owned").exists(), "nothing was executed"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dcp") / "saved"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": WEIGHTS, "step": 5}, checkpoint_id=folder, no_dist=True)
    return folder


def test_x_chec01_a_directory_of_torch_becomes_a_checkpoint(
    directory: Path, tmp_path: Path
) -> None:
    told = convert(directory, tmp_path / "run", "r1", [r"^model\.="])
    assert told["tensors"] == 2
    assert all(
        torch.equal(each, WEIGHTS[name]) for name, each in restored(tmp_path / "run").items()
    )


def spoil(folder: Path, kind: str, owned: Path) -> None:
    index = folder / ".metadata"
    [data] = folder.glob("*.distcp")
    match kind:
        case "evil index":
            index.write_bytes(pickle.dumps(Evil(owned)))
        case "no index":
            index.write_bytes(pickle.dumps({}))
        case "flipped index":
            index.write_bytes(index.read_bytes()[:-40])
        case "lost data":
            data.unlink()
        case "short data":
            data.write_bytes(data.read_bytes()[:300])
        case "link":
            data.rename(folder.parent / "elsewhere")
            data.symlink_to(folder.parent / "elsewhere")
        case "outside":
            raw = index.read_bytes()
            name = data.name.encode()
            index.write_bytes(raw.replace(name, b"../" + name[3:]))
        case "evil data":
            made = io.BytesIO()
            torch.save(Evil(owned), made)
            data.write_bytes(made.getvalue() * 3)


@pytest.mark.parametrize(
    ("kind", "what"),
    {
        "evil index": "names posix.mkdir, which no tensor needs",
        "no index": "is not the index",
        "flipped index": "cannot be read",
        "lost data": "that is not there",
        "short data": "that is not there|not a file of tensors",
        "link": "that is not there",
        "outside": "that is not there",
        "evil data": "not a file of tensors alone|damaged",
    }.items(),
)
def test_x_chec01_a_hostile_directory_is_refused(
    directory: Path, tmp_path: Path, kind: str, what: str
) -> None:
    folder = tmp_path / "dcp"
    shutil.copytree(directory, folder)
    spoil(folder, kind, tmp_path / "owned")
    with pytest.raises(UserError, match=what):
        convert(folder, tmp_path / "run", "r1", [])
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "owned").exists(), "nothing was executed"
