"""What disks, people and programs do to a checkpoint's files, and what must come of it: no wrong
state, and an error that names the file.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from tests.distributed import savers
from tests.distributed.savers import ROWS, run_ranks, whole_state
from trainmaster.checkpoint import manifest as manifests
from trainmaster.checkpoint.folder import verify_folder
from trainmaster.checkpoint.manifest import MANIFEST_NAME
from trainmaster.checkpoint.stores import open_storage
from trainmaster.errors import IntegrityError
from worker.checkpoint.reader import open_checkpoint

FOLDER = "g1-step20"
RANK_0, RANK_1 = "rank-00000.safetensors", "rank-00001.safetensors"

Damage = Callable[[Path, Path, random.Random], str]
"""(the checkpoint's folder, all runs, draws) -> the file that is to be blamed, "" where several may
be.
"""


def save_runs(top: Path, rows: int = ROWS) -> Path:
    """Save with two ranks each: `good`; `later`, its next step; `other`, another run at the same
    step.
    """
    for name, changes in {
        "good": {},
        "later": {"step": 40, "state": {"step": 40}, "layout": 2},
        "other": {"run": "r2", "layout": 3},
    }.items():
        layout = changes.pop("layout", 1)
        root = (top / name).as_uri()
        told = run_ranks(
            top / f"ranks-{name}", savers.save_layout, root, layout, rows, world_size=2, **changes
        )
        assert "error" not in told[0], told
    return top


def flip_a_bit(folder: Path, saved: Path, draw: random.Random) -> str:
    file = draw.choice(sorted(folder.iterdir()))
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)
    return file.name


def truncate(folder: Path, saved: Path, draw: random.Random) -> str:
    file = draw.choice(sorted(folder.iterdir()))
    data = file.read_bytes()
    file.write_bytes(data[: draw.randrange(len(data))])
    return file.name


def zero_a_page(folder: Path, saved: Path, draw: random.Random) -> str:
    file = draw.choice(sorted(folder.iterdir()))
    data = file.read_bytes()
    start = draw.randrange(0, len(data), 4096)
    file.write_bytes(data[:start] + bytes(len(data[start : start + 4096])) + data[start + 4096 :])
    return file.name


def append_bytes(folder: Path, saved: Path, draw: random.Random) -> str:
    file = draw.choice(sorted(folder.iterdir()))
    file.write_bytes(file.read_bytes() + draw.randbytes(draw.randint(1, 100)))
    return file.name


def swap_files(folder: Path, saved: Path, draw: random.Random) -> str:
    one, other = draw.sample(sorted(folder.iterdir()), 2)
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    return ""


def lose_a_file(folder: Path, saved: Path, draw: random.Random) -> str:
    file = draw.choice(sorted(folder.iterdir()))
    file.unlink()
    return file.name


def stale_manifest(folder: Path, saved: Path, draw: random.Random) -> str:
    shutil.copy(saved / "later" / "g1-step40" / MANIFEST_NAME, folder)
    return MANIFEST_NAME


def file_of_another_run(folder: Path, saved: Path, draw: random.Random) -> str:
    name = draw.choice([MANIFEST_NAME, RANK_0, RANK_1])
    shutil.copy(saved / "other" / FOLDER / name, folder)
    return name


def file_of_another_step(folder: Path, saved: Path, draw: random.Random) -> str:
    name = draw.choice([RANK_0, RANK_1])
    shutil.copy(saved / "later" / "g1-step40" / name, folder)
    return name


def edit_the_manifest(folder: Path, saved: Path, draw: random.Random) -> str:
    """Change a field, sometimes with the digest made right again."""
    body = json.loads((folder / MANIFEST_NAME).read_bytes())
    del body["digest"], body["format"]
    field = draw.choice(["run", "generation", "layout", "shard", "block"])
    if field in {"run", "generation", "layout"}:
        body[field] = {"run": "r9", "generation": 2, "layout": {"ranks": 7}}[field]
    elif field == "shard":
        name = draw.choice(sorted(name for name in body["tensors"] if body["tensors"][name]))
        body["tensors"][draw.choice(sorted(body["tensors"]))] = body["tensors"].pop(name)
        body["tensors"] = dict(body["tensors"])
    else:
        body["files"][RANK_0]["blocks"][0] = manifests.sha256(draw.randbytes(4))
    if draw.random() < 0.5:
        parsed = {
            "files": {
                name: manifests.FileEntry.model_validate(entry)
                for name, entry in body["files"].items()
            },
            "tensors": {
                name: [manifests.ShardEntry.model_validate(shard) for shard in shards]
                for name, shards in body["tensors"].items()
            },
        }
        data = manifests.encode(manifests.seal(**{**body, **parsed}))
    else:
        whole = json.loads((folder / MANIFEST_NAME).read_bytes())
        data = (json.dumps({**whole, **body}, indent=1, sort_keys=True) + "\n").encode()
    (folder / MANIFEST_NAME).write_bytes(data)
    return MANIFEST_NAME


def scribble(folder: Path, saved: Path, draw: random.Random) -> str:
    file = draw.choice(sorted(folder.iterdir()))
    data = bytearray(file.read_bytes())
    start = draw.randrange(len(data))
    data[start : start + 64] = draw.randbytes(len(data[start : start + 64]))
    file.write_bytes(data)
    return file.name


def empty_a_file(folder: Path, saved: Path, draw: random.Random) -> str:
    file = draw.choice(sorted(folder.iterdir()))
    file.write_bytes(b"")
    return file.name


def link_to_another_run(folder: Path, saved: Path, draw: random.Random) -> str:
    file = draw.choice(sorted(folder.iterdir()))
    file.unlink()
    file.symlink_to(saved / "other" / FOLDER / file.name)
    return file.name


def link_to_nothing(folder: Path, saved: Path, draw: random.Random) -> str:
    file = draw.choice(sorted(folder.iterdir()))
    file.unlink()
    file.symlink_to(draw.choice([file.name, "none", "/dev/zero", "/dev/null"]))
    return file.name


def folder_in_the_place_of_a_file(folder: Path, saved: Path, draw: random.Random) -> str:
    file = draw.choice(sorted(folder.iterdir()))
    file.unlink()
    file.mkdir()
    return file.name


def pipe_in_the_place_of_a_file(folder: Path, saved: Path, draw: random.Random) -> str:
    file = draw.choice(sorted(folder.iterdir()))
    file.unlink()
    os.mkfifo(file)
    return file.name


DAMAGES: list[Damage] = [
    flip_a_bit,
    truncate,
    zero_a_page,
    append_bytes,
    swap_files,
    lose_a_file,
    stale_manifest,
    file_of_another_run,
    file_of_another_step,
    edit_the_manifest,
    scribble,
    empty_a_file,
    link_to_another_run,
    link_to_nothing,
    folder_in_the_place_of_a_file,
    pipe_in_the_place_of_a_file,
]


def contents(folder: Path) -> dict[str, bytes | None]:
    """The bytes of each file; None stands for what is no plain file."""
    return {
        file.name: file.read_bytes() if file.is_file() and not file.is_symlink() else None
        for file in folder.iterdir()
    }


def restored(
    root: Path, *, manifest_sha256: str | None, rows: int = ROWS
) -> Mapping[str, torch.Tensor]:
    """All of the state, as a rank would restore it."""
    storage = open_storage(root.as_uri())
    opened = open_checkpoint(storage, f"{storage.url}/{FOLDER}", manifest_sha256=manifest_sha256)
    state = {name: torch.zeros_like(tensor) for name, tensor in whole_state(rows=rows).items()}
    opened.load(state)
    return state


def outcome_of(damage: Damage, saved: Path, root: Path, seed: int, rows: int = ROWS) -> str:
    """Damage a copy of the good checkpoint under `root`, restore and verify it; return `refused`,
    or `changed nothing` where the draw was of no effect.

    Raises:
        AssertionError: wrong state was restored, or the error does not name the file to blame.
    """
    source, folder = saved / "good" / FOLDER, root / FOLDER
    digest = manifests.sha256((source / MANIFEST_NAME).read_bytes())
    shutil.copytree(source, folder)
    to_blame = damage(folder, saved, random.Random(seed))
    if contents(folder) == contents(source):
        return "changed nothing"
    told = f"{damage.__name__} (seed {seed})"
    error = _refusal(root, digest, rows)
    assert error is not None, f"{told}: what was damaged has been restored"
    assert error.file is not None, f"{told}: no file in {error}"
    assert error.file in str(error), f"{told}: {error.file} is not in {error}"
    assert to_blame in {"", error.file}, f"{told}: {to_blame} is not blamed in {error}"
    report = verify_folder(folder, manifest_sha256=digest)
    assert not report.sound, f"{told}: verify finds nothing"
    assert all(finding.message and finding.file for finding in report.findings), told
    return "refused"


def _refusal(root: Path, manifest_sha256: str, rows: int) -> IntegrityError | None:
    try:
        restored(root, manifest_sha256=manifest_sha256, rows=rows)
    except IntegrityError as error:
        return error
    return None
