"""The corruption campaign: whatever happens to a checkpoint's bytes, no wrong state is restored.

Each trial damages a copy of a checkpoint that two ranks saved, in one of the ways in which disks,
people and programs do, and restores all of it. It must fail with an error that names the file.
"""

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.distributed import savers
from tests.distributed.savers import run_ranks, whole_state
from trainmaster import manifest as manifests
from trainmaster.errors import IntegrityError
from trainmaster.folder import verify_folder
from trainmaster.manifest import MANIFEST_NAME
from worker.checkpoint.reader import open_checkpoint
from worker.storage import open_storage

TRIALS = 400
FOLDER = "g1-step20"
RANK_0, RANK_1, STATE = "rank-00000.safetensors", "rank-00001.safetensors", "state.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: `good`; `later`, its next step; `other`, another run at the same step."""
    top = tmp_path_factory.mktemp("saved")
    for name, changes in {
        "good": {},
        "later": {"step": 40, "layout": 2},
        "other": {"run": "r2", "layout": 3},
    }.items():
        root = (top / name).as_uri()
        layout = changes.pop("layout", 1)
        told = run_ranks(
            top / f"ranks-{name}", savers.save_layout, root, layout, world_size=2, **changes
        )
        assert "error" not in told[0]
    return top


Damage = Callable[[Path, Path, random.Random], str]


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
    file = draw.choice([folder / RANK_0, folder / RANK_1])
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
]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def restore(root: Path, *, manifest_sha256: str | None) -> dict[str, torch.Tensor]:
    storage = open_storage(root.as_uri())
    opened = open_checkpoint(storage, f"{storage.url}/{FOLDER}", manifest_sha256=manifest_sha256)
    state = {name: torch.zeros_like(tensor) for name, tensor in whole_state().items()}
    opened.load(state)
    return state


def test_of_hundreds_of_random_corruptions_none_is_restored_and_each_is_named(
    saved: Path, tmp_path: Path
) -> None:
    good = contents(saved / "good" / FOLDER)
    digest = manifests.sha256(good[MANIFEST_NAME])
    counts: Counter[str] = Counter()
    for trial in range(TRIALS):
        draw = random.Random(trial)
        damage = DAMAGES[trial % len(DAMAGES)]
        root = tmp_path / f"{trial}"
        folder = root / FOLDER
        shutil.copytree(saved / "good" / FOLDER, folder)
        named = damage(folder, saved, draw)
        if contents(folder) == good:
            counts["changed nothing"] += 1
            continue
        with pytest.raises(IntegrityError) as caught:
            restore(root, manifest_sha256=digest)
        assert caught.value.file is not None
        assert caught.value.file in str(caught.value)
        if named:
            assert caught.value.file == named, (damage.__name__, str(caught.value))
        report = verify_folder(folder, manifest_sha256=digest)
        assert not report.sound
        assert all(finding.message and finding.file for finding in report.findings)
        counts[damage.__name__] += 1
        shutil.rmtree(root)
    print(dict(counts))
    assert counts.total() == TRIALS
    assert counts["changed nothing"] < TRIALS // 20
    assert all(counts[damage.__name__] for damage in DAMAGES)


def test_without_a_known_digest_only_a_forged_manifest_could_deceive(
    saved: Path, tmp_path: Path
) -> None:
    right = whole_state()
    for trial in range(TRIALS // 2):
        draw = random.Random(trial)
        damage = [d for d in DAMAGES if d is not edit_the_manifest][trial % (len(DAMAGES) - 1)]
        root = tmp_path / f"{trial}"
        shutil.copytree(saved / "good" / FOLDER, root / FOLDER)
        damage(root / FOLDER, saved, draw)
        try:
            restored = restore(root, manifest_sha256=None)
        except IntegrityError:
            continue
        finally:
            shutil.rmtree(root)
        assert all(torch.equal(restored[name], right[name]) for name in right)


def test_a_checkpoint_put_whole_in_the_place_of_another_is_told_by_its_digest(
    saved: Path, tmp_path: Path
) -> None:
    good = contents(saved / "good" / FOLDER)
    shutil.copytree(saved / "other" / FOLDER, tmp_path / FOLDER)
    with pytest.raises(IntegrityError, match="not the manifest that was committed here"):
        restore(tmp_path, manifest_sha256=manifests.sha256(good[MANIFEST_NAME]))
