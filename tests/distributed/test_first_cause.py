"""One rank ends in some way of its own: it names the cause, and its peers what they lost."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import started
from trainmaster.errors import ExitCode
from trainmaster.plan import ParallelAsk
from trainmaster.resolution import resolve
from trainmaster.spec import RunSpec
from worker.launch import Emulation


def spec_of(**params: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "faulty",
            "workload": "tests.distributed.faulty:workload",
            "params": params,
            "train": {"steps": 4, "global_batch": 12},
        }
    )


PLAN = resolve(
    ParallelAsk.model_validate({"micro_batch": 2, "stages": 2, "layers": [[0, 1], [1, 3]]}),
    num_layers=3,
    global_batch=12,
)


@pytest.mark.parametrize(
    ("fault", "exit_code", "said"),
    [
        ("raises", ExitCode.OUR_BUG, "ValueError: a value of theirs"),
        ("exits", ExitCode.OUR_BUG, "the workload ended the process: it called exit(0)"),
        ("asks_for_too_much", ExitCode.OUT_OF_MEMORY, "out of memory (RuntimeError: "),
        ("exits_at_once", 3, None),
        ("crashes", -signal.SIGSEGV, None),
    ],
)
def test_the_rank_at_fault_says_so_and_its_peer_that_it_lost_one(
    tmp_path: Path, fault: str, exit_code: int, said: str | None
) -> None:
    with started(tmp_path, spec_of(fault=fault), PLAN) as generation:
        assert generation.join(within_s=30) == [ExitCode.TRY_AGAIN, exit_code]
    [lost] = generation.events("rank_failed", rank=0)
    assert lost["because"].startswith("lost contact with another rank")
    told = [each["because"] for each in generation.events("rank_failed", rank=1)]
    assert [each[: len(said or "")] for each in told] == ([] if said is None else [said])
    if fault == "crashes":
        log = (generation.folder / "rank-1.log").read_text()
        assert "Fatal Python error: Segmentation fault" in log
        assert "in crashes" in log


def test_a_rank_that_takes_more_than_its_emulated_device_has_says_how_much(tmp_path: Path) -> None:
    small = {1: Emulation(memory_bytes=1 << 20)}
    with started(tmp_path, spec_of(), PLAN, emulation=small) as generation:
        assert generation.join()[1] == ExitCode.OUT_OF_MEMORY
    [told] = generation.events("rank_failed", rank=1)
    assert (
        "the emulated device has 1.0 MiB (memory_bytes 1048576), and the rank has"
        in (told["because"])
    )


def test_a_weight_that_is_no_number_is_refused_with_its_micro_batch(tmp_path: Path) -> None:
    with started(tmp_path, spec_of(weight="-inf"), PLAN) as generation:
        assert generation.join()[1] == ExitCode.BAD_SPEC
    [told] = generation.events("rank_failed", rank=1)
    assert "loss() gives micro-batch 0 the weight -inf" in told["because"]
