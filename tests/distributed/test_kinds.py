"""Replicas and stages on different kinds of devices in one run: emulated kinds, which reach each
other through host memory as real ones do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import plan_of, started, tiny_spec, trained
from trainmaster.errors import ExitCode
from worker.launch import SlotDevice

A, B = SlotDevice(kind="emu-a"), SlotDevice(kind="emu-b")


@pytest.mark.parametrize(
    ("ask", "devices"),
    [
        ({"replicas": 2, "stages": 2}, (A, A, B, B)),
        ({"replicas": 2, "stages": 2, "zero": 2, "shares": [5, 3]}, (A, B, B, A)),
        ({"stages": 2, "virtual": 2, "schedule": "interleaved_zero_bubble"}, (A, B)),
    ],
    ids=["replicas", "replicas and stages", "stages"],
)
def test_kinds_change_no_bit(
    tmp_path: Path, corpus: Path, ask: dict[str, Any], devices: tuple[SlotDevice, ...]
) -> None:
    spec = tiny_spec(corpus, steps=3)
    plan = plan_of(spec, **ask)
    one = trained(tmp_path / "one", spec, plan)
    several = trained(tmp_path / "several", spec, plan, devices=devices)
    assert several.series("loss") == one.series("loss")
    assert several.series("grad_norm") == one.series("grad_norm")
    assert several.weights_sha256() == one.weights_sha256()
    told = [several.events("rank_ready", rank)[0] for rank in range(plan.world_size)]
    assert [each["device_kind"] for each in told] == [device.kind for device in devices]
    ends = [several.events("rank_finished", rank)[0] for rank in range(plan.world_size)]
    assert all(each["relayed_bytes"] > 0 for each in ends), "each reached the other kind"
    assert "relayed_bytes" not in one.events("rank_finished")[0]


@pytest.mark.parametrize(
    ("ask", "optimizer", "told"),
    [
        (
            {"tensor": 2},
            {},
            "parallel.tensor: 2 needs devices of one kind at each place, but there are rank 0 on e",
        ),
        ({"replicas": 2, "zero": 3}, {}, "parallel.zero: 3 needs replicas on devices of one kind"),
        (
            {"replicas": 2},
            {"name": "adafactor"},
            "train.optimizer.name: adafactor would see only a part of layers.",
        ),
    ],
    ids=["tensor", "zero 3", "adafactor"],
)
def test_what_needs_one_kind_is_refused_by_name(
    tmp_path: Path, corpus: Path, ask: dict[str, Any], optimizer: dict[str, Any], told: str
) -> None:
    spec = tiny_spec(corpus, optimizer={"lr": 3e-3, **optimizer})
    with started(tmp_path, spec, plan_of(spec, **ask), devices=(A, B)) as generation:
        assert generation.join() == [ExitCode.BAD_SPEC] * 2
    [failed] = generation.events("rank_failed")
    assert failed["because"].startswith(told)
