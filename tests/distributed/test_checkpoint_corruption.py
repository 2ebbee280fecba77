"""Whatever happens to a checkpoint's bytes, no wrong state is restored. `make campaign-corruption`
draws more of the same.
"""

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.distributed.damages import (
    DAMAGES,
    FOLDER,
    edit_the_manifest,
    outcome_of,
    restored,
    save_runs,
)
from tests.distributed.savers import whole_state
from trainmaster.checkpoint import manifest as manifests
from trainmaster.checkpoint.manifest import MANIFEST_NAME
from trainmaster.errors import IntegrityError

TRIALS = 25 * len(DAMAGES)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_runs(tmp_path_factory.mktemp("saved"))


def test_of_hundreds_of_random_corruptions_none_is_restored_and_each_is_named(
    saved: Path, tmp_path: Path
) -> None:
    counts: Counter[str] = Counter()
    for trial in range(TRIALS):
        damage = DAMAGES[trial % len(DAMAGES)]
        outcome = outcome_of(damage, saved, tmp_path / f"{trial}", trial)
        counts[damage.__name__ if outcome == "refused" else outcome] += 1
        shutil.rmtree(tmp_path / f"{trial}")
    assert counts.total() == TRIALS
    assert counts["changed nothing"] < TRIALS // 20
    assert all(counts[damage.__name__] for damage in DAMAGES)


def test_without_a_known_digest_only_a_forged_manifest_could_deceive(
    saved: Path, tmp_path: Path
) -> None:
    right = whole_state()
    honest = [damage for damage in DAMAGES if damage is not edit_the_manifest]
    for trial in range(TRIALS // 2):
        root = tmp_path / f"{trial}"
        shutil.copytree(saved / "good" / FOLDER, root / FOLDER)
        honest[trial % len(honest)](root / FOLDER, saved, random.Random(trial))
        try:
            state = restored(root, manifest_sha256=None)
        except IntegrityError:
            continue
        finally:
            shutil.rmtree(root)
        assert all(torch.equal(state[name], right[name]) for name in right)


def test_a_checkpoint_put_whole_in_the_place_of_another_is_told_by_its_digest(
    saved: Path, tmp_path: Path
) -> None:
    good = (saved / "good" / FOLDER / MANIFEST_NAME).read_bytes()
    shutil.copytree(saved / "other" / FOLDER, tmp_path / FOLDER)
    with pytest.raises(IntegrityError, match="not the manifest that was committed here"):
        restored(tmp_path, manifest_sha256=manifests.sha256(good))
