"""What one layout saved, any other restores, to the last bit, and an outsider can read it all."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from tests.distributed.outsider import read_checkpoint, weights_digest
from tests.distributed.ranks import plan_of, tiny_spec, trained
from tests.distributed.rehousing import rehouse
from trainmaster.spec import RunSpec
from trainmaster.wire import Resume

# Six rows everywhere: four ranks share them as 2, 2, 2 and 0, or as 1, 2, 1 and 2.
SIX = {"layers": 4, "width": 6, "heads": 2, "context": 6}
CHAIN: dict[str, dict[str, Any]] = {
    "2x2, uneven shares": {"replicas": 2, "stages": 2, "shares": [5, 3]},
    "1x4": {"replicas": 1, "stages": 4},
    "4x1, zero 3": {"replicas": 4, "stages": 1, "zero": 3},
    "2x1x2, zero 1": {"replicas": 2, "stages": 1, "tensor": 2, "zero": 1},
    "ragged, zero 1": {
        "zero": 1,
        "pipelines": [
            {"layers": [1, 2, 1], "micro_batches": 5},
            {"layers": [4], "micro_batches": 3},
        ],
    },
    "1x2, virtual 2, offload": {
        "replicas": 1,
        "stages": 2,
        "virtual": 2,
        "schedule": "interleaved_1f1b",
        "offload": "optimizer",
    },
    "4x1, zero 2": {"replicas": 4, "stages": 1, "zero": 2},
    "2x2 again": {"replicas": 2, "stages": 2},
}


def read(resume: Resume) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return read_checkpoint(Path(urlsplit(resume.location).path))


def test_a_k03_a_chain_of_layouts_ends_with_the_tensors_it_began_with(
    tmp_path: Path, corpus: Path
) -> None:
    tiny = tiny_spec(corpus, steps=3, global_batch=16)
    spec = RunSpec.model_validate({**tiny.model_dump(mode="json"), "params": SIX})
    (first, ask), *others = CHAIN.items()
    begun = trained(tmp_path, spec, plan_of(spec, **ask), checkpoint_every=3)
    at = begun.newest()
    whole, state = read(at)
    assert weights_digest(whole) == begun.weights_sha256(), first
    assert {name.partition("/")[0] for name in whole} == {"model", "optimizer"}
    assert any(name.endswith("/exp_avg_sq") for name in whole)
    for generation, (layout, ask) in enumerate(others, start=2):
        at = rehouse(tmp_path, spec, plan_of(spec, **ask), at, generation)
        now, state_now = read(at)
        assert now.keys() == whole.keys(), layout
        for name in whole:
            assert np.array_equal(now[name], whole[name]), (layout, name)
        assert state_now == state
